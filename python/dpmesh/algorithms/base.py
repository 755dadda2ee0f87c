"""The base class of algorithms: a round that yields messages, and a plan of its releases.

    def round(self, state, t, problem, key):
        b = yield Message(state.x, self.release_of(t))      # private -> released -> received
        return State(b - alpha * g(b))                      # received -> private

The loop that drives a round releases what it yields by the mechanism of its `Release`, with noise
of a stream of its own, carries it, records it, and sends back what arrived. An algorithm never
holds a stream of noise, a network or a ledger: nothing can be sent past the mechanism.

A round may release several times: it yields as many messages, and `release_of` returns a tuple of
their releases. Four rules hold for them.

- `sensitivity(t)` is that of the last of these releases that depends on the data.
- The first message of a row in a round draws from the stream of (key, NOISE, round, row), each
  further one from a stream of its own.
- What follows from earlier releases and public numbers is released by `NoNoise` with a
  `Sensitivity` of 0, whose reason says so: it costs nothing.
- ``travels=False`` releases a value to its own node alone, which may go on with it.

An algorithm is a frozen dataclass of its public parameters. State is a frozen record of arrays with
the nodes on the first axis; randomness comes in through `key`, and a state never holds any.
"""

from __future__ import annotations

import inspect
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._arrays import floats
from dpmesh._privacy_types import Floats, NeighboringRelation, Released, Unit
from dpmesh._ragged import Indices, Numbers
from dpmesh._validate import fail, instance, integer, require_methods
from dpmesh.algorithms.clipping import Clipping
from dpmesh.algorithms.messages import Releases, Round, Travel
from dpmesh.algorithms.worst_case import CROWD_DELTA, AuditSize, Coins, Crowd, Pair
from dpmesh.kernels.linear_model import Batches
from dpmesh.keys import Key, Purpose
from dpmesh.noise.independent import strategy_of
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.plan import Plan, each_round
from dpmesh.privacy.releases import Release
from dpmesh.privacy.views.reaction import NotProved, Reaction
from dpmesh.privacy.views.steps import LossFacts
from dpmesh.problems import LinearProblem, ModelProblem, Problem
from dpmesh.problems.canaries import canary_records

StateT = TypeVar("StateT")
ProblemT = TypeVar("ProblemT", contravariant=True)
AlgorithmT = TypeVar("AlgorithmT", bound="Algorithm[Any, Any]")

NOISES: Mapping[str, str] = {
    "noise_multiplier": "noise multiplier",
    "noise_to_sensitivity": "noise over the sensitivity",
    "noise_std": "standard deviation",
}
"""Descriptions of the parameters that set the noise; an algorithm has one of them, or epsilon."""

KNOWN_TO_ALL = {"known_to_all": True}
"""Metadata of a state's field that all nodes know: its array has no row for each node."""

AN_ALGORITHM = "an algorithm of dpmesh.algorithms, or a subclass of Algorithm of your own"


@cache
def _signature_of(init: Any) -> inspect.Signature:
    """Return the signature of an `__init__` without `self`."""
    signature = inspect.signature(init)
    return signature.replace(parameters=[*signature.parameters.values()][1:])


class _SignatureOfInit:
    """The parameters of a class, from `__init__`: early releases of Python 3.11 read `__new__`."""

    def __get__(self, instance: object, kind: type) -> inspect.Signature:
        return _signature_of(kind.__init__)  # type: ignore[misc]  # of this very class


