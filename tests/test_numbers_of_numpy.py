"""Numbers of numpy give the noise and the cost of Python's: theirs wrap around and lose digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.privacy import Budget, Gaussian, Plan, Release, Sensitivity
from dpmesh.schedules import at

FEW, MANY = np.uint8(10), np.uint8(200)
TENTH = np.float16(0.1)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (dm.OnlineLearning, {"epsilon": TENTH, "clipping_norm": TENTH, "batch_size": MANY}),
        (dm.WithoutReplacement, {"models": FEW, "copies": MANY, "epsilon": TENTH, "delta": TENTH}),
        (
            dm.WithReplacement,
            {
                "nodes": FEW,
                "records": MANY,
                "noise_multiplier": TENTH,
                "models": MANY,
                "batch_size": FEW,
                "visits": FEW,
            },
        ),
        (
            dm.FederatedLearning,
            {
                "clients": MANY,
                "sampling_rate": TENTH,
                "clipping_norm": TENTH,
                "noise_multiplier": TENTH,
                "local_steps": FEW,
            },
        ),
        (
            dm.QuantizedGossip,
            {
                "step_size": TENTH,
                "consensus_step_size": TENTH,
                "sample_size": FEW,
                "noise_std": TENTH,
                "clipping_norm": TENTH,
                "smoothness": np.float16(3),
            },
        ),
        (dm.GradientDescent, {"records": FEW, "noise_multiplier": TENTH, "clipping_norm": TENTH}),
    ],
)
def test_algorithms_are_those_of_the_same_numbers(kind: Any, settings: dict[str, Any]) -> None:
    given, same = kind(**settings), kind(**{name: x.item() for name, x in settings.items()})
    assert given == same
    assert str(given) == str(same)
    assert given.plan(5).releases == same.plan(5).releases
    assert given.plan(5).cost(1e-5) == same.plan(5).cost(1e-5)


def test_noise_is_as_large_as_it_is_said_to_be() -> None:
    """In float16 the product has 1 bit."""
    mechanism = Gaussian(np.float16(1.0), clipping_norm=np.float16(60_000))
    assert mechanism.noise_scale(Sensitivity(8.5e-8, "l2", "tiny"), 1) == 8.5e-8
    sensitivity = Sensitivity(np.float16(0.1), "l2", "a tenth")
    assert Gaussian(1.1).noise_scale(sensitivity, 1) == 1.1 * float(TENTH)
    assert mechanism.clipping_sensitivity("replace_one").bound == 2 * float(np.float16(60_000))


def test_a_budget_is_not_rounded_up() -> None:
    plan = dm.OnlineLearning(1.0004).plan(3)
    assert not Budget(np.float16(1.0)).allows(plan)
    assert Budget(np.float16(1.0), delta=np.float16(0.5)).delta == 0.5


def test_the_last_node_that_a_byte_counts_pays() -> None:
    sensitivity = Sensitivity(1.0, "l2", "one")
    release = Release(0, "laplace", np.float32(2.0), sensitivity, nodes=(np.uint8(255),))
    costs = Plan((release,), "replace_one", "record").costs_by_node()
    assert costs.tolist() == 255 * [0.0] + [0.5]


def test_schedules_of_ones_own_may_return_them() -> None:
    assert type(at(lambda t: TENTH / t, 1)) is float
