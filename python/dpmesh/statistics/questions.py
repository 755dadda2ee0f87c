"""Questions about tables: what each sums over records, and what it makes of the noisy sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import combinations
from math import sqrt
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

import dpmesh.statistics.geometry as geometry
from dpmesh._validate import fail, integer, probability
from dpmesh.algorithms.adaptive_sums import NoisyTotal
from dpmesh.statistics.answers import (
    Answer,
    Grid,
    Row,
    Z,
    consistent,
    nothing,
    quantile,
    row,
    share,
)
from dpmesh.statistics.bins import Floats, ends
from dpmesh.statistics.geometry import MISSING, Columns, Size, cells, kind_of
from dpmesh.tables.kinds import Category, Dates, Flag, Kind, Number

Kinds = Mapping[str, Kind]
"""The public range of each column."""

Vectors: TypeAlias = "Floats | sparse.csr_array"
"""A vector for each record, shape (records, dim)."""

MEASURED = (Number, Flag)
A_NUMBER = "a number or a flag"
LISTED = (Category, Flag)
A_CATEGORY = "a category or a flag"

SIMULATED_TABLES = 400
"""Sums with fresh noise from which the noise of a correlation is estimated."""

LARGEST_CORRELATION = 0.999
"""Correlations are cut off here, so that Fisher's transformation is finite."""


class Question(ABC):
    """A question to a table: vectors of records, whose sums are released with noise.

    A question of several rounds has vectors that follow from the totals of earlier rounds. What a
    record's vector may follow from, beside these, are the record itself and public numbers.
    """

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The columns that it reads."""

    def settled(self, noise: float | None, records: int) -> Question:
        """Return the question with all that follows from the noise in a number of its sum.

        Without the noise it is as small as it can be. Most questions are settled as they are.
        """
        del noise, records
        return self

    @abstractmethod
    def shares(self, kinds: Kinds) -> tuple[float, ...]:
        """Return the share of its budget that each round has: public numbers that add up to 1."""

    @abstractmethod
    def sizes(self, kinds: Kinds) -> tuple[Size, ...]:
        """Return the public size of a record's vector in each round.

        Raises
        ------
        ValueError
            If a column has no range, or one of another kind.
        """

    @abstractmethod
    def vectors_in(self, columns: Columns, t: int, totals: Sequence[NoisyTotal]) -> Vectors:
        """Return a vector for each record in round t, shape (records, dim).

        `totals` holds the released sums of the rounds before it.
        """

    @abstractmethod
    def require_all(self, kinds: Kinds, noises: Sequence[float], records: int) -> None:
        """Fail if records are too few for the noise in a number of each round's sum.

        This is before anything is released.
        """

    @abstractmethod
    def answer_from(self, kinds: Kinds, totals: Sequence[NoisyTotal], records: int) -> Answer:
        """Return the answer.

        Parameters
        ----------
        kinds
            The public ranges of the columns.
        totals
            The released sum of each round.
        records
            The public number of records of all sites.
        """


class OneRound(Question):
    """A question that one sum answers."""

    reads: ClassVar[tuple[str, ...]] = ("column",)
    """The fields that name columns."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it reads."""
        values = [getattr(self, field) for field in self.reads]
        return tuple(name for name in values if name is not None)

    @abstractmethod
    def size(self, kinds: Kinds) -> Size:
        """Return the public size of a record's vector."""

    @abstractmethod
    def vectors(self, columns: Columns) -> Vectors:
        """Return a vector for each record, shape (records, dim)."""

    def require(self, noise: float, records: int) -> None:
        """Fail if records are too few for the noise in a number, before anything is released."""

    @abstractmethod
    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return the answer from a noisy sum, with noise of this standard deviation in a number."""

    def shares(self, kinds: Kinds) -> tuple[float, ...]:
        """Return that all of its budget is in one round."""
        return (1.0,)

    def sizes(self, kinds: Kinds) -> tuple[Size, ...]:
        """Return the public size of a record's vector."""
        return (self.size(kinds),)

    def vectors_in(self, columns: Columns, t: int, totals: Sequence[NoisyTotal]) -> Vectors:
        """Return a vector for each record."""
        return self.vectors(columns)

    def require_all(self, kinds: Kinds, noises: Sequence[float], records: int) -> None:
        """Fail if records are too few for the noise."""
        (noise,) = noises
        self.require(noise, records)

    def answer_from(self, kinds: Kinds, totals: Sequence[NoisyTotal], records: int) -> Answer:
        """Return the answer."""
        (released,) = totals
        return self.answer(kinds, released.total, released.noise, records)


