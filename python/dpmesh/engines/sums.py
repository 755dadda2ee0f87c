"""Sums over MPI: each rank adds up the integers of its own nodes, and all ranks add up these.

The masks of deployed parties are left out, as in one process: ranks trust each other, and masks
change no bit of a sum.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from dpmesh._validate import fail
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.engines.ranks import Ranks
from dpmesh.privacy.secure.mechanism import is_summed
from dpmesh.privacy.secure.sums import Integers
from dpmesh.run.carriers import Broadcast, Packet, Sent
from dpmesh.run.traffic import Traffic


def why_not(algorithm: AnyAlgorithm) -> str | None:
    """Return why an algorithm does not run on ranks; None if it does."""
    first = algorithm.release_of(0)
    releases = first if isinstance(first, tuple) else (first,)
    if algorithm.travels == "server" and not all(map(is_summed, releases)):
        return "a trusted server sees all that its clients send: it is one process"
    return None


class MpiSums(Broadcast):
    """How the nodes of all ranks add up: every rank gets the sums that its nodes learn.

    Parameters
    ----------
    ranks
        The ranks and their nodes.
    """

    def __init__(self, ranks: Ranks) -> None:
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
