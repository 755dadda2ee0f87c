"""Dominating pairs of releases: Gaussian and Laplace noise, on all data or on samples.

- The *hockey-stick divergence* of distributions P and Q at a loss e is
  ``H_e(P || Q) = sup over S of P(S) - exp(e) Q(S)``. As a function of e it is the *profile* of the
  pair. A release is (e, delta)-DP if both directions have a profile of at most delta at e.
- A pair (P, Q) *dominates* a release if its profile is at least the profile of the release's
  outputs on any two neighbouring datasets. Dominating pairs of rounds compose as products, also
  adaptively (Zhu, Dong and Wang 2022, Theorem 10).
- A `Law` describes noise without sampling. A `DominatingPair` adds the sampling.
- The *noise ratio* s is the scale of the noise over the sensitivity, q the sampling rate.

`_loss` discretises profiles, and `_compose` composes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import exp, inf, log, log1p, sqrt
from typing import ClassVar, NamedTuple

import numpy as np
import scipy  # its submodules are imported on first use

from dpmesh.accounting._arguments import Floats
from dpmesh.accounting._loss import UNIT, Profile

Profiles = tuple[Profile, ...]
"""A profile in each direction between neighbours, or one profile if both directions have it."""

FloatOrFloats = Floats | float

ProfileOf = Callable[[Floats, float, FloatOrFloats, Floats], Profile]
"""A function ``(losses, noise_ratio, log_factor, slack)`` that returns a profile times a factor.

