"""Dominating pairs of releases: noise of some law, on all data or on samples.

A pair dominates a release if its profile ``H_e(P || Q) = sup over S of P(S) - exp(e) Q(S)`` is at
least that of any two neighbours. Pairs of rounds compose, also adaptively, as products (Zhu, Dong
and Wang 2022, Theorem 10).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import exp, inf, log, log1p
from typing import ClassVar, NamedTuple

import numpy as np
import scipy  # its submodules are imported on first use

from dpmesh.accounting._arguments import Floats
from dpmesh.accounting._loss import UNIT, Profile

Ways = tuple[Profile, ...]
"""A profile in each direction between neighbours; one where both are the same."""

Numbers = Floats | float

ProfileOf = Callable[[Floats, float, Numbers, Floats], Profile]
"""A profile at losses of at least 0 that are off by at most so many units (the last argument).

The second argument is the noise ratio; the third the logarithm of a factor.
"""


class Law(NamedTuple):
    """The losses of a release of all data, at a noise ratio."""

    profile: ProfileOf
    """The profile of these losses, at losses of at least 0: see `ProfileOf`."""
    largest: Callable[[Floats, Numbers], Floats]
    """The largest loss, within so many deviations if it is unbounded."""
    losses: Callable[[Floats], tuple[Floats, Floats, Floats]]
    """A few losses, with their probabilities under P and under Q, for a first guess of epsilon."""
    coordinate: Callable[[Floats], Floats] | None
    """A function of the noise ratio in which every profile is convex; None if none is known.

    A profile at losses e of samples is that of the law at other losses, times a factor, so that it
    is convex, too; and hockey-stick divergences are convex in the rate.
    """
    has_atom: bool
    """True if the largest loss has mass."""


def sampled_loss(rate: Floats | float, loss: Floats | float) -> Floats:
    """Return a loss after sampling: ``log((1 - q) + q exp(loss))``."""
    with np.errstate(divide="ignore"):  # a share of 1 of a loss of minus infinity
        small: Floats = np.log1p(rate * np.expm1(np.minimum(loss, 1)))
    large = loss + np.log(rate + (1 - rate) * np.exp(-np.maximum(loss, 0)))
    return np.where(loss > 1, large, small)


def between(log_factor: Numbers, upper: Floats, lower: Floats, slack: Numbers) -> Profile:
    """Return ``exp(log_factor) (exp(upper) - exp(lower))``, with a bound of its rounding.

    It is computed as ``exp(log_factor + upper) (1 - exp(lower - upper))``, without cancellation.
    The difference of `lower` and `upper` is off by as many units as their own magnitudes and
    `slack` say.
    """
    top = np.exp(log_factor + upper)
    values = np.maximum(0, -top * np.expm1(np.minimum(0, lower - upper)))
    relative = 8 * UNIT * (1 + np.abs(log_factor) + np.abs(upper))
    absolute = 4 * UNIT * (np.abs(upper) + np.abs(lower) + slack)
    errors = np.where(top > 0, values * relative + top * absolute, 0.0)
    return Profile(values, errors)


def _gaussian_profile(
    loss: Floats, noise_ratio: float, log_factor: Numbers, slack: Floats
) -> Profile:
    """Return ``H_e(N(1, s^2) || N(0, s^2))`` at losses e, times ``exp(log_factor)``.

    The ratio of the densities is exp(e) at the point ``x = 1/2 + s^2 e``, so that ``H_e = Phi((1 -
    x) / s) - exp(e) Phi(-x / s)``.
    """
    x = 0.5 + noise_ratio**2 * loss
    log_tail_p = scipy.special.log_ndtr((1 - x) / noise_ratio)
    log_tail_q = loss + scipy.special.log_ndtr(-x / noise_ratio)  # times exp(e)
    return between(log_factor, log_tail_p, log_tail_q, np.abs(loss) + slack)


def _gaussian_losses(noise_ratio: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the losses of points up to 8 deviations from the middle, as `Law.losses`.

    Under P the loss is normal of mean ``1 / (2 s^2)`` and deviation ``1 / s``, under Q its negative
    is.
    """
    x = np.linspace(-8, 8, 129)
    density = np.exp(-(x**2) / 2)
    probabilities = density / np.sum(density)
    losses_under_p = x / noise_ratio + 0.5 / noise_ratio**2
    losses = np.concatenate([losses_under_p, -losses_under_p], axis=-1)
    zeros = 0 * probabilities
    under_p = np.concatenate([probabilities, zeros])
    under_q = np.concatenate([zeros, probabilities])
    return losses, under_p, under_q


