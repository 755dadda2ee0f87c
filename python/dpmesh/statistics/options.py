"""Questions as texts: options of ``dpmesh stats``, and the table ``[questions]`` of contracts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dpmesh._validate import fail, nearest, positive
from dpmesh.statistics.pairs import Pairs
from dpmesh.statistics.questions import Correlation, Histogram, Mean, Quantiles, Question, TwoWay
from dpmesh.statistics.regression import FAMILY_NAMES, Regression
from dpmesh.statistics.survival import Survival
from dpmesh.tables.kinds import Category, Dates, Kind

OPTIONS = (
    "mean",
    "histogram",
    "quantiles",
    "correlation",
    "table",
    "survival",
    "by",
    "regress",
    "pairs",
)


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
    by = given.get("by")
    if by is not None and given.get("survival") is None:
        fail(f"{sign}by", f"{sign}survival beside it", by)
    result: list[Question] = []
    for name, read in _READERS.items():
        for text in _texts(given.get(name)):
            if name == "survival":
                result.append(_survival(f"{sign}{name}", text, by))
            else:
                result.append(read(f"{sign}{name}", text))
    return result or [*_everything(kinds)]


def weights_of(option: str, text: str | None) -> tuple[float, ...]:
    """Return the weights of questions from a text such as ``1,4``; none for equal shares.

    Raises
    ------
    ValueError
        If a part is no positive number; the message names the option.
    """
    if text is None:
        return ()
    weights = []
    for part in text.split(","):
        try:
            weight = float(part)
        except ValueError:
            fail(option, "numbers separated by commas, as 1,4", repr(text))
        weights.append(positive(option, weight))
    return tuple(weights)


def _texts(value: Any) -> list[str]:
    """Return the texts of an option that may be given several times."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def _everything(kinds: Mapping[str, Kind]) -> Iterator[Question]:
    """Ask about each column of a file of ranges."""
    listed = [name for name, kind in kinds.items() if isinstance(kind, Category)]
    dates = [name for name, kind in kinds.items() if isinstance(kind, Dates)]
    if measured := [name for name in kinds if name not in (*listed, *dates)]:
        yield Mean(*measured)
    yield from map(Quantiles, dates)
    yield from map(Histogram, listed)


def _columns(option: str, text: str, count: int | None = None) -> list[str]:
    """Return the names of columns, separated by commas: so many, or any number."""
    names = [name.strip() for name in text.split(",")]
    if not all(names) or (count is not None and len(names) != count):
        wanted = "columns, separated by commas" if count is None else f"{count} columns, as a,b"
        fail(option, wanted, repr(text))
    return names


def _mean(option: str, text: str) -> Question:
    return Mean(*_columns(option, text))


def _correlation(option: str, text: str) -> Question:
    return Correlation(*_columns(option, text))


def _table(option: str, text: str) -> Question:
    names, _, shown = text.partition(":")
    if shown not in ("", "missing"):
        fail(option, "2 columns, as a,b, or a,b:missing", repr(text))
    row, column = _columns(option, names, 2)
    return TwoWay(row, column, missing=bool(shown))


def _survival(option: str, text: str, by: str | None = None) -> Question:
    names, bins = _bins(text)
    time, event = _columns(option, names, 2)
    if bins is None:
        return Survival(time, event, by)
    return Survival(time, event, by, bins=bins)


def _histogram(option: str, text: str) -> Question:
    del option
    name, bins = _bins(text)
    return Histogram(name) if bins is None else Histogram(name, bins=bins)


def _quantiles(option: str, text: str) -> Question:
    del option
    name, bins = _bins(text)
    return Quantiles(name) if bins is None else Quantiles(name, bins=bins)


def _bins(text: str) -> tuple[str, int | None]:
    """Return what stands before the number of bins, and this number if there is one."""
    name, _, bins = text.rpartition(":")
    if name and bins.isdigit():
        return name, int(bins)
    return text, None


def _pairs(option: str, text: str) -> Question:
    names, bins = _bins(text)
    return Pairs(*_columns(option, names), bins=bins)


def _regression(option: str, text: str) -> Question:
    """Return the regression of a formula such as ``died~age,arm`` or ``visits~age:poisson``."""
    target, tilde, terms = text.partition("~")
    wanted = "a target, ~ and terms, as died~age,arm or visits~age:poisson"
    if not tilde or not target.strip() or not terms.strip():
        fail(option, wanted, repr(text))
    names, _, family = terms.rpartition(":")
    if family.strip() in FAMILY_NAMES and names:
        return Regression(target.strip(), *_columns(option, names), family=family.strip())
    if names and not names.rpartition(",")[2].strip():
        fail(option, wanted, repr(text))
    if names:
        known = ", ".join(FAMILY_NAMES)
        hint = nearest(family.strip(), FAMILY_NAMES)
        fail(option, f"a family after the colon ({known})", f"{family.strip()!r}{hint}")
    return Regression(target.strip(), *_columns(option, terms))


_READERS: dict[str, Callable[[str, str], Question]] = {
    "mean": _mean,
    "histogram": _histogram,
    "quantiles": _quantiles,
    "correlation": _correlation,
    "table": _table,
    "survival": _survival,
    "regress": _regression,
    "pairs": _pairs,
}
"""What reads the text of each option, given its name."""
