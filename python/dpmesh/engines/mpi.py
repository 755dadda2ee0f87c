"""Gossip over MPI: each rank holds some nodes, and only rows on the boundary travel.

Needs the extra ``mpi``. Every rank knows the public network, so that both ends of a message know it
is due, and no rank asks another.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from mpi4py import MPI

from dpmesh import kernels
from dpmesh.engines.blocks import Boundary, Nodes, boundary
from dpmesh.privacy.types import Released
from dpmesh.topology import Topology
from dpmesh.topology.matrix import MixingMatrix


class MpiGossip:
    """The exchange of one rank: its nodes' messages go to neighbours wherever these are.

    Parameters
    ----------
    topology
        The whole network, the same on every rank.
    parts
        The nodes of each rank, the same on every rank; see `blocks`.
    communicator
        Of these ranks.
    """

    def __init__(self, topology: Topology, parts: list[Nodes], communicator: MPI.Comm) -> None:
        self._topology = topology
        self._communicator = communicator

        @lru_cache(maxsize=16)
        def boundary_of(matrix: MixingMatrix) -> Boundary:
            return boundary(matrix.weights, parts, communicator.rank)

        self._boundary_of = boundary_of
        self._matrix = lru_cache(maxsize=1)(topology.matrix)
        self.bytes_sent = 0
        """By this rank so far."""

    def __call__(self, round: int, messages: Released) -> Released:
        """Return what this rank's nodes receive, given what they send; shape (own nodes, dim)."""
        across = self._boundary_of(self._matrix(round))
        own, dim = messages.shape
        rows = np.empty((across.weights.shape[1], dim), dtype=messages.dtype)
        rows[:own] = messages
        requests, first = [], own
        for rank, count in enumerate(across.receive):
            if count:
                requests.append(self._communicator.Irecv(rows[first : first + count], source=rank))
            first += count
        for rank, needed in enumerate(across.send):
            if len(needed):
                packet = messages[needed]
                requests.append(self._communicator.Isend(packet, dest=rank))
                self.bytes_sent += packet.nbytes
        MPI.Request.Waitall(requests)
        return Released(kernels.mix(across.weights, rows))

    def messages(self, round: int) -> int:
        """Return how many messages cross links in this round, of all ranks together."""
        return self._matrix(round).messages
