"""Answers with their noise, their sampling error, and both together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from math import ceil, erfc, floor, inf, isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from dpmesh._table import Table
from dpmesh._validate import fail
from dpmesh.statistics.bins import Floats
from dpmesh.statistics.two_way import PairTables

Z = 1.959963984540054
"""A 95% interval of a normal distribution is so many standard deviations long to either side."""

LOUD = "noise exceeds the sampling error: more records, or a larger epsilon, help"


class Row(NamedTuple):
    """One number of an answer, in the units of its column.

    Attributes
    ----------
    name
        What it is.
    estimate
        NaN where there are too few records for the noise.
    noise, sampling
        Half of a 95% interval for the noise alone, and for the choice of the records alone.
    low, high
        A 95% interval for what the records were drawn from: both together.
    p_value
        Of the hypothesis that it is 0, noise included, if there is one.

    Examples
    --------
    >>> import dpmesh as dm
    >>> row = dm.statistics.Row("age", estimate=50.0, noise=0.5, sampling=1.0, low=47.8, high=52.2)
    >>> row.high - row.low > 4
    True
    """

    name: str
    estimate: float
    noise: float
    sampling: float
    low: float
    high: float
    p_value: float | None = None


def row(name: str, given: Floats, most: tuple[float, float]) -> Row:
    """Return a normal interval within the possible values.

    Parameters
    ----------
    name
        What it is.
    given
        The estimate, and the standard deviations of noise and sampling, shape (3,).
    most
        The smallest and the largest possible value.
    """
    estimate, noise, sampling = map(float, given)
    half = Z * sqrt(noise**2 + sampling**2)
    low, high = np.clip((estimate - half, estimate + half), *most)
    return Row(name, estimate, Z * noise, Z * sampling, float(low), float(high))


def nothing(name: str) -> Row:
    """Return a row of what cannot be estimated."""
    return Row(name, *[np.nan] * 5)


def share(name: str, count: float, noise: float, records: float) -> Row:
    """Return a noisy count among so many records: Wilson's interval, with noise.

    It holds all p for which ``abs(count - n p) <= Z sqrt(n p (1 - p) + noise^2)``.
    """
    inside = min(max(count, 0.0), records)
    # the ends solve scale x^2 - 2 middle x + inside^2 - (Z noise)^2 = 0 for x = n p
    middle = inside + Z * Z / 2
    scale = 1 + Z * Z / records
    root = sqrt(max(middle**2 - scale * (inside**2 - (Z * noise) ** 2), 0.0))
    low, high = np.clip([(middle - root) / scale, (middle + root) / scale], 0, records)
    sampling = sqrt(max(inside * (1 - inside / records), 0.0))
    return Row(name, count, Z * noise, Z * sampling, float(low), float(high))


def p_value_of(estimate: float, deviation: float) -> float:
    """Return the two-sided p-value of a normal estimate with this standard deviation."""
    return erfc(abs(estimate) / deviation / sqrt(2))


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Arrangement of the counts of a two-way table.

    Parameters
    ----------
    rows, columns
        Names of the categories of the first and of the second of both columns of data.
    hidden
        A name whose row and column are not shown; None if all are.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    hidden: str | None = None

    def table(self, title: str, counts: Sequence[Row]) -> Table:
        """Return the counts, each with its 95% interval."""
        shown = [place for place, name in enumerate(self.columns) if name != self.hidden]
        lines = []
        for nth, name in enumerate(self.rows):
            own = counts[nth * len(self.columns) : (nth + 1) * len(self.columns)]
            cells = [
                f"{own[place].estimate:.0f} ({own[place].low:.0f} to {own[place].high:.0f})"
                for place in shown
            ]
            if name != self.hidden:
                lines.append([name, *cells])
        return Table([title, *(self.columns[place] for place in shown)], lines)


def p_in_words(p_value: float | None) -> str:
    """Return a p-value with two digits."""
    if p_value is None or p_value != p_value:
        return "-"
    return "< 1e-16" if p_value < 1e-16 else f"{p_value:.2g}"


Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Coefficients of a regression, in the units of its columns.

    Parameters
    ----------
    names
        Of the coefficients.
    coefficients
        One for each name.
    noise_covariance, sampling_covariance
        Of the noise, and of the choice of the records, row by row.
    """

    names: tuple[str, ...]
    coefficients: tuple[float, ...]
    noise_covariance: Matrix
    sampling_covariance: Matrix

    @property
    def covariance(self) -> Floats:
        """The covariance of noise and sampling together, shape (coefficients, coefficients)."""
        result: Floats = np.array(self.noise_covariance) + np.array(self.sampling_covariance)
        return result

    def as_dict(self) -> dict[str, Any]:
        """Return the fit in plain types that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class GroupCurve:
    """A survival curve and numbers at risk of one group, as a picture needs them.

    Parameters
    ----------
    name, time
        The group, and the column of times.
    times, marks
        The edges of bins, bins + 1 of them, as numbers and in words.
    survival, low, high
        The curve and its 95% band at each edge.
    at_risk, at_risk_noise
        Numbers who enter each bin, and half of a 95% interval for their noise.
    """

    name: str
    time: str
    times: tuple[float, ...]
    marks: tuple[str, ...]
    survival: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    at_risk: tuple[float, ...]
    at_risk_noise: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the curve in plain types that JSON can hold; NaN becomes None."""
        result: dict[str, Any] = {}
        for name, value in asdict(self).items():
            result[name] = [*map(_finite, value)] if isinstance(value, tuple) else value
        return result


