"""Objective of correlated noise: the variance that remains in the mixed points of a run.

The noise of the messages is ``S C^-1 Z`` (see `factorization`). Rows of Z are independent over
rounds and have covariance K between the nodes. Gossip mixes the messages of a round in this and in
all later rounds: with the mixing matrix W (to the power of the mixings of a round), the *mixed
points* follow ``mixed_t = W (mixed_(t-1) + message_t)``. Gradients are taken, and models are read,
at the mixed points. The variance of their noise, averaged over n nodes and summed over rounds, is

    tr(G X^-1),    X = C^T C,
    G[j, k] = s_j s_k / n  sum over rounds r >= max(j, k) of tr(W^(r-j+1) K (W^(r-k+1))^T)

with the sensitivity ``s_j`` of round j. G depends on public numbers alone. It serves the choice of
C; privacy never depends on G.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpmesh._validate import fail, instance, integer
from dpmesh.topology import MixingMatrix

Array = npt.NDArray[np.float64]

_DIGITS = 12
"""Eigenvalues that agree to so many digits are merged, and their weights added."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Objective:
    """The variance of the mixed points of a static network, by the eigenvalues of its weights.

    Along an eigenvector of W with eigenvalue l, noise is multiplied by l in each round.

    Parameters
    ----------
    eigenvalues
        Distinct eigenvalues l of W, shape (values,).
    weights
        Variance of one round's noise along the eigenvectors of each eigenvalue, over the number of
        nodes; shape (values,).
    sensitivities
        L2 sensitivity of the message of each round, all positive; shape (rounds,).

    Examples
    --------
    >>> import dpmesh as dm
    >>> from dpmesh.noise import correlated
    >>> correlated.gossip(dm.topology.ring(8).mixing_matrix, 10).eigenvalues.shape
    (5,)
    """

    eigenvalues: Array
    weights: Array
    sensitivities: Array

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.sensitivities)

    def matrix(self) -> Array:
        """Return G, shape (rounds, rounds), symmetric.

        It is positive definite if some eigenvalue that is not 0 has a positive weight, such as the
        eigenvalue 1 of the network's average, in which local noise remains.

        With the distance d of two rounds and the number m of rounds from the later one on, the sum
        over rounds is ``l^d (l^2 + l^4 + .. + l^(2 m))`` for each eigenvalue.
        """
        rounds = np.arange(self.rounds)
        later = np.maximum.outer(rounds, rounds)
        distance = np.abs(np.subtract.outer(rounds, rounds))
        powers = self.eigenvalues ** rounds[:, None]
        # sums[d, m - 1], over the eigenvalues
        sums = (powers * self.weights) @ _sums_of_squares(self.eigenvalues, self.rounds)[1:].T
        gram: Array = sums[distance, self.rounds - 1 - later]
        gram *= np.outer(self.sensitivities, self.sensitivities)
        return gram

    def trace(self) -> float:
        """Return ``tr G``: the objective of noise that is independent between rounds."""
        tail_sums = _sums_of_squares(self.eigenvalues, self.rounds)[1:] @ self.weights
        return float(tail_sums[::-1] @ self.sensitivities**2)


def _sums_of_squares(eigenvalues: Array, rounds: int) -> Array:
    """Return ``sum(l**(2 i) for i in 1..j)`` for j from 0 to `rounds`: (rounds + 1, values)."""
    squares = eigenvalues ** (2 * np.arange(1, rounds + 1)[:, None])
    return np.vstack([np.zeros(len(eigenvalues)), np.cumsum(squares, axis=0)])


def sensitivities_of(value: npt.ArrayLike, rounds: int) -> Array:
    """Return one positive sensitivity for each round, shape (rounds,), read-only.

    Parameters
    ----------
    value
        A number, or one for each round.
    rounds
        Number of rounds.

    Raises
    ------
    ValueError
        If the shape differs, or a number is not finite and positive.
    """
    array = np.asarray(value, dtype=np.float64)
    if array.ndim > 1 or array.size not in (1, rounds):
        fail("sensitivities", f"a number or one for each of {rounds} rounds", f"{array.shape}")
    values = np.broadcast_to(array.reshape(-1), (rounds,)).copy()
    if not (np.isfinite(values).all() and (values > 0).all()):
        fail(
            "sensitivities",
            "finite numbers greater than 0 (a row without data has no noise)",
            value,
        )
    values.flags.writeable = False
    return np.asarray(values)


