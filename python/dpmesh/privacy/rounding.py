"""How long a row and how small its noise may be, for the noise to hide the rounding of its numbers.

A row that a node computed was rounded to its type: by at most half a digit in each number, which
for two neighbours together is at most a ``2**-digits`` of its norm. Beyond a norm of ``2**digits``
sensitivities rounding may move neighbours further apart than a record does, and in the end the
noise itself is rounded away.
"""

from __future__ import annotations

from math import inf, sqrt
from sys import float_info
from typing import NoReturn

from dpmesh._validate import fail
from dpmesh.kernels.projection import Norm
from dpmesh.privacy.types import Floats


def digits_of(values: Floats) -> int:
    """Return the binary digits of this array's numbers after the leading one."""
    return 23 if values.itemsize == 4 else 52


def check_scale(scale: float, digits: int) -> None:
    """Refuse noise that is too small for the type: below its normal numbers it would vanish."""
    kind, least = ("float32", 2.0**-126) if digits == 23 else ("float64", float_info.min)
    if scale < least:
        fail("sensitivity", f"one whose noise has a scale of at least {least:g}, for {kind}", scale)


def longest_row(distance: float, scale: float, digits: int, dim: int, norm: Norm) -> float:
    """Return the norm that noisy rows of a sensitivity `distance` must not exceed.

    Twice the norm of noise of this scale is added, so that noise alone makes no row too long. As
    the noisy row is measured, a refusal reveals no more than its release would.
    """
    spread = scale * (dim if norm == "l1" else sqrt(dim))
    longest = 2.0**digits * distance + 2 * spread
    return longest if longest < inf else float_info.max


def fail_for_length(distance: float, digits: int) -> NoReturn:
    """Refuse a row that is longer."""
    kind = "float32" if digits == 23 else "float64"
    wanted = f"rows of norm at most {2**digits * distance:g}: {kind} rounds longer ones by more"
    fail("values", f"{wanted} than the sensitivity, {distance:g}", "a longer one")
