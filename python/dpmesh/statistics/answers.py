"""Answers to questions: estimates with intervals, as rows of a table.

Each `Row` has the half-widths of two 95% intervals, for the privacy noise alone and for sampling
alone, and one 95% interval for both. Questions (`dpmesh.statistics.questions`) compute the rows
from noisy sums; `Answer` arranges the rows in tables, and states warnings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from math import ceil, erfc, floor, inf, isfinite, isnan, sqrt
from typing import Any, NamedTuple

import numpy as np
import scipy  # its submodules are imported on first use

from dpmesh._table import Table
from dpmesh._validate import fail
from dpmesh.statistics.bins import Floats
from dpmesh.statistics.two_way import PairTables

Z = 1.959963984540054
"""Half-width of a 95% interval of a normal distribution, in standard deviations."""

_LEAST_P = 1e-16
"""Smallest p-value that is printed; smaller ones are below the precision of float64."""

MOST_MARKS = 6
"""Largest number of times for which numbers at risk are printed."""

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


def normal_row(name: str, estimate_and_errors: Floats, value_range: tuple[float, float]) -> Row:
    """Return a row with a normal interval, clipped to the possible values.

    Parameters
    ----------
    name
        Name of the row.
    estimate_and_errors
        The estimate, and the standard deviations of noise and of sampling, shape (3,).
    value_range
        The smallest and the largest possible value.
    """
    estimate, noise, sampling = map(float, estimate_and_errors)
    half = Z * sqrt(noise**2 + sampling**2)
    low, high = np.clip((estimate - half, estimate + half), *value_range)
    return Row(name, estimate, Z * noise, Z * sampling, float(low), float(high))


def unknown_row(name: str) -> Row:
    """Return a row of NaN, for a number that cannot be estimated."""
    nan = np.nan
    return Row(name, estimate=nan, noise=nan, sampling=nan, low=nan, high=nan)


def count_row(name: str, count: float, noise: float, records: float) -> Row:
    """Return the row of a noisy count among n records, with Wilson's interval widened by the noise.

    The interval holds all expected counts x with ``(count - x)^2 <= Z^2 (x (1 - x / n) +
    noise^2)``. Its ends are the roots of ``(1 + Z^2 / n) x^2 - 2 (count + Z^2 / 2) x + count^2 -
    Z^2 noise^2``.

    Parameters
    ----------
    name
        Name of the row.
    count
        The noisy count; for the interval it is clipped to [0, n].
    noise
        Standard deviation of the noise in the count.
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
        Names of the categories of the first data column (rows), and of the second (columns).
    hidden
        Name of a category whose row and column are not shown; None to show all.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    hidden: str | None = None

    def table(self, title: str, counts: Sequence[Row]) -> Table:
        """Return the two-way table of counts, each with its 95% interval.

        Parameters
        ----------
        title
            Heading of the first column.
        counts
            The counts of all cells, row by row.
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
"""A matrix as a tuple of its rows."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Coefficients of a regression, in the units of its columns.

    Parameters
    ----------
    names
        Name of each coefficient.
    coefficients
        The coefficients, in the order of `names`.
    noise_covariance, sampling_covariance
        Covariance matrix of the coefficients due to privacy noise alone, and due to sampling alone.
    """

    names: tuple[str, ...]
    coefficients: tuple[float, ...]
    noise_covariance: Matrix
    sampling_covariance: Matrix

    @property
    def covariance(self) -> Floats:
        """Covariance of noise and sampling together, shape (coefficients, coefficients)."""
        covariance: Floats = np.array(self.noise_covariance) + np.array(self.sampling_covariance)
        return covariance

    def as_dict(self) -> dict[str, Any]:
        """Return the fit in plain types that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class GroupCurve:
    """A survival curve and numbers at risk of one group, for tables and pictures.

    Parameters
    ----------
    name
        Name of the group.
    time
        Name of the column of times.
    times, marks
        Edges of the bins of time, as numbers and as text, shape (bins + 1,).
    survival, low, high
        The curve, and the ends of its 95% band, at each edge, shape (bins + 1,).
    at_risk, at_risk_noise
        Number of persons at risk at the start of each bin, and the half-width of a 95% interval for
        its noise, shape (bins,).
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
        return np.array(self._required_fit.coefficients)

    @property
    def covariance(self) -> Floats:
        """Covariance of a regression's coefficients, of noise and sampling together.

        Shape (coefficients, coefficients).
        """
        return self._required_fit.covariance

    @property
    def _required_fit(self) -> Fit:
        """The fit; fail if the answer has none."""
        if self.fit is None:
            fail("answer", "that of a regression whose coefficients are shown", self.title)
        return self.fit

    @property
    def warnings(self) -> list[str]:
        """Warnings about noise: rows without an estimate, and noise above the sampling error."""
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
        """Return all tables to show: rows, noisy two-way tables, medians, numbers at risk, ratios.

        If the notes explain why there are no estimates, the table of rows is left out.
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
        """Return the cells of a row without its p-value, as text; dashes without an estimate."""
        if isnan(row.estimate):
            return [row.name, "-", "-", "-", "-"]
        if row.noise == row.sampling == 0:  # a public number, such as the number of all records
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
    """Return the number of decimals with which a row's larger error has one or two digits.

    A median that is not reached has no finite errors. Its interval starts at an edge of a bin.
    """
    finite_errors = [half for half in (row.noise, row.sampling) if half < inf]
    if not finite_errors:
        if row.low == round(row.low):
            return 0
        return 2
    # the larger error is between 3 and 30 units of the last digit
    last_digit = max(1e-9, *finite_errors) / 30
    return int(np.clip(-np.floor(np.log10(last_digit)), 0, 8))


