"""The base class of algorithms: a round that yields messages, and a plan of its releases.

    def round(self, state, t, problem, key):
        b = yield Message(state.x, self.release_of(t))      # private -> released -> received
        return State(b - alpha * g(b))                      # received -> private

A *release* is one output of a noise mechanism. The run (`dpmesh.run`) drives the round: it releases
each message by the mechanism of its `Release`, with an independent stream of noise, records the
release in a ledger, carries the message, and sends the received rows back into the round. An
algorithm never holds a stream of noise, a network or a ledger, so that it cannot send a message
without its mechanism.

A round may release several times. It then yields as many messages, and `release_of` returns a tuple
of their releases, with these rules:

- `sensitivity(t)`, a method of all algorithms of this package, returns the sensitivity of the last
  of these releases that depends on the data; of the first one, 0, if none depends on the data.
- The first message of a row in a round draws from the stream of (key, NOISE, round, row). Each
  further message of the row draws from another stream.
- A value that follows from earlier releases and public numbers is released by `NoNoise` with a
  `Sensitivity` of 0, whose reason says so. It is post-processing, and adds nothing to epsilon.
- ``is_sent=False`` releases a value to its node alone, which may compute with the noisy value.

An algorithm is a frozen dataclass of its public parameters. Its state is a frozen record of arrays
with the nodes on the first axis. Random numbers come from the `key` of each call: a state never
holds a generator.
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
from dpmesh.algorithms.messages import Communication, Releases, Round
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
"""Parameters that set the noise, with their descriptions in reports.

