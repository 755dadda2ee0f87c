"""Assignment of nodes to processes (MPI ranks), and the rows that these exchange in a round.

A *row* is the message of one node. For a given rank, *local* nodes are the nodes of the rank, and
*foreign* nodes are nodes of other ranks that send to them.
"""

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
    """Assign the nodes of a graph to ranks: nearly equal numbers, and few rows between ranks.

    Of several partitions, the one with the fewest rows that any rank receives is returned. One
    partition divides the reverse Cuthill-McKee order of the nodes, in which neighbours are close
    together. If `pymetis` is installed, partitions by METIS are tried, too.

    Parameters
    ----------
    weights
        Mixing matrix, shape (nodes, nodes), whose positive entries are the links.
    ranks
        Number of ranks, from 1 to the number of nodes.

    Returns
    -------
    Indices of the nodes of each rank, ascending.

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
    """Return the largest number of foreign rows that a part receives."""
    return max(len(_foreign(weights, part)) for part in parts)


def _metis_partitions(links: sparse.csr_matrix, ranks: int) -> list[list[Nodes]]:
    """Return two partitions by METIS: by recursive bisection, and into all parts at once."""
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
    """Rows that one rank sends, receives and mixes in a round with a given mixing matrix.

    Parameters
    ----------
    weights
        The local nodes' rows of the mixing matrix, shape (local, local + foreign), with columns for
        the local nodes and then for the foreign nodes. Entries keep their order within a row, so
        that sums are rounded as in one process.
    send
        Local rows that each rank needs, one array of row numbers for each rank.
    receive
        Number of rows from each rank. They arrive rank by rank, with ascending nodes.
    """

    weights: sparse.csr_array
    send: list[Nodes]
    receive: list[int]


def boundary(weights: sparse.csr_array, parts: list[Nodes], rank: int) -> Boundary:
    """Return the rows that a rank sends, receives and mixes in a round with this mixing matrix.

    Parameters
    ----------
    weights
        The public mixing matrix, shape (nodes, nodes).
    parts
        Nodes of each rank.
    rank
        Index of the rank.
    """
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
    """Return the nodes outside of a part that send to nodes in it, ascending."""
    return np.setdiff1d(weights[part].indices, part).astype(np.int64)
