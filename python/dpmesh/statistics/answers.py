"""Answers with their noise, their sampling error, and both together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from math import ceil, floor, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from dpmesh._table import Table
from dpmesh.statistics.bins import Floats

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
    half, scale = inside + Z * Z / 2, 1 + Z * Z / records
    root = sqrt(max(half**2 - scale * (inside**2 - (Z * noise) ** 2), 0.0))
    low, high = np.clip([(half - root) / scale, (half + root) / scale], 0, records)
    sampling = sqrt(max(inside * (1 - inside / records), 0.0))
    return Row(name, count, Z * noise, Z * sampling, float(low), float(high))


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

    @property
    def warnings(self) -> list[str]:
        """What the reader should be warned of, computed from the rows."""
        unknown = [one.name for one in self.rows if np.isnan(one.estimate)]
        found = [f"too few records at this noise: {', '.join(unknown)}"] if unknown else []
        louder = sum(one.noise > one.sampling for one in self.rows)
        return [*found, LOUD] if 2 * louder > len(self.rows) else found

    def table(self) -> Table:
        """Return what is shown, without the notes."""
        heads = [self.title, "estimate", "noise", "sampling", "95% interval"]
        return Table(heads, list(map(self._line, self.rows)))

    def _line(self, one: Row) -> list[str]:
        if np.isnan(one.estimate):
            return [one.name, *"----"]
        if one.noise == one.sampling == 0:
            return [one.name, f"{one.estimate:.6g}", "0", "0", "public"]
        finest = max(one.noise, one.sampling, 1e-9) / 30
        decimals = int(np.clip(-np.floor(np.log10(finest)), 0, 8))

        spread = [f"± {half:.{decimals}f}" for half in (one.noise, one.sampling)]
        if self.dates:
            day, first, last = floor(one.estimate), floor(one.low), ceil(one.high)
            estimate, low, high = (str(date.fromordinal(each)) for each in (day, first, last))
        else:
            numbers = (one.estimate, one.low, one.high)
            estimate, low, high = (f"{each:.{decimals}f}" for each in numbers)
        return [one.name, estimate, *spread, f"{low} to {high}"]

    def __str__(self) -> str:
        return "\n".join([str(self.table()), *self.notes, *self.warnings])

    def as_dict(self) -> dict[str, Any]:
        """Return the answer in plain types that JSON can hold; NaN becomes None."""
        rows = [{k: v if v == v else None for k, v in r._asdict().items()} for r in self.rows]
        notes = [*self.notes, *self.warnings]
        return {"title": self.title, "rows": rows, "notes": notes, "p_value": self.p_value}


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
        Noisy counts of the bins and, if `absent`, of the records without a value, `consistent`.
    noise
        Of a count before they were made to do so.
    absent
        Whether the last count is of records without a value.

    Returns
    -------
    The estimate, half intervals for noise and sampling alone, and the ends of the 95% interval,
    which are edges of bins, shape (5,); NaN if there are too few records.
    """
    present = counts[:-1] if absent else counts
    bins, of = len(present), len(counts)
    total, j = float(present.sum()), np.arange(bins + 1)
    if absent and total < Z * noise * sqrt(bins * (1 - bins / of)):
        return np.full(5, np.nan)
    above = np.concatenate(([0.0], np.cumsum(present))) - q * total
    drift = (1 - q) * j - q * (bins - j)
    variance = noise**2 * ((1 - q) ** 2 * j + q**2 * (bins - j) - drift**2 / of)
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
