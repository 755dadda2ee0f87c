"""Bins of equal width over a public range: edges, the bin of each number, and names.

Edge j of `bins` bins is the float nearest to the exact ``low + (high - low) j / bins``, where the
ends of the range are read as decimal numbers. So 0.3 is an edge of [0, 1.5] in 15 bins, in spite of
rounding, and a number that equals an edge is in exactly one bin.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import floor

import numpy as np
import numpy.typing as npt

from dpmesh.tables.kinds import Category, Dates, Kind

Floats = npt.NDArray[np.float64]

_LEAST_DIGITS = 4
_MOST_DIGITS = 17
"""Smallest and largest number of significant digits of an edge as text. Any two different floats
differ in 17 digits."""

_CLOSE = 1000
"""Inverse of the largest rounding error of an edge as text, in bins."""


def ends(kind: Kind) -> tuple[float, float]:
    """Return the ends (low, high) of a range of numbers, dates (in days) or flags."""
    assert not isinstance(kind, Category)
    return kind.ends


def edges_of(kind: Kind, bins: int) -> Floats:
    """Return the edges of equal bins over a range, shape (bins + 1,)."""
    return np.array(_edges(*ends(kind), bins))


@lru_cache(maxsize=256)
def _edges(low: float, high: float, bins: int) -> tuple[float, ...]:
    """Return the floats nearest to the exact edges, with the ends read as decimal numbers."""
    first = Fraction(repr(float(low)))
    last = Fraction(repr(float(high)))
    width = (last - first) / bins
    return tuple(float(first + number * width) for number in range(bins + 1))


def bins_of(numbers: Floats, kind: Kind, bins: int) -> npt.NDArray[np.int64]:
    """Return the index of each number's bin, for bins ``[low, high)``; the last is closed.

    Numbers outside of the range are in the first or last bin.
    """
    inner = edges_of(kind, bins)[1:-1]
    return np.searchsorted(inner, numbers, side="right").astype(np.int64)


def bins_closed_above(numbers: Floats, kind: Kind, bins: int) -> npt.NDArray[np.int64]:
    """Return the index of each number's bin, for bins ``(low, high]``; the first is closed.

    Numbers outside of the range are in the first or last bin.
    """
    inner = edges_of(kind, bins)[1:-1]
    return np.searchsorted(inner, numbers, side="left").astype(np.int64)


def names_of_bins(kind: Kind, bins: int) -> list[str]:
    """Return the names of bins in interval notation, such as ``[0, 10)``."""
    edges = [edge_in_words(kind, edge, bins) for edge in edges_of(kind, bins)]
    names = [f"[{low}, {high})" for low, high in pairwise(edges)]
    names[-1] = names[-1][:-1] + "]"
    return names


def edge_in_words(kind: Kind, edge: float, bins: int) -> str:
    """Return an edge as text, in the units of the column; for dates a date, perhaps with a time.

    Parameters
    ----------
    kind
        Public range of the column.
    edge
        The edge.
    bins
        Number of bins, which determines the number of digits.
    """
    if isinstance(kind, Dates):
        return _moment(edge)
    low, high = ends(kind)
    tolerance = (high - low) / bins / _CLOSE
    for digits in range(_LEAST_DIGITS, _MOST_DIGITS):
        rounded = float(f"{edge:.{digits}g}")
        if abs(rounded - edge) <= tolerance:
            return f"{rounded:.15g}"  # 10000, not 1e+04
    return f"{edge:.{_MOST_DIGITS}g}"


def _moment(day: float) -> str:
    """Return a number of days as a date, with a time in minutes unless it is midnight."""
    whole_day = floor(day)
    minutes = round((day - whole_day) * 24 * 60)
    moment = datetime.combine(date.fromordinal(whole_day), datetime.min.time())
    moment += timedelta(minutes=minutes)
    if minutes == 0:
        return str(moment.date())
    return f"{moment:%Y-%m-%d %H:%M}"
