"""Dominating pairs of Poisson sampling under replace-one, and with published sizes of samples.

`_pairs.Poisson` is the usual pair, for a unit that is added or removed and a secret sample. Three
others are:

- `PublishedSample`: replace-one, any noise; the members of the sample count as published.
- `ReplacedGaussian`: replace-one, Gaussian noise, vectors of norm at most half the sensitivity.
- `PublishedSizeGaussian`: add-remove, Gaussian noise; the size of each sample is published.

**Symbols.**

    s             the noise ratio: standard deviation of the noise over the sensitivity
    N(x)          normal distribution of mean x and standard deviation s
    Phi           distribution function of the standard normal distribution
    q             sampling rate: each unit is in the sample with this probability, independently
    e             a privacy loss, at least 0
    H_e(P || Q)   hockey-stick divergence: ``sup over S of P(S) - exp(e) Q(S)``

**One idea for all.** One unit differs between neighbours. Given the sample of the other units, the
two noisy sums differ by one shift, in the direction of the unit's contribution. `H_e` is jointly
convex: a bound that holds given every sample of the other units also holds on average over these
samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import NamedTuple

import numpy as np
import scipy  # its submodules are imported on first use

from dpmesh.accounting._arguments import Floats
from dpmesh.accounting._loss import UNIT, Profile
from dpmesh.accounting._pairs import DominatingPair, FloatOrFloats, Profiles, sampled_loss

_LARGE_ARCSINH = 15.0
"""From this log(y) on, ``arcsinh(y) = log(2 y)`` up to ``1 / (4 y^2)``, below 1e-13."""

_LARGEST_EXPONENT = 700.0
"""Up to here the exponential function does not overflow."""

_OTHER_UNITS = 40
"""Rounding of a profile apart from the rounding of its tails, in `UNIT`; it is multiplied by 8.

