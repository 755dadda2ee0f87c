"""Random allocation: each unit takes part in one release of many, drawn in secret.

- A *pass* is a group of releases; each unit draws one of them, independently. A *step* is one
  release of a pass. A *share* is the probability with which a unit draws a step.
- A *public allocation* is one whose draws the adversary knows: it has no amplification.
- *pure* names releases of pure DP, such as releases with Laplace noise.

For Gaussian noise some data attain the profile: gradients of full length in opposite directions, or
one gradient that is there or not. For steps of pure DP the profile is an upper bound. `_allocated`
states the theorem and computes the profile. Proof: docs/privacy/random_allocation_proof.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, log, sqrt
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy  # its submodules are imported on first use

from dpmesh._privacy_types import NeighboringRelation
from dpmesh._validate import fail, integer, non_negative, one_of, positive, probability
from dpmesh.accounting._allocated import (
    GaussianStep,
    PureStep,
    StepDistribution,
    WorseStep,
    log_profile,
)
from dpmesh.accounting._arguments import (
    Floats,
    noises_to_sensitivity,
    numbers,
    open_probability,
    positives,
)
from dpmesh.accounting._compose import composed_epsilon
from dpmesh.accounting._loss import UNIT, Profile
from dpmesh.accounting._merge import RoundKinds
from dpmesh.accounting._pairs import GAUSSIAN, LAPLACE, DominatingPair, FloatOrFloats, Profiles
from dpmesh.accounting.calibration import calibrate_noise
from dpmesh.accounting.gaussian import analytic_gaussian_noise_to_sensitivity, gdp_epsilon

Noise = Literal["gaussian", "laplace"]
Shares = tuple[tuple[float, float, int], ...]
"""Kinds of steps: share of the records, noise relative to the other steps', and their number."""


_PROFILE_POINTS = 160
"""Intervals of a profile that is composed with other passes or releases."""

_TOLERANCE = 1e-8
"""Tolerance of searches for epsilon (relative above 1) and, relative, for the noise."""

_FIRST_EPSILON = 1 / 16
"""Epsilon at which the search for the smallest epsilon starts."""

_MAX_GAUSSIAN_SHIFT = 16.0
_MAX_PURE_SHIFT = 30.0
_MAX_EPSILON = 340.0
"""Beyond one of these three, an allocation counts as public, so that numbers stay in range.

The shifts are the movement of the noise by a record, in scales of Gaussian or Laplace noise. The
epsilon includes 12 standard deviations of the loss. An allocation saves about the logarithm of the
number of rounds, and epsilon is then at least 130 for Gaussian noise.
"""


