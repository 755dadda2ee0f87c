"""Kinds of columns: their public ranges, and the features that each cell becomes by itself."""

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


class EncodedColumn(NamedTuple):
    """The cells of a column as features.

    Attributes
    ----------
    features
        Shape (records, width).
    clipped
        Number of values outside of their range.
    unread
        The values that cannot be read, or are not listed, and count as missing.
    """

    features: npt.NDArray[np.float64]
    clipped: int
    unread: list[object]


@dataclass(frozen=True, kw_only=True)
class _NumericColumn:
    """A column of values in a public range, each encoded as one number."""

    missing: bool = False
    noun: ClassVar[str]
    """Words of errors for a cell without such a value."""

    start: ClassVar[float] = -1.0
    """The feature of the low end; that of the high end is 1."""

    @property
    def ends(self) -> tuple[float, float]:
        """The public bounds as numbers."""
        raise NotImplementedError

    @property
    def form(self) -> str:
        """The range as a file of ranges has it, without what follows its first key."""
        raise NotImplementedError

    def numbers(self, cells: Cells) -> npt.NDArray[np.float64]:
        """Return the number in each cell, NaN where there is none."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Number of features."""
        return 1 + self.missing

    @property
    def may_be_missing(self) -> bool:
        """True if a record may have no value."""
        return self.missing

    def required(self, name: str, cells: Cells) -> npt.NDArray[np.float64]:
        """Return the number in each cell, NaN where there is none.

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
            allow = f"{name} = {{{self.form}, missing = true}}"
            raise TableError(record, f"{problem}; correct it, or allow missing values: {allow}")
        return numbers

    def _check_unread(self, name: str, cells: Cells, absent: npt.NDArray[np.bool_]) -> None:
        """Fail if a value may not count as missing, since it could be read in two ways."""

    def encode(self, name: str, cells: Cells) -> EncodedColumn:
        """Return the features of a column, shape (records, width).

        Raises
        ------
        TableError
            If a value is missing or cannot be read, and the range does not allow that.
        """
        return self.encode_numbers(self.required(name, cells), cells)

    def encode_numbers(self, numbers: npt.NDArray[np.float64], cells: Cells) -> EncodedColumn:
        """Encode a column from its numbers, which were read from `cells`.

        `numbers` has the shape (records,), with NaN for a missing value.
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
        """Clip numbers to the range and map them linearly to features; NaN becomes 0."""
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
    >>> dm.tables.Number(low=0, high=100).form
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
        """The bounds."""
        return self.low, self.high

    @property
    def form(self) -> str:
        """The range as a file has it."""
        return f"range = [{self.low:.15g}, {self.high:.15g}]"

    def numbers(self, cells: Cells) -> npt.NDArray[np.float64]:
        """Return the number in each cell, NaN where there is none."""
        return numbers_of(cells)

    def _check_unread(self, name: str, cells: Cells, absent: npt.NDArray[np.bool_]) -> None:
        for record in np.flatnonzero(absent):
            if may_group_digits(cells[record]):
                problem = f"{name} is {shown(cells[record])}, in which a mark may group digits"
                remedy = "delete such marks, or state the decimal mark (--decimal . or --decimal ,)"
                raise TableError(int(record), f"{problem}; {remedy}")

    def as_dict(self) -> JsonObject:
        """Return the range as a file of ranges has it."""
        return {"range": [self.low, self.high], "missing": self.missing}


@dataclass(frozen=True, kw_only=True)
class Count(Number):
    """A label that counts something, encoded as a share of its bound.

    Parameters
    ----------
    high
        Public bound; counts beyond it are clipped.
    """

    low: float = field(default=0.0, init=False)
    missing: bool = field(default=False, init=False)
    start: ClassVar[float] = 0.0

    @property
    def form(self) -> str:
        """The range as a file has it."""
        return f"counts = {self.high:.15g}"

    def as_dict(self) -> JsonObject:
        """Return the range as a file of ranges has it."""
        return {"counts": self.high}

    def expected(self, scores: FloatArray) -> npt.NDArray[np.float64]:
        """Return the expected counts of scores, which are logarithms of their shares."""
        shares = np.exp(np.minimum(scores, 0))
        return np.asarray(self.high * shares)


