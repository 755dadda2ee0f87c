"""Return of freed memory to the system."""

from __future__ import annotations

import ctypes


def return_freed_memory() -> None:
    """Return memory that was freed in many small pieces to the system, where the C library can.

    glibc keeps such memory for later allocations. After a large table was read, it is as large as
    the table. Other C libraries return it by themselves, or have no function for it.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)
