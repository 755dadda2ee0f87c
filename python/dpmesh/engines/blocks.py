"""Nodes dealt out to processes, and the rows that must travel between those for a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee

from dpmesh._validate import integer

Nodes = npt.NDArray[np.int64]


def blocks(weights: sparse.csr_array, ranks: int) -> list[Nodes]:
    """Deal the nodes of a graph out to ranks: equally many to each, with few links across.

    The nodes are cut into runs of the reverse Cuthill-McKee order, in which neighbours lie close
    together.

    Parameters
    ----------
    weights
        Shape (nodes, nodes): a mixing matrix; its positive entries are the links.
    ranks
        At least 1 and at most the number of nodes.

    Returns
    -------
    The nodes of each rank, ascending.

    Raises
    ------
    ValueError
        If there are more ranks than nodes.
    """
    integer("ranks", ranks, at_least=1, below=weights.shape[0] + 1)
    order = reverse_cuthill_mckee(sparse.csr_matrix(weights + weights.T), symmetric_mode=True)
    return [np.sort(block).astype(np.int64) for block in np.array_split(order, ranks)]


@dataclass(frozen=True, eq=False)
class Boundary:
    """What one rank sends, receives and sums in a round with a given mixing matrix.

    Parameters
    ----------
    weights
        Shape (own, own + foreign): the rank's rows of the matrix, over its own nodes and then the
        foreign ones that these hear. Each row keeps the order of its entries, and so the rounding
        of its sum.
    send
        For each rank: which of the own rows it needs.
    receive
        For each rank: how many rows come from it. They arrive rank by rank, nodes ascending.
    """

    weights: sparse.csr_array
    send: list[Nodes]
    receive: list[int]


def boundary(weights: sparse.csr_array, parts: list[Nodes], rank: int) -> Boundary:
    """Return the boundary of a rank; every rank works out its own from the public matrix."""
    owner = np.empty(weights.shape[0], dtype=np.int64)
    for number, part in enumerate(parts):
        owner[part] = number
    heard = [_foreign(weights, part) for part in parts]
    mine, foreign = parts[rank], heard[rank]
    foreign = foreign[np.argsort(owner[foreign], kind="stable")]
    place = np.empty(weights.shape[0], dtype=np.int64)
    place[mine] = np.arange(len(mine))
    place[foreign] = len(mine) + np.arange(len(foreign))
    rows = weights[mine]
    return Boundary(
        sparse.csr_array(
            (rows.data, place[rows.indices], rows.indptr),
            shape=(len(mine), len(mine) + len(foreign)),
        ),
        [place[needed[owner[needed] == rank]] for needed in heard],
        np.bincount(owner[foreign], minlength=len(parts)).tolist(),
    )


def _foreign(weights: sparse.csr_array, part: Nodes) -> Nodes:
    """Return the nodes that those of a part hear and that are not in it, ascending."""
    return np.setdiff1d(weights[part].indices, part).astype(np.int64)
