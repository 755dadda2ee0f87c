"""Who stands at the door: an audit sees each release there, before and after its noise.

Nobody does in an ordinary run. A watcher holds for the `with` block of its own thread or task only,
so that no other run is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from dpmesh.privacy.types import Sensitive

if TYPE_CHECKING:
    from dpmesh.privacy.mechanisms import Emission, Mechanism


class Passage(NamedTuple):
    """One release: the mechanism, the values as they met its noise (clipped), what came out."""

    mechanism: Mechanism
    inside: Sensitive
    emission: Emission


Watcher = Callable[[Passage], "Emission"]

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Show every release within the block to `watcher`; what it returns goes out instead.

    For audits: the watcher sees values that must not leave their node, and decides what does.
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def let_out(passage: Passage) -> Emission:
    """Return what goes out: the emission, or what the watcher returns."""
    watcher = _watcher.get()
    return passage.emission if watcher is None else watcher(passage)
