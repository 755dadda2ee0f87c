"""Random allocation: each unit takes part in one release of many, at a time that is secret.

The proof is on the page "Random allocation". For Gaussian noise, the profile computed is
that of data which attain it: gradients of full length in opposite directions, or one that is there
or not. For any step of pure differential privacy, it is a bound. `_allocated` has the numbers.
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
    EitherPart,
    GaussianPart,
    PurePart,
    StepDistribution,
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
from dpmesh.accounting._merge import Rounds
from dpmesh.accounting._pairs import GAUSSIAN, LAPLACE, Numbers, Pair, Ways
from dpmesh.accounting.calibration import calibrate_noise
from dpmesh.accounting.gaussian import analytic_gaussian_noise_to_sensitivity, gdp_epsilon

Noise = Literal["gaussian", "laplace"]
Shares = tuple[tuple[float, float, int], ...]
"""Of steps that are alike: share of the records, noise relative to the others', and number."""

_LARGEST_SHIFT, _LARGEST_PURE, _LARGEST_EPSILON = 16.0, 30.0, 340.0
"""Beyond these each round is charged as if it was public, so that numbers stay in range.

They are the scales of Gaussian and of Laplace noise by which a record moves it, and an epsilon plus
what 12 deviations add. An allocation saves about the logarithm of the number of rounds, and epsilon
is then at least 130 for Gaussian noise.
"""

_POINTS = 160  # of a profile that is composed with others
_TOLERANCE = 1e-8
_FIRST = 1 / 16  # epsilon that is tried first


@dataclass(frozen=True)
class Allocation(Pair):
    """The dominating pair of the releases of one pass; its multiplier is that of a noise of 1.

    Parameters
    ----------
    law
        Of Gaussian noise, or of Laplace noise for all that is purely private.
    shares
        Of each step.
    relation
        The neighbouring relation.
    pure
        Where releases of pure privacy are among Gaussian ones: their noise ratio, relative to
        that of the latter; None if all are of one kind. Each step is charged as the worse of both.
    """

    shares: Shares = ()
    relation: NeighboringRelation = "replace_one"
    pure: float | None = None
    merges = False

    def profiles(self, rate: float, multiplier: float, losses: Floats, negligible: float) -> Ways:
        """Return the profile of a pass in each direction, exact at some points, by chords between.

        Beyond the last of them it is taken to be constant, and at most `negligible`.
        """
        found = []
        for way in self._ways:
            points, known = _known_points(self, way, multiplier, max(negligible, 1e-290))
            with np.errstate(over="ignore"):
                values = np.interp(np.exp(losses), np.exp(points), known)
            found.append(Profile(values, 16 * UNIT * values))
        return tuple(found)

    def largest(self, rate: Floats, multiplier: Floats, deviations: Numbers) -> Floats:
        """Return the largest loss, that of an allocation which everybody knows."""
        least = multiplier * self._least
        largest = self.law.largest(least, deviations)
        return largest if self.pure is None else np.maximum(largest, 1 / (least * self.pure))

    def spread(self, rate: Floats, multiplier: Floats) -> Floats:
        """Return about the standard deviation of the loss."""
        squares = np.zeros_like(multiplier)
        for share, z, count in self.shares:
            shift = np.minimum(self._shift / (z * multiplier), 20.0)
            squares += count * share**2 * np.expm1(shift**2)
        guess = np.sqrt(squares) / self._shift
        spread: Floats = np.minimum(guess, self.largest(rate, multiplier, 1.0))
        return spread

    def log_delta(self, epsilon: float, multiplier: float) -> float:
        """Return an upper bound of the logarithm of delta, the larger of both directions."""
        return min(0.0, max(self.log_profile(way, epsilon, multiplier) for way in self._ways))

    def epsilon(self, delta: float, multiplier: float) -> float:
        """Return the smallest epsilon of one pass at `delta` in (0, 1)."""
        return _smallest(
            lambda e: self.log_delta(e, multiplier), delta, self.known(multiplier, delta)
        )

    def known(self, multiplier: float, delta: float) -> float:
        """Return the epsilon of an allocation that everybody knows."""
        least = multiplier * self._least
        if self.law.has_atom:
            return 1 / least
        gaussian = gdp_epsilon(delta=delta, mu=1 / least)
        return gaussian if self.pure is None else max(gaussian, 1 / (least * self.pure))

    @property
    def _least(self) -> float:
        """The least noise of a step, relative to the multiplier."""
        return min(z for _, z, _ in self.shares)

    def _log_known_profile(self, epsilon: float, multiplier: float) -> float:
        """Return the logarithm of delta of an allocation that everybody knows."""
        laws = [(self.law, multiplier * self._least)]
        if self.pure is not None:
            laws.append((LAPLACE, multiplier * self._least * self.pure))
        losses, delta = np.array([epsilon]), 0.0
        for law, least in laws:
            profile = law.profile(losses, least, 0.0, losses)
            delta = max(delta, float(profile.values[0] + profile.errors[0]))
        return log(delta) if delta > 0 else -inf

    @property
    def _shift(self) -> float:
        """Of a record's part over the sensitivity."""
        return 0.5 if self.relation == "replace_one" else 1.0

    @property
    def _ways(self) -> tuple[str, ...]:
        return ("replace",) if self.relation == "replace_one" else ("remove", "add")

    def log_profile(self, way: str, epsilon: float, multiplier: float) -> float:
        """Return an upper bound of the logarithm of delta in one direction."""
        if self._is_hardly_hidden(epsilon, multiplier):
            return self._log_known_profile(epsilon, multiplier)
        factor = exp(epsilon)
        u, v, offset = {
            "replace": (1.0, factor, 0.0),
            "remove": (1.0, 0.0, -factor),
            "add": (0.0, factor, 1.0),
        }[way]
        parts = [(self._part(share, z * multiplier, u, v), n) for share, z, n in self.shares]
        never = max(0.0, 1 - sum(share * count for share, _, count in self.shares))
        return log_profile(parts, offset + never * (u - v))

    def _part(self, share: float, multiplier: float, u: float, v: float) -> StepDistribution:
        """Return what dominates a step with this noise ratio."""
        shift = self._shift / multiplier
        if self.law.has_atom:
            return PurePart(share, shift, u, v)
        gaussian = GaussianPart(share, shift, u, v)
        if self.pure is None:
            return gaussian
        return EitherPart(gaussian, PurePart(share, shift / self.pure, u, v))

    def _is_hardly_hidden(self, epsilon: float, multiplier: float) -> bool:
        """Return whether a record moves the noise so far that a secret round hardly hides it."""
        shift = self._shift / (multiplier * self._least)
        gaussian, pure = shift, 0.0
        if self.law.has_atom:
            gaussian, pure = 0.0, shift
        elif self.pure is not None:
            pure = shift / self.pure
        far = gaussian > _LARGEST_SHIFT or pure > _LARGEST_PURE
        return far or epsilon + 12 * gaussian > _LARGEST_EPSILON


