"""Short calls of the accountants of sampled Gaussian releases, each under its own relation."""

from __future__ import annotations

from functools import partial
from typing import Any

from dpmesh import accounting


def poisson_epsilon(delta: float, rate: Any, multiplier: Any, **options: Any) -> float:
    sampled = {"sampling_rate": rate, "noise_to_sensitivity": multiplier, **options}
    return accounting.poisson_gaussian_epsilon(
        delta=delta, neighboring_relation="add_remove", **sampled
    )


def fixed_size_epsilon(delta: float, rate: Any, multiplier: Any, **options: Any) -> float:
    sampled = {"sampling_rate": rate, "noise_to_sensitivity": multiplier, **options}
    return accounting.fixed_size_gaussian_epsilon(
        delta=delta, neighboring_relation="replace_one", **sampled
    )


NOISE = {
    "poisson": partial(
        accounting.poisson_gaussian_noise_to_sensitivity, neighboring_relation="add_remove"
    ),
    "fixed_size": partial(
        accounting.fixed_size_gaussian_noise_to_sensitivity, neighboring_relation="replace_one"
    ),
}
SAMPLED = {"poisson": poisson_epsilon, "fixed_size": fixed_size_epsilon}
