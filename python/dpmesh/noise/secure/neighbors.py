"""The public numbers of neighbour sums: every node learns a noisy sum over its neighbours.

In a round each node j has a vector y_j of d numbers. Each node v learns, for its neighbours j,

    sum_j (rint(y_j / gamma) + e_jv)        e_jv discrete Gaussian of scale sigma_v, independent

and nothing else, since masks hide the terms. The public numbers are, in the order in which they
follow from each other, for at most k neighbours of a node:

    width of a step       gamma: the largest power of 2 up to U / (128 sqrt(k d)), where U is the
                          sensitivity of all sums together (`moves`)
    sensitivity           Delta = U / gamma + (1 + 2^-11) sqrt(k d), in steps: rounding adds at most
                          1 + 2^-11 to the distance of two numbers, once for each neighbour
    share of noise        sigma_v = z Delta / sqrt(k_v - c), in steps, for k_v neighbours of v, of
                          whose shares the adversary knows c

`dpmesh.noise.secure.sizes.SecureSum` has numbers of the same names for one sum over all sites.
"""

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
"""Size of a masked number; sums of neighbours never wrap around it."""

LARGEST_STEPS = 2.0**40
"""Clipping bound of a number, in steps of the grid."""

MOST_NEIGHBORS = 2**13
"""Most neighbours of a node: sums of so many numbers below `LARGEST_STEPS` are exact in float64."""

_ROUNDED_ONCE = 1 + 2.0**-11
"""Distance that rounding to float64 and to the grid adds between two numbers, in steps."""


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
        Neighbours of each node, without the node itself; links go both ways.
    noise_to_sensitivity
        Scale of the noise in each sum that the adversary does not know, over the `sensitivity`.
    moves
        L2 sensitivity of all sums together to one record, given all earlier sums and before
        rounding: for a node with k neighbours, ``sqrt(k)`` times the sensitivity of its vector.
    colluding
        Largest number of neighbours of a node whose shares of noise the adversary knows, c.

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
        neighbors = tuple(tuple(node_neighbors) for node_neighbors in self.neighbors)
        object.__setattr__(self, "neighbors", neighbors)
        every(self, integer, "dim", at_least=1, below=2**32)
        every(self, integer, "colluding")
        every(self, positive, "noise_to_sensitivity", "moves")
        integer("nodes", len(self.neighbors), at_least=1, below=2**16 + 1)
        if self.sites > MOST_NEIGHBORS:
            fail("topology", f"at most {MOST_NEIGHBORS} neighbours of a node", self.sites)
        self._check_links()
        fewest_neighbors = min(map(len, self.neighbors))
        self._check_honest(fewest_neighbors)
        self._check_shares(fewest_neighbors)

    def _check_honest(self, fewest_neighbors: int) -> None:
        """Fail if a node has fewer than two honest neighbours."""
        if fewest_neighbors - self.colluding >= 2:
            return
        expected = f"at least {self.colluding + 2} neighbours of each node, since"
        expected += f" {self.colluding} of them may collude (colluding)"
        got = f"a node with {fewest_neighbors}; add links, or allow fewer to collude"
        fail("topology", expected, got)

    def _check_shares(self, fewest_neighbors: int) -> None:
        """Fail unless all shares of noise are in the range of their proof and of the sampler."""
        smallest = self.smallest_share
        largest = self.share(fewest_neighbors)
        if SMALLEST_SHARE <= smallest <= largest <= MOST_STEPS:
            return
        expected = f"shares of noise between {SMALLEST_SHARE:g} and 2**25 steps of the grid"
        got = f"{self.noise_to_sensitivity:g}: from {smallest:g} to {largest:g}"
        fail("noise_to_sensitivity", expected, got)

    def _check_links(self) -> None:
        """Fail unless links go both ways between different nodes, each once."""
        nodes = len(self.neighbors)
        counts = [len(node_neighbors) for node_neighbors in self.neighbors]
        flat = [neighbor for node_neighbors in self.neighbors for neighbor in node_neighbors]
        receivers = np.repeat(np.arange(nodes), counts)
        senders = np.array(flat, dtype=np.int64)
        links = np.sort(receivers * nodes + senders)
        reversed_links = np.sort(senders * nodes + receivers)
        in_range = ((senders >= 0) & (senders < nodes) & (senders != receivers)).all()
        repeated = (np.diff(links) == 0).any()
        if not in_range or repeated or (links != reversed_links).any():
            expected = "links between different nodes, each once and in both directions"
            fail("topology", expected, "others; a weight may be 0 in one direction")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Hash of the fields, cached since a plan needs it for each release."""
        return hash(
            (self.neighbors, self.dim, self.noise_to_sensitivity, self.moves, self.colluding)
        )

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.neighbors)

    @property
    def receivers(self) -> tuple[tuple[int, ...], ...]:
        """Nodes that contribute to the sum of each node: its neighbours."""
        return self.neighbors

    @property
    def fewest_parties(self) -> int:
        """Smallest number of parties with which a run goes on: all of them."""
        return self.nodes

    def is_cohort(self, parties: tuple[int, ...], receiver: int) -> bool:
        """Return True if these are all contributors to the sum of the node `receiver`."""
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
        """Largest number of shares of noise in a sum: the largest number of neighbours, k."""
        return max(map(len, self.neighbors))

    @property
    def released_scalars(self) -> int:
        """Largest number of released scalars that one record affects: k sums of d numbers."""
        return self.sites * self.dim

    @cached_property
    def grid(self) -> float:
        """Width of a step: the largest power of 2 up to ``moves / (2**7 sqrt(k d))``."""
        widest = self.moves / (2**7 * sqrt(self.released_scalars))
        return 2.0 ** floor(log2(widest))

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of all rounded sums together to one record, in steps of the grid."""
        return self.moves / self.grid + _ROUNDED_ONCE * sqrt(self.released_scalars)

    def share(self, neighbors: int) -> float:
        """Return the scale of one share of noise in the sum over so many neighbours, in steps."""
        return self.noise_to_sensitivity * self.sensitivity / sqrt(neighbors - self.colluding)

    @property
    def smallest_share(self) -> float:
        """Scale of a neighbour's noise in the sum of the node with most neighbours, in steps."""
        return self.share(self.sites)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee that the proof does not cover, in words."""
        against = "an adversary who sees all sums"
        if self.colluding:
            against += f" and colludes with {self.colluding} of the neighbours of each node"
        else:
            against += " and is no node of the network, since a node knows its share of the noise"
        return (
            f"the guarantee is against {against}; if more collude it is weaker",
            "masks hide what each node sends; a simulation leaves them out, since they cancel",
        )

    def steps_of(self, values: Floats) -> npt.NDArray[np.int64]:
        """Return values in steps of the grid, rounded to the nearest integer and clipped."""
        rounded = np.rint(values / self.grid)
        steps: npt.NDArray[np.int64] = np.clip(rounded, -LARGEST_STEPS, LARGEST_STEPS).astype(
            np.int64
        )
        return steps

    def noise(self, receiver: int, senders: Indices, stream: Stream) -> npt.NDArray[np.int64]:
        """Return the shares of noise of some neighbours of a node, shape (senders, dim), in steps.

        Parameters
        ----------
        receiver
            The node that learns the sum.
        senders
            Neighbours of the receiver, shape (senders,).
        stream
            Randomness of this release alone: neighbour j of node v draws from the stream of node
            ``v * nodes + j``.
        """
        links = (receiver * self.nodes + senders).astype(np.uint32)
        share = self.share(len(self.neighbors[receiver]))
        return kernels.discrete_gaussian((len(links), self.dim), share, stream, nodes=links)
