"""Checks and conversions of arrays for the kernels.

An array that already has the type and layout that kernels need is returned without a copy. The
first parameter `argument` names the array in errors, which are `ValueError`.
"""

from __future__ import annotations

import reprlib
from copy import copy
from functools import partial
from math import prod
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpmesh import _core
from dpmesh._ragged import Indices, Numbers
from dpmesh._validate import fail, integer

_CSR = (sparse.csr_array, sparse.csr_matrix)
_LARGE = 2**17
"""Size in bytes from which a new array is aligned to a cache line."""

_LINE = 64
"""Length of a cache line in bytes."""

_TYPES = {
    kind: {size: np.dtype(f"{kind}{size}") for size in sizes}
    for kind, sizes in (("f", (4, 8)), ("i", (1, 2, 4, 8)))
}
"""Types that kernels support, by numpy's letter of the family and by size in bytes."""
_CODES = frozenset(_TYPES["i"].values())

ScalarT = TypeVar("ScalarT", bound=np.generic)

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
"""An array of float32 or float64."""

CodeArray: TypeAlias = npt.NDArray[np.signedinteger[Any]]
"""An array of int8, int16, int32 or int64."""


def floats(argument: str, value: npt.ArrayLike, ndim: int | None = None) -> FloatArray:
    """Convert to a non-empty C-contiguous array of float32 or float64.

    Integers and booleans become float64; float32 and float64 keep their type; a strided array
    is copied.
    """
    if _core.is_float_array(value) and (ndim is None or value.ndim == ndim):
        return value
    array = unmasked(argument, value)
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if array.dtype.type not in (np.float32, np.float64):
        fail(argument, "an array of float32 or float64", f"dtype {array.dtype}")
    shaped(argument, array, ndim=ndim)
    return readable(array, array.dtype.type)


def unmasked(argument: str, value: Any) -> npt.NDArray[Any]:
    """Convert to a plain numpy array.

    Raises
    ------
    ValueError
        If the array is masked, since the mask would be lost, or numpy cannot convert the value. The
        error names `argument`.
    """
    if isinstance(value, np.ndarray) and hasattr(value, "mask"):
        fail(argument, "an array without a mask, such as its records that are whole", "a mask")
    try:
        return np.asarray(value)
    except ValueError as error:  # such as rows of different lengths
        fail(argument, "an array", f"{reprlib.repr(value)}: {error}")


def read_only(array: npt.NDArray[ScalarT]) -> npt.NDArray[ScalarT]:
    """Return a read-only view of an array."""
    view: npt.NDArray[ScalarT] = np.asarray(array)[...]
    view.setflags(write=False)  # in half the time of `flags.writeable`
    return view


