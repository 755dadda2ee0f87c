"""Many kinds of rounds, replaced by mixtures of a few kinds that dominate them.

The composer (`_compose`) needs a Fourier transform for each distinct kind of round. `merge` keeps
their number small. docs/privacy/accounting.md ("Merging") has the argument in short.

**Words.** A *kind* of round is a sampling rate q and a noise ratio s. A *node* is a kind with a
loss distribution of its own. A *mesh* is a grid of rates and noise ratios, whose points are nodes;
a *cell* is a rectangle of the mesh. The *profile* at a loss e is the hockey-stick divergence H_e of
a round's dominating pair.

**Why a mixture dominates.**

1. H_e is jointly convex, and both distributions of a pair are linear in q. So the profile is convex
   in q at each loss.
2. It is convex in a function of s, the *coordinate* (`Law.coordinate`; s^2 for Gaussian noise),
   from the noise ratio `Law.merged_from` on.
3. A convex function lies below its chords. So a round between two nodes is dominated by a public
   coin that decides between them, with the weights of linear interpolation: the profile of the coin
   and the round that it chooses is the weighted mean of the nodes' profiles.
4. For a round inside a cell, apply 3 in q and then in the coordinate: the coin decides between the
   four corners, by bilinear interpolation.

The excess of the mixture's variance grows with the square of the cell's sides, which `_mesh_rates`
and `_mesh_noise_ratios` choose accordingly.

**Not merged** are up to 96 kinds of rounds; pairs whose profiles are not known to be convex
(`DominatingPair.has_convex_profiles`); noise ratios below `Law.merged_from`; and kinds with a large
share of the variance of all rounds.
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

_MOST_UNMERGED = 96
"""Up to this number, kinds of rounds are not merged: each has a loss distribution of its own."""

_EXCESSES = (0.01, 0.03)
"""Shares by which each side of a cell may raise the variance of a round's loss, tried in turn."""

_LARGE_SHARE = 0.01
"""Kinds with a larger share of the variance of all rounds are not merged."""

_MOST_NODES = 0.3
"""Merging is used where it leaves at most this share of the kinds as nodes."""

_CURVATURE_POINTS = 1000
"""Noise ratios at which the curvature of the variance is computed."""


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
    """Kinds of rounds, each a mixture of a few nodes.

    Nodes are numbered from 0, and each number up to the largest is used. All kinds have the same
    number of corners, some of which may be unused.

    Parameters
    ----------
    nodes
        Numbers of the nodes at a kind's corners, shape (kinds, corners).
    weights
        Probabilities of the corners, which sum to 1 for each kind; 0 for unused corners. Shape
        (kinds, corners).
    times
        Number of rounds of each kind, shape (kinds,).
    """

    nodes: Indices
    weights: Floats
    times: Floats

    @classmethod
    def joined(cls, parts: Sequence[Mixtures]) -> Mixtures:
        """Return the kinds of all parts, whose nodes are numbered one part after the other."""
        corners = max(part.nodes.shape[1] for part in parts)
        nodes = []
        weights = []
        first_node = 0
        for part in parts:
            unused_corners = ((0, 0), (0, corners - part.nodes.shape[1]))
            nodes.append(np.pad(part.nodes, unused_corners, mode="edge") + first_node)
            weights.append(np.pad(part.weights, unused_corners))
            first_node += int(part.nodes.max()) + 1
        times = np.concatenate([part.times for part in parts])
        return cls(nodes=np.concatenate(nodes), weights=np.concatenate(weights), times=times)

    def mean(self, values: Floats) -> Floats:
        """Return the mean of the nodes' values for each kind, shape (kinds,).

        `values` has the shape (nodes,).
        """
        means: Floats = np.sum(self.weights * values[self.nodes], axis=1)
        return means

    def log_mean(self, logs: Floats) -> Floats:
        """Return the logarithm of the mean of exponentials for each kind, shape (kinds, columns).

        `logs` has the shape (nodes, columns).
        """
        with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
            terms = logs[self.nodes] + np.log(self.weights)[:, :, None]  # (kinds, corners, columns)
            largest = np.max(terms, axis=1, keepdims=True)  # taken out, so that nothing overflows
            scaled_sum = np.sum(np.exp(terms - largest), axis=1)
            log_means: Floats = largest[:, 0] + np.log(scaled_sum)
        return log_means

    def tilted(self, log_moments: Floats) -> Mixtures:
        """Return the mixtures that are proportional to ``exp(theta loss)`` times these.

        Tilting multiplies a node of moment ``M = E exp(theta loss)`` by M before it is normalised,
        so that the weight of a corner becomes ``weight M / (sum of weight M over all corners)``.

        `log_moments` holds log M of each node, shape (nodes,).
        """
        with np.errstate(divide="ignore", under="ignore"):
            logs = np.log(self.weights) + log_moments[self.nodes]
            weights = np.exp(logs - self.log_mean(log_moments[:, None]))
        return Mixtures(nodes=self.nodes, weights=weights, times=self.times)

    def extremes(self, losses: Sequence[LossDistribution]) -> tuple[int, int]:
        """Return the largest and the smallest index on the grid of the sum of all rounds' losses.

        `losses` holds the distribution of each node.
        """
        last = np.array([loss.last for loss in losses])[self.nodes].max(axis=1)
        first = np.array([loss.first for loss in losses])[self.nodes].min(axis=1)
        counts = [int(count) for count in self.times]  # Python's integers do not overflow
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
    """Sampling rate of each node, shape (nodes,)."""
    noise_ratio: Floats
    """Noise ratio of each node, shape (nodes,)."""
    times: Floats
    """Number of rounds of each node on average, shape (nodes,)."""
    mixtures: Mixtures


