"""Carriers: they bring released messages to those who receive them, here inside one process."""

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
        Their length together, as encoded.

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
        Length of what a node sent, all its messages together: a number, or shape (nodes,).
    times
        How many messages each node sent; by server or token, how many there were in all.
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
        How it is packed, if it is.
    sender
        The node that sends, where messages travel with a token.
    copies
        How many messages it makes by server or token; None with gossip, one over every link.
    bits
        Length of all copies together, if it is not that of the values in their type.
    masked
        Parts of a sum, of which only totals over all nodes may arrive.
    unmixed
        Whether everybody receives the rows of all nodes as they are, where gossip mixes others.
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
    """Carries what was released to those who receive it.

    It is the only part of a round that differs between the machines that it runs on.
    """

    def carry(self, round: int, packet: Packet) -> Any:
        """Return what each node receives, shape (nodes, dim); None if there was nothing.

        Of `masked` parts it returns the totals of all nodes', integers.
        """

    def traffic(self, round: int, sent: SentInRound) -> Traffic:
        """Return what crossed the network in this round; asked once, after all its messages."""

    @property
    def seconds(self) -> float | None:
        """Virtual time so far; None if messages take no time."""

    @property
    def memory(self) -> Any:
        """Its memory of earlier rounds, as arrays and numbers, for a checkpoint."""

    def recall(self, memory: Any) -> None:
        """Resume from what it remembered."""


class Instant:
    """Takes no time and remembers nothing."""

    seconds = None
    memory = None

    def recall(self, memory: None) -> None:
        """Do nothing: this carrier remembers nothing."""


class Gossip(Instant):
    """Every node sends its message to its neighbours and receives their weighted average."""

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
        """Return what crossed links in this round."""
        matrix = self._matrix(round)
        if isinstance(sent.bits, int):
            bits = matrix.messages * sent.bits
        else:
            bits = int(matrix.listeners @ sent.bits)
        return Traffic(matrix.messages * sent.times, bits)


class ToAll:
    """Everybody receives what was released."""

    def carry(self, round: int, packet: Packet) -> Any:
        """Return the messages as they are, and of a sum the total."""
        return packet.in_one_process


class Broadcast(ToAll, Instant):
    """Everybody receives what was released, such as by a server or the holder of a token."""

    def traffic(self, round: int, sent: SentInRound) -> Traffic:
        """Return what was sent."""
        return Traffic(sent.times, int(sent.bits))


def all_linked(matrix: MixingMatrix) -> None:
    """Fail unless each node sends to every other, so that all receive the rows of all."""
    nodes = matrix.nodes
    if matrix.messages < nodes * (nodes - 1):
        fail("topology", f"complete({nodes}), over which all receive the same rows", "fewer links")
