"""The contract: a public file with all that the parties of a run agree on, and its epsilon.

Every party reads the file, compares its hash with the others', and computes from it alone which
messages the run has, which noise they carry, and what taking part costs in epsilon.
"""

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
from dpmesh.algorithms.base import AnyAlgorithm, reason_messages_need_no_trust
from dpmesh.data import Dataset
from dpmesh.defaults import Sizes
from dpmesh.defaults.run_sizes import RunSizes
from dpmesh.deploy import assembly
from dpmesh.deploy.planned import PlannedReleases
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
from dpmesh.settings.parts import part_fields
from dpmesh.topology import Topology

PROTOCOL = 4
"""Version of the messages between nodes and router, part of the hash of each contract."""
MOST_PARTIES = 2**16
_REQUIRED_TABLES = ("contract", "problem", "algorithm")
"""Tables of every contract; one that asks questions has no problem."""
_OPTIONAL_TABLES = ("topology", "questions", "first_stage", "party", "ranges", "format")


@dataclass(frozen=True)
class Contract:
    """A contract of several parties, checked as a whole.

    Each party makes it from the same file, by `read_contract`, or from the same content, by
    `Contract.of`. It has no secrets and no state: everything in it is public, and follows from the
    file. The parties sign its `hash`.

    Parameters
    ----------
    settings
        The content of the file.

    Raises
    ------
    ValueError
        If a table is missing or wrong, if the algorithm has no guarantee among parties that do not
        trust each other, or if a party's epsilon is too small.
    """

    settings: Settings

    def __post_init__(self) -> None:
        self._check_tables()
        self._check_parties_and_questions()
        self._check_algorithm()
        assembly.check_costs(self.settings, self.parties, self.cost)

    def _check_tables(self) -> None:
        """Refuse unknown or missing tables, and another format."""
        settings = self.settings
        settings.known("", settings.content, (*_REQUIRED_TABLES, *_OPTIONAL_TABLES))
        check_format(settings)
        for name in _REQUIRED_TABLES:
            needs_none = name == "problem" and "questions" in settings.content
            if not needs_none and not settings.table(name):
                settings.fail(name, f"wanted a table [{name}]")
        assembly.refuse_calibration(settings)

    def _check_parties_and_questions(self) -> None:
        """Refuse parties, questions or features that do not fit the terms."""
        settings = self.settings
        terms = self.terms
        tables = self.tables
        assembly.check_modules(settings)
        assembly.check_parties(settings, terms, self.parties)
        answers_questions = settings.table("algorithm").get("kind") in [*assembly.SUMS]
        if tables.questions is not None or answers_questions:
            assembly.check_questions(settings, terms, tables.questions)
            return
        has_ranges = tables.columns is not None
        if has_ranges == isinstance(terms.features, int):
            settings.fail("contract.features", "wanted a number of features, or a table [ranges]")

    def _check_algorithm(self) -> None:
        """Refuse an algorithm without a guarantee between parties, or unfit for their records.

        The first rounds are played on dummy records.
        """
        settings = self.settings
        tables = self.tables
        assembly.check_algorithm(settings, self.algorithm, self.topology, self.terms)
        if tables.network is not None:
            assembly.check_network(settings, tables.classifies, self.terms.numbers)
        if tables.questions is not None:
            settings.call(
                "questions",
                tables.questions.require,
                noises=self.planned.noise_scales,
                records=int(self.records.sum()),
            )
        settings.call(
            "algorithm", self.algorithm.init, problem=self.dummy_problem, key=self.public_key
        )
        if self.planned.first_sum is None:
            assembly.check_records(settings, self.algorithm, self.dummy_problem, self.terms.rounds)
        self.patterns.check_at_once()

    @classmethod
    def of(cls, content: Mapping[str, Any], module: str | None = None) -> Contract:
        """Return the contract with this content: dictionaries, as of a TOML file.

        Parameters
        ----------
        content
            The tables by name.
        module
            A Python module whose algorithms the content names.
        """
        return cls(Settings(dict(content), "contract", module=module))

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 of the content, of the source of its module, and of the version of dpmesh.

        Of the order of lines it covers that of the columns in [ranges], in which nodes encode them.
        """
        text = json.dumps(self.settings.content, sort_keys=True, default=str)  # dates
        columns = [*self.settings.table("ranges")]
        if columns:
            text += json.dumps(columns)
        module_bytes: list[bytes] = []
        if self.settings.module is not None:
            module_bytes = [Path(_file_of(self.settings.module)).read_bytes()]
        version = f"{PROTOCOL} {__version__}"
        return digest(b"dpmesh contract", text.encode(), version.encode(), *module_bytes)

    @cached_property
    def terms(self) -> Terms:
        """Rounds, quorum, deadline and further terms, of the table [contract]."""
        table = self.settings.table("contract")
        arguments = self.settings.arguments("contract", table, part_fields(Terms))
        terms: Terms = self.settings.call("contract", Terms, **arguments)
        return terms

    @cached_property
    def parties(self) -> tuple[Party, ...]:
        """The parties, in the order of the file: a party's place in it is its number."""
        tables = self.settings.content.get("party")
        if not isinstance(tables, list) or not 2 <= len(tables) < MOST_PARTIES:
            expected = f"wanted at least 2 tables [[party]], and less than {MOST_PARTIES}"
            self.settings.fail("party", expected)
        parties = []
        for number, table in enumerate(tables):
            place = f"party[{number}]"
            if not isinstance(table, dict):
                self.settings.fail(place, f"wanted a table [[party]], got {table!r}")
            arguments = self.settings.arguments(place, table, part_fields(Party))
            parties.append(self.settings.call(place, Party, **arguments))
        return tuple(parties)

    @property
    def nodes(self) -> int:
        """Number of parties: each has one node."""
        return len(self.parties)

    @property
    def records(self) -> Any:
        """Number of records of each party, shape (parties,): it is public."""
        return np.array([party.records for party in self.parties])

    @cached_property
    def public_key(self) -> Key:
        """Key of all public randomness: of the topology, of turns, of the first model."""
        return Key.seeded(int(self.terms.public_key, 16))

    @cached_property
    def tables(self) -> Tables:
        """The columns of the parties' tables, and the model or the questions about them."""
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
            fewest_records=int(self.records.min()),
            total_records=int(self.records.sum()),
            most_records=int(self.records.max()),
            dim=int(self._learned.dim),
            features=self.tables.features,
        )

    def _sums_of_questions(self) -> dict[str, Any]:
        """Return the algorithm's parameters that follow from the questions, if there are any."""
        if self.tables.questions is None:
            return {}
        return self.tables.questions.sums

    @property
    def has_one_model(self) -> bool:
        """True if all parties compute the same model, from the totals of one sum for all."""
        return isinstance(self.planned.first_sum, SecureSum)

    @property
    def seals_needed(self) -> int:
        """Number of parties whose signatures end a run: no other end can have as many.

        Colluding parties may sign two ends; all others sign one.
        """
        colluding = 0
        if self.planned.first_sum is not None:
            colluding = self.planned.first_sum.colluding
        return (self.nodes + colluding) // 2 + 1

    @cached_property
    def topology(self) -> Topology | None:
        """The gossip graph; None if messages are sent by token, or summed for all parties."""
        if self.algorithm.communication == "gossip":
            return self._graph
        return None

    @property
    def dim(self) -> int:
        """Length of a party's parameters, those of all its `models` together.

        For questions it is the length of their sums of all rounds together.
        """
        return int(self.dummy_problem.dim)

    @property
    def models(self) -> int:
        """Number of independent models, such as one of each class, whose rows are sent by token."""
        if self.topology is not None:
            return 1
        return int(self.dummy_problem.models)

    def problem(self, records: Dataset, party: int) -> Any:
        """Return a party's learning problem from its records, which it keeps to itself.

        Raises
        ------
        ValueError
            If the contract describes other records. The text depends on the records: do not send it
            to anybody.
        """
        stated = self.parties[party]
        if records.records != stated.records:
            expected = f"{stated.records} of {stated.name}, as the contract has"
            fail("records", expected, records.records)
        if records.dim != self.tables.features or records.features.dtype != self.terms.numbers:
            expected = f"{self.terms.numbers} records of {self.tables.features} features"
            fail("records", expected, f"{records.features.dtype} of {records.dim}")
        local_problem = self.problem_of(records, [np.arange(records.records)])
        return local_problem.as_node(party, self.records)

    def problem_of(self, records: Dataset, partition: Any) -> Any:
        """Return the contract's learning problem on records of one party or more.

        Parameters
        ----------
        records
            The records of all these parties.
        partition
            For each party the places of its records among them.
        """
        problem = self.tables.problem
        if self.tables.outline is None:
            return problem.maker(records, tuple(partition), **problem.arguments)
        return problem.maker(
            records, tuple(partition), **problem.arguments, outline=self.tables.outline
        )

    @cached_property
    def planned(self) -> PlannedReleases:
        """The releases that the parties plan, and their privacy cost."""
        return PlannedReleases(
            self.settings, self.terms, self.algorithm, self.dummy_problem, self.models
        )

    @cached_property
    def patterns(self) -> RoundPatterns:
        """The messages of each round, from a dry run on dummy records."""
        return RoundPatterns(self.planned, self.records, self.public_key, self.dummy_column)

    @property
    def plan(self) -> Plan:
        """The privacy plan, which a party's folder charges when the party joins."""
        return self.planned.plan

    def cost(self, delta: float) -> float:
        """Return the epsilon of a whole run at a delta, the same for the records of each party."""
        if delta not in self._costs:
            self._costs[delta] = self.plan.cost(delta).epsilon
        return self._costs[delta]

    @cached_property
    def _costs(self) -> dict[float, float]:
        """The epsilons that `cost` has computed, by delta."""
        return {}

    @property
    def copies(self) -> int:
        """Number of parties that may have the same record: each of them releases it."""
        return int(getattr(self.algorithm, "copies", 1))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee that no party can check, as sentences."""
        kind = type(self.algorithm)
        if kind.__module__.startswith("dpmesh."):
            return self.plan.assumptions
        reason = reason_messages_need_no_trust(self.algorithm)
        claim = f"{kind.__name__} is no algorithm of dpmesh; it says that its sensitivity holds"
        return (f"{claim} for any rows since {reason}", *self.plan.assumptions)

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
        """The dummy problem as the algorithm sees it: centred after a first stage."""
        if "first_stage" in self.settings.content:
            return self.dummy_problem.centred(np.zeros(self.tables.features))
        return self.dummy_problem

    @property
    def smallest_party(self) -> int:
        """The number of the party with the fewest records."""
        return int(self.records.argmin())

    @cached_property
    def dummy_problem(self) -> Any:
        """The problem of the party with the fewest records, with zeros in place of its records."""
        shape = self.records[self.smallest_party], self.tables.features
        features: Any = np.zeros(shape, self.terms.numbers)
        if self.tables.network is None and "first_stage" not in self.settings.content:
            features = sparse.csr_array(shape, dtype=self.terms.numbers)
        problem = self.settings.call(
            "problem",
            self.problem_of,
            records=self._dummy_records(features),
            partition=[np.arange(shape[0])],
        )
        return problem.as_node(self.smallest_party, self.records)

    @cached_property
    def dummy_column(self) -> Any:
        """The problem of dry runs: `dummy_problem` with one feature only, so that rounds are fast.

        It is `dummy_problem` itself where the number of features must stay: for neural networks
        and all problems but a `LinearProblem`, with a first stage, and with secure aggregation.
        """
        terms = self.tables.problem
        is_fixed = self.tables.network is not None or "first_stage" in self.settings.content
        if is_fixed or terms.maker is not LinearProblem or self.planned.first_sum is not None:
            return self.dummy_problem
        shape = self.records[self.smallest_party], 1
        records = self._dummy_records(sparse.csr_array(shape, dtype=self.terms.numbers))
        problem = LinearProblem(records, (np.arange(shape[0]),), **terms.arguments)
        return problem.as_node(self.smallest_party, self.records)

    def _dummy_records(self, features: Any) -> Dataset:
        """Return records with these features, and a label that the problem's loss accepts."""
        arguments = self.tables.problem.arguments
        has_classes = self.tables.network is not None or arguments.get("classes")
        label = 0
        if not has_classes and arguments.get("loss") not in REGRESSION:
            label = 1  # a binary loss has the labels -1 and 1
        return Dataset(features, np.full(features.shape[0], label, np.int64), "nobody's")


def read_contract(path: str | Path, module: str | None = None) -> Contract:
    """Read a contract from a TOML file, and check it as a whole.

    Parameters
    ----------
    path
        The file.
    module
        A Python module of yours, whose algorithms the file names.

    Raises
    ------
    ValueError
        If the contract is refused, see `Contract`; the text names the key or the line.
    OSError
        If it cannot be read.
    """
    return Contract(read(path, module))


def _file_of(module: str) -> str:
    """Return the file of a module's source."""
    return str(inspect.getsourcefile(import_module(module)))
