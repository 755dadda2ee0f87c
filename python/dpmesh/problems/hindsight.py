"""Best fixed predictor in hindsight, with a proved bound on its distance from the optimum.

The regret of an online learner is its total loss minus the total loss of the best fixed model w on
all records, the minimizer of

    F(w) = mean_r loss(w, x_r, y_r) + (lambda / 2) |w|^2    over |w| <= R.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import scipy
from threadpoolctl import ThreadpoolController

import dpmesh.kernels as kernels
from dpmesh._ragged import Numbers
from dpmesh._validate import fail, instance, positive
from dpmesh.kernels.linear_model import KINKED
from dpmesh.problems.linear import LinearProblem

Vector = Numbers

WIDTHS = tuple(0.1**k for k in range(1, 9))
"""Widths over which the kink of a loss is smoothed, one after the other, in units of the score.

A smoothed loss is at most ``width / 2`` below the loss. So the last one, 1e-8, can prove gaps of
1e-8, far below the default tolerance.
"""

LEAST_RADIUS = 1e-30
"""Smallest radius of a ball, the smallest that `clip_rows` projects onto."""

_LEAST_RATIO = 1e-300
"""Smallest ratio whose logarithm is taken; smaller ratios are replaced by it."""

_MOST_MULTIPLIERS = 60
"""Largest number of Lagrange multipliers mu of the bound |w| <= R that are tried for each width."""


class NotReached(RuntimeError):  # noqa: N818
    """Error of `best_fixed_predictor`, whose solver did not reach the tolerance."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BestPredictor:
    """Result of `best_fixed_predictor`: a model whose objective is nearly the smallest in its ball.

    Attributes
    ----------
    parameters
        The model, shape (dim,), with an L2 norm of at most the radius.
    value
        Objective at `parameters`: mean loss over the records, plus the regularizer. Regret needs
        this number times the number of records.
    gap
        Proved bound on the distance from the optimum: the smallest objective in the ball is at
        least ``value - gap``.
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
        Problem with the loss, the training records and the regularization.
    records
        Indices of training records, shape (count,); None for the records of all nodes.
    radius
        L2 radius R of the ball around 0. None for no ball, which requires a positive
        regularization.
    tolerance
        Largest accepted gap, in the unit of the mean loss.

    Returns
    -------
    The parameters in float64, their objective, and the gap.

    Raises
    ------
    ValueError
        If `records` or `tolerance` is out of its range, or neither a radius nor regularization
        bounds the parameters.
    NotReached
        If the solver does not reach the tolerance (a `RuntimeError`). This may happen without
        regularization on a ball far larger than the minimizer's norm. The message states the gap
        that was reached.

    Notes
    -----
    The minimizer ``w_mu`` of ``F(w) + mu |w|^2 / 2`` comes from scipy's L-BFGS-B, the multiplier
    ``mu`` with ``|w_mu| = R`` from false position. A loss with a kink is replaced by smooth
    functions below it, whose kink is smoothed over a shrinking width.

    The gap is a proved bound, even if the solver fails. Let ``f <= F`` be the smooth function, and
    ``c`` the gradient of its losses at ``w``. By convexity, for every ``u`` in the ball,

        F(u) >= f(u) >= f(w) + <c, u - w> + (lambda / 2) (|u|^2 - |w|^2),

    and the smallest value of the right-hand side on the ball has a closed form. No loss is
    negative, so 0 is a lower bound, too. Without a radius the ball is ``|w|^2 <= 2 F(0) / lambda``:
    every point outside has a larger objective than the point 0.
    """
    instance("problem", problem, "a LinearProblem", LinearProblem)
    tolerance = positive("tolerance", tolerance)
    search = _Search(_Goal(problem, records, radius), tolerance)
    widths = WIDTHS if problem.loss in KINKED else (0.0,)
    # L-BFGS hands BLAS tiny matrices, thousands of times: waking its threads would cost more.
    with _blas().limit(limits=1, user_api="blas"):
        for width in widths:
            search.advance(width)
            if search.best.gap <= tolerance:
                return search.best
    gap = search.best.gap
    raise NotReached(f"tolerance: wanted a gap of at most {tolerance}, reached {gap:.2g}")


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


