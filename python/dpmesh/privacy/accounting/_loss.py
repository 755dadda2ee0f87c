"""Privacy loss distributions on a grid: one for each kind of round, composed.

All of them are connect-the-dots discretisations (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi
2022): the profile is exact on the grid and an upper bound between, so that epsilon never comes out
too low. They agree with dp-accounting's, and keep their precision on the fine grids that small
losses need, where second differences of a profile near 1 lose it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, exp, expm1, inf, log, log1p, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its submodules are imported on first use

from dpmesh.privacy.accounting._arguments import Floats

ROUNDING = 1e-12  # of a delta from Fourier transforms; 1e-14 to 1e-13 were observed
_ROUNDING_OF_POWERS = 2.0**-51  # the same for each release; half of it was observed
SMALLEST_DELTA = 100 * ROUNDING

_FINEST = 1e-4  # grid interval, dp-accounting's default
_COARSEST = 1.0
_GRID_POINTS = 2**20
_DEVIATIONS = 10.0  # a normal has 8e-24 of its mass beyond these
_NEGLIGIBLE = 1e-25
_TRUNCATED = 1e-15  # mass of a composition that is counted as infinite loss


class Loss(NamedTuple):
    """A privacy loss: `masses` at ``(first + 0, 1, 2, ...) * interval``, and at infinity."""

    first: int
    masses: Floats
    infinite: float


Spectrum = npt.NDArray[np.complex128]


class Law(NamedTuple):
    """The losses of a release of all data, at a noise multiplier."""

    profile: Callable[[Floats, float, Floats | float], Floats]
    """Its profile at losses of at least 0, times the exponential of the last argument."""
    largest: Callable[[Floats], Floats]
    """The largest loss that counts."""
    spread: Callable[[Floats], Floats]
    """The standard deviation of exp(loss)."""


class Rounds(NamedTuple):
    """Rounds of one law: the sampling rate, noise multiplier and count of each."""

    law: Law
    rate: Floats
    multiplier: Floats
    times: Floats


Sample = Callable[[Law, float, float, float], list[Loss]]
"""Makes the losses of a sampled round, one per direction, from its law, rate, noise and grid."""


def composed_epsilon(delta: float, sample: Sample, *rounds: Rounds) -> float:
    """Epsilon of rounds composed; infinite where the grid or rounding is too coarse to prove any.

    `delta` is at least `SMALLEST_DELTA`; the rounding of the composition is subtracted from it.
    """
    total = sum(float(np.sum(each.times)) for each in rounds)
    rounding, interval = max(ROUNDING, _ROUNDING_OF_POWERS * total), _interval(rounds)
    if interval > _COARSEST or delta <= rounding:
        return inf
    losses: list[list[Loss]] = []
    counts: list[int] = []
    for law, rate, multiplier, times in rounds:
        settings = np.column_stack([rate, multiplier])
        distinct, which = np.unique(settings, axis=0, return_inverse=True)
        happen = np.bincount(which.reshape(-1), weights=times)
        counts += [int(count) for count in happen if count > 0]
        losses += [sample(law, float(q), float(z), interval) for q, z in distinct[happen > 0]]
    directions = (composed(one_way, counts) for one_way in zip(*losses, strict=True))
    return max(epsilon_at(delta - rounding, loss, interval) for loss in directions)


def composed(losses: Sequence[Loss], counts: Sequence[int]) -> Loss:
    """The sum of independent losses, each `counts` times, by powers of Fourier transforms."""
    lowest, highest = _window(losses, counts)
    longest = max(loss.masses.size for loss in losses)
    size = scipy.fft.next_fast_len(max(highest - lowest + 1, longest), real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    first, log_finite = lowest, 0.0
    for loss, count in zip(losses, counts, strict=True):
        spectrum *= _power(scipy.fft.rfft(loss.masses, size), count)
        first += count * loss.first
        log_finite += count * log1p(-loss.infinite)
    masses = np.roll(scipy.fft.irfft(spectrum, size), -lowest)[: highest - lowest + 1]
    return Loss(first, masses, _TRUNCATED - expm1(log_finite))


def _power(spectrum: Spectrum, count: int) -> Spectrum:
    """An integer power by repeated squaring, an order of magnitude faster than numpy's."""
    power = np.ones_like(spectrum)
    while count:
        if count & 1:
            power *= spectrum
        count >>= 1
        if count:
            spectrum = spectrum * spectrum
    return power