def readable(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the array with this type, C-contiguous and aligned, as kernels read it."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype == dtype:
        return array  # the usual case, without the microseconds of `np.require`
    return np.require(array, dtype, ["C", "A"])


def is_sparse(value: Any) -> bool:
    """Return True if `value` is a sparse matrix or array of scipy."""
    # Compare the usual classes first: `issparse` checks an abstract base class, which takes longer.
    kind = type(value)
    return kind is not np.ndarray and (kind in _CSR or sparse.issparse(value))


def csr_int32(argument: str, matrix: Any) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return ``indptr`` and ``indices`` of a CSR matrix as int32, as kernels read them.

    Kernels check the range of indices that already are int32.
    """
    columns = matrix.shape[1]
    indptr = _as_int32(argument, matrix.indptr, 2**31, "fewer than 2**31 entries")
    indices = _as_int32("indices", matrix.indices, columns, f"columns below {columns}")
    return indptr, indices


def _as_int32(
    argument: str, integers: npt.NDArray[Any], below: int, expected: str
) -> npt.NDArray[np.int32]:
    """Return integers as int32; an error states `expected` unless all are in [0, `below`)."""
    if integers.dtype != np.int32 and integers.size > 0:
        for extreme in (integers.min(), integers.max()):
            if not 0 <= extreme < below:
                fail(argument, expected, extreme)
    return readable(integers, np.int32)


def check_sparse(argument: str, value: Any) -> None:
    """Raise a ValueError unless the arrays of a sparse matrix are consistent.

    Other values pass. scipy itself checks only the shapes of the arrays, and would read and write
    out of bounds at an invalid index.
    """
    if hasattr(value, "check_format"):
        try:
            copy(value).check_format(full_check=True)  # of a copy, since it trims the arrays
        except ValueError as error:
            fail(argument, "a sparse matrix whose arrays fit together", f"one where {error}")


def integers(argument: str, value: npt.ArrayLike, *, ndim: int) -> Indices:
    """Convert to a C-contiguous array of int64 with `ndim` axes."""
    if _core.is_index_array(value) and value.ndim == ndim:
        return value
    array = unmasked(argument, value)
    if array.dtype.kind not in "iu" or array.ndim != ndim:
        expected = f"integers with {ndim} axes"
        fail(argument, expected, f"dtype {array.dtype} and shape {array.shape}")
    return readable(array, np.int64)


def ragged(argument: str, value: Any) -> tuple[Indices, Indices]:
    """Convert ``(indptr, indices)``, rows of different lengths, to two arrays of int64."""
    if not isinstance(value, (tuple, list)):
        fail(argument, "(indptr, indices)", type(value).__name__)
    if len(value) != 2:
        fail(argument, "(indptr, indices)", f"{len(value)} arrays")
    indptr, indices = value
    are_arrays = _core.is_index_array(indptr) and _core.is_index_array(indices)
    if are_arrays and indptr.ndim == indices.ndim == 1:
        return indptr, indices
    return integers(argument, indptr, ndim=1), integers(argument, indices, ndim=1)


def code_array(argument: str, value: npt.ArrayLike) -> CodeArray:
    """Convert to a non-empty C-contiguous array of signed integers; a strided array is copied."""
    if type(value) is np.ndarray and value.dtype in _CODES and value.size and value.flags.carray:
        return value  # the usual case
    array = unmasked(argument, value)
    if array.dtype.kind != "i":
        fail(argument, "an array of int8, int16, int32 or int64", f"dtype {array.dtype}")
    shaped(argument, array)
    return readable(array, f"i{array.dtype.itemsize}")


def _result_type(kind: str, dtype: npt.DTypeLike, out: object = None) -> np.dtype[Any]:
    """Return the type of the result: the type of `out`, or `dtype` if `out` is no array.

    Raises
    ------
    ValueError
        If kernels do not support the type. `kind` is numpy's letter of the supported family:
        ``"f"`` or ``"i"``.
    """
    argument = "dtype"
    requested = dtype
    if isinstance(out, np.ndarray):
        argument = "out"
        requested = out.dtype
    try:
        checked = np.dtype(requested)
    except TypeError:
        fail("dtype", "a type of numpy's", reprlib.repr(dtype))
    types = _TYPES[kind]
    if checked.kind != kind or checked.itemsize not in types:
        *names, last = map(str, types.values())
        fail(argument, f"{', '.join(names)} or {last}", checked)
    return types[checked.itemsize]


float_type = partial(_result_type, "f")
"""Function ``float_type(dtype, out)`` that returns the type of a result of float32 or float64."""
code_type = partial(_result_type, "i")
"""Function ``code_type(dtype, out)`` that returns the type of a result of signed integers."""


def shaped(argument: str, array: npt.NDArray[Any], *, ndim: int | None = None) -> None:
    """Raise a ValueError unless `array` is not empty and has `ndim` axes; None for 1 or more."""
    if array.ndim == 0 or (ndim is not None and array.ndim != ndim):
        expected = "at least 1 axis"
        if ndim is not None:
            expected = f"{ndim} axes"
        fail(argument, expected, f"shape {array.shape}")
    if array.size == 0:
        fail(argument, "at least 1 element", f"shape {array.shape}")


def new(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a new array with undefined values; a large array is aligned to a cache line."""
    size = prod(shape) * np.dtype(dtype).itemsize
    try:
        if size < _LARGE:
            return np.empty(shape, dtype)
        memory = np.empty(size + _LINE, np.uint8)
    except ValueError:
        fail("shape", "an array of less than 2**63 bytes", shape)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def filled(
    out: npt.NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return the array that a kernel fills: `out` after a check, or a new array if it is None."""
    if out is None:
        return new(shape, dtype)
    expected = f"an array of {dtype} and shape {shape}"
    if not isinstance(out, np.ndarray):
        fail("out", expected, type(out).__name__)
    if out.shape != shape or out.dtype != dtype:
        fail("out", expected, f"{out.dtype} {out.shape}")
    if not out.flags.carray:
        fail("out", "a writeable C-contiguous array", "one that is not")
    return out


def row_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape (dim,) or (rows, dim) after a check; an integer is the shape (dim,)."""
    if not isinstance(shape, tuple):
        shape = (shape,)
    checked = tuple([integer("shape", size, at_least=1) for size in shape])
    if len(checked) not in (1, 2):
        fail("shape", "shape (dim,) or (rows, dim)", f"shape {checked}")
    return checked


def per_row(argument: str, value: npt.ArrayLike) -> float | Numbers:
    """Convert a number, or one number for each row, to float or to an array of float64."""
    if isinstance(value, float):
        return value
    rows = np.atleast_1d(unmasked(argument, value))
    return np.ascontiguousarray(floats(argument, rows), dtype=np.float64)


def node_ids(nodes: npt.ArrayLike | None) -> npt.NDArray[np.uint32] | None:
    """Convert the node of each row to uint32, as kernels accept them; None stays None.

    Raises
    ------
    ValueError
        If they are not integers from 0 to 2**32 - 1, in one dimension.
    """
    if nodes is None:
        return None
    ids: npt.NDArray[Any] = np.atleast_1d(unmasked("nodes", nodes))
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        fail("nodes", "an integer for each row", f"dtype {ids.dtype} and shape {ids.shape}")
    if ids.dtype != np.uint32 and ids.size and (ids.min() < 0 or ids.max() >= 2**32):
        outside = ids[(ids < 0) | (ids >= 2**32)][0]
        fail("nodes", "integers of at least 0 and below 2**32", outside)
    return readable(ids, np.uint32)
