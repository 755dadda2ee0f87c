"""Masks modulo a power of 2 that cancel in the sum over all sites, and how masked vectors travel.

Two sites that share a secret draw the same words from it: one adds them, the other subtracts them.
To everybody else a masked vector is a sequence of uniform integers below ``2**bits``, unless the
vectors of *all* sites of a cohort are added up.

The words of a secret are the key stream of AES-256 in counter mode under it, with the nonce
(`MASK_PURPOSE`, 0, 0) of `dpmesh.keys`: 32 bits each for up to 32 bits, otherwise 64,
little-endian, of which the lowest `bits` count. A secret serves a single sum. A message has `bits`
bits for each number, from the lowest bit of the first byte upwards, padded with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._arrays import integers
from dpmesh._validate import fail, instance, integer

MASK_PURPOSE = 0x4D41534B
"""The purpose of the streams of masks."""


def mask_and_pack(
    values: npt.ArrayLike, bits: int, *, add: Sequence[bytes] = (), subtract: Sequence[bytes] = ()
) -> bytes:
    """Return integers plus masks, modulo ``2**bits``, packed into `bits` bits each.

    Masks are added and packed block by block; none is ever stored.

    Parameters
    ----------
    values
        Shape (dim,), integers.
    bits
        From 1 to 64.
    add, subtract
        The secrets, 32 bytes each, whose words are added or subtracted.

    Raises
    ------
    ValueError
        If an argument does not fit.

    Examples
    --------
    >>> import dpmesh as dm
    >>> secret = bytes(32)
    >>> sent = [dm.kernels.mask_and_pack([1, 2], 16, add=[secret])]
    >>> sent.append(dm.kernels.mask_and_pack([3, 4], 16, subtract=[secret]))
    >>> dm.kernels.unpack_sum(sent, 2, 16)
    array([4, 6])
    """
    pairs = [(_secret(s), False) for s in add] + [(_secret(s), True) for s in subtract]
    return _core.mask_and_pack(integers("values", values, ndim=1), pairs, _bits(bits))


def unpack_sum(messages: Sequence[bytes], dim: int, bits: int) -> npt.NDArray[np.int64]:
    """Return the sum of masked vectors modulo ``2**bits``, in [-2**(bits - 1), 2**(bits - 1)).

    Parameters
    ----------
    messages
        What `mask_and_pack` returned at each site.
    dim
        Numbers of each vector.
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
    """A secret of 32 bytes; the error does not show another one."""
    if not isinstance(secret, bytes) or len(secret) != 32:
        fail("secret", "32 bytes", f"another {type(secret).__name__}")
    return secret


def _bits(bits: int) -> int:
    return integer("bits", bits, at_least=1, below=65)
