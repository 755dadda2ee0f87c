"""Public ranges of a table's columns, and the numbers that a model makes of its records.

What a column may hold is public knowledge, stated by the user and never read off the data: the
smallest and largest number, or the list of categories. A record is then encoded by itself, with
public numbers alone, which costs no privacy:

- a number is clipped to its range and mapped linearly onto [-1, 1];
- a category becomes one 0 or 1 for each category; one that is missing or not listed, only zeros;
- a missing number becomes the middle of its range, and a 1 in a column of its own;
- a constant 1 is the intercept;
- the record is divided by its L2 norm, so that no record weighs more than another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, nearest, number

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Category", "Columns", "Encoded", "Features", "Number", "Ranges", "read_ranges"]

Ranges: TypeAlias = Mapping[Any, Any] | Sequence[Any] | str | os.PathLike[str] | None
"""What `Columns.of` takes."""

_FORMS = (
    "[low, high] for numbers, a list of categories, {range = [low, high], missing = true}, "
    "or {categories = [..]}"
)


@dataclass(frozen=True, kw_only=True)
class Number:
    """A column of numbers.

    Parameters
    ----------
    low, high
        Public bounds; numbers beyond them are clipped.
    missing
        Whether numbers may be missing (NaN or None).

    Raises
    ------
    ValueError
        If the bounds are not finite, or `low` is not below `high`.
    """

    low: float
    high: float
    missing: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, number(name, getattr(self, name)))
        if self.low >= self.high:
            fail("range", "a low end below the high end", f"[{self.low:g}, {self.high:g}]")

    @property
    def width(self) -> int:
        """Number of features."""
        return 1 + self.missing

    def encode(self, name: str, values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], int]:
        """Return the features, shape (records, width), and how many numbers were clipped."""
        numbers = _numbers(name, values)
        absent = np.isnan(numbers)
        if absent.any() and not self.missing:
            wanted = f"no NaN (missing) values, unless its range has missing = true: {name} = "
            wanted += f"{{range = [{self.low:g}, {self.high:g}], missing = true}}"
            fail(name, wanted, f"NaN in record {absent.argmax()}, counted from 0")
        if np.isinf(numbers).any():
            fail(name, "finite numbers, no infinity (inf)", "infinity")
        outside = int(((numbers < self.low) | (numbers > self.high)).sum())
        inside = np.clip(numbers, self.low, self.high)
        scaled = (inside - self.low) / (self.high - self.low) * 2 - 1
        scaled[absent] = 0
        features = [scaled, absent.astype(np.float64)] if self.missing else [scaled]
        return np.stack(features, axis=1), outside

    def as_dict(self) -> dict[str, Any]:
        """Return it as a file of ranges has it."""
        return {"range": [self.low, self.high], "missing": self.missing}


@dataclass(frozen=True, kw_only=True)
class Category:
    """A column of categories, which may be missing.

    Parameters
    ----------
    categories
        All of them: texts, numbers or booleans, which are compared as Python does (1 is 1.0).

    Raises
    ------
    ValueError
        If there is none, or one is listed twice.
    """

    categories: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.categories, (list, tuple)) or not self.categories:
            fail("categories", "a list of at least 1 category", repr(self.categories))
        object.__setattr__(self, "categories", tuple(self.categories))
        if len({*map(_plain, self.categories)}) < len(self.categories):
            fail("categories", "each category once", list(self.categories))

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.categories)

    def encode(self, name: str, values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], int]:
        """Return the features, shape (records, width), and how many values are not listed."""
        places = {_plain(one): place for place, one in enumerate(self.categories)}
        found = [places.get(_plain(value), -1) for value in values.tolist()]
        known = np.array(found, dtype=np.int64)
        features = np.zeros((len(known), self.width))
        rows = np.flatnonzero(known >= 0)
        features[rows, known[rows]] = 1
        absent = sum(is_missing(value) for value in values.tolist())
        return features, len(known) - len(rows) - absent

    def as_dict(self) -> dict[str, Any]:
        """Return it as a file of ranges has it."""
        return {"categories": list(self.categories)}


class Encoded(NamedTuple):
    """Records as numbers.

    Attributes
    ----------
    features
        Shape (records, dim), in [-1, 1], rows of norm 1.
    outside
        By column, how many values were outside of its public range. It is computed from the data
        and covered by no epsilon: for the data's owner alone.
    """

    features: npt.NDArray[np.float64]
    outside: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns that a model reads, with their public ranges.

    Parameters
    ----------
    names
        One for each column.
    kinds
        What each holds.
    intercept
        Whether a constant 1 is added to each record.
    """

    names: tuple[str, ...]
    kinds: tuple[Number | Category, ...]
    intercept: bool = True

    @classmethod
    def of(cls, ranges: Ranges, names: Iterable[Any], *, intercept: bool = True) -> Columns:
        """Return the columns of these names.

        Parameters
        ----------
        ranges
            A mapping from each name to ``[low, high]``, a list of categories,
            ``{"range": [low, high], "missing": True}`` or ``{"categories": [..]}``; or the path of
            a TOML file with such keys; or one such range for all columns; or a list with one for
            each. None stands for ``(-1, 1)``.
        names
            Those of the table, in its order.
        intercept
            As above.

        Raises
        ------
        ValueError
            If a column has no range, a range has no column, or one is of another form.
        OSError
            If the file cannot be read.
        """
        order = [*names]
        if isinstance(ranges, (str, os.PathLike)):
            ranges = read_ranges(ranges)
        if ranges is None:
            ranges = (-1.0, 1.0)
        if isinstance(ranges, Mapping):
            given = ranges if {*order} & {*ranges} else {str(k): v for k, v in ranges.items()}
            by_name = {name: given.get(name, given.get(str(name))) for name in order}
            _match(by_name, given)
        elif _is_range(ranges) and (len(order) != 2 or not _is_range(ranges[0])):
            by_name = dict.fromkeys(order, ranges)
        elif not isinstance(ranges, Sequence):
            fail("ranges", "a mapping, a TOML file, or [low, high] for all columns", repr(ranges))
        elif len(ranges) == len(order):
            by_name = dict(zip(order, ranges, strict=True))
        else:
            wanted = f"a range for all, or one for each of the {len(order)} columns"
            fail("ranges", wanted, f"{len(ranges)}")
        kinds = tuple(_kind(str(name), each) for name, each in by_name.items())
        return cls(names=tuple(map(str, order)), kinds=kinds, intercept=intercept)

    @property
    def dim(self) -> int:
        """Number of features of an encoded record."""
        return self.intercept + sum(kind.width for kind in self.kinds)

    def encode(self, columns: Sequence[npt.NDArray[Any]]) -> Encoded:
        """Return the encoded records.

        Parameters
        ----------
        columns
            The values of each column, shape (records,), in the order of `names`.

        Raises
        ------
        ValueError
            If the number of columns differs, or one does not hold what its range allows.
        """
        if len(columns) != len(self.names):
            fail("X", f"{len(self.names)} features (columns)", len(columns))
        parts = [np.ones((len(columns[0]), 1))] if self.intercept else []
        outside = {}
        for name, kind, values in zip(self.names, self.kinds, columns, strict=True):
            features, beyond = kind.encode(name, np.asarray(values))
            parts.append(features)
            if beyond:
                outside[name] = beyond
        features = np.concatenate(parts, axis=1)
        norms = np.sqrt(np.square(features).sum(axis=1, keepdims=True))
        return Encoded(features / np.where(norms > 0, norms, 1), outside)

    def as_dict(self) -> dict[str, Any]:
        """Return them in plain types that JSON can hold."""
        kinds = [kind.as_dict() for kind in self.kinds]
        return {"names": list(self.names), "kinds": kinds, "intercept": self.intercept}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Columns:
        """Return the columns that `as_dict` gave."""
        names = tuple(saved["names"])
        kinds = tuple(map(_kind, names, saved["kinds"]))
        return cls(names=names, kinds=kinds, intercept=saved["intercept"])


