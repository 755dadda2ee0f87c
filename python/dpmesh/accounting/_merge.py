"""Many kinds of rounds as mixtures of few, which dominate them.

The profile of a pair at each loss is convex in its law's coordinate of the noise ratio, and in
the sampling rate (hockey-stick divergences are jointly convex, and both sides of a pair are linear
in the rate). So a round between two others is dominated by a coin that decides, in public, between
those two with the weights of linear interpolation; in both arguments, between four. The excess
grows with the square of their distance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import NamedTuple

import numpy as np

from dpmesh._ragged import Indices
from dpmesh.accounting._arguments import Floats
from dpmesh.accounting._loss import LossDistribution
from dpmesh.accounting._pairs import DominatingPair

_FEW = 96  # with so many kinds, each has a distribution of its own
_ADDED = (0.01, 0.03)  # what merging may add to a round's variance, tried in turn
_LARGE = 0.01  # rounds with a larger share of the variance stand for themselves
_WORTH = 0.3  # merging must leave at most this share of the distributions
_FINE = 1000  # points at which the variance of rounds is compared


class RoundKinds(NamedTuple):
    """Kinds of rounds of one dominating pair.

    `rate`, `noise_ratio` and `times` have the shape (kinds,): the sampling rate, the noise ratio
    and the number of rounds of each kind.
    """

    pair: DominatingPair
    rate: Floats
    noise_ratio: Floats
    times: Floats


@dataclass(frozen=True, kw_only=True)
class Mixtures:
    """Kinds of rounds, each a mixture of a few nodes: points of a grid of rates and noise ratios.

    Parameters
    ----------
    nodes
        Indices of a kind's points in the grid, shape (kinds, corners).
    weights
        Weights of these points, which sum to 1; 0 for corners that are not used. Shape (kinds,
        corners).
    times
        Number of rounds of each kind, shape (kinds,).
    """

    nodes: Indices
    weights: Floats
    times: Floats

    @classmethod
    def joined(cls, parts: Sequence[Mixtures]) -> Mixtures:
        """Return the mixtures of several groups, whose nodes follow each other."""
        corners = max(part.nodes.shape[1] for part in parts)
        nodes = []
        weights = []
        offset = 0
        for part in parts:
            missing = ((0, 0), (0, corners - part.nodes.shape[1]))
            nodes.append(np.pad(part.nodes, missing, mode="edge") + offset)
            weights.append(np.pad(part.weights, missing))
            offset += int(part.nodes.max()) + 1
        times = np.concatenate([part.times for part in parts])
        return cls(nodes=np.concatenate(nodes), weights=np.concatenate(weights), times=times)

    def of(self, values: Floats) -> Floats:
        """Return the mean of nodes' values for each kind."""
        mean: Floats = np.sum(self.weights * values[self.nodes], axis=1)
        return mean

    def log_of(self, logs: Floats) -> Floats:
        """Return the logarithm of the mean of exponentials, for each kind and column."""
        with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
            terms = logs[self.nodes] + np.log(self.weights)[:, :, None]
            top = np.max(terms, axis=1, keepdims=True)
            scaled_sum = np.sum(np.exp(terms - top), axis=1)
            log_mean: Floats = top[:, 0] + np.log(scaled_sum)
        return log_mean

    def tilted(self, log_moments: Floats) -> Mixtures:
        """Return the mixtures of tilted nodes, whose moments these are the logarithms of."""
        with np.errstate(divide="ignore", under="ignore"):
            logs = np.log(self.weights) + log_moments[self.nodes]
            weights = np.exp(logs - self.log_of(log_moments[:, None]))
        return Mixtures(nodes=self.nodes, weights=weights, times=self.times)

    def extremes(self, losses: Sequence[LossDistribution]) -> tuple[int, int]:
        """Return the largest and the smallest index of the sum of all losses."""
        last = np.array([loss.last for loss in losses])[self.nodes].max(axis=1)
        first = np.array([loss.first for loss in losses])[self.nodes].min(axis=1)
        counts = [int(count) for count in self.times]
        largest = sum(count * int(index) for count, index in zip(counts, last, strict=True))
        smallest = sum(count * int(index) for count, index in zip(counts, first, strict=True))
        return largest, smallest

    def kinds(self) -> Iterator[tuple[list[int], list[float], int]]:
        """Yield the nodes, weights and count of each kind, without unused corners."""
        for nodes, weights, times in zip(self.nodes, self.weights, self.times, strict=True):
            is_used = weights > 0
            yield nodes[is_used].tolist(), weights[is_used].tolist(), int(times)


class Merged(NamedTuple):
    """Nodes of one pair, and the kinds of rounds that are mixtures of them."""

    pair: DominatingPair
    rate: Floats
    noise_ratio: Floats
    times: Floats
    """Number of rounds of each node, on average."""
    mixtures: Mixtures


def merge(rounds: Sequence[RoundKinds]) -> list[Merged]:
    """Replace many kinds of rounds by mixtures of few nodes; leave few kinds as they are."""
    kinds = sum(group.times.size for group in rounds)
    if kinds <= _FEW:
        return [_unmerged(group) for group in rounds]
    return [_merged(group) for group in rounds]


