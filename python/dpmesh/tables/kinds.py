"""What a column may hold, and the features that its cells become, each by itself."""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, nearest, number, positive
from dpmesh.tables.cells import TableError, day_of, each, key_of, numbers_of, shown, usually_missing


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
        if absent.any() and not self.missing:
            first = int(absent.argmax())
            said = f"{name} is {shown(values[first])}, which is {self.noun}"
            if usually_missing(values[first]):
                said = f"{name} is missing"
            allow = f"{name} = {{{self.form}, missing = true}}"
            raise TableError(first, f"{said}; correct it, or allow missing values: {allow}")
        return numbers

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
            scaled = (np.clip(numbers, low, high) - low) / (high - low)
        scaled = self.start + (1 - self.start) * scaled
        scaled[absent] = 0
        features = [scaled]
        if self.missing:
            features.append(absent.astype(np.float64))
        return Read(np.stack(features, axis=1), clipped, unread)


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

    Raises
    ------
    ValueError
        If these are no two dates, the first before the last.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.tables.Dates(dates=("2020-01-01", "2021-01-01")).form
    'dates = ["2020-01-01", "2021-01-01"]'
    """

    dates: tuple[str, str]
    format: str | None = None
    noun: ClassVar[str] = 'no date (give its form beside dates, such as format = "%d.%m.%Y")'

    def __post_init__(self) -> None:
        given = self.dates
        if not isinstance(given, (list, tuple)) or len(given) != 2:
            fail("dates", 'the first and the last, such as ["2019-01-01", "2024-12-31"]', given)
        low, high = (day_of(one, self.format) for one in given)
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
        first, last = (day_of(one, self.format) for one in self.dates)
        return first, last

    @property
    def form(self) -> str:
        """The range as a file has it."""
        form = "" if self.format is None else f', format = "{self.format}"'
        return f'dates = ["{self.dates[0]}", "{self.dates[1]}"]{form}'

    def numbers(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return each cell in days, NaN where there is no date."""
        return each(lambda cell: day_of(cell, self.format), values, np.float64)

    def as_dict(self) -> dict[str, Any]:
        """Return the range as a file of ranges has it."""
        form = {} if self.format is None else {"format": self.format}
        return {"dates": list(self.dates), **form, "missing": self.missing}


@dataclass(frozen=True, kw_only=True)
class Category:
    """A column of categories, which may be missing, encoded as one 0 or 1 for each.

    Parameters
    ----------
    categories
        All of them: texts, numbers or booleans. 1, 1.0, "1" and true are one; "01" is another, but
        a 1 is it where "01" alone is listed. What is listed is never taken for a missing value.
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
    _places: dict[float | str | None, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = self.categories
        wrong = isinstance(given, (str, bytes, dict)) or not hasattr(given, "__len__")
        if wrong or not len(given):
            fail("categories", "a list of at least 1 category", repr(given))
        given = tuple(getattr(given, "tolist", lambda: given)())
        for one in given:
            if not isinstance(one, (str, Real, Decimal, np.bool_)) or key_of(one) is None:
                dated = isinstance(one, datetime.date)
                write = "; for dates write {dates = [first, last]}" if dated else ""
                fail("categories", f"texts, numbers or booleans{write}", repr(one))
        places: dict[float | str | None, int] = {}
        for place, one in enumerate(given):
            if (first := places.setdefault(key_of(one), place)) != place:
                same = f"{given[first]!r} and {one!r}, which are one"
                fail("categories", "each category once", same)
        others = [(key, place) for place, one in enumerate(given) for key in _other_keys(one)]
        claims = Counter(key for key, _ in others)
        for key, place in others:
            if claims[key] == 1:
                places.setdefault(key, place)
        object.__setattr__(self, "categories", given)
        object.__setattr__(self, "_places", places)
        if self.shares is not None:
            object.__setattr__(self, "shares", _checked_shares(self.shares, len(given)))

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
        return each(lambda cell: self._places.get(key_of(cell), -1), values, np.int64)

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


def _other_keys(category: Any) -> list[float]:
    """Return numbers that stand for a category if only one has them and they are not listed."""
    if not isinstance(category, str):
        value = key_of(category)
        if not isinstance(value, float) or value.is_integer() or abs(value) >= 1e38:
            return []
        return [float(np.float32(value))]  # as a column of float32 has it
    without_zeros = category.lstrip("0") or "0"  # as a reader has it that takes codes for numbers
    with_point = category.replace(",", ".")  # as a file with a decimal comma has it
    keys = {key_of(text) for text in (without_zeros, with_point) if text != category}
    return [key for key in keys if isinstance(key, float)]
