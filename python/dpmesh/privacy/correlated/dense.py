"""The best C of all, for records that are used once: a convex problem with a unique optimum."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from dpmesh._validate import fail

Array = npt.NDArray[np.float64]

LARGEST = 2_000
"""Rounds up to which all T^2 numbers of C are optimised."""

_GAP = 1e-12
_ITERATIONS = 300


def optimal_matrix(gram: Array) -> tuple[Array, float]:
    """Return the lower-triangular C with unit columns that minimises ``tr(G X^-1)``.

    Parameters
    ----------
    gram
        ``G``, symmetric and positive definite, shape (rounds, rounds), at most 2,000 rounds.

    Returns
    -------
    C, and how far its objective can be above the optimum, relative to the optimum: the gap to the
    dual ``2 tr (v^(1/2) G v^(1/2))^(1/2) - sum v``, which L-BFGS maximises over log v. C is valid
    whatever the gap.

    Raises
    ------
    ValueError
        If G is not square, not positive definite, or too large.
    """
    rounds = len(gram)
    if gram.shape != (rounds, rounds) or rounds > LARGEST:
        fail("gram", f"a square matrix of at most {LARGEST} rounds", f"shape {gram.shape}")
    point = _fixed_point(gram)
    start = point.v / point.v.sum()
    scale = np.sqrt(start)  # of the logarithms of v, whose derivatives are of this size squared

    def evaluate(moved: Array) -> tuple[float, Array]:
        nonlocal point
        point = _Point(gram, start * np.exp(moved / scale))
        slope = point.v / point.v.sum() - point.root_diagonal / point.root_diagonal.sum()
        return -float(np.log(point.dual)), slope / scale

    def stop(_: Array) -> None:
        if point.gap(gram) < _GAP:
            raise StopIteration

    options = {"maxcor": 30, "maxiter": _ITERATIONS, "ftol": 1e-30, "gtol": 1e-14}
    minimize(
        evaluate, np.zeros(rounds), jac=True, method="L-BFGS-B", callback=stop, options=options
    )
    x = point.normalized()
    return _lower_factor(x), max(0.0, point.gap(gram))


class _Point:
    """Dual variables v > 0, and ``H = v^(1/2) G v^(1/2)`` by its eigenvectors."""

    def __init__(self, gram: Array, v: Array) -> None:
        self.v = v
        values, self.vectors = np.linalg.eigh(gram * np.sqrt(np.outer(v, v)))
        if values[0] <= 0:
            fail("gram", "a positive definite matrix", f"one with the eigenvalue {values[0]}")
        self.roots = np.sqrt(values)
        self.root_diagonal = (self.vectors**2) @ self.roots

    @property
    def dual(self) -> float:
        """The largest dual value of a multiple of v."""
        return float(self.roots.sum()) ** 2 / float(self.v.sum())

    def normalized(self) -> Array:
        """``X = v^(-1/2) H^(1/2) v^(-1/2)``, scaled from both sides to a unit diagonal."""
        scale = 1 / np.sqrt(self.root_diagonal)
        x: Array = (self.vectors * self.roots) @ self.vectors.T * np.outer(scale, scale)
        return x

    def gap(self, gram: Array) -> float:
        """The objective of that X over the dual, less 1; H^(-1/2) has the same eigenvectors."""
        inverse = (self.vectors / self.roots) @ self.vectors.T
        scale = np.sqrt(self.root_diagonal)
        value = float(np.einsum("ij,ij->", gram * np.outer(scale, scale), inverse))
        return value / self.dual - 1


def _fixed_point(gram: Array) -> _Point:
    """A few steps to the fixed point, ``v <- diag H^(1/2)``, from which the search starts."""
    point = _Point(gram, np.sqrt(np.diag(gram)))
    for _ in range(3):
        point = _Point(gram, point.root_diagonal)
    return point


def _lower_factor(x: Array) -> Array:
    """The lower-triangular C with ``C^T C = X``."""
    factor: Array = np.linalg.cholesky(x[::-1, ::-1])[::-1, ::-1].T
    return factor
