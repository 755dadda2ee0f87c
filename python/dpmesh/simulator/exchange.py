"""Exchanges inside one process."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dpmesh import kernels
from dpmesh.algorithms.base import Info
from dpmesh.privacy.types import Released
from dpmesh.simulator.run import Traffic
from dpmesh.topology import Topology


class Gossip:
    """Every node sends its message to its neighbours and receives their weighted average."""

    def __init__(self, topology: Topology) -> None:
        self._matrix = lru_cache(maxsize=1)(topology.matrix)

    def __call__(self, round: int, messages: Released) -> Released:
        """Return A_round x messages, shape (nodes, dim)."""
        return Released(kernels.mix(self._matrix(round).weights, messages))

    def traffic(self, round: int, info: Info) -> Traffic:
        """Return what crossed links in this round."""
        listeners = self._matrix(round).listeners
        return Traffic(int(listeners.sum()), int(np.sum(listeners * info.bits_per_node)))


class Broadcast:
    """What a server or the holder of a token sends, everybody receives."""

    def __call__(self, round: int, messages: Released) -> Released:
        """Return the messages as they are."""
        return messages

    def traffic(self, round: int, info: Info) -> Traffic:
        """Return what the algorithm says that it sent."""
        sent = info.messages or 0
        return Traffic(sent, sent * int(info.bits_per_node))
