"""The best fixed predictor in hindsight, with a proof of how good it is.

Regret compares a learner with the one predictor that would have done best on all records,

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
"""Widths over which the kink of a loss is smoothed, one after the other."""


class NotReached(RuntimeError):  # noqa: N818
    """The solver stopped before its tolerance."""


@dataclass(frozen=True, kw_only=True, eq=False)
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
        The smallest value in the ball is at least ``value - gap``.
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
        Indices of training records, shape (count,); None for those of all nodes.
    radius
        Radius R of the ball. None for no bound, which needs a positive regularization.
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
    NotReached
        A `RuntimeError`, if the solver does not reach the tolerance, as may happen without
        regularization on a ball far larger than the minimizer's norm; the message gives the gap
        reached.

    Notes
    -----
    The minimizer ``w_mu`` of ``F(w) + mu |w|^2 / 2`` comes from scipy's L-BFGS-B, the multiplier
    ``mu`` with ``|w_mu| = R`` from false position. A loss with a kink is replaced by smooth
    functions below it, whose kink is smoothed over a shrinking width.

    The gap is proved, whatever the solver does. With ``f <= F`` the smooth function and ``c`` the
    gradient of its losses at ``w``, convexity gives, for every ``u`` in the ball,

        F(u) >= f(u) >= f(w) + <c, u - w> + (lambda / 2) (|u|^2 - |w|^2),

    and the smallest value of the right-hand side on the ball has a closed form. No loss is
    negative, so 0 is a lower bound too. Without a radius the ball is ``|w|^2 <= 2 F(0) / lambda``:
    no point outside is better than 0.
    """
    instance("problem", problem, "a LinearProblem", LinearProblem)
    tolerance = positive("tolerance", tolerance)
    search = _Search(_Goal(problem, records, radius), tolerance)
    # L-BFGS hands BLAS tiny matrices, thousands of times: waking its threads would cost more.
    with _blas().limit(limits=1, user_api="blas"):
        for width in WIDTHS if problem.loss in KINKED else (0.0,):
            search.advance(width)
            if search.best.gap <= tolerance:
                return search.best
    gap = search.best.gap
    raise NotReached(f"tolerance: wanted a gap of at most {tolerance}, reached {gap:.2g}")


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


class _Goal:
    """The function to minimize, on float64 copies of its records, and the ball."""

    def __init__(
        self, problem: LinearProblem, records: npt.ArrayLike | None, radius: float | None
    ) -> None:
        chosen = problem.everything[1] if records is None else np.asarray(records)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or not chosen.size:
            expected = "integer indices of at least 1 record"
            fail("records", expected, f"{chosen.dtype} of shape {chosen.shape}")
        if chosen.min() < 0 or chosen.max() >= problem.train.records:
            fail("records", f"indices from 0 to {problem.train.records - 1}", chosen)
        train = problem.train.take(chosen)
        train = replace(train, features=train.features.astype(np.float64))
        self.all = np.arange(train.records)[None]
        self.problem = replace(problem, train=train, partition=(self.all[0],), test=None)
        self.strength = problem.regularization  # lambda
        if radius is not None:
            self.radius = positive("radius", radius)
            if self.radius < 1e-30:  # below, nothing is projected
                fail("radius", "a finite number of at least 1e-30", radius)
        elif self.strength > 0:
            at_zero = self.value(np.zeros(problem.dim))
            self.radius = math.sqrt(2 * at_zero / self.strength) or 1.0
        else:
            fail("radius", "a radius, since there is no regularization", None)

    def value(self, w: Vector) -> float:
        """``F(w)``."""
        return float(self.problem.objective(w[None], self.all)[0])

    def smooth(self, w: Vector, width: float) -> tuple[float, Vector]:
        """The smooth function ``f <= F``, and its gradient."""
        if self.problem.loss in KINKED:
            return self._rounded(w, width)
        return self.value(w), self.problem.gradient(w[None], self.all)[0].astype(np.float64)

    def _rounded(self, w: Vector, width: float) -> tuple[float, Vector]:
        """``max_a a r - width a^2 / 2`` in place of a loss ``max_a a r`` with a kink.

        It is the hinge for ``r = 1 - y <w, x>`` and a from 0 to 1, and the absolute loss for
        ``r = <w, x> - y`` and a from -1 to 1.
        """
        x = self.problem.train.features
        labels = self.problem.train.labels[:, None]
        classes = self.problem.classes
        y = labels if classes is None else np.where(labels == np.arange(classes), 1, -1)
        scores = x @ w.reshape(y.shape[1], -1).T
        if self.problem.loss == "hinge":
            rest = 1 - y * scores
            slope = -y
            lowest = 0
        else:
            rest = scores - y
            slope = np.ones_like(y)
            lowest = -1
        a = np.clip(rest / width, lowest, 1)
        value = (a * (rest - width / 2 * a)).sum() / len(y) + self.strength / 2 * w @ w
        gradient = self.strength * w + ((x.T @ (a * slope)).T / len(y)).ravel()
        return float(value), gradient

    def lower_bound(self, w: Vector, value: float, gradient: Vector) -> float:
        """The lower bound on ``F`` over the ball that ``f(w)`` and its gradient prove."""
        c = gradient - self.strength * w
        length = float(np.linalg.norm(c))
        best = min(self.radius, length / self.strength if self.strength else math.inf)
        gain = length * best - self.strength / 2 * best * best
        return value - float(c @ w) - self.strength / 2 * float(w @ w) - gain


