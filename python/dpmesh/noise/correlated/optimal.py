"""The best C of each shape: all its numbers, a few bands, or constant diagonals.

For records that are used once, the best of all is a convex problem with a unique optimum. Few bands
need less memory in the run, and their columns can be orthogonal for records used repeatedly.
Constant diagonals take a few numbers for any number of rounds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg.lapack import dtbtrs
from scipy.optimize import minimize
from scipy.signal import lfilter

from dpmesh._validate import fail
from dpmesh.noise.correlated.objective import Objective

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
    lower: Array = np.linalg.cholesky(x[::-1, ::-1])[::-1, ::-1].T  # the C with C^T C = X
    return lower, max(0.0, point.gap(gram))


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


def optimal_bands(gram: Array, bands: int) -> Array:
    """Return the C with unit columns and this many bands that minimises ``tr(G X^-1)``.

    The problem is convex in X. L-BFGS on the entries of C, columns normalised, finds the optimum;
    where it stops early, C is a little noisier and as private.

    Parameters
    ----------
    gram
        ``G``, symmetric and positive definite, shape (rounds, rounds).
    bands
        From 1 to the number of rounds.

    Returns
    -------
    Rows from the diagonal backwards, as `Factorization` takes them, shape (rounds, bands).
    """
    rounds = len(gram)
    inside = np.arange(rounds)[:, None] + np.arange(bands) < rounds
    start = np.where(inside, square_root_coefficients(bands), 0.0)
    scale = float(np.trace(gram))

    def evaluate(entries: Array) -> tuple[float, Array]:
        columns = np.zeros((rounds, bands))
        columns[inside] = entries
        lengths = np.linalg.norm(columns, axis=1, keepdims=True)
        unit = columns / lengths
        value, slope = _objective(gram, unit)
        slope = (slope - unit * (slope * unit).sum(axis=1, keepdims=True)) / lengths
        return value / scale, slope[inside] / scale

    solution = minimize(
        evaluate,
        start[inside],
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 3000, "maxfun": 5000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 30},
    )
    columns = np.zeros((rounds, bands))
    columns[inside] = solution.x
    columns /= np.linalg.norm(columns, axis=1, keepdims=True)
    columns *= np.sign(columns[:, :1])
    return _rows(columns)


def _rows(columns: Array) -> Array:
    rounds, bands = columns.shape
    rows = np.zeros((rounds, bands))
    for k in range(bands):
        rows[k:, k] = columns[: rounds - k, k]
    return rows


def _objective(gram: Array, columns: Array) -> tuple[float, Array]:
    """``tr(C^-T G C^-1)`` and its derivative in the entries of C, by three banded solves."""
    rounds, bands = columns.shape
    stored = np.asfortranarray(columns.T)
    solved = dtbtrs(stored, gram, uplo="L", trans="T")[0]
    inner = dtbtrs(stored, solved.T, uplo="L", trans="T")[0]
    right = dtbtrs(stored, inner, uplo="L", trans="N")[0]
    slope = np.zeros((rounds, bands))
    for k in range(bands):
        slope[: rounds - k, k] = -2 * np.diagonal(right, k)
    return float(np.trace(inner)), slope


_COLUMNS = 40
"""Rounds whose noise is followed where sensitivities change, more of them among the first."""


def square_root_coefficients(bands: int) -> Array:
    """Return the first coefficients of ``(1 - x)^(-1/2)``, the square root of prefix sums.

    Without an optimiser they give most of the gain (Fichtenberger, Henzinger and Upadhyay 2023;
    Henzinger, Upadhyay and Upadhyay 2023 for the error).
    """
    k = np.arange(1, bands)
    return np.concatenate([np.ones(1), np.cumprod((2 * k - 1) / (2 * k))])


def toeplitz_bands(coefficients: Array, rounds: int) -> Array:
    """Return the rows of the Toeplitz C with these coefficients, as `Factorization` takes them."""
    inside = np.arange(rounds)[:, None] >= np.arange(len(coefficients))
    return np.where(inside, coefficients, 0.0)


def optimal_coefficients(objective: Objective, bands: int) -> Array:
    """Return the coefficients of the banded Toeplitz C, longest column 1, of least noise.

    L-BFGS on ``bands - 1`` numbers. An evaluation filters one series of `rounds` numbers for each
    eigenvalue of the network, or, where sensitivities change, one for each of some 40 rounds and
    each eigenvalue. C is valid however the search ends.
    """
    scale = objective.trace()

    def evaluate(free: Array) -> tuple[float, Array]:
        c = np.concatenate([np.ones(1), free])
        value, slope = _variance(objective, c)
        length = float(c @ c)
        return value * length / scale, (slope[1:] * length + 2 * value * c[1:]) / scale

    start = square_root_coefficients(bands)[1:]
    options = {"maxiter": 200, "ftol": 1e-13, "gtol": 1e-9}
    solution = minimize(evaluate, start, jac=True, method="L-BFGS-B", options=options)
    c = np.concatenate([np.ones(1), solution.x])
    unit: Array = c / np.linalg.norm(c)
    return unit


def _variance(objective: Objective, c: Array) -> tuple[float, Array]:
    """``tr(G X^-1)`` of the Toeplitz C with first coefficient 1, and its derivative in c."""
    rounds, s = objective.rounds, objective.sensitivities
    inverse = lfilter([1.0], c, np.r_[1.0, np.zeros(rounds - 1)])
    constant = bool((s == s[0]).all())
    columns = np.zeros(1, dtype=int) if constant else _spread(rounds)
    value = 0.0
    adjoint = np.zeros(rounds)
    for first, weight in zip(columns, _shares(columns, rounds), strict=True):
        length = rounds - first
        fresh = s[first:] * inverse[:length]
        ahead = np.arange(rounds, 0, -1) if constant else np.full(length, weight)
        for eigenvalue, share in zip(objective.eigenvalues, objective.weights, strict=True):
            mixed = lfilter([eigenvalue], [1.0, -eigenvalue], fresh)
            value += share * float(ahead @ mixed**2)
            back = lfilter([eigenvalue], [1.0, -eigenvalue], (ahead * mixed)[::-1])[::-1]
            adjoint[:length] += 2 * share * s[first:] * back
    twice = lfilter([1.0], c, inverse)  # the derivative of 1 / c is -1 / c^2
    bands = min(len(c), rounds)
    slope = np.zeros(len(c))
    slope[:bands] = [-float(adjoint[k:] @ twice[: rounds - k]) for k in range(bands)]
    return value, slope


def _spread(rounds: int) -> npt.NDArray[np.int64]:
    if rounds <= _COLUMNS:
        return np.arange(rounds)
    first = np.geomspace(1, rounds, _COLUMNS // 2) - 1
    evenly = np.linspace(0, rounds - 1, _COLUMNS // 2)
    return np.unique(np.concatenate([first, evenly]).round().astype(np.int64))


def _shares(columns: npt.NDArray[np.int64], rounds: int) -> Array:
    """Return the number of rounds that each column represents: those nearest to it."""
    middles = (columns[1:] + columns[:-1] + 1) / 2
    return np.diff(np.concatenate([np.zeros(1), middles, np.full(1, rounds)]))
