"""Memory of freed arrays, kept for the next ones.

A kernel's result is a new array. New memory comes from the operating system page by page, cleared,
and goes back as soon as the array is freed: at megabytes that takes longer than a kernel. So the
next result of the same size reuses the memory of one that is no longer referenced.
"""

from __future__ import annotations

from collections import deque
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail

SMALLEST, LARGEST = 2**17, 2**24
"""Bytes of arrays whose memory is kept."""

MOST = 8
"""How many are kept; the least recently used go first."""

LINE = 64
"""Alignment of arrays in bytes: a cache line, which is also the longest vector."""


class _Memory:
    """So many bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._bytes = np.empty(size + LINE, np.uint8)
        address = self._bytes.ctypes.data
        self.start = address + -address % LINE


class _Loan:
    """The object that an array and its views reference as long as they use the memory."""

    def __init__(self, memory: _Memory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._memory = memory
        self._kept = _kept if memory.size <= LARGEST else None  # a module's names end before arrays
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (memory.start, False),
        }

    def __del__(self) -> None:
        if self._kept is not None:
            self._kept.append(self._memory)


_kept: deque[_Memory] = deque(maxlen=MOST)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a new array of undefined values, as `numpy.empty` does; if large, at a cache line."""
    size = prod(shape) * dtype.itemsize
    if size >= 2**63:
        fail("shape", "an array of less than 2**63 bytes", shape)
    if size < SMALLEST:
        return np.empty(shape, dtype)
    loan: Any = _Loan(_take(size), shape, dtype)
    return np.asarray(loan)


# Other threads, and arrays freed at any time, change `_kept`: each use of it is one atomic
# operation. Without an interpreter lock iteration is not atomic, but a copy is.


def _take(size: int) -> _Memory:
    for memory in reversed(_kept.copy()):
        if memory.size == size:
            try:
                _kept.remove(memory)
            except ValueError:  # another thread has taken it
                continue
            return memory
    return _Memory(size)
