"""Unbiased probabilistic quantization: numbers become integer codes, multiples of a step.

For ``t = x / step``, in float64, the code is ``floor(t) + 1`` with probability ``t - floor(t)`` and
``floor(t)`` otherwise: the mean of ``code * step`` is `x`, its variance `quantization_variance`
(Aysal, Coates, Rabbat: Distributed average consensus with dithered quantization, IEEE Trans. Signal
Processing 2008). A coin has 24 random bits for float32 and 53 for float64; the probability of
rounding up is ``t - floor(t)``, itself rounded up to that many bits.

Guarantee
---------
Codes of values that already have a mechanism's noise are a function of its release and of
independent coins, and so at least as private.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import (
    CodeArray,
    FloatArray,
    code_array,
    code_type,
    filled,
    float_type,
    floats,
)
from dpmesh._core import Stream
from dpmesh._validate import positive
from dpmesh.kernels._rows import node_ids, per_row


def quantize(
    x: npt.ArrayLike,
    step: float,
    stream: Stream,
    *,
    dtype: npt.DTypeLike = np.int32,
    nodes: npt.ArrayLike | None = None,
    out: CodeArray | None = None,
) -> CodeArray:
    """Round each element to one of the two nearest multiples of `step`, without bias.

    Parameters
    ----------
    x
        Shape (dim,) or (rows, dim), float32 or float64, finite.
    step
        Distance of neighbouring levels, between 1e-150 and 1e150, in units of `x`.
    stream
        Source of the coins, see `dpmesh.keys`: a stream from which nothing else is drawn.
    dtype
        Type of the codes, if there is no `out`: int8, int16, int32, or int64, which holds codes
        below 2**51.
    nodes
        The node of each row, distinct integers from 0 to 2**32 - 1; 0, 1, .. by default.
    out
        Where to put the codes: an array of such a type and of the shape of `x`.

    Returns
    -------
    Codes of the shape of `x`; `out` if it was given.

    Raises
    ------
    ValueError
        If a value is not finite or its code does not fit `dtype` (the first such row and value are
        named; see `quantize_saturating`), or an argument does not fit.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.quantize([[1.0, -0.5]], 0.5, stream)
    array([[ 2, -1]], dtype=int32)
    """
    return _quantized(x, step, stream, False, dtype, nodes, out)[0]


def quantize_saturating(
    x: npt.ArrayLike,
    step: float,
    stream: Stream,
    *,
    dtype: npt.DTypeLike = np.int32,
    nodes: npt.ArrayLike | None = None,
    out: CodeArray | None = None,
) -> tuple[CodeArray, int]:
    """Quantize, with the nearest code of `dtype` in place of one that does not fit.

    Parameters
    ----------
    x, step, stream, dtype, nodes, out
        As in `quantize`.

    Returns
    -------
    The codes, and how many of them were saturated, and so biased; privacy is not affected.

    Raises
    ------
    ValueError
        If a value is not finite, or an argument does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.quantize_saturating([[1000.0]], 0.5, stream, dtype=np.int8)
    (array([[127]], dtype=int8), 1)
    """
    return _quantized(x, step, stream, True, dtype, nodes, out)


def _quantized(
    x: npt.ArrayLike,
    step: float,
    stream: Stream,
    saturate: bool,
    dtype: npt.DTypeLike,
    nodes: npt.ArrayLike | None,
    out: CodeArray | None,
) -> tuple[CodeArray, int]:
    codes, x = code_type(dtype, out), x if _core.is_float_array(x) else floats("x", x)
    return _core.quantize(x, step, stream, saturate, codes, node_ids(nodes), out)


def quantize_noisy(
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    step: float,
    noise: Stream,
    coins: Stream,
    *,
    dtype: npt.DTypeLike = np.int32,
    nodes: npt.ArrayLike | None = None,
    out: CodeArray | None = None,
) -> CodeArray:
    """Add Gaussian noise and quantize, in one pass that stores no noise.

    The result is, to the bit, ``quantize(add_gaussian(x, scale, noise), step, coins)``.

    Parameters
    ----------
    x, step, dtype, nodes, out
        As in `quantize`.
    scale
        The standard deviation of the noise, as in `add_gaussian`.
    noise, coins
        Sources of noise and coins: streams of different purposes or rounds.

    Returns
    -------
    Codes of the shape of `x`; `out` if it was given.

    Raises
    ------
    ValueError
        If a noisy value is not finite or its code does not fit `dtype`, or an argument does not
        fit.

    Examples
    --------
    >>> import dpmesh as dm
    >>> noise, coins = dm.Key.seeded(1).stream(1000), dm.Key.seeded(1).stream(1001)
    >>> dm.kernels.quantize_noisy([[1.0, -0.5]], 0.0, 0.5, noise, coins)
    array([[ 2, -1]], dtype=int32)
    """
    return _core.quantize_noisy(
        floats("x", x),
        per_row("scale", scale),
        step,
        noise,
        coins,
        code_type(dtype, out),
        node_ids(nodes),
        out,
    )


def dequantize(
    codes: CodeArray,
    step: float,
    *,
    dtype: npt.DTypeLike = np.float64,
    out: FloatArray | None = None,
) -> FloatArray:
    """Return the numbers ``codes * step`` that codes stand for.

    Parameters
    ----------
    codes
        Any shape, int8, int16, int32 or int64.
    step
        The step with which they were made.
    dtype
        float32 or float64, if there is no `out`; the product is rounded to it once.
    out
        Where to put the result: an array of such a type and of the shape of `codes`.

    Returns
    -------
    An array of the shape of `codes`; `out` if it was given.

    Raises
    ------
    ValueError
        If an argument does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> dm.kernels.dequantize(np.array([2, -1], np.int32), 0.5)
    array([ 1. , -0.5])
    """
    codes = code_array("codes", codes)
    out = filled(out, codes.shape, float_type(dtype, out))
    _core.dequantize(codes, positive("step", step), out)
    return out


def quantization_variance(x: npt.ArrayLike, step: float) -> npt.NDArray[np.float64]:
    """Variance ``step**2 * p * (1 - p)`` of each quantized element, at most ``step**2 / 4``.

    Parameters
    ----------
    x
        Any shape, float32 or float64, finite; ``p = x / step - floor(x / step)``.
    step
        Distance of neighbouring levels.

    Returns
    -------
    An array of float64 of the shape of `x`.

    Raises
    ------
    ValueError
        If a value is not finite, or an argument does not fit.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.kernels.quantization_variance([0.0, 0.25], 0.5)
    array([0.    , 0.0625])
    """
    array = floats("x", x)
    variance = np.empty(array.shape)
    _core.quantization_variance(array, positive("step", step), variance)
    return variance
