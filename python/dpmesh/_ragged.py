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
    """Return the rows ``values[start:start + length]``."""
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    offsets = np.repeat(starts - indptr[:-1], lengths)
    return indptr, values[offsets + np.arange(indptr[-1])]


def rows(ragged: Ragged, chosen: Indices) -> Ragged:
    """Return the chosen rows, in the order of `chosen`."""
    indptr, values = ragged
    if np.array_equal(chosen, np.arange(len(indptr) - 1)):
        return ragged
    return slices(values, indptr[chosen], indptr[chosen + 1] - indptr[chosen])


def rectangle(ragged: Ragged) -> tuple[Indices, npt.NDArray[np.float32]]:
    """Return the rows as one array, each padded to the longest, and weights 1 or 0.

    A row is padded with its own first value, so that no node's records stand beside another's; an
    empty one with 0.
    """
    indptr, values = ragged
    lengths = np.diff(indptr)
    is_used = np.arange(max(1, lengths.max(initial=0))) < lengths[:, np.newaxis]
    indices = np.zeros(is_used.shape, dtype=np.int64)
    indices[lengths > 0] = values[indptr[:-1][lengths > 0], np.newaxis]
    indices[is_used] = values
    return indices, is_used.astype(np.float32)
