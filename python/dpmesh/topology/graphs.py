"""Common graphs as static topologies, with weights that make their matrices doubly stochastic."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Hashable, Iterable
from types import NoneType
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from dpmesh._ragged import Indices
from dpmesh._validate import fail, instance, integer, one_of, probability
from dpmesh.keys import Key
from dpmesh.topology.matrix import MixingMatrix
from dpmesh.topology.topology import Static, Use, public_generator

if TYPE_CHECKING:
    import networkx as nx

Weights: TypeAlias = Literal["metropolis", "max_degree", "equal"]
"""Weight of a link (i, j) between nodes of degrees d_i and d_j.

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
    i = links.row[off_diagonal]
    j = links.col[off_diagonal]
    nodes = links.shape[0]
    degrees = np.bincount(i, minlength=nodes)
    largest_degree = int(degrees.max())
    if weights == "equal":
        _require_regular(degrees)
        link_weights = np.full(len(i), 1 / max(largest_degree, 1))
    elif weights == "max_degree":
        link_weights = np.full(len(i), 1 / (1 + largest_degree))
    else:
        link_weights = 1 / (1 + np.maximum(degrees[i], degrees[j]))
    off_diagonal_part = sparse.csr_array((link_weights, (i, j)), shape=(nodes, nodes))
    if weights == "equal":
        is_isolated = degrees == 0
        diagonal = is_isolated.astype(np.float64)
    else:
        diagonal = 1 - off_diagonal_part.sum(axis=1)
    return MixingMatrix(off_diagonal_part + sparse.diags_array(diagonal))


def _require_regular(degrees: Indices) -> None:
    """Fail unless all nodes have the same degree."""
    least = int(degrees.min())
    most = int(degrees.max())
    if least != most:
        expectation = "'metropolis' or 'max_degree' for a graph that is not regular"
        fail("weights", expectation, f"'equal' for degrees from {least} to {most}")


Ends = Indices
"""Indices of the nodes at one end of each link, shape (links,)."""


def links_of(nodes: int, i: Ends, j: Ends) -> sparse.csr_array:
    """Return the symmetric matrix of links between `i` and `j`, without self-loops, each once."""
    is_link = i != j
    ends = (i[is_link], j[is_link])
    ones = np.ones(np.count_nonzero(is_link))
    links = sparse.coo_array((ones, ends), shape=(nodes, nodes)).tocsr()
    links += links.T
    links.data[:] = 1.0
    return links


def torus_links(rows: int, columns: int) -> sparse.csr_array:
    """Return the links of a torus: each cell of a grid to the next one in its row and column."""
    cells = np.arange(rows * columns).reshape(rows, columns)
    below = np.roll(cells, -1, axis=0).ravel()
    right = np.roll(cells, -1, axis=1).ravel()
    return links_of(cells.size, np.tile(cells.ravel(), 2), np.concatenate([below, right]))


def regular_links(nodes: int, degree: int, generator: np.random.Generator) -> sparse.csr_array:
    """Draw a graph with `degree` links at each node, almost uniformly.

    Half-edges of the nodes are paired at random. Pairs that would be a self-loop or a parallel link
    are drawn again. If no remaining pair can be linked, the draw restarts (Steger and Wormald,
    1999).
    """
    while True:
        links = _paired_half_edges(nodes, degree, generator)
        if links is not None:
            i, j = np.divmod(links, nodes)
            return links_of(nodes, i, j)


def _paired_half_edges(nodes: int, degree: int, generator: np.random.Generator) -> Indices | None:
    """Pair all half-edges, and return the links; None if some half-edges cannot be linked.

    A link between nodes i < j is the number ``i * nodes + j``.
    """
    half_edges = np.repeat(np.arange(nodes), degree)
    links = np.empty(0, np.int64)
    while len(half_edges):
        pairs = generator.permutation(half_edges).reshape(-1, 2)
        pairs.sort(axis=1)
        numbers = pairs[:, 0] * nodes + pairs[:, 1]
        distinct, first = np.unique(numbers, return_index=True)
        is_loop = pairs[first, 0] == pairs[first, 1]
        is_new = ~is_loop & ~np.isin(distinct, links)
        if not is_new.any() and not _can_link(half_edges, links, nodes):
            return None
        links = np.concatenate((links, distinct[is_new]))
        half_edges = np.delete(pairs, first[is_new], axis=0).ravel()
    return links


