"""What happened in a run, at the door and on the wire; and replays of it."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpmesh._validate import fail
from dpmesh.algorithms.base import AnyAlgorithm, Exchange
from dpmesh.keys import Key, Purpose, generator
from dpmesh.privacy.door import Passage, drawn_once, watched_by
from dpmesh.privacy.events import Release
from dpmesh.privacy.mechanisms import Emission
from dpmesh.privacy.types import Released

AN_ALGORITHM = ("an algorithm", "init", "step", "plan")
"""What an audit asks of what it runs."""


@dataclass(frozen=True)
class Transcript:
    """One run of an algorithm.

    Parameters
    ----------
    passages
        The releases, in order, from both sides of the door.
    sent, received
        What reached the exchange, and what each round reported as received.
    ledger
        The releases as the algorithm recorded them.
    traffic
        The length of a node's message and the number of messages, of each round.
    """

    passages: list[Passage] = field(default_factory=list)
    sent: list[Released] = field(default_factory=list)
    received: list[Released] = field(default_factory=list)
    ledger: list[Release] = field(default_factory=list)
    traffic: list[Any] = field(default_factory=list)

    @property
    def released(self) -> list[Released]:
        """The values that came out of the door."""
        return [passage.emission.values for passage in self.passages]


def fresh_keys(key: Key | None) -> Iterator[Key]:
    """Yield keys for the runs of an audit, which publish nothing; by default from a new key."""
    draws = generator(Key.generate() if key is None else key, Purpose.AUDIT)
    while True:
        yield Key.seeded(int.from_bytes(draws.bytes(32), "little"))


def alone(round: int, messages: Released) -> Released:  # noqa: ARG001
    """Return to each node its own message: nothing blurs a canary."""
    return messages


def silence(round: int, messages: Released) -> Released:  # noqa: ARG001
    """Return zeros to all nodes, as if their neighbours' messages cancelled."""
    return Released(np.zeros_like(messages))


def record(
    algorithm: AnyAlgorithm,
    problem: Any,
    exchange: Exchange,
    *,
    rounds: int,
    key: Key,
    replay: Transcript | None = None,
) -> Transcript:
    """Run an algorithm and return what happened.

    Parameters
    ----------
    algorithm, problem, exchange, rounds, key
        As for a simulation.
    replay
        If given, the door returns that run's releases as far as they go: this run's own releases
        are made and recorded, but not sent.
    """
    if not callable(exchange):
        wanted = "how messages travel, such as alone, or Gossip(topology) of simulator.exchange"
        fail("exchange", wanted, reprlib.repr(exchange))
    run = Transcript()

    def watch(passage: Passage) -> Emission:
        number = len(run.passages)
        values = Released(passage.emission.values.copy())
        emission = passage.emission._replace(values=values)
        run.passages.append(passage._replace(inside=passage.inside.copy(), emission=emission))
        if replay is not None and number < len(replay.passages):
            heard = replay.passages[number].emission
            return heard._replace(values=Released(heard.values.copy()))
        return passage.emission

    def listening(round: int, messages: Released) -> Released:
        run.sent.append(messages.copy())
        return exchange(round, messages)

    state = algorithm.init(problem, key)
    with watched_by(watch), drawn_once():
        for t in range(rounds):
            state, info = algorithm.step(state, t, problem, listening, key)
            run.received.append(info.received.copy())
            run.ledger.extend(info.releases)
            run.traffic.append((info.bits_per_node, info.messages))
    return run
