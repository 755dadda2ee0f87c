"""Unbiased probabilistic quantization: numbers become integer codes, multiples of a step.

For ``t = x / step``, in float64, the code is ``floor(t) + 1`` with probability ``t - floor(t)`` and
``floor(t)`` otherwise: the mean of ``code * step`` is `x`, its variance at most ``step**2 / 4``
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
from dpmesh._arrays import CodeArray, FloatArray, code_array, code_type, filled, float_type, floats
from dpmesh._core import Stream
from dpmesh._validate import positive
from dpmesh.kernels._rows import node_ids


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
        named), or an argument does not fit.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.quantize([[1.0, -0.5]], 0.5, stream)
    array([[ 2, -1]], dtype=int32)
    """
    codes, x = code_type(dtype, out), x if _core.is_float_array(x) else floats("x", x)
    return _core.quantize(x, step, stream, False, codes, node_ids(nodes), out)[0]


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
