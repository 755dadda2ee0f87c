"""The composer: epsilon of rounds that may all differ, from their loss distributions.

The distributions are tilted by ``exp(theta loss)`` before they are convolved by Fourier transforms,
with theta about the Rényi order that decides (less 1): what decides on epsilon then has about a
tenth of the mass, at any delta, and rounding that is small beside 1 is small beside delta. Each
step errs upwards:

- profiles are discretised by connect-the-dots (`_loss`), many kinds of rounds merged by mixtures
  that dominate them (`_merge`);
- mass beyond the window of the transform is bounded by Chernoff's inequality and counts as infinite
  loss; what the transform wraps around is added to masses within;
- a bound of the rounding of the transforms is added to every mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, expm1, inf, log, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its submodules are imported on first use

from dpmesh.privacy.accounting._arguments import Floats
from dpmesh.privacy.accounting._loss import UNIT, Grid, Loss
from dpmesh.privacy.accounting._merge import Merged, Mixtures, Rounds, merge
from dpmesh.privacy.accounting._pairs import FixedSize, Poisson

Spectrum = npt.NDArray[np.complex128]

_MOST_POINTS = 2**21  # of a transform
_SHARE = 1e-6  # of delta for all that is cut off
_COARSE, _FINE = 4e-3, 5e-8  # what the grid may and need not exceed: the share of variance it adds
_COARSEST = 1.0
_FEW = 8
_VANISHED = 1e-60  # what is smaller than that in a transform is as good as 0
_BEYOND = log(1e8)  # what the window leaves out is so much less than what decides
_ORDERS = 2.0 ** np.arange(-6, 9)  # of a tilt, in units of the first guess
_BESIDE = np.array([0.5, 0.6, 0.7, 0.78, 0.86, 0.93, 1.0, 1.08, 1.16, 1.28, 1.45, 1.7])  # the best


def composed_epsilon(delta: float, *rounds: Rounds) -> float:
    """Return an upper bound of the epsilon of rounds composed; infinite where none is proved.

    Poisson samples are dominated by samples of fixed size, whose pair is its own mirror image: for
    a few kinds of rounds both bounds are computed, as either may lose less on its grid.
    """
    found = _composed(delta, rounds)
    kinds = sum(len(each.times) for each in rounds)
    if kinds > _FEW or not any(type(each.pair) is Poisson for each in rounds):
        return found
    mirrored = [
        each._replace(pair=FixedSize(each.pair.law)) if type(each.pair) is Poisson else each
        for each in rounds
    ]
    return min(found, _composed(delta, mirrored))


def _composed(delta: float, rounds: Sequence[Rounds]) -> float:
    merged = merge([_distinct(each) for each in rounds if np.any(each.times > 0)])
    if not merged:
        return 0.0
    grid = _grid(merged, delta)
    if grid is None:
        return inf
    nodes = [
        each.pair.losses(float(q), float(z), grid)
        for each in merged
        for q, z in zip(each.rate, each.multiplier, strict=True)
    ]
    mixtures = Mixtures.joined([each.mixtures for each in merged])
    if all(len(directions) == 1 for directions in nodes):
        return _epsilon([loss for (loss,) in nodes], mixtures, delta, grid.interval)
    return max(
        _epsilon([loss[way % len(loss)] for loss in nodes], mixtures, delta, grid.interval)
        for way in (0, 1)
    )


def _distinct(rounds: Rounds) -> Rounds:
    """Return each kind of round once, with the sum of its counts."""
    pair, rate, multiplier, times = rounds
    settings = np.column_stack([rate, multiplier])[times > 0]
    distinct, which = np.unique(settings, axis=0, return_inverse=True)
    counts = np.bincount(which.reshape(-1), weights=times[times > 0]).astype(np.float64)
    return Rounds(pair, distinct[:, 0], distinct[:, 1], counts)


def _grid(merged: Sequence[Merged], delta: float) -> Grid | None:
    """Return a grid fine enough for most of the variance, coarse enough for the transform."""
    times = np.concatenate([each.times for each in merged])
    total = float(np.sum(times))
    deviations = sqrt(2 * (log(total / _SHARE) - log(delta)))
    spread = np.concatenate([each.pair.spread(each.rate, each.multiplier) for each in merged])
    each_largest = [each.pair.largest(each.rate, each.multiplier, deviations) for each in merged]
    largest = np.concatenate(each_largest)
    spread = np.minimum(spread, largest)
    variance = float(np.sum(times * spread**2))
    width = 16 * sqrt(variance) + 2 * float(np.max(largest))
    points = float(np.clip(2**21 / len(times), 2**12, 2**18))

    def adding(share: float) -> float:
        """Return an interval that adds this share to the variance."""
        interval = width
        for _ in range(60):
            added = float(np.sum(times * np.minimum(interval**2 / 6, interval * spread)))
            if added <= share * variance:
                break
            interval *= max(0.5, share * variance / added)
        return interval

    interval = max(adding(_FINE), min(adding(_COARSE), width / points), width / _MOST_POINTS)
    atoms = [
        np.max(x) for x, each in zip(each_largest, merged, strict=True) if each.pair.law.has_atom
    ]
    if atoms and (atom := float(max(atoms))) > interval:
        interval = atom / ceil(atom / interval)
    if not 0 < interval <= _COARSEST:
        return None
    return Grid(interval, deviations, _SHARE * delta / total)


class _Moments(NamedTuple):
    """Cumulants ``K(theta) = log E exp(theta loss)`` of nodes and of the whole composition."""

    orders: Floats
    nodes: Floats  # shape (nodes, orders)
    total: Floats

    @classmethod
    def of(cls, orders: Floats, nodes: Floats, mixtures: Mixtures) -> _Moments:
        # each cumulant is raised by its rounding; the sum is no BLAS product, which wakes threads
        kinds = mixtures.log_of(nodes) + 1e-12
        return cls(orders, nodes, np.sum(mixtures.times[:, None] * kinds, axis=0))


def _epsilon(losses: Sequence[Loss], mixtures: Mixtures, delta: float, interval: float) -> float:
    times = mixtures.times
    infinite = np.array([loss.infinite for loss in losses])
    finite = np.array([float(np.sum(loss.masses)) for loss in losses])
    everything = mixtures.of(finite + infinite)
    share = np.maximum(mixtures.of(finite) / everything, 1e-300)
    beyond = -expm1(float(np.sum(times * np.log(share))))
    beyond *= float(np.exp(np.minimum(700, np.sum(times * np.log(everything)))))
    left = delta * (1 - 1e-9) - beyond
    if left <= 0:
        return inf
    moments = _moments(losses, mixtures, left, interval)
    at, by_order = _tilt(moments, left)
    if by_order <= 0 or at is None:
        return max(0.0, by_order)
    return max(0.0, min(by_order, _tilted_epsilon(losses, mixtures, moments, at, left, interval)))


def _moments(losses: Sequence[Loss], mixtures: Mixtures, delta: float, interval: float) -> _Moments:
    """Return the cumulants at orders on both sides of 0, more of them beside the best."""
    squares = [
        float(np.sum(loss.masses * np.square(np.arange(loss.first, loss.last + 1.0))))
        for loss in losses
    ]
    spread = interval * sqrt(float(np.sum(mixtures.times * mixtures.of(np.array(squares)))))
    orders = np.asarray(_ORDERS * (sqrt(2 * log(1 / delta) + 1) / max(spread, 1e-300)))
    far = _Moments.of(
        np.concatenate([-orders[::-1], [0.0], orders]),
        np.array([_log_moments_of_powers(loss, orders * interval) for loss in losses]),
        mixtures,
    )
    best, _ = _tilt(far, delta)
    if best is None:
        return far
    beside = far.orders[best] * _BESIDE
    near = np.array([_log_moments(loss, beside * interval) for loss in losses])
    kept = (far.orders < beside[0]) | (far.orders > beside[-1])
    together = np.concatenate([far.orders[kept], beside])
    sorting = np.argsort(together)
    nodes = np.concatenate([far.nodes[:, kept], near], axis=1)[:, sorting]
    return _Moments.of(together[sorting], nodes, mixtures)


def _log_moments(loss: Loss, orders: Floats) -> Floats:
    """Return ``log E exp(order x)``."""
    x = np.arange(loss.first - loss.last, 1.0)
    with np.errstate(under="ignore", divide="ignore"):
        means = [np.sum(loss.masses * np.exp(order * x)) for order in orders]
        found: Floats = np.log(means) + orders * loss.last
    return found


def _log_moments_of_powers(loss: Loss, orders: Floats) -> Floats:
    """Return ``log E exp(order x)`` at -orders, 0 and orders, each twice the one before."""
    x = np.arange(loss.masses.size, dtype=np.float64)
    found = np.zeros(2 * orders.size + 1)
    found[orders.size] = np.log(np.sum(loss.masses))
    rising, falling = np.exp(orders[0] * (x - x[-1])), np.exp(-orders[0] * x)
    with np.errstate(divide="ignore", under="ignore"):
        for index, order in enumerate(orders):
            above, below = np.sum(loss.masses * rising), np.sum(loss.masses * falling)
            found[orders.size + 1 + index] = np.log(above) + order * loss.last
            found[orders.size - 1 - index] = np.log(below) - order * loss.first
            rising *= rising
            falling *= falling
    return found


def _tilt(moments: _Moments, delta: float) -> tuple[int | None, float]:
    """Return the order that proves the smallest epsilon, and that epsilon.

    By the conversion of Canonne, Kamath and Steinke 2020, Proposition 12, at order alpha - 1.
    """
    positive = np.flatnonzero(moments.orders > 0)
    theta, cumulant = moments.orders[positive], moments.total[positive]
    with np.errstate(invalid="ignore"):
        proved = (cumulant - log(delta) - np.log1p(theta)) / theta - np.log1p(1 / theta)
    proved = np.where(np.isfinite(proved), proved, inf)
    best = int(np.argmin(proved))
    return (int(positive[best]) if proved[best] < inf else None), float(proved[best])


def _tilted_epsilon(
    losses: Sequence[Loss],
    mixtures: Mixtures,
    moments: _Moments,
    at: int,
    delta: float,
    interval: float,
) -> float:
    """Return epsilon by the composition of the tilted distributions; infinite if it is too long."""
    theta = float(moments.orders[at]) * interval
    top, size, cut = _window(losses, mixtures, moments, at, delta, interval)
    if size > 2 * _MOST_POINTS:
        return inf
    tilted = [
        _tilt_and_fold(loss, theta, float(moments.nodes[node, at]), size)
        for node, loss in enumerate(losses)
    ]
    masses, rounding = _convolved(tilted, mixtures.tilted(moments.nodes[:, at]), size)
    lowest = top - size + 1
    masses = np.roll(np.maximum(masses, 0), -(lowest % size)) + rounding
    cumulant = float(moments.total[at])
    return _epsilon_of(masses, lowest, theta, cumulant, delta - cut, interval)


def _window(
    losses: Sequence[Loss],
    mixtures: Mixtures,
    moments: _Moments,
    at: int,
    delta: float,
    interval: float,
) -> tuple[int, int, float]:
    """Return the last index of the window, its length, and a bound of the mass beyond it.

    By Chernoff's bound ``P(loss > x) <= exp(K(theta) - theta x)``. The length is so large that
    what is wrapped around into it, which can only raise epsilon, is small beside what decides.
    """
    theta, cumulant = moments.orders, moments.total
    last, first = mixtures.extremes(losses)
    positive, above, below = theta > 0, theta > theta[at], theta < theta[at]
    with np.errstate(invalid="ignore", over="ignore"):
        ends = (cumulant[positive] - log(delta) + _BEYOND) / theta[positive]
        rise = (cumulant[above] - cumulant[at] + _BEYOND) / (theta[above] - theta[at])
        fall = (cumulant[at] - cumulant[below] - _BEYOND) / (theta[at] - theta[below])
    end = float(np.nanmin(ends, initial=inf)) / interval
    highest = min(float(last), float(np.nanmin(rise, initial=inf)) / interval)
    lowest = max(float(first), float(np.nanmax(fall, initial=-inf)) / interval)
    top = last if end >= last else ceil(end)
    cut = 0.0 if top == last else delta * exp(-_BEYOND)
    reach = max(top, highest) - lowest + 2
    if reach > 2 * _MOST_POINTS:
        return top, int(min(reach, 2**62)), cut
    return top, scipy.fft.next_fast_len(int(reach), real=True), cut


def _tilt_and_fold(loss: Loss, theta: float, log_moment: float, size: int) -> tuple[Floats, float]:
    """Return ``mass exp(theta x) / moment`` at indices modulo `size`, and its rounding."""
    indices = np.arange(loss.first, loss.last + 1)
    exponents = theta * indices - log_moment
    with np.errstate(under="ignore", divide="ignore"):
        tilted = np.exp(exponents + np.log(loss.masses))
    rounding = UNIT * (8 * (log(size) / log(2) + 4) + 4 * float(np.sum(tilted * np.abs(exponents))))
    folded = np.zeros(size)
    start = loss.first % size
    for begin in range(-start, tilted.size, size):
        part = tilted[max(0, begin) : begin + size]
        offset = max(0, -begin)
        folded[offset : offset + part.size] += part
    return folded, rounding


def _convolved(
    tilted: Sequence[tuple[Floats, float]], mixtures: Mixtures, size: int
) -> tuple[Floats, float]:
    """Return the masses of the composition modulo `size`, and a bound of each one's rounding.

    A transform of masses that sum to 1 errs by at most some units for each level, a product by the
    sum of its factors' relative errors.
    """
    active = size // 2 + 1
    product, relative = np.ones(active, dtype=np.complex128), np.zeros(active)
    kept: dict[int, Spectrum] = {}
    last_use = {node: kind for kind, (nodes, _, _) in enumerate(mixtures.kinds()) for node in nodes}
    worst = max(rounding for _, rounding in tilted)
    for kind, (nodes, weights, times) in enumerate(mixtures.kinds()):
        for node in nodes:
            if node not in kept:
                kept[node] = scipy.fft.rfft(tilted[node][0])
        spectrum = kept[nodes[0]][:active] * weights[0]
        for node, weight in zip(nodes[1:], weights[1:], strict=True):
            spectrum += weight * kept[node][:active]
        for node in nodes:
            if last_use[node] == kind:
                kept.pop(node)
        size_of = np.abs(spectrum)
        relative += times / np.maximum(size_of, worst)
        product *= _power(np.where(size_of < _VANISHED ** (1 / times), 0, spectrum), times)
        if kind % 8 == 7:
            seen = np.abs(product) >= _VANISHED
            product[~seen] = 0
            active = int(np.max(np.flatnonzero(seen), initial=0)) + 1
            product, relative = product[:active], relative[:active]
    relative *= worst
    size_of = np.abs(product)
    with np.errstate(under="ignore", over="ignore", divide="ignore"):
        error = np.where(
            relative < 30,
            size_of * np.expm1(np.minimum(relative, 30)),
            np.exp(np.minimum(0, np.log(size_of) + relative)),
        )
    mean = 2 * float(np.sum(error + worst * size_of)) / size + _VANISHED**0.5
    return scipy.fft.irfft(product, size), mean


def _power(spectrum: Spectrum, count: int) -> Spectrum:
    """An integer power by repeated squaring, an order of magnitude faster than numpy's."""
    if count == 1:
        return spectrum
    power = np.ones_like(spectrum)
    with np.errstate(under="ignore"):
        while count:
            if count & 1:
                power *= spectrum
            count >>= 1
            if count:
                spectrum = spectrum * spectrum
    return power