@dataclass(frozen=True)
class Allocation(DominatingPair):
    """The dominating pair of all releases of one pass.

    Methods accept a noise ratio; the noise ratio of a step is this number times the step's relative
    noise in `shares`. They ignore the sampling rate.

    Parameters
    ----------
    law
        `GAUSSIAN`, or `LAPLACE` for any releases of pure DP.
    shares
        Kinds of steps: share of the records, relative noise, and number of steps.
    relation
        Neighbouring relation.
    pure
        If a pass has both Gaussian releases and releases of pure DP: noise ratio of the pure
        releases over the noise ratio of the Gaussian releases. Each step then counts as the worse
        of both kinds. None if all steps are of one kind.
    """

    shares: Shares = ()
    relation: NeighboringRelation = "replace_one"
    pure: float | None = None
    has_convex_profiles = False

    def profiles(
        self, rate: float, noise_ratio: float, losses: Floats, negligible: float
    ) -> Profiles:
        """Return the profile of a pass in each direction, by interpolation.

        It is computed at some losses. Between them it is linear in exp(loss), an upper bound as the
        profile is convex. Beyond the last of these losses it counts as constant, at most about
        `negligible`.
        """
        profiles = []
        for direction in self._directions:
            points, profile = _profile_points(self, direction, noise_ratio, max(negligible, 1e-290))
            with np.errstate(over="ignore"):
                values = np.interp(np.exp(losses), np.exp(points), profile)
            profiles.append(Profile(values, 16 * UNIT * values))
        return tuple(profiles)

    def largest(self, rate: Floats, noise_ratio: Floats, deviations: FloatOrFloats) -> Floats:
        """Return the largest loss of a public allocation, which bounds the loss of a secret one."""
        least_noise = noise_ratio * self._smallest_relative_noise
        largest = self.law.largest(least_noise, deviations)
        if self.pure is None:
            return largest
        return np.maximum(largest, 1 / (least_noise * self.pure))

    def spread(self, rate: Floats, noise_ratio: Floats) -> Floats:
        """Return about the standard deviation of the loss."""
        squares = np.zeros_like(noise_ratio)
        for share, relative_noise, count in self.shares:
            shift = np.minimum(self._shift / (relative_noise * noise_ratio), 20.0)
            squares += count * share**2 * np.expm1(shift**2)
        guess = np.sqrt(squares) / self._shift
        spread: Floats = np.minimum(guess, self.largest(rate, noise_ratio, 1.0))
        return spread

    def log_delta(self, epsilon: float, noise_ratio: float) -> float:
        """Return an upper bound of the logarithm of delta, the larger of both directions."""
        log_profiles = [
            self.log_profile(direction, epsilon, noise_ratio) for direction in self._directions
        ]
        return min(0.0, max(log_profiles))

    def epsilon(self, delta: float, noise_ratio: float) -> float:
        """Return the smallest epsilon of one pass at `delta` in (0, 1)."""

        def log_delta_at(epsilon: float) -> float:
            return self.log_delta(epsilon, noise_ratio)

        return _smallest_epsilon(log_delta_at, delta, self.public_epsilon(noise_ratio, delta))

    def public_epsilon(self, noise_ratio: float, delta: float) -> float:
        """Return the epsilon of a public allocation: an upper bound."""
        least_noise = noise_ratio * self._smallest_relative_noise
        if self.law.is_pure:
            return 1 / least_noise
        gaussian = gdp_epsilon(delta=delta, mu=1 / least_noise)
        if self.pure is None:
            return gaussian
        return max(gaussian, 1 / (least_noise * self.pure))

    @property
    def _smallest_relative_noise(self) -> float:
        """Relative noise of the step with the least noise."""
        return min(relative_noise for _, relative_noise, _ in self.shares)

    def _log_public_profile(self, epsilon: float, noise_ratio: float) -> float:
        """Return the logarithm of delta of a public allocation: an upper bound."""
        least_noise = noise_ratio * self._smallest_relative_noise
        laws = [(self.law, least_noise)]
        if self.pure is not None:
            laws.append((LAPLACE, least_noise * self.pure))
        losses = np.array([epsilon])
        delta = 0.0
        for law, noise in laws:
            profile = law.profile(losses, noise, 0.0, losses)
            delta = max(delta, float(profile.values[0] + profile.errors[0]))
        if delta > 0:
            return log(delta)
        return -inf

    @property
    def _shift(self) -> float:
        """Largest norm of one unit's contribution over the sensitivity."""
        if self.relation == "replace_one":
            return 0.5
        return 1.0

    @property
    def _directions(self) -> tuple[str, ...]:
        """Names of the directions between neighbours; one where both have the same profile."""
        if self.relation == "replace_one":
            return ("replace",)
        return ("remove", "add")

    def log_profile(self, direction: str, epsilon: float, noise_ratio: float) -> float:
        """Return an upper bound of the logarithm of delta in one direction.

        `_allocated` has the table of the factors u and v and of the offset for each direction. A
        unit that takes part in no release with probability p_0 adds ``p_0 (u - v)`` to the offset.
        """
        if self._counts_as_public(epsilon, noise_ratio):
            return self._log_public_profile(epsilon, noise_ratio)
        factor = exp(epsilon)
        if direction == "replace":
            u = 1.0
            v = factor
            offset = 0.0
        elif direction == "remove":
            u = 1.0
            v = 0.0
            offset = -factor
        else:
            u = 0.0
            v = factor
            offset = 1.0
        steps = [
            (self._step(share, relative_noise * noise_ratio, u, v), count)
            for share, relative_noise, count in self.shares
        ]
        total_share = sum(share * count for share, _, count in self.shares)
        never_released = max(0.0, 1 - total_share)
        return log_profile(steps, offset + never_released * (u - v))

    def _step(self, share: float, noise_ratio: float, u: float, v: float) -> StepDistribution:
        """Return a distribution that dominates a step with this share and noise ratio.

        `u` and `v` are the factors of the direction, see `_allocated`.
        """
        shift = self._shift / noise_ratio
        if self.law.is_pure:
            return PureStep(share, shift, u, v)
        gaussian = GaussianStep(share, shift, u, v)
        if self.pure is None:
            return gaussian
        return WorseStep(gaussian, PureStep(share, shift / self.pure, u, v))

    def _counts_as_public(self, epsilon: float, noise_ratio: float) -> bool:
        """Return True if a record moves the noise so far that allocation hardly hides its step."""
        shift = self._shift / (noise_ratio * self._smallest_relative_noise)
        gaussian_shift = shift
        pure_shift = 0.0
        if self.law.is_pure:
            gaussian_shift = 0.0
            pure_shift = shift
        elif self.pure is not None:
            pure_shift = shift / self.pure
        is_far = gaussian_shift > _MAX_GAUSSIAN_SHIFT or pure_shift > _MAX_PURE_SHIFT
        return is_far or epsilon + 12 * gaussian_shift > _MAX_EPSILON


