"""Holders of the token in each round, from public numbers alone."""

from __future__ import annotations

import numpy as np

from dpmesh._ragged import Indices
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.keys import Key


class Turns:
    """The holders of a token.

    Parameters
    ----------
    algorithm
        The algorithm, which draws them.
    records
        Number of records of each node, shape (nodes,).
    key
        The key of the public coins.
    """

    def __init__(self, algorithm: AnyAlgorithm, records: Indices, key: Key) -> None:
        self._algorithm = algorithm
        self._records = records
        self._key = key
        self._turns_so_far = np.zeros(len(records), np.int64)
        self._holders: list[tuple[int, ...]] = []

    def holders(self, t: int) -> tuple[int, ...]:
        """Return the nodes that hold the token in round t, in their order.

        No node holds it in a round in which nothing is released.
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
