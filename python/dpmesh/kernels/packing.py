"""Codes packed into messages of a few bits each, without loss.

Format
------
The symbol of a code ``c`` is ``2 c`` for ``c >= 0`` and ``-2 c - 1`` for ``c < 0`` (zigzag). In a
message of `bits` bits per code, those from ``-(2**(bits - 1) - 1)`` to ``2**(bits - 1) - 1`` appear
as their symbols; the symbol ``2**bits - 1`` marks any other code as escaped. The symbols follow
each other from the lowest bit of the first byte upwards, padded with zeros to a whole byte. Then
come the escaped codes in their order, 8 bytes each, lowest byte first.

No code is ever clipped: one that does not fit costs 8 bytes more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import CodeArray, code_array, code_type, new
from dpmesh._validate import fail, instance, integer


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A message, and what its receiver must know to decode it.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> packed = dm.kernels.pack(np.array([1, 0, -3], np.int32), bits=3)
    >>> len(packed.message), packed.bits
    (2, 3)
    """

    message: bytes
    """What travels."""
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
    """Return the fewest bits for which no code is escaped, from 1 to 65.

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


def packed_sizes(codes: CodeArray, bits: int, most: int | None = None) -> npt.NDArray[np.int64]:
    """Length in bytes of the message of each row of the last axis, without packing it.

    Parameters
    ----------
    codes
        Shape (..., dim), int8, int16, int32 or int64.
    bits
        From 1 to 32.
    most
        If given, lengths are those of `bits`, `bits` + 1, .., `most` bits.

    Returns
    -------
    Shape (...), int64; with `most` an axis before it for the numbers of bits.

    Raises
    ------
    ValueError
        If an argument does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> dm.kernels.packed_sizes(np.array([[3, -1, 0]], np.int32), 3)
    array([2])
    """
    codes = code_array("codes", codes)
    last = bits if most is None else most
    choices = range(integer("bits", bits, 1, 33), integer("most", last, 1, 33) + 1)
    sizes = np.empty((len(choices), *codes.shape[:-1]), np.int64)
    for row, choice in enumerate(choices):
        _core.packed_sizes(codes, choice, sizes[row : row + 1].view(np.uint64))
    return sizes if most is not None else sizes[0]


def pack(codes: CodeArray, bits: int) -> Packed:
    """Pack codes into one message of `bits` bits each, plus 8 bytes for each that does not fit.

    Parameters
    ----------
    codes
        Any shape, int8, int16, int32 or int64.
    bits
        From 1 to 32; with `bits_needed` bits no code is escaped.

    Raises
    ------
    ValueError
        If an argument does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> packed = dm.kernels.pack(np.array([3, -1, 0], np.int32), 3)
    >>> len(packed.message), dm.kernels.unpack(packed)
    (2, array([ 3, -1,  0], dtype=int32))
    """
    codes = code_array("codes", codes)
    return Packed(
        message=_core.pack(codes, _bits(bits)), bits=bits, shape=codes.shape, dtype=codes.dtype
    )


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
    return integer("bits", bits, at_least=1, below=33)
