"""Masks modulo a power of 2 that cancel in the sum over all sites, and how masked vectors travel.

Two sites that share a secret draw the same words from it: the site with the lower number adds them,
the other one subtracts them. To everybody else the masked vector of a site is a sequence of uniform
integers below ``2**bits`` unless the vectors of *all* sites of the cohort are added up.

The words of a pair are the key stream of AES-256 in counter mode under the pair's secret, with the
nonce (`MASK_PURPOSE`, 0, 0) of `dpmesh.keys`: 32 bits each for up to 32 bits, otherwise 64,
little-endian, of which the lowest `bits` count. A secret serves a single sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, integer
from dpmesh.keys import Key

Words = npt.NDArray[np.uint64]
"""Integers modulo 2**64, or below 2**bits."""

MASK_PURPOSE = 0x4D41534B
SECRET_BYTES = 32

_AT_ONCE = 1 << 16  # numbers that are packed at once, a multiple of 8


def mask_words(secret: bytes, dim: int, bits: int) -> Words:
    """Return the words that two sites draw from their shared secret, shape (dim,).

    Parameters
    ----------
    secret
        32 secret bytes, of a single sum.
    dim
        At least 1.
    bits
        From 1 to 64. The words are below ``2**bits``.
    """
    if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
        fail("secret", f"{SECRET_BYTES} bytes", f"a {type(secret).__name__}")
    stream = Key.seeded(int.from_bytes(secret, "little")).stream(MASK_PURPOSE)
    wide = bits > 32
    drawn = np.empty(dim * (2 if wide else 1), np.uint32)
    stream.words(0, drawn)
    words = drawn.astype("<u4").view("<u8") if wide else drawn
    return words.astype(np.uint64) & _low(bits)


def masked(
    values: npt.NDArray[np.int64], own: int, secrets: Mapping[int, bytes], bits: int
) -> Words:
    """Return a site's integers plus its masks, modulo ``2**bits``.

    Parameters
    ----------
    values
        Shape (dim,).
    own
        The site's number.
    secrets
        What it shares with each other site of the cohort, by that site's number.
    bits
        Of the modulus, from 1 to 64.
    """
    words = values.astype(np.int64).view(np.uint64).copy()
    for other, secret in secrets.items():
        if other == own:
            fail("secrets", "those shared with other sites", f"one of site {own} itself")
        mask = mask_words(secret, len(words), bits)
        if own < other:
            words += mask
        else:
            words -= mask
    low: Words = words & _low(bits)
    return low


def centred(words: Words, bits: int) -> npt.NDArray[np.int64]:
    """Return the integers in ``[-2**(bits - 1), 2**(bits - 1))`` that are equal modulo 2**bits."""
    rest = np.uint64(64 - bits)
    signed: npt.NDArray[np.int64] = (words << rest).view(np.int64) >> rest.astype(np.int64)
    return signed


def modular_sum(parts: Iterable[Words], bits: int) -> npt.NDArray[np.int64]:
    """Return the centred sum of masked vectors modulo ``2**bits``."""
    total: Words | None = None
    for part in parts:
        total = part.copy() if total is None else total + part
    if total is None:
        fail("parts", "at least 1 vector", "none")
    return centred(total, bits)


def pack_words(words: Words, bits: int) -> bytes:
    """Pack integers below ``2**bits`` into `bits` bits each, from the lowest bit of a byte upwards.

    The last byte is padded with zeros.
    """
    pieces = []
    for first in range(0, len(words), _AT_ONCE):
        part = words[first : first + _AT_ONCE].astype("<u8").view(np.uint8).reshape(-1, 8)
        columns = np.unpackbits(part, axis=1, bitorder="little")[:, :bits]
        pieces.append(np.packbits(columns.reshape(-1), bitorder="little").tobytes())
    return b"".join(pieces)


def unpack_words(message: bytes, dim: int, bits: int) -> Words:
    """Return the integers that `pack_words` packed.

    Raises
    ------
    ValueError
        If the message has another length than `dim` numbers of `bits` bits, or its padding is not
        zero.
    """
    integer("bits", bits, at_least=1, below=65)
    length = (integer("dim", dim, at_least=1) * bits + 7) // 8
    if not isinstance(message, bytes) or len(message) != length:
        got = len(message) if isinstance(message, bytes) else type(message).__name__
        fail("message", f"{length} bytes, {dim} numbers of {bits} bits", got)
    raw = np.frombuffer(message, np.uint8)
    words = np.empty(dim, np.uint64)
    for first in range(0, dim, _AT_ONCE):
        count = min(_AT_ONCE, dim - first)
        start = first * bits // 8
        flat = np.unpackbits(raw[start : start + (count * bits + 7) // 8], bitorder="little")
        if flat[count * bits :].any():
            fail("message", "padding of zeros", "other bits")
        columns = np.zeros((count, 64), np.uint8)
        columns[:, :bits] = flat[: count * bits].reshape(count, bits)
        words[first : first + count] = np.packbits(columns, axis=1, bitorder="little").view("<u8")[
            :, 0
        ]
    return words


def _low(bits: int) -> np.uint64:
    """The number whose lowest `bits` bits are set."""
    low: np.uint64 = np.uint64((1 << integer("bits", bits, at_least=1, below=65)) - 1)
    return low
