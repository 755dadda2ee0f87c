"""Privacy loss distributions on a grid, from the profile of a dominating pair.

All of them are connect-the-dots discretisations (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi
2022): the profile is exact on the grid and an upper bound between. Each mass is raised by a bound
of its rounding, and what is cut off is moved to a larger loss, so that no error lowers epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, expm1
from typing import NamedTuple

import numpy as np

from dpmesh.accounting._arguments import Floats

UNIT = 2.0**-53
"""The rounding of one operation."""


class Grid(NamedTuple):
    """Where losses are placed: multiples of `interval`.

    Tails of mass below `negligible` count as infinite loss.
    """

    interval: float
    negligible: float

    def points(self, end: float) -> Floats:
        """Return the losses 0, h, 2h, ... until beyond `end`."""
        points: Floats = self.interval * np.arange(ceil(end / self.interval) + 2.0)
        return points


class Loss(NamedTuple):
    """A privacy loss: `masses` at ``(first + 0, 1, 2, ...) * interval``, and at infinity."""

    first: int
    masses: Floats
    infinite: float

    @property
    def last(self) -> int:
        """Index of the largest finite loss."""
        return self.first + self.masses.size - 1


class Profile(NamedTuple):
    """A hockey-stick profile at the losses 0, h, 2h, ..., and a bound of its rounding."""

    values: Floats
    errors: Floats


class Positive(NamedTuple):
    """Masses at the losses h, 2h, ... and at infinity, and the sum of what was added to them."""

    masses: Floats
    infinite: float
    added: float


def losses_of(profiles: Sequence[Profile], grid: Grid) -> tuple[Loss, ...]:
    """Return the loss in each direction from its profile at the losses 0, h, 2h, ..."""
    ways = [_positive_masses(profile, grid) for profile in profiles]
    return tuple(_joined(own, other, grid) for own, other in zip(ways, ways[::-1], strict=True))


def _positive_masses(profile: Profile, grid: Grid) -> Positive:
    """Return the masses whose profile, at 0, h, 2h, ..., is the one given."""
    values, errors = profile
    if values.size < 2:
        return Positive(np.zeros(0), float(np.sum(values + errors)), 0.0)
    falls, step = -np.diff(values), -expm1(-grid.interval)
    masses = np.maximum((falls - np.append(falls[1:], 0) * (1 - step)) / step, 0)
    around = errors[:-1] + 2 * errors[1:]
    around[:-1] += errors[2:]
    rounding = around / step + 8 * UNIT * (masses + falls / step)
    rounding[:-1] += 8 * UNIT * falls[1:] / step
    infinite = float(values[-1] + errors[-1])
    beyond = np.cumsum((masses + rounding)[::-1])[::-1]
    size = int(np.count_nonzero(beyond > grid.negligible))
    cut = float(beyond[size]) if size < beyond.size else 0.0
    rounding = rounding[:size]
    return Positive(masses[:size] + rounding, infinite + cut, float(np.sum(rounding)))


def _joined(own: Positive, other: Positive, grid: Grid) -> Loss:
    """Join the masses at positive losses with the other direction's mirror image.

    The mirror image has exp(-loss) times the mass, so no mass is a difference of numbers near 1.
    """
    masses, infinite, added = own
    mirrored = other.masses * np.exp(-grid.interval * np.arange(1, other.masses.size + 1))
    beyond = np.cumsum(mirrored[::-1])[::-1]  # what is cut off here goes to loss 0
    mirrored = mirrored[: int(np.count_nonzero(beyond > grid.negligible))]
    rest = 1 - infinite - float(np.sum(masses)) - float(np.sum(mirrored))
    at_zero = max(0.0, rest + added + other.added + 1e-15)
    everything = np.concatenate([mirrored[::-1], [at_zero], masses])
    first = int(np.argmax(everything > 0))  # with next to no noise all of it is far above 0
    return Loss(first - mirrored.size, everything[first:], infinite)