An algorithm has exactly one of these parameters, or it has `epsilon`."""

KNOWN_TO_ALL = {"known_to_all": True}
"""Metadata of a field of a state that all nodes know: its array has no axis of nodes."""

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
    """Base class of private learning algorithms: a round of messages, and a plan of its releases.

    A subclass is a frozen dataclass of public parameters. It implements `release_of`, `init`,
    `round` and `parameters`, and sets `communication`. `dpmesh.simulate` runs it.
    """

    __signature__ = _SignatureOfInit()

    communication: ClassVar[Communication]
    """Communication pattern: ``"gossip"``, ``"server"``, ``"token"`` or ``"sums"``."""

    parameters_are_released: ClassVar[bool] = False
    """True if `parameters` follow from releases alone, so that the guarantee covers them."""

    messages_need_no_trust: ClassVar[str] = ""
    """Reason why the sensitivity holds for any received messages, honest or malicious.

    Parties of a contract then need not trust each other's messages. Empty if that is not proved. A
    subclass must state the reason again: see `reason_messages_need_no_trust`.
    """

    follows_from_sizes: ClassVar[tuple[str, ...]] = ()
    """Names of parameters that the public sizes of all nodes determine.

    A contract may not state these parameters, and an experiment file may leave them out. A
    parameter `records` that is not listed here is the number of records of the smallest node.
    """

    public_coins: ClassVar[frozenset[Purpose]] = frozenset({Purpose.INIT})
    """Purposes whose random streams all nodes must share; streams of other purposes are secret."""

    takes_directed: ClassVar[bool] = False
    """True if directed networks are supported (`PushMatrix`: columns sum to 1, rows need not)."""

    view_refusal: ClassVar[str] = ""
    """Reason why no epsilon under a weaker adversary is proved for any run; empty if one may be."""

    counts_copies: ClassVar[bool] = False
    """True if the noise of `release_of` already covers all `copies` of a record together."""

    def __new__(cls: type[AlgorithmT], *positional: Any, **named: Any) -> AlgorithmT:
        """Check the names of arguments, before the fields of the dataclass are set.

        Raises
        ------
        ValueError
            If `epsilon` or `delta` is given to an algorithm whose parameter is the noise.
        TypeError
            If a name is unknown or a parameter is missing; the message lists all names.
        """
        noise = cls._noise_parameter()
        for name in ("epsilon", "delta"):
            if noise is not None and name in named and name not in cls._parameter_fields():
                call = f"{cls.__name__}.for_budget(epsilon=.., delta=.., rounds=.., ..)"
                fail(name, f"{noise}, which {call} finds for a budget", named[name])
        signature = cls.__signature__
        try:
            if positional or named:  # copy and pickle call it without arguments
                signature.bind(*positional, **named)
        except TypeError as error:
            names = ", ".join(signature.parameters)
            raise TypeError(f"{cls.__name__}: {error}; it takes by name: {names}") from None
        return super().__new__(cls)

    @classmethod
    def _parameter_fields(cls) -> Mapping[str, Any]:
        """Return the parameters of the dataclass by name."""
        fields: Mapping[str, Any] = getattr(cls, "__dataclass_fields__", {})
        return fields

    @classmethod
    def _noise_parameter(cls) -> str | None:
        """Return the name of the parameter that sets the noise, one of `NOISES`; None if none."""
        for name in NOISES:
            if name in cls._parameter_fields():
                return name
        return None

    @staticmethod
    def of_part(path: str) -> Any:
        """Return a property that reads the attribute at a dotted path, such as "algorithm.unit".

        Algorithms that wrap another algorithm, or consist of parts, share its facts in this way.
        """
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

        The docstring of the class states the unit of privacy, the neighbouring relation and the
        adversary of this guarantee.

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
        if "epsilon" in cls._parameter_fields():
            return cls(*parts, epsilon=epsilon, delta=delta, **public)
        if rounds is not None and "rounds" in cls._parameter_fields():
            public["rounds"] = rounds
        noise = cls._noise_parameter()
        if noise is None:
            fail(cls.__name__, f"an algorithm with one of {', '.join(NOISES)}", "none")

        def with_noise(value: float) -> AlgorithmT:
            return cls(*parts, **{noise: value}, **public)

        trial = with_noise(1.0)
        secure_noise = trial.least_secure_noise(epsilon, delta)
        if secure_noise is not None:
            return with_noise(secure_noise)
        if rounds is None:
            rounds = trial.run_length
        if rounds is None:
            fail("rounds", "the length of the run", None)
        guess = 1.0  # the search begins where the noise is as large as the sensitivity
        if isinstance(trial, Clipping):
            guess /= trial.noise_to_sensitivity_at(1.0)
        return with_noise(Budget(epsilon, delta=delta).calibrate(with_noise, rounds, guess=guess))

    def least_secure_noise(self, epsilon: float, delta: float) -> float | None:
        """Return the least noise at which a run with secure aggregation is (epsilon, delta)-DP.

        Returns
        -------
        A value of the algorithm's noise parameter, such as `noise_multiplier`. None if the
        algorithm uses no secure aggregation.
        """
        return None

    @property
    def rewinds(self) -> bool:
        """True if a failed round can be run again: it leaves the state before it unchanged."""
        return True

    @property
    def releases_decide(self) -> bool:
        """True if earlier releases decide which of the planned releases happen.

        The epsilon of the plan counts all planned releases.
        """
        return False

    def refused_by_parties(self) -> Mapping[str, str]:
        """Return the parameters whose values a contract between parties refuses.

        No proof covers these values where parties do not trust each other.

        Returns
        -------
        Names of parameters, each with the words that a contract's error gives, such as ``"wanted
        one that is proved, got 'paper'"``. Empty by default.
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

        By default these are the assumptions of correlated noise, such as trust between link
        partners. Independent noise needs none.
        """
        strategy = strategy_of(getattr(self, "noise", None))
        if strategy is None:
            return ()
        return strategy.assumptions

    @abstractmethod
    def release_of(self, t: int) -> Releases:
        """Return the public description of round t's releases: mechanism, sensitivity, sampling.

        The description follows from public numbers alone. `plan` collects it over all rounds. Where
        only the run decides what is released (for example whose turn it is), the description is of
        the most that the round can release.

        Parameters
        ----------
        t
            Round, from 0.

        Returns
        -------
        One release, or a tuple of releases in the order of the round's messages.
        """

    @abstractmethod
    def init(self, problem: ProblemT, key: Key) -> StateT:
        """Return the state before round 0, which must not depend on private data.

        A model starts at the problem's `initial`: `initial_parameters` of this module returns it
        for all nodes, in the dtype of the records.

        Parameters
        ----------
        problem
            Problem to learn, with the records of the nodes of this process.
        key
            Key of the run's random numbers.
        """

    @abstractmethod
    def round(self, state: StateT, t: int, problem: ProblemT, key: Key) -> Round[StateT]:
        """Run round t as a generator, which yields messages and returns the next state.

        Each `Message` holds values before noise. The received values are sent back into the
        generator: see `dpmesh.algorithms.messages`.

        Parameters
        ----------
        state
            State before the round; its arrays must not be changed.
        t
            Round, from 0.
        problem
            Problem to learn.
        key
            Key of the round's random numbers other than noise.
        """

    @abstractmethod
    def parameters(self, state: StateT) -> Floats:
        """Return each node's current model, shape (nodes, dim), for evaluation.

        No guarantee covers these models, unless `parameters_are_released` is True. To publish
        models, use `published`.
        """

    def reaction(self, rounds: int, problem: LinearProblem | LossFacts) -> Reaction | NotProved:
        """Return bounds on how far messages move with a record and with received messages.

        Epsilon under a weaker adversary (network DP), who sees some of the messages only, is
        computed from these public bounds: see `dpmesh.privacy.views`.

        Parameters
        ----------
        rounds
            Number of rounds of the run.
        problem
            The linear problem, or `LossFacts` with its public facts.

        Returns
        -------
        The bounds of each round, or `NotProved` with the reason why there is no proof.
        """
        unknown = f"{type(self).__name__} has no proof under a weaker adversary"
        return NotProved(reason=self.view_refusal or unknown)

    def worst_case(
        self,
        rounds: int | None = None,
        *,
        dim: int | None = None,
        delta: float | None = None,
        canaries: int = 1_000,
    ) -> tuple[Pair, Crowd]:
        """Return made-up data for audits, on which the algorithm should leak all that it may.

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
        """Return the data of `worst_case`; a subclass overrides it if other data leak more.

        Here a linear model is learned. The first record of a node is a canary, whose gradient all
        other records of the node oppose. The pair has a second node without a canary, so that an
        audit notices if both nodes have the same noise.
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

        ``plan(rounds).cost(delta).epsilon`` is the epsilon of the run, for the unit of privacy,
        neighbouring relation and adversary in the docstring of the class.

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
            releases_of_round = self.release_of(t)
            expected = "a Release, or a tuple of them"
            instance("release_of", releases_of_round, expected, Release, tuple)
            if isinstance(releases_of_round, Release):
                releases.append(releases_of_round)
            else:
                releases.extend(releases_of_round)
        copies: int | None = getattr(self, "copies", None)
        uncounted_copies = copies or 1
        if self.counts_copies:
            uncounted_copies = 1
        return Plan(
            releases=tuple(releases),
            neighboring_relation=self.neighboring_relation,
            unit=self.unit,
            assumptions=(*self.assumptions, *assumed_copies(copies)),
            copies=uncounted_copies,
            clipped=self.clipped_noise if isinstance(self, Clipping) else None,
            reaction=self._checked_reaction(rounds, problem),
        )

    def _checked_reaction(
        self, rounds: int, problem: Problem | LossFacts | None
    ) -> Reaction | NotProved | None:
        """Return the `reaction` if its proof covers this class and problem; None if no problem."""
        if problem is None:
            return None
        if self.view_refusal:
            return NotProved(reason=self.view_refusal)
        changed = _changed_since_reaction(type(self))
        if changed:
            reason = f"{type(self).__name__} changes {changed} and states no reaction of its own"
            return NotProved(reason=reason)
        if type(problem) is LinearProblem or type(problem) is LossFacts:
            return self.reaction(rounds, problem)
        return NotProved(reason="the problem is no linear model of known smoothness")

    def most_rounds(self, problem: ProblemT) -> int | None:
        """Return the number of rounds after which all records are used, if each is used once.

        None if records may be used again, or if random numbers decide when they run out.
        """
        return None

    def published(self, state: StateT, received: Any) -> Any:
        """Return the models to publish, shape (nodes, dim), which follow from releases alone.

        By default these are the `parameters` if `parameters_are_released`, else the last received
        messages.

        Parameters
        ----------
        state
            State after a round.
        received
            Last received messages, shape (nodes, dim); None before the first message.

        Returns
        -------
        The models. None if nothing was released yet.
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
        turns
            Number of turns that each node has had, shape (nodes,).
        records
            Number of records of each node, shape (nodes,).
        key
            Key of the public coins, which all nodes share.

        Raises
        ------
        NotImplementedError
            If the algorithm passes no token.
        """
        raise NotImplementedError(f"{type(self).__name__} passes no token")

    def release_by(self, node: int, t: int) -> Releases:
        """Return the releases of round t if `node` is the sender (algorithms with a token).

        By default these are the releases of `release_of`.
        """
        return self.release_of(t)

    def least_scale_factor(self, t: int, problem: ProblemT) -> float:
        """Return the smallest `Message.scale_factor` that a message of round t may have.

        It follows from public numbers alone. Sensitivity and noise of a message are those of
        `release_of` times its scale factor.
        """
        return 1.0

    def losses(self, state: StateT, t: int, problem: ProblemT, key: Key) -> Numbers | None:
        """Return the losses, before round t, of the nodes that learn in the round.

        Each node's loss is the mean over the records that it uses in the round. No guarantee covers
        the losses.

        Returns
        -------
        Shape (learning nodes,). None if no node learns in the round.
        """
        return None

    def examples(self, t: int, problem: ProblemT, key: Key) -> Batches | None:
        """Return the indices of the records that each node uses in round t.

        The metric ``"regret"`` needs them. None if a record may be used in several rounds.
        """
        return None


def reason_messages_need_no_trust(algorithm: AnyAlgorithm) -> str:
    """Return why an algorithm's sensitivity holds for any received messages, also malicious ones.

    The class of the algorithm must state the reason as `messages_need_no_trust`. A reason that it
    inherits does not count, since the subclass may have changed the proof. An algorithm that wraps
    another one, such as private centering, needs the reason of both.

    Returns
    -------
    The reason, or an empty string if there is no proof.
    """
    reason = vars(type(algorithm)).get("messages_need_no_trust", "")
    inner = getattr(algorithm, "algorithm", None)
    if inner is None or reason_messages_need_no_trust(inner):
        return str(reason)
    return ""


def assumed_copies(copies: int | None) -> tuple[str, ...]:
    """Return the assumption that at most `copies` nodes hold a record, each once; () for None."""
    if copies is None:
        return ()
    nodes = "node" if copies == 1 else "nodes"
    return (f"no record is held by more than {copies} {nodes}, nor twice by one",)


def _changed_since_reaction(kind: type) -> str:
    """Return the name of a member that was defined after `reaction`; empty if there is none.

    Such a member belongs to a subclass of the class that defines `reaction`. Against an adversary
    who sees all messages, the subclass may add post-processing. Under a weaker adversary,
    post-processing may carry the effect of a record to nodes for which the inherited `reaction` is
    not proved.
    """
    for base in kind.__mro__:
        if "reaction" in vars(base):
            return ""
        for name, member in vars(base).items():
            if not name.startswith("__") and (callable(member) or hasattr(member, "__get__")):
                return name
    return ""


def require_problem(algorithm: object, problem: object, *methods: str) -> None:
    """Raise a ValueError unless a problem has these methods, which an algorithm calls."""
    expected = f"what {type(algorithm).__name__} can learn, such as a LinearProblem"
    require_methods("problem", problem, expected, *methods)


def initial_parameters(problem: ModelProblem, key: Key, nodes: int) -> Floats:
    """Return the model of `problem.initial` for each of `nodes` nodes, shape (nodes, dim).

    The dtype is float32 or float64, as the model's; for a `LinearProblem`, as its features'.

    Raises
    ------
    ValueError
        If `problem.initial` does not return one model of finite numbers, shape (1, dim).
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
