"""Private bounds of columns whose range nobody knows: between two powers of two.

A noisy histogram over bins whose edges are powers of two, of both signs, shows the outermost bins
with many records. ``dpmesh ranges`` calls `bounds`. The release has an epsilon, which counts
towards the budget of the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail
from dpmesh.keys import Key
from dpmesh.statistics.answers import Answer, Row, unknown_row
from dpmesh.statistics.ask import Statistics, ask
from dpmesh.statistics.bins import Floats
from dpmesh.statistics.geometry import Columns
from dpmesh.statistics.questions import Histogram, Kinds
from dpmesh.tables.kinds import Number

LEAST = -16
"""Exponent of the smallest edge: numbers below ``2^LEAST`` in magnitude count as 0."""

OCTAVES = 48
"""Number of bins, each an octave wide, of each sign."""

WIDEST = Number(low=-(2.0 ** (LEAST + OCTAVES)), high=2.0 ** (LEAST + OCTAVES), missing=True)
"""Public range of a column whose range is unknown."""

CLEAR = 4.0
"""Smallest count of a bin that is taken to hold records, in standard deviations of the noise."""

FEWEST = 20.0
"""Smallest number of all records for bounds, in standard deviations of the noise in a bin."""


@dataclass(frozen=True)
class Bounds(Histogram):
    """Histogram of a column over octaves, which gives two powers of two that enclose its numbers.

    The range of the column is `WIDEST`. A record is in one bin: that of its sign and of the largest
    power of two that it reaches, or that of missing values. So the L2 sensitivity to replacing a
    record is sqrt(2). Outer bins with few records are left out of the bounds.
    """

    bins: int = 2 * OCTAVES + 1

    def cell(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Return the index of each record's bin: from large negative to large positive numbers."""
        present = columns[self.column].present
        numbers = np.where(present, columns[self.column].numbers, 0.0)
        _, exponents = np.frexp(np.abs(numbers))  # 2^(exponent - 1) <= number < 2^exponent
        octaves = np.clip(exponents - LEAST, 0, OCTAVES)
        octaves = np.where(numbers == 0, 0, octaves)
        bins = OCTAVES + np.sign(numbers).astype(np.int64) * octaves
        return np.where(present, bins, self.bins)

    def require(self, noise: float, records: int) -> None:
        """Raise a `ValueError` before any release if there are too few records for the noise."""
        if records < FEWEST * noise:
            least_records = f"{FEWEST * noise:,.0f} records for bounds of {self.column}"
            expected = f"at least {least_records}, fewer columns or a larger epsilon"
            fail("epsilon", expected, f"{records:,} records")

    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return a low and a high bound, without an error; NaN if no bin stands out."""
        filled_bins = np.flatnonzero(total[: self.bins] > CLEAR * noise)
        low_name = f"{self.column}, low"
        high_name = f"{self.column}, high"
        rows = (unknown_row(low_name), unknown_row(high_name))
        if len(filled_bins):
            low = _low_end(filled_bins[0])
            mirrored_bin = 2 * OCTAVES - filled_bins[-1]
            high = -_low_end(mirrored_bin)
            if low < high:
                rows = (_exact(low_name, low), _exact(high_name, high))
        return Answer(title=self.column, rows=rows)


def _exact(name: str, end: float) -> Row:
    """Return the row of a bound, which is a public number without an error."""
    return Row(name, end, 0.0, 0.0, end, end)


def _low_end(bin_index: int) -> float:
    """Return the low end of a bin; the bin with index `OCTAVES` holds 0."""
    octave = int(bin_index) - OCTAVES
    if octave == 0:
        return 0.0
    if octave < 0:
        return -(2.0 ** (LEAST - octave))
    return 2.0 ** (LEAST + octave - 1)


def bounds(
    columns: Sequence[str],
    X: Any,
    groups: Any = None,
    *,
    epsilon: float,
    delta: float = 1e-5,
    colluding: int = 1,
    key: Key | None = None,
) -> tuple[dict[str, tuple[float, float]], Statistics]:
    """Release private bounds of columns of numbers.

    All bounds together are (epsilon, delta)-DP under the threat model of `ask`.

    Parameters
    ----------
    columns
        Names of the columns, from public knowledge.
    X, groups, epsilon, delta, colluding, key
        As for `ask`.

    Returns
    -------
    The bounds (low, high) of each column for which the noise shows any, by name; and the result of
    `ask` with the guarantee.

    Raises
    ------
    ValueError
        As `ask`; or if all records together are too few for the noise in a bin.
    """
    questions = [Bounds(name) for name in columns]
    statistics = ask(
        questions,
        X,
        groups,
        ranges=dict.fromkeys(columns, WIDEST),
        epsilon=epsilon,
        delta=delta,
        colluding=colluding,
        key=key,
    )
    ends = {}
    for answer in statistics.answers:
        low_row, high_row = answer.rows
        if low_row.estimate < high_row.estimate:  # False for NaN: no bounds
            ends[answer.title] = (low_row.estimate, high_row.estimate)
    return ends, statistics
