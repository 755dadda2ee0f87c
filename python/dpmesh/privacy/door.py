"""Who stands at the door: a budget's keeper, an audit's watcher, a carrier, a list of draws.

A keeper is asked before a release gets its noise, and may refuse it. A watcher sees the values
before and after their noise. A carrier learns how they are packed. The list of draws refuses noise
that an earlier release of the run has had, and knows which values must not travel without it. Each
applies only to the `with` block of its own thread or task, so that other runs are unaffected, and
to tasks started there, and to threads if Python hands the context on to them, as free-threaded
CPython does from 3.14 on. So several threads may ask a keeper at once.
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
from dpmesh.privacy.types import Floats, Released, Sensitive

if TYPE_CHECKING:
    from dpmesh.privacy.compression import Compressed
    from dpmesh.privacy.events import Release
    from dpmesh.privacy.mechanisms import Emission, Mechanism


class Passage(NamedTuple):
    """One release: the mechanism, (clipped) values before and after its noise, what came out."""

    mechanism: Mechanism
    inside: Sensitive
    noisy: Released
    emission: Emission


Watcher = Callable[[Passage], "Emission"]
Keeper = Callable[["Release", int], None]
"""Gets a release, and the purpose of its noise's stream."""
Carrier = Callable[["Compressed"], None]


class Door(NamedTuple):
    """Who stands there."""

    keeper: Keeper | None = None
    watcher: Watcher | None = None
    carrier: Carrier | None = None
    draws: Draws | None = None

    def draw(self, argument: str, stream: Stream, round: int, shape: tuple[int, ...]) -> None:
        """Let rows of this shape draw from a stream, if it is of this round and has not served.

        Raises
        ------
        ValueError
            If not. The error calls the stream `argument`.
        """
        if stream.round != round:
            wanted = f"one of round {round}, as key.stream(purpose, {round}) gives"
            fail(argument, wanted, f"one of round {stream.round}")
        if self.draws is not None:
            self.draws.add(argument, stream, shape)


_NOBODY = Door()
DOOR: ContextVar[Door] = ContextVar("door", default=_NOBODY)
"""The door of this thread or task."""


def door_of(round: int) -> Door:
    """Return the door of this thread or task; outside of a run, with the draws of one release."""
    door = DOOR.get()
    return door if door.draws is not None else door._replace(draws=Draws(round, seeded=True))


def kept_by(keeper: Keeper) -> AbstractContextManager[None]:
    """Ask `keeper` before every release within the block; its exception prevents the release."""
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
def drawn_once(first_round: int = 0, *, seeded: bool = True) -> Iterator[None]:
    """Refuse a second release with the same noise within the block, which is one run.

    The difference of the two would have none.

    Parameters
    ----------
    first_round
        Rounds before it are over.
    seeded
        Whether noise may come from a seeded key: not if the report is to say that nobody knows it.
    """
    with _standing(draws=Draws(first_round, seeded)):  # a new list each time, also as a decorator
        yield


def check_released(argument: str, values: Floats) -> None:
    """Fail if values share memory with those to which a release of this round added its noise.

    Raises
    ------
    ValueError
        Which calls the values `argument`.
    """
    draws = DOOR.get().draws
    if draws is not None and draws.hides(values):
        fail(argument, "the values that a release returned", "those that it was given")


def share_memory(some: Floats, others: Floats) -> bool:
    """Whether arrays have a number in common; columns beside each other have none."""
    both = np.asarray(some), np.asarray(others)
    return np.may_share_memory(*both, max_work=1)  # type: ignore[arg-type]  # takes any number


def forget_hidden() -> None:
    """Let go of what the releases of a round were given."""
    draws = DOOR.get().draws
    if draws is not None:
        draws.forget()


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
        The first round that is not over.
    seeded
        Whether noise may be of a seeded key.
    """

    def __init__(self, first_round: int, seeded: bool) -> None:
        self._round, self._seeded = first_round, seeded
        self._one_at_a_time = Lock()
        self._drawn: dict[int, _Draw | set[tuple[float, float]]] = {}
        self._hidden: dict[int, Floats] = {}
        """By purpose, the last rows to which noise is added in this round."""

    def hide(self, stream: Stream, values: Floats) -> None:
        """Remember that noise from this stream is to hide these values.

        Raises
        ------
        ValueError
            If the stream is of a seeded key and the run's is not.
        """
        if stream.is_seeded and not self._seeded:
            fail("stream", "one of the run's key", "one of a seeded key")
        self._hidden[stream.purpose] = values

    def hides(self, values: Floats) -> bool:
        """Whether values share memory with some that are hidden."""
        return any(share_memory(values, rows) for rows in [*self._hidden.values()])

    def forget(self) -> None:
        """Let go of what is hidden."""
        self._hidden.clear()

    def add(self, argument: str, stream: Stream, shape: tuple[int, ...]) -> None:
        """Record that rows of this shape draw from a stream.

        Raises
        ------
        ValueError
            If the round is over, or one of the rows has drawn the same before. The error calls the
            stream `argument`.
        """
        purpose, t = stream.purpose, stream.round
        with self._one_at_a_time:
            if t != self._round:
                if t < self._round:
                    fail(argument, f"one of round {self._round} or later", f"one of round {t}")
                self._round = t
                self._drawn.clear()
                self.forget()
            before = self._drawn.get(purpose)
            if before is None:  # as a rule: nothing to compare
                self._drawn[purpose] = stream, shape
                return
            if not isinstance(before, set):
                before = self._drawn[purpose] = _marks(*before)
            now = _marks(stream, shape)
            if not before.isdisjoint(now):
                wanted = f"one for each release, such as key.stream(1000, {t}) for a second one"
                name = next((f"Purpose.{own.name}" for own in Purpose if own == purpose), purpose)
                fail(argument, wanted, f"that of {name} in round {t} again")
            before |= now


_Draw = tuple[Stream, tuple[int, ...]]


def _marks(stream: Stream, shape: tuple[int, ...]) -> set[tuple[float, float]]:
    """Return a mark for each row; equal marks mean equal draws."""
    return stream.marks(shape[0] if len(shape) > 1 else 1)
