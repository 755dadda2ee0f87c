"""The assignment of nodes to processes, and the rows that must travel between them in a round."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import util

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee

from dpmesh._validate import integer

Nodes = npt.NDArray[np.int64]


def blocks(weights: sparse.csr_array, ranks: int) -> list[Nodes]:
    """Assign the nodes of a graph to ranks, nearly equally many to each, so that few rows travel.

    This is the best of some cuts: runs of the reverse Cuthill-McKee order, in which neighbours lie
    close together, and, if `pymetis` is installed, what METIS finds.

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
    nodes = weights.shape[0]
    integer("ranks", ranks, at_least=1, below=nodes + 1)
    if ranks == 1:
        return [np.arange(nodes)]
    links = sparse.csr_matrix(weights + weights.T)
    links.setdiag(0)
    links.eliminate_zeros()
    order = reverse_cuthill_mckee(links, symmetric_mode=True)
    cuts = [[np.sort(run).astype(np.int64) for run in np.array_split(order, ranks)]]
    if util.find_spec("pymetis") is not None:
        cuts += [cut for cut in _by_metis(links, ranks) if _is_even(cut, nodes)]
    return min(cuts, key=lambda cut: max(len(_foreign(weights, part)) for part in cut))


def _by_metis(links: sparse.csr_matrix, ranks: int) -> list[list[Nodes]]:
    """Return the cuts that METIS finds by multilevel bisection, and into all parts at once."""
    import pymetis

    graph = pymetis.CSRAdjacency(links.indptr, links.indices)
    options = pymetis.Options(ncuts=4, seed=0, ufactor=1)
    found = (
        pymetis.part_graph(ranks, graph, recursive=recursive, options=options)
        for recursive in (True, False)
    )
    owners = [np.asarray(partition.vertex_part) for partition in found]
    return [[np.flatnonzero(owner == rank) for rank in range(ranks)] for owner in owners]


def _is_even(cut: list[Nodes], nodes: int) -> bool:
    """Whether no rank holds over 1% more nodes than an equal share, and none is empty."""
    sizes = [len(part) for part in cut]
    return min(sizes) > 0 and max(sizes) <= max(-(-nodes // len(cut)), 1.01 * nodes / len(cut))


@dataclass(frozen=True, eq=False)
class Boundary:
    """What one rank sends, receives and sums in a round with a given mixing matrix.

    Parameters
    ----------
    weights
        Shape (own, own + foreign): the rank's rows of the matrix, over its own nodes and then the
        foreign ones that these hear. Each row keeps the order of its entries, and with it the
        rounding of its sum.
    send
        For each rank: which of this rank's rows it needs.
    receive
        For each rank: how many rows come from it. They arrive rank by rank, nodes ascending.
    """

    weights: sparse.csr_array
    send: list[Nodes]
    receive: list[int]


def boundary(weights: sparse.csr_array, parts: list[Nodes], rank: int) -> Boundary:
    """Return the boundary of a rank; every rank computes its own from the public matrix."""
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
    """Return the nodes outside a part that nodes in it hear, ascending."""
    return np.setdiff1d(weights[part].indices, part).astype(np.int64)
