"""Answers with their noise, their sampling error, and both together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from math import ceil, erfc, floor, inf, isfinite, isnan, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from dpmesh._table import Table
from dpmesh._validate import fail
from dpmesh.statistics.bins import Floats
from dpmesh.statistics.two_way import PairTables

Z = 1.959963984540054
"""Half of a 95% interval of a normal distribution, in standard deviations."""

_LEAST_P = 1e-16
"""Smaller p-values are not told apart: they are below the rounding of float64."""

MOST_MARKS = 6
"""Times at which numbers at risk are printed."""

LOUD = "noise exceeds the sampling error: more records, or a larger epsilon, help"


class Row(NamedTuple):
    """One number of an answer, in the units of its column.

    Attributes
    ----------
    name
        Name of the number, such as ``"age, mean"``.
    estimate
        Estimate from the noisy sums; NaN if there are too few records for the noise.
    noise, sampling
        Half-widths of two 95% intervals: for the privacy noise alone, and for the sampling of the
        records alone.
    low, high
        Ends of a 95% interval for the population that the records were sampled from. The interval
        includes privacy noise and sampling.
    p_value
        Two-sided p-value of the hypothesis that the number is 0, privacy noise included; None if
        the hypothesis was not tested.

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


def row(name: str, estimate_and_errors: Floats, value_range: tuple[float, float]) -> Row:
    """Return a row with a normal interval, cut off at the possible values.

    Parameters
    ----------
    name
        Name of the row.
    estimate_and_errors
        The estimate, and the standard deviations of noise and sampling, shape (3,).
    value_range
        The smallest and the largest possible value.
    """
    estimate, noise, sampling = map(float, estimate_and_errors)
    half = Z * sqrt(noise**2 + sampling**2)
    low, high = np.clip((estimate - half, estimate + half), *value_range)
    return Row(name, estimate, Z * noise, Z * sampling, float(low), float(high))


def nothing(name: str) -> Row:
    """Return a row of what cannot be estimated."""
    nan = np.nan
    return Row(name, estimate=nan, noise=nan, sampling=nan, low=nan, high=nan)


def share(name: str, count: float, noise: float, records: float) -> Row:
    """Return a noisy count among n records, with Wilson's interval widened by the noise.

    The interval holds all expected counts x = n p with ``(count - x)^2 <= Z^2 (x (1 - x / n) +
    noise^2)``. Its ends are the roots of ``(1 + Z^2 / n) x^2 - 2 (count + Z^2 / 2) x + count^2 -
    Z^2 noise^2``.

    Parameters
    ----------
    name
        Name of the row.
    count
        The noisy count; for the interval it is cut off at 0 and at n.
    noise
        Standard deviation of its noise.
    records
        Number of records, n.
    """
    possible_count = min(max(count, 0.0), records)
    leading = 1 + Z * Z / records
    middle = possible_count + Z * Z / 2
    constant = possible_count**2 - (Z * noise) ** 2
    root = sqrt(max(middle**2 - leading * constant, 0.0))
    low, high = np.clip([(middle - root) / leading, (middle + root) / leading], 0, records)
    sampling = sqrt(max(possible_count * (1 - possible_count / records), 0.0))
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
        """Return the counts, each with its 95% interval.

        `counts` holds those of all cells, row by row.
        """
        heads = [title, *(column for column in self.columns if column != self.hidden)]
        width = len(self.columns)
        lines = []
        for row_number, row_name in enumerate(self.rows):
            if row_name == self.hidden:
                continue
            row_counts = counts[row_number * width : (row_number + 1) * width]
            cells = [
                f"{count.estimate:.0f} ({count.low:.0f} to {count.high:.0f})"
                for column, count in zip(self.columns, row_counts, strict=True)
                if column != self.hidden
            ]
            lines.append([row_name, *cells])
        return Table(heads, lines)


