"""Noise that partners share: what one end of a link adds, the other subtracts.

The noise of node i in a round is

    own n_i + shared sum over partners j of sgn(j - i) p_ij

times the noise ratio and the sensitivity of the round. n of each node and p of each pair are
standard normal vectors, fresh in every round; ``p_ij = p_ji``. The first term is *local noise*, p
is a *secret*. Secrets cancel where messages are averaged. An observer of the messages does not know
them. `coalitions` states what nodes know that collude with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpmesh._epsilons import but_partners
from dpmesh._validate import fail, instance, integer, non_negative, positive
from dpmesh.noise.correlated.coalitions import (
    Exposure,
    exposure,
    honest,
    laplacian,
    least_partners,
    spectrum,
)
from dpmesh.topology import MixingMatrix

Array = npt.NDArray[np.float64]
Pairs = npt.NDArray[np.int64]

_ROUNDING = 1e-12
"""Share by which mu is rounded up: more than the rounding of eigenvalues, also on long rings."""

LARGEST_NODE = 92_000
"""Largest number of nodes for which every pair has a distinct 32-bit number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Secrets:
    """Pairs of nodes that share secrets, the size of these, and the coalitions to withstand.

    Parameters
    ----------
    nodes
        Number of nodes.
    pairs
        Pairs of nodes that share a secret, shape (pairs, 2), in any order, such as `links` returns.
    own
        Standard deviation of a node's local noise, at noise ratio and sensitivity 1.
    shared
        Standard deviation of each secret, at noise ratio and sensitivity 1.
    coalition
        Largest number of nodes that collude with the observer. The guarantee is for every node
        outside of the coalition.
    star
        True if the guarantee counts only the secrets of the node itself, so that it does not depend
        on the behaviour of other nodes: see `counting`. False if it counts the whole graph.

    Raises
    ------
    ValueError
        If a number is out of range, or a pair is not of two different nodes or occurs twice.

    Examples
    --------
    >>> import dpmesh as dm
    >>> from dpmesh.noise import correlated
    >>> matrix = dm.topology.ring(8).mixing_matrix
    >>> secrets = correlated.partner_secrets(matrix, rounds=10, coalition=1)
    >>> secrets.nodes, len(secrets.pairs)
    (8, 8)
    """

    nodes: int
    pairs: Pairs = field(repr=False)
    own: float
    shared: float
    coalition: int = 0
    star: bool = False

    def __post_init__(self) -> None:
        nodes = integer("nodes", self.nodes, 1, LARGEST_NODE)
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "own", positive("own", self.own))
        object.__setattr__(self, "shared", non_negative("shared", self.shared))
        object.__setattr__(self, "coalition", integer("coalition", self.coalition, 0, nodes))
        object.__setattr__(self, "pairs", canonical_pairs(self.pairs, nodes))

    @property
    def covariance(self) -> Array:
        """Covariance of one round's noise between nodes, shape (nodes, nodes)."""
        secret_covariance: Array = self.shared**2 * laplacian(self.nodes, self.pairs)
        return self.own**2 * np.eye(self.nodes) + secret_covariance

    @cached_property
    def mu(self) -> float:
        """Gaussian DP parameter of one round at noise ratio 1, against `coalition` nodes."""
        return self.exposure.worst(self.own, self.shared) * (1 + _ROUNDING)

    @cached_property
    def exposure(self) -> Exposure:
        """The exposure to each coalition of the claimed size."""
        return exposure(self.nodes, self.pairs, self.coalition, star=self.star)

    def mu_against(self, colluding: int | None) -> float:
        """Return mu of one round at noise ratio 1, against the worst `colluding` nodes.

        None if all other nodes collude: then only local noise protects.

        Raises
        ------
        ValueError
            If no node is honest, or there are too many coalitions to try each of them.
        """
        if colluding is None:
            return (1 + _ROUNDING) / self.own
        if self.star:
            return float(self._against(np.float64(colluding)) ** -0.5) * (1 + _ROUNDING)
        if colluding == self.coalition:
            return self.mu
        return replace(self, coalition=colluding).mu

    def mu_of(self, coalition: Iterable[int] = ()) -> float:
        """Return mu of one round at noise ratio 1, against these colluding nodes.

        Raises
        ------
        ValueError
            If one of them is not a node.
        """
        members = tuple(sorted({integer("coalition", node, 0, self.nodes) for node in coalition}))
        return float(np.sqrt(self.leverages(members)[1].max())) * (1 + _ROUNDING)

    def leverages(self, coalition: tuple[int, ...]) -> tuple[npt.NDArray[np.int64], Array]:
        """Return the nodes outside a coalition, and mu^2 of each at noise ratio 1.

        Both have the shape (honest,).
        """
        graph_laplacian = laplacian(self.nodes, self.pairs)
        honest_nodes, part = honest(graph_laplacian, coalition)
        if self.star:
            return honest_nodes, 1 / self._against(
                -graph_laplacian[honest_nodes][:, list(coalition)].sum(axis=1)
            )
        values, squares = spectrum(part)
        squared: Array = squares @ (1 / (self.own**2 + self.shared**2 * values))
        return honest_nodes, squared

    def without(self, *absent: int) -> Secrets:
        """Return the secrets of a round in which these nodes, by a public decision, are absent.

        Their partners leave out the secrets with them. That weakens the guarantee, so plan for it.
        It is worse if one end leaves a secret out and the other adds it: the secret then remains in
        the average.

        Raises
        ------
        ValueError
            If one of them is not a node.
        """
        absent_nodes = [integer("absent", node, 0, self.nodes) for node in absent]
        loses_secret = np.isin(self.pairs, absent_nodes).any(axis=1)
        return replace(self, pairs=self.pairs[~loses_secret])

    @property
    def _secret_variance(self) -> float:
        """Variance that a secret adds to the noise of one end, given the row of the other end."""
        own_variance, shared_variance = self.own**2, self.shared**2
        return own_variance * shared_variance / (own_variance + shared_variance)

    def _against(self, colluding_partners: Any) -> Any:
        """Return the variance of the noise of a star's row, given the rows of all other nodes.

        In the symbols of Theorem 5 (docs/privacy/correlated_noise_proofs.md) it is ``V - max(0,
        min(c', d) - c) k``. c' partners collude, c are in the claim, d is the smallest number of
        partners of a node, and k is `_secret_variance`.

        Parameters
        ----------
        colluding_partners
            c', the number of the node's partners that collude: a number, or an array of any shape.
        """
        counted_partners = least_partners(self.nodes, self.pairs)
        beyond_claim = np.minimum(colluding_partners, counted_partners) - self.coalition
        claimed_variance = 1 / self.exposure.squared(self.own, self.shared)[0, 0]
        return claimed_variance - np.maximum(0, beyond_claim) * self._secret_variance

    def counting(self, node: int, partners: Collection[int]) -> Secrets:
        """Return one node's secrets with these partners alone, and its local noise.

        The fewer partners, the larger the local noise: given the rows of all other nodes, the
        variance of the node's row stays that of the guarantee. With s counting partners, fewer than
        the smallest number in the plan, the local noise has variance ``V - max(0, s - c) k``
        (Theorem 5). It is for secrets whose claim is that of a star.
        """
        node_pairs = self.pairs[(self.pairs == node).any(axis=1)]
        other_ends = node_pairs.sum(axis=1) - node
        counted_pairs = node_pairs[np.isin(other_ends, list(partners))]
        local_noise = self.own
        if len(counted_pairs) < least_partners(self.nodes, self.pairs):
            honest_partners = max(0, len(counted_pairs) - self.coalition)
            honest_variance = honest_partners * self._secret_variance
            local_noise = float(np.sqrt(self._against(0.0) - honest_variance))
        return replace(self, pairs=counted_pairs, own=local_noise, star=False)

    @property
    def claim(self) -> str:
        """The threat model, in words."""
        return but_partners(self.coalition)

    @property
    def is_complete(self) -> bool:
        """True if every two nodes share a secret."""
        return len(self.pairs) == self.nodes * (self.nodes - 1) // 2

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that a report stores, from which mu can be recomputed."""
        return {
            "nodes": self.nodes,
            "pairs": self.pairs.tolist(),
            "own": self.own,
            "shared": self.shared,
            "coalition": self.coalition,
            "star": self.star,
        }


def links(mixing_matrix: MixingMatrix) -> Pairs:
    """Return the links of a network as pairs of nodes, shape (links, 2)."""
    instance("mixing_matrix", mixing_matrix, "a MixingMatrix", MixingMatrix)
    weights = sparse.csr_array(mixing_matrix.weights)
    upper = sparse.triu(abs(weights) + abs(weights.T), k=1).tocoo()
    return canonical_pairs(np.column_stack([upper.row, upper.col]), mixing_matrix.nodes)


def canonical_pairs(pairs: npt.ArrayLike, nodes: int) -> Pairs:
    """Return pairs with the smaller node first, in ascending order, read-only.

    Raises
    ------
    ValueError
        If a node is out of range, a pair is of one node, or a pair occurs twice.
    """
    raw_pairs = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    if raw_pairs.size and (raw_pairs.min() < 0 or raw_pairs.max() >= nodes):
        fail("pairs", f"nodes from 0 to {nodes - 1}", "others")
    if (raw_pairs[:, 0] == raw_pairs[:, 1]).any():
        fail("pairs", "pairs of two different nodes", "a node with itself")
    sorted_pairs = np.unique(np.sort(raw_pairs, axis=1), axis=0).reshape(-1, 2)
    if len(sorted_pairs) != len(raw_pairs):
        fail("pairs", "each pair once", "one twice")
    sorted_pairs.flags.writeable = False
    return sorted_pairs