@lru_cache(maxsize=64)
def _known_points(
    pair: Allocation, way: str, multiplier: float, negligible: float
) -> tuple[Floats, Floats]:
    """Return losses, and a profile there, until it is negligible."""

    def log_profile_at(epsilon: float) -> float:
        return min(0.0, pair.log_profile(way, epsilon, multiplier))

    end = _smallest(log_profile_at, negligible, pair.known(multiplier, negligible))
    points = np.linspace(0, end, _POINTS + 1)
    return points, np.exp([log_profile_at(float(point)) for point in points])


def _smallest(log_delta: Callable[[float], float], delta: float, most: float) -> float:
    """Return the least argument, up to `most`, at which `log_delta` is at most ``log(delta)``."""
    target = log(delta)
    if log_delta(0.0) <= target:
        return 0.0
    low, high = 0.0, min(most, _FIRST)
    while high < most and log_delta(high) > target:
        low, high = high, min(most, 2 * high)
    if high > _LARGEST_EPSILON or log_delta(high) > target:
        return most
    tolerance = _TOLERANCE * min(1.0, high)
    found = float(scipy.optimize.brentq(lambda e: log_delta(e) - target, low, high, xtol=tolerance))
    while log_delta(found) > target:
        found, tolerance = min(most, found + tolerance), 2 * tolerance
    return found


@lru_cache(maxsize=256)
def allocated_epsilon(pair: Allocation, delta: float, multiplier: float) -> float:
    """Return the epsilon of one pass, see `Allocation.epsilon`."""
    return pair.epsilon(delta, multiplier)


