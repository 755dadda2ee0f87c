"""A dry run of an algorithm's rounds on made-up records: which requests each round yields.

An engine that carries messages between machines must know before a round how often its messages
travel, and what it may be charged for. Both are read from the round itself: it is run on records
that are all zero, without noise, a network or a ledger. What a round yields may differ from round
to round, but only by the number of the round and by public sizes: numbers of nodes and of records.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import GeneratorType
from typing import Any

import numpy as np

from dpmesh._privacy_types import Released
from dpmesh._validate import fail
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.messages import Message, Relay
from dpmesh.keys import Key
from dpmesh.privacy.releases import Release
from dpmesh.problems import Problem

MOST_REQUESTS = 2**16
"""Requests of one round after which it counts as one that never ends."""


@dataclass(frozen=True, kw_only=True)
class RequestPattern:
    """A request of a round, as far as public numbers determine it.

    Parameters
    ----------
    releases
        What it releases, of which nodes; nothing for a `Relay`.
    travels
        Whether it is carried to others.
    sender
        The only node that sends, where messages travel by token.
    compresses
        Whether it is compressed.
    unmixed
        Whether everybody receives the rows of all nodes as they are.
    row_length
        How many numbers a row has, which does not count where patterns are compared: made-up
        records may have fewer columns. None for a `Relay`, or if nothing is released.
    """

    releases: tuple[Release, ...]
    travels: bool
    sender: int | None = None
    compresses: bool = False
    unmixed: bool = False
    row_length: int | None = field(default=None, compare=False)

    @classmethod
    def of(cls, request: object) -> RequestPattern:
        """Return the pattern of what a round has yielded.

        Raises
        ------
        ValueError
            If that is neither a `Message` nor a `Relay`.
        """
        if isinstance(request, Relay):
            return cls(releases=(), travels=True)
        if not isinstance(request, Message):
            fail("algorithm", "rounds that yield Message or Relay", reprlib.repr(request))
        release = request.release
        return cls(
            releases=(release,) if isinstance(release, Release) else tuple(release),
            travels=request.travels,
            sender=request.sender,
            compresses=request.compressor is not None,
            unmixed=request.unmixed,
            row_length=None if request.values is None else request.values.shape[-1],
        )

    def __str__(self) -> str:
        if not self.releases:
            return "a Relay"
        names = ", ".join(str(release.mechanism) for release in self.releases)
        carried = "" if self.travels else " that does not travel"
        sender = "" if self.sender is None else f" of node {self.sender}"
        return f"a Message{sender}{carried}, released by {names}"


RoundPattern = tuple[RequestPattern, ...]
"""What a round yields, in its order."""


def exchanges_of(pattern: RoundPattern) -> int:
    """Return how often messages travel in a round of this pattern."""
    return sum(request.travels for request in pattern)


def without_round(pattern: RoundPattern) -> RoundPattern:
    """Return a pattern that compares equal to the same one in another round."""
    return tuple(
        replace(
            request,
            releases=tuple(replace(release, round=0, batch=None) for release in request.releases),
        )
        for request in pattern
    )


class DryRun:
    """Plays rounds of an algorithm on made-up records, from public numbers alone.

    By token each round is played after the one before it, as turns depend on earlier ones. Other
    rounds are played by themselves, each from the state after round 0: a million rounds need not be
    played to know the last one.

    Parameters
    ----------
    algorithm
        The algorithm.
    problem
        One of made-up records, which are nobody's.
    key
        Public.
    """

    def __init__(self, algorithm: AnyAlgorithm, problem: Problem, key: Key) -> None:
        self._algorithm, self._problem, self._key = algorithm, problem, key
        self._is_in_turns = algorithm.travels == "token"
        self._states: list[Any] = [algorithm.init(problem, key)]
        """The state before round 0, and after it; by token only that before the next round."""
        self._played = 0
        """By token: how many rounds were played."""
        self._pattern_of = lru_cache(maxsize=256)(self._pattern)

    def pattern(self, t: int) -> RoundPattern:
        """Return what round t yields.

        Raises
        ------
        ValueError
            If the round fails on made-up records, or yields what no engine can carry. By token:
            also if it was played before, and forgotten.
        """
        return self._pattern_of(t)

    def _pattern(self, t: int) -> RoundPattern:
        if self._is_in_turns:
            if t < self._played:
                fail("round", f"at least {self._played}: turns are played in their order", t)
            while self._played < t:
                self._take_turn()
            return self._take_turn()
        if t > 0 and len(self._states) == 1:
            self._states.append(self._play(0, self._states[0])[1])
        return self._play(t, self._states[min(t, 1)])[0]

    def _take_turn(self) -> RoundPattern:
        pattern, self._states[0] = self._play(self._played, self._states[0])
        self._played += 1
        return pattern

    def _play(self, t: int, state: Any) -> tuple[RoundPattern, Any]:
        """Run round t from a state; return what it yields, and the state after it."""
        requests = self._algorithm.round(state, t, self._problem, self._key)
        if not isinstance(requests, GeneratorType):
            name = type(self._algorithm).__name__
            fail("algorithm", "one whose round is a generator", f"{name} with {requests!r}")
        pattern: list[RequestPattern] = []
        answer: Released | None = None
        while True:
            try:
                request = requests.send(answer)
            except StopIteration as end:
                return tuple(pattern), end.value
            except Exception as error:
                name = type(self._algorithm).__name__
                expected = f"{name}, whose round {t} fails on made-up records of zeros"
                raise ValueError(f"algorithm: {expected}: {error!r}") from error
            if len(pattern) == MOST_REQUESTS:
                fail("algorithm", f"rounds of at most {MOST_REQUESTS} messages", "more")
            if isinstance(request, Relay) and not pattern:
                fail("algorithm", "a Message before a Relay in each round", "none")
            pattern.append(RequestPattern.of(request))
            if isinstance(request, Message):
                answer = _answer_to(request)


def _answer_to(message: Message) -> Released | None:
    """Return what a node may receive in answer to its own message, as if nobody added noise."""
    values = message.values
    if values is None:
        return None
    if message.row_count is None or message.rows is None:
        return Released(np.array(values))
    every_row = np.full((message.row_count, values.shape[1]), np.nan, values.dtype)
    every_row[message.rows % message.row_count] = values
    return Released(every_row)