@lru_cache(maxsize=64)
def _profile_points(
    pair: Allocation, direction: str, noise_ratio: float, negligible: float
) -> tuple[Floats, Floats]:
    """Return losses from 0 on, and the profile there, up to the loss where it is `negligible`."""

    def log_profile_at(epsilon: float) -> float:
        return min(0.0, pair.log_profile(direction, epsilon, noise_ratio))

    known_epsilon = pair.public_epsilon(noise_ratio, negligible)
    end = _smallest_epsilon(log_profile_at, negligible, known_epsilon)
    points = np.linspace(0, end, _PROFILE_POINTS + 1)
    log_profile_values = [log_profile_at(float(point)) for point in points]
    return points, np.exp(log_profile_values)


def _smallest_epsilon(
    log_delta: Callable[[float], float], delta: float, upper_bound: float
) -> float:
    """Return the least epsilon in [0, `upper_bound`] with ``log_delta(epsilon) <= log(delta)``.

    `upper_bound` is returned if no smaller epsilon is found.
    """
    target = log(delta)
    if log_delta(0.0) <= target:
        return 0.0
    low = 0.0
    high = min(upper_bound, _FIRST_EPSILON)
    while high < upper_bound and log_delta(high) > target:
        low = high
        high = min(upper_bound, 2 * high)
    if high > _MAX_EPSILON or log_delta(high) > target:
        return upper_bound
    tolerance = _TOLERANCE * min(1.0, high)

    def excess(epsilon: float) -> float:
        return log_delta(epsilon) - target

    epsilon = float(scipy.optimize.brentq(excess, low, high, xtol=tolerance))
    while log_delta(epsilon) > target:
        epsilon = min(upper_bound, epsilon + tolerance)
        tolerance *= 2
    return epsilon


@lru_cache(maxsize=256)
def allocated_epsilon(pair: Allocation, delta: float, noise_ratio: float) -> float:
    """Return the epsilon of one pass, as `Allocation.epsilon`; results are cached."""
    return pair.epsilon(delta, noise_ratio)


def random_allocation_delta(
    *,
    epsilon: float,
    noise_to_sensitivity: npt.ArrayLike,
    rounds: int | None = None,
    shares: npt.ArrayLike | None = None,
    neighboring_relation: NeighboringRelation,
    noise: Noise = "gaussian",
) -> float:
    """Return the delta of random allocation: each unit takes part in one secret release of many.

    Every unit draws its release independently, before the first release. The draws stay secret, and
    so does the number of units in a release. A release of few units, or of none, has as much noise
    as the others.

    Parameters
    ----------
    epsilon
        Finite, at least 0.
    noise_to_sensitivity
        Scale of the noise over the sensitivity in this relation: a number, or one for each release.
        For units that each add a vector of norm at most C, the sensitivity is C under
        ``"add_remove"`` and 2 C under ``"replace_one"``.
    rounds
        Number of releases, each as likely as the others. Give this or `shares`.
    shares
        Probability of each release, in (0, 1]; if they sum to less than 1, a unit may have none.
    neighboring_relation
        Under ``"replace_one"`` a unit's own part must have a norm of at most half the sensitivity.
    noise
        ``"gaussian"``, with the L2 sensitivity: the result is exact but for rounding upwards, by
        less than 1% of delta. ``"laplace"``, with the L1 sensitivity: a bound for all releases
        whose densities with and without the unit differ by a factor of at most ``exp(a)``, where
        ``a = 1 / noise_to_sensitivity`` under ``"add_remove"`` and half of that under
        ``"replace_one"``.

    Returns
    -------
    An upper bound; 1 where the noise is so small that nothing is proved.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths differ.
    """
    pair, noise_ratio = _pair_of_pass(
        noise_to_sensitivity, rounds, shares, neighboring_relation, noise
    )
    epsilon = non_negative("epsilon", epsilon)
    return exp(pair.log_delta(epsilon, noise_ratio))


