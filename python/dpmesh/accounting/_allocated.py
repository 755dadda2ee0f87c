"""The profile of random allocation: delta as the mean of the positive part of a sum.

`allocation` calls `log_profile` once for each epsilon and each direction between neighbours.

**Theorem** (docs/privacy/random_allocation_proof.md). In a pass, each record takes part in one of
several releases (*steps*), drawn in secret. Delta at epsilon, the *profile*, is at most

    E[(S + offset)_+],    S = sum over steps j of D_j,    D_j = p_j (u X_j - v X'_j)

where ``(x)_+ = max(x, 0)``, and for independent standard normal ``Z_j``

    p_j     probability that the record takes part in step j
    a_j     largest movement of the noise of step j by the record, in standard deviations
    X_j     ``exp(a_j Z_j - a_j^2 / 2)``, the density of step j with the record over that without
    X'_j    ``exp(-a_j Z_j - a_j^2 / 2)``, the same for the neighbour's record, at worst opposite

With ``b = exp(epsilon)``, the direction between neighbours determines the other three numbers:

    the record is      u    v    offset
    replaced           1    b    0
    removed            1    0    -b
    added              0    b    1

A record that takes part in no step with probability p_0 adds ``p_0 (u - v)`` to the offset.

**Convex order.** D is *smaller in convex order* than Y if both have the same mean and
``E[(D - k)_+] <= E[(Y - k)_+]`` for all k. Then ``E[f(D)] <= E[f(Y)]`` for every convex f, and a
sum in which Y replaces D is larger in convex order, too. Such a Y is said to dominate D.

**The computation.** Every error is upwards:

1. `_lattice_step` replaces D by a dominating variable on a lattice: ``E[(D - k)_+]`` is exact at
   lattice points k and too large between. This adds at most a quarter of the squared interval to
   the variance. D is cut at a top, and ``E[(D - top)_+]`` is charged; below a bottom it is moved
   up.
2. Probabilities are *tilted*: multiplied by ``exp(theta D)`` and normalised (Esscher transform).
   The tilt theta is such that the sum is about 0 on average. Then the probabilities that decide the
   profile are not small beside the rounding of the transforms.
3. The sum of all steps is computed by Fourier transforms over a *window* of values. Probability
   above the window is bounded by Chernoff's inequality. What the transform wraps around is added to
   probabilities within. A bound of the rounding of probabilities and transforms is added to each.
4. The result is at most the profile of a *public allocation*, against an adversary who knows which
   step each record takes part in (`_log_public_allocation`).

`_ApproximateSum` chooses lattice, window and tilt. No bound rests on its choices.

Not counted is the rounding of the last few operations on logarithms, about 1e-13 of the profile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp, floor, inf, log, sqrt
from typing import Protocol

import numpy as np
import scipy  # its submodules are imported on first use

from dpmesh.accounting._arguments import Floats
from dpmesh.accounting._compose import convolved, tilt_and_fold
from dpmesh.accounting._loss import UNIT, LossDistribution
from dpmesh.accounting._merge import Mixtures

_PROFILE_EXCESS = 1e-4
"""Aim for the excess of the logarithm of the profile that the lattice causes."""

_VARIANCE_EXCESS = 5e-5
"""Aim for the share of the variance of the sum that the lattice adds."""

_WINDOW_DEVIATIONS = 10.0
"""Reach of the window beyond the mean, in standard deviations of the sum."""

_MIN_POINTS = 2**14
_MAX_POINTS = 2**18
"""Least and largest number of points of a transform that the choice of the interval aims at."""

_MAX_STEP_POINTS = 2**20
"""Most points of the lattice from 0 to the largest value of one step."""

_MAX_WINDOWS = 12
"""Most windows that are tried; each reaches 1.5 times as far above 0 as the window before."""

_MAX_TILT = 2**16
"""Largest tilt, in units of 1 / top: a larger tilt would need a finer lattice."""

_MAX_TAIL_SHARE = 1e-4
"""Largest share of the profile that may lie above the window."""

_LOG_WRAPPED = 15.0
"""Tilted probability of about ``exp(-15)`` may lie outside of the window and be wrapped around."""

_SMALLER_ORDERS = (-1.0, 0.0, 0.4, 0.7)
"""Orders of Chernoff's bound below the window, over the tilt."""

