"""Short messages: unbiased compression of values after their noise.

A compressor is a function of values that noise already protects and of coins that do not depend on
the data: post-processing, which costs no privacy and leaves the release's event as it is. Its mean
over the coins is the value itself.

The length of a message is that of its bytes, `Compressed.message`, from which `Compressor.decode`
recovers exactly the numbers `Compressed.values` that the receivers compute with. Where one process
sends many rows to another, they travel in one packet, `Compressed.together`, no longer than their
bytes plus a few for the whole, from which `Compressor.apart` recovers them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats
from dpmesh._validate import every, fail, integer, positive, probability
from dpmesh.kernels import Packed
from dpmesh.keys import Stream

Rows = npt.NDArray[np.int64]

MOST_BITS = 32
NORM = struct.Struct("<d")
LENGTH = struct.Struct("<Q")
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
    together
        ``together(rows)`` makes one packet of these rows.
    compressor
        The compressor that can decode them.
    """

    values: Floats
    bits: npt.NDArray[np.int64]
    message: Callable[[int], bytes]
    together: Callable[[Rows], bytes]
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

    def apart(self, packet: bytes, rows: int, dim: int, dtype: npt.DTypeLike) -> Floats:
        """Return the rows of a packet, shape (rows, dim), as float32 or float64.

        Raises
        ------
        ValueError
            If it does not encode so many rows of that length.
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
    >>> dm.noise.Quantizer(0.01, bits=4)
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

        def together(rows: Rows) -> bytes:
            widths = chosen[rows].astype(np.uint8)
            parts = [widths.tobytes()]
            for bits in np.unique(widths).tolist():
                packed = kernels.pack(codes[rows[widths == bits]], bits).message
                parts += [LENGTH.pack(len(packed)), packed]
            return b"".join(parts)

        decoded = kernels.dequantize(codes, self.step, dtype=values.dtype)
        lengths_in_bits = 8 * (1 + lengths.min(axis=0))
        return Compressed(decoded, lengths_in_bits, message, together, self)

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

    def apart(self, packet: bytes, rows: int, dim: int, dtype: npt.DTypeLike) -> Floats:
        """Unpack the codes of each width and multiply by the step; see `Compressor`."""
        rows, dim = _lengths(rows, dim)
        int64 = np.dtype(np.int64)
        offset = rows
        widths = _first("bytes of bits", packet, rows, np.uint8)
        codes = np.empty((rows, dim), int64)
        for bits in np.unique(widths).tolist():
            of_width = widths == bits
            length = int(_first("length of codes", packet[offset:], 1, np.dtype("<u8"))[0])
            message = packet[offset + LENGTH.size :][:length]
            offset = offset + LENGTH.size + length
            shape = (int(of_width.sum()), dim)
            codes[of_width] = kernels.unpack(
                Packed(message=message, bits=bits, shape=shape, dtype=int64)
            )
        _ends(packet, offset)
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
    >>> dm.noise.Levels(4)
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

        def together(rows: Rows) -> bytes:
            before: bytes = norms[rows].astype("<f8").tobytes()
            return before + codes.together(rows)

        decoded = (norms * codes.values).astype(values.dtype)
        return Compressed(decoded, 8 * NORM.size + codes.bits, message, together, self)

    def decode(self, messages: Sequence[bytes], dim: int, dtype: npt.DTypeLike) -> Floats:
        """Multiply the codes by the norms; see `Compressor`."""
        for row, message in enumerate(messages):
            if len(message) < NORM.size:
                fail("messages", "8 bytes of norm and the codes", f"{len(message)} in {row}")
        norms = np.array([NORM.unpack_from(message) for message in messages])
        codes = [message[NORM.size :] for message in messages]
        decoded: Floats = (norms * self._codes.decode(codes, dim, np.float64)).astype(dtype)
        return decoded

    def apart(self, packet: bytes, rows: int, dim: int, dtype: npt.DTypeLike) -> Floats:
        """Multiply the codes by the norms; see `Compressor`."""
        rows, dim = _lengths(rows, dim)
        norms = _first("norms", packet, rows, np.dtype("<f8"))[:, np.newaxis]
        codes = self._codes.apart(packet[norms.nbytes :], rows, dim, np.float64)
        decoded: Floats = (norms * codes).astype(dtype)
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
    >>> dm.noise.RandomSparsifier(0.1)
    RandomSparsifier(keep=0.1)
    """

    keep: float

    def __post_init__(self) -> None:
        every(self, probability, "keep", zero=False)

    def compress(self, values: Floats, coins: Stream) -> Compressed:
        """Keep some; see `Compressor`."""
        if not np.isfinite(values).all():
            fail("values", "finite values", "NaN or infinity")
        is_kept = kernels.uniform(values.shape, coins) < self.keep
        sparse = np.where(is_kept, values / values.dtype.type(self.keep), values.dtype.type(0))
        counts = is_kept.sum(axis=1)
        bitmap = -(-values.shape[1] // 8)
        lengths = 1 + np.minimum(bitmap, 4 * counts) + values.itemsize * counts

        def message(row: int) -> bytes:
            if 4 * counts[row] < bitmap:
                places: bytes = PLACES + np.flatnonzero(is_kept[row]).astype("<u4").tobytes()
            else:
                places = BITMAP + np.packbits(is_kept[row], bitorder="little").tobytes()
            numbers: bytes = sparse[row, is_kept[row]].tobytes()
            return places + numbers

        def together(rows: Rows) -> bytes:
            dense = bitmap <= 4 * counts[rows]
            _, places = np.nonzero(is_kept[rows[~dense]])
            return b"".join(
                (
                    counts[rows].astype("<u4").tobytes(),
                    np.packbits(is_kept[rows[dense]], axis=1, bitorder="little").tobytes(),
                    places.astype("<u4").tobytes(),
                    sparse[rows][is_kept[rows]].tobytes(),
                )
            )

        return Compressed(sparse, 8 * lengths, message, together, self)

    def decode(self, messages: Sequence[bytes], dim: int, dtype: npt.DTypeLike) -> Floats:
        """Put the numbers in their places; see `Compressor`."""
        dim = integer("dim", dim, at_least=1)
        size = np.dtype(dtype).itemsize
        bitmap = -(-dim // 8)
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

    def apart(self, packet: bytes, rows: int, dim: int, dtype: npt.DTypeLike) -> Floats:
        """Put the numbers in their places; see `Compressor`.

        The packet has the counts of kept numbers, the bitmaps, the places, and the kept numbers.
        """
        rows, dim = _lengths(rows, dim)
        bitmap = -(-dim // 8)
        is_kept = np.zeros((rows, dim), np.bool_)
        counts = _first("counts", packet, rows, np.dtype("<u4")).astype(np.int64)
        dense = bitmap <= 4 * counts
        offset = 4 * rows
        bits = _first("bitmaps", packet[offset:], int(dense.sum()) * bitmap, np.uint8)
        offset += bits.nbytes
        bits = bits.reshape(-1, bitmap)
        is_kept[dense] = np.unpackbits(bits, axis=1, count=dim, bitorder="little").astype(np.bool_)
        places = _first("places", packet[offset:], int(counts[~dense].sum()), np.dtype("<u4"))
        offset += places.nbytes
        if np.any(places >= dim):
            fail("packet", f"places below {dim}", places.max())
        is_kept[np.repeat(np.flatnonzero(~dense), counts[~dense]), places] = True
        if not np.array_equal(is_kept.sum(axis=1), counts):
            fail("packet", "as many places as counted", "others")
        numbers = _first("numbers", packet[offset:], int(counts.sum()), np.dtype(dtype))
        _ends(packet, offset + numbers.nbytes)
        decoded = np.zeros((rows, dim), dtype)
        decoded[is_kept] = numbers
        return decoded


def _lengths(rows: int, dim: int) -> tuple[int, int]:
    return integer("rows", rows), integer("dim", dim, at_least=1)


def _first(what: str, packet: bytes, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the numbers at the beginning of a packet."""
    if len(packet) < count * np.dtype(dtype).itemsize:
        fail("packet", f"{count} {what}", f"{len(packet)} bytes")
    return np.frombuffer(packet, dtype, count)


def _ends(packet: bytes, length: int) -> None:
    if len(packet) != length:
        fail("packet", f"{length} bytes", len(packet))
