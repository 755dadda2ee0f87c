"""Sums and norms of rows, clipping of gradients, projection of parameters onto a ball."""

from __future__ import annotations

import reprlib
from math import isfinite
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import FloatArray, filled, floats
from dpmesh._core import is_float_array
from dpmesh._ragged import Numbers
from dpmesh._validate import fail, number

Norm = Literal["l1", "l2"]
NORMS: tuple[Norm, ...] = ("l1", "l2")


def all_finite(x: npt.ArrayLike) -> bool:
    """Return True if no element is NaN or infinite.

    Parameters
    ----------
    x
        Any shape, float32 or float64.

    Raises
    ------
    ValueError
        If `x` is empty or not of floating-point type.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> dm.kernels.all_finite([1.0, np.nan])
    False
    """
    if is_float_array(x):
        return _core.all_finite(x)
    return _core.all_finite(floats("x", x))


def row_norms(x: npt.ArrayLike, *, norm: Norm = "l2") -> Numbers:
    """Return the norm of each row of the last axis, summed in float64.

    Parameters
    ----------
    x
        Shape (..., dim), float32 or float64.
    norm
        ``"l2"`` (Euclidean) or ``"l1"`` (sum of absolute values).

    Returns
    -------
    Shape (...), float64. NaN or infinite where a row is not finite, or its norm beyond float64.

    Raises
    ------
    ValueError
        If `x` is empty or not of floating-point type, or `norm` is unknown.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.kernels.row_norms([[3.0, 4.0], [0.0, 1.0]])
    array([5., 1.])
    """
    if is_float_array(x):
        return _core.row_norms(x, norm)
    return _core.row_norms(floats("x", x), norm)


def clip_rows(
    x: npt.ArrayLike, bound: float, *, norm: Norm = "l2", out: FloatArray | None = None
) -> FloatArray:
    """Scale each row whose norm exceeds `bound` to the norm `bound`; keep the others.

    With ``norm="l2"`` this is also the projection onto the centred ball of radius `bound`. With
    ``"l1"`` it bounds the L1 norm and keeps the direction; it is not the nearest point of the ball.

    Parameters
    ----------
    x
        Shape (..., dim), float32 or float64: one vector for each node (or record).
    bound
        Largest norm, finite and at least 1e-30.
    norm
        ``"l2"`` or ``"l1"``.
    out
        Array like `x` that receives the result; it may be `x` itself.

    Returns
    -------
    An array of the shape and type of `x`; `out` if it was given.

    Raises
    ------
    ValueError
        If a value of `x` is NaN or infinite (clipping would hide it), or an argument does not fit.
        Rows of any finite numbers are clipped, also where their squares are beyond float64.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.kernels.clip_rows([[3.0, 4.0], [0.3, 0.4]], 1.0).round(3)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """
    if is_float_array(x):
        return _core.clip_rows(x, bound, norm, out)
    return _core.clip_rows(floats("x", x), bound, norm, out)


def weighted_sum(*terms: tuple[float, npt.ArrayLike], out: FloatArray | None = None) -> FloatArray:
    """Return the weighted sum of arrays, ``w_1 * x_1 + w_2 * x_2 + ...``.

    Each element is summed in the order of the terms, in the type of the arrays, with the rounding
    of numpy's ``+`` and ``*``.

    Parameters
    ----------
    terms
        One or more pairs of a weight and an array: all of one shape and type, float32 or float64.
    out
        Array like the terms that receives the result and overlaps none of them.

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
    weighted_arrays: list[tuple[float, FloatArray]] = []
    for term in terms:
        if not isinstance(term, (tuple, list)) or len(term) != 2:
            fail("terms", "pairs of a weight and an array", reprlib.repr(term))
        weight, x = term
        if type(weight) is not float or not isfinite(weight):
            weight = number("weights", weight)
        if is_float_array(x):
            weighted_arrays.append((weight, x))
        else:
            weighted_arrays.append((weight, floats("terms", x)))
    first = weighted_arrays[0][1]
    for _, array in weighted_arrays:
        if array.shape != first.shape or array.dtype != first.dtype:
            expectation = f"arrays of {first.dtype} and shape {first.shape}, as the first"
            fail("terms", expectation, f"{array.dtype} {array.shape}")
    out = filled(out, first.shape, first.dtype)
    _core.weighted_sum(weighted_arrays, out)
    return out


def column_sums(x: npt.ArrayLike) -> Numbers:
    """Return the sum of each column, in float64 and in the order of the rows.

    Equal to ``x.sum(0, np.float64)``.

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
