"""Reading of single cells: as a number, a date, a name of a category or site, or a missing value.

Each function reads a cell by itself, so that one record cannot change how another record is read.
`dpmesh.tables.kinds` reads whole columns with them.

A *name* (`name_of`) is the text by which categories and sites are compared. A *value* (`value_of`)
is an exact number, by which a category is found that a file writes differently. A *day* (`day_of`)
is a date as a number of days.
"""

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
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Cells: TypeAlias = npt.NDArray[Any]
"""The cells of a column, unconverted, shape (records,); or any other array of values."""

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
"""Numbers in float32 or float64."""

UTC = timezone.utc

MISSING = frozenset(
    {
        *("", "na", "n/a", "#n/a", "#na", "<na>", "nan", "-nan", "nat", "null", "none", "nil"),
        *("?", ".", "-", "--", "missing"),
    }
)
"""Lower-case words that stand for a missing value unless the public range lists them."""

UNDECODED = "\ufffd"
"""Character that replaces bytes that cannot be decoded."""

_PLAIN = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
"""A number without leading zeros: a text such as 0123 is a code, not a number."""

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
_SECONDS_PER_DAY = 86400.0

_NUMPY_TIMES = (np.datetime64, np.timedelta64)
_MISSING_TYPES = ("NAType", "NaTType")
"""Names of the classes of pandas' missing values."""

_INEXACT_FROM = 2**53
"""Smallest float that may be the rounded value of another whole number."""


class CommaNumber(str):
    """A text that writes a number with a decimal comma, such as 2,5 or 1.234,5."""

    __slots__ = ()


class AmbiguousNumber(str):
    """A text that may write two numbers, such as 1.234 in a file with decimal commas."""

    __slots__ = ()


def with_decimal_comma(cell: str, *, stated: bool) -> str:
    """Mark a text that writes a number with a decimal comma, or an ambiguous number.

    Parameters
    ----------
    cell
        The text.
    stated
        True if the user stated decimal commas; False if they are a default, with which a text such
        as 1,234 is ambiguous.

    Returns
    -------
    The same characters as a `CommaNumber`, an `AmbiguousNumber`, or unmarked.
    """
    if "," not in cell and "." not in cell:
        return cell
    if _GROUPED_BY_POINT.fullmatch(cell):
        return AmbiguousNumber(cell)
    if not stated and _GROUPED_BY_COMMA.fullmatch(cell):
        return AmbiguousNumber(cell)
    if _WITH_COMMA.fullmatch(cell):
        return CommaNumber(cell)
    return cell


def may_group_digits(cell: object) -> bool:
    """Return True for a text that may be a number with thousands separators."""
    return isinstance(cell, str) and _GROUPED.fullmatch(cell) is not None


class TableError(ValueError):
    """Error of a table that does not fit its public ranges.

    Parameters
    ----------
    index
        Index of the faulty record; None if the fault is in the whole table.
    description
        The problem and its remedy, as a sentence.

    Attributes
    ----------
    problems
        Record and description of each problem that this error reports.
    """

    def __init__(self, index: int | None, description: str) -> None:
        where = "" if index is None else f"record {index}, counted from 0: "
        super().__init__(f"{where}{description}")
        self.problems: list[tuple[int | None, str]] = [(index, description)]