def at_risk_table(curves: Sequence[GroupCurve]) -> Table:
    """Return the numbers at risk of each group at some of the edges."""
    bins = len(curves[0].at_risk)
    chosen = sorted({round(place) for place in np.linspace(0, bins - 1, min(bins, MOST_MARKS))})
    heads = [f"at risk at {curves[0].time}", *(curves[0].marks[place] for place in chosen)]
    rows = [
        [
            curve.name,
            *(f"{curve.at_risk[place]:.0f} ± {curve.at_risk_noise[place]:.0f}" for place in chosen),
        ]
        for curve in curves
    ]
    return Table(heads, rows)


MOST_MARKS = 6
"""Times at which numbers at risk are printed."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one question.

    Parameters
    ----------
    title
        The question in words.
    rows
        The numbers.
    notes
        What to know of them.
    dates
        Whether the numbers are days, shown as dates.
    p_value
        Of a test, if there is one.
    ratios
        Exponentials of the rows, such as odds ratios.
    fit
        Of a regression, its coefficients and covariances.
    medians
        Of survival curves, in the units of time; infinite where they are not reached.
    curves
        Survival curves as numbers.
    pairs
        All two-way tables of some columns.
    bars
        Whether the rows are counts of bins.
    grid
        Of a two-way table, how its rows are arranged.
    explained
        Whether the notes say why there are no estimates.
    effects, effect_scale
        Coefficients of a regression on one common scale, for a picture: that of a number is its
        effect over the whole public range. `effect_scale` is this scale in words.
    column
        Whose bins the rows count, if `bars`; whose groups the curves compare.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> table = {"age": np.linspace(20, 80, 900)}
    >>> question = dm.statistics.Mean("age")
    >>> found = dm.statistics.ask(question, table, ranges={"age": [0, 100]}, epsilon=1.0)
    >>> [row.name for row in found.answers[0].rows]
    ['age, count', 'age, mean', 'age, variance']
    """

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    dates: bool = False
    p_value: float | None = None
    ratios: tuple[Row, ...] = ()
    fit: Fit | None = None
    medians: tuple[Row, ...] = ()
    curves: tuple[GroupCurve, ...] = ()
    pairs: PairTables | None = None
    bars: bool = False
    grid: Grid | None = None
    explained: bool = False
    effects: tuple[Row, ...] = ()
    effect_scale: str = ""
    column: str = ""

    @property
    def coefficients(self) -> Floats:
        """The coefficients of a regression, shape (coefficients,)."""
        return np.array(self._fitted.coefficients)

    @property
    def covariance(self) -> Floats:
        """The covariance of a regression's coefficients, noise and sampling together."""
        return self._fitted.covariance

    @property
    def _fitted(self) -> Fit:
        if self.fit is None:
            fail("answer", "that of a regression whose coefficients are shown", self.title)
        return self.fit

    @property
    def warnings(self) -> list[str]:
        """Warnings for the reader, computed from the rows."""
        shown = (*self.rows, *self.ratios)
        unknown = [row.name for row in shown if np.isnan(row.estimate)]
        result = []
        if unknown and not self.explained:
            result.append(f"too few records at this noise: {', '.join(unknown)}")
        louder = sum(row.noise > row.sampling for row in self.rows)
        if self.rows and 2 * louder > len(self.rows):
            result.append(LOUD)
        return result

    def table(self) -> Table:
        """Return what is shown, without the notes."""
        if self.grid is not None:
            return self.grid.table(self.title, self.rows)
        return self._table_of(self.title, self.rows)

    def tables(self) -> tuple[Table, ...]:
        """Return all tables that are shown: the rows, medians, numbers at risk and ratios.

        There is none where the notes say why there are no estimates.
        """
        result = [self.table()] if self.rows and not self.explained else []
        if self.pairs is not None:
            result.append(self.pairs.table())
        if self.medians:
            result.append(self._table_of("", self.medians))
        if self.curves:
            result.append(at_risk_table(self.curves))
        if self.ratios:
            result.append(self._table_of("", self.ratios))
        return tuple(result)

    def _table_of(self, title: str, rows: Sequence[Row]) -> Table:
        tested = any(row.p_value is not None for row in rows)
        heads = [title, "estimate", "noise", "sampling", "95% interval", *["p"] * tested]
        return Table(heads, [self._line(row, tested) for row in rows])

    def _line(self, row: Row, tested: bool) -> list[str]:
        cells = self._cells(row)
        if tested:
            cells.append(p_in_words(row.p_value))
        return cells

    def _cells(self, row: Row) -> list[str]:
        if np.isnan(row.estimate):
            return [row.name, *"----"]
        if row.noise == row.sampling == 0:  # public, as the number of all records is
            return [row.name, f"{row.estimate:.6g}", "0", "0", "public"]
        halves = (row.noise, row.sampling)
        decimals = _decimals(row)
        spread = [f"± {half:.{decimals}f}" if half < inf else "-" for half in halves]
        if self.dates:
            day, first, last = floor(row.estimate), floor(row.low), ceil(row.high)
            estimate, low, high = (str(date.fromordinal(each)) for each in (day, first, last))
        else:
            numbers = (row.estimate, row.low, row.high)
            estimate, low, high = (
                "not reached" if each == inf else f"{each:.{decimals}f}" for each in numbers
            )
        return [row.name, estimate, *spread, f"{low} to {high}"]

    def __str__(self) -> str:
        parts = [str(table) for table in self.tables()]
        if self.explained:
            parts = [self.title]
        return "\n".join([*parts, *self.notes, *self.warnings])

    def as_dict(self) -> dict[str, Any]:
        """Return the answer in plain types that JSON can hold; NaN becomes None."""
        result: dict[str, Any] = {
            "title": self.title,
            "rows": [_plain(row) for row in self.rows],
            "notes": [*self.notes, *self.warnings],
            "p_value": self.p_value,
        }
        if self.medians:
            result["medians"] = [_plain(row) for row in self.medians]
        if self.curves:
            result["curves"] = [curve.as_dict() for curve in self.curves]
        if self.ratios:
            result["ratios"] = [_plain(row) for row in self.ratios]
        if self.pairs is not None:
            result["pairs"] = self.pairs.as_dict()
        if self.fit is not None:
            result["fit"] = self.fit.as_dict()
        return result


