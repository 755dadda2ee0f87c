"""Short messages: unbiased compression of values after their noise.

A compressor is a function of values that noise already protects and of coins that do not depend on
the data: post-processing, which costs no privacy and leaves the release's event as it is. Its mean
over the coins is the value itself.

A node sends one row of numbers. Its *message* is `Compressed.message`, from whose bytes
`Compressor.decode` recovers exactly the numbers `Compressed.values` that the receivers compute
with. A process that sends many rows to another sends them in one *packet*, `Compressed.packet`, at
most a few bytes longer than the messages. `Compressor.decode_packet` recovers the rows from it.

    compressor         message of a row                   packet of rows
    -----------------  ---------------------------------  ------------------------------------------
    Quantizer          bits per code b (1 byte), codes    b of each row; for each b that occurs, in
                       packed in b bits                   ascending order, the length of the packed
                                                          codes of its rows (8 bytes), these codes
    Levels             norm (8 bytes), message of         norms of all rows, packet of `Quantizer`
                       `Quantizer` for the row over it
    RandomSparsifier   kind of places (1 byte), places    number of kept numbers of each row (4
                       of kept numbers (a bit for every   bytes), bitmaps of rows that keep many,
                       place, or 4 bytes for every kept   places of all other rows, kept numbers of
                       one), kept numbers                 all rows

Counts, lengths, places and norms are little-endian.
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
"""A row's norm in a message: a little-endian float64."""

LENGTH = struct.Struct("<Q")
"""Bytes of packed codes in a packet: a little-endian integer of 64 bits."""

PLACE = np.dtype("<u4")
"""Index of a number in its row, and count of numbers: little-endian integers of 32 bits."""

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
        Numbers that receivers decode, shape (rows, dim), of the type of the compressed values.
    bits
        Lengths of the messages in bits, shape (rows,).
    message
        ``message(row)`` returns the bytes of the message of the row with this index.
    packet
        ``packet(rows)`` returns the rows with these indices, encoded together in one packet.
    compressor
        The compressor that can decode them.
    """

    values: Floats
    bits: npt.NDArray[np.int64]
    message: Callable[[int], bytes]
    packet: Callable[[Rows], bytes]
    compressor: Compressor


class Compressor(Protocol):
    """Protocol of a compressor: an unbiased code for released rows of numbers; post-processing.

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

    def decode_packet(self, packet: bytes, rows: int, dim: int, dtype: npt.DTypeLike) -> Floats:
        """Return the rows of a packet, shape (rows, dim), as float32 or float64.

        Raises
        ------
        ValueError
            If it does not encode so many rows of that length.
        """


