"""Equal bins of a public range: the edges, the bin of each number, and the names of the bins.

Every range is cut here and nowhere else. The ends of a range are read as the decimal numbers that
people write, an edge is the float nearest to the exact ``low + (high - low) j / bins``, and numbers
are compared with these floats as they are. So 0.3 begins a bin of [0, 1.5] cut in 15, as it does on
paper, and a whole number that is an edge is in one bin alone.
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
"""Significant digits of an edge in words; 17 tell any two floats apart."""

_CLOSE = 1000
"""An edge is shown with so few digits that it is off by less than this part of a bin."""


def ends(kind: Kind) -> tuple[float, float]:
    """Return the ends of a range of numbers, dates or flags."""
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
    """Return the bin of each number: ``[low, high)``, the last one with its high end.

    Numbers beyond the range are in its first or last bin.
    """
    inner = edges_of(kind, bins)[1:-1]
    return np.searchsorted(inner, numbers, side="right").astype(np.int64)


def bins_closed_above(numbers: Floats, kind: Kind, bins: int) -> npt.NDArray[np.int64]:
    """Return the bin of each number: ``(low, high]``, the first one with its low end.

    Numbers beyond the range are in its first or last bin.
    """
    inner = edges_of(kind, bins)[1:-1]
    return np.searchsorted(inner, numbers, side="left").astype(np.int64)


def names_of_bins(kind: Kind, bins: int) -> list[str]:
    """Return the names of bins as intervals: a bracket is an end that belongs to the bin."""
    edges = [edge_in_words(kind, edge, bins) for edge in edges_of(kind, bins)]
    names = [f"[{low}, {high})" for low, high in pairwise(edges)]
    names[-1] = names[-1][:-1] + "]"
    return names


def edge_in_words(kind: Kind, edge: float, bins: int) -> str:
    """Return an edge in the units of the column: a date as a date, with its time if it has one."""
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
    """Return days as a date, or as a date and a time to the minute."""
    whole_day = floor(day)
    minutes = round((day - whole_day) * 24 * 60)
    moment = datetime.combine(date.fromordinal(whole_day), datetime.min.time())
    moment += timedelta(minutes=minutes)
    if minutes == 0:
        return str(moment.date())
    return f"{moment:%Y-%m-%d %H:%M}"
