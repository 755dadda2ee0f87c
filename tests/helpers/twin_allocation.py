"""Bounds of the profile of random allocation, apart from the package's: plain lattices and FFTs.

D is replaced by lattice variables. One has the calls ``E[(D - k)_+]`` of D at the lattice points,
and too large ones between: larger in convex order. Of the other, all calls are at most those of D:
they lie below the tangents at the middles. Both err by the square of the lattice.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtr

STEPS = {
    "replace": (1.0, 1.0, 0.0, 0.0),
    "remove": (1.0, 0.0, 0.0, 1.0),
    "add": (0.0, 1.0, 1.0, 0.0),
}
"""Factors of X, of -b X', of 1 and of -b in D, by the kind of neighbours; b = e^epsilon."""


class StepLaw(NamedTuple):
    """The distribution of one kind of step on the lattice, and how many steps have it."""

    points: np.ndarray
    masses: np.ndarray
    cut: float
    """Mean of D above the top."""
    count: int


def bounds(
    kind: str, epsilon: float, steps: list[tuple[float, float, int]], cells: int = 2**17
) -> tuple[float, float]:
    """Return a lower and an upper bound of delta.

    Parameters
    ----------
    kind
        Kind of neighbours, a key of `STEPS`.
    epsilon
        Epsilon of the profile.
    steps
        Kinds of steps: the share p of a step, the a of its likelihood ratio
        ``exp(a Z - a^2 / 2)`` with a standard normal Z, and the number of such steps.
    cells
        Number of cells of the lattice.
    """
    b = exp(epsilon)
    up, down, plus, minus = STEPS[kind]
    offset = plus - b * minus
    u = up
    v = b * down
    variance = sum(count * _variance(p, a, u, v) for p, a, count in steps)
    mean = sum(count * p for p, _, count in steps) * (u - v)
    deviation = sqrt(variance)
    top = -mean - offset + 12 * deviation  # with one larger D the sum is positive
    h = 8 * (top + 12 * deviation) / cells
    lower = _delta(_laws(steps, u, v, h, top, below=True), offset, h, cells, top, below=True)
    upper = _delta(_laws(steps, u, v, h, top, below=False), offset, h, cells, top, below=False)
    return lower, upper


def _laws(
    steps: list[tuple[float, float, int]], u: float, v: float, h: float, top: float, *, below: bool
) -> list[StepLaw]:
    laws = []
    for p, a, count in steps:
        points, masses, cut = _law(p, a, u, v, h, top, below)
        laws.append(StepLaw(points, masses, cut, count))
    return laws


def _delta(
    laws: list[StepLaw], offset: float, h: float, cells: int, top: float, *, below: bool
) -> float:
    """Return a bound of delta: the mean within the lattice, and that of steps above the top."""
    inside, chance_low = _positive_part(laws, offset, h, cells, -top)
    beyond = sum(law.count * law.cut for law in laws)
    if below:
        beyond *= 1 - chance_low
    return inside + beyond


def _variance(p: float, a: float, u: float, v: float) -> float:
    square = exp(a * a) - 1
    cross = exp(-a * a) - 1
    return p * p * (u * u * square + v * v * square - 2 * u * v * cross)


