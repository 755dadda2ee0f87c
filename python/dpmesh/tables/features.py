"""Feature maps: fixed functions of the encoded columns of a record, as inputs of a linear model.

Each map is a function of one record and of public numbers, so it needs no epsilon. In a linear
model of the encoded columns, the score is a linear function of each number. The other maps let a
linear model learn nonlinear functions:

- ``"columns"``: the encoded columns, unchanged;
- ``"hats"``: piecewise-linear splines, 16 hat functions of each number; flags and categories
  unchanged;
- ``"cosines"``: random Fourier features (Rahimi and Recht, "Random Features for Large-Scale Kernel
  Machines", 2007): cosines of the columns along 1,000 public random directions;
- ``"scattering"``: for square images, pixel by pixel in rows, the scattering coefficients of fixed
  wavelets (`dpmesh.tables.wavelets`), projected on 800 public random directions.

A union such as ``"columns+hats"`` concatenates the features of its parts. Each part is first
divided by its L2 norm, so that all parts have the same weight.

This module also has the steps after a map: division by the norm (`unit`), and centering by a
privately released mean (`centred`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, pi, sqrt
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from dpmesh import _core  # the package of kernels would import scipy
from dpmesh._files import JsonObject
from dpmesh._rounded import BLOCK as ROUNDED_BLOCK
from dpmesh._rounded import RoundedFeatures
from dpmesh._validate import every, fail, integer, nearest, positive
from dpmesh.tables.cells import FloatArray

FloatT = TypeVar("FloatT", bound=np.floating[Any])

Records: TypeAlias = npt.NDArray[np.float64]
"""Shape (records, features)."""

CONSTANT = 0.3
"""Constant feature (intercept) of a centered record, whose other features have norm 1."""

AXES = 16
"""Number of principal axes of a private second moment along which records are shortened. An axis
that the noise hides is a zero vector."""

MOST_NUMBERS = 10
"""Number of columns of numbers beyond which the frequencies of cosines do not fall further."""

_IMAGES = 1 << 10
"""Number of images whose scattering coefficients are in memory at once."""

BLOCK = 1 << 12
"""Number of records whose features are computed at once."""

SINGLE_FROM = 1 << 28
"""Size of features in float64, in bytes, from which they are stored in float32."""

ROUNDED_FROM = 1 << 30
"""Size of features in float64, in bytes, from which they are stored in 8 bits."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Layout of an encoded record: the positions of numbers, and of flags for missing numbers.

    Parameters
    ----------
    width
        Number of elements of an encoded record.
    numbers
        Positions of numbers in [-1, 1], without flags and categories.
    absent
        For each of `numbers`, the position of the flag that is 1 if the number is missing; -1 if
        the number cannot be missing.
    """

    width: int
    numbers: tuple[int, ...]
    absent: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Plain:
    """The encoded columns, unchanged."""

    name: ClassVar[str] = "columns"

    def width(self, layout: Layout) -> int:
        """Return the number of features."""
        return layout.width

    def of(self, records: Records, layout: Layout) -> Records:
        """Return the features of encoded records."""
        return records


@dataclass(frozen=True, kw_only=True)
class Hats:
    """Piecewise-linear splines of each number; flags and categories unchanged.

    The hat function of knot k is ``max(0, 1 - |x - k| / distance)``, where `distance` separates
    neighbouring knots. All hat functions of a missing number are 0.

    Parameters
    ----------
    knots
        Number of knots, and of hat functions, of a number, evenly spaced over its range.
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
        unchanged = np.setdiff1d(np.arange(layout.width), layout.numbers)
        features = np.empty((len(records), self.width(layout)))
        features[:, : len(unchanged)] = records[:, unchanged]
        knots = np.linspace(-1, 1, self.knots)
        distance = knots[1] - knots[0]
        first = len(unchanged)
        for number, missing_flag in zip(layout.numbers, layout.absent, strict=True):
            hats = features[:, first : first + self.knots]
            np.abs(records[:, number, np.newaxis] - knots, out=hats)
            np.maximum(1 - hats / distance, 0, out=hats)
            if missing_flag >= 0:
                hats[records[:, missing_flag] == 1] = 0
            first += self.knots
        return features


