"""Public ranges of columns and labels, read from TOML files and mappings.

`as_range` and `as_label` convert the *description* of a range, such as ``[0, 100]`` or
``{"flag": True}``, to an object of `dpmesh.tables.kinds`. Files of ranges and the parameter
`ranges` of `Columns.of` consist of such descriptions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeGuard

from dpmesh._files import JsonObject, read_toml
from dpmesh._untrusted import naming
from dpmesh._validate import fail
from dpmesh.tables.kinds import Category, Count, Dates, Flag, Kind, Number
from dpmesh.tables.labels import MOST_LABELS, Label, Labels

BLANK = "FILL IN"
"""Text in a draft of ranges that the user must replace by public knowledge."""

RELEASED = "released by dpmesh"
"""Key, in a file of ranges, of the description of the DP release that gave the bounds."""

_KINDS_EXPECTED = (
    "[low, high] for numbers, a list of categories, {flag = true}, "
    '{dates = ["2019-01-01", "2024-12-31"]}, {range = [low, high], missing = true}, '
    "or {categories = [..]}"
)

_LABELS_EXPECTED = (
    "{classes = [%s]} for a classifier, {target = [%s]} for a regression, or {counts = 50} for "
    "one of counts"
)


def read_ranges(
    path: str | os.PathLike[str], *, released: list[JsonObject] | None = None, blanks: bool = False
) -> JsonObject:
    """Read the public ranges of columns from a TOML file, such as ``dpmesh ranges`` writes.

    Parameters
    ----------
    path
        Path of the file.
    released
        The bounds in a file may come from a DP release of the data, which has an epsilon. The
        function appends the description of this release to the list `released`, and the caller must
        count its epsilon. With None a file with such bounds is an error.
    blanks
        True to accept a draft, in which some ranges are not filled in yet.

    Returns
    -------
    Mapping from the name of each column to its range, in a form that `Columns.of` accepts.

    Raises
    ------
    ValueError
        If the file is not TOML, has blanks although `blanks` is False, or has bounds from a DP
        release although `released` is None.
    OSError
        If the file cannot be read.
    """
    ranges, _ = read_toml(path)
    release = ranges.pop(RELEASED, None)
    if release is not None:
        if released is None:
            fail(
                os.fspath(path),
                "ranges from public knowledge alone; dpmesh fit and dpmesh stats take, and charge, "
                "those that were released from data",
                "such",
            )
        with naming(path, "a release as dpmesh ranges writes it"):
            released.append(json.loads(str(release)))
    blank_names = [name for name, content in ranges.items() if _has_blank(content)]
    if blank_names and not blanks:
        expected = f"public ranges in place of {BLANK!r}; delete the lines of columns not to use"
        fail(os.fspath(path), expected, f"blanks for {', '.join(blank_names)}")
    return ranges


def _has_blank(content: object) -> bool:
    """Return True if a blank remains in the content of a file."""
    if isinstance(content, Mapping):
        return any(map(_has_blank, content.values()))
    if isinstance(content, list):
        return any(map(_has_blank, content))
    return content == BLANK


def as_range(name: str, form: object) -> Kind:
    """Return the range of a column from its description in a file or a mapping.

    Parameters
    ----------
    name
        Name of the column, for errors.
    form
        Description of the range: ``[low, high]``, a list of categories, or a table such as
        ``{"flag": True}``. An object of `dpmesh.tables.kinds` is returned unchanged.

    Raises
    ------
    ValueError
        If `form` is none of these, or its content is invalid.
    """
    if isinstance(form, (Number, Flag, Dates, Category)):
        return form
    if hasattr(form, "tolist"):  # an array, or an index of pandas
        form = form.tolist()
    try:
        kind = _kind_of_description(form)
    except (TypeError, ValueError) as error:
        raise ValueError(f"ranges of {name}: {error}") from error
    if kind is None:
        fail(f"ranges of {name}", _KINDS_EXPECTED, repr(form))
    return kind


def _kind_of_description(description: object) -> Kind | None:
    """Return the kind that a table, two numbers or a list of categories describes, or None."""
    if isinstance(description, Mapping):
        return _kind_of_table(dict(description))
    if are_ends(description):
        low, high = description
        return Number(low=low, high=high)
    if isinstance(description, (list, tuple)):
        return Category(categories=tuple(description))
    return None


def as_label(name: str, form: object) -> Number | Category:
    """Return the range of a label from its description: classes, or the range of a number.

    Parameters
    ----------
    name
        Name of the label's column, for errors.
    form
        Description of the range, as for `as_range`, such as ``{"classes": ["no", "yes"]}``,
        ``{"target": [0, 100]}`` or ``{"counts": 50}``.

    Raises
    ------
    ValueError
        If `form` describes no label, or is a bare list of two numbers, which could be classes or
        bounds.
    """
    if are_ends(form):
        ends = f"{form[0]:.15g}, {form[1]:.15g}"
        fail(
            f"ranges of {name}", _LABELS_EXPECTED % (ends, ends), f"[{ends}], which may mean either"
        )
    kind = as_range(name, form)
    if isinstance(kind, Category):
        return kind
    if isinstance(kind, Number) and not kind.missing:
        return kind
    return fail(f"ranges of {name}", _LABELS_EXPECTED % ('"no", "yes"', "0, 100"), repr(form))


def as_labels(forms: Mapping[str, object]) -> Label:
    """Return the range of a label, or of the labels of multi-label learning.

    Parameters
    ----------
    forms
        Description of the range of each label, as for `as_label`, by its column. Several columns
        are binary labels, see `Labels`.

    Raises
    ------
    ValueError
        If a description is invalid.
    """
    if len(forms) == 1:
        ((name, form),) = forms.items()
        return as_label(name, form)
    kinds: Any = tuple(as_range(name, form) for name, form in forms.items())  # Labels checks them
    return Labels(names=tuple(forms), kinds=kinds)


def columns_of(label: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the columns of one label, of several labels, or of none (empty).

    Raises
    ------
    ValueError
        If a name is empty or occurs twice, a list is empty, or there are more than `MOST_LABELS`.
    """
    if label is None:
        return ()
    if isinstance(label, str):
        label = [label]
    names = tuple(label)
    repeated = len(set(names)) < len(names)
    if repeated or not names or not all(names):
        fail("label", "the column to predict, or several columns, each once", [*names])
    if len(names) > MOST_LABELS:
        fail("label", f"at most {MOST_LABELS} columns", len(names))
    return names


