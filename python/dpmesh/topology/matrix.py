"""Mixing matrices: the weights with which nodes average the messages of a round.

The extreme eigenvalues of I - A, and so the spectral gap, are computed for a few nodes or 100,000:

- for small matrices, all eigenvalues by a dense solver;
- for large ones, by the Lanczos method, which needs a few hundred products on expanders;
- where Lanczos does not converge (rings, grids), by a sparse factorization of I - A and Lanczos on
  the inverse. These graphs have small separators, so that the factorization is cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, splu

from dpmesh._arrays import check_sparse, csr_int32, unmasked
from dpmesh._ragged import Flags, Indices, Numbers
from dpmesh._validate import fail, integer

Vector: TypeAlias = Numbers

DENSE_NODES = 300
"""Largest number of nodes for which all eigenvalues are computed by a dense solver."""
RELATIVE_RESIDUAL = 1e-4
"""Relative residual at which the Lanczos method stops."""

RESTARTS = 150
"""Largest number of restarts of the Lanczos method."""

SHIFT = 1e-12
"""Added to the diagonal of a semidefinite matrix, to make it definite; far below eigenvalues."""


def second_smallest_eigenvalue(laplacian: sparse.csr_array) -> float:
    """Return the second smallest eigenvalue of a symmetric I - A.

    The smallest one is 0, with the constant vector as its eigenvector.
    """
    nodes = laplacian.shape[0]
    if nodes <= DENSE_NODES:
        return float(np.linalg.eigvalsh(laplacian.toarray())[1])

    def shifted_product(x: Vector) -> Vector:
        """Return (I - A + 2 J) x, where J averages: the constant vector has eigenvalue 2."""
        product: Vector = laplacian @ x + 2 * x.mean()
        return product

    try:
        return _extreme_eigenvalue(shifted_product, nodes, "SA")
    except ArpackNoConvergence:
        return _second_smallest_by_inverse(laplacian)


def _second_smallest_by_inverse(laplacian: sparse.csr_array) -> float:
    """Return the second smallest eigenvalue by the inverse on vectors of mean 0."""
    solve = _inverse(laplacian)

    def centred_solve(x: Vector) -> Vector:
        return _centred(solve(_centred(x)))

    largest = _extreme_eigenvalue(centred_solve, laplacian.shape[0], "LA")
    return 1 / largest - SHIFT


def largest_eigenvalue(laplacian: sparse.csr_array) -> float:
    """Return the largest eigenvalue of a symmetric I - A."""
    nodes = laplacian.shape[0]
    if nodes <= DENSE_NODES:
        return float(np.linalg.eigvalsh(laplacian.toarray())[-1])
    try:
        return _extreme_eigenvalue(laplacian.__matmul__, nodes, "LA")
    except ArpackNoConvergence:
        gershgorin_bound = 2 * float(laplacian.diagonal().max())
        identity = sparse.eye_array(nodes)
        reflected = sparse.csr_array(gershgorin_bound * identity - laplacian)
        largest = _extreme_eigenvalue(_inverse(reflected), nodes, "LA")
        return gershgorin_bound - 1 / largest + SHIFT


def _extreme_eigenvalue(product: Callable[[Vector], Vector], nodes: int, which: str) -> float:
    """Return the largest (``"LA"``) or smallest (``"SA"``) eigenvalue of a symmetric operator."""
    operator = LinearOperator((nodes, nodes), matvec=product, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(nodes)  # any fixed vector will do
    eigenvalues = eigsh(
        operator,
        k=1,
        which=which,
        v0=start,
        tol=RELATIVE_RESIDUAL,
        maxiter=RESTARTS,
        return_eigenvectors=False,
    )
    return float(eigenvalues[0])


def _inverse(matrix: sparse.csr_array) -> Callable[[Vector], Vector]:
    """Factorize a semidefinite matrix, made definite by a tiny shift, and return its solver."""
    shift = SHIFT * sparse.eye_array(matrix.shape[0])
    definite = sparse.csc_array(matrix + shift)
    factors = splu(definite, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    solve: Callable[[Vector], Vector] = factors.solve
    return solve


def _centred(x: Vector) -> Vector:
    """Return a vector less its mean."""
    centred: Vector = x - x.mean()
    return centred


MatrixT = TypeVar("MatrixT", bound="MixingMatrix")

SUM_TOLERANCE = 1e-9
"""Largest deviation from 1 of the sum of a row or column of a mixing matrix."""


@dataclass(frozen=True, eq=False)
class MixingMatrix:
    """Doubly stochastic mixing matrix A of a round: the weights with which nodes average messages.

    Node i receives the sum over j of A[i, j] times node j's message. The weights are non-negative,
    and each row and column sums to 1 within 1e-9 (Assumption 2 (1) and (2) of the paper of
    `OnlineLearning`; Assumption 1 of the paper of `QuantizedGossip`, except for symmetry). The
    graph need not be connected: one round of a time-varying network rarely is.

    Parameters
    ----------
    weights
        The matrix A, shape (nodes, nodes): an array or a scipy sparse matrix. It is copied to a
        read-only CSR array of float64, with sorted, unique column indices and no stored zeros.

    Raises
    ------
    ValueError
        If the matrix is not square, has a negative, infinite or NaN weight, or is not doubly
        stochastic.

    Examples
    --------
    >>> import dpmesh as dm
    >>> from scipy import sparse
    >>> half = sparse.csr_array([[0.5, 0.5], [0.5, 0.5]])
    >>> dm.topology.MixingMatrix(half).spectral_gap
    1.0
    """

    sums_to_one: ClassVar[tuple[str, ...]] = "row", "column"

    weights: sparse.csr_array

    def __post_init__(self) -> None:
        weights = _canonical(self.weights)
        _check_sums(weights, self.sums_to_one)
        for array in (weights.data, weights.indices, weights.indptr):
            array.flags.writeable = False
        object.__setattr__(self, "weights", weights)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    @cached_property
    def _digest(self) -> bytes:
        """SHA-256 of the weights, by which matrices are compared."""
        digest = sha256(repr(self.weights.shape).encode())
        for array in (self.weights.data, self.weights.indices, self.weights.indptr):
            digest.update(f"{array.dtype}".encode())
            digest.update(array.tobytes())
        return digest.digest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.nodes} nodes, {self.messages} messages a round)"

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.weights.shape[0])

    @cached_property
    def messages(self) -> int:
        """Number of messages between nodes in a round: of positive off-diagonal weights."""
        return int(self.degrees.sum())

    @cached_property
    def degrees(self) -> Indices:
        """Number of other nodes from which each node receives, shape (nodes,)."""
        entries_per_row = np.diff(self.weights.indptr.astype(np.int64))
        return self._without_diagonal(entries_per_row)

    @cached_property
    def listeners(self) -> Indices:
        """Number of other nodes to which each node sends, shape (nodes,)."""
        entries_per_column = np.bincount(self.weights.indices, minlength=self.nodes)
        return self._without_diagonal(entries_per_column)

    def _without_diagonal(self, entries: Indices) -> Indices:
        """Return the counts less 1 where a node has a weight on itself, read-only."""
        off_diagonal: Indices = entries - (self.weights.diagonal() > 0)
        off_diagonal.flags.writeable = False
        return off_diagonal

    def neighbours(self, node: int) -> Indices:
        """Return the other nodes that `node` receives from, in ascending order."""
        node = integer("node", node, below=self.nodes)
        start, end = self.weights.indptr[node : node + 2]
        senders = self.weights.indices[start:end].astype(np.int64)
        neighbours: Indices = senders[senders != node]
        return neighbours

    @cached_property
    def smallest_weight(self) -> float:
        """Smallest positive weight: eta in the paper of `OnlineLearning`, Assumption 2 (3)."""
        return float(self.weights.data.min())

    @cached_property
    def is_symmetric(self) -> bool:
        """True if A equals its transpose, within 1e-9."""
        difference = abs(self.weights - self.weights.T)
        return bool(difference.max() <= SUM_TOLERANCE)

    @cached_property
    def components(self) -> int:
        """Number of connected components: groups of nodes that exchange no messages with others.

        The graph of a doubly stochastic matrix is strongly connected if it is connected.
        """
        return int(connected_components(self.weights, directed=False, return_labels=False))

    @cached_property
    def spectral_gap(self) -> float:
        """1 minus the second largest singular value of A, between 0 and 1.

        One round multiplies the distance to the mean by at most 1 - gap. It is 0 for a disconnected
        graph and for a periodic one (an even ring without weight on the diagonal). For a symmetric
        A it is 1 minus the second largest modulus of an eigenvalue. A single node has the gap 1.
        Accuracy as for `algebraic_connectivity`.
        """
        if self.nodes == 1:
            return 1.0
        if self.is_symmetric:
            gap = min(self.algebraic_connectivity, 2 - self.largest_laplacian_eigenvalue)
            return max(0.0, gap)
        squared = sparse.csr_array(self.weights.T @ self.weights)
        squared_gap = second_smallest_eigenvalue(_laplacian(squared))
        squared_gap = min(1.0, max(0.0, squared_gap))
        # 1 - sqrt(1 - squared_gap) without cancellation
        return float(squared_gap / (1 + np.sqrt(1 - squared_gap)))

    @cached_property
    def algebraic_connectivity(self) -> float:
        """The second smallest eigenvalue of I - A, the quantized paper's rho_L; 1 for one node.

        Exact up to rounding for at most 300 nodes; beyond, up to a relative residual of 1e-4 (the
        error is usually far smaller).

        Raises
        ------
        ValueError
            If A is not symmetric.
        """
        self._require_symmetric()
        if self.nodes == 1:
            return 1.0
        return max(0.0, second_smallest_eigenvalue(_laplacian(self.weights)))

    @cached_property
    def largest_laplacian_eigenvalue(self) -> float:
        """The largest eigenvalue of I - A, the l_n of the quantized paper; 1 for one node.

        Accuracy and errors as for `algebraic_connectivity`.
        """
        self._require_symmetric()
        if self.nodes == 1:
            return 1.0
        return min(2.0, largest_eigenvalue(_laplacian(self.weights)))

    @cached_property
    def edges(self) -> Indices:
        """Pairs of nodes i < j that exchange messages, sorted, shape (edges, 2); A is symmetric."""
        self._require_symmetric()
        pairs = np.stack(self._upper.coords, axis=1).astype(np.int64)
        pairs.flags.writeable = False
        return pairs

    @property
    def edge_weights(self) -> Numbers:
        """Weights of the `edges` of a symmetric A, shape (edges,)."""
        self._require_symmetric()
        weights: Numbers = self._upper.data
        weights.flags.writeable = False
        return weights

    def keep_edges(self, kept: npt.ArrayLike) -> MixingMatrix:
        """Return the matrix of a round in which only the `kept` edges carry messages.

        Both ends of an edge that is down put its weight on themselves, so that the matrix stays
        symmetric and doubly stochastic.

        Parameters
        ----------
        kept
            Shape (edges,): one truth value for each row of `edges`.

        Raises
        ------
        ValueError
            If A is not symmetric, or `kept` does not fit.
        """
        mask = np.asarray(kept)
        if mask.shape != (len(self.edges),) or mask.dtype != np.bool_:
            got = f"{mask.dtype} of shape {mask.shape}"
            fail("kept", f"truth values of shape ({len(self.edges)},)", got)
        first_end, second_end = self.edges.T
        carried = np.where(mask, self.edge_weights, 0)
        returned = self.edge_weights - carried
        diagonal = self.weights.diagonal()
        diagonal += np.bincount(first_end, returned, minlength=self.nodes)
        diagonal += np.bincount(second_end, returned, minlength=self.nodes)
        all_nodes = np.arange(self.nodes)
        rows = np.concatenate([first_end, second_end, all_nodes])
        columns = np.concatenate([second_end, first_end, all_nodes])
        entries = np.concatenate([carried, carried, diagonal])
        weights = sparse.coo_array((entries, (rows, columns)), shape=self.weights.shape)
        return MixingMatrix(weights)

    @cached_property
    def _upper(self) -> sparse.coo_array:
        """Weights above the diagonal."""
        return sparse.triu(self.weights, k=1, format="coo")

    def _require_symmetric(self) -> None:
        """Fail unless A is symmetric; the error names the largest difference."""
        if self.is_symmetric:
            return
        difference = abs(self.weights - self.weights.T).tocoo()
        worst = int(difference.data.argmax())
        i = int(difference.coords[0][worst])
        j = int(difference.coords[1][worst])
        got = f"{self.weights[i, j]} at [{i}, {j}] and {self.weights[j, i]} at [{j}, {i}]"
        fail("weights", "a symmetric matrix", got)


def _laplacian(matrix: sparse.csr_array) -> sparse.csr_array:
    """Return I - A, the Laplacian of the weighted graph."""
    return sparse.csr_array(sparse.eye_array(matrix.shape[0]) - matrix)


def _canonical(matrix: Any) -> sparse.csr_array:
    """Return a copy in canonical CSR form, whose weights are finite and at least 0.

    Raises
    ------
    ValueError
        If the matrix is not square and real, or has a negative, infinite or NaN weight.
    """
    if not sparse.issparse(matrix):
        matrix = unmasked("weights", matrix)
    check_sparse("weights", matrix)
    if matrix.dtype.kind not in "fiub":
        fail("weights", "real numbers", f"dtype {matrix.dtype}")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        fail("weights", "a square matrix of at least 1 node", f"shape {matrix.shape}")
    weights = sparse.csr_array(matrix, dtype=np.float64, copy=True)
    weights.sum_duplicates()
    _check_entries(weights, np.isfinite(weights.data), "finite")
    _check_entries(weights, weights.data >= 0, "at least 0")
    weights.eliminate_zeros()
    weights.indptr, weights.indices = csr_int32("weights", weights)
    return weights


def _check_entries(weights: sparse.csr_array, is_valid: Flags, condition: str) -> None:
    """Fail with the first entry that is not valid, and its place."""
    if is_valid.all():
        return
    entry = int(np.argmin(is_valid))
    row = int(np.searchsorted(weights.indptr, entry, side="right")) - 1
    column = weights.indices[entry]
    got = f"{weights.data[entry]} at [{row}, {column}]"
    fail("weights", f"numbers that are {condition}", got)


def _check_sums(weights: sparse.csr_array, axes: tuple[str, ...]) -> None:
    """Fail unless the rows or columns, as named in `axes`, sum to 1."""
    nodes = weights.shape[0]
    rows = np.repeat(np.arange(nodes), np.diff(weights.indptr))
    groups = {"row": rows, "column": weights.indices}
    for axis in axes:
        sums = np.bincount(groups[axis], weights.data, minlength=nodes)
        wrong = np.flatnonzero(np.abs(sums - 1) > SUM_TOLERANCE)
        if not len(wrong):
            continue
        got = ", ".join(f"{axis} {i} sums to {sums[i]}" for i in wrong[:3])
        if len(wrong) > 3:
            got += f" and {len(wrong) - 3} more"
        fail("weights", f"{axis}s that sum to 1 within {SUM_TOLERANCE:g}", got)