class Algorithm(ABC, Generic[StateT, ProblemT]):
    """Base class of private learning algorithms: rounds, releases and their plan."""

    __signature__ = _SignatureOfInit()

    travels: ClassVar[Travel]

    parameters_are_released: ClassVar[bool] = False
    """True if `parameters` follow from releases alone, so that the guarantee covers them."""

    any_rows: ClassVar[str] = ""
    """Reason why the sensitivity holds for any messages of other nodes, honest or malicious.

    Parties of a contract then need not trust each other's messages. Empty if that is not proved. A
    subclass must state it again: see `holds_for_any_rows`.
    """

    follows_from_sizes: ClassVar[tuple[str, ...]] = ()
    """Parameters that the sizes of all nodes together determine: no contract may state them.

    Files may leave them out. Without ``"records"`` here, those are of the smallest node.
    """

    public_coins: ClassVar[frozenset[Purpose]] = frozenset({Purpose.INIT})
    """The purposes whose streams all nodes must share; a node's others are its own secret."""

    takes_directed: ClassVar[bool] = False
    """True if it learns over a `PushMatrix`, whose columns sum to 1 and rows need not."""

    no_views: ClassVar[str] = ""
    """Reason why no epsilon under a weaker adversary is proved, where that holds for all runs."""

    counts_copies: ClassVar[bool] = False
    """True if `release_of` already covers `copies`: the most nodes that hold the same record."""

    def __new__(cls: type[AlgorithmT], *bare: Any, **given: Any) -> AlgorithmT:
        """Refuse a budget where noise is the parameter; list all names if one is unknown."""
        parameters = getattr(cls, "__dataclass_fields__", {})
        noise = next((name for name in NOISES if name in parameters), None)
        for name in ("epsilon", "delta"):
            if noise is not None and name in given and name not in parameters:
                call = f"{cls.__name__}.for_budget(epsilon=.., delta=.., rounds=.., ..)"
                fail(name, f"{noise}, which {call} finds for a budget", given[name])
        takes = cls.__signature__
        try:
            if bare or given:  # copy and pickle call it without arguments
                takes.bind(*bare, **given)
        except TypeError as error:
            names = ", ".join(takes.parameters)
            raise TypeError(f"{cls.__name__}: {error}; it takes by name: {names}") from None
        return super().__new__(cls)

    @staticmethod
    def of_part(path: str) -> Any:
        """Return a property that reads an attribute of a part, such as "contribution.unit"."""
        return property(attrgetter(path), doc=f"As `{path}`.")

    @classmethod
    def for_budget(
        cls: type[AlgorithmT],
        *parts: Any,
        epsilon: float,
        delta: float = 0.0,
        rounds: int | None = None,
        **public: Any,
    ) -> AlgorithmT:
        """Return the algorithm with the least noise at which a run is (epsilon, delta)-DP.

        The guarantee is that of the class: see its unit of privacy, neighbouring relation and
        adversary.

        Parameters
        ----------
        parts
            Positional parameters of the algorithm, such as the contribution of
            `FederatedLearning`.
        epsilon, delta
            Largest epsilon and delta of the whole run (target_epsilon and target_delta in Opacus).
        rounds
            Number of rounds of the run. It may be omitted if a parameter of the algorithm fixes it.
        public
            Further parameters of the algorithm by name, except for its noise, all public.

        Returns
        -------
        The algorithm with its noise parameter filled in. An algorithm that has the parameters
        `epsilon` and `delta` gets these values.

        Raises
        ------
        ValueError
            If a number is out of its range, `rounds` is missing, or no noise keeps the budget:
            Gaussian noise needs a positive delta.
        """
        parameters = getattr(cls, "__dataclass_fields__", {})
        if "epsilon" in parameters:
            return cls(*parts, epsilon=epsilon, delta=delta, **public)
        if rounds is not None and "rounds" in parameters:
            public["rounds"] = rounds
        noise = next((name for name in NOISES if name in parameters), None)
        if noise is None:
            fail(cls.__name__, f"an algorithm with one of {', '.join(NOISES)}", "none")

        def make(scale: float) -> AlgorithmT:
            return cls(*parts, **{noise: scale}, **public)

        trial = make(1.0)
        secure = trial.least_secure_noise(epsilon, delta)
        if secure is not None:
            return make(secure)
        rounds = trial.run_length if rounds is None else rounds
        if rounds is None:
            fail("rounds", "the length of the run", None)
        guess = 1.0  # the search begins where the noise is as large as the sensitivity
        if isinstance(trial, Clipping):
            guess /= trial.relative(1.0)
        return make(Budget(epsilon, delta=delta).calibrate(make, rounds, guess=guess))

    def least_secure_noise(self, epsilon: float, delta: float) -> float | None:
        """Return the least noise at which a run with secure aggregation is (epsilon, delta)-DP.

        It is a value of the algorithm's noise parameter, such as `noise_multiplier`. None without
        secure aggregation.
        """
        return None

    @property
    def rewinds(self) -> bool:
        """True if a round that fails leaves the state before it unchanged."""
        return True

    @property
    def releases_decide(self) -> bool:
        """True if earlier releases decide which planned releases happen; all planned ones count."""
        return False

    def refused_by_parties(self) -> Mapping[str, str]:
        """Return parameter values that a contract between parties refuses, as no proof covers them.

        The keys are names of parameters, the values what to set instead.
        """
        return {}

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        """Neighbouring relation of the guarantee: ``"replace_one"`` or ``"add_remove"``."""
        return "replace_one"

    @property
    def unit(self) -> Unit:
        """Unit of privacy: ``"record"``, or ``"user"`` for a client with all of its records."""
        return "record"

    @property
    def run_length(self) -> int | None:
        """Number of rounds that the parameters fix; None if they fix none.

        Where nodes take turns, it counts the rounds of one node.
        """
        return getattr(self, "rounds", None)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee that this package cannot check, in words.

        By default those of correlated noise, such as trust between link partners; none for
        independent noise.
        """
        strategy = strategy_of(getattr(self, "noise", None))
        if strategy is None:
            return ()
        return strategy.assumptions

    @abstractmethod
    def release_of(self, t: int) -> Releases:
        """Return the public description of round t's releases: mechanism, sensitivity, sampling.

        It follows from public numbers alone; `plan` collects it over all rounds. Where the run
        decides (for example whose turn it is), it is the most that can be released.
        """

    @abstractmethod
    def init(self, problem: ProblemT, key: Key) -> StateT:
        """Return the state before round 0, which must not depend on the data."""

    @abstractmethod
    def round(self, state: StateT, t: int, problem: ProblemT, key: Key) -> Round[StateT]:
        """Run round t, counted from 0, as a generator.

        It yields each `Message` before noise, is sent the received values, and returns the next
        state.
        """

    @abstractmethod
    def parameters(self, state: StateT) -> Floats:
        """Return each node's current model, shape (nodes, dim), for evaluation.

        No guarantee covers it unless `parameters_are_released`. Publish `published`.
        """

    def reaction(self, rounds: int, problem: LinearProblem | LossFacts) -> Reaction | NotProved:
        """Return bounds on how far messages move with a record and with earlier messages.

        Epsilon under a weaker adversary (network DP) rests on these public numbers; see
        `dpmesh.privacy.views`. `NotProved` if there is no proof.

        Parameters
        ----------
        rounds
            Number of rounds of the run.
        problem
            The linear problem, or `LossFacts` with its public facts.
        """
        unknown = f"{type(self).__name__} has no proof under a weaker adversary"
        return NotProved(reason=self.no_views or unknown)

    def worst_case(
        self,
        rounds: int | None = None,
        *,
        dim: int | None = None,
        delta: float | None = None,
        canaries: int = 1_000,
    ) -> tuple[Pair, Crowd]:
        """Return made-up data on which the algorithm leaks as much as its plan allows, for audits.

        A canary is a made-up record (or client) whose presence an audit tries to detect. The pair
        is two neighbouring problems, for `dpmesh.audit.audit_algorithm`. The crowd is a problem
        with many canaries, each in one of two forms, for `dpmesh.audit.audit_one_run`.

        Parameters
        ----------
        rounds
            Rounds of each run; by default as few as the canary needs.
        dim
            Length of the model, by default 3 or less.
        delta
            Delta of the guarantee that the pair tests; by default 1e-5, or larger where an audit
            then needs fewer runs.
        canaries
            Number of canaries of the crowd.
        """
        size = AuditSize(rounds=rounds, dim=dim, delta=delta, canaries=canaries)
        return self.leaking_data(size)

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return the data of `worst_case`; override it where other data leak more.

        The first record of each node is a canary against all its others, on a linear model; a
        second node, whose noise must differ, has none.
        """
        rounds = 3 if size.rounds is None else integer("rounds", size.rounds, at_least=1)
        records = getattr(self, "records", None) or rounds * getattr(self, "batch_size", 1)

        def problem_of(coins: Coins) -> LinearProblem:
            return canary_records(coins, records=records, dim=size.dim or 3)

        pair = Pair(
            algorithm=self,
            problem=problem_of(np.array([True, False])),
            neighbor=problem_of(np.array([False, False])),
            rounds=rounds,
            delta=size.delta_or(1e-5),
        )
        crowd = Crowd(
            algorithm=self,
            problem_of=problem_of,
            canaries=size.canaries,
            rounds=rounds,
            delta=CROWD_DELTA,
        )
        return pair, crowd

    def plan(self, rounds: int, problem: Problem | LossFacts | None = None) -> Plan:
        """Return all releases of a run, from public numbers alone, before any data are touched.

        ``plan(rounds).cost(delta).epsilon`` is the epsilon of the run.

        Parameters
        ----------
        rounds
            Number of rounds of the run, at least 1.
        problem
            Problem, or `LossFacts`, whose public facts (loss, bound on the features) are needed for
            epsilon under a weaker adversary: ``plan.cost(delta, view=..)``. No record is read.
        """
        releases: list[Release] = []
        for t in each_round(rounds):
            of_round = self.release_of(t)
            instance("release_of", of_round, "a Release, or a tuple of them", Release, tuple)
            releases += (of_round,) if isinstance(of_round, Release) else of_round
        reaction: Reaction | NotProved | None = None
        if self.no_views:
            reaction = None if problem is None else NotProved(reason=self.no_views)
        elif changed := _changed_since_reaction(type(self)):
            what = f"{type(self).__name__} changes {changed} and states no reaction of its own"
            reaction = None if problem is None else NotProved(reason=what)
        elif type(problem) is LinearProblem or type(problem) is LossFacts:
            reaction = self.reaction(rounds, problem)
        elif problem is not None:
            reaction = NotProved(reason="the problem is no linear model of known smoothness")
        copies: int | None = getattr(self, "copies", None)
        return Plan(
            releases=tuple(releases),
            neighboring_relation=self.neighboring_relation,
            unit=self.unit,
            assumptions=(*self.assumptions, *distinct(copies)),
            copies=1 if self.counts_copies else copies or 1,
            clipped=self.clipped_noise if isinstance(self, Clipping) else None,
            reaction=reaction,
        )

    def most_rounds(self, problem: ProblemT) -> int | None:
        """Return the largest number of rounds, where each record is used in one round only.

        None if records do not run out, or if chance decides when they do.
        """
        return None

    def published(self, state: StateT, received: Any) -> Any:
        """Return the models to publish, shape (nodes, dim), which follow from releases alone.

        Parameters
        ----------
        state
            The state after a round.
        received
            Messages that arrived last, shape (nodes, dim); None before the first. By default they
            are the models to publish, or the `parameters` if `parameters_are_released`.
        """
        if self.parameters_are_released:
            return Released(self.parameters(state))
        return received

    def senders(self, t: int, turns: Indices, records: Indices, key: Key) -> Indices:
        """Return the nodes that send in round t, in order, where a token passes between nodes.

        Parameters
        ----------
        t
            Round, from 0.
        turns, records
            Number of turns that each node has had, and of its records, shape (nodes,).
        key
            Key of the public coins.

        Raises
        ------
        NotImplementedError
            If the algorithm passes no token.
        """
        raise NotImplementedError(f"{type(self).__name__} passes no token")

    def release_by(self, node: int, t: int) -> Releases:
        """Return the release of a node that sends in round t: `release_of` with its batch."""
        return self.release_of(t)

    def unit_of(self, t: int, problem: ProblemT) -> float:
        """Return the least `Message.unit` of round t, a factor on sensitivity and noise.

        It follows from public numbers alone. It is not the unit of privacy.
        """
        return 1.0

    def losses(self, state: StateT, t: int, problem: ProblemT, key: Key) -> Numbers | None:
        """Return the losses, before round t, of the nodes that learn in it; None if no node does.

        Each node's loss is on the records that it uses in the round. No epsilon covers the losses.
        """
        return None

    def examples(self, t: int, problem: ProblemT, key: Key) -> Batches | None:
        """Return the records that each node uses in round t, for the metric ``"regret"``.

        None if a record may be used in several rounds.
        """
        return None


