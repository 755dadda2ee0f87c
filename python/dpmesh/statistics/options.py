"""Parsing of questions from text: options of ``dpmesh stats``, and ``[questions]`` of contracts.

An option such as ``histogram`` has one text or several, such as ``age:5``. Each text becomes a
question. Without any option, `questions_of` asks about each column of the ranges.
"""

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


def questions_of(
    options: Mapping[str, Any], kinds: Mapping[str, Kind], sign: str
) -> list[Question]:
    """Return the questions of options; without options, a question about each column.

    Parameters
    ----------
    options
        Value of each of `OPTIONS` by name: a text, a list of texts, or None. Others are ignored.
    kinds
        Public range of each column.
    sign
        Prefix of the names of options in errors, such as ``--``.

    Raises
    ------
    ValueError
        If the text of an option cannot be parsed.
    """
    by = options.get("by")
    if by is not None and options.get("survival") is None:
        fail(f"{sign}by", f"{sign}survival beside it", by)
    questions: list[Question] = []
    for name, read in _READERS.items():
        option = f"{sign}{name}"
        for text in _texts(options.get(name)):
            if name == "survival":
                questions.append(_survival(option, text, by))
            else:
                questions.append(read(option, text))
    if not questions:
        return list(_about_all_columns(kinds))
    return questions


def weights_of(option: str, text: str | None) -> tuple[float, ...]:
    """Parse the weights of questions from a text such as ``1,4``.

    Parameters
    ----------
    option
        Name of the option, for errors.
    text
        The text; None for equal weights, returned as an empty tuple.

    Raises
    ------
    ValueError
        If a part of the text is not a positive number.
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
    """Return the texts of an option in a list; empty for None."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    return list(value)


def _about_all_columns(kinds: Mapping[str, Kind]) -> Iterator[Question]:
    """Yield questions about all columns: means, quantiles of dates, counts of categories."""
    categories = [name for name, kind in kinds.items() if isinstance(kind, Category)]
    dates = [name for name, kind in kinds.items() if isinstance(kind, Dates)]
    numbers = [name for name in kinds if name not in (*categories, *dates)]
    if numbers:
        yield Mean(*numbers)
    for name in dates:
        yield Quantiles(name)
    for name in categories:
        yield Histogram(name)


def _columns(option: str, text: str, count: int | None = None) -> list[str]:
    """Parse names of columns, separated by commas; fail unless there are `count`, if stated."""
    names = [name.strip() for name in text.split(",")]
    if count is None:
        expected = "columns, separated by commas"
        is_right_count = True
    else:
        expected = f"{count} columns, as a,b"
        is_right_count = len(names) == count
    if not all(names) or not is_right_count:
        fail(option, expected, repr(text))
    return names


def _mean(option: str, text: str) -> Question:
    return Mean(*_columns(option, text))


def _correlation(option: str, text: str) -> Question:
    return Correlation(*_columns(option, text))


def _table(option: str, text: str) -> Question:
    names, _, suffix = text.partition(":")
    if suffix not in ("", "missing"):
        fail(option, "2 columns, as a,b, or a,b:missing", repr(text))
    row, column = _columns(option, names, 2)
    return TwoWay(row, column, missing=suffix == "missing")


def _survival(option: str, text: str, by: str | None = None) -> Question:
    names, bins = _bins(text)
    time, event = _columns(option, names, 2)
    if bins is None:
        return Survival(time, event, by)
    return Survival(time, event, by, bins=bins)


def _histogram(option: str, text: str) -> Question:
    del option
    name, bins = _bins(text)
    if bins is None:
        return Histogram(name)
    return Histogram(name, bins=bins)


def _quantiles(option: str, text: str) -> Question:
    del option
    name, bins = _bins(text)
    if bins is None:
        return Quantiles(name)
    return Quantiles(name, bins=bins)


def _bins(text: str) -> tuple[str, int | None]:
    """Split a text such as ``age:5`` into the part before the colon and the number of bins.

    The number is None for a text without one, such as ``age``.
    """
    name, _, bins = text.rpartition(":")
    if name and bins.isdigit():
        return name, int(bins)
    return text, None


def _pairs(option: str, text: str) -> Question:
    names, bins = _bins(text)
    return Pairs(*_columns(option, names), bins=bins)


def _regression(option: str, text: str) -> Question:
    """Parse a regression from a formula such as ``died~age,arm`` or ``visits~age:poisson``."""
    target, tilde, right_side = text.partition("~")
    target = target.strip()
    expected = "a target, ~ and terms, as died~age,arm or visits~age:poisson"
    if not tilde or not target or not right_side.strip():
        fail(option, expected, repr(text))
    terms, _, family = right_side.rpartition(":")
    family = family.strip()
    if not terms:  # there is no colon, or nothing before it
        return Regression(target, *_columns(option, right_side))
    if family not in FAMILY_NAMES:
        last_term = terms.rpartition(",")[2]
        if not last_term.strip():
            fail(option, expected, repr(text))
        families = ", ".join(FAMILY_NAMES)
        hint = nearest(family, FAMILY_NAMES)
        fail(option, f"a family after the colon ({families})", f"{family!r}{hint}")
    return Regression(target, *_columns(option, terms), family=family)


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
"""Parser of each option: a function of the option's name, for errors, and a text."""
