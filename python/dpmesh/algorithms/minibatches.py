"""Local mini-batches of many clients at once: shuffled records, cut up step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmesh import kernels
from dpmesh._ragged import Indices, Ragged, Walks
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

    def walks(self, records: Ragged, clients: Indices, stream: Stream) -> Walks:
        """Return the batches of every client in the order of its local steps.

        Parameters
        ----------
        records
            The records of each client.
        clients
            Their numbers: a client's order depends on its own number, not on who else is there.
        stream
            Randomness of the order, for this round.
        """
        sizes = records[0][1:] - records[0][:-1]
        per_pass = -(-sizes // self.batch_size)
        if self.epochs is not None:
            steps, lengths = self.epochs * per_pass, self.epochs * sizes
        else:
            assert self.steps is not None
            steps = np.where(per_pass > 0, self.steps, 0)
            full_passes, rest = np.divmod(steps, np.maximum(per_pass, 1))
            lengths = full_passes * sizes + rest * self.batch_size
        order = kernels.shuffle(records, lengths, stream, nodes=clients)

        first = np.concatenate(([0], np.cumsum(steps)))
        before, in_pass, left = (np.repeat(x, steps) for x in (first[:-1], per_pass, sizes))
        left -= (np.arange(first[-1]) - before) % in_pass * self.batch_size
        batch = np.minimum(self.batch_size, left)
        return Walks(first, (np.concatenate(([0], np.cumsum(batch))), order))


def without_replacement(records: Ragged, size: int, stream: Stream) -> Ragged:
    """Draw `size` different records of each node, uniformly; a node has at least so many."""
    indptr, indices = records
    places = kernels.sample(np.diff(indptr), size, stream)
    chosen = indices[indptr[:-1, np.newaxis] + places]
    return np.arange(len(indptr)) * size, chosen.reshape(-1)
