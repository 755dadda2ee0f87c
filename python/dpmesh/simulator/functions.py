"""What a function does, as a checksum that is the same in every process of the same Python.

It covers the bytecode, with the constants, defaults and closed-over values, and the global values
and functions of its own module that it uses, objects of its module's classes included. File names
and line numbers do not count. Classes that it uses, and functions and objects of other modules,
count by their names; PyTorch modules by what they hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from types import CodeType, FunctionType, MemberDescriptorType, MethodType
from typing import Any
from zlib import crc32

import numpy as np
from scipy import sparse

_PLAIN = (bool, int, float, complex, str, bytes, slice, range, type(None), type(...))


def code_checksum(value: object) -> int | None:
    """Return the checksum of a function, also a bound, partial or compiled one; None for others."""
    function = value
    while not isinstance(function, FunctionType):
        if isinstance(function, MethodType):
            function = function.__func__
        elif isinstance(function, partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):  # such as one of jax.jit
            function = function.__wrapped__
        else:
            return None
    return crc32(_in_words(value, function.__module__, set()).encode())


def class_checksum(kind: type) -> int:
    """Return the checksum of the methods and values of a class and its bases of the same module.

    Bases of other modules count by their names.
    """
    home = kind.__module__
    told = [
        f"{base.__qualname__}.{name} {_in_words(member, home, set())}"
        for base in kind.__mro__
        if base.__module__ == home
        for name, member in sorted(vars(base).items())
        if not name.startswith("__") or isinstance(member, FunctionType)
    ]
    return crc32(" ".join(told).encode())


def as_numpys(value: Any) -> Any:
    """Return a table or array of another library, whose repr is abridged, as a numpy array.

    A PyTorch module becomes its repr and the arrays that it holds.
    """
    kind = type(value)
    if hasattr(kind, "state_dict") and hasattr(kind, "named_parameters"):
        return repr(value), {name: as_numpys(part) for name, part in value.state_dict().items()}
    if isinstance(value, (np.ndarray, np.generic)) or not hasattr(kind, "__array__"):
        return value
    try:
        return np.asarray(value.detach().cpu() if hasattr(kind, "detach") else value)
    except (TypeError, RuntimeError):  # such as keys of JAX
        return value


def attributes(value: Any) -> dict[str, Any]:
    """Return what an object holds, except cached properties."""
    kind = type(value)
    slots = {
        name: getattr(value, name)
        for base in kind.__mro__
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType) and hasattr(value, name)
    }
    held = slots | getattr(value, "__dict__", {})
    computed = {name for name in held if isinstance(getattr(kind, name, None), cached_property)}
    return {name: part for name, part in held.items() if name not in computed}


def _in_words(value: Any, home: str, seen: set[int]) -> str:
    """Return a text of what a function of the module `home` reads, except what is in `seen`."""
    value = as_numpys(value)
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (set, frozenset)):
        return str(sorted(_in_words((part,), home, seen) for part in value))
    if isinstance(value, (np.ndarray, np.generic)):
        whole = not value.dtype.hasobject
        held = crc32(value.tobytes()) if whole else _in_words((value.tolist(),), home, seen)
        return f"{value.dtype}{value.shape}{held}"
    parts = _parts(value, home, seen)
    if parts is None:
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return f"({', '.join(_in_words(part, home, seen) for part in parts)})"


def _parts(value: Any, home: str, seen: set[int]) -> Iterable[Any] | None:
    """Return what a value is made of; None if it counts by its name."""
    match value:
        case tuple() | list():
            return value
        case dict():
            return value.items()
        case CodeType():
            return value.co_code, value.co_names, value.co_consts
        case MethodType():
            return value.__func__, value.__self__
        case property():
            return (value.fget,)
        case cached_property():
            return (value.func,)
        case partial():
            return value.func, value.args, value.keywords
    if sparse.issparse(value):
        rows = sparse.csr_array(value)
        return rows.shape, rows.data, rows.indices, rows.indptr
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *(getattr(value, field.name, None) for field in fields(value))
    if isinstance(value, FunctionType) and value.__module__ == home and id(value) not in seen:
        seen.add(id(value))
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
        read = {name: value.__globals__.get(name) for name in _names(value.__code__)}
        return value.__code__, value.__defaults__, value.__kwdefaults__, cells, read
    if hasattr(value, "__wrapped__"):
        return (value.__wrapped__,)
    if type(value).__module__ == home and id(value) not in seen:
        seen.add(id(value))
        return type(value), attributes(value)
    return None


def _names(code: CodeType) -> Iterator[str]:
    """Return the global names that code may read, nested functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_full(cell: Any) -> bool:
    """Whether a closed-over name has a value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
