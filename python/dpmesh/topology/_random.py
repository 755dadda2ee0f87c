"""Random numbers of the network: public, and different for each use of one key."""

from __future__ import annotations

from enum import IntEnum, auto

import numpy as np

from dpmesh.keys import Key, Purpose, generator


class Use(IntEnum):
    """Uses of random numbers."""

    RANDOM_REGULAR = auto()
    ERDOS_RENYI = auto()
    MATCHINGS = auto()
    EDGE_DROPPING = auto()
    SHUFFLING = auto()
    MEETINGS = auto()
    DIRECTED = auto()


def public_generator(key: Key, use: Use, round: int = 0) -> np.random.Generator:
    """Return the generator of one use in one round."""
    return generator(key, Purpose.TOPOLOGY, round=round, node=use)