def merge(rounds: Sequence[RoundKinds]) -> list[Merged]:
    """Replace many kinds of rounds by mixtures of few nodes; leave few kinds as they are."""
    kinds = sum(group.times.size for group in rounds)
    if kinds <= _MOST_UNMERGED:
        return [_unmerged(group) for group in rounds]
    return [_merged(group) for group in rounds]


def _unmerged(rounds: RoundKinds) -> Merged:
    """Return the rounds as nodes, each of which is a kind by itself."""
    nodes: Indices = np.arange(rounds.times.size, dtype=np.int64)[:, None]
    mixtures = Mixtures(nodes=nodes, weights=np.ones(nodes.shape), times=rounds.times)
    return Merged(*rounds, mixtures)


def _merged(rounds: RoundKinds) -> Merged:
    """Merge by the finest mesh that leaves few enough nodes."""
    for excess in _EXCESSES:
        merged = _merged_by_mesh(rounds, excess)
        if merged.rate.size <= _MOST_NODES * rounds.times.size:
            return merged
    return _unmerged(rounds)


def _merged_by_mesh(rounds: RoundKinds, excess: float) -> Merged:
    """Return mixtures of the corners of a mesh of rates and noise ratios.

    Each side of a cell raises a round's variance by a share of at most about `excess`. Kinds with a
    large share of the variance are not merged, nor are those with noise ratios below
    `Law.merged_from`: each has a node of its own.
    """
    pair, rate, noise_ratio, times = rounds
    variance = times * pair.spread(rate, noise_ratio) ** 2
    is_small = variance <= _LARGE_SHARE * np.sum(variance)
    is_merged = is_small & (noise_ratio >= pair.law.merged_from)
    if pair.coordinate is None or not is_merged.any():
        return _unmerged(rounds)
    mesh_rates = _mesh_rates(rate[is_merged], excess)
    typical_rate = float(np.median(rate))
    mesh_noise = _mesh_noise_ratios(pair, typical_rate, noise_ratio[is_merged], excess)
    rate_cell, low_rate_weight = _cells(mesh_rates, rate)
    noise_cell, low_noise_weight = _cells(pair.coordinate(mesh_noise), pair.coordinate(noise_ratio))
    corners = _corners_of_cells(mesh_rates, rate_cell, mesh_noise, noise_cell)
    weights = _bilinear_weights(low_rate_weight, low_noise_weight)

    # a kind that is not merged has itself as its only corner
    itself = np.stack([rate, noise_ratio], axis=1)[:, None]  # (kinds, 1, 2)
    weights = np.where(is_merged[:, None], weights, [1.0, 0.0, 0.0, 0.0])
    corners = np.where(is_merged[:, None, None], corners, itself)
    return _with_distinct_nodes(pair, corners, weights, times)


def _corners_of_cells(
    mesh_rates: Floats, rate_cell: Indices, mesh_noise: Floats, noise_cell: Indices
) -> Floats:
    """Return the rate and the noise ratio of the four corners of cells, shape (kinds, 4, 2).

    Their order is: both low, low rate and high noise, high rate and low noise, both high.

    Parameters
    ----------
    mesh_rates, mesh_noise
        Points of the mesh, ascending.
    rate_cell, noise_cell
        Index of the cell's low end in each, shape (kinds,).
    """
    rate_numbers = np.stack([rate_cell, rate_cell, rate_cell + 1, rate_cell + 1], axis=1)
    noise_numbers = np.stack([noise_cell, noise_cell + 1, noise_cell, noise_cell + 1], axis=1)
    # a mesh of one point has no next one: what is appended has weight 0
    corner_rates = np.append(mesh_rates, mesh_rates[-1])[rate_numbers]
    corner_noise = np.append(mesh_noise, 0)[noise_numbers]
    return np.stack([corner_rates, corner_noise], axis=2)


