"""Dominating pairs of Poisson samples beyond add-remove with a secret sample.

In all of them the neighbours' sums differ, given the rest of the sample, by at most one shift in
the direction of the difference; hockey-stick divergences are jointly convex, so a bound for each
rest of the sample holds on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import scipy  # its submodules are imported on first use

from dpmesh.accounting._arguments import Floats
from dpmesh.accounting._loss import UNIT, Profile
from dpmesh.accounting._pairs import DominatingPair, Numbers, Ways, sampled_loss


@dataclass(frozen=True)
class PublishedSample(DominatingPair):
    """A Poisson sample under replace-one, as if the members of the sample were published.

    A unit in the sample moves the sum by the sensitivity, another one by nothing: the profile at
    losses of at least 0 is the rate times that of a release of all data. This needs no bound but
    the sensitivity to replacing a unit.
    """

    def profiles(self, rate: float, noise_ratio: float, losses: Floats, negligible: float) -> Ways:
        return (self.law.profile(losses, noise_ratio, log(rate), losses),)

    def spread(self, rate: Floats, noise_ratio: Floats) -> Floats:
        return np.sqrt(rate) * super().spread(rate, noise_ratio)


@dataclass(frozen=True)
class ReplacedGaussian(DominatingPair):
    """Gaussian sums of Poisson samples under replace-one, each unit's part of norm at most 1/2.

    Given the rest of the sample, the neighbours are ``(1-q) N(0) + q N(x)`` and ``(1-q) N(0) +
    q N(x')``, with x and x' of norm at most 1/2 beside noise of deviation s. For any test S let a =
    N(0)(S). By Neyman and Pearson N(x)(S) is at most ``Phi(Phi^-1(a) + 1/(2s))`` and N(x')(S) at
    least ``Phi(Phi^-1(a) - 1/(2s))``, both attained by one half-line where x = -x' = 1/2: so that
    pair dominates, at every loss. It is its own mirror image.
    """

    merges = False

    def profiles(self, rate: float, noise_ratio: float, losses: Floats, negligible: float) -> Ways:
        return (_replaced(losses, rate, noise_ratio),)

    def largest(self, rate: Floats, noise_ratio: Floats, deviations: Numbers) -> Floats:
        noise = 0.5 + deviations * noise_ratio
        upper = sampled_loss(rate, (noise - 0.25) / (2 * noise_ratio**2) + 0 * rate)
        lower = -(noise + 0.25) / (2 * noise_ratio**2)
        with np.errstate(divide="ignore"):  # of a rate of 1
            largest: Floats = upper - np.logaddexp(np.log1p(-rate), np.log(rate) + lower)
        return largest

    def spread(self, rate: Floats, noise_ratio: Floats) -> Floats:
        share: Floats = np.minimum(1.0, np.sqrt(2) * rate)
        return share * super().spread(rate, noise_ratio)


def _replaced(losses: Floats, rate: float, noise_ratio: float) -> Profile:
    """Return ``H_e((1-q) N(0) + q N(1/2) || (1-q) N(0) + q N(-1/2))`` at losses e of at least 0.

    The likelihood ratio is exp(e) where ``u = exp(t / (2 s^2))`` solves ``k u^2 - (1-q) (exp(e) -
    1) u - k exp(e) = 0``, with ``k = q exp(-1/(8 s^2))``.
    """
    log_k = log(rate) - 1 / (8 * noise_ratio**2)
    with np.errstate(divide="ignore"):
        log_half = np.log((1 - rate) * -np.expm1(-losses)) - log_k - log(2)  # times exp(e)
    # log u = log(c exp(e) + sqrt(c^2 exp(2 e) + exp(e))), by the inverse hyperbolic sine
    x = log_half + losses / 2
    inverse_sine = np.arcsinh(np.exp(np.minimum(x, 15)))
    log_u = losses / 2 + np.where(x > 15, x + log(2), inverse_sine)
    t = 2 * noise_ratio**2 * log_u
    log_tails = [scipy.special.log_ndtr((shift - t) / noise_ratio) for shift in (0.5, 0.0, -0.5)]
    gain = np.exp(log_tails[0])
    with np.errstate(over="ignore", invalid="ignore"):
        unsampled = np.exp(losses + log_tails[1]) * -np.expm1(-losses) * (1 - rate)
        loss = np.exp(losses + log_tails[2])
    values = np.maximum(0, rate * (gain - loss) - unsampled)
    tail_magnitude = sum(np.abs(log_tail) for log_tail in log_tails)
    magnitude = 8 + losses + tail_magnitude + np.abs(log_u) + abs(log_k)
    errors = 8 * UNIT * magnitude * (rate * (gain + loss) + unsampled)
    return Profile(values, errors)


@dataclass(frozen=True)
class PublishedSizeGaussian(DominatingPair):
    """Gaussian sums of Poisson samples under add-remove, where the sample's size is published.

    The noise is relative to the clipping norm. A unit among `population` is in a sample
    of size s with probability s / population, and then stands for another one: it moves the sum by
    up to twice the clipping norm. The sizes themselves have binomial distributions of population
    and population - 1 units, with ratio ``(1 - q) population / (population - s)``.
    """

    population: int = 1
    merges = False

    def profiles(self, rate: float, noise_ratio: float, losses: Floats, negligible: float) -> Ways:
        sizes, chances, outside = self._sizes(rate, negligible)
        # ratio of the chances of a size with the unit and without it
        factors = (1 - rate) * sizes / (self.population - sizes)
        directions = []
        for sign in (1, -1):
            values = np.full(losses.size, outside)
            errors = np.zeros(losses.size)
            for factor, chance in zip(factors.tolist(), chances.tolist(), strict=True):
                of_size = _with_size(losses, rate, factor, noise_ratio / 2, sign)
                values += chance * of_size.values
                errors += chance * of_size.errors
            directions.append(Profile(values, errors))
        return tuple(directions)

    def _sizes(self, rate: float, negligible: float) -> tuple[Floats, Floats, float]:
        """Return sizes below the population, their chances without the unit, and the rest."""
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
        chances = without_unit.pmf(sizes) * (1 + 1e-12)
        return sizes, chances, max(outside, outside_with_unit)

    def largest(self, rate: Floats, noise_ratio: Floats, deviations: Numbers) -> Floats:
        expected = self.population * rate
        most = expected + deviations * (np.sqrt(expected) + deviations)
        most = np.minimum(most, self.population - 1.0)
        s = noise_ratio / 2
        ratio = (0.5 + deviations * s) / s**2
        odds = np.log(most / (self.population - most))
        above = np.log1p(-rate) + np.logaddexp(0, odds + ratio)
        largest: Floats = np.maximum(above, -np.log1p(-rate))
        return largest

    def spread(self, rate: Floats, noise_ratio: Floats) -> Floats:
        return super().spread(rate, noise_ratio / 2) * np.minimum(1.0, rate) + 1e-12


def _with_size(losses: Floats, rate: float, b: float, s: float, sign: int) -> Profile:
    """Return the part of one size: ``H_e(a Q + b P || Q)``, or with the sides exchanged.

    P and Q are N(1, s^2) and N(0, s^2); their ratio at x is ``exp((x - 1/2) / s^2)``. a is
    ``1 - rate``. The sides are exchanged if `sign` is -1.
    """
    a = 1 - rate
    ratios = np.exp(np.minimum(losses, 700))
    if sign > 0:
        threshold = ratios - a  # b times the ratio there
        scale: Floats | float = 1.0
    else:
        threshold = 1 / ratios - a
        scale = ratios
    log_b = log(b) if b else -np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.where(threshold > 0, 0.5 + s**2 * (np.log(threshold) - log_b), -np.inf)
    gain = b * scipy.special.ndtr(-sign * (x - 1) / s)
    loss = threshold * scipy.special.ndtr(-sign * x / s)
    values = np.maximum(0, sign * scale * (gain - loss))
    reach = 1 + np.abs(np.nan_to_num(x, posinf=0, neginf=0)) / s
    rounding = 8 * UNIT * (reach**2 + 40) * scale * (gain + np.abs(loss) + UNIT)
    return Profile(values, rounding)