@dataclass(frozen=True, kw_only=True)
class Cosines:
    """Random Fourier features: cosines of the encoded columns along random directions.

    A feature is ``cos(<w, x> + 2 pi u)`` with normal frequencies w and a uniform phase u.

    Parameters
    ----------
    count
        Number of directions.
    turns
        Scale of the frequencies. With n columns of numbers, their standard deviation is
        ``turns / sqrt(n)``, and for n > 10 ``turns / sqrt(10)``.
    seed
        Public seed that determines the directions.
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
        normal, uniform = _random_directions(self.seed, layout.width, self.count)
        numbers = max(len(layout.numbers), 1)
        scale = self.turns / sqrt(min(numbers, MOST_NUMBERS))
        angles: Records = records @ (scale * normal)
        angles += 2 * pi * uniform
        if angles.size == 0:  # the kernel refuses an empty array
            return angles
        return _core.cosines(angles, angles)


@dataclass(frozen=True, kw_only=True)
class Scattering:
    """Scattering coefficients of square images, projected on random directions.

    The encoded columns are the pixels of an image, row by row, all of them numbers.

    Parameters
    ----------
    scales, angles
        Number of octaves and of orientations of the wavelets. The side of an image, in pixels, is a
        multiple of ``2 ** scales``.
    count
        Number of random directions to project on.
    seed
        Public seed that determines the random directions.
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
            If the columns are not the pixels of a square image of a suitable size.
        """
        side = isqrt(layout.width)
        window = 2**self.scales
        is_square = side**2 == layout.width
        only_numbers = len(layout.numbers) == layout.width
        if not is_square or side % window or not only_numbers:
            expected = f"columns that are the pixels of a square image, its side {window}, "
            fail("features", f"{expected}{2 * window}, .. pixels, for scattering", layout.width)
        return self.count

    def of(self, records: Records, layout: Layout) -> Records:
        """Return the features of encoded records."""
        from dpmesh.tables.wavelets import channels_of, coefficients

        width = self.width(layout)
        side = isqrt(layout.width)
        windows = (side // 2**self.scales) ** 2
        coefficients_of_image = channels_of(self.scales, self.angles) * windows
        normal, _ = _random_directions(self.seed, coefficients_of_image, width)
        features = np.empty((len(records), width))
        for first in range(0, len(records), _IMAGES):
            block = slice(first, first + _IMAGES)
            pixels = (records[block] + 1) / 2
            images = pixels.reshape(-1, side, side)
            scattered = np.empty((len(images), coefficients_of_image), np.float32)
            coefficients(images, scales=self.scales, angles=self.angles, out=scattered)
            features[block] = scattered.astype(np.float64) @ normal
        return features


Part: TypeAlias = Plain | Hats | Cosines | Scattering

KINDS: dict[str, type[Part]] = {part.name: part for part in (Plain, Hats, Cosines, Scattering)}


@dataclass(frozen=True)
class FeatureMap:
    """Map from the encoded columns of a record to the features of a model.

    Parameters
    ----------
    parts
        Kinds of features, each at most once; they are concatenated.
    """

    parts: tuple[Part, ...] = (Plain(),)

    @classmethod
    def of(cls, name: str) -> FeatureMap:
        """Return the feature map of a name such as ``"columns"`` or ``"hats+cosines"``.

        Raises
        ------
        ValueError
            If a part of the name is unknown, or occurs twice.
        """
        expected = f"{', '.join(KINDS)}, or some of them with + between them, each once"
        if not isinstance(name, str):
            fail("features", expected, f"{name!r}{nearest(name, KINDS)}")
        parts = name.split("+")
        for part in parts:
            if part not in KINDS or parts.count(part) > 1:
                fail("features", expected, f"{name!r}{nearest(part, KINDS)}")
        return cls(tuple(KINDS[part]() for part in parts))

    @property
    def name(self) -> str:
        """Name of the map, such as ``"hats+cosines"``."""
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
        """Return the features of encoded records, shape (records, features).

        The features of each part are scaled to norm 1. `COLUMNS` returns the records unchanged.

        Parameters
        ----------
        records
            Encoded records, shape (records, ``layout.width``).
        layout
            Layout of an encoded record.
        """
        if self == COLUMNS:
            return records
        parts = [unit(part.of(records, layout)) for part in self.parts]
        return np.concatenate(parts, axis=1)

    def as_dict(self) -> JsonObject:
        """Return the map in plain types that JSON can hold: the parameters of each part."""
        return {part.name: dict(vars(part)) for part in self.parts}

    @classmethod
    def from_dict(cls, saved: JsonObject) -> FeatureMap:
        """Return the map from the content that `as_dict` returned."""
        return cls(tuple(KINDS[name](**numbers) for name, numbers in saved.items()))


COLUMNS = FeatureMap()
"""Map that leaves the columns as they are."""

SCATTERING = FeatureMap((Scattering(),))
"""Map from the pixels of images to scattering coefficients."""


def unit(records: Records) -> Records:
    """Divide each record by its L2 norm; records of norm 0 stay as they are."""
    norms = np.sqrt(np.einsum("ij,ij->i", records, records))[:, np.newaxis]
    return records / np.where(norms > 0, norms, 1)


def stored_type(
    records: int, dim: int, *, rounded: bool = True
) -> type[np.floating[Any]] | type[np.int8]:
    """Return the type of stored features by their size in float64, which is public.

    It is float64, from `SINGLE_FROM` bytes on float32, and from `ROUNDED_FROM` bytes on int8, for
    `RoundedFeatures`.

    Parameters
    ----------
    records, dim
        Number of records, and of features of a record.
    rounded
        False for models that cannot learn from `RoundedFeatures`, such as networks.
    """
    bytes_in_float64 = 8 * records * dim
    if rounded and bytes_in_float64 >= ROUNDED_FROM:
        return np.int8
    if bytes_in_float64 >= SINGLE_FROM:
        return np.float32
    return np.float64


def within_unit(records: FloatArray) -> None:
    """Shrink records in place until no exact norm is above 1.

    A record of norm 1 may have a slightly larger norm after rounding to float32. Each step
    multiplies such a record by the largest float32 number below 1.

    Parameters
    ----------
    records
        Float32 array of shape (records, features). Each record had norm 1 before it was rounded.
    """
    shrink = np.nextafter(np.float32(1), np.float32(0))
    largest_norm = 1 - 1e-12  # leaves room for the rounding of the sums below
    rows = np.arange(len(records))
    while len(rows):
        vectors = records[rows]
        norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
        rows = rows[norms > largest_norm]
        records[rows] *= shrink


def centred(records: npt.NDArray[FloatT], centre: FloatArray) -> npt.NDArray[FloatT]:
    """Subtract a released centre from records, normalize them, and append a constant.

    The difference of a record and the centre is divided by its norm, `CONSTANT` is appended, and
    the result is divided by its norm again. The result depends on this record and the centre alone.

    Parameters
    ----------
    records
        Shape (records, features).
    centre
        Centre, shape (features,). Axes a_1, a_2, .. of shape (features,) may follow the centre in
        the same array. The difference v is then shortened along the axes, to
        ``v - sum_i a_i <a_i, v>``.

    Returns
    -------
    Shape (records, features + 1), in the type of the records.
    """
    features = records.shape[1]
    result = np.empty((len(records), features + 1), records.dtype)
    mean, *axes = centre.reshape(-1, features)
    differences = np.subtract(records, mean, out=result[:, :-1])
    if axes:
        differences -= (differences @ np.transpose(axes)) @ np.asarray(axes)
    norms = np.sqrt(np.einsum("ij,ij->i", differences, differences, dtype=np.float64))
    norm_with_constant = sqrt(1 + CONSTANT**2)
    factors = 1 / (norm_with_constant * np.where(norms > 0, norms, 1))
    differences *= factors[:, np.newaxis].astype(records.dtype)
    result[:, -1] = CONSTANT / norm_with_constant
    if result.dtype == np.float32:
        within_unit(result)
    return result


def centred_in_place(memory: FloatArray, records: int, centre: FloatArray) -> FloatArray:
    """Center records as `centred` does, in place: the result overwrites the records.

    Parameters
    ----------
    memory
        Flat array, shape (records * (features + 1),). It begins with the features, record by
        record; the rest is room for one more feature of each record.
    records
        Number of records.
    centre
        As in `centred`.

    Returns
    -------
    View of all the memory, shape (records, features + 1).
    """
    longer_rows = memory.reshape(records, -1)
    dim = longer_rows.shape[1] - 1
    rows = memory[: records * dim].reshape(records, dim)
    for last in range(records, 0, -BLOCK):  # from the end, since rows move towards it
        first = max(0, last - BLOCK)
        longer_rows[first:last] = centred(rows[first:last], centre)
    return longer_rows


def centred_rounded(
    records: RoundedFeatures, centre: FloatArray, memory: RoundedFeatures | None
) -> RoundedFeatures:
    """Center records in 8 bits as `centred` does, and round the result.

    Parameters
    ----------
    records
        Shape (records, features).
    centre
        As in `centred`.
    memory
        The same records with room for one more feature, which the result overwrites; None for a
        copy.

    Returns
    -------
    Shape (records, features + 1).
    """
    dim = records.dim + 1
    result = RoundedFeatures.empty(len(records), dim) if memory is None else memory.widened(dim)
    for first in range(0, len(records), ROUNDED_BLOCK):
        block = records[first : first + ROUNDED_BLOCK]
        result.store(first, centred(block, centre))
    return result


@lru_cache(maxsize=2)
def _random_directions(seed: int, rows: int, columns: int) -> tuple[Records, Records]:
    """Return normal numbers, shape (rows, columns), and uniform ones in (0, 1), shape (columns,).

    The numbers are the same on all machines and with all versions of numpy, up to rounding.
    """
    from scipy.special import ndtri  # imported late: the map of columns alone needs no scipy

    raw = np.random.Philox(key=seed).random_raw((rows + 1) * columns)
    uniform = ((raw >> np.uint64(11)) + 0.5) * 2.0**-53  # the upper 53 bits
    normal = ndtri(uniform[columns:]).reshape(rows, columns)
    return normal, uniform[:columns]