def server(rounds: int, *, sensitivities: npt.ArrayLike = 1.0) -> Objective:
    """Return the objective of a server that adds up the messages of all rounds: prefix sums.

    Parameters
    ----------
    rounds
        Number of rows of noise, T.
    sensitivities
        L2 sensitivity of a message: a positive number, or one for each round.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    rounds = integer("rounds", rounds, at_least=1)
    ones = np.ones(1)
    return Objective(
        eigenvalues=ones, weights=ones, sensitivities=sensitivities_of(sensitivities, rounds)
    )


def gossip(
    mixing_matrix: MixingMatrix,
    rounds: int,
    *,
    mixings: int = 1,
    sensitivities: npt.ArrayLike = 1.0,
    covariance: npt.ArrayLike | None = None,
) -> Objective:
    """Return the objective of gossip with the same symmetric weights in every round.

    Parameters
    ----------
    mixing_matrix
        Symmetric weights.
    rounds
        Number of rows of noise, T.
    mixings
        How often messages are mixed between two gradients.
    sensitivities
        L2 sensitivity of a message: a positive number, or one for each round.
    covariance
        Covariance of one round's noise between nodes, shape (nodes, nodes), such as
        `Secrets.covariance`; None for independent noise.

    Raises
    ------
    ValueError
        If the weights are not symmetric, or an argument is out of its range. For networks that
        change use `average_matrix`.
    """
    weights = _symmetric(mixing_matrix)
    rounds = integer("rounds", rounds, 1)
    mixings = integer("mixings", mixings, 1)
    eigenvalues, vectors = np.linalg.eigh(weights)
    noise = _covariance(covariance, len(weights))
    variances = np.einsum("ni,nm,mi->i", vectors, noise, vectors, optimize=True) / len(weights)
    rounded = np.round(eigenvalues**mixings, _DIGITS)
    distinct, indices = np.unique(rounded, return_inverse=True)
    return Objective(
        eigenvalues=distinct,
        weights=np.bincount(indices, variances).astype(np.float64),
        sensitivities=sensitivities_of(sensitivities, rounds),
    )


def average_matrix(
    networks: Sequence[Sequence[MixingMatrix]],
    *,
    mixings: int = 1,
    sensitivities: npt.ArrayLike = 1.0,
    covariance: npt.ArrayLike | None = None,
) -> Array:
    """Return ``G`` of networks that change by round, averaged over random draws of them.

    Parameters
    ----------
    networks
        For each draw, the mixing matrix of each round. The draws are public: they must not depend
        on data.
    mixings, sensitivities
        As in `gossip`.
    covariance
        As in `gossip`, or the covariance of each round, shape (rounds, nodes, nodes).

    Returns
    -------
    G, shape (rounds, rounds). A draw takes time of the order of ``rounds**2 * nodes**3 + rounds**3
    * nodes**2``.

    Raises
    ------
    ValueError
        If the sensitivities or the covariance have another shape.
    """
    rounds = len(networks[0])
    scales = sensitivities_of(sensitivities, rounds)
    grams = [_changing_matrix(draw, mixings, covariance) for draw in networks]
    average: Array = sum(grams[1:], grams[0]) / len(grams) * np.outer(scales, scales)
    return average


def _changing_matrix(
    draw: Sequence[MixingMatrix], mixings: int, covariance: npt.ArrayLike | None
) -> Array:
    """Return G of one draw of the networks at sensitivity 1.

    With the mixing matrices from round j to round r multiplied to M, and a root R of the covariance
    of round j, the noise of round j is ``M R`` at the mixed points of round r. ``G[j, k]`` is the
    sum over r of the products of such matrices for j and k, entry by entry, over the nodes.
    """
    nodes = draw[0].nodes
    rounds = len(draw)
    roots = _covariance_roots(covariance, rounds, nodes)
    mixed = np.empty((0, nodes, nodes))  # noise of each earlier round at the current mixed points
    gram = np.zeros((rounds, rounds))
    for t, matrix in enumerate(draw):
        weights = np.linalg.matrix_power(matrix.weights.toarray(), mixings)
        mixed = weights @ np.concatenate([mixed, roots[t % len(roots)][None]])
        flat = mixed.reshape(t + 1, -1)
        gram[: t + 1, : t + 1] += flat @ flat.T / nodes
    return gram


def _covariance_roots(covariance: npt.ArrayLike | None, rounds: int, nodes: int) -> Array:
    """Return R with ``R R^T`` the covariance: of all rounds, or one for each round.

    Returns
    -------
    Shape (1, nodes, nodes) or (rounds, nodes, nodes).
    """
    if covariance is None or np.ndim(covariance) < 3:
        stacked = _covariance(covariance, nodes)[None]
    else:
        stacked = np.asarray(covariance, dtype=np.float64)
        if stacked.shape != (rounds, nodes, nodes):
            fail("covariance", f"shape ({rounds}, {nodes}, {nodes})", f"shape {stacked.shape}")
    eigenvalues, vectors = np.linalg.eigh(stacked)
    roots: Array = vectors * np.sqrt(np.maximum(eigenvalues, 0))[:, None]
    return roots


def _symmetric(matrix: MixingMatrix) -> Array:
    """Return the dense weights, symmetric to the bit; fail if the matrix is not symmetric."""
    instance("mixing_matrix", matrix, "a MixingMatrix, such as ring(8).mixing_matrix", MixingMatrix)
    if not matrix.is_symmetric:
        fail("mixing_matrix", "symmetric weights (average_matrix takes others)", "others")
    dense = sparse.csr_array(matrix.weights).toarray()
    weights: Array = (dense + dense.T) / 2
    return weights


def _covariance(covariance: npt.ArrayLike | None, nodes: int) -> Array:
    """Return a covariance between nodes as an array; the identity for None."""
    if covariance is None:
        return np.eye(nodes)
    array = np.asarray(covariance, dtype=np.float64)
    if array.shape != (nodes, nodes):
        fail("covariance", f"shape ({nodes}, {nodes})", f"shape {array.shape}")
    return array
