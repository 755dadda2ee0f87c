"""Questions about tables: means, histograms, quantiles, two-way tables and correlations.

A `Question` maps each record to a vector, states the sensitivity of the sum of all vectors, and
computes its answer from the noisy sum. `OneRound` is the base of questions with a single sum,
`OneHot` of counts by cells (bins or categories). Regressions, survival curves and `Pairs` are in
modules of their own.
"""

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
    count_row,
    normal_row,
    quantile,
    shift_to_total,
    unknown_row,
)
from dpmesh.statistics.bins import Floats, ends
from dpmesh.statistics.geometry import MISSING, Columns, Size, cells, kind_of
from dpmesh.tables.kinds import Category, Dates, Flag, Kind, Number

Kinds = Mapping[str, Kind]
"""The public range of each column."""

Vectors: TypeAlias = "Floats | sparse.csr_array"
"""A vector for each record, shape (records, dim)."""

MEASURED = (Number, Flag)
"""Kinds of columns that have a mean."""

A_NUMBER = "a number or a flag"

LISTED = (Category, Flag)
"""Kinds of columns with a list of values."""

A_CATEGORY = "a category or a flag"

FLAG_BINS = 2
"""Number of bins of a flag: true and false. Categories ignore it."""

SIMULATED_TABLES = 400
"""Number of simulated noises from which the noise of a correlation is estimated."""

LARGEST_CORRELATION = 0.999
"""Largest absolute correlation; larger ones are clipped to keep Fisher's transformation finite."""


class Question(ABC):
    """Base class of questions: a map from a record to a vector, whose noisy sum gives the answer.

    `ask` adds up the vectors of all records and releases the sum with Gaussian noise. A question
    may have several rounds. In each round the vector of a record is a function of the record
    itself, of public numbers, and of the noisy sums of earlier rounds, and of nothing else: so the
    sensitivity that `sizes` states holds.

    In the methods, `kinds` maps each column to its public range. `noise` is the standard deviation
    of the noise in each element of the question's sum. `records` is the public number of records of
    all sites.
    """

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the columns that the question reads."""

    def settled(self, noise: float | None, records: int) -> Question:
        """Return the question with defaults that depend on the noise filled in.

        `Pairs` chooses its number of bins here. Other questions return themselves.

        Parameters
        ----------
        noise
            Standard deviation of the noise in each element of the question's sum; None if it is
            not known yet, for the shortest vectors.
        records
            Public number of records of all sites.
        """
        del noise, records
        return self

    @abstractmethod
    def shares(self, kinds: Kinds) -> tuple[float, ...]:
        """Return the share of the question's budget (mu^2) in each round; shares add up to 1."""

    @abstractmethod
    def sizes(self, kinds: Kinds) -> tuple[Size, ...]:
        """Return length, largest norm and sensitivity of a record's vector in each round.

        The sensitivity is the largest L2 distance between the vectors of two records.

        Raises
        ------
        ValueError
            If a column has no public range, or a range of the wrong kind.
        """

    @abstractmethod
    def vectors_in(self, columns: Columns, t: int, totals: Sequence[NoisyTotal]) -> Vectors:
        """Return the vector of each record in round t, shape (records, dim).

        Parameters
        ----------
        columns
            The cells of each column.
        t
            The round, from 0.
        totals
            Noisy sums of the rounds before t.
        """

    @abstractmethod
    def require_all(self, kinds: Kinds, noises: Sequence[float], records: int) -> None:
        """Raise a `ValueError` before any release if there are too few records for the noise.

        `noises` holds the standard deviation of the noise in each element of each round's sum.
        """

    @abstractmethod
    def answer_from(self, kinds: Kinds, totals: Sequence[NoisyTotal], records: int) -> Answer:
        """Compute the answer from the noisy sums.

        Parameters
        ----------
        kinds
            Public range of each column.
        totals
            Noisy sum of each round.
        records
            Public number of records of all sites.
        """


