"""Vectors of records whose noisy sums answer questions, and the columns that they are made of.

Each vector is a function of one record and of public numbers. Under replace-one, the L2 sensitivity
of the sum of all vectors is the largest distance between the vectors of two records: `Size` states
it. `Column` holds the cells of a column in the forms that vectors need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail
from dpmesh.statistics.bins import Floats, bins_of, ends, names_of_bins
from dpmesh.tables.kinds import Category, Dates, Flag, Kind, Number
from dpmesh.tables.table import Table


class Size(NamedTuple):
    """Length, largest norm and sensitivity of a record's vector: public numbers.

    Attributes
    ----------
    dim
        Number of elements of the vector.
    norm
        Largest L2 norm of a record's vector.
    distance
        Largest L2 distance between the vectors of two records: the L2 sensitivity of the sum to
        replacing a record.
    entries
        Number of nonzero elements of a sparse vector; None for a dense vector.
    """

    dim: int
    norm: float
    distance: float
    entries: int | None = None

    @property
    def stored(self) -> int:
        """Number of a vector's elements that are stored in memory."""
        if self.entries is None:
            return self.dim
        return self.entries


MISSING = "missing"
"""Name of the cell (bin) of missing values."""

ONE_HOT = (1.0, sqrt(2))
"""Largest norm, and distance, of one-hot vectors: a replaced record moves to another cell."""

MOMENTS = (sqrt(2.125), sqrt(4.25))
"""Largest norm, and distance, of (z, z^2, z^3 / 4, z^4 / 4) for z in [-1, 1]: see
docs/privacy/statistics.md."""

FOURTH = 0.25
"""Weight, a fourth, of the third and the fourth power in these vectors."""


class Column(NamedTuple):
    """The cells of a column, read as numbers or categories.

    All arrays have the shape (records,).

    Attributes
    ----------
    kind
        Public range of the column.
    numbers
        Numbers, dates (in days) and flags in the units of the column, not clipped; NaN for a
        missing value. Zeros for a column of categories.
    z
        The same numbers clipped and mapped linearly from the range to [-1, 1]; 0 for a missing
        value. Zeros for a column of categories.
    present
        True for a record with a value.
    places
        Index of the category; for a missing value the number of categories. Zeros for a column of
        numbers.
    """

    kind: Kind
    numbers: Floats
    z: Floats
    present: npt.NDArray[np.bool_]
    places: npt.NDArray[np.int64]

    @classmethod
    def read(cls, name: str, kind: Kind, table: Table) -> tuple[Column, int, list[Any]]:
        """Read a column of a table.

        Returns
        -------
        The column, the number of clipped values, and the values that cannot be read.
        """
        values = table.select([name]).columns[0]
        if isinstance(kind, Category):
            features, clipped, unread = kind.encode(name, values)
            present = np.asarray(features.any(axis=1))
            places = np.where(present, features.argmax(axis=1), kind.width)
            zeros = np.zeros(len(places))
            return cls(kind, zeros, zeros, present, places), clipped, unread
        numbers = kind.checked_numbers(name, values)
        read = kind.encode_numbers(numbers, values)
        return cls.of_numbers(kind, numbers), read.clipped, read.unread

    @classmethod
    def of_numbers(cls, kind: Number | Flag | Dates, numbers: Floats) -> Column:
        """Return a column of these numbers in the units of the column; NaN for a missing value."""
        present = ~np.isnan(numbers)
        scaled = kind.scaled(numbers)
        if isinstance(kind, Flag):  # `Flag.scaled` is 0 or 1
            scaled = 2 * scaled - 1
        z = np.where(present, scaled, 0.0)
        return cls(kind, numbers, z, present, np.zeros(len(z), np.int64))

    @property
    def encoded(self) -> Floats:
        """Each cell as two finite numbers, shape (records, 2): its value, and 1 if it has a value.

        The value of a category is its index. A missing value is 0, 0.
        """
        values = self.numbers
        if isinstance(self.kind, Category):
            values = self.places.astype(np.float64)
        values = np.where(self.present, values, 0.0)
        return np.stack([values, self.present.astype(np.float64)], axis=1)

    @classmethod
    def decoded(cls, kind: Kind, cells: Floats) -> Column:
        """Return the column from an array that `encoded` returned.

        If values may not be missing, the second number of a cell is ignored: made-up records may
        have any numbers there.
        """
        values = cells[:, 0]
        present = cells[:, 1] != 0
        if not kind.may_be_missing:
            present = np.ones_like(present)
        if isinstance(kind, Category):
            places = np.where(present, values, kind.width).astype(np.int64)
            zeros = np.zeros(len(places))
            return cls(kind, zeros, zeros, present, places)
        return cls.of_numbers(kind, np.where(present, values, np.nan))

    def take(self, records: npt.NDArray[np.int64]) -> Column:
        """Return the column of the records at these indices."""
        return Column(
            kind=self.kind,
            numbers=self.numbers[records],
            z=self.z[records],
            present=self.present[records],
            places=self.places[records],
        )

    def cell(self, bins: int) -> npt.NDArray[np.int64]:
        """Return the index of each record's cell (bin or category) in the list of `cells`.

        Parameters
        ----------
        bins
            Number of bins, for numbers and dates.
        """
        if isinstance(self.kind, Category):
            return self.places
        if isinstance(self.kind, Flag):
            bins = 2
        return np.where(self.present, bins_of(self.numbers, self.kind, bins), bins)