@dataclass(frozen=True, kw_only=True)
class Features:
    """Records that are numbers already, which a model takes as they are.

    Parameters
    ----------
    dim
        Number of features of a record.
    """

    dim: int
    kinds: ClassVar[tuple[Number | Category, ...]] = ()
    intercept: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names for the features, which have none of their own."""
        return tuple(f"x{i}" for i in range(self.dim))

    def encode(self, records: Any) -> Any:
        """Return the features, shape (records, dim): an array, or a sparse matrix as it is.

        Raises
        ------
        ValueError
            If the shape differs, or they are no finite numbers.
        """
        sparse = hasattr(records, "tocsr")
        try:
            features = records if sparse else np.asarray(records, np.float64)
        except (TypeError, ValueError):
            fail("X", f"numbers, shape (records, {self.dim})", "something else")
        if len(features.shape) != 2 or features.shape[1] != self.dim:
            fail("X", f"shape (records, {self.dim}), features as in training", features.shape)
        if not np.isfinite(features.data if sparse else features).all():
            fail("X", "finite numbers", "NaN or infinity")
        return features

    def as_dict(self) -> dict[str, Any]:
        """Return it in plain types that JSON can hold."""
        return {"features": self.dim}


def read_ranges(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a TOML file of ranges.

    Raises
    ------
    ValueError
        If it is not TOML.
    OSError
        If it cannot be read.
    """
    try:
        content: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, or not UTF-8
        raise ValueError(f"{os.fspath(path)} is not a TOML file: {error}") from error
    return content


