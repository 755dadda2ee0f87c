"""The profile of random allocation: the mean of the positive part of a sum.

Step j of a pass releases a record with probability ``p_j``, and the record then moves the noise by
up to ``a_j`` standard deviations. The profile at ``b = exp(epsilon)`` is ``E[(S + offset)_+]``,
where S is the sum of independent ``D_j = p_j (u X_j - v X'_j)`` with ``X_j = exp(a_j Z_j - a_j**2 /
2)``, ``X'_j = exp(-a_j Z_j - a_j**2 / 2)`` and standard normal ``Z_j``; (u, v) is (1, b) where a
record is replaced, (1, 0) where it is removed and (0, b) where it is added.

Each error is upwards:

- D is replaced by a variable on a lattice that is larger in convex order: ``E[(D - k)_+]`` is right
  at lattice points and too large between, the mean is kept. This adds at most a quarter of the
  squared interval to the variance.
- D is cut at a top, and ``E[(D - top)_+]`` is charged; below the bottom it is moved up.
- The positive part of a sum is at most the sum of positive parts: no result exceeds the mean of
  what each step would cost if everybody knew that it is the record's own.
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
from dpmesh.accounting._loss import UNIT, Loss
from dpmesh.accounting._merge import Mixtures

_ADDED = 1e-4  # what the lattice may add to the logarithm of the profile
_SHARE = 5e-5  # of the variance that it may add
_WIDTH = 10.0  # of the window beyond the mean, in standard deviations
_FEWEST, _MOST = 2**14, 2**18  # points of a transform
_MOST_OF_A_STEP = 2**20  # points of the lattice from 0 to the top of one step
_MOST_WINDOWS = 12  # each half as wide again: with all of them the sum is hardly above 0
_STEEPEST = 2**16  # a tilt, in units of 1 / top: steeper ones need a finer lattice than that
_CHARGED = 1e-4  # the largest share of the profile that may lie above the window
_BEYOND = 15.0  # the logarithm of what may be wrapped around, negated
_VANISHED = -300.0  # below exp of that a profile is only bounded
_JUMPS = 1e-2  # how often steps of a tilted sum may jump by half of the largest

_Z = np.linspace(-12.0, 12.0, 769)
_DENSITY = np.exp(-(_Z**2) / 2) / np.sum(np.exp(-(_Z**2) / 2))


class Part(Protocol):
    """The distribution of D, of one step."""

    @property
    def p(self) -> float:
        """Probability of this part."""

    def calls(self, k: Floats) -> tuple[Floats, Floats]:
        """Return ``E[(D - k)_+]`` at each k, and a bound of its rounding."""

    def puts(self, k: Floats) -> tuple[Floats, Floats]:
        """Return ``E[(k - D)_+]`` at each k, and a bound of its rounding."""

    def points(self) -> tuple[Floats, Floats]:
        """Return values of D and their weights, to guess by."""


@dataclass(frozen=True)
class GaussianPart:
    """``p exp(-a^2/2) (u exp(a z) - v exp(-a z))``, which rises with a standard normal z."""

    p: float
    a: float
    u: float
    v: float

    def points(self) -> tuple[Floats, Floats]:
        up, down = self.u * np.exp(self.a * _Z), self.v * np.exp(-self.a * _Z)
        return self.p * exp(-(self.a**2) / 2) * (up - down), _DENSITY

    def calls(self, k: Floats) -> tuple[Floats, Floats]:
        z = self._root(k)
        return self._part(k, z, (self.a - z, -self.a - z, -z), 1.0)

    def puts(self, k: Floats) -> tuple[Floats, Floats]:
        z = self._root(k)
        return self._part(k, z, (z - self.a, z + self.a, z), -1.0)

    def _part(
        self, k: Floats, z: Floats, ends: tuple[Floats, ...], sign: float
    ) -> tuple[Floats, Floats]:
        up, down, chance = (np.asarray(scipy.special.ndtr(end)) for end in ends)
        up, down, rest = self.p * self.u * up, self.p * self.v * down, k * chance
        # an error of z does not matter: there D = k
        error = 4 * UNIT * (4 + np.minimum(z * z, 1e3)) * (up + down + np.abs(rest))
        return np.maximum(sign * (up - down - rest), 0), error

    def _root(self, k: Floats) -> Floats:
        """Return the z at which D is k; infinite where D is always above or below it."""
        x = k * (exp(self.a**2 / 2) / self.p)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.v == 0:
                return np.log(np.maximum(x, 0) / self.u) / self.a
            if self.u == 0:
                return -np.log(np.maximum(-x, 0) / self.v) / self.a
            both = np.sqrt(x * x + 4 * self.u * self.v)
            rising = np.where(x > 0, (x + both) / (2 * self.u), 2 * self.v / (both - x))
            return np.log(rising) / self.a


@dataclass(frozen=True)
class PurePart:
    """What dominates D if the record changes each density by a factor of at most ``exp(a)``.

    Both X and X' are then between these; apart, each is largest in convex order where it is only
    these, ``exp(a)`` with probability ``1 / (1 + exp(a))``, and not both are ``exp(a)`` at once.
    """

    p: float
    a: float
    u: float
    v: float

    def points(self) -> tuple[Floats, Floats]:
        q, high, low = 1 / (1 + exp(self.a)), exp(self.a), exp(-self.a)
        values = [
            self.u * high - self.v * low,
            self.u * low - self.v * high,
            (self.u - self.v) * low,
        ]
        return self.p * np.array(values), np.array([q, q, 1 - 2 * q])

    def calls(self, k: Floats) -> tuple[Floats, Floats]:
        return self._mean(lambda value: value - k, k)

    def puts(self, k: Floats) -> tuple[Floats, Floats]:
        return self._mean(lambda value: k - value, k)

    def _mean(self, excess: Callable[[float], Floats], k: Floats) -> tuple[Floats, Floats]:
        found = np.zeros_like(k)
        for value, weight in zip(*self.points(), strict=True):
            found += weight * np.maximum(excess(float(value)), 0)
        return found, 8 * UNIT * found


@dataclass(frozen=True)
class EitherPart:
    """What dominates D if a step has one of two kinds of noise, whichever of them that is.

    Its calls are at each point the larger of theirs. Both have the same mean, so that these are the
    calls of a distribution, and it is larger in convex order than either.
    """

    first: Part
    second: Part

    @property
    def p(self) -> float:
        return self.first.p

    def calls(self, k: Floats) -> tuple[Floats, Floats]:
        return _larger(self.first.calls(k), self.second.calls(k))

    def puts(self, k: Floats) -> tuple[Floats, Floats]:
        return _larger(self.first.puts(k), self.second.puts(k))

    def points(self) -> tuple[Floats, Floats]:
        """Return those of the part that varies more: a window of them is only a guess."""
        return max(self.first.points(), self.second.points(), key=_variance)


def _larger(first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Return the larger values, and the larger bounds of their rounding."""
    return np.maximum(first[0], second[0]), np.maximum(first[1], second[1])


