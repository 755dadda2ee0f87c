"""Bounds on a row's length and noise, such that the noise hides rounding of its numbers.

Each time that a row is rounded to its type, its numbers move by at most half a digit, which for two
neighbours together is at most a ``2**-digits`` of its norm. In float32 the noise covers 1% of the
sensitivity for it, and a row that rounding may move further is refused; it covers another 1% for
the sums that the row was made of. In float64 a row is refused where that would be a millionth.
"""

from __future__ import annotations

from math import inf, log, sqrt
from sys import float_info
from typing import NamedTuple, NoReturn

from dpmesh._privacy_types import Floats
from dpmesh._validate import fail
from dpmesh.kernels.projection import Norm


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

    def longest(self, roundings: float) -> float:
        """Norm of the longest row over its sensitivity."""
        return self.share * 2.0**self.digits / roundings


SINGLE = Precision("float32", 23, 2.0**-126, 0.01, 1.02)
DOUBLE = Precision("float64", 52, float_info.min, 2.0**-20, 1.0)
ROUNDINGS = 2
"""Of a row: after a step, and after a projection or a change of units."""
TAIL = 63 * log(2)


PRECISION = {4: SINGLE, 8: DOUBLE}
"""The precision of an array's numbers, by their size in bytes."""


def single_factor(dim: int, noise_to_sensitivity: float, norm: Norm, roundings: float) -> float:
    """Return by how much larger noise is in float32, so that it also hides `roundings` of a row.

    A row whose noisy one is not longer than `longest_row` is itself at most twice the room for
    noise longer than `Precision.longest` allows; noise covers that, too.

    Raises
    ------
    ValueError
        If the noise is so large beside the sensitivity that it cannot.
    """
    moved = roundings * 2 * most_noise(dim, noise_to_sensitivity, norm) * 2.0**-SINGLE.digits
    if moved > 0.5:
        most = f"at most {noise_to_sensitivity / (2 * moved):.4g} in {SINGLE.name}, which rounds"
        fail(
            "noise_to_sensitivity",
            f"{most} noisier rows too coarsely, or float64",
            noise_to_sensitivity,
        )
    return SINGLE.factor / (1 - moved)


def most_noise(dim: int, scale: float, norm: Norm) -> float:
    """Return a norm that a row of noise exceeds with a probability below ``2**-63``.

    ``exp(-TAIL)`` bounds that of a sum of exponential variables (Boucheron, Lugosi and Massart
    2013, Section 2.4) and that of a Gaussian vector's norm (Theorem 5.6).
    """
    if norm == "l1":
        return scale * (dim + sqrt(2 * dim * TAIL) + TAIL)
    return scale * (sqrt(dim) + sqrt(2 * TAIL))


def longest_row(
    values: Floats, distance: float, scale: float, norm: Norm, roundings: float
) -> float:
    """Return the norm that noisy rows of a sensitivity `distance` must not exceed.

    It has room for the noise, which alone makes no row too long. As the noisy row is measured, a
    refusal reveals no more than its release would.

    Raises
    ------
    ValueError
        If the noise is too small for the type of the values: below its normal numbers it would
        vanish.
    """
    precision = PRECISION[values.itemsize]
    if scale < precision.least:
        expected = f"one whose noise has a scale of at least {precision.least:g}, for"
        fail("sensitivity", f"{expected} {precision.name}", scale)
    longest = precision.longest(roundings) * distance + most_noise(values.shape[-1], scale, norm)
    if longest < inf:
        return longest
    return float_info.max


def fail_for_length(values: Floats, distance: float, roundings: float) -> NoReturn:
    """Refuse a row that is longer."""
    precision = PRECISION[values.itemsize]
    longest = precision.longest(roundings) * distance
    name = precision.name
    share = precision.share
    remedy = " (take records in float64)" if name == SINGLE.name else ""
    expected = f"rows of norm at most {longest:g}: {name} rounds longer ones by more"
    fail(
        "values",
        f"{expected} than {share:.1g} of the sensitivity, {distance:g}{remedy}",
        "a longer one",
    )