class OneRound(Question):
    """Base class of questions with one round: a single sum gives the answer."""

    reads: ClassVar[tuple[str, ...]] = ("column",)
    """Names of the fields that hold the name of a column, or None."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that the question reads."""
        values = [getattr(self, field) for field in self.reads]
        return tuple(name for name in values if name is not None)

    @abstractmethod
    def size(self, kinds: Kinds) -> Size:
        """Return length, largest norm and sensitivity of a record's vector."""

    @abstractmethod
    def vectors(self, columns: Columns) -> Vectors:
        """Return the vector of each record, shape (records, dim)."""

    def require(self, noise: float, records: int) -> None:
        """Raise a `ValueError` before any release if there are too few records for the noise.

        `noise` is the standard deviation of the noise in each element of the sum.
        """

    @abstractmethod
    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Compute the answer from the noisy sum `total`, shape (dim,).

        `noise` is the standard deviation of the noise in each element.
        """

    def shares(self, kinds: Kinds) -> tuple[float, ...]:
        """Return ``(1.0,)``: the single round has the whole budget of the question."""
        return (1.0,)

    def sizes(self, kinds: Kinds) -> tuple[Size, ...]:
        """Return length, largest norm and sensitivity of a record's vector in the single round."""
        return (self.size(kinds),)

    def vectors_in(self, columns: Columns, t: int, totals: Sequence[NoisyTotal]) -> Vectors:
        """Return the vector of each record, shape (records, dim)."""
        return self.vectors(columns)

    def require_all(self, kinds: Kinds, noises: Sequence[float], records: int) -> None:
        """Raise a `ValueError` before any release if there are too few records for the noise."""
        (noise,) = noises
        self.require(noise, records)

    def answer_from(self, kinds: Kinds, totals: Sequence[NoisyTotal], records: int) -> Answer:
        """Compute the answer from the noisy sum of the single round."""
        (released,) = totals
        return self.answer(kinds, released.total, released.noise, records)


@dataclass(frozen=True, init=False)
class OfColumns(OneRound):
    """Base class of questions about several columns, which are positional arguments."""

    columns: tuple[str, ...]
    least: ClassVar[int] = 1
    """Smallest number of columns."""

    def __init__(self, *columns: str) -> None:
        object.__setattr__(self, "columns", several(columns, self.least))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that the question reads."""
        return self.columns


@dataclass(frozen=True)
class OneHot(OneRound):
    """A count of records by cell; each record is in one cell, so the L2 sensitivity is sqrt(2)."""

    @abstractmethod
    def cells(self, kinds: Kinds) -> int:
        """Return the number of cells."""

    @abstractmethod
    def cell(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Return the index of each record's cell, shape (records,)."""

    def size(self, kinds: Kinds) -> Size:
        """Return length, largest norm and sensitivity of a record's vector."""
        return Size(self.cells(kinds), *geometry.ONE_HOT)

    def vectors(self, columns: Columns) -> Floats:
        """Return one-hot vectors of the records' cells, shape (records, cells)."""
        kinds = {name: column.kind for name, column in columns.items()}
        return geometry.one_hot(self.cell(columns), self.cells(kinds))


def several(names: tuple[str, ...], least: int) -> tuple[str, ...]:
    """Return names of columns; fail unless there are at least `least`, all different."""
    are_distinct = len(set(names)) == len(names)
    if len(names) < least or not are_distinct:
        fail("columns", f"at least {least}, each once", ", ".join(names) or "none")
    return names


