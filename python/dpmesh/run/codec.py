"""Records of arrays and numbers as JSON beside plain arrays, without loss, pickle or code.

They hold frozen dataclasses, named tuples, tuples, lists, dictionaries, arrays of numbers, numbers
and texts. A file names the classes of its records, which are looked up among those of the reader's
own records: a file cannot create anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
Classes: TypeAlias = Mapping[str, Callable[..., Any]]


def classes_in(value: object) -> dict[str, Callable[..., Any]]:
    """Return the classes of all records in a value, by name."""
    found: dict[str, Callable[..., Any]] = {}
    if _is_record(value):
        found[_name(type(value))] = type(value)
    for part in _parts(value).values():
        found |= classes_in(part)
    return found


def encode(value: object, arrays: Arrays, known: dict[int, int] | None = None) -> Any:
    """Return a value as JSON, with names in place of its arrays, which go into `arrays`.

    A dataclass that occurs again, such as the noise of a run in each of its releases, is stored
    once; `known` numbers those so far. Many records of one class are stored field by field,
    so that releases that repeat round after round take no more space than one.

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
    known = {} if known is None else known
    if id(value) in known:
        return {"again": known[id(value)]}
    if isinstance(value, (tuple, list)) and _is_table(value):
        column = _encode_column([*value], arrays, known)
        return {"table": type(value).__name__, "rows": len(value), "column": column}
    parts = {name: encode(part, arrays, known) for name, part in _parts(value).items()}
    if is_dataclass(value):
        known[id(value)] = len(known)
    if _is_record(value):
        return {"record": _name(type(value)), "fields": parts}
    if type(value) is dict and all(isinstance(name, str) for name in value):
        return {"dict": parts}
    if type(value) in (tuple, list):
        return {type(value).__name__: list(parts.values())}
    wanted = "dataclasses, tuples, lists and dictionaries of arrays, numbers and texts"
    raise TypeError(f"state: wanted {wanted}, got {type(value).__name__}")


def decode(
    tree: Any,
    arrays: Mapping[str, npt.NDArray[Any]],
    classes: Classes,
    known: list[Any] | None = None,
) -> Any:
    """Return the value that `encode` was given; `known` has its dataclasses so far.

    Raises
    ------
    ValueError
        If a record is of none of the `classes`.
    """
    if not isinstance(tree, dict):
        return tree
    known = [] if known is None else known

    def each(parts: dict[str, Any]) -> dict[str, Any]:
        return {name: decode(part, arrays, classes, known) for name, part in parts.items()}

    match tree:
        case {"array": name}:
            return arrays[name]
        case {"number": name}:
            return arrays[name][()]
        case {"again": number}:
            return known[number]
        case {"record": name, "fields": parts}:
            made = _class(name, classes)(**each(parts))
            if is_dataclass(made):
                known.append(made)
            return made
        case {"dict": parts}:
            return each(parts)
        case {"tuple": items}:
            return tuple(decode(item, arrays, classes, known) for item in items)
        case {"list": items}:
            return [decode(item, arrays, classes, known) for item in items]
        case {"table": kind, "rows": rows, "column": column}:
            made = _decode_column(column, rows, arrays, classes, known)
            return tuple(made) if kind == "tuple" else made
    raise ValueError(f"checkpoint: wanted a known kind of value, got one of {', '.join(tree)}")


def _class(name: str, classes: Classes) -> Callable[..., Any]:
    if name not in classes:
        fail("checkpoint", f"records of this run ({', '.join(classes)})", name)
    return classes[name]


def _is_table(values: Any) -> bool:
    """Whether these are several records of one class that nobody can change."""
    if type(values) not in (tuple, list) or len(values) < 2 or not _is_frozen(values[0]):
        return False
    return all(type(row) is type(values[0]) for row in values)


def _encode_column(values: list[Any], arrays: Arrays, known: dict[int, int]) -> Any:
    """Return the values of one field: as runs, as columns of their own, or each."""
    runs = [*_runs(values)]
    if 2 * len(runs) <= len(values):
        return {"runs": [[n, encode(first, arrays, known), step] for n, first, step in runs]}
    if _is_table(values):
        columns = {
            name: _encode_column([getattr(row, name) for row in values], arrays, known)
            for name in _parts(values[0])
        }
        return {"record": _name(type(values[0])), "columns": columns}
    return {"each": [encode(value, arrays, known) for value in values]}


def _decode_column(
    column: Any,
    rows: int,
    arrays: Mapping[str, npt.NDArray[Any]],
    classes: Classes,
    known: list[Any],
) -> list[Any]:
    match column:
        case {"runs": runs}:
            firsts = [(n, decode(first, arrays, classes, known), step) for n, first, step in runs]
            return [
                first + step * i if step else first for n, first, step in firsts for i in range(n)
            ]
        case {"record": name, "columns": columns}:
            fields = {
                field: _decode_column(of, rows, arrays, classes, known)
                for field, of in columns.items()
            }
            make = _class(name, classes)
            return [make(**{field: of[i] for field, of in fields.items()}) for i in range(rows)]
        case {"each": values}:
            return [decode(value, arrays, classes, known) for value in values]
    raise ValueError("checkpoint: wanted a known kind of column, got another")


def _runs(values: list[Any]) -> Iterator[tuple[int, Any, int]]:
    """Yield how many are alike, or integers at equal steps; the first of them, and the step."""
    start = 0
    while start < len(values):
        first, end, step = values[start], start + 1, 0
        if type(first) is int and end < len(values) and type(values[end]) is int:
            step = values[end] - first
        while end < len(values) and _is_same(
            values[end], first + step * (end - start) if step else first
        ):
            end += 1
        yield end - start, first, step
        start = end


def _is_same(a: object, b: object) -> bool:
    """Whether two values that nobody can change are alike to the last bit."""
    if a is b or type(a) is not type(b):
        return a is b
    if _is_frozen(a) or type(a) is tuple:
        a, b = _parts(a), _parts(b)
        return len(a) == len(b) and all(map(_is_same, a.values(), b.values()))
    return a is None or (type(a) in (bool, int, float, str) and repr(a) == repr(b))


def _is_frozen(value: object) -> bool:
    return is_dataclass(value) and bool(getattr(value, "__dataclass_params__").frozen)  # noqa: B009


def _parts(value: object) -> dict[str, Any]:
    """Return what a record or collection holds, by field, key or place."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    if isinstance(value, (tuple, list)):
        return {str(i): item for i, item in enumerate(value)}
    return value if isinstance(value, dict) else {}


def _is_record(value: object) -> bool:
    return is_dataclass(value) or (isinstance(value, tuple) and hasattr(value, "_asdict"))


def _is_numpy(value: object) -> bool:
    return isinstance(value, (np.ndarray, np.generic))


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