def random_allocation_epsilon(
    *,
    delta: float,
    noise_to_sensitivity: npt.ArrayLike,
    rounds: int | None = None,
    shares: npt.ArrayLike | None = None,
    neighboring_relation: NeighboringRelation,
    noise: Noise = "gaussian",
    cycles: int = 1,
) -> float:
    """Return the epsilon of random allocation: each unit takes part in one secret release of many.

    See `random_allocation_delta` for the conditions. The result is an upper bound.

    Parameters
    ----------
    delta
        In (0, 1), or in [0, 1) for Laplace noise. At 0 there is no amplification.
    noise_to_sensitivity, rounds, shares, neighboring_relation, noise
        As for `random_allocation_delta`.
    cycles
        Number of passes over all releases. Units draw anew, independently, in each pass.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths differ.
    """
    pair, noise_ratio = _pair_of_pass(
        noise_to_sensitivity, rounds, shares, neighboring_relation, noise
    )
    integer("cycles", cycles, at_least=1)
    if noise == "laplace" and probability("delta", delta, one=False) == 0:
        return cycles / (noise_ratio * pair._smallest_relative_noise)
    return _epsilon(pair, open_probability("delta", delta), noise_ratio, cycles)


def random_allocation_noise_to_sensitivity(
    *,
    target_epsilon: float,
    target_delta: float,
    rounds: int | None = None,
    shares: npt.ArrayLike | None = None,
    neighboring_relation: NeighboringRelation,
    relative_noise: npt.ArrayLike = 1.0,
    noise: Noise = "gaussian",
    cycles: int = 1,
) -> float:
    """Return the least noise ratio for which random allocation keeps a budget.

    Each unit takes part in one secret release of many, see `random_allocation_delta`. All releases
    together are then (`target_epsilon`, `target_delta`)-DP.

    Parameters
    ----------
    target_epsilon
        Finite and positive.
    target_delta
        In (0, 1).
    rounds, shares, neighboring_relation, noise, cycles
        As for `random_allocation_epsilon`.
    relative_noise
        Noise of the releases relative to one another: a number, or one for each.

    Returns
    -------
    The factor that turns `relative_noise` into noise ratios; for 1, the noise ratio itself.

    Raises
    ------
    ValueError
        If an argument is out of its range, the lengths differ, or no noise keeps the budget.

    Examples
    --------
    >>> from dpmesh.accounting import random_allocation_noise_to_sensitivity
    >>> for rounds in (1, 10, 50):
    ...     z = random_allocation_noise_to_sensitivity(
    ...         target_epsilon=1.0,
    ...         target_delta=1e-5,
    ...         rounds=rounds,
    ...         neighboring_relation="replace_one",
    ...     )
    ...     print(rounds, round(z, 3))
    1 3.731
    10 1.182
    50 0.563
    """
    epsilon = positive("target_epsilon", target_epsilon)
    delta = open_probability("target_delta", target_delta)
    positives("relative_noise", relative_noise)
    pair, scale = _pair_of_pass(relative_noise, rounds, shares, neighboring_relation, noise)
    integer("cycles", cycles, at_least=1)
    known_noise = 1 / (scale * pair._smallest_relative_noise)
    if noise == "gaussian":
        known_noise *= analytic_gaussian_noise_to_sensitivity(
            target_epsilon=epsilon, target_delta=delta
        )
    else:
        known_noise /= epsilon
    if cycles > 1:

        def epsilon_of(factor: float) -> float:
            return _epsilon(pair, delta, factor * scale, cycles)

        return calibrate_noise(epsilon_of, target_epsilon=epsilon, guess=known_noise)
    inner_epsilon = epsilon - 2.5e-7 * min(1.0, epsilon)  # room for the tolerance of epsilon
    total_square = sum(count * share**2 for share, _, count in pair.shares)
    guess = max(known_noise * sqrt(total_square), min(known_noise, 0.25))

    def log_delta_of(factor: float) -> float:
        return pair.log_delta(inner_epsilon, factor * scale)

    return _least_noise(log_delta_of, log(delta), guess)


