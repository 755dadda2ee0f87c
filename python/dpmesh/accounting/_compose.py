"""The composer: epsilon of rounds that may all differ, from their privacy loss distributions.

`composed_epsilon` serves the sampled accountants (`sampled`), random allocation (`allocation`) and
the costs of plans. Losses of rounds add up, so that their distributions are convolved, here by fast
Fourier transforms on a grid of losses.

Before the transform, masses are *tilted*: multiplied by ``exp(theta loss)`` and normalised (Esscher
transform). The tilt theta is about the Rényi order that proves the least epsilon, minus 1. Losses
near epsilon then have about a tenth of the mass, at any delta. So rounding errors, which are small
relative to the mass 1, are small relative to delta after the tilt is undone.

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
from functools import lru_cache
from math import ceil, exp, expm1, inf, log, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its submodules are imported on first use

from dpmesh.accounting._arguments import Floats
from dpmesh.accounting._loss import UNIT, Grid, LossDistribution, losses_of
from dpmesh.accounting._merge import Merged, Mixtures, RoundKinds, merge
from dpmesh.accounting._moments import Moments, epsilon_by_order, moments_of
from dpmesh.accounting._pairs import DominatingPair

Spectrum = npt.NDArray[np.complex128]

_MAX_GRID_POINTS = 2**21
"""Most points of a grid over the width of a composition; a transform has at most twice as many."""

_TAIL_SHARE = 1e-6
"""Share of delta that all cut-off tails together may have."""

_COARSE_VARIANCE_SHARE = 4e-3
"""Largest share of the variance of the loss that rounding to the grid may add."""

_FINE_VARIANCE_SHARE = 5e-8
"""Share of the variance of the loss below which a finer grid changes no printed digit."""

_INTERVAL_FACTORS = (4.0, 1.0, 0.25, 0.0625)
"""Factors of the usual interval, tried in turn while each improves by `_MIN_GAIN`."""

_MIN_GAIN = 0.01
"""Relative improvement of epsilon for which a finer grid is tried next."""

_MAX_TILTS = 4
"""Most tilts that are tried on one grid."""

_NEGLIGIBLE_MAGNITUDE = 1e-60
"""Smaller magnitudes of a spectrum count as 0; a bound of their sum is added to every mass."""

_MAX_REMEMBERED_KINDS = 64
"""Compositions of at most so many kinds of rounds are remembered."""

_Key = tuple[DominatingPair, tuple[tuple[float, float], ...], tuple[float, ...]]
"""Pair of kinds of rounds, the sampling rate and noise ratio of each, and their counts."""

_BRACKET_PARTS = 64
_NARROWINGS = 9
"""The bracket of one round's epsilon is divided by ``64**9 = 2**54``: to float64's precision."""

_LOG_MARGIN = log(1e8)
"""The window leaves out tails whose mass is 1e8 times smaller than delta."""

_MAX_EXPONENT = 600.0
"""Larger exponents are cut off: float64 overflows at exp(710), and underflows at exp(-745)."""


def composed_epsilon(delta: float, *rounds: RoundKinds) -> float:
    """Return an upper bound of the epsilon of all rounds together, composed adaptively.

    Epsilon is infinite if none is proved, and 0 without rounds. The excess of a grid falls at least
    as fast as its interval. So if a quarter of the interval lowers epsilon by less than 1%, still
    finer grids would lower it by less than 0.4%.

    Parameters
    ----------
    delta
        In (0, 1).
    rounds
        Kinds of rounds, one argument for each dominating pair.
    """
    distinct = [_distinct(kinds) for kinds in rounds if np.any(kinds.times > 0)]
    if not distinct:
        return 0.0
    if sum(len(kinds.times) for kinds in distinct) > _MAX_REMEMBERED_KINDS:
        return _epsilon_of_distinct(delta, distinct)
    keys = []
    for kinds in distinct:
        rates_and_ratios = tuple(zip(kinds.rate, kinds.noise_ratio, strict=True))
        keys.append((kinds.pair, rates_and_ratios, tuple(kinds.times)))
    return _remembered_epsilon(delta, *keys)


@lru_cache(maxsize=1024)
def _remembered_epsilon(delta: float, *keys: _Key) -> float:
    """Return `composed_epsilon` of distinct kinds of rounds; results are cached.

    Each run of a plan, budgets and reports ask for the same epsilon again.
    """
    distinct = []
    for pair, rates_and_ratios, times in keys:
        columns = np.array(rates_and_ratios)
        distinct.append(RoundKinds(pair, columns[:, 0], columns[:, 1], np.array(times)))
    return _epsilon_of_distinct(delta, distinct)


def _epsilon_of_distinct(delta: float, distinct: Sequence[RoundKinds]) -> float:
    """Return `composed_epsilon` of kinds of rounds that differ and that all occur."""
    merged = merge(distinct)
    total_rounds = sum(float(np.sum(group.times)) for group in merged)
    if total_rounds == 1:
        return _epsilon_of_one_round(merged[0], delta)
    best = inf
    for scale in _INTERVAL_FACTORS:
        epsilon = _epsilon_on_grid(merged, delta, scale)
        gains_little = epsilon >= (1 - _MIN_GAIN) * best
        best = min(best, epsilon)
        if gains_little and best < inf:
            break
    return best


def _epsilon_of_one_round(merged: Merged, delta: float) -> float:
    """Return the epsilon of a single round, exact up to rounding.

    It is the least loss at which the profile is at most `delta` in each direction. The search
    repeatedly narrows the bracket from `low` to `high` to one of 64 parts.
    """
    rate = float(merged.rate[0])
    noise_ratio = float(merged.noise_ratio[0])
    deviations = sqrt(2 * log(2 / delta))
    low = 0.0
    high = float(merged.pair.largest(merged.rate, merged.noise_ratio, deviations)[0])
    for _ in range(_NARROWINGS):
        losses = np.linspace(low, high, _BRACKET_PARTS + 1)
        profiles = merged.pair.profiles(rate, noise_ratio, losses, _TAIL_SHARE * delta)
        is_within = np.all(
            [profile.values + profile.errors <= delta for profile in profiles], axis=0
        )
        first = int(np.argmax(is_within))
        if not is_within[first]:
            return inf
        low = float(losses[max(0, first - 1)])
        high = float(losses[first])
    return high


def _epsilon_on_grid(merged: Sequence[Merged], delta: float, scale: float) -> float:
    """Return the epsilon on a grid, the larger of both directions between neighbours.

    Parameters
    ----------
    merged
        Nodes and kinds of rounds.
    delta
        In (0, 1).
    scale
        Interval of the grid relative to the usual interval.
    """
    grid, largest_losses = _grid(merged, delta, scale)
    nodes = []  # for each node its loss distributions, one for each direction
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
        # a pair with one profile has the same profile in both directions
        losses = [directions[direction % len(directions)] for directions in nodes]
        epsilons.append(_epsilon_of_losses(losses, mixtures, delta, grid.interval))
    return max(epsilons)


def _distinct(rounds: RoundKinds) -> RoundKinds:
    """Return each kind of round once, with the sum of its counts; omit kinds without rounds."""
    occurs = rounds.times > 0
    kinds = np.column_stack([rounds.rate, rounds.noise_ratio])[occurs]
    distinct, numbers = np.unique(kinds, axis=0, return_inverse=True)
    counts = np.bincount(numbers.reshape(-1), weights=rounds.times[occurs]).astype(np.float64)
    return RoundKinds(rounds.pair, distinct[:, 0], distinct[:, 1], counts)


def _grid(merged: Sequence[Merged], delta: float, scale: float) -> tuple[Grid, list[Floats]]:
    """Return the grid of losses, and the largest loss to represent for each node.

    The grid is fine enough to add little variance, and coarse enough for the transform. All larger
    losses together have a mass of at most about ``_TAIL_SHARE * delta``.

    Parameters
    ----------
    merged
        Kinds of rounds.
    delta
        Delta of the composition.
    scale
        Interval relative to the usual interval.

    Returns
    -------
    The grid, and for each element of `merged` the largest losses, shape (nodes,).
    """
    times = np.concatenate([group.times for group in merged])
    total = float(np.sum(times))
    log_tail = log(total / _TAIL_SHARE) - log(delta)
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
    coarse = _interval_adding(_COARSE_VARIANCE_SHARE * deviation**2, spread, times, width)
    fine = _interval_adding(_FINE_VARIANCE_SHARE * deviation**2, spread, times, width)
    interval = scale * max(fine, min(coarse, width / points), width / _MAX_GRID_POINTS)
    # a pure law may have an atom at its largest loss, as Laplace noise: it should lie on the grid
    atoms = [
        float(np.max(losses))
        for losses, group in zip(largest_losses, merged, strict=True)
        if group.pair.law.is_pure
    ]
    if atoms and max(atoms) > interval:
        atom = max(atoms)
        interval = atom / ceil(atom / interval)
    return Grid(interval, _TAIL_SHARE * delta / total), largest_losses


def _interval_adding(variance: float, spread: Floats, times: Floats, interval: float) -> float:
    """Return an interval of the grid, at most `interval`, whose rounding adds at most `variance`.

    A loss between two points of the grid, a share f of the interval h above the lower point, is
    rounded to one of both at random. That adds a variance of ``f (1 - f) h^2``, on average over f
    ``h^2 / 6``. Where the grid is coarser than the loss, it adds at most about ``h spread``.

    Parameters
    ----------
    variance
        Variance that the rounding of all rounds together may add.
    spread
        Standard deviation of the loss of each node, shape (nodes,).
    times
        Number of rounds of each node, shape (nodes,).
    interval
        Interval at which the search starts.
    """
    for _ in range(60):
        added = float(np.sum(times * np.minimum(interval**2 / 6, interval * spread)))
        if added <= variance:
            break
        interval *= max(0.5, variance / added)
    return interval


def _epsilon_of_losses(
    losses: Sequence[LossDistribution], mixtures: Mixtures, delta: float, interval: float
) -> float:
    """Return the least epsilon that a Rényi order or a tilted composition proves, at least 0.

    Parameters
    ----------
    losses
        Loss distribution of each node in one direction.
    mixtures
        Kinds of rounds as mixtures of the nodes.
    delta
        In (0, 1).
    interval
        Interval of the grid.
    """
    finite_delta = delta * (1 - 1e-9) - _infinite_mass(losses, mixtures)  # 1e-9 for rounding
    if finite_delta <= 0:
        return inf
    moments = moments_of(losses, mixtures, finite_delta, interval)
    best = float(np.min(epsilon_by_order(moments, finite_delta)))
    # The best tilt is the Chernoff order at the true epsilon. There are two guesses of epsilon: the
    # epsilon of the best order (if many small losses add up to it), and the largest single loss
    # (if one round decides). Each tilted composition gives a better guess.
    single_loss = _largest_single_loss(losses, mixtures, finite_delta) * interval
    candidates = [moments.chernoff_order(best), moments.chernoff_order(single_loss)]
    tried: set[int] = set()
    while candidates and best > 0 and len(tried) < _MAX_TILTS:
        tilt = candidates.pop()
        if tilt in tried:
            continue
        tried.add(tilt)
        epsilon, estimate = _epsilon_by_tilt(
            losses, mixtures, moments, tilt, finite_delta, interval
        )
        best = min(best, epsilon)
        if estimate < 0.999 * best:  # rounding decided: the tilt for the estimate may prove less
            candidates.append(moments.chernoff_order(estimate))
    return max(0.0, best)


def _infinite_mass(losses: Sequence[LossDistribution], mixtures: Mixtures) -> float:
    """Return the probability that the loss of at least one round is infinite.

    Masses may add up to a little more than 1, as bounds of rounding are added to them.
    """
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
    """Return the largest index on the grid that a single round's loss exceeds about at `delta`.

    By the union bound over rounds: the expected number of rounds above the index is about `delta`.
    """
    node_counts = np.zeros(len(losses))  # expected number of rounds of each node
    np.add.at(node_counts, mixtures.nodes, mixtures.weights * mixtures.times[:, None])
    largest = 0
    for loss, node_count in zip(losses, node_counts, strict=True):
        tails = np.cumsum(loss.masses[::-1])[::-1]
        likely_losses = int(np.count_nonzero(tails * node_count > delta))
        largest = max(largest, loss.first + likely_losses)
    return largest


def _epsilon_by_tilt(
    losses: Sequence[LossDistribution],
    mixtures: Mixtures,
    moments: Moments,
    tilt: int,
    delta: float,
    interval: float,
) -> tuple[float, float]:
    """Return epsilon by the composition of distributions that are tilted by one order.

    Epsilon is infinite if the window has more than ``2 * _MAX_GRID_POINTS`` points.

    Parameters
    ----------
    losses, mixtures
        The losses of the nodes, and the kinds of rounds.
    moments
        Cumulants of the losses.
    tilt
        Index of the order in `moments`.
    delta
        Delta minus the mass of infinite losses.
    interval
        Interval of the grid.

    Returns
    -------
    An upper bound of epsilon, and an estimate that leaves out the bound of rounding.
    """
    theta = float(moments.orders[tilt]) * interval
    window = _window(losses, mixtures, moments, tilt, delta, interval)
    if window.size > 2 * _MAX_GRID_POINTS:
        return inf, inf
    tilted = [
        tilt_and_fold(loss, theta, float(moments.nodes[node, tilt]), window.size)
        for node, loss in enumerate(losses)
    ]
    masses, rounding = convolved(tilted, mixtures.tilted(moments.nodes[:, tilt]), window.size)
    lowest = window.top - window.size + 1
    masses = np.roll(np.maximum(masses, 0), -(lowest % window.size))
    cumulant = float(moments.total[tilt])
    window_delta = delta - window.tail
    epsilon = _epsilon_of_masses(masses + rounding, lowest, theta, cumulant, window_delta, interval)
    unrounded = _epsilon_of_masses(masses, lowest, theta, cumulant, window_delta, interval)
    return epsilon, unrounded


class _Window(NamedTuple):
    """Range of losses of the composition that a transform covers.

    Attributes
    ----------
    top
        Index of the largest loss on the grid.
    size
        Number of losses.
    tail
        Upper bound on the probability of losses above `top`, which count as infinite.
    """

    top: int
    size: int
    tail: float


def _window(
    losses: Sequence[LossDistribution],
    mixtures: Mixtures,
    moments: Moments,
    tilt: int,
    delta: float,
    interval: float,
) -> _Window:
    """Return the window of the composition at a tilt.

    By Chernoff's bound ``P(loss > x) <= exp(K(theta) - theta x)``. The top of the window is the
    least x at which some order bounds this probability by ``exp(-_LOG_MARGIN) delta``.

    The transform is circular: mass outside the window is wrapped around into it. That can only
    raise epsilon. The window is so long that the wrapped-around tilted mass is small: below
    ``exp(-_LOG_MARGIN)`` on either side, by Chernoff's bound for the tilted loss.

    Parameters are those of `_epsilon_by_tilt`.
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
    tail = 0.0
    if top != last:
        tail = delta * exp(-_LOG_MARGIN)
    reach = max(top, highest) - lowest + 2
    if reach > 2 * _MAX_GRID_POINTS:
        size = int(min(reach, 2**62))
    else:
        size = scipy.fft.next_fast_len(int(reach), real=True)
    return _Window(top, size, tail)