Columns = Mapping[str, Column]


def kind_of(
    kinds: Mapping[str, Kind], name: str, types: type | tuple[type, ...], noun: str
) -> Kind:
    """Return the public range of a column; fail unless it is of one of these types.

    Parameters
    ----------
    kinds
        Public range of each column.
    name
        Name of the column.
    types
        Accepted classes of ranges.
    noun
        Description of the accepted types for the error.
    """
    kind = kinds[name]
    if not isinstance(kind, types):
        fail(name, noun, f"{{{kind.toml}}}")
    return kind


def unscaled(kind: Kind, z: npt.ArrayLike) -> Floats:
    """Map numbers linearly from [-1, 1] to the public range of their column."""
    low, high = ends(kind)
    return np.asarray(low + (high - low) * (np.asarray(z, np.float64) + 1) / 2)


def cells(kind: Kind, bins: int) -> list[str]:
    """Return the names of a column's cells: its categories or bins, then ``missing`` if allowed."""
    if isinstance(kind, Category):
        return [*map(str, kind.categories), MISSING]
    if isinstance(kind, Flag):
        names = ["false", "true"]
    else:
        names = names_of_bins(kind, bins)
    if kind.missing:
        names.append(MISSING)
    return names


def one_hot(cell: npt.NDArray[np.int64], count: int) -> Floats:
    """Return one-hot vectors, shape (records, count), from the index of each record's cell."""
    vectors = np.zeros((len(cell), count))
    vectors[np.arange(len(cell)), cell] = 1
    return vectors


def moments(columns: Sequence[Column]) -> Floats:
    """Return the weighted powers of each column, see `MOMENTS`, shape (records, dim).

    A column whose values may be missing has a fifth element: 1 for a present value, else 0.
    """
    entries = []
    for column in columns:
        z = column.z
        entries += [z, z**2, FOURTH * z**3, FOURTH * z**4]
        if column.kind.may_be_missing:
            entries.append(column.present.astype(np.float64))
    return np.stack(entries, axis=1)


def products(columns: Sequence[Column]) -> Floats:
    """Return the upper triangle of ``(1, z)(1, z)^T``, off-diagonal entries times sqrt(2).

    The L2 norm of the result is the squared norm of (1, z). The vector of a record with a missing
    value is 0.
    """
    ones = np.ones(len(columns[0].z))
    rows = np.stack([ones, *(column.z for column in columns)], axis=1)
    has_all_values = np.all([column.present for column in columns], axis=0)
    return triangles(rows * has_all_values[:, np.newaxis])


def triangles(rows: Floats) -> Floats:
    """Return the upper triangle of ``z z^T`` for each row z, off-diagonal entries times sqrt(2)."""
    first, second = np.triu_indices(rows.shape[1])
    weights = np.where(first == second, 1.0, sqrt(2))
    return np.asarray(rows[:, first] * rows[:, second] * weights)


def matrix_of_triangle(entries: Floats, width: int) -> Floats:
    """Return the symmetric matrix, shape (width, width), from a triangle as of `triangles`."""
    first, second = np.triu_indices(width)
    upper = np.zeros((width, width))
    upper[first, second] = entries / np.where(first == second, 1.0, sqrt(2))
    return np.asarray(upper + np.triu(upper, 1).T)
