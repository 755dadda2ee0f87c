"""Dominating pairs of Poisson samples beyond add-remove with a secret sample.

In all of them the neighbours' sums differ, given the rest of the sample, by at most one shift in
the direction of the difference; hockey-stick divergences are jointly convex, so what holds for each
rest of the sample holds on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import scipy  # its submodules are imported on first use

from dpmesh.accounting._arguments import Floats
from dpmesh.accounting._loss import UNIT, Profile
from dpmesh.accounting._pairs import Numbers, Pair, Ways, sampled_loss


@dataclass(frozen=True)
class PublishedSample(Pair):
    """A Poisson sample under replace-one, as if it was published who took part.

    A unit that took part moves the sum by the sensitivity, one that did not by nothing: the profile
    at losses of at least 0 is the rate times that of a release of all data. This needs no bound but
    the sensitivity to replacing a unit.
    """

    def profiles(self, rate: float, multiplier: float, losses: Floats, negligible: float) -> Ways:
        return (self.law.profile(losses, multiplier, log(rate), losses),)

    def spread(self, rate: Floats, multiplier: Floats) -> Floats:
        return np.sqrt(rate) * super().spread(rate, multiplier)


@dataclass(frozen=True)
class ReplacedGaussian(Pair):
    """Gaussian sums of Poisson samples under replace-one, each unit's part of norm at most 1/2.

    Given the rest of the sample, the neighbours are ``(1-q) N(0) + q N(x)`` and ``(1-q) N(0) +
    q N(x')``, with x and x' of norm at most 1/2 beside noise of deviation s. For any test S let a =
    N(0)(S). By Neyman and Pearson N(x)(S) is at most ``Phi(Phi^-1(a) + 1/(2s))`` and N(x')(S) at
    least ``Phi(Phi^-1(a) - 1/(2s))``, both attained by one half-line where x = -x' = 1/2: so that
    pair dominates, at every loss. It is its own mirror image.
    """

    merges = False

    def profiles(self, rate: float, multiplier: float, losses: Floats, negligible: float) -> Ways:
        return (_replaced(losses, rate, multiplier),)

    def largest(self, rate: Floats, multiplier: Floats, deviations: Numbers) -> Floats:
        end = 0.5 + deviations * multiplier  # of the noise
        above = sampled_loss(rate, (end - 0.25) / (2 * multiplier**2) + 0 * rate)
        below = -(end + 0.25) / (2 * multiplier**2)
        with np.errstate(divide="ignore"):  # of a rate of 1
            largest: Floats = above - np.logaddexp(np.log1p(-rate), np.log(rate) + below)
        return largest

    def spread(self, rate: Floats, multiplier: Floats) -> Floats:
        share: Floats = np.minimum(1.0, np.sqrt(2) * rate)
        return share * super().spread(rate, multiplier)


def _replaced(losses: Floats, rate: float, multiplier: float) -> Profile:
    """``H_e((1-q) N(0) + q N(1/2) || (1-q) N(0) + q N(-1/2))`` at losses e of at least 0.

    The likelihood ratio is exp(e) where ``u = exp(t / (2 s^2))`` solves ``k u^2 - (1-q) (exp(e) -
    1) u - k exp(e) = 0``, with ``k = q exp(-1/(8 s^2))``.
    """
    log_k = log(rate) - 1 / (8 * multiplier**2)
    with np.errstate(divide="ignore"):
        log_half = np.log((1 - rate) * -np.expm1(-losses)) - log_k - log(2)  # times exp(e)
    # log u = log(c exp(e) + sqrt(c^2 exp(2 e) + exp(e))), by the inverse hyperbolic sine
    x = log_half + losses / 2
    log_u = losses / 2 + np.where(x > 15, x + log(2), np.arcsinh(np.exp(np.minimum(x, 15))))
    t = 2 * multiplier**2 * log_u
    tails = [scipy.special.log_ndtr((shift - t) / multiplier) for shift in (0.5, 0.0, -0.5)]
    gain = np.exp(tails[0])
    with np.errstate(over="ignore", invalid="ignore"):
        stay = np.exp(losses + tails[1]) * -np.expm1(-losses) * (1 - rate)
        loss = np.exp(losses + tails[2])
    values = np.maximum(0, rate * (gain - loss) - stay)
    magnitude = 8 + losses + sum(np.abs(tail) for tail in tails) + np.abs(log_u) + abs(log_k)
    errors = 8 * UNIT * magnitude * (rate * (gain + loss) + stay)
    return Profile(values, errors)


@dataclass(frozen=True)
class PublishedSizeGaussian(Pair):
    """Gaussian sums of Poisson samples under add-remove, where the sample's size is published.

    The noise is relative to the clipping norm. A unit among `population` is in a sample
    of size s with probability s / population, and then stands for another one: it moves the sum by
    up to twice the clipping norm. The sizes themselves have binomial distributions of population
    and population - 1 units, with ratio ``(1 - q) population / (population - s)``.
    """

    population: int = 1
    merges = False

    def profiles(self, rate: float, multiplier: float, losses: Floats, negligible: float) -> Ways:
        size, chance, outside = self._sizes(rate, negligible)
        factor = (1 - rate) * size / (self.population - size)  # of the ratio of chances
        ways = []
        for sign in (1, -1):
            values, errors = np.full(losses.size, outside), np.zeros(losses.size)
            for b, p in zip(factor.tolist(), chance.tolist(), strict=True):
                of_size = _with_size(losses, rate, b, multiplier / 2, sign)
                values += p * of_size.values
                errors += p * of_size.errors
            ways.append(Profile(values, errors))
        return tuple(ways)

    def _sizes(self, rate: float, negligible: float) -> tuple[Floats, Floats, float]:
        """Return sizes below the population, their chances without the unit, and the rest."""
        binomial = scipy.stats.binom(self.population - 1, rate)
        low, high = binomial.ppf(negligible / 4), binomial.isf(negligible / 4)
        size = np.arange(max(0.0, low - 1), min(self.population - 1.0, high + 1) + 1)
        outside = 0.0 if size[0] == 0 else float(binomial.cdf(size[0] - 1))
        outside += float(binomial.sf(size[-1]))
        with_unit = scipy.stats.binom(self.population, rate)
        more = 0.0 if size[0] == 0 else float(with_unit.cdf(size[0] - 1))
        return (
            size,
            binomial.pmf(size) * (1 + 1e-12),
            max(outside, more + float(with_unit.sf(size[-1]))),
        )

    def largest(self, rate: Floats, multiplier: Floats, deviations: Numbers) -> Floats:
        expected = self.population * rate
        most = np.minimum(
            expected + deviations * (np.sqrt(expected) + deviations), self.population - 1.0
        )
        s = multiplier / 2
        ratio = (0.5 + deviations * s) / s**2
        above = np.log1p(-rate) + np.logaddexp(0, np.log(most / (self.population - most)) + ratio)
        largest: Floats = np.maximum(above, -np.log1p(-rate))
        return largest

    def spread(self, rate: Floats, multiplier: Floats) -> Floats:
        return super().spread(rate, multiplier / 2) * np.minimum(1.0, rate) + 1e-12


def _with_size(losses: Floats, rate: float, b: float, s: float, sign: int) -> Profile:
    """The part of one size: ``H_e(a Q + b P || Q)``, or with the sides exchanged; a = 1 - rate.

    P and Q are N(1, s^2) and N(0, s^2); their ratio at x is ``exp((x - 1/2) / s^2)``.
    """
    a, grown = 1 - rate, np.exp(np.minimum(losses, 700))
    threshold = grown - a if sign > 0 else 1 / grown - a  # b times the ratio there
    log_b = log(b) if b else -np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.where(threshold > 0, 0.5 + s**2 * (np.log(threshold) - log_b), -np.inf)
    plain = scipy.special.ndtr(-sign * x / s)
    moved = scipy.special.ndtr(-sign * (x - 1) / s)
    first = b * moved, threshold * plain
    scale = 1.0 if sign > 0 else grown
    values = np.maximum(0, sign * scale * (first[0] - first[1]))
    reach = 1 + np.abs(np.nan_to_num(x, posinf=0, neginf=0)) / s
    rounding = 8 * UNIT * (reach**2 + 40) * scale * (first[0] + np.abs(first[1]) + UNIT)
    return Profile(values, rounding)
