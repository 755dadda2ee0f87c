"""One round of an algorithm at one node, suspended where the node must wait for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
from scipy import sparse

import dpmesh.kernels as kernels
from dpmesh.algorithms.base import Message
from dpmesh.engines.mesh.messages import Position
from dpmesh.engines.mesh.schedule import Schedule
from dpmesh.keys import Key, Purpose, Stream
from dpmesh.privacy.ledger import Ledger
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.types import Released, Sensitive
from dpmesh.run.carriers import Instant, Packet, Sent
from dpmesh.run.channel import Channel, Step

Rows = Mapping[Position, Mapping[int, Released | None]]
"""What each party released, by position."""


class Suspended(Exception):  # noqa: N818
    """The round waits at a message of this node."""

    def __init__(self, packet: Packet) -> None:
        self.packet = packet


class Arrived(Instant):
    """Carries what arrived so far, and suspends the round at the first position that is open.

    Parameters
    ----------
    schedule, node
        Who sends when, and whose round it is.
    rows
        The node's own rows and those that it received.
    until
        The position at which the round is suspended.
    """

    def __init__(self, schedule: Schedule, node: int, rows: Rows, until: Position) -> None:
        self.schedule, self.node, self._rows, self._until = schedule, node, rows, until
        self.exchange = 0

    def at(self, round: int) -> Position:
        """Return the position of the next message of a round."""
        return Position(round, self.exchange)

    def own(self, round: int) -> Released | None:
        """Return what this node sent at the next position; None if nothing."""
        return self._rows.get(self.at(round), {}).get(self.node)

    def carry(self, round: int, packet: Packet) -> Released | None:
        """Return what this node receives, shape (1, dim), or by token (models, dim)."""
        at = self.at(round)
        if at == self._until:
            raise Suspended(packet)
        arrived = self._rows.get(at, {})
        if packet.sender is not None:
            self.exchange += 1
            return arrived.get(packet.sender)
        own = self.own(round)
        assert own is not None
        self.exchange += 1
        neighbours = self.schedule.heard(at, self.node)
        missing = {party for party in neighbours if arrived.get(party) is None}
        parties, weights = self.schedule.mixing(round, self.node, missing)
        rows = np.concatenate([own if p == self.node else _row(arrived, p) for p in parties])
        order = np.arange(len(parties)), np.array([0, len(parties)])
        mixing = sparse.csr_array((weights, *order), shape=(1, len(parties)))
        return Released(kernels.mix(mixing, rows))

    def traffic(self, round: int, sent: Sent) -> NoReturn:
        """Never asked: the router counts."""
        raise NotImplementedError


def _row(arrived: Mapping[int, Released | None], party: int) -> Released:
    row = arrived[party]
    assert row is not None
    return row


class Coins:
    """The coins of a node's rounds: those that all share from the public key, its own from its own.

    It stands in for a `Key` in a round.
    """

    def __init__(self, own: Key, public: Key, shared: frozenset[Purpose]) -> None:
        self._own, self._public, self._shared = own, public, shared

    def stream(self, purpose: int, round: int = 0) -> Stream:
        """Return the stream of a purpose."""
        key = self._public if purpose in self._shared else self._own
        return key.stream(purpose, round)

    def for_nodes(self, nodes: Any) -> Coins:
        """Return those of some nodes."""
        own, public = self._own.for_nodes(nodes), self._public.for_nodes(nodes)
        return Coins(own, public, self._shared)


class NodeChannel(Channel):
    """Drives one round of one node; what it has sent before is never released again.

    Parameters
    ----------
    carrier
        What has arrived.
    noise_key
        Makes the key of the noise, from the values that it is added to.
    allowed
        The releases that are charged for the open position.
    """

    carrier: Arrived

    def __init__(
        self,
        carrier: Arrived,
        noise_key: Callable[[Sensitive], Key],
        key: Key,
        plan: Plan,
        allowed: tuple[Release, ...],
    ) -> None:
        nodes = carrier.schedule.contract.nodes
        ledger = Ledger(plan.with_releases(()), nodes=nodes)
        super().__init__(carrier, key, ledger, nodes=np.array([carrier.node]))
        self._noise_key, self._allowed = noise_key, list(allowed)

    def run_from(self, state: Any, t: int, problem: Any, coins: Key) -> Step:
        """Run round t; raise `Suspended` at the open position."""
        return self.run(self.carrier.schedule.contract.algorithm, state, t, problem, coins)

    def _released(
        self, t: int, message: Message, values: Sensitive, releases: tuple[Release, ...]
    ) -> Packet:
        if self.carrier.at(t) == self.carrier._until:
            self._key = self._noise_key(values)
            return super()._released(t, message, values, releases)
        self._earlier(message, len(values))
        return Packet(self.carrier.own(t), sender=message.sender)

    def _admit(self, t: int, message: Message, releases: tuple[Release, ...]) -> None:
        """Fail unless the releases are charged."""
        node = self.carrier.node
        if message.sender not in (None, node):
            return
        for release in releases:
            if release.nodes is None or node in release.nodes:
                if release not in self._allowed:
                    raise RuntimeError(f"round {t} releases what its plan does not")
                self._allowed.remove(release)