def _bilinear_weights(low_rate: Floats, low_noise: Floats) -> Floats:
    """Return the weights of the corners of `_corners_of_cells`, shape (kinds, 4).

    `low_rate` and `low_noise` are the weights of the cell's low ends, shape (kinds,).
    """
    high_rate = 1 - low_rate
    high_noise = 1 - low_noise
    return np.stack(
        [
            low_rate * low_noise,
            low_rate * high_noise,
            high_rate * low_noise,
            high_rate * high_noise,
        ],
        axis=1,
    )


def _with_distinct_nodes(
    pair: DominatingPair, corners: Floats, weights: Floats, times: Floats
) -> Merged:
    """Return mixtures in which equal corners are one node.

    Parameters
    ----------
    pair
        The dominating pair of all rounds.
    corners
        Rate and noise ratio of each kind's corners, shape (kinds, corners, 2).
    weights
        Weights of the corners, shape (kinds, corners).
    times
        Number of rounds of each kind, shape (kinds,).
    """
    is_used = weights > 0
    nodes, node_numbers = np.unique(corners[is_used], axis=0, return_inverse=True)  # (nodes, 2)
    node_of_corner = np.zeros(weights.shape, dtype=np.int64)
    node_of_corner[is_used] = node_numbers.reshape(-1)
    # an unused corner names a node that its kind uses anyway
    used_node = node_of_corner.max(axis=1, keepdims=True)
    node_of_corner = np.where(is_used, node_of_corner, used_node)
    corner_times = (weights * times[:, None])[is_used]
    node_times = np.bincount(node_of_corner[is_used], weights=corner_times).astype(np.float64)
    mixtures = Mixtures(nodes=node_of_corner, weights=weights, times=times)
    return Merged(pair, nodes[:, 0], nodes[:, 1], node_times, mixtures)


def _mesh_rates(rates: Floats, excess: float) -> Floats:
    """Return ascending rates between which mixtures raise the variance by at most `excess`.

    The variance grows about with the square of the rate. A chord of the square between the rates a
    and b = r a exceeds it by ``(q - a) (b - q)``. Relative to ``q^2`` that is at most ``(r - 1)^2 /
    (4 r)``, where q is the harmonic mean of a and b. It is below `excess` for ``r = 1 + 2
    sqrt(excess) + 2 excess``.
    """
    lowest = float(rates.min())
    highest = float(rates.max())
    if lowest == highest:
        return np.array([lowest])
    log_step = np.log1p(2 * sqrt(excess) + 2 * excess)
    steps = ceil(np.log(highest / lowest) / log_step)
    points = np.geomspace(lowest, highest, steps + 1)
    points[0] = lowest
    points[-1] = highest
    return points


def _mesh_noise_ratios(
    pair: DominatingPair, rate: float, noise_ratios: Floats, excess: float
) -> Floats:
    """Return ascending noise ratios between which mixtures raise the variance by about `excess`.

    Let v be the variance as a function of the pair's coordinate. A chord between points at a
    distance h exceeds it by at most ``h^2 abs(v'') / 8``. That is `excess` times v for ``h = sqrt(8
    excess v / abs(v''))``: points have the density 1 / h in the coordinate.
    """
    lowest = float(noise_ratios.min())
    highest = float(noise_ratios.max())
    if lowest == highest or pair.coordinate is None:
        return np.unique(noise_ratios)
    fine = np.geomspace(lowest, highest, _CURVATURE_POINTS)
    variance = pair.spread(np.full(_CURVATURE_POINTS, rate), fine) ** 2
    coordinate = pair.coordinate(fine)
    with np.errstate(all="ignore"):
        slope = np.gradient(variance, coordinate)
        curvature = np.gradient(slope, coordinate)
        density = np.sqrt(np.abs(curvature) / (8 * excess * variance))
    density = np.where(np.isfinite(density), density, 0.0)
    # the integral of the density up to each fine point, by the trapezoidal rule: points below it
    mean_density = (density[1:] + density[:-1]) / 2
    points_below = np.concatenate([[0.0], np.cumsum(mean_density * np.diff(coordinate))])
    if points_below[-1] <= 0:
        return np.array([lowest, highest])
    evenly_spaced = np.linspace(0, points_below[-1], ceil(points_below[-1]) + 1)
    points = np.interp(evenly_spaced, points_below, fine)
    points[0] = lowest
    points[-1] = highest
    return np.unique(points)


def _cells(points: Floats, values: Floats) -> tuple[Indices, Floats]:
    """Return the cell of each value in ascending points, and its weight on the cell's low end.

    Cell i lies between points i and i + 1. The weights are those of linear interpolation. Values
    outside of all points belong to the first or last cell, entirely on its outer end.
    """
    if points.size == 1:
        return np.zeros(values.size, dtype=np.int64), np.ones(values.size)
    cell = np.searchsorted(points, values, side="right") - 1
    cell = np.clip(cell, 0, points.size - 2)
    low_weight = (points[cell + 1] - values) / (points[cell + 1] - points[cell])
    return cell, np.clip(low_weight, 0, 1)