def _window(losses: Sequence[Loss], counts: Sequence[int]) -> tuple[int, int]:
    """The range of all but `_TRUNCATED` of the sum, from its first point, by Chernoff's bound."""
    centred, centre, variance, highest = [], 0.0, 1e-6, 0
    for loss, count in zip(losses, counts, strict=True):
        points = np.arange(float(loss.masses.size))
        mean = np.average(points, weights=loss.masses)
        centred.append((points - mean, loss.masses, count))
        centre += count * mean
        variance += count * np.average((points - mean) ** 2, weights=loss.masses)
        highest += count * (points.size - 1)
    tail = log(2 / _TRUNCATED)
    orders: Floats = sqrt(2 * tail / variance) * 4.0 ** np.arange(-10.0, 2.0)
    above = sum(n * _log_moments(x, masses, orders) for x, masses, n in centred)
    below = sum(n * _log_moments(-x, masses, orders) for x, masses, n in centred)
    highest = min(highest, ceil(np.min(centre + (above + tail) / orders)))
    return max(0, int(np.max(centre - (below + tail) / orders))), highest


def _log_moments(x: Floats, masses: Floats, orders: Floats) -> Floats:
    """The logarithms of the mean of ``exp(order * x)``, each order 4 times the one before."""
    largest = np.max(x)
    powers, means = np.exp(orders[0] * (x - largest)), []
    for _ in orders:
        means.append(np.sum(masses * powers))  # not a BLAS product, which would wake threads
        powers *= powers
        powers *= powers
    return orders * largest + np.log(means)


def epsilon_at(delta: float, loss: Loss, interval: float) -> float:
    """The smallest epsilon of at least 0 at which the profile of a loss is at most `delta`."""
    if loss.infinite > delta:
        return inf
    # of what lies beyond each point: its mass, and its mass times exp(point - loss)
    backwards, damping = loss.masses[::-1], exp(-interval)
    beyond = loss.infinite + np.append(np.cumsum(backwards)[-2::-1], 0.0)
    # sums[i] - damping * sums[i - 1] = damping * backwards[i - 1], by a solver for two diagonals
    diagonals = np.full((2, backwards.size), -damping, order="F")
    arriving = damping * np.append(0.0, backwards[:-1])
    damped = scipy.linalg.blas.dtbsv(1, diagonals, arriving, lower=1, diag=1)[::-1]
    exceeding = np.flatnonzero(beyond - damped > delta)
    if exceeding.size == 0:
        return 0.0
    last = exceeding[-1]
    excess = (beyond[last] - delta) / damped[last] if damped[last] > 0 else inf
    return max(0.0, float(loss.first + last) * interval + min(log(excess), interval))


def _interval(rounds: Sequence[Rounds]) -> float:
    """Fine enough for the smallest loss, coarse enough to hold the composition.

    The largest loss of Laplace noise, which has mass, lies on the grid, unless a step is larger.
    """
    happening = [
        Rounds(each.law, *(numbers[each.times > 0] for numbers in each[1:])) for each in rounds
    ]
    spreads = [each.rate * each.law.spread(each.multiplier) for each in happening]
    losses = [sampled_loss(each.rate, each.law.largest(each.multiplier)) for each in happening]
    spread, largest = np.concatenate(spreads), np.concatenate(losses)
    times = np.concatenate([each.times for each in happening])
    width = 16 * sqrt(np.sum(times * np.minimum(spread, largest) ** 2)) + 2 * np.max(largest)
    interval = float(max(min(_FINEST, np.min(spread) / 20), width / _GRID_POINTS))
    of_laplace = [each for each in happening if each.law is LAPLACE and each.times.size]
    masses = [np.max(sampled_loss(each.rate, 1 / each.multiplier)) for each in of_laplace]
    mass = float(max(masses, default=0))
    return mass / ceil(mass / interval) if mass > interval else interval


def sampled_loss(rate: Floats | float, loss: Floats | float) -> Floats:
    """``log((1 - q) + q exp(loss))``: what a loss becomes by sampling."""
    small: Floats = np.log1p(rate * np.expm1(np.minimum(loss, 1)))
    return np.where(loss > 1, loss + np.log(rate + (1 - rate) * np.exp(-loss)), small)


def _gaussian_profile(loss: Floats, multiplier: float, log_factor: Floats | float) -> Floats:
    """``H_e(N(1, s^2) || N(0, s^2))``: x is the point at which the normals have this ratio."""
    x = 0.5 + multiplier**2 * loss
    shifted = scipy.special.log_ndtr((1 - x) / multiplier)
    centred = loss + scipy.special.log_ndtr(-x / multiplier)
    profile: Floats = -np.exp(log_factor + shifted) * np.expm1(centred - shifted)
    return profile


def _laplace_profile(loss: Floats, multiplier: float, log_factor: Floats | float) -> Floats:
    """The same of Laplace noise, whose losses are at most 1 / multiplier.

    This pair dominates that of a vector whose shift has the same L1 norm.
    """
    profile: Floats = -np.exp(log_factor) * np.expm1(np.minimum(0, (loss - 1 / multiplier) / 2))
    return profile


