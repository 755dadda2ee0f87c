"""Hazard ratios, medians and numbers at risk from the cells that `Survival` releases.

They follow from released numbers and cost nothing more.
"""

from __future__ import annotations

from math import inf, log, sqrt
from typing import NamedTuple

import numpy as np

from dpmesh.statistics.answers import Z
from dpmesh.statistics.bins import Floats
from dpmesh.statistics.kaplan_meier import Cells, Curve

SMALL_HAZARD, LARGE_HAZARD = 0.02, 0.97
"""Shares of those at risk in a bin with an event; beyond them the noise would decide."""

CLEAR = 2 * Z
"""A sum of events must exceed so many standard deviations of its noise."""


class LogRatio(NamedTuple):
    """The logarithm of a hazard ratio of two groups.

    Attributes
    ----------
    estimate
        Of the second group against the first.
    noise, sampling
        Standard deviations.
    """

    estimate: float
    noise: float
    sampling: float


class Median(NamedTuple):
    """The time by which half of a group had an event, in bins.

    Attributes
    ----------
    estimate
        Infinite if the curve does not reach 1/2.
    low, high
        The interval: ends of bins; `high` is infinite if it is not reached.
    """

    estimate: float
    low: float
    high: float


def exposure(cells: Cells) -> Floats:
    """Return the time at risk in each bin, in bins, if a bin has one rate; shape (.., bins)."""
    risk = np.maximum(cells.at_risk, 1.0)
    share = cells.events / risk
    hazard = np.clip(share, SMALL_HAZARD, LARGE_HAZARD)
    part = np.where(share > SMALL_HAZARD, hazard / -np.log1p(-hazard), 1 - share / 2)
    return np.asarray(np.maximum(risk * part, 1.0))


def weighted_events(cells: Cells) -> Floats:
    """Return the Mantel-Haenszel sums of two groups, the second first.

    Their ratio is that of the rates.

    They are linear in the noisy events, so that no bin is divided by its own count.
    """
    times = exposure(cells)
    whole = times.sum(axis=0)
    second = (cells.events[1] * times[0] / whole).sum()
    first = (cells.events[0] * times[1] / whole).sum()
    return np.array([second, first])


def log_hazard_ratio(counts: Floats, noise: float) -> LogRatio | None:
    """Return the log hazard ratio of the second group; None if a group's events may be all noise.

    Sampling errors are those of Greenland and Robins; those of the noise follow by derivatives with
    respect to all cells.

    Parameters
    ----------
    counts
        Noisy cells of two groups, shape (2, 2 bins + 1), in the order of `Cells.of`.
    noise
        Standard deviation of the noise in each.
    """
    slopes = np.zeros((2, *counts.shape))
    for place in np.ndindex(*counts.shape):
        change = np.zeros_like(counts)
        change[place] = 0.5
        above = weighted_events(Cells.of(counts + change))
        below = weighted_events(Cells.of(counts - change))
        group, cell = place
        slopes[:, group, cell] = above - below
    second, first = (float(events) for events in weighted_events(Cells.of(counts)))
    spread = noise * np.sqrt(np.square(slopes).sum(axis=(1, 2)))
    if second <= CLEAR * spread[0] or first <= CLEAR * spread[1]:
        return None
    cells = Cells.of(counts)
    times = exposure(cells)
    events = cells.events.sum(axis=0)
    information = float((events * times[0] * times[1] / times.sum(axis=0) ** 2).sum())
    relative = slopes[0] / second - slopes[1] / first
    return LogRatio(
        estimate=log(second / first),
        noise=noise * sqrt(float(np.square(relative).sum())),
        sampling=sqrt(max(information, 1.0) / (first * second)),
    )


def median(curve: Curve, spread: Floats) -> Median:
    """Return the median and its interval (Brookmeyer and Crowley), one bin wider to either side.

    Parameters
    ----------
    curve
        Of one group.
    spread
        Standard deviation of the curve at the end of each bin, shape (bins,).
    """
    survival = np.append(1.0, curve.survival)
    deviation = np.append(0.0, spread)
    known = ~np.isnan(survival)
    with np.errstate(invalid="ignore"):
        above = np.flatnonzero(known & (survival - Z * deviation > 0.5))
        below = np.flatnonzero(known & (survival + Z * deviation < 0.5))
    low = float(above[-1]) if len(above) else 0.0
    high = float(below[0]) if len(below) else inf
    last = int(np.flatnonzero(known)[-1])
    falling = np.minimum.accumulate(np.clip(survival[: last + 1], 0, 1))
    reached = np.flatnonzero(falling <= 0.5)
    if not len(reached):
        return Median(inf, low, high)
    place = int(reached[0])
    drop = max(falling[place - 1] - falling[place], 1e-9)
    return Median(place - 1 + float((falling[place - 1] - 0.5) / drop), low, high)


def number_at_risk(cells: Cells, noise: float) -> tuple[Floats, Floats]:
    """Return how many enter each bin, and the standard deviation of the noise of that.

    Parameters
    ----------
    cells
        Of one group, shape (bins,).
    noise
        Standard deviation of the noise in a cell.
    """
    leaving = np.cumsum((cells.events + cells.censored)[::-1])[::-1]
    bins = len(cells.events)
    summed = 2.0 * np.arange(bins, 0, -1) + 1
    return leaving + cells.ended, noise * np.sqrt(summed)