def _least_noise(log_delta: Callable[[float], float], target: float, guess: float) -> float:
    """Return the least noise at which `log_delta` is at most a target.

    `log_delta` must not increase with the noise. The search starts at `guess`.
    """
    sufficient = insufficient = guess
    while log_delta(sufficient) > target:
        insufficient = sufficient
        sufficient *= 1.3
    while insufficient == sufficient or log_delta(insufficient) <= target:
        sufficient = insufficient
        insufficient /= 1.3

    def excess(log_noise: float) -> float:
        return log_delta(exp(log_noise)) - target

    log_noise = scipy.optimize.brentq(excess, log(insufficient), log(sufficient), xtol=_TOLERANCE)
    noise = exp(log_noise)
    step = _TOLERANCE
    while log_delta(noise) > target:
        noise *= 1 + step
        step *= 2
    return noise


def _epsilon(pair: Allocation, delta: float, noise_ratio: float, cycles: int) -> float:
    """Return the epsilon of several passes, each with an independent draw."""
    if cycles == 1:
        return allocated_epsilon(pair, delta, noise_ratio)
    passes = RoundKinds(pair, np.ones(1), np.array([noise_ratio]), np.array([float(cycles)]))
    return composed_epsilon(delta, passes)


def _pair_of_pass(
    noise_to_sensitivity: npt.ArrayLike,
    rounds: int | None,
    shares: npt.ArrayLike | None,
    relation: NeighboringRelation,
    noise: Noise,
) -> tuple[Allocation, float]:
    """Return the dominating pair of a pass, and the noise ratio of the step with the least noise.

    The relative noise of steps in the pair is 1 for this step. Arguments are checked here: exactly
    one of `rounds` and `shares` must be given.
    """
    one_of("neighboring_relation", relation, get_args(NeighboringRelation))
    one_of("noise", noise, get_args(Noise))
    if (rounds is None) == (shares is None):
        fail("rounds", "either rounds or shares", "neither" if shares is None else "both")
    noise_ratios = noises_to_sensitivity(noise_to_sensitivity)
    repeats = 1
    if shares is not None:
        step_shares = share_array(shares)
        if noise_ratios.ndim and noise_ratios.shape != step_shares.shape:
            expectation = f"one number for each of {step_shares.size} shares"
            fail("noise_to_sensitivity", expectation, noise_ratios.size)
    else:
        count = integer("rounds", 0 if rounds is None else rounds, at_least=1)
        if noise_ratios.ndim == 0:
            step_shares = np.full(1, 1 / count)
            repeats = count
        else:
            step_shares = np.full(noise_ratios.size, 1 / count)
            if noise_ratios.size != count:
                expectation = f"one number for each of {count} rounds"
                fail("noise_to_sensitivity", expectation, noise_ratios.size)
    scale = float(np.min(noise_ratios))
    relative_noise = np.broadcast_to(noise_ratios / scale, step_shares.shape)
    steps = Counter(zip(step_shares.tolist(), relative_noise.tolist(), strict=True))
    distinct = tuple(
        (share, step_noise, repeats * count) for (share, step_noise), count in steps.items()
    )
    law = GAUSSIAN if noise == "gaussian" else LAPLACE
    return Allocation(law, distinct, relation), scale


def share_array(shares: npt.ArrayLike) -> Floats:
    """Check the shares of a pass's steps, and return them, shape (steps,); a number is one share.

    Raises
    ------
    ValueError
        If a share is not in (0, 1], the sum of the shares is above 1, or there is none.
    """
    expectation = "numbers in (0, 1] whose sum is at most 1"
    array = np.atleast_1d(numbers("shares", shares, expectation))
    if array.ndim > 1 or array.size == 0:
        fail("shares", "one number for each release", f"shape {array.shape}")
    is_probability = (array > 0) & (array <= 1)
    if not np.all(is_probability) or float(np.sum(array)) > 1 + 1e-9:
        fail("shares", expectation, shares)
    return array
