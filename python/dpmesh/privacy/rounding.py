"""How long a row and how small its noise may be, for the noise to hide the rounding of its numbers.

A row that a node computed was rounded to its type: by at most half a digit in each number, which
for two neighbours together is at most a ``2**-digits`` of its norm. In float32 the noise covers 1%
of the sensitivity for it, and a row that rounding may move further is refused; it covers another 1%
for the sums that the row was made of. In float64 a row is refused where that would be a millionth.
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
    much larger the noise is to cover it, and the rounding of the sums before it.
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


SINGLE = Precision("float32", 23, 2.0**-126, 0.01, 1.02)
DOUBLE = Precision("float64", 52, float_info.min, 2.0**-20, 1.0)


def precision_of(values: Floats) -> Precision:
    """Return that of an array's numbers."""
    return SINGLE if values.itemsize == 4 else DOUBLE


def rounding_factor(values: Floats, noise_multiplier: float, norm: Norm) -> float:
    """Return by how much larger noise is drawn, so that it also hides the rounding of a row.

    Beside the precision's factor it covers the length that `longest_row` allows for noise.
    """
    precision = precision_of(values)
    if precision is DOUBLE:
        return precision.factor
    spread = _spread(values, noise_multiplier, norm)
    return precision.factor + 2 * spread * 2.0**-precision.digits


def _spread(values: Floats, scale: float, norm: Norm) -> float:
    """Return about the norm of a row of noise."""
    dim = values.shape[-1]
    return scale * (dim if norm == "l1" else sqrt(dim))


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
    precision = precision_of(values)
    if scale < precision.least:
        wanted = f"one whose noise has a scale of at least {precision.least:g}, for"
        fail("sensitivity", f"{wanted} {precision.name}", scale)
    longest = precision.longest * distance + 2 * _spread(values, scale, norm)
    return longest if longest < inf else float_info.max


def fail_for_length(values: Floats, distance: float) -> NoReturn:
    """Refuse a row that is longer."""
    precision = precision_of(values)
    longest, name, share = precision.longest * distance, precision.name, precision.share
    wanted = f"rows of norm at most {longest:g}: {name} rounds longer ones by more"
    fail("values", f"{wanted} than {share:.1g} of the sensitivity, {distance:g}", "a longer one")
