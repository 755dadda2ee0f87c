"""The assignment of nodes to processes, and the rows that must travel between them in a round."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import util
from math import ceil

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee

from dpmesh._validate import integer

Nodes = npt.NDArray[np.int64]


def blocks(weights: sparse.csr_array, ranks: int) -> list[Nodes]:
    """Assign the nodes of a graph to ranks, nearly equally many to each, so that few rows travel.

    This is the best of some partitions: runs of the reverse Cuthill-McKee order, in which
    neighbours lie close together, and, if `pymetis` is installed, those of METIS.

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
    runs = np.array_split(order, ranks)
    candidates = [[np.sort(run).astype(np.int64) for run in runs]]
    if util.find_spec("pymetis") is not None:
        partitions = _metis_partitions(links, ranks)
        candidates += [parts for parts in partitions if _is_even(parts, nodes)]
    return min(candidates, key=lambda parts: _largest_boundary(weights, parts))


def _largest_boundary(weights: sparse.csr_array, parts: list[Nodes]) -> int:
    """Return the largest number of rows that a part receives from outside."""
    return max(len(_foreign(weights, part)) for part in parts)


def _metis_partitions(links: sparse.csr_matrix, ranks: int) -> list[list[Nodes]]:
    """Partition by METIS: by multilevel bisection, and into all parts at once."""
    import pymetis

    graph = pymetis.CSRAdjacency(links.indptr, links.indices)
    options = pymetis.Options(ncuts=4, seed=0, ufactor=1)
    partitions = []
    for recursive in (True, False):
        result = pymetis.part_graph(ranks, graph, recursive=recursive, options=options)
        owners = np.asarray(result.vertex_part)
        partitions.append([np.flatnonzero(owners == rank) for rank in range(ranks)])
    return partitions


def _is_even(parts: list[Nodes], nodes: int) -> bool:
    """Return True if no part is empty or over 1% larger than an equal share."""
    sizes = [len(part) for part in parts]
    share = nodes / len(parts)
    largest_allowed = max(ceil(share), 1.01 * share)
    return min(sizes) > 0 and max(sizes) <= largest_allowed


@dataclass(frozen=True, eq=False)
class Boundary:
    """The rows that one rank sends, receives and sums in a round with a given mixing matrix.

    Parameters
    ----------
    weights
        Shape (local, local + foreign): the rank's rows of the matrix, over its own nodes and then
        the foreign ones that send to these. Each row keeps the order of its entries, and with it
        the rounding of its sum.
    send
        For each rank, the rows of this rank that it needs.
    receive
        For each rank, the number of rows from it. They arrive rank by rank, nodes ascending.
    """

    weights: sparse.csr_array
    send: list[Nodes]
    receive: list[int]


def boundary(weights: sparse.csr_array, parts: list[Nodes], rank: int) -> Boundary:
    """Return the boundary of a rank; every rank computes its own from the public matrix."""
    nodes = weights.shape[0]
    owner = np.empty(nodes, dtype=np.int64)
    for number, part in enumerate(parts):
        owner[part] = number
    foreign_by_rank = [_foreign(weights, part) for part in parts]
    local = parts[rank]
    foreign = foreign_by_rank[rank]
    foreign = foreign[np.argsort(owner[foreign], kind="stable")]
    place = np.empty(nodes, dtype=np.int64)
    place[local] = np.arange(len(local))
    place[foreign] = len(local) + np.arange(len(foreign))
    local_rows = weights[local]
    local_weights = sparse.csr_array(
        (local_rows.data, place[local_rows.indices], local_rows.indptr),
        shape=(len(local), len(local) + len(foreign)),
    )
    send = []
    for needed_nodes in foreign_by_rank:
        local_needed = needed_nodes[owner[needed_nodes] == rank]
        send.append(place[local_needed])
    receive = np.bincount(owner[foreign], minlength=len(parts))
    return Boundary(local_weights, send, receive.tolist())


def _foreign(weights: sparse.csr_array, part: Nodes) -> Nodes:
    """Return the nodes outside a part that send to nodes in it, ascending."""
    return np.setdiff1d(weights[part].indices, part).astype(np.int64)
