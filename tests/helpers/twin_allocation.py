"""Bounds of the profile of random allocation, apart from the package's: plain lattices and FFTs.

D is replaced by lattice variables. One has the calls ``E[(D - k)_+]`` of D at the lattice points,
and too large ones between: larger in convex order. Of the other, all calls are at most those of D:
they lie below the tangents at the middles. Both err by the square of the lattice.
"""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
from scipy.special import logsumexp, ndtr

STEPS = {"replace": (1.0, 1.0, 0.0, 0.0), "remove": (1.0, 0.0, 0.0, 1.0), "add": (0.0, 1.0, 1.0, 0)}
"""Of X, of -b X', a constant, and of -b."""


def bounds(
    kind: str, epsilon: float, steps: list[tuple[float, float, int]], cells: int = 2**17
) -> tuple[float, float]:
    """Return a lower and an upper bound of delta, for steps (share, a, how many)."""
    b = exp(epsilon)
    up, down, plus, minus = STEPS[kind]
    offset, u, v = plus - b * minus, up, b * down
    deviation = sqrt(sum(n * _variance(p, a, u, v) for p, a, n in steps))
    mean = sum(n * p for p, a, n in steps) * (u - v)
    top = -mean - offset + 12 * deviation  # with one larger D the sum is positive
    h = 8 * (top + 12 * deviation) / cells
    both_bounds = []
    for below in (True, False):
        laws = [(*_law(p, a, u, v, h, top, below), n) for p, a, n in steps]
        beyond = sum(n * cut for _, _, cut, n in laws)
        inside, low = _positive_part([(k, w, n) for k, w, _, n in laws], offset, h, cells, -top)
        both_bounds.append(inside + beyond * (1 - low if below else 1))
    return both_bounds[0], both_bounds[1]


def _variance(p: float, a: float, u: float, v: float) -> float:
    square, cross = exp(a * a), exp(-a * a)
    return p * p * (u * u * (square - 1) + v * v * (square - 1) - 2 * u * v * (cross - 1))


def _law(
    p: float, a: float, u: float, v: float, h: float, top: float, below: bool
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return lattice points, masses, and ``E[(D - top)_+]``."""
    lowest = p * exp(-a * a / 2) * (u * exp(-9 * a) - v * exp(9 * a))
    first, last = int(max(lowest, -2 * top) // h) - 1, int(top // h) + 1
    k = h * np.arange(first, last + 1.0)
    (call, put, above, _), (t_call, t_put, sf, cdf) = (
        _partial(p, a, u, v, points) for points in (k, k[:-1] + h / 2)
    )
    cut, mean = float(call[-1]), p * (u - v)
    if below:
        mean -= cut
        t_call -= cut  # of what is cut at the top
        right = np.append(t_call + sf * h / 2, 0.0), np.append(np.inf, t_call - sf * h / 2)
        call = np.minimum(*right)
        call[-1], call[-2] = 0.0, min(call[-2], above[-1] * h)
        put = np.minimum(np.append(t_put - cdf * h / 2, np.inf), np.append(0, t_put + cdf * h / 2))
    value = np.where(k < mean, put + mean - k, call)
    value[0] = np.min(value + k) - k[0]  # the first slope is at least -1
    points, masses = _convex(k, value)
    return points, masses, cut


def _convex(k: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the masses whose calls are the largest convex function below these values."""
    while True:
        slopes = np.diff(value) / np.diff(k)
        is_convex = np.append(True, np.append(np.diff(slopes) >= 0, True))
        if is_convex.all():
            return k, np.diff(np.concatenate([[-1.0], slopes, [0.0]]))
        k, value = k[is_convex], value[is_convex]


def _partial(p: float, a: float, u: float, v: float, k: np.ndarray) -> list[np.ndarray]:
    """Return calls and puts at k, and the chances that D is above and below k."""
    x = k * exp(a * a / 2) / p  # u y - v / y at y = exp(a z)
    with np.errstate(divide="ignore", invalid="ignore"):
        if u == 0:
            y = np.where(x < 0, -v / x, np.inf)
        else:
            root = np.sqrt(x * x + 4 * u * v)
            y = np.where(x > 0, (x + root) / (2 * u), 2 * v / (root - x) if v else 0.0)
        z = np.log(y) / a
    sf, cdf = ndtr(-z), ndtr(z)
    call = p * (u * ndtr(a - z) - v * ndtr(-a - z)) - k * sf
    put = k * cdf - p * (u * ndtr(z - a) - v * ndtr(z + a))
    return [call, put, sf, cdf]


def _positive_part(
    laws: list[tuple[np.ndarray, np.ndarray, int]], offset: float, h: float, cells: int, low: float
) -> tuple[float, float]:
    """Return ``E[(S + offset)_+]``, and the chance that S + offset is below `low`."""
    theta = _tilt(laws, offset)
    distributions = []
    for order in (theta, 0.0):
        total, spectrum = order * offset, np.ones(cells // 2 + 1, dtype=complex)
        for k, masses, n in laws:
            tilted = order * k + np.log(np.maximum(masses, 1e-300))
            moment = logsumexp(tilted)
            folded = np.zeros(cells)
            np.add.at(folded, np.rint(k / h).astype(int) % cells, np.exp(tilted - moment))
            spectrum *= np.fft.rfft(folded) ** n
            total += n * moment
        s = np.maximum(np.roll(np.fft.irfft(spectrum, cells), cells // 2), 0)
        distributions.append((total, s, h * np.arange(-cells // 2, cells // 2) + offset))
    (total, s, values), (_, plain, _) = distributions
    positive = values > 0
    mean = s[positive] @ (values[positive] * np.exp(-theta * values[positive]))
    inside = exp(total + log(mean)) if mean > 0 else 0.0
    return inside, float(plain[values < low].sum())


def _tilt(laws: list[tuple[np.ndarray, np.ndarray, int]], offset: float) -> float:
    """Return the tilt at which S + offset is 0 on average, or 0."""

    def mean(theta: float) -> float:
        tilted_mean = offset
        for k, masses, n in laws:
            tilted = masses * np.exp(theta * (k - k[-1]))
            tilted_mean += n * float(tilted @ k / tilted.sum())
        return tilted_mean

    low, high = 0.0, 1.0 / laws[0][0][-1] if laws[0][0][-1] > 0 else 1.0
    if mean(0.0) >= 0:
        return 0.0
    while mean(high) < 0:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) < 0 else (low, middle)
    return high