The losses are at least 0. `log_factor` is the logarithm of the factor. `slack` bounds the rounding
of the losses, in multiples of `UNIT`, and has their shape.
"""


class Law(NamedTuple):
    """Privacy losses of noise on a query of all data, as functions of the noise ratio.

    Plans account for two families of laws, and refuse others: `GAUSSIAN`, and laws that are pure
    (`is_pure`). Releases of one family add up without a loss distribution.
    """

    profile: ProfileOf
    """The hockey-stick profile at losses of at least 0: see `ProfileOf`."""
    largest: Callable[[Floats, FloatOrFloats], Floats]
    """A function ``(noise_ratio, deviations)`` that returns the largest loss.

    If the loss is unbounded, it is the loss at so many standard deviations of the noise.
    """
    losses: Callable[[Floats], tuple[Floats, Floats, Floats]]
    """A function of the noise ratio, shape (rounds, 1), that approximates the loss distribution.

    It returns some losses, shape (rounds, losses), with their probabilities under P and under Q.
    """
    coordinate: Callable[[Floats], Floats] | None
    """A function of the noise ratio in which profiles are convex; None if none is known.

    A profile of samples is the law's profile at other losses, times a factor. So it is convex in
    this coordinate, too. Hockey-stick divergences are also convex in the sampling rate.
    """
    is_pure: bool
    """True if a release is pure ``1 / noise_ratio``-DP; `largest` is then ``1 / noise_ratio``.

    Random allocation under replace-one also needs that a shift by half of the sensitivity loses at
    most half of this, as where the slope of the log density is bounded.
    """
    merged_from: float = 0.0
    """Least noise ratio of rounds that `_merge` may replace.

    For smaller ones profiles are not convex in `coordinate`, or its differences cancel.
    """
    of_steps: Callable[[int], Law] | None = None
    """A function of the number of grid steps by which a row moves at least; it returns a law.

    It returns the law of noise on so fine a grid. None if this law is all that is known.
    """


def sampled_loss(rate: Floats | float, loss: Floats | float) -> Floats:
    """Return a loss after sampling: ``log((1 - q) + q exp(loss))``."""
    with np.errstate(divide="ignore"):  # log(0) at a rate of 1 and a loss of minus infinity
        small: Floats = np.log1p(rate * np.expm1(np.minimum(loss, 1)))
    large = loss + np.log(rate + (1 - rate) * np.exp(-np.maximum(loss, 0)))
    return np.where(loss > 1, large, small)


def between(
    log_factor: FloatOrFloats, upper: Floats, lower: Floats, slack: FloatOrFloats
) -> Profile:
    """Return ``exp(log_factor) (exp(upper) - exp(lower))``, with a bound of its rounding.

    It is computed as ``exp(log_factor + upper) (1 - exp(lower - upper))``, without cancellation.
    The bound assumes that the difference of `lower` and `upper` is off by at most about
    ``4 UNIT (abs(upper) + abs(lower) + slack)``.
    """
    top = np.exp(log_factor + upper)
    values = np.maximum(0, -top * np.expm1(np.minimum(0, lower - upper)))
    relative = 8 * UNIT * (1 + np.abs(log_factor) + np.abs(upper))
    absolute = 4 * UNIT * (np.abs(upper) + np.abs(lower) + slack)
    errors = np.where(top > 0, values * relative + top * absolute, 0.0)
    return Profile(values, errors)


def _gaussian_profile(
    loss: Floats, noise_ratio: float, log_factor: FloatOrFloats, slack: Floats
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

    Under P the loss is normal with mean ``1 / (2 s^2)`` and standard deviation ``1 / s``. Under Q
    the negative of the loss has this distribution.
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
    """Return the profile of discrete Laplace noise on integers.

    The L1 sensitivity is `steps` integers or more; infinitely many steps stand for noise on the
    real numbers. With ``y = exp(loss - 1 / noise_ratio)`` and ``q = exp(-1 / (noise_ratio steps))``
    the profile is ``1 - 2 sqrt(q y) / (1 + q)`` for y <= q, and ``(1 - y) / (1 + q)`` above. It is
    the power of the best test of any such change (docs/privacy/accounting_proofs.md).

    A vector that changes in several numbers is dominated by one number that changes by the whole L1
    distance. The best tests between two shifts of one log-concave law are half-lines. So the
    trade-off function of a sum of shifts is the composition of the shifts' trade-off functions,
    and by group privacy this composition bounds the trade-off function of a vector with these
    shifts as coordinates (Dong, Roth and Su 2022, Theorem 2.14).
    """

    def profile(
        loss: Floats, noise_ratio: float, log_factor: FloatOrFloats, slack: Floats
    ) -> Profile:
        largest = 1 / noise_ratio
        step = largest / steps
        exponent = loss - largest
        is_below_step = exponent <= -step
        constant = log1p(exp(-step))
        top = log_factor - np.where(is_below_step, 0.0, constant)
        half_exponent = exponent / 2 + log(2) - constant - step / 2
        lower = np.where(is_below_step, half_exponent, exponent)
        values, errors = between(top, 0 * lower, lower, slack + largest + step)
        return Profile(values, _errors_up_to(largest, loss, errors))

    return profile


def _errors_up_to(largest: float, loss: Floats, errors: Floats) -> Floats:
    """Return the errors, but 0 at losses clearly beyond the largest: a profile of 0 is exact."""
    tolerance = 8 * UNIT * (np.abs(loss) + largest)
    return np.where(loss > largest + tolerance, 0.0, errors)


def _laplace_losses(noise_ratio: Floats) -> tuple[Floats, Floats, Floats]:
    """Return losses of Laplace noise, as `Law.losses`.

    With the largest loss ``L = 1 / noise_ratio``, the loss under P is L with probability 1/2, -L
    with ``exp(-L) / 2``, and between them it has the density ``exp((loss - L) / 2) / 4``. The
    probability under Q is ``exp(-loss)`` times the probability under P.
    """
    relative_losses = np.linspace(-1, 1, 65)[1:-1]  # inner losses over L
    step = relative_losses[1] - relative_losses[0]
    largest = 1 / noise_ratio
    inner = np.exp(largest * (relative_losses - 1) / 2) * largest / 4 * step
    at_largest = np.ones_like(largest) / 2
    at_smallest = np.exp(-np.minimum(largest, 700)) / 2
    losses = np.concatenate([largest * relative_losses, largest, -largest], axis=-1)
    under_p = np.concatenate([inner, at_largest, at_smallest], axis=-1)
    under_q = under_p * np.exp(np.minimum(-losses, 700))
    return losses, under_p, under_q


GAUSSIAN = Law(
    profile=_gaussian_profile,
    largest=lambda noise_ratio, deviations: (0.5 + deviations * noise_ratio) / noise_ratio**2,
    losses=_gaussian_losses,
    # With s the noise ratio, e the loss and phi the standard normal density at t = 1/(2 s) - e s,
    # the second derivative of the profile in s^2 is phi(t) (4 s^4 e^2 + 12 s^2 - 1) / (16 s^7). The
    # profile is convex at all losses for s >= 1 / sqrt(12), about 0.289; below, it is concave at
    # small losses.
    coordinate=np.square,
    is_pure=False,
    merged_from=1 / sqrt(12),
)
LAPLACE = Law(
    profile=_laplace_profile(inf),
    largest=lambda noise_ratio, _: 1 / noise_ratio,
    losses=_laplace_losses,
    # the profile is linear in exp(-1 / (2 noise_ratio)), cut off at 0, and so convex
    coordinate=lambda noise_ratio: np.expm1(-0.5 / noise_ratio),
    is_pure=True,
    merged_from=0.1,  # the coordinate is within exp(-5) of -1 below
)


@cache
def integer_laplace(steps: int = 1) -> Law:
    """Return the law of discrete Laplace noise on integers of L1 sensitivity `steps` or more.

    The law with one step dominates every release of pure ``1 / noise_ratio``-DP. More steps are
    for discrete Laplace noise alone: see `DISCRETE_LAPLACE`.
    """
    coordinate = None
    if steps == 1:
        coordinate = _integer_coordinate
    return LAPLACE._replace(
        profile=_laplace_profile(steps),
        coordinate=coordinate,
        merged_from=0.2,  # the coordinate is within 2 exp(-5) of -1 below
    )


def _integer_coordinate(noise_ratio: Floats) -> Floats:
    """Return the coordinate of discrete Laplace noise with one step: see `Law.coordinate`."""
    coordinate: Floats = -np.tanh(0.5 / noise_ratio)
    return coordinate


DISCRETE_LAPLACE = integer_laplace()._replace(of_steps=integer_laplace)
"""Law of discrete Laplace noise, whose profile is smaller on a finer grid."""


_LARGE_GROWTH = 1e12
"""From this ``exp(u) - 1`` on, exp(e) is factored out of the logarithm in `_removed`."""


@dataclass(frozen=True)
class DominatingPair:
    """A dominating pair of rounds without sampling; subclasses add a sampling.

    Every method accepts a sampling rate, which this class ignores. Both directions between
    neighbours have the same profile.

    Parameters
    ----------
    law
        Privacy losses of the noise on all data.
    """

    law: Law = GAUSSIAN
    has_convex_profiles: ClassVar[bool] = True
    """True if profiles are convex in the sampling rate, and in noise ratios as `Law.coordinate`.

    Only then does `_merge` replace many kinds of rounds by mixtures of few.
    """

    @property
    def coordinate(self) -> Callable[[Floats], Floats] | None:
        """`Law.coordinate` of the law; None if the pair's profiles need not be convex in it."""
        if self.has_convex_profiles:
            return self.law.coordinate
        return None

    def profiles(
        self, rate: float, noise_ratio: float, losses: Floats, negligible: float
    ) -> Profiles:
        """Return the profile of one round at losses of at least 0, in each direction.

        Parameters
        ----------
        rate
            Sampling rate, in (0, 1].
        noise_ratio
            Scale of the noise over the sensitivity.
        losses
            Losses at which to evaluate, ascending, shape (losses,).
        negligible
            Probability up to which unlikely outcomes may count as infinite loss.
        """
        return (self.law.profile(losses, noise_ratio, 0.0, losses),)

    def largest(self, rate: Floats, noise_ratio: Floats, deviations: FloatOrFloats) -> Floats:
        """Return the largest loss of each round, shape (rounds,).

        An unbounded loss is evaluated at so many standard deviations of the noise.
        """
        return self.law.largest(noise_ratio, deviations)

    def spread(self, rate: Floats, noise_ratio: Floats) -> Floats:
        """Return about the standard deviation of each round's loss, shape (rounds,)."""
        return spread_of(self.law, np.ones_like(rate), noise_ratio)