def _epsilon_of(
    masses: Floats, lowest: int, theta: float, cumulant: float, delta: float, interval: float
) -> float:
    """Return the smallest epsilon at which the profile of tilted masses is at most `delta`.

    In units of the mass at the middle of the tilted distribution, so that nothing overflows.
    """
    indices = np.arange(masses.size)
    middle = float(np.sum(indices * masses) / np.sum(masses))
    with np.errstate(under="ignore"):
        own = masses * np.exp(np.minimum(-theta * (indices - middle), 600))
    target = log(delta) - cumulant + theta * (lowest + middle)
    if target < -600:
        return inf
    # of what lies beyond each point: its mass, and its mass times exp(point - loss)
    backwards, damping = own[::-1], float(np.exp(-interval))
    beyond = np.append(np.cumsum(backwards)[-2::-1], 0.0)
    # sums[i] - damping * sums[i - 1] = damping * backwards[i - 1], by a solver for two diagonals
    diagonals = np.full((2, backwards.size), -damping, order="F")
    arriving = damping * np.append(0.0, backwards[:-1])
    damped = scipy.linalg.blas.dtbsv(1, diagonals, arriving, lower=1, diag=1)[::-1]
    allowed = float(np.exp(min(target, 700)))
    exceeding = np.flatnonzero(beyond - damped > allowed)
    if exceeding.size == 0:  # all of the window is kept: its lowest point is proved, no less
        return float(lowest) * interval
    last = int(exceeding[-1])
    excess = (beyond[last] - allowed) / damped[last] if damped[last] > 0 else inf
    step = min(log(excess), interval) if excess > 0 else 0.0
    return float(lowest + last) * interval + max(0.0, step)
