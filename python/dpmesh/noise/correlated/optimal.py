"""The best factor C of correlated noise in each shape: dense, of few bands, or Toeplitz.

C is lower triangular with T = rounds rows. Its columns have length 1, which is the sensitivity to a
record that is used once. With ``X = C^T C``, the variance of the noise in the models is
``tr(G X^-1)``, where the Gram matrix G tells how noise of each round enters them (see `Objective`).

- `optimal_matrix`: all entries of C. A convex problem with a unique optimum.
- `optimal_bands`: few bands need less memory in the run, and their columns can be orthogonal for
  records that are used repeatedly.
- `optimal_coefficients`: constant diagonals (Toeplitz) are a few numbers for any number of rounds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg.lapack import dtbtrs
from scipy.optimize import minimize

from dpmesh._validate import fail
from dpmesh.noise.correlated.objective import Objective

Array = npt.NDArray[np.float64]

LARGEST = 2_000
"""Most rounds for which all T^2 entries of C are optimised."""

_GAP = 1e-12
"""Relative gap to the dual at which the search stops."""

_ITERATIONS = 300
"""Most iterations of L-BFGS on the dual."""

_COLUMNS = 40
"""Rounds that stand for all in `_variance` where sensitivities change, denser at the start."""


def optimal_matrix(gram: Array) -> tuple[Array, float]:
    """Return the lower-triangular C with unit columns that minimises ``tr(G X^-1)``.

    Parameters
    ----------
    gram
        ``G``, symmetric and positive definite, shape (rounds, rounds), at most 2,000 rounds.

    Returns
    -------
    C, and a bound on how far its objective is above the optimum, relative to the optimum: the gap
    to the dual ``2 tr (v^(1/2) G v^(1/2))^(1/2) - sum v``, which L-BFGS maximises over log v. The
    guarantee does not depend on the gap.

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
    scale = np.sqrt(start)  # preconditions log v: second derivatives are about start = scale^2

    def negative_log_dual(scaled_logs: Array) -> tuple[float, Array]:
        """Return -log of the dual at ``v = start exp(scaled_logs / scale)``, and its gradient."""
        nonlocal point
        point = _Point(gram, start * np.exp(scaled_logs / scale))
        slope = point.v / point.v.sum() - point.root_diagonal / point.root_diagonal.sum()
        return -float(np.log(point.dual)), slope / scale

    def stop(_: Array) -> None:
        if point.gap(gram) < _GAP:
            raise StopIteration

    # `stop` decides, or the number of iterations: these tolerances are below rounding
    options = {"maxcor": 30, "maxiter": _ITERATIONS, "ftol": 1e-30, "gtol": 1e-14}
    minimize(
        negative_log_dual,
        np.zeros(rounds),
        jac=True,
        method="L-BFGS-B",
        callback=stop,
        options=options,
    )
    x = point.normalized()
    # Cholesky gives L L^T; with rows and columns reversed it gives the lower C with C^T C = X
    reversed_factor = np.linalg.cholesky(x[::-1, ::-1])
    lower: Array = reversed_factor[::-1, ::-1].T
    return lower, max(0.0, point.gap(gram))


class _Point:
    """Dual variables v > 0, and ``H = v^(1/2) G v^(1/2)`` by its eigenvectors.

    `roots` are the eigenvalues of ``H^(1/2)``, `root_diagonal` is its diagonal.
    """

    def __init__(self, gram: Array, v: Array) -> None:
        self.v = v
        eigenvalues, self.vectors = np.linalg.eigh(gram * np.sqrt(np.outer(v, v)))
        if eigenvalues[0] <= 0:
            fail("gram", "a positive definite matrix", f"one with the eigenvalue {eigenvalues[0]}")
        self.roots = np.sqrt(eigenvalues)
        self.root_diagonal = (self.vectors**2) @ self.roots

    @property
    def dual(self) -> float:
        """Largest dual value over all multiples of v."""
        return float(self.roots.sum()) ** 2 / float(self.v.sum())

    def normalized(self) -> Array:
        """Return ``X = v^(-1/2) H^(1/2) v^(-1/2)``, scaled on both sides to a unit diagonal."""
        scale = 1 / np.sqrt(self.root_diagonal)
        x: Array = (self.vectors * self.roots) @ self.vectors.T * np.outer(scale, scale)
        return x

    def gap(self, gram: Array) -> float:
        """Return the objective of the normalized X over the dual value, less 1."""
        inverse_root = (self.vectors / self.roots) @ self.vectors.T  # H^(-1/2)
        scale = np.sqrt(self.root_diagonal)
        primal = float(np.einsum("ij,ij->", gram * np.outer(scale, scale), inverse_root))
        return primal / self.dual - 1


def _fixed_point(gram: Array) -> _Point:
    """Return the start of the search: 3 steps of the iteration ``v <- diag H^(1/2)``.

    At the optimum v is such a diagonal, since the gradient of the dual vanishes there.
    """
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
    # columns[j, k] is C[j + k, j]; the last columns have fewer entries
    inside = np.arange(rounds)[:, None] + np.arange(bands) < rounds
    start = np.where(inside, square_root_coefficients(bands), 0.0)
    scale = float(np.trace(gram))

    def evaluate(entries: Array) -> tuple[float, Array]:
        """Return the objective of C with these columns, normalised, and its gradient in them."""
        columns = np.zeros((rounds, bands))
        columns[inside] = entries
        lengths = np.linalg.norm(columns, axis=1, keepdims=True)
        unit_columns = columns / lengths
        value, gradient = _objective(gram, unit_columns)
        # the length of a column does not matter: only the part of the gradient across it counts
        along = unit_columns * (gradient * unit_columns).sum(axis=1, keepdims=True)
        across = (gradient - along) / lengths
        return value / scale, across[inside] / scale

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
    """Convert a banded C from columns, ``C[j + k, j]``, to rows, ``C[t, t - k]``."""
    rounds, bands = columns.shape
    rows = np.zeros((rounds, bands))
    for k in range(bands):
        rows[k:, k] = columns[: rounds - k, k]
    return rows


