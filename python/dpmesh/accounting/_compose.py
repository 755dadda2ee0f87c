"""The composer: epsilon of rounds that may all differ, from their loss distributions.

The distributions are tilted by ``exp(theta loss)`` before they are convolved by Fourier transforms,
with theta about the Rényi order that decides (less 1): the losses that decide on epsilon then have
about a tenth of the mass, at any delta, and rounding that is small beside 1 is small beside delta.
Each step errs upwards:

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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its submodules are imported on first use

from dpmesh.accounting._arguments import Floats
from dpmesh.accounting._loss import UNIT, Grid, LossDistribution, losses_of
from dpmesh.accounting._merge import Merged, Mixtures, RoundKinds, merge
from dpmesh.accounting._moments import Moments, moments_of, proved

Spectrum = npt.NDArray[np.complex128]

_MOST_POINTS = 2**21
"""Most points of a grid over the width of a composition; a transform has at most twice as many."""

_SHARE = 1e-6
"""Share of delta that all cut-off tails together may have."""

_COARSE = 4e-3
"""Largest share of the variance of the loss that rounding to the grid may add."""

_FINE = 5e-8
"""Share of the variance below which a finer grid gains nothing that is printed."""

_INTERVALS = (4.0, 1.0, 0.25, 0.0625)
"""Factors of the usual interval, tried in turn while each improves by `_LEAST_GAIN`."""

_LEAST_GAIN = 0.01
"""Relative improvement of epsilon for which a finer grid is tried next."""

_MOST_TILTS = 4
"""Most tilts that are tried on one grid."""

_VANISHED = 1e-60
"""Smaller magnitudes of a spectrum count as 0; a bound of their sum is added to every mass."""

_LOG_MARGIN = log(1e8)
"""The window leaves out tails whose mass is 1e8 times smaller than the mass that decides."""

_MOST_EXPONENT = 600.0
"""Larger exponents are cut off: float64 overflows at exp(710), and underflows at exp(-745)."""


def composed_epsilon(delta: float, *rounds: RoundKinds) -> float:
    """Return an upper bound of the epsilon of rounds composed; infinite where none is proved.

    What a grid adds falls at least as fast as its interval: where a quarter of the interval
    improves by less than 1%, less than 0.4% is left.
    """
    merged = merge([_distinct(kinds) for kinds in rounds if np.any(kinds.times > 0)])
    if not merged:
        return 0.0
    total_rounds = sum(float(np.sum(group.times)) for group in merged)
    if total_rounds == 1:
        return _epsilon_of_one_round(merged[0], delta)
    best = inf
    for scale in _INTERVALS:
        epsilon = _composed(merged, delta, scale)
        is_enough = epsilon >= (1 - _LEAST_GAIN) * best
        best = min(best, epsilon)
        if is_enough and best < inf:
            break
    return best


def _epsilon_of_one_round(merged: Merged, delta: float) -> float:
    """Return the epsilon of one round, exact up to rounding, from its profile."""
    rate = float(merged.rate[0])
    noise_ratio = float(merged.noise_ratio[0])
    deviations = sqrt(2 * log(2 / delta))
    low = 0.0
    high = float(merged.pair.largest(merged.rate, merged.noise_ratio, deviations)[0])
    for _ in range(9):  # each divides the distance by 64
        losses = np.linspace(low, high, 65)
        profiles = merged.pair.profiles(rate, noise_ratio, losses, _SHARE * delta)
        is_within = np.all(
            [profile.values + profile.errors <= delta for profile in profiles], axis=0
        )
        first = int(np.argmax(is_within))
        if not is_within[first]:
            return inf
        low = float(losses[max(0, first - 1)])
        high = float(losses[first])
    return high


def _composed(merged: Sequence[Merged], delta: float, scale: float) -> float:
    """Return the epsilon on a grid whose interval is so many times the usual one."""
    grid, largest_losses = _grid(merged, delta, scale)
    nodes = []  # the loss distributions of each node, one for each direction
    for group, ends in zip(merged, largest_losses, strict=True):
        kinds = zip(group.rate.tolist(), group.noise_ratio.tolist(), ends.tolist(), strict=True)
        for rate, noise_ratio, end in kinds:
            points = grid.points(end)
            profiles = group.pair.profiles(rate, noise_ratio, points, grid.negligible)
            nodes.append(losses_of(profiles, grid))
    mixtures = Mixtures.joined([group.mixtures for group in merged])
    direction_count = max(len(directions) for directions in nodes)
    epsilons = []
    for direction in range(direction_count):
        # a pair with one direction bounds both
        losses = [directions[direction % len(directions)] for directions in nodes]
        epsilons.append(_epsilon(losses, mixtures, delta, grid.interval))
    return max(epsilons)


def _distinct(rounds: RoundKinds) -> RoundKinds:
    """Return each kind of round once, with the sum of its counts."""
    happens = rounds.times > 0
    kinds = np.column_stack([rounds.rate, rounds.noise_ratio])[happens]
    distinct, numbers = np.unique(kinds, axis=0, return_inverse=True)
    counts = np.bincount(numbers.reshape(-1), weights=rounds.times[happens]).astype(np.float64)
    return RoundKinds(rounds.pair, distinct[:, 0], distinct[:, 1], counts)


def _grid(merged: Sequence[Merged], delta: float, scale: float) -> tuple[Grid, list[Floats]]:
    """Return a grid fine enough for most of the variance, coarse enough for the transform.

    With it the largest losses of the nodes: what lies beyond them is a small share of delta.

    Parameters
    ----------
    merged
        Kinds of rounds.
    delta
        Delta of the composition.
    scale
        Factor of the usual interval.
    """
    times = np.concatenate([group.times for group in merged])
    total = float(np.sum(times))
    log_tail = log(total / _SHARE) - log(delta)
    largest_losses = []
    spreads = []
    for group in merged:
        # a tail of the normal noise beyond d deviations has a mass of at most exp(-d^2 / 2)
        deviations = np.sqrt(2 * np.maximum(0.5, log_tail + np.log(group.rate)))
        largest_losses.append(group.pair.largest(group.rate, group.noise_ratio, deviations))
        spreads.append(group.pair.spread(group.rate, group.noise_ratio))
    spread = np.minimum(np.concatenate(spreads), np.concatenate(largest_losses))
    deviation = sqrt(float(np.sum(times * spread**2)))
    # about the width of the composition: 8 deviations and the largest loss on either side
    width = 16 * deviation + 2 * max(float(np.max(losses)) for losses in largest_losses)
    # all nodes together have about 2^21 points
    points = float(np.clip(2**21 / len(times), 2**12, 2**18))
    coarse = _interval_adding(_COARSE * deviation**2, spread, times, width)
    fine = _interval_adding(_FINE * deviation**2, spread, times, width)
    interval = scale * max(fine, min(coarse, width / points), width / _MOST_POINTS)
    # a law with an atom has one at its largest loss, which should lie on the grid
    atoms = [
        float(np.max(losses))
        for losses, group in zip(largest_losses, merged, strict=True)
        if group.pair.law.has_atom
    ]
    if atoms and max(atoms) > interval:
        atom = max(atoms)
        interval = atom / ceil(atom / interval)
    return Grid(interval, _SHARE * delta / total), largest_losses


def _interval_adding(variance: float, spread: Floats, times: Floats, interval: float) -> float:
    """Return an interval, at most the one given, that adds about `variance`.

    A loss between two points of the grid, a share f of the interval h above the lower one, is
    rounded to one of them at random: that adds ``f (1 - f) h^2``, on average over f ``h^2 / 6``. It
    adds at most about ``h spread`` where the grid is coarser than the loss itself.
    """
    for _ in range(60):
        added = float(np.sum(times * np.minimum(interval**2 / 6, interval * spread)))
        if added <= variance:
            break
        interval *= max(0.5, variance / added)
    return interval


def _epsilon(
    losses: Sequence[LossDistribution], mixtures: Mixtures, delta: float, interval: float
) -> float:
    """Return the least epsilon that an order or a tilted composition proves."""
    finite_delta = delta * (1 - 1e-9) - _infinite_mass(losses, mixtures)
    if finite_delta <= 0:
        return inf
    moments = moments_of(losses, mixtures, finite_delta, interval)
    best = float(np.min(proved(moments, finite_delta)))
    # The best tilt gives most mass to the losses that decide on epsilon. Two guesses of them: the
    # epsilon that moments prove (all losses decide together) and the largest single loss. Each
    # epsilon that is found leads to the next guess.
    single_loss = _largest_single_loss(losses, mixtures, finite_delta) * interval
    candidates = [moments.nearest(best), moments.nearest(single_loss)]
    tried: set[int] = set()
    while candidates and best > 0 and len(tried) < _MOST_TILTS:
        tilt = candidates.pop()
        if tilt in tried:
            continue
        tried.add(tilt)
        epsilon, unrounded = _tilted_epsilon(
            losses, mixtures, moments, tilt, finite_delta, interval
        )
        best = min(best, epsilon)
        if unrounded < 0.999 * best:
            candidates.append(moments.nearest(unrounded))
    return max(0.0, best)


def _infinite_mass(losses: Sequence[LossDistribution], mixtures: Mixtures) -> float:
    """Return the probability that some loss of the composition is infinite."""
    infinite = np.array([loss.infinite for loss in losses])
    finite = np.array([float(np.sum(loss.masses)) for loss in losses])
    total = mixtures.mean(finite + infinite)
    finite_share = np.maximum(mixtures.mean(finite) / total, 1e-300)
    mass = -expm1(float(np.sum(mixtures.times * np.log(finite_share))))
    log_total = np.sum(mixtures.times * np.log(total))
    mass *= float(np.exp(np.minimum(700, log_total)))
    return mass


def _largest_single_loss(
    losses: Sequence[LossDistribution], mixtures: Mixtures, delta: float
) -> int:
    """Return the largest index that one loss among all reaches with a chance of about `delta`."""
    counts = np.zeros(len(losses))
    np.add.at(counts, mixtures.nodes, mixtures.weights * mixtures.times[:, None])
    largest = 0
    for loss, count in zip(losses, counts, strict=True):
        tails = np.cumsum(loss.masses[::-1])[::-1]
        reached = int(np.count_nonzero(tails * count > delta))
        largest = max(largest, loss.first + reached)
    return largest


def _tilted_epsilon(
    losses: Sequence[LossDistribution],
    mixtures: Mixtures,
    moments: Moments,
    tilt: int,
    delta: float,
    interval: float,
) -> tuple[float, float]:
    """Return epsilon by the composition of the tilted distributions, and without its rounding.

    Both are infinite where the composition is too long.

    Parameters
    ----------
    losses, mixtures
        The losses of the nodes, and the kinds of rounds.
    moments
        Cumulants of the losses.
    tilt
        Index of an order of the moments.
    delta
        Delta without the mass of infinite losses.
    interval
        Interval of the grid.

    Returns
    -------
    An upper bound of epsilon, and about what it would be without the bounds of rounding.
    """
    theta = float(moments.orders[tilt]) * interval
    window = _window(losses, mixtures, moments, tilt, delta, interval)
    if window.size > 2 * _MOST_POINTS:
        return inf, inf
    tilted = [
        tilt_and_fold(loss, theta, float(moments.nodes[node, tilt]), window.size)
        for node, loss in enumerate(losses)
    ]
    masses, rounding = convolved(tilted, mixtures.tilted(moments.nodes[:, tilt]), window.size)
    lowest = window.top - window.size + 1
    masses = np.roll(np.maximum(masses, 0), -(lowest % window.size))
    cumulant = float(moments.total[tilt])
    window_delta = delta - window.cut
    epsilon = _epsilon_of(masses + rounding, lowest, theta, cumulant, window_delta, interval)
    unrounded = _epsilon_of(masses, lowest, theta, cumulant, window_delta, interval)
    return epsilon, unrounded


class _Window(NamedTuple):
    """The losses that a transform covers.

    Attributes
    ----------
    top
        Index of the largest loss on the grid.
    size
        Number of losses.
    cut
        Bound of the probability of larger losses.
    """

    top: int
    size: int
    cut: float


def _window(
    losses: Sequence[LossDistribution],
    mixtures: Mixtures,
    moments: Moments,
    tilt: int,
    delta: float,
    interval: float,
) -> _Window:
    """Return the window of the composition at a tilt.

    By Chernoff's bound ``P(loss > x) <= exp(K(theta) - theta x)``. The length is so large that the
    mass that is wrapped around into it, which can only raise epsilon, is small beside the mass that
    decides.
    """
    theta = moments.orders
    cumulant = moments.total
    last, first = mixtures.extremes(losses)
    positive = theta > 0
    above = theta > theta[tilt]
    below = theta < theta[tilt]
    with np.errstate(invalid="ignore", over="ignore"):
        ends = (cumulant[positive] - log(delta) + _LOG_MARGIN) / theta[positive]
        rise = (cumulant[above] - cumulant[tilt] + _LOG_MARGIN) / (theta[above] - theta[tilt])
        fall = (cumulant[tilt] - cumulant[below] - _LOG_MARGIN) / (theta[tilt] - theta[below])
    end = float(np.nanmin(ends, initial=inf)) / interval
    highest = min(float(last), float(np.nanmin(rise, initial=inf)) / interval)
    lowest = max(float(first), float(np.nanmax(fall, initial=-inf)) / interval)
    top = last
    if end < last:
        top = ceil(end)
    cut = 0.0
    if top != last:
        cut = delta * exp(-_LOG_MARGIN)
    reach = max(top, highest) - lowest + 2
    if reach > 2 * _MOST_POINTS:
        size = int(min(reach, 2**62))
    else:
        size = scipy.fft.next_fast_len(int(reach), real=True)
    return _Window(top, size, cut)


def tilt_and_fold(
    loss: LossDistribution, theta: float, log_moment: float, size: int
) -> tuple[Floats, float]:
    """Return ``mass exp(theta x) / moment`` at indices modulo `size`, and its rounding.

    Parameters
    ----------
    loss
        Loss distribution of a node.
    theta
        Tilt for a step of one interval.
    log_moment
        Logarithm of the moment, the sum of all ``mass exp(theta x)``.
    size
        Length of the transform.
    """
    indices = np.arange(loss.first, loss.last + 1)
    exponents = theta * indices - log_moment
    with np.errstate(under="ignore", divide="ignore"):
        tilted = np.exp(exponents + np.log(loss.masses))
    levels = log(size) / log(2) + 4  # of the fast Fourier transform, and 4 operations before it
    exponent_errors = 4 * float(np.sum(tilted * np.abs(exponents)))
    rounding = UNIT * (8 * levels + exponent_errors)
    folded = np.zeros(size)
    first_place = loss.first % size
    for begin in range(-first_place, tilted.size, size):
        piece = tilted[max(0, begin) : begin + size]
        offset = max(0, -begin)
        folded[offset : offset + piece.size] += piece
    return folded, rounding


def convolved(
    tilted: Sequence[tuple[Floats, float]], mixtures: Mixtures, size: int
) -> tuple[Floats, float]:
    """Return the masses of the composition modulo `size`, and a bound of each one's rounding.

    A transform of masses that sum to 1 errs by at most some units for each level, a product by the
    sum of its factors' relative errors.

    Parameters
    ----------
    tilted
        Masses of each node and their rounding, from `tilt_and_fold`.
    mixtures
        Kinds of rounds as mixtures of nodes.
    size
        Length of the transform.
    """
    active = size // 2 + 1  # frequencies whose product is not 0 yet
    product = np.ones(active, dtype=np.complex128)
    relative_error = np.zeros(active)
    spectra: dict[int, Spectrum] = {}
    last_use = _last_uses(mixtures)
    worst_rounding = max(rounding for _, rounding in tilted)
    for kind, (nodes, weights, times) in enumerate(mixtures.kinds()):
        for node in nodes:
            if node not in spectra:
                masses, _ = tilted[node]
                spectra[node] = scipy.fft.rfft(masses)
        spectrum = spectra[nodes[0]][:active] * weights[0]
        for node, weight in zip(nodes[1:], weights[1:], strict=True):
            spectrum += weight * spectra[node][:active]
        for node in nodes:
            if last_use[node] == kind:
                spectra.pop(node)
        magnitudes = np.abs(spectrum)
        relative_error += times / np.maximum(magnitudes, worst_rounding)
        has_vanished = magnitudes < _VANISHED ** (1 / times)
        product *= _power(np.where(has_vanished, 0, spectrum), times)
        if kind % 8 == 7:  # now and then: high frequencies vanish first, and need no more work
            remains = np.abs(product) >= _VANISHED
            product[~remains] = 0
            active = int(np.max(np.flatnonzero(remains), initial=0)) + 1
            product = product[:active]
            relative_error = relative_error[:active]
    relative_error *= worst_rounding
    magnitudes = np.abs(product)
    with np.errstate(under="ignore", over="ignore", divide="ignore"):
        error = np.where(
            relative_error < 30,
            magnitudes * np.expm1(np.minimum(relative_error, 30)),
            np.exp(np.minimum(0, np.log(magnitudes) + relative_error)),
        )
    total_error = 2 * float(np.sum(error + worst_rounding * magnitudes))
    rounding = total_error / size + _VANISHED**0.5
    return scipy.fft.irfft(product, size), rounding


def _last_uses(mixtures: Mixtures) -> dict[int, int]:
    """Return the last kind of round that each node is part of."""
    last_use = {}
    for kind, (nodes, _, _) in enumerate(mixtures.kinds()):
        for node in nodes:
            last_use[node] = kind
    return last_use


def _power(spectrum: Spectrum, count: int) -> Spectrum:
    """Return an integer power by repeated squaring, an order of magnitude faster than numpy's."""
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

    The tilt is undone in units of the mass at the middle of the positive losses, so that nothing
    overflows: what is wrapped around into the lower end of the window may be large.

    Parameters
    ----------
    masses
        Tilted masses at the losses ``lowest * interval``, ``(lowest + 1) * interval``, ..
    lowest
        Index of the smallest loss.
    theta
        Tilt for a step of one interval.
    cumulant
        Logarithm of the moment by which tilted masses were divided.
    delta
        Largest value of the profile.
    interval
        Interval of the grid.
    """
    masses = masses[max(0, -lowest) :]
    lowest = max(0, lowest)
    indices = np.arange(masses.size)
    middle = 0.0
    if masses.any():
        middle = float(np.sum(indices * masses) / np.sum(masses))
    skipped = 0
    if theta > 0:
        skipped = max(0, ceil(middle - _MOST_EXPONENT / theta))
    masses = masses[skipped:]
    lowest += skipped
    middle -= skipped
    if not masses.any():
        return float(lowest) * interval
    with np.errstate(under="ignore"):
        scaled = masses * np.exp(-theta * (indices[: masses.size] - middle))
    log_allowed = log(delta) - cumulant + theta * (lowest + middle)
    if log_allowed < -_MOST_EXPONENT:
        return inf
    tails, damped_tails = _tails(scaled, float(np.exp(-interval)))
    allowed = float(np.exp(min(log_allowed, 700)))
    exceeding = np.flatnonzero(tails - damped_tails > allowed)
    if exceeding.size == 0:  # all of the window is kept: its lowest point is proved, no less
        return float(lowest) * interval
    last = int(exceeding[-1])
    excess = inf
    if damped_tails[last] > 0:
        excess = (tails[last] - allowed) / damped_tails[last]
    step = 0.0
    if excess > 0:
        step = min(log(excess), interval)
    return float(lowest + last) * interval + max(0.0, step)


def _tails(masses: Floats, damping: float) -> tuple[Floats, Floats]:
    """Return the mass beyond each point, and the sum of masses times ``exp(point - loss)`` there.

    Their difference is the hockey-stick profile at the point. `damping` is the exponential of minus
    the interval.
    """
    backwards = masses[::-1]
    tails = np.append(np.cumsum(backwards)[-2::-1], 0.0)
    # sums[i] - damping * sums[i - 1] = damping * backwards[i - 1], by a solver for two diagonals
    diagonals = np.full((2, backwards.size), -damping, order="F")
    arriving = damping * np.append(0.0, backwards[:-1])
    sums = scipy.linalg.blas.dtbsv(1, diagonals, arriving, lower=1, diag=1)
    return tails, sums[::-1]
