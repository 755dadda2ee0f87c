"""Noise that remains unknown to an observer who colludes with some nodes.

In a round, each node adds *local noise* of standard deviation `own`, and the two ends of a link add
and subtract a *secret* of standard deviation `shared` (see `secrets`). An observer sees all
messages. A coalition of nodes that collude with it knows all secrets of its own links; the other
nodes are *honest*. Given the coalition's secrets, the noise of the honest nodes has covariance
``own^2 I + shared^2 L'``, where L' is the Laplacian of the graph of the honest nodes and the links
between them. At noise ratio 1 an honest node u then has

    mu = sqrt([(own^2 I + shared^2 L')^-1]_uu)                                              (1)

(Theorem 3 of docs/privacy/correlated_noise_proofs.md). With the eigenvalues l_k of L' and the
entries ``V[u, k]`` of its eigenvectors, ``mu^2 = sum_k V[u, k]^2 / (own^2 + shared^2 l_k)``. So
`Exposure` keeps the eigenvalues and squared entries, and (1) follows for any `own` and `shared`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail

Array = npt.NDArray[np.float64]

_NUMBERS = 30_000_000
"""Most entries of all coalitions' eigenvectors, which are in memory at once: 240 MB."""

_ZERO = 1e-9
"""Eigenvalues of a Laplacian below this are 0 up to rounding."""


def laplacian(nodes: int, pairs: npt.NDArray[np.int64]) -> Array:
    """Return the Laplacian of a graph, shape (nodes, nodes).

    It has the number of a node's links on the diagonal, and -1 for each link.
    """
    matrix = np.zeros((nodes, nodes))
    for i, j in pairs:
        matrix[i, j] = matrix[j, i] = -1.0
    np.fill_diagonal(matrix, -matrix.sum(axis=1))
    return matrix


def honest(
    graph_laplacian: Array, coalition: tuple[int, ...]
) -> tuple[npt.NDArray[np.int64], Array]:
    """Return the honest nodes, ascending, and the Laplacian of the links between them.

    Shapes are (honest,) and (honest, honest).
    """
    honest_nodes = np.setdiff1d(np.arange(len(graph_laplacian)), coalition)
    honest_laplacian = graph_laplacian[np.ix_(honest_nodes, honest_nodes)].copy()
    np.fill_diagonal(honest_laplacian, 0.0)
    np.fill_diagonal(honest_laplacian, -honest_laplacian.sum(axis=1))
    return honest_nodes, honest_laplacian


def spectrum(laplacians: Array) -> tuple[Array, Array]:
    """Return the eigenvalues of Laplacians, and the squared entries of their eigenvectors.

    Eigenvalues that are 0 up to rounding become 0, else they would count as noise once multiplied
    by large secrets.

    Parameters
    ----------
    laplacians
        Shape (.., nodes, nodes).

    Returns
    -------
    Shapes (.., nodes) and (.., nodes, nodes); eigenvectors are columns.
    """
    eigenvalues, eigenvectors = np.linalg.eigh(laplacians)
    return np.where(eigenvalues < _ZERO, 0.0, eigenvalues), eigenvectors**2


@dataclass(frozen=True, eq=False)
class Exposure:
    """Privacy loss of honest nodes to every coalition of one size, by the honest Laplacians.

    For a star (see `exposure`) there is one coalition, one node and two eigenvalues.

    Parameters
    ----------
    values
        Eigenvalues of the Laplacian that each coalition leaves, shape (coalitions, eigenvalues).
    squares
        Squared entries of its eigenvectors, shape (coalitions, nodes, eigenvalues), where nodes are
        the honest ones.
    """

    values: Array
    squares: Array

    def squared(self, local: float, shared: float) -> Array:
        """Return mu^2 of each honest node at noise ratio 1, shape (coalitions, nodes).

        Parameters
        ----------
        local, shared
            Standard deviations of a node's local noise and of a secret, at noise ratio 1.
        """
        inverse_variances = 1 / (local**2 + shared**2 * self.values)
        squared: Array = np.matmul(self.squares, inverse_variances[:, :, None])[:, :, 0]
        return squared

    def worst(self, local: float, shared: float) -> float:
        """Return the largest mu of a node at noise ratio 1; parameters as in `squared`."""
        return float(np.sqrt(self.squared(local, shared).max()))

    def least_own(self) -> float:
        """Return the `own` that mu = 1 needs even with infinitely large secrets.

        Secrets cancel in the mean over a connected part of the honest graph, which local noise
        alone protects: ``mu = 1 / (own sqrt(nodes of the smallest part))``. These means are the
        eigenvectors of the eigenvalue 0.
        """
        is_unprotected = np.where(self.values < _ZERO, 1.0, 0.0)
        return float(np.sqrt(np.matmul(self.squares, is_unprotected[:, :, None]).max()))

    def only(self, chosen: npt.NDArray[np.int64]) -> Exposure:
        """Return the exposure to the coalitions with these indices."""
        return Exposure(self.values[chosen], self.squares[chosen])


def exposure(
    nodes: int, pairs: npt.NDArray[np.int64], size: int, *, star: bool = False
) -> Exposure:
    """Return the exposure to all coalitions of up to `size` nodes.

    Coalitions of exactly `size` are enough, since a larger one knows more. On a complete graph one
    of them stands for all.

    Parameters
    ----------
    nodes
        Number of nodes.
    pairs
        Pairs of nodes that share secrets, shape (pairs, 2).
    size
        Number of colluding nodes.
    star
        True for the exposure of the middle of a star alone. Its leaves are the partners of the node
        that has fewest, less `size` of them: p leaves. The Laplacian has the eigenvalues 0, 1 and
        p + 1; the middle's squared entries are ``1 / (p + 1)``, 0 and ``p / (p + 1)``.

    Raises
    ------
    ValueError
        If no node is honest, or there are too many coalitions to try each of them; a maximum over
        a sample of them would be no bound. Never for a star.
    """
    if star:
        star_nodes = max(0, least_partners(nodes, pairs) - size) + 1
        squares = np.array([[[1 / star_nodes, 1 - 1 / star_nodes]]])
        return Exposure(np.array([[0.0, float(star_nodes)]]), squares)
    is_complete = len(pairs) == nodes * (nodes - 1) // 2
    coalitions = coalitions_of(nodes, size, is_symmetric=is_complete)
    graph_laplacian = laplacian(nodes, pairs)
    laplacians = np.stack([honest(graph_laplacian, coalition)[1] for coalition in coalitions])
    return Exposure(*spectrum(laplacians))


def least_partners(nodes: int, pairs: npt.NDArray[np.int64]) -> int:
    """Return the smallest number of partners of a node."""
    return int(np.bincount(pairs.reshape(-1), minlength=nodes).min())


def coalitions_of(nodes: int, size: int, *, is_symmetric: bool) -> list[tuple[int, ...]]:
    """Return every coalition of `size` nodes, or only one of them if nodes are interchangeable.

    `is_symmetric` is True on complete graphs, where all coalitions of a size are alike.

    Raises
    ------
    ValueError
        If no node is honest, or there are too many coalitions to try each of them.
    """
    if size >= nodes:
        fail("coalition", f"fewer than the {nodes} nodes", size)
    if is_symmetric:
        return [tuple(range(size))]
    count = comb(nodes, size)
    if count * (nodes - size) ** 2 > _NUMBERS:
        expected = (
            "a smaller coalition, or a complete graph of secrets: every coalition must be tried"
        )
        fail("coalition", expected, f"{count} coalitions of {size} among {nodes} nodes")
    return list(combinations(range(nodes), size))