def _laplace_spread(loss: Floats) -> Floats:
    spread: Floats = np.sqrt((2 * np.expm1(loss) + np.expm1(-2 * loss)) / 3)
    return spread


GAUSSIAN = Law(
    _gaussian_profile,
    lambda multiplier: (0.5 + _DEVIATIONS * multiplier) / multiplier**2,
    lambda multiplier: np.sqrt(np.expm1(np.minimum(multiplier**-2, 100))),
)
LAPLACE = Law(
    _laplace_profile,
    lambda multiplier: 1 / multiplier,
    lambda multiplier: _laplace_spread(np.minimum(1 / multiplier, 100)),
)


def poisson(law: Law, rate: float, multiplier: float, interval: float) -> list[Loss]:
    """A Poisson sample under add-remove: a unit removed, and a unit added."""
    removed = _masses(_profile_removed(law, rate, multiplier, interval), interval)
    added = _masses(_profile_added(law, rate, multiplier, interval), interval)
    return [_joined(removed, added, interval), _joined(added, removed, interval)]


def fixed_size(law: Law, rate: float, multiplier: float, interval: float) -> list[Loss]:
    """The dominating pair of sampling without replacement, under replace-one.

    Its profile at positive losses is that of a removed unit, and it is its own mirror image (Zhu,
    Dong and Wang 2022).
    """
    both = _masses(_profile_removed(law, rate, multiplier, interval), interval)
    return [_joined(both, both, interval)]


def _profile_removed(law: Law, rate: float, multiplier: float, interval: float) -> Floats:
    """``H_e((1-q) Q + q P || Q)`` at the losses e = 0, h, 2h, ..., P and Q those of the law."""
    largest = float(sampled_loss(rate, law.largest(np.array(multiplier))))
    losses = interval * np.arange(ceil(largest / interval) + 2)
    # where exp(e) = (1-q) + q exp(ratio)
    ratio = losses + np.log(-np.expm1(-losses) + rate * np.exp(-losses)) - log(rate)
    return law.profile(ratio, multiplier, log(rate))


def _profile_added(law: Law, rate: float, multiplier: float, interval: float) -> Floats:
    """``H_e(Q || (1-q) Q + q P)`` at the losses e = 0, h, 2h, ..., for P and Q mirror images."""
    largest = float(sampled_loss(rate, law.largest(np.array(multiplier))))
    bound = min(-log1p(-rate) if rate < 1 else inf, largest)
    losses = interval * np.arange(ceil(bound / interval) + 2)
    # exp(-e) - (1-q), in a form that keeps its precision; where it is negative the profile is 0
    share = np.exp(-losses) - (1 - rate) if rate > 0.5 else np.expm1(-losses) + rate
    inside = share > 0
    log_share = np.log(share[inside])
    profile = np.zeros(losses.size)
    ratio = log(rate) - log_share
    profile[inside] = law.profile(ratio, multiplier, losses[inside] + log_share)
    return profile


def _masses(deltas: Floats, interval: float) -> tuple[Floats, float]:
    """Masses at the losses h, 2h, ... and at infinity, given their profile at 0, h, 2h, ..."""
    falls, growth = -np.diff(deltas), expm1(interval)
    inner = (falls[:-1] * (1 + growth) - falls[1:]) / growth
    last = falls[-1] / -expm1(-interval)
    return _cut(np.maximum(np.append(inner, last), 0), float(deltas[-1]))


def _cut(masses: Floats, infinite: float = 0.0) -> tuple[Floats, float]:
    """Cut the end off where it has next to no mass; also return the mass cut."""
    beyond = np.cumsum(masses[::-1])[::-1]
    size = int(np.count_nonzero(beyond > _NEGLIGIBLE))
    return masses[:size], infinite + float(np.sum(masses[size:]))


def _joined(own: tuple[Floats, float], other: tuple[Floats, float], interval: float) -> Loss:
    """Join the masses at positive losses with the other direction's mirror image.

    The mirror image has exp(-loss) times the mass, so no mass is a difference of numbers near 1.
    """
    masses, infinite = own
    mirrored = other[0] * np.exp(-interval * np.arange(1, other[0].size + 1))
    mirrored, _ = _cut(mirrored)  # the mass cut goes to loss 0
    at_zero = max(0.0, 1 - infinite - float(np.sum(masses) + np.sum(mirrored)))
    everything = np.concatenate([mirrored[::-1], [at_zero], masses])
    first = int(np.argmax(everything > 0))  # with next to no noise all of it is far above 0
    return Loss(first - mirrored.size, everything[first:], infinite)