def tilt_and_fold(
    loss: LossDistribution, theta: float, log_moment: float, size: int
) -> tuple[Floats, float]:
    """Return tilted masses, folded modulo `size`, and a bound of their rounding.

    The tilted mass at an index x of the grid is ``mass exp(theta x) / moment``. Folding adds it to
    the element ``x % size``.

    Parameters
    ----------
    loss
        Loss distribution of a node.
    theta
        Tilt per interval of the grid.
    log_moment
        Logarithm of the moment, the sum of all ``mass exp(theta x)``.
    size
        Length of the transform.

    Returns
    -------
    Folded masses, shape (size,), and the bound of the rounding relative to their sum of 1.
    """
    indices = np.arange(loss.first, loss.last + 1)
    exponents = theta * indices - log_moment
    with np.errstate(under="ignore", divide="ignore"):
        tilted = np.exp(exponents + np.log(loss.masses))
    # log2(size) levels of the fast Fourier transform, and 4 operations before it
    levels = log(size) / log(2) + 4
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
    """Return the masses of the composition modulo `size`, and a bound of the rounding of a mass.

    The transform of a sum of independent losses is the product of their transforms. A transform of
    masses that sum to 1 is off by at most a few `UNIT` for each of its levels. The relative error
    of a product is at most about the sum of the relative errors of its factors.

    Parameters
    ----------
    tilted
        Masses of each node and their rounding, from `tilt_and_fold`.
    mixtures
        Kinds of rounds as mixtures of nodes.
    size
        Length of the transform.
    """
    active = size // 2 + 1  # number of lowest frequencies whose product is not negligible yet
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
        has_vanished = magnitudes < _NEGLIGIBLE_MAGNITUDE ** (1 / times)
        product *= _power(np.where(has_vanished, 0, spectrum), times)
        if kind % 8 == 7:  # now and then, drop high frequencies, whose products vanish first
            remains = np.abs(product) >= _NEGLIGIBLE_MAGNITUDE
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
    rounding = total_error / size + _NEGLIGIBLE_MAGNITUDE**0.5
    return scipy.fft.irfft(product, size), rounding


