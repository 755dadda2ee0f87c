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
    """A few losses, with their chances under P and under Q, to guess what it costs."""
    coordinate: Callable[[Floats], Floats] | None
    """A function of the noise ratio in which every profile is convex; None if none is known.

    A profile at losses e of samples is that of the law at other losses, times a factor, so that it
    is convex, too; and hockey-stick divergences are convex in the rate.
    """
    has_atom: bool
    """Whether the largest loss has mass."""


def sampled_loss(rate: Floats | float, loss: Floats | float) -> Floats:
    """``log((1 - q) + q exp(loss))``: what a loss becomes by sampling."""
    with np.errstate(divide="ignore"):  # a share of 1 of a loss of minus infinity
        small: Floats = np.log1p(rate * np.expm1(np.minimum(loss, 1)))
    large = loss + np.log(rate + (1 - rate) * np.exp(-np.maximum(loss, 0)))
    return np.where(loss > 1, large, small)


def between(log_factor: Numbers, upper: Floats, lower: Floats, slack: Numbers) -> Profile:
    """``exp(log_factor + upper) (1 - exp(lower - upper))``, with its rounding.

    The difference of `lower` and `upper` is off by as many units as their own magnitudes and
    `slack` say.
    """
    top = np.exp(log_factor + upper)
    values = np.maximum(0, -top * np.expm1(np.minimum(0, lower - upper)))
    relative = 8 * UNIT * (1 + np.abs(log_factor) + np.abs(upper))
    absolute = 4 * UNIT * (np.abs(upper) + np.abs(lower) + slack)
    return Profile(values, np.where(top > 0, values * relative + top * absolute, 0.0))


def _gaussian_profile(
    loss: Floats, multiplier: float, log_factor: Numbers, slack: Floats
) -> Profile:
    """``H_e(N(1, s^2) || N(0, s^2))``: x is the point at which the normals have this ratio."""
    x = 0.5 + multiplier**2 * loss
    shifted = scipy.special.log_ndtr((1 - x) / multiplier)
    centred = loss + scipy.special.log_ndtr(-x / multiplier)
    return between(log_factor, shifted, centred, np.abs(loss) + slack)


def _gaussian_losses(multiplier: Floats) -> tuple[Floats, Floats, Floats]:
    x = np.linspace(-8, 8, 129)
    chances = np.exp(-(x**2) / 2) / np.sum(np.exp(-(x**2) / 2))
    at_p = x / multiplier + 0.5 / multiplier**2  # under P; under Q these are the negatives
    losses = np.concatenate([at_p, -at_p], axis=-1)
    both = np.concatenate([chances, 0 * chances]), np.concatenate([0 * chances, chances])
    return losses, *both


def _laplace_profile(steps: float) -> ProfileOf:
    """The same of Laplace noise on integers that neighbours move by at least `steps` in L1.

    With ``y = exp(loss - 1 / multiplier)`` and ``q = exp(-1 / (multiplier steps))`` it is ``1 - 2
    sqrt(q y) / (1 + q)`` for y <= q and ``(1 - y) / (1 + q)`` above: the best test of any such move
    (docs/privacy/accounting.md). Infinitely many steps are noise on the real numbers.

    One number that moves by all of it dominates several: the tests between two sites of one
    log-concave law are half-lines, so the trade-off of a sum of shifts is the composition of
    trade-offs by which group privacy bounds those of the coordinates (Dong, Roth and Su 2022,
    Theorem 2.14).
    """

    def profile(loss: Floats, multiplier: float, log_factor: Numbers, slack: Floats) -> Profile:
        largest = 1 / multiplier
        step, exponent = largest / steps, loss - largest
        halves = exponent <= -step
        constant = log1p(exp(-step))
        top = log_factor - np.where(halves, 0.0, constant)
        lower = np.where(halves, exponent / 2 + log(2) - constant - step / 2, exponent)
        values, errors = between(top, 0 * lower, lower, slack + largest + step)
        return Profile(values, _up_to(largest, loss, errors))

    return profile


def _up_to(largest: float, loss: Floats, errors: Floats) -> Floats:
    """Return the errors up to the largest loss: clearly beyond it, a profile of 0 is exact."""
    return np.where(loss > largest + 8 * UNIT * (np.abs(loss) + largest), 0.0, errors)


def _laplace_losses(multiplier: Floats) -> tuple[Floats, Floats, Floats]:
    share = np.linspace(-1, 1, 65)[1:-1]
    largest = 1 / multiplier
    inner = np.exp(largest * (share - 1) / 2) * largest / 4 * (share[1] - share[0])
    ends = np.ones_like(largest) / 2, np.exp(-np.minimum(largest, 700)) / 2
    losses = np.concatenate([largest * share, largest, -largest], axis=-1)
    at_p = np.concatenate([inner, *ends], axis=-1)
    return losses, at_p, at_p * np.exp(np.minimum(-losses, 700))


