"""Checks of arguments. Their `ValueError` names the argument, the requirement and the value.

Each check returns the value, converted where necessary: ``positive("radius", radius)``.
"""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, NoReturn, TypeVar

from dpmesh._untrusted import LONGEST_TEXT, shortened

T = TypeVar("T")

BEYOND = 2**63
"""Smallest positive integer beyond the range of int64."""


def fail(argument: str, expected: str, got: object) -> NoReturn:
    """Raise a `ValueError` ``argument: wanted expected, got got``; long values are shortened."""
    raise ValueError(
        f"{shortened(argument)}: wanted {expected}, got {shortened(got, LONGEST_TEXT)}"
    )


def refuse(argument: str, reason: str) -> NoReturn:
    """Raise a `ValueError` ``argument: reason``; the reason names what is missing, and a remedy."""
    raise ValueError(f"{shortened(argument)}: {reason}")


def argument_of(error: ValueError) -> str:
    """Return the argument that an error of `fail` or `refuse` names."""
    return str(error).partition(": ")[0]


def require_methods(argument: str, value: object, expected: str, *methods: str) -> None:
    """Raise a ValueError unless an object, such as one of a user's class, has all methods."""
    missing = [method for method in methods if not callable(getattr(value, method, None))]
    if isinstance(value, type) or missing:
        got = reprlib.repr(value)
        if 0 < len(missing) < len(methods):
            got = f"{got} without {', '.join(missing)}"
        fail(argument, f"{expected}, with {', '.join(methods)}", got)


def instance(argument: str, value: object, expected: str, *kinds: type) -> None:
    """Raise a ValueError unless a value is an instance of one of these classes."""
    if not isinstance(value, kinds):
        fail(argument, expected, reprlib.repr(value))


def number(argument: str, value: float) -> float:
    """Return a finite real number as float; raise a ValueError for any other value."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        fail(argument, "a finite number", reprlib.repr(value))
    try:
        finite = math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        fail(argument, "a finite number", reprlib.repr(value))
    if not finite:
        fail(argument, "a finite number", repr(value))
    return float(value)


def positive(argument: str, value: float) -> float:
    """Return a finite number greater than 0; raise a ValueError for any other value."""
    if type(value) is float and 0 < value < math.inf:
        return value
    if number(argument, value) <= 0:
        fail(argument, "a finite number greater than 0", repr(value))
    return float(value)


def positive_or_infinite(argument: str, value: float) -> float:
    """Return a number greater than 0, or infinity; raise a ValueError for any other value."""
    if isinstance(value, Real) and not isinstance(value, bool) and value == math.inf:
        return math.inf
    try:
        return positive(argument, value)
    except ValueError:
        fail(argument, "a number greater than 0, or infinity", reprlib.repr(value))


def non_negative(argument: str, value: float) -> float:
    """Return a finite number of at least 0; raise a ValueError for any other value."""
    if type(value) is float and 0 <= value < math.inf:
        return value
    if number(argument, value) < 0:
        fail(argument, "a finite number of at least 0", repr(value))
    return float(value)


def probability(argument: str, value: float, *, zero: bool = True, one: bool = True) -> float:
    """Return a number between 0 and 1; `zero` and `one` state whether these are allowed."""
    checked = number(argument, value)
    if not 0 <= checked <= 1 or (checked == 0 and not zero) or (checked == 1 and not one):
        ends = ("[" if zero else "(") + "0, 1" + ("]" if one else ")")
        fail(argument, f"a number in {ends}", repr(value))
    return checked


def integer(argument: str, value: int, at_least: int = 0, below: int = BEYOND) -> int:
    """Return an integer in [at_least, below); raise a ValueError for any other value."""
    if type(value) is int and at_least <= value < below:
        return value
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or not at_least <= value < below:
        expected = f"an integer of at least {at_least}"
        if below < BEYOND or (is_integer and value >= below):
            expected += f" and below {below}"
        got: object = reprlib.repr(value)
        if is_integer and -(2**64) < value < 2**64:
            got = value  # in full
        fail(argument, expected, got)
    return int(value)


def one_of(argument: str, value: T, choices: Collection[T]) -> T:
    """Return a value that is one of the choices; raise a ValueError for any other value."""
    if type(value) is str and value in choices:
        return value
    if not isinstance(value, Hashable) or value not in choices:
        listed = ", ".join(map(repr, choices)) or "none at all"
        fail(argument, f"one of {listed}", f"{reprlib.repr(value)}{nearest(value, choices)}")
    return value


def nearest(name: object, names: Iterable[object]) -> str:
    """Return a hint such as ``"; did you mean logistic?"``; empty if no name is similar."""
    if not isinstance(name, str):
        return ""
    candidates = [candidate for candidate in names if isinstance(candidate, str)]
    similar = difflib.get_close_matches(name, candidates, 1)
    if similar:
        return f"; did you mean {similar[0]}?"
    return ""


def in_python(value: Any) -> Any:
    """Convert a numpy scalar, or each number of a tuple, to a Python number.

    Arithmetic with numpy scalars may overflow or have few digits. Other real numbers, such as
    fractions and subclasses with special arithmetic, are converted, too. Other values are returned
    unchanged.
    """
    if type(value) in (float, int, bool, str):
        return value
    if type(value) is tuple:
        return tuple(map(in_python, value))
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            if isinstance(value, Integral):
                return int(value)
            return float(value)
        except OverflowError:  # a fraction beyond the range of floats, which a later check refuses
            return value
    return value


def every(record: Any, check: Callable[..., object], *names: str, **bounds: float | bool) -> None:
    """Check fields of a frozen dataclass by name. None is valid if a field's annotation has it.

    All numpy scalars in the fields are first converted to Python numbers.

    Parameters
    ----------
    record
        Instance of the dataclass.
    check
        Check of an argument, such as `positive` or `integer`.
    names
        Names of the fields to check.
    bounds
        Further arguments of the check, such as ``at_least=1``.

    Raises
    ------
    ValueError
        If a field does not pass the check; the error names it.
    """
    as_python_numbers(record)
    annotations = {field.name: str(field.type) for field in fields(record)}
    for name in names:
        value = getattr(record, name)
        if value is not None or "None" not in annotations[name]:
            check(name, value, **bounds)


def as_python_numbers(record: object) -> None:
    """Convert numpy scalars in the fields of a frozen dataclass to Python numbers, in place."""
    for name, value in vars(record).copy().items():
        converted = in_python(value)
        if converted is not value:
            object.__setattr__(record, name, converted)
