"""Carriers, which bring released messages to their receivers; those of one process."""

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
    times
        Number of messages of each node; by server or token, of all nodes together.
    """

    bits: int | Indices = 0
    times: int = 0


class Packet(NamedTuple):
    """A message after its release: nothing in it is private but parts of a sum.

    Attributes
    ----------
    values
        Shape (rows, dim); None if the sender released nothing, or is in another process, or if
        messages travel as a sum.
    compressed
        The rows as they are packed; None without a compressor.
    sender
        The node that sends, where messages travel with a token.
    copies
        Number of messages by server or token; None with gossip, which sends one over every link.
    bits
        Total length of all copies; None if it is that of the values in their type.
    masked
        Parts of a sum, of which only totals over all nodes may arrive.
    unmixed
        If true, gossip delivers the rows of all nodes to every node, in place of their mixture.
    """

    values: Released | None
    compressed: Compressed | None = None
    sender: int | None = None
    copies: int | None = None
    bits: int | None = None
    masked: Masked | None = None
    unmixed: bool = False

    @property
    def in_one_process(self) -> Any:
        """Content that arrives everywhere: the values, or the totals of all parts."""
        if self.masked is None:
            return self.values
        nodes = len(self.masked.nodes)
        all_nodes = self.masked.numbers.nodes
        if nodes != all_nodes:
            fail("release", f"a sum over the {nodes} nodes of the problem", f"of {all_nodes}")
        return self.masked.totals()

    @property
    def rows(self) -> Released:
        """The values, a row for each node here, which gossip mixes: no part of a sum."""
        if self.values is None:
            fail("release", "messages of single nodes where they travel by gossip", "a sum")
        return self.values


class Carrier(Protocol):
    """Interface of carriers, which bring released messages to their receivers.

    A carrier is the only part of a round that differs between the machines that it runs on.
    """

    def carry(self, round: int, packet: Packet) -> Any:
        """Return what each node receives, shape (nodes, dim); None if there was nothing.

        Of `masked` parts it returns the totals of all nodes', integers.
        """

    def traffic(self, round: int, sent: SentInRound) -> Traffic:
        """Return the traffic of this round; called once, after all its messages."""

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
            all_linked(matrix)
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
        return Traffic(matrix.messages * sent.times, bits)


class ToAll:
    """Base of carriers by which all nodes receive a message."""

    def carry(self, round: int, packet: Packet) -> Any:
        """Return the messages as they are, and of a sum the total."""
        return packet.in_one_process


class Broadcast(ToAll, Instant):
    """Carrier by which all nodes receive a message: of a server, of a token's holder, or a sum."""

    def traffic(self, round: int, sent: SentInRound) -> Traffic:
        """Return the messages as they were counted."""
        return Traffic(sent.times, int(sent.bits))


def all_linked(matrix: MixingMatrix) -> None:
    """Fail unless each node sends to every other, so that all receive the rows of all."""
    nodes = matrix.nodes
    if matrix.messages < nodes * (nodes - 1):
        fail("topology", f"complete({nodes}), over which all receive the same rows", "fewer links")
