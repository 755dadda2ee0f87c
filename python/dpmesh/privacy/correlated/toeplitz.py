"""C whose diagonals are constant: a few numbers for any number of rounds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.signal import lfilter

from dpmesh.privacy.correlated.objective import Objective

Array = npt.NDArray[np.float64]

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
    found = minimize(evaluate, start, jac=True, method="L-BFGS-B", options=options)
    c = np.concatenate([np.ones(1), found.x])
    unit: Array = c / np.linalg.norm(c)
    return unit


def _variance(objective: Objective, c: Array) -> tuple[float, Array]:
    """``tr(G X^-1)`` of the Toeplitz C with first coefficient 1, and its derivative in c."""
    rounds, s = objective.rounds, objective.sensitivities
    inverse = lfilter([1.0], c, np.r_[1.0, np.zeros(rounds - 1)])
    constant = bool((s == s[0]).all())
    columns = np.zeros(1, dtype=int) if constant else _spread(rounds)
    value, adjoint = 0.0, np.zeros(rounds)
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
    """How many rounds each of these stands for: those that are nearest to it."""
    middles = (columns[1:] + columns[:-1] + 1) / 2
    return np.diff(np.concatenate([np.zeros(1), middles, np.full(1, rounds)]))
