"""Sums of arrays in one pass, without temporary arrays."""

from __future__ import annotations

import reprlib
from math import isfinite

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import FloatArray, buffer, floats
from dpmesh._core import is_float_array
from dpmesh._validate import fail, number


def weighted_sum(*terms: tuple[float, npt.ArrayLike], out: FloatArray | None = None) -> FloatArray:
    """Weighted sum of arrays, ``w_1 * x_1 + w_2 * x_2 + ...``.

    Each element is summed in the order of the terms, in the type of the arrays, with the rounding
    of numpy's ``+`` and ``*``.

    Parameters
    ----------
    terms
        One or more pairs of a weight and an array: all of one shape and type, float32 or float64.
    out
        Where to put the result: an array like the terms that overlaps none of them.

    Returns
    -------
    An array of the shape and type of the terms; `out` if it was given.

    Raises
    ------
    ValueError
        If there is no term, a weight is not finite, or an array does not fit. NaN and infinity in
        arrays are passed on, as numpy does.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.kernels.weighted_sum((2.0, [1.0, 2.0]), (0.5, [4.0, 8.0]))
    array([4., 8.])
    """
    if not terms:
        fail("terms", "at least 1", 0)
    arrays: list[tuple[float, FloatArray]] = []
    for term in terms:
        if not isinstance(term, (tuple, list)) or len(term) != 2:
            fail("terms", "pairs of a weight and an array", reprlib.repr(term))
        weight, x = term
        if type(weight) is not float or not isfinite(weight):
            weight = number("weights", weight)
        arrays.append((weight, x if is_float_array(x) else floats("terms", x)))
    like = arrays[0][1]
    for _, array in arrays:
        if (array.shape, array.dtype) != (like.shape, like.dtype):
            wanted = f"arrays of {like.dtype} and shape {like.shape}, as the first"
            fail("terms", wanted, f"{array.dtype} {array.shape}")
    out = buffer(out, like)
    _core.weighted_sum(arrays, out)
    return out


def column_sums(x: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Sum of each column, in float64 and in the order of the rows, as ``x.sum(0, np.float64)``.

    Parameters
    ----------
    x
        Shape (rows, dim), float32 or float64.

    Returns
    -------
    Shape (dim,).

    Raises
    ------
    ValueError
        If `x` does not fit. NaN and infinity are passed on.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.kernels.column_sums([[1.0, 2.0], [3.0, 4.0]])
    array([4., 6.])
    """
    x = floats("x", x, ndim=2)
    sums = np.empty(x.shape[1])
    _core.column_sums(x, sums)
    return sums
