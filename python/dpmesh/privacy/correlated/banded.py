"""C with few bands: less memory in the run, and orthogonal columns for records used repeatedly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg.lapack import dtbtrs
from scipy.optimize import minimize

from dpmesh.privacy.correlated.toeplitz import square_root_coefficients

Array = npt.NDArray[np.float64]


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

    found = minimize(
        evaluate,
        start[inside],
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 3000, "maxfun": 5000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 30},
    )
    columns = np.zeros((rounds, bands))
    columns[inside] = found.x
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
    left = dtbtrs(stored, gram, uplo="L", trans="T")[0]
    inner = dtbtrs(stored, left.T, uplo="L", trans="T")[0]
    right = dtbtrs(stored, inner, uplo="L", trans="N")[0]
    slope = np.zeros((rounds, bands))
    for k in range(bands):
        slope[: rounds - k, k] = -2 * np.diagonal(right, k)
    return float(np.trace(inner)), slope