def as_range(name: str, given: Any) -> Number | Category:
    """Return the range of one column, from the form that a file or a mapping has.

    Raises
    ------
    ValueError
        If it has another form.
    """
    return _kind(name, given)


def _kind(name: str, given: Any) -> Number | Category:
    if isinstance(given, (Number, Category)):
        return given
    made: Number | Category | None = None
    try:
        if isinstance(given, Mapping) and {*given} <= {"range", "missing"} and "range" in given:
            low, high = given["range"]
            made = Number(low=low, high=high, missing=bool(given.get("missing", False)))
        elif isinstance(given, Mapping) and {*given} == {"categories"}:
            made = Category(categories=given["categories"])
        elif _is_range(given):
            made = Number(low=given[0], high=given[1])
        elif isinstance(given, (list, tuple)):
            made = Category(categories=tuple(given))
    except (TypeError, ValueError) as error:
        raise ValueError(f"ranges of {name}: {error}") from error
    if made is None:
        fail(f"ranges of {name}", _FORMS, repr(given))
    return made


def _match(by_name: Mapping[Any, Any], given: Mapping[Any, Any]) -> None:
    """Fail unless each column has a range and each range a column."""
    names = [str(name) for name in by_name]
    if strange := [str(name) for name in given if str(name) not in names]:
        hint = nearest(strange[0], names)
        wanted = "names of columns of the table (the label's go to classes= or target_range=)"
        fail("ranges", wanted, f"{strange[0]!r}{hint}")
    if lacking := [str(name) for name, each in by_name.items() if each is None]:
        wanted = f"a public range for each column to use, such as {lacking[0]} = [0, 100]"
        fail("ranges", wanted, f"none for {', '.join(lacking)}; leave out columns not to use")


def _is_range(given: Any) -> bool:
    return (
        isinstance(given, (list, tuple))
        and len(given) == 2
        and all(isinstance(end, Real) and not isinstance(end, bool) for end in given)
    )


def _numbers(name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if values.dtype.kind == "O":
        values = np.array([np.nan if is_missing(value) else value for value in values], object)
    if values.dtype.kind not in "biufO":
        wanted = "numbers; list the categories in its range if they are categories"
        fail(name, wanted, f"{values.dtype}")
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        fail(name, "numbers; list the categories in its range if they are categories", "texts")


def is_missing(value: object) -> bool:
    """Whether a value of a table stands for none."""
    return value is None or value != value or type(value).__name__ in ("NAType", "NaTType")


def _plain(value: object) -> object:
    """A category as it is compared: all numbers that are equal are one."""
    return float(value) if isinstance(value, Real) else value
