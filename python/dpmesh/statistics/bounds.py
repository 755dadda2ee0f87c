"""Bounds of columns from a release: between which powers of two their numbers lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail
from dpmesh.keys import Key
from dpmesh.statistics.answers import Answer, Row, nothing
from dpmesh.statistics.ask import Statistics, ask
from dpmesh.statistics.bins import Floats
from dpmesh.statistics.geometry import Columns
from dpmesh.statistics.questions import Histogram, Kinds
from dpmesh.tables.kinds import Number

LEAST = -16
OCTAVES = 48
"""Numbers count as 0 below ``2^LEAST``; of each sign so many powers of two follow."""

WIDEST = Number(low=-(2.0 ** (LEAST + OCTAVES)), high=2.0 ** (LEAST + OCTAVES), missing=True)
"""The range of any column whose own is not known."""

CLEAR = 4.0
"""A bin holds records if its count exceeds so many standard deviations of the noise."""

FEWEST = 20.0
"""So many standard deviations of the noise in a bin all records together must be."""


@dataclass(frozen=True)
class Bounds(Histogram):
    """Between which powers of two the numbers of a column lie: its range is `WIDEST`.

    A record is in the one bin of its sign and of the largest power of two that it reaches, or of
    missing values: the sensitivity is sqrt(2). Bins that few records are in are cut off.
    """

    bins: int = 2 * OCTAVES + 1

    def cell(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Return the number of each record's bin: from large negative to large positive ones."""
        present = columns[self.column].present
        numbers = np.where(present, columns[self.column].numbers, 0.0)
        _, exponents = np.frexp(np.abs(numbers))  # 2^(exponent - 1) <= number < 2^exponent
        octaves = np.clip(exponents - LEAST, 0, OCTAVES)
        octaves = np.where(numbers == 0, 0, octaves)
        bins = OCTAVES + np.sign(numbers).astype(np.int64) * octaves
        return np.where(present, bins, self.bins)

    def require(self, noise: float, records: int) -> None:
        """Fail if so few records are lost in the noise, before anything is released."""
        if records < FEWEST * noise:
            least_records = f"{FEWEST * noise:,.0f} records for bounds of {self.column}"
            expected = f"at least {least_records}, fewer columns or a larger epsilon"
            fail("epsilon", expected, f"{records:,} records")

    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return the low and the high end, if there are any."""
        filled_bins = np.flatnonzero(total[: self.bins] > CLEAR * noise)
        low_name = f"{self.column}, low"
        high_name = f"{self.column}, high"
        rows = (nothing(low_name), nothing(high_name))
        if len(filled_bins):
            low = _low_end(filled_bins[0])
            mirrored_bin = 2 * OCTAVES - filled_bins[-1]
            high = -_low_end(mirrored_bin)
            if low < high:
                rows = (_exact(low_name, low), _exact(high_name, high))
        return Answer(title=self.column, rows=rows)


def _exact(name: str, end: float) -> Row:
    """Return the row of a bound: it is one of public numbers, with no error to state."""
    return Row(name, end, 0.0, 0.0, end, end)


def _low_end(number: int) -> float:
    """Return the low end of a bin: bin `OCTAVES` is that of 0."""
    octave = int(number) - OCTAVES
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
    """Return bounds of columns of numbers, of those that have any, and the release beneath them.

    Parameters
    ----------
    columns
        Their names, from public knowledge.
    X, groups, epsilon, delta, colluding, key
        As for `ask`.

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
        if low_row.estimate < high_row.estimate:  # not NaN, as where there are no bounds
            ends[answer.title] = (low_row.estimate, high_row.estimate)
    return ends, statistics
