"""Mixing: each node's new vector is a weighted sum of its neighbours' vectors."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dpmesh import _core
from dpmesh._arrays import FloatArray, compressed, floats, is_sparse, unmasked
from dpmesh._validate import fail

_Rows: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], FloatArray]
"""``indptr``, ``indices`` and weights of a CSR matrix."""


def mix(matrix: Any, x: npt.ArrayLike, *, out: FloatArray | None = None) -> FloatArray:
    """Weighted sums of rows, ``matrix @ x``.

    Each element is summed in the order of the row's entries, in the type of `x`; each product is
    rounded together with its sum. So the bits are the same on every processor.

    Parameters
    ----------
    matrix
        Shape (rows, nodes): a scipy sparse matrix or array, such as the `weights` of a
        `MixingMatrix`, read without a copy if it is CSR, or a dense array. Integers and other
        floating-point types are rounded to the type of `x`.
    x
        Shape (nodes, ...), float32 or float64: one vector for each node.
    out
        Where to put the result: an array of the type of `x` that does not overlap it.

    Returns
    -------
    Shape (rows, ...), of the type of `x`; `out` if it was given.

    Raises
    ------
    ValueError
        If `matrix` is not a matrix of real numbers with a column for each row of `x`, or another
        argument does not fit. NaN and infinity are passed on, as numpy does.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> dm.kernels.mix(np.full((3, 3), 1 / 3), [[3.0], [6.0], [9.0]]).round(6)
    array([[6.],
           [6.],
           [6.]])
    """
    array = floats("x", x)
    return _core.mix(_compressed_rows(matrix, array), array, out)


class Mixing:
    """A matrix for many calls of `mix`, checked and converted once.

    Where all rows are the same, as with equal weights over a complete graph, they are summed once:
    n d operations in place of n^2 d, to the same bits.

    Parameters
    ----------
    matrix
        Shape (rows, nodes), as in `mix`. It must not change.
    """

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self._rows: _Rows | None = None
        self._equal = 0

    def mix(self, x: FloatArray) -> FloatArray:
        """Weighted sums of rows, as `mix` does."""
        if not _core.is_float_array(x):
            x = floats("x", x)
        if self._rows is None or self._rows[2].dtype != x.dtype:
            self._rows = _compressed_rows(self.matrix, x)
            self._equal = _equal_rows(self._rows)
            if self._equal:
                indptr, indices, weights = self._rows
                end = indptr[1]
                self._rows = indptr[:2], indices[:end], weights[:end]
        mixed = _core.mix(self._rows, x, None)
        return np.repeat(mixed, self._equal, axis=0) if self._equal else mixed


def _equal_rows(rows: _Rows) -> int:
    """How many rows there are, if all are the same and there are several; otherwise 0."""
    indptr, indices, weights = rows
    count, width = len(indptr) - 1, int(indptr[1])
    if count < 2 or width == 0 or count * width != len(indices):
        return 0
    if not (np.diff(indptr) == width).all():
        return 0
    columns, entries = indices.reshape(count, width), weights.reshape(count, width)
    same = (columns == columns[0]).all() and (entries == entries[0]).all()
    return count if same else 0


def _compressed_rows(matrix: Any, x: FloatArray) -> _Rows:
    """The parts of `matrix` in CSR, as the kernels take them for an `x` of nodes' rows."""
    was_sparse = is_sparse(matrix)
    if not was_sparse:
        kind, matrix = type(matrix).__name__, unmasked("matrix", matrix)
        if matrix.dtype.hasobject:
            fail("matrix", "an array or a sparse one, such as the weights of a MixingMatrix", kind)
    shape = matrix.shape
    if len(shape) != 2 or 0 in shape:
        fail("matrix", "at least 1 row and 1 column", f"shape {shape}")
    if matrix.dtype.kind not in "iubf":
        fail("matrix", "a matrix of real numbers", f"dtype {matrix.dtype}")
    if shape[1] != x.shape[0]:
        wanted = f"a column for each of the {x.shape[0]} rows of x"
        fail("matrix", wanted, f"shape {shape}")
    if not was_sparse:
        matrix = matrix.astype(x.dtype, copy=False)  # scipy lacks some types of numpy
    rows = matrix if was_sparse and matrix.format == "csr" else sp.csr_array(matrix)
    weights = np.ascontiguousarray(rows.data, dtype=x.dtype)
    return *compressed("matrix", rows), weights