@dataclass(frozen=True)
class Quantizer:
    """Unbiased stochastic rounding of each number to one of the two nearest multiples of `step`.

    A message is the number of bits per code, in one byte, and the codes packed as in
    `dpmesh.kernels.quantization`: a code that needs more bits is escaped, at 8 bytes more, and
    never clipped. Codes are below 2**51.

    Parameters
    ----------
    step
        Distance between multiples, positive, in units of the model: the quantizer parameter in the
        paper of `QuantizedGossip`. The variance added to a number is at most ``step**2 / 4``.
    bits
        Number of bits of a code (a multiple as an integer), from 1 to 32. None for the number that
        makes each message shortest, a function of its codes alone.

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
        largest_code = max(float(values.max()), -float(values.min())) / self.step
        code_type: type[np.int32 | np.int64] = np.int64
        if largest_code < 2**31 - 1:  # half the memory to move
            code_type = np.int32
        codes = kernels.quantize(values, self.step, coins, dtype=code_type)
        if self.bits is None:
            least_bits = 1
            most_bits = min(MOST_BITS, kernels.bits_needed(codes))
        else:
            least_bits = most_bits = self.bits
        sizes = kernels.packed_sizes(codes, least_bits, most_bits)  # bytes, (bits, rows)
        bits_of_row = least_bits + sizes.argmin(axis=0)

        def message(row: int) -> bytes:
            bits = int(bits_of_row[row])
            return bytes([bits]) + kernels.pack(codes[row], bits).message

        def packet(rows: Rows) -> bytes:
            bits_of_packet = bits_of_row[rows].astype(np.uint8)
            blocks = [bits_of_packet.tobytes()]
            for bits in np.unique(bits_of_packet).tolist():
                rows_of_bits = rows[bits_of_packet == bits]
                packed = kernels.pack(codes[rows_of_bits], bits).message
                blocks += [LENGTH.pack(len(packed)), packed]
            return b"".join(blocks)

        decoded = kernels.dequantize(codes, self.step, dtype=values.dtype)
        message_bytes = 1 + sizes.min(axis=0)  # a byte of bits per code, and the codes
        return Compressed(decoded, 8 * message_bytes, message, packet, self)

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

    def decode_packet(self, packet: bytes, rows: int, dim: int, dtype: npt.DTypeLike) -> Floats:
        """Unpack the codes of rows and multiply by the step; see `Compressor`.

        The packet has the bits per code of each row, then the codes of the rows of each number of
        bits, after their length.
        """
        rows, dim = _checked_shape(rows, dim)
        int64 = np.dtype(np.int64)
        bits_of_row = _numbers("bytes of bits", packet, rows, np.uint8)
        codes = np.empty((rows, dim), int64)
        offset = rows
        for bits in np.unique(bits_of_row).tolist():
            has_bits = bits_of_row == bits
            length = _numbers("length of codes", packet[offset:], 1, np.dtype("<u8"))
            begin = offset + LENGTH.size
            end = begin + int(length[0])
            shape = (int(has_bits.sum()), dim)
            packed = Packed(message=packet[begin:end], bits=bits, shape=shape, dtype=int64)
            codes[has_bits] = kernels.unpack(packed)
            offset = end
        _require_length(packet, offset)
        return kernels.dequantize(codes, self.step, dtype=dtype)


@dataclass(frozen=True)
class Levels:
    """QSGD: unbiased rounding of each number to multiples of its row's norm / `levels`.

    A row is the vector that one node sends. A message is the row's L2 norm, in 8 bytes, and the
    message of `Quantizer` for the row over its norm. The expected squared error of a row is at most
    ``min(dim / levels**2, sqrt(dim) / levels)`` times its squared norm (Alistarh, Grubic, Li,
    Tomioka, Vojnovic 2017, Lemma 3.1).

    Parameters
    ----------
    levels
        Number of steps from 0 to a row's norm, at least 1. With 1 only signs and zeros remain.

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
        with np.errstate(over="ignore", invalid="ignore"):  # refused below
            norms = np.linalg.norm(exact, axis=1, keepdims=True)
            unit_rows = exact / np.where(norms > 0, norms, 1)
        codes = self._codes.compress(unit_rows, coins)
        if np.isinf(norms).any():
            fail("values", "rows whose squared norms float64 can hold", "a longer one")

        def message(row: int) -> bytes:
            return NORM.pack(norms[row, 0]) + codes.message(row)

        def packet(rows: Rows) -> bytes:
            packed_norms: bytes = norms[rows].astype("<f8").tobytes()
            return packed_norms + codes.packet(rows)

        decoded = (norms * codes.values).astype(values.dtype)
        return Compressed(decoded, 8 * NORM.size + codes.bits, message, packet, self)

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

    def decode_packet(self, packet: bytes, rows: int, dim: int, dtype: npt.DTypeLike) -> Floats:
        """Multiply the codes by the norms; see `Compressor`.

        The packet has the norms, then the packet of `Quantizer`.
        """
        rows, dim = _checked_shape(rows, dim)
        norms = _numbers("norms", packet, rows, np.dtype("<f8"))[:, np.newaxis]
        codes = self._codes.decode_packet(packet[norms.nbytes :], rows, dim, np.float64)
        decoded: Floats = (norms * codes).astype(dtype)
        return decoded

    @property
    def _codes(self) -> Quantizer:
        return Quantizer(1 / self.levels)