_LARGER_ORDERS = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Orders of Chernoff's bound above the window, over the tilt, for the choice of the window."""

_BEYOND_ORDERS = (1.0, 1.3, 1.7, 2.2, 3.0, 4.0, 6.0)
"""Orders of Chernoff's bound above the window, over the tilt, for the bound that is charged."""

_LOG_NEGLIGIBLE = -300.0
"""A profile below ``exp(-300)`` is only bounded, not computed."""

_MAX_JUMPS = 1e-2
"""Largest mean number of *jumps* in a tilted sum: steps above half of the largest value.

Where jumps are rare, a larger tilt would make the balance of the sum rest on few of them.
"""

# values of a standard normal variable and their weights, for `StepDistribution.points`
_NORMAL_POINTS = np.linspace(-12.0, 12.0, 769)
_NORMAL_WEIGHTS = np.exp(-(_NORMAL_POINTS**2) / 2) / np.sum(np.exp(-(_NORMAL_POINTS**2) / 2))


class StepDistribution(Protocol):
    """Distribution of the variable D of one step, as the module's docstring defines it.

    `calls` and `puts` determine the distribution and are bounds; `points` is an approximation.
    """

    @property
    def p(self) -> float:
        """Probability that the record takes part in this step."""

    def calls(self, k: Floats) -> tuple[Floats, Floats]:
        """Return the mean excess ``E[(D - k)_+]`` at each k, and a bound of its rounding.

        The name is that of an option: a call with strike k has this value. Both arrays have the
        shape of `k`.
        """

    def puts(self, k: Floats) -> tuple[Floats, Floats]:
        """Return the mean shortfall ``E[(k - D)_+]`` at each k, and a bound of its rounding."""

    def points(self) -> tuple[Floats, Floats]:
        """Return some values of D and their weights, which sum to 1.

        They serve the choice of lattice, window and tilt, and no bound.
        """


