"""Short messages: unbiased compression of values after their noise.

A compressor is a function of what the noise protects already and of coins that do not depend on the
data: post-processing, which costs no privacy and leaves the release's event as it is. Its mean over
the coins is the value itself.

The length of a message is that of its bytes, `Compressed.message`, which `Compressor.decode` turns
back into the very numbers `Compressed.values` that the receivers compute with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpmesh import kernels
from dpmesh._validate import fail, integer, positive
from dpmesh.kernels import Packed
from dpmesh.keys import Stream
from dpmesh.privacy.types import Floats

MOST_BITS = 32


@dataclass(frozen=True, eq=False)
class Compressed:
    """The messages of all rows.

    Parameters
    ----------
    values
        Shape (rows, dim): what their receivers decode.
    bits
        Shape (rows,): their lengths.
    message
        ``message(row)`` makes the bytes of one of them.
    """

    values: Floats
    bits: npt.NDArray[np.int64]
    message: Callable[[int], bytes]


class Compressor(Protocol):
    """An unbiased code for rows of numbers."""

    def compress(self, values: Floats, coins: Stream) -> Compressed:
        """Return the messages of `values`, shape (rows, dim), each row with coins of its own.

        Raises
        ------
        ValueError
            If a value is NaN or infinite, or too large for the code.
        """
        ...

    def decode(self, messages: Sequence[bytes], dim: int, dtype: npt.DTypeLike) -> Floats:
        """Return what messages stand for, shape (messages, dim), as float32 or float64.

        Raises
        ------
        ValueError
            If a message is not one of rows of that length.
        """
        ...


@dataclass(frozen=True)
class Quantizer:
    """Each number becomes one of the two multiples of `step` next to it, without bias.

    A message is the number of bits of a code, in one byte, and the codes packed as in
    `dpmesh.kernels.packing`: a code that needs more bits is escaped, at 8 bytes more, and never
    clipped. Codes are below 2**51.

    Parameters
    ----------
    step
        The quantized paper's quantizer parameter: the variance of a number is at most
        ``step**2 / 4``.
    bits
        Bits of a code, from 1 to 32. None: each node takes the number that makes its message
        shortest, which is a function of its codes alone.
    """

    step: float
    bits: int | None = None

    def __post_init__(self) -> None:
        positive("step", self.step)
        if self.bits is not None:
            integer("bits", self.bits, at_least=1, below=MOST_BITS + 1)

    def compress(self, values: Floats, coins: Stream) -> Compressed:
        """Quantize and pack; see `Compressor`."""
        codes = kernels.quantize(values, self.step, coins, dtype=np.int64)
        if self.bits is None:
            choices = range(1, min(MOST_BITS, kernels.bits_needed(codes)) + 1)
        else:
            choices = range(self.bits, self.bits + 1)
        lengths = np.stack([kernels.packed_sizes(codes, bits) for bits in choices])
        chosen = lengths.argmin(axis=0)

        def message(row: int) -> bytes:
            bits = choices[chosen[row]]
            return bytes([bits]) + kernels.pack(codes[row], bits).message

        decoded = kernels.dequantize(codes, self.step, dtype=values.dtype)
        return Compressed(decoded, 8 * (1 + lengths.min(axis=0)), message)

    def decode(self, messages: Sequence[bytes], dim: int, dtype: npt.DTypeLike) -> Floats:
        """Unpack the codes and multiply by the step; see `Compressor`."""
        int64 = np.dtype(np.int64)
        codes = np.empty((len(messages), dim), int64)
        for row, message in enumerate(messages):
            if not message:
                fail("messages", "a byte of bits and the codes", f"no bytes in message {row}")
            codes[row] = kernels.unpack(Packed(message[1:], message[0], (dim,), int64))
        return kernels.dequantize(codes, self.step, dtype=dtype)
