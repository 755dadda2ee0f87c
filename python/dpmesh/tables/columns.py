"""The columns that a model reads, and the numbers that it makes of their cells."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, nearest
from dpmesh.tables.cells import Problems, TableError, shown
from dpmesh.tables.features import (
    BLOCK,
    COLUMNS,
    FeatureMap,
    Layout,
    centred,
    stored_type,
    unit,
    within_unit,
)
from dpmesh.tables.kinds import Dates, Kind, Number
from dpmesh.tables.ranges import are_ends, as_range, read_ranges
from dpmesh.tables.table import as_table

Ranges: TypeAlias = Mapping[Any, Any] | Sequence[Any] | str | os.PathLike[str] | None
"""What `Columns.of` takes."""


class Encoded(NamedTuple):
    """Records as numbers.

    All but the features is computed from the data and covered by no epsilon: for the data's owner
    alone.

    Attributes
    ----------
    features
        Shape (records, dim), in [-1, 1], rows of norm 1.
    outside
        By column, how many numbers were outside of their public range, and are clipped.
    unread
        By column, the values that could not be read or are not listed, and count as missing.
    absent
        Columns that the table does not have; all their values are missing.
    memory
        Flat array that begins with the features and has room for one more of each record; None if
        there is no room.

    Examples
    --------
    >>> import dpmesh as dm
    >>> columns = dm.tables.Columns.of({"age": [0, 100]}, ["age"])
    >>> encoded = columns.encode_table(dm.tables.as_table({"age": [50.0, 120.0]}))
    >>> encoded.outside
    {'age': 1}
    """

    features: npt.NDArray[np.float64]
    outside: dict[str, int]
    unread: dict[str, list[Any]]
    absent: tuple[str, ...] = ()
    memory: npt.NDArray[Any] | None = None

    def notices(self) -> list[str]:
        """Return in sentences what the data's owner should know."""
        records = len(self.features)
        return [
            *(f"{name}: no such column; all values count as missing" for name in self.absent),
            *(n for name, values in self.unread.items() for n in unlisted(name, values, records)),
            *(n for name, count in self.outside.items() for n in clipped(name, count, records)),
        ]


def clipped(name: str, count: int, records: int) -> list[str]:
    """Return the notice about numbers that are clipped, if there are any."""
    text = f"{name}: {count} of {records} values are outside of its range, and are clipped"
    return [text] if count else []


