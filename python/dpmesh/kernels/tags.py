"""Tags of sums: whether a total is the sum of what parties sent, for those who share a secret.

A secret stream gives random weights r_0, .., r_d modulo the prime 2^61 - 1. The tag of integers v
is ``r_0 + sum_j r_j v_j``. The tags of m parties add up to ``m r_0 + sum_j r_j s_j`` of their sum
s; whoever does not know the weights finds that value for another total with a probability of about
2^-61 (a universal hash, Carter and Wegman, 1981).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import integers
from dpmesh._validate import fail

if TYPE_CHECKING:
    from dpmesh.keys import Stream

PRIME = 2**61 - 1
LARGEST = 2**60
"""Integers of a tagged vector stay below it."""

Words = npt.NDArray[np.uint64]

_LOW = np.uint64(2**31 - 1)
_HALF = np.uint64(31)
_TOP = np.uint64(61)
_P = np.uint64(PRIME)


def tag(values: npt.ArrayLike, stream: Stream, parties: int = 1) -> int:
    """Return the tag of integers, from 0 to 2^61 - 2.

    Parameters
    ----------
    values
        Shape (dim,), below 2^60 in size.
    stream
        Where the weights come from, for one sum alone.
    parties
        How many vectors they are the sum of, m.

    Raises
    ------
    ValueError
        If a number is larger.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(1).stream(1000)
    >>> dm.kernels.tag([1, 2, 3], stream) < 2**61
    True
    """
    numbers = integers("values", values, ndim=1).astype(np.int64, copy=False)
    if len(numbers) and max(-int(numbers.min()), int(numbers.max())) >= LARGEST:
        fail("values", "integers below 2**60", "larger ones")
    weights = _weights(stream, len(numbers) + 1)
    products = _times(weights[1:], np.mod(numbers, PRIME).astype(np.uint64))
    return (parties * int(weights[0]) + _total(products)) % PRIME


def _weights(stream: Stream, count: int) -> Words:
    """Return numbers modulo the prime, uniform up to 2^-61."""
    words = np.empty(2 * count, np.uint32)
    stream.words(0, words)
    weights: Words = words.view(np.uint64) % _P
    return weights


def _times(a: Words, b: Words) -> Words:
    """Return products modulo the prime, up to a multiple of it, below 2^62 + 4."""
    a_high, a_low, b_high, b_low = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    middle = _folded(a_high * b_low + a_low * b_high)  # times 2^31
    shifted = (middle >> np.uint64(30)) + ((middle & np.uint64(2**30 - 1)) << _HALF)
    high = (a_high * b_high) << np.uint64(1)  # times 2^62, which is 2
    return _folded(_folded(a_low * b_low) + _folded(high) + shifted)


def _folded(x: Words) -> Words:
    """Return the same numbers modulo the prime, as 2^61 is 1."""
    smaller: Words = (x & _P) + (x >> _TOP)
    return smaller


def _total(x: Words) -> int:
    """Return the sum, exactly."""
    high, low = x >> np.uint64(32), x & np.uint64(2**32 - 1)
    return (int(high.sum(dtype=np.uint64)) << 32) + int(low.sum(dtype=np.uint64))
