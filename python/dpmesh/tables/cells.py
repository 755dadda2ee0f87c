"""One cell of a table: as a number, as a day, as a category. A function of this cell alone."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timezone, tzinfo
from decimal import Decimal
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any

import numpy as np
import numpy.typing as npt

UTC = timezone.utc

MISSING = frozenset(
    {
        *("", "na", "n/a", "#n/a", "#na", "<na>", "nan", "-nan", "nat", "null", "none", "nil"),
        *("?", ".", "-", "--", "missing"),
    }
)
"""Words for a missing value, in any case, where the public range does not list them."""

UNDECODED = "\ufffd"
"""The character in the place of bytes that cannot be decoded."""

_PLAIN = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
"""A number without leading zeros, which would be those of a code."""

_WITH_COMMA = re.compile(
    r"\s*[+-]?(?:\d*|[1-9]\d{0,2}(?:\.\d{3})+),\d+(?:[eE][+-]?\d+)?\s*", re.ASCII
)
_GROUPED_BY_POINT = re.compile(r"\s*[+-]?[1-9]\d{0,2}(?:\.\d{3})+\s*", re.ASCII)
_GROUPED_BY_COMMA = re.compile(r"\s*[+-]?[1-9]\d{0,2}(?:,\d{3})+\s*", re.ASCII)
_GROUPED = re.compile(r"\s*[+-]?\d{1,3}(?:[.,' \u2019\u00a0\u202f]\d{3})+(?:[.,]\d+)?\s*", re.ASCII)

_BOOLEANS = {"true": 1, "false": 0}

_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?)(?:\.\d+)?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_DAY = 86400.0

_SPANS = (np.datetime64, np.timedelta64)
_ABSENT = ("NAType", "NaTType")
_EXACT = 2**53
"""From here on a float is one of several whole numbers."""


class CommaNumber(str):
    """A text that writes a number with a decimal comma, such as 2,5 or 1.234,5."""

    __slots__ = ()


class AmbiguousNumber(str):
    """A text that may write two numbers, such as 1.234 in a file with decimal commas."""

    __slots__ = ()


def with_decimal_comma(cell: str, *, stated: bool) -> str:
    """Return a text as a file with decimal commas means it; the text stays the same.

    Parameters
    ----------
    cell
        The text.
    stated
        Whether decimal commas are stated. If they are a default, 1,234 is ambiguous.
    """
    if "," not in cell and "." not in cell:
        return cell
    if _GROUPED_BY_POINT.fullmatch(cell):
        return AmbiguousNumber(cell)
    if not stated and _GROUPED_BY_COMMA.fullmatch(cell):
        return AmbiguousNumber(cell)
    return CommaNumber(cell) if _WITH_COMMA.fullmatch(cell) else cell


def may_group_digits(cell: object) -> bool:
    """Return whether a text that is no number may be one with a mark between groups of digits."""
    return isinstance(cell, str) and _GROUPED.fullmatch(cell) is not None


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
        where = "" if index is None else f"record {index}, counted from 0: "
        super().__init__(f"{where}{said}")
        self.problems: list[tuple[int | None, str]] = [(index, said)]


class Problems:
    """Collect what is wrong with the columns of a table, for one error about all of them.

    Examples
    --------
    >>> from dpmesh.tables.cells import Problems, TableError
    >>> problems = Problems()
    >>> with problems.collected():
    ...     raise TableError(2, "age is missing")
    >>> len(problems.errors)
    1
    """

    def __init__(self) -> None:
        self.errors: list[TableError] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep a `TableError` instead of raising it."""
        try:
            yield
        except TableError as error:
            self.errors.append(error)

    def check(self) -> None:
        """Raise one error for all that were collected, if there are any."""
        if not self.errors:
            return
        if len(self.errors) == 1:
            raise self.errors[0]
        together = TableError(None, "\n".join(map(str, self.errors)))
        together.problems = [problem for error in self.errors for problem in error.problems]
        raise together


@contextmanager
def of_file(path: str | PathLike[str]) -> Iterator[None]:
    """Name the file, and count records from 1, in what is said about its table."""
    try:
        yield
    except TableError as error:
        lines = [
            f"{fspath(path)}{'' if index is None else f', record {index + 1}'}: {said}"
            for index, said in error.problems
        ]
        raise ValueError("\n".join(lines)) from error


def name_of(cell: object) -> str | None:
    """Return the name that a cell is; None if there is no value.

    Two cells are the same name, or the same site, if and only if this gives the same text. A text
    is its own name: "1.1" and "1.10" are two. A number has the name by which it is written
    shortest: 1 and 1.0 are "1", and whole numbers of any size are exact.
    """
    if isinstance(cell, str):
        return str(cell)
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "backslashreplace")
    if cell is None or type(cell).__name__ in _ABSENT:
        return None
    if isinstance(cell, (bool, np.bool_)):
        return str(bool(cell))
    if isinstance(cell, Integral):
        return str(int(cell))
    if isinstance(cell, Decimal):
        if cell.is_nan():
            return None
        return format(cell, "f").rstrip("0").rstrip(".") if "." in format(cell, "f") else str(cell)
    if isinstance(cell, Real):
        value = float(cell)
        if math.isnan(value):
            return None
        return str(int(value)) if value.is_integer() else repr(value)
    return str(cell)


