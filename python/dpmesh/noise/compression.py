"""Short messages: unbiased compression of values after their noise.

A compressor is a function of values that noise already protects and of coins that do not depend on
the data: post-processing, which costs no privacy and leaves the release's event as it is. Its mean
over the coins is the value itself.

The length of a message is that of its bytes, `Compressed.message`. `Compressor.decode` recovers
from them exactly the numbers `Compressed.values` that the receivers compute with. Where one process
sends many rows to another, they travel in one packet, `Compressed.together`, at most a few bytes
longer than the messages. `Compressor.apart` recovers the rows from it.
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
"""Indices of rows, shape (rows,)."""

MOST_BITS = 32
"""Most bits of a code."""

NORM = struct.Struct("<d")
LENGTH = struct.Struct("<Q")
BITMAP = b"\0"
"""First byte of a sparse message whose places are a bitmap."""

PLACES = b"\1"
"""First byte of a sparse message whose places are 4-byte indices."""


@dataclass(frozen=True, eq=False)
class Compressed:
    """The messages of all rows.

    Parameters
    ----------
    values
        Numbers that receivers decode, shape (rows, dim).
    bits
        Lengths of the messages in bits, shape (rows,).
    message
        ``message(row)`` returns the bytes of one message.
    together
        ``together(rows)`` returns one packet of these rows.
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
        """Return the messages of `values`, shape (rows, dim).

        Row r draws its random numbers from the stream of node r of `coins`.

        Raises
        ------
        ValueError
            If a value is NaN, infinite, or outside the range that the code can represent.
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
    """Unbiased rounding of each number to one of the two nearest multiples of `step`.

    A message is the number of bits per code, in one byte, and the codes packed as in
    `dpmesh.kernels.quantization`: a code that needs more bits is escaped, at 8 bytes more, and
    never clipped. Codes are below 2**51.

    Parameters
    ----------
    step
        The quantized paper's quantizer parameter: the variance added to a number is at most
        ``step**2 / 4``.
    bits
        Bits of a code, from 1 to 32. None: each message has the number of bits that makes it
        shortest, a function of its codes alone.

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
        code_type: type[np.int32 | np.int64] = np.int64
        if largest < 2**31 - 1:  # half the memory to move
            code_type = np.int32
        codes = kernels.quantize(values, self.step, coins, dtype=code_type)
        least = self.bits or 1
        most = self.bits or min(MOST_BITS, kernels.bits_needed(codes))
        lengths = kernels.packed_sizes(codes, least, most)  # bytes, by number of bits and row
        widths = least + lengths.argmin(axis=0)

        def message(row: int) -> bytes:
            bits = int(widths[row])
            return bytes([bits]) + kernels.pack(codes[row], bits).message

        def together(rows: Rows) -> bytes:
            row_widths = widths[rows].astype(np.uint8)
            parts = [row_widths.tobytes()]
            for bits in np.unique(row_widths).tolist():
                rows_of_width = rows[row_widths == bits]
                packed = kernels.pack(codes[rows_of_width], bits).message
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
            packed = Packed(message=message[1:], bits=message[0], shape=(dim,), dtype=int64)
            codes[row] = kernels.unpack(packed)
        return kernels.dequantize(codes, self.step, dtype=dtype)

    def apart(self, packet: bytes, rows: int, dim: int, dtype: npt.DTypeLike) -> Floats:
        """Unpack the codes of each width and multiply by the step; see `Compressor`."""
        rows, dim = _lengths(rows, dim)
        int64 = np.dtype(np.int64)
        offset = rows
        widths = _first("bytes of bits", packet, rows, np.uint8)
        codes = np.empty((rows, dim), int64)
        for bits in np.unique(widths).tolist():
            has_width = widths == bits
            lengths = _first("length of codes", packet[offset:], 1, np.dtype("<u8"))
            begin = offset + LENGTH.size
            end = begin + int(lengths[0])
            shape = (int(has_width.sum()), dim)
            packed = Packed(message=packet[begin:end], bits=bits, shape=shape, dtype=int64)
            codes[has_width] = kernels.unpack(packed)
            offset = end
        _ends(packet, offset)
        return kernels.dequantize(codes, self.step, dtype=dtype)


