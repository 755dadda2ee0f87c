"""Hazard ratios, median survival and numbers at risk from the noisy counts of `Survival`.

All are post-processing of the release, and need no further epsilon. A *cell* is one of the counts
of a group, see `dpmesh.statistics.kaplan_meier.Cells`.
"""

from __future__ import annotations

from math import inf, log, sqrt
from typing import NamedTuple

import numpy as np

from dpmesh.statistics.answers import Z
from dpmesh.statistics.bins import Floats
from dpmesh.statistics.kaplan_meier import Cells, Curve

SMALL_HAZARD = 0.02
LARGE_HAZARD = 0.97
"""Smallest and largest share of persons at risk with an event in a bin for which the exact time at
risk is computed. Beyond them it is approximated, since noise would dominate."""

CLEAR = 2 * Z
"""Smallest sum of events of a group for a hazard ratio, in standard deviations of its noise."""

LEAST_DROP = 1e-9
"""Smallest fall of a curve in a bin, by which an interpolation divides."""


class LogRatio(NamedTuple):
    """Logarithm of the hazard ratio of two groups.

    Attributes
    ----------
    estimate
        Estimate for the second group against the first.
    noise, sampling
        Standard deviations due to privacy noise and due to sampling.
    """

    estimate: float
    noise: float
    sampling: float


class Median(NamedTuple):
    """Time by which half of a group had an event, in bins.

    Attributes
    ----------
    estimate
        Median; infinite if the curve does not reach 1/2.
    low, high
        Ends of a 95% interval, which are edges of bins; `high` may be infinite.
    """

    estimate: float
    low: float
    high: float


def exposure(cells: Cells) -> Floats:
    """Return the person-time at risk in each bin, in bins, for constant rates; shape (.., bins).

    If a share h of the persons at risk has the event in a bin at a constant rate, the rate is
    ``-log(1 - h)`` and the mean time at risk is ``h / -log(1 - h)``, about ``1 - h / 2`` for
    small h.
    """
    risk = np.maximum(cells.at_risk, 1.0)
    share = cells.events / risk
    clipped_share = np.clip(share, SMALL_HAZARD, LARGE_HAZARD)
    exact_time = clipped_share / -np.log1p(-clipped_share)
    mean_time = np.where(share > SMALL_HAZARD, exact_time, 1 - share / 2)
    return np.asarray(np.maximum(risk * mean_time, 1.0))


def weighted_events(cells: Cells) -> Floats:
    """Return the Mantel-Haenszel sums of two groups, shape (2,): second group, first group.

    With events d and times at risk T by group and bin, the sums over all bins are
    ``sum of d_2 T_1 / (T_1 + T_2)`` and ``sum of d_1 T_2 / (T_1 + T_2)``. Their ratio estimates the
    ratio of the rates. The sums do not divide by the noisy events of a bin.
    """
    times = exposure(cells)  # shape (2, bins)
    times_of_both = times.sum(axis=0)
    second = (cells.events[1] * times[0] / times_of_both).sum()
    first = (cells.events[0] * times[1] / times_of_both).sum()
    return np.array([second, first])


def log_hazard_ratio(counts: Floats, noise: float) -> LogRatio | None:
    """Return the log hazard ratio of the second group against the first, with its errors.

    The sampling error is by Greenland and Robins (1985). The noise error is first-order, with
    derivatives by all cells from central differences. The result is None if the events of a group
    may be noise alone.

    Parameters
    ----------
    counts
        Noisy cells of two groups, shape (2, 2 bins + 1), in the order of `Cells.of`.
    noise
        Standard deviation of the noise in each cell.
    """
    cells = Cells.of(counts)
    second, first = (float(events) for events in weighted_events(cells))
    slopes = _slopes_of_weighted_events(counts)
    second_slopes = slopes[0]
    first_slopes = slopes[1]
    deviations = noise * np.sqrt(np.square(slopes).sum(axis=(1, 2)))  # noise of both sums
    if second <= CLEAR * deviations[0] or first <= CLEAR * deviations[1]:
        return None
    times = exposure(cells)
    events_of_both = cells.events.sum(axis=0)
    information = float((events_of_both * times[0] * times[1] / times.sum(axis=0) ** 2).sum())
    log_ratio_slopes = second_slopes / second - first_slopes / first
    return LogRatio(
        estimate=log(second / first),
        noise=noise * sqrt(float(np.square(log_ratio_slopes).sum())),
        sampling=sqrt(max(information, 1.0) / (first * second)),
    )


def _slopes_of_weighted_events(counts: Floats) -> Floats:
    """Return the derivatives of `weighted_events` by each cell, shape (2, 2, 2 bins + 1)."""
    slopes = np.zeros((2, *counts.shape))
    for group, cell in np.ndindex(*counts.shape):
        half_a_record = np.zeros_like(counts)
        half_a_record[group, cell] = 0.5
        above = weighted_events(Cells.of(counts + half_a_record))
        below = weighted_events(Cells.of(counts - half_a_record))
        slopes[:, group, cell] = above - below
    return slopes


def median(curve: Curve, deviations: Floats) -> Median:
    """Return the median of a survival curve and its 95% interval (Brookmeyer and Crowley).

    The interval holds all edges of bins at which the curve is not significantly above or below 1/2,
    and one bin more on either side.

    Parameters
    ----------
    curve
        The curve of one group.
    deviations
        Standard deviation of the curve at the end of each bin, shape (bins,).
    """
    survival = np.append(1.0, curve.survival)  # at each edge, shape (bins + 1,)
    edge_deviations = np.append(0.0, deviations)
    is_known = ~np.isnan(survival)
    with np.errstate(invalid="ignore"):
        edges_above = np.flatnonzero(is_known & (survival - Z * edge_deviations > 0.5))
        edges_below = np.flatnonzero(is_known & (survival + Z * edge_deviations < 0.5))
    low = 0.0
    if len(edges_above):
        low = float(edges_above[-1])
    high = inf
    if len(edges_below):
        high = float(edges_below[0])
    last_known = int(np.flatnonzero(is_known)[-1])
    falling = np.minimum.accumulate(np.clip(survival[: last_known + 1], 0, 1))
    edges_reached = np.flatnonzero(falling <= 0.5)
    if not len(edges_reached):
        return Median(inf, low, high)
    edge = int(edges_reached[0])  # the curve crosses 1/2 in the bin before it
    drop = max(falling[edge - 1] - falling[edge], LEAST_DROP)
    part_of_bin = float((falling[edge - 1] - 0.5) / drop)
    return Median(edge - 1 + part_of_bin, low, high)


def number_at_risk(cells: Cells, noise: float) -> tuple[Floats, Floats]:
    """Return the number of persons at risk at the start of each bin, and its noise.

    Both have the shape (bins,); the noise is a standard deviation. The number is the sum of all
    cells of this bin and of later bins.

    Parameters
    ----------
    cells
        The cells of one group, shape (bins,).
    noise
        Standard deviation of the noise in a cell.
    """
    leave_later = np.cumsum((cells.events + cells.censored)[::-1])[::-1]
    bins = len(cells.events)
    summed_cells = 2.0 * np.arange(bins, 0, -1) + 1
    return leave_later + cells.ended, noise * np.sqrt(summed_cells)
