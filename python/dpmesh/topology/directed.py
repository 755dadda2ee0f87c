"""Directed communication graphs: a node divides its message among the nodes to which it sends.

Their matrices are column-stochastic only. They are for algorithms that correct for this, such as
`dpmesh.PushSum`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigs

from dpmesh._validate import fail, instance, integer
from dpmesh.keys import A_KEY, Key
from dpmesh.topology.matrix import DENSE_NODES, MixingMatrix
from dpmesh.topology.topology import Static, Use, Varying, public_generator

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, eq=False)
class PushMatrix(MixingMatrix):
    """Column-stochastic mixing matrix P of a directed network, for `PushSum`.

    Node j sends its message times P[i, j] to node i. Columns sum to 1, rows need not. Mixing keeps
    the sum over the nodes, but a node's received sum is no average.

    Parameters
    ----------
    weights
        As for `MixingMatrix`.

    Raises
    ------
    ValueError
        As `MixingMatrix` does, but for the sums of rows.

    Examples
    --------
    >>> import dpmesh as dm
    >>> from scipy import sparse
    >>> to_all = sparse.csr_array([[0.5, 0.5], [0.5, 0.5]])
    >>> dm.topology.PushMatrix(to_all).messages
    2
    """

    sums_to_one = ("column",)

    @cached_property
    def components(self) -> int:
        """Number of strongly connected components: groups of nodes that reach each other."""
        components = connected_components(self.weights, connection="strong", return_labels=False)
        return int(components)

    @cached_property
    def spectral_gap(self) -> float:
        """1 minus the second largest modulus of an eigenvalue of P, between 0 and 1.

        A round multiplies the distance of push-sum's ratios from the mean by 1 - gap, in the long
        run. A single node has the gap 1.
        """
        if self.nodes == 1:
            return 1.0
        if self.nodes <= DENSE_NODES:
            eigenvalues = np.linalg.eigvals(self.weights.toarray())
        else:
            eigenvalues = eigs(self.weights, k=2, tol=1e-4, return_eigenvectors=False)
        moduli = np.sort(np.abs(eigenvalues))
        return max(0.0, 1 - float(moduli[-2]))


def directed(
    graph: nx.DiGraph,
    *,
    nodelist: Iterable[Hashable] | None = None,
    description: str = "given directed graph",
) -> Static:
    """Return the topology of a directed graph in which each node divides its message evenly.

    Parameters
    ----------
    graph
        Directed graph, in which an edge (j, i) means that j sends to i. Self-loops, parallel edges
        and attributes are ignored: each node keeps the same share as it sends over each edge.
    nodelist
        Nodes of the graph in the order of the topology; by default the order of ``graph.nodes``.
    description
        Name in reports and plots.

    Raises
    ------
    ValueError
        If the graph is not directed, or not strongly connected.

    Examples
    --------
    >>> import dpmesh as dm
    >>> import networkx as nx
    >>> str(dm.topology.directed(nx.DiGraph([(0, 1), (1, 2), (2, 0)])))
    'given directed graph (3 nodes)'
    """
    import networkx as nx

    if not isinstance(graph, nx.DiGraph) or not len(graph):
        fail("graph", "a directed networkx graph of at least 1 node", type(graph).__name__)
    order = None if nodelist is None else list(nodelist)
    adjacency = nx.to_scipy_sparse_array(graph, order, weight=None, format="coo")
    matrix = _even_push_matrix(receivers=adjacency.col, senders=adjacency.row, nodes=len(graph))
    return Static(matrix, description)


def random_directed(nodes: int, degree: int, *, key: Key) -> Varying:
    """Return a directed topology in which each node sends to `degree` random nodes in each round.

    Parameters
    ----------
    nodes
        Number of nodes, at least 2.
    degree
        Number of other nodes that each node sends to.
    key
        Key from which the links of each round are drawn. The links are public.

    Raises
    ------
    ValueError
        If `nodes` is below 2, `degree` is not in 1, .., nodes - 1, or `key` is not a key.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.topology.random_directed(10, 3, key=dm.Key.seeded(1))
    Varying(nodes=10, description='10 nodes, each of which sends to 3 others at random')
    """
    nodes = integer("nodes", nodes, at_least=2)
    degree = integer("degree", degree, at_least=1, below=nodes)
    instance("key", key, A_KEY, Key)
    description = f"{nodes} nodes, each of which sends to {degree} others at random"
    draw = partial(_random_push_matrix, nodes, degree, key)
    return Varying(nodes, draw, description)


def _random_push_matrix(nodes: int, degree: int, key: Key, round: int) -> PushMatrix:
    """Draw `degree` receivers of each node uniformly, without repetition (Floyd's algorithm).

    Receivers are drawn as offsets 0 to nodes - 2 ahead of the sender, so that none is the sender.
    """
    random = public_generator(key, Use.DIRECTED, round)
    offsets = np.full((nodes, degree), -1)
    first_candidate = nodes - 1 - degree
    for column in range(degree):
        last = first_candidate + column
        candidates = random.integers(last + 1, size=nodes)
        is_repeated = (offsets == candidates[:, np.newaxis]).any(axis=1)
        offsets[:, column] = np.where(is_repeated, last, candidates)
    senders = np.repeat(np.arange(nodes), degree)
    receivers = (senders + 1 + offsets.ravel()) % nodes
    return _even_push_matrix(receivers, senders, nodes)


def _even_push_matrix(
    receivers: npt.NDArray[np.integer], senders: npt.NDArray[np.integer], nodes: int
) -> PushMatrix:
    """Return the matrix in which each node splits its message evenly, itself included.

    `receivers` and `senders` have the shape (links,); self-loops among them are ignored.
    """
    all_nodes = np.arange(nodes)
    is_link = receivers != senders
    rows = np.concatenate([receivers[is_link], all_nodes])
    columns = np.concatenate([senders[is_link], all_nodes])
    shares = 1 / np.bincount(columns, minlength=nodes)
    weights = sparse.coo_array((shares[columns], (rows, columns)), shape=(nodes, nodes))
    return PushMatrix(weights)