@dataclass(frozen=True)
class GaussianStep:
    """Distribution of D for Gaussian noise.

    ``D = p exp(-a^2 / 2) (u exp(a z) - v exp(-a z))`` rises with the standard normal variable z.

    Parameters
    ----------
    p
        Probability that the record takes part in this step.
    a
        Largest movement of the noise by the record, in standard deviations.
    u, v
        Factors of the direction between neighbours, see the module's docstring.
    """

    p: float
    a: float
    u: float
    v: float

    def points(self) -> tuple[Floats, Floats]:
        rise = self.u * np.exp(self.a * _NORMAL_POINTS)
        fall = self.v * np.exp(-self.a * _NORMAL_POINTS)
        return self.p * exp(-(self.a**2) / 2) * (rise - fall), _NORMAL_WEIGHTS

    def calls(self, k: Floats) -> tuple[Floats, Floats]:
        """See `StepDistribution`.

        D exceeds k where z exceeds a root ``z_k``. There ``E[X] = Phi(a - z_k)`` and ``E[X'] =
        Phi(-a - z_k)``, with the normal distribution function Phi.
        """
        root = self._root(k)
        mean_x = scipy.special.ndtr(self.a - root)
        mean_x_opposite = scipy.special.ndtr(-self.a - root)
        probability = scipy.special.ndtr(-root)
        return self._excess(k, root, mean_x, mean_x_opposite, probability, sign=1.0)

    def puts(self, k: Floats) -> tuple[Floats, Floats]:
        """See `StepDistribution`; the means are over z below the root of `calls`."""
        root = self._root(k)
        mean_x = scipy.special.ndtr(root - self.a)
        mean_x_opposite = scipy.special.ndtr(root + self.a)
        probability = scipy.special.ndtr(root)
        return self._excess(k, root, mean_x, mean_x_opposite, probability, sign=-1.0)

    def _excess(
        self,
        k: Floats,
        root: Floats,
        mean_x: Floats,
        mean_x_opposite: Floats,
        probability: Floats,
        *,
        sign: float,
    ) -> tuple[Floats, Floats]:
        """Return the mean of ``D - k`` (sign 1) or ``k - D`` (sign -1) on one side of the root.

        A tail of a normal variable z is off by about ``z^2`` units. An error of the root does not
        matter: there D equals k.

        Parameters
        ----------
        k
            Values of D, shape (points,), as all arrays here.
        root
            The z at which D is k.
        mean_x, mean_x_opposite, probability
            ``E[X]``, ``E[X']`` and the probability, on that side of the root.
        sign
            1 for the side above the root, -1 for that below.

        Returns
        -------
        The mean, and a bound of its rounding.
        """
        rise = self.p * self.u * mean_x
        fall = self.p * self.v * mean_x_opposite
        strike = k * probability
        magnitude = rise + fall + np.abs(strike)
        error = 4 * UNIT * (4 + np.minimum(root * root, 1e3)) * magnitude
        return np.maximum(sign * (rise - fall - strike), 0), error

    def _root(self, k: Floats) -> Floats:
        """Return the z at which D is k; infinite where D is always above or below it.

        ``y = exp(a z)`` solves ``u y - v / y = x`` with ``x = k exp(a^2 / 2) / p``. Of two forms of
        the positive root, each is used where it does not cancel.
        """
        x = k * (exp(self.a**2 / 2) / self.p)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.v == 0:
                return np.log(np.maximum(x, 0) / self.u) / self.a
            if self.u == 0:
                return -np.log(np.maximum(-x, 0) / self.v) / self.a
            discriminant = np.sqrt(x * x + 4 * self.u * self.v)
            root_of_positive = (x + discriminant) / (2 * self.u)
            root_of_negative = 2 * self.v / (discriminant - x)
            return np.log(np.where(x > 0, root_of_positive, root_of_negative)) / self.a


@dataclass(frozen=True)
class PureStep:
    """A distribution that dominates D if the record changes densities by at most ``exp(a)``.

    X and X' then lie between ``exp(-a)`` and ``exp(a)`` and have mean 1. The largest D in convex
    order is that of X and X' with only these two values, each of them ``exp(a)`` with probability
    ``1 / (1 + exp(a))``, and never both at once (docs/privacy/random_allocation_proof.md, "Laplace
    noise").

    Parameters
    ----------
    p, u, v
        As for `GaussianStep`.
    a
        Largest logarithm of the ratio of densities with and without the record.
    """

    p: float
    a: float
    u: float
    v: float

    def points(self) -> tuple[Floats, Floats]:
        """Return the values of D and their probabilities, which are exact here."""
        high = exp(self.a)
        low = exp(-self.a)
        probability = 1 / (1 + high)
        values = [
            self.u * high - self.v * low,
            self.u * low - self.v * high,
            (self.u - self.v) * low,
        ]
        probabilities = [probability, probability, 1 - 2 * probability]
        return self.p * np.array(values), np.array(probabilities)

    def calls(self, k: Floats) -> tuple[Floats, Floats]:
        return self._mean(lambda value: value - k, k)

    def puts(self, k: Floats) -> tuple[Floats, Floats]:
        return self._mean(lambda value: k - value, k)

    def _mean(self, excess: Callable[[float], Floats], k: Floats) -> tuple[Floats, Floats]:
        """Return the mean of the positive part of `excess`, and a bound of its rounding."""
        mean = np.zeros_like(k)
        for value, probability in zip(*self.points(), strict=True):
            mean += probability * np.maximum(excess(float(value)), 0)
        return mean, 8 * UNIT * mean


