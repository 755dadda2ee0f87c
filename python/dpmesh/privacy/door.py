"""Who stands at the door: a keeper of the budget, a watching audit, a carrier, a list of draws.

A keeper is asked before a release gets its noise, and may refuse it. A watcher sees it before and
after its noise. A carrier gets to know how it is packed. The list of draws refuses noise that an
earlier release of the run has had. Each holds for the `with` block of its own thread or task only,
so that no other run is touched; and for tasks that start there, and threads where Python hands the
context on to them, as free-threaded CPython does from 3.14 on. So keepers are asked by several
threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpmesh._validate import fail
from dpmesh.keys import Purpose, Stream
from dpmesh.privacy.types import Sensitive

if TYPE_CHECKING:
    from dpmesh.privacy.compression import Compressed
    from dpmesh.privacy.events import Release
    from dpmesh.privacy.mechanisms import Emission, Mechanism


class Passage(NamedTuple):
    """One release: the mechanism, the values as they met its noise (clipped), what came out."""

    mechanism: Mechanism
    inside: Sensitive
    emission: Emission


Watcher = Callable[[Passage], "Emission"]
Keeper = Callable[["Release", int], None]
"""Gets a release, and the purpose of the stream of its noise."""
Carrier = Callable[["Compressed"], None]


class Door(NamedTuple):
    """Who stands there."""

    keeper: Keeper | None = None
    watcher: Watcher | None = None
    carrier: Carrier | None = None
    draws: Draws | None = None


_NOBODY = Door()
DOOR: ContextVar[Door] = ContextVar("door", default=_NOBODY)
"""That of this thread or task."""


def kept_by(keeper: Keeper) -> AbstractContextManager[None]:
    """Ask `keeper` before every release within the block; an exception keeps it inside."""
    return _standing(keeper=keeper)


def packed_for(carrier: Carrier) -> AbstractContextManager[None]:
    """Show `carrier` how each release within the block is compressed."""
    return _standing(carrier=carrier)


def watched_by(watcher: Watcher) -> AbstractContextManager[None]:
    """Show every release within the block to `watcher`; what it returns goes out instead.

    For audits: the watcher sees values that must not leave their node, and decides what does.
    """
    return _standing(watcher=watcher)


@contextmanager
def drawn_once(first_round: int = 0) -> Iterator[None]:
    """Refuse that two releases within the block, which is one run, have the same noise.

    The difference of what they let out would have none.

    Parameters
    ----------
    first_round
        Rounds before it are over.
    """
    with _standing(draws=Draws(first_round)):  # a new list each time, also as a decorator
        yield


@contextmanager
def _standing(**who: Any) -> Iterator[None]:
    token = DOOR.set(DOOR.get()._replace(**who))
    try:
        yield
    finally:
        DOOR.reset(token)


class Draws:
    """What the releases of a round have drawn; rounds before it are over.

    Parameters
    ----------
    first_round
        The first that is not.
    """

    def __init__(self, first_round: int) -> None:
        self._round = first_round
        self._one_at_a_time = Lock()
        self._drawn: dict[int, _Draw | set[tuple[float, float]]] = {}

    def add(
        self,
        argument: str,
        stream: Stream,
        shape: tuple[int, ...],
        nodes: tuple[int, ...] | None = None,
    ) -> None:
        """Write down that rows of this shape draw from a stream.

        Raises
        ------
        ValueError
            If the round is over, or one of the rows has drawn the same before; it calls the stream
            `argument`.
        """
        purpose, t = stream.purpose, stream.round
        with self._one_at_a_time:
            if t != self._round:
                if t < self._round:
                    fail(argument, f"one of round {self._round} or later", f"one of round {t}")
                self._round = t
                self._drawn.clear()
            before = self._drawn.get(purpose)
            if before is None:  # as a rule: nothing to compare
                self._drawn[purpose] = stream, shape, nodes
                return
            if not isinstance(before, set):
                before = self._drawn[purpose] = _marks(*before)
            now = _marks(stream, shape, nodes)
            if not before.isdisjoint(now):
                wanted = f"one for each release, such as key.stream(1000, {t}) for a second one"
                name = next((f"Purpose.{own.name}" for own in Purpose if own == purpose), purpose)
                fail(argument, wanted, f"that of {name} in round {t} again")
            before |= now


_Draw = tuple[Stream, tuple[int, ...], tuple[int, ...] | None]


def _marks(
    stream: Stream, shape: tuple[int, ...], nodes: tuple[int, ...] | None
) -> set[tuple[float, float]]:
    """Return what tells apart what the rows draw."""
    own = stream if nodes is None else stream.for_nodes(np.array(nodes, np.uint32))
    return own.marks(shape[0] if len(shape) > 1 else 1)