def _unmerged(rounds: RoundKinds) -> Merged:
    """Return the rounds as nodes, each of which is a kind by itself."""
    nodes: Indices = np.arange(rounds.times.size, dtype=np.int64)[:, None]
    mixtures = Mixtures(nodes=nodes, weights=np.ones(nodes.shape), times=rounds.times)
    return Merged(*rounds, mixtures)


def _merged(rounds: RoundKinds) -> Merged:
    """Merge by the finest mesh that leaves few enough nodes."""
    for added in _ADDED:
        merged = _between(rounds, added)
        if merged.rate.size <= _WORTH * rounds.times.size:
            return merged
    return _unmerged(rounds)


def _between(rounds: RoundKinds, added: float) -> Merged:
    """Return mixtures of the corners of a mesh of rates and noise ratios.

    Rounds with a large share of the variance stand for themselves, in their first corner.
    """
    pair, rate, noise_ratio, times = rounds
    variance = times * pair.spread(rate, noise_ratio) ** 2
    is_small = variance <= _LARGE * np.sum(variance)
    if pair.coordinate is None or not is_small.any():
        return _unmerged(rounds)
    rates = _rates(rate[is_small], added)
    noise_ratios = _noise_ratios(pair, float(np.median(rate)), noise_ratio[is_small], added)
    i, low = _cells(rates, rate)
    j, lower = _cells(pair.coordinate(noise_ratios), pair.coordinate(noise_ratio))
    weights = np.stack(
        [low * lower, low * (1 - lower), (1 - low) * lower, (1 - low) * (1 - lower)], 1
    )
    corner_rates = np.append(rates, rates[-1])[np.stack([i, i, i + 1, i + 1], 1)]
    corner_noise = np.append(noise_ratios, 0)[np.stack([j, j + 1, j, j + 1], 1)]
    settings = np.stack([corner_rates, corner_noise], axis=2)
    exact_settings = np.stack([rate, noise_ratio], axis=1)[:, None]
    weights = np.where(is_small[:, None], weights, [1.0, 0.0, 0.0, 0.0])
    settings = np.where(is_small[:, None, None], settings, exact_settings)
    is_used = weights > 0
    nodes, node_numbers = np.unique(settings[is_used], axis=0, return_inverse=True)
    indices = np.zeros(weights.shape, dtype=np.int64)
    indices[is_used] = node_numbers.reshape(-1)
    indices = np.where(is_used, indices, indices.max(axis=1, keepdims=True))
    used_times = (weights * times[:, None])[is_used]
    node_times: Floats = np.bincount(indices[is_used], weights=used_times).astype(np.float64)
    mixtures = Mixtures(nodes=indices, weights=weights, times=times)
    return Merged(pair, nodes[:, 0], nodes[:, 1], node_times, mixtures)


def _rates(rates: Floats, added: float) -> Floats:
    """Return rates of which mixtures add so much variance, which grows with their squares."""
    lowest = float(rates.min())
    highest = float(rates.max())
    if lowest == highest:
        return np.array([lowest])
    log_step = np.log1p(2 * sqrt(added) + 2 * added)
    steps = ceil(np.log(highest / lowest) / log_step)
    points = np.geomspace(lowest, highest, steps + 1)
    points[0] = lowest
    points[-1] = highest
    return points


def _noise_ratios(pair: DominatingPair, rate: float, noise_ratios: Floats, added: float) -> Floats:
    """Return noise ratios of which mixtures add so much variance.

    The error of linear interpolation is an eighth of the second derivative times the square of
    the distance: points lie at equal distances where that is constant.
    """
    lowest = float(noise_ratios.min())
    highest = float(noise_ratios.max())
    if lowest == highest or pair.coordinate is None:
        return np.unique(noise_ratios)
    fine = np.geomspace(lowest, highest, _FINE)
    variance = pair.spread(np.full(_FINE, rate), fine) ** 2
    coordinate = pair.coordinate(fine)
    with np.errstate(all="ignore"):
        curvature = np.gradient(np.gradient(variance, coordinate), coordinate)
        density = np.sqrt(np.abs(curvature) / (8 * added * variance))
    density = np.where(np.isfinite(density), density, 0.0)
    steps = (density[1:] + density[:-1]) / 2 * np.diff(coordinate)
    distance = np.concatenate([[0.0], np.cumsum(steps)])
    if distance[-1] <= 0:
        return np.array([lowest, highest])
    equidistant = np.linspace(0, distance[-1], ceil(distance[-1]) + 1)
    points = np.interp(equidistant, distance, fine)
    points[0] = lowest
    points[-1] = highest
    return np.unique(points)


def _cells(points: Floats, values: Floats) -> tuple[Indices, Floats]:
    """Return the last point at or below each value, and its weight beside the next one."""
    if points.size == 1:
        return np.zeros(values.size, dtype=np.int64), np.ones(values.size)
    below = np.searchsorted(points, values, side="right") - 1
    below = np.clip(below, 0, points.size - 2)
    share = (points[below + 1] - values) / (points[below + 1] - points[below])
    return below, np.clip(share, 0, 1)
