"""Laplace releases: pure epsilon by addition, (epsilon, delta) by privacy loss distribution."""

from __future__ import annotations

from math import ceil

import numpy as np
import numpy.typing as npt

from dpmesh._validate import probability
from dpmesh.privacy.accounting._arguments import Floats, counts, positives, rounds

_FINEST = 1e-4  # grid of the privacy loss, as dp-accounting's default
_GRID_POINTS = 2**20  # beyond this many the grid is made coarser, which only raises epsilon


def laplace_epsilon(
    delta: float, noise_multiplier: npt.ArrayLike, *, count: npt.ArrayLike = 1
) -> float:
    """Return an epsilon of Laplace releases that touch the same data, composed.

    Parameters
    ----------
    delta
        In [0, 1). At 0 the result is the exact pure epsilon, ``sum(count / noise_multiplier)``.
        Above it, the smaller of that and the epsilon of the releases' privacy loss distribution
        (dp-accounting, connect-the-dots), an upper bound within about 1e-5 of the truth.
    noise_multiplier
        Scale of the noise over the sensitivity of this coordinate: a number, or one for each
        round or coordinate. A vector release of which only the L1 sensitivity is known is one
        release, not one for each coordinate.
    count
        How often each happens: a number, or one for each.

    Raises
    ------
    ValueError
        If `delta` is outside [0, 1), a noise multiplier is not finite and positive, a count is
        negative or no integer, or lengths differ.
    """
    probability("delta", delta, one=False)
    multiplier, times = rounds(
        noise_multiplier=positives("noise_multiplier", noise_multiplier),
        count=counts("count", count),
    )
    pure = float(np.sum(times / multiplier))
    if delta == 0 or pure == 0:
        return pure
    return min(pure, _loss_distribution_epsilon(delta, 1 / multiplier, times))


def _loss_distribution_epsilon(delta: float, epsilons: Floats, times: Floats) -> float:
    from dp_accounting.pld import privacy_loss_distribution as pld

    interval = _interval(epsilons[times > 0], times[times > 0])
    composed = pld.identity(value_discretization_interval=interval)
    for epsilon in np.unique(epsilons[times > 0]):
        single = pld.from_laplace_mechanism(1 / epsilon, value_discretization_interval=interval)
        times_of_it = int(np.sum(times[epsilons == epsilon]))
        composed = composed.compose(single.self_compose(times_of_it))
    return float(composed.get_epsilon_for_delta(delta))


def _interval(epsilons: Floats, times: Floats) -> float:
    """A grid that resolves the smallest release, with the largest one on it, and fits memory."""
    width = 16 * np.sqrt(np.sum(times * epsilons**2)) + 2 * np.max(epsilons)
    interval = max(min(_FINEST, np.min(epsilons) / 20), width / _GRID_POINTS)
    return float(np.max(epsilons) / ceil(np.max(epsilons) / interval))