@dataclass(frozen=True)
class RandomSparsifier:
    """Random sparsification: each number is kept with probability `keep` and divided by `keep`.

    The other numbers become 0, so that the mean is the number itself. The variance added to a
    number is ``(1 / keep - 1)`` times its square.

    The first byte of a message states how the places of the kept numbers are encoded: as a bit for
    every place, or as 4 bytes for every kept one, whichever is shorter. The places follow, then the
    kept numbers as they are.

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
        index_sizes = PLACE.itemsize * counts  # bytes of the indices of each row's kept numbers
        has_bitmap = bitmap_size <= index_sizes
        number_sizes = values.itemsize * counts
        sizes = 1 + np.minimum(bitmap_size, index_sizes) + number_sizes

        def message(row: int) -> bytes:
            if has_bitmap[row]:
                places = BITMAP + np.packbits(is_kept[row], bitorder="little").tobytes()
            else:
                places = PLACES + np.flatnonzero(is_kept[row]).astype(PLACE).tobytes()
            numbers: bytes = sparse[row, is_kept[row]].tobytes()
            return places + numbers

        def packet(rows: Rows) -> bytes:
            with_bitmap = rows[has_bitmap[rows]]
            with_indices = rows[~has_bitmap[rows]]
            bitmaps = np.packbits(is_kept[with_bitmap], axis=1, bitorder="little")
            _, places = np.nonzero(is_kept[with_indices])
            blocks = (
                counts[rows].astype(PLACE).tobytes(),
                bitmaps.tobytes(),
                places.astype(PLACE).tobytes(),
                sparse[rows][is_kept[rows]].tobytes(),
            )
            return b"".join(blocks)

        return Compressed(sparse, 8 * sizes, message, packet, self)

    def decode(self, messages: Sequence[bytes], dim: int, dtype: npt.DTypeLike) -> Floats:
        """Put the numbers in their places; see `Compressor`."""
        dim = integer("dim", dim, at_least=1)
        number_size = np.dtype(dtype).itemsize
        pair_size = PLACE.itemsize + number_size  # bytes of a place and its number
        bitmap_size = _bitmap_size(dim)
        decoded = np.zeros((len(messages), dim), dtype)
        for row, message in enumerate(messages):
            kind = message[:1]
            body = message[1:]
            if kind == PLACES and len(body) % pair_size == 0:
                places_size = PLACE.itemsize * (len(body) // pair_size)
                places = np.frombuffer(body[:places_size], PLACE).astype(np.int64)
            elif kind == BITMAP and len(body) >= bitmap_size:
                places_size = bitmap_size
                bitmap = np.frombuffer(body[:bitmap_size], np.uint8)
                places = np.flatnonzero(np.unpackbits(bitmap, count=dim, bitorder="little"))
            else:
                fail("messages", "a byte of kind, places and numbers", f"others in {row}")
            numbers = body[places_size:]
            if len(numbers) != number_size * len(places) or np.any(places >= dim):
                fail("messages", f"a number for each of {len(places)} places", f"others in {row}")
            decoded[row, places] = np.frombuffer(numbers, dtype)
        return decoded

    def decode_packet(self, packet: bytes, rows: int, dim: int, dtype: npt.DTypeLike) -> Floats:
        """Put the numbers in their places; see `Compressor`.

        The packet has four blocks: the count of kept numbers of each row, the bitmaps of rows that
        keep many, the places of all other rows, and the kept numbers of all rows.
        """
        rows, dim = _checked_shape(rows, dim)
        bitmap_size = _bitmap_size(dim)
        is_kept = np.zeros((rows, dim), np.bool_)
        counts = _numbers("counts", packet, rows, PLACE).astype(np.int64)
        has_bitmap = bitmap_size <= PLACE.itemsize * counts
        offset = PLACE.itemsize * rows

        bitmap_bytes = int(has_bitmap.sum()) * bitmap_size
        bitmaps = _numbers("bitmaps", packet[offset:], bitmap_bytes, np.uint8)
        offset += bitmaps.nbytes
        bits = np.unpackbits(bitmaps.reshape(-1, bitmap_size), axis=1, count=dim, bitorder="little")
        is_kept[has_bitmap] = bits.astype(np.bool_)

        counts_without_bitmap = counts[~has_bitmap]
        places = _numbers("places", packet[offset:], int(counts_without_bitmap.sum()), PLACE)
        offset += places.nbytes
        if np.any(places >= dim):
            fail("packet", f"places below {dim}", places.max())
        row_of_place = np.repeat(np.flatnonzero(~has_bitmap), counts_without_bitmap)
        is_kept[row_of_place, places] = True
        if not np.array_equal(is_kept.sum(axis=1), counts):
            fail("packet", "as many places as counted", "others")

        numbers = _numbers("numbers", packet[offset:], int(counts.sum()), np.dtype(dtype))
        _require_length(packet, offset + numbers.nbytes)
        decoded = np.zeros((rows, dim), dtype)
        decoded[is_kept] = numbers
        return decoded


def _bitmap_size(dim: int) -> int:
    """Return the bytes of a bitmap of `dim` bits."""
    return -(-dim // 8)


def _checked_shape(rows: int, dim: int) -> tuple[int, int]:
    """Return both sizes; fail unless they are a number of rows and a length of rows."""
    return integer("rows", rows), integer("dim", dim, at_least=1)


def _numbers(name: str, packet: bytes, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the first `count` numbers of a packet; fail, naming them `name`, if it is shorter."""
    if len(packet) < count * np.dtype(dtype).itemsize:
        fail("packet", f"{count} {name}", f"{len(packet)} bytes")
    return np.frombuffer(packet, dtype, count)


def _require_length(packet: bytes, length: int) -> None:
    """Fail unless a packet has this length in bytes."""
    if len(packet) != length:
        fail("packet", f"{length} bytes", len(packet))
