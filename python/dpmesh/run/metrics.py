"""What can be measured in a round, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from math import nan
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from dpmesh._arrays import read_only
from dpmesh._privacy_types import Floats, Released
from dpmesh._ragged import Indices, Numbers
from dpmesh._validate import fail, integer, one_of
from dpmesh.algorithms.base import Algorithm, AnyAlgorithm
from dpmesh.kernels.linear_model import Batches
from dpmesh.privacy.report import COVERED, not_covered
from dpmesh.problems import LinearProblem, NotReached, Problem, best_fixed_predictor
from dpmesh.run.history import Value

if TYPE_CHECKING:
    from dpmesh.run.engine import Share

UserMetric: TypeAlias = Callable[[Any, Any, Any], Value]
"""``metric(problem, parameters, received)``: a number, or one for each node.

`parameters` are the nodes' own models after the round, `received` the messages that they received
in it, both of shape (nodes, dim). The name of the function is that of the metric."""


Callback: TypeAlias = Callable[[int, dict[str, Any]], None]
"""``callback(round, values)``: each value a number, or an array of one for each node."""

Chosen: TypeAlias = Sequence[str | UserMetric] | Literal["covered"] | None
"""Names of metrics and functions of one's own; ``"covered"``; None for all that can be measured."""


@dataclass(frozen=True)
class Metrics:
    """What a run measures, in which rounds, who receives it, and whether a bar shows progress.

    Parameters
    ----------
    metrics
        Names out of ``"loss"``, ``"accuracy"`` (with ``"released_accuracy"``), ``"regret"`` (with
        ``"worst_regret"``), ``"consensus_distance"``, ``"compression"`` (with
        ``"bits_per_node"``), ``"node_accuracy"``, ``"released_accuracy"`` alone, and functions
        ``metric(problem, parameters, received)`` of your own that return a number, or one for each
        node. By default all named ones that the problem and the algorithm allow, without per-node
        metrics, and regret only up to 256 nodes. ``megabytes``, the traffic so far, is always
        measured, too. ``"covered"`` measures only what the guarantee covers and may be published.
    every
        Measure every `every` rounds, and in the last; by default about 25 times in a run.
    callback
        Called with the round and its measurements whenever there are any, for example to stream
        results. If it raises `StopRun`, the run ends there, saved if there is a checkpoint, from
        which it can resume. The report then counts all rounds, since releases may have decided when
        to end; the ledger holds the rounds so far. If private data decide, no report covers that.
    progress
        Whether to show a progress bar (extra ``progress``); by default in a terminal or a notebook.

    Raises
    ------
    ValueError
        If `every` is not an integer of at least 1, or `callback` is no function.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.Metrics(["accuracy"], every=10).every
    10
    """

    metrics: Chosen = None
    _: KW_ONLY
    every: int | None = None
    callback: Callback | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.every is not None:
            object.__setattr__(self, "every", integer("every", self.every, at_least=1))
        if self.callback is not None and not callable(self.callback):
            wanted = "a function of the round and its measurements, or None"
            fail("callback", wanted, repr(self.callback))

    @property
    def names(self) -> Any:
        """What is measured, in words that identify a run."""
        if self.metrics is None or self.metrics == "covered":
            return self.metrics
        return [metric_name(metric) for metric in self.metrics]


class Before(NamedTuple):
    """What metrics watch of a round before it runs; None if no metric watches it.

    Attributes
    ----------
    parameters
        The nodes' models, shape (nodes, dim).
    examples
        The records that the round uses, shape (nodes, batch); (count,) if batches differ in size.
    losses
        The losses of the nodes that learn in this round, only where it is measured.
    """

    parameters: Floats | None = None
    examples: Indices | None = None
    losses: Numbers | None = None

    @classmethod
    def of(cls, own: Share, state: Any, t: int, watched: Collection[str]) -> Before:
        """Return what is watched of round t."""
        algorithm, problem = own.algorithm, own.problem
        return cls(
            algorithm.parameters(state) if "parameters" in watched else None,
            _records(algorithm.examples(t, problem, own.key)) if "examples" in watched else None,
            algorithm.losses(state, t, problem, own.key) if "losses" in watched else None,
        )


UNWATCHED = Before()


class After(NamedTuple):
    """What metrics see after a round that is measured.

    Attributes
    ----------
    parameters
        The nodes' own models, shape (nodes, dim).
    received
        What may be published: the messages that nodes received, or a shared model.
    bits
        Length of what a node sent in the round: a number, or shape (nodes,).
    """

    parameters: Floats
    received: Released
    bits: int | Indices


