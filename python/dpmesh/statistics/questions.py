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

Vectors: TypeAlias = "Floats | sparse.csr_array"
"""A vector for each record, shape (records, dim)."""

MEASURED, A_NUMBER = (Number, Flag), "a number or a flag"
LISTED, A_CATEGORY = (Category, Flag), "a category or a flag"


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
        """Return a vector for each record in round t, shape (records, dim), given those before."""

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
        return tuple(name for field in self.reads if (name := getattr(self, field)) is not None)

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
    if len(names) < least or len({*names}) < len(names):
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
        return Size(4 * count + missing, sqrt(norm**2 * count + missing), distance * sqrt(count))

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
    """Return count, mean and variance in the units of the column."""
    ratio = float(kind.may_be_missing)
    n = float(sums[4] if ratio else records)
    public = Row(f"{name}, count", n, 0.0, 0.0, n, n)
    count = share(public.name, n, noise, records) if ratio else public
    if n <= max(Z * noise, 1.0):  # or the sums could be all noise
        return [count, nothing(f"{name}, mean"), nothing(f"{name}, variance")]
    m1, m2, m3, m4 = sums[:4] / n / (1, 1, geometry.FOURTH, geometry.FOURTH)
    of_mean = noise / n * sqrt(1 + ratio * m1**2)
    variance = max(m2 - m1**2 + of_mean**2, 0.0) * n / (n - 1)
    of_variance = noise / n * sqrt(1 + 4 * m1**2 + ratio * (2 * m1**2 - m2) ** 2)
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    # What is lost in the noise may be there.
    drawn = max(variance, of_variance) / n
    drawn_again = max(fourth - variance**2, noise / n / geometry.FOURTH) / n
    low, high = ends(kind)
    half, z = (high - low) / 2, Z * Z
    # Fieller: all theta with (sum - theta n)^2 <= Z^2 (noise of both, and of the choice of records)
    a, b = n**2 - ratio * z * noise**2, float(sums[0]) * n
    root = sqrt(max(b * b - a * (float(sums[0]) ** 2 - z * (noise**2 + n**2 * drawn)), 0.0))
    middle, *interval = geometry.unscaled(
        kind, [m1, *np.clip([(b - root) / a, (b + root) / a], -1, 1)]
    )
    mean = Row(f"{name}, mean", middle, Z * half * of_mean, Z * half * sqrt(drawn), *interval)
    spread = np.array([variance, of_variance, sqrt(max(drawn_again, 0.0))]) * half**2
    return [count, mean, row(f"{name}, variance", spread, (0.0, half**2))]


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
    """Return counts of disjoint cells, which sum up to the public number of records."""
    counts = consistent(total, records)
    noise_left = noise * sqrt(1 - 1 / len(names))
    return tuple(
        share(name, float(count), noise_left, records)
        for name, count in zip(names, counts, strict=True)
    )


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
        kind, counts = kinds[self.column], consistent(total, records)
        low, high = ends(kind)
        rows = []
        for q in self.at:
            name = "median" if q == 0.5 else f"{q:.4g} quantile"
            found = quantile(q, counts, noise, kind.may_be_missing) * (high - low) / self.bins
            rows.append(Row(name, *(found + np.array([low, 0, 0, low, low])).tolist()))
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

    def _cells(self, kinds: Kinds) -> list[list[str]]:
        return [cells(kind_of(kinds, name, LISTED, A_CATEGORY), 2) for name in self.names]

    def cells(self, kinds: Kinds) -> int:
        """Return the number of pairs."""
        rows, columns = self._cells(kinds)
        return len(rows) * len(columns)

    def cell(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Return the number of each record's pair."""
        across = len(cells(columns[self.column].kind, 2))
        return columns[self.row].cell(2) * across + columns[self.column].cell(2)

    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return a count for each pair."""
        rows, columns = self._cells(kinds)
        names = [f"{self.row} {a}, {self.column} {b}" for a in rows for b in columns]
        grid = Grid(
            rows=tuple(rows), columns=tuple(columns), hidden=None if self.missing else MISSING
        )
        return Answer(
            title=f"{self.row} by {self.column}",
            rows=_counts(names, total, noise, records),
            grid=grid,
        )


class Correlation(OfColumns):
    """Correlations of all pairs of columns, of the records that lack none of them.

    The vector is the upper triangle of ``(1, z)(1, z)^T``: its sensitivity is sqrt(2) (1 + c) for c
    columns. Sampling errors are those of a normal distribution (Fisher's transformation).

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
        """Return a row for each pair."""
        missing = any(kinds[name].may_be_missing for name in self.columns)
        n = float(total[0]) if missing else float(records)
        normals = np.random.default_rng(0).standard_normal((400, len(total)))  # after the release
        again = [
            _fisher(total + noise * normal, self.columns, records, missing) for normal in normals
        ]
        transformed = _fisher(total, self.columns, records, missing)
        deviations = np.std(again, axis=0)
        rows = []
        pairs = combinations(self.columns, 2)
        for pair, z, deviation in zip(pairs, transformed, deviations, strict=True):
            name = " and ".join(pair)
            if not np.isfinite(z + deviation) or n <= max(Z * noise * missing, 4.0):
                rows.append(nothing(name))
                continue
            transformed_row = np.array([z, deviation, 1 / sqrt(n - 3)])
            inner = row(name, transformed_row, (-20, 20))
            slope = 1 - np.tanh(z) ** 2
            low, high = np.tanh([inner.low, inner.high])
            errors = inner.noise * slope, inner.sampling * slope
            rows.append(Row(name, float(np.tanh(z)), *errors, float(low), float(high)))
        return Answer(title="correlation", rows=tuple(rows))


def _fisher(total: Floats, columns: tuple[str, ...], records: int, missing: bool) -> Floats:
    """Return Fisher's z of the correlation of each pair; NaN if a variance is not positive."""
    sums = geometry.matrix_of_triangle(total, len(columns) + 1)
    n = max(sums[0, 0], 1.0) if missing else float(records)
    mean = sums[0, 1:] / n
    covariance = sums[1:, 1:] / n - np.outer(mean, mean)
    spread = np.diag(covariance)
    deviations = np.sqrt(np.where(spread > 0, spread, np.nan))
    r = covariance / np.outer(deviations, deviations)
    return np.asarray(np.arctanh(np.clip(r[np.triu_indices(len(columns), 1)], -0.999, 0.999)))