class Mean(OfColumns):
    """Count, mean and variance of each column, for columns of numbers or flags.

    Each number is scaled to z in [-1, 1] by its public range. The vector of a record has
    ``(z, z^2, z^3 / 4, z^4 / 4)`` for each column, and a 1 for each column that may be missing and
    is present. For c columns the L2 sensitivity to replacing a record is ``sqrt(4.25 c)``. The 95%
    interval of a mean is Fieller's interval for a ratio, because the count may have noise too.

    Parameters
    ----------
    columns
        Names of the columns, at least 1.

    Raises
    ------
    ValueError
        If there is no column, or a column is named twice.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.statistics.Mean("age", "weight")
    Mean(columns=('age', 'weight'))
    """

    def size(self, kinds: Kinds) -> Size:
        """Return length, largest norm and sensitivity of a record's vector."""
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
        """Return powers of each scaled number, and a 1 for each present value that may be missing.

        Shape (records, dim).
        """
        return geometry.moments([columns[name] for name in self.columns])

    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return count, mean and variance of each column."""
        rows: list[Row] = []
        for name in self.columns:
            kind = kinds[name]
            sums, total = np.split(total, [4 + kind.may_be_missing])
            rows += _moments_of(name, kind, sums, noise, records)
        return Answer(title="mean", rows=tuple(rows))


def _moments_of(name: str, kind: Kind, sums: Floats, noise: float, records: int) -> list[Row]:
    """Return the rows of count, mean and variance of a column, in its units.

    Let z be the column scaled to [-1, 1], S1 and S2 the noisy sums of z and z^2, n the count, and
    m1 = S1 / n, m2 = S2 / n. Noise errors are first-order ("delta method"). The mean S1 / n has the
    derivatives 1 / n by S1 and -m1 / n by n. The variance S2 / n - (S1 / n)^2 has the derivatives
    -2 m1 / n by S1, 1 / n by S2 and (2 m1^2 - m2) / n by n.

    Parameters
    ----------
    name, kind
        Name and public range of the column.
    sums
        Noisy sums of ``(z, z^2, z^3 / 4, z^4 / 4)``, shape (4,). If values may be missing, a noisy
        count of values follows, shape (5,).
    noise
        Standard deviation of the noise in each sum.
    records
        Public number of records.
    """
    count_noise = float(kind.may_be_missing)  # noise of the count over noise of a sum: 0 or 1
    count_name = f"{name}, count"
    if kind.may_be_missing:
        n = float(sums[4])
        count = count_row(count_name, n, noise, records)
    else:
        n = float(records)
        count = Row(count_name, n, 0.0, 0.0, n, n)
    if n <= max(Z * noise, 1.0):  # the count may be noise alone
        return [count, unknown_row(f"{name}, mean"), unknown_row(f"{name}, variance")]

    m1, m2, m3, m4 = sums[:4] / n / (1, 1, geometry.FOURTH, geometry.FOURTH)
    mean_noise = noise / n * sqrt(1 + count_noise * m1**2)
    # the expectation of m1^2 is too large by mean_noise^2
    variance = max(m2 - m1**2 + mean_noise**2, 0.0) * n / (n - 1)
    by_count = 2 * m1**2 - m2
    variance_noise = noise / n * sqrt(1 + 4 * m1**2 + count_noise * by_count**2)
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4  # the fourth central moment
    # a sampling variance below the noise of its estimate is replaced by this noise
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
    return [count, mean, normal_row(f"{name}, variance", in_units, (0.0, half_range**2))]


def _fieller_interval(
    total: float, n: float, noise: float, count_noise: float, sampling: float
) -> list[float]:
    """Return the ends of Fieller's 95% interval of a mean, the ratio of a noisy sum and a count.

    The interval holds all means m with ``(total - m n)^2 <= Z^2 (noise^2 (1 + count_noise m^2) +
    n^2 sampling)``. Its ends are the roots of a quadratic polynomial in m.

    Parameters
    ----------
    total, n
        The noisy sum and the count.
    noise
        Standard deviation of the noise in the sum.
    count_noise
        1 if the count has the same noise, 0 if it is public.
    sampling
        Variance of the mean due to sampling.
    """
    z_squared = Z * Z
    leading = n**2 - count_noise * z_squared * noise**2
    middle = total * n
    constant = total**2 - z_squared * (noise**2 + n**2 * sampling)
    root = sqrt(max(middle * middle - leading * constant, 0.0))
    return [(middle - root) / leading, (middle + root) / leading]


@dataclass(frozen=True)
class Histogram(OneHot):
    """Count of records in each bin or category of a column; missing values have a bin.

    The L2 sensitivity to replacing a record is sqrt(2).

    Parameters
    ----------
    column
        Name of a column of any kind.
    bins
        Number of bins of equal width over the public range, at least 2, for numbers and dates.
        Categories and flags have a bin for each value.

    Raises
    ------
    ValueError
        If `bins` is out of range.

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
        """Return the index of each record's bin, shape (records,)."""
        return columns[self.column].cell(self.bins)

    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return the noisy count of each bin, with a 95% interval.

        Parameters
        ----------
        kinds
            Public range of each column.
        total
            Noisy count of each bin, shape (bins,).
        noise
            Standard deviation of the noise in each count.
        records
            Public number of records, to which the counts are shifted to add up.
        """
        bin_names = cells(kinds[self.column], self.bins)
        return Answer(
            title=f"{self.column}, count",
            rows=_count_rows(bin_names, total, noise, records),
            bars=True,
            column=self.column,
        )


def _count_rows(names: list[str], total: Floats, noise: float, records: int) -> tuple[Row, ...]:
    """Return a row for each of k disjoint cells, whose counts add up to the number of records.

    `shift_to_total` subtracts the mean noise of all cells, and so 1 / k of the noise variance.

    Parameters
    ----------
    names
        Name of each cell.
    total
        Noisy counts, shape (cells,).
    noise
        Standard deviation of the noise in each count.
    records
        Public number of records.
    """
    counts = shift_to_total(total, records)
    noise_left = noise * sqrt(1 - 1 / len(names))
    rows = []
    for name, count in zip(names, counts, strict=True):
        rows.append(count_row(name, float(count), noise_left, records))
    return tuple(rows)


@dataclass(frozen=True)
class Quantiles(Histogram):
    """Quantiles of a column of numbers or dates, computed from a noisy histogram.

    Missing values do not count. The ends of an interval are edges of bins. The L2 sensitivity of
    the histogram to replacing a record is sqrt(2).

    Parameters
    ----------
    column
        Name of a column of numbers or dates.
    at
        Probabilities of the quantiles, each in (0, 1): 0.5 is the median.
    bins
        Number of bins of equal width over the public range, at least 2. More bins have a finer
        resolution and a larger total noise.

    Raises
    ------
    ValueError
        If `bins` or a probability is out of range.

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
        """Return the estimate and interval of each quantile."""
        kind = kinds[self.column]
        counts = shift_to_total(total, records)
        low, high = ends(kind)
        # `quantile` returns estimate, two half-widths, and two ends; half-widths have no origin
        origin = np.array([low, 0, 0, low, low])
        rows = []
        for q in self.at:
            name = "median" if q == 0.5 else f"{q:.4g} quantile"
            in_bins = quantile(q, counts, noise, kind.may_be_missing)
            in_units = in_bins * (high - low) / self.bins + origin
            rows.append(Row(name, *in_units.tolist()))
        return Answer(title=self.column, rows=tuple(rows), dates=isinstance(kind, Dates))


