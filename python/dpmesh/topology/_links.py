"""Links of large graphs, from flat arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

Ends = npt.NDArray[np.int64]


def links_of(nodes: int, i: Ends, j: Ends) -> sparse.csr_array:
    """Return the symmetric matrix of links between `i` and `j`, without self-loops, each once."""
    linked = i != j
    i, j = i[linked], j[linked]
    links = sparse.coo_array((np.ones(len(i)), (i, j)), shape=(nodes, nodes)).tocsr()
    links += links.T
    links.data[:] = 1.0
    return links


def torus_links(rows: int, columns: int) -> sparse.csr_array:
    """Link each cell of a grid that wraps around to the next in its row and in its column."""
    cells = np.arange(rows * columns).reshape(rows, columns)
    following = [np.roll(cells, -1, axis).ravel() for axis in (0, 1)]
    return links_of(cells.size, np.tile(cells.ravel(), 2), np.concatenate(following))


def regular_links(nodes: int, degree: int, generator: np.random.Generator) -> sparse.csr_array:
    """Draw a graph with `degree` links at each node, almost uniformly.

    Free ends of links are paired at random; pairs that would be a loop or a second link are free
    again. Where no pair of free ends can be linked, all begins anew (Steger and Wormald, 1999).
    """
    while True:
        free, links = np.repeat(np.arange(nodes), degree), np.empty(0, np.int64)
        while len(free):
            i, j = np.sort(generator.permutation(free).reshape(-1, 2)).T
            pairs = i * nodes + j
            kept, first = np.unique(pairs, return_index=True)
            is_new = (i[first] != j[first]) & ~np.isin(kept, links)
            if not is_new.any() and not _can_link(free, links, nodes):
                break
            links = np.concatenate((links, kept[is_new]))
            free = np.delete(np.stack((i, j), axis=1), first[is_new], axis=0).ravel()
        else:
            return links_of(nodes, *np.divmod(links, nodes))


def _can_link(free: Ends, links: Ends, nodes: int) -> bool:
    i, j = np.triu_indices(len(ends := np.unique(free)), 1)
    return not np.isin(ends[i] * nodes + ends[j], links).all()
