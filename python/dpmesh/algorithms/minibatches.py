"""Local mini-batches of many clients at once: shuffled records, cut up step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpmesh import kernels
from dpmesh._ragged import Indices, Ragged, slices
from dpmesh.keys import Stream


@dataclass(frozen=True)
class LocalSteps:
    """How each client walks through its own records.

    Every pass over the records is in a new random order, cut into batches of `batch_size`; the last
    batch of a pass is shorter if the records do not divide.

    Parameters
    ----------
    batch_size
        At least 1.
    epochs
        Number of passes of each client; if None, `steps` counts.
    steps
        Number of batches of each client that has records, over as many passes as that takes.
    """

    batch_size: int
    epochs: int | None = None
    steps: int | None = None

    def batches(self, records: Ragged, clients: Indices, stream: Stream) -> Iterator[Ragged]:
        """Yield the batch of every client in each local step; empty once a client has finished.

        Parameters
        ----------
        records
            The records of each client.
        clients
            Their numbers: a client's order depends on its own number, not on who else is there.
        stream
            Randomness of the order, for this round.
        """
        indptr, _ = records
        sizes = np.diff(indptr)
        per_pass = -(-sizes // self.batch_size)
        passes, steps = self._passes_and_steps(per_pass)
        order = _shuffled_passes(records, passes, clients, stream)
        for i in range(int(steps.max(initial=0))):
            full_passes, k = np.divmod(i, np.maximum(per_pass, 1))
            starts = passes * indptr[:-1] + full_passes * sizes + k * self.batch_size
            lengths = np.minimum(self.batch_size, sizes - k * self.batch_size)
            yield slices(order, starts, np.where(i < steps, lengths, 0))

    def _passes_and_steps(self, per_pass: Indices) -> tuple[int, Indices]:
        """Return the passes that suffice for all clients, and the number of steps of each."""
        if self.epochs is not None:
            return self.epochs, self.epochs * per_pass
        assert self.steps is not None
        shortest = int(per_pass[per_pass > 0].min(initial=self.steps))
        return -(-self.steps // shortest), np.where(per_pass > 0, self.steps, 0)


def _shuffled_passes(records: Ragged, passes: int, clients: Indices, stream: Stream) -> Indices:
    """Return the records of each client `passes` times, each time in a new order, end to end."""
    indptr, indices = records
    sizes = np.diff(indptr)
    if not len(indices):
        return indices
    coins = kernels.uniform((len(sizes), passes * int(sizes.max())), stream, nodes=clients)
    used = coins[np.arange(coins.shape[1]) < passes * sizes[:, np.newaxis]]
    lengths = np.repeat(sizes, passes)  # of every pass of every client
    where = slices(indices, np.repeat(indptr[:-1], passes), lengths)[1]
    return where[np.lexsort((used, np.repeat(np.arange(len(lengths)), lengths)))]


def without_replacement(records: Ragged, size: int, stream: Stream) -> Ragged:
    """Draw `size` different records of each node, uniformly; a node has at least so many."""
    indptr, indices = records
    counts = np.diff(indptr)
    coins = kernels.uniform((len(counts), int(counts.max())), stream)
    coins[np.arange(coins.shape[1]) >= counts[:, np.newaxis]] = 1.0  # above every coin
    places = np.argpartition(coins, size - 1, axis=1)[:, :size]
    chosen = indices[indptr[:-1, np.newaxis] + places]
    return np.arange(len(counts) + 1) * size, chosen.reshape(-1)