class _Search:
    """Follows the minimizers ``w_mu`` to the surface of the ball, or to a small multiplier."""

    def __init__(self, goal: _Goal, tolerance: float) -> None:
        self.goal, self.tolerance = goal, tolerance
        self.w = np.zeros(goal.problem.dim)
        value = goal.value(self.w)
        self.best = BestPredictor(parameters=self.w, value=value, gap=value)
        # |w_mu| <= R from here on, since gradients of a convex function are monotone.
        _, gradient = goal.smooth(self.w, WIDTHS[0])
        self.log_mu = math.log(max(float(np.linalg.norm(gradient)) / goal.radius, 1e-300))

    def advance(self, width: float) -> None:
        """Search with the given smooth function from where the last one ended."""
        inside = outside = None  # multipliers with w_mu in the ball and beyond it
        least = math.log(self.tolerance) - math.log(10) - 2 * math.log(self.goal.radius)
        for _ in range(60):
            if self._solved(width):
                return
            excess = math.log(max(float(np.linalg.norm(self.w)) / self.goal.radius, 1e-300))
            if excess > 0:
                outside = self.log_mu, excess
            else:
                inside = self.log_mu, excess
            if inside is None:
                self.log_mu += math.log(10)
            elif outside is None and self.log_mu > least:
                self.log_mu -= math.log(10)
            elif outside is None:
                return
            else:
                share = outside[1] / (outside[1] - inside[1])
                share = min(max(share, 0.1), 0.9)
                self.log_mu = outside[0] + share * (inside[0] - outside[0])

    def _solved(self, width: float) -> bool:
        """Move to ``w_mu``; whether the remaining gap is due to the smoothing of the kink."""
        self.w = self._minimizer(width)
        inner: Vector = kernels.clip_rows(self.w, self.goal.radius).astype(np.float64)
        smooth, gradient = self.goal.smooth(inner, width)
        bound = self.goal.lower_bound(inner, smooth, gradient)
        lower = max(self.best.value - self.best.gap, bound)
        value = self.goal.value(inner)
        if value < self.best.value:
            self.best = BestPredictor(parameters=inner, value=value, gap=0.0)
        self.best = replace(self.best, gap=max(self.best.value - lower, 0.0))
        return self.best.gap <= self.tolerance or smooth - bound <= self.tolerance / 2

    def _minimizer(self, width: float) -> Vector:
        mu = math.exp(self.log_mu)

        def penalized(w: Vector) -> tuple[float, Vector]:
            value, gradient = self.goal.smooth(w, width)
            return value + mu / 2 * float(w @ w), gradient + mu * w

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
