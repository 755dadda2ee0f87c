"""Values on multiples of a power of 2, so that low-order bits of noisy sums reveal nothing."""

from __future__ import annotations

from math import frexp

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import Floats
from dpmesh._validate import fail, positive

MOST_STEPS = 2**25
"""Largest scale of noise on a grid, in steps."""

MOST_NUMBERS = 2**20
"""Longest row of noise on a grid; the cost of a plan, which has no lengths, is for this length."""

_FARTHEST = 2.0**52
"""Largest number of steps from 0 to a value on a grid."""


def power_of_two(argument: str, value: float) -> float:
    """Return `value`, a power of 2 between 2**-100 and 2**100: products with it are exact.

    Raises
    ------
    ValueError
        If the value of `argument` is another number.
    """
    mantissa, exponent = frexp(positive(argument, value))
    if mantissa != 0.5 or not -99 <= exponent <= 101:
        fail(argument, "a power of 2 between 2**-100 and 2**100, such as 2**-20", repr(value))
    return value


def check_length(dim: int) -> None:
    """Fail with a ValueError if a row on a grid is longer than `MOST_NUMBERS`."""
    if dim > MOST_NUMBERS:
        fail("grid", f"None for rows of more than {MOST_NUMBERS} numbers", f"rows of {dim}")


def round_to_grid(values: Floats, grid: float) -> Floats:
    """Return values rounded to the nearest multiples of `grid`, in their type.

    Values further than 2**52 steps from 0 are clamped to that, which never increases the distance
    between two values.
    """
    grid = float(grid)  # products of integers wrap around
    with np.errstate(over="ignore"):
        steps = np.rint(np.divide(values, grid, dtype=np.float64)).clip(-_FARTHEST, _FARTHEST)
    return (steps * grid).astype(values.dtype)


def add_on_grid(values: Floats, noise: npt.NDArray[np.int64], grid: float) -> Floats:
    """Return `values`, which are multiples of `grid`, plus `noise` times `grid`.

    The sum is exact in integers; rounding to the result's type comes afterwards, as a function of
    the released sum.
    """
    grid = float(grid)
    steps = np.divide(values, grid, dtype=np.float64).astype(np.int64) + noise
    return (steps * grid).astype(values.dtype)
