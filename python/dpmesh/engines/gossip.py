"""Gossip over MPI: only rows on the boundary between ranks travel, packed if nodes pack them.

Every rank knows the public network, so both ends of a message know that it is due, and no rank
needs to ask another.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from mpi4py import MPI

import dpmesh.kernels as kernels
from dpmesh.engines.blocks import Boundary, boundary
from dpmesh.engines.ranks import Ranks
from dpmesh.privacy.compression import Compressed
from dpmesh.privacy.types import Floats, Released
from dpmesh.run.carriers import Instant, Packet, Sent, all_linked
from dpmesh.run.traffic import Traffic
from dpmesh.topology import Topology
from dpmesh.topology.matrix import MixingMatrix


class MpiGossip(Instant):
    """The carrier of one rank: its nodes' messages go to neighbours on whichever rank.

    Parameters
    ----------
    ranks
        The ranks and their nodes.
    topology
        The whole network, the same on every rank.
    """

    def __init__(self, ranks: Ranks, topology: Topology) -> None:
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