def holds_for_any_rows(algorithm: AnyAlgorithm) -> str:
    """Return why an algorithm's sensitivity holds for any received rows; empty if not proved.

    The class itself must state `any_rows`: a subclass may have changed what its base proves. A
    first stage, such as private centering, also needs it of the algorithm that follows.
    """
    why = vars(type(algorithm)).get("any_rows", "")
    inner = getattr(algorithm, "algorithm", None)
    if inner is None or holds_for_any_rows(inner):
        return str(why)
    return ""


def distinct(copies: int | None) -> tuple[str, ...]:
    """Return what a guarantee assumes of copies of a record; nothing if it does not count them."""
    if copies is None:
        return ()
    return (f"no record is held by more than {copies} node{'s' * (copies > 1)}, nor twice by one",)


def _changed_since_reaction(kind: type) -> str:
    """Return a member that a subclass changes although it inherits `reaction`; empty if none.

    Post-processing has no cost against an adversary who sees all messages. Under a weaker one it
    may carry a record to nodes for which the inherited reaction is not proved.
    """
    for base in kind.__mro__:
        if "reaction" in vars(base):
            return ""
        for name, member in vars(base).items():
            if not name.startswith("__") and (callable(member) or hasattr(member, "__get__")):
                return name
    return ""


def require_problem(algorithm: object, problem: object, *methods: str) -> None:
    """Fail unless a problem has the methods that an algorithm calls."""
    expected = f"what {type(algorithm).__name__} can learn, such as a LinearProblem"
    require_methods("problem", problem, expected, *methods)


def initial_parameters(problem: ModelProblem, key: Key, nodes: int) -> Floats:
    """Return copies of the model that `problem.initial` returns, shape (nodes, dim).

    Those of a `LinearProblem` take the type of its records.

    Raises
    ------
    ValueError
        If it returns anything but one model of finite numbers.
    """
    model = floats("initial", problem.initial(key), ndim=2)
    models: Floats = np.repeat(model, nodes, axis=0)
    if isinstance(problem, LinearProblem):
        models = problem.zeros(nodes)
    shape = (1, models.shape[1])
    if model.shape != shape or not kernels.all_finite(model):
        got = f"shape {model.shape}: {reprlib.repr(model)}"
        fail("initial", f"one model of finite numbers, shape {shape}", got)
    models[:] = model
    return models


AnyAlgorithm = Algorithm[Any, Any]
