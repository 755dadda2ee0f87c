"""What to compare a private federation with: chance, a node alone, and all records pooled.

These are research figures, computed where all nodes' data are in one process. They are made from
the data without noise (but for `Baselines.alone_private`), and no epsilon covers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._arrays import FloatArray
from dpmesh._validate import fail, instance, integer
from dpmesh.defaults import Sizes, Task, choose
from dpmesh.kernels.linear_model import REGRESSION
from dpmesh.keys import Key, Purpose, generator
from dpmesh.privacy.report import Report
from dpmesh.privacy.shown import as_given, rounded_up
from dpmesh.problems import LinearProblem
from dpmesh.run.arguments import wide_enough
from dpmesh.run.carriers import carrier_for
from dpmesh.run.channel import run_rounds

__all__ = ["Baselines", "alone_private", "beside", "compute", "scores"]

Scores = npt.NDArray[np.float64]

_STEPS = 300

LARGEST = 5_000_000
"""Up to so many stored features times outputs, baselines of a run are computed by default."""

SHOWN = 8
"""Nodes that work alone and private beside a run."""

_known: WeakKeyDictionary[LinearProblem, Baselines] = WeakKeyDictionary()
"""Baselines without privacy: the same for all runs on a problem."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Baselines:
    """Scores on the common test records: accuracy, or R² of a regression.

    Parameters
    ----------
    metric
        ``"accuracy"`` or ``"R²"``.
    chance
        Of the most frequent class of the test records, or of their mean.
    alone
        Of a model that each node trains on its own records, without privacy, shape (nodes,).
    alone_private
        The same at `epsilon` and `delta`, for some or all nodes, shape (some,); None if not asked.
    pooled
        Of one model trained on all records, without privacy.
    epsilon, delta
        What `alone_private` costs.
    """

    metric: str
    chance: float
    alone: Scores
    alone_private: Scores | None = None
    pooled: float
    epsilon: float | None = None
    delta: float | None = None

    def beaten(self, federation: float) -> int:
        """Return how many nodes do worse alone, without privacy, than the federation."""
        return int((federation > self.alone).sum())

    def sentence(self, federation: float, epsilon: float | None = None) -> str:
        """State whether sharing paid.

        Parameters
        ----------
        federation
            The score of the federation's released model, on the same test records.
        epsilon
            What it cost; by default that of `alone_private`.
        """
        epsilon = self.epsilon if epsilon is None else epsilon
        nodes = len(self.alone)
        beaten = self.beaten(federation)
        who = f"{beaten} of {nodes}"
        if beaten in (0, nodes):
            who = f"all {nodes}" if beaten else f"none of {nodes}"
        at = "Without privacy" if epsilon is None else f"At epsilon {as_given(epsilon)}"
        tied = int(np.sum(self.alone == federation))
        ties = f" and ties with {tied}" if tied else ""
        mean = f"{self._shown(federation)} against {self._shown(self.alone.mean())} on average"
        mean = mean if self.metric == "accuracy" else f"{self.metric} {mean}"
        verdict = "" if 2 * beaten > nodes else ": sharing does not pay here"
        return f"{at} the federation beats {who} sites working alone{ties} ({mean}){verdict}."

    def rows(self, federation: float, epsilon: float | None = None) -> list[tuple[str, float, str]]:
        """Return name, mean score and printed score of the federation and all baselines."""
        epsilon = self.epsilon if epsilon is None else epsilon
        private = "without privacy" if epsilon is None else f"epsilon {as_given(epsilon)}"
        rows = [
            ("chance", self.chance, self._shown(self.chance)),
            ("one site alone, without privacy", self.alone.mean(), self._range(self.alone)),
        ]
        if self.alone_private is not None and self.epsilon is not None:
            name, own = f"one site alone, epsilon {as_given(self.epsilon)}", self.alone_private
            rows.append((name, own.mean(), self._range(own)))
        rows.append((f"the federation, {private}", federation, self._shown(federation)))
        rows.append(("all records pooled, without privacy", self.pooled, self._shown(self.pooled)))
        return rows

    def table(self, federation: float, epsilon: float | None = None) -> str:
        """Return the federation's score beside all baselines, one line each."""
        rows = self.rows(federation, epsilon)
        width = max(len(name) for name, _, _ in rows)
        return "\n".join(f"{name:<{width}}  {shown}" for name, _, shown in rows)

    def as_dict(self) -> dict[str, Any]:
        """Return them in plain types that JSON can hold."""
        alone_private = None if self.alone_private is None else self.alone_private.tolist()
        return {**vars(self), "alone": self.alone.tolist(), "alone_private": alone_private}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Baselines:
        """Return the baselines that `as_dict` gave."""
        private = saved["alone_private"]
        alone_private = None if private is None else np.array(private)
        return cls(**{**saved, "alone": np.array(saved["alone"]), "alone_private": alone_private})

    def _range(self, values: Scores) -> str:
        low, high = self._shown(values.min()), self._shown(values.max())
        return f"{self._shown(values.mean())} (worst {low}, best {high})"

    def _shown(self, score: float) -> str:
        return f"{score:.1%}" if self.metric == "accuracy" else f"{score:.3f}"


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
        A linear problem with test records. Nodes alone and the pool are trained by 300 steps of
        accelerated gradient descent; least squares stands in for the absolute loss, since R² is
        about squared errors and the steps do not converge at a kink.
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
    own = alone_private(problem, epsilon, delta, key=key, most=most)
    return replace(_known[problem], alone_private=own, epsilon=epsilon, delta=delta)


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
    if fits and _longest(problem) <= 1.001 and problem.loss in ("softmax", "logistic"):
        return compute(problem, epsilon=epsilon, delta=privacy.delta, key=Key.seeded(0), most=SHOWN)
    return compute(problem)


