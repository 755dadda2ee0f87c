"""The profile of random allocation: the mean of the positive part of a sum.

`allocation` calls `log_profile` for one direction between neighbours and one epsilon.

Each record takes part in one *step* (release) of a pass, drawn in secret. Step j has the record
with probability ``p_j``, and the record then moves the noise by up to ``a_j`` standard deviations.
The profile at ``b = exp(epsilon)`` is ``E[(S + offset)_+]``,
where S is the sum of independent ``D_j = p_j (u X_j - v X'_j)`` with ``X_j = exp(a_j Z_j - a_j**2 /
2)``, ``X'_j = exp(-a_j Z_j - a_j**2 / 2)`` and standard normal ``Z_j``; (u, v) is (1, b) where a
record is replaced, (1, 0) where it is removed and (0, b) where it is added.

Each error is upwards:

- D is replaced by a variable on a lattice that is larger in convex order: ``E[(D - k)_+]`` is right
  at lattice points and too large between, the mean is kept. This adds at most a quarter of the
  squared interval to the variance.
- D is cut at a top, and ``E[(D - top)_+]`` is charged; below the bottom it is moved up.
- The positive part of a sum is at most the sum of positive parts: no result exceeds the profile
  against an adversary who knows which step each record takes part in.
- Masses are tilted by ``exp(theta D)`` before they are convolved by Fourier transforms, with theta
  such that the sum is about 0 on average. What lies above the window is bounded by Chernoff's
  inequality; what the transform wraps around is added to masses within.
- A bound of the rounding of masses and transforms is added to every mass.
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
"""Largest excess of the logarithm of the profile that the lattice may cause."""

_VARIANCE_EXCESS = 5e-5
"""Largest share of the variance of the sum that the lattice may add."""

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
"""Tilted mass of about ``exp(-15)`` may lie outside the window and be wrapped around into it."""

_LOG_NEGLIGIBLE = -300.0
"""A profile below ``exp(-300)`` is only bounded, not computed."""

_MAX_JUMPS = 1e-2
"""Largest mean number of rare large steps in a tilted sum: steps above half of the largest value.

A larger tilt would make the balance of the sum rest on few such steps."""

# points of a standard normal variable and their weights, for the choice of the lattice alone
_NORMAL_POINTS = np.linspace(-12.0, 12.0, 769)
_NORMAL_WEIGHTS = np.exp(-(_NORMAL_POINTS**2) / 2) / np.sum(np.exp(-(_NORMAL_POINTS**2) / 2))


class StepDistribution(Protocol):
    """Distribution of the variable D of one step, as the module's docstring defines it."""

    @property
    def p(self) -> float:
        """Probability that this step releases the record."""

    def calls(self, k: Floats) -> tuple[Floats, Floats]:
        """Return the mean excess ``E[(D - k)_+]`` at each k, and a bound of its rounding.

        The name is that of an option: a call with strike k has this value. Both arrays have the
        shape of `k`.
        """

    def puts(self, k: Floats) -> tuple[Floats, Floats]:
        """Return the mean shortfall ``E[(k - D)_+]`` at each k, and a bound of its rounding."""

    def points(self) -> tuple[Floats, Floats]:
        """Return some values of D and their weights, which sum to 1.

        The approximation serves the choice of lattice, window and tilt, and no bound.
        """


