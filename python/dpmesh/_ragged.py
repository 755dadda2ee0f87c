"""Names of arrays' types, and rows of different lengths, handled without a loop over rows."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Ragged: TypeAlias = tuple[Indices, Indices]
"""``(indptr, values)``: row i is ``values[indptr[i]:indptr[i + 1]]``, possibly empty."""


class Walks(NamedTuple):
    """Mini-batches of many nodes, in the order of their steps."""

    steps: Indices
    """Shape (nodes + 1,): node i takes the steps ``steps[i]`` to ``steps[i + 1] - 1``."""
    batches: Ragged
    """The records of each step, possibly none."""


def slices(values: Indices, starts: Indices, lengths: Indices) -> Ragged:
    """Return the rows ``values[start:start + length]``, for each start and its length.

    `starts` and `lengths` have the shape (rows,).
    """
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    shifts = np.repeat(starts - indptr[:-1], lengths)  # from the place in the result to `values`
    places = shifts + np.arange(indptr[-1])
    return indptr, values[places]


def rows(ragged: Ragged, chosen: Indices) -> Ragged:
    """Return the rows with these indices, in the order of `chosen`."""
    indptr, values = ragged
    if np.array_equal(chosen, np.arange(len(indptr) - 1)):
        return ragged
    starts = indptr[chosen]
    ends = indptr[chosen + 1]
    return slices(values, starts, ends - starts)


def rectangle(ragged: Ragged) -> tuple[Indices, npt.NDArray[np.float32]]:
    """Return the rows as one array, padded to the length of the longest, and weights 1 or 0.

    A row is padded with its own first value, so that it never has a record of another node; an
    empty row with 0. Both arrays have the shape (rows, longest), of which `longest` is at least 1.
    """
    indptr, values = ragged
    lengths = np.diff(indptr)
    longest = max(1, lengths.max(initial=0))
    is_used = np.arange(longest) < lengths[:, np.newaxis]
    is_filled = lengths > 0
    starts = indptr[:-1]
    padded = np.zeros(is_used.shape, dtype=np.int64)
    padded[is_filled] = values[starts[is_filled], np.newaxis]
    padded[is_used] = values
    return padded, is_used.astype(np.float32)
