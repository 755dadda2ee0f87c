"""Questions as texts: options of ``dpmesh stats``, and the table ``[questions]`` of contracts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpmesh._validate import fail
from dpmesh.statistics.questions import Correlation, Histogram, Mean, Quantiles, Question, TwoWay
from dpmesh.statistics.survival import Survival
from dpmesh.tables.kinds import Category, Dates, Kind

OPTIONS = ("mean", "histogram", "quantiles", "correlation", "table", "survival", "by")


def questions_of(given: Mapping[str, Any], kinds: Mapping[str, Kind], sign: str) -> list[Question]:
    """Return the questions that options ask; without any, about each column of the ranges.

    Parameters
    ----------
    given
        By name: a text, a list of texts, or None.
    kinds
        The public ranges of the columns.
    sign
        What stands before their names in errors.

    Raises
    ------
    ValueError
        If one is of another form.
    """
    by, found = given.get("by"), list[Question]()
    if by is not None and given.get("survival") is None:
        fail(f"{sign}by", f"{sign}survival beside it", by)
    for name, kind, count in _FORMS:
        value = given.get(name)
        others = {"by": by} if name == "survival" and by is not None else {}
        for text in () if value is None else [value] if isinstance(value, str) else value:
            if count is None:
                found += _binned(kind, text)
            else:
                found += _of(sign + name, kind, text, count, **others)
    return found or [*_everything(kinds)]


_FORMS = (
    ("mean", Mean, 0),
    ("histogram", Histogram, None),
    ("quantiles", Quantiles, None),
    ("correlation", Correlation, 0),
    ("table", TwoWay, 2),
    ("survival", Survival, 2),
)
"""Options, what each asks, and of how many columns: any number if 0, one with bins if None."""


def _everything(kinds: Mapping[str, Kind]) -> Iterator[Question]:
    """Ask about each column of a file of ranges."""
    listed = [name for name, kind in kinds.items() if isinstance(kind, Category)]
    dates = [name for name, kind in kinds.items() if isinstance(kind, Dates)]
    if measured := [name for name in kinds if name not in (*listed, *dates)]:
        yield Mean(*measured)
    yield from map(Quantiles, dates)
    yield from map(Histogram, listed)


def _of(option: str, kind: Any, given: str, count: int, **others: str) -> Iterator[Question]:
    """Ask about columns, separated by commas."""
    names = [name.strip() for name in given.split(",")]
    if not all(names) or len(names) != (count or len(names)):
        wanted = f"{count} columns, as a,b" if count else "columns, separated by commas"
        fail(option, wanted, repr(given))
    yield kind(*names, **others)


def _binned(kind: Any, given: str) -> Iterator[Question]:
    """Ask about a column that may name how many bins."""
    name, _, bins = given.rpartition(":")
    made = {"bins": int(bins)} if bins.isdigit() and name else {}
    yield kind(name if made else given, **made)
