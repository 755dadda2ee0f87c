"""Mixing matrices: who receives from whom in a round and with what weight, checked once.

Both ends of their spectrum are known for a few nodes or 100,000. Small matrices are solved densely.
Large ones are left to the Lanczos method, which on expanders needs a few hundred products. It fails
on long, thin graphs (rings, grids), whose eigenvalues crowd at the ends; but those have small
separators, which makes their sparse factorization cheap.
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

from dpmesh._arrays import compressed, unmasked, whole
from dpmesh._ragged import Indices, Numbers
from dpmesh._validate import fail, integer

Vector: TypeAlias = Numbers

DENSE_NODES = 300
RELATIVE_RESIDUAL = 1e-4
RESTARTS = 150
SHIFT = 1e-12
"""Makes a semidefinite matrix definite; far below every eigenvalue of interest."""


def second_smallest_eigenvalue(laplacian: sparse.csr_array) -> float:
    """Return the smallest eigenvalue of a symmetric I - A apart from the constant vector's."""
    nodes = laplacian.shape[0]
    if nodes <= DENSE_NODES:
        return float(np.linalg.eigvalsh(laplacian.toarray())[1])

    def moved(x: Vector) -> Any:
        return laplacian @ x + 2 * x.mean()  # the constant vector goes to the other end

    try:
        return _extreme(moved, nodes, "SA")
    except ArpackNoConvergence:
        solve = _inverse(laplacian)
        return 1 / _extreme(lambda x: _centre(solve(_centre(x))), nodes, "LA") - SHIFT


def largest_eigenvalue(laplacian: sparse.csr_array) -> float:
    """Return the largest eigenvalue of a symmetric I - A."""
    nodes = laplacian.shape[0]
    if nodes <= DENSE_NODES:
        return float(np.linalg.eigvalsh(laplacian.toarray())[-1])
    try:
        return _extreme(laplacian.__matmul__, nodes, "LA")
    except ArpackNoConvergence:
        bound = 2 * float(laplacian.diagonal().max())  # Gershgorin
        below = sparse.csr_array(bound * sparse.eye_array(nodes) - laplacian)
        return bound - 1 / _extreme(_inverse(below), nodes, "LA") + SHIFT


