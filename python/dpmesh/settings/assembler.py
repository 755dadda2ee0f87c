"""Construction of an algorithm from the tables of an experiment file or a contract.

The tables [algorithm] and [first_stage] describe an algorithm. `assemble` fills in the parameters
that follow from public sizes (number of nodes, records, rounds), calibrates the noise to an epsilon
if the file states one, and puts the first stage before the algorithm. A *first stage* is private
centering, and optionally a private second moment (`dpmesh.algorithms.FirstStage`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, TypeAlias

from dpmesh._validate import instance
from dpmesh.algorithms.base import AN_ALGORITHM, NOISES, Algorithm, AnyAlgorithm
from dpmesh.defaults.run_sizes import Parameters, RunSizes, names_following
from dpmesh.privacy.budget import Budget
from dpmesh.settings.files import Settings
from dpmesh.settings.format import refuse_old_keys, refuse_old_noise
from dpmesh.settings.parts import NODE_COUNTS, SECTIONS, Field, Maker, part_fields
from dpmesh.settings.stage import RULE, Stage

Table: TypeAlias = dict[str, Any]
"""Content of a table of a file."""

_OF_SIZES = ("records", "dim", "rounds")
"""Parameters of an algorithm that an experiment file may leave out."""


def assemble(
    settings: Settings,
    sizes: RunSizes,
    *,
    kinds: Mapping[str, Maker] | None = None,
    delta: float | None = None,
) -> AnyAlgorithm:
    """Return the algorithm that a file describes, with all its public parameters.

    Parameters
    ----------
    settings
        The file. In an experiment file an ``epsilon`` may stand for the noise of any algorithm.
    sizes
        Public sizes of the run.
    kinds
        The classes that the table [algorithm] can name; None for those of experiment files.
    delta
        Delta of a budget whose table states none; None in contracts, which calibrate no noise.

    Raises
    ------
    ValueError
        If a setting is invalid; the message names the file, the line and the key.
    """
    if kinds is None:
        kinds = SECTIONS["algorithm"]
    table = dict(settings.table("algorithm"))
    maker = settings.maker("algorithm", table, kinds)
    refuse_old_keys(settings, "algorithm", table, maker)
    assembly = _Assembly(settings=settings, sizes=sizes, kinds=kinds, table=table, maker=maker)
    if sizes.between_parties:
        return assembly.of_contract()
    return assembly.of_experiment(delta)


def fail_without_topology(settings: Settings, algorithm: str) -> NoReturn:
    """Raise the error of a file without the network that its algorithm needs."""
    problem = f"wanted a table [topology] for {algorithm}, got none"
    settings.fail("topology", f'{problem}; add lines such as: [topology] kind = "complete"')


@dataclass(frozen=True, kw_only=True)
class _Assembly:
    """Tables of one algorithm, and the sizes from which missing parameters follow.

    Parameters
    ----------
    settings, sizes, kinds
        As for `assemble`.
    table
        Content of the table [algorithm].
    maker
        Class or function that the table names.
    """

    settings: Settings
    sizes: RunSizes
    kinds: Mapping[str, Maker]
    table: Table
    maker: Maker

    @property
    def fields(self) -> dict[str, Field]:
        """The keys that the table may have, by name."""
        return part_fields(self.maker)

    def of_contract(self) -> AnyAlgorithm:
        """Return the algorithm of a contract, which must not state derived parameters."""
        derived = self.sizes.following(self.maker) | self._sums_of_questions()
        self._refuse_stated("algorithm", self.table, derived)
        table = self.table | {name: value for name, value in derived.items() if name in self.fields}
        algorithm = self._built(table)
        if "first_stage" in self.settings.content:
            if getattr(algorithm, "secure_sum", None) is None:
                problem = (
                    "under a contract private centering needs secure aggregation over all "
                    "parties: in gossip, a party that misses a message has another centre than "
                    "the others, which no proof covers"
                )
                self.settings.fail("first_stage", problem)
            return self._after_stage(self._stage(), algorithm)
        return algorithm

    def of_experiment(self, delta: float | None) -> AnyAlgorithm:
        """Return the algorithm of an experiment file, which may leave out derived parameters."""
        settings = self.settings
        stage = self._stage() if "first_stage" in settings.content else None
        if self._needs_network and self.sizes.topology is None:
            fail_without_topology(settings, self.maker.__name__)
        table = self.table | self._missing_parameters()
        if "epsilon" in table and "epsilon" not in self.fields:
            return self._calibrated(table, stage, delta)
        noise = next((name for name in NOISES if self._is_missing(name)), None)
        if noise is not None:
            # An unknown key, such as a misspelt one, is reported rather than the missing noise.
            settings.known("algorithm", table, (*self.fields, "kind", "epsilon"))
            problem = f"wanted epsilon, or {noise}, for {self.maker.__name__}"
            if "sweep" in settings.content:
                problem += "; tables in [sweep] replace all of [algorithm]"
            settings.fail("algorithm", problem)
        algorithm = self._built(table)
        if stage is None:
            return algorithm
        return self._after_stage(stage, algorithm)

    def _built(self, table: Table) -> AnyAlgorithm:
        """Build the algorithm of a complete table."""
        settings = self._filling_parts()
        nodes = self.sizes.nodes
        algorithm: AnyAlgorithm = settings.make(
            "algorithm", table, self.kinds, nodes=nodes, clients=nodes, **self._network()
        )
        self._check(algorithm)
        refuse_old_noise(settings, algorithm)
        return algorithm

    def _check(self, algorithm: object) -> None:
        """Fail unless a function of a user's module returned an algorithm."""
        check = partial(instance, "algorithm", algorithm, AN_ALGORITHM, Algorithm)
        self.settings.call("algorithm", check)

    def _sums_of_questions(self) -> Parameters:
        """Return the parameters of sums that follow from questions of private statistics."""
        if "sites" not in names_following(self.maker):
            return {}
        return self.sizes.sums()

    def _network(self) -> Parameters:
        """Return the argument `topology` of an algorithm that has such a parameter; else none."""
        if not self._needs_network:
            return {}
        return self.sizes.parameters(("topology",))

    @property
    def _needs_network(self) -> bool:
        """True if the network is a parameter of the algorithm."""
        return "topology" in inspect.signature(self.maker).parameters

    def _missing_parameters(self) -> Parameters:
        """Return required parameters that the table leaves out, from the sizes of data and run.

        `records` is the number of all records where the class says so, else of the smallest node.
        """
        parameters = {}
        for name in _OF_SIZES:
            if not self._is_missing(name):
                continue
            if name == "records" and name not in names_following(self.maker):
                parameters[name] = self.sizes.of_data().fewest_records
            else:
                parameters |= self.sizes.parameters((name,))
        return parameters

    def _is_missing(self, name: str) -> bool:
        """Return True if the algorithm requires a parameter that its table leaves out."""
        if name not in self.fields or name in self.table:
            return False
        parameter = inspect.signature(self.maker).parameters[name]
        return parameter.default is parameter.empty

    def _filling_parts(self) -> Settings:
        """Return settings that fill in derived parameters of the algorithm's inner tables."""
        sizes = self.sizes
        if getattr(self.maker, "communication", None) != "gossip":
            sizes = replace(sizes, topology=None)

        def parameters_of(path: str, table: Table, part: Maker) -> Parameters:
            """Return the parameters of a part that follow from the sizes."""
            parameters = sizes.following(part)
            if sizes.between_parties and path != "algorithm.noise":
                self._refuse_stated(path, table, parameters)
            return parameters

        return replace(self.settings, filled=parameters_of)

    def _refuse_stated(self, path: str, table: Table, derived: Parameters) -> None:
        """Fail at a key of a contract whose value follows from its other tables."""
        for name in derived:
            if name in table:
                self.settings.fail(f"{path}.{name}", "follows from the contract; remove it")

    def _stage(self) -> Stage:
        """Return the first stage that the table [first_stage] describes."""
        table = self.settings.table("first_stage")
        refuse_old_keys(self.settings, "first_stage", table, Stage)
        stage: Stage = self.settings.make("first_stage", table, SECTIONS["first_stage"])
        return stage

    def _after_stage(
        self, stage: Stage, algorithm: AnyAlgorithm, budget: Budget | None = None
    ) -> AnyAlgorithm:
        """Return an algorithm with a first stage before it."""
        data = self.sizes.of_data()
        staged: AnyAlgorithm = self.settings.call(
            "first_stage",
            stage.before,
            algorithm=algorithm,
            sites=self.sizes.nodes,
            records=data.total_records,
            dim=data.features,
            budget=budget,
        )
        return staged

    def _calibrated(
        self, table: Table, stage: Stage | None, default_delta: float | None
    ) -> AnyAlgorithm:
        """Return the algorithm with noise calibrated to the epsilon of its table."""
        settings = self._filling_parts()
        noise = next((name for name in NOISES if name in self.fields), None)
        epsilon = settings.convert("algorithm.epsilon", table.pop("epsilon"), float | None)
        stated_delta = table.get("delta")
        if "delta" not in self.fields:
            table.pop("delta", None)
        if noise is None:
            settings.fail("algorithm.epsilon", "wanted none: it has no noise to calibrate")
        if noise in table:
            settings.fail("algorithm.epsilon", f"wanted either it or {noise}, got both")
        if epsilon is None:  # "none": without noise
            algorithm = self._built({**table, noise: "none"})
            if stage is None:
                return algorithm
            return self._after_stage(stage, algorithm)
        delta = default_delta
        if stated_delta is not None:
            delta = settings.convert("algorithm.delta", stated_delta, float)
        if not delta:
            settings.fail("run.delta", "wanted a positive number such as 1e-5, for Gaussian noise")
        if not hasattr(self.maker, "for_budget"):
            settings.fail("algorithm.epsilon", "wanted none for a function of one's own")
        public = self._public_parameters(settings, table, noise)
        budget: Budget = settings.call("algorithm", Budget, epsilon=epsilon, delta=delta)
        if stage is None:
            run_budget = {"epsilon": epsilon, "delta": delta, "rounds": self.sizes.rounds}
            arguments = run_budget | public
            calibrated: AnyAlgorithm = settings.call(
                "algorithm", self.maker.for_budget, **arguments
            )
            self._check(calibrated)
            return calibrated
        return self._calibrated_after_stage(public, noise, stage, budget)

    def _public_parameters(self, settings: Settings, table: Table, noise: str) -> Parameters:
        """Return all arguments of the algorithm but its noise, converted to their types.

        Here `noise` is the name of the parameter that sets the noise, one of `NOISES`.
        """
        stated = {name: value for name, value in table.items() if name != "kind"}
        # Any noise passes the check that required keys are there; it is removed below.
        public = settings.arguments(
            "algorithm", {**stated, noise: 1.0}, self.fields, self.maker.__name__
        )
        del public[noise]
        missing_counts = [name for name in NODE_COUNTS if name in self.fields and name not in table]
        counts = dict.fromkeys(missing_counts, self.sizes.nodes)
        return public | counts | self._network()

    def _calibrated_after_stage(
        self, public: Parameters, noise: str, stage: Stage, budget: Budget
    ) -> AnyAlgorithm:
        """Return the algorithm with noise such that it and the first stage use the budget.

        The noise of the first stage is stated as a number, or follows from the budget (`RULE`).
        """

        def with_noise(scale: float) -> AnyAlgorithm:
            """Return the algorithm with this noise, after the first stage."""
            parameters = {**public, noise: scale}
            algorithm: AnyAlgorithm = self.settings.call("algorithm", self.maker, **parameters)
            return self._after_stage(stage, algorithm, budget)

        with_noise(1.0)  # raises the errors of other parameters, which are no lack of budget
        try:
            return with_noise(budget.calibrate(with_noise, self.sizes.rounds))
        except ValueError as error:
            problem = f'wanted more noise, or "{RULE}", within {budget} ({error})'
            self.settings.fail("first_stage", problem)
