"""Integer sums whose noise is a sum of shares: one discrete Gaussian share from each site.

A sum of discrete Gaussian samples is not a discrete Gaussian sample. The logarithm of the ratio of
their probabilities is at most `closure_gap` everywhere, 3e-68 for 100 shares of scale 4, so that a
guarantee of the exact discrete Gaussian noise carries over with a little more epsilon and delta
(Kairouz, Liu and Steinke 2021). The exact noise costs what Gaussian noise of a slightly smaller
scale costs, from `discrete.FINE` steps on; smaller noise has Rényi divergences.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, pi, sqrt
from typing import Any

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
    return float(10 * np.exp(-2 * pi**2 * positive("share", share) ** 2 * k / (k + 1)).sum())


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
    """Return an epsilon of released sums of integer vectors with a share of noise from each site.

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
        Of the noise that the adversary does not know, ``share * sqrt(shares it does not know)``, in
        steps of the grid: a sum is smoothed by its own noise, not by that of one share.
    share
        Scale of one site's share in steps of the grid, at least `SMALLEST_SHARE`.
    sites
        All sites, n.
    dim
        Length of the vectors, d.
    neighboring_relation
        That of the sensitivity. Sampling amplifies under ``"add_remove"`` alone.
    sampling_rate
        Probability in (0, 1] with which each record takes part in a sum, by secret coins.
    count
        Number of sums, R, those of abandoned attempts included.

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
    runs = np.broadcast_arrays(noise_to_sensitivity, scale, share, sites, dim, sampling_rate, count)
    z, scales, shares, n, d, rate, times = (np.atleast_1d(numbers) for numbers in runs)
    _check_sums(shares, sites=n, dim=d, count=times)
    numbers = times * d.astype(float)
    each = zip(times, d, n, shares, strict=True)
    gap = float(sum(t * m * closure_gap(k, s) for t, m, k, s in each))
    samplers = float((numbers * n).sum()) * SAMPLER_ERROR
    if neighboring_relation == "replace_one":
        rate = np.ones(rate.shape)
    fine, kappa = bool((scales >= FINE).all()), 0.0
    if fine:
        z = np.array([gaussian_multiplier(*each) for each in zip(z, scales, strict=True)])
        kappa = sum(m * rounding_slack(s) for m, s in zip(numbers, scales, strict=True))

    def exact(delta: float) -> float:
        """Return what is proved of exact discrete Gaussian noise."""
        sampled: Any = {"sampling_rate": rate.astype(float), "count": times}
        sampled |= {"noise_to_sensitivity": z.astype(float), "delta": delta}
        if not fine:
            return discrete_gaussian_epsilon(neighboring_relation=neighboring_relation, **sampled)
        if (rate == 1).all():
            return gdp_epsilon(delta=delta, mu=gdp_mu(z, count=times)) + 2 * kappa
        return poisson_gaussian_epsilon(neighboring_relation="add_remove", **sampled) + 2 * kappa

    def proved(epsilon_of_samplers: float) -> float:
        left: float = (delta - (1 + exp(epsilon_of_samplers)) * samplers) * exp(-gap - kappa)
        if left <= 0:
            return inf
        return exact(left) + 2 * gap

    return _consistent(proved)


def _check_sums(shares: Floats, **counts: Floats) -> None:
    if not (shares >= SMALLEST_SHARE).all():
        fail("share", f"at least {SMALLEST_SHARE:g} steps of the grid", shares.min())
    for name, given in counts.items():
        for number in given:
            integer(name, number, at_least=1)


def _consistent(proved: Callable[[float], float]) -> float:
    """Return an epsilon that is proved where the samplers' error is counted at a larger one."""
    allowed = proved(0.0) + 1e-3
    while allowed < _LARGEST_EPSILON:
        epsilon = proved(allowed)
        if epsilon <= allowed:
            return epsilon
        if epsilon == inf:
            return inf
        allowed = max(1.01 * allowed, epsilon)
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
    target_epsilon, target_delta
        The budget; finite and positive, in (0, 1).
    scale_per_multiplier
        Scale of the unknown noise at noise ratio 1, in steps: the sensitivity of the sum.
    unknown
        How many shares the adversary does not know.
    sites, dim, neighboring_relation, sampling_rate, count
        As for `sum_of_shares_epsilon`.

    Raises
    ------
    ValueError
        If an argument is out of its range, or no noise keeps the budget.
    """
    of_one = 1 / sqrt(integer("unknown", unknown, at_least=1))
    least = SMALLEST_SHARE / (positive("scale_per_multiplier", scale_per_multiplier) * of_one)
    exact = analytic_gaussian_noise_to_sensitivity(
        target_epsilon=target_epsilon, target_delta=target_delta
    )
    guess = max(exact * sqrt(integer("count", count, at_least=1)) * sampling_rate, least)

    def epsilon_of(noise_to_sensitivity: float) -> float:
        multiplier = max(noise_to_sensitivity, least)
        scale = multiplier * scale_per_multiplier
        return sum_of_shares_epsilon(
            delta=target_delta,
            noise_to_sensitivity=multiplier,
            scale=scale,
            share=max(scale * of_one, SMALLEST_SHARE),
            sites=sites,
            dim=dim,
            neighboring_relation=neighboring_relation,
            sampling_rate=sampling_rate,
            count=count,
        )

    if epsilon_of(least) <= target_epsilon:
        return least
    return calibrate_noise(epsilon_of, target_epsilon=target_epsilon, guess=guess)