@dataclass(frozen=True)
class GaussianPart:
    """Distribution of D for Gaussian noise.

    ``D = p exp(-a^2/2) (u exp(a z) - v exp(-a z))``, which rises with the standard normal z.

    Parameters
    ----------
    p
        Probability that this step releases the record.
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
        up = self.u * np.exp(self.a * _NORMAL_POINTS)
        down = self.v * np.exp(-self.a * _NORMAL_POINTS)
        return self.p * exp(-(self.a**2) / 2) * (up - down), _NORMAL_WEIGHTS

    def calls(self, k: Floats) -> tuple[Floats, Floats]:
        z = self._root(k)
        up = scipy.special.ndtr(self.a - z)
        down = scipy.special.ndtr(-self.a - z)
        return self._excess(k, z, up, down, scipy.special.ndtr(-z), sign=1.0)

    def puts(self, k: Floats) -> tuple[Floats, Floats]:
        z = self._root(k)
        up = scipy.special.ndtr(z - self.a)
        down = scipy.special.ndtr(z + self.a)
        return self._excess(k, z, up, down, scipy.special.ndtr(z), sign=-1.0)

    def _excess(
        self, k: Floats, z: Floats, up: Floats, down: Floats, chance: Floats, *, sign: float
    ) -> tuple[Floats, Floats]:
        """Return the mean of D beyond k, on one side, and a bound of its rounding.

        Parameters
        ----------
        k
            Values of D, shape (points,), as all arrays here.
        z
            The normal variable's value where D is k.
        up, down, chance
            ``E[X]``, ``E[X']`` and the probability, on one side of z.
        sign
            1 for D above k, -1 for D below k.
        """
        rise = self.p * self.u * up
        fall = self.p * self.v * down
        strike = k * chance
        # an error of z does not matter: there D = k
        magnitude = rise + fall + np.abs(strike)
        error = 4 * UNIT * (4 + np.minimum(z * z, 1e3)) * magnitude
        return np.maximum(sign * (rise - fall - strike), 0), error

    def _root(self, k: Floats) -> Floats:
        """Return the z at which D is k; infinite where D is always above or below it."""
        x = k * (exp(self.a**2 / 2) / self.p)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.v == 0:
                return np.log(np.maximum(x, 0) / self.u) / self.a
            if self.u == 0:
                return -np.log(np.maximum(-x, 0) / self.v) / self.a
            discriminant = np.sqrt(x * x + 4 * self.u * self.v)
            upper_root = (x + discriminant) / (2 * self.u)
            lower_root = 2 * self.v / (discriminant - x)
            exponential = np.where(x > 0, upper_root, lower_root)
            return np.log(exponential) / self.a


@dataclass(frozen=True)
class PurePart:
    """A distribution that dominates D if the record changes densities by at most ``exp(a)``.

    X and X' then lie between ``exp(-a)`` and ``exp(a)``. The largest distribution in convex order
    takes only these two values for each, ``exp(a)`` with probability ``1 / (1 + exp(a))``, and
    never ``exp(a)`` for both.
    """

    p: float
    a: float
    u: float
    v: float

    def points(self) -> tuple[Floats, Floats]:
        high = exp(self.a)
        low = exp(-self.a)
        chance = 1 / (1 + high)
        values = [
            self.u * high - self.v * low,
            self.u * low - self.v * high,
            (self.u - self.v) * low,
        ]
        weights = [chance, chance, 1 - 2 * chance]
        return self.p * np.array(values), np.array(weights)

    def calls(self, k: Floats) -> tuple[Floats, Floats]:
        return self._mean(lambda value: value - k, k)

    def puts(self, k: Floats) -> tuple[Floats, Floats]:
        return self._mean(lambda value: k - value, k)

    def _mean(self, excess: Callable[[float], Floats], k: Floats) -> tuple[Floats, Floats]:
        """Return the mean of the positive part of `excess`, and a bound of its rounding."""
        mean = np.zeros_like(k)
        for value, weight in zip(*self.points(), strict=True):
            mean += weight * np.maximum(excess(float(value)), 0)
        return mean, 8 * UNIT * mean


@dataclass(frozen=True)
class EitherPart:
    """A distribution that dominates D if a step has one of two unknown kinds of noise.

    At each point, `calls` and `puts` return the larger value of both parts. Both parts have the
    same mean, so these values belong to a distribution, which is larger in convex order than
    either part.
    """

    first: StepDistribution
    second: StepDistribution

    @property
    def p(self) -> float:
        return self.first.p

    def calls(self, k: Floats) -> tuple[Floats, Floats]:
        return _larger(self.first.calls(k), self.second.calls(k))

    def puts(self, k: Floats) -> tuple[Floats, Floats]:
        return _larger(self.first.puts(k), self.second.puts(k))

    def points(self) -> tuple[Floats, Floats]:
        """Return the points of the part with the larger variance, which suffice for the window."""
        return max(self.first.points(), self.second.points(), key=_variance)


def _larger(first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Return the larger values, and the larger bounds of their rounding."""
    return np.maximum(first[0], second[0]), np.maximum(first[1], second[1])


def _variance(points: tuple[Floats, Floats]) -> float:
    """Return the variance of weighted values."""
    values, weights = points
    mean = float(np.sum(weights * values))
    return float(np.sum(weights * (values - mean) ** 2))


Parts = Sequence[tuple[StepDistribution, int]]
"""The distributions of steps, and the number of steps with each."""


class _ApproximateSum:
    """Approximation of the sum, by some points of each step, to choose lattice, window and tilt.

    No bound rests on it.

    Parameters
    ----------
    parts
        Distributions of steps, and the number of steps with each.
    offset
        Constant that is added to the sum.

    Attributes
    ----------
    counts
        Number of steps with each distribution, shape (parts,).
    deviation
        Standard deviation of the sum.
    gap
        Distance of the mean of sum and offset below 0; 0 if it is above.
    top
        Largest value of a step on the lattice.
    bottom
        Smallest value of a step on the lattice, negated.
    theta
        The tilt, at least 0.
    """

    def __init__(self, parts: Parts, offset: float) -> None:
        self.offset = offset
        self.counts = np.array([float(count) for _, count in parts])
        self._points = [part.points() for part, _ in parts]
        step_variances = zip(self.counts, self._variances(), strict=True)
        variance = sum(count * step_variance for count, step_variance in step_variances)
        self.deviation = sqrt(variance)
        self.gap = max(0.0, -self.slope(0.0))
        reach = self.gap + _WINDOW_DEVIATIONS * self.deviation
        largest = max(0.0, *(float(np.max(values)) for values, _ in self._points))
        self.top = min(reach, largest)
        highest_sum = max(float(np.sum(self.counts)) * self.top + offset, 0.0)
        least = max(0.0, *(-float(np.min(values)) for values, _ in self._points))
        self.bottom = min(reach, highest_sum, least)  # with a lower step the sum is negative
        self._points = [
            (np.clip(values, -self.bottom, self.top), weights) for values, weights in self._points
        ]
        self.theta = self._tilt()

    @property
    def has_no_steps(self) -> bool:
        """True if `top` and `bottom` are 0: the points show no step to put on a lattice.

        The distributions themselves may have values far out.
        """
        return self.top == 0 and self.bottom == 0

    def cumulant(self, theta: float) -> float:
        """Return ``log E exp(theta (S + offset))``."""
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
        if has_one_step or self._jumps(0.0) > _MAX_JUMPS / 2:  # no step is rare
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
        """Return distances above and below 0 that the tilted sum exceeds with little mass.

        The window reaches some `_WINDOW_DEVIATIONS` from the mean. If that takes many points,
        Chernoff's bounds at multiples of the tilt give a narrower window.
        """
        reach = self.gap + _WINDOW_DEVIATIONS * self.deviation
        theta = self.theta
        above = 1.5 * reach
        below = reach
        if not theta or (above + below) / self.interval() < _MIN_POINTS:
            return above, below
        log_mean = self.cumulant(theta)
        for share in (-1.0, 0.0, 0.4, 0.7):
            fall = _LOG_WRAPPED + self.cumulant(share * theta) - log_mean
            below = min(below, fall / (theta * (1 - share)))
        largest = inf
        for factor in (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0):
            rise = self.cumulant(factor * theta) - log_mean
            log_bound = rise + log(theta) + _LOG_WRAPPED
            end = above
            for _ in range(5):  # log(end) - factor * theta * end + log_bound = 0
                end = max(1 / theta, (log(end) + log_bound) / (factor * theta))
            above = min(above, end)
            if factor > 1:  # what exceeds the window must not be wrapped around into it
                largest = min(largest, (rise + _LOG_WRAPPED) / (theta * (factor - 1)))
        return above, max(below, largest - above)


def log_profile(parts: Parts, offset: float) -> float:
    """Return an upper bound of ``log E[(S + offset)_+]``, the logarithm of the profile.

    Parameters
    ----------
    parts
        Distributions of the steps that add up to S, and the number of steps with each.
    offset
        Constant that is added to S.
    """
    guess = _ApproximateSum(parts, offset)
    log_known = _log_public_allocation(parts, offset)
    if guess.has_no_steps:
        if log_known > -inf:
            return log_known
        return _LOG_NEGLIGIBLE
    if guess.cumulant(guess.theta) < 2 * _LOG_NEGLIGIBLE:
        return min(log_known, _log_chernoff(parts, guess))
    above, below = guess.window()
    wished = min(guess.interval() or inf, (above + below) / _MIN_POINTS)
    wished = max(wished, guess.top / _MAX_STEP_POINTS)  # where only the largest steps decide
    interval = 0.0
    for _ in range(_MAX_WINDOWS):
        coarser = max(wished, (above + below) / _MAX_POINTS)
        if coarser > interval:
            interval = coarser
            steps, tail = _lattice_steps(
                parts, interval, min(guess.bottom, above + below), guess.top
            )
        log_within, log_beyond = _log_mean_of_sum(steps, guess, interval, above, below)
        allowed_share = max(_MAX_TAIL_SHARE, _PROFILE_EXCESS * (interval / wished) ** 2)
        if log_beyond <= log_within + log(allowed_share):
            break
        above *= 1.5
    else:
        return log_known
    log_sum = scipy.special.logsumexp([log_within, log_beyond, _log(tail)])
    return min(log_known, float(log_sum))


def _log(value: float) -> float:
    """Return the logarithm; minus infinity at 0."""
    if value > 0:
        return log(value)
    return -inf


def _log_public_allocation(parts: Parts, offset: float) -> float:
    """Return a bound of the logarithm of the profile by an adversary who knows the allocation.

    The positive part of a sum is at most the sum of the positive parts of the steps, each with its
    share of the offset.
    """
    total = sum(count * part.p for part, count in parts)
    mean = 0.0
    for part, count in parts:
        call, error = part.calls(np.array([-offset * part.p / total]))
        mean += count * float(call[0] + error[0])
    return _log(mean)


def _log_chernoff(parts: Parts, guess: _ApproximateSum) -> float:
    """Return a bound of the logarithm of the profile by moments of the sum.

    The positive part of x is at most ``exp(theta x - 1) / theta`` for every theta above 0.
    """
    interval = (guess.top + guess.bottom) / _MIN_POINTS
    steps, tail = _lattice_steps(parts, interval, guess.bottom, guess.top)
    with np.errstate(divide="ignore"):
        log_masses = [np.log(step.masses) for step in steps]
    points = [interval * np.arange(step.first, step.last + 1.0) for step in steps]
    least = inf
    for theta in (guess.theta / 2.0 ** np.arange(40)).tolist():
        log_moments = [
            scipy.special.logsumexp(theta * x + log_mass)
            for x, log_mass in zip(points, log_masses, strict=True)
        ]
        log_moment = theta * guess.offset + float(np.sum(guess.counts * np.array(log_moments)))
        least = min(least, max(_LOG_NEGLIGIBLE, log_moment - log(theta) - 1))
        if least == _LOG_NEGLIGIBLE:
            break
    return float(np.logaddexp(least, _log(tail)))


def _lattice_steps(
    parts: Parts, interval: float, bottom: float, top: float
) -> tuple[list[LossDistribution], float]:
    """Return the steps' distributions on the lattice, and the mean that was cut off above."""
    steps = []
    tail = 0.0
    for part, count in parts:
        step, cut = _lattice_step(part, interval, ceil(bottom / interval), ceil(top / interval))
        steps.append(step)
        tail += count * cut
    return steps, tail


def _lattice_step(
    part: StepDistribution, interval: float, bottom: int, top: int
) -> tuple[LossDistribution, float]:
    """Return a distribution on the lattice whose `calls` equal those of D at lattice points.

    The mass at a point is the difference of the slopes of calls on both sides. Below the mean it is
    computed from puts, so that no mass is a difference of large numbers.

    Parameters
    ----------
    part
        Distribution of D.
    interval
        Interval of the lattice.
    bottom, top
        The lattice is ``interval * (-bottom, .., top)``.

    Returns
    -------
    The distribution, and the mean excess of D above the top, which it does not hold.
    """
    k = interval * np.arange(-bottom, top + 1.0)
    values, weights = part.points()
    mean_index = round(float(np.sum(values * weights)) / interval)
    middle = int(np.clip(mean_index, -bottom, top)) + bottom
    puts, put_errors = part.puts(k[: middle + 1])
    calls, call_errors = part.calls(k[middle:])
    rising = np.diff(puts) / interval
    falling = -np.diff(calls) / interval
    at_middle = 1 - np.sum(rising[-1:]) - np.sum(falling[:1])
    lower_masses = np.diff(rising, prepend=0.0)
    upper_masses = -np.diff(falling, append=0.0)
    masses = np.concatenate([lower_masses, [at_middle], upper_masses])
    middle_error = max(put_errors[-1], call_errors[0])
    errors = np.concatenate([put_errors[:-1], [middle_error], call_errors[1:]])
    neighbour_errors = 2 * errors
    neighbour_errors[1:] += errors[:-1]
    neighbour_errors[:-1] += errors[1:]
    rounding = neighbour_errors / interval
    rounding[middle] += 8 * UNIT
    step = LossDistribution(-bottom, np.maximum(masses, 0) + rounding, 0.0)
    return step, float(calls[-1] + call_errors[-1])


def _log_mean_of_sum(
    steps: Sequence[LossDistribution],
    guess: _ApproximateSum,
    interval: float,
    above: float,
    below: float,
) -> tuple[float, float]:
    """Return logarithms of the mean of the positive part in a window, and of a bound of the rest.

    Parameters
    ----------
    steps
        Distributions of the steps on the lattice.
    guess
        The tilt, the offset and the number of steps with each distribution.
    interval
        Interval of the lattice.
    above, below
        Distances of the window's ends from 0.
    """
    theta = guess.theta
    size = scipy.fft.next_fast_len(ceil((above + below) / interval) + 2, real=True)
    log_moments = _log_moments(steps, theta * interval)
    tilted = [
        tilt_and_fold(step, theta * interval, float(log_moment), size)
        for step, log_moment in zip(steps, log_moments, strict=True)
    ]
    nodes = np.arange(len(steps))[:, None]
    mixtures = Mixtures(nodes=nodes, weights=np.ones(nodes.shape), times=guess.counts)
    masses, rounding = convolved(tilted, mixtures, size)
    last = sum(int(count) * step.last for count, step in zip(guess.counts, steps, strict=True))
    top = min(last, floor((above - guess.offset) / interval))
    lowest = top - size + 1
    values = interval * np.arange(lowest + 0.0, top + 1.0) + guess.offset
    masses = np.roll(np.maximum(masses, 0), -(lowest % size)) + rounding
    untilted = masses * values * np.exp(-theta * np.maximum(values, 0))
    mean = np.sum(untilted[values > 0])
    log_within = float(np.sum(guess.counts * log_moments)) + theta * guess.offset + _log(mean)
    if top == last:
        return log_within, -inf
    return log_within, _log_beyond(steps, guess, interval, float(values[-1]))


def _log_beyond(
    steps: Sequence[LossDistribution], guess: _ApproximateSum, interval: float, end: float
) -> float:
    """Return a bound of the logarithm of the positive part's mean above the window's end."""
    if end <= 0:
        return inf
    least = inf
    for factor in (1.0, 1.3, 1.7, 2.2, 3.0, 4.0, 6.0):
        order = max(factor * guess.theta, 1 / end)  # from there on x exp(-order x) falls
        log_moments = _log_moments(steps, order * interval)
        log_moment = float(np.sum(guess.counts * log_moments)) + order * guess.offset
        least = min(least, log(end) - order * end + log_moment)
    return least


def _log_moments(steps: Sequence[LossDistribution], order: float) -> Floats:
    """Return ``log E exp(order x)`` of each step."""
    return np.array([_log_moment(step, order) for step in steps])


def _log_moment(step: LossDistribution, order: float) -> float:
    """Return ``log E exp(order x)``, raised by its rounding."""
    indices = np.arange(step.first - step.last, 1.0)
    with np.errstate(under="ignore"):
        mean = np.sum(step.masses * np.exp(order * indices))
    return float(np.log(mean)) + order * step.last