def _kind_of_table(table: JsonObject) -> Kind | None:
    """Return the kind that a table of a file describes; None if its keys fit no kind."""
    missing = table.pop("missing", False)
    if not isinstance(missing, bool):
        fail("missing", "true or false", repr(missing))
    keys = set(table)
    if keys in ({"range"}, {"target"}):
        return _number_of_table(table, missing=missing)
    if keys == {"counts"} and not missing:
        return Count(high=table["counts"])
    if keys == {"flag"} and table["flag"] is True:
        return Flag(missing=missing)
    if "dates" in keys and keys <= {"dates", "format", "zone"}:
        return Dates(**table, missing=missing)
    if keys == {"categories"}:  # `missing` is ignored: categories may always be missing
        return Category(categories=table["categories"])
    if keys in ({"classes"}, {"classes", "shares"}):
        return Category(categories=table["classes"], shares=table.get("shares"))
    return None


def _number_of_table(table: JsonObject, *, missing: bool) -> Number:
    """Return the range of a table whose one key holds ``[low, high]``."""
    ((key, ends),) = table.items()
    if not isinstance(ends, (list, tuple)) or len(ends) != 2:
        fail(key, "[low, high]", repr(ends))
    low, high = ends
    return Number(low=low, high=high, missing=missing)


def are_ends(form: object) -> TypeGuard[Sequence[float]]:
    """Return True for a list or tuple of two numbers."""
    if not isinstance(form, (list, tuple)) or len(form) != 2:
        return False
    return all(isinstance(end, Real) and not isinstance(end, bool) for end in form)
