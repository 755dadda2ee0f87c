"""Privacy loss distributions on a grid: made per round, composed by dp-accounting.

All of them are connect-the-dots discretisations (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi
2022): the profile is exact on the grid and an upper bound between, so that epsilon never comes out
too low.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, expm1, inf, log, log1p, sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_ndtr

from dpmesh.privacy.accounting._arguments import Floats

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

FINEST = 1e-4  # dp-accounting's default; a coarser composition is within about 1e-6 of its limit
GRID_POINTS = 2**20
DEVIATIONS = 10.0  # a normal beyond so many has 8e-24 of its mass
NEGLIGIBLE = 1e-25
ROUNDING = 1e-12  # of a delta that went through Fourier transforms: some 1e-14 to 1e-13 are seen
SMALLEST_DELTA = 100 * ROUNDING


def composed_epsilon(
    delta: float,
    single: Callable[[float, float, float], PrivacyLossDistribution],
    rate: Floats,
    multiplier: Floats,
    times: Floats,
    interval: float,
) -> float:
    """Epsilon of rounds composed; `single` makes the distribution of one on a grid.

    `delta` is at least `SMALLEST_DELTA`, and the rounding of the composition is taken off it.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = pld.identity(value_discretization_interval=interval)
    kinds, kind_of = np.unique(np.column_stack([rate, multiplier]), axis=0, return_inverse=True)
    for kind, (q, s) in enumerate(kinds):
        count = int(np.sum(times[kind_of.reshape(-1) == kind]))
        if count > 0:
            total = total.compose(single(float(q), float(s), interval).self_compose(count))
    with np.errstate(over="ignore"):  # from about 700 on its epsilon becomes infinite
        return float(total.get_epsilon_for_delta(delta - ROUNDING))


def grid_interval(spread: Floats, largest: Floats, times: Floats) -> float:
    """Fine enough for the smallest loss, coarse enough to hold the composition.

    `spread` is the standard deviation of a round's loss, `largest` the largest loss that counts.
    """
    happen = times > 0
    spread, largest, times = spread[happen], largest[happen], times[happen]
    width = 16 * sqrt(np.sum(times * np.minimum(spread, largest) ** 2)) + 2 * np.max(largest)
    return float(max(min(FINEST, np.min(spread) / 20), width / GRID_POINTS))


def sampled_gaussian_interval(rate: Floats, multiplier: Floats, times: Floats) -> float:
    """The grid for Gaussian releases of samples."""
    spread = rate * np.sqrt(np.expm1(np.minimum(multiplier**-2, 100)))
    largest = np.array([_largest_loss(q, s) for q, s in zip(rate, multiplier, strict=True)])
    return grid_interval(spread, largest, times)


def _largest_loss(rate: float, multiplier: float) -> float:
    ratio = (0.5 + DEVIATIONS * multiplier) / multiplier**2
    return ratio + log(rate) if ratio > 100 else log1p(rate * expm1(ratio))


def poisson_gaussian(rate: float, multiplier: float, interval: float) -> PrivacyLossDistribution:
    """The Poisson-sampled Gaussian under add-remove: a unit removed, and a unit added."""
    removed = _masses(_profile_removed(rate, multiplier, interval), interval)
    added = _masses(_profile_added(rate, multiplier, interval), interval)
    return _distribution(interval, [(removed, added), (added, removed)])


def fixed_size_gaussian(rate: float, multiplier: float, interval: float) -> PrivacyLossDistribution:
    """The dominating pair of sampling without replacement, under replace-one.

    Its profile at positive losses is that of a removed unit, and it is its own mirror image (Zhu,
    Dong and Wang 2022).
    """
    masses = _masses(_profile_removed(rate, multiplier, interval), interval)
    return _distribution(interval, [(masses, masses)])


def _profile_removed(rate: float, multiplier: float, interval: float) -> Floats:
    """``H_e((1-q) N(0, s^2) + q N(1, s^2) || N(0, s^2))`` at the losses e = 0, h, 2h, ..."""
    losses = interval * np.arange(ceil(_largest_loss(rate, multiplier) / interval) + 2)
    # where exp(e) = (1-q) + q exp(ratio), and the point x at which the normals have that ratio
    ratio = losses + np.log(-np.expm1(-losses) + rate * np.exp(-losses)) - log(rate)
    x = 0.5 + multiplier**2 * ratio
    shifted, centred = log_ndtr((1 - x) / multiplier), log_ndtr(-x / multiplier)
    profile: Floats = -rate * np.exp(shifted) * np.expm1(ratio + centred - shifted)
    return profile


def _profile_added(rate: float, multiplier: float, interval: float) -> Floats:
    """``H_e(N(0, s^2) || (1-q) N(0, s^2) + q N(1, s^2))`` at the losses e = 0, h, 2h, ..."""
    bound = -log1p(-rate) if rate < 1 else inf
    largest = min(bound, _largest_loss(rate, multiplier))
    losses = interval * np.arange(ceil(largest / interval) + 2)
    inside = np.expm1(-losses) + rate > 0
    losses_inside = losses[inside]
    ratio = np.log(np.expm1(-losses_inside) + rate) - log(rate)
    x = 0.5 + multiplier**2 * ratio
    shifted, centred = log_ndtr((x - 1) / multiplier), log_ndtr(x / multiplier)
    profile = np.zeros(losses.size)
    profile[inside] = rate * np.exp(losses_inside + shifted) * np.expm1(ratio + centred - shifted)
    return profile


def _masses(deltas: Floats, interval: float) -> tuple[Floats, float]:
    """Masses at the losses h, 2h, ... and at infinity, given their profile at 0, h, 2h, ..."""
    falls, growth = -np.diff(deltas), expm1(interval)
    inner = (falls[:-1] * (1 + growth) - falls[1:]) / growth
    last = falls[-1] / -expm1(-interval)
    return _cut(np.maximum(np.append(inner, last), 0), float(deltas[-1]))


def _cut(masses: Floats, infinite: float = 0.0) -> tuple[Floats, float]:
    """Leave out what has next to no mass at the end, and say how much that was."""
    beyond = np.cumsum(masses[::-1])[::-1]
    size = int(np.count_nonzero(beyond > NEGLIGIBLE))
    return masses[:size], infinite + float(np.sum(masses[size:]))


def _distribution(
    interval: float, directions: list[tuple[tuple[Floats, float], tuple[Floats, float]]]
) -> PrivacyLossDistribution:
    """Join the masses at positive losses with the mirror image, exp(-loss) times, of the other's.

    So no mass is a difference of numbers near 1, and those of both directions keep their digits.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    distributions = []
    for (masses, infinite), (other, _) in directions:
        mirrored = other * np.exp(-interval * np.arange(1, other.size + 1))
        mirrored, _ = _cut(mirrored)  # what it leaves out goes to loss 0
        at_zero = max(0.0, 1 - infinite - float(np.sum(masses) + np.sum(mirrored)))
        probabilities = np.concatenate([mirrored[::-1], [at_zero], masses])
        distributions.append(DensePLDPmf(interval, -mirrored.size, probabilities, infinite, True))
    return PrivacyLossDistribution(*distributions)


def laplace(rate: float, multiplier: float, interval: float) -> PrivacyLossDistribution:
    """One Laplace release of everything (`rate` is 1), the same in both directions."""
    assert rate == 1
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_laplace_mechanism(multiplier, value_discretization_interval=interval)
