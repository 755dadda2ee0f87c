"""How messages travel between MPI ranks: by gossip, with a token, or as parts of a sum.

Every rank knows the public network and runs the same rounds for its own nodes, so that it knows
whose messages are due, and no rank needs to ask another.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

import dpmesh.kernels as kernels
from dpmesh._validate import fail
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.engines.blocks import Boundary, boundary
from dpmesh.privacy.compression import Compressed
from dpmesh.privacy.secure.mechanism import is_summed
from dpmesh.privacy.secure.sums import Integers
from dpmesh.privacy.types import Floats, Released
from dpmesh.run.carriers import Broadcast, Instant, Packet, Sent, all_linked
from dpmesh.run.traffic import Traffic
from dpmesh.topology import Topology
from dpmesh.topology.matrix import MixingMatrix

if TYPE_CHECKING:
    from dpmesh.engines.mpi import MpiEngine


class MpiGossip(Instant):
    """The carrier of one rank: its nodes' messages go to neighbours on whichever rank.

    Parameters
    ----------
    ranks
        The ranks and their nodes.
    topology
        The whole network, the same on every rank.
    """

    def __init__(self, ranks: MpiEngine, topology: Topology) -> None:
        self._ranks, self._communicator = ranks, ranks.communicator

        @lru_cache(maxsize=16)
        def boundary_of(matrix: MixingMatrix) -> Boundary:
            return boundary(matrix.weights, ranks.parts, ranks.communicator.rank)

        self._boundary_of = boundary_of
        self._matrix = lru_cache(maxsize=1)(topology.matrix)

    def carry(self, round: int, packet: Packet) -> Released:
        """Return what this rank's nodes receive, shape (own nodes, dim)."""
        self._ranks.agree()
        messages = packet.rows
        if packet.unmixed:
            all_linked(self._matrix(round))
            everybody = np.concatenate(self._ranks.everyone(messages))
            return Released(everybody[np.argsort(np.concatenate(self._ranks.parts))])
        across = self._boundary_of(self._matrix(round))
        rows = np.empty((across.weights.shape[1], messages.shape[1]), dtype=messages.dtype)
        rows[: len(messages)] = messages
        if packet.compressed is not None:
            self._travel_packed(across, packet.compressed, rows[len(messages) :])
        else:
            self._travel(across, messages, rows[len(messages) :])
        return Released(kernels.mix(across.weights, rows))

    def traffic(self, round: int, sent: Sent) -> Traffic:
        """Return what this rank's nodes sent over links in this round, to whichever rank."""
        listeners = self._matrix(round).listeners[self._ranks.nodes]
        return Traffic(int(listeners.sum()) * sent.times, int(np.sum(listeners * sent.bits)))

    def _travel(self, across: Boundary, messages: Released, foreign: Floats) -> None:
        """Send the rows that other ranks need, and receive into `foreign`."""
        requests, first = [], 0
        for rank, count in enumerate(across.receive):
            if count:
                rows = foreign[first : first + count]
                requests.append(self._communicator.Irecv(rows, source=rank))
            first += count
        for rank, needed in enumerate(across.send):
            if len(needed):
                packet = messages[needed]
                requests.append(self._communicator.Isend(packet, dest=rank))
                self._ranks.count(packet.nbytes, packet.nbytes)
        MPI.Request.Waitall(requests)

    def _travel_packed(self, across: Boundary, packed: Compressed, foreign: Floats) -> None:
        """Send these rows as their nodes pack them, and unpack into `foreign`."""
        requests, first = [], 0
        for rank, needed in enumerate(across.send):
            if len(needed):
                packet = packed.together(needed)
                requests.append(self._communicator.Isend([packet, MPI.BYTE], dest=rank))
                self._ranks.count(len(packet), int(packed.bits[needed].sum()) // 8)
        for rank, count in enumerate(across.receive):
            if count:
                status = MPI.Status()
                message = self._communicator.Mprobe(source=rank, status=status)
                came = bytearray(status.Get_count(MPI.BYTE))
                message.Recv([came, MPI.BYTE])
                rows = packed.compressor.apart(bytes(came), count, foreign.shape[1], foreign.dtype)
                foreign[first : first + count] = rows
            first += count
        MPI.Request.Waitall(requests)


class MpiToken(Broadcast):
    """The carrier of a token: what its holder released goes to all ranks.

    Parameters
    ----------
    ranks
        The ranks and their nodes.
    """

    def __init__(self, ranks: MpiEngine) -> None:
        self._ranks = ranks
        self._owner = np.empty(sum(map(len, ranks.parts)), np.int64)
        for rank, part in enumerate(ranks.parts):
            self._owner[part] = rank

    def carry(self, round: int, packet: Packet) -> Released | None:
        """Return on all ranks what the sender released; None if that is nothing."""
        self._ranks.agree()
        owner, communicator = int(self._owner[packet.sender]), self._ranks.communicator
        if communicator.rank == owner and packet.values is not None:
            length = packet.values.nbytes * (communicator.size - 1)
            self._ranks.count(length, length)
        arrived: Released | None = communicator.bcast(packet.values, root=owner)
        return arrived


class MpiSums(Broadcast):
    """The carrier of sums: each rank adds up its own nodes' integers, and all ranks add up these.

    Every rank gets the sums that its nodes learn. The masks of deployed parties are left out, as in
    one process: ranks trust each other, and masks change no bit of a sum.

    Parameters
    ----------
    ranks
        The ranks and their nodes.
    """

    def __init__(self, ranks: MpiEngine) -> None:
        self._ranks = ranks

    def carry(self, round: int, packet: Packet) -> Integers:
        """Return the totals of the one sum of all nodes, or those of this rank's own nodes.

        They are integers modulo ``2**64``.
        """
        if packet.masked is None:
            fail("release", "a sum of all nodes, since they are on several ranks", "another")
        parts = packet.masked.totals()
        self._ranks.agree()
        totals, sent = np.empty_like(parts), (self._ranks.processes > 1) * parts.nbytes
        self._ranks.count(sent, sent)
        words = parts.view(np.uint64), totals.view(np.uint64)  # which wrap around by definition
        self._ranks.communicator.Allreduce(*words, op=MPI.SUM)
        return totals if len(totals) == 1 else totals[self._ranks.nodes]

    def traffic(self, round: int, sent: Sent) -> Traffic:
        """Return what all nodes sent, on rank 0 alone: every rank knows it, and ranks add up."""
        return super().traffic(round, sent) if self._ranks.is_root else Traffic(0, 0)


def why_not(algorithm: AnyAlgorithm) -> str | None:
    """Return why an algorithm does not run on ranks; None if it does."""
    first = algorithm.release_of(0)
    releases = first if isinstance(first, tuple) else (first,)
    if algorithm.travels == "server" and not all(map(is_summed, releases)):
        return "a trusted server sees all that its clients send: it is one process"
    return None
