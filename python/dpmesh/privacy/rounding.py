"""How long a row and how small its noise may be, for the noise to hide the rounding of its numbers.

A row that a node computed was rounded to its type: by at most half a digit in each number, which
for two neighbours together is at most a ``2**-digits`` of its norm. In float32 the noise covers 1%
of the sensitivity beside it, and a row that rounding may move further is refused. In float64 a row
is refused where that would be a millionth.
"""

from __future__ import annotations

from math import inf, sqrt
from sys import float_info
from typing import NamedTuple, NoReturn

from dpmesh._validate import fail
from dpmesh.kernels.projection import Norm
from dpmesh.privacy.types import Floats


class Precision(NamedTuple):
    """A type of floating-point numbers: its name, digits after the leading one, least normal.

    `share` is the most that the rounding of a row may add to its sensitivity, and `factor` by how
    much larger the noise is to cover it.
    """

    name: str
    digits: int
    least: float
    share: float
    factor: float

    @property
    def longest(self) -> float:
        """Norm of the longest row over its sensitivity."""
        return self.share * 2.0**self.digits


SINGLE = Precision("float32", 23, 2.0**-126, 0.01, 1.01)
DOUBLE = Precision("float64", 52, float_info.min, 2.0**-20, 1.0)


def precision_of(values: Floats) -> Precision:
    """Return that of an array's numbers."""
    return SINGLE if values.itemsize == 4 else DOUBLE


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
    dim, precision = values.shape[-1], precision_of(values)
    if scale < precision.least:
        wanted = f"one whose noise has a scale of at least {precision.least:g}, for"
        fail("sensitivity", f"{wanted} {precision.name}", scale)
    spread = scale * (dim if norm == "l1" else sqrt(dim))
    longest = precision.longest * distance + 2 * spread
    return longest if longest < inf else float_info.max


def fail_for_length(values: Floats, distance: float) -> NoReturn:
    """Refuse a row that is longer."""
    precision = precision_of(values)
    longest, name, share = precision.longest * distance, precision.name, precision.share
    wanted = f"rows of norm at most {longest:g}: {name} rounds longer ones by more"
    fail("values", f"{wanted} than {share:.1g} of the sensitivity, {distance:g}", "a longer one")
