"""Epsilon of secure aggregation with distributed noise: one discrete Gaussian share per site.

A sum of discrete Gaussian samples is not exactly a discrete Gaussian sample. The logarithm of the
ratio of their probabilities is at most `closure_gap` everywhere, 3e-68 for 100 shares of scale 4.
So a guarantee of exact discrete Gaussian noise carries over with slightly more epsilon and delta
(Kairouz, Liu and Steinke 2021). From a scale of `discrete.FINE` steps on, exact discrete noise has
the epsilon of Gaussian noise of a slightly smaller scale. For smaller noise, the accountant is
Rényi DP.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, pi, sqrt

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import NeighboringRelation
from dpmesh._validate import fail, integer, positive
from dpmesh.accounting._arguments import Floats, open_probability
from dpmesh.accounting.calibration import calibrate_noise
from dpmesh.accounting.discrete import (
    FINE,
    SAMPLER_ERROR,
    discrete_gaussian_epsilon,
    gaussian_multiplier,
    rounding_slack,
)
from dpmesh.accounting.gaussian import analytic_gaussian_noise_to_sensitivity, gdp_epsilon, gdp_mu
from dpmesh.accounting.sampled import poisson_gaussian_epsilon

SMALLEST_SHARE = 4.0
"""Least scale of a share, in steps of the grid."""

_LARGEST_EPSILON = 700.0
"""Beyond it the error of the samplers alone exceeds any delta."""


def closure_gap(sites: int, share: float) -> float:
    """Return tau, which bounds abs(log(P[sum of shares = x] / P[discrete Gaussian = x])).

    Parameters
    ----------
    sites
        Number of shares, n.
    share
        Scale of one share, in steps of the grid; the discrete Gaussian has ``sqrt(n)`` times it.

    Returns
    -------
    ``10 sum_{k=1}^{n-1} exp(-2 pi^2 share^2 k / (k + 1))``, which also covers fewer shares.
    """
    k = np.arange(1, integer("sites", sites, at_least=1))
    share = positive("share", share)
    terms = np.exp(-2 * pi**2 * share**2 * k / (k + 1))
    return float(10 * terms.sum())


def sum_of_shares_epsilon(
    *,
    delta: float,
    noise_to_sensitivity: npt.ArrayLike,
    scale: npt.ArrayLike,
    share: npt.ArrayLike,
    sites: npt.ArrayLike,
    dim: npt.ArrayLike,
    neighboring_relation: NeighboringRelation,
    sampling_rate: npt.ArrayLike = 1.0,
    count: npt.ArrayLike = 1,
) -> float:
    """Return the epsilon of sums of integer vectors with a share of the noise from each site.

    If exact discrete Gaussian noise gives ``(epsilon_0, delta_0)``, a sum of shares gives
    ``(epsilon_0 + 2 R d tau, exp(R d tau) delta_0)`` for R sums of d numbers, tau being the
    `closure_gap`: the probabilities of whole transcripts differ by a factor of at most
    ``exp(R d tau)`` on either of two neighbouring datasets. The samplers of all sites add
    ``(1 + exp(epsilon)) R n d 2**-73`` to delta. Both are part of the result.

    Everything but `delta` and the relation is a number, or one for each of several runs on the same
    records.

    Parameters
    ----------
    delta
        In (0, 1).
    noise_to_sensitivity
        `scale` over the L2 sensitivity of the rounded sum.
    scale
        Scale of the noise that the adversary does not know, in steps of the grid: `share` times
        the root of the number of unknown shares.
    share
        Scale of one site's share in steps of the grid, at least `SMALLEST_SHARE`.
    sites
        Number of all sites, n.
    dim
        Length of the vectors, d.
    neighboring_relation
        Neighbouring relation of the sensitivity. Sampling amplifies under ``"add_remove"`` alone.
    sampling_rate
        Probability in (0, 1] with which each record takes part in a sum, by secret coins.
    count
        Number of sums, R, including sums of attempts that were abandoned.

    Returns
    -------
    The epsilon; infinity if none is proved at this `delta`, for example because the error of the
    samplers alone exceeds it.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the share is too small.
    """
    delta = open_probability("delta", delta)
    noises, scales, shares, all_sites, dims, rates, counts = np.broadcast_arrays(
        *map(np.atleast_1d, (noise_to_sensitivity, scale, share, sites, dim, sampling_rate, count))
    )
    _check_sums(shares, sites=all_sites, dim=dims, count=counts)
    numbers = counts * dims.astype(float)
    gap = 0.0  # R d tau, summed over runs
    for run_count, run_dim, run_sites, run_share in zip(
        counts, dims, all_sites, shares, strict=True
    ):
        gap += float(run_count * run_dim * closure_gap(run_sites, run_share))
    sampler_error = float((numbers * all_sites).sum()) * SAMPLER_ERROR
    if neighboring_relation == "replace_one":
        rates = np.ones(rates.shape)
    is_fine = bool((scales >= FINE).all())
    kappa = 0.0  # bound of the effect of rounding on log probabilities, summed over all numbers
    if is_fine:
        pairs = list(zip(noises, scales, strict=True))
        noises = np.array([gaussian_multiplier(noise, scale) for noise, scale in pairs])
        for run_numbers, run_scale in zip(numbers, scales, strict=True):
            kappa += run_numbers * rounding_slack(run_scale)

    def epsilon_of_exact_noise(delta: float) -> float:
        """Return the epsilon of exact discrete Gaussian noise."""
        if not is_fine:
            return discrete_gaussian_epsilon(
                delta=delta,
                noise_to_sensitivity=noises.astype(float),
                neighboring_relation=neighboring_relation,
                sampling_rate=rates.astype(float),
                count=counts,
            )
        if (rates == 1).all():
            return gdp_epsilon(delta=delta, mu=gdp_mu(noises, count=counts)) + 2 * kappa
        sampled = poisson_gaussian_epsilon(
            delta=delta,
            sampling_rate=rates.astype(float),
            noise_to_sensitivity=noises.astype(float),
            neighboring_relation="add_remove",
            count=counts,
        )
        return sampled + 2 * kappa

    def epsilon_at(sampler_epsilon: float) -> float:
        """Return epsilon if samplers add ``(1 + exp(sampler_epsilon)) sampler_error`` to delta."""
        sampler_delta = (1 + exp(sampler_epsilon)) * sampler_error
        exact_delta = (delta - sampler_delta) * exp(-gap - kappa)
        if exact_delta <= 0:
            return inf
        return epsilon_of_exact_noise(exact_delta) + 2 * gap

    return _consistent(epsilon_at)


def _check_sums(shares: Floats, **counts: Floats) -> None:
    """Fail unless shares are large enough, and sites, lengths and counts are whole numbers."""
    if not (shares >= SMALLEST_SHARE).all():
        fail("share", f"at least {SMALLEST_SHARE:g} steps of the grid", shares.min())
    for name, values in counts.items():
        for value in values:
            integer(name, value, at_least=1)


def _consistent(epsilon_at: Callable[[float], float]) -> float:
    """Return an epsilon at most as large as the epsilon at which samplers' errors are counted.

    `epsilon_at` increases with its argument, so the argument is raised until the result fits.
    """
    sampler_epsilon = epsilon_at(0.0) + 1e-3
    while sampler_epsilon < _LARGEST_EPSILON:
        epsilon = epsilon_at(sampler_epsilon)
        if epsilon <= sampler_epsilon:
            return epsilon
        if epsilon == inf:
            return inf
        sampler_epsilon = max(1.01 * sampler_epsilon, epsilon)
    return inf


def sum_of_shares_noise_to_sensitivity(
    *,
    target_epsilon: float,
    target_delta: float,
    scale_per_multiplier: float,
    unknown: int,
    sites: int,
    dim: int,
    neighboring_relation: NeighboringRelation,
    sampling_rate: float = 1.0,
    count: int = 1,
) -> float:
    """Return the least noise ratio whose `sum_of_shares_epsilon` keeps a budget.

    Parameters
    ----------
    target_epsilon
        Finite and positive.
    target_delta
        In (0, 1).
    scale_per_multiplier
        L2 sensitivity of the rounded sum, in steps of the grid, which is the scale of the unknown
        noise at noise ratio 1; positive.
    unknown
        Number of shares that the adversary does not know.
    sites, dim, neighboring_relation, sampling_rate, count
        As for `sum_of_shares_epsilon`.

    Raises
    ------
    ValueError
        If an argument is out of its range, or no noise keeps the budget.
    """
    share_of_scale = 1 / sqrt(integer("unknown", unknown, at_least=1))
    scale_per_noise = positive("scale_per_multiplier", scale_per_multiplier)
    least = SMALLEST_SHARE / (scale_per_noise * share_of_scale)
    gaussian_noise = analytic_gaussian_noise_to_sensitivity(
        target_epsilon=target_epsilon, target_delta=target_delta
    )
    guess = gaussian_noise * sqrt(integer("count", count, at_least=1)) * sampling_rate
    guess = max(guess, least)

    def epsilon_of(noise_to_sensitivity: float) -> float:
        noise = max(noise_to_sensitivity, least)
        scale = noise * scale_per_noise
        return sum_of_shares_epsilon(
            delta=target_delta,
            noise_to_sensitivity=noise,
            scale=scale,
            share=max(scale * share_of_scale, SMALLEST_SHARE),
            sites=sites,
            dim=dim,
            neighboring_relation=neighboring_relation,
            sampling_rate=sampling_rate,
            count=count,
        )

    if epsilon_of(least) <= target_epsilon:
        return least
    return calibrate_noise(epsilon_of, target_epsilon=target_epsilon, guess=guess)
