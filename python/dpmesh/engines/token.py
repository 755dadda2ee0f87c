"""Token-passing over MPI: what the holder of the token released goes to all ranks.

Every rank runs the same rounds and computes for its own nodes, so that all of them know whose turn
it is without asking.
"""

from __future__ import annotations

import numpy as np

from dpmesh.engines.ranks import Ranks
from dpmesh.privacy.types import Released
from dpmesh.run.carriers import Broadcast, Packet


class MpiToken(Broadcast):
    """How what a node released reaches the other ranks.

    Parameters
    ----------
    ranks
        The ranks and their nodes.
    """

    def __init__(self, ranks: Ranks) -> None:
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
