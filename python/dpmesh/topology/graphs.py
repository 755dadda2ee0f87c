"""Common graphs as static topologies, and weights that make their matrices doubly stochastic."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Hashable, Iterable
from types import NoneType
from typing import Literal, TypeAlias

import networkx as nx
import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from dpmesh._ragged import Indices
from dpmesh._validate import fail, instance, integer, one_of, probability
from dpmesh.keys import Key
from dpmesh.topology.matrix import MixingMatrix
from dpmesh.topology.topology import Static, Use, public_generator

Weights: TypeAlias = Literal["metropolis", "max_degree", "equal"]
"""How a link (i, j) between nodes of degrees d_i and d_j is weighted.

``"metropolis"``
    1 / (1 + max(d_i, d_j)): each node needs to know its neighbours' degrees only.
``"max_degree"``
    1 / (1 + d), where d is the largest degree of the graph.
``"equal"``
    1 / d for each neighbour and nothing for the node itself; for regular graphs only. On an even
    ring, or any other bipartite graph, gossip then never converges: the spectral gap is 0.

With the first two a node keeps the rest of 1 for itself. On a regular graph they are the same.
"""


def weigh(links: sparse.csr_array, weights: Weights = "metropolis") -> MixingMatrix:
    """Return the mixing matrix of an undirected graph.

    Parameters
    ----------
    links
        Shape (nodes, nodes), symmetric: each nonzero entry is a link. The diagonal is ignored.
    weights
        ``"metropolis"``, ``"max_degree"`` or ``"equal"``, see `Weights`.

    Raises
    ------
    ValueError
        If `weights` is unknown, or is ``"equal"`` and the graph is not regular.
    """
    one_of("weights", weights, ("metropolis", "max_degree", "equal"))
    links = links.tocoo()
    off_diagonal = (links.row != links.col) & (links.data != 0)
    i, j = links.row[off_diagonal], links.col[off_diagonal]
    nodes = links.shape[0]
    degrees = np.bincount(i, minlength=nodes)
    if weights == "equal":
        least, most = int(degrees.min()), int(degrees.max())
        if least != most:
            wanted = "'metropolis' or 'max_degree' for a graph that is not regular"
            fail("weights", wanted, f"'equal' for degrees from {least} to {most}")
        share = np.full(len(i), 1 / max(most, 1))
    elif weights == "max_degree":
        share = np.full(len(i), 1 / (1 + degrees.max()))
    else:
        share = 1 / (1 + np.maximum(degrees[i], degrees[j]))
    sent = sparse.csr_array((share, (i, j)), shape=(nodes, nodes))
    own = 1.0 * (degrees == 0) if weights == "equal" else 1 - sent.sum(axis=1)
    return MixingMatrix(sent + sparse.diags_array(own))


Ends = Indices


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


ATTEMPTS = 100
"""The most draws of a random graph in search of a connected one."""


def from_networkx(
    graph: nx.Graph,
    *,
    nodelist: Iterable[Hashable] | None = None,
    weights: Weights = "metropolis",
    description: str = "given graph",
) -> Static:
    """Return the topology of any connected undirected graph.

    Parameters
    ----------
    graph
        Self-loops, parallel edges and attributes are ignored.
    nodelist
        The graph's nodes in the order of the topology's: ``sorted(graph)`` for nodes named like the
        users of `data.by_user`. By default as in ``graph.nodes``, where a graph read from a file
        has them in the order of the file.
    weights
        ``"metropolis"``, ``"max_degree"`` or ``"equal"``, see `dpmesh.topology.Weights`.
    description
        The name in reports.

    Raises
    ------
    ValueError
        If the graph is empty, directed or not connected, `nodelist` is not an order of its nodes,
        or `weights` is ``"equal"`` and the graph is not regular.

    Examples
    --------
    >>> import dpmesh as dm
    >>> import networkx as nx
    >>> dm.topology.from_networkx(nx.petersen_graph())
    Static(mixing_matrix=MixingMatrix(10 nodes, 30 messages a round), description='given graph')
    """
    if not isinstance(graph, nx.Graph) or graph.is_directed():
        fail("graph", "an undirected networkx graph", type(graph).__name__)
    if not len(graph):
        fail("graph", "at least 1 node", "none")
    wanted = "an order of the graph's nodes, such as sorted(graph)"
    instance("nodelist", nodelist, wanted, Iterable, NoneType)
    order = [*(graph if nodelist is None else nodelist)]
    found = {node for node in order if node in graph}
    if not len(found) == len(order) == len(graph):
        fail("nodelist", f"each of the {len(graph)} nodes of the graph once", reprlib.repr(order))
    links = _links(graph, order)
    if not _is_connected(links):
        fail("graph", "a connected one", f"{graph} in several parts")
    return Static(weigh(links, weights), description)


def ring(nodes: int, *, weights: Weights = "metropolis") -> Static:
    """Each node receives from its two neighbours on a cycle.

    Raises
    ------
    ValueError
        If `nodes` is not an integer of at least 1, or `weights` are unknown.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.topology.ring(4).matrix(0).weights.toarray().round(3)
    array([[0.333, 0.333, 0.   , 0.333],
           [0.333, 0.333, 0.333, 0.   ],
           [0.   , 0.333, 0.333, 0.333],
           [0.333, 0.   , 0.333, 0.333]])
    """
    links = torus_links(1, integer("nodes", nodes, at_least=1))
    return Static(weigh(links, weights), "ring")


def complete(nodes: int, *, weights: Weights = "metropolis") -> Static:
    """Everyone receives from everyone: one round with Metropolis weights computes the mean.

    Raises
    ------
    ValueError
        If `nodes` is not an integer of at least 1, or `weights` are unknown.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.topology.complete(16).matrix(0).spectral_gap
    0.9999999999999984
    """
    nodes = integer("nodes", nodes, at_least=1)
    everyone = sparse.csr_array(np.ones((nodes, nodes)))
    return Static(weigh(everyone, weights), "complete graph")


def star(nodes: int, *, weights: Weights = "metropolis") -> Static:
    """Node 0 receives from all others, and they receive from it alone.

    Raises
    ------
    ValueError
        If `nodes` is not an integer of at least 1, or `weights` are unknown, or ``"equal"``, which
        a star of more than 2 nodes cannot have.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.topology.star(5)
    Static(mixing_matrix=MixingMatrix(5 nodes, 8 messages a round), description='star')
    """
    graph = nx.star_graph(integer("nodes", nodes, at_least=1) - 1)
    return from_networkx(graph, weights=weights, description="star")


def torus(rows: int, columns: int, *, weights: Weights = "metropolis") -> Static:
    """A grid that wraps around; node ``row * columns + column`` receives from the four next to it.

    Parameters
    ----------
    rows
        Rows of the grid.
    columns
        Columns of the grid.

    Raises
    ------
    ValueError
        If a length is not an integer of at least 1, or `weights` are unknown.

    Examples
    --------
    >>> import dpmesh as dm
    >>> str(dm.topology.torus(4, 4))
    'torus of 4 x 4 (16 nodes)'
    """
    rows, columns = integer("rows", rows, at_least=1), integer("columns", columns, at_least=1)
    links = torus_links(rows, columns)
    return Static(weigh(links, weights), f"torus of {rows} x {columns}")


def random_regular(nodes: int, degree: int, *, key: Key, weights: Weights = "metropolis") -> Static:
    """A connected random graph in which each node has `degree` neighbours: an expander from 3 up.

    Parameters
    ----------
    degree
        Neighbours of each node.

    Raises
    ------
    ValueError
        If no such graph exists (``nodes * degree`` odd, or `degree` not below `nodes`), or none of
        100 draws is connected.

    Examples
    --------
    >>> import dpmesh as dm
    >>> str(dm.topology.random_regular(100, 4, key=dm.Key.seeded(1)))
    'random 4-regular graph (100 nodes)'
    """
    nodes = integer("nodes", nodes, at_least=1)
    degree = integer("degree", degree, below=nodes)
    if nodes * degree % 2:
        fail("degree", f"an even number for {nodes} nodes", degree)
    links = _connected(
        lambda seed: regular_links(nodes, degree, np.random.default_rng(seed)),
        public_generator(key, Use.RANDOM_REGULAR),
        argument="degree",
        got=degree,
    )
    return Static(weigh(links, weights), f"random {degree}-regular graph")


def erdos_renyi(
    nodes: int, edge_probability: float, *, key: Key, weights: Weights = "metropolis"
) -> Static:
    """A connected random graph in which each pair is linked with probability `edge_probability`.

    Parameters
    ----------
    edge_probability
        Probability that two nodes are linked.

    Raises
    ------
    ValueError
        If an argument does not fit, or none of 100 draws is connected: then `edge_probability` is
        well below ln(nodes) / nodes.

    Examples
    --------
    >>> import dpmesh as dm
    >>> str(dm.topology.erdos_renyi(16, 0.4, key=dm.Key.seeded(1)))
    'Erdos-Renyi graph of edge probability 0.4 (16 nodes)'
    """
    nodes = integer("nodes", nodes, at_least=1)
    edge_probability = probability("edge_probability", edge_probability)
    drawn = edge_probability if 1 - edge_probability < 1 else 0.0  # networkx divides by log(1 - p)
    links = _connected(
        lambda seed: _links(nx.fast_gnp_random_graph(nodes, drawn, seed=seed)),
        public_generator(key, Use.ERDOS_RENYI),
        argument="edge_probability",
        got=edge_probability,
    )
    return Static(
        weigh(links, weights), f"Erdos-Renyi graph of edge probability {edge_probability:g}"
    )


def _connected(
    draw: Callable[[int], sparse.csr_array],
    generator: np.random.Generator,
    *,
    argument: str,
    got: float,
) -> sparse.csr_array:
    """Draw graphs until one is connected, and return its links."""
    seeds = generator.integers(2**63, size=ATTEMPTS).tolist()
    links = next(filter(_is_connected, map(draw, seeds)), None)
    if links is None:
        fail(argument, f"one that gives a connected graph within {ATTEMPTS} draws", got)
    return links


def _is_connected(links: sparse.csr_array) -> bool:
    return bool(connected_components(links, directed=False, return_labels=False) == 1)


def _links(graph: nx.Graph, order: list[Hashable] | None = None) -> sparse.csr_array:
    return nx.to_scipy_sparse_array(graph, order, weight=None)