@dataclass(frozen=True, kw_only=True)
class Flag(_NumericColumn):
    """A column of binary values: 1 or true, and 0 or false, encoded as 1 and 0.

    Parameters
    ----------
    missing
        True if values may be missing; every other value then counts as missing.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.tables.Flag().form
    'flag = true'
    """

    noun: ClassVar[str] = "neither true nor false, 1 nor 0 (list other words as categories)"
    start: ClassVar[float] = 0.0
    ends: ClassVar[tuple[float, float]] = (0.0, 1.0)
    form: ClassVar[str] = "flag = true"

    def numbers(self, cells: Cells) -> npt.NDArray[np.float64]:
        """Return 0, 1 or NaN for each cell."""
        numbers = numbers_of(cells)
        return np.where((numbers == 0) | (numbers == 1), numbers, np.nan)

    def as_dict(self) -> JsonObject:
        """Return the flag as a file of ranges has it."""
        return {"flag": True, "missing": self.missing}


@dataclass(frozen=True, kw_only=True)
class Dates(_NumericColumn):
    """A column of dates or times, encoded as one number in [-1, 1].

    Parameters
    ----------
    dates
        Public first and last date, as dates or as texts. Dates outside are clipped.
    format
        Format of dates in texts, as for `datetime.strptime`, such as ``%d.%m.%Y``. None stands for
        ``2024-12-31``, perhaps with a time as in ``2024-12-31 23:59:59``.
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
    >>> dm.tables.Dates(dates=("2020-01-01", "2021-01-01")).form
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
        zone = self._time_zone  # fails if there is no such zone
        if self.zone is None and any(states_zone(moment, self.format) for moment in dates):
            fail("dates", 'zone = "UTC", or another, beside times that state a zone', dates)
        low, high = (day_of(moment, self.format, zone) for moment in dates)
        if not low < high:
            expected = f"two dates{self._expected_form}, the first before the last"
            fail("dates", expected, f"[{', '.join(map(str, dates))}]")
        texts = tuple(
            str(moment) if isinstance(moment, datetime.date) else moment for moment in dates
        )
        object.__setattr__(self, "dates", texts)

    @property
    def _expected_form(self) -> str:
        if self.format is None:
            return ' such as "2024-12-31"'
        return f" of the form {self.format}"

    @property
    def ends(self) -> tuple[float, float]:
        """The bounds in days."""
        first, last = (day_of(moment, self.format, self._time_zone) for moment in self.dates)
        return first, last

    @property
    def _time_zone(self) -> datetime.tzinfo:
        if self.zone in (None, "UTC"):
            return UTC
        try:
            return ZoneInfo(self.zone)
        except (TypeError, ValueError, OSError, ZoneInfoNotFoundError):
            fail("zone", 'the name of a time zone, such as "Europe/Berlin"', repr(self.zone))

    @property
    def form(self) -> str:
        """The range as a file has it."""
        form = "" if self.format is None else f', format = "{self.format}"'
        zone = "" if self.zone is None else f', zone = "{self.zone}"'
        return f'dates = ["{self.dates[0]}", "{self.dates[1]}"]{form}{zone}'

    def numbers(self, cells: Cells) -> npt.NDArray[np.float64]:
        """Return each cell in days, NaN where there is no date."""
        zone = self._time_zone
        return map_cells(lambda cell: day_of(cell, self.format, zone), cells, np.float64)

    def required(self, name: str, cells: Cells) -> npt.NDArray[np.float64]:
        """Return each cell in days, NaN where there is no date.

        Raises
        ------
        TableError
            As for any range, or if a cell states a time zone and this range does not.
        """
        if self.zone is None and cells.dtype.kind != "M":
            instants = map_cells(lambda cell: states_zone(cell, self.format), cells, bool)
            if instants.any():
                record = int(instants.argmax())
                problem = f"{name} is {shown(cells[record])}, which states a time zone"
                remedy = f'state the zone whose days count: {{{self.form}, zone = "UTC"}}'
                raise TableError(record, f"{problem}; {remedy}")
        return super().required(name, cells)

    def as_dict(self) -> JsonObject:
        """Return the range as a file of ranges has it."""
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
        category with the same name, see `dpmesh.tables.cells.name_of`. The numbers 1 and 1.0 have
        the same name, and the texts "250.0" and "250.00" have different names. A cell without such
        a category belongs to the category with the same numeric value, if there is exactly one: a
        cell "1.0" or true to a category 1, and a cell 1 to a category "01". A listed category never
        counts as a missing value.
    shares
        For a label: the public share of each class among all records, as for
        `dpmesh.tables.models.Outline`.

    Raises
    ------
    ValueError
        If there is no category, a category is of another type, or one is listed twice. Also if
        there is not one positive share for each class, or the shares do not add up to 1.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.tables.Category(categories=("red", "green")).form
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
        object.__setattr__(self, "_by_name", _places_by_name(categories))
        object.__setattr__(self, "_by_number", _places_by_number(categories))
        if self.shares is not None:
            shares = _checked_shares(self.shares, len(categories))
            object.__setattr__(self, "shares", shares)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.categories)

    @property
    def form(self) -> str:
        """The range as a file of ranges has it."""
        return f"categories = {[*self.categories]}"

    def codes(self, cells: Cells) -> npt.NDArray[np.int64]:
        """Return the index of each cell's category, shape (records,); -1 if it has none."""
        return map_cells(self._place, cells, np.int64)

    def _place(self, cell: object) -> int:
        place = self._by_name.get(name_of(cell))
        if place is None:
            return self._by_number.get(value_of(cell), -1)
        return place

    def encode(self, name: str, cells: Cells) -> EncodedColumn:
        """Return the features of a column, shape (records, width)."""
        codes = self.codes(cells)
        features = np.zeros((len(codes), self.width))
        rows = np.flatnonzero(codes >= 0)
        features[rows, codes[rows]] = 1
        unlisted = cells[codes < 0]
        unread = [cell for cell in unlisted if not usually_missing(cell)]
        return EncodedColumn(features, 0, unread)

    def hint(self, cell: object) -> str:
        """Return the end of an error text: the category that was perhaps meant."""
        texts = [str(category) for category in self.categories]
        if isinstance(cell, str) and cell.strip() in texts:
            return " (remove the space?)"
        return nearest(str(cell), texts)

    def as_dict(self) -> JsonObject:
        """Return the category as a file of ranges has it."""
        return {"categories": list(self.categories)}


