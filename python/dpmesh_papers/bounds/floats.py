"""Refusal of arguments at which a bound is beyond the range of floats."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np

from dpmesh._validate import fail

P = ParamSpec("P")
R = TypeVar("R")


def refuse_overflow(bound: Callable[P, R]) -> Callable[P, R]:
    """Make a function raise a `ValueError` that names it where it overflows or divides by 0.

    Without it Python and numpy would fail within a formula, or return infinity.
    """

    @wraps(bound)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                return bound(*arguments, **options)
        except ArithmeticError:
            fail(bound.__name__, "arguments at which a float holds it", "too large or small ones")

    return checked
