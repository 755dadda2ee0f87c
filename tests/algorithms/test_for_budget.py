"""Any algorithm from a budget: the least noise that keeps it; words where there is none."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

import dpmesh as dm
from dpmesh.algorithms.base import NOISES
from dpmesh.algorithms.registry import REGISTRY, ROUNDS


@pytest.mark.parametrize("entry", REGISTRY, ids=lambda entry: entry.name)
def test_every_algorithm_is_made_for_a_budget(entry: Any) -> None:
    own = {f.name: getattr(entry.example, f.name) for f in fields(entry.example)}
    calibrated = any(own.pop(name, None) is not None for name in NOISES)
    given = {"epsilon": 4.0, "delta": 1e-5}
    public = {name: value for name, value in own.items() if name not in given}
    made = entry.kind.for_budget(**given, **({"rounds": ROUNDS} | public))
    cost = made.plan(ROUNDS).cost(1e-5).epsilon
    assert 0 < cost <= 4 * (1 + 1e-9)
    if calibrated:
        assert cost >= 4 * 0.99


def test_a_budget_in_place_of_noise_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"epsilon: wanted noise_multiplier, which GradientDesc"):
        dm.GradientDescent(records=80, epsilon=2.0)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="delta: wanted noise_multiplier"):
        dm.FederatedLearning(delta=1e-5)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="delta must be positive"):
        dm.GradientDescent.for_budget(epsilon=2.0, rounds=5, records=80)
    with pytest.raises(ValueError, match="delta: wanted a positive number"):
        dm.FederatedLearning.for_budget(
            dm.RecordGradients(clients=4, records=9),
            epsilon=2.0,
            combination=dm.algorithms.SecureAggregation(dim=2, rounds=5),
        )


@pytest.mark.parametrize(
    ("bare", "given", "said"),
    [
        ((), {"noise_scale": 1.0, "records": 4}, "missing a required argument: 'noise_multiplier'"),
        ((4, 1.0), {}, "too many positional arguments"),
        ((), {"records": 4, "noise_multiplier": 1.0, "step": 1}, "unexpected keyword .*'step'"),
    ],
)
def test_parameters_are_named_where_others_are_given(bare: Any, given: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"GradientDescent: .*{said}; it takes by name: records, "):
        dm.GradientDescent(*bare, **given)
