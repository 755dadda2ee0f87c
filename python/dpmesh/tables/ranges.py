"""Ranges as files and mappings have them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from dpmesh._files import read_toml
from dpmesh._validate import fail
from dpmesh.tables.kinds import Category, Count, Dates, Flag, Kind, Number
from dpmesh.tables.labels import MOST_LABELS, Label, Labels

BLANK = "FILL IN"
"""What a draft of ranges has where public knowledge is wanted."""

RELEASED = "released by dpmesh"
"""The key of the release in a file whose bounds were released from data."""

_FORMS = (
    "[low, high] for numbers, a list of categories, {flag = true}, "
    '{dates = ["2019-01-01", "2024-12-31"]}, {range = [low, high], missing = true}, '
    "or {categories = [..]}"
)

_LABELS = (
    "{classes = [%s]} for a classifier, {target = [%s]} for a regression, or {counts = 50} for "
    "one of counts"
)


def read_ranges(
    path: str | os.PathLike[str], *, released: list[Any] | None = None, blanks: bool = False
) -> dict[str, Any]:
    """Return the content of a TOML file of ranges.

    Parameters
    ----------
    path
        The file.
    released
        Receives the release that bounds in the file follow from, if there is one, for who charges
        it. None refuses such a file.
    blanks
        Whether it may have blanks.

    Raises
    ------
    ValueError
        If it is not TOML, or a draft with blanks.
    OSError
        If it cannot be read.
    """
    ranges, _ = read_toml(path)
    release = ranges.pop(RELEASED, None)
    if release is not None:
        if released is None:
            wanted = "ranges from public knowledge alone; dpmesh fit and dpmesh stats take, and "
            fail(os.fspath(path), f"{wanted}charge, those that were released from data", "such")
        released.append(json.loads(release))
    found = [name for name, given in ranges.items() if _has_blank(given)]
    if found and not blanks:
        wanted = f"public ranges in place of {BLANK!r}; delete the lines of columns not to use"
        fail(os.fspath(path), wanted, f"blanks for {', '.join(found)}")
    return ranges


def _has_blank(given: Any) -> bool:
    if isinstance(given, Mapping):
        return any(map(_has_blank, given.values()))
    return any(map(_has_blank, given)) if isinstance(given, list) else given == BLANK


def as_range(name: str, given: Any) -> Kind:
    """Return the range of one column, from the form that a file or a mapping has.

    Raises
    ------
    ValueError
        If it has another form.
    """
    if isinstance(given, (Number, Flag, Dates, Category)):
        return given
    made: Kind | None = None
    if hasattr(given, "tolist"):  # an array, or the index of a table
        given = given.tolist()
    try:
        if isinstance(given, Mapping):
            made = _of_mapping(dict(given))
        elif are_ends(given):
            made = Number(low=given[0], high=given[1])
        elif isinstance(given, (list, tuple)):
            made = Category(categories=tuple(given))
    except (TypeError, ValueError) as error:
        raise ValueError(f"ranges of {name}: {error}") from error
    if made is None:
        fail(f"ranges of {name}", _FORMS, repr(given))
    return made


def as_label(name: str, given: Any) -> Number | Category:
    """Return the range of a label: classes, or the range of a number.

    Raises
    ------
    ValueError
        If it has another form, or is a bare list of two numbers, which could be either.
    """
    if are_ends(given):
        ends = f"{given[0]:.15g}, {given[1]:.15g}"
        fail(f"ranges of {name}", _LABELS % (ends, ends), f"[{ends}], which may mean either")
    kind = as_range(name, given)
    if not isinstance(kind, (Number, Category)) or (isinstance(kind, Number) and kind.missing):
        fail(f"ranges of {name}", _LABELS % ('"no", "yes"', "0, 100"), repr(given))
    return kind


def as_labels(given: Mapping[str, Any]) -> Label:
    """Return the range of a label, or of several labels of a record, from those of their columns.

    Raises
    ------
    ValueError
        If one has another form.
    """
    if len(given) == 1:
        return as_label(*next(iter(given.items())))
    kinds: Any = tuple(as_range(name, one) for name, one in given.items())
    return Labels(names=tuple(given), kinds=kinds)


def columns_of(label: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of one label, of several or of none.

    Raises
    ------
    ValueError
        If one is named twice or has no name, or there are none in a list, or too many.
    """
    names = () if label is None else (label,) if isinstance(label, str) else tuple(label)
    if len({*names}) < len(names) or not all(names) or (not names and label is not None):
        fail("label", "the column to predict, or several columns, each once", [*names])
    if len(names) > MOST_LABELS:
        fail("label", f"at most {MOST_LABELS} columns", len(names))
    return names


def _of_mapping(given: dict[str, Any]) -> Kind | None:
    """Return the kind that a table of a file describes; None if it has other keys."""
    missing = given.pop("missing", False)
    if not isinstance(missing, bool):
        fail("missing", "true or false", repr(missing))
    keys = {*given}
    if keys in ({"range"}, {"target"}):
        (ends,) = given.values()
        if not isinstance(ends, (list, tuple)) or len(ends) != 2:
            fail(keys.pop(), "[low, high]", repr(ends))
        return Number(low=ends[0], high=ends[1], missing=missing)
    if keys == {"counts"} and not missing:
        return Count(high=given["counts"])
    if keys == {"flag"} and given["flag"] is True:
        return Flag(missing=missing)
    if "dates" in keys and keys <= {"dates", "format", "zone"}:
        return Dates(**given, missing=missing)
    if keys in ({"categories"}, {"classes"}, {"classes", "shares"}):
        shares = given.pop("shares", None)
        (listed,) = given.values()
        return Category(categories=listed, shares=shares)
    return None


def are_ends(given: Any) -> bool:
    """Whether this is a list of two numbers."""
    return (
        isinstance(given, (list, tuple))
        and len(given) == 2
        and all(isinstance(end, Real) and not isinstance(end, bool) for end in given)
    )
