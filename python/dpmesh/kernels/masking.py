"""Masks for secure aggregation, which cancel in the sum over all sites, and tags of sums.

Two sites that share a secret expand it to the same pseudorandom *mask*. One site adds the mask to
its vector modulo ``2**bits``, and the other subtracts it. To any other party a masked vector looks
like uniform integers below ``2**bits``. Only the sum of the masked vectors of *all* sites has no
masks.

The mask of a secret is the key stream of AES-256 in counter mode under the secret, with the nonce
(`MASK_PURPOSE`, 0, 0) of `dpmesh.keys`. It has one little-endian word for each number: 32 bits for
`bits` up to 32, else 64 bits, of which the lowest `bits` are used. Use a secret for one sum only. A
message has `bits` bits for each number, from the lowest bit of the first byte upwards, padded with
zeros.

A *tag* lets parties that share a secret verify that a total is the sum of their vectors. A stream
of the secret gives random weights r_0, .., r_d modulo the prime 2^61 - 1. The tag of a vector v of
integers is ``r_0 + sum_j r_j v_j``. The tags of m parties add up to ``m r_0 + sum_j r_j s_j`` for
their sum s. A party that does not know the weights finds this value for another total with a
probability of about 2^-61 (universal hashing, Carter and Wegman, 1981).
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
"""Purpose of the streams of masks: see `dpmesh.keys.Purpose`."""


def mask_and_pack(
    values: npt.ArrayLike, bits: int, *, add: Sequence[bytes] = (), subtract: Sequence[bytes] = ()
) -> bytes:
    """Mask a vector for secure aggregation: add pseudorandom masks modulo ``2**bits``, and pack.

    Two sites expand a shared secret to the same mask. One site adds the mask, and the other site
    subtracts it, so that the masks cancel in the sum of all messages: see `unpack_sum`. Use a
    secret for one sum only.

    Parameters
    ----------
    values
        Vector of integers, shape (dim,).
    bits
        Number of bits of each masked integer, from 1 to 64.
    add, subtract
        Shared secrets whose masks are added or subtracted, 32 bytes each.

    Returns
    -------
    The message: the masked integers, packed.

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
    """Add up masked messages for secure aggregation: return the sum of vectors modulo ``2**bits``.

    The masks cancel only if the messages of all sites are present.

    Parameters
    ----------
    messages
        Message of each site, from `mask_and_pack`.
    dim
        Length of each vector.
    bits
        Number of bits of each masked integer, from 1 to 64.

    Returns
    -------
    Shape (dim,), int64, with numbers in [-2**(bits - 1), 2**(bits - 1)).

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
    """Return a number of bits, after a check that it is from 1 to 64."""
    return integer("bits", bits, at_least=1, below=65)


PRIME = 2**61 - 1
"""Modulus of tags, a Mersenne prime."""
LARGEST = 2**60
"""Bound on the absolute value of a tagged vector's integers, which stay below it."""

Words = npt.NDArray[np.uint64]

# Constants as numpy scalars: to make one takes longer than to shift a short vector.
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
    """Return `count` random weights modulo the prime, uniform up to about 2^-61."""
    words = np.empty(2 * count, np.uint32)
    stream.words(0, words)
    weights: Words = words.view(np.uint64) % _MODULUS
    return weights


def _product(a: Words, b: Words) -> Words:
    """Return numbers below 2^61 + 4 that equal the products a b modulo the prime.

    Each factor, below 2^61, is split into a high part of 30 and a low part of 31 bits.
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
    """Return numbers below 2^61 + 7 that equal x modulo the prime, where 2^61 is 1."""
    folded: Words = (x & _MODULUS) + (x >> _SHIFT_61)
    return folded


def _exact_sum(x: Words) -> int:
    """Return the exact sum as a Python integer, from the sums of high and low halves of words."""
    high_sum = (x >> _SHIFT_32).sum(dtype=np.uint64)
    low_sum = (x & _LOW_32_BITS).sum(dtype=np.uint64)
    return (int(high_sum) << 32) + int(low_sum)
