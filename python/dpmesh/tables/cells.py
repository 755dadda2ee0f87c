"""One cell of a table: as a number, as a day, as a category. A function of this cell alone."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from numbers import Real
from os import PathLike, fspath
from typing import Any

import numpy as np
import numpy.typing as npt

MISSING = frozenset(
    {
        *("", "na", "n/a", "#n/a", "#na", "<na>", "nan", "-nan", "nat", "null", "none", "nil"),
        *("?", ".", "-", "--", "missing"),
    }
)
"""Words for a missing value, in any case, where the public range does not list them."""

_PLAIN = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
"""A number without leading zeros, which would be those of a code."""

_BOOLEANS = {"true": 1.0, "false": 0.0}

_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?)(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_DAY = 86400.0

_SPANS = (np.datetime64, np.timedelta64)


class TableError(ValueError):
    """A table does not hold what is wanted.

    Parameters
    ----------
    index
        The record that is wrong, from 0 on; None if the whole table is.
    said
        What is wrong, and what to change.
    """

    def __init__(self, index: int | None, said: str) -> None:
        super().__init__(said if index is None else f"record {index}, counted from 0: {said}")
        self.index, self.said = index, said


@contextmanager
def of_file(path: str | PathLike[str]) -> Iterator[None]:
    """Name the file, and count records from 1, in what is said about its table."""
    try:
        yield
    except TableError as error:
        record = "" if error.index is None else f", record {error.index + 1}"
        raise ValueError(f"{fspath(path)}{record}: {error.said}") from error


def key_of(cell: object) -> float | str | None:
    """Return a cell as categories are compared; None if there is no value.

    Numbers and booleans, and texts that write them, are numbers: 1, 1.0, "1" and true are one. A
    text of digits with leading zeros is a code, and stays as it is.
    """
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "replace")
    if isinstance(cell, str):
        if not _PLAIN.fullmatch(cell):
            return _BOOLEANS.get(cell.lower(), str(cell))
        return str(cell) if math.isinf(value := float(cell)) else value
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return None
    if not isinstance(cell, (Real, Decimal, np.bool_)):
        return str(cell)
    try:
        value = float(cell)
    except OverflowError:  # an integer beyond the range of floats
        return str(cell)
    return None if math.isnan(value) else value


def is_missing(cell: object) -> bool:
    """Whether a cell holds no value."""
    return key_of(cell) is None


def usually_missing(cell: object) -> bool:
    """Whether a cell holds no value, or one of the words for it."""
    key = key_of(cell)
    return key is None or (isinstance(key, str) and key.strip().lower() in MISSING)


def number_of(cell: Any) -> float:
    """Return a cell as a finite number; NaN if it is none."""
    try:
        if isinstance(cell, _SPANS) or (isinstance(cell, str) and "_" in cell):
            return math.nan
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        word = cell.strip().lower() if isinstance(cell, str) else ""
        return _BOOLEANS.get(word, math.nan)
    return value if math.isfinite(value) else math.nan


def day_of(cell: object, form: str | None = None) -> float:
    """Return a date or a time as days, with the second as a fraction; NaN if it is none.

    Parameters
    ----------
    cell
        A date, a time, or a text: ``2024-12-31``, perhaps with a time as in ``2024-12-31 23:59``.
    form
        How other texts write it, as `datetime.strptime` has it, such as ``%d.%m.%Y``. One that
        begins with a year stands alone.
    """
    try:
        if isinstance(cell, str):
            text = cell.strip()
            if found := _DATE.fullmatch(text) if form is None or form[:2] != "%Y" else None:
                cell = datetime.fromisoformat(found[1])
            elif form is not None:
                cell = datetime.strptime(text, form)
        elif isinstance(cell, np.datetime64):
            cell = cell.astype("datetime64[s]").item()
        if not isinstance(cell, date) or type(cell).__name__ == "NaTType":
            return math.nan
        seconds = 0
        if isinstance(cell, datetime):
            seconds = 3600 * cell.hour + 60 * cell.minute + cell.second
        return cell.toordinal() + seconds / _DAY
    except ValueError:
        return math.nan


def each(read: Callable[[Any], Any], values: npt.NDArray[Any], kind: Any) -> npt.NDArray[Any]:
    """Return what `read` makes of each cell by itself, shape (records,), as this type."""
    known: dict[Any, Any] = {}  # a text or a whole number is read once

    def once(cell: Any) -> Any:
        if type(cell) not in (str, int):
            return read(cell)
        if (found := known.get(cell)) is None:
            found = known[cell] = read(cell)
        return found

    cells = values if values.dtype.kind in "mM" else values.tolist()
    return np.fromiter(map(once, cells), kind, len(values))


def numbers_of(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the number in each cell, shape (records,); NaN where there is none."""
    if values.dtype.kind not in "biuf":
        return each(number_of, values, np.float64)
    numbers = values.astype(np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def shown(cell: object) -> str:
    """Return a cell as an error has it."""
    return reprlib.repr(cell.item() if isinstance(cell, np.generic) else cell)