def _can_link(half_edges: Ends, links: Indices, nodes: int) -> bool:
    """Return True if two different nodes with half-edges left are not linked yet."""
    candidates = np.unique(half_edges)
    i, j = np.triu_indices(len(candidates), 1)
    numbers = candidates[i] * nodes + candidates[j]
    return not np.isin(numbers, links).all()


ATTEMPTS = 100
"""Largest number of draws of a random graph until one is connected."""


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
        Connected undirected graph. Self-loops, parallel edges and attributes are ignored.
    nodelist
        Nodes of the graph in the order of the topology, such as ``sorted(graph)`` if the nodes are
        the users of `data.by_user`. By default the order of ``graph.nodes``, which for a graph read
        from a file is the order of the file.
    weights
        ``"metropolis"``, ``"max_degree"`` or ``"equal"``, see `dpmesh.topology.Weights`.
    description
        Name in reports and plots.

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
    import networkx as nx

    if not isinstance(graph, nx.Graph) or graph.is_directed():
        fail("graph", "an undirected networkx graph", type(graph).__name__)
    if not len(graph):
        fail("graph", "at least 1 node", "none")
    links = _adjacency(graph, _node_order(graph, nodelist))
    if not _is_connected(links):
        fail("graph", "a connected one", f"{graph} in several parts")
    return Static(weigh(links, weights), description)


def _node_order(graph: nx.Graph, nodelist: Iterable[Hashable] | None) -> list[Hashable]:
    """Return the order of the graph's nodes; fail unless `nodelist` names each of them once."""
    expectation = "an order of the graph's nodes, such as sorted(graph)"
    instance("nodelist", nodelist, expectation, Iterable, NoneType)
    if nodelist is None:
        return list(graph)
    order = list(nodelist)
    distinct = {node for node in order if node in graph}
    if not len(distinct) == len(order) == len(graph):
        fail("nodelist", f"each of the {len(graph)} nodes of the graph once", reprlib.repr(order))
    return order


def ring(nodes: int, *, weights: Weights = "metropolis") -> Static:
    """Return a ring: each node exchanges messages with the nodes before and after it.

    Parameters
    ----------
    nodes
        Number of nodes, at least 1.
    weights
        See `dpmesh.topology.Weights`.

    Raises
    ------
    ValueError
        If `nodes` is not an integer of at least 1, or `weights` is unknown.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.topology.ring(4).matrix(0).weights.toarray().round(3)
    array([[0.333, 0.333, 0.   , 0.333],
           [0.333, 0.333, 0.333, 0.   ],
           [0.   , 0.333, 0.333, 0.333],
           [0.333, 0.   , 0.333, 0.333]])
    """
    nodes = integer("nodes", nodes, at_least=1)
    links = torus_links(1, nodes)
    return Static(weigh(links, weights), "ring")


def complete(nodes: int, *, weights: Weights = "metropolis") -> Static:
    """Return a complete graph: with Metropolis weights all nodes have the mean after one round.

    Parameters
    ----------
    nodes
        Number of nodes, at least 1.
    weights
        See `dpmesh.topology.Weights`.

    Raises
    ------
    ValueError
        If `nodes` is not an integer of at least 1, or `weights` is unknown.

    Examples
    --------
    >>> import dpmesh as dm
    >>> round(dm.topology.complete(16).matrix(0).spectral_gap, 9)
    1.0
    """
    nodes = integer("nodes", nodes, at_least=1)
    all_links = sparse.csr_array(np.ones((nodes, nodes)))
    return Static(weigh(all_links, weights), "complete graph")


def star(nodes: int, *, weights: Weights = "metropolis") -> Static:
    """Return a star: node 0, the hub, is linked to all other nodes, which have no other links.

    Parameters
    ----------
    nodes
        Number of nodes, at least 1.
    weights
        See `dpmesh.topology.Weights`.

    Raises
    ------
    ValueError
        If `nodes` is not an integer of at least 1, or `weights` is unknown. Also if `weights` is
        ``"equal"`` for more than 2 nodes, since a star is not regular.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.topology.star(5)
    Static(mixing_matrix=MixingMatrix(5 nodes, 8 messages a round), description='star')
    """
    import networkx as nx

    nodes = integer("nodes", nodes, at_least=1)
    graph = nx.star_graph(nodes - 1)
    return from_networkx(graph, weights=weights, description="star")


