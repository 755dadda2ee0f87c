"""Unbiased stochastic quantization: numbers are rounded to multiples of a step, as integer codes.

Let ``t = x / step`` in float64. The code is ``floor(t) + 1`` with probability ``t - floor(t)``, and
``floor(t)`` otherwise. The mean of ``code * step`` is then `x`, and its variance at most
``step**2 / 4`` (Aysal, Coates, Rabbat: Distributed average consensus with dithered quantization,
IEEE Trans. Signal Processing 2008). The random number has 24 bits for float32 and 53 for float64;
the probability ``t - floor(t)`` is rounded up to as many bits.

Guarantee
---------
Quantization of a noisy release is post-processing: codes are a function of the release and of
independent random numbers, and have the privacy guarantee of the release.

Format of packed codes
----------------------
The symbol of a code ``c`` is ``2 c`` for ``c >= 0`` and ``-2 c - 1`` for ``c < 0`` (zigzag). A
message has `bits` bits for each code. Codes from ``-(2**(bits - 1) - 1)`` to ``2**(bits - 1) - 1``
are written as their symbols. For any other code the symbol ``2**bits - 1`` (*escape*) is written.
Symbols are packed from the lowest bit of the first byte upwards, and padded with zeros to a whole
byte. The escaped codes follow in their order, with 8 bytes each, lowest byte first.

No code is clipped: a code that needs more bits takes 8 further bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    new,
    node_ids,
)
from dpmesh._core import Stream
from dpmesh._ragged import Indices
from dpmesh._validate import fail, instance, integer, positive


def quantize(
    x: npt.ArrayLike,
    step: float,
    stream: Stream,
    *,
    dtype: npt.DTypeLike = np.int32,
    nodes: npt.ArrayLike | None = None,
    out: CodeArray | None = None,
) -> CodeArray:
    """Quantize each element by unbiased stochastic rounding to a multiple of `step`.

    Each element is rounded to one of its two neighbouring multiples at random, so that the expected
    value is the element. The result holds the integer codes: multiples divided by `step`.

    Parameters
    ----------
    x
        Values, shape (dim,) or (rows, dim), float32 or float64, finite.
    step
        Distance of neighbouring multiples, between 1e-150 and 1e150, in the unit of `x`.
    stream
        Source of the random numbers, see `dpmesh.keys`: a stream that is used for nothing else.
    dtype
        Type of the codes, if there is no `out`: int8, int16, int32, or int64, which holds codes
        below 2**51.
    nodes
        The node of each row, distinct integers from 0 to 2**32 - 1; 0, 1, .. by default.
    out
        Array of such a type with the shape of `x` that receives the codes.

    Returns
    -------
    Codes of the shape of `x`; `out` if it was given.

    Raises
    ------
    ValueError
        If a value is not finite, or its code is out of the range of `dtype` (the error names the
        first such row and value), or an argument is invalid.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.quantize([[1.0, -0.5]], 0.5, stream)
    array([[ 2, -1]], dtype=int32)
    """
    code_dtype = code_type(dtype, out)
    if not _core.is_float_array(x):
        x = floats("x", x)
    codes, _ = _core.quantize(x, step, stream, False, code_dtype, node_ids(nodes), out)
    return codes


def dequantize(
    codes: CodeArray,
    step: float,
    *,
    dtype: npt.DTypeLike = np.float64,
    out: FloatArray | None = None,
) -> FloatArray:
    """Return the numbers ``codes * step`` of quantized values.

    Parameters
    ----------
    codes
        Any shape, int8, int16, int32 or int64.
    step
        Step with which `quantize` was called.
    dtype
        float32 or float64, if there is no `out`; the product is rounded to it once.
    out
        Array of such a type with the shape of `codes` that receives the result.

    Returns
    -------
    An array of the shape of `codes`; `out` if it was given.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.

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


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A packed message of integer codes: the result of `pack`, which `unpack` decodes.

    Parameters
    ----------
    message
        The packed codes, as bytes.
    bits
        Number of bits of each code.
    shape
        Shape of the array of codes.
    dtype
        Type of the codes.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> packed = dm.kernels.pack(np.array([1, 0, -3], np.int32), bits=3)
    >>> len(packed.message), packed.bits
    (2, 3)
    """

    message: bytes
    """The packed codes."""
    bits: int
    """Bits of a symbol, from 1 to 32."""
    shape: tuple[int, ...]
    """Shape of the codes."""
    dtype: np.dtype[Any]
    """Type of the codes."""

    @property
    def nbytes(self) -> int:
        """Length of the message in bytes."""
        return len(self.message)


def bits_needed(codes: CodeArray) -> int:
    """Return the least number of bits, from 1 to 65, at which `pack` escapes no code.

    `pack` writes a code that does not fit into its bits as an escape symbol and 8 further bytes.

    Parameters
    ----------
    codes
        Any shape, int8, int16, int32 or int64.

    Raises
    ------
    ValueError
        If `codes` is empty or not of such a type.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> dm.kernels.bits_needed(np.array([3, -1, 0], np.int32))
    3
    """
    return _core.bits_needed(code_array("codes", codes))


def packed_sizes(codes: CodeArray, bits: int, most: int | None = None) -> Indices:
    """Return the length in bytes of the message of each row, without packing it.

    Parameters
    ----------
    codes
        Shape (..., dim), int8, int16, int32 or int64.
    bits
        Number of bits for each code, from 1 to 32.
    most
        If not None, lengths are returned for each number of bits from `bits` to `most`.

    Returns
    -------
    Lengths in bytes, shape (...), int64. With `most`, shape (most - bits + 1, ...).

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> dm.kernels.packed_sizes(np.array([[3, -1, 0]], np.int32), 3)
    array([2])
    """
    codes = code_array("codes", codes)
    fewest_bits = integer("bits", bits, 1, 33)
    most_bits = fewest_bits
    if most is not None:
        most_bits = integer("most", most, 1, 33)
    choices = range(fewest_bits, most_bits + 1)
    sizes = np.empty((len(choices), *codes.shape[:-1]), np.int64)
    for row, choice in enumerate(choices):
        _core.packed_sizes(codes, choice, sizes[row : row + 1].view(np.uint64))
    if most is None:
        sizes = sizes[0]
    return sizes


def pack(codes: CodeArray, bits: int) -> Packed:
    """Pack integer codes into one message, with `bits` bits for each code.

    A code that does not fit is written as an escape symbol and 8 further bytes.

    Parameters
    ----------
    codes
        Any shape, int8, int16, int32 or int64.
    bits
        Number of bits for each code, from 1 to 32. With `bits_needed` bits no code is escaped.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> packed = dm.kernels.pack(np.array([3, -1, 0], np.int32), 3)
    >>> len(packed.message), dm.kernels.unpack(packed)
    (2, array([ 3, -1,  0], dtype=int32))
    """
    codes = code_array("codes", codes)
    message = _core.pack(codes, _bits(bits))
    return Packed(message=message, bits=bits, shape=codes.shape, dtype=codes.dtype)


def unpack(packed: Packed) -> CodeArray:
    """Return the codes of a message, exactly.

    Raises
    ------
    ValueError
        If `packed` is no `Packed`, or its message does not fit its shape and type.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> codes = np.array([3, -1, 0], np.int32)
    >>> dm.kernels.unpack(dm.kernels.pack(codes, 3))
    array([ 3, -1,  0], dtype=int32)
    """
    if not isinstance(packed, Packed):
        fail("packed", "a Packed", type(packed).__name__)
    instance("message", packed.message, "bytes", bytes)
    instance("shape", packed.shape, "a tuple of lengths", tuple)
    shape = tuple(integer("shape", length) for length in packed.shape)
    codes = new(shape, code_type(packed.dtype))
    _core.unpack(packed.message, _bits(packed.bits), codes)
    return codes


def _bits(bits: int) -> int:
    """Return a number of bits, after a check that it is from 1 to 32."""
    return integer("bits", bits, at_least=1, below=33)
