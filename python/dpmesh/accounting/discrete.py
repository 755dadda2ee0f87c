"""Epsilon of discrete Gaussian noise on integers: slightly above the epsilon of Gaussian noise.

A *step* is the distance 1 of the grid of integers. The noise has scale sigma steps, and neighbours
move the integers by at most Delta in L2. The Rényi divergences are then at most
``order Delta**2 / (2 sigma**2)``, as if the noise were Gaussian (Canonne, Kamath and Steinke 2020,
Theorem 14).

Noise of a scale of at least `FINE` steps is nearly Gaussian noise of scale
``sqrt(sigma**2 - SMOOTHING**2)``, rounded at random to integers. The probabilities differ by a
factor that is 1 in all digits: see `gaussian_multiplier` and `rounding_slack` (proof in
docs/privacy/accounting_proofs.md).
"""

from __future__ import annotations

from math import exp, log1p, pi, sqrt
from typing import get_args

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import NeighboringRelation
from dpmesh._validate import one_of
from dpmesh.accounting._arguments import Floats, open_probability, sampled_rounds
from dpmesh.accounting.renyi import DEFAULT_ORDERS, rdp_epsilon, rdp_gaussian, rdp_poisson_gaussian

SMOOTHING = 1.2
"""Scale, in steps, of the discrete Gaussian noise that rounds Gaussian noise to integers."""
FINE = 3.0
"""Least scale of noise, in steps, whose epsilon is computed as for Gaussian noise."""
SAMPLER_ERROR = 2.0**-73
"""Total variation between a number that the kernels draw and the exact distribution."""

SHARES_OF_DELTA = (2.0**-10, 2.0**-4, 0.5)
"""Shares of delta for the errors of samplers, tried in turn until one suffices."""

_INTEGER_ORDERS = tuple(order for order in DEFAULT_ORDERS if order == round(order))
_ORDERS_OF_BOTH = tuple(order for order in _INTEGER_ORDERS if order <= 1024)
"""Orders for samples of fixed size, at which one moment bounds both directions together.

Any set of orders is proved. Larger ones would lower only tiny epsilons: in a trial (rates 1e-4 to
0.1, noise ratios 0.5 to 64, 1 to 10,000 rounds) those below 0.006 at delta 1e-5, and below 0.016 at
delta 1e-9.
"""

_LARGE_LOG_MOMENT = 30.0
"""Above this, log(2 exp(m) - 1) is rounded up to m + log(2), which does not overflow."""


def gaussian_multiplier(noise_to_sensitivity: float, scale: float) -> float:
    """Return the noise ratio of Gaussian noise that protects no better than this discrete noise.

    Noise ratios are scales over sensitivity. The claim holds up to `rounding_slack`; proof in
    docs/privacy/accounting_proofs.md.

    Parameters
    ----------
    noise_to_sensitivity
        Noise ratio of the discrete noise.
    scale
        Scale of the discrete noise in steps, at least `FINE`.
    """
    return noise_to_sensitivity * sqrt(1 - (SMOOTHING / scale) ** 2)


def rounding_slack(scale: float = FINE) -> float:
    """Return kappa: a bound on how far log probabilities differ if Gaussian noise is rounded.

    An (epsilon, delta) guarantee of Gaussian noise on n numbers holds for the rounded ones as
    ``(epsilon + 2 n kappa, exp(n kappa) delta)``. The bound falls as the scale grows: it is 7.9e-23
    at scale 3, and at most 1.7e-24 from 20 on.

    Let x be Gaussian around an integer v, of scale ``s = sqrt(scale**2 - r**2)`` with r =
    `SMOOTHING`, and y discrete Gaussian of scale r around x. The sum of ``exp(-(k - x)**2 / (2
    r**2))`` over all integers k is ``r sqrt(2 pi) (1 + g(x))`` with ``g(x) = 2 sum_m t**(m**2)
    cos(2 pi m x)`` and ``t = exp(-2 pi**2 r**2)``, by Poisson's summation formula. So y has the
    probabilities of discrete Gaussian noise of that `scale` times the mean of ``1 / (1 + g)`` under
    a Gaussian of scale ``s r / scale``. In ``1 - g + g**2 / (1 + g)`` the mean of g is at most ``a
    = 2 u / (1 - u)`` with ``u = t exp(-2 pi**2 (s r / scale)**2)``, and the last term is between 0
    and ``b = G**2 / (1 - G)`` with ``G = 2 t / (1 - t)``. As both sum to 1, their ratio is within
    ``(1 + a + b) / (1 - a)``, whose logarithm is kappa.
    """
    t = exp(-2 * pi**2 * SMOOTHING**2)
    remaining_variance = SMOOTHING**2 * (1 - (SMOOTHING / scale) ** 2)  # (s r / scale)**2
    u = t * exp(-2 * pi**2 * remaining_variance)
    a = 2 * u / (1 - u)
    largest_g = 2 * t / (1 - t)  # G
    b = largest_g**2 / (1 - largest_g)
    return log1p((2 * a + b) / (1 - a))


