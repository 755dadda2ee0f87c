"""Who stands at the door: a keeper of the budget, an audit that watches, a carrier.

A keeper is asked before a release gets its noise, and may refuse it. A watcher sees it before and
after its noise. A carrier gets to know how it is packed. Each holds for the `with` block of its own
thread or task only, so that no other run is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from dpmesh.privacy.types import Sensitive

if TYPE_CHECKING:
    from dpmesh.privacy.compression import Compressed
    from dpmesh.privacy.events import Release
    from dpmesh.privacy.mechanisms import Emission, Mechanism


T = TypeVar("T")


class Passage(NamedTuple):
    """One release: the mechanism, the values as they met its noise (clipped), what came out."""

    mechanism: Mechanism
    inside: Sensitive
    emission: Emission


Watcher = Callable[[Passage], "Emission"]
Keeper = Callable[["Release"], None]
Carrier = Callable[["Compressed"], None]

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_keeper: ContextVar[Keeper | None] = ContextVar("keeper", default=None)
_carrier: ContextVar[Carrier | None] = ContextVar("carrier", default=None)


@contextmanager
def _standing(place: ContextVar[T | None], guard: T) -> Iterator[None]:
    token = place.set(guard)
    try:
        yield
    finally:
        place.reset(token)


def kept_by(keeper: Keeper) -> AbstractContextManager[None]:
    """Ask `keeper` before every release within the block; an exception keeps it inside."""
    return _standing(_keeper, keeper)


def ask_keeper(release: Release) -> None:
    """Ask whether a release may leave, if there is a keeper."""
    keeper = _keeper.get()
    if keeper is not None:
        keeper(release)


def packed_for(carrier: Carrier) -> AbstractContextManager[None]:
    """Show `carrier` how each release within the block is compressed."""
    return _standing(_carrier, carrier)


def show_carrier(compressed: Compressed) -> None:
    """Show how a release is compressed, if there is somebody to carry it."""
    carrier = _carrier.get()
    if carrier is not None:
        carrier(compressed)


def watched_by(watcher: Watcher) -> AbstractContextManager[None]:
    """Show every release within the block to `watcher`; what it returns goes out instead.

    For audits: the watcher sees values that must not leave their node, and decides what does.
    """
    return _standing(_watcher, watcher)


def let_out(passage: Passage) -> Emission:
    """Return what goes out: the emission, or what the watcher returns."""
    watcher = _watcher.get()
    return passage.emission if watcher is None else watcher(passage)