def p_in_words(p_value: float | None) -> str:
    """Return a p-value with two digits; a dash if there is none."""
    if p_value is None or isnan(p_value):
        return "-"
    if p_value < _LEAST_P:
        return f"< {_LEAST_P:.0e}"
    return f"{p_value:.2g}"


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
        covariance: Floats = np.array(self.noise_covariance) + np.array(self.sampling_covariance)
        return covariance

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
        fields: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if isinstance(value, tuple):
                value = [_finite(element) for element in value]
            fields[name] = value
        return fields


def at_risk_table(curves: Sequence[GroupCurve]) -> Table:
    """Return the numbers at risk of each group at some edges of bins, evenly spaced."""
    first_curve = curves[0]
    bins = len(first_curve.at_risk)
    evenly_spaced = np.linspace(0, bins - 1, min(bins, MOST_MARKS))
    edges = sorted({round(edge) for edge in evenly_spaced})
    heads = [f"at risk at {first_curve.time}", *(first_curve.marks[edge] for edge in edges)]
    rows = []
    for curve in curves:
        cells = [f"{curve.at_risk[edge]:.0f} ± {curve.at_risk_noise[edge]:.0f}" for edge in edges]
        rows.append([curve.name, *cells])
    return Table(heads, rows)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one question.

    Parameters
    ----------
    title
        The question in words.
    rows
        The estimated numbers, with intervals.
    notes
        Remarks on the numbers, in words.
    dates
        True if the numbers are days, which are shown as dates.
    p_value
        The p-value of a test, such as the log-rank test; None without a test.
    ratios
        Odds or rate ratios of a regression, or hazard ratios of survival curves, with intervals.
    fit
        Coefficients and covariances of a regression; None for other questions.
    medians
        Medians of survival curves, in the units of time; infinite if a curve stays above 1/2.
    curves
        Survival curves of the groups, as numbers.
    pairs
        The noisy two-way tables of a `Pairs`; None for other questions.
    bars
        True if the rows are counts of the bins of a column.
    grid
        Arrangement of the rows as a two-way table; None for other questions.
    explained
        True if the notes say why there are no estimates.
    effects, effect_scale
        Coefficients of a regression on one common scale, for a plot. For a column of numbers: the
        effect of a change from the low to the high end of the public range. `effect_scale` names
        the scale.
    column
        Column that the bins divide, if `bars`; column of the groups, if there are survival curves.

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
        """Covariance of a regression's coefficients, of noise and sampling together.

        Shape (coefficients, coefficients).
        """
        return self._fitted.covariance

    @property
    def _fitted(self) -> Fit:
        if self.fit is None:
            fail("answer", "that of a regression whose coefficients are shown", self.title)
        return self.fit

    @property
    def warnings(self) -> list[str]:
        """Warnings for the reader, computed from the rows."""
        all_rows = (*self.rows, *self.ratios)
        unknown = [row.name for row in all_rows if isnan(row.estimate)]
        warnings = []
        if unknown and not self.explained:
            warnings.append(f"too few records at this noise: {', '.join(unknown)}")
        noisy_rows = [row for row in self.rows if row.noise > row.sampling]
        if 2 * len(noisy_rows) > len(self.rows):
            warnings.append(LOUD)
        return warnings

    def table(self) -> Table:
        """Return the table of the answer, without the notes."""
        if self.grid is not None:
            return self.grid.table(self.title, self.rows)
        return self._table_of(self.title, self.rows)

    def tables(self) -> tuple[Table, ...]:
        """Return all tables that are shown: the rows, medians, numbers at risk and ratios.

        There is none where the notes say why there are no estimates.
        """
        tables = []
        if self.rows and not self.explained:
            tables.append(self.table())
        if self.pairs is not None:
            tables.append(self.pairs.table())
        if self.medians:
            tables.append(self._table_of("", self.medians))
        if self.curves:
            tables.append(at_risk_table(self.curves))
        if self.ratios:
            tables.append(self._table_of("", self.ratios))
        return tuple(tables)

    def _table_of(self, title: str, rows: Sequence[Row]) -> Table:
        """Return rows as a table, with a column of p-values if a row has one."""
        heads = [title, "estimate", "noise", "sampling", "95% interval"]
        lines = [self._cells(row) for row in rows]
        if any(row.p_value is not None for row in rows):
            heads.append("p")
            for row, line in zip(rows, lines, strict=True):
                line.append(p_in_words(row.p_value))
        return Table(heads, lines)

    def _cells(self, row: Row) -> list[str]:
        """Return the cells of a row without its p-value: dashes if it cannot be estimated."""
        if isnan(row.estimate):
            return [row.name, "-", "-", "-", "-"]
        if row.noise == row.sampling == 0:  # public, as the number of all records is
            return [row.name, f"{row.estimate:.6g}", "0", "0", "public"]
        decimals = _decimals(row)
        noise = _half_in_words(row.noise, decimals)
        sampling = _half_in_words(row.sampling, decimals)
        if self.dates:
            estimate = str(date.fromordinal(floor(row.estimate)))
            low = str(date.fromordinal(floor(row.low)))
            high = str(date.fromordinal(ceil(row.high)))
        else:
            estimate = _number_in_words(row.estimate, decimals)
            low = _number_in_words(row.low, decimals)
            high = _number_in_words(row.high, decimals)
        return [row.name, estimate, noise, sampling, f"{low} to {high}"]

    def __str__(self) -> str:
        parts = [str(table) for table in self.tables()]
        if self.explained:
            parts = [self.title]
        return "\n".join([*parts, *self.notes, *self.warnings])

    def as_dict(self) -> dict[str, Any]:
        """Return the answer in plain types that JSON can hold; NaN becomes None."""
        fields: dict[str, Any] = {
            "title": self.title,
            "rows": [_plain(row) for row in self.rows],
            "notes": [*self.notes, *self.warnings],
            "p_value": self.p_value,
        }
        if self.medians:
            fields["medians"] = [_plain(row) for row in self.medians]
        if self.curves:
            fields["curves"] = [curve.as_dict() for curve in self.curves]
        if self.ratios:
            fields["ratios"] = [_plain(row) for row in self.ratios]
        if self.pairs is not None:
            fields["pairs"] = self.pairs.as_dict()
        if self.fit is not None:
            fields["fit"] = self.fit.as_dict()
        return fields


