"""Short messages: unbiased compression of values after their noise.

A compressor is a function of values that noise already protects and of coins that do not depend on
the data: post-processing, which costs no privacy and leaves the release's event as it is. Its mean
over the coins is the value itself.

The length of a message is that of its bytes, `Compressed.message`, from which `Compressor.decode`
recovers exactly the numbers `Compressed.values` that the receivers compute with.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._validate import every, fail, integer, positive, probability
from dpmesh.kernels import Packed
from dpmesh.keys import Stream
from dpmesh.privacy.types import Floats

MOST_BITS = 32
NORM = struct.Struct("<d")
BITMAP, PLACES = b"\0", b"\1"


@dataclass(frozen=True, eq=False)
class Compressed:
    """The messages of all rows.

    Parameters
    ----------
    values
        Shape (rows, dim): what receivers decode.
    bits
        Shape (rows,): their lengths.
    message
        ``message(row)`` makes the bytes of one of them.
    compressor
        The compressor that can decode them.
    """

    values: Floats
    bits: npt.NDArray[np.int64]
    message: Callable[[int], bytes]
    compressor: Compressor


class Compressor(Protocol):
    """An unbiased code for rows of numbers.

    It may enlarge a number; a run refuses the release if the result exceeds the number's type.
    """

    def compress(self, values: Floats, coins: Stream) -> Compressed:
        """Return the messages of `values`, shape (rows, dim), each row with coins of its own.

        Raises
        ------
        ValueError
            If a value is NaN or infinite, or too large for the code.
        """

    def decode(self, messages: Sequence[bytes], dim: int, dtype: npt.DTypeLike) -> Floats:
        """Return the rows that messages encode, shape (messages, dim), as float32 or float64.

        Raises
        ------
        ValueError
            If a message does not encode a row of that length.
        """


@dataclass(frozen=True)
class Quantizer:
    """Each number becomes one of the two nearest multiples of `step`, without bias.

    A message is the number of bits per code, in one byte, and the codes packed as in
    `dpmesh.kernels.quantization`: a code that needs more bits is escaped, at 8 bytes more, and
    never clipped. Codes are below 2**51.

    Parameters
    ----------
    step
        The quantized paper's quantizer parameter: the variance added to a number is at most
        ``step**2 / 4``.
    bits
        Bits of a code, from 1 to 32. None: each node takes the number of bits that makes its
        message shortest, a function of its codes alone.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.Quantizer(0.01, bits=4)
    Quantizer(step=0.01, bits=4)
    """

    step: float
    _: KW_ONLY
    bits: int | None = None

    def __post_init__(self) -> None:
        every(self, positive, "step")
        every(self, integer, "bits", at_least=1, below=MOST_BITS + 1)

    def compress(self, values: Floats, coins: Stream) -> Compressed:
        """Quantize and pack; see `Compressor`."""
        largest = max(float(values.max()), -float(values.min())) / self.step
        narrow = largest < 2**31 - 1  # half the memory to move
        codes = kernels.quantize(values, self.step, coins, dtype=np.int32 if narrow else np.int64)
        least = self.bits or 1
        most = self.bits or min(MOST_BITS, kernels.bits_needed(codes))
        lengths = kernels.packed_sizes(codes, least, most)
        chosen = least + lengths.argmin(axis=0)

        def message(row: int) -> bytes:
            bits = int(chosen[row])
            return bytes([bits]) + kernels.pack(codes[row], bits).message

        decoded = kernels.dequantize(codes, self.step, dtype=values.dtype)
        lengths_in_bits = 8 * (1 + lengths.min(axis=0))
        return Compressed(decoded, lengths_in_bits, message, self)

    def decode(self, messages: Sequence[bytes], dim: int, dtype: npt.DTypeLike) -> Floats:
        """Unpack the codes and multiply by the step; see `Compressor`."""
        int64 = np.dtype(np.int64)
        codes = np.empty((len(messages), integer("dim", dim, at_least=1)), int64)
        for row, message in enumerate(messages):
            if not message:
                fail("messages", "a byte of bits and the codes", f"no bytes in message {row}")
            codes[row] = kernels.unpack(
                Packed(message=message[1:], bits=message[0], shape=(dim,), dtype=int64)
            )
        return kernels.dequantize(codes, self.step, dtype=dtype)


@dataclass(frozen=True)
class Levels:
    """Each number becomes a multiple of its row's norm over `levels`, without bias: QSGD.

    A message is the norm, in 8 bytes, and the message of `Quantizer` for the row over its norm. The
    squared error of a row is at most ``min(dim / levels**2, sqrt(dim) / levels)`` of its squared
    norm (Alistarh, Grubic, Li, Tomioka, Vojnovic 2017, Lemma 3.1).

    Parameters
    ----------
    levels
        Steps from 0 to a row's norm, at least 1; 1 leaves only signs and zeros.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.Levels(4)
    Levels(levels=4)
    """

    levels: int

    def __post_init__(self) -> None:
        every(self, integer, "levels", at_least=1)

    def compress(self, values: Floats, coins: Stream) -> Compressed:
        """Divide by the norms and quantize; see `Compressor`."""
        exact = values.astype(np.float64)
        norms = np.linalg.norm(exact, axis=1, keepdims=True)
        codes = self._codes.compress(exact / np.where(norms > 0, norms, 1), coins)

        def message(row: int) -> bytes:
            return NORM.pack(norms[row, 0]) + codes.message(row)

        decoded = (norms * codes.values).astype(values.dtype)
        return Compressed(decoded, 8 * NORM.size + codes.bits, message, self)

    def decode(self, messages: Sequence[bytes], dim: int, dtype: npt.DTypeLike) -> Floats:
        """Multiply the codes by the norms; see `Compressor`."""
        for row, message in enumerate(messages):
            if len(message) < NORM.size:
                fail("messages", "8 bytes of norm and the codes", f"{len(message)} in {row}")
        norms = np.array([NORM.unpack_from(message) for message in messages])
        codes = [message[NORM.size :] for message in messages]
        decoded: Floats = (norms * self._codes.decode(codes, dim, np.float64)).astype(dtype)
        return decoded

    @property
    def _codes(self) -> Quantizer:
        return Quantizer(1 / self.levels)


@dataclass(frozen=True)
class RandomSparsifier:
    """Each number is kept with probability `keep` and divided by it, or else becomes 0.

    The first byte of a message states how the places of the kept numbers are encoded: as a bit for
    every place, or as 4 bytes for every kept one, whichever is shorter. The places follow, then the
    kept numbers as they are. The variance added to a number is ``(1 / keep - 1)`` times its square.

    Parameters
    ----------
    keep
        Probability that a number is kept, in (0, 1].

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.RandomSparsifier(0.1)
    RandomSparsifier(keep=0.1)
    """

    keep: float

    def __post_init__(self) -> None:
        every(self, probability, "keep", zero=False)

    def compress(self, values: Floats, coins: Stream) -> Compressed:
        """Keep some; see `Compressor`."""
        if not np.isfinite(values).all():
            fail("values", "finite values", "NaN or infinity")
        kept = kernels.uniform(values.shape, coins) < self.keep
        sparse = np.where(kept, values / values.dtype.type(self.keep), values.dtype.type(0))
        counts = kept.sum(axis=1)
        bitmap = -(-values.shape[1] // 8)
        lengths = 1 + np.minimum(bitmap, 4 * counts) + values.itemsize * counts

        def message(row: int) -> bytes:
            if 4 * counts[row] < bitmap:
                places: bytes = PLACES + np.flatnonzero(kept[row]).astype("<u4").tobytes()
            else:
                places = BITMAP + np.packbits(kept[row], bitorder="little").tobytes()
            numbers: bytes = sparse[row, kept[row]].tobytes()
            return places + numbers

        return Compressed(sparse, 8 * lengths, message, self)

    def decode(self, messages: Sequence[bytes], dim: int, dtype: npt.DTypeLike) -> Floats:
        """Put the numbers in their places; see `Compressor`."""
        dim = integer("dim", dim, at_least=1)
        size, bitmap = np.dtype(dtype).itemsize, -(-dim // 8)
        decoded = np.zeros((len(messages), dim), dtype)
        for row, message in enumerate(messages):
            kind, rest = message[:1], message[1:]
            if kind == PLACES and len(rest) % (4 + size) == 0:
                ends = 4 * (len(rest) // (4 + size))
                places = np.frombuffer(rest[:ends], "<u4")
            elif kind == BITMAP and len(rest) >= bitmap:
                ends = bitmap
                bits = np.frombuffer(rest[:bitmap], np.uint8)
                places = np.flatnonzero(np.unpackbits(bits, count=dim, bitorder="little"))
            else:
                fail("messages", "a byte of kind, places and numbers", f"others in {row}")
            if len(rest) - ends != size * len(places) or np.any(places >= dim):
                fail("messages", f"a number for each of {len(places)} places", f"others in {row}")
            decoded[row, places] = np.frombuffer(rest[ends:], dtype)
        return decoded
