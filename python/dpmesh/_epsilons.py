"""Printing of guarantees with few digits, rounded so that they never claim more than is proved.

A number within floating-point error of a shorter number is printed as the shorter number. The
epsilon of noise that was calibrated to epsilon 1 is printed as 1, and a delta of 1e-5 as 1e-05.
"""

from __future__ import annotations

import reprlib
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from numbers import Real

from dpmesh._validate import fail, integer, number

NEIGHBOURS = {
    "replace_one": "replace-one: two datasets differ in the value of one {unit}",
    "add_remove": "add-remove: one dataset has one {unit} more",
}

ROUNDING = 1e-12
"""Relative error of an epsilon that was converted to noise and back."""


def rounded_up(value: float, digits: int = 6) -> str:
    """Return an upper bound, such as an epsilon or a delta, rounded up to significant digits.

    Parameters
    ----------
    value
        The bound, which may be infinite.
    digits
        Number of significant digits, from 1 to 17.

    Raises
    ------
    ValueError
        If `value` is not a real number, or `digits` not an integer from 1 to 17.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.rounded_up(1.23456, 3)
    '1.24'
    """
    return _rounded(_real(value) * (1 - ROUNDING), digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 6) -> str:
    """Return a lower bound, such as the result of an audit, rounded down to significant digits.

    Parameters and errors are as in `rounded_up`.
    """
    return _rounded(_real(value) * (1 + ROUNDING), digits, ROUND_FLOOR)


def as_given(value: float) -> str:
    """Return a number that a user stated, such as a budget, with up to 15 digits."""
    return f"{float(value):.15g}"


def _real(value: float) -> float:
    """Convert a real number, which may be infinite or NaN, to float."""
    try:
        if isinstance(value, Real):
            return float(value)
        return number("value", value)
    except OverflowError:  # beyond the range of floats
        fail("value", "a number that a float holds", reprlib.repr(value))


def _rounded(value: float, digits: int, direction: str) -> str:
    """Return a number with this many significant digits, rounded as `decimal` rounds."""
    digits = integer("digits", digits, at_least=1, below=18)
    value = float(Context(digits, direction).create_decimal(value))
    return f"{value:.{digits}g}"


def but_partners(coalition: int) -> str:
    """Return the words for an adversary who knows no noise that two honest link partners share.

    `coalition` is the largest number of colluding nodes.
    """
    sees_all = "an adversary who sees all messages"
    if coalition == 0:
        return f"{sees_all}, but no noise that two nodes share"
    nodes = "node" if coalition == 1 else "nodes"
    return (
        f"{sees_all} and colludes with up to {coalition} {nodes}, but sees no noise that two "
        "other nodes share"
    )