class Metric(Protocol):
    """Observes every round; its values are asked for now and then."""

    @property
    def watches(self) -> tuple[str, ...]:
        """Which fields of `Before` it looks at."""

    def observe(self, before: Before) -> None:
        """Take what was known before a round that has been run."""

    def values(self, after: After) -> Mapping[str, Value]:
        """Return named values of all that was observed, and of the last round's results."""

    @property
    def memory(self) -> Any:
        """What was observed, as arrays and numbers, for a checkpoint."""

    def recall(self, memory: Any) -> None:
        """Resume from what it remembered."""


@dataclass(frozen=True)
class OfRound:
    """A metric of a round's results alone."""

    measure: Callable[[After], Mapping[str, Value]]
    watches = ()
    memory = None

    def recall(self, memory: None) -> None:
        """Need nothing of earlier rounds."""

    def observe(self, before: Before) -> None:
        """Need nothing of the round."""

    def values(self, after: After) -> Mapping[str, Value]:
        """Return what the function measures."""
        return self.measure(after)


def _accuracy(problem: Problem, after: After) -> dict[str, Value]:
    """Return the mean accuracy of the nodes' own models, and of what may be published."""
    own = float(problem.accuracy(read_only(after.parameters)).mean())
    return {"accuracy": own, **_released_accuracy(problem, after)}


def _released_accuracy(problem: Problem, after: After) -> dict[str, Value]:
    """Return the mean accuracy of what may be published."""
    return {"released_accuracy": float(problem.accuracy(read_only(after.received)).mean())}


def _node_accuracy(problem: Problem, after: After) -> dict[str, Value]:
    """Return the accuracy of each node's own model."""
    return {"node_accuracy": problem.accuracy(read_only(after.parameters))}


def _consensus(after: After) -> dict[str, Value]:
    """Return the root mean square distance of the nodes' models from their average."""
    spread = after.parameters - after.parameters.mean(axis=0)
    return {"consensus_distance": float(np.sqrt((spread**2).sum(axis=1).mean()))}


def _compression(after: After) -> dict[str, Value]:
    """Return the mean length of a node's message in bits, and 32 bits per parameter over it."""
    bits = float(np.mean(after.bits))
    return {"bits_per_node": bits, "compression": 32 * after.parameters.shape[1] / bits}


def _user_defined(measure: UserMetric, problem: Problem, after: After) -> dict[str, Value]:
    """Return a user's measurement under the function's name.

    Raises
    ------
    ValueError
        If it is neither one number nor one for each node or row of parameters.
    """
    name, received = metric_name(measure), Released(read_only(after.received))
    value = measure(problem, read_only(after.parameters), received)
    shape = np.shape(value)
    if len(shape) == 1 and shape[0] not in (len(after.parameters), problem.nodes):
        fail(name, "a number, or one for each node", f"{shape[0]} numbers")
    return {name: value}


@dataclass
class Loss:
    """Mean loss of the nodes that learned, on the records of the round; NaN before anybody has."""

    memory: float = nan
    watches = ("losses",)

    def observe(self, before: Before) -> None:
        """Keep the losses of the round, unless nobody learned in it."""
        if before.losses is not None and len(before.losses):
            self.memory = float(np.sort(before.losses).mean())  # in one order on all engines

    def recall(self, memory: float) -> None:
        """Resume with the loss that a run remembered."""
        self.memory = memory

    def values(self, after: After) -> dict[str, float]:
        """Return the mean."""
        return {"loss": self.memory}


@dataclass
class Regret:
    """Regret of Definition 2: a learner's losses on all examples, less the best fixed model's.

    ``regret`` is per example, and the mean over the learners; ``worst_regret`` is that of the worst
    learner. The best model is the minimizer over the ball of `radius`; both are NaN where it is not
    found, which ends no run.
    """

    problem: LinearProblem
    radius: float | None
    _examples: list[Indices] = field(default_factory=list)
    _total: Numbers | None = None
    watches = ("parameters", "examples")

    def observe(self, before: Before) -> None:
        """Add each learner's losses on all examples of the round."""
        parameters = before.parameters
        assert parameters is not None
        assert before.examples is not None
        examples = before.examples.ravel()
        if before.examples.ndim == 1:
            examples = np.sort(examples)  # in the same order on all engines
        if not len(examples):
            return
        everybody = np.broadcast_to(examples, (len(parameters), len(examples)))
        losses_of_learner = len(examples) * self.problem.objective(parameters, everybody)
        self._total = losses_of_learner if self._total is None else self._total + losses_of_learner
        self._examples.append(examples)

    @property
    def memory(self) -> Any:
        """All examples so far, and each learner's total loss on them."""
        return [np.concatenate(self._examples)] if self._examples else [], self._total

    def recall(self, memory: Any) -> None:
        """Resume with the examples and losses that a run remembered."""
        self._examples, self._total = memory

    def values(self, after: After) -> dict[str, float]:
        """Return the average regret per example so far."""
        if self._total is None:
            return {"regret": nan, "worst_regret": nan}
        examples = np.concatenate(self._examples)
        try:
            best = best_fixed_predictor(self.problem, examples, radius=self.radius).value
        except NotReached:
            best = nan
        regrets = self._total / len(examples) - best
        return {"regret": float(regrets.mean()), "worst_regret": float(regrets.max())}


