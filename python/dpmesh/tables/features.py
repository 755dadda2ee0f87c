"""Features of a record: functions of it and of public numbers, so that they cost no privacy.

A column of numbers has one weight in a linear model, so that what it learns of the column is a
straight line. These features let it learn more, and read no data:

- ``"columns"``: the encoded columns as they are;
- ``"hats"``: of each number 16 piecewise linear functions, of which at most two are not 0, so that
  their weighted sum is any line with 16 knots; flags and categories as they are;
- ``"cosines"``: random Fourier features (Rahimi and Recht, "Random Features for Large-Scale Kernel
  Machines", 2007): cosines of the columns along 1,000 directions that everybody knows;
- ``"scattering"``: of square images, row by row, fixed wavelets (`dpmesh.tables.wavelets`) along
  800 such directions.

``"columns+hats"`` and other unions have the features of each. All but columns by themselves are
divided by their norm: each part then counts as much as another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, pi, sqrt
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._validate import every, fail, integer, nearest, positive

Records: TypeAlias = npt.NDArray[np.float64]
"""Shape (records, features)."""

CONSTANT = 0.3
"""The intercept of a record that is centred, whose other features have norm 1."""

AXES = 16
"""Axes along which records are shortened by a second moment; those of noise alone are 0."""

MOST_NUMBERS = 10
"""Cosines of more numbers than these turn no faster."""

_IMAGES = 1 << 10
"""Images whose coefficients are held at once."""

BLOCK = 1 << 12
"""Records whose features are made at once."""

SINGLE_FROM = 1 << 28
"""Bytes in float64 from which on features are stored in float32: by public sizes alone."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the features of encoded columns are.

    Parameters
    ----------
    width
        Their number.
    numbers
        The places of numbers in [-1, 1].
    absent
        Of each of these, the place of the flag of missing values, or -1.
    """

    width: int
    numbers: tuple[int, ...]
    absent: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Plain:
    """The encoded columns as they are."""

    name: ClassVar[str] = "columns"

    def width(self, layout: Layout) -> int:
        """Return the number of features."""
        return layout.width

    def of(self, records: Records, layout: Layout) -> Records:
        """Return the features of encoded records."""
        return records


@dataclass(frozen=True, kw_only=True)
class Hats:
    """Piecewise linear functions of each number, 0 for one that is missing; the rest as it is.

    Parameters
    ----------
    knots
        Number of functions of a number, evenly spaced over its range.
    """

    name: ClassVar[str] = "hats"
    knots: int = 16

    def __post_init__(self) -> None:
        integer("knots", self.knots, at_least=2)

    def width(self, layout: Layout) -> int:
        """Return the number of features."""
        return layout.width + (self.knots - 1) * len(layout.numbers)

    def of(self, records: Records, layout: Layout) -> Records:
        """Return the features of encoded records."""
        others = np.setdiff1d(np.arange(layout.width), layout.numbers)
        out = np.empty((len(records), self.width(layout)))
        out[:, : len(others)] = records[:, others]
        knots = np.linspace(-1, 1, self.knots)
        for nth, (place, absent) in enumerate(zip(layout.numbers, layout.absent, strict=True)):
            hats = out[:, len(others) + nth * self.knots :][:, : self.knots]
            np.abs(records[:, place, np.newaxis] - knots, out=hats)
            np.maximum(1 - hats / (knots[1] - knots[0]), 0, out=hats)
            if absent >= 0:
                hats[records[:, absent] == 1] = 0
        return out


@dataclass(frozen=True, kw_only=True)
class Cosines:
    """Cosines of the encoded columns along random directions.

    Parameters
    ----------
    count
        Number of directions.
    turns
        The standard deviation of the frequencies is ``turns / sqrt(numbers)``, of 10 numbers and
        more ``turns / sqrt(10)``.
    seed
        Public: it alone determines the directions.
    """

    name: ClassVar[str] = "cosines"
    count: int = 1000
    turns: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        integer("count", self.count, at_least=1)
        positive("turns", self.turns)
        integer("seed", self.seed, below=2**64)

    def width(self, layout: Layout) -> int:
        """Return the number of features."""
        return self.count

    def of(self, records: Records, layout: Layout) -> Records:
        """Return the features of encoded records."""
        normal, uniform = _drawn(self.seed, layout.width, self.count)
        scale = self.turns / sqrt(min(max(len(layout.numbers), 1), MOST_NUMBERS))
        angles = records @ (scale * normal)
        angles += 2 * pi * uniform
        return np.cos(angles, out=angles)


@dataclass(frozen=True, kw_only=True)
class Scattering:
    """Scattering coefficients of square images of numbers, along random directions.

    Parameters
    ----------
    scales, angles
        Octaves and directions of the wavelets; the images' side is a multiple of ``2 ** scales``.
    count
        Number of random directions.
    seed
        Public: it alone determines these.
    """

    name: ClassVar[str] = "scattering"
    scales: int = 2
    angles: int = 8
    count: int = 800
    seed: int = 0

    def __post_init__(self) -> None:
        every(self, integer, "scales", "angles", "count", at_least=1)
        every(self, integer, "seed", below=2**64)

    def width(self, layout: Layout) -> int:
        """Return the number of features.

        Raises
        ------
        ValueError
            If the columns are no square image.
        """
        side, window = isqrt(layout.width), 2**self.scales
        if side**2 != layout.width or side % window or len(layout.numbers) != layout.width:
            wanted = f"columns that are the pixels of a square image, its side {window}, "
            fail("features", f"{wanted}{2 * window}, .. pixels, for scattering", layout.width)
        return self.count

    def of(self, records: Records, layout: Layout) -> Records:
        """Return the features of encoded records."""
        from dpmesh.tables.wavelets import channels_of, coefficients

        width, side = self.width(layout), isqrt(layout.width)
        windows = (side // 2**self.scales) ** 2
        own = {"scales": self.scales, "angles": self.angles}
        channels = channels_of(**own) * windows
        normal, _ = _drawn(self.seed, channels, width)
        out = np.empty((len(records), width))
        for first in range(0, len(records), _IMAGES):  # which have far more coefficients
            pixels = (records[first : first + _IMAGES] + 1) / 2
            found = np.empty((len(pixels), channels), np.float32)
            coefficients(pixels.reshape(-1, side, side), **own, out=found)
            out[first : first + _IMAGES] = found.astype(np.float64) @ normal
        return out


Part: TypeAlias = Plain | Hats | Cosines | Scattering

KINDS: dict[str, type[Part]] = {one.name: one for one in (Plain, Hats, Cosines, Scattering)}


@dataclass(frozen=True)
class FeatureMap:
    """What a model makes of encoded columns, each record by itself.

    Parameters
    ----------
    parts
        One or several, each once.
    """

    parts: tuple[Part, ...] = (Plain(),)

    @classmethod
    def of(cls, name: str) -> FeatureMap:
        """Return the features of a name such as ``"columns"`` or ``"hats+cosines"``.

        Raises
        ------
        ValueError
            If there are none of this name.
        """
        names = name.split("+") if isinstance(name, str) else []
        for one in names or [name]:
            if one not in KINDS or names.count(one) > 1:
                hint = nearest(one, KINDS)
                wanted = f"{', '.join(KINDS)}, or some of them with + between them, each once"
                fail("features", wanted, f"{name!r}{hint}")
        return cls(tuple(KINDS[one]() for one in names))

    @property
    def name(self) -> str:
        """Such as ``"hats+cosines"``."""
        return "+".join(part.name for part in self.parts)

    def width(self, layout: Layout) -> int:
        """Return the number of features.

        Raises
        ------
        ValueError
            If the features do not suit the columns.
        """
        return sum(part.width(layout) for part in self.parts)

    def encode(self, records: Records, layout: Layout) -> Records:
        """Return the features of encoded records: each part has norm 1, but for columns alone."""
        if self == COLUMNS:
            return records
        return np.concatenate([unit(part.of(records, layout)) for part in self.parts], axis=1)

    def as_dict(self) -> dict[str, Any]:
        """Return the map in plain types that JSON can hold: of each part all numbers."""
        return {part.name: dict(vars(part)) for part in self.parts}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> FeatureMap:
        """Return the features that `as_dict` gave."""
        return cls(tuple(KINDS[name](**numbers) for name, numbers in saved.items()))


COLUMNS = FeatureMap()
"""The columns as they are."""

SCATTERING = FeatureMap((Scattering(),))
"""Of images."""


def unit(records: Records) -> Records:
    """Return records divided by their L2 norm; those of norm 0 as they are."""
    norms = np.sqrt(np.einsum("ij,ij->i", records, records))[:, np.newaxis]
    return records / np.where(norms > 0, norms, 1)


def stored_type(records: int, dim: int) -> type[np.floating[Any]]:
    """Return the type in which features of so many records are stored."""
    return np.float32 if 8 * records * dim >= SINGLE_FROM else np.float64


def within_unit(records: npt.NDArray[Any]) -> None:
    """Shrink rows in place until no norm, computed exactly, is above 1.

    A row of norm 1 may have a slightly larger norm once its numbers are rounded to float32. Each
    step moves all numbers of such a row towards 0 by one unit in the last place.

    Parameters
    ----------
    records
        Shape (records, features), rows of norm 1 before they were rounded.
    """
    shrink = np.nextafter(np.float32(1), np.float32(0))
    most = 1 - 1e-12  # which leaves room for rounding of the sums below
    rows = np.arange(len(records))
    while len(rows):
        norms = np.sqrt(np.einsum("ij,ij->i", records[rows], records[rows], dtype=np.float64))
        rows = rows[norms > most]
        records[rows] *= shrink


def centred(records: Records, centre: npt.NDArray[Any]) -> Records:
    """Return what is left of records without a public centre, at norm 1, with a constant.

    The differences have norm 1, whatever is left of them, and a record with the constant `CONSTANT`
    has norm 1 again: each is a function of itself and of the centre.

    Parameters
    ----------
    records
        Shape (records, features).
    centre
        Shape (features,); or longer, with axes a_1, a_2, .. of as many numbers after it, along
        which differences are shortened: to ``v - sum_i a_i <a_i, v>``.

    Returns
    -------
    Shape (records, features + 1), in the type of the records.
    """
    out = np.empty((len(records), records.shape[1] + 1), records.dtype)
    mean, *axes = centre.reshape(-1, records.shape[1])
    left = np.subtract(records, mean, out=out[:, :-1])
    if axes:
        left -= (left @ np.transpose(axes)) @ np.asarray(axes)
    norms = np.sqrt(np.einsum("ij,ij->i", left, left, dtype=np.float64))
    factors = 1 / (sqrt(1 + CONSTANT**2) * np.where(norms > 0, norms, 1))
    left *= factors[:, np.newaxis].astype(records.dtype)
    out[:, -1] = CONSTANT / sqrt(1 + CONSTANT**2)
    if out.dtype == np.float32:
        within_unit(out)
    return out


def centred_in_place(memory: npt.NDArray[Any], records: int, centre: npt.NDArray[Any]) -> Records:
    """Return what `centred` does, in the memory of the records themselves, which are lost.

    Parameters
    ----------
    memory
        Begins with the records, row by row, and has room for one more feature of each: shape
        (records * (features + 1),).
    records
        Number of records.
    centre
        As for `centred`.

    Returns
    -------
    All of the memory, shape (records, features + 1).
    """
    after = memory.reshape(records, -1)
    dim = after.shape[1] - 1
    before = memory[: records * dim].reshape(records, dim)
    for last in range(records, 0, -BLOCK):  # from the end, since rows move towards it
        first = max(0, last - BLOCK)
        after[first:last] = centred(before[first:last], centre)
    return after


@lru_cache(maxsize=2)
def _drawn(seed: int, rows: int, columns: int) -> tuple[Records, Records]:
    """Return standard normal numbers, shape (rows, columns), and uniform ones, shape (columns,).

    They are the same on all machines and with all versions of numpy, up to rounding.
    """
    from scipy.special import ndtri  # which models of columns alone do not need

    raw = np.random.Philox(key=seed).random_raw((rows + 1) * columns)
    uniform = ((raw >> np.uint64(11)) + 0.5) * 2.0**-53
    return ndtri(uniform[columns:]).reshape(rows, columns), uniform[:columns]