def _without_privacy(problem: LinearProblem) -> Baselines:
    together = LinearProblem(
        problem.train,
        (problem.everything[1],),
        problem.loss,
        test=problem.test,
        classes=problem.classes,
        regularization=problem.regularization,
        label_bound=problem.label_bound,
    )
    return Baselines(
        metric="accuracy" if problem.classifies else "R²",
        chance=_chance(problem),
        alone=scores(problem, _trained(problem)),
        pooled=float(scores(problem, _trained(together))[0]),
    )


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
    if key is not None and not key.is_seeded:
        fail("key", "a seeded key, or None: a key serves one run", key)
    count = min(problem.nodes, integer("most", most, at_least=1))
    chosen = np.linspace(0, problem.nodes - 1, count).round().astype(int)
    return np.array([_private(problem, int(i), epsilon, delta, key) for i in chosen])


def scores(problem: LinearProblem, params: FloatArray) -> Scores:
    """Return the accuracy, or R², of each row of parameters on the problem's test records.

    R² is 1 less the mean squared error over the variance of the test targets.

    Raises
    ------
    ValueError
        If the problem has no test records.
    """
    if problem.test is None:
        fail("test", "records to compare models on", None)
    if problem.classifies:
        return problem.accuracy(params)
    targets = problem.test.labels
    errors = kernels.linear_scores(params, problem.test.features) - targets[:, np.newaxis]
    spread = float(np.square(targets - targets.mean()).mean())
    return np.asarray(1 - np.square(errors).mean(axis=0) / (spread or 1.0))


def _chance(problem: LinearProblem) -> float:
    """Return the accuracy of the most frequent class, or the R² of the mean."""
    if not problem.classifies:
        return 0.0
    assert problem.test is not None
    counts = np.unique(problem.test.labels, return_counts=True)[1]
    return float(counts.max() / counts.sum())


def _trained(problem: LinearProblem) -> FloatArray:
    """Return each node's model after accelerated gradient descent on its own records."""
    if problem.loss == "absolute":
        problem = replace(problem, loss="squared")
    longest = _longest(problem) or 1.0
    curvature = {"logistic": 0.25, "hinge": 1.0, "squared": 1.0, "softmax": 0.5}[problem.loss]
    step = 1 / (curvature * longest**2 + problem.regularization)
    w = ahead = problem.zeros()
    for t in range(_STEPS):
        after = problem.step(ahead, step, problem.everything)
        ahead = after + (t / (t + 3)) * (after - w)
        w = after
    return w


def _longest(problem: LinearProblem) -> float:
    """Return the largest norm of a training record."""
    x = problem.train.features
    squares = x.power(2) if hasattr(x, "power") else np.square(x)
    return float(np.sqrt(squares.sum(axis=1).max()))


def _private(
    problem: LinearProblem, node: int, epsilon: float, delta: float, key: Key | None
) -> float:
    own = problem.for_nodes([node])
    if key is not None:  # nodes that work apart must not share noise
        key = Key.seeded(int(generator(key, Purpose.INIT, node=node).integers(2**62)))
    task: Task = "regression" if problem.loss in REGRESSION else "classification"
    chosen = choose(Sizes.of(own), epsilon=epsilon, delta=delta, task=task)
    algorithm, key = chosen.algorithm, Key.generate() if key is None else key
    own = wide_enough(algorithm, own, chosen.rounds)
    carrier = carrier_for(algorithm, own, chosen.topology, None, key)
    *_, last = run_rounds(algorithm, own, carrier, rounds=chosen.rounds, key=key)
    return float(scores(own, algorithm.published(last.state, last.received))[0])