def _laplace_profile(steps: float) -> ProfileOf:
    """Return the profile of Laplace noise on integers that neighbours move by `steps` or more.

    The movement is in L1. With ``y = exp(loss - 1 / noise_ratio)`` and ``q = exp(-1 / (noise_ratio
    steps))`` it is ``1 - 2 sqrt(q y) / (1 + q)`` for y <= q and ``(1 - y) / (1 + q)`` above: the
    best test of any such move (docs/privacy/accounting.md). Infinitely many steps are noise on the
    real numbers.

    One number that moves by all of it dominates several: the tests between two sites of one
    log-concave law are half-lines, so the trade-off of a sum of shifts is the composition of
    trade-offs by which group privacy bounds those of the coordinates (Dong, Roth and Su 2022,
    Theorem 2.14).
    """

    def profile(loss: Floats, noise_ratio: float, log_factor: Numbers, slack: Floats) -> Profile:
        largest = 1 / noise_ratio
        step = largest / steps
        exponent = loss - largest
        is_below_step = exponent <= -step
        constant = log1p(exp(-step))
        top = log_factor - np.where(is_below_step, 0.0, constant)
        half_exponent = exponent / 2 + log(2) - constant - step / 2
        lower = np.where(is_below_step, half_exponent, exponent)
        values, errors = between(top, 0 * lower, lower, slack + largest + step)
        return Profile(values, _up_to(largest, loss, errors))

    return profile


def _up_to(largest: float, loss: Floats, errors: Floats) -> Floats:
    """Return the errors up to the largest loss: clearly beyond it, a profile of 0 is exact."""
    tolerance = 8 * UNIT * (np.abs(loss) + largest)
    return np.where(loss > largest + tolerance, 0.0, errors)


def _laplace_losses(noise_ratio: Floats) -> tuple[Floats, Floats, Floats]:
    """Return losses of Laplace noise, as `Law.losses`.

    With the largest loss ``L = 1 / noise_ratio``, the loss under P is L with probability 1/2, -L
    with ``exp(-L) / 2``, and between them it has the density ``exp((loss - L) / 2) / 4``. The
    probability under Q is that under P times ``exp(-loss)``.
    """
    share = np.linspace(-1, 1, 65)[1:-1]  # of L
    largest = 1 / noise_ratio
    inner = np.exp(largest * (share - 1) / 2) * largest / 4 * (share[1] - share[0])
    at_largest = np.ones_like(largest) / 2
    at_least = np.exp(-np.minimum(largest, 700)) / 2
    losses = np.concatenate([largest * share, largest, -largest], axis=-1)
    under_p = np.concatenate([inner, at_largest, at_least], axis=-1)
    under_q = under_p * np.exp(np.minimum(-losses, 700))
    return losses, under_p, under_q


GAUSSIAN = Law(
    profile=_gaussian_profile,
    largest=lambda noise_ratio, deviations: (0.5 + deviations * noise_ratio) / noise_ratio**2,
    losses=_gaussian_losses,
    # the profile's second derivative in s^2, phi(t) (e^2 z + 2/z + 3/(4 z^3)) / (4 z^2), is > 0
    coordinate=np.square,
    has_atom=False,
)
LAPLACE = Law(
    profile=_laplace_profile(inf),
    largest=lambda noise_ratio, _: 1 / noise_ratio,
    losses=_laplace_losses,
    # in exp(-1 / (2 noise_ratio)) the profile is linear, cut off at 0
    coordinate=lambda noise_ratio: np.expm1(-0.5 / noise_ratio),
    has_atom=True,
)


@cache
def integer_laplace(steps: int = 1) -> Law:
    """Return the law of discrete Laplace noise on integers that move by `steps` or more in L1.

    With one step it dominates every pure guarantee.
    """
    coordinate = None
    if steps == 1:
        coordinate = _integer_coordinate
    return LAPLACE._replace(profile=_laplace_profile(steps), coordinate=coordinate)


def _integer_coordinate(noise_ratio: Floats) -> Floats:
    """Return the coordinate of discrete Laplace noise with one step: see `Law.coordinate`."""
    coordinate: Floats = -np.tanh(0.5 / noise_ratio)
    return coordinate


_LARGE_GROWTH = 1e12
"""From here on the logarithm of a sampled loss is computed with its exponential taken out."""


