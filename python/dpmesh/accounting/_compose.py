"""The composer: epsilon of rounds that may all differ, from their loss distributions.

The distributions are tilted by ``exp(theta loss)`` before they are convolved by Fourier transforms,
with theta about the Rényi order that decides (less 1): what decides on epsilon then has about a
tenth of the mass, at any delta, and rounding that is small beside 1 is small beside delta. Each
step errs upwards:

- profiles are discretised by connect-the-dots (`_loss`), many kinds of rounds merged by mixtures
  that dominate them (`_merge`);
- the grid is refined until that gains little, and several tilts are tried: each proves an epsilon;
- mass beyond the window of the transform is bounded by Chernoff's inequality and counts as infinite
  loss; what the transform wraps around is added to masses within;
- a bound of the rounding of the transforms is added to every mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, expm1, inf, log, sqrt

import numpy as np
import numpy.typing as npt
import scipy  # its submodules are imported on first use

from dpmesh.accounting._arguments import Floats
from dpmesh.accounting._loss import UNIT, Grid, Loss, losses_of
from dpmesh.accounting._merge import Merged, Mixtures, Rounds, merge
from dpmesh.accounting._moments import Moments, moments_of, proved

Spectrum = npt.NDArray[np.complex128]

_MOST_POINTS = 2**21  # of a transform
_SHARE = 1e-6  # of delta for all that is cut off
_COARSE, _FINE = 4e-3, 5e-8  # what the grid may and need not exceed: the share of variance it adds
_INTERVALS = (4.0, 1.0, 0.25, 0.0625)  # tried in turn, while each improves by `_WORTH` on the last
_WORTH = 0.01
_MOST_TILTS = 4
_VANISHED = 1e-60  # what is smaller than that in a transform is as good as 0
_BEYOND = log(1e8)  # what the window leaves out is so much less than what decides


def composed_epsilon(delta: float, *rounds: Rounds) -> float:
    """Return an upper bound of the epsilon of rounds composed; infinite where none is proved.

    What a grid adds falls at least as fast as its interval: where a quarter of the interval
    improves by less than 1%, less than 0.4% is left.
    """
    merged = merge([_distinct(each) for each in rounds if np.any(each.times > 0)])
    if not merged:
        return 0.0
    if sum(float(np.sum(each.times)) for each in merged) == 1:
        return _once(merged[0], delta)
    found = inf
    for scale in _INTERVALS:
        epsilon = _composed(merged, delta, scale)
        enough = epsilon >= (1 - _WORTH) * found
        found = min(found, epsilon)
        if enough and found < inf:
            break
    return found


def _once(merged: Merged, delta: float) -> float:
    """Return the epsilon of one round, exact up to rounding, from its profile."""
    rate, multiplier = float(merged.rate[0]), float(merged.multiplier[0])
    deviations = sqrt(2 * log(2 / delta))
    low, high = 0.0, float(merged.pair.largest(merged.rate, merged.multiplier, deviations)[0])
    for _ in range(9):  # each divides the distance by 64
        losses = np.linspace(low, high, 65)
        profiles = merged.pair.profiles(rate, multiplier, losses, _SHARE * delta)
        within = np.all([each.values + each.errors <= delta for each in profiles], axis=0)
        first = int(np.argmax(within))
        if not within[first]:
            return inf
        low, high = float(losses[max(0, first - 1)]), float(losses[first])
    return high


def _composed(merged: Sequence[Merged], delta: float, scale: float) -> float:
    """Return the epsilon on a grid whose interval is so many times the usual one."""
    grid, largest = _grid(merged, delta, scale)
    nodes = [
        losses_of(each.pair.profiles(float(q), float(z), grid.points(end), grid.negligible), grid)
        for each, ends in zip(merged, largest, strict=True)
        for q, z, end in zip(each.rate, each.multiplier, ends.tolist(), strict=True)
    ]
    mixtures = Mixtures.joined([each.mixtures for each in merged])
    ways = range(max(len(directions) for directions in nodes))
    return max(
        _epsilon([loss[way % len(loss)] for loss in nodes], mixtures, delta, grid.interval)
        for way in ways
    )


def _distinct(rounds: Rounds) -> Rounds:
    """Return each kind of round once, with the sum of its counts."""
    pair, rate, multiplier, times = rounds
    settings = np.column_stack([rate, multiplier])[times > 0]
    distinct, which = np.unique(settings, axis=0, return_inverse=True)
    counts = np.bincount(which.reshape(-1), weights=times[times > 0]).astype(np.float64)
    return Rounds(pair, distinct[:, 0], distinct[:, 1], counts)


def _grid(merged: Sequence[Merged], delta: float, scale: float) -> tuple[Grid, list[Floats]]:
    """Return a grid fine enough for most of the variance, coarse enough for the transform.

    With it the largest losses of the nodes: what lies beyond them is a small share of delta.
    """
    times = np.concatenate([each.times for each in merged])
    total = float(np.sum(times))
    left = log(total / _SHARE) - log(delta)
    largest = [
        each.pair.largest(
            each.rate, each.multiplier, np.sqrt(2 * np.maximum(0.5, left + np.log(each.rate)))
        )
        for each in merged
    ]
    spread = np.concatenate([each.pair.spread(each.rate, each.multiplier) for each in merged])
    spread = np.minimum(spread, np.concatenate(largest))
    deviation = sqrt(float(np.sum(times * spread**2)))
    width = 16 * deviation + 2 * max(float(np.max(each)) for each in largest)
    points = float(np.clip(2**21 / len(times), 2**12, 2**18))
    coarse, fine = (_adding(x * deviation**2, spread, times, width) for x in (_COARSE, _FINE))
    interval = scale * max(fine, min(coarse, width / points), width / _MOST_POINTS)
    atoms = [np.max(x) for x, each in zip(largest, merged, strict=True) if each.pair.law.has_atom]
    if atoms and (atom := float(max(atoms))) > interval:
        interval = atom / ceil(atom / interval)
    return Grid(interval, _SHARE * delta / total), largest


def _adding(variance: float, spread: Floats, times: Floats, interval: float) -> float:
    """Return an interval, at most the one given, that adds about this to the variance."""
    for _ in range(60):
        added = float(np.sum(times * np.minimum(interval**2 / 6, interval * spread)))
        if added <= variance:
            break
        interval *= max(0.5, variance / added)
    return interval


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
    moments = moments_of(losses, mixtures, left, interval)
    found = float(np.min(proved(moments, left)))
    # the masses that decide are largest beside rounding where theirs is the tilt; it is known
    # where one loss alone decides, and where all do; else what is found leads to a better one
    tilts = [moments.nearest(found), moments.nearest(_alone(losses, mixtures, left) * interval)]
    tried: set[int] = set()
    while tilts and found > 0 and len(tried) < _MOST_TILTS:
        if (at := tilts.pop()) in tried:
            continue
        tried.add(at)
        epsilon, unrounded = _tilted_epsilon(losses, mixtures, moments, at, left, interval)
        found = min(found, epsilon)
        if unrounded < 0.999 * found:
            tilts.append(moments.nearest(unrounded))
    return max(0.0, found)


def _alone(losses: Sequence[Loss], mixtures: Mixtures, delta: float) -> int:
    """Return the largest index that one loss among all reaches with a chance of about `delta`."""
    often = np.zeros(len(losses))
    np.add.at(often, mixtures.nodes, mixtures.weights * mixtures.times[:, None])
    reached = 0
    for loss, times in zip(losses, often, strict=True):
        beyond = np.cumsum(loss.masses[::-1])[::-1]
        reached = max(reached, loss.first + int(np.count_nonzero(beyond * times > delta)))
    return reached


def _tilted_epsilon(
    losses: Sequence[Loss],
    mixtures: Mixtures,
    moments: Moments,
    at: int,
    delta: float,
    interval: float,
) -> tuple[float, float]:
    """Return epsilon by the composition of the tilted distributions, and without its rounding.

    Both are infinite where the composition is too long.
    """
    theta = float(moments.orders[at]) * interval
    top, size, cut = _window(losses, mixtures, moments, at, delta, interval)
    if size > 2 * _MOST_POINTS:
        return inf, inf
    tilted = [
        tilt_and_fold(loss, theta, float(moments.nodes[node, at]), size)
        for node, loss in enumerate(losses)
    ]
    masses, rounding = convolved(tilted, mixtures.tilted(moments.nodes[:, at]), size)
    lowest = top - size + 1
    masses = np.roll(np.maximum(masses, 0), -(lowest % size))
    settings = (lowest, theta, float(moments.total[at]), delta - cut, interval)
    return _epsilon_of(masses + rounding, *settings), _epsilon_of(masses, *settings)


def _window(
    losses: Sequence[Loss],
    mixtures: Mixtures,
    moments: Moments,
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


def tilt_and_fold(loss: Loss, theta: float, log_moment: float, size: int) -> tuple[Floats, float]:
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


def convolved(
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

    In units of the mass at the middle of the positive losses, so that nothing overflows: beyond the
    window tilted masses may be large, and lie at its lower end.
    """
    masses, lowest = masses[max(0, -lowest) :], max(0, lowest)
    indices = np.arange(masses.size)
    middle = float(np.sum(indices * masses) / np.sum(masses)) if masses.any() else 0.0
    low = max(0, ceil(middle - 600 / theta)) if theta > 0 else 0
    masses, lowest, middle = masses[low:], lowest + low, middle - low
    if not masses.any():
        return float(lowest) * interval
    with np.errstate(under="ignore"):
        own = masses * np.exp(-theta * (indices[: masses.size] - middle))
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
