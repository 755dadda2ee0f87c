"""What to compare a private federation with: chance, a node alone, and all records pooled.

These are research figures, computed where all nodes' data are in one process. They are made from
the data without noise (but for `Baselines.alone_private`), and no epsilon covers them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import FloatArray
from dpmesh._epsilons import rounded_up
from dpmesh._ragged import Flags, Numbers
from dpmesh._validate import fail, instance, integer
from dpmesh.defaults import Sizes, choose
from dpmesh.kernels.linear_model import REGRESSION
from dpmesh.keys import Key, Purpose, generator
from dpmesh.privacy.report import Report
from dpmesh.problems import LinearProblem
from dpmesh.run.channel import run_rounds
from dpmesh.run.failing import carrier_for
from dpmesh.run.measures import Measures
from dpmesh.run.prepare import wide_enough
from dpmesh.run.tasks import BY_LOSS, task_of_problem
from dpmesh.run.tasks import measured as measured_model

__all__ = ["Baselines", "alone_private", "beside", "compute", "measured"]

Scores = Numbers

_STEPS = 300

_PENALTIES = np.logspace(-4, 3, 15)
"""Of a ridge, in units of the squared norm of a record."""

_CLASSES = {"logistic": 0.25, "softmax": 0.5, "multilabel": 0.25}
"""Losses of classifiers, and their largest second derivatives."""

LARGEST = 5_000_000
"""Up to so many stored features times outputs, baselines of a run are computed by default."""

SHOWN = 8
"""Nodes that work alone and private beside a run."""

_known: WeakKeyDictionary[LinearProblem, Baselines] = WeakKeyDictionary()
"""Baselines without privacy: the same for all runs on a problem."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Baselines:
    """Scores on the common test records, in one measure; `others` has those in further ones.

    Parameters
    ----------
    metric
        ``"accuracy"`` or ``"R²"``, or of `others`: ``"balanced accuracy"``, ``"AUC"``.
    chance
        Of the most frequent class of the training records, or of the mean of the test records.
    alone
        Of a model that each node trains on its own records, without privacy, shape (nodes,).
    alone_private
        The same at `epsilon` and `delta`, for some or all nodes, shape (some,); None if not asked.
    pooled
        Of one model trained on all records, without privacy.
    epsilon, delta
        What `alone_private` costs.
    tested, held_out
        Number of test records, and their share of all records; of results of earlier versions 0.
    others
        The same in further measures, by their names.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> draw = np.random.default_rng(0)
    >>> data = dm.data.breast_cancer()
    >>> train, test = dm.data.train_test_split(dm.data.unit_norm(data), 0.25, draw)
    >>> problem = dm.LinearProblem(train, dm.data.iid(train, 4, draw), "logistic", test=test)
    >>> beside = dm.baselines.compute(problem)
    >>> bool(beside.pooled > beside.chance)
    True
    """

    metric: str
    chance: float
    alone: Scores
    alone_private: Scores | None = None
    pooled: float
    epsilon: float | None = None
    delta: float | None = None
    tested: int = 0
    held_out: float = 0.0
    others: Mapping[str, Baselines] = field(default_factory=dict)

    @property
    def measures(self) -> dict[str, Baselines]:
        """These baselines and `others`, by their measures."""
        return {self.metric: self, **self.others}

    def beside(self, private: Sequence[Measures], epsilon: float | None, delta: float) -> Baselines:
        """Return them with nodes that work alone and private, at a budget."""

        def with_private(one: Baselines) -> Baselines:
            scores = np.array([found[one.metric] for found in private])
            return replace(one, alone_private=scores, epsilon=epsilon, delta=delta)

        others = {name: with_private(one) for name, one in self.others.items()}
        return replace(with_private(self), others=others)

    def as_dict(self) -> dict[str, Any]:
        """Return them in plain types that JSON can hold."""
        alone_private = None if self.alone_private is None else self.alone_private.tolist()
        others = {name: one.as_dict() for name, one in self.others.items()}
        plain = {"alone": self.alone.tolist(), "alone_private": alone_private, "others": others}
        return {**vars(self), **plain}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Baselines:
        """Return the baselines that `as_dict` gave."""
        private = saved["alone_private"]
        plain = {
            "alone": np.array(saved["alone"]),
            "alone_private": None if private is None else np.array(private),
            "others": {n: cls.from_dict(one) for n, one in saved.get("others", {}).items()},
        }
        return cls(**{**saved, **plain})


