"""The public numbers of neighbour sums: every node learns a noisy sum over its neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import floor, log2, sqrt

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, NeighboringRelation
from dpmesh._ragged import Indices
from dpmesh._validate import every, fail, integer, positive
from dpmesh.accounting.shares import SMALLEST_SHARE
from dpmesh.keys import Stream
from dpmesh.noise.grid import MOST_STEPS

BITS = 64
"""Of a masked number, whose sums never wrap around."""

LONGEST = 2.0**40
"""Numbers beyond so many steps of the grid are cut off there."""

MOST_NEIGHBORS = 2**13
"""Sums of so many numbers below `LONGEST` are exact in float64."""

_ROUNDED_ONCE = 1 + 2.0**-11  # of a step: a number in float64 below LONGEST, then to the grid


@dataclass(frozen=True, kw_only=True)
class NeighborSums:
    """Sums over neighbours of one round, on an integer grid, with noise for each receiver.

    Node v learns ``sum_j (rint(y_j / grid) + e_jv)`` over its neighbours j and nothing else. The
    noise e_jv is discrete Gaussian of scale ``share(v)``, independent for every receiver v.

    Parameters
    ----------
    dim
        Length of the vectors y_j, d.
    neighbors
        The neighbours of each node, the node itself left out; links go both ways.
    noise_to_sensitivity
        Scale of the noise in each sum that the adversary does not know, over the `sensitivity`.
    moves
        Largest L2 distance by which one record moves all sums together, given all earlier ones and
        before they are rounded: of a node with k neighbours, ``sqrt(k)`` times that of its vector.
    colluding
        The most neighbours of any node whose shares the adversary knows, c.

    Raises
    ------
    ValueError
        If an argument is out of its range, a link goes one way, a node has fewer than
        ``colluding + 2`` neighbours or more than `MOST_NEIGHBORS`, or a share of noise is not
        between 4 and 2**25 steps.

    Examples
    --------
    >>> import dpmesh as dm
    >>> partners = ((1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2))
    >>> numbers = dm.noise.secure.NeighborSums(
    ...     dim=10, neighbors=partners, noise_to_sensitivity=8.0, moves=0.1
    ... )
    >>> numbers.sites
    3
    """

    dim: int
    neighbors: tuple[tuple[int, ...], ...]
    noise_to_sensitivity: float
    moves: float
    colluding: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "neighbors", tuple(tuple(node_neighbors) for node_neighbors in self.neighbors)
        )
        every(self, integer, "dim", at_least=1, below=2**32)
        every(self, integer, "colluding")
        every(self, positive, "noise_to_sensitivity", "moves")
        integer("nodes", len(self.neighbors), at_least=1, below=2**16 + 1)
        if self.sites > MOST_NEIGHBORS:
            fail("topology", f"at most {MOST_NEIGHBORS} neighbours of a node", self.sites)
        self._check_links()
        fewest = min(map(len, self.neighbors))
        if fewest - self.colluding < 2:
            expected = f"at least {self.colluding + 2} neighbours of each node, since"
            expected += f" {self.colluding} of them may collude (colluding)"
            fail(
                "topology", expected, f"a node with {fewest}; add links, or allow fewer to collude"
            )
        largest = self.share(fewest)
        if not SMALLEST_SHARE <= self.smallest_share <= largest <= MOST_STEPS:
            expected = f"shares of noise between {SMALLEST_SHARE:g} and 2**25 steps of the grid"
            got = f"{self.noise_to_sensitivity:g}: from {self.smallest_share:g} to {largest:g}"
            fail("noise_to_sensitivity", expected, got)

    def _check_links(self) -> None:
        """Fail unless links go both ways between different nodes, each once."""
        nodes = len(self.neighbors)
        v = np.repeat(np.arange(nodes), [len(node_neighbors) for node_neighbors in self.neighbors])
        j = np.array(
            [neighbor for node_neighbors in self.neighbors for neighbor in node_neighbors],
            dtype=np.int64,
        )
        there, back = np.sort(v * nodes + j), np.sort(j * nodes + v)
        within = ((j >= 0) & (j < nodes) & (j != v)).all()
        if not within or (np.diff(there) == 0).any() or (there != back).any():
            expected = "links between different nodes, each once and in both directions"
            fail("topology", expected, "others; a weight may be 0 in one direction")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # of many links, for each release of a plan
        return hash(
            (self.neighbors, self.dim, self.noise_to_sensitivity, self.moves, self.colluding)
        )

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.neighbors)

    @property
    def receivers(self) -> tuple[tuple[int, ...], ...]:
        """Contributors to the sum of each node: its neighbours."""
        return self.neighbors

    @property
    def fewest(self) -> int:
        """Parties without which a run waits: all of them."""
        return self.nodes

    def is_cohort(self, parties: tuple[int, ...], receiver: int) -> bool:
        """Return True if a node's sum may be opened with these parts: all its neighbours'."""
        return parties == tuple(sorted(self.neighbors[receiver]))

    @property
    def modulus_bits(self) -> int:
        """Bits of a masked number."""
        return BITS

    @property
    def message_bytes(self) -> int:
        """Length of a masked vector in bytes."""
        return self.dim * BITS // 8

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        """One record is replaced."""
        return "replace_one"

    @cached_property
    def sites(self) -> int:
        """Most shares of noise in a sum: the largest number of neighbours, k."""
        return max(map(len, self.neighbors))

    @property
    def numbers(self) -> int:
        """Number of released scalars that one record moves: those of `sites` sums."""
        return self.sites * self.dim

    @cached_property
    def grid(self) -> float:
        """Width of a step: a power of 2, at most a ``2**-7 / sqrt(k d)`` of `moves`."""
        return 2.0 ** floor(log2(self.moves / (2**7 * sqrt(self.numbers))))

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of all rounded sums together to one record, in steps of the grid."""
        return self.moves / self.grid + _ROUNDED_ONCE * sqrt(self.numbers)

    def share(self, neighbors: int) -> float:
        """Scale of one neighbour's noise in the sum of a node with so many, in steps."""
        return self.noise_to_sensitivity * self.sensitivity / sqrt(neighbors - self.colluding)

    @property
    def smallest_share(self) -> float:
        """The share of the node with most neighbours."""
        return self.share(self.sites)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions, beside the proof, of a guarantee by these sums."""
        against = "whoever sees all sums"
        if self.colluding:
            against += f" together with {self.colluding} of the neighbours of each node"
        else:
            against += ", but by no node of the network, which knows its own share of the noise"
        return (
            f"the guarantee is against {against}; if more collude it is weaker",
            "masks hide what each node sends; a simulation leaves them out, since they cancel",
        )

    def steps_of(self, values: Floats) -> npt.NDArray[np.int64]:
        """Return values in steps of the grid, rounded to the nearest integer, and cut off."""
        near = np.clip(np.rint(values / self.grid), -LONGEST, LONGEST)
        steps: npt.NDArray[np.int64] = near.astype(np.int64)
        return steps

    def noise(self, receiver: int, senders: Indices, stream: Stream) -> npt.NDArray[np.int64]:
        """Return what some neighbours of a node add to its sum as noise, a row for each of them.

        Parameters
        ----------
        receiver
            The node that learns the sum.
        senders
            Neighbours of it.
        stream
            Of this release alone: neighbour j of node v draws from node ``v * nodes + j``.
        """
        links = (receiver * self.nodes + senders).astype(np.uint32)
        share = self.share(len(self.neighbors[receiver]))
        return kernels.discrete_gaussian((len(links), self.dim), share, stream, nodes=links)