def _extreme(times: Callable[[Vector], Any], nodes: int, which: str) -> float:
    operator = LinearOperator((nodes, nodes), matvec=times, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(nodes)  # any fixed vector will do
    values = eigsh(
        operator,
        k=1,
        which=which,
        v0=start,
        tol=RELATIVE_RESIDUAL,
        maxiter=RESTARTS,
        return_eigenvectors=False,
    )
    return float(values[0])


def _inverse(matrix: sparse.csr_array) -> Callable[[Vector], Any]:
    definite = sparse.csc_array(matrix + SHIFT * sparse.eye_array(matrix.shape[0]))
    factors = splu(definite, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    solve: Callable[[Vector], Any] = factors.solve
    return solve


def _centre(x: Vector) -> Any:
    return x - x.mean()


MatrixT = TypeVar("MatrixT", bound="MixingMatrix")

SUM_TOLERANCE = 1e-9
"""How far the sum of a row or column of a mixing matrix may be from 1."""


@dataclass(frozen=True, eq=False)
class MixingMatrix:
    """A doubly stochastic matrix A: node i receives the sum over j of A[i, j] times j's message.

    It is non-negative, and every row and column sums to 1 within 1e-9 (Assumption 2 (1) and (2) of
    the online paper, Assumption 1 of the quantized one except for symmetry). It need not be
    connected: one round of a time-varying network rarely is.

    Parameters
    ----------
    weights
        Shape (nodes, nodes): an array or a scipy sparse matrix. Kept as a copy: a read-only CSR
        array of float64 with sorted, unique column indices and without stored zeros.

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
        found = sha256(repr(self.weights.shape).encode())
        for array in (self.weights.data, self.weights.indices, self.weights.indptr):
            found.update(f"{array.dtype}".encode() + array.tobytes())
        return found.digest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.nodes} nodes, {self.messages} messages a round)"

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.weights.shape[0])

    @cached_property
    def messages(self) -> int:
        """Messages that cross links in one round: the positive weights off the diagonal."""
        return int(self.degrees.sum())

    @cached_property
    def degrees(self) -> Indices:
        """Shape (nodes,): how many other nodes each node receives from."""
        heard = np.diff(self.weights.indptr.astype(np.int64))
        others: Indices = heard - (self.weights.diagonal() > 0)
        others.flags.writeable = False
        return others

    @cached_property
    def listeners(self) -> Indices:
        """Shape (nodes,): how many others receive from each node (`degrees` if A is symmetric)."""
        heard = np.bincount(self.weights.indices, minlength=self.nodes)
        others: Indices = heard - (self.weights.diagonal() > 0)
        others.flags.writeable = False
        return others

    def neighbours(self, node: int) -> Indices:
        """Return the other nodes that `node` receives from, in ascending order."""
        node = integer("node", node, below=self.nodes)
        start, end = self.weights.indptr[node : node + 2]
        heard = self.weights.indices[start:end].astype(np.int64)
        others: Indices = heard[heard != node]
        return others

    @cached_property
    def smallest_weight(self) -> float:
        """The smallest positive weight: the online paper's eta (Assumption 2 (3))."""
        return float(self.weights.data.min())

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether A equals its transpose, within 1e-9."""
        return bool(abs(self.weights - self.weights.T).max() <= SUM_TOLERANCE)

    @cached_property
    def components(self) -> int:
        """Number of groups of nodes between which no message travels, directly or through others.

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
            return max(0.0, min(self.algebraic_connectivity, 2 - self.largest_laplacian_eigenvalue))
        squared = sparse.csr_array(self.weights.T @ self.weights)
        loss = min(1.0, max(0.0, second_smallest_eigenvalue(_laplacian(squared))))
        return float(loss / (1 + np.sqrt(1 - loss)))  # 1 - sqrt(1 - loss) without cancellation

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
        self._want_symmetric()
        if self.nodes == 1:
            return 1.0
        return max(0.0, second_smallest_eigenvalue(_laplacian(self.weights)))

    @cached_property
    def largest_laplacian_eigenvalue(self) -> float:
        """The largest eigenvalue of I - A, the l_n of the quantized paper; 1 for one node.

        Accuracy and errors as for `algebraic_connectivity`.
        """
        self._want_symmetric()
        if self.nodes == 1:
            return 1.0
        return min(2.0, largest_eigenvalue(_laplacian(self.weights)))

    @cached_property
    def edges(self) -> Indices:
        """Shape (edges, 2): the pairs i < j of a symmetric A that exchange messages, sorted."""
        self._want_symmetric()
        pairs = np.stack(self._upper.coords, axis=1).astype(np.int64)
        pairs.flags.writeable = False
        return pairs

    @property
    def edge_weights(self) -> Numbers:
        """Shape (edges,): the weights of the `edges` of a symmetric A."""
        self._want_symmetric()
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
        (i, j), weights = self.edges.T, self.edge_weights
        carried = np.where(mask, weights, 0)
        returned = weights - carried
        own = self.weights.diagonal()
        for end in (i, j):
            own += np.bincount(end, returned, minlength=self.nodes)
        each = np.arange(self.nodes)
        places = (np.concatenate([i, j, each]), np.concatenate([j, i, each]))
        values = np.concatenate([carried, carried, own])
        return MixingMatrix(sparse.coo_array((values, places), shape=self.weights.shape))

    @cached_property
    def _upper(self) -> sparse.coo_array:
        return sparse.triu(self.weights, k=1, format="coo")

    def _want_symmetric(self) -> None:
        if not self.is_symmetric:
            difference = abs(self.weights - self.weights.T).tocoo()
            worst = int(difference.data.argmax())
            i, j = (int(axis[worst]) for axis in difference.coords)
            got = f"{self.weights[i, j]} at [{i}, {j}] and {self.weights[j, i]} at [{j}, {i}]"
            fail("weights", "a symmetric matrix", got)


def _laplacian(matrix: sparse.csr_array) -> sparse.csr_array:
    return sparse.csr_array(sparse.eye_array(matrix.shape[0]) - matrix)


def _canonical(value: Any) -> sparse.csr_array:
    if not sparse.issparse(value):
        value = unmasked("weights", value)
    whole("weights", value)
    if value.dtype.kind not in "fiub":
        fail("weights", "real numbers", f"dtype {value.dtype}")
    if value.ndim != 2 or value.shape[0] != value.shape[1] or value.shape[0] == 0:
        fail("weights", "a square matrix of at least 1 node", f"shape {value.shape}")
    weights = sparse.csr_array(value, dtype=np.float64, copy=True)
    weights.sum_duplicates()
    for wanted, fits in (("finite", np.isfinite(weights.data)), ("at least 0", weights.data >= 0)):
        if not fits.all():
            entry = int(np.argmin(fits))
            row = int(np.searchsorted(weights.indptr, entry, side="right")) - 1
            got = f"{weights.data[entry]} at [{row}, {weights.indices[entry]}]"
            fail("weights", f"numbers that are {wanted}", got)
    weights.eliminate_zeros()
    weights.indptr, weights.indices = compressed("weights", weights)
    return weights


def _check_sums(weights: sparse.csr_array, of: tuple[str, ...]) -> None:
    nodes = weights.shape[0]
    rows = np.repeat(np.arange(nodes), np.diff(weights.indptr))
    for name in of:
        index = rows if name == "row" else weights.indices
        sums = np.bincount(index, weights.data, minlength=nodes)
        wrong = np.flatnonzero(np.abs(sums - 1) > SUM_TOLERANCE)
        if len(wrong):
            some = ", ".join(f"{name} {i} sums to {sums[i]}" for i in wrong[:3])
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            fail("weights", f"{name}s that sum to 1 within {SUM_TOLERANCE:g}", some + more)
