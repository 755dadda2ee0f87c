"""Encoding of the progress of a run as JSON and arrays, for checkpoints; without pickle or code.

A *record* is a dataclass or a named tuple. `encode` turns records, collections, arrays, numbers and
texts into a *tree*, which JSON can store, and a dictionary of arrays. `decode` restores them to the
last bit. A tree names the classes of its records. They are looked up among the classes that the
reader expects (`classes_in`), so that a file cannot create other objects.

    value                                      tree
    -----------------------------------------  ------------------------------------------------
    None, truth value, number, text            the value itself
    array, or scalar of numpy                  {"array": name}, {"number": name}
    record                                     {"record": class, "fields": {field: tree, ..}}
    dataclass that occurred before             {"again": its number among the dataclasses}
    dictionary with texts as keys              {"dict": {key: tree, ..}}
    tuple, list                                {"tuple": [tree, ..]}, {"list": [tree, ..]}
    tuple or list of at least two records,     {"table": "tuple" or "list", "rows": length,
      frozen dataclasses of one class            "column": column}

The records of a table are one *column* of values. It is encoded in the first of three forms that
applies:

    values                                     column
    -----------------------------------------  ------------------------------------------------
    half as many runs as values, or fewer      {"runs": [[length, tree of the first, step], ..]}
    frozen dataclasses of one class            {"record": class, "columns": {field: column, ..}}
    others                                     {"each": [tree, ..]}

A run is equal values (step 0), or integers at equal steps. So releases that repeat round after
round take no more space than one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
"""Arrays by the names that replace them in a tree."""

Classes: TypeAlias = Mapping[str, Callable[..., Any]]
"""Classes of records by their full names."""

Tree: TypeAlias = Any
"""An encoded value, in the types of JSON."""

Value: TypeAlias = Any
"""A record, a collection, an array, a number or a text."""


def classes_in(value: object) -> Classes:
    """Return the classes of all records in a value, by name."""
    classes: dict[str, Callable[..., Value]] = {}
    if _is_record(value):
        classes[_name(type(value))] = type(value)
    for part in _parts(value).values():
        classes |= classes_in(part)
    return classes


def encode(value: object, arrays: Arrays) -> Tree:
    """Return a value as a tree, with names in place of its arrays, which go into `arrays`.

    Raises
    ------
    TypeError
        If there is something that cannot be stored.
    """
    return _Encoder(arrays).tree(value)


def decode(tree: Tree, arrays: Arrays, classes: Classes) -> Value:
    """Return the value that was encoded.

    Raises
    ------
    ValueError
        If the class of a record is not among `classes`, or the tree is no encoded value.
    """
    return _Decoder(arrays, classes).value(tree)


class _Run(NamedTuple):
    """A run in a column: equal values, or integers at equal steps.

    Attributes
    ----------
    length
        Number of values.
    first
        The first value.
    step
        Difference between integers that follow each other; 0 for equal values.
    """

    length: int
    first: Value
    step: int

    def values(self) -> list[Value]:
        """Return all values of the run."""
        if self.step == 0:
            return [self.first] * self.length
        return [self.first + self.step * place for place in range(self.length)]


@dataclass(frozen=True)
class _Encoder:
    """Encoder of one value, with what it has stored so far.

    Parameters
    ----------
    arrays
        The arrays so far, by name. It is changed.
    numbers
        Numbers of the dataclasses so far, by the identity of the object: 0, 1, ..
    """

    arrays: Arrays
    numbers: dict[int, int] = field(default_factory=dict)

    def tree(self, value: object) -> Tree:
        """Return the tree of a value."""
        if _is_numpy(value):
            array = np.asarray(value)
            if array.dtype.kind in "biufc":
                return self._stored_array(array, is_scalar=not isinstance(value, np.ndarray))
        elif value is None or isinstance(value, (bool, int, float, str)):
            return value
        if id(value) in self.numbers:
            return {"again": self.numbers[id(value)]}
        if isinstance(value, (tuple, list)) and _is_table(value):
            column = self.column([*value])
            return {"table": type(value).__name__, "rows": len(value), "column": column}
        parts = {name: self.tree(part) for name, part in _parts(value).items()}
        if is_dataclass(value):
            self.numbers[id(value)] = len(self.numbers)
        if _is_record(value):
            return {"record": _name(type(value)), "fields": parts}
        if type(value) is dict and all(isinstance(name, str) for name in value):
            return {"dict": parts}
        if type(value) in (tuple, list):
            return {type(value).__name__: list(parts.values())}
        expected = "dataclasses, tuples, lists and dictionaries of arrays, numbers and texts"
        raise TypeError(f"state: wanted {expected}, got {type(value).__name__}")

    def _stored_array(self, array: npt.NDArray[Any], *, is_scalar: bool) -> Tree:
        """Store an array, and return the tree with its name."""
        name = f"array_{len(self.arrays)}"
        self.arrays[name] = array
        if is_scalar:
            return {"number": name}
        return {"array": name}

    def column(self, values: list[Value]) -> Tree:
        """Return a column of values: as runs, as columns of records, or singly."""
        runs = [*_runs(values)]
        if 2 * len(runs) <= len(values):
            return {"runs": [[run.length, self.tree(run.first), run.step] for run in runs]}
        if _is_table(values):
            columns = {}
            for name in _parts(values[0]):
                columns[name] = self.column([getattr(record, name) for record in values])
            return {"record": _name(type(values[0])), "columns": columns}
        return {"each": [self.tree(value) for value in values]}


@dataclass(frozen=True)
class _Decoder:
    """Decoder of one value, with the dataclasses that it has decoded so far.

    Parameters
    ----------
    arrays
        The arrays, by name.
    classes
        Classes of the records that may occur, by name.
    dataclasses
        The dataclasses so far, in the order of their numbers.
    """

    arrays: Arrays
    classes: Classes
    dataclasses: list[Value] = field(default_factory=list)

    def value(self, tree: Tree) -> Value:
        """Return the value of a tree."""
        if not isinstance(tree, dict):
            return tree
        match tree:
            case {"array": name}:
                return self.arrays[name]
            case {"number": name}:
                return self.arrays[name][()]
            case {"again": number}:
                return self.dataclasses[number]
            case {"record": name, "fields": parts}:
                record = self._class(name)(**self.parts(parts))
                if is_dataclass(record):
                    self.dataclasses.append(record)
                return record
            case {"dict": parts}:
                return self.parts(parts)
            case {"tuple": items}:
                return tuple(self.value(item) for item in items)
            case {"list": items}:
                return [self.value(item) for item in items]
            case {"table": "tuple", "rows": rows, "column": column}:
                return tuple(self.column(column, rows))
            case {"table": _, "rows": rows, "column": column}:
                return self.column(column, rows)
        raise ValueError(f"checkpoint: wanted a known kind of value, got one of {', '.join(tree)}")

    def parts(self, parts: Tree) -> dict[str, Value]:
        """Return the values of a dictionary of trees."""
        return {name: self.value(part) for name, part in parts.items()}

    def column(self, column: Tree, rows: int) -> list[Value]:
        """Return the values of a column with this number of rows."""
        match column:
            case {"runs": runs}:
                values: list[Value] = []
                for length, first, step in runs:
                    values += _Run(length, self.value(first), step).values()
                return values
            case {"record": name, "columns": columns}:
                columns_of_values = {
                    field_name: self.column(part, rows) for field_name, part in columns.items()
                }
                make = self._class(name)
                records = []
                for row in range(rows):
                    parts = {
                        field_name: values[row] for field_name, values in columns_of_values.items()
                    }
                    records.append(make(**parts))
                return records
            case {"each": trees}:
                return [self.value(tree) for tree in trees]
        raise ValueError("checkpoint: wanted a known kind of column, got another")

    def _class(self, name: str) -> Callable[..., Value]:
        """Return the class of this name; fail if the run has no records of it."""
        if name not in self.classes:
            fail("checkpoint", f"records of this run ({', '.join(self.classes)})", name)
        return self.classes[name]


def _is_table(values: Sequence[object]) -> bool:
    """Return True if these are at least two frozen dataclasses of one class."""
    if type(values) not in (tuple, list) or len(values) < 2:
        return False
    first = values[0]
    return _is_frozen(first) and all(type(record) is type(first) for record in values)


def _runs(values: list[Value]) -> Iterator[_Run]:
    """Yield the runs that make up a column, each as long as possible."""
    start = 0
    while start < len(values):
        first = values[start]
        end = start + 1
        step = 0
        if type(first) is int and end < len(values) and type(values[end]) is int:
            step = values[end] - first
        while end < len(values):
            expected = first
            if step != 0:
                expected = first + step * (end - start)
            if not _is_same(values[end], expected):
                break
            end += 1
        yield _Run(end - start, first, step)
        start = end


def _is_same(first: object, second: object) -> bool:
    """Return True if two immutable values are equal to the last bit."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if _is_frozen(first) or type(first) is tuple:
        first_parts = _parts(first)
        second_parts = _parts(second)
        if len(first_parts) != len(second_parts):
            return False
        return all(map(_is_same, first_parts.values(), second_parts.values()))
    if first is None:
        return True
    return type(first) in (bool, int, float, str) and repr(first) == repr(second)


def _is_frozen(value: object) -> bool:
    """Return True if a value is a frozen dataclass."""
    return is_dataclass(value) and bool(getattr(value, "__dataclass_params__").frozen)  # noqa: B009


def _parts(value: object) -> dict[str, Value]:
    """Return the content of a record or collection, by field, key or place."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    if isinstance(value, (tuple, list)):
        return {str(place): item for place, item in enumerate(value)}
    if isinstance(value, dict):
        return value
    return {}


def _is_record(value: object) -> bool:
    """Return True if a value is a dataclass or a named tuple."""
    return is_dataclass(value) or (isinstance(value, tuple) and hasattr(value, "_asdict"))


def _is_numpy(value: object) -> bool:
    """Return True if a value is an array or a scalar of numpy."""
    return isinstance(value, (np.ndarray, np.generic))


def _name(cls: type) -> str:
    """Return the full name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"
