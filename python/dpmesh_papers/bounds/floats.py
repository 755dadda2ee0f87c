"""Bounds beyond the range of floats are refused, where Python would fail within a formula."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np

from dpmesh._validate import fail

P = ParamSpec("P")
R = TypeVar("R")


def held_by_floats(bound: Callable[P, R]) -> Callable[P, R]:
    """Raise a `ValueError` if a function overflows, or divides by what rounds to 0."""

    @wraps(bound)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                return bound(*arguments, **options)
        except ArithmeticError:
            fail(bound.__name__, "arguments at which a float holds it", "too large or small ones")

    return checked
