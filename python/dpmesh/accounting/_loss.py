"""Privacy loss distributions on a grid, from the hockey-stick profile of a dominating pair.

`losses_of` is called by the composer (`_compose`) for each kind of round. The distributions are
connect-the-dots discretisations (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022): the profile
is exact on the grid and an upper bound between. Each mass is raised by a bound of its rounding, and
mass that is cut off is moved to a larger loss. So no error lowers epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, expm1
from typing import NamedTuple

import numpy as np

from dpmesh.accounting._arguments import Floats

UNIT = 2.0**-53
"""Unit roundoff of float64: the largest relative error of one operation."""


class Grid(NamedTuple):
    """Grid of privacy losses: multiples of `interval`.

    Tails of mass below `negligible` count as infinite loss.
    """

    interval: float
    negligible: float

    def points(self, end: float) -> Floats:
        """Return the losses 0, h, 2h, ... until beyond `end`."""
        count = ceil(end / self.interval) + 2.0
        points: Floats = self.interval * np.arange(count)
        return points


class PositiveMasses(NamedTuple):
    """Distribution of the positive losses in one direction between neighbours.

    Attributes
    ----------
    masses
        Masses at the losses h, 2h, ..., with a bound of the rounding of each included.
    infinite
        Mass at infinite loss.
    added
        Sum of the bounds of rounding that are included in `masses`.
    """

    masses: Floats
    infinite: float
    added: float


class LossDistribution(NamedTuple):
    """Distribution of a privacy loss on a grid.

    ``masses[i]`` is the mass at the loss ``(first + i) * interval``. `infinite` is the mass at
    infinite loss.
    """

    first: int
    masses: Floats
    infinite: float

    @property
    def last(self) -> int:
        """Index of the largest finite loss."""
        return self.first + self.masses.size - 1


class Profile(NamedTuple):
    """A hockey-stick profile at given losses, such as 0, h, 2h, ..., with bounds of its rounding.

    Both arrays have the shape (losses,).
    """

    values: Floats
    errors: Floats


def losses_of(profiles: Sequence[Profile], grid: Grid) -> tuple[LossDistribution, ...]:
    """Return the loss distribution in each direction between neighbours.

    Parameters
    ----------
    profiles
        The profile in each direction, at the losses 0, h, 2h, ..; one if both are the same.
    grid
        The grid of losses.
    """
    directions = [_positive_masses(profile, grid) for profile in profiles]
    opposites = directions[::-1]  # a single direction is its own opposite
    pairs = zip(directions, opposites, strict=True)
    return tuple(_joined(direction, opposite, grid) for direction, opposite in pairs)


def _positive_masses(profile: Profile, grid: Grid) -> PositiveMasses:
    """Return the masses at positive losses of the distribution with this profile at 0, h, 2h, ..

    The longest tail with a mass of at most ``grid.negligible`` is moved to infinite loss.
    """
    values, errors = profile
    if values.size < 2:
        return PositiveMasses(np.zeros(0), float(np.sum(values + errors)), 0.0)
    # The fall of the profile from (k - 1) h to k h, falls[k - 1], is (1 - exp(-h)) times the mass
    # at k h, plus exp(-h) times the next fall.
    falls = -np.diff(values)
    step = -expm1(-grid.interval)  # 1 - exp(-h)
    next_falls = np.append(falls[1:], 0)
    masses = np.maximum((falls - next_falls * (1 - step)) / step, 0)
    neighbour_errors = errors[:-1] + 2 * errors[1:]
    neighbour_errors[:-1] += errors[2:]
    rounding = neighbour_errors / step + 8 * UNIT * (masses + falls / step)
    rounding[:-1] += 8 * UNIT * falls[1:] / step
    infinite = float(values[-1] + errors[-1])
    tails = _tail_sums(masses + rounding)
    size = int(np.count_nonzero(tails > grid.negligible))
    cut = 0.0
    if size < tails.size:
        cut = float(tails[size])
    rounding = rounding[:size]
    return PositiveMasses(masses[:size] + rounding, infinite + cut, float(np.sum(rounding)))


def _tail_sums(masses: Floats) -> Floats:
    """Return the sum of each mass and all after it."""
    tails: Floats = np.cumsum(masses[::-1])[::-1]
    return tails


def _joined(direction: PositiveMasses, opposite: PositiveMasses, grid: Grid) -> LossDistribution:
    """Join the masses at positive and negative losses to the distribution of one direction.

    The mass at the loss -x is ``exp(-x)`` times the opposite direction's mass at x. So no mass is a
    difference of numbers near 1. The loss 0 gets the rest of the probability.
    """
    masses, infinite, added = direction
    opposite_indices = np.arange(1, opposite.masses.size + 1)
    mirrored = opposite.masses * np.exp(-grid.interval * opposite_indices)
    tails = _tail_sums(mirrored)  # mass that is cut off here goes to loss 0
    mirrored = mirrored[: int(np.count_nonzero(tails > grid.negligible))]
    rest = 1 - infinite - float(np.sum(masses)) - float(np.sum(mirrored))
    at_zero = max(0.0, rest + added + opposite.added + 1e-15)
    all_masses = np.concatenate([mirrored[::-1], [at_zero], masses])
    first = int(np.argmax(all_masses > 0))  # with hardly any noise all losses are far above 0
    return LossDistribution(first - mirrored.size, all_masses[first:], infinite)