NAMES = (
    "loss",
    "accuracy",
    "released_accuracy",
    "regret",
    "consensus_distance",
    "compression",
    "node_accuracy",
)

REGRET_NODES = 256
"""Up to this many nodes regret is measured by default: a round costs their square."""


def build_metrics(chosen: Chosen, algorithm: AnyAlgorithm, problem: Problem) -> list[Metric]:
    """Return the chosen metrics; for None, what the problem and the algorithm allow.

    Accuracy needs test data that the problem `classifies`, if it states that; regret a linear
    problem and an algorithm with a ``radius``, the ball of its comparator; consensus_distance a
    network; compression an algorithm with a ``compressor``.
    """
    radius = getattr(algorithm, "radius", None)
    makers: dict[str, Callable[[], Metric]] = {"loss": Loss}
    if getattr(problem, "classifies", problem.test is not None):
        makers["accuracy"] = lambda: OfRound(partial(_accuracy, problem))
        makers["node_accuracy"] = lambda: OfRound(partial(_node_accuracy, problem))
        makers["released_accuracy"] = lambda: OfRound(partial(_released_accuracy, problem))
    has_examples = type(algorithm).examples is not Algorithm.examples
    if radius and has_examples and isinstance(problem, LinearProblem):
        makers["regret"] = lambda: Regret(problem, radius)
    if algorithm.travels == "gossip":
        makers["consensus_distance"] = lambda: OfRound(_consensus)
    if getattr(algorithm, "compressor", None) is not None:
        makers["compression"] = lambda: OfRound(_compression)
    if chosen is None:
        unasked = {"node_accuracy", "released_accuracy"} | (
            {"regret"} if problem.nodes > REGRET_NODES else set()
        )
        chosen = [name for name in makers if name not in unasked]
    if chosen == "covered":
        chosen = [name for name in makers if name in COVERED]
    if isinstance(chosen, str) or not isinstance(chosen, Collection):
        fail("metrics", 'a list of names and functions, or "covered"', repr(chosen))
    if "accuracy" in chosen and "released_accuracy" in chosen:
        fail("metrics", "accuracy, which has released_accuracy, or that alone", "both")
    names = [metric_name(one) for one in chosen]
    if len({*names}) < len(names):  # one would be written over the other
        fail("metrics", "names that differ, of functions too", ", ".join(names))
    meters: list[Metric] = []
    for one in chosen:
        if not isinstance(one, str):
            if not callable(one):
                fail("metrics", "names and functions", repr(one))
            meters.append(OfRound(partial(_user_defined, one, problem)))
            continue
        one_of("metrics", one, NAMES)
        if one not in makers:
            fail("metrics", f"what can be measured here ({', '.join(makers)})", repr(one))
        meters.append(makers[one]())
    return meters


def _records(batches: Batches | None) -> Indices | None:
    """Return the records of batches: a row for each node, or those of all if sizes differ."""
    return batches[1] if isinstance(batches, tuple) else batches


def metric_name(metric: str | UserMetric) -> str:
    """Return the name of a metric, or of the function that measures it."""
    if isinstance(metric, str):
        return metric
    return str(getattr(metric, "__name__", type(metric).__name__))


def tracked(
    log: Callable[[str, float, int], object], *, released_only: bool = False
) -> Callable[[int, Mapping[str, Any]], None]:
    """Return a callback for `Metrics` that logs each measurement of the whole network.

    Parameters
    ----------
    log
        Called with a measurement's name, value and round, as are ``SummaryWriter.add_scalar`` of
        TensorBoard and ``mlflow.log_metric``.
    released_only
        Whether to leave out what no epsilon covers: losses, and accuracies of models before noise.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.run.tracked(print, released_only=True)(5, {"loss": 1.5, "released_accuracy": 0.5})
    released_accuracy 0.5 5
    """

    def callback(t: int, values: Mapping[str, Any]) -> None:
        hidden = not_covered(values, parameters_are_released=False) if released_only else ()
        for name, value in values.items():
            if np.ndim(value) == 0 and name not in hidden:
                log(name, float(value), t)

    return callback
