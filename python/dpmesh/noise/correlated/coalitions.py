"""Noise that remains when a coalition shares its secrets with the observer.

The coalition knows every secret of its own links. What is left of the others' noise in one round
has covariance ``own^2 I + shared^2 L'``, where L' is the Laplacian of the remaining nodes and the
links between them, so that one of them, u, has ``mu = sqrt([(own^2 I + shared^2 L')^-1]_uu)`` at
noise ratio 1 (Theorem 3 of the page on correlated noise).
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
"""Numbers of all coalitions' eigenvectors that are kept at once: 240 MB."""

_ZERO = 1e-9


def laplacian(nodes: int, pairs: npt.NDArray[np.int64]) -> Array:
    """Return the Laplacian of a graph, shape (nodes, nodes)."""
    result = np.zeros((nodes, nodes))
    for i, j in pairs:
        result[i, j] = result[j, i] = -1.0
    np.fill_diagonal(result, -result.sum(axis=1))
    return result


def honest(
    graph_laplacian: Array, coalition: tuple[int, ...]
) -> tuple[npt.NDArray[np.int64], Array]:
    """Return the other nodes, and the Laplacian of the links between them."""
    honest_nodes = np.setdiff1d(np.arange(len(graph_laplacian)), coalition)
    honest_laplacian = graph_laplacian[np.ix_(honest_nodes, honest_nodes)].copy()
    np.fill_diagonal(honest_laplacian, 0.0)
    np.fill_diagonal(honest_laplacian, -honest_laplacian.sum(axis=1))
    return honest_nodes, honest_laplacian


def spectrum(parts: Array) -> tuple[Array, Array]:
    """Return the eigenvalues of Laplacians, and the squared entries of their eigenvectors.

    What rounding leaves of an eigenvalue of 0 is 0: times large secrets it would count as noise.
    """
    values, vectors = np.linalg.eigh(parts)
    return np.where(values < _ZERO, 0.0, values), vectors**2


@dataclass(frozen=True, eq=False)
class Exposure:
    """The exposure of the others to every coalition of one size, by the graphs' eigenvectors.

    ``values`` has shape (coalitions, others) and ``squares``, the squared entries of the
    eigenvectors, shape (coalitions, others, others).
    """

    values: Array
    squares: Array

    def squared(self, local: float, shared: float) -> Array:
        """Return mu^2 at noise ratio 1: shape (coalitions, others)."""
        inverse = 1 / (local**2 + shared**2 * self.values)
        result: Array = np.matmul(self.squares, inverse[:, :, None])[:, :, 0]
        return result

    def worst(self, local: float, shared: float) -> float:
        """Return the largest mu at noise ratio 1."""
        return float(np.sqrt(self.squared(local, shared).max()))

    def least_own(self) -> float:
        """Return the `own` that mu = 1 needs however large the secrets are.

        Without a bound on the secrets only the mean over a connected part of the honest graph stays
        unprotected by them: ``mu = 1 / (own sqrt(nodes of the smallest part))``.
        """
        is_unprotected = np.where(self.values < _ZERO, 1.0, 0.0)
        return float(np.sqrt(np.matmul(self.squares, is_unprotected[:, :, None]).max()))

    def only(self, chosen: npt.NDArray[np.int64]) -> Exposure:
        """Return that to some of the coalitions."""
        return Exposure(self.values[chosen], self.squares[chosen])


def exposure(
    nodes: int, pairs: npt.NDArray[np.int64], size: int, *, star: bool = False
) -> Exposure:
    """Return the exposure to all coalitions of up to `size` nodes.

    Those of exactly `size` are enough, since a larger one knows more. On a complete graph one of
    them stands for all. With `star`, that of the middle of a star of the fewest partners that a
    node has, less those that collude: its Laplacian has the eigenvalues 0, 1 and partners + 1.

    Raises
    ------
    ValueError
        If no node is left, or there are too many coalitions to try each: a sampled maximum would
        be no bound.
    """
    if star:
        count = max(0, least_partners(nodes, pairs) - size) + 1
        squares = np.array([[[1 / count, 1 - 1 / count]]])
        return Exposure(np.array([[0.0, float(count)]]), squares)
    coalitions = coalitions_of(nodes, size, is_symmetric=len(pairs) == nodes * (nodes - 1) // 2)
    graph_laplacian = laplacian(nodes, pairs)
    parts = np.stack([honest(graph_laplacian, coalition)[1] for coalition in coalitions])
    return Exposure(*spectrum(parts))


def least_partners(nodes: int, pairs: npt.NDArray[np.int64]) -> int:
    """Return how many partners the node with the fewest has."""
    return int(np.bincount(pairs.reshape(-1), minlength=nodes).min())


def coalitions_of(nodes: int, size: int, *, is_symmetric: bool) -> list[tuple[int, ...]]:
    """Return every coalition of a size, or one of them where any of them costs the same.

    Raises
    ------
    ValueError
        As `exposure`.
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
