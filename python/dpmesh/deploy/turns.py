"""Holders of the token in each round, from public numbers alone.

By token one node at a time learns from its records and sends its model on to the next holder. All
parties compute the same holders, from the contract's public key.
"""

from __future__ import annotations

import numpy as np

from dpmesh._ragged import Indices
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.keys import Key


class Turns:
    """The holders of the token, drawn round by round and kept.

    Parameters
    ----------
    algorithm
        The algorithm, whose `senders` draws the holders of a round.
    records
        Number of records of each node, shape (nodes,).
    key
        The contract's public key.
    """

    def __init__(self, algorithm: AnyAlgorithm, records: Indices, key: Key) -> None:
        self._algorithm = algorithm
        self._records = records
        self._key = key
        self._turns_so_far = np.zeros(len(records), np.int64)
        """Number of turns of each node in the rounds drawn so far, shape (nodes,)."""
        self._holders: list[tuple[int, ...]] = []
        """The holders in each round drawn so far, in the order of their turns."""

    def token_holders(self, t: int) -> tuple[int, ...]:
        """Return the nodes that hold the token in round t, in the order of their turns.

        There are none in a round in which nothing is released.
        """
        for r in range(len(self._holders), t + 1):
            turns = self._algorithm.senders(r, self._turns_so_far, self._records, self._key)
            counts = np.bincount(turns, minlength=len(self._records))
            self._turns_so_far = self._turns_so_far + counts
            holders: tuple[int, ...] = ()
            if self._algorithm.release_of(r) != ():
                holders = tuple(turns.tolist())
            self._holders.append(holders)
        return self._holders[t]
