"""The oracle values, and the checks that are registered for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh.accounting._arguments import noisy_rounds
from dpmesh.accounting._compose import composed_epsilon
from dpmesh.accounting._merge import RoundKinds
from dpmesh.accounting._pairs import LAPLACE, DominatingPair

ORACLES = json.loads((Path(__file__).parents[1] / "oracles" / "oracles.json").read_text())[
    "oracles"
]

Oracle = dict[str, Any]
Values = dict[str, float]
CHECKS: dict[str, Callable[[Oracle], Values]] = {}


def check(pattern: str) -> Callable[[Callable[[Oracle], Values]], Callable[[Oracle], Values]]:
    def register(function: Callable[[Oracle], Values]) -> Callable[[Oracle], Values]:
        CHECKS[pattern] = function
        return function

    return register


def delta_of(oracle: Oracle) -> float:
    delta = oracle["inputs"]["delta"]
    inputs = oracle["inputs"]
    if delta == "N^-1.1":
        return inputs["N"] ** -1.1
    if isinstance(delta, str) and "/" in delta:
        size = int(delta.removeprefix("1/").removesuffix("^2"))
        return 1 / size**2
    return float(delta)


def laplace_cost(
    *, delta: float, noise_to_sensitivity: npt.ArrayLike, count: npt.ArrayLike = 1
) -> float:
    """Return what Laplace releases cost by their loss distributions, so many of each."""
    multiplier, times = noisy_rounds(noise_to_sensitivity, count)
    pure = float(np.sum(times / multiplier))
    rounds = RoundKinds(DominatingPair(LAPLACE), np.ones_like(multiplier), multiplier, times)
    return min(pure, composed_epsilon(delta, rounds)) if delta > 0 else pure
