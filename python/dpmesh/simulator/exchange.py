"""Exchanges inside one process."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpmesh import kernels
from dpmesh.privacy.types import Released
from dpmesh.topology import Topology


class Gossip:
    """Every node sends its message to its neighbours and receives their weighted average."""

    def __init__(self, topology: Topology) -> None:
        self._matrix = lru_cache(maxsize=1)(topology.matrix)

    def __call__(self, round: int, messages: Released) -> Released:
        """Return A_round x messages, shape (nodes, dim)."""
        return Released(kernels.mix(self._matrix(round).weights, messages))

    def messages(self, round: int) -> npt.NDArray[np.int64]:
        """Return over how many links the message of each node goes in this round."""
        return self._matrix(round).listeners


class Broadcast:
    """What a server or the holder of a token sends, everybody receives."""

    def __call__(self, round: int, messages: Released) -> Released:
        """Return the messages as they are."""
        return messages