@dataclass(frozen=True)
class Poisson(DominatingPair):
    """The dominating pairs of Poisson sampling, under add-remove.

    The directions are a removed and an added unit. The sample and its size stay secret.
    """

    def profiles(
        self, rate: float, noise_ratio: float, losses: Floats, negligible: float
    ) -> Profiles:
        removed = _removed(self.law, rate, noise_ratio, losses)
        added = _added(self.law, rate, noise_ratio, losses)
        return removed, added

    def largest(self, rate: Floats, noise_ratio: Floats, deviations: FloatOrFloats) -> Floats:
        return sampled_loss(rate, self.law.largest(noise_ratio, deviations))

    def spread(self, rate: Floats, noise_ratio: Floats) -> Floats:
        return spread_of(self.law, rate, noise_ratio)


@dataclass(frozen=True)
class FixedSize(Poisson):
    """The dominating pair of sampling without replacement, under replace-one.

    In both directions, the profile at losses of at least 0 is the profile of Poisson sampling for a
    removed unit (Zhu, Dong and Wang 2022).
    """

    def profiles(
        self, rate: float, noise_ratio: float, losses: Floats, negligible: float
    ) -> Profiles:
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
    """Return ``H_e((1-q) Q + q P || Q)`` at losses e of at least 0: a unit is removed.

    P and Q are the pair of the law, without sampling. The result is q times the law's profile at
    the loss u with ``exp(e) = (1-q) + q exp(u)``, so that ``u = log(1 + (exp(e) - 1) / q)``.
    """
    with np.errstate(over="ignore"):
        growth = np.expm1(np.minimum(losses, 30)) / rate  # exp(u) - 1
    # log(1 + (exp(e) - 1) / q) with exp(e) factored out of the logarithm
    large_unsampled = losses + np.log(-np.expm1(-losses) + rate * np.exp(-losses)) - log(rate)
    if rate == 1:
        unsampled = losses
    else:
        unsampled = np.where(growth < _LARGE_GROWTH, np.log1p(growth), large_unsampled)
    return law.profile(unsampled, noise_ratio, log(rate), np.abs(unsampled))


def _added(law: Law, rate: float, noise_ratio: float, losses: Floats) -> Profile:
    """Return ``H_e(Q || (1-q) Q + q P)`` at losses e of at least 0: a unit is added.

    P and Q are the pair of the law, without sampling, and mirror images of one another. The result
    is ``q exp(e - u)`` times the law's profile at the loss u with ``exp(-e) = (1-q) + q exp(-u)``.
    Where exp(-e) is at most 1-q there is no such u, and the profile is 0.
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
    return Profile(values, _errors_up_to(-log1p(-rate), losses, errors))
