"""Laplace releases: pure epsilon by addition, (epsilon, delta) by privacy loss distribution."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmesh._validate import probability
from dpmesh.privacy.accounting import _loss
from dpmesh.privacy.accounting._arguments import noisy_rounds
from dpmesh.privacy.accounting.renyi import rdp_epsilon, rdp_laplace


def laplace_epsilon(
    delta: float, noise_multiplier: npt.ArrayLike, *, count: npt.ArrayLike = 1
) -> float:
    """Return an epsilon of Laplace releases that touch the same data, composed.

    Parameters
    ----------
    delta
        In [0, 1). At 0 the result is the exact pure epsilon, ``sum(count / noise_multiplier)``.
        Above 0, the smaller of that and an upper bound: from 1e-10 on the epsilon of the privacy
        loss distribution, within about 1e-5 of the truth; below 1e-10 that of the Rényi curve.
    noise_multiplier
        Scale of the noise over the sensitivity: a number, or one for each round or coordinate. A
        vector of which only the L1 sensitivity is known is one release, not one for each
        coordinate.
    count
        How often each happens: a number, or one for each.

    Raises
    ------
    ValueError
        If `delta` is outside [0, 1), a noise multiplier is not finite and positive, a count is
        negative or no integer, or lengths differ.
    """
    delta = probability("delta", delta, one=False)
    multiplier, times = noisy_rounds(noise_multiplier, count)
    pure = float(np.sum(times / multiplier))
    if delta == 0 or pure == 0:
        return pure
    if delta < _loss.SMALLEST_DELTA:
        return min(pure, rdp_epsilon(delta, rdp_laplace(multiplier, count=times)).epsilon)
    rounds = _loss.Rounds(_loss.LAPLACE, np.ones_like(multiplier), multiplier, times)
    return min(pure, _loss.composed_epsilon(delta, _loss.fixed_size, rounds))
