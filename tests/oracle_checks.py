"""The oracle values, and the checks that are registered for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ORACLES = json.loads((Path(__file__).parent / "data" / "oracles.json").read_text())["oracles"]

Oracle = dict[str, Any]
Values = dict[str, float]
CHECKS: dict[str, Callable[[Oracle], Values]] = {}


def check(pattern: str) -> Callable[[Callable[[Oracle], Values]], Callable[[Oracle], Values]]:
    def register(function: Callable[[Oracle], Values]) -> Callable[[Oracle], Values]:
        CHECKS[pattern] = function
        return function

    return register


def delta_of(oracle: Oracle) -> float:
    delta, inputs = oracle["inputs"]["delta"], oracle["inputs"]
    if delta == "N^-1.1":
        return inputs["N"] ** -1.1
    if isinstance(delta, str) and "/" in delta:
        size = int(delta.removeprefix("1/").removesuffix("^2"))
        return 1 / size**2
    return float(delta)