def _variance(points: tuple[Floats, Floats]) -> float:
    values, weights = points
    mean = float(np.sum(weights * values))
    return float(np.sum(weights * (values - mean) ** 2))


Parts = Sequence[tuple[Part, int]]
"""The distributions of steps, and how many steps have each."""


class _Guess:
    """What is known of the sum from few points of each distribution, cut to a range."""

    def __init__(self, parts: Parts, offset: float) -> None:
        self.offset, self.counts = offset, np.array([float(n) for _, n in parts])
        self._points = [part.points() for part, _ in parts]
        variance = sum(n * v for n, v in zip(self.counts, self._variances(), strict=True))
        self.deviation, self.gap = sqrt(variance), max(0.0, -self.slope(0.0))
        reach = self.gap + _WIDTH * self.deviation
        self.top = min(reach, max(0.0, *(float(np.max(d)) for d, _ in self._points)))
        highest = max(float(np.sum(self.counts)) * self.top + offset, 0.0)
        lowest = max(0.0, *(-float(np.min(d)) for d, _ in self._points))
        self.bottom = min(reach, highest, lowest)  # with a lower step the sum is negative
        self._points = [(np.clip(d, -self.bottom, self.top), w) for d, w in self._points]
        self.theta = self._tilt()

    @property
    def has_no_steps(self) -> bool:
        """Return whether no guessed point is above 0: the distributions may be, far out."""
        return self.top == 0 and self.bottom == 0

    def cumulant(self, theta: float) -> float:
        """Return ``log E exp(theta (S + offset))``."""
        logs = [scipy.special.logsumexp(theta * d, b=w) for d, w in self._points]
        return theta * self.offset + float(np.sum(self.counts * logs))

    def slope(self, theta: float) -> float:
        """Return the derivative of the cumulant, the mean of the tilted sum."""
        tilted = [self._tilted(d, w, theta) for d, w in self._points]
        means = [float(np.sum(t * d)) for t, (d, _) in zip(tilted, self._points, strict=True)]
        return self.offset + float(np.sum(self.counts * means))

    def _variances(self) -> list[float]:
        return [_variance(points) for points in self._points]

    def _tilted(self, values: Floats, weights: Floats, theta: float) -> Floats:
        tilted: Floats = weights * np.exp(theta * (values - np.max(values)))
        return tilted / np.sum(tilted)

    def _jumps(self, theta: float) -> float:
        """Return how many steps of a tilted sum are above half of the top, on average."""
        tilted = [self._tilted(d, w, theta) for d, w in self._points]
        far = [np.sum(t[d > self.top / 2]) for t, (d, _) in zip(tilted, self._points, strict=True)]
        return float(np.sum(self.counts * far))

    def _tilt(self) -> float:
        """Return the tilt at which the sum is 0 on average, or less if large steps decide."""
        if self.slope(0.0) >= 0 or self.deviation == 0:
            return 0.0
        low, high = 0.0, 1 / self.deviation
        steepest = _STEEPEST / self.top if self.top > 0 else inf
        while self.slope(high) < 0 and high < min(steepest, 1e9 / self.deviation):
            low, high = high, 2 * high
        while high - low > 1e-2 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.slope(middle) < 0 else (low, middle)
        if np.sum(self.counts) == 1 or self._jumps(0.0) > _JUMPS / 2:  # no step is rare
            return high
        while self._jumps(high) > _JUMPS:
            high *= 0.9
        return high

    def interval(self) -> float:
        """Return a lattice that adds little to the variance."""
        deviations = np.sqrt(self._variances())
        allowed = _SHARE * float(np.sum(self.counts * deviations**2))
        if self.theta:
            allowed = min(allowed, 2 * _ADDED / self.theta**2)
        interval = max(self.top, self.bottom)
        for _ in range(300):
            added = np.minimum(interval**2 / 6, interval * deviations)
            if np.sum(self.counts * added) <= allowed:
                break
            interval *= 0.9
        return interval

    def window(self) -> tuple[float, float]:
        """Return how far above 0 and below it the tilted sum can be, but for little."""
        reach, theta = self.gap + _WIDTH * self.deviation, self.theta
        above, below = 1.5 * reach, reach
        if not theta or (above + below) / self.interval() < _FEWEST:
            return above, below
        here, whole = self.cumulant(theta), inf
        for share in (-1.0, 0.0, 0.4, 0.7):
            fall = _BEYOND + self.cumulant(share * theta) - here
            below = min(below, fall / (theta * (1 - share)))
        for factor in (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0):
            log_bound = self.cumulant(factor * theta) - here + log(theta) + _BEYOND
            end = above
            for _ in range(5):  # log(end) - factor * theta * end + log_bound = 0
                end = max(1 / theta, (log(end) + log_bound) / (factor * theta))
            above = min(above, end)
            if factor > 1:  # what exceeds the window must not be wrapped around into it
                rise = self.cumulant(factor * theta) - here + _BEYOND
                whole = min(whole, rise / (theta * (factor - 1)))
        return above, max(below, whole - above)


