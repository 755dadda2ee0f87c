"""The best factor C of correlated noise in each shape: dense, of few bands, or Toeplitz.

**Problem.** C is lower triangular with T = rounds rows. Its columns have length 1, which is the
sensitivity to a record that is used once. With ``X = C^T C``, the variance of the noise in the
models is ``tr(G X^-1)``, where the Gram matrix G tells how noise of each round enters them (see
`Objective`). So the problem, the optimisation of a matrix mechanism, is

    minimise tr(G X^-1)    over positive definite X with X[t, t] = 1 for all t               (P)

It is convex. `optimal_matrix` solves it with all entries of C, `optimal_bands` with few bands of C
(they need less memory in a run, and their columns can be orthogonal for records that are used
repeatedly), `optimal_coefficients` with constant diagonals (Toeplitz), a few numbers for any T.

**Dual of (P)** (Denisov, McMahan, Rush, Smith and Guha Thakurta 2022, for prefix sums). For
multipliers ``v > 0`` of the T constraints, let ``H = v^(1/2) G v^(1/2)``, where v stands for its
diagonal matrix. The Lagrangian ``tr(G X^-1) + sum_t v_t (X[t, t] - 1)`` is least at

    X = v^(-1/2) H^(1/2) v^(-1/2)                                                            (1)

where it is ``2 tr(H^(1/2)) - sum(v)``. Among all multiples of v the largest value is

    dual(v) = tr(H^(1/2))^2 / sum(v)                                                         (2)

a lower bound on the optimum. Its logarithm has the derivatives ``(H^(1/2))[t, t] / tr(H^(1/2)) -
v_t / sum(v)`` in ``log v_t``. At the optimum they vanish: v is a multiple of the diagonal of
``H^(1/2)``, and X of (1) has a constant diagonal.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy  # its submodules are imported on first use
from scipy.linalg.lapack import dtbtrs

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

    L-BFGS maximises the dual (2) of the module over log v, from a few steps of a fixed-point
    iteration. X then follows from v by (1), and C from X by a Cholesky factorization.

    Parameters
    ----------
    gram
        G, symmetric and positive definite, shape (rounds, rounds), at most 2,000 rounds.

    Returns
    -------
    C, shape (rounds, rounds), and a bound on how far its objective is above the optimum, relative
    to the optimum: the gap to the dual. The guarantee of the noise does not depend on the gap.

    Raises
    ------
    ValueError
        If G is not square, not positive definite, or too large.
    """
    rounds = len(gram)
    if gram.shape != (rounds, rounds) or rounds > LARGEST:
        fail("gram", f"a square matrix of at most {LARGEST} rounds", f"shape {gram.shape}")
    search = _DualSearch(gram)
    # `stop` decides, or the number of iterations: these tolerances are below rounding
    options = {"maxcor": 30, "maxiter": _ITERATIONS, "ftol": 1e-30, "gtol": 1e-14}
    scipy.optimize.minimize(
        search.negative_log_dual,
        np.zeros(rounds),
        jac=True,
        method="L-BFGS-B",
        callback=search.stop,
        options=options,
    )
    x = search.point.normalized()
    # Cholesky gives L L^T; with rows and columns reversed it gives the lower C with C^T C = X
    reversed_factor = np.linalg.cholesky(x[::-1, ::-1])
    lower: Array = reversed_factor[::-1, ::-1].T
    return lower, max(0.0, search.point.gap(gram))


class _DualSearch:
    """The search for the multipliers v that maximise the dual, over scaled logarithms of v.

    At ``start``, the second derivatives of the dual in log v are about ``start = scale^2``. So in
    ``scale log(v / start)`` the curvature is about the same in all directions.

    Attributes
    ----------
    point
        The dual point of the last evaluation.
    """

    def __init__(self, gram: Array) -> None:
        self._gram = gram
        self.point = _fixed_point(gram)
        self._start = self.point.v / self.point.v.sum()
        self._scale = np.sqrt(self._start)

    def negative_log_dual(self, scaled_logs: Array) -> tuple[float, Array]:
        """Return -log of the dual at ``v = start exp(scaled_logs / scale)``, and its gradient."""
        self.point = _DualPoint(self._gram, self._start * np.exp(scaled_logs / self._scale))
        v = self.point.v
        root_diagonal = self.point.root_diagonal
        slope = v / v.sum() - root_diagonal / root_diagonal.sum()
        return -float(np.log(self.point.dual)), slope / self._scale

    def stop(self, _: Array) -> None:
        """End the search at a small gap."""
        if self.point.gap(self._gram) < _GAP:
            raise StopIteration


