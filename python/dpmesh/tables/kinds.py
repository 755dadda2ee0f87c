"""What a column may hold, and the features that its cells become, each by itself."""

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

from dpmesh._validate import fail, nearest, number, positive
from dpmesh.tables.cells import (
    UTC,
    TableError,
    day_of,
    each,
    may_group_digits,
    name_of,
    numbers_of,
    shown,
    states_zone,
    usually_missing,
    value_of,
)


class Read(NamedTuple):
    """A column as features.

    Attributes
    ----------
    features
        Shape (records, width).
    clipped
        How many numbers lie outside of their range.
    unread
        The values that cannot be read, or are not listed, and count as missing.
    """

    features: npt.NDArray[np.float64]
    clipped: int
    unread: list[Any]


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A column of values in a range, each one number."""

    missing: bool = False
    noun: ClassVar[str]
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

    def numbers(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the number in each cell, NaN where there is none."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Number of features."""
        return 1 + self.missing

    @property
    def may_be_missing(self) -> bool:
        """Whether a record may have no value."""
        return self.missing

    def required(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the number in each cell, NaN where there is none.

        Raises
        ------
        TableError
            If a value is missing or cannot be read, and the range does not allow that.
        """
        numbers = self.numbers(values)
        absent = np.isnan(numbers)
        self._check_unread(name, values, absent)
        if absent.any() and not self.missing:
            first = int(absent.argmax())
            said = f"{name} is {shown(values[first])}, which is {self.noun}"
            if usually_missing(values[first]):
                said = f"{name} is missing"
            allow = f"{name} = {{{self.form}, missing = true}}"
            raise TableError(first, f"{said}; correct it, or allow missing values: {allow}")
        return numbers

    def _check_unread(
        self, name: str, values: npt.NDArray[Any], absent: npt.NDArray[np.bool_]
    ) -> None:
        """Fail if a value may not count as missing, since it could be read in two ways."""

    def encode(self, name: str, values: npt.NDArray[Any]) -> Read:
        """Return the features of a column, shape (records, width).

        Raises
        ------
        TableError
            If a value is missing or cannot be read, and the range does not allow that.
        """
        return self.encode_numbers(self.required(name, values), values)

    def encode_numbers(self, numbers: npt.NDArray[np.float64], values: npt.NDArray[Any]) -> Read:
        """Return the features of a column whose numbers were read from these values."""
        absent = np.isnan(numbers)
        unread = [v for v in values[absent] if not usually_missing(v)]
        low, high = self.ends
        with np.errstate(invalid="ignore"):
            clipped = int(((numbers < low) | (numbers > high)).sum())
        scaled = self.scaled(numbers)
        features = [scaled]
        if self.missing:
            features.append(absent.astype(np.float64))
        return Read(np.stack(features, axis=1), clipped, unread)

    def scaled(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return numbers as features, clipped to the range; 0 where there is none."""
        low, high = self.ends
        with np.errstate(invalid="ignore"):
            scaled = (np.clip(numbers, low, high) - low) / (high - low)
        scaled = self.start + (1 - self.start) * scaled
        return np.where(np.isnan(numbers), 0.0, scaled)


@dataclass(frozen=True, kw_only=True)
class Number(_Measured):
    """A column of numbers, encoded as one number in [-1, 1].

    Parameters
    ----------
    low, high
        Public bounds; numbers beyond them are clipped.
    missing
        Whether numbers may be missing.

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
        for name in ("low", "high"):
            object.__setattr__(self, name, number(name, getattr(self, name)))
        if self.low >= self.high:
            fail("range", "a low end below the high end", f"[{self.low:g}, {self.high:g}]")
        if not np.isfinite(self.high - self.low):
            fail("range", "ends of a finite distance", f"[{self.low:g}, {self.high:g}]")

    @property
    def ends(self) -> tuple[float, float]:
        """The bounds."""
        return self.low, self.high

    @property
    def form(self) -> str:
        """The range as a file has it."""
        return f"range = [{self.low:.15g}, {self.high:.15g}]"

    def numbers(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the number in each cell, NaN where there is none."""
        return numbers_of(values)

    def _check_unread(
        self, name: str, values: npt.NDArray[Any], absent: npt.NDArray[np.bool_]
    ) -> None:
        for record in np.flatnonzero(absent):
            if may_group_digits(values[record]):
                said = f"{name} is {shown(values[record])}, in which a mark may group digits"
                remedy = "delete such marks, or state the decimal mark (--decimal . or --decimal ,)"
                raise TableError(int(record), f"{said}; {remedy}")

    def as_dict(self) -> dict[str, Any]:
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

    def as_dict(self) -> dict[str, Any]:
        """Return the range as a file of ranges has it."""
        return {"counts": self.high}

    def expected(self, scores: Any) -> Any:
        """Return the expected counts of scores, which are logarithms of their shares."""
        return self.high * np.exp(np.minimum(scores, 0))


@dataclass(frozen=True, kw_only=True)
class Flag(_Measured):
    """A column of 1 or true, and 0 or false, encoded as 1 and 0.

    Parameters
    ----------
    missing
        Whether it may be missing, or hold something else.

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

    def numbers(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return 0, 1 or NaN for each cell."""
        numbers = numbers_of(values)
        return np.where((numbers == 0) | (numbers == 1), numbers, np.nan)

    def as_dict(self) -> dict[str, Any]:
        """Return the flag as a file of ranges has it."""
        return {"flag": True, "missing": self.missing}


@dataclass(frozen=True, kw_only=True)
class Dates(_Measured):
    """A column of dates or times, encoded as one number in [-1, 1].

    Parameters
    ----------
    dates
        The first and the last, as dates or as texts.
    format
        How texts write them, as `datetime.strptime` has it, such as ``%d.%m.%Y``. None stands for
        ``2024-12-31``, perhaps with a time as in ``2024-12-31 23:59:59``.
    missing
        Whether dates may be missing.
    zone
        Time zone whose days are counted, such as ``Europe/Berlin`` or ``UTC``. A time that states
        a zone is converted to it, and refused if it is None; other times are of this zone.

    Raises
    ------
    ValueError
        If these are no two dates, the first before the last, or there is no such zone.

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
        given = self.dates
        if not isinstance(given, (list, tuple)) or len(given) != 2:
            fail("dates", 'the first and the last, such as ["2019-01-01", "2024-12-31"]', given)
        zone = self._zone  # or fail: there must be one
        if self.zone is None and any(states_zone(one, self.format) for one in given):
            fail("dates", 'zone = "UTC", or another, beside times that state a zone', given)
        low, high = (day_of(one, self.format, zone) for one in given)
        if not low < high:
            got = f"[{', '.join(map(str, given))}]"
            fail("dates", f"two dates{self._written}, the first before the last", got)
        texts = (str(one) if isinstance(one, datetime.date) else one for one in given)
        object.__setattr__(self, "dates", tuple(texts))

    @property
    def _written(self) -> str:
        return ' such as "2024-12-31"' if self.format is None else f" of the form {self.format}"

    @property
    def ends(self) -> tuple[float, float]:
        """The bounds in days."""
        first, last = (day_of(one, self.format, self._zone) for one in self.dates)
        return first, last

    @property
    def _zone(self) -> datetime.tzinfo:
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

    def numbers(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return each cell in days, NaN where there is no date."""
        zone = self._zone
        return each(lambda cell: day_of(cell, self.format, zone), values, np.float64)

    def required(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return each cell in days, as of any range; a time zone must be stated for instants."""
        if self.zone is None and values.dtype.kind != "M":
            instants = each(lambda cell: states_zone(cell, self.format), values, bool)
            if instants.any():
                record = int(instants.argmax())
                said = f"{name} is {shown(values[record])}, which states a time zone"
                remedy = f'state the zone whose days count: {{{self.form}, zone = "UTC"}}'
                raise TableError(record, f"{said}; {remedy}")
        return super().required(name, values)

    def as_dict(self) -> dict[str, Any]:
        """Return the range as a file of ranges has it."""
        stated = {"format": self.format, "zone": self.zone}
        written = {name: value for name, value in stated.items() if value is not None}
        return {"dates": list(self.dates), **written, "missing": self.missing}


@dataclass(frozen=True, kw_only=True)
class Category:
    """A column of categories, which may be missing, encoded as one 0 or 1 for each.

    Parameters
    ----------
    categories
        All of them: texts, numbers or booleans. A cell is the category whose name it has: see
        `dpmesh.tables.cells.name_of`. "250.0" and "250.00" are two; 1 and 1.0 are one. A cell of
        another name is the category that is or writes the same number, if one alone does: "1.0"
        and true are 1, and 1 is "01". What is listed is never taken for a missing value.
    shares
        Of a label: which share of all records each class has, from public knowledge, as for
        `dpmesh.tables.models.Outline`.

    Raises
    ------
    ValueError
        If there is none, one is something else, or one is listed twice; if the shares are not
        positive, one for each class, or do not add up to 1.

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
        categories = _plain(self.categories)
        object.__setattr__(self, "categories", categories)
        object.__setattr__(self, "_by_name", _by_name(categories))
        object.__setattr__(self, "_by_number", _by_number(categories))
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

    def codes(self, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the place of each cell among the categories, shape (records,); else -1."""
        return each(self._place, values, np.int64)

    def _place(self, cell: object) -> int:
        place = self._by_name.get(name_of(cell))
        return self._by_number.get(value_of(cell), -1) if place is None else place

    def encode(self, name: str, values: npt.NDArray[Any]) -> Read:
        """Return the features of a column, shape (records, width)."""
        codes = self.codes(values)
        features = np.zeros((len(codes), self.width))
        rows = np.flatnonzero(codes >= 0)
        features[rows, codes[rows]] = 1
        absent = codes < 0
        return Read(features, 0, [v for v in values[absent] if not usually_missing(v)])

    def hint(self, cell: Any) -> str:
        """Return which category was perhaps meant."""
        texts = [str(one) for one in self.categories]
        if isinstance(cell, str) and cell.strip() in texts:
            return " (remove the space?)"
        return nearest(str(cell), texts)

    def as_dict(self) -> dict[str, Any]:
        """Return the category as a file of ranges has it."""
        return {"categories": list(self.categories)}


Kind: TypeAlias = Number | Flag | Dates | Category


def _checked_shares(given: Any, classes: int) -> tuple[float, ...]:
    wanted = f"{classes} positive numbers that add up to 1, the public share of each class"
    if not isinstance(given, (list, tuple)) or len(given) != classes:
        fail("shares", wanted, repr(given))
    shares = tuple(positive("shares", one) for one in given)
    if abs(sum(shares) - 1) > 0.01:
        fail("shares", wanted, f"{list(shares)}, which add up to {sum(shares):.3g}")
    return shares


def _plain(given: Any) -> tuple[Any, ...]:
    """Return categories as a file can hold them: texts, whole numbers, floats and booleans."""
    if isinstance(given, (str, bytes, Mapping)) or not hasattr(given, "__len__") or not len(given):
        fail("categories", "a list of at least 1 category", repr(given))
    categories: list[Any] = []
    for one in getattr(given, "tolist", lambda: given)():
        if isinstance(one, str):
            categories.append(str(one))
        elif isinstance(one, (bool, np.bool_)):
            categories.append(bool(one))
        elif isinstance(one, Integral):
            categories.append(int(one))
        elif isinstance(one, (Real, Decimal)) and value_of(one) is not None:
            whole = isinstance(one, Decimal) and one == one.to_integral_value()
            categories.append(value_of(one) if whole else float(one))
        else:
            dated = isinstance(one, datetime.date)
            write = "; for dates write {dates = [first, last]}" if dated else ""
            fail("categories", f"texts, numbers or booleans{write}", repr(one))
    return tuple(categories)


def _by_name(categories: Sequence[Any]) -> dict[str | None, int]:
    """Return the place of each category by its name; fail if two are one."""
    places: dict[str | None, int] = {}
    numbers: dict[int | float | None, int] = {}
    for place, one in enumerate(categories):
        first = places.setdefault(name_of(one), place)
        if first == place and not isinstance(one, str):
            first = numbers.setdefault(value_of(one), place)
        if first != place:
            same = f"{categories[first]!r} and {one!r}, which are one"
            fail("categories", "each category once", same)
    return places


def _by_number(categories: Sequence[Any]) -> dict[int | float | None, int]:
    """Return the place of each category by its number, where it alone has this number."""
    found: dict[int | float | None, int] = {}
    for numbers_of_one in (_numbers, _other_numbers):
        claims = [(number, p) for p, one in enumerate(categories) for number in numbers_of_one(one)]
        counts = Counter(number for number, _ in claims)
        known = {*found} | {number for number, count in counts.items() if count > 1}
        found |= {number: place for number, place in claims if number not in known}
        found |= dict.fromkeys(known - {*found}, -1)
    return found


def _numbers(category: Any) -> list[int | float]:
    """Return the number that a category is or writes, if there is one."""
    number = value_of(category)
    return [] if number is None else [number]


def _other_numbers(category: Any) -> list[int | float]:
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