class _Goal:
    """Objective F on float64 copies of the records, and the ball on which it is minimized."""

    def __init__(
        self, problem: LinearProblem, records: npt.ArrayLike | None, radius: float | None
    ) -> None:
        indices = problem.full_batches[1] if records is None else np.asarray(records)
        if indices.ndim != 1 or indices.dtype.kind not in "iu" or not indices.size:
            expected = "integer indices of at least 1 record"
            fail("records", expected, f"{indices.dtype} of shape {indices.shape}")
        if indices.min() < 0 or indices.max() >= problem.train.records:
            fail("records", f"indices from 0 to {problem.train.records - 1}", indices)
        train = problem.train.take(indices)
        train = replace(train, features=train.features.astype(np.float64))
        self.batch = np.arange(train.records)[None]  # all records, at one node
        self.problem = replace(problem, train=train, partition=(self.batch[0],), test=None)
        self.strength = problem.regularization  # lambda
        self.radius = self._checked_radius(radius)

    def _checked_radius(self, radius: float | None) -> float:
        """Return R; without one, the radius beyond which every point is worse than 0."""
        if radius is not None:
            checked = positive("radius", radius)
            if checked < LEAST_RADIUS:
                fail("radius", f"a finite number of at least {LEAST_RADIUS:g}", radius)
            return checked
        if self.strength == 0:
            fail("radius", "a radius, since there is no regularization", None)
        value_at_zero = self.value(np.zeros(self.problem.dim))
        return math.sqrt(2 * value_at_zero / self.strength) or 1.0

    def value(self, w: Vector) -> float:
        """Return ``F(w)``."""
        return float(self.problem.objective(w[None], self.batch)[0])

    def smooth(self, w: Vector, width: float) -> tuple[float, Vector]:
        """Return the smooth function ``f <= F`` at w, and its gradient."""
        if self.problem.loss in KINKED:
            return self._without_kink(w, width)
        return self.value(w), self.problem.gradient(w[None], self.batch)[0].astype(np.float64)

    def _without_kink(self, w: Vector, width: float) -> tuple[float, Vector]:
        """Return ``max_a (a r - width a^2 / 2)`` in place of a loss ``max_a a r`` with a kink.

        It is the hinge for ``r = 1 - y <w, x>`` and a from 0 to 1, and the absolute loss for
        ``r = <w, x> - y`` and a from -1 to 1. The maximum is at ``a = r / width``, clipped.
        """
        x = self.problem.train.features
        labels = self.problem.train.labels[:, None]
        classes = self.problem.classes
        if classes is None:
            y = labels
        else:
            y = np.where(labels == np.arange(classes), 1, -1)
        scores = x @ w.reshape(y.shape[1], -1).T
        if self.problem.loss == "hinge":
            r = 1 - y * scores
            slope_of_r = -y
            least_a = 0
        else:
            r = scores - y
            slope_of_r = np.ones_like(y)
            least_a = -1
        a = np.clip(r / width, least_a, 1)
        value = (a * (r - width / 2 * a)).sum() / len(y) + self.strength / 2 * w @ w
        loss_gradient = ((x.T @ (a * slope_of_r)).T / len(y)).ravel()
        return float(value), self.strength * w + loss_gradient

    def lower_bound(self, w: Vector, value: float, gradient: Vector) -> float:
        """Return the lower bound on ``F`` over the ball that ``f(w)`` and its gradient prove.

        With c the gradient of the losses alone, the bound of `best_fixed_predictor` is least at u
        opposite to c, of length ``min(R, |c| / lambda)``.
        """
        c = gradient - self.strength * w
        length = float(np.linalg.norm(c))
        distance = self.radius
        if self.strength:
            distance = min(self.radius, length / self.strength)
        gain = length * distance - self.strength / 2 * distance * distance
        return value - float(c @ w) - self.strength / 2 * float(w @ w) - gain


