"""Values on a grid of multiples of a power of 2: the last bits of noisy sums leak nothing."""

from __future__ import annotations

from math import frexp

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import Floats
from dpmesh._validate import fail, positive

MOST_STEPS = 2**25
"""Largest scale of noise on the integers."""

MOST_NUMBERS = 2**20
"""The longest row of noise on a grid: plans, which do not know how long rows are, charge it."""

_FARTHEST = 2.0**52


def power_of_two(argument: str, value: float) -> float:
    """A power of 2 between 2**-100 and 2**100, by which dividing and multiplying is exact."""
    mantissa, exponent = frexp(positive(argument, value))
    if mantissa != 0.5 or not -99 <= exponent <= 101:
        fail(argument, "a power of 2 between 2**-100 and 2**100, such as 2**-20", repr(value))
    return value


def check_length(dim: int) -> None:
    """Fail if a row has more numbers on a grid than a plan is charged for."""
    if dim > MOST_NUMBERS:
        fail("grid", f"None for rows of more than {MOST_NUMBERS} numbers", f"rows of {dim}")


def round_to_grid(values: Floats, grid: float) -> Floats:
    """Return the nearest multiples of `grid`, of the same type, at most half of it away.

    Values further than 2**52 steps from 0 are clamped to that, which moves no two further apart.
    """
    grid = float(grid)  # products of integers wrap around
    with np.errstate(over="ignore"):
        steps = np.rint(np.divide(values, grid, dtype=np.float64)).clip(-_FARTHEST, _FARTHEST)
    return (steps * grid).astype(values.dtype)


def add_on_grid(values: Floats, noise: npt.NDArray[np.int64], grid: float) -> Floats:
    """Return multiples of `grid` plus `noise` steps of it.

    The sum is exact in integers; rounding to the result's type comes afterwards, as a function of
    the released sum.
    """
    grid = float(grid)
    steps = np.divide(values, grid, dtype=np.float64).astype(np.int64) + noise
    return (steps * grid).astype(values.dtype)
