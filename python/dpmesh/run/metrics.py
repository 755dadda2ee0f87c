"""Metrics of a run by name, such as accuracy and loss, and the rounds in which they are measured.

A metric observes every round (`Metric.observe`), and is measured in some (`Metric.values`).
"""

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
from dpmesh.privacy.report import COVERED_METRICS, not_covered
from dpmesh.problems import LinearProblem, NotReached, Problem, best_fixed_predictor
from dpmesh.run.history import Value

if TYPE_CHECKING:
    from dpmesh.run.engine import Share

UserMetric: TypeAlias = Callable[[Any, Any, Any], Value]
"""Custom metric: ``metric(problem, parameters, received)`` returns a number, or one for each node.

`parameters` are the nodes' models after the round, `received` the models to publish, both of shape
(nodes, dim) or (1, dim). The metric has the name of the function."""


Callback: TypeAlias = Callable[[int, dict[str, Any]], None]
"""``callback(round, values)``, where `values` maps names to numbers or arrays of shape (nodes,)."""

Chosen: TypeAlias = Sequence[str | UserMetric] | Literal["covered"] | None
"""Names of metrics and custom functions; ``"covered"``; None for the default metrics."""


@dataclass(frozen=True)
class Metrics:
    """Metrics of a run, the rounds in which they are measured, a callback and a progress bar.

    Parameters
    ----------
    metrics
        Names of metrics (see Notes) and custom functions, as a list. A function
        ``metric(problem, parameters, received)`` gets the nodes' models and the models to publish,
        both of shape (nodes, dim) or (1, dim), and returns a number, or one per node, shape
        (nodes,). By default all named metrics that the problem and the algorithm allow, except
        ``"node_accuracy"``, and ``"regret"`` only up to 256 nodes. ``"covered"`` stands for the
        metrics that follow from releases, public numbers and test records, and may be published if
        the test records are public.
    every
        Interval in rounds between two measurements; the last round is always measured. By default
        a run has about 25 measurements.
    callback
        Function that is called as ``callback(round, measurements)`` after each measured round, with
        a dictionary by the name of the metric. If it raises `StopRun`, the run ends after that
        round, and can resume from its checkpoint, if it has one. The privacy report then counts
        all planned rounds, since releases may have decided when to stop; the ledger holds the
        rounds so far. If private data decide when to stop, no guarantee covers the decision.
    progress
        True to show a progress bar (extra ``progress``), False for none. By default it is shown in
        a terminal or a notebook.

    Notes
    -----
    The metrics of each name are:

    - ``"loss"``: mean loss of the nodes that learn in the round, on the records that it uses;
    - ``"accuracy"``: mean accuracy of the nodes' own models on the test records, and
      ``released_accuracy``, that of the models to publish;
    - ``"released_accuracy"``: ``released_accuracy`` alone;
    - ``"node_accuracy"``: accuracy of each node's own model on the test records;
    - ``"regret"``: regret per example against the best fixed model, averaged over the nodes, and
      ``worst_regret``, that of the worst node; for linear models and `OnlineLearning`;
    - ``"consensus_distance"``: root mean square L2 distance of the nodes' models from their mean;
      for gossip;
    - ``"compression"``: 32 bits per parameter over the length of a message, and
      ``bits_per_node``, the mean length of a message; for algorithms with a `compressor`.

    Traffic so far is always measured, as ``megabytes`` (10^6 bytes), and virtual time, as
    ``seconds``, where a `Network` is simulated. ``released_accuracy``, ``bits_per_node``,
    ``compression``, ``megabytes`` and ``seconds`` follow from releases, public numbers and test
    records. All others are made from private records, or from models before noise unless the
    algorithm releases its models: no epsilon covers them.

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
            expected = "a function of the round and its measurements, or None"
            fail("callback", expected, repr(self.callback))

    @property
    def names(self) -> list[str] | str | None:
        """Names of the metrics and custom functions; None or ``"covered"`` as given."""
        if self.metrics is None or isinstance(self.metrics, str):
            return self.metrics
        return [metric_name(metric) for metric in self.metrics]


class Before(NamedTuple):
    """Facts about a round before it runs; a fact is None if no metric watches it.

    Attributes
    ----------
    parameters
        The nodes' models, shape (nodes, dim).
    examples
        Indices of the records that the round uses, shape (nodes, batch), or (count,) if batches
        differ in size.
    losses
        Losses of the nodes that learn in this round; None in rounds without a measurement.
    """

    parameters: Floats | None = None
    examples: Indices | None = None
    losses: Numbers | None = None

    @classmethod
    def of(cls, share: Share, state: Any, t: int, watched: Collection[str]) -> Before:
        """Return the watched facts of round t."""
        algorithm = share.algorithm
        parameters: Floats | None = None
        examples: Indices | None = None
        losses: Numbers | None = None
        if "parameters" in watched:
            parameters = algorithm.parameters(state)
        if "examples" in watched:
            examples = _records(algorithm.examples(t, share.problem, share.key))
        if "losses" in watched:
            losses = algorithm.losses(state, t, share.problem, share.key)
        return cls(parameters, examples, losses)


UNWATCHED = Before()
"""Facts of a round that no metric watches."""


class After(NamedTuple):
    """Results of a round, for the metrics that are measured in it.

    Attributes
    ----------
    parameters
        The nodes' own models, shape (nodes, dim).
    received
        Models to publish, shape (nodes, dim), or (1, dim) if all nodes share one.
    bits
        Length of a node's messages of the round in bits: a number, or shape (nodes,).
    """

    parameters: Floats
    received: Released
    bits: int | Indices


class Metric(Protocol):
    """Interface of metrics, which observe every round and are measured in some."""

    @property
    def watches(self) -> tuple[str, ...]:
        """Names of the fields of `Before` that the metric needs."""

    def observe(self, before: Before) -> None:
        """Observe a round that has been run."""

    def values(self, after: After) -> Mapping[str, Value]:
        """Return measurements by name, from all observed rounds and the results of the last one."""

    @property
    def memory(self) -> Any:
        """State of the metric, as arrays and numbers, for a checkpoint."""

    def recall(self, memory: Any) -> None:
        """Restore the state of the metric from `memory`."""


@dataclass(frozen=True)
class RoundMetric:
    """Metric that depends on the results of the measured round only."""

    measure: Callable[[After], Mapping[str, Value]]
    watches = ()
    memory = None

    def recall(self, memory: None) -> None:
        """Do nothing: this metric remembers no rounds."""

    def observe(self, before: Before) -> None:
        """Do nothing: this metric ignores single rounds."""

    def values(self, after: After) -> Mapping[str, Value]:
        """Return the measurements of the function by name."""
        return self.measure(after)


def _accuracy(problem: Problem, after: After) -> dict[str, Value]:
    """Return the mean accuracy of the nodes' models, and of the models to publish."""
    accuracies = problem.accuracy(read_only(after.parameters))
    return {"accuracy": float(accuracies.mean()), **_released_accuracy(problem, after)}