def compute(
    problem: LinearProblem,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    key: Key | None = None,
    most: int = 32,
) -> Baselines:
    """Train the baselines of a problem and test them on its test records.

    Parameters
    ----------
    problem
        A linear problem with test records. Classifiers of nodes alone and of the pool are trained
        by 300 steps of accelerated gradient descent; a regression is a ridge, also for the absolute
        loss, whose penalty is chosen by leaving out one record at a time. A column that is constant
        at a node, but not at all of them, has no weight there: the node cannot learn its meaning.
    epsilon, delta
        The budget of each node that works alone and private, with the settings that
        `dpmesh.defaults.choose` gives for one node; None computes no such baseline. Records need a
        norm of about 1.
    key
        Its noise; by default new keys. A seeded key makes it reproducible; no other may be given.
    most
        At most so many nodes, evenly spaced, work alone and private.

    Raises
    ------
    ValueError
        If the problem has no test records, or an argument does not fit.
    """
    instance("problem", problem, "a LinearProblem", LinearProblem)
    if problem not in _known:
        _known[problem] = _without_privacy(problem)
    if epsilon is None:
        return _known[problem]
    private = _alone_private(problem, epsilon, delta, key, most)
    return _known[problem].beside(private, epsilon, delta)


def beside(problem: object, privacy: Report) -> Baselines | None:
    """Return what a run is shown beside; None if that cannot be computed in a few seconds.

    Nodes alone and private have the epsilon and delta of the run's report, where that protects
    records, delta is positive and records have norms of at most 1. Their noise has a fixed seed:
    nothing of them is released.
    """
    if not isinstance(problem, LinearProblem) or problem.test is None:
        return None
    features = problem.train.features
    if features.size * max(problem.classes or 1, 1) > LARGEST:
        return None
    epsilon = float(rounded_up(privacy.epsilon))
    fits = privacy.unit == "record" and epsilon > 0 and privacy.is_private and privacy.delta > 0
    if fits and _longest(problem) <= 1.001 and problem.loss in _CLASSES:
        return compute(problem, epsilon=epsilon, delta=privacy.delta, key=Key.seeded(0), most=SHOWN)
    return compute(problem)


def _without_privacy(problem: LinearProblem) -> Baselines:
    _require_test(problem)
    assert problem.test is not None
    trivial, tested = task_of_problem(problem).trivial_measures(problem), len(problem.test.labels)
    together = replace(problem, partition=(problem.everything[1],))
    alone = [measured_model(problem, w) for w in _trained(problem)]
    (pooled,) = (measured_model(problem, w) for w in _trained(together))
    held_out = tested / (tested + int(problem.records.sum()))

    def of(metric: str) -> Baselines:
        return Baselines(
            metric=metric,
            chance=trivial[metric],
            alone=np.array([one[metric] for one in alone]),
            pooled=pooled[metric],
            tested=tested,
            held_out=held_out,
        )

    metric, *others = pooled
    return replace(of(metric), others={name: of(name) for name in others})


def alone_private(
    problem: LinearProblem,
    epsilon: float,
    delta: float = 1e-5,
    *,
    key: Key | None = None,
    most: int = 32,
) -> Scores:
    """Return the score of each node that trains alone and publishes a private model.

    Parameters are those of `compute`.

    Raises
    ------
    ValueError
        As `compute`.
    """
    found = _alone_private(problem, epsilon, delta, key, most)
    return np.array([next(iter(one.values())) for one in found])


def _alone_private(
    problem: LinearProblem, epsilon: float, delta: float, key: Key | None, most: int
) -> list[Measures]:
    if key is not None and not key.is_seeded:
        fail("key", "a seeded key, or None: a key serves one run", key)
    count = min(problem.nodes, integer("most", most, at_least=1))
    chosen = np.linspace(0, problem.nodes - 1, count).round().astype(int)
    return [_private(problem, int(i), epsilon, delta, key) for i in chosen]


