"""Discrete Gaussian releases: what is proved of them, a little less than of Gaussian ones.

Integers that neighbours move by at most Delta in L2, plus discrete Gaussian noise of scale sigma,
have the Rényi divergences ``order Delta**2 / (2 sigma**2)`` at most, as if the noise were Gaussian
(Canonne, Kamath and Steinke 2020, Theorem 14). That they are Gaussian differentially private is not
proved.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import numpy.typing as npt

from dpmesh._validate import one_of
from dpmesh.privacy.accounting._arguments import open_probability, sampled_rounds
from dpmesh.privacy.accounting.renyi import (
    DEFAULT_ORDERS,
    rdp_epsilon,
    rdp_fixed_size_gaussian,
    rdp_gaussian,
    rdp_poisson_gaussian,
)
from dpmesh.privacy.types import NeighboringRelation

_INTEGER_ORDERS = tuple(order for order in DEFAULT_ORDERS if order == round(order))
_ORDERS_OF_THEOREM_9 = tuple(order for order in _INTEGER_ORDERS if order <= 1024)


def discrete_gaussian_epsilon(
    delta: float,
    noise_multiplier: npt.ArrayLike,
    *,
    neighboring_relation: NeighboringRelation,
    sampling_rate: npt.ArrayLike = 1.0,
    count: npt.ArrayLike = 1,
) -> float:
    """Return an epsilon of composed discrete Gaussian releases, of samples or of all data.

    Samples are Poisson samples under ``"add_remove"`` and of fixed size under ``"replace_one"``.

    At integer orders the moments of a sampled release are sums, with positive factors, of moments
    of the unsampled one, which are at most those of Gaussian noise: exactly for Poisson samples
    (Mironov, Talwar and Zhang 2019, whose Theorem 5 about the other direction needs only the
    symmetry that discrete noise has, too); for samples of fixed size by Theorem 9 of Wang, Balle
    and Kasiviswanathan 2019, which holds for any mechanism.

    Parameters
    ----------
    delta
        In (0, 1).
    noise_multiplier
        Scale of the noise over the L2 sensitivity of the rounded values: a number, or one for each
        round.
    neighboring_relation
        That of the sensitivity.
    sampling_rate
        In (0, 1]: a number, or one for each round.
    count
        How often each round happens: a number, or one for each round.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths of the rounds differ.
    """
    delta = open_probability("delta", delta)
    one_of("neighboring_relation", neighboring_relation, get_args(NeighboringRelation))
    rate, multiplier, times = sampled_rounds(sampling_rate, noise_multiplier, count)
    of_everything = rdp_epsilon(delta, rdp_gaussian(multiplier, count=times)).epsilon
    if np.all(rate == 1):
        return of_everything
    if neighboring_relation == "add_remove":
        orders = _INTEGER_ORDERS
        curve = rdp_poisson_gaussian(
            rate, multiplier, neighboring_relation="add_remove", count=times, orders=orders
        )
    else:
        orders = _ORDERS_OF_THEOREM_9
        curve = rdp_fixed_size_gaussian(
            rate,
            multiplier,
            neighboring_relation="replace_one",
            bound="theorem_9",
            count=times,
            orders=orders,
        )
    return min(of_everything, rdp_epsilon(delta, curve, orders=orders).epsilon)