A tail of a normal distribution at d deviations is off by about d^2 units. The other dozen of
operations (logarithm, two tails, products, a difference) are off by one or two units each. A trial
against 60 digits (rates 1e-9 to 0.3, noise ratios 0.1 to 50, losses from 0, and those around which
a threshold is 0) found at most 9% of the errors that result.
"""


@dataclass(frozen=True)
class PublishedSample(DominatingPair):
    """Poisson sampling under replace-one, as if the members of the sample were published.

    With probability q the differing unit is in the sample, and its replacement moves the sum by at
    most the sensitivity. Otherwise nothing differs. So at losses of at least 0 the profile is q
    times the profile of a release of all data. Only the sensitivity to replacing a unit is used.
    """

    def profiles(
        self, rate: float, noise_ratio: float, losses: Floats, negligible: float
    ) -> Profiles:
        return (self.law.profile(losses, noise_ratio, log(rate), losses),)

    def spread(self, rate: Floats, noise_ratio: Floats) -> Floats:
        return np.sqrt(rate) * super().spread(rate, noise_ratio)


@dataclass(frozen=True)
class ReplacedGaussian(DominatingPair):
    """Gaussian sums of Poisson samples under replace-one, of vectors of norm at most 1/2.

    Norms are in units of the sensitivity: replacing a vector moves the sum by at most 1.

    Given the sample of the other units, the neighbours' releases are ``(1-q) N(0) + q N(x)`` and
    ``(1-q) N(0) + q N(x')``, with x and x' of norm at most 1/2. For any test S let ``a = N(0)(S)``.
    By the lemma of Neyman and Pearson, ``N(x)(S)`` is at most ``Phi(Phi^-1(a) + 1/(2s))`` and
    ``N(x')(S)`` at least ``Phi(Phi^-1(a) - 1/(2s))``. One half-line S attains both bounds for
    ``x = 1/2`` and ``x' = -1/2``. So the pair

        P = (1-q) N(0) + q N(1/2),    Q = (1-q) N(0) + q N(-1/2)

    on the real line dominates at every loss. Reflection at 0 exchanges P and Q: both directions
    have one profile.
    """

    has_convex_profiles = False

    def profiles(
        self, rate: float, noise_ratio: float, losses: Floats, negligible: float
    ) -> Profiles:
        return (_replaced_profile(losses, rate, noise_ratio),)

    def largest(self, rate: Floats, noise_ratio: Floats, deviations: FloatOrFloats) -> Floats:
        """Return the loss ``log(P / Q)`` at the point `deviations` times s above 1/2.

        The densities of ``N(1/2)`` and ``N(-1/2)`` at a point t are those of ``N(0)`` times
        ``exp((t - 1/4) / (2 s^2))`` and ``exp(-(t + 1/4) / (2 s^2))``.
        """
        point = 0.5 + deviations * noise_ratio
        log_ratio_p = (point - 0.25) / (2 * noise_ratio**2) + 0 * rate  # in the shape of the rate
        log_ratio_q = -(point + 0.25) / (2 * noise_ratio**2)
        loss_p = sampled_loss(rate, log_ratio_p)
        with np.errstate(divide="ignore"):  # of a rate of 1
            loss_q = np.logaddexp(np.log1p(-rate), np.log(rate) + log_ratio_q)
        largest: Floats = loss_p - loss_q
        return largest

    def spread(self, rate: Floats, noise_ratio: Floats) -> Floats:
        """Return about the standard deviation of the loss.

        The loss is the difference of the losses of P and of Q relative to N(0), here taken as
        independent.
        """
        share: Floats = np.minimum(1.0, np.sqrt(2) * rate)
        return share * super().spread(rate, noise_ratio)


def _replaced_profile(losses: Floats, rate: float, noise_ratio: float) -> Profile:
    """Return ``H_e(P || Q)`` of the pair of `ReplacedGaussian` at losses e of at least 0.

    The best test is the half-line above the point t where the likelihood ratio is exp(e). With
    upper tails ``T(x) = Phi((x - t) / s)`` of ``N(x)`` beyond t,

        H_e = q (T(1/2) - exp(e) T(-1/2)) - (1-q) (exp(e) - 1) T(0)

    All arrays have the shape of `losses`.
    """
    log_u = _log_threshold(losses, rate, noise_ratio)
    t = 2 * noise_ratio**2 * log_u
    log_tail_p = scipy.special.log_ndtr((0.5 - t) / noise_ratio)
    log_tail_0 = scipy.special.log_ndtr((0.0 - t) / noise_ratio)
    log_tail_q = scipy.special.log_ndtr((-0.5 - t) / noise_ratio)

    tail_p = np.exp(log_tail_p)
    scaled_tail_q = np.exp(losses + log_tail_q)  # exp(e) T(-1/2)
    unsampled = np.zeros_like(losses)
    if rate < 1:  # at a rate of 1, a product of 0 and of what may overflow
        unsampled = np.exp(losses + log_tail_0) * -np.expm1(-losses) * (1 - rate)
    values = np.maximum(0, rate * (tail_p - scaled_tail_q) - unsampled)

    # exp(x) is off by about as many units as the terms of x are large
    log_tails = np.abs(log_tail_p) + np.abs(log_tail_0) + np.abs(log_tail_q)
    log_k = _log_k(rate, noise_ratio)
    units = 8 + losses + log_tails + np.abs(log_u) + abs(log_k)
    errors = 8 * UNIT * units * (rate * (tail_p + scaled_tail_q) + unsampled)
    return Profile(values, errors)


def _log_threshold(losses: Floats, rate: float, noise_ratio: float) -> Floats:
    """Return ``log u = t / (2 s^2)``, with t where the pair's likelihood ratio is exp(e).

    With ``k = q exp(-1/(8 s^2))`` the ratio at t is ``(1-q + k u) / (1-q + k / u)``. It is exp(e)
    at the positive root of ``k u^2 - (1-q) (exp(e) - 1) u - k exp(e) = 0``,

        u = c exp(e) + sqrt(c^2 exp(2 e) + exp(e)),    c = (1-q) (1 - exp(-e)) / (2 k)

    so that ``log u = e / 2 + arcsinh(y)`` with ``y = c exp(e / 2)``.
    """
    with np.errstate(divide="ignore"):  # y is 0 at the loss 0, and for a rate of 1
        log_c = np.log((1 - rate) * -np.expm1(-losses)) - _log_k(rate, noise_ratio) - log(2)
    log_y = log_c + losses / 2
    arcsinh = np.arcsinh(np.exp(np.minimum(log_y, _LARGE_ARCSINH)))
    large_arcsinh = log_y + log(2)
    log_u: Floats = losses / 2 + np.where(log_y > _LARGE_ARCSINH, large_arcsinh, arcsinh)
    return log_u


def _log_k(rate: float, noise_ratio: float) -> float:
    """Return the logarithm of ``k = q exp(-1/(8 s^2))``: see `_log_threshold`."""
    return log(rate) - 1 / (8 * noise_ratio**2)


class _Sizes(NamedTuple):
    """Likely sizes of a Poisson sample, and the probability of all other sizes."""

    sizes: Floats
    """Consecutive sizes below the population, shape (sizes,)."""
    probabilities: Floats
    """The probability of each size without the unit, rounded up, shape (sizes,)."""
    outside: float
    """Probability of all other sizes, with or without the unit, whichever is larger."""


@dataclass(frozen=True)
class PublishedSizeGaussian(DominatingPair):
    """Gaussian sums of Poisson samples under add-remove, where the sample's size is published.

    The noise ratio of methods is relative to the clipping norm. Let n be the `population`, with the
    unit that differs. Given a size k, this unit is in the sample with probability ``k / n``, and
    then stands for another one, so that it moves the sum by up to twice the clipping norm. In units
    of that movement the noise has standard deviation ``s = noise_ratio / 2``.

    The size has a binomial distribution of n units, or of n - 1 units without the one that differs.
    The ratio of its two probabilities is ``(1-q) n / (n-k)``. With Q = N(0) and P = N(1), a size k
    therefore compares

        (1-q) n / (n-k) ((1 - k/n) Q + k/n P) = (1-q) Q + (1-q) k / (n-k) P

    with Q, and counts with its probability without the unit. A sample of all n units is impossible
    without the unit: its loss is infinite.

    Parameters
    ----------
    law
        As in `DominatingPair`; unused, as the noise is Gaussian.
    population
        Number of units with the one that differs, n, at least 1.
    """

    population: int = 1
    has_convex_profiles = False

    def profiles(
        self, rate: float, noise_ratio: float, losses: Floats, negligible: float
    ) -> Profiles:
        """Return the profile of a unit removed, and of a unit added.

        Each is the mean of the profiles of all likely sizes; other sizes count as infinite loss.
        """
        likely = self._likely_sizes(rate, negligible)
        removed = self._mean_profile(losses, rate, noise_ratio, likely, sign=1)
        added = self._mean_profile(losses, rate, noise_ratio, likely, sign=-1)
        return removed, added

    def _mean_profile(
        self, losses: Floats, rate: float, noise_ratio: float, likely: _Sizes, *, sign: int
    ) -> Profile:
        """Return the mean profile over the likely sizes; `sign` as in `_size_profile`."""
        weights_of_p = (1 - rate) * likely.sizes / (self.population - likely.sizes)
        values = np.full(losses.size, likely.outside)
        errors = np.zeros(losses.size)
        sizes = zip(weights_of_p.tolist(), likely.probabilities.tolist(), strict=True)
        for weight_of_p, probability in sizes:
            size_profile = _size_profile(losses, rate, weight_of_p, noise_ratio / 2, sign)
            values += probability * size_profile.values
            errors += probability * size_profile.errors
        return Profile(values, errors)

    def _likely_sizes(self, rate: float, negligible: float) -> _Sizes:
        """Return all sizes but tails of probability about `negligible`.

        The size n of the whole population is never among them: without the unit it is impossible.
        """
        without_unit = scipy.stats.binom(self.population - 1, rate)
        with_unit = scipy.stats.binom(self.population, rate)
        low = without_unit.ppf(negligible / 4)
        high = without_unit.isf(negligible / 4)
        first = max(0.0, low - 1)
        last = min(self.population - 1.0, high + 1)
        sizes = np.arange(first, last + 1)
        outside = float(without_unit.sf(sizes[-1]))
        outside_with_unit = float(with_unit.sf(sizes[-1]))
        if sizes[0] != 0:
            outside = float(without_unit.cdf(sizes[0] - 1)) + outside
            outside_with_unit = float(with_unit.cdf(sizes[0] - 1)) + outside_with_unit
        # more than scipy's binomial probabilities are off
        probabilities = without_unit.pmf(sizes) * (1 + 1e-12)
        return _Sizes(sizes, probabilities, max(outside, outside_with_unit))

    def largest(self, rate: Floats, noise_ratio: Floats, deviations: FloatOrFloats) -> Floats:
        """Return the larger loss of both directions, at the largest size within `deviations`.

        With a unit removed the loss is ``log((1-q) (1 + k / (n-k) ratio))`` at a size k and a ratio
        of the normals; with a unit added it is at most ``-log(1-q)``.
        """
        expected = self.population * rate
        # larger sizes have a probability of at most exp(-deviations^2 / 2) (Bernstein's inequality)
        largest_size = expected + deviations * (np.sqrt(expected) + deviations)
        largest_size = np.minimum(largest_size, self.population - 1.0)
        s = noise_ratio / 2
        log_ratio = (0.5 + deviations * s) / s**2
        with np.errstate(divide="ignore"):  # of the size 0
            log_odds = np.log(largest_size / (self.population - largest_size))
        removed = np.log1p(-rate) + np.logaddexp(0, log_odds + log_ratio)
        added = -np.log1p(-rate)
        largest: Floats = np.maximum(removed, added)
        return largest

    def spread(self, rate: Floats, noise_ratio: Floats) -> Floats:
        """Return about the loss's standard deviation: the rate times that of a full release."""
        return super().spread(rate, noise_ratio / 2) * np.minimum(1.0, rate) + 1e-12


def _size_profile(
    losses: Floats, rate: float, weight_of_p: float, noise_ratio: float, sign: int
) -> Profile:
    """Return ``H_e(a Q + b P || Q)`` for the sign 1, and ``H_e(Q || a Q + b P)`` for -1.

    P and Q are N(1) and N(0), a is ``1 - rate`` and b `weight_of_p`: see `PublishedSizeGaussian`.
    The best test is a half-line from the point x on where ``b P`` has `threshold` times the density
    of Q. Write ``P+`` and ``Q+`` for the normals' masses above x, ``P-`` and ``Q-`` for those
    below.

        sign  1:  H_e = b P+ - threshold Q+,             threshold = exp(e) - a
        sign -1:  H_e = exp(e) (threshold Q- - b P-),    threshold = exp(-e) - a

    Rounding: the threshold is ``expm1(e) + rate``, or ``expm1(-e) + rate``. Its error is at most a
    few `UNIT` times the sum of both terms' magnitudes. For the sign -1 the terms may nearly cancel,
    so that the error is large relative to the threshold. The error of H_e is the threshold's error
    times the largest mass of Q (``Q+`` or ``Q-``) over the thresholds within this error. Where all
    of these are negative, H_e is exactly 0: no test exceeds the loss.

    Parameters
    ----------
    losses
        Losses e of at least 0, shape (losses,).
    rate
        Sampling rate, in (0, 1).
    weight_of_p
        ``(1-q) k / (n-k)`` for a size k.
    noise_ratio
        Standard deviation of P and Q.
    sign
        1 if the unit is removed, -1 if it is added.
    """
    exponents = np.minimum(losses, _LARGEST_EXPONENT)
    excess = np.expm1(sign * exponents)
    threshold = excess + rate
    magnitudes = np.abs(excess) + rate
    x = _crossing(threshold, weight_of_p, noise_ratio)
    mass_p = weight_of_p * scipy.special.ndtr(-sign * (x - 1) / noise_ratio)
    mass_q = scipy.special.ndtr(-sign * x / noise_ratio)
    scale: Floats | float = 1.0
    if sign < 0:
        scale = np.exp(exponents)
    values = np.maximum(0, sign * scale * (mass_p - threshold * mass_q))

    deviations = 1 + np.abs(np.nan_to_num(x, posinf=0, neginf=0)) / noise_ratio
    tail_units = deviations**2 + _OTHER_UNITS
    farthest_threshold = threshold - sign * 4 * UNIT * magnitudes
    farthest = _crossing(farthest_threshold, weight_of_p, noise_ratio)
    largest_mass_q = scipy.special.ndtr(-sign * farthest / noise_ratio)
    errors = 8 * UNIT * tail_units * scale * (mass_p + magnitudes * largest_mass_q + UNIT)
    return Profile(values, np.where(farthest_threshold > 0, errors, 0.0))


def _crossing(threshold: Floats, weight_of_p: float, noise_ratio: float) -> Floats:
    """Return the x where `weight_of_p` times N(1) has `threshold` times the density of N(0).

    The ratio of the normal densities at x is ``exp((x - 1/2) / s^2)``. The result is infinite if
    the weight is 0, and minus infinity where the threshold is not positive.
    """
    log_weight = log(weight_of_p) if weight_of_p else -np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        x = 0.5 + noise_ratio**2 * (np.log(threshold) - log_weight)
        return np.where(threshold > 0, x, -np.inf)