def value_of(cell: object) -> int | float | None:
    """Return the number that a cell is or writes, whole numbers exactly; None if it is none.

    True is 1, and so is the text "true". A text of digits with leading zeros is a code.
    """
    if isinstance(cell, AmbiguousNumber):
        return None
    if isinstance(cell, CommaNumber):
        cell = _with_point(cell)
    if isinstance(cell, str):
        if not _PLAIN.fullmatch(cell):
            return _BOOLEANS.get(cell.lower())
        if math.isinf(float(cell)):
            return None
        cell = Decimal(cell)
    if isinstance(cell, (bool, np.bool_, Integral)):
        return int(cell)
    if not isinstance(cell, (Real, Decimal)) or not math.isfinite(cell):
        return None
    number = Decimal(float(cell)) if isinstance(cell, Real) else cell
    return int(number) if number == int(number) else float(number)


def is_rounded(cell: object) -> bool:
    """Return whether a cell is a float that stands for several whole numbers."""
    return isinstance(cell, (float, np.floating)) and abs(cell) >= _EXACT


def _with_point(cell: str) -> str:
    return cell.strip().replace(".", "").replace(",", ".")


def is_missing(cell: object) -> bool:
    """Return whether a cell holds no value."""
    return name_of(cell) is None


def usually_missing(cell: object) -> bool:
    """Return whether a cell holds no value, or one of the words for it."""
    if isinstance(cell, (int, np.integer)):
        return False
    name = name_of(cell)
    return name is None or name.strip().lower() in MISSING


def number_of(cell: Any) -> float:
    """Return a cell as a finite number; NaN if it is none."""
    try:
        if isinstance(cell, str):
            if "_" in cell or isinstance(cell, AmbiguousNumber):
                return math.nan
            if isinstance(cell, CommaNumber):
                cell = _with_point(cell)
        elif isinstance(cell, _SPANS):
            return math.nan
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        word = cell.strip().lower() if isinstance(cell, str) else ""
        return float(_BOOLEANS.get(word, math.nan))
    return value if math.isfinite(value) else math.nan


def day_of(cell: object, form: str | None = None, zone: tzinfo = UTC) -> float:
    """Return a date or a time as days, with the second as a fraction; NaN if it is none.

    Parameters
    ----------
    cell
        A date, a time, or a text: ``2024-12-31``, perhaps with a time as in ``2024-12-31 23:59``.
    form
        How other texts write it, as `datetime.strptime` has it, such as ``%d.%m.%Y``. One that
        begins with a year stands alone.
    zone
        Time zone in which an instant is a day; a time that states no zone is one of it already.
    """
    moment = _moment_of(cell, form)
    if moment is None:
        return math.nan
    seconds = 0
    if isinstance(moment, datetime):
        if moment.tzinfo is not None:
            moment = _in_zone(moment, zone)
        seconds = 3600 * moment.hour + 60 * moment.minute + moment.second
    return moment.toordinal() + seconds / _DAY


def _in_zone(moment: datetime, zone: tzinfo) -> datetime:
    """Return an instant in a time zone; in its own one at the ends of the calendar."""
    try:
        return moment.astimezone(zone)
    except OverflowError:  # 9999-12-31T23:59Z, which some databases write, is in year 10000 there
        return moment


def states_zone(cell: object, form: str | None = None) -> bool:
    """Return whether a date or a time states a time zone, so that it is an instant."""
    moment = _moment_of(cell, form)
    return isinstance(moment, datetime) and moment.tzinfo is not None


def _moment_of(cell: object, form: str | None) -> date | None:
    """Return a date or a time; None if a cell is none."""
    try:
        if isinstance(cell, str):
            return _written(cell.strip(), form)
        if isinstance(cell, np.datetime64):
            cell = cell.astype("datetime64[s]").item()
    except (ValueError, OverflowError):
        return None
    if not isinstance(cell, date) or type(cell).__name__ in _ABSENT:
        return None
    return cell


def _written(text: str, form: str | None) -> date | None:
    """Return the time that a text writes; None if it writes none."""
    if form is None or form[:2] != "%Y":
        found = _DATE.fullmatch(text)
        if found is not None:
            moment = datetime.fromisoformat(found[1])
            offset = found[2]
            if offset is None:
                return moment
            zone = UTC if offset == "Z" else datetime.strptime(offset, "%z").tzinfo
            return moment.replace(tzinfo=zone)
    return None if form is None else datetime.strptime(text, form)


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
    if isinstance(cell, np.generic):
        cell = cell.item()
    return reprlib.repr(str(cell) if isinstance(cell, str) else cell)