@dataclass(frozen=True)
class Levels:
    """QSGD: unbiased rounding of each number to a multiple of its row's norm over `levels`.

    A message is the norm, in 8 bytes, and the message of `Quantizer` for the row over its norm. The
    squared error of a row is at most ``min(dim / levels**2, sqrt(dim) / levels)`` of its squared
    norm (Alistarh, Grubic, Li, Tomioka, Vojnovic 2017, Lemma 3.1).

    Parameters
    ----------
    levels
        Number of steps from 0 to a row's norm, at least 1; with 1 only signs and zeros remain.

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
        unit_rows = exact / np.where(norms > 0, norms, 1)
        codes = self._codes.compress(unit_rows, coins)

        def message(row: int) -> bytes:
            return NORM.pack(norms[row, 0]) + codes.message(row)

        def together(rows: Rows) -> bytes:
            packed_norms: bytes = norms[rows].astype("<f8").tobytes()
            return packed_norms + codes.together(rows)

        decoded = (norms * codes.values).astype(values.dtype)
        return Compressed(decoded, 8 * NORM.size + codes.bits, message, together, self)

    def decode(self, messages: Sequence[bytes], dim: int, dtype: npt.DTypeLike) -> Floats:
        """Multiply the codes by the norms; see `Compressor`."""
        for row, message in enumerate(messages):
            if len(message) < NORM.size:
                fail("messages", "8 bytes of norm and the codes", f"{len(message)} in {row}")
        norms = np.array([NORM.unpack_from(message) for message in messages])
        codes = [message[NORM.size :] for message in messages]
        unit_rows = self._codes.decode(codes, dim, np.float64)
        decoded: Floats = (norms * unit_rows).astype(dtype)
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
        """Keep a random part of the numbers; see `Compressor`."""
        if not np.isfinite(values).all():
            fail("values", "finite values", "NaN or infinity")
        is_kept = kernels.uniform(values.shape, coins) < self.keep
        sparse = np.where(is_kept, values / values.dtype.type(self.keep), values.dtype.type(0))
        counts = is_kept.sum(axis=1)
        bitmap_size = _bitmap_size(values.shape[1])
        lengths = 1 + np.minimum(bitmap_size, 4 * counts) + values.itemsize * counts

        def message(row: int) -> bytes:
            if 4 * counts[row] < bitmap_size:
                places: bytes = PLACES + np.flatnonzero(is_kept[row]).astype("<u4").tobytes()
            else:
                places = BITMAP + np.packbits(is_kept[row], bitorder="little").tobytes()
            numbers: bytes = sparse[row, is_kept[row]].tobytes()
            return places + numbers

        def together(rows: Rows) -> bytes:
            dense = bitmap_size <= 4 * counts[rows]
            bitmaps = np.packbits(is_kept[rows[dense]], axis=1, bitorder="little")
            _, places = np.nonzero(is_kept[rows[~dense]])
            parts = (
                counts[rows].astype("<u4").tobytes(),
                bitmaps.tobytes(),
                places.astype("<u4").tobytes(),
                sparse[rows][is_kept[rows]].tobytes(),
            )
            return b"".join(parts)

        return Compressed(sparse, 8 * lengths, message, together, self)

    def decode(self, messages: Sequence[bytes], dim: int, dtype: npt.DTypeLike) -> Floats:
        """Put the numbers in their places; see `Compressor`."""
        dim = integer("dim", dim, at_least=1)
        size = np.dtype(dtype).itemsize
        bitmap_size = _bitmap_size(dim)
        decoded = np.zeros((len(messages), dim), dtype)
        for row, message in enumerate(messages):
            kind = message[:1]
            rest = message[1:]
            if kind == PLACES and len(rest) % (4 + size) == 0:
                places_size = 4 * (len(rest) // (4 + size))
                places = np.frombuffer(rest[:places_size], "<u4")
            elif kind == BITMAP and len(rest) >= bitmap_size:
                places_size = bitmap_size
                bits = np.frombuffer(rest[:bitmap_size], np.uint8)
                places = np.flatnonzero(np.unpackbits(bits, count=dim, bitorder="little"))
            else:
                fail("messages", "a byte of kind, places and numbers", f"others in {row}")
            numbers_size = len(rest) - places_size
            if numbers_size != size * len(places) or np.any(places >= dim):
                fail("messages", f"a number for each of {len(places)} places", f"others in {row}")
            decoded[row, places] = np.frombuffer(rest[places_size:], dtype)
        return decoded

    def apart(self, packet: bytes, rows: int, dim: int, dtype: npt.DTypeLike) -> Floats:
        """Put the numbers in their places; see `Compressor`.

        The packet has the counts of kept numbers, the bitmaps, the places, and the kept numbers.
        """
        rows, dim = _lengths(rows, dim)
        bitmap_size = _bitmap_size(dim)
        is_kept = np.zeros((rows, dim), np.bool_)
        counts = _first("counts", packet, rows, np.dtype("<u4")).astype(np.int64)
        dense = bitmap_size <= 4 * counts
        offset = 4 * rows
        bitmaps = _first("bitmaps", packet[offset:], int(dense.sum()) * bitmap_size, np.uint8)
        offset += bitmaps.nbytes
        bitmaps = bitmaps.reshape(-1, bitmap_size)
        bits = np.unpackbits(bitmaps, axis=1, count=dim, bitorder="little")
        is_kept[dense] = bits.astype(np.bool_)
        places = _first("places", packet[offset:], int(counts[~dense].sum()), np.dtype("<u4"))
        offset += places.nbytes
        if np.any(places >= dim):
            fail("packet", f"places below {dim}", places.max())
        sparse_rows = np.repeat(np.flatnonzero(~dense), counts[~dense])
        is_kept[sparse_rows, places] = True
        if not np.array_equal(is_kept.sum(axis=1), counts):
            fail("packet", "as many places as counted", "others")
        numbers = _first("numbers", packet[offset:], int(counts.sum()), np.dtype(dtype))
        _ends(packet, offset + numbers.nbytes)
        decoded = np.zeros((rows, dim), dtype)
        decoded[is_kept] = numbers
        return decoded


def _bitmap_size(dim: int) -> int:
    """Return the bytes of a bitmap of `dim` bits."""
    return -(-dim // 8)


def _lengths(rows: int, dim: int) -> tuple[int, int]:
    """Return both sizes; fail unless they are a number of rows and a length of rows."""
    return integer("rows", rows), integer("dim", dim, at_least=1)


def _first(what: str, packet: bytes, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the first `count` numbers of a packet; `what` names them in an error."""
    if len(packet) < count * np.dtype(dtype).itemsize:
        fail("packet", f"{count} {what}", f"{len(packet)} bytes")
    return np.frombuffer(packet, dtype, count)


def _ends(packet: bytes, length: int) -> None:
    """Fail unless a packet has this length in bytes."""
    if len(packet) != length:
        fail("packet", f"{length} bytes", len(packet))