def _released_accuracy(problem: Problem, after: After) -> dict[str, Value]:
    """Return the mean accuracy of the models to publish."""
    accuracies = problem.accuracy(read_only(after.received))
    return {"released_accuracy": float(accuracies.mean())}


def _node_accuracy(problem: Problem, after: After) -> dict[str, Value]:
    """Return the accuracy of each node's own model."""
    return {"node_accuracy": problem.accuracy(read_only(after.parameters))}


def _consensus(after: After) -> dict[str, Value]:
    """Return the root mean square distance of the nodes' models from their average."""
    differences = after.parameters - after.parameters.mean(axis=0)
    squared_distances = (differences**2).sum(axis=1)
    return {"consensus_distance": float(np.sqrt(squared_distances.mean()))}


def _compression(after: After) -> dict[str, Value]:
    """Return the mean length of a node's message in bits, and the ratio of compression.

    The ratio is 32 bits per parameter over this length.
    """
    bits = float(np.mean(after.bits))
    return {"bits_per_node": bits, "compression": 32 * after.parameters.shape[1] / bits}


def _user_defined(measure: UserMetric, problem: Problem, after: After) -> dict[str, Value]:
    """Return a user's measurement under the function's name.

    Raises
    ------
    ValueError
        If the measurement is neither a number nor one for each node or row of parameters.
    """
    name = metric_name(measure)
    received = Released(read_only(after.received))
    value = measure(problem, read_only(after.parameters), received)
    shape = np.shape(value)
    if len(shape) == 1 and shape[0] not in (len(after.parameters), problem.nodes):
        fail(name, "a number, or one for each node", f"{shape[0]} numbers")
    return {name: value}


@dataclass
class MeanLoss:
    """Mean loss of the nodes that learn in a round, on its records; NaN before the first one."""

    memory: float = nan
    watches = ("losses",)

    def observe(self, before: Before) -> None:
        """Store the mean loss of the round, if any node learns in it."""
        if before.losses is not None and len(before.losses):
            self.memory = float(np.sort(before.losses).mean())  # the same order on all engines

    def recall(self, memory: float) -> None:
        """Restore the stored loss."""
        self.memory = memory

    def values(self, after: After) -> dict[str, float]:
        """Return the mean."""
        return {"loss": self.memory}


