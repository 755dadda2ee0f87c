"""What a run asks of its network: the mixing matrix of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dpmesh._validate import fail, instance, integer
from dpmesh.topology.matrix import MixingMatrix


class Topology(Protocol):
    """A network over time. It is public: nothing in it may depend on the data of the nodes.

    `str` of a topology describes it in words, for reports and plots.
    """

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    def matrix(self, round: int) -> MixingMatrix:
        """Return the mixing matrix of a round, counted from 0; the same one at every call."""


@dataclass(frozen=True)
class Static:
    """The same connected graph in every round.

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
        wanted = "a MixingMatrix, such as MixingMatrix(weights)"
        instance("mixing_matrix", self.mixing_matrix, wanted, MixingMatrix)
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
    """A new graph in every round, drawn by a function of the round alone.

    Raises
    ------
    ValueError
        If `nodes` is not a number of nodes, or `draw` no function.

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
        """Return the mixing matrix of a round."""
        return self.draw(integer("round", round))

    def __str__(self) -> str:
        return self.description
