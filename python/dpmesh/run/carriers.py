"""Carriers, which deliver released messages to their receivers, within one process.

A *packet* is a message after its release: noisy rows, or masked integers of a secure sum.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Released
from dpmesh._ragged import Indices
from dpmesh._validate import fail
from dpmesh.noise.compression import Compressed
from dpmesh.noise.secure.mechanism import Masked

if TYPE_CHECKING:
    from dpmesh.topology import MixingMatrix, Topology


class Traffic(NamedTuple):
    """Messages and bits that crossed the network.

    Attributes
    ----------
    messages
        Number of messages over links.
    bits
        Total length of the messages, as encoded.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.run.Traffic(messages=10, bits=64_000_000).megabytes
    8.0
    """

    messages: int
    bits: int

    def __add__(self, other: Traffic) -> Traffic:  # type: ignore[override]
        return Traffic(self.messages + other.messages, self.bits + other.bits)

    @property
    def megabytes(self) -> float:
        """Length in 10**6 bytes."""
        return self.bits / 8e6


class SentInRound(NamedTuple):
    """Length and number of the messages that nodes sent in a round.

    Attributes
    ----------
    bits
        Total length of a node's messages: a number, or shape (nodes,).
    messages
        Number of messages of each node; by server or token, of all nodes together.
    """

    bits: int | Indices = 0
    messages: int = 0


class Packet(NamedTuple):
    """Message after its release. It holds no private value except masked parts of a sum.

    Attributes
    ----------
    values
        Noisy rows, shape (rows, dim). None if the sender released nothing or is in another process,
        or if the packet is a part of a sum.
    compressed
        Compressed rows; None without a compressor.
    sender
        Index of the only node that sends, with a token; None for all nodes.
    copies
        Number of messages to or from a server, or with a token. None for gossip, which sends one
        message over each link.
    bits
        Total length of all copies in bits; None for the length of the values in their dtype.
    masked
        Integer parts of a sum. Carriers deliver only their total over all nodes.
    unmixed
        True if gossip delivers the rows of all nodes to every node, without mixing them.
    """

    values: Released | None
    compressed: Compressed | None = None
    sender: int | None = None
    copies: int | None = None
    bits: int | None = None
    masked: Masked | None = None
    unmixed: bool = False

    @property
    def content(self) -> Any:
        """Content for all nodes of one process: the values, or the totals of masked parts."""
        if self.masked is None:
            return self.values
        nodes = len(self.masked.nodes)
        all_nodes = self.masked.numbers.nodes
        if nodes != all_nodes:
            fail("release", f"a sum over the {nodes} nodes of the problem", f"of {all_nodes}")
        return self.masked.totals()

    @property
    def rows(self) -> Released:
        """Noisy rows of the local nodes, shape (nodes, dim), for gossip; fail for a sum."""
        if self.values is None:
            fail("release", "messages of single nodes, as gossip sends them", "a sum")
        return self.values


class Carrier(Protocol):
    """Interface of carriers, which deliver released messages to their receivers.

    Engines differ in their carriers only: threads, MPI ranks, parties over a network.
    """

    def carry(self, round: int, packet: Packet) -> Any:
        """Return the rows that each node receives, shape (nodes, dim); None if there are none.

        For `masked` parts it returns the integer totals over all nodes.
        """

    def traffic(self, round: int, sent: SentInRound) -> Traffic:
        """Return the traffic of a round; called once, after all messages of the round."""

    @property
    def seconds(self) -> float | None:
        """Virtual time so far; None if messages take no time."""

    @property
    def memory(self) -> Any:
        """The carrier's memory of earlier rounds, as arrays and numbers, for a checkpoint."""

    def recall(self, memory: Any) -> None:
        """Resume from the memory of a checkpoint."""


class Instant:
    """Base of carriers that take no time and remember no rounds."""

    seconds = None
    memory = None

    def recall(self, memory: None) -> None:
        """Do nothing: this carrier remembers nothing."""


class Gossip(Instant):
    """Gossip: each node sends its message to its neighbours, and receives a weighted average."""

    def __init__(self, topology: Topology) -> None:
        self._matrix = lru_cache(maxsize=1)(topology.matrix)
        self._mixing = kernels.mixing.Mixing(None)

    def carry(self, round: int, packet: Packet) -> Released:
        """Return A_round x messages, shape (nodes, dim)."""
        rows = packet.rows
        matrix = self._matrix(round)
        if packet.unmixed:
            require_complete(matrix)
            return rows
        weights = matrix.weights
        if self._mixing.matrix is not weights:
            self._mixing = kernels.mixing.Mixing(weights)
        return Released(self._mixing.mix(rows))

    def traffic(self, round: int, sent: SentInRound) -> Traffic:
        """Return the traffic over all links in this round."""
        matrix = self._matrix(round)
        if isinstance(sent.bits, int):
            bits = matrix.messages * sent.bits
        else:
            bits = int(matrix.listeners @ sent.bits)
        return Traffic(matrix.messages * sent.messages, bits)


class ToAll:
    """Base of carriers by which all nodes receive every message."""

    def carry(self, round: int, packet: Packet) -> Any:
        """Return the messages unchanged, or the total of a sum."""
        return packet.content


class Broadcast(ToAll, Instant):
    """Carrier by which all nodes receive every message: of a server, a token's holder, or a sum."""

    def traffic(self, round: int, sent: SentInRound) -> Traffic:
        """Return the number and the length of the messages, as the channel counted them."""
        return Traffic(sent.messages, int(sent.bits))


def require_complete(matrix: MixingMatrix) -> None:
    """Fail unless the graph is complete, so that every node receives the rows of all nodes."""
    nodes = matrix.nodes
    if matrix.messages < nodes * (nodes - 1):
        fail("topology", f"complete({nodes}), over which all receive the same rows", "fewer links")