def _last_uses(mixtures: Mixtures) -> dict[int, int]:
    """Return for each node the number of the last kind of round that uses its transform."""
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


def _epsilon_of_masses(
    masses: Floats, lowest: int, theta: float, cumulant: float, delta: float, interval: float
) -> float:
    """Return the smallest epsilon at which the hockey-stick profile is at most `delta`.

    The profile is that of the distribution before the tilt. The tilt is undone relative to the mean
    positive loss, so that no exponential overflows: at the lower end of the window, masses that are
    wrapped around may be large.

    Parameters
    ----------
    masses
        Tilted masses at the losses ``lowest * interval``, ``(lowest + 1) * interval`` and so on.
    lowest
        Index of the smallest loss.
    theta
        Tilt per interval of the grid.
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
        skipped = max(0, ceil(middle - _MAX_EXPONENT / theta))
    masses = masses[skipped:]
    lowest += skipped
    middle -= skipped
    if not masses.any():
        return float(lowest) * interval
    with np.errstate(under="ignore"):
        scaled = masses * np.exp(-theta * (indices[: masses.size] - middle))
    log_allowed = log(delta) - cumulant + theta * (lowest + middle)
    if log_allowed < -_MAX_EXPONENT:
        return inf
    tails, damped_tails = _profile_terms(scaled, float(np.exp(-interval)))
    allowed = float(np.exp(min(log_allowed, 700)))
    exceeding = np.flatnonzero(tails - damped_tails > allowed)
    if exceeding.size == 0:  # below the window the profile is unknown: no smaller epsilon is proved
        return float(lowest) * interval
    # up to the next point, the profile at a distance s is tails[last] - exp(s) damped_tails[last]
    last = int(exceeding[-1])
    excess = inf
    if damped_tails[last] > 0:
        excess = (tails[last] - allowed) / damped_tails[last]
    step = 0.0
    if excess > 0:
        step = min(log(excess), interval)
    return float(lowest + last) * interval + max(0.0, step)


def _profile_terms(masses: Floats, damping: float) -> tuple[Floats, Floats]:
    """Return the two terms whose difference is the hockey-stick profile at each grid point.

    The first is the mass beyond the point. The second is the sum of these masses times
    ``exp(point - loss)``. `damping` is ``exp(-interval)``.
    """
    backwards = masses[::-1]
    tails = np.append(np.cumsum(backwards)[-2::-1], 0.0)
    # sums[i] - damping * sums[i - 1] = damping * backwards[i - 1], by a solver for two diagonals
    diagonals = np.full((2, backwards.size), -damping, order="F")
    arriving = damping * np.append(0.0, backwards[:-1])
    sums = scipy.linalg.blas.dtbsv(1, diagonals, arriving, lower=1, diag=1)
    return tails, sums[::-1]