@dataclass(frozen=True)
class WorseStep:
    """A distribution that dominates D if a step has one of two unknown kinds of noise.

    At each point, `calls` and `puts` return the larger value of both kinds. Both kinds have the
    same mean, and the maximum of convex functions is convex. So these values belong to a
    distribution, which is larger in convex order than either kind.

    Parameters
    ----------
    first, second
        The step with each kind of noise. Their p, u and v must be the same.
    """

    first: StepDistribution
    second: StepDistribution

    @property
    def p(self) -> float:
        """As `StepDistribution.p`."""
        return self.first.p

    def calls(self, k: Floats) -> tuple[Floats, Floats]:
        return _larger(self.first.calls(k), self.second.calls(k))

    def puts(self, k: Floats) -> tuple[Floats, Floats]:
        return _larger(self.first.puts(k), self.second.puts(k))

    def points(self) -> tuple[Floats, Floats]:
        """Return the points of the kind with the larger variance, which suffice for the window."""
        return max(self.first.points(), self.second.points(), key=_variance)


def _larger(first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Return the larger values, and the larger bounds of their rounding."""
    return np.maximum(first[0], second[0]), np.maximum(first[1], second[1])


def _variance(points: tuple[Floats, Floats]) -> float:
    """Return the variance of weighted values."""
    values, weights = points
    mean = float(np.sum(weights * values))
    return float(np.sum(weights * (values - mean) ** 2))


CountedSteps = Sequence[tuple[StepDistribution, int]]
"""Distributions of steps, and the number of steps with each: the terms of S."""


class _ApproximateSum:
    """Approximation of ``S + offset`` by some points of each step, to choose lattice and tilt.

    No bound rests on it.

    Parameters
    ----------
    steps
        Distributions of the steps of S, and the number of steps with each.
    offset
        Constant that is added to S.

    Attributes
    ----------
    counts
        Number of steps with each distribution, shape (distributions,).
    deviation
        Standard deviation of S.
    gap
        Distance of the mean of ``S + offset`` below 0; 0 if it is above.
    top
        Largest value of a step on the lattice, at least 0.
    bottom
        Smallest value of a step on the lattice, negated; at least 0.
    theta
        The tilt, at least 0.
    """

    def __init__(self, steps: CountedSteps, offset: float) -> None:
        self.offset = offset
        self.counts = np.array([float(count) for _, count in steps])
        self._points = [step.points() for step, _ in steps]
        step_variances = zip(self.counts, self._variances(), strict=True)
        variance = sum(count * step_variance for count, step_variance in step_variances)
        self.deviation = sqrt(variance)
        self.gap = max(0.0, -self.slope(0.0))
        self.top, self.bottom = self._range()
        self._points = [
            (np.clip(values, -self.bottom, self.top), weights) for values, weights in self._points
        ]
        self.theta = self._tilt()

    def _range(self) -> tuple[float, float]:
        """Return `top` and `bottom`.

        A step below ``-bottom`` would make the sum negative even with all other steps at the top.
        """
        reach = self.gap + _WINDOW_DEVIATIONS * self.deviation
        largest = max(0.0, *(float(np.max(values)) for values, _ in self._points))
        top = min(reach, largest)
        highest_sum = max(float(np.sum(self.counts)) * top + self.offset, 0.0)
        least = max(0.0, *(-float(np.min(values)) for values, _ in self._points))
        return top, min(reach, highest_sum, least)

    @property
    def has_no_steps(self) -> bool:
        """True if `top` and `bottom` are 0: the points show no step to put on a lattice.

        The distributions themselves may have values far out.
        """
        return self.top == 0 and self.bottom == 0

    def cumulant(self, theta: float) -> float:
        """Return ``K(theta) = log E[exp(theta (S + offset))]``."""
        logs = [
            scipy.special.logsumexp(theta * values, b=weights) for values, weights in self._points
        ]
        return theta * self.offset + float(np.sum(self.counts * logs))

    def slope(self, theta: float) -> float:
        """Return the derivative of the cumulant, the mean of the tilted sum."""
        means = [
            float(np.sum(self._tilted(values, weights, theta) * values))
            for values, weights in self._points
        ]
        return self.offset + float(np.sum(self.counts * means))

    def _variances(self) -> list[float]:
        return [_variance(points) for points in self._points]

    def _tilted(self, values: Floats, weights: Floats, theta: float) -> Floats:
        """Return weights times ``exp(theta values)``, normalised."""
        tilted: Floats = weights * np.exp(theta * (values - np.max(values)))
        return tilted / np.sum(tilted)

    def _jumps(self, theta: float) -> float:
        """Return the mean number of steps above half of `top`, in the sum with this tilt."""
        probabilities = []
        for values, weights in self._points:
            tilted = self._tilted(values, weights, theta)
            probabilities.append(np.sum(tilted[values > self.top / 2]))
        return float(np.sum(self.counts * probabilities))

    def _tilt(self) -> float:
        """Return the tilt at which sum and offset are 0 on average, or a smaller tilt.

        It is smaller if the balance would rest on rare large steps.
        """
        if self.slope(0.0) >= 0 or self.deviation == 0:
            return 0.0
        theta = self._balancing_tilt()
        has_one_step = np.sum(self.counts) == 1
        jumps_are_common = self._jumps(0.0) > _MAX_JUMPS / 2
        if has_one_step or jumps_are_common:
            return theta
        while self._jumps(theta) > _MAX_JUMPS:
            theta *= 0.9
        return theta

    def _balancing_tilt(self) -> float:
        """Return about the least tilt at which the mean of the sum is not below 0."""
        low = 0.0
        high = 1 / self.deviation
        steepest = inf
        if self.top > 0:
            steepest = _MAX_TILT / self.top
        steepest = min(steepest, 1e9 / self.deviation)
        while self.slope(high) < 0 and high < steepest:
            low = high
            high = 2 * high
        while high - low > 1e-2 * high:
            middle = (low + high) / 2
            if self.slope(middle) < 0:
                low = middle
            else:
                high = middle
        return high

    def interval(self) -> float:
        """Return an interval of the lattice that adds little variance to the sum.

        A lattice adds at most about ``interval^2 / 6`` to the variance of a step on average, and at
        most about ``interval`` times its standard deviation.
        """
        deviations = np.sqrt(self._variances())
        allowed = _VARIANCE_EXCESS * float(np.sum(self.counts * deviations**2))
        if self.theta:
            allowed = min(allowed, 2 * _PROFILE_EXCESS / self.theta**2)
        interval = max(self.top, self.bottom)
        for _ in range(300):
            added = np.minimum(interval**2 / 6, interval * deviations)
            if np.sum(self.counts * added) <= allowed:
                break
            interval *= 0.9
        return interval

    def window(self) -> tuple[float, float]:
        """Return distances above and below 0 beyond which the tilted sum has little probability.

        The window reaches some `_WINDOW_DEVIATIONS` from the mean. If that takes many points,
        Chernoff's bounds at multiples of the tilt give a narrower window. Let K be the cumulant,
        and P the probability of the tilted sum T. Then

            P(T < -y) <= exp(K(s theta) - K(theta) - (1 - s) theta y)    for s < 1
            P(T > y)  <= exp(K(f theta) - K(theta) - (f - 1) theta y)    for f > 1

        The reach below 0 makes the first at most ``exp(-_LOG_WRAPPED)`` for some s. The whole
        window is so long that what the second bounds is not wrapped around into it.
        """
        reach = self.gap + _WINDOW_DEVIATIONS * self.deviation
        above = 1.5 * reach
        below = reach
        if not self.theta or (above + below) / self.interval() < _MIN_POINTS:
            return above, below
        log_mean = self.cumulant(self.theta)
        for order in _SMALLER_ORDERS:
            fall = _LOG_WRAPPED + self.cumulant(order * self.theta) - log_mean
            below = min(below, fall / (self.theta * (1 - order)))
        rises = {order: self.cumulant(order * self.theta) - log_mean for order in _LARGER_ORDERS}
        above = self._least_reach_above(rises, above)
        tilted_reach = min(
            (rise + _LOG_WRAPPED) / (self.theta * (order - 1))
            for order, rise in rises.items()
            if order > 1
        )
        return above, max(below, tilted_reach - above)

    def _least_reach_above(self, rises: dict[float, float], above: float) -> float:
        """Return a reach above 0 beyond which the profile is negligible, at most `above`.

        At an order f the part of the profile beyond y is at most ``y exp(K(f theta) - f theta y)``
        (see `_log_beyond`). The profile itself is about ``exp(K(theta)) / theta``. Their ratio is
        ``exp(-_LOG_WRAPPED)`` where

            log(y) - f theta y + K(f theta) - K(theta) + log(theta) + _LOG_WRAPPED = 0

        `rises` has ``K(f theta) - K(theta)`` for each f.
        """
        for order, rise in rises.items():
            log_bound = rise + log(self.theta) + _LOG_WRAPPED
            end = above
            for _ in range(5):  # fixed-point iteration
                end = max(1 / self.theta, (log(end) + log_bound) / (order * self.theta))
            above = min(above, end)
        return above


def log_profile(steps: CountedSteps, offset: float) -> float:
    """Return an upper bound of ``log E[(S + offset)_+]``, the logarithm of the profile.

    Parameters
    ----------
    steps
        Distributions of the steps that add up to S, and the number of steps with each.
    offset
        Constant that is added to S.
    """
    approximation = _ApproximateSum(steps, offset)
    log_public = _log_public_allocation(steps, offset)
    if approximation.has_no_steps:
        if log_public > -inf:
            return log_public
        return _LOG_NEGLIGIBLE
    if approximation.cumulant(approximation.theta) < 2 * _LOG_NEGLIGIBLE:
        return min(log_public, _log_chernoff(steps, approximation))
    return min(log_public, _log_by_transforms(steps, approximation))


def _log_by_transforms(steps: CountedSteps, approximation: _ApproximateSum) -> float:
    """Return a bound of the logarithm of the profile by Fourier transforms.

    The window grows until the bound of what lies above it is a small share of the profile. The
    interval of the lattice grows with the window where the transform would be too long.

    Returns
    -------
    The bound; infinity if the last window still leaves out too much.
    """
    above, below = approximation.window()
    least_interval = min(approximation.interval() or inf, (above + below) / _MIN_POINTS)
    # where only the largest steps decide
    least_interval = max(least_interval, approximation.top / _MAX_STEP_POINTS)
    interval = 0.0
    for _ in range(_MAX_WINDOWS):
        window_interval = max(least_interval, (above + below) / _MAX_POINTS)
        if window_interval > interval:
            interval = window_interval
            bottom = min(approximation.bottom, above + below)
            lattice_steps, cut = _lattice_steps(steps, interval, bottom, approximation.top)
        log_within, log_beyond = _log_mean_of_sum(
            lattice_steps, approximation, interval, above, below
        )
        allowed_share = max(_MAX_TAIL_SHARE, _PROFILE_EXCESS * (interval / least_interval) ** 2)
        if log_beyond <= log_within + log(allowed_share):
            return float(scipy.special.logsumexp([log_within, log_beyond, _log(cut)]))
        above *= 1.5
    return inf


def _log(value: float) -> float:
    """Return the logarithm; minus infinity at 0."""
    if value > 0:
        return log(value)
    return -inf


def _log_public_allocation(steps: CountedSteps, offset: float) -> float:
    """Return a bound of the logarithm of the profile by an adversary who knows the allocation.

    The positive part of a sum is at most the sum of the positive parts of the steps, each with its
    share of the offset.
    """
    total = sum(count * step.p for step, count in steps)
    mean = 0.0
    for step, count in steps:
        call, error = step.calls(np.array([-offset * step.p / total]))
        mean += count * float(call[0] + error[0])
    return _log(mean)


def _log_chernoff(steps: CountedSteps, approximation: _ApproximateSum) -> float:
    """Return a bound of the logarithm of the profile by moments of the sum.

    The positive part of x is at most ``exp(theta x - 1) / theta`` for every theta above 0.
    """
    interval = (approximation.top + approximation.bottom) / _MIN_POINTS
    lattice_steps, cut = _lattice_steps(steps, interval, approximation.bottom, approximation.top)
    with np.errstate(divide="ignore"):
        log_masses = [np.log(step.masses) for step in lattice_steps]
    points = [interval * np.arange(step.first, step.last + 1.0) for step in lattice_steps]
    least = inf
    for theta in (approximation.theta / 2.0 ** np.arange(40)).tolist():
        step_log_moments = [
            scipy.special.logsumexp(theta * x + log_mass)
            for x, log_mass in zip(points, log_masses, strict=True)
        ]
        log_moment = theta * approximation.offset
        log_moment += float(np.sum(approximation.counts * np.array(step_log_moments)))
        least = min(least, max(_LOG_NEGLIGIBLE, log_moment - log(theta) - 1))
        if least == _LOG_NEGLIGIBLE:
            break
    return float(np.logaddexp(least, _log(cut)))


def _lattice_steps(
    steps: CountedSteps, interval: float, bottom: float, top: float
) -> tuple[list[LossDistribution], float]:
    """Return the steps' distributions on the lattice, and the mean that was cut off above.

    Parameters
    ----------
    steps
        Distributions of the steps, and the number of steps with each.
    interval
        Interval of the lattice.
    bottom, top
        The lattice reaches from ``-bottom`` or a little below to `top` or a little above.
    """
    lattice_steps = []
    cut = 0.0
    for step, count in steps:
        lattice_step, step_cut = _lattice_step(
            step, interval, ceil(bottom / interval), ceil(top / interval)
        )
        lattice_steps.append(lattice_step)
        cut += count * step_cut
    return lattice_steps, cut


def _lattice_step(
    step: StepDistribution, interval: float, bottom: int, top: int
) -> tuple[LossDistribution, float]:
    """Return a distribution on the lattice whose `calls` equal those of D at lattice points.

    The probability of a point is the difference of the slopes of calls on both sides. Below the
    mean it is computed from puts, so that it is no difference of large numbers.

    Parameters
    ----------
    step
        Distribution of D.
    interval
        Interval of the lattice.
    bottom, top
        The lattice is ``interval * (-bottom, .., top)``.

    Returns
    -------
    The distribution, and the mean excess of D above the top, which it does not hold. Probabilities
    are raised by a bound of their rounding. The `infinite` one is 0.
    """
    k = interval * np.arange(-bottom, top + 1.0)
    values, weights = step.points()
    mean_index = round(float(np.sum(values * weights)) / interval)
    middle = int(np.clip(mean_index, -bottom, top)) + bottom
    puts, put_errors = step.puts(k[: middle + 1])
    calls, call_errors = step.calls(k[middle:])
    # slopes between neighbouring points: the probability below, and that above
    below = np.diff(puts) / interval
    above = -np.diff(calls) / interval
    at_middle = 1 - np.sum(below[-1:]) - np.sum(above[:1])
    lower_masses = np.diff(below, prepend=0.0)
    upper_masses = -np.diff(above, append=0.0)
    masses = np.concatenate([lower_masses, [at_middle], upper_masses])
    middle_error = max(put_errors[-1], call_errors[0])
    errors = np.concatenate([put_errors[:-1], [middle_error], call_errors[1:]])
    rounding = _second_difference_errors(errors) / interval
    rounding[middle] += 8 * UNIT
    lattice_step = LossDistribution(-bottom, np.maximum(masses, 0) + rounding, 0.0)
    return lattice_step, float(calls[-1] + call_errors[-1])


def _second_difference_errors(errors: Floats) -> Floats:
    """Return bounds of the errors of ``f(k - 1) - 2 f(k) + f(k + 1)``, from those of f."""
    sums = 2 * errors
    sums[1:] += errors[:-1]
    sums[:-1] += errors[1:]
    return sums


def _log_mean_of_sum(
    lattice_steps: Sequence[LossDistribution],
    approximation: _ApproximateSum,
    interval: float,
    above: float,
    below: float,
) -> tuple[float, float]:
    """Return logarithms of the mean of the positive part in a window, and of a bound of the rest.

    Parameters
    ----------
    lattice_steps
        Distributions of the steps on the lattice.
    approximation
        The tilt, the offset and the number of steps with each distribution.
    interval
        Interval of the lattice.
    above, below
        Distances of the window's ends from 0.
    """
    theta = approximation.theta
    counts = approximation.counts
    offset = approximation.offset
    size = scipy.fft.next_fast_len(ceil((above + below) / interval) + 2, real=True)
    log_moments = _log_moments(lattice_steps, theta * interval)
    folded_masses, rounding = _tilted_sum(
        lattice_steps, counts, log_moments, theta * interval, size
    )
    last = sum(int(count) * step.last for count, step in zip(counts, lattice_steps, strict=True))
    top = min(last, floor((above - offset) / interval))
    lowest = top - size + 1
    values = interval * np.arange(lowest + 0.0, top + 1.0) + offset
    masses = np.roll(np.maximum(folded_masses, 0), -(lowest % size)) + rounding
    # undo the tilt, but for the moments and the offset
    untilted = masses * values * np.exp(-theta * np.maximum(values, 0))
    mean = np.sum(untilted[values > 0])
    log_within = float(np.sum(counts * log_moments)) + theta * offset + _log(mean)
    if top == last:
        return log_within, -inf
    return log_within, _log_beyond(lattice_steps, approximation, interval, float(values[-1]))


def _tilted_sum(
    lattice_steps: Sequence[LossDistribution],
    counts: Floats,
    log_moments: Floats,
    theta: float,
    size: int,
) -> tuple[Floats, float]:
    """Return the probabilities of the tilted S modulo `size`, and a bound of their rounding.

    Parameters
    ----------
    lattice_steps
        Distributions of the steps on the lattice.
    counts, log_moments
        Number of steps with each distribution, and ``log E[exp(theta x)]``; shape (distributions,).
    theta
        Tilt for each interval of the lattice.
    size
        Length of the transform.
    """
    tilted = [
        tilt_and_fold(step, theta, float(log_moment), size)
        for step, log_moment in zip(lattice_steps, log_moments, strict=True)
    ]
    nodes = np.arange(len(lattice_steps))[:, None]
    mixtures = Mixtures(nodes=nodes, weights=np.ones(nodes.shape), times=counts)
    return convolved(tilted, mixtures, size)


def _log_beyond(
    lattice_steps: Sequence[LossDistribution],
    approximation: _ApproximateSum,
    interval: float,
    end: float,
) -> float:
    """Return a bound of the logarithm of the positive part's mean above the window's end.

    Above `end`, ``x exp(-order x)`` falls if the order is at least ``1 / end``. So the mean of x
    there is at most ``end exp(-order end)`` times the moment of that order.
    """
    if end <= 0:
        return inf
    least = inf
    for factor in _BEYOND_ORDERS:
        order = max(factor * approximation.theta, 1 / end)
        log_moments = _log_moments(lattice_steps, order * interval)
        log_moment = float(np.sum(approximation.counts * log_moments))
        log_moment += order * approximation.offset
        least = min(least, log(end) - order * end + log_moment)
    return least


def _log_moments(lattice_steps: Sequence[LossDistribution], order: float) -> Floats:
    """Return ``log E[exp(order x)]`` of each step, with x in intervals of the lattice."""
    return np.array([_log_moment(step, order) for step in lattice_steps])


def _log_moment(lattice_step: LossDistribution, order: float) -> float:
    """Return ``log E[exp(order x)]`` of one step, with x in intervals of the lattice.

    The largest exponential is factored out. The bounds of rounding in the step's probabilities
    raise the moment; the rounding of this sum itself is not added.
    """
    indices = np.arange(lattice_step.first - lattice_step.last, 1.0)
    with np.errstate(under="ignore"):
        mean = np.sum(lattice_step.masses * np.exp(order * indices))
    return float(np.log(mean)) + order * lattice_step.last