GAUSSIAN = Law(
    _gaussian_profile,
    lambda multiplier, deviations: (0.5 + deviations * multiplier) / multiplier**2,
    _gaussian_losses,
    np.square,  # the second derivative in it, phi(t) (e^2 z + 2/z + 3/(4 z^3)) / (4 z^2), is > 0
    has_atom=False,
)
LAPLACE = Law(
    _laplace_profile(inf),
    lambda multiplier, _: 1 / multiplier,
    _laplace_losses,
    lambda multiplier: np.expm1(-0.5 / multiplier),  # linear, cut off at 0
    has_atom=True,
)


@cache
def integer_laplace(steps: int = 1) -> Law:
    """The law of discrete Laplace noise on integers that neighbours move by at least `steps` in L1.

    With one step it dominates every pure guarantee.
    """
    return LAPLACE._replace(
        profile=_laplace_profile(steps),
        coordinate=(lambda multiplier: -np.tanh(0.5 / multiplier)) if steps == 1 else None,
    )


@dataclass(frozen=True)
class Pair:
    """Turns rounds into loss distributions: here, those of all data, alike in both directions."""

    law: Law = GAUSSIAN
    merges: ClassVar[bool] = True
    """Whether every profile is convex in the rate, and in the law's `coordinate`."""

    @property
    def coordinate(self) -> Callable[[Floats], Floats] | None:
        """The `coordinate` of the pair's law; None if nothing is known of the pair's profile."""
        return self.law.coordinate if self.merges else None

    def profiles(self, rate: float, multiplier: float, losses: Floats, negligible: float) -> Ways:
        """Return the profile of a round at losses of at least 0, in each direction.

        Up to a mass of `negligible` may count as infinite loss.
        """
        return (self.law.profile(losses, multiplier, 0.0, losses),)

    def largest(self, rate: Floats, multiplier: Floats, deviations: Numbers) -> Floats:
        """Return the largest loss of each round, within so many deviations of its noise."""
        return self.law.largest(multiplier, deviations)

    def spread(self, rate: Floats, multiplier: Floats) -> Floats:
        """Return about the standard deviation of each round's loss."""
        return spread_of(self.law, np.ones_like(rate), multiplier)


@dataclass(frozen=True)
class Poisson(Pair):
    """A Poisson sample under add-remove: a unit removed, and a unit added."""

    def profiles(self, rate: float, multiplier: float, losses: Floats, negligible: float) -> Ways:
        settings = (self.law, rate, multiplier, losses)
        return _removed(*settings), _added(*settings)

    def largest(self, rate: Floats, multiplier: Floats, deviations: Numbers) -> Floats:
        return sampled_loss(rate, self.law.largest(multiplier, deviations))

    def spread(self, rate: Floats, multiplier: Floats) -> Floats:
        return spread_of(self.law, rate, multiplier)


@dataclass(frozen=True)
class FixedSize(Poisson):
    """The dominating pair of sampling without replacement, under replace-one.

    Its profile at positive losses is that of a removed unit, and it is its own mirror image (Zhu,
    Dong and Wang 2022).
    """

    def profiles(self, rate: float, multiplier: float, losses: Floats, negligible: float) -> Ways:
        return (_removed(self.law, rate, multiplier, losses),)


def spread_of(law: Law, rate: Floats, multiplier: Floats) -> Floats:
    losses, at_p, at_q = law.losses(multiplier[:, None])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        sampled = sampled_loss(rate[:, None], losses)
        chances = rate[:, None] * at_p + (1 - rate[:, None]) * at_q
        squares = np.where(chances > 0, np.square(sampled) * chances, 0)
    spread: Floats = np.sqrt(np.sum(squares, axis=1))
    return spread


def _removed(law: Law, rate: float, multiplier: float, losses: Floats) -> Profile:
    """``H_e((1-q) Q + q P || Q)`` at losses e of at least 0, P and Q those of the law."""
    # where exp(e) = (1-q) + q exp(ratio)
    with np.errstate(over="ignore"):
        grown = np.expm1(np.minimum(losses, 30)) / rate
    far = losses + np.log(-np.expm1(-losses) + rate * np.exp(-losses)) - log(rate)
    ratio = losses if rate == 1 else np.where(grown < 1e12, np.log1p(grown), far)
    return law.profile(ratio, multiplier, log(rate), np.abs(ratio))


def _added(law: Law, rate: float, multiplier: float, losses: Floats) -> Profile:
    """``H_e(Q || (1-q) Q + q P)`` at losses e of at least 0, for P and Q mirror images."""
    if rate == 1:
        return law.profile(losses, multiplier, 0.0, losses)
    # exp(-e) = (1-q) + q exp(-ratio); where it is less than that the profile is 0
    with np.errstate(over="ignore"):
        fallen = np.expm1(-losses) / rate
    inside = fallen > -1
    values, errors = np.zeros(losses.size), np.where(inside, 0, 4 * UNIT * rate)
    fallen, below = fallen[inside], losses[inside]
    ratio = -np.log1p(fallen)
    slack = ratio + np.abs(fallen) / (1 + fallen)
    values[inside], errors[inside] = law.profile(
        ratio, multiplier, below + log(rate) - ratio, slack
    )
    return Profile(values, _up_to(-log1p(-rate), losses, errors))
