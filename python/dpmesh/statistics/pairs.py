"""`Pairs`: the two-way tables of all pairs of columns, in one release.

Synthetic records are drawn from the noisy tables (`dpmesh.statistics.synthetic`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, pi, sqrt

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpmesh._validate import fail, integer
from dpmesh.statistics.answers import Answer
from dpmesh.statistics.bins import Floats
from dpmesh.statistics.geometry import Columns, Size, cells
from dpmesh.statistics.questions import Kinds, OneRound, several
from dpmesh.statistics.two_way import NO_DATA, BinnedColumn, PairTables

FEWEST_BINS = 4
MOST_BINS = 32
"""Smallest and largest default number of bins of a number or date."""

NOISE_OF_TABLE = 0.03
"""Largest expected total variation by which noise moves one table, for the default bins."""

MOST_COLUMNS = 64
"""Largest number of columns."""

MOST_CELLS = 2**22
"""Largest number of cells of all tables together."""


@dataclass(frozen=True, init=False)
class Pairs(OneRound):
    """Two-way tables of counts for all pairs of columns, from which to draw synthetic records.

    `Statistics.synthesize` draws the synthetic records. Each record is in one cell of each table.
    For d columns the L2 sensitivity of all tables together to replacing a record is
    ``sqrt(d (d - 1))``. A missing value has a cell.

    Parameters
    ----------
    columns
        Names of 2 to 64 columns of any kind.
    bins
        Number of bins of equal width for each column of numbers or dates, at least 2. None chooses
        the largest number from 4 to 32 for which the noise moves a table by at most 3% in total
        variation.

    Raises
    ------
    ValueError
        If the number of columns or of bins is out of range, or a column is named twice.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.statistics.Pairs("age", "sex", "stage", bins=8)
    Pairs(columns=('age', 'sex', 'stage'), bins=8)
    """

    columns: tuple[str, ...]
    bins: int | None = None

    def __init__(self, *columns: str, bins: int | None = None) -> None:
        several(columns, 2)
        if len(columns) > MOST_COLUMNS:
            fail("columns", f"at most {MOST_COLUMNS}", len(columns))
        if bins is not None:
            integer("bins", bins, at_least=2, below=2**12)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "bins", bins)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that the question reads."""
        return self.columns

    def settled(self, noise: float | None, records: int) -> Pairs:
        """Return the question with a default number of bins, chosen by the noise.

        Gaussian noise of standard deviation s in a count has the mean absolute value
        ``s sqrt(2 / pi)``. So the noise moves a table of b times b bins by
        ``b^2 s sqrt(2 / pi) / (2 records)`` in total variation on average. The default b is the
        largest for which this is at most 3%; without a known noise it is the smallest, 4.

        Raises
        ------
        ValueError
            If tables of 4 times 4 bins have too much noise for the number of records.
        """
        if self.bins is not None:
            return self
        if noise is None:
            return replace_bins(self, FEWEST_BINS)
        largest_bins = sqrt(2 * NOISE_OF_TABLE * records / (noise * sqrt(2 / pi)))
        if largest_bins < FEWEST_BINS:
            least_records = ceil(FEWEST_BINS**2 * noise * sqrt(2 / pi) / (2 * NOISE_OF_TABLE))
            count = len(self.columns)
            expected = f"at least {least_records:,} for all pairs of {count} columns at this noise"
            fail("records", f"{expected}, or a number of bins", f"{records:,}")
        return replace_bins(self, min(int(largest_bins), MOST_BINS))

    def cells(self, kinds: Kinds) -> tuple[int, ...]:
        """Return the number of cells of each column."""
        if self.bins is None:
            fail("pairs", "a number of bins, as age,sex:8", ",".join(self.columns))
        return tuple(len(cells(kinds[name], self.bins)) for name in self.columns)

    def size(self, kinds: Kinds) -> Size:
        """Return length, largest norm and sensitivity of a record's vector."""
        sizes = self.cells(kinds)
        total = sum(a * b for a, b in combinations(sizes, 2))
        if total > MOST_CELLS:
            expected = f"at most {MOST_CELLS:,} cells of all tables together"
            fail("columns", f"{expected}: fewer bins, or fewer columns", f"{total:,}")
        pairs = len(sizes) * (len(sizes) - 1) // 2
        return Size(total, sqrt(pairs), sqrt(2 * pairs), entries=pairs)

    def vectors(self, columns: Columns) -> sparse.csr_array:
        """Return vectors with a 1 in the record's cell of each table, shape (records, cells)."""
        kinds = {name: columns[name].kind for name in self.columns}
        sizes = self.cells(kinds)
        assert self.bins is not None
        cells_by_column = [columns[name].cell(self.bins) for name in self.columns]
        cells_by_pair: list[npt.NDArray[np.int64]] = []
        cells_before = 0  # number of cells of earlier tables
        for a, b in combinations(range(len(sizes)), 2):
            cell_in_table = cells_by_column[a] * sizes[b] + cells_by_column[b]
            cells_by_pair.append(cells_before + cell_in_table)
            cells_before += sizes[a] * sizes[b]
        indices = np.stack(cells_by_pair, axis=1)  # shape (records, pairs)
        records, pairs = indices.shape
        row_starts = np.arange(records + 1) * pairs
        ones = np.ones(indices.size)
        shape = (records, cells_before)
        return sparse.csr_array((ones, indices.ravel(), row_starts), shape=shape)

    def answer(self, kinds: Kinds, total: Floats, noise: float, records: int) -> Answer:
        """Return the noisy tables as an answer without rows."""
        assert self.bins is not None
        columns = tuple(BinnedColumn.of(name, kinds[name], self.bins) for name in self.columns)
        tables = PairTables(
            columns=columns, counts=tuple(total.tolist()), noise=noise, records=records
        )
        notes = (NO_DATA, f"numbers and dates have {self.bins} equal bins")
        return Answer(title="pairs", rows=(), pairs=tables, notes=notes)


def replace_bins(question: Pairs, bins: int) -> Pairs:
    """Return a copy of the question with this number of bins."""
    return Pairs(*question.columns, bins=bins)


def pairs_in(answers: Sequence[Answer]) -> PairTables:
    """Return the two-way tables of the first answer to a `Pairs`.

    Raises
    ------
    ValueError
        If no answer has two-way tables.
    """
    tables = [answer.pairs for answer in answers if answer.pairs is not None]
    if not tables:
        fail("answers", "one of Pairs, from which rows are drawn", "none")
    return tables[0]