def torus(rows: int, columns: int, *, weights: Weights = "metropolis") -> Static:
    """Return a torus: a grid that wraps around, with links between adjacent cells.

    The cell at ``row, column`` is node ``row * columns + column``.

    Parameters
    ----------
    rows
        Number of rows, at least 1.
    columns
        Number of columns, at least 1.
    weights
        See `dpmesh.topology.Weights`.

    Raises
    ------
    ValueError
        If `rows` or `columns` is not an integer of at least 1, or `weights` is unknown.

    Examples
    --------
    >>> import dpmesh as dm
    >>> str(dm.topology.torus(4, 4))
    'torus of 4 x 4 (16 nodes)'
    """
    rows = integer("rows", rows, at_least=1)
    columns = integer("columns", columns, at_least=1)
    links = torus_links(rows, columns)
    return Static(weigh(links, weights), f"torus of {rows} x {columns}")


def random_regular(nodes: int, degree: int, *, key: Key, weights: Weights = "metropolis") -> Static:
    """Draw a connected random graph in which each node has `degree` neighbours.

    From degree 3 on it is an expander with high probability.

    Parameters
    ----------
    nodes
        Number of nodes, at least 1.
    degree
        Number of neighbours of each node, below `nodes`.
    key
        Key from which the graph is drawn. The graph is public.
    weights
        See `dpmesh.topology.Weights`.

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

    def draw(seed: int) -> sparse.csr_array:
        return regular_links(nodes, degree, np.random.default_rng(seed))

    generator = public_generator(key, Use.RANDOM_REGULAR)
    links = _first_connected(draw, generator, argument="degree", got=degree)
    return Static(weigh(links, weights), f"random {degree}-regular graph")


def erdos_renyi(
    nodes: int, edge_probability: float, *, key: Key, weights: Weights = "metropolis"
) -> Static:
    """Draw a connected random graph that links each pair with probability `edge_probability`.

    Parameters
    ----------
    nodes
        Number of nodes, at least 1.
    edge_probability
        Probability that two nodes are linked, in [0, 1].
    key
        Key from which the graph is drawn. The graph is public.
    weights
        See `dpmesh.topology.Weights`.

    Raises
    ------
    ValueError
        If an argument is invalid, or none of 100 draws is connected, as for an `edge_probability`
        well below ln(nodes) / nodes.

    Examples
    --------
    >>> import dpmesh as dm
    >>> str(dm.topology.erdos_renyi(16, 0.4, key=dm.Key.seeded(1)))
    'Erdos-Renyi graph of edge probability 0.4 (16 nodes)'
    """
    import networkx as nx

    nodes = integer("nodes", nodes, at_least=1)
    edge_probability = probability("edge_probability", edge_probability)
    networkx_probability = edge_probability
    if 1 - edge_probability == 1:
        networkx_probability = 0.0  # networkx divides by log(1 - p)

    def draw(seed: int) -> sparse.csr_array:
        graph = nx.fast_gnp_random_graph(nodes, networkx_probability, seed=seed)
        return _adjacency(graph)

    generator = public_generator(key, Use.ERDOS_RENYI)
    links = _first_connected(draw, generator, argument="edge_probability", got=edge_probability)
    description = f"Erdos-Renyi graph of edge probability {edge_probability:g}"
    return Static(weigh(links, weights), description)


def _first_connected(
    draw: Callable[[int], sparse.csr_array],
    generator: np.random.Generator,
    *,
    argument: str,
    got: float,
) -> sparse.csr_array:
    """Draw graphs until one is connected; return its links. Errors name `argument`."""
    seeds = generator.integers(2**63, size=ATTEMPTS).tolist()
    for seed in seeds:
        links = draw(seed)
        if _is_connected(links):
            break
    else:
        fail(argument, f"one that gives a connected graph within {ATTEMPTS} draws", got)
    return links


def _adjacency(graph: nx.Graph, order: list[Hashable] | None = None) -> sparse.csr_array:
    """Return the adjacency matrix of a graph, with nodes in this order."""
    import networkx as nx

    return nx.to_scipy_sparse_array(graph, order, weight=None)


def _is_connected(links: sparse.csr_array) -> bool:
    return bool(connected_components(links, directed=False, return_labels=False) == 1)
