"""The best fixed predictor in hindsight, with a proof of how good it is.

Regret compares a learner with the one predictor that would have done best on all records,

    F(w) = mean_r loss(w, x_r, y_r) + (lambda / 2) |w|^2    over |w| <= R.

It is found by scipy's L-BFGS-B, and whatever that does, the returned gap is proved: by convexity
for the smooth losses, by duality for the hinge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import optimize
from threadpoolctl import ThreadpoolController

from dpmesh import kernels
from dpmesh._validate import fail, positive
from dpmesh.problems.linear import LinearProblem

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BestPredictor:
    """A predictor that is nearly the best in its ball.

    Attributes
    ----------
    parameters
        Shape (dim,), norm of at most the radius.
    value
        Mean loss over the records, plus the regularizer, at `parameters`. The sum over the records
        that regret needs is this times their number.
    gap
        The smallest possible value is at least ``value - gap``.
    """

    parameters: Vector
    value: float
    gap: float


def best_fixed_predictor(
    problem: LinearProblem,
    records: npt.ArrayLike | None = None,
    *,
    radius: float | None = None,
    tolerance: float = 1e-5,
) -> BestPredictor:
    """Minimize the mean loss over records, plus the problem's regularizer, on a ball.

    Parameters
    ----------
    problem
        Its loss, training records and regularization.
    records
        Indices of the training records, shape (count,); None for those of all nodes.
    radius
        Radius R of the ball. None for no bound, which takes a positive regularization.
    tolerance
        Largest gap to accept, in units of the mean loss.

    Returns
    -------
    Parameters in float64, their value, and the gap.

    Raises
    ------
    ValueError
        If `records` or `tolerance` do not fit, or neither radius nor regularization bounds the
        parameters.
    RuntimeError
        If the solver does not reach the tolerance.

    Notes
    -----
    Without a radius the search is confined to ``|w|^2 <= 2 F(0) / lambda``: no other point is
    better than 0.

    Smooth losses: the minimizer ``w_mu`` of ``F(w) + mu |w|^2 / 2`` by L-BFGS, and the root of
    ``|w_mu| = R`` in the multiplier ``mu`` by Brent's method. Gap by convexity, with ``g = grad
    F(w)``: no point of the ball lies below ``F(w) - (<g, w> + R |g|)``.

    Hinge: proximal point steps ``min_w F(w) + sigma |w - w_k|^2 / 2`` with decreasing ``sigma``,
    each through its dual, which is smooth in one bounded variable for each record and model, by
    L-BFGS-B. Gap by weak duality: with ``v = sum_r a_r y_r x_r / n``, any ``0 <= a <= 1`` gives the
    bound ``mean(a) - max_{|w| <= R} (<v, w> - lambda |w|^2 / 2)``, and 0 is one too.
    """
    tolerance = positive("tolerance", tolerance)
    goal = _Goal(problem, records, radius)
    # L-BFGS hands BLAS tiny matrices, thousands of times: waking its threads costs more.
    with _blas().limit(limits=1, user_api="blas"):
        best = (_hinge if problem.loss == "hinge" else _smooth)(goal, tolerance)
    if not best.gap <= tolerance:
        raise RuntimeError(f"gap {best.gap:.2g} after the last step, above the {tolerance=}")
    return best


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


class _Goal:
    """The function to minimize, on float64 copies of its records."""

    def __init__(
        self, problem: LinearProblem, records: npt.ArrayLike | None, radius: float | None
    ) -> None:
        chosen = problem.everything[1] if records is None else np.asarray(records)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or not chosen.size:
            wanted = "integer indices of at least 1 record"
            fail("records", wanted, f"{chosen.dtype} of shape {chosen.shape}")
        if chosen.min() < 0 or chosen.max() >= problem.train.records:
            fail("records", f"indices from 0 to {problem.train.records - 1}", chosen)
        x = problem.train.features[chosen].astype(np.float64)
        train = replace(problem.train, features=x, labels=problem.train.labels[chosen])
        self.all = np.arange(train.records)[None]
        self.problem = replace(problem, train=train, partition=(self.all[0],), test=None)
        self.regularization = problem.regularization
        self.dim = problem.dim
        if radius is not None:
            self.radius = positive("radius", radius)
        elif self.regularization > 0:
            self.radius = math.sqrt(2 * self.value(np.zeros(self.dim)) / self.regularization)
        else:
            fail("radius", "a radius, since there is no regularization", None)

    def value(self, w: Vector) -> float:
        return float(self.problem.objective(w[None], self.all)[0])

    def gradient(self, w: Vector) -> Vector:
        gradient: Vector = self.problem.gradient(w[None], self.all)[0]
        return gradient

    def projected(self, w: Vector) -> Vector:
        projected: Vector = kernels.clip_rows(w, self.radius).astype(np.float64, copy=False)
        return projected


def _smooth(goal: _Goal, tolerance: float) -> BestPredictor:
    w = np.zeros(goal.dim)
    best = _by_convexity(goal, w)
    # No multiplier is larger than |grad F(0)| / R: gradients of a convex function are monotone.
    mu = float(np.linalg.norm(goal.gradient(w))) / goal.radius
    accuracy = tolerance / (8 * goal.radius * math.sqrt(goal.dim))

    def excess(log_mu: float) -> float:
        nonlocal w, best
        w = _minimizer(goal, math.exp(log_mu), w, accuracy)
        best = min(best, _by_convexity(goal, w), key=lambda found: found.gap)
        return math.log(float(np.linalg.norm(w)) / goal.radius)

    while best.gap > tolerance and mu * goal.radius**2 > tolerance / 10:
        if excess(math.log(mu)) > 0:
            precision = tolerance / (40 * mu * goal.radius**2)
            optimize.brentq(excess, math.log(mu), math.log(10 * mu), xtol=precision)
            break
        mu /= 10
    return best


def _minimizer(goal: _Goal, mu: float, start: Vector, accuracy: float) -> Vector:
    """Minimizer of ``F(w) + mu |w|^2 / 2``; accuracy is that of its gradient's entries."""

    def value_and_gradient(w: Vector) -> tuple[float, Vector]:
        return goal.value(w) + mu / 2 * float(w @ w), goal.gradient(w) + mu * w

    found = optimize.minimize(
        value_and_gradient,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "maxfun": 10000, "maxcor": 20, "ftol": 0.0, "gtol": accuracy},
    )
    minimizer: Vector = found.x
    return minimizer