def _decimals(row: Row) -> int:
    """Return the number of decimals of a row, by which its larger error has one or two digits.

    A median that is not reached has no errors: its interval begins at the edge of a bin.
    """
    finite_errors = [half for half in (row.noise, row.sampling) if half < inf]
    if not finite_errors:
        if row.low == round(row.low):
            return 0
        return 2
    last_digit = max(1e-9, *finite_errors) / 30  # the larger error is at least 3 of it
    return int(np.clip(-np.floor(np.log10(last_digit)), 0, 8))


def _half_in_words(half: float, decimals: int) -> str:
    """Return half of an interval; a dash if it is not finite."""
    if not isfinite(half):
        return "-"
    return f"± {half:.{decimals}f}"


def _number_in_words(number: float, decimals: int) -> str:
    """Return a number with so many decimals; infinite times are not reached."""
    if number == inf:
        return "not reached"
    return f"{number:.{decimals}f}"


def _plain(row: Row) -> dict[str, Any]:
    """Return a row in plain types; NaN, and what is not reached, become None."""
    fields = {name: _finite(value) for name, value in row._asdict().items()}
    if row.p_value is None:
        del fields["p_value"]
    return fields


def _finite(value: Any) -> Any:
    """Return a value, None for a number that is not finite."""
    if isinstance(value, float) and not isfinite(value):
        return None
    return value


def consistent(counts: Floats, records: int) -> Floats:
    """Return noisy counts of disjoint cells, shifted so that their sum is the number of records.

    The sum of all noise is spread evenly over the cells, shape (cells,).
    """
    return np.asarray(counts + (records - counts.sum()) / len(counts))


