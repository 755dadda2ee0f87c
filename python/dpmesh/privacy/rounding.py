"""How long a row and how small its noise may be, for the noise to hide the rounding of its numbers.

A row that a node computed was rounded to its type: by at most half a digit in each number, which
for two neighbours together is at most a ``2**-digits`` of its norm. A row is refused if that is
more than 1% of its sensitivity: far beyond that, rounding moves neighbours further apart than a
record does, and in the end the noise itself is rounded away.
"""

from __future__ import annotations

from math import inf, sqrt
from sys import float_info
from typing import NamedTuple, NoReturn

from dpmesh._validate import fail
from dpmesh.kernels.projection import Norm
from dpmesh.privacy.types import Floats

SHARE = 0.01
"""The most that the rounding of a row may add to its sensitivity."""


class Precision(NamedTuple):
    """A type of floating-point numbers: its name, digits after the leading one, least normal."""

    name: str
    digits: int
    least: float


_SINGLE = Precision("float32", 23, 2.0**-126)
_DOUBLE = Precision("float64", 52, float_info.min)


def longest_row(values: Floats, distance: float, scale: float, norm: Norm) -> float:
    """Return the norm that noisy rows of a sensitivity `distance` must not exceed.

    Twice the norm of noise of this scale is added, so that noise alone makes no row too long. As
    the noisy row is measured, a refusal reveals no more than its release would.

    Raises
    ------
    ValueError
        If the noise is too small for the type of the values: below its normal numbers it would
        vanish.
    """
    dim, precision = values.shape[-1], _SINGLE if values.itemsize == 4 else _DOUBLE
    if scale < precision.least:
        wanted = f"one whose noise has a scale of at least {precision.least:g}, for"
        fail("sensitivity", f"{wanted} {precision.name}", scale)
    spread = scale * (dim if norm == "l1" else sqrt(dim))
    longest = SHARE * 2.0**precision.digits * distance + 2 * spread
    return longest if longest < inf else float_info.max


def fail_for_length(values: Floats, distance: float) -> NoReturn:
    """Refuse a row that is longer."""
    precision = _SINGLE if values.itemsize == 4 else _DOUBLE
    longest, name = SHARE * 2.0**precision.digits * distance, precision.name
    wanted = f"rows of norm at most {longest:g}: {name} rounds longer ones by more"
    fail("values", f"{wanted} than 1% of the sensitivity, {distance:g}", "a longer one")