@dataclass(frozen=True)
class TwoWay(OneHot):
    """Contingency table: count of records with each pair of values of two columns.

    The L2 sensitivity to replacing a record is sqrt(2).

    Parameters
    ----------
    row, column
        Names of two columns of categories or flags.
    missing
        True to print the counts of records that lack a value. The rows of the answer contain them
        in any case.

    Raises
    ------
    ValueError
        If both names are equal.

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
        """Return the names of the categories of both columns, each with `MISSING` if allowed."""
        row_kind = kind_of(kinds, self.row, LISTED, A_CATEGORY)
        column_kind = kind_of(kinds, self.column, LISTED, A_CATEGORY)
        return cells(row_kind, FLAG_BINS), cells(column_kind, FLAG_BINS)

    def cells(self, kinds: Kinds) -> int:
        """Return the number of pairs of values."""
        rows, columns = self._categories(kinds)
        return len(rows) * len(columns)

    def cell(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Return the index of each record's pair of values, shape (records,), row by row."""
        width = len(cells(columns[self.column].kind, FLAG_BINS))
        row_cell = columns[self.row].cell(FLAG_BINS)
        column_cell = columns[self.column].cell(FLAG_BINS)
        return row_cell * width + column_cell

    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return the count of each pair of values."""
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
            rows=_count_rows(names, total, noise, records),
            grid=grid,
        )


class Correlation(OfColumns):
    """Pearson correlation of each pair of columns, over the records without a missing value.

    The vector of a record is the upper triangle of the matrix ``(1, z)(1, z)^T``, with off-diagonal
    entries times sqrt(2). Here z holds the c columns scaled to [-1, 1] by their public ranges. The
    L2 sensitivity to replacing a record is
    ``sqrt(2) (1 + c)``. Intervals use Fisher's transformation, whose sampling error is that of
    normally distributed columns.

    Parameters
    ----------
    columns
        Names of the columns, at least 2: numbers or flags.

    Raises
    ------
    ValueError
        If there are fewer than 2 columns, or a column is named twice.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.statistics.Correlation("age", "weight")
    Correlation(columns=('age', 'weight'))
    """

    least = 2

    def size(self, kinds: Kinds) -> Size:
        """Return length, largest norm and sensitivity of a record's vector."""
        for name in self.columns:
            kind_of(kinds, name, MEASURED, A_NUMBER)
        width = len(self.columns) + 1
        return Size(width * (width + 1) // 2, width, sqrt(2) * width)

    def vectors(self, columns: Columns) -> Floats:
        """Return the products of each pair of scaled columns, shape (records, dim)."""
        return geometry.products([columns[name] for name in self.columns])

    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return the correlation of each pair, with its interval.

        The interval is normal in Fisher's ``z = arctanh(r)``, where r is the correlation. The
        standard deviation of z by the privacy noise is estimated from simulated noise on the
        released sum, which is post-processing. The standard deviation by sampling is
        ``1 / sqrt(n - 3)`` for n records.
        """
        may_be_missing = any(kinds[name].may_be_missing for name in self.columns)
        n = float(records)
        least_records = 4.0
        if may_be_missing:  # the first entry of the sum counts the records without missing values
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
                rows.append(unknown_row(name))
                continue
            z_and_errors = np.array([z, deviation, 1 / sqrt(n - 3)])
            z_row = normal_row(name, z_and_errors, (-20, 20))
            slope = 1 - np.tanh(z) ** 2  # the derivative of r = tanh(z)
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
        Noisy sum of the vectors of `geometry.products`, shape (dim,).
    columns
        Names of the columns.
    records
        Public number of records.
    may_be_missing
        True if values may be missing: the number of complete records is then the first entry of the
        sum, else `records`.
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