class _Search:
    """Search for the multiplier mu at which the minimizer ``w_mu`` is on the surface of the ball.

    If the minimizer of F is inside the ball, mu decreases until ``mu |w|^2 / 2`` is negligible.
    """

    def __init__(self, goal: _Goal, tolerance: float) -> None:
        self.goal = goal
        self.tolerance = tolerance
        self.w = np.zeros(goal.problem.dim)
        value = goal.value(self.w)
        self.best = BestPredictor(parameters=self.w, value=value, gap=value)  # no loss is negative
        # |w_mu| <= R from here on, since gradients of a convex function are monotone.
        _, gradient = goal.smooth(self.w, WIDTHS[0])
        self.log_mu = self._log_over_radius(gradient)

    def _log_over_radius(self, vector: Vector) -> float:
        """Return the logarithm of a vector's norm over the radius of the ball."""
        return math.log(max(float(np.linalg.norm(vector)) / self.goal.radius, _LEAST_RATIO))

    def advance(self, width: float) -> None:
        """Search with the kink smoothed over `width`, from the last model and multiplier on.

        The multiplier mu is changed by factors of 10, until one ``w_mu`` is in the ball and another
        is outside. False position then interpolates ``log |w_mu| / R`` in log mu, at least a tenth
        of the bracket away from its ends.
        """
        inside = None  # (log mu, log |w_mu| / R) of the last w_mu in the ball
        outside = None  # (log mu, log |w_mu| / R) of the last w_mu outside the ball
        # mu |w|^2 / 2 is then at most a twentieth of the tolerance in the ball
        least_log_mu = math.log(self.tolerance) - math.log(10) - 2 * math.log(self.goal.radius)
        for _ in range(_MOST_MULTIPLIERS):
            if self._solved(width):
                return
            excess = self._log_over_radius(self.w)
            if excess > 0:
                outside = self.log_mu, excess
            else:
                inside = self.log_mu, excess
            if inside is None:
                self.log_mu += math.log(10)
                continue
            if outside is None:
                if self.log_mu <= least_log_mu:
                    return
                self.log_mu -= math.log(10)
                continue
            outside_log_mu, outside_excess = outside
            inside_log_mu, inside_excess = inside
            share = outside_excess / (outside_excess - inside_excess)
            share = min(max(share, 0.1), 0.9)
            self.log_mu = outside_log_mu + share * (inside_log_mu - outside_log_mu)

    def _solved(self, width: float) -> bool:
        """Move to ``w_mu``, and return True if the search at this width is over.

        It is over if the gap is within the tolerance, or if the smooth function is minimized up to
        half of the tolerance: the rest of the gap is due to the smoothing of the kink.
        """
        self.w = self._minimizer(width)
        projected: Vector = kernels.clip_rows(self.w, self.goal.radius).astype(np.float64)
        smooth, gradient = self.goal.smooth(projected, width)
        bound = self.goal.lower_bound(projected, smooth, gradient)
        best_bound = max(self.best.value - self.best.gap, bound)
        value = self.goal.value(projected)
        if value < self.best.value:
            self.best = BestPredictor(parameters=projected, value=value, gap=0.0)
        self.best = replace(self.best, gap=max(self.best.value - best_bound, 0.0))
        return self.best.gap <= self.tolerance or smooth - bound <= self.tolerance / 2

    def _minimizer(self, width: float) -> Vector:
        """Return the minimizer ``w_mu`` of the smooth function plus ``mu |w|^2 / 2``."""
        mu = math.exp(self.log_mu)

        def penalized(w: Vector) -> tuple[float, Vector]:
            value, gradient = self.goal.smooth(w, width)
            return value + mu / 2 * float(w @ w), gradient + mu * w

        # A gradient g leaves a gap of at most 2 R |g| to the minimum in the ball. If its entries
        # are at most `accuracy`, |g| <= tolerance / (16 R): a gap of tolerance / 8.
        accuracy = self.tolerance / (16 * self.goal.radius * math.sqrt(len(self.w)))
        options = {
            "maxiter": 5000,
            "maxfun": 10000,
            "maxcor": 20,
            "maxls": 100,  # a barely smoothed kink is a narrow target
            "ftol": 0.0,
            "gtol": accuracy,
        }
        minimizer: Vector = scipy.optimize.minimize(
            penalized, self.w, jac=True, method="L-BFGS-B", options=options
        ).x
        return minimizer