@dataclass(frozen=True)
class DominatingPair:
    """A dominating pair, which turns rounds into loss distributions: here, those of all data.

    Both directions between neighbours are alike.
    """

    law: Law = GAUSSIAN
    merges: ClassVar[bool] = True
    """True if every profile is convex in the rate, and in the law's `coordinate`."""

    @property
    def coordinate(self) -> Callable[[Floats], Floats] | None:
        """The `coordinate` of the pair's law; None if the pair's profile need not be convex."""
        if self.merges:
            return self.law.coordinate
        return None

    def profiles(self, rate: float, noise_ratio: float, losses: Floats, negligible: float) -> Ways:
        """Return the profile of a round at losses of at least 0, in each direction.

        Up to a mass of `negligible` may count as infinite loss.
        """
        return (self.law.profile(losses, noise_ratio, 0.0, losses),)

    def largest(self, rate: Floats, noise_ratio: Floats, deviations: Numbers) -> Floats:
        """Return the largest loss of each round, within so many deviations of its noise."""
        return self.law.largest(noise_ratio, deviations)

    def spread(self, rate: Floats, noise_ratio: Floats) -> Floats:
        """Return about the standard deviation of each round's loss."""
        return spread_of(self.law, np.ones_like(rate), noise_ratio)


@dataclass(frozen=True)
class Poisson(DominatingPair):
    """A Poisson sample under add-remove: a unit removed, and a unit added."""

    def profiles(self, rate: float, noise_ratio: float, losses: Floats, negligible: float) -> Ways:
        removed = _removed(self.law, rate, noise_ratio, losses)
        added = _added(self.law, rate, noise_ratio, losses)
        return removed, added

    def largest(self, rate: Floats, noise_ratio: Floats, deviations: Numbers) -> Floats:
        return sampled_loss(rate, self.law.largest(noise_ratio, deviations))

    def spread(self, rate: Floats, noise_ratio: Floats) -> Floats:
        return spread_of(self.law, rate, noise_ratio)


@dataclass(frozen=True)
class FixedSize(Poisson):
    """The dominating pair of sampling without replacement, under replace-one.

    Its profile at positive losses is that of a removed unit, and it is its own mirror image (Zhu,
    Dong and Wang 2022).
    """

    def profiles(self, rate: float, noise_ratio: float, losses: Floats, negligible: float) -> Ways:
        return (_removed(self.law, rate, noise_ratio, losses),)


def spread_of(law: Law, rate: Floats, noise_ratio: Floats) -> Floats:
    """Return about the standard deviation of each round's loss after sampling."""
    losses, under_p, under_q = law.losses(noise_ratio[:, None])  # shape (rounds, losses)
    rates = rate[:, None]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        sampled = sampled_loss(rates, losses)
        probabilities = rates * under_p + (1 - rates) * under_q
        squares = np.where(probabilities > 0, np.square(sampled) * probabilities, 0)
    spread: Floats = np.sqrt(np.sum(squares, axis=1))
    return spread


def _removed(law: Law, rate: float, noise_ratio: float, losses: Floats) -> Profile:
    """Return ``H_e((1-q) Q + q P || Q)`` at losses e of at least 0, P and Q those of the law.

    It is q times the law's profile at the loss u with ``exp(e) = (1-q) + q exp(u)``, that is ``u =
    log(1 + (exp(e) - 1) / q)``.
    """
    with np.errstate(over="ignore"):
        growth = np.expm1(np.minimum(losses, 30)) / rate  # exp(u) - 1
    # the same with exp(e) taken out of the logarithm
    large_unsampled = losses + np.log(-np.expm1(-losses) + rate * np.exp(-losses)) - log(rate)
    if rate == 1:
        unsampled = losses
    else:
        unsampled = np.where(growth < _LARGE_GROWTH, np.log1p(growth), large_unsampled)
    return law.profile(unsampled, noise_ratio, log(rate), np.abs(unsampled))


def _added(law: Law, rate: float, noise_ratio: float, losses: Floats) -> Profile:
    """Return ``H_e(Q || (1-q) Q + q P)`` at losses e of at least 0, for P and Q mirror images.

    It is ``q exp(e - u)`` times the law's profile at the loss u with ``exp(-e) = (1-q) + q
    exp(-u)``. Where exp(-e) is at most 1-q there is no such u, and the profile is 0.
    """
    if rate == 1:
        return law.profile(losses, noise_ratio, 0.0, losses)
    with np.errstate(over="ignore"):
        falls = np.expm1(-losses) / rate  # exp(-u) - 1
    is_inside = falls > -1
    values = np.zeros(losses.size)
    errors = np.where(is_inside, 0, 4 * UNIT * rate)
    inner_falls = falls[is_inside]
    unsampled = -np.log1p(inner_falls)
    slack = unsampled + np.abs(inner_falls) / (1 + inner_falls)
    log_factor = losses[is_inside] + log(rate) - unsampled
    profile = law.profile(unsampled, noise_ratio, log_factor, slack)
    values[is_inside] = profile.values
    errors[is_inside] = profile.errors
    return Profile(values, _up_to(-log1p(-rate), losses, errors))
