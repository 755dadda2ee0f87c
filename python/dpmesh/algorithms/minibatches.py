"""Local mini-batches of many clients at once: shuffled records, cut up step by step."""

from __future__ import annotations

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._ragged import Indices, Ragged, Walks
from dpmesh.keys import Stream


def local_walks(
    records: Ragged,
    clients: Indices,
    stream: Stream,
    *,
    batch_size: int,
    local_epochs: int | None,
    local_steps: int | None,
) -> Walks:
    """Return the batches of every client in the order of its local steps.

    Every pass over a client's records is in a new random order, cut into batches of `batch_size`;
    the last batch of a pass is shorter if `batch_size` does not divide their number.

    Parameters
    ----------
    records
        The records of each client.
    clients
        Their indices: a client's order depends on its own index, not on which others take part.
    stream
        Randomness of the order, for this round.
    batch_size
        At least 1.
    local_epochs, local_steps
        Exactly one of them: passes of each client, or batches of each client that has records, over
        as many passes as that takes.
    """
    sizes = records[0][1:] - records[0][:-1]
    per_pass = -(-sizes // batch_size)
    if local_epochs is not None:
        steps, lengths = local_epochs * per_pass, local_epochs * sizes
    else:
        steps = np.where(per_pass > 0, local_steps or 0, 0)
        full_passes, rest = np.divmod(steps, np.maximum(per_pass, 1))
        lengths = full_passes * sizes + rest * batch_size
    order = kernels.shuffle(records, lengths, stream, nodes=clients)
    ends = kernels.batch_ends(sizes, steps, batch_size)
    return Walks(np.concatenate(([0], np.cumsum(steps))), (ends, order))


def without_replacement(records: Ragged, size: int, stream: Stream) -> Ragged:
    """Draw `size` different records of each node uniformly; each must have that many."""
    indptr, indices = records
    places = kernels.sample(indptr[1:] - indptr[:-1], size, stream)
    chosen = indices[indptr[:-1, np.newaxis] + places]
    return np.arange(len(indptr)) * size, chosen.reshape(-1)