def _by_convexity(goal: _Goal, w: Vector) -> BestPredictor:
    """The predictor, moved into the ball, with the gap that its gradient proves."""
    w = goal.projected(w)
    gradient = goal.gradient(w)
    gap = float(gradient @ w) + goal.radius * float(np.linalg.norm(gradient))
    return BestPredictor(w, goal.value(w), max(gap, 0.0))


def _hinge(goal: _Goal, tolerance: float) -> BestPredictor:
    dual = _HingeDual(goal)
    a, w = np.full(dual.signs.size, 0.5), np.zeros(goal.dim)
    value, lower = goal.value(w), 0.0
    best = BestPredictor(w, value, value)
    sigma = value / goal.radius**2
    for _ in range(100):
        found = optimize.minimize(
            dual.proximal,
            a,
            args=(w, sigma),
            jac=True,
            method="L-BFGS-B",
            bounds=optimize.Bounds(0, 1),
            options={"maxiter": 200, "maxfun": 400, "ftol": 1e-13, "gtol": 0.0},
        )
        a = found.x
        w = dual.nearest(dual.combination(a), w, sigma)
        value, lower = goal.value(w), max(lower, dual.bound(a))
        if value < best.value:
            best = BestPredictor(w, value, value)
        best = replace(best, gap=best.value - lower)
        if best.gap <= tolerance:
            break
        if found.nit < 100:  # an easy step: let the next one go further
            sigma *= 0.3
    return best


class _HingeDual:
    """Hinge losses as ``max_a mean(a (1 - y <w, x>))`` over ``0 <= a <= 1``."""

    def __init__(self, goal: _Goal) -> None:
        train, classes = goal.problem.train, goal.problem.classes
        self.x, labels = train.features, train.labels[:, None]
        self.signs = labels if classes is None else np.where(labels == np.arange(classes), 1, -1)
        self.goal = goal

    def combination(self, a: Vector) -> Vector:
        """The mean ``v`` of ``a y x``."""
        weights = a.reshape(self.signs.shape) * self.signs
        rows: Vector = (self.x.T @ weights).T / len(weights)
        return rows.ravel()

    def slack(self, w: Vector) -> Vector:
        """``1 - y <w, x>`` of each record and model."""
        scores = self.x @ w.reshape(self.signs.shape[1], -1).T
        slack: Vector = 1 - self.signs * scores
        return slack.ravel()

    def nearest(self, v: Vector, center: Vector, sigma: float) -> Vector:
        """Minimizer of ``lambda |w|^2 / 2 - <v, w> + sigma |w - center|^2 / 2`` on the ball."""
        return self.goal.projected((v + sigma * center) / (self.goal.regularization + sigma))

    def proximal(self, a: Vector, center: Vector, sigma: float) -> tuple[float, Vector]:
        """Minus the dual function of a proximal step, and its gradient."""
        v = self.combination(a)
        w = self.nearest(v, center, sigma)
        moved, count = w - center, len(self.signs)
        quadratic = self.goal.regularization * float(w @ w) + sigma * float(moved @ moved)
        return float(v @ w) - quadratic / 2 - float(a.sum()) / count, -self.slack(w) / count

    def bound(self, a: Vector) -> float:
        """The dual function of the problem itself: no value of ``F`` on the ball is below it."""
        v, strength = self.combination(a), self.goal.regularization
        length = float(np.linalg.norm(v))
        longest = min(self.goal.radius, length / strength if strength else math.inf)
        lower = float(a.sum()) / len(self.signs)
        return lower - length * longest + strength / 2 * longest**2
