"""Mixing: each node's new vector is a weighted sum of its neighbours' vectors."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dpmesh import _core
from dpmesh._arrays import FloatArray, csr_int32, floats, is_sparse, unmasked
from dpmesh._validate import fail

_CompressedRows: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], FloatArray]
"""``indptr``, ``indices`` and weights of a CSR matrix."""


def mix(matrix: Any, x: npt.ArrayLike, *, out: FloatArray | None = None) -> FloatArray:
    """Return weighted sums of rows, ``matrix @ x``.

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
        Array of the type of `x` that receives the result and does not overlap `x`.

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
    """Mixing matrix for many calls of `mix`, which is checked and converted once.

    If all rows are equal, as with equal weights on a complete graph of n nodes, their sum is
    computed once: with n d operations in place of n^2 d, and the same bits.

    Parameters
    ----------
    matrix
        Shape (rows, nodes), as in `mix`. It must not change.
    """

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self._compressed: _CompressedRows | None = None
        self._copies = 0
        """Number of rows if all are equal, of which only the first is kept; else 0."""

    def mix(self, x: FloatArray) -> FloatArray:
        """Return weighted sums of rows, as `mix` does."""
        if not _core.is_float_array(x):
            x = floats("x", x)
        rows = self._compressed
        if rows is None or rows[2].dtype != x.dtype:
            rows = self._convert(x)
        mixed = _core.mix(rows, x, None)
        if self._copies:
            return np.repeat(mixed, self._copies, axis=0)
        return mixed

    def _convert(self, x: FloatArray) -> _CompressedRows:
        """Convert the matrix to the type of `x`; of equal rows keep one, and their number."""
        rows = _compressed_rows(self.matrix, x)
        self._copies = _equal_rows(rows)
        if self._copies:
            indptr, indices, weights = rows
            width = indptr[1]
            rows = indptr[:2], indices[:width], weights[:width]
        self._compressed = rows
        return rows


def _equal_rows(rows: _CompressedRows) -> int:
    """Return the number of rows if there are at least 2 and all are equal; otherwise 0."""
    indptr, indices, weights = rows
    count = len(indptr) - 1
    width = int(indptr[1])
    if count < 2 or width == 0 or count * width != len(indices):
        return 0
    if not (np.diff(indptr) == width).all():
        return 0
    columns = indices.reshape(count, width)
    entries = weights.reshape(count, width)
    if (columns == columns[0]).all() and (entries == entries[0]).all():
        return count
    return 0


def _compressed_rows(matrix: Any, x: FloatArray) -> _CompressedRows:
    """Return a matrix in CSR form with the type of `x`, after a check of its shape and type."""
    is_dense = not is_sparse(matrix)
    if is_dense:
        type_name = type(matrix).__name__
        matrix = unmasked("matrix", matrix)
        if matrix.dtype.hasobject:
            expectation = "an array or a sparse one, such as the weights of a MixingMatrix"
            fail("matrix", expectation, type_name)
    shape = matrix.shape
    if len(shape) != 2 or 0 in shape:
        fail("matrix", "at least 1 row and 1 column", f"shape {shape}")
    if matrix.dtype.kind not in "iubf":
        fail("matrix", "a matrix of real numbers", f"dtype {matrix.dtype}")
    if shape[1] != x.shape[0]:
        fail("matrix", f"a column for each of the {x.shape[0]} rows of x", f"shape {shape}")
    if is_dense:
        matrix = sp.csr_array(matrix.astype(x.dtype, copy=False))  # scipy lacks some numpy types
    elif matrix.format != "csr":
        matrix = sp.csr_array(matrix)
    indptr, indices = csr_int32("matrix", matrix)
    weights = np.ascontiguousarray(matrix.data, dtype=x.dtype)
    return indptr, indices, weights