def random_allocation_delta(
    *,
    epsilon: float,
    noise_to_sensitivity: npt.ArrayLike,
    rounds: int | None = None,
    shares: npt.ArrayLike | None = None,
    neighboring_relation: NeighboringRelation,
    noise: Noise = "gaussian",
) -> float:
    """Return the delta of releases of which each unit takes part in one, drawn secretly.

    Every unit draws its release by itself, beforehand, and nobody learns it; a release of a few
    units, or of none, has as much noise as the others.

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
        Probability of each release, in (0, 1]; what is missing to 1 is never released.
    neighboring_relation
        Under ``"replace_one"`` a unit's own part must have a norm of at most half the sensitivity.
    noise
        ``"gaussian"``, with the L2 sensitivity: the result is exact but for rounding upwards, by
        less than 1% of delta. ``"laplace"``, with the L1 sensitivity: a bound that holds for every
        release of pure differential privacy, of ``1 / noise_to_sensitivity``.

    Returns
    -------
    An upper bound; 1 where the noise is so small that nothing is proved.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths differ.
    """
    pair, scale = _pass(noise_to_sensitivity, rounds, shares, neighboring_relation, noise)
    return exp(pair.log_delta(non_negative("epsilon", epsilon), scale))


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
    """Return an epsilon of releases of which each unit takes part in one, drawn secretly.

    Parameters
    ----------
    delta
        In (0, 1), and in [0, 1) for Laplace noise: without a delta nothing is gained.
    noise_to_sensitivity, rounds, shares, neighboring_relation, noise
        As for `random_allocation_delta`.
    cycles
        How many such passes there are, each with a draw of its own.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths differ.
    """
    pair, scale = _pass(noise_to_sensitivity, rounds, shares, neighboring_relation, noise)
    integer("cycles", cycles, at_least=1)
    if noise == "laplace" and probability("delta", delta, one=False) == 0:
        return cycles / (scale * min(z for _, z, _ in pair.shares))
    return _epsilon(pair, open_probability("delta", delta), scale, cycles)


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
    """Return the least noise at which units in one secret release of many keep a budget.

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
    The factor that turns `relative_noise` into noise ratios; for 1, the multiplier itself.

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
    pair, scale = _pass(relative_noise, rounds, shares, neighboring_relation, noise)
    integer("cycles", cycles, at_least=1)
    known = 1 / (scale * min(z for _, z, _ in pair.shares))
    if noise == "gaussian":
        known *= analytic_gaussian_noise_to_sensitivity(target_epsilon=epsilon, target_delta=delta)
    else:
        known /= epsilon
    if cycles > 1:
        return calibrate_noise(
            lambda z: _epsilon(pair, delta, z * scale, cycles), target_epsilon=epsilon, guess=known
        )
    aimed = epsilon - 2.5e-7 * min(1.0, epsilon)
    alike = sqrt(sum(count * share**2 for share, _, count in pair.shares))
    guess = max(known * alike, min(known, 0.25))
    return _least_noise(lambda z: pair.log_delta(aimed, z * scale), log(delta), guess)


def _least_noise(log_delta: Callable[[float], float], target: float, guess: float) -> float:
    """Return the least noise at which `log_delta` is at most a target."""
    enough = short = guess
    while log_delta(enough) > target:
        short, enough = enough, 1.3 * enough
    while short == enough or log_delta(short) <= target:
        enough, short = short, short / 1.3
    found = exp(
        scipy.optimize.brentq(
            lambda x: log_delta(exp(x)) - target, log(short), log(enough), xtol=_TOLERANCE
        )
    )
    step = _TOLERANCE
    while log_delta(found) > target:
        found, step = found * (1 + step), 2 * step
    return found


def _epsilon(pair: Allocation, delta: float, scale: float, cycles: int) -> float:
    if cycles == 1:
        return allocated_epsilon(pair, delta, scale)
    of_one = Rounds(pair, np.ones(1), np.array([scale]), np.array([float(cycles)]))
    return composed_epsilon(delta, of_one)


def _pass(
    noise_to_sensitivity: npt.ArrayLike,
    rounds: int | None,
    shares: npt.ArrayLike | None,
    relation: NeighboringRelation,
    noise: Noise,
) -> tuple[Allocation, float]:
    """Return the pair of a pass, and the noise ratio that its steps' noise is relative to."""
    one_of("neighboring_relation", relation, get_args(NeighboringRelation))
    one_of("noise", noise, get_args(Noise))
    if (rounds is None) == (shares is None):
        fail("rounds", "either rounds or shares", "both" if shares is not None else "neither")
    multiplier = noises_to_sensitivity(noise_to_sensitivity)
    if shares is None:
        count = integer("rounds", 0 if rounds is None else rounds, at_least=1)
        each = np.full(multiplier.size if multiplier.ndim else 1, 1 / count)
        times = 1 if multiplier.ndim else count
        if multiplier.ndim and multiplier.size != count:
            fail("noise_to_sensitivity", f"one number for each of {count} rounds", multiplier.size)
    else:
        each, times = share_array(shares), 1
        if multiplier.ndim and multiplier.shape != each.shape:
            fail(
                "noise_to_sensitivity",
                f"one number for each of {each.size} shares",
                multiplier.size,
            )
    scale = float(np.min(multiplier))
    steps = zip(
        each.tolist(), np.broadcast_to(multiplier / scale, each.shape).tolist(), strict=True
    )
    alike = Counter(steps)
    found = tuple((share, z, times * count) for (share, z), count in alike.items())
    return Allocation(GAUSSIAN if noise == "gaussian" else LAPLACE, found, relation), scale


def share_array(shares: npt.ArrayLike) -> Floats:
    """`shares` as probabilities of releases, which sum to at most 1."""
    wanted = "numbers in (0, 1] whose sum is at most 1"
    array = np.atleast_1d(numbers("shares", shares, wanted))
    if array.ndim > 1 or array.size == 0:
        fail("shares", "one number for each release", f"shape {array.shape}")
    if not np.all((array > 0) & (array <= 1)) or float(np.sum(array)) > 1 + 1e-9:
        fail("shares", wanted, shares)
    return array