def log_profile(parts: Parts, offset: float) -> float:
    """Return an upper bound of ``log E[(S + offset)_+]``; see the module."""
    guess, known = _Guess(parts, offset), _log_known(parts, offset)
    if guess.has_no_steps:
        return known if known > -inf else _VANISHED
    if guess.cumulant(guess.theta) < 2 * _VANISHED:
        return min(known, _log_chernoff(parts, guess))
    above, below = guess.window()
    wanted, interval = min(guess.interval() or inf, (above + below) / _FEWEST), 0.0
    wanted = max(wanted, guess.top / _MOST_OF_A_STEP)  # where only the largest steps decide
    for _ in range(_MOST_WINDOWS):
        if (coarser := max(wanted, (above + below) / _MOST)) > interval:
            interval = coarser
            laws, tail = _laws(parts, interval, min(guess.bottom, above + below), guess.top)
        within, beyond = _sum(laws, guess, interval, above, below)
        if beyond <= within + log(max(_CHARGED, _ADDED * (interval / wanted) ** 2)):
            break
        above *= 1.5
    else:
        return known
    tails = [within, beyond, log(tail) if tail > 0 else -inf]
    return min(known, float(scipy.special.logsumexp(tails)))


def _log_known(parts: Parts, offset: float) -> float:
    """Return a bound of the logarithm for an allocation that everybody knows."""
    total, mean = sum(count * part.p for part, count in parts), 0.0
    for part, count in parts:
        call, error = part.calls(np.array([-offset * part.p / total]))
        mean += count * float(call[0] + error[0])
    return log(mean) if mean > 0 else -inf


