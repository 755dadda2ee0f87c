"""Common graphs as static topologies."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Hashable, Iterable
from types import NoneType

import networkx as nx
import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from dpmesh._validate import fail, instance, integer, probability
from dpmesh.keys import Key
from dpmesh.topology._links import regular_links, torus_links
from dpmesh.topology._random import Use, public_generator
from dpmesh.topology.topology import Static
from dpmesh.topology.weights import Weights, weigh

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
