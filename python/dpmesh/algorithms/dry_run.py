"""Dry runs of an algorithm's rounds on made-up records, to learn which requests each round yields.

An engine that carries messages between machines (`dpmesh.deploy`) must know before a round how many
messages it carries, and which releases it makes. Both are read from the round itself. The round is
run on records that are all zero, without noise, a network or a ledger. A *request* is a `Message`
or a `Relay` that the round yields. Requests may depend only on the index of the round and on public
sizes: the numbers of nodes and of records.
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
"""Largest number of requests of one round; a round with more is taken to be endless."""


@dataclass(frozen=True, kw_only=True)
class RequestPattern:
    """Facts of a `Message` or a `Relay` that public numbers determine.

    Parameters
    ----------
    releases
        Releases of the message; empty for a `Relay`.
    is_sent
        True if rows are carried to other nodes.
    sender
        Index of the only node that sends, in an algorithm with a token; else None.
    compresses
        True if the released rows are compressed.
    unmixed
        True if all nodes receive the rows of all nodes, without mixing.
    row_length
        Length of a row. Comparisons of patterns ignore it, since made-up records may have fewer
        columns. None for a `Relay`, or for a message without values.
    """

    releases: tuple[Release, ...]
    is_sent: bool
    sender: int | None = None
    compresses: bool = False
    unmixed: bool = False
    row_length: int | None = field(default=None, compare=False)

    @classmethod
    def of(cls, request: object) -> RequestPattern:
        """Return the pattern of a request.

        Raises
        ------
        ValueError
            If the request is neither a `Message` nor a `Relay`.
        """
        if isinstance(request, Relay):
            return cls(releases=(), is_sent=True)
        if not isinstance(request, Message):
            fail("algorithm", "rounds that yield Message or Relay", reprlib.repr(request))
        release = request.release
        return cls(
            releases=(release,) if isinstance(release, Release) else tuple(release),
            is_sent=request.is_sent,
            sender=request.sender,
            compresses=request.compressor is not None,
            unmixed=request.unmixed,
            row_length=None if request.values is None else request.values.shape[-1],
        )

    def __str__(self) -> str:
        if not self.releases:
            return "a Relay"
        names = ", ".join(str(release.mechanism) for release in self.releases)
        carried = "" if self.is_sent else " that is not sent"
        sender = "" if self.sender is None else f" of node {self.sender}"
        return f"a Message{sender}{carried}, released by {names}"


RoundPattern = tuple[RequestPattern, ...]
"""Patterns of all requests of a round, in their order."""


def exchanges_of(pattern: RoundPattern) -> int:
    """Return the number of requests of a round whose rows are carried to other nodes."""
    return sum(request.is_sent for request in pattern)


def without_round(pattern: RoundPattern) -> RoundPattern:
    """Return a pattern whose releases have round 0 and no batch, to compare different rounds."""
    requests: list[RequestPattern] = []
    for request in pattern:
        releases = tuple(replace(release, round=0, batch=None) for release in request.releases)
        requests.append(replace(request, releases=releases))
    return tuple(requests)


class DryRun:
    """Runner of an algorithm's rounds on made-up records, which reads no private data.

    An algorithm with a token is run round after round, since turns depend on earlier turns. Any
    round of another algorithm is run from the state after round 0, so that the last of a million
    rounds needs two rounds only.

    Parameters
    ----------
    algorithm
        The algorithm.
    problem
        A problem with made-up records.
    key
        A public key, such as a seeded one.
    """

    def __init__(self, algorithm: AnyAlgorithm, problem: Problem, key: Key) -> None:
        self._algorithm, self._problem, self._key = algorithm, problem, key
        self._has_token = algorithm.communication == "token"
        self._states: list[Any] = [algorithm.init(problem, key)]
        """States before and after round 0; with a token, only the state before the next round."""
        self._rounds_run = 0
        """Number of rounds that were run; counted with a token only."""
        self._pattern_of = lru_cache(maxsize=256)(self._pattern)

    def pattern(self, t: int) -> RoundPattern:
        """Return the pattern of round t, counted from 0.

        Raises
        ------
        ValueError
            If the round fails on made-up records, or yields a request that no engine can carry.
            With a token, also if t is an earlier round that is no longer cached.
        """
        return self._pattern_of(t)

    def _pattern(self, t: int) -> RoundPattern:
        if self._has_token:
            if t < self._rounds_run:
                fail("round", f"at least {self._rounds_run}: turns are played in their order", t)
            while self._rounds_run < t:
                self._run_next()
            return self._run_next()
        if t > 0 and len(self._states) == 1:
            _, state_after = self._run(0, self._states[0])
            self._states.append(state_after)
        pattern, _ = self._run(t, self._states[min(t, 1)])
        return pattern

    def _run_next(self) -> RoundPattern:
        pattern, self._states[0] = self._run(self._rounds_run, self._states[0])
        self._rounds_run += 1
        return pattern

    def _run(self, t: int, state: Any) -> tuple[RoundPattern, Any]:
        """Run round t from a state; return its pattern, and the state after it."""
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
    """Return the rows that a node receives if it is alone and there is no noise: its own rows."""
    values = message.values
    if values is None:
        return None
    if message.row_count is None or message.rows is None:
        return Released(np.array(values))
    every_row = np.full((message.row_count, values.shape[1]), np.nan, values.dtype)
    every_row[message.rows % message.row_count] = values
    return Released(every_row)
