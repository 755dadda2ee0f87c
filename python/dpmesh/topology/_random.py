"""Random numbers of the network. They are public, and different for each kind of use of one key."""

from __future__ import annotations

from enum import IntEnum, auto

import numpy as np

from dpmesh.keys import Key, Purpose, generator


class Use(IntEnum):
    """What random numbers are for."""

    RANDOM_REGULAR = auto()
    ERDOS_RENYI = auto()
    MATCHINGS = auto()
    EDGE_DROPPING = auto()
    SHUFFLING = auto()


def public_generator(key: Key, use: Use, round: int = 0) -> np.random.Generator:
    """Return the generator of one use in one round."""
    return generator(key, Purpose.TOPOLOGY, round=round, node=use)
