"""Encoding of the progress of a run as JSON and arrays, for checkpoints; without pickle or code.

A *record* is a dataclass or a named tuple. Values are records, tuples, lists, dictionaries, arrays,
numbers and texts; decoding restores them to the last bit. A file names the classes of its records.
They are looked up among the classes that the reader expects, so that a file cannot create others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
"""Arrays by the names that replace them in the JSON."""

Classes: TypeAlias = Mapping[str, Callable[..., Any]]
"""Classes of records by their full names."""

Json: TypeAlias = Any
"""A value in plain types."""

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


def encode(value: object, arrays: Arrays, stored: dict[int, int] | None = None) -> Json:
    """Return a value as JSON, with names in place of its arrays, which go into `arrays`.

    A dataclass that occurs again, such as the noise of a run in each of its releases, is stored
    once; `stored` numbers those so far by their identity. Many records of one class are stored
    field by field, so that releases that repeat round after round take no more space than one.

    Raises
    ------
    TypeError
        If there is something that cannot be stored.
    """
    if value is None or (isinstance(value, (bool, int, float, str)) and not _is_numpy(value)):
        return value
    if _is_numpy(value) and np.asarray(value).dtype.kind in "biufc":
        name = f"array_{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"array" if isinstance(value, np.ndarray) else "number": name}
    stored = {} if stored is None else stored
    if id(value) in stored:
        return {"again": stored[id(value)]}
    if isinstance(value, (tuple, list)) and _is_table(value):
        column = _encode_column([*value], arrays, stored)
        return {"table": type(value).__name__, "rows": len(value), "column": column}
    parts = {name: encode(part, arrays, stored) for name, part in _parts(value).items()}
    if is_dataclass(value):
        stored[id(value)] = len(stored)
    if _is_record(value):
        return {"record": _name(type(value)), "fields": parts}
    if type(value) is dict and all(isinstance(name, str) for name in value):
        return {"dict": parts}
    if type(value) in (tuple, list):
        return {type(value).__name__: list(parts.values())}
    expected = "dataclasses, tuples, lists and dictionaries of arrays, numbers and texts"
    raise TypeError(f"state: wanted {expected}, got {type(value).__name__}")


def decode(
    tree: Json, arrays: Arrays, classes: Classes, dataclasses: list[Value] | None = None
) -> Value:
    """Return the value that was encoded; `dataclasses` collects the dataclasses decoded so far.

    Raises
    ------
    ValueError
        If the class of a record is not among `classes`.
    """
    if not isinstance(tree, dict):
        return tree
    decoder = _Decoder(arrays, classes, [] if dataclasses is None else dataclasses)
    return decoder.value(tree)


@dataclass(frozen=True)
class _Decoder:
    """Arrays, classes and the dataclasses so far, for the values of one file."""

    arrays: Arrays
    classes: Classes
    dataclasses: list[Value]

    def value(self, tree: Json) -> Value:
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
                record = _class(name, self.classes)(**self.parts(parts))
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

    def parts(self, parts: Json) -> dict[str, Value]:
        """Return the values of a dictionary of trees."""
        return {name: self.value(part) for name, part in parts.items()}

    def column(self, column: Json, rows: int) -> list[Value]:
        """Return the values of one field of many records."""
        match column:
            case {"runs": runs}:
                values = []
                for count, tree, step in runs:
                    values += _run(self.value(tree), count, step)
                return values
            case {"record": name, "columns": columns}:
                columns_of_values = {
                    field: self.column(part, rows) for field, part in columns.items()
                }
                make = _class(name, self.classes)
                return [
                    make(**{field: values[row] for field, values in columns_of_values.items()})
                    for row in range(rows)
                ]
            case {"each": trees}:
                return [self.value(tree) for tree in trees]
        raise ValueError("checkpoint: wanted a known kind of column, got another")


def _run(first: Value, count: int, step: int) -> list[Value]:
    """Return a run of equal values, or of integers at equal steps."""
    if step == 0:
        return [first] * count
    return [first + step * place for place in range(count)]


def _class(name: str, classes: Classes) -> Callable[..., Value]:
    """Return the class of this name; fail if the run has no records of it."""
    if name not in classes:
        fail("checkpoint", f"records of this run ({', '.join(classes)})", name)
    return classes[name]


def _is_table(values: Sequence[object]) -> bool:
    """Return True if these are at least two frozen dataclasses of one class."""
    if type(values) not in (tuple, list) or len(values) < 2:
        return False
    first = values[0]
    return _is_frozen(first) and all(type(row) is type(first) for row in values)


def _encode_column(values: list[Value], arrays: Arrays, stored: dict[int, int]) -> Json:
    """Encode the values of one field of many records: as runs, as columns of records, or singly."""
    runs = [*_runs(values)]
    if 2 * len(runs) <= len(values):
        encoded = [[count, encode(first, arrays, stored), step] for count, first, step in runs]
        return {"runs": encoded}
    if _is_table(values):
        columns = {}
        for name in _parts(values[0]):
            column = [getattr(row, name) for row in values]
            columns[name] = _encode_column(column, arrays, stored)
        return {"record": _name(type(values[0])), "columns": columns}
    return {"each": [encode(value, arrays, stored) for value in values]}


def _runs(values: list[Value]) -> Iterator[tuple[int, Value, int]]:
    """Yield runs of equal values, or of integers at equal steps: length, first one, and step."""
    start = 0
    while start < len(values):
        first = values[start]
        end = start + 1
        step = 0
        if type(first) is int and end < len(values) and type(values[end]) is int:
            step = values[end] - first
        while end < len(values):
            expected = first + step * (end - start) if step else first
            if not _is_same(values[end], expected):
                break
            end += 1
        yield end - start, first, step
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