class _DualPoint:
    """Multipliers v > 0, and ``H = v^(1/2) G v^(1/2)`` by its eigenvectors.

    Attributes
    ----------
    v
        The multipliers, shape (rounds,).
    vectors
        Eigenvectors of H as columns, shape (rounds, rounds).
    roots
        Eigenvalues of ``H^(1/2)``, shape (rounds,).
    root_diagonal
        Diagonal of ``H^(1/2)``, shape (rounds,).
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
        """The largest dual value over all multiples of v: (2) of the module."""
        return float(self.roots.sum()) ** 2 / float(self.v.sum())

    def normalized(self) -> Array:
        """Return X of (1), scaled on both sides to a unit diagonal, which removes v."""
        scale = 1 / np.sqrt(self.root_diagonal)
        x: Array = (self.vectors * self.roots) @ self.vectors.T * np.outer(scale, scale)
        return x

    def gap(self, gram: Array) -> float:
        """Return the objective of the normalized X over the dual value, less 1."""
        inverse_root = (self.vectors / self.roots) @ self.vectors.T  # H^(-1/2)
        scale = np.sqrt(self.root_diagonal)
        primal = float(np.einsum("ij,ij->", gram * np.outer(scale, scale), inverse_root))
        return primal / self.dual - 1


def _fixed_point(gram: Array) -> _DualPoint:
    """Return the start of the search: 3 steps of the iteration ``v <- diagonal of H^(1/2)``."""
    point = _DualPoint(gram, np.sqrt(np.diag(gram)))
    for _ in range(3):
        point = _DualPoint(gram, point.root_diagonal)
    return point


def optimal_bands(gram: Array, bands: int) -> Array:
    """Return the C with unit columns and this many bands that minimises ``tr(G X^-1)``.

    C has b bands exactly if X has, so that the problem is convex in X. L-BFGS searches over the
    entries of C with normalised columns; where it stops early, C is a little noisier and as
    private.

    Parameters
    ----------
    gram
        G, symmetric and positive definite, shape (rounds, rounds).
    bands
        Number of diagonals of C, from 1 to the number of rounds.

    Returns
    -------
    Rows from the diagonal backwards, as `Factorization` takes them, shape (rounds, bands).
    """
    rounds = len(gram)
    # columns[j, k] is C[j + k, j]; the last columns have fewer entries
    inside = np.arange(rounds)[:, None] + np.arange(bands) < rounds
    start = np.where(inside, square_root_coefficients(bands), 0.0)
    scale = float(np.trace(gram))

    def columns_of(entries: Array) -> Array:
        columns = np.zeros((rounds, bands))
        columns[inside] = entries
        return columns

    def evaluate(entries: Array) -> tuple[float, Array]:
        """Return the objective of C with these columns, normalised, and its gradient in them."""
        columns = columns_of(entries)
        lengths = np.linalg.norm(columns, axis=1, keepdims=True)
        unit_columns = columns / lengths
        value, gradient = _objective(gram, unit_columns)
        # the length of a column does not matter: only the part of the gradient across it counts
        along = unit_columns * (gradient * unit_columns).sum(axis=1, keepdims=True)
        across = (gradient - along) / lengths
        return value / scale, across[inside] / scale

    solution = scipy.optimize.minimize(
        evaluate,
        start[inside],
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 3000, "maxfun": 5000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 30},
    )
    columns = columns_of(solution.x)
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
    """Return ``tr(G X^-1) = tr(C^-T G C^-1)`` and its gradient in C, by three banded solves.

    The derivative in an entry ``C[i, j]`` is ``-2 (C^-1 C^-T G C^-1)[j, i]``.

    Parameters
    ----------
    gram
        G, shape (rounds, rounds).
    columns
        Columns of C from the diagonal downwards, shape (rounds, bands): ``C[j + k, j]`` at
        ``[j, k]``. The gradient has this shape, too.
    """
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

    Returns
    -------
    Shape (bands,); not normalised, the first is 1.
    """
    k = np.arange(1, bands)
    return np.concatenate([np.ones(1), np.cumprod((2 * k - 1) / (2 * k))])


