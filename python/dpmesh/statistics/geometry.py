"""Vectors of records: functions of one record and of public numbers, for a statistic.

The distance between the vectors of two records is the sensitivity of their sum under replace-one.
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
    """The public size of a vector.

    Attributes
    ----------
    dim
        Its length.
    norm
        Its largest L2 norm.
    distance
        The largest L2 distance between the vectors of two records.
    entries
        How many of its numbers are not 0, if it is sparse.
    """

    dim: int
    norm: float
    distance: float
    entries: int | None = None

    @property
    def stored(self) -> int:
        """Number of a vector's entries in memory: those other than 0 if it is sparse, else all."""
        if self.entries is None:
            return self.dim
        return self.entries


MISSING = "missing"
"""The name of the cell of missing values."""

ONE_HOT = (1.0, sqrt(2))
"""Norm and distance of vectors with a single 1: a record is in one cell, replaced in another."""

MOMENTS = (sqrt(2.125), sqrt(4.25))
"""Norm and distance of (z, z^2, z^3 / 4, z^4 / 4) for z in [-1, 1]: see docs/statistics.md."""

FOURTH = 0.25
"""Weight of the third and the fourth power."""


class Column(NamedTuple):
    """A column, each of its cells read by itself.

    Attributes
    ----------
    kind
        Its public range.
    numbers
        Numbers and dates in the units of the column, not clipped, NaN where there is none; shape
        (records,).
    z
        Numbers, dates and flags in [-1, 1], 0 where there is none; shape (records,).
    present
        Whether there is a value, shape (records,).
    places
        The place of each category, and the number of categories where there is none.
    """

    kind: Kind
    numbers: Floats
    z: Floats
    present: npt.NDArray[np.bool_]
    places: npt.NDArray[np.int64]

    @classmethod
    def read(cls, name: str, kind: Kind, table: Table) -> tuple[Column, int, list[Any]]:
        """Return a column, the number of values that are clipped, and those that cannot be read."""
        values = table.select([name]).columns[0]
        if isinstance(kind, Category):
            features, clipped, unread = kind.encode(name, values)
            present = np.asarray(features.any(axis=1))
            places = np.where(present, features.argmax(axis=1), kind.width)
            no_numbers = np.zeros(len(places))
            return cls(kind, no_numbers, no_numbers, present, places), clipped, unread
        numbers = kind.checked_numbers(name, values)
        read = kind.encode_numbers(numbers, values)
        return cls.of_numbers(kind, numbers), read.clipped, read.unread

    @classmethod
    def of_numbers(cls, kind: Number | Flag | Dates, numbers: Floats) -> Column:
        """Return a column of numbers in its units, NaN where there is none."""
        present = ~np.isnan(numbers)
        scaled = kind.scaled(numbers)
        if isinstance(kind, Flag):  # which is 0 or 1
            scaled = 2 * scaled - 1
        z = np.where(present, scaled, 0.0)
        return cls(kind, numbers, z, present, np.zeros(len(z), np.int64))

    @property
    def encoded(self) -> Floats:
        """Each cell as two finite numbers: its value, and whether there is one."""
        values = self.numbers
        if isinstance(self.kind, Category):
            values = self.places.astype(np.float64)
        values = np.where(self.present, values, 0.0)
        return np.stack([values, self.present.astype(np.float64)], axis=1)

    @classmethod
    def decoded(cls, kind: Kind, cells: Floats) -> Column:
        """Return the column that `encoded` gave.

        Where a value may not be missing, a cell without one (of made-up records) is its number 0.
        """
        values = cells[:, 0]
        present = cells[:, 1] != 0
        if not kind.may_be_missing:
            present = np.ones_like(present)
        if isinstance(kind, Category):
            places = np.where(present, values, kind.width).astype(np.int64)
            no_numbers = np.zeros(len(places))
            return cls(kind, no_numbers, no_numbers, present, places)
        return cls.of_numbers(kind, np.where(present, values, np.nan))

    def take(self, records: npt.NDArray[np.int64]) -> Column:
        """Return the records at these indices."""
        return Column(
            kind=self.kind,
            numbers=self.numbers[records],
            z=self.z[records],
            present=self.present[records],
            places=self.places[records],
        )

    def cell(self, bins: int) -> npt.NDArray[np.int64]:
        """Return the number of each record's cell among those that `cells` names."""
        if isinstance(self.kind, Category):
            return self.places
        if isinstance(self.kind, Flag):
            bins = 2
        return np.where(self.present, bins_of(self.numbers, self.kind, bins), bins)


Columns = Mapping[str, Column]


def kind_of(
    kinds: Mapping[str, Kind], name: str, types: type | tuple[type, ...], noun: str
) -> Kind:
    """Return the kind of a column; fail unless it is of one of these types.

    `noun` names the types in the error.
    """
    kind = kinds[name]
    if not isinstance(kind, types):
        fail(name, noun, f"{{{kind.toml}}}")
    return kind


def unscaled(kind: Kind, z: npt.ArrayLike) -> Floats:
    """Return numbers in [-1, 1] in the units of their column."""
    low, high = ends(kind)
    return np.asarray(low + (high - low) * (np.asarray(z, np.float64) + 1) / 2)


def cells(kind: Kind, bins: int) -> list[str]:
    """Return the names of a column's cells: categories or bins, and ``missing`` if there may be."""
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
    """Return vectors with a 1 at the place of a record's cell, shape (records, count)."""
    vectors = np.zeros((len(cell), count))
    vectors[np.arange(len(cell)), cell] = 1
    return vectors


def moments(columns: Sequence[Column]) -> Floats:
    """Return the powers of each column, and a 1 for each value if one may be missing.

    Shape (records, 4 or 5 for each column).
    """
    entries = []
    for column in columns:
        z = column.z
        entries += [z, z**2, FOURTH * z**3, FOURTH * z**4]
        if column.kind.may_be_missing:
            entries.append(column.present.astype(np.float64))
    return np.stack(entries, axis=1)


def products(columns: Sequence[Column]) -> Floats:
    """Return the upper triangle of ``(1, z)(1, z)^T``, off-diagonals times sqrt(2).

    Its length is the squared length of (1, z). A record that lacks a value is all zeros.
    """
    ones = np.ones(len(columns[0].z))
    rows = np.stack([ones, *(column.z for column in columns)], axis=1)
    has_all_values = np.all([column.present for column in columns], axis=0)
    return triangles(rows * has_all_values[:, np.newaxis])


def triangles(rows: Floats) -> Floats:
    """Return the upper triangle of ``z z^T`` for each row z, off-diagonals times sqrt(2)."""
    first, second = np.triu_indices(rows.shape[1])
    weights = np.where(first == second, 1.0, sqrt(2))
    return np.asarray(rows[:, first] * rows[:, second] * weights)


def matrix_of_triangle(entries: Floats, width: int) -> Floats:
    """Return the symmetric matrix, shape (width, width), of a triangle of `triangles`."""
    first, second = np.triu_indices(width)
    upper = np.zeros((width, width))
    upper[first, second] = entries / np.where(first == second, 1.0, sqrt(2))
    return np.asarray(upper + np.triu(upper, 1).T)
