"""Gossip over MPI: only rows on the boundary between ranks travel, packed if nodes pack them.

Every rank knows the public network, so both ends of a message know that it is due, and no rank
needs to ask another.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

import dpmesh.kernels as kernels
from dpmesh.algorithms.base import Info
from dpmesh.engines.blocks import Boundary, boundary
from dpmesh.privacy.compression import Compressed
from dpmesh.privacy.types import Floats, Released
from dpmesh.run.codec import Arrays, classes_in, decode, encode
from dpmesh.run.carriers import Instant
from dpmesh.run.run import Traffic
from dpmesh.topology import Topology
from dpmesh.topology.matrix import MixingMatrix

if TYPE_CHECKING:
    from dpmesh.engines.mpi import MpiEngine


class MpiGossip(Instant):
    """The exchange of one rank: its nodes' messages go to neighbours on whichever rank.

    Parameters
    ----------
    engine
        The ranks.
    topology
        The whole network, the same on every rank.
    """

    def __init__(self, engine: MpiEngine, topology: Topology) -> None:
        self._engine, self._communicator = engine, engine.communicator

        @lru_cache(maxsize=16)
        def boundary_of(matrix: MixingMatrix) -> Boundary:
            return boundary(matrix.weights, engine.parts, engine.communicator.rank)

        self._boundary_of = boundary_of
        self._matrix = lru_cache(maxsize=1)(topology.matrix)
        self._packed: Compressed | None = None
        self.bytes_sent = self.bytes_least = 0
        """Bytes sent to other ranks so far, as in `Sent`."""

    def note(self, packed: Compressed) -> None:
        """Note how the messages of this rank's nodes are packed."""
        self._packed = packed

    def __call__(self, round: int, messages: Released) -> Released:
        """Return what this rank's nodes receive, given what they send; shape (own nodes, dim)."""
        self._engine.agree()
        across = self._boundary_of(self._matrix(round))
        rows = np.empty((across.weights.shape[1], messages.shape[1]), dtype=messages.dtype)
        rows[: len(messages)] = messages
        packed, self._packed = self._packed, None
        if packed is not None and packed.values is messages:
            self._travel_packed(across, packed, rows[len(messages) :])
        else:
            self._travel(across, messages, rows[len(messages) :])
        return Released(kernels.mix(across.weights, rows))

    def traffic(self, round: int, info: Info) -> Traffic:
        """Return what this rank's nodes sent over links in this round, to whichever rank."""
        listeners = self._matrix(round).listeners[self._engine.nodes]
        return Traffic(int(listeners.sum()), int(np.sum(listeners * info.bits_per_node)))

    def heard(self, received: Released) -> Any:
        """Return what all nodes received, on rank 0."""
        return self._engine.rows(received)

    def whole(self, state: Any, received: Any) -> tuple[Any, Any]:
        """Return the state and the messages of all nodes on rank 0."""
        arrays: Arrays = {}
        tree = encode((state, received), arrays)
        together = {
            name: self._engine.rows(array) if array.ndim else array
            for name, array in arrays.items()
        }
        if not self._engine.is_root:
            return None, None
        both: tuple[Any, Any] = decode(tree, together, classes_in((state, received)))
        return both

    def part(self, state: Any, received: Any) -> tuple[Any, Any]:
        """Return this rank's part of rank 0's state and messages."""
        arrays: Arrays = {}
        tree, classes = encode((state, received), arrays), classes_in((state, received))
        tree, classes, arrays = self._communicator.bcast((tree, classes, arrays))
        nodes = self._engine.nodes
        mine = {name: array[nodes] if array.ndim else array for name, array in arrays.items()}
        both: tuple[Any, Any] = decode(tree, mine, classes)
        return both

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
                self.bytes_sent += packet.nbytes
                self.bytes_least += packet.nbytes
        MPI.Request.Waitall(requests)

    def _travel_packed(self, across: Boundary, packed: Compressed, foreign: Floats) -> None:
        """Send these rows as their nodes pack them, and unpack into `foreign`."""
        requests, first = [], 0
        for rank, needed in enumerate(across.send):
            if len(needed):
                packet = packed.together(needed)
                requests.append(self._communicator.Isend([packet, MPI.BYTE], dest=rank))
                self.bytes_sent += len(packet)
                self.bytes_least += int(packed.bits[needed].sum()) // 8
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
