"""Interface of topologies, static topologies, and topologies that change over time.

The graph of a round depends on a key and on the round only. One key can serve one random graph and
one sequence of each kind, such as `random_matchings` and `edge_dropping`. Two sequences of
the same kind need different keys, since with one key both draw the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from functools import partial
from typing import Protocol

import numpy as np
from scipy import sparse

from dpmesh._ragged import Indices
from dpmesh._validate import fail, instance, integer, probability, require_methods
from dpmesh.keys import A_KEY, Key, Purpose, generator
from dpmesh.topology.matrix import MixingMatrix


class Topology(Protocol):
    """Communication graph of each round, with its mixing weights, which may change over time.

    It is public: nothing in it may depend on the nodes' data. `str` of a topology describes it in
    words, for reports and plots.
    """

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    def matrix(self, round: int) -> MixingMatrix:
        """Return the mixing matrix of a round, counted from 0; the same one at every call."""


@dataclass(frozen=True)
class Static:
    """Static topology: the same connected graph in each round.

    Parameters
    ----------
    mixing_matrix
        The `MixingMatrix` of all rounds.
    description
        Name in reports and plots.

    Raises
    ------
    ValueError
        If `mixing_matrix` is not a mixing matrix, or its graph is not connected: messages would
        never reach all nodes.

    Examples
    --------
    >>> import dpmesh as dm
    >>> ring = dm.topology.ring(8)
    >>> str(dm.topology.Static(ring.matrix(0), "eight on a ring"))
    'eight on a ring (8 nodes)'
    """

    mixing_matrix: MixingMatrix
    description: str = "given mixing matrix"

    def __post_init__(self) -> None:
        expectation = "a MixingMatrix, such as MixingMatrix(weights)"
        instance("mixing_matrix", self.mixing_matrix, expectation, MixingMatrix)
        components = self.mixing_matrix.components
        if components != 1:
            fail("mixing_matrix", "a connected graph", f"one of {components} components")

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.mixing_matrix.nodes

    def matrix(self, round: int) -> MixingMatrix:
        """Return the mixing matrix, which is the same in every round."""
        if type(round) is not int or round < 0:
            integer("round", round)
        return self.mixing_matrix

    def __str__(self) -> str:
        return f"{self.description} ({self.nodes} nodes)"


@dataclass(frozen=True)
class Varying:
    """Time-varying topology, whose graph is a function of the round.

    Parameters
    ----------
    nodes
        Number of nodes.
    draw
        Function of the round, counted from 0, that returns its `MixingMatrix`: the same one at each
        call. It must not depend on the nodes' data.
    description
        Name in reports and plots.

    Raises
    ------
    ValueError
        If `nodes` is not an integer of at least 1, or `draw` is not callable.

    Examples
    --------
    >>> import dpmesh as dm
    >>> two = dm.topology.ring(4).matrix(0), dm.topology.complete(4).matrix(0)
    >>> dm.topology.Varying(4, lambda t: two[t % 2], "ring and complete")
    Varying(nodes=4, description='ring and complete')
    """

    nodes: int
    draw: Callable[[int], MixingMatrix] = field(repr=False)
    description: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", integer("nodes", self.nodes, at_least=1))
        if not callable(self.draw):
            fail("draw", "a function of the round", repr(self.draw))

    def matrix(self, round: int) -> MixingMatrix:
        """Return the mixing matrix of a round, counted from 0."""
        return self.draw(integer("round", round))

    def __str__(self) -> str:
        return self.description


class Use(IntEnum):
    """Uses of random numbers; each use has its own stream of a key."""

    RANDOM_REGULAR = auto()
    ERDOS_RENYI = auto()
    MATCHINGS = auto()
    EDGE_DROPPING = auto()
    SHUFFLING = auto()
    MEETINGS = auto()
    DIRECTED = auto()


def public_generator(key: Key, use: Use, round: int = 0) -> np.random.Generator:
    """Return the generator of public random numbers for one use in one round."""
    return generator(key, Purpose.TOPOLOGY, round=round, node=use)


def random_matchings(nodes: int, *, key: Key) -> Varying:
    """Return random pairs of nodes in each round; each pair averages (pairwise gossip).

    With an odd number of nodes one of them sits the round out.

    Parameters
    ----------
    nodes
        Number of nodes, at least 2.
    key
        Key from which the pairs of each round are drawn. The pairs are public.

    Raises
    ------
    ValueError
        If `nodes` is below 2, or `key` is not a key.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.topology.random_matchings(10, key=dm.Key.seeded(1))
    Varying(nodes=10, description='random matchings of 10 nodes')
    """
    nodes = integer("nodes", nodes, at_least=2)
    instance("key", key, A_KEY, Key)
    draw = partial(_random_matching, nodes, key)
    return Varying(nodes, draw, f"random matchings of {nodes} nodes")


def edge_dropping(base: Topology, keep: float, *, key: Key) -> Varying:
    """Return a topology whose links fail at random: each is up with probability `keep`.

    Links fail independently of each other and of other rounds. If a link is down, each of its two
    nodes adds the weight of the link to its own weight (`MixingMatrix.keep_edges`).

    Parameters
    ----------
    base
        The network whose links fail.
    keep
        Probability that a link is up, in (0, 1].
    key
        Key from which the failures of each round are drawn. They are public.

    Raises
    ------
    ValueError
        If `base` is not a topology, `keep` is not in (0, 1], or `key` is not a key. Also, when
        `matrix` is called, if the matrix of `base` is not symmetric.

    Examples
    --------
    >>> import dpmesh as dm
    >>> ring = dm.topology.ring(16)
    >>> dm.topology.edge_dropping(ring, 0.9, key=dm.Key.seeded(1))
    Varying(nodes=16, description='ring (16 nodes), each link up with probability 0.9')
    """
    require_methods("base", base, "a network, such as ring(16)", "matrix")
    keep = probability("keep", keep, zero=False)
    instance("key", key, A_KEY, Key)
    description = f"{base}, each link up with probability {keep:g}"
    draw = partial(_dropped_edges, base, keep, key)
    return Varying(base.nodes, draw, description)


def shuffled(base: Topology, *, key: Key) -> Varying:
    """Return the graph of `base` with its nodes in a new random order in each round.

    A shuffled random regular graph is a new random regular graph in each round.

    Parameters
    ----------
    base
        The network to shuffle.
    key
        Key from which the order of each round is drawn. The order is public.

    Raises
    ------
    ValueError
        If `base` is not a network, or `key` is not a key.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.topology.shuffled(dm.topology.ring(8), key=dm.Key.seeded(1))
    Varying(nodes=8, description='ring (8 nodes), shuffled each round')
    """
    require_methods("base", base, "a network, such as ring(16)", "matrix")
    instance("key", key, A_KEY, Key)
    draw = partial(_shuffled_matrix, base, key)
    return Varying(base.nodes, draw, f"{base}, shuffled each round")


def cycle(matrices: Sequence[MixingMatrix]) -> Varying:
    """Return a topology that uses the given mixing matrices in turn, periodically.

    The graph of a single matrix need not be connected.

    Parameters
    ----------
    matrices
        Matrices of the rounds of the cycle, in order, at least 1.

    Raises
    ------
    ValueError
        If there is no matrix, an item is not a `MixingMatrix`, or the numbers of nodes differ.

    Examples
    --------
    >>> import dpmesh as dm
    >>> ring, star = dm.topology.ring(4), dm.topology.star(4)
    >>> dm.topology.cycle([ring.matrix(0), star.matrix(0)])
    Varying(nodes=4, description='cycle of 2 graphs (4 nodes)')
    """
    matrices = tuple(matrices)
    for matrix in matrices:
        instance("matrices", matrix, "mixing matrices", MixingMatrix)
    if not matrices:
        fail("matrices", "at least 1 mixing matrix", "none")
    sizes = sorted({matrix.nodes for matrix in matrices})
    if len(sizes) > 1:
        fail("matrices", "mixing matrices of the same number of nodes", f"{sizes}")
    nodes = sizes[0]
    description = f"cycle of {len(matrices)} graphs ({nodes} nodes)"
    return Varying(nodes, partial(_matrix_in_turn, matrices), description)


def _random_matching(nodes: int, key: Key, round: int) -> MixingMatrix:
    order = public_generator(key, Use.MATCHINGS, round).permutation(nodes)
    return paired(nodes, first=order[0 : nodes - 1 : 2], second=order[1::2])


def _dropped_edges(base: Topology, keep: float, key: Key, round: int) -> MixingMatrix:
    matrix = base.matrix(round)
    uniforms = public_generator(key, Use.EDGE_DROPPING, round).random(len(matrix.edges))
    return matrix.keep_edges(uniforms < keep)


def _shuffled_matrix(base: Topology, key: Key, round: int) -> MixingMatrix:
    order = public_generator(key, Use.SHUFFLING, round).permutation(base.nodes)
    matrix = base.matrix(round)
    return type(matrix)(matrix.weights[order][:, order])


def _matrix_in_turn(matrices: tuple[MixingMatrix, ...], round: int) -> MixingMatrix:
    return matrices[round % len(matrices)]


def paired(nodes: int, first: Indices, second: Indices) -> MixingMatrix:
    """Return the matrix in which nodes ``first[i]`` and ``second[i]`` average, for each i."""
    partner = np.arange(nodes)
    partner[first] = second
    partner[second] = first
    return halves(partner)


def halves(partner: Indices) -> MixingMatrix:
    """Return the matrix in which node i takes the mean of its message and of ``partner[i]``'s.

    `partner` has the shape (nodes,).
    """
    nodes = len(partner)
    all_nodes = np.arange(nodes)
    rows = np.concatenate([all_nodes, all_nodes])
    columns = np.concatenate([all_nodes, partner])
    entries = np.full(2 * nodes, 0.5)
    return MixingMatrix(sparse.csr_array((entries, (rows, columns)), shape=(nodes, nodes)))
