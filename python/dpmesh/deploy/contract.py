"""Contracts: the public file that the parties of a mesh agree on, and the epsilon of joining."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from dpmesh._core import __version__
from dpmesh._validate import fail
from dpmesh.algorithms.base import AnyAlgorithm, holds_for_any_rows
from dpmesh.data import Dataset
from dpmesh.defaults import Sizes
from dpmesh.defaults.run_sizes import RunSizes
from dpmesh.deploy import assembly
from dpmesh.deploy.planned import Planned
from dpmesh.deploy.round_patterns import RoundPatterns
from dpmesh.deploy.signing import digest
from dpmesh.deploy.tables import Tables
from dpmesh.deploy.terms import Party, Terms
from dpmesh.kernels.linear_model import REGRESSION
from dpmesh.keys import Key
from dpmesh.noise.secure import SecureSum
from dpmesh.privacy.plan import Plan
from dpmesh.problems import LinearProblem
from dpmesh.settings import Settings, read
from dpmesh.settings.assembler import assemble
from dpmesh.settings.format import check_format
from dpmesh.settings.parts import entries
from dpmesh.topology import Topology

PROTOCOL = 4
MOST_PARTIES = 2**16


@dataclass(frozen=True)
class Contract:
    """A contract: everything in it is public, and all parties compare its `hash`.

    Use `read_contract` for a file, `Contract.of` for its content.

    Parameters
    ----------
    settings
        The content of the file.

    Raises
    ------
    ValueError
        If something is missing or does not fit, or the algorithm does not keep its guarantee among
        parties who do not trust each other.
    """

    settings: Settings

    def __post_init__(self) -> None:
        table_names = (*(name for name, _ in _TABLES), "party", "ranges", "format")
        self.settings.known("", self.settings.content, table_names)
        check_format(self.settings)
        for name, is_required in _TABLES:
            is_required &= not (name == "problem" and "questions" in self.settings.content)
            if is_required and not self.settings.table(name):
                self.settings.fail(name, f"wanted a table [{name}]")
        assembly.refuse_calibration(self.settings)
        settings = self.settings
        rounds = self.terms.rounds
        assembly.check_modules(settings)
        assembly.check_parties(settings, self.terms, self.parties)
        sums = settings.table("algorithm").get("kind") in [*assembly.SUMS]
        if self.tables.questions is not None or sums:
            assembly.check_questions(settings, self.terms, self.tables.questions)
        elif (self.tables.columns is None) != isinstance(self.terms.features, int):
            settings.fail("contract.features", "wanted a number of features, or a table [ranges]")
        assembly.check_algorithm(settings, self.algorithm, self.topology, self.terms)
        if self.tables.network is not None:
            assembly.check_network(settings, self.tables.classifies, self.terms.numbers)
        if self.tables.questions is not None:
            settings.call(
                "questions",
                self.tables.questions.require,
                noises=self.planned.noise_scales,
                records=int(self.records.sum()),
            )
        settings.call("algorithm", self.algorithm.init, problem=self.made_up, key=self.public_key)
        if self.planned.sums is None:
            assembly.check_records(settings, self.algorithm, self.made_up, rounds)
        self.patterns.check_at_once()
        assembly.check_costs(settings, self.parties, self.cost)

    @classmethod
    def of(cls, content: Mapping[str, Any], module: str | None = None) -> Contract:
        """Return the contract of this content, as tables within tables."""
        return cls(Settings(dict(content), "contract", module=module))

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of all that the contract states, of the module it names, and of the version."""
        text = json.dumps(self.settings.content, sort_keys=True, default=str)  # dates
        module = self.settings.module
        module_bytes = [] if module is None else [Path(_file_of(module)).read_bytes()]
        version = f"{PROTOCOL} {__version__}"
        return digest(b"dpmesh contract", text.encode(), version.encode(), *module_bytes)

    @cached_property
    def terms(self) -> Terms:
        """The contract's terms of the run: rounds, delta, quorum, transport and the rest."""
        table = self.settings.table("contract")
        arguments = self.settings.arguments("contract", table, entries(Terms))
        terms: Terms = self.settings.call("contract", Terms, **arguments)
        return terms

    @cached_property
    def parties(self) -> tuple[Party, ...]:
        """The parties, in the order of the nodes."""
        tables = self.settings.content.get("party")
        if not isinstance(tables, list) or not 2 <= len(tables) < MOST_PARTIES:
            expected = f"wanted at least 2 tables [[party]], and less than {MOST_PARTIES}"
            self.settings.fail("party", expected)
        members = []
        for place, table in enumerate(tables):
            if not isinstance(table, dict):
                self.settings.fail(f"party[{place}]", f"wanted a table [[party]], got {table!r}")
            arguments = self.settings.arguments(f"party[{place}]", table, entries(Party))
            members.append(self.settings.call(f"party[{place}]", Party, **arguments))
        return tuple(members)

    @property
    def nodes(self) -> int:
        """Number of parties."""
        return len(self.parties)

    @property
    def records(self) -> Any:
        """Number of records of each party, shape (parties,)."""
        return np.array([party.records for party in self.parties])

    @cached_property
    def public_key(self) -> Key:
        """The public key of topology, turns and starts."""
        return Key.seeded(int(self.terms.public_key, 16))

    @cached_property
    def tables(self) -> Tables:
        """The parties' tables, and what is learned or asked of them."""
        return Tables(self.settings, self.terms)

    @cached_property
    def algorithm(self) -> AnyAlgorithm:
        """The algorithm, with all its public parameters."""
        sizes = RunSizes(
            nodes=self.nodes,
            rounds=self.terms.rounds,
            data=self._sizes,
            topology=lambda: self._graph,
            between_parties=True,
            sums=self._sums_of_questions,
        )
        return assemble(self.settings, sizes, kinds=assembly.algorithm_kinds())

    @cached_property
    def _graph(self) -> Topology:
        """The network that the table [topology] describes."""
        return self.settings.graph(self.nodes, self.public_key)

    def _sizes(self) -> Sizes:
        """Return the public sizes of all parties' records."""
        return Sizes(
            nodes=self.nodes,
            smallest=int(self.records.min()),
            together=int(self.records.sum()),
            largest=int(self.records.max()),
            dim=int(self._learned.dim),
            features=self.tables.features,
        )

    def _sums_of_questions(self) -> dict[str, Any]:
        """Return the parameters of sums that follow from the questions, if there are any."""
        if self.tables.questions is None:
            return {}
        return self.tables.questions.sums

    @property
    def has_one_model(self) -> bool:
        """True if all parties compute the same model, from the same totals."""
        return isinstance(self.planned.sums, SecureSum)

    @property
    def sealing(self) -> int:
        """Number of parties that must sign the same end, so that no other end has as many."""
        colluding = 0 if self.planned.sums is None else self.planned.sums.colluding
        return (self.nodes + colluding) // 2 + 1

    @cached_property
    def topology(self) -> Topology | None:
        """The gossip graph; None if messages travel by token or under masks."""
        if self.algorithm.travels == "gossip":
            return self._graph
        return None

    @property
    def dim(self) -> int:
        """Length of a model."""
        return int(self.made_up.dim)

    @property
    def models(self) -> int:
        """Number of a party's models that share no parameters: a row of each travels by token."""
        if self.topology is not None:
            return 1
        return int(self.made_up.models)

    def problem(self, records: Dataset, party: int) -> Any:
        """Return what a party learns from its own records, which are checked.

        Raises
        ------
        ValueError
            If the records are not those that the contract describes. The text depends on them and
            stays with the party.
        """
        counted = self.parties[party]
        if records.records != counted.records:
            expected = f"{counted.records} of {counted.name}, as the contract has"
            fail("records", expected, records.records)
        if records.dim != self.tables.features or records.features.dtype != self.terms.numbers:
            expected = f"{self.terms.numbers} records of {self.tables.features} features"
            fail("records", expected, f"{records.features.dtype} of {records.dim}")
        local_problem = self.problem_of(records, [np.arange(records.records)])
        return local_problem.as_node(party, self.records)

    def problem_of(self, records: Dataset, partition: Any) -> Any:
        """Return the contract's problem on these records, as `LinearProblem` takes them."""
        maker, arguments = self.tables.problem
        if self.tables.outline is not None:
            arguments = {**arguments, "outline": self.tables.outline}
        return maker(records, tuple(partition), **arguments)

    @cached_property
    def planned(self) -> Planned:
        """The planned releases of the parties, with their privacy cost."""
        return Planned(self.settings, self.terms, self.algorithm, self.made_up, self.models)

    @cached_property
    def patterns(self) -> RoundPatterns:
        """The requests of each round, from a dry run on made-up records."""
        return RoundPatterns(self.planned, self.records, self.public_key, self.made_up_column)

    @property
    def plan(self) -> Plan:
        """The privacy plan that a folder charges, as that of a contract known by its hash alone."""
        return self.planned.plan

    def cost(self, delta: float) -> float:
        """Return the epsilon of a whole run for each party's records, under the plan's claim."""
        if delta not in self._costs:
            self._costs[delta] = self.plan.cost(delta).epsilon
        return self._costs[delta]

    @cached_property
    def _costs(self) -> dict[float, float]:
        return {}

    @property
    def copies(self) -> int:
        """Number of parties that may hold a record, each of which releases it."""
        return int(getattr(self.algorithm, "copies", 1))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee beside the proof."""
        kind = type(self.algorithm)
        why = holds_for_any_rows(self.algorithm)
        if kind.__module__.startswith("dpmesh."):
            return self.plan.assumptions
        claim = f"{kind.__name__} is no algorithm of dpmesh; it says that its sensitivity holds"
        return (f"{claim} for any rows since {why}", *self.plan.assumptions)

    def party_of(self, public_key: bytes) -> int:
        """Return the number of the party with this public key.

        Raises
        ------
        ValueError
            If there is none.
        """
        keys = [party.public_key for party in self.parties]
        key_text = public_key.hex()
        if public_key not in keys:
            fail("signing_key", "that of a [[party]] of the contract", f"this folder's, {key_text}")
        return keys.index(public_key)

    @property
    def _learned(self) -> Any:
        """The made-up problem for the algorithm, centred if there is a first stage."""
        staged = "first_stage" in self.settings.content
        if staged:
            return self.made_up.centred(np.zeros(self.tables.features))
        return self.made_up

    @property
    def smallest(self) -> int:
        """The number of the party with the fewest records."""
        return int(self.records.argmin())

    @cached_property
    def made_up(self) -> Any:
        """The problem of the party with the fewest records, which are all 0: nobody's."""
        shape = self.records[self.smallest], self.tables.features
        if self.tables.network is None and "first_stage" not in self.settings.content:
            features: Any = sparse.csr_array(shape, dtype=self.terms.numbers)
        else:
            features = np.zeros(shape, self.terms.numbers)
        problem = self.settings.call(
            "problem",
            self.problem_of,
            records=self._made_up_records(features),
            partition=[np.arange(shape[0])],
        )
        return problem.as_node(self.smallest, self.records)

    @cached_property
    def made_up_column(self) -> Any:
        """The same problem with one feature alone, on which rounds are played in no time.

        It is the whole problem where the algorithm knows the number of its parameters.
        """
        maker, arguments = self.tables.problem
        is_fixed = self.tables.network is not None or "first_stage" in self.settings.content
        if is_fixed or maker is not LinearProblem or self.planned.sums is not None:
            return self.made_up
        shape = self.records[self.smallest], 1
        records = self._made_up_records(sparse.csr_array(shape, dtype=self.terms.numbers))
        problem = LinearProblem(records, (np.arange(shape[0]),), **arguments)
        return problem.as_node(self.smallest, self.records)

    def _made_up_records(self, features: Any) -> Dataset:
        """Return records with labels that every loss takes."""
        _, arguments = self.tables.problem
        signs = self.tables.network is None and not arguments.get("classes")
        label = int(signs and arguments.get("loss") not in REGRESSION)
        return Dataset(features, np.full(features.shape[0], label, np.int64), "nobody's")


_TABLES = (
    *(("contract", True), ("problem", True), ("algorithm", True)),
    *(("topology", False), ("questions", False), ("first_stage", False)),
)


def read_contract(path: str | Path, module: str | None = None) -> Contract:
    """Return the contract in a TOML file.

    Parameters
    ----------
    path
        The file.
    module
        A module of your own, whose algorithms the file can name.

    Raises
    ------
    ValueError
        If something in it does not fit; the text names the line.
    OSError
        If it cannot be read.
    """
    return Contract(read(path, module))


def _file_of(module: str) -> str:
    """Return the file of a module's source."""
    return str(inspect.getsourcefile(import_module(module)))
