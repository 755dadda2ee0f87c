"""Bounds on a row's norm and noise such that the noise covers the rounding of its numbers.

A sensitivity holds for exact arithmetic. Rounding a row to its type moves each number by at most
half a unit in the last place, ``2**-(digits + 1)`` times the number. The rows of two neighbouring
datasets together are moved apart by at most ``2**-digits`` times the norm of a row. In float32 the
noise covers 1% of the sensitivity for this rounding, and another 1% for the rounding of the sums
that the row was made of. A row that rounding may move further is refused. In float64 a row is
refused if rounding may move it by more than a millionth of the sensitivity.

`single_factor` is the factor on the noise, `longest_row` the limit on the norm of a noisy row.
"""

from __future__ import annotations

from math import inf, log, sqrt
from sys import float_info
from typing import NamedTuple, NoReturn

from dpmesh._privacy_types import Floats
from dpmesh._validate import fail
from dpmesh.kernels.projection import Norm


class Precision(NamedTuple):
    """A type of floating-point numbers, and the rounding that noise covers in it.

    Parameters
    ----------
    name
        Name of the type.
    digits
        Binary digits after the leading one.
    least
        Smallest normal number.
    share
        Largest distance that rounding may add, as a share of the sensitivity.
    factor
        Factor on the noise that covers the rounding of a row, and of the sums before it.
    """

    name: str
    digits: int
    least: float
    share: float
    factor: float

    def longest(self, roundings: float) -> float:
        """Return the largest norm of a row over its sensitivity, if rounded so many times."""
        return self.share * 2.0**self.digits / roundings


SINGLE = Precision("float32", 23, 2.0**-126, 0.01, 1.02)
DOUBLE = Precision("float64", 52, float_info.min, 2.0**-20, 1.0)
ROUNDINGS = 2
"""Usual number of roundings of a row: after a step, and after a projection or a change of units."""

TAIL = 63 * log(2)
"""Negative logarithm of the probability that noise exceeds `most_noise`."""

PRECISION = {4: SINGLE, 8: DOUBLE}
"""The precision of an array's numbers, by their size in bytes."""


def single_factor(dim: int, noise_to_sensitivity: float, norm: Norm, roundings: float) -> float:
    """Return the factor on noise in float32 that covers `roundings` of a row.

    The norm of a noisy row is at most `longest_row`. The row without its noise may exceed
    `Precision.longest` by up to twice `most_noise`; the factor covers the rounding of this, too.

    Parameters
    ----------
    dim
        Length of a row.
    noise_to_sensitivity
        Scale of the noise over the sensitivity.
    norm
        Norm of the sensitivity.
    roundings
        How often a row is rounded.

    Raises
    ------
    ValueError
        If the noise is so large beside the sensitivity that float32 rounds it too coarsely.
    """
    noise_norm = most_noise(dim, noise_to_sensitivity, norm)
    rounding = roundings * 2 * noise_norm * 2.0**-SINGLE.digits  # over the sensitivity
    if rounding > 0.5:
        largest = noise_to_sensitivity / (2 * rounding)
        expected = f"at most {largest:.4g} in {SINGLE.name}, which rounds noisier rows too coarsely"
        fail("noise_to_sensitivity", f"{expected}, or float64", noise_to_sensitivity)
    return SINGLE.factor / (1 - rounding)


def most_noise(dim: int, scale: float, norm: Norm) -> float:
    """Return a norm that a row of noise exceeds with a probability below ``2**-63``.

    ``exp(-TAIL)`` bounds the tail of a sum of exponential variables (Boucheron, Lugosi and Massart
    2013, Section 2.4) and that of a Gaussian vector's norm (Theorem 5.6).

    Parameters
    ----------
    dim
        Length of a row.
    scale
        Scale of the noise: Laplace for the norm ``"l1"``, Gaussian for ``"l2"``.
    norm
        Norm of the row.
    """
    if norm == "l1":
        return scale * (dim + sqrt(2 * dim * TAIL) + TAIL)
    return scale * (sqrt(dim) + sqrt(2 * TAIL))


def longest_row(
    values: Floats, distance: float, scale: float, norm: Norm, roundings: float
) -> float:
    """Return the largest norm of noisy rows of a sensitivity `distance`.

    It includes the norm of the noise, so that noise alone does not make a row too long. It is the
    noisy row that is measured, so a refusal reveals no more than the release would.

    Parameters
    ----------
    values
        Rows before the noise: their type and length count, shape (nodes, dim).
    distance
        Sensitivity of a row, in `norm`.
    scale
        Scale of the noise, in the units of the values.
    norm
        Norm of the sensitivity.
    roundings
        How often a row is rounded.

    Raises
    ------
    ValueError
        If the scale of the noise is below the smallest normal number of the values' type.
    """
    precision = PRECISION[values.itemsize]
    if scale < precision.least:
        expected = f"one whose noise has a scale of at least {precision.least:g}, for"
        fail("sensitivity", f"{expected} {precision.name}", scale)
    noise_norm = most_noise(values.shape[-1], scale, norm)
    longest = precision.longest(roundings) * distance + noise_norm
    if longest < inf:
        return longest
    return float_info.max


def fail_for_length(values: Floats, distance: float, roundings: float) -> NoReturn:
    """Fail with a ValueError: a row is longer than `longest_row` allows."""
    precision = PRECISION[values.itemsize]
    longest = precision.longest(roundings) * distance
    name = precision.name
    share = precision.share
    remedy = ""
    if name == SINGLE.name:
        remedy = " (take records in float64)"
    expected = f"rows of norm at most {longest:g}: {name} rounds longer ones by more"
    fail(
        "values",
        f"{expected} than {share:.1g} of the sensitivity, {distance:g}{remedy}",
        "a longer one",
    )