def unlisted(name: str, values: Sequence[Any], records: int) -> list[str]:
    """Return the notice about values that count as missing, with the most frequent one."""
    if not values:
        return []
    often = Counter(map(shown, values)).most_common(1)[0][0]
    which = f"{len(values)} of {records} values, such as {often}, cannot be read or are not listed"
    return [f"{name}: {which} in its range, and count as missing"]


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
    features
        What is made of the encoded columns.
    centre
        A released mean that is taken off these, perhaps with axes after it: see
        `dpmesh.tables.features.centred`. None takes nothing off.

    Examples
    --------
    >>> import dpmesh as dm
    >>> given = {"age": [0, 100], "smokes": ["no", "yes"]}
    >>> dm.tables.Columns.of(given, ["age", "smokes"]).dim
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
        names: Iterable[Any],
        *,
        intercept: bool = True,
        features: str = COLUMNS.name,
    ) -> Columns:
        """Return the columns of these names.

        Parameters
        ----------
        ranges
            A mapping from each name to ``[low, high]``, a list of categories,
            ``{"range": [low, high], "missing": True}``, ``{"categories": [..]}``,
            ``{"flag": True}`` or ``{"dates": [first, last]}``; or the path of a TOML file with such
            keys; or one such range for all columns; or a list with one for each. None stands for
            ``(-1, 1)``.
        names
            Those of the table, in its order.
        intercept
            As above.
        features
            Their name, such as ``"hats+cosines"``; see `dpmesh.tables.features`.

        Raises
        ------
        ValueError
            If a column has no range, a range has no column, or one is of another form; or if there
            are no such features, or they do not suit the columns.
        OSError
            If the file cannot be read.
        """
        order = [*names]
        if isinstance(ranges, (str, os.PathLike)):
            ranges = read_ranges(ranges)
        ranges = (-1.0, 1.0) if ranges is None else getattr(ranges, "tolist", lambda: ranges)()
        if isinstance(ranges, Mapping):
            given = ranges if {*order} & {*ranges} else {str(k): v for k, v in ranges.items()}
            by_name = {name: given.get(name, given.get(str(name))) for name in order}
            _match(by_name, given)
        elif are_ends(ranges) and (len(order) != 2 or not are_ends(ranges[0])):
            by_name = dict.fromkeys(order, ranges)
        elif not isinstance(ranges, Sequence):
            fail("ranges", "a mapping, a TOML file, or [low, high] for all columns", repr(ranges))
        elif len(ranges) == len(order):
            by_name = dict(zip(order, ranges, strict=True))
        else:
            wanted = f"a range for all, or one for each of the {len(order)} columns"
            fail("ranges", wanted, f"{len(ranges)}")
        kinds = tuple(as_range(str(name), each) for name, each in by_name.items())
        made = FeatureMap.of(features)
        return cls(names=tuple(map(str, order)), kinds=kinds, intercept=intercept, features=made)

    def __post_init__(self) -> None:
        self.features.width(self.layout)

    @property
    def layout(self) -> Layout:
        """What the encoded columns are, before other features are made of them."""
        ends = np.cumsum([0, *(kind.width for kind in self.kinds)]).tolist()
        numbers = [
            (place, place + 1 if kind.missing else -1)
            for place, kind in zip(ends, self.kinds, strict=False)
            if isinstance(kind, (Number, Dates))
        ]
        places, absent = zip(*numbers, strict=True) if numbers else ((), ())
        return Layout(width=ends[-1], numbers=places, absent=absent)

    @property
    def dim(self) -> int:
        """Number of features of an encoded record."""
        return self.intercept + self.features.width(self.layout) + (self.centre is not None)

    def less(self, centre: npt.NDArray[Any]) -> Columns:
        """Return the columns less a released mean, with a constant: see `centre`."""
        return replace(self, centre=tuple(centre.ravel().tolist()))

    def encode(self, columns: Sequence[npt.NDArray[Any]], *, compact: bool = False) -> Encoded:
        """Return the encoded records.

        Parameters
        ----------
        columns
            The values of each column, shape (records,), in the order of `names`.
        compact
            Whether features of a large table are stored in float32, with room for one more. No
            stored norm is above 1.

        Raises
        ------
        ValueError
            If the number of columns differs, or one does not hold what its range allows.
        """
        if len(columns) != len(self.names):
            fail("X", f"{len(self.names)} features (columns)", len(columns))
        parts, outside, unread = [], {}, {}
        problems = Problems()
        for name, kind, values in zip(self.names, self.kinds, columns, strict=True):
            with problems.collected():
                read = kind.encode(name, np.asarray(values))
                parts.append(read.features)
                if read.clipped:
                    outside[name] = read.clipped
                if read.unread:
                    unread[name] = read.unread
        problems.check()
        encoded = np.concatenate(parts, axis=1)
        dtype = stored_type(len(encoded), self.dim) if compact else np.float64
        if dtype == np.float64 and len(encoded) <= BLOCK:
            return Encoded(self._features_of(encoded), outside, unread)
        memory = np.empty(len(encoded) * (self.dim + 1), dtype)
        features = memory[: len(encoded) * self.dim].reshape(len(encoded), self.dim)
        for first in range(0, len(encoded), BLOCK):
            block = features[first : first + BLOCK]
            block[:] = self._features_of(encoded[first : first + BLOCK])
            if block.dtype == np.float32:
                within_unit(block)
        return Encoded(features, outside, unread, memory=memory)

    def _features_of(self, encoded: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the features of encoded columns, shape (records, dim), rows of norm 1."""
        features = self.features.encode(encoded, self.layout)
        if self.intercept:
            features = np.concatenate([np.ones((len(features), 1)), features], axis=1)
        features = unit(features)
        if self.centre is not None:
            features = centred(features, np.array(self.centre))
        return features

    def encode_table(self, table: Any) -> Encoded:
        """Return the encoded records of a table; a column that may be missing may be absent.

        Parameters
        ----------
        table
            What `dpmesh.tables.as_table` takes, with these columns, in any order and among others;
            or an array of shape (records, columns).

        Raises
        ------
        ValueError
            As `encode`, or if a column is absent that may not be missing.
        """
        held = as_table(table)
        absent = tuple(
            name
            for name, kind in zip(self.names, self.kinds, strict=True)
            if held.names is not None and kind.may_be_missing and name not in held.names
        )
        if absent and len(absent) == len(self.names):
            got = f"the columns {', '.join(held.names or ())}"
            remedy = "state header=False if the first line is a record (--no-header)"
            wanted = f"at least one of the columns {', '.join(self.names)}"
            raise TableError(None, f"wanted {wanted}, got {got}; {remedy}")
        held.select([name for name in self.names if name not in absent])  # or fail: one must exist
        if absent:
            held = held.with_missing(absent)
        return self.encode(held.select(self.names).columns)._replace(absent=absent)

    def as_dict(self) -> dict[str, Any]:
        """Return them in plain types that JSON can hold."""
        return {
            "names": list(self.names),
            "kinds": [kind.as_dict() for kind in self.kinds],
            "intercept": self.intercept,
            "features": self.features.as_dict(),
            **({} if self.centre is None else {"centre": list(self.centre)}),
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Columns:
        """Return the columns that `as_dict` gave."""
        names = tuple(saved["names"])
        kinds = tuple(map(as_range, names, saved["kinds"]))
        features = FeatureMap.from_dict(saved["features"])
        own = cls(names=names, kinds=kinds, intercept=saved["intercept"], features=features)
        return own.less(np.array(saved["centre"])) if "centre" in saved else own


@dataclass(frozen=True, kw_only=True)
class Features:
    """Records that are numbers already, which a model takes as they are.

    Parameters
    ----------
    dim
        Number of features of a record.
    centre
        As of `Columns`; the last one of the features is then a constant.

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
        """Names for the features, which have none of their own."""
        return tuple(f"x{i}" for i in range(self._given))

    @property
    def _given(self) -> int:
        """Number of features that a record comes with."""
        return self.dim - (self.centre is not None)

    def less(self, centre: npt.NDArray[Any]) -> Features:
        """Return the features less a released mean, with a constant: see `Columns.less`."""
        return Features(dim=self.dim + 1, centre=tuple(centre.ravel().tolist()))

    def encode(self, records: Any) -> Any:
        """Return the features, shape (records, dim): an array, or a sparse matrix as it is.

        Raises
        ------
        ValueError
            If the shape differs, or they are no finite numbers.
        """
        sparse = hasattr(records, "tocsr")
        try:
            features: Any = records if sparse else np.asarray(records, np.float64)
        except (TypeError, ValueError):
            fail("X", f"numbers, shape (records, {self._given})", "something else")
        if len(features.shape) != 2 or features.shape[1] != self._given:
            fail("X", f"shape (records, {self._given}), features as in training", features.shape)
        if not np.isfinite(features.data if sparse else features).all():
            fail("X", "finite numbers", "NaN or infinity")
        if self.centre is None:
            return features
        return centred(features.toarray() if sparse else features, np.array(self.centre))

    def as_dict(self) -> dict[str, Any]:
        """Return the features in plain types that JSON can hold."""
        centre = {} if self.centre is None else {"centre": list(self.centre)}
        return {"features": self._given, **centre}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Features:
        """Return the features that `as_dict` gave."""
        own = cls(dim=saved["features"])
        return own.less(np.array(saved["centre"])) if "centre" in saved else own


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