def _objective(gram: Array, columns: Array) -> tuple[float, Array]:
    """Return ``tr(C^-T G C^-1)`` and its gradient in the bands of C, by three banded solves."""
    rounds, bands = columns.shape
    banded = np.asfortranarray(columns.T)
    half_solved = dtbtrs(banded, gram, uplo="L", trans="T")[0]  # C^-T G
    whitened = dtbtrs(banded, half_solved.T, uplo="L", trans="T")[0]  # C^-T G C^-1
    right = dtbtrs(banded, whitened, uplo="L", trans="N")[0]  # C^-1 C^-T G C^-1
    gradient = np.zeros((rounds, bands))
    for k in range(bands):
        gradient[: rounds - k, k] = -2 * np.diagonal(right, k)
    return float(np.trace(whitened)), gradient


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
    """Return the coefficients of the banded Toeplitz C with least noise, whose norm is 1.

    C has ``coefficients[k]`` on the k-th diagonal below the main one: its longest column is the
    first, with all coefficients.

    L-BFGS on ``bands - 1`` numbers. An evaluation filters one series of `rounds` numbers for each
    eigenvalue of the network; where sensitivities change, one for each eigenvalue and each of about
    40 rounds. The guarantee does not depend on where the search ends.

    Parameters
    ----------
    objective
        Objective of a static network or a server.
    bands
        Number of coefficients.
    """
    scale = objective.trace()

    def evaluate(free: Array) -> tuple[float, Array]:
        """Return variance times squared norm of ``c = (1, *free)``, and its gradient in `free`."""
        c = np.concatenate([np.ones(1), free])
        variance, gradient = _variance(objective, c)
        squared_norm = float(c @ c)
        free_gradient = gradient[1:] * squared_norm + 2 * variance * c[1:]
        return variance * squared_norm / scale, free_gradient / scale

    start = square_root_coefficients(bands)[1:]
    options = {"maxiter": 200, "ftol": 1e-13, "gtol": 1e-9}
    solution = minimize(evaluate, start, jac=True, method="L-BFGS-B", options=options)
    c = np.concatenate([np.ones(1), solution.x])
    coefficients: Array = c / np.linalg.norm(c)
    return coefficients


def _variance(objective: Objective, c: Array) -> tuple[float, Array]:
    """Return ``tr(G X^-1)`` of the Toeplitz C with first coefficient 1, and its gradient in c.

    The inverse of C is Toeplitz, too: its coefficients are those of ``1 / c(x)``. The noise of the
    round ``first`` enters the models of later rounds through it and the eigenvalues of the network.
    The gradient comes from the same filters, run backwards (the adjoint).
    """
    from scipy.signal import lfilter  # half a second to import, most of it in scipy.stats

    rounds = objective.rounds
    sensitivities = objective.sensitivities
    inverse = lfilter([1.0], c, np.r_[1.0, np.zeros(rounds - 1)])
    is_constant = bool((sensitivities == sensitivities[0]).all())
    if is_constant:
        columns = np.zeros(1, dtype=np.int64)
    else:
        columns = _sample_of_rounds(rounds)
    variance = 0.0
    adjoint = np.zeros(rounds)
    for first, weight in zip(columns, _represented(columns, rounds), strict=True):
        length = rounds - first
        fresh_noise = sensitivities[first:] * inverse[:length]
        multiplicities = np.full(length, weight)
        if is_constant:  # noise that is t rounds old occurs in rounds - t rounds
            multiplicities = np.arange(rounds, 0, -1)
        for eigenvalue, share in zip(objective.eigenvalues, objective.weights, strict=True):
            mixed_noise = lfilter([eigenvalue], [1.0, -eigenvalue], fresh_noise)
            variance += share * float(multiplicities @ mixed_noise**2)
            reversed_noise = (multiplicities * mixed_noise)[::-1]
            backwards = lfilter([eigenvalue], [1.0, -eigenvalue], reversed_noise)[::-1]
            adjoint[:length] += 2 * share * sensitivities[first:] * backwards
    squared_inverse = lfilter([1.0], c, inverse)  # the derivative of 1 / c is -1 / c^2
    bands = min(len(c), rounds)
    gradient = np.zeros(len(c))
    for k in range(bands):
        gradient[k] = -float(adjoint[k:] @ squared_inverse[: rounds - k])
    return variance, gradient


def _sample_of_rounds(rounds: int) -> npt.NDArray[np.int64]:
    """Return about `_COLUMNS` rounds, half of them evenly spaced and half geometrically."""
    if rounds <= _COLUMNS:
        return np.arange(rounds)
    geometrically = np.geomspace(1, rounds, _COLUMNS // 2) - 1
    evenly = np.linspace(0, rounds - 1, _COLUMNS // 2)
    return np.unique(np.concatenate([geometrically, evenly]).round().astype(np.int64))


def _represented(columns: npt.NDArray[np.int64], rounds: int) -> Array:
    """Return the number of rounds that each column represents: the rounds nearest to it."""
    middles = (columns[1:] + columns[:-1] + 1) / 2
    return np.diff(np.concatenate([np.zeros(1), middles, np.full(1, rounds)]))