def _decimals(row: Row) -> int:
    """Return how many decimals a row is shown with: two digits of its errors.

    A median that is not reached has no errors: its interval ends at the edge of a bin.
    """
    known = [half for half in (row.noise, row.sampling) if half < inf]
    if not known:
        return 0 if row.low == round(row.low) else 2
    last_place = max(1e-9, *known) / 30  # so that the larger error has one or two digits
    return int(np.clip(-np.floor(np.log10(last_place)), 0, 8))


def _plain(row: Row) -> dict[str, Any]:
    """Return a row in plain types; NaN, and what is not reached, become None."""
    result = {name: _finite(value) for name, value in row._asdict().items()}
    if row.p_value is None:
        del result["p_value"]
    return result


def _finite(value: Any) -> Any:
    """Return a value, None for a number that is not finite."""
    return None if isinstance(value, float) and not isfinite(value) else value


def consistent(counts: Floats, records: int) -> Floats:
    """Return noisy counts of disjoint cells whose sum is the public number of records."""
    return np.asarray(counts + (records - counts.sum()) / len(counts))


def quantile(q: float, counts: Floats, noise: float, absent: bool) -> Floats:
    """Return a quantile, its noise and sampling error, and an interval, all in bins.

    Parameters
    ----------
    q
        In (0, 1).
    counts
        Noisy counts of the bins and, last, if `absent`, of the records without a value, already
        made `consistent`.
    noise
        Standard deviation of the noise of a count, before counts were made `consistent`.
    absent
        Whether the last count is of records without a value.

    Returns
    -------
    The estimate, half intervals for noise and sampling alone, and the ends of the 95% interval,
    which are edges of bins, shape (5,); NaN if there are too few records.
    """
    present = counts[:-1] if absent else counts
    bins = len(present)
    cells = len(counts)
    total = float(present.sum())
    j = np.arange(bins + 1)
    if absent and total < Z * noise * sqrt(bins * (1 - bins / cells)):
        return np.full(5, np.nan)
    # at edge j: (1 - q) times the counts below it, less q times those above; 0 at the quantile
    above = np.concatenate(([0.0], np.cumsum(present))) - q * total
    # `consistent` has taken the mean noise off each count; drift is the sum of the counts' weights
    drift = (1 - q) * j - q * (bins - j)
    variance = noise**2 * ((1 - q) ** 2 * j + q**2 * (bins - j) - drift**2 / cells)
    sampling = np.full(bins + 1, max(total, 1.0) * q * (1 - q))

    def region(spread: Floats) -> tuple[float, float]:
        reach = Z * np.sqrt(np.maximum(spread, 0))
        below = float(np.argmax(above > -reach)) - 1
        beyond = bins - float(np.argmax((above < reach)[::-1])) + 1
        return max(below, 0.0), min(beyond, float(bins))

    (a, b), (c, d), (low, high) = map(region, (variance, sampling, variance + sampling))
    rising = isotonic_regression(above).x
    place = int(np.clip(np.searchsorted(rising, 0.0), 1, bins))
    estimate = np.interp(0.0, rising[place - 1 : place + 1], (place - 1, place))
    return np.array([np.clip(estimate, low, high), (b - a) / 2, (d - c) / 2, low, high])
