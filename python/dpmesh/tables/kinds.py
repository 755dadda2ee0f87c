"""Kinds of columns, each with its public range: `Number`, `Count`, `Flag`, `Dates`, `Category`.

A kind reads the cells of a column and encodes each cell as one or more numbers, by itself. The
property `toml` is the range as a file of ranges states it (`dpmesh.tables.ranges` reads such
files). `Number`, `Flag` and `Dates` map a number linearly to one feature, with a second feature if
values may be missing; `Category` is one-hot encoding.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from dpmesh._files import JsonObject
from dpmesh._validate import fail, nearest, number, positive
from dpmesh.tables.cells import (
    UTC,
    Cells,
    FloatArray,
    TableError,
    day_of,
    map_cells,
    may_group_digits,
    name_of,
    numbers_of,
    shown,
    states_zone,
    usually_missing,
    value_of,
)

_NEAR_LARGEST_FLOAT32 = 1e38
"""Magnitude from which on a number is not converted to float32, where it might be infinite."""


class EncodedColumn(NamedTuple):
    """A column encoded as features.

    Attributes
    ----------
    features
        Features, shape (records, width).
    clipped
        Number of values outside of the public range, which were clipped.
    unread
        Values that cannot be read, or are not listed, and count as missing.
    """

    features: npt.NDArray[np.float64]
    clipped: int
    unread: list[object]


@dataclass(frozen=True, kw_only=True)
class _NumericColumn:
    """A column of numbers or dates in a public range, each encoded as one feature.

    Parameters
    ----------
    missing
        True if values may be missing; a second feature is then 1 for a missing value.
    """

    missing: bool = False
    noun: ClassVar[str]
    """Words of an error about a cell that holds no such value."""

    start: ClassVar[float] = -1.0
    """Feature of a value at the low bound; a value at the high bound has the feature 1."""

    @property
    def ends(self) -> tuple[float, float]:
        """The public bounds (low, high) as numbers."""
        raise NotImplementedError

    @property
    def toml(self) -> str:
        """The range as TOML, such as ``range = [0, 100]``, without the key ``missing``."""
        raise NotImplementedError

    def numbers(self, cells: Cells) -> npt.NDArray[np.float64]:
        """Return the number in each cell, shape (records,); NaN for a cell without one."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Number of features."""
        return 1 + self.missing

    @property
    def may_be_missing(self) -> bool:
        """True if a record may have no value."""
        return self.missing

    def checked_numbers(self, name: str, cells: Cells) -> npt.NDArray[np.float64]:
        """Return the number in each cell, shape (records,); fail if one is missing unexpectedly.

        With `missing`, the number of a missing value is NaN.

        Parameters
        ----------
        name
            Name of the column, for errors.
        cells
            Cells of the column, shape (records,).

        Raises
        ------
        TableError
            If a value is missing or cannot be read, and the range does not allow that.
        """
        numbers = self.numbers(cells)
        absent = np.isnan(numbers)
        self._check_unread(name, cells, absent)
        if absent.any() and not self.missing:
            record = int(absent.argmax())
            cell = cells[record]
            if usually_missing(cell):
                problem = f"{name} is missing"
            else:
                problem = f"{name} is {shown(cell)}, which is {self.noun}"
            allow = f"{name} = {{{self.toml}, missing = true}}"
            raise TableError(record, f"{problem}; correct it, or allow missing values: {allow}")
        return numbers

    def _check_unread(self, name: str, cells: Cells, absent: npt.NDArray[np.bool_]) -> None:
        """Fail if a cell could be read in two ways, so that it may not count as missing.

        Parameters
        ----------
        name, cells
            As for `checked_numbers`.
        absent
            Mask of the cells without a number, shape (records,).
        """

    def encode(self, name: str, cells: Cells) -> EncodedColumn:
        """Return the features of a column, shape (records, width).

        Raises
        ------
        TableError
            If a value is missing or cannot be read, and the range does not allow that.
        """
        return self.encode_numbers(self.checked_numbers(name, cells), cells)

    def encode_numbers(self, numbers: npt.NDArray[np.float64], cells: Cells) -> EncodedColumn:
        """Encode a column whose numbers were read already.

        Parameters
        ----------
        numbers
            The number in each cell, shape (records,); NaN for a missing value.
        cells
            Cells of the column, shape (records,).
        """
        absent = np.isnan(numbers)
        unread = [cell for cell in cells[absent] if not usually_missing(cell)]
        low, high = self.ends
        with np.errstate(invalid="ignore"):
            outside = (numbers < low) | (numbers > high)
        features = [self.scaled(numbers)]
        if self.missing:
            features.append(absent.astype(np.float64))
        return EncodedColumn(np.stack(features, axis=1), int(outside.sum()), unread)

    def scaled(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Clip numbers to the range and map them linearly to [start, 1]; NaN becomes 0."""
        low, high = self.ends
        with np.errstate(invalid="ignore"):
            fractions = (np.clip(numbers, low, high) - low) / (high - low)
        scaled = self.start + (1 - self.start) * fractions
        return np.where(np.isnan(numbers), 0.0, scaled)


@dataclass(frozen=True, kw_only=True)
class Number(_NumericColumn):
    """A column of numbers, encoded as one number in [-1, 1].

    Parameters
    ----------
    low, high
        Public bounds; numbers beyond them are clipped.
    missing
        True if numbers may be missing.

    Raises
    ------
    ValueError
        If the bounds are not finite, or `low` is not below `high`.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.tables.Number(low=0, high=100).toml
    'range = [0, 100]'
    """

    low: float
    high: float
    missing: bool = False
    noun: ClassVar[str] = "no number (list the categories in its range if it is one)"

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", number("low", self.low))
        object.__setattr__(self, "high", number("high", self.high))
        ends = f"[{self.low:g}, {self.high:g}]"
        if self.low >= self.high:
            fail("range", "a low end below the high end", ends)
        if not np.isfinite(self.high - self.low):
            fail("range", "ends of a finite distance", ends)

    @property
    def ends(self) -> tuple[float, float]:
        """The public bounds (low, high)."""
        return self.low, self.high

    @property
    def toml(self) -> str:
        """The range as TOML, such as ``range = [0, 100]``."""
        return f"range = [{self.low:.15g}, {self.high:.15g}]"

    def numbers(self, cells: Cells) -> npt.NDArray[np.float64]:
        """Return the number in each cell, shape (records,); NaN for a cell without one."""
        return numbers_of(cells)

    def _check_unread(self, name: str, cells: Cells, absent: npt.NDArray[np.bool_]) -> None:
        for record in np.flatnonzero(absent):
            if may_group_digits(cells[record]):
                problem = f"{name} is {shown(cells[record])}, in which a mark may group digits"
                remedy = "delete such marks, or state the decimal mark (--decimal . or --decimal ,)"
                raise TableError(int(record), f"{problem}; {remedy}")

    def as_dict(self) -> JsonObject:
        """Return the range as the content of a file of ranges."""
        return {"range": [self.low, self.high], "missing": self.missing}


@dataclass(frozen=True, kw_only=True)
class Count(Number):
    """A label that counts events, encoded as its share of a public bound, in [0, 1].

    Parameters
    ----------
    high
        Public bound; larger counts are clipped.
    """

    low: float = field(default=0.0, init=False)
    missing: bool = field(default=False, init=False)
    start: ClassVar[float] = 0.0

    @property
    def toml(self) -> str:
        """The range as TOML, such as ``counts = 50``."""
        return f"counts = {self.high:.15g}"

    def as_dict(self) -> JsonObject:
        """Return the range as the content of a file of ranges."""
        return {"counts": self.high}

    def expected(self, scores: FloatArray) -> npt.NDArray[np.float64]:
        """Return the expected counts ``high * exp(score)``, at most `high`, shape of `scores`."""
        shares = np.exp(np.minimum(scores, 0))
        return np.asarray(self.high * shares)


@dataclass(frozen=True, kw_only=True)
class Flag(_NumericColumn):
    """A column of binary values: 1 or true, and 0 or false, encoded as 1 and 0.

    Parameters
    ----------
    missing
        True if values may be missing; a cell that is not 0, 1, true or false then counts as
        missing.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.tables.Flag().toml
    'flag = true'
    """

    noun: ClassVar[str] = "neither true nor false, 1 nor 0 (list other words as categories)"
    start: ClassVar[float] = 0.0
    ends: ClassVar[tuple[float, float]] = (0.0, 1.0)
    toml: ClassVar[str] = "flag = true"

    def numbers(self, cells: Cells) -> npt.NDArray[np.float64]:
        """Return 0, 1 or NaN for each cell."""
        numbers = numbers_of(cells)
        return np.where((numbers == 0) | (numbers == 1), numbers, np.nan)

    def as_dict(self) -> JsonObject:
        """Return the range as the content of a file of ranges."""
        return {"flag": True, "missing": self.missing}


@dataclass(frozen=True, kw_only=True)
class Dates(_NumericColumn):
    """A column of dates or times, encoded as one number in [-1, 1].

    Parameters
    ----------
    dates
        Public first and last date, as dates or as texts. Dates outside are clipped.
    format
        Format of dates in texts, as for `datetime.strptime`, such as ``%d.%m.%Y``. None reads
        ``2024-12-31``, also with a time as in ``2024-12-31 23:59:59``.
    missing
        True if dates may be missing.
    zone
        Time zone of the dates, such as ``Europe/Berlin`` or ``UTC``. A time with a time zone is
        converted to `zone`; if `zone` is None, such a time is an error. A time without a time zone
        is taken as local time in `zone`.

    Raises
    ------
    ValueError
        If `dates` does not hold two dates, the first before the last, or the time zone is unknown.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.tables.Dates(dates=("2020-01-01", "2021-01-01")).toml
    'dates = ["2020-01-01", "2021-01-01"]'
    """

    dates: tuple[str, str]
    format: str | None = None
    zone: str | None = None
    noun: ClassVar[str] = 'no date (give its form beside dates, such as format = "%d.%m.%Y")'

    def __post_init__(self) -> None:
        dates = self.dates
        if not isinstance(dates, (list, tuple)) or len(dates) != 2:
            fail("dates", 'the first and the last, such as ["2019-01-01", "2024-12-31"]', dates)
        zone = self._time_zone  # fails if the zone is unknown
        if self.zone is None and any(states_zone(moment, self.format) for moment in dates):
            fail("dates", 'zone = "UTC", or another, beside times that state a zone', dates)
        low, high = (day_of(moment, self.format, zone) for moment in dates)
        if not low < high:
            expected = f"two dates{self._expected_format}, the first before the last"
            fail("dates", expected, f"[{', '.join(map(str, dates))}]")
        texts = tuple(
            str(moment) if isinstance(moment, datetime.date) else moment for moment in dates
        )
        object.__setattr__(self, "dates", texts)

    @property
    def _expected_format(self) -> str:
        """The format of dates, as the end of an error text."""
        if self.format is None:
            return ' such as "2024-12-31"'
        return f" of the form {self.format}"

    @property
    def ends(self) -> tuple[float, float]:
        """The public bounds (first, last) in days, as of `dpmesh.tables.cells.day_of`."""
        first, last = (day_of(moment, self.format, self._time_zone) for moment in self.dates)
        return first, last

    @property
    def _time_zone(self) -> datetime.tzinfo:
        """The time zone of the dates; UTC if none is stated."""
        if self.zone in (None, "UTC"):
            return UTC
        try:
            return ZoneInfo(self.zone)
        except (TypeError, ValueError, OSError, ZoneInfoNotFoundError):
            fail("zone", 'the name of a time zone, such as "Europe/Berlin"', repr(self.zone))

    @property
    def toml(self) -> str:
        """The range as TOML, such as ``dates = ["2020-01-01", "2021-01-01"]``."""
        text = f'dates = ["{self.dates[0]}", "{self.dates[1]}"]'
        if self.format is not None:
            text += f', format = "{self.format}"'
        if self.zone is not None:
            text += f', zone = "{self.zone}"'
        return text

    def numbers(self, cells: Cells) -> npt.NDArray[np.float64]:
        """Return each date in days, shape (records,); NaN for a cell without a date."""
        zone = self._time_zone
        return map_cells(lambda cell: day_of(cell, self.format, zone), cells, np.float64)

    def checked_numbers(self, name: str, cells: Cells) -> npt.NDArray[np.float64]:
        """Return each date in days, shape (records,); fail if one is missing unexpectedly.

        With `missing`, the number of a missing date is NaN.

        Parameters
        ----------
        name
            Name of the column, for errors.
        cells
            Cells of the column, shape (records,).

        Raises
        ------
        TableError
            If a date is missing or cannot be read, and the range does not allow that; or if a cell
            states a time zone and this range does not.
        """
        if self.zone is None and cells.dtype.kind != "M":
            has_zone = map_cells(lambda cell: states_zone(cell, self.format), cells, bool)
            if has_zone.any():
                record = int(has_zone.argmax())
                problem = f"{name} is {shown(cells[record])}, which states a time zone"
                remedy = f'state the zone whose days count: {{{self.toml}, zone = "UTC"}}'
                raise TableError(record, f"{problem}; {remedy}")
        return super().checked_numbers(name, cells)

    def as_dict(self) -> JsonObject:
        """Return the range as the content of a file of ranges."""
        content: JsonObject = {"dates": list(self.dates)}
        if self.format is not None:
            content["format"] = self.format
        if self.zone is not None:
            content["zone"] = self.zone
        content["missing"] = self.missing
        return content


@dataclass(frozen=True, kw_only=True)
class Category:
    """A column of categories in one-hot encoding; a missing or unlisted value is encoded as zeros.

    Parameters
    ----------
    categories
        All categories, from public knowledge: texts, numbers or booleans. A cell belongs to the
        category with the same name, see `dpmesh.tables.cells.name_of`: the numbers 1 and 1.0 have
        the same name, the texts "250.0" and "250.00" have different names. If no category has the
        name of the cell, the cell belongs to the category with the same numeric value, if there is
        exactly one: a cell "1.0" or true to a category 1, and a cell 1 to a category "01". A listed
        category never counts as a missing value.
    shares
        For a label: the public share of each class among all records, as for
        `dpmesh.tables.models.Outline`. None if not stated.

    Raises
    ------
    ValueError
        If there is no category, a category is of another type, or one is listed twice. Also if
        there is not one positive share for each class, or the shares do not add up to 1.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.tables.Category(categories=("red", "green")).toml
    "categories = ['red', 'green']"
    """

    categories: tuple[Any, ...]
    shares: tuple[float, ...] | None = None
    may_be_missing: ClassVar[bool] = True
    _by_name: dict[str | None, int] = field(init=False, repr=False, compare=False)
    _by_number: dict[int | float | None, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        categories = _python_categories(self.categories)
        object.__setattr__(self, "categories", categories)
        object.__setattr__(self, "_by_name", _codes_by_name(categories))
        object.__setattr__(self, "_by_number", _codes_by_number(categories))
        if self.shares is not None:
            shares = _checked_shares(self.shares, len(categories))
            object.__setattr__(self, "shares", shares)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.categories)

    @property
    def toml(self) -> str:
        """The range as text, such as ``categories = ['red', 'green']``."""
        return f"categories = {[*self.categories]}"

    def codes(self, cells: Cells) -> npt.NDArray[np.int64]:
        """Return the index of each cell's category, shape (records,); -1 for a cell without one."""
        return map_cells(self._code, cells, np.int64)

    def _code(self, cell: object) -> int:
        """Return the index of a cell's category: by name, or else by numeric value; -1 if none."""
        code = self._by_name.get(name_of(cell))
        if code is None:
            return self._by_number.get(value_of(cell), -1)
        return code

    def encode(self, name: str, cells: Cells) -> EncodedColumn:
        """Return the one-hot encoding of a column; `name` is not read."""
        codes = self.codes(cells)
        features = np.zeros((len(codes), self.width))
        rows = np.flatnonzero(codes >= 0)
        features[rows, codes[rows]] = 1
        unlisted = cells[codes < 0]
        unread = [cell for cell in unlisted if not usually_missing(cell)]
        return EncodedColumn(features, 0, unread)

    def hint(self, cell: object) -> str:
        """Return the end of an error text: the listed category most similar to a cell, if any."""
        texts = [str(category) for category in self.categories]
        if isinstance(cell, str) and cell.strip() in texts:
            return " (remove the space?)"
        return nearest(str(cell), texts)

    def as_dict(self) -> JsonObject:
        """Return the range as the content of a file of ranges."""
        return {"categories": list(self.categories)}


Kind: TypeAlias = Number | Flag | Dates | Category
"""Public range of a column."""


def _checked_shares(shares: object, classes: int) -> tuple[float, ...]:
    """Return public shares of classes as a tuple; fail unless they are positive and add up to 1."""
    expected = f"{classes} positive numbers that add up to 1, the public share of each class"
    if not isinstance(shares, (list, tuple)) or len(shares) != classes:
        fail("shares", expected, repr(shares))
    checked = tuple(positive("shares", share) for share in shares)
    total = sum(checked)
    if abs(total - 1) > 0.01:
        fail("shares", expected, f"{list(checked)}, which add up to {total:.3g}")
    return checked


def _python_categories(categories: Any) -> tuple[Any, ...]:
    """Convert categories to types that a file can hold: texts, integers, floats and booleans."""
    is_listing = hasattr(categories, "__len__") and not isinstance(
        categories, (str, bytes, Mapping)
    )
    if not is_listing or not len(categories):
        fail("categories", "a list of at least 1 category", repr(categories))
    if hasattr(categories, "tolist"):
        categories = categories.tolist()
    return tuple(_python_category(category) for category in categories)


def _python_category(category: object) -> str | bool | int | float | None:
    """Convert one category to a type that a file can hold."""
    if isinstance(category, str):
        return str(category)
    if isinstance(category, (bool, np.bool_)):
        return bool(category)
    if isinstance(category, Integral):
        return int(category)
    if isinstance(category, (Real, Decimal)) and value_of(category) is not None:
        if isinstance(category, Decimal) and category == category.to_integral_value():
            return value_of(category)
        return float(category)
    expected = "texts, numbers or booleans"
    if isinstance(category, datetime.date):
        expected += "; for dates write {dates = [first, last]}"
    return fail("categories", expected, repr(category))


def _codes_by_name(categories: Sequence[object]) -> dict[str | None, int]:
    """Return the index of each category by its name; fail if two categories are the same."""
    codes: dict[str | None, int] = {}
    codes_of_numbers: dict[int | float | None, int] = {}
    for code, category in enumerate(categories):
        first = codes.setdefault(name_of(category), code)
        if first == code and not isinstance(category, str):
            first = codes_of_numbers.setdefault(value_of(category), code)
        if first != code:
            same = f"{categories[first]!r} and {category!r}, which are one"
            fail("categories", "each category once", same)
    return codes


def _codes_by_number(categories: Sequence[object]) -> dict[int | float | None, int]:
    """Return the index of each category by the numbers that a cell of the category may hold.

    The exact numbers of all categories come first. Numbers in other notations of a category follow,
    if they are not among the exact ones. A number that belongs to two categories has the code -1.
    """
    codes: dict[int | float | None, int] = {}
    for numbers_of_category in (_exact_numbers, _numbers_in_other_notations):
        claims: list[tuple[int | float, int]] = []
        for code, category in enumerate(categories):
            claims += [(number, code) for number in numbers_of_category(category)]
        claim_counts = Counter(number for number, _ in claims)
        earlier_numbers = set(codes)
        for claimed, code in claims:
            if claimed in earlier_numbers:
                continue
            is_unique = claim_counts[claimed] == 1
            codes[claimed] = code if is_unique else -1
    return codes


def _exact_numbers(category: object) -> list[int | float]:
    """Return the number of a category in a list; empty if the category is not a number."""
    number = value_of(category)
    if number is None:
        return []
    return [number]


def _numbers_in_other_notations(category: object) -> list[int | float]:
    """Return numbers that a cell of this category may hold after a conversion by a program."""
    if isinstance(category, str):
        without_zeros = category.lstrip("0") or "0"  # a code read as a number
        with_point = category.replace(",", ".")  # a decimal comma
        texts = {without_zeros, with_point} - {category}
        return [number for text in texts for number in _exact_numbers(text)]
    number = value_of(category)
    if not isinstance(number, float) or abs(number) >= _NEAR_LARGEST_FLOAT32:
        return []
    return [float(np.float32(number))]  # a column stored in float32