class Problems:
    """Collector of the errors of several columns, raised as one error.

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
        """Raise one error with all collected problems, if there are any.

        Raises
        ------
        TableError
            If at least one error was collected.
        """
        if not self.errors:
            return
        if len(self.errors) == 1:
            raise self.errors[0]
        message = "\n".join(map(str, self.errors))
        combined = TableError(None, message)
        combined.problems = [problem for error in self.errors for problem in error.problems]
        raise combined


@contextmanager
def errors_naming_file(path: str | PathLike[str]) -> Iterator[None]:
    """Turn a `TableError` into a `ValueError` that names the file and counts records from 1."""
    file = fspath(path)
    try:
        yield
    except TableError as error:
        lines = []
        for index, description in error.problems:
            place = file if index is None else f"{file}, record {index + 1}"
            lines.append(f"{place}: {description}")
        raise ValueError("\n".join(lines)) from error


def name_of(cell: object) -> str | None:
    """Return the name of the category or site in a cell; None if the cell holds no value.

    Two cells hold the same category, or the same site, if and only if their names are equal. The
    name of a text is the text: "1.1" and "1.10" are two names. The name of a number is its shortest
    text: 1 and 1.0 have the name "1". Whole numbers of any size are exact.
    """
    if isinstance(cell, str):
        return str(cell)
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "backslashreplace")
    if cell is None or type(cell).__name__ in _MISSING_TYPES:
        return None
    if isinstance(cell, (bool, np.bool_)):
        return str(bool(cell))
    if isinstance(cell, Integral):
        return str(int(cell))
    if isinstance(cell, Decimal):
        return _name_of_decimal(cell)
    if isinstance(cell, Real):
        return _name_of_real(float(cell))
    return str(cell)


def _name_of_decimal(number: Decimal) -> str | None:
    """Return the shortest text of a decimal number; None if it is NaN."""
    if number.is_nan():
        return None
    digits = format(number, "f")
    if "." not in digits:
        return str(number)
    return digits.rstrip("0").rstrip(".")


def _name_of_real(number: float) -> str | None:
    """Return the shortest text of a float; None if it is NaN."""
    if math.isnan(number):
        return None
    if number.is_integer():
        return str(int(number))
    return repr(number)


def value_of(cell: object) -> int | float | None:
    """Return the number in a cell, whole numbers exactly; None if the cell holds no number.

    The cell may be a number or a text that writes a number. True and the text "true" are 1. A text
    of digits with leading zeros is a code, not a number.
    """
    if isinstance(cell, AmbiguousNumber):
        return None
    if isinstance(cell, CommaNumber):
        cell = _with_decimal_point(cell)
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
    integer = int(number)
    if number == integer:
        return integer
    return float(number)


def is_rounded(cell: object) -> bool:
    """Return True for a float so large that it may be rounded from another whole number."""
    return isinstance(cell, (float, np.floating)) and abs(cell) >= _INEXACT_FROM


def _with_decimal_point(text: str) -> str:
    """Convert the text of a number from a decimal comma to a decimal point."""
    without_groups = text.strip().replace(".", "")
    return without_groups.replace(",", ".")


def is_missing(cell: object) -> bool:
    """Return True if a cell has no value."""
    return name_of(cell) is None


def usually_missing(cell: object) -> bool:
    """Return True if a cell has no value, or one of the words in `MISSING`."""
    if isinstance(cell, (int, np.integer)):
        return False
    name = name_of(cell)
    return name is None or name.strip().lower() in MISSING


def number_of(cell: Any) -> float:
    """Return the finite number in a cell, as a float; NaN if the cell holds none."""
    if isinstance(cell, str):
        return _number_in_text(cell)
    if isinstance(cell, _NUMPY_TIMES):
        return math.nan
    try:
        number = float(cell)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    if math.isfinite(number):
        return number
    return math.nan


def _number_in_text(text: str) -> float:
    """Return the finite number that a text writes; NaN if it writes none."""
    if "_" in text or isinstance(text, AmbiguousNumber):
        return math.nan
    digits = _with_decimal_point(text) if isinstance(text, CommaNumber) else text
    try:
        number = float(digits)
    except ValueError:
        word = digits.strip().lower()
        return float(_BOOLEANS.get(word, math.nan))
    if math.isfinite(number):
        return number
    return math.nan


def day_of(cell: object, date_format: str | None = None, zone: tzinfo = UTC) -> float:
    """Return a date or a time as a number of days, with the time of day as a fraction.

    The result is NaN if the cell holds no date. Days are counted as by `date.toordinal`.

    Parameters
    ----------
    cell
        A date, a time, or a text: ``2024-12-31``, perhaps with a time as in ``2024-12-31 23:59``.
    date_format
        Format of other texts, as for `datetime.strptime`, such as ``%d.%m.%Y``. With a format that
        begins with the year, all texts must have this format.
    zone
        Time zone of the result. A time with a time zone is converted to `zone`; a time without one
        is taken as local time in `zone`.
    """
    moment = _moment_of(cell, date_format)
    if moment is None:
        return math.nan
    if not isinstance(moment, datetime):
        return float(moment.toordinal())
    if moment.tzinfo is not None:
        moment = _in_zone(moment, zone)
    seconds = 3600 * moment.hour + 60 * moment.minute + moment.second
    return moment.toordinal() + seconds / _SECONDS_PER_DAY


def _in_zone(moment: datetime, zone: tzinfo) -> datetime:
    """Return an instant in a time zone; unchanged at the ends of the calendar."""
    try:
        return moment.astimezone(zone)
    except OverflowError:  # 9999-12-31T23:59Z, which some databases write, is in year 10000 there
        return moment


def states_zone(cell: object, date_format: str | None = None) -> bool:
    """Return True if a cell holds a time with a time zone."""
    moment = _moment_of(cell, date_format)
    return isinstance(moment, datetime) and moment.tzinfo is not None


def _moment_of(cell: object, date_format: str | None) -> date | None:
    """Return the date or the time in a cell; None if it holds neither."""
    try:
        if isinstance(cell, str):
            return _moment_in_text(cell.strip(), date_format)
        if isinstance(cell, np.datetime64):
            cell = cell.astype("datetime64[s]").item()
    except (ValueError, OverflowError):
        return None
    if not isinstance(cell, date) or type(cell).__name__ in _MISSING_TYPES:
        return None
    return cell


def _moment_in_text(text: str, date_format: str | None) -> date | None:
    """Return the time that a text writes; None if it writes none.

    Raises
    ------
    ValueError
        If the text does not have the format, or names no day of the calendar.
    """
    if date_format is None or not date_format.startswith("%Y"):
        iso_date = _DATE.fullmatch(text)
        if iso_date is not None:
            return _with_offset(datetime.fromisoformat(iso_date[1]), iso_date[2])
    if date_format is None:
        return None
    return datetime.strptime(text, date_format)


def _with_offset(moment: datetime, offset: str | None) -> datetime:
    """Return a time with the zone that an offset such as Z or +02:00 states."""
    if offset is None:
        return moment
    if offset == "Z":
        return moment.replace(tzinfo=UTC)
    return moment.replace(tzinfo=datetime.strptime(offset, "%z").tzinfo)


def map_cells(parse: Callable[[Any], Any], cells: Cells, dtype: npt.DTypeLike) -> Cells:
    """Apply a function to each cell by itself; return the results, shape (records,).

    Equal texts, and equal whole numbers, are parsed once.

    Parameters
    ----------
    parse
        Function of a cell.
    cells
        Cells of a column, shape (records,).
    dtype
        Type of the resulting array.
    """
    parsed: dict[str | int, Any] = {}

    def parse_once(cell: Any) -> Any:
        if type(cell) not in (str, int):
            return parse(cell)
        result = parsed.get(cell)
        if result is None:
            result = parse(cell)
            parsed[cell] = result
        return result

    if cells.dtype.kind in "iu":
        distinct, positions = np.unique(cells, return_inverse=True)
        results = np.fromiter(map(parse, distinct.tolist()), dtype, len(distinct))
        return results[positions]
    if cells.dtype.kind in "mM":
        return np.fromiter(map(parse_once, cells), dtype, len(cells))
    return np.fromiter(map(parse_once, cells.tolist()), dtype, len(cells))


def numbers_of(cells: Cells) -> npt.NDArray[np.float64]:
    """Return the number in each cell, shape (records,); NaN where there is none."""
    if cells.dtype.kind not in "biuf":
        return map_cells(number_of, cells, np.float64)
    numbers = cells.astype(np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def shown(cell: object) -> str:
    """Return the text of a cell for an error message, shortened."""
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, str):
        cell = str(cell)
    return reprlib.repr(cell)
