"""Noise that remains unknown to an observer who colludes with some nodes.

The coalition knows every secret of its own links. Given these secrets, the noise of the honest
nodes in one round has covariance ``own^2 I + shared^2 L'``, where L' is the Laplacian of the honest
nodes and the links between them. At noise ratio 1 an honest node u then has
``mu = sqrt([(own^2 I + shared^2 L')^-1]_uu)`` (Theorem 3 of the page on correlated noise).
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
"""Most entries of all coalitions' eigenvectors that are in memory at once: 240 MB."""

_ZERO = 1e-9
"""Eigenvalues of a Laplacian below this are 0 up to rounding."""


def laplacian(nodes: int, pairs: npt.NDArray[np.int64]) -> Array:
    """Return the Laplacian of a graph, shape (nodes, nodes)."""
    matrix = np.zeros((nodes, nodes))
    for i, j in pairs:
        matrix[i, j] = matrix[j, i] = -1.0
    np.fill_diagonal(matrix, -matrix.sum(axis=1))
    return matrix


def honest(
    graph_laplacian: Array, coalition: tuple[int, ...]
) -> tuple[npt.NDArray[np.int64], Array]:
    """Return the honest nodes, and the Laplacian of the links between them."""
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

    Parameters
    ----------
    values
        Eigenvalues of the Laplacian that each coalition leaves, shape (coalitions, honest).
    squares
        Squared entries of its eigenvectors, shape (coalitions, honest, honest).
    """

    values: Array
    squares: Array

    def squared(self, local: float, shared: float) -> Array:
        """Return mu^2 of each honest node at noise ratio 1, shape (coalitions, honest).

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
        alone protects: ``mu = 1 / (own sqrt(nodes of the smallest part))``.
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
        True for the exposure of the middle of a star: the partners of the node that has fewest,
        less `size` of them. Its Laplacian has the eigenvalues 0, 1 and partners + 1.

    Raises
    ------
    ValueError
        If no node is honest, or there are too many coalitions to try each of them; a maximum over
        a sample of them would be no bound.
    """
    if star:
        count = max(0, least_partners(nodes, pairs) - size) + 1
        squares = np.array([[[1 / count, 1 - 1 / count]]])
        return Exposure(np.array([[0.0, float(count)]]), squares)
    is_complete = len(pairs) == nodes * (nodes - 1) // 2
    coalitions = coalitions_of(nodes, size, is_symmetric=is_complete)
    graph_laplacian = laplacian(nodes, pairs)
    laplacians = np.stack([honest(graph_laplacian, coalition)[1] for coalition in coalitions])
    return Exposure(*spectrum(laplacians))


def least_partners(nodes: int, pairs: npt.NDArray[np.int64]) -> int:
    """Return the smallest number of partners of a node."""
    return int(np.bincount(pairs.reshape(-1), minlength=nodes).min())


def coalitions_of(nodes: int, size: int, *, is_symmetric: bool) -> list[tuple[int, ...]]:
    """Return every coalition of `size` nodes, or only one of them if the graph is symmetric.

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