def toeplitz_bands(coefficients: Array, rounds: int) -> Array:
    """Return the Toeplitz C with these coefficients, as rows that `Factorization` takes.

    C has ``coefficients[k]`` on the k-th diagonal below the main one.

    Returns
    -------
    Rows from the diagonal backwards, shape (rounds, bands), 0 before the first round.
    """
    inside = np.arange(rounds)[:, None] >= np.arange(len(coefficients))
    return np.where(inside, coefficients, 0.0)


def optimal_coefficients(objective: Objective, bands: int) -> Array:
    """Return the coefficients of the banded Toeplitz C with least noise, whose norm is 1.

    C has ``coefficients[k]`` on the k-th diagonal below the main one. Its longest column is the
    first, with all coefficients.

    L-BFGS on ``bands - 1`` numbers. Where sensitivities change, about 40 rounds stand for all in
    the objective. The guarantee does not depend on where the search ends.

    Parameters
    ----------
    objective
        Objective of a static network or a server.
    bands
        Number of coefficients.

    Returns
    -------
    Shape (bands,).
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
    solution = scipy.optimize.minimize(
        evaluate, start, jac=True, method="L-BFGS-B", options=options
    )
    c = np.concatenate([np.ones(1), solution.x])
    coefficients: Array = c / np.linalg.norm(c)
    return coefficients


def _variance(objective: Objective, c: Array) -> tuple[float, Array]:
    """Return ``tr(G X^-1)`` of the Toeplitz C with first coefficient 1, and its gradient in c.

    The inverse of C is Toeplitz, too: its coefficients are those of the power series ``1 / c(x)``.
    So fresh noise of the round ``first`` is in the messages of later rounds with the sensitivities
    times these coefficients. Along an eigenvector of the network with eigenvalue l, it enters the
    mixed points through the filter ``mixed_t = l (mixed_(t-1) + message_t)``. Where sensitivities
    are equal, the noise of all rounds has the same history by age, and one filter is enough.
    Otherwise some rounds stand for all (`_sample_of_rounds`).

    The gradient comes from the same filters, run backwards (the adjoint). An evaluation filters two
    series for each eigenvalue and each of these rounds.

    Parameters
    ----------
    objective
        Eigenvalues of the network, their weights, and the sensitivities.
    c
        Coefficients of C, shape (bands,), the first 1.
    """
    rounds = objective.rounds
    sensitivities = objective.sensitivities
    inverse = _filtered([1.0], c, np.r_[1.0, np.zeros(rounds - 1)])
    is_constant = bool((sensitivities == sensitivities[0]).all())
    if is_constant:
        columns = np.zeros(1, dtype=np.int64)
    else:
        columns = _sample_of_rounds(rounds)
    variance = 0.0
    adjoint = np.zeros(rounds)  # derivative of the variance in the coefficients of the inverse
    for first, weight in zip(columns, _represented(columns, rounds), strict=True):
        length = rounds - first
        messages = sensitivities[first:] * inverse[:length]
        multiplicities = np.full(length, weight)
        if is_constant:  # noise that is t rounds old occurs in rounds - t rounds
            multiplicities = np.arange(rounds, 0, -1)
        for eigenvalue, share in zip(objective.eigenvalues, objective.weights, strict=True):
            network = ([eigenvalue], [1.0, -eigenvalue])
            mixed = _filtered(*network, messages)
            variance += share * float(multiplicities @ mixed**2)
            backwards = _filtered(*network, (multiplicities * mixed)[::-1])[::-1]
            adjoint[:length] += 2 * share * sensitivities[first:] * backwards
    squared_inverse = _filtered([1.0], c, inverse)  # the derivative of 1 / c is -1 / c^2
    bands = min(len(c), rounds)
    gradient = np.zeros(len(c))
    for k in range(bands):
        gradient[k] = -float(adjoint[k:] @ squared_inverse[: rounds - k])
    return variance, gradient


def _filtered(numerator: npt.ArrayLike, denominator: npt.ArrayLike, series: Array) -> Array:
    """Return a series times the power series ``numerator / denominator``, shape (rounds,)."""
    from scipy.signal import lfilter  # half a second to import, most of it in scipy.stats

    filtered: Array = lfilter(numerator, denominator, series)
    return filtered


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