def _half_in_words(half: float, decimals: int) -> str:
    """Return the half-width of an interval as text; a dash if it is not finite."""
    if not isfinite(half):
        return "-"
    return f"± {half:.{decimals}f}"


def _number_in_words(number: float, decimals: int) -> str:
    """Return a number as text; an infinite time is "not reached"."""
    if number == inf:
        return "not reached"
    return f"{number:.{decimals}f}"


def _plain(row: Row) -> dict[str, Any]:
    """Return a row in plain types; NaN and infinite numbers become None."""
    fields = {name: _finite(value) for name, value in row._asdict().items()}
    if row.p_value is None:
        del fields["p_value"]
    return fields


def _finite(value: Any) -> Any:
    """Return a value unchanged; None for a number that is not finite."""
    if isinstance(value, float) and not isfinite(value):
        return None
    return value


def shift_to_total(counts: Floats, records: int) -> Floats:
    """Shift noisy counts of disjoint cells so that their sum is the public number of records.

    All counts are shifted by the same amount, shape (cells,). This removes the mean noise.
    """
    return np.asarray(counts + (records - counts.sum()) / len(counts))


def quantile(q: float, counts: Floats, noise: float, absent: bool) -> Floats:
    """Estimate a quantile from noisy counts of bins, with errors and an interval, in bins.

    The *balance* at the edge j between bins is ``B_j = (count below j) - q (count of all bins)``.
    It rises with j, and is 0 at the quantile. Its noise has the variance of `_balance_variance`.
    Sampling of n records adds about ``n q (1 - q)``, the variance of a binomial count. The interval
    holds all edges at which a 95% interval of the balance includes 0. The estimate is the point at
    which the balance crosses 0, by linear interpolation after isotonic regression.

    Parameters
    ----------
    q
        Probability of the quantile, in (0, 1).
    counts
        Noisy counts of the bins, shifted by `shift_to_total`, shape (bins,). If `absent`, a count
        of the records without a value follows, shape (bins + 1,).
    noise
        Standard deviation of the noise in a count before `shift_to_total`.
    absent
        True if the last count is of records without a value.

    Returns
    -------
    Five numbers in units of a bin's width, from the low end of the range: estimate, half-widths of
    95% intervals for noise alone and for sampling alone, low and high end of the 95% interval for
    both. The ends are edges of bins. All are NaN if there are too few records.
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

    rising = scipy.optimize.isotonic_regression(balance).x
    crossing = int(np.clip(np.searchsorted(rising, 0.0), 1, bins))  # the edge above the quantile
    bin_ends = (crossing - 1, crossing)
    estimate = np.interp(0.0, rising[crossing - 1 : crossing + 1], bin_ends)
    noise_half = (noise_high - noise_low) / 2
    sampling_half = (sampling_high - sampling_low) / 2
    return np.array([np.clip(estimate, low, high), noise_half, sampling_half, low, high])


def _balance_variance(q: float, bins: int, cells: int, noise: float) -> Floats:
    """Return the variance of the noise in ``B_j`` of `quantile` at each edge, shape (bins + 1,).

    The balance is a sum of counts with weights: ``1 - q`` for the j bins below the edge, ``-q`` for
    the other bins, and 0 for absent values. `shift_to_total` removes the mean noise of all cells.
    This reduces the variance by the squared sum of the weights over the number of cells.

    Parameters
    ----------
    q
        Probability of the quantile.
    bins, cells
        Number of bins, and of bins and the cell of absent values together.
    noise
        Standard deviation of the noise in a count before `shift_to_total`.
    """
    below = np.arange(bins + 1)  # number of bins below each edge
    above = bins - below
    weight_sum = (1 - q) * below - q * above
    squared_weights = (1 - q) ** 2 * below + q**2 * above
    variance: Floats = noise**2 * (squared_weights - weight_sum**2 / cells)
    return variance


def _quantile_interval(balance: Floats, variance: Floats) -> tuple[float, float]:
    """Return the first and the last edge at which the balance may be 0, widened by one edge each.

    The balance may be 0 where it is within `Z` standard deviations of 0.

    Parameters
    ----------
    balance, variance
        Balance and its variance at each edge, shape (bins + 1,).
    """
    bins = len(balance) - 1
    reach = Z * np.sqrt(np.maximum(variance, 0))
    first_possible = float(np.argmax(balance > -reach))
    last_possible = bins - float(np.argmax((balance < reach)[::-1]))
    return max(first_possible - 1, 0.0), min(last_possible + 1, float(bins))
