"""The memory of an array, as other libraries take it."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt


def unguarded(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return an array of the same memory that can be written to, whether or not `array` can.

    PyTorch does so: it warns at most.
    """
    memory = (ctypes.c_byte * array.nbytes).from_address(array.ctypes.data)
    return np.frombuffer(memory, array.dtype).reshape(array.shape)
