"""Masks modulo a power of 2 that cancel in the sum over all sites, and the format of messages.

Two sites that share a secret draw the same words from it: one adds them, the other subtracts them.
To any other party a masked vector is a sequence of uniform integers below ``2**bits``, unless the
vectors of *all* sites of a cohort are added up.

The words of a secret are the key stream of AES-256 in counter mode under it, with the nonce
(`MASK_PURPOSE`, 0, 0) of `dpmesh.keys`: 32 bits each for up to 32 bits, otherwise 64,
little-endian, of which the lowest `bits` count. A secret serves a single sum. A message has `bits`
bits for each number, from the lowest bit of the first byte upwards, padded with zeros.

A tag shows those who share a secret whether a total is the sum of the parties' vectors. A secret
stream gives random weights r_0, .., r_d modulo the prime 2^61 - 1. The tag of integers v is ``r_0 +
sum_j r_j v_j``. The tags of m parties add up to ``m r_0 + sum_j r_j s_j`` of their sum s; whoever
does not know the weights finds that value for another total with a probability of about 2^-61 (a
universal hash, Carter and Wegman, 1981).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import integers
from dpmesh._ragged import Indices
from dpmesh._validate import fail, instance, integer

if TYPE_CHECKING:
    from dpmesh.keys import Stream

MASK_PURPOSE = 0x4D41534B
"""The purpose of the streams of masks."""


def mask_and_pack(
    values: npt.ArrayLike, bits: int, *, add: Sequence[bytes] = (), subtract: Sequence[bytes] = ()
) -> bytes:
    """Mask a vector for secure aggregation: add pseudorandom masks modulo ``2**bits``, and pack.

    Two sites expand a shared secret to the same mask. One site adds the mask, and the other site
    subtracts it, so that the masks cancel in the sum of all messages, see `unpack_sum`. Use a
    secret for one sum only.

    Parameters
    ----------
    values
        Shape (dim,), integers.
    bits
        From 1 to 64.
    add, subtract
        Shared secrets, 32 bytes each, whose masks are added or subtracted.

    Raises
    ------
    ValueError
        If an argument has a wrong type or shape, or is out of its range.

    Examples
    --------
    >>> import dpmesh as dm
    >>> secret = bytes(32)
    >>> sent = [dm.kernels.mask_and_pack([1, 2], 16, add=[secret])]
    >>> sent.append(dm.kernels.mask_and_pack([3, 4], 16, subtract=[secret]))
    >>> dm.kernels.unpack_sum(sent, 2, 16)
    array([4, 6])
    """
    signed_secrets = [(_secret(secret), False) for secret in add]
    signed_secrets += [(_secret(secret), True) for secret in subtract]
    numbers = integers("values", values, ndim=1)
    return _core.mask_and_pack(numbers, signed_secrets, _bits(bits))


def unpack_sum(messages: Sequence[bytes], dim: int, bits: int) -> Indices:
    """Add up masked messages for secure aggregation: the sum of the vectors modulo ``2**bits``.

    The elements of the result are in [-2**(bits - 1), 2**(bits - 1)). The masks cancel if all
    messages of a sum are present.

    Parameters
    ----------
    messages
        The message of `mask_and_pack` from each site.
    dim
        Length of each vector.
    bits
        From 1 to 64.

    Raises
    ------
    ValueError
        If a message has another length than `dim` numbers of `bits` bits, or its padding is not
        zero.

    Examples
    --------
    >>> import dpmesh as dm
    >>> sent = [dm.kernels.mask_and_pack(row, 16) for row in ([1, -2], [3, 4])]
    >>> dm.kernels.unpack_sum(sent, 2, 16)
    array([4, 2])
    """
    for message in messages:
        instance("message", message, "bytes", bytes)
    total = np.empty(integer("dim", dim, at_least=1), np.int64)
    _core.unpack_sum(list(messages), _bits(bits), total)
    return total


def _secret(secret: bytes) -> bytes:
    """Return a secret of 32 bytes; the error never shows a secret."""
    if not isinstance(secret, bytes) or len(secret) != 32:
        fail("secret", "32 bytes", f"another {type(secret).__name__}")
    return secret


def _bits(bits: int) -> int:
    return integer("bits", bits, at_least=1, below=65)


PRIME = 2**61 - 1
LARGEST = 2**60
"""Integers of a tagged vector stay below it."""

Words = npt.NDArray[np.uint64]

# Words of numpy, made once, as each takes longer than a shift of a short vector.
_SHIFT_1 = np.uint64(1)
_SHIFT_30 = np.uint64(30)
_SHIFT_31 = np.uint64(31)
_SHIFT_32 = np.uint64(32)
_SHIFT_61 = np.uint64(61)
_LOW_31_BITS = np.uint64(2**31 - 1)
_LOW_30_BITS = np.uint64(2**30 - 1)
_LOW_32_BITS = np.uint64(2**32 - 1)
_MODULUS = np.uint64(PRIME)


def tag(values: npt.ArrayLike, stream: Stream, parties: int = 1) -> int:
    """Compute a tag that authenticates a vector of integers as the sum of the parties' vectors.

    With secret random weights r_0, .., r_d the tag of the sum v of m vectors is
    ``m r_0 + sum_j r_j v_j`` modulo 2^61 - 1. It is the sum of the tags of the m vectors. Whoever
    does not know the weights finds the tag of another vector with a probability of about 2^-61
    (universal hashing, Carter and Wegman 1981).

    Parameters
    ----------
    values
        Integers of absolute value below 2^60, shape (dim,).
    stream
        Source of the secret random weights of the elements. Use a stream for one sum only.
    parties
        Number m of vectors that `values` is the sum of; 1 for the vector of one party.

    Returns
    -------
    The tag, from 0 to 2^61 - 2.

    Raises
    ------
    ValueError
        If an absolute value is 2^60 or larger.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.tag([1, 2, 3], stream) < 2**61
    True
    """
    numbers = integers("values", values, ndim=1).astype(np.int64, copy=False)
    if len(numbers):
        largest = max(-int(numbers.min()), int(numbers.max()))
        if largest >= LARGEST:
            fail("values", "integers below 2**60", "larger ones")
    weights = _random_weights(stream, len(numbers) + 1)
    residues = np.mod(numbers, PRIME).astype(np.uint64)
    products = _product(weights[1:], residues)
    return (parties * int(weights[0]) + _exact_sum(products)) % PRIME


def _random_weights(stream: Stream, count: int) -> Words:
    """Return numbers modulo the prime, uniform up to 2^-61."""
    words = np.empty(2 * count, np.uint32)
    stream.words(0, words)
    weights: Words = words.view(np.uint64) % _MODULUS
    return weights


def _product(a: Words, b: Words) -> Words:
    """Return products modulo the prime, up to a multiple of it, below 2^61 + 4.

    Each factor below 2^61 is split into a high part of 30 and a low part of 31 bits.
    """
    a_high = a >> _SHIFT_31
    a_low = a & _LOW_31_BITS
    b_high = b >> _SHIFT_31
    b_low = b & _LOW_31_BITS
    middle = _folded(a_high * b_low + a_low * b_high)  # times 2^31
    middle_high = middle >> _SHIFT_30
    middle_low = (middle & _LOW_30_BITS) << _SHIFT_31
    high = (a_high * b_high) << _SHIFT_1  # times 2^62, which is 2 modulo the prime
    return _folded(_folded(a_low * b_low) + _folded(high) + middle_high + middle_low)


def _folded(x: Words) -> Words:
    """Return the same numbers modulo the prime, as 2^61 is 1, below 2^61 + 7."""
    folded: Words = (x & _MODULUS) + (x >> _SHIFT_61)
    return folded


def _exact_sum(x: Words) -> int:
    """Return the sum as a Python integer: that of the high and the low halves of the words."""
    high_sum = (x >> _SHIFT_32).sum(dtype=np.uint64)
    low_sum = (x & _LOW_32_BITS).sum(dtype=np.uint64)
    return (int(high_sum) << 32) + int(low_sum)
