"""Unbiased quantization to integer codes, and messages of a few bits a code.

With t = x / step the code is floor(t) + 1 with probability t - floor(t), else floor(t): so code *
step has the mean x and a variance of at most step^2 / 4 (Aysal, Coates and Rabbat 2008; equation
(3) of the paper on quantized gossip). Quantizing what a mechanism released is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._core import Stream
from dpmesh._validate import fail, integer, one_of, positive
from dpmesh.kernels._arrays import FloatArray, filled, float_type, floats, shaped
from dpmesh.kernels._rows import a_stream, check_rows, node_ids, per_row, row_count

Codes = npt.NDArray[np.signedinteger[Any]]

_CODE_TYPES = (np.int8, np.int16, np.int32, np.int64)


def quantize(
    x: npt.ArrayLike,
    step: float,
    stream: Stream,
    *,
    dtype: npt.DTypeLike = np.int32,
    nodes: npt.ArrayLike | None = None,
    out: Codes | None = None,
) -> Codes:
    """Quantize rows to integer codes, each row with coins from the stream of its node.

    Parameters
    ----------
    x
        Shape (dim,) or (rows, dim), float32 or float64, finite.
    step
        Distance of neighbouring levels, positive.
    stream
        Where the coins come from: a stream that nothing else draws from.
    dtype
        int8, int16, int32, or int64 (codes up to 2**51).
    nodes
        The node of each row, distinct integers from 0 to 2**32 - 1; 0, 1, .. by default.
    out
        Where to put the codes: an array of this shape and type.

    Returns
    -------
    Codes of the shape of `x`; `out` if it was given.

    Raises
    ------
    ValueError
        If a value is NaN or infinite, a code does not fit its type (it is never clipped, which
        would bias it), or an argument does not fit.
    """
    array = floats("x", x)
    rows = row_count(check_rows("x", array.shape))
    out = filled(out, array.shape, _code_type(dtype if out is None else out.dtype))
    step, ids = positive("step", step), node_ids(nodes, rows)
    _core.quantize(array, step, a_stream(stream), ids, False, out)
    return out


def quantize_noisy(
    x: npt.ArrayLike,
    scale: npt.ArrayLike,
    step: float,
    noise: Stream,
    coins: Stream,
    *,
    dtype: npt.DTypeLike = np.int32,
    nodes: npt.ArrayLike | None = None,
    out: Codes | None = None,
) -> Codes:
    """Quantize ``add_gaussian(x, scale, noise)``, to the bit, in one pass without storing it.

    Parameters
    ----------
    x, step, dtype, nodes, out
        As in `quantize`.
    scale
        Standard deviation of the noise: a number, or one for each row.
    noise, coins
        Streams that differ in purpose or round.

    Raises
    ------
    ValueError
        As `quantize`, and if the streams are alike.
    """
    array = floats("x", x)
    rows = row_count(check_rows("x", array.shape))
    out = filled(out, array.shape, _code_type(dtype if out is None else out.dtype))
    step, ids = positive("step", step), node_ids(nodes, rows)
    scales = per_row("scale", scale, rows)
    noise, coins = a_stream(noise), a_stream(coins)
    _core.quantize_noisy(array, "gaussian", scales, noise, step, coins, ids, False, out)
    return out


def dequantize(
    codes: npt.ArrayLike,
    step: float,
    *,
    dtype: npt.DTypeLike = np.float64,
    out: FloatArray | None = None,
) -> FloatArray:
    """Return the numbers ``codes * step`` that codes stand for, rounded to `dtype`.

    Raises
    ------
    ValueError
        If `codes` are no integers of 8, 16, 32 or 64 bits, or an argument does not fit.
    """
    array = _codes(codes)
    out = filled(out, array.shape, float_type(dtype if out is None else out.dtype))
    _core.dequantize(array, positive("step", step), out)
    return out


def quantization_variance(x: npt.ArrayLike, step: float) -> npt.NDArray[np.float64]:
    """Return the variance ``step^2 p (1 - p)`` of each quantized number, p = t - floor(t).

    Raises
    ------
    ValueError
        If a value is NaN or infinite, or an argument does not fit.
    """
    array = floats("x", x)
    variance = np.empty(array.shape)
    _core.quantization_variance(array, positive("step", step), variance)
    return variance


@dataclass(frozen=True)
class Packed:
    """Codes as one message, with what decoding needs to know beforehand.

    Parameters
    ----------
    message
        What travels: `bits` bits a code, then 8 bytes for each code that did not fit.
    bits
        Bits of a code, from 1 to 32.
    shape, dtype
        Of the codes.
    """

    message: bytes
    bits: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def bits_needed(codes: npt.ArrayLike) -> int:
    """Return the fewest bits for which no code is escaped: 1 to 65, of which `pack` takes 32."""
    return _core.bits_needed(_codes(codes))


def packed_sizes(codes: npt.ArrayLike, bits: int) -> npt.NDArray[np.uint64]:
    """Return the length in bytes of the message of each row of codes.

    Raises
    ------
    ValueError
        If `codes` are no integers, or `bits` is not from 1 to 32.
    """
    array = _codes(codes)
    sizes = np.empty(array.shape[:-1], dtype=np.uint64)
    _core.packed_sizes(array, _bits(bits), sizes)
    return sizes


def pack(codes: npt.ArrayLike, bits: int) -> Packed:
    """Pack codes into `bits` bits each, exactly.

    A code from -(2**(bits-1) - 1) to 2**(bits-1) - 1 takes `bits` bits; any other is escaped and
    takes 8 bytes more. Nothing is clipped.

    Raises
    ------
    ValueError
        If `codes` are no integers, or `bits` is not from 1 to 32.
    """
    array = _codes(codes)
    return Packed(_core.pack(array, _bits(bits)), bits, array.shape, array.dtype)


def unpack(packed: Packed) -> Codes:
    """Return the codes of a message, exactly.

    Raises
    ------
    ValueError
        If the message is not one of so many codes of that type.
    """
    codes = np.empty(packed.shape, dtype=_code_type(packed.dtype))
    _core.unpack(packed.message, _bits(packed.bits), codes)
    return codes


def _bits(bits: int) -> int:
    return integer("bits", bits, at_least=1, below=33)


def _code_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    checked = np.dtype(dtype)
    one_of("dtype", checked.name, [np.dtype(t).name for t in _CODE_TYPES])
    return checked


def _codes(value: npt.ArrayLike) -> Codes:
    array = np.asarray(value)
    if array.dtype.type not in _CODE_TYPES:
        fail("codes", "integers of 8, 16, 32 or 64 bits", f"dtype {array.dtype}")
    shaped("codes", array)
    return np.ascontiguousarray(array, dtype=array.dtype.type)