def _log_chernoff(parts: Parts, guess: _Guess) -> float:
    """Return a bound by moments: x_+ is at most ``exp(theta x - 1) / theta``."""
    interval = (guess.top + guess.bottom) / _FEWEST
    laws, tail = _laws(parts, interval, guess.bottom, guess.top)
    with np.errstate(divide="ignore"):
        logs = [np.log(law.masses) for law in laws]
    points, least = [interval * np.arange(law.first, law.last + 1.0) for law in laws], inf
    for theta in (guess.theta / 2.0 ** np.arange(40)).tolist():
        moments = np.array(
            [scipy.special.logsumexp(theta * x + w) for x, w in zip(points, logs, strict=True)]
        )
        moment = theta * guess.offset + float(np.sum(guess.counts * moments))
        least = min(least, max(_VANISHED, moment - log(theta) - 1))
        if least == _VANISHED:
            break
    return float(np.logaddexp(least, log(tail) if tail > 0 else -inf))


def _laws(parts: Parts, interval: float, bottom: float, top: float) -> tuple[list[Loss], float]:
    """Return the steps' distributions on the lattice, and what was cut off above."""
    laws, tail = [], 0.0
    for part, count in parts:
        law, cut = _law(part, interval, ceil(bottom / interval), ceil(top / interval))
        laws.append(law)
        tail += count * cut
    return laws, tail


def _law(part: Part, interval: float, bottom: int, top: int) -> tuple[Loss, float]:
    """Return masses at ``interval * (-bottom, .., top)`` whose calls are those of D there.

    A mass is the difference of two slopes, of puts below the mean and of calls above it.
    """
    k = interval * np.arange(-bottom, top + 1.0)
    values, weights = part.points()
    middle = int(np.clip(round(float(np.sum(values * weights)) / interval), -bottom, top)) + bottom
    (puts, error), (calls, other) = part.puts(k[: middle + 1]), part.calls(k[middle:])
    rising, falling = np.diff(puts) / interval, -np.diff(calls) / interval
    at_middle = 1 - np.sum(rising[-1:]) - np.sum(falling[:1])
    masses = np.concatenate(
        [np.diff(rising, prepend=0.0), [at_middle], -np.diff(falling, append=0.0)]
    )
    errors = np.concatenate([error[:-1], [max(error[-1], other[0])], other[1:]])
    around = 2 * errors
    around[1:] += errors[:-1]
    around[:-1] += errors[1:]
    rounding = around / interval
    rounding[middle] += 8 * UNIT
    return Loss(-bottom, np.maximum(masses, 0) + rounding, 0.0), float(calls[-1] + other[-1])


def _sum(
    laws: Sequence[Loss], guess: _Guess, interval: float, above: float, below: float
) -> tuple[float, float]:
    """Return the logarithms of the mean within the window, and of a bound of the rest."""
    theta, counts, offset = guess.theta, guess.counts, guess.offset

    def moments(order: float) -> Floats:
        found = [_log_moment(law, order * interval) for law in laws]
        return np.array(found)

    size = scipy.fft.next_fast_len(ceil((above + below) / interval) + 2, real=True)
    logs = moments(theta)
    tilted = [
        tilt_and_fold(law, theta * interval, float(each), size)
        for law, each in zip(laws, logs, strict=True)
    ]
    alone = np.arange(len(laws))[:, None]
    masses, rounding = convolved(
        tilted, Mixtures(nodes=alone, weights=np.ones(alone.shape), times=counts), size
    )
    last = sum(int(n) * law.last for n, law in zip(counts, laws, strict=True))
    top = min(last, floor((above - offset) / interval))
    values = interval * np.arange(top - size + 1.0, top + 1.0) + offset
    masses = np.roll(np.maximum(masses, 0), -((top - size + 1) % size)) + rounding
    positive = values > 0
    mean = np.sum((masses * values * np.exp(-theta * np.maximum(values, 0)))[positive])
    within = float(np.sum(counts * logs)) + theta * offset
    within += log(mean) if mean > 0 else -inf
    if top == last:
        return within, -inf
    end, beyond = float(values[-1]), inf
    if end <= 0:
        return within, inf
    for factor in (1.0, 1.3, 1.7, 2.2, 3.0, 4.0, 6.0):
        order = max(factor * theta, 1 / end)  # from there on x exp(-order x) falls
        log_moment = float(np.sum(counts * moments(order))) + order * offset
        beyond = min(beyond, log(end) - order * end + log_moment)
    return within, beyond


def _log_moment(law: Loss, order: float) -> float:
    """Return ``log E exp(order x)``, raised by its rounding."""
    with np.errstate(under="ignore"):
        mean = np.sum(law.masses * np.exp(order * np.arange(law.first - law.last, 1.0)))
    return float(np.log(mean)) + order * law.last