Kind: TypeAlias = Number | Flag | Dates | Category


def _checked_shares(shares: object, classes: int) -> tuple[float, ...]:
    """Return public shares of classes as a tuple; fail if they are not positive or not whole."""
    expected = f"{classes} positive numbers that add up to 1, the public share of each class"
    if not isinstance(shares, (list, tuple)) or len(shares) != classes:
        fail("shares", expected, repr(shares))
    checked = tuple(positive("shares", share) for share in shares)
    total = sum(checked)
    if abs(total - 1) > 0.01:
        fail("shares", expected, f"{list(checked)}, which add up to {total:.3g}")
    return checked


def _python_categories(categories: Any) -> tuple[Any, ...]:
    """Return categories as a file can hold them: texts, whole numbers, floats and booleans."""
    is_listing = hasattr(categories, "__len__") and not isinstance(
        categories, (str, bytes, Mapping)
    )
    if not is_listing or not len(categories):
        fail("categories", "a list of at least 1 category", repr(categories))
    if hasattr(categories, "tolist"):
        categories = categories.tolist()
    return tuple(_python_category(category) for category in categories)


def _python_category(category: object) -> str | bool | int | float | None:
    """Return one category as a file can hold it."""
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


def _places_by_name(categories: Sequence[object]) -> dict[str | None, int]:
    """Return the place of each category by its name; fail if two are one."""
    places: dict[str | None, int] = {}
    places_of_numbers: dict[int | float | None, int] = {}
    for place, category in enumerate(categories):
        first = places.setdefault(name_of(category), place)
        if first == place and not isinstance(category, str):
            first = places_of_numbers.setdefault(value_of(category), place)
        if first != place:
            same = f"{categories[first]!r} and {category!r}, which are one"
            fail("categories", "each category once", same)
    return places


def _places_by_number(categories: Sequence[object]) -> dict[int | float | None, int]:
    """Return the place of each category by its number, where it alone has this number.

    A number that two categories claim has the place -1. What a category is comes before other
    ways in which a file may write it.
    """
    places: dict[int | float | None, int] = {}
    for numbers_written_by in (_numbers, _other_numbers):
        claims = [
            (number, place)
            for place, category in enumerate(categories)
            for number in numbers_written_by(category)
        ]
        claimants = Counter(number for number, _ in claims)
        contested = {number for number, count in claimants.items() if count > 1}
        earlier = set(places)
        for claimed, place in claims:
            if claimed not in earlier:
                places[claimed] = -1 if claimed in contested else place
    return places


def _numbers(category: object) -> list[int | float]:
    """Return the number that a category is or writes, if there is one."""
    number = value_of(category)
    if number is None:
        return []
    return [number]


def _other_numbers(category: object) -> list[int | float]:
    """Return other numbers by which a file may have a category."""
    if isinstance(category, str):
        without_zeros = category.lstrip("0") or "0"  # as a reader of numbers has it
        with_point = category.replace(",", ".")  # as a file with decimal points has it
        texts = {without_zeros, with_point} - {category}
        return [number for text in texts for number in _numbers(text)]
    number = value_of(category)
    if not isinstance(number, float) or abs(number) >= 1e38:
        return []
    return [float(np.float32(number))]  # as a column of float32 has it
