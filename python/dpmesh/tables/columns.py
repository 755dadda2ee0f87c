"""The columns that a model reads, and their encoding as features.

`Columns.of` combines public ranges with the names of a table's columns. `Columns.encode` turns each
cell into numbers (`dpmesh.tables.kinds`), applies the feature map (`dpmesh.tables.features`),
appends the intercept, and scales each record to norm 1. `Features` stands in for `Columns` in a
model of numeric features that need no encoding.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._files import JsonObject
from dpmesh._rounded import BLOCK as ROUNDED_BLOCK
from dpmesh._rounded import RoundedFeatures
from dpmesh._validate import fail, nearest
from dpmesh.tables.cells import Cells, FloatArray, Problems, TableError, shown
from dpmesh.tables.features import BLOCK, COLUMNS, FeatureMap, Layout, centred, unit, within_unit
from dpmesh.tables.kinds import Dates, Kind, Number
from dpmesh.tables.ranges import are_ends, as_range, read_ranges
from dpmesh.tables.table import Table, TableLike, as_table

Ranges: TypeAlias = Mapping[Any, Any] | Sequence[Any] | str | os.PathLike[str] | None
"""Public ranges, in each form that `Columns.of` accepts."""


class Encoded(NamedTuple):
    """Encoded records: features of a model, with notices for the owner of the data.

    No epsilon covers this object: it is computed from the data without noise, for the owner of the
    data alone.

    Attributes
    ----------
    features
        Features in [-1, 1], shape (records, dim), rows of norm 1.
    outside
        Number of values outside of the public range, which were clipped, by column. A column
        without clipped values has no entry.
    unread
        Values that cannot be read or are not listed, and count as missing, by column.
    absent
        Names of columns that the table does not have; all their values are missing.
    memory
        Memory of `features` with room for one more feature of each record, for
        `dpmesh.tables.features.centred_in_place`: a flat array that begins with `features`, or the
        features in 8 bits. None without such room.

    Examples
    --------
    >>> import dpmesh as dm
    >>> columns = dm.tables.Columns.of({"age": [0, 100]}, ["age"])
    >>> encoded = columns.encode_table(dm.tables.as_table({"age": [50.0, 120.0]}))
    >>> encoded.outside
    {'age': 1}
    """

    features: Any
    outside: dict[str, int]
    unread: dict[str, list[object]]
    absent: tuple[str, ...] = ()
    memory: FloatArray | RoundedFeatures | None = None

    def notices(self) -> list[str]:
        """Describe clipped, unreadable and absent values, in a sentence for each column.

        The sentences are for the owner of the data alone: no epsilon covers them.
        """
        records = len(self.features)
        notices = [f"{name}: no such column; all values count as missing" for name in self.absent]
        for name, values in self.unread.items():
            notices += unlisted(name, values, records)
        for name, count in self.outside.items():
            notices += clipped(name, count, records)
        return notices


def clipped(name: str, count: int, records: int) -> list[str]:
    """Return a list with the notice about clipped values; empty if `count` is 0.

    Parameters
    ----------
    name
        Name of the column.
    count, records
        Number of clipped values, and of all records.
    """
    if not count:
        return []
    return [f"{name}: {count} of {records} values are outside of its range, and are clipped"]


def unlisted(name: str, values: Sequence[object], records: int) -> list[str]:
    """Return a list with the notice about values that count as missing; empty if there are none.

    Parameters
    ----------
    name
        Name of the column.
    values
        The values; the notice quotes the most frequent value.
    records
        Number of records.
    """
    if not values:
        return []
    ((most_frequent, _),) = Counter(map(shown, values)).most_common(1)
    which = f"{len(values)} of {records} values, such as {most_frequent}"
    return [f"{name}: {which}, cannot be read or are not listed in its range, and count as missing"]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns that a model reads, their public ranges, and their encoding as features.

    `Columns.of` makes this object from ranges in several forms.

    Parameters
    ----------
    names
        Name of each column.
    kinds
        Public range of each column: a `Number`, `Dates`, `Flag` or `Category`.
    intercept
        True to add a constant 1 to each record.
    features
        Feature map from the encoded columns to the features of a model.
    centre
        Privately released mean that is subtracted from the features, for private centering. It may
        be followed by privately released principal axes, see `dpmesh.tables.features.centred`. None
        subtracts nothing.

    Examples
    --------
    >>> import dpmesh as dm
    >>> ranges = {"age": [0, 100], "smokes": ["no", "yes"]}
    >>> dm.tables.Columns.of(ranges, ["age", "smokes"]).dim
    4
    """

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    intercept: bool = True
    features: FeatureMap = COLUMNS
    centre: tuple[float, ...] | None = None

    @classmethod
    def of(
        cls,
        ranges: Ranges,
        names: Iterable[object],
        *,
        intercept: bool = True,
        features: str = COLUMNS.name,
    ) -> Columns:
        """Make the columns from public ranges and names.

        Parameters
        ----------
        ranges
            Public ranges, never computed from the data: a mapping from the name of each column to
            its range, the path of a TOML file with such a mapping, a list with a range for each
            column, or one range for all columns. None stands for the range ``(-1, 1)``. A range is

            - ``[low, high]`` or ``{"range": [low, high]}`` for numbers;
            - ``{"dates": [first, last]}`` for dates;
            - ``{"flag": True}`` for 0 and 1, or false and true;
            - a list of categories, or ``{"categories": [..]}``.

            Add ``"missing": True`` to a range of numbers, dates or flags whose values may be
            missing.
        names
            Names of the table's columns, in its order.
        intercept
            True to add a constant 1 to each record.
        features
            Name of the features, such as ``"hats+cosines"``; see `dpmesh.tables.features`.

        Raises
        ------
        ValueError
            If a column has no range, a range has no column, or a range is none of these; or if the
            name of the features is unknown, or the features do not suit the columns.
        OSError
            If the file cannot be read.
        """
        column_names = [*names]
        descriptions = _descriptions_by_name(ranges, column_names)
        return cls(
            names=tuple(map(str, column_names)),
            kinds=tuple(as_range(str(name), content) for name, content in descriptions.items()),
            intercept=intercept,
            features=FeatureMap.of(features),
        )

    def __post_init__(self) -> None:
        self.features.width(self.layout)

    @property
    def layout(self) -> Layout:
        """Layout of the encoded columns, which `features` maps to the features of a model."""
        numbers = []
        missing_flags = []
        place = 0
        for kind in self.kinds:
            if isinstance(kind, (Number, Dates)):
                numbers.append(place)
                missing_flag = -1
                if kind.missing:
                    missing_flag = place + 1
                missing_flags.append(missing_flag)
            place += kind.width
        return Layout(width=place, numbers=tuple(numbers), absent=tuple(missing_flags))

    @property
    def dim(self) -> int:
        """Number of features of an encoded record."""
        return self.intercept + self.features.width(self.layout) + (self.centre is not None)

    def with_centre(self, centre: FloatArray) -> Columns:
        """Return the columns with a released mean to subtract: the parameter `centre`."""
        return replace(self, centre=tuple(centre.ravel().tolist()))

    def encode(
        self,
        columns: Sequence[Cells],
        *,
        dtype: type[np.floating[Any]] | type[np.int8] = np.float64,
    ) -> Encoded:
        """Encode records as features: rows of norm 1 with elements in [-1, 1].

        Parameters
        ----------
        columns
            Values of each column, shape (records,) each, in the order of `names`.
        dtype
            Type of the stored features: float64, float32, or int8 for `RoundedFeatures`. Large
            tables have the type that `stored_type` returns. No norm of rows that are stored in
            float32 or in 8 bits is above 1.

        Raises
        ------
        ValueError
            If the number of columns differs, or a cell does not hold what its range allows. One
            error describes all columns.
        """
        if len(columns) != len(self.names):
            fail("X", f"{len(self.names)} features (columns)", len(columns))
        parts = []  # shape (records, width) of each column
        outside: dict[str, int] = {}
        unread: dict[str, list[object]] = {}
        problems = Problems()
        for name, kind, cells in zip(self.names, self.kinds, columns, strict=True):
            with problems.collected():
                column = kind.encode(name, np.asarray(cells))
                parts.append(column.features)
                if column.clipped:
                    outside[name] = column.clipped
                if column.unread:
                    unread[name] = column.unread
        problems.check()
        records = len(parts[0])

        def features_of_block(first: int, size: int) -> npt.NDArray[np.float64]:
            columns_of_block = [part[first : first + size] for part in parts]
            return self._features_of(np.concatenate(columns_of_block, axis=1))

        if dtype == np.int8:
            rounded = RoundedFeatures.empty(records, self.dim, room=1)
            for first in range(0, records, ROUNDED_BLOCK):
                rounded.store(first, features_of_block(first, ROUNDED_BLOCK))
            return Encoded(rounded, outside, unread, memory=rounded)
        if dtype == np.float64 and records <= BLOCK:
            return Encoded(features_of_block(0, records), outside, unread)
        # room for one more feature of each record, see `Encoded.memory`
        memory: FloatArray = np.empty(records * (self.dim + 1), dtype)
        features = memory[: records * self.dim].reshape(records, self.dim)
        for first in range(0, records, BLOCK):
            block = features[first : first + BLOCK]
            block[:] = features_of_block(first, BLOCK)
            if block.dtype == np.float32:
                within_unit(block)
        return Encoded(features, outside, unread, memory=memory)

    def _features_of(self, encoded: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the features of encoded columns, shape (records, dim), rows of norm 1."""
        features = self.features.encode(encoded, self.layout)
        if self.intercept:
            constant = np.ones((len(features), 1))
            features = np.concatenate([constant, features], axis=1)
        features = unit(features)
        if self.centre is not None:
            features = centred(features, np.array(self.centre))
        return features

    def encode_table(self, table: TableLike) -> Encoded:
        """Encode the records of a table as features.

        Parameters
        ----------
        table
            Table in any form that `dpmesh.tables.as_table` accepts, or an array of shape (records,
            columns). A table has the columns by name, in any order, and may have others. It may
            lack columns whose values may be missing.

        Raises
        ------
        ValueError
            As `encode`, or if the table lacks a column whose values may not be missing.
        """
        records = as_table(table)
        absent = self._absent_from(records)
        if absent and len(absent) == len(self.names):
            expected = f"at least one of the columns {', '.join(self.names)}"
            existing = ", ".join(records.names or ())
            remedy = "state header=False if the first line is a record (--no-header)"
            raise TableError(None, f"wanted {expected}, got the columns {existing}; {remedy}")
        required = [name for name in self.names if name not in absent]
        records.select(required)  # fails if one of them does not exist
        if absent:
            records = records.with_missing(absent)
        columns = records.select(self.names).columns
        return self.encode(columns)._replace(absent=absent)

    def _absent_from(self, table: Table) -> tuple[str, ...]:
        """Return the names of columns that a table lacks and whose values may be missing."""
        if table.names is None:
            return ()
        absent = []
        for name, kind in zip(self.names, self.kinds, strict=True):
            if kind.may_be_missing and name not in table.names:
                absent.append(name)
        return tuple(absent)

    def as_dict(self) -> JsonObject:
        """Return the columns in plain types that JSON can hold."""
        content: JsonObject = {
            "names": list(self.names),
            "kinds": [kind.as_dict() for kind in self.kinds],
            "intercept": self.intercept,
            "features": self.features.as_dict(),
        }
        if self.centre is not None:
            content["centre"] = list(self.centre)
        return content

    @classmethod
    def from_dict(cls, saved: JsonObject) -> Columns:
        """Return the columns from a dictionary that `as_dict` returned."""
        names = tuple(saved["names"])
        columns = cls(
            names=names,
            kinds=tuple(map(as_range, names, saved["kinds"])),
            intercept=saved["intercept"],
            features=FeatureMap.from_dict(saved["features"]),
        )
        if "centre" in saved:
            return columns.with_centre(np.array(saved["centre"]))
        return columns


@dataclass(frozen=True, kw_only=True)
class Features:
    """Numeric features without encoding, for a model that was trained on an array of features.

    Parameters
    ----------
    dim
        Number of features of a record, with the constant that centering appends.
    centre
        As for `Columns`. With a centre the last feature is a constant.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.tables.Features(dim=3).names
    ('x0', 'x1', 'x2')
    """

    dim: int
    centre: tuple[float, ...] | None = None
    kinds: ClassVar[tuple[Kind, ...]] = ()
    intercept: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features: x0, x1, and so on."""
        return tuple(f"x{place}" for place in range(self._input_dim))

    @property
    def _input_dim(self) -> int:
        """Number of features of a record before a constant is appended."""
        if self.centre is None:
            return self.dim
        return self.dim - 1

    def with_centre(self, centre: FloatArray) -> Features:
        """Return the features with a released mean subtracted: see `Columns.with_centre`."""
        return Features(dim=self.dim + 1, centre=tuple(centre.ravel().tolist()))

    def encode(self, records: Any) -> Any:
        """Check features, subtract the centre if there is one, and return them.

        Parameters
        ----------
        records
            Array, or scipy sparse matrix, of finite numbers, shape (records, features).

        Returns
        -------
        Shape (records, dim). A sparse matrix stays sparse unless it is centered.

        Raises
        ------
        ValueError
            If the shape differs, or a number is not finite.
        """
        expected = f"shape (records, {self._input_dim})"
        is_sparse = hasattr(records, "tocsr")
        try:
            features: Any = records if is_sparse else np.asarray(records, np.float64)
        except (TypeError, ValueError):
            fail("X", f"numbers, {expected}", "something else")
        if len(features.shape) != 2 or features.shape[1] != self._input_dim:
            fail("X", f"{expected}, features as in training", features.shape)
        numbers = features.data if is_sparse else features
        if not np.isfinite(numbers).all():
            fail("X", "finite numbers", "NaN or infinity")
        if self.centre is None:
            return features
        if is_sparse:
            features = features.toarray()
        return centred(features, np.array(self.centre))

    def as_dict(self) -> JsonObject:
        """Return the features in plain types that JSON can hold."""
        content: JsonObject = {"features": self._input_dim}
        if self.centre is not None:
            content["centre"] = list(self.centre)
        return content

    @classmethod
    def from_dict(cls, saved: JsonObject) -> Features:
        """Return the features from a dictionary that `as_dict` returned."""
        features = cls(dim=saved["features"])
        if "centre" in saved:
            return features.with_centre(np.array(saved["centre"]))
        return features


def _descriptions_by_name(ranges: Any, names: Sequence[object]) -> dict[object, object]:
    """Return the description of the range of each column; fail unless each column has one.

    Parameters
    ----------
    ranges
        As for `Columns.of`.
    names
        Names of the table's columns.
    """
    if ranges is None:
        ranges = (-1.0, 1.0)
    if isinstance(ranges, (str, os.PathLike)):
        ranges = read_ranges(ranges)
    if hasattr(ranges, "tolist"):
        ranges = ranges.tolist()
    if isinstance(ranges, Mapping):
        return _match_by_name(ranges, names)
    if are_ends(ranges):
        return dict.fromkeys(names, ranges)
    if not isinstance(ranges, Sequence):
        fail("ranges", "a mapping, a TOML file, or [low, high] for all columns", repr(ranges))
    if len(ranges) != len(names):
        expected = f"a range for all, or one for each of the {len(names)} columns"
        fail("ranges", expected, str(len(ranges)))
    return dict(zip(names, ranges, strict=True))


def _match_by_name(ranges: Mapping[Any, object], names: Sequence[object]) -> dict[object, object]:
    """Return the ranges of a mapping by column; fail if a column or a range has no partner.

    A column name that is not a text, such as a number in pandas, may be a text in the mapping.
    """
    if not set(names) & set(ranges):
        ranges = {str(name): description for name, description in ranges.items()}
    descriptions = {name: ranges.get(name, ranges.get(str(name))) for name in names}
    texts = [str(name) for name in names]
    unknown = [str(name) for name in ranges if str(name) not in texts]
    if unknown:
        expected = "names of columns of the table (the label's go to classes= or target_range=)"
        fail("ranges", expected, f"{unknown[0]!r}{nearest(unknown[0], texts)}")
    without_range = [str(name) for name, content in descriptions.items() if content is None]
    if without_range:
        expected = f"a public range for each column to use, such as {without_range[0]} = [0, 100]"
        columns = ", ".join(without_range)
        fail("ranges", expected, f"none for {columns}; leave out columns not to use")
    return descriptions