def measured(problem: LinearProblem, params: FloatArray) -> Measures:
    """Return what rows of parameters reach on the test records: the means, by measure.

    A classification has accuracy, balanced accuracy and, for two classes, the area under the ROC
    curve; a regression has R².

    Raises
    ------
    ValueError
        If the problem has no test records.
    """
    _require_test(problem)
    found = [measured_model(problem, row) for row in params]
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def _require_test(problem: LinearProblem) -> None:
    if problem.test is None:
        fail("test", "records to compare models on", None)


def _trained(problem: LinearProblem) -> FloatArray:
    """Return each node's model: a ridge, or after accelerated gradient descent on its records."""
    used = _used(problem)
    if problem.loss in REGRESSION and problem.loss != "poisson":
        parts = zip(problem.partition, used, strict=True)
        return np.stack([_ridge(problem, part, columns) for part, columns in parts])
    longest = _longest(problem) or 1.0
    curvature = _CLASSES.get(problem.loss, 1.0)
    step = 1 / (curvature * longest**2 + problem.regularization)
    w = ahead = problem.zeros()
    kept = np.tile(used, problem.classes or 1).astype(w.dtype)
    for t in range(_STEPS):
        after = problem.step(ahead, step, problem.everything) * kept
        ahead = after + (t / (t + 3)) * (after - w)
        w = after
    return w


def _used(problem: LinearProblem) -> Flags:
    """Return which columns vary at each node, or nowhere, shape (nodes, features).

    Records that are divided by their norm are compared with their intercept. A sparse column that
    is 0 at a node has no weight anyway.
    """
    x, outline = problem.train.features, problem.outline
    if not isinstance(x, np.ndarray):
        return np.ones((problem.nodes, problem.train.dim), dtype=bool)
    if outline is not None and outline.columns.intercept:
        x = x / x[:, :1]

    def varies(part: npt.NDArray[np.integer[Any]]) -> Flags:
        own = x[part]
        return np.asarray(np.ptp(own, axis=0) > 1e-6 * np.abs(own).max(axis=0))

    nowhere = ~varies(problem.everything[1])
    return np.stack([varies(part) | nowhere for part in problem.partition])


def _ridge(
    problem: LinearProblem, part: npt.NDArray[np.integer[Any]], columns: Flags
) -> FloatArray:
    """Return a ridge on some records and columns; its penalty leaves out one record at a time."""
    x: Any = problem.train.features[part]
    x = np.asarray(x.toarray() if hasattr(x, "toarray") else x, np.float64)[:, columns]
    y = problem.train.labels[part]
    left, sizes, right = np.linalg.svd(x, full_matrices=False)
    best, found = np.inf, np.zeros(x.shape[1])
    for penalty in _PENALTIES:
        shrunk = np.square(sizes) / (np.square(sizes) + penalty)
        fitted = left @ (shrunk * (left.T @ y))
        leverage = np.minimum(np.square(left) @ shrunk, 1 - 1e-9)
        if (error := float(np.square((y - fitted) / (1 - leverage)).sum())) < best:
            best, found = error, right.T @ (sizes / (np.square(sizes) + penalty) * (left.T @ y))
    w = np.zeros(problem.dim, problem.train.features.dtype)
    w[columns] = found
    return w


def _longest(problem: LinearProblem) -> float:
    """Return the largest norm of a training record."""
    x = problem.train.features
    squares = x.power(2) if hasattr(x, "power") else np.square(x)
    return float(np.sqrt(squares.sum(axis=1).max()))


def _private(
    problem: LinearProblem, node: int, epsilon: float, delta: float, key: Key | None
) -> Measures:
    own = problem.for_nodes([node])
    if key is not None:  # nodes that work apart must not share noise
        key = Key.seeded(int(generator(key, Purpose.INIT, node=node).integers(2**62)))
    rule = BY_LOSS[problem.loss].rule
    chosen = choose(Sizes.of(own), epsilon=epsilon, delta=delta, task=rule)
    algorithm, key = chosen.algorithm, Key.generate() if key is None else key
    own = wide_enough(algorithm, own, chosen.rounds)
    carrier = carrier_for(algorithm, own, chosen.topology, None, key)
    *_, last = run_rounds(algorithm, own, carrier, rounds=chosen.rounds, key=key)
    return measured(own, algorithm.published(last.state, last.received))
