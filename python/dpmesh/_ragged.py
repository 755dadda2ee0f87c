"""Types of arrays, and operations on rows of different lengths without a loop over rows.

`Ragged` is the form of all batches of records in this package: node i has the records
``indices[indptr[i]:indptr[i + 1]]``.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.float64]
"""Array of float64."""
Indices: TypeAlias = npt.NDArray[np.int64]
"""Array of int64, such as indices or counts."""
Flags: TypeAlias = npt.NDArray[np.bool_]
"""Array of bool."""
Ragged: TypeAlias = tuple[Indices, Indices]
"""``(indptr, values)``: row i is ``values[indptr[i]:indptr[i + 1]]``, possibly empty."""


class Walks(NamedTuple):
    """Mini-batches of the local steps of many nodes, in the order of the nodes and their steps."""

    steps: Indices
    """Node i takes the steps ``steps[i]`` to ``steps[i + 1] - 1``; shape (nodes + 1,)."""
    batches: Ragged
    """Records of each step, as ``(indptr, indices)``; a batch may be empty."""


def slices(values: Indices, starts: Indices, lengths: Indices) -> Ragged:
    """Return the rows ``values[start:start + length]``, for each start and its length.

    `starts` and `lengths` have the shape (rows,).
    """
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    # A value's index in `values` minus its index in the result is constant in a row.
    offsets = np.repeat(starts - indptr[:-1], lengths)
    return indptr, values[offsets + np.arange(indptr[-1])]


def rows(ragged: Ragged, chosen: Indices) -> Ragged:
    """Return the rows with these indices, in the order of `chosen`."""
    indptr, values = ragged
    if np.array_equal(chosen, np.arange(len(indptr) - 1)):
        return ragged
    starts = indptr[chosen]
    ends = indptr[chosen + 1]
    return slices(values, starts, ends - starts)


def rectangle(ragged: Ragged) -> tuple[Indices, npt.NDArray[np.float32]]:
    """Return the rows padded to equal lengths, and weights: 1 for values, 0 for padding.

    Both arrays have the shape (rows, longest), where `longest` is the length of the longest row, or
    1. A row is padded with its first value, so that it never has a record of another node. An empty
    row is padded with 0.
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
