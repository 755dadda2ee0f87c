"""Gaussian differential privacy: releases of known shift in Gaussian noise, composed exactly.

A release is ``mu``-GDP if neighbouring data sets are at least as hard to distinguish from it as
N(0, 1) and N(mu, 1) are from a sample. Noise of standard deviation sigma on a query that neighbours
move by at most Delta in L2 has ``mu = Delta / sigma = 1 / noise_to_sensitivity``; what follows
holds for the neighbouring relation that Delta belongs to. Composition, also adaptive, adds the
squares (Dong, Roth and Su 2022).
"""

from __future__ import annotations

from typing import overload

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._validate import positive
from dpmesh.accounting._arguments import Floats, noisy_rounds, non_negatives, open_probability


def gdp_mu(noise_to_sensitivity: npt.ArrayLike, *, count: npt.ArrayLike = 1) -> float:
    """Return the parameter ``mu`` of Gaussian DP of composed Gaussian releases of the same data.

    ``mu``-GDP: no test distinguishes neighbouring datasets better than N(0, 1) and N(mu, 1) (Dong,
    Roth and Su 2022). The composition is exact.

    Parameters
    ----------
    noise_to_sensitivity
        Standard deviation of the noise over the L2 sensitivity: a number, or one for each round.
    count
        Number of rounds of each kind: a number, or one for each round.

    Returns
    -------
    ``sqrt(sum(count / noise_to_sensitivity**2))``.

    Raises
    ------
    ValueError
        If a noise ratio is not finite and positive, a count is negative or not a whole number,
        or lengths differ.
    """
    noise, counts = noisy_rounds(noise_to_sensitivity, count)
    mus = np.sqrt(counts) / noise
    return float(np.linalg.norm(mus))


@overload
def gdp_epsilon(*, delta: float, mu: float) -> float: ...
@overload
def gdp_epsilon(*, delta: float, mu: Floats) -> Floats: ...
def gdp_epsilon(*, delta: float, mu: float | Floats) -> float | Floats:
    """Return the smallest epsilon at which ``mu``-GDP implies (epsilon, delta)-DP.

    Exact (Balle and Wang 2018, Theorem 8), to a relative error of about 1e-14, for delta down to
    1e-300. Rounding is upwards, so that the result is not too small.

    Parameters
    ----------
    delta
        In (0, 1).
    mu
        Parameter of Gaussian DP, at least 0, such as the result of `gdp_mu`: a number, or an array
        with a mu for each node.

    Returns
    -------
    Epsilon, in the shape of `mu`; 0 where (0, delta)-DP holds.

    Raises
    ------
    ValueError
        If `delta` is outside (0, 1) or `mu` is negative or not finite.
    """
    delta = open_probability("delta", delta)
    mus = non_negatives("mu", mu)
    epsilons = _core.gdp_epsilons(mus.reshape(-1), delta)
    return _like(mus, epsilons)


@overload
def gdp_delta(*, epsilon: float, mu: float) -> float: ...
@overload
def gdp_delta(*, epsilon: float, mu: Floats) -> Floats: ...
def gdp_delta(*, epsilon: float, mu: float | Floats) -> float | Floats:
    """Return the smallest delta at which ``mu``-GDP implies (epsilon, delta)-DP.

    Exact: ``Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2)`` (Balle and Wang 2018,
    Theorem 8), where Phi is the distribution function of N(0, 1). The difference is evaluated
    without cancellation. A delta below the smallest positive double becomes 0.

    Parameters
    ----------
    epsilon
        Finite and positive.
    mu
        Parameter of Gaussian DP, at least 0: a number, or an array with a mu for each node.

    Returns
    -------
    Delta, in the shape of `mu`.

    Raises
    ------
    ValueError
        If `epsilon` is not finite and positive, or `mu` is negative or not finite.
    """
    epsilon = positive("epsilon", epsilon)
    mus = non_negatives("mu", mu)
    log_deltas = _core.gdp_log_deltas(mus.reshape(-1), epsilon)
    return _like(mus, np.exp(log_deltas))


def analytic_gaussian_noise_to_sensitivity(*, target_epsilon: float, target_delta: float) -> float:
    """Return the least noise ratio for which one Gaussian release is (epsilon, delta)-DP.

    This is the calibration of the analytic Gaussian mechanism (Balle and Wang 2018, Algorithm 1),
    exact for every epsilon. The classical formula ``sqrt(2 ln(1.25/delta)) / epsilon`` is proved
    only for epsilon below 1, and is wrong above about 8.

    Parameters
    ----------
    target_epsilon
        Finite and positive.
    target_delta
        In (0, 1).

    Returns
    -------
    Standard deviation over the L2 sensitivity; `gdp_epsilon` of it does not exceed
    `target_epsilon`. For `k` releases of the same data multiply it by ``sqrt(k)``.

    Raises
    ------
    ValueError
        If `target_epsilon` is not finite and positive, or `target_delta` is outside (0, 1).
    """
    epsilon = positive("target_epsilon", target_epsilon)
    delta = open_probability("target_delta", target_delta)
    return _core.gaussian_noise_multiplier(epsilon, delta)


def _like(argument: Floats, values: Floats) -> float | Floats:
    """Return `values` in the shape of `argument`, as a float if `argument` was one."""
    if argument.ndim:
        return values.reshape(argument.shape)
    return float(values[0])