def delta_on_grid(delta: float) -> float:
    """Return the part of delta for noise on a grid; the samplers get the rest."""
    return delta * (1 - SHARES_OF_DELTA[0])


def largest_epsilon(delta: float, share: float, numbers: Floats) -> Floats:
    """Return the largest epsilon at which grid noise takes up at most `share` of delta.

    Samplers add ``(1 + exp(epsilon)) numbers * SAMPLER_ERROR`` to delta; rounding multiplies the
    rest of it by at most ``1 + 2 numbers * rounding_slack()``. Minus infinity if there is none.

    Parameters
    ----------
    delta
        In (0, 1).
    share
        Share of delta for samplers and rounding, in (0, 1).
    numbers
        Counts of noisy numbers on a grid, of any shape, which is that of the result.
    """
    sampler_delta = delta * (share - 2 * numbers * rounding_slack())
    with np.errstate(divide="ignore", invalid="ignore"):
        epsilons = np.log(sampler_delta / (numbers * SAMPLER_ERROR) - 1)
    largest: Floats = np.where(np.isnan(epsilons), -np.inf, epsilons)
    return largest


def discrete_gaussian_epsilon(
    *,
    delta: float,
    noise_to_sensitivity: npt.ArrayLike,
    neighboring_relation: NeighboringRelation,
    sampling_rate: npt.ArrayLike = 1.0,
    count: npt.ArrayLike = 1,
) -> float:
    """Return the epsilon of composed discrete Gaussian releases, with or without sampling.

    The result is an upper bound, by Rényi DP. The samples are Poisson samples under
    ``"add_remove"``, and samples of fixed size under ``"replace_one"``. A sampling rate of 1 means
    no sampling.

    At integer orders the moments of a sampled release are sums, with positive factors, of moments
    of the unsampled one, which are at most those of Gaussian noise: exactly for Poisson samples
    (Mironov, Talwar and Zhang 2019, whose Theorem 5 about the other direction needs only the
    symmetry that discrete noise has, too).

    For samples of fixed size the moment less 1 is at most twice that of a Poisson sample at the
    same rate. First, the profile at losses of at least 0 is at most that of a removed unit, on
    average over the other units. Second, a moment is 1 plus the mean of ``x**a + x**(1-a) - x - 1``
    over likelihood ratios x above 1. Third, this function is positive below 1, too; its mean over
    all x is the moment less 1 in both directions.

    Parameters
    ----------
    delta
        In (0, 1).
    noise_to_sensitivity
        Scale of the noise over the L2 sensitivity of the rounded values: a number, or one for each
        round.
    neighboring_relation
        Neighbouring relation of the sensitivity.
    sampling_rate
        In (0, 1]: a number, or one for each round.
    count
        Number of rounds of each kind: a number, or one for each round.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths of the rounds differ.
    """
    delta = open_probability("delta", delta)
    one_of("neighboring_relation", neighboring_relation, get_args(NeighboringRelation))
    rate, noise, counts = sampled_rounds(sampling_rate, noise_to_sensitivity, count)
    unsampled = rdp_epsilon(delta=delta, rdp=rdp_gaussian(noise, count=counts)).epsilon
    if np.all(rate == 1):
        return unsampled
    if neighboring_relation == "add_remove":
        orders = _INTEGER_ORDERS
        curve = rdp_poisson_gaussian(
            sampling_rate=rate,
            noise_to_sensitivity=noise,
            neighboring_relation="add_remove",
            count=counts,
            orders=orders,
        )
    else:
        orders = _ORDERS_OF_BOTH
        curve = np.zeros(len(orders))
        for round_rate, round_noise, round_count in zip(rate, noise, counts, strict=True):
            curve += round_count * _fixed_size_curve(round_rate, round_noise)
    sampled = rdp_epsilon(delta=delta, rdp=curve, orders=orders).epsilon
    return min(unsampled, sampled)


def _fixed_size_curve(rate: float, noise_to_sensitivity: float) -> Floats:
    """Return the Rényi divergences whose moments exceed 1 by twice as much as a Poisson sample's.

    Shape (orders,), at `_ORDERS_OF_BOTH`.
    """
    orders = np.array(_ORDERS_OF_BOTH, dtype=np.float64)
    poisson_curve = rdp_poisson_gaussian(
        sampling_rate=rate,
        noise_to_sensitivity=noise_to_sensitivity,
        neighboring_relation="add_remove",
        orders=orders,
    )
    log_moment = (orders - 1) * poisson_curve
    with np.errstate(over="ignore"):
        log_doubled = np.log1p(2 * np.expm1(np.minimum(log_moment, _LARGE_LOG_MOMENT)))
    is_large = log_moment > _LARGE_LOG_MOMENT
    log_both = np.where(is_large, log_moment + np.log(2), log_doubled)
    curve: Floats = log_both / (orders - 1)
    return curve