@dataclass(frozen=True, init=False)
class OfColumns(OneRound):
    """A question about several columns together, named one by one."""

    columns: tuple[str, ...]
    least: ClassVar[int] = 1

    def __init__(self, *columns: str) -> None:
        object.__setattr__(self, "columns", several(columns, self.least))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return self.columns


@dataclass(frozen=True)
class OneHot(OneRound):
    """A question whose records are each in one cell: the sensitivity is sqrt(2)."""

    @abstractmethod
    def cells(self, kinds: Kinds) -> int:
        """Return the number of cells."""

    @abstractmethod
    def cell(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Return the number of each record's cell."""

    def size(self, kinds: Kinds) -> Size:
        """Return the public size of a record's vector."""
        return Size(self.cells(kinds), *geometry.ONE_HOT)

    def vectors(self, columns: Columns) -> Floats:
        """Return a 1 at each record's cell."""
        kinds = {name: column.kind for name, column in columns.items()}
        return geometry.one_hot(self.cell(columns), self.cells(kinds))


def several(names: tuple[str, ...], least: int) -> tuple[str, ...]:
    """Return names of columns, each once."""
    are_distinct = len(set(names)) == len(names)
    if len(names) < least or not are_distinct:
        fail("columns", f"at least {least}, each once", ", ".join(names) or "none")
    return names


class Mean(OfColumns):
    """Count, mean and variance of columns of numbers or flags.

    A record is in all of them: the sensitivity is 2.06 times the root of their number, in units of
    half a range. The mean has Fieller's interval where the count has noise.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.statistics.Mean("age", "weight")
    Mean(columns=('age', 'weight'))
    """

    def size(self, kinds: Kinds) -> Size:
        """Return the public size of a record's vector."""
        numbers = [kind_of(kinds, name, MEASURED, A_NUMBER) for name in self.columns]
        missing = sum(kind.may_be_missing for kind in numbers)
        count = len(numbers)
        norm, distance = geometry.MOMENTS
        return Size(
            dim=4 * count + missing,
            norm=sqrt(norm**2 * count + missing),
            distance=distance * sqrt(count),
        )

    def vectors(self, columns: Columns) -> Floats:
        """Return the powers of each number, and whether it is there."""
        return geometry.moments([columns[name] for name in self.columns])

    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return three rows for each column."""
        rows: list[Row] = []
        for name in self.columns:
            kind = kinds[name]
            sums, total = np.split(total, [4 + kind.may_be_missing])
            rows += _moments_of(name, kind, sums, noise, records)
        return Answer(title="mean", rows=tuple(rows))


def _moments_of(name: str, kind: Kind, sums: Floats, noise: float, records: int) -> list[Row]:
    """Return count, mean and variance in the units of the column.

    With z the column scaled to [-1, 1], `sums` holds those of ``(z, z^2, z^3 / 4, z^4 / 4)`` and,
    if values may be missing, the noisy count n. The errors of the noise are first-order ("delta
    method"): of the mean ``S1 / n`` the derivatives by S1 and n are ``1 / n`` and ``-m1 / n``; of
    the variance ``S2 / n - (S1 / n)^2`` those by S1, S2 and n are ``-2 m1 / n``, ``1 / n`` and
    ``(2 m1^2 - m2) / n``.

    Parameters
    ----------
    name, kind
        The column and its public range.
    sums
        Noisy sums, shape (4,) or (5,).
    noise
        Standard deviation of the noise in each.
    records
        The public number of records.
    """
    count_noise = float(kind.may_be_missing)  # that of the count over that of a sum: 0 or 1
    count_name = f"{name}, count"
    if kind.may_be_missing:
        n = float(sums[4])
        count = share(count_name, n, noise, records)
    else:
        n = float(records)
        count = Row(count_name, n, 0.0, 0.0, n, n)
    if n <= max(Z * noise, 1.0):  # or the sums could be all noise
        return [count, nothing(f"{name}, mean"), nothing(f"{name}, variance")]

    m1, m2, m3, m4 = sums[:4] / n / (1, 1, geometry.FOURTH, geometry.FOURTH)
    mean_noise = noise / n * sqrt(1 + count_noise * m1**2)
    # the noise of m1 makes its square larger by mean_noise^2 on average
    variance = max(m2 - m1**2 + mean_noise**2, 0.0) * n / (n - 1)
    by_count = 2 * m1**2 - m2
    variance_noise = noise / n * sqrt(1 + 4 * m1**2 + count_noise * by_count**2)
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4  # the fourth central moment
    # sampling variances are at least what the noise of their estimates may hide
    mean_sampling = max(variance, variance_noise) / n
    variance_sampling = max(fourth - variance**2, noise / n / geometry.FOURTH) / n

    low, high = ends(kind)
    half_range = (high - low) / 2
    fieller = _fieller_interval(float(sums[0]), n, noise, count_noise, mean_sampling)
    mean_in_units, *interval = geometry.unscaled(kind, [m1, *np.clip(fieller, -1, 1)])
    mean = Row(
        f"{name}, mean",
        mean_in_units,
        Z * half_range * mean_noise,
        Z * half_range * sqrt(mean_sampling),
        *interval,
    )
    variance_and_errors = np.array([variance, variance_noise, sqrt(max(variance_sampling, 0.0))])
    in_units = variance_and_errors * half_range**2
    return [count, mean, row(f"{name}, variance", in_units, (0.0, half_range**2))]


def _fieller_interval(
    total: float, n: float, noise: float, count_noise: float, sampling: float
) -> list[float]:
    """Return Fieller's 95% interval of a mean, the ratio of a noisy sum to a noisy count.

    It holds all means m with ``(total - m n)^2 <= Z^2 (noise^2 (1 + count_noise m^2) + n^2
    sampling)``: between the roots of a quadratic polynomial in m.

    Parameters
    ----------
    total, n
        The sum and the count.
    noise
        Standard deviation of the noise in the sum.
    count_noise
        1 if the count has the same noise, 0 if it is public.
    sampling
        Variance of the mean by the choice of records.
    """
    z_squared = Z * Z
    leading = n**2 - count_noise * z_squared * noise**2
    middle = total * n
    constant = total**2 - z_squared * (noise**2 + n**2 * sampling)
    root = sqrt(max(middle * middle - leading * constant, 0.0))
    return [(middle - root) / leading, (middle + root) / leading]


@dataclass(frozen=True)
class Histogram(OneHot):
    """Count of records in each bin or category; missing values are a bin.

    Parameters
    ----------
    column
        Of any kind.
    bins
        Equal bins of the range of numbers and dates.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.statistics.Histogram("age", bins=5)
    Histogram(column='age', bins=5)
    """

    column: str
    _: KW_ONLY
    bins: int = 10

    def __post_init__(self) -> None:
        integer("bins", self.bins, at_least=2, below=2**16)

    def cells(self, kinds: Kinds) -> int:
        """Return the number of bins."""
        return len(cells(kinds[self.column], self.bins))

    def cell(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Return the number of each record's bin."""
        return columns[self.column].cell(self.bins)

    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return a count for each bin."""
        names = cells(kinds[self.column], self.bins)
        return Answer(
            title=f"{self.column}, count",
            rows=_counts(names, total, noise, records),
            bars=True,
            column=self.column,
        )


def _counts(names: list[str], total: Floats, noise: float, records: int) -> tuple[Row, ...]:
    """Return counts of disjoint cells, which sum up to the public number of records.

    With k cells, each count loses the mean noise of all, and so a share 1 / k of its variance.
    """
    counts = consistent(total, records)
    noise_left = noise * sqrt(1 - 1 / len(names))
    rows = []
    for name, count in zip(names, counts, strict=True):
        rows.append(share(name, float(count), noise_left, records))
    return tuple(rows)


@dataclass(frozen=True)
class Quantiles(Histogram):
    """Quantiles of a column of numbers or dates, from a histogram; intervals end at its edges.

    Parameters
    ----------
    column
        Of numbers or dates.
    at
        Each in (0, 1).
    bins
        Equal bins of the range. More bins are finer and have more noise together.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.statistics.Quantiles("age", at=(0.5,))
    Quantiles(column='age', bins=64, at=(0.5,))
    """

    at: tuple[float, ...] = (0.25, 0.5, 0.75)
    bins: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        for q in self.at:
            probability("at", q, zero=False, one=False)

    def cells(self, kinds: Kinds) -> int:
        """Return the number of bins."""
        kind_of(kinds, self.column, (Number, Dates), "a number or a date")
        return super().cells(kinds)

    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return a row for each quantile."""
        kind = kinds[self.column]
        counts = consistent(total, records)
        low, high = ends(kind)
        origin = np.array([low, 0, 0, low, low])  # of estimate, two errors, and two ends
        rows = []
        for q in self.at:
            name = "median" if q == 0.5 else f"{q:.4g} quantile"
            in_bins = quantile(q, counts, noise, kind.may_be_missing)
            in_units = in_bins * (high - low) / self.bins + origin
            rows.append(Row(name, *in_units.tolist()))
        return Answer(title=self.column, rows=tuple(rows), dates=isinstance(kind, Dates))


@dataclass(frozen=True)
class TwoWay(OneHot):
    """Count of records with each pair of categories of two columns; missing is a category.

    Parameters
    ----------
    row, column
        Categories or flags.
    missing
        Whether the table shows records that lack a value; they are among the rows of the answer.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.statistics.TwoWay("smokes", "ward")
    TwoWay(row='smokes', column='ward', missing=False)
    """

    row: str
    column: str
    _: KW_ONLY
    missing: bool = False
    reads = ("row", "column")

    def __post_init__(self) -> None:
        several(self.names, 2)

    def _categories(self, kinds: Kinds) -> tuple[list[str], list[str]]:
        """Return the names of the cells of both columns."""
        row_kind = kind_of(kinds, self.row, LISTED, A_CATEGORY)
        column_kind = kind_of(kinds, self.column, LISTED, A_CATEGORY)
        return cells(row_kind, 2), cells(column_kind, 2)

    def cells(self, kinds: Kinds) -> int:
        """Return the number of pairs."""
        rows, columns = self._categories(kinds)
        return len(rows) * len(columns)

    def cell(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Return the index of each record's pair of cells, shape (records,), counted row by row."""
        width = len(cells(columns[self.column].kind, 2))
        return columns[self.row].cell(2) * width + columns[self.column].cell(2)

    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return a count for each pair."""
        rows, columns = self._categories(kinds)
        names = [
            f"{self.row} {row_name}, {self.column} {column_name}"
            for row_name in rows
            for column_name in columns
        ]
        hidden = None if self.missing else MISSING
        grid = Grid(rows=tuple(rows), columns=tuple(columns), hidden=hidden)
        return Answer(
            title=f"{self.row} by {self.column}",
            rows=_counts(names, total, noise, records),
            grid=grid,
        )


class Correlation(OfColumns):
    """Correlations of all pairs of columns, over the records with a value in each of them.

    The vector is the upper triangle of ``(1, z)(1, z)^T``, with the c columns scaled to [-1, 1] in
    z: replacing a record moves the sum by at most sqrt(2) (1 + c). Sampling errors are those of a
    normal distribution (Fisher's transformation).

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.statistics.Correlation("age", "weight")
    Correlation(columns=('age', 'weight'))
    """

    least = 2

    def size(self, kinds: Kinds) -> Size:
        """Return the public size of a record's vector."""
        for name in self.columns:
            kind_of(kinds, name, MEASURED, A_NUMBER)
        width = len(self.columns) + 1
        return Size(width * (width + 1) // 2, width, sqrt(2) * width)

    def vectors(self, columns: Columns) -> Floats:
        """Return products of all pairs."""
        return geometry.products([columns[name] for name in self.columns])

    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return a row for each pair.

        The interval is normal in Fisher's ``z = arctanh(r)``. Its noise is the deviation of z over
        simulated sums, which cost nothing as they follow from the released one; its sampling
        deviation is ``1 / sqrt(n - 3)``.
        """
        may_be_missing = any(kinds[name].may_be_missing for name in self.columns)
        n = float(records)
        least_records = 4.0
        if may_be_missing:  # the number of records without a missing value is a noisy entry
            n = float(total[0])
            least_records = max(Z * noise, 4.0)
        normals = np.random.default_rng(0).standard_normal((SIMULATED_TABLES, len(total)))
        simulated = [
            _fisher(total + noise * normal, self.columns, records, may_be_missing)
            for normal in normals
        ]
        noise_deviations = np.std(simulated, axis=0)  # shape (pairs,)
        transformed = _fisher(total, self.columns, records, may_be_missing)
        rows = []
        pairs = combinations(self.columns, 2)
        for pair, z, deviation in zip(pairs, transformed, noise_deviations, strict=True):
            name = " and ".join(pair)
            if not np.isfinite(z + deviation) or n <= least_records:
                rows.append(nothing(name))
                continue
            z_and_errors = np.array([z, deviation, 1 / sqrt(n - 3)])
            z_row = row(name, z_and_errors, (-20, 20))
            slope = 1 - np.tanh(z) ** 2  # of r as a function of z
            low, high = np.tanh([z_row.low, z_row.high])
            rows.append(
                Row(
                    name,
                    float(np.tanh(z)),
                    z_row.noise * slope,
                    z_row.sampling * slope,
                    float(low),
                    float(high),
                )
            )
        return Answer(title="correlation", rows=tuple(rows))


def _fisher(total: Floats, columns: tuple[str, ...], records: int, may_be_missing: bool) -> Floats:
    """Return Fisher's z of the correlation of each pair; NaN if a variance is not positive.

    Parameters
    ----------
    total
        Sum of the upper triangles of ``(1, z)(1, z)^T``, as `geometry.products` gives them.
    columns
        Names of the columns.
    records
        The public number of records.
    may_be_missing
        True if only the sum says how many records have all values.
    """
    sums = geometry.matrix_of_triangle(total, len(columns) + 1)
    n = float(records)
    if may_be_missing:
        n = max(sums[0, 0], 1.0)
    mean = sums[0, 1:] / n
    covariance = sums[1:, 1:] / n - np.outer(mean, mean)
    variances = np.diag(covariance)
    deviations = np.sqrt(np.where(variances > 0, variances, np.nan))
    correlations = covariance / np.outer(deviations, deviations)
    of_pairs = correlations[np.triu_indices(len(columns), 1)]
    clipped = np.clip(of_pairs, -LARGEST_CORRELATION, LARGEST_CORRELATION)
    return np.asarray(np.arctanh(clipped))