@dataclass
class Regret:
    """Regret of the paper of `OnlineLearning`, Definition 2.

    It is the sum of a learner's (node's) losses on the examples of all learners, less the same sum
    for the best fixed model in the ball of `radius`. ``regret`` is per example, averaged over the
    learners; ``worst_regret`` is the regret per example of the worst learner. Both are NaN if the
    solver does not find the best model.
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
        all_examples = np.broadcast_to(examples, (len(parameters), len(examples)))
        losses_of_learner = len(examples) * self.problem.objective(parameters, all_examples)
        if self._total is None:
            self._total = losses_of_learner
        else:
            self._total = self._total + losses_of_learner
        self._examples.append(examples)

    @property
    def memory(self) -> Any:
        """All examples so far, and each learner's total loss on them, for `recall`.

        The examples are the indices of records, as a list of one array of shape (examples,) or of
        none; the losses have the shape (learners,), and are None before the first round.
        """
        if not self._examples:
            return [], self._total
        return [np.concatenate(self._examples)], self._total

    def recall(self, memory: Any) -> None:
        """Restore the stored examples and losses."""
        self._examples, self._total = memory

    def values(self, after: After) -> dict[str, float]:
        """Return mean and worst regret per example so far."""
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
"""Largest number of nodes for which regret is measured by default; its time grows quadratically."""


def build_metrics(chosen: Chosen, algorithm: AnyAlgorithm, problem: Problem) -> list[Metric]:
    """Return the chosen metrics; for None, the default metrics of the problem and the algorithm.

    Accuracy needs a classification with test records. Regret needs a linear problem and an
    algorithm with a ``radius``. Consensus distance needs gossip, and compression an algorithm with
    a ``compressor``.
    """
    makers = _measurable(algorithm, problem)
    names_or_functions = _selected(chosen, makers, problem)
    names = [metric_name(metric) for metric in names_or_functions]
    if "accuracy" in names_or_functions and "released_accuracy" in names_or_functions:
        fail("metrics", "accuracy, which has released_accuracy, or that alone", "both")
    if len(set(names)) < len(names):  # one would overwrite the other in the history
        fail("metrics", "names that differ, of functions too", ", ".join(names))
    return [_metric(metric, makers, problem) for metric in names_or_functions]


def _measurable(algorithm: AnyAlgorithm, problem: Problem) -> dict[str, Callable[[], Metric]]:
    """Return constructors of all metrics that a problem and an algorithm allow, by name."""
    makers: dict[str, Callable[[], Metric]] = {"loss": MeanLoss}
    if getattr(problem, "classifies", problem.test is not None):
        makers["accuracy"] = lambda: RoundMetric(partial(_accuracy, problem))
        makers["node_accuracy"] = lambda: RoundMetric(partial(_node_accuracy, problem))
        makers["released_accuracy"] = lambda: RoundMetric(partial(_released_accuracy, problem))
    radius = getattr(algorithm, "radius", None)
    has_examples = type(algorithm).examples is not Algorithm.examples
    if radius and has_examples and isinstance(problem, LinearProblem):
        makers["regret"] = lambda: Regret(problem, radius)
    if algorithm.communication == "gossip":
        makers["consensus_distance"] = lambda: RoundMetric(_consensus)
    if getattr(algorithm, "compressor", None) is not None:
        makers["compression"] = lambda: RoundMetric(_compression)
    return makers


def _selected(
    chosen: Chosen, makers: Collection[str], problem: Problem
) -> Collection[str | UserMetric]:
    """Return the chosen metrics; for None, all possible ones except expensive ones."""
    if chosen is None:
        omitted = {"node_accuracy", "released_accuracy"}
        if problem.nodes > REGRET_NODES:
            omitted.add("regret")
        return [name for name in makers if name not in omitted]
    if chosen == "covered":
        return [name for name in makers if name in COVERED_METRICS]
    if isinstance(chosen, str) or not isinstance(chosen, Collection):
        fail("metrics", 'a list of names and functions, or "covered"', repr(chosen))
    return chosen


def _metric(
    metric: str | UserMetric, makers: Mapping[str, Callable[[], Metric]], problem: Problem
) -> Metric:
    """Return the metric of a name or of a user's function."""
    if not isinstance(metric, str):
        if not callable(metric):
            fail("metrics", "names and functions", repr(metric))
        return RoundMetric(partial(_user_defined, metric, problem))
    one_of("metrics", metric, NAMES)
    if metric not in makers:
        fail("metrics", f"what can be measured here ({', '.join(makers)})", repr(metric))
    return makers[metric]()


def _records(batches: Batches | None) -> Indices | None:
    """Return the records of batches: a row for each node, or one array if batch sizes differ."""
    if isinstance(batches, tuple):
        _, records = batches
        return records
    return batches


def metric_name(metric: str | UserMetric) -> str:
    """Return the name of a metric, or of the function that measures it."""
    if isinstance(metric, str):
        return metric
    return str(getattr(metric, "__name__", type(metric).__name__))


def tracked(
    log: Callable[[str, float, int], object], *, released_only: bool = False
) -> Callable[[int, Mapping[str, Any]], None]:
    """Return a callback for `Metrics` that passes measurements to an experiment tracker.

    Measurements with one number per node are not logged.

    Parameters
    ----------
    log
        Called with a measurement's name, value and round, as are ``SummaryWriter.add_scalar`` of
        TensorBoard and ``mlflow.log_metric``.
    released_only
        True to leave out what no epsilon covers: losses, and accuracies of models before noise.

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
