"""Transcripts of runs, with the values before and after each release; and replays of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np

from dpmesh._privacy_types import Floats, Released
from dpmesh._validate import require_methods
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.keys import Key, Purpose, generator
from dpmesh.privacy.ledger import Ledger
from dpmesh.privacy.releases import Release
from dpmesh.problems import Problem
from dpmesh.run.carriers import Broadcast, Carrier, Packet, SentInRound, Traffic
from dpmesh.run.channel import Channel
from dpmesh.run.watch import Passage

Audited: TypeAlias = Problem | Floats
"""Data of an audited algorithm: a problem, or an array with a row for each node."""


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """One run of an algorithm.

    Parameters
    ----------
    passages
        The releases, in order, before and after their noise.
    sent
        The values that were carried.
    received
        The models that could be published after each round.
    ledger
        The releases that were recorded.
    traffic
        Length of a node's messages of each round, and their number.
    """

    passages: list[Passage] = field(default_factory=list)
    sent: list[Released] = field(default_factory=list)
    received: list[Released] = field(default_factory=list)
    ledger: list[Release] = field(default_factory=list)
    traffic: list[SentInRound] = field(default_factory=list)

    @property
    def released(self) -> list[Released]:
        """The values that were released."""
        return [passage.values for passage in self.passages]


def fresh_keys(key: Key | None) -> Iterator[Key]:
    """Yield keys for the runs of an audit, which publish nothing; by default from a new key."""
    if key is None:
        key = Key.generate()
    random = generator(key, Purpose.AUDIT)
    while True:
        yield Key.seeded(int.from_bytes(random.bytes(32), "little"))


class Silence(Broadcast):
    """A carrier of zeros to all nodes, as if their neighbours' messages cancelled."""

    def carry(self, round: int, packet: Packet) -> Released | None:
        """Return zeros."""
        if packet.values is None:
            return None
        return Released(np.zeros_like(packet.values))


class _RecordingCarrier:
    """A carrier that also keeps what it carries."""

    seconds = None
    memory = None

    def __init__(self, carrier: Carrier, carried: list[Released]) -> None:
        self._carrier = carrier
        self._carried = carried

    def carry(self, round: int, packet: Packet) -> Any:
        if packet.values is not None:
            self._carried.append(Released(packet.values.copy()))
        return self._carrier.carry(round, packet)

    def traffic(self, round: int, exchanged: SentInRound) -> Traffic:
        return self._carrier.traffic(round, exchanged)

    def recall(self, memory: object) -> None:
        """Do nothing: a recording carrier has no memory."""


alone = Broadcast()
"""A carrier of each node's own message back to it: nothing blurs a canary."""

silence = Silence()


def record(
    algorithm: AnyAlgorithm,
    problem: Audited,
    carrier: Carrier,
    *,
    rounds: int,
    key: Key,
    replay: Transcript | None = None,
) -> Transcript:
    """Run an algorithm and return the transcript.

    Parameters
    ----------
    algorithm, problem, carrier, rounds, key
        As for a simulation.
    replay
        If given, that run's releases are carried as far as they go: this run's own releases are
        made and recorded, but not sent.

    Raises
    ------
    ValueError
        If `carrier` carries nothing.
    """
    expectation = "a carrier of messages, such as alone, or Gossip(topology)"
    require_methods("carrier", carrier, expectation, "carry")
    run = Transcript()

    def watch(passage: Passage) -> Passage:
        number = len(run.passages)
        run.passages.append(passage)
        if replay is not None and number < len(replay.passages):
            return replay.passages[number]
        return passage

    nodes = problem.nodes if hasattr(problem, "nodes") else len(problem)
    ledger = Ledger(algorithm.plan(rounds), nodes=nodes)
    recording_carrier = _RecordingCarrier(carrier, run.sent)
    channel = Channel(recording_carrier, key, ledger, watcher=watch)
    state = algorithm.init(problem, key)
    for t in range(rounds):
        step = channel.run(algorithm, state, t, cast("Problem", problem), key)
        state = step.state
        channel.end_round()
        published = algorithm.published(state, channel.received)
        if published is not None:
            run.received.append(Released(published.copy()))
        run.traffic.append(step.sent)
    run.ledger.extend(ledger.releases)
    return run
