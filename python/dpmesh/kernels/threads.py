"""Number of threads of all kernels. Results do not depend on it."""

from __future__ import annotations

import os

from dpmesh import _core
from dpmesh._validate import fail, integer


def set_threads(count: int) -> None:
    """Set the number of threads of all kernels.

    By default kernels use all cores, or as many threads as the environment variable
    ``DPMESH_NUM_THREADS`` states.

    Parameters
    ----------
    count
        Number of threads, at least 1.

    Raises
    ------
    ValueError
        If `count` is not an integer of at least 1 and below 2**32.
    """
    _core.set_threads(integer("count", count, at_least=1, below=2**32))


def get_threads() -> int:
    """Return the number of threads that kernels use.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.kernels.get_threads() >= 1
    True
    """
    return _core.get_threads()


def _check_environment() -> None:
    """Raise a ValueError if ``DPMESH_NUM_THREADS`` is invalid; it may be empty."""
    text = os.environ.get("DPMESH_NUM_THREADS", "")
    if not text:
        return
    if not text.isdecimal() or int(text) < 1:
        fail("DPMESH_NUM_THREADS", "an integer of at least 1, or nothing", repr(text))


_check_environment()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_core.before_fork,
        after_in_parent=lambda: _core.after_fork(False),
        after_in_child=lambda: _core.after_fork(True),
    )