def quantile(q: float, counts: Floats, noise: float, absent: bool) -> Floats:
    """Return a quantile, its noise and sampling error, and an interval, all in bins.

    At the edge j between bins, consider the balance ``B_j = (count below j) - q (count of all)``:
    it rises with j, and is 0 at the quantile. Its noise has the variance that `_balance_variance`
    returns; sampling of n records gives it about the variance ``n q (1 - q)`` of a binomial count.
    The interval holds all bins where a 95% interval of the balance reaches 0. The estimate is
    where the balance crosses 0, linear within a bin, after isotonic regression.

    Parameters
    ----------
    q
        Which quantile, in (0, 1).
    counts
        Noisy counts of the bins and, last, if `absent`, of the records without a value, already
        made `consistent`; shape (bins,) or (bins + 1,).
    noise
        Standard deviation of the noise of a count, before counts were made `consistent`.
    absent
        True if the last count is of records without a value.

    Returns
    -------
    The estimate, half intervals for noise and sampling alone, and the ends of the 95% interval,
    which are edges of bins, shape (5,); NaN if there are too few records.
    """
    present = counts[:-1] if absent else counts
    bins = len(present)
    cells = len(counts)
    total = float(present.sum())
    if absent:
        noise_of_total = noise * sqrt(bins * (1 - bins / cells))
        if total < Z * noise_of_total:
            return np.full(5, np.nan)
    count_below = np.concatenate(([0.0], np.cumsum(present)))  # at each edge, shape (bins + 1,)
    balance = count_below - q * total
    noise_variance = _balance_variance(q, bins, cells, noise)
    sampling_variance = np.full(bins + 1, max(total, 1.0) * q * (1 - q))

    noise_low, noise_high = _quantile_interval(balance, noise_variance)
    sampling_low, sampling_high = _quantile_interval(balance, sampling_variance)
    low, high = _quantile_interval(balance, noise_variance + sampling_variance)

    rising = isotonic_regression(balance).x
    crossing = int(np.clip(np.searchsorted(rising, 0.0), 1, bins))  # the edge above the quantile
    bin_ends = (crossing - 1, crossing)
    estimate = np.interp(0.0, rising[crossing - 1 : crossing + 1], bin_ends)
    noise_half = (noise_high - noise_low) / 2
    sampling_half = (sampling_high - sampling_low) / 2
    return np.array([np.clip(estimate, low, high), noise_half, sampling_half, low, high])


def _balance_variance(q: float, bins: int, cells: int, noise: float) -> Floats:
    """Return the variance of the noise of ``B_j`` in `quantile` at each edge, shape (bins + 1,).

    The balance weighs j bins below the edge with ``1 - q``, the other bins with ``-q``, and a cell
    of absent values with 0. Counts that were made `consistent` have lost the mean noise of all
    cells. That takes the squared sum of the weights over the number of cells off the variance.
    """
    below = np.arange(bins + 1)  # number of bins below each edge
    above = bins - below
    weight_sum = (1 - q) * below - q * above
    squared_weights = (1 - q) ** 2 * below + q**2 * above
    variance: Floats = noise**2 * (squared_weights - weight_sum**2 / cells)
    return variance


def _quantile_interval(balance: Floats, variance: Floats) -> tuple[float, float]:
    """Return the first and the last edge where the balance may be 0, and one edge more either way.

    It may be 0 where it is within `Z` standard deviations of 0. Both arguments hold the value at
    each edge, shape (bins + 1,).
    """
    bins = len(balance) - 1
    reach = Z * np.sqrt(np.maximum(variance, 0))
    first_possible = float(np.argmax(balance > -reach))
    last_possible = bins - float(np.argmax((balance < reach)[::-1]))
    return max(first_possible - 1, 0.0), min(last_possible + 1, float(bins))
