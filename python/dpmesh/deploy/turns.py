"""Whose turn it is in each round, where messages travel by token: from public numbers alone."""

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
        Draws them.
    records
        How many records each node has, shape (nodes,).
    key
        Of the public coins.
    """

    def __init__(self, algorithm: AnyAlgorithm, records: Indices, key: Key) -> None:
        self._algorithm, self._records, self._key = algorithm, records, key
        self._turns_so_far = np.zeros(len(records), np.int64)
        self._holders: list[tuple[int, ...]] = []

    def holders(self, t: int) -> tuple[int, ...]:
        """Return the nodes that hold the token in round t, in their order.

        Nobody holds it in a round in which nothing is released.
        """
        for r in range(len(self._holders), t + 1):
            turns = self._algorithm.senders(r, self._turns_so_far, self._records, self._key)
            counts = np.bincount(turns, minlength=len(self._records))
            self._turns_so_far = self._turns_so_far + counts
            releases_something = self._algorithm.release_of(r) != ()
            self._holders.append(tuple(turns.tolist()) if releases_something else ())
        return self._holders[t]