def _law(
    p: float, a: float, u: float, v: float, h: float, top: float, below: bool
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return lattice points, masses, and ``E[(D - top)_+]`` of D = p (u exp(a Z) - v exp(-a Z)).

    Both exponentials are divided by their mean; h is the width of a cell of the lattice, and
    `below` chooses the lower bound.
    """
    lowest = p * exp(-a * a / 2) * (u * exp(-9 * a) - v * exp(9 * a))
    first = int(max(lowest, -2 * top) // h) - 1
    last = int(top // h) + 1
    k = h * np.arange(first, last + 1.0)
    calls, puts, above, _ = _partial(p, a, u, v, k)
    cut = float(calls[-1])
    mean = p * (u - v)
    if below:
        mean -= cut
        # tangents at the middles between lattice points, whose maximum is below the calls
        middle_calls, middle_puts, chance_above, chance_below = _partial(p, a, u, v, k[:-1] + h / 2)
        middle_calls -= cut  # of what is cut at the top
        from_right = np.append(middle_calls + chance_above * h / 2, 0.0)
        from_left = np.append(np.inf, middle_calls - chance_above * h / 2)
        calls = np.minimum(from_right, from_left)
        calls[-1] = 0.0
        calls[-2] = min(calls[-2], above[-1] * h)
        puts_from_right = np.append(middle_puts - chance_below * h / 2, np.inf)
        puts_from_left = np.append(0, middle_puts + chance_below * h / 2)
        puts = np.minimum(puts_from_right, puts_from_left)
    value = np.where(k < mean, puts + mean - k, calls)
    value[0] = np.min(value + k) - k[0]  # the first slope is at least -1
    points, masses = _convex(k, value)
    return points, masses, cut


def _convex(k: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the masses whose calls are the largest convex function below these values."""
    while True:
        slopes = np.diff(value) / np.diff(k)
        is_convex = np.concatenate([[True], np.diff(slopes) >= 0, [True]])
        if is_convex.all():
            return k, np.diff(np.concatenate([[-1.0], slopes, [0.0]]))
        k = k[is_convex]
        value = value[is_convex]


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
    sf = ndtr(-z)
    cdf = ndtr(z)
    call = p * (u * ndtr(a - z) - v * ndtr(-a - z)) - k * sf
    put = k * cdf - p * (u * ndtr(z - a) - v * ndtr(z + a))
    return [call, put, sf, cdf]


def _positive_part(
    laws: list[StepLaw], offset: float, h: float, cells: int, low: float
) -> tuple[float, float]:
    """Return ``E[(S + offset)_+]``, and the chance that S + offset is below `low`."""
    values = h * np.arange(-cells // 2, cells // 2) + offset
    theta = _tilt(laws, offset)
    log_factor, tilted_masses = _tilted_sum(laws, theta, h, cells)
    is_positive = values > 0
    weights = values[is_positive] * np.exp(-theta * values[is_positive])
    mean = tilted_masses[is_positive] @ weights
    inside = 0.0
    if mean > 0:
        inside = exp(log_factor + theta * offset + log(mean))
    _, masses = _tilted_sum(laws, 0.0, h, cells)
    return inside, float(masses[values < low].sum())


def _tilted_sum(
    laws: list[StepLaw], theta: float, h: float, cells: int
) -> tuple[float, np.ndarray]:
    """Return the logarithm of ``E exp(theta S)``, and the masses of the tilted sum."""
    log_moment = 0.0
    spectrum = np.ones(cells // 2 + 1, dtype=complex)
    for law in laws:
        log_tilted = theta * law.points + np.log(np.maximum(law.masses, 1e-300))
        step_moment = logsumexp(log_tilted)
        folded = np.zeros(cells)
        places = np.rint(law.points / h).astype(int) % cells
        np.add.at(folded, places, np.exp(log_tilted - step_moment))
        spectrum *= np.fft.rfft(folded) ** law.count
        log_moment += law.count * step_moment
    masses = np.roll(np.fft.irfft(spectrum, cells), cells // 2)
    return log_moment, np.maximum(masses, 0)


def _tilt(laws: list[StepLaw], offset: float) -> float:
    """Return the tilt at which S + offset is 0 on average, or 0."""

    def mean(theta: float) -> float:
        tilted_mean = offset
        for law in laws:
            tilted = law.masses * np.exp(theta * (law.points - law.points[-1]))
            tilted_mean += law.count * float(tilted @ law.points / tilted.sum())
        return tilted_mean

    if mean(0.0) >= 0:
        return 0.0
    low = 0.0
    high = 1.0
    largest = laws[0].points[-1]
    if largest > 0:
        high = 1.0 / largest
    while mean(high) < 0:
        low = high
        high = 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        if mean(middle) < 0:
            low = middle
        else:
            high = middle
    return high
