"""The rule for steps and rounds keeps its budget, and its noise is what it says."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmesh as dm
from dpmesh.defaults import COMPLETE, STEPS, choose, network

SOME = {"nodes": 5, "records": 80, "epsilon": 2.0, "delta": 1e-5}


@given(
    st.integers(1, 40),
    st.integers(1, 10_000),
    st.floats(0.1, 20),
    st.sampled_from(["classification", "regression"]),
)
def test_a_choice_keeps_its_budget_and_limits_its_noise(nodes, records, epsilon, task) -> None:
    chosen = choose(nodes=nodes, records=records, epsilon=epsilon, delta=1e-5, task=task)
    algorithm = chosen.algorithm
    assert algorithm.plan(chosen.rounds).cost(1e-5).epsilon <= epsilon * (1 + 1e-9)
    assert algorithm.plan(chosen.rounds).cost(1e-5).epsilon >= 0.999 * epsilon
    # the noise of all rounds in the score of a record of norm 1, from the releases themselves
    noise = [
        algorithm.noise_multiplier * algorithm.sensitivity(t).bound for t in range(1, STEPS + 1)
    ]
    total = sqrt(sum(scale**2 for scale in noise) / nodes)
    assert total <= {"classification": 2.0, "regression": 0.25}[task] * (1 + 1e-6)


def test_what_does_not_fit_is_refused_by_name() -> None:
    for changed, said in (
        ({"nodes": 0}, "nodes"),
        ({"records": 0}, "records"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 0.0}, "Gaussian noise has no finite epsilon at delta 0"),
        ({"task": "ranking"}, "task"),
    ):
        with pytest.raises(ValueError, match=said):
            choose(**{**SOME, **changed})
    assert choose(**{**SOME, "epsilon": None}).algorithm.noise_multiplier is None


def test_many_nodes_have_few_neighbours() -> None:
    key = dm.Key.seeded(1)
    assert network(COMPLETE).matrix(0).messages == COMPLETE * (COMPLETE - 1)
    assert network(COMPLETE + 1, key=key).matrix(0).messages == (COMPLETE + 1) * 8
