"""Both ends of the spectrum of a Laplacian, for a few nodes or 100,000.

Small matrices are solved densely. Large ones are left to the Lanczos method, which on expanders
needs a few hundred products. It fails on long, thin graphs (rings, grids), whose eigenvalues crowd
at the ends; but those have small separators, which makes their sparse factorization cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, splu

Vector: TypeAlias = npt.NDArray[np.float64]

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
