"""What happened in a run, before and after each release and on the way; and replays of it."""

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
from dpmesh.run.carriers import Broadcast, Carrier, Packet, Sent, Traffic
from dpmesh.run.channel import Channel
from dpmesh.run.watch import Passage

Audited: TypeAlias = Problem | Floats
"""What an audited algorithm runs on: a problem, or an array with a row for each node."""


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """One run of an algorithm.

    Parameters
    ----------
    passages
        The releases, in order, before and after their noise.
    sent
        What was carried.
    received
        What could be published after each round.
    ledger
        The releases that were recorded.
    traffic
        The length of what a node sent in each round, and the number of messages.
    """

    passages: list[Passage] = field(default_factory=list)
    sent: list[Released] = field(default_factory=list)
    received: list[Released] = field(default_factory=list)
    ledger: list[Release] = field(default_factory=list)
    traffic: list[Sent] = field(default_factory=list)

    @property
    def released(self) -> list[Released]:
        """The values that were released."""
        return [passage.values for passage in self.passages]


def fresh_keys(key: Key | None) -> Iterator[Key]:
    """Yield keys for the runs of an audit, which publish nothing; by default from a new key."""
    draws = generator(Key.generate() if key is None else key, Purpose.AUDIT)
    while True:
        yield Key.seeded(int.from_bytes(draws.bytes(32), "little"))


class Silence(Broadcast):
    """Carries zeros to all nodes, as if their neighbours' messages cancelled."""

    def carry(self, round: int, packet: Packet) -> Released | None:
        """Return zeros."""
        return None if packet.values is None else Released(np.zeros_like(packet.values))


alone = Broadcast()
"""Carries to each node its own message: nothing blurs a canary."""

silence = Silence()


class _Listening:
    """A carrier that also keeps what it carries."""

    seconds = None
    memory = None

    def __init__(self, carrier: Carrier, heard: list[Released]) -> None:
        self._carrier, self._heard = carrier, heard

    def carry(self, round: int, packet: Packet) -> Any:
        if packet.values is not None:
            self._heard.append(Released(packet.values.copy()))
        return self._carrier.carry(round, packet)

    def traffic(self, round: int, sent: Sent) -> Traffic:
        return self._carrier.traffic(round, sent)

    def recall(self, memory: Any) -> None:
        """Need nothing of the past."""


def record(
    algorithm: AnyAlgorithm,
    problem: Audited,
    carrier: Carrier,
    *,
    rounds: int,
    key: Key,
    replay: Transcript | None = None,
) -> Transcript:
    """Run an algorithm and return what happened.

    Parameters
    ----------
    algorithm, problem, carrier, rounds, key
        As for a simulation.
    replay
        If given, that run's releases travel as far as they go: this run's own releases are made
        and recorded, but not sent.
    """
    require_methods(
        "carrier", carrier, "what carries messages, such as alone, or Gossip(topology)", "carry"
    )
    run = Transcript()

    def watch(passage: Passage) -> Passage:
        number = len(run.passages)
        run.passages.append(passage)
        if replay is not None and number < len(replay.passages):
            return replay.passages[number]
        return passage

    nodes = problem.nodes if hasattr(problem, "nodes") else len(problem)
    ledger = Ledger(algorithm.plan(rounds), nodes=nodes)
    channel = Channel(_Listening(carrier, run.sent), key, ledger, watcher=watch)
    state = algorithm.init(problem, key)
    for t in range(rounds):
        step = channel.run(algorithm, state, t, cast("Problem", problem), key)
        state = step.state
        channel.end_round()
        if (published := algorithm.published(state, channel.received)) is not None:
            run.received.append(Released(published.copy()))
        run.traffic.append(step.sent)
    run.ledger.extend(ledger.releases)
    return run
