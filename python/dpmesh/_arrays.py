"""Checks and conversions of arrays for the kernels, without a copy where they already fit."""

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
"""Size of an array, in bytes, from which it begins at a line of the cache."""

_LINE = 64
"""Length of a line of the cache, in bytes."""

_TYPES = {
    kind: {size: np.dtype(f"{kind}{size}") for size in sizes}
    for kind, sizes in (("f", (4, 8)), ("i", (1, 2, 4, 8)))
}
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
    """Return the array as kernels read it: of this type, C-contiguous and aligned."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype == dtype:
        return array  # the usual case; asking numpy takes microseconds
    return np.require(array, dtype, ["C", "A"])


def is_sparse(value: Any) -> bool:
    """Return True if `value` is a sparse matrix or array of scipy."""
    # The usual ones are found by their class: `issparse` asks an abstract one, which takes longer.
    kind = type(value)
    return kind is not np.ndarray and (kind in _CSR or sparse.issparse(value))


def compressed(argument: str, rows: Any) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return ``indptr`` and ``indices`` of a CSR matrix in 32 bits, as kernels read them."""
    return _short(argument, rows.indptr), _short("indices", rows.indices, rows.shape[1])


def _short(argument: str, places: npt.NDArray[Any], below: int = 2**31) -> npt.NDArray[np.int32]:
    """Return indices in 32 bits; fail unless all are from 0 and less than `below`."""
    if places.dtype != np.int32 and places.size and not 0 <= places.min() <= places.max() < below:
        expected = "fewer than 2**31 entries"
        if argument == "indices":
            expected = f"columns below {below}"
        fail(argument, expected, places.max())
    return readable(places, np.int32)


def whole(argument: str, value: Any) -> None:
    """Fail unless the arrays of a sparse matrix fit together.

    scipy checks their shapes alone, and reads and writes past the end at an index out of range.
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
    """Convert to rows of different lengths: ``(indptr, indices)``, integers with one axis each."""
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
    """Convert to a non-empty C-contiguous array of signed integers; copy a strided one."""
    if type(value) is np.ndarray and value.dtype in _CODES and value.size and value.flags.carray:
        return value  # the usual case
    array = unmasked(argument, value)
    if array.dtype.kind != "i":
        fail(argument, "an array of int8, int16, int32 or int64", f"dtype {array.dtype}")
    shaped(argument, array)
    return readable(array, f"i{array.dtype.itemsize}")


def _result_type(kind: str, dtype: npt.DTypeLike, out: object = None) -> np.dtype[Any]:
    """Return the type of `out`, or else `dtype`; fail unless kernels have it.

    `kind` is numpy's letter of the family of types: ``"f"`` or ``"i"``.
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
code_type = partial(_result_type, "i")


def shaped(argument: str, array: npt.NDArray[Any], *, ndim: int | None = None) -> None:
    """Fail unless `array` is not empty and has `ndim` axes (any number from 1 up if None)."""
    if array.ndim == 0 or (ndim is not None and array.ndim != ndim):
        expected = "at least 1 axis"
        if ndim is not None:
            expected = f"{ndim} axes"
        fail(argument, expected, f"shape {array.shape}")
    if array.size == 0:
        fail(argument, "at least 1 element", f"shape {array.shape}")


def new(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a new array of undefined values; a large one is aligned to a line of the cache."""
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
    """Return the array that a kernel fills: `out`, if it has this shape and type, or a new one."""
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
    """Return a shape as (dim,) or (rows, dim); an integer stands for (dim,)."""
    if not isinstance(shape, tuple):
        shape = (shape,)
    checked = tuple([integer("shape", size, at_least=1) for size in shape])
    if len(checked) not in (1, 2):
        fail("shape", "shape (dim,) or (rows, dim)", f"shape {checked}")
    return checked


def per_row(argument: str, value: npt.ArrayLike) -> float | Numbers:
    """Convert a number, or one number for each row, to the type that kernels accept."""
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
