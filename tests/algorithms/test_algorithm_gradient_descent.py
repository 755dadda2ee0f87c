"""Decentralized gradient descent against its loop-written twin, and how far one record moves it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from one_round import one_round
from twin_gradient_descent import (
    gradient_descent,
    gradients_of,
    neighbours,
    small_problem,
    small_runs,
)

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.accounting import gdp_epsilon


@small_runs
def test_equals_its_twin(nodes, records, dim, rounds, multiplier, clipping_norm, seed) -> None:
    problem, key = small_problem(nodes, records, dim, seed), Key.seeded(seed)
    schedule = dm.schedules.InverseSqrt(0.7)
    algorithm = dm.GradientDescent(
        records=records,
        noise_multiplier=multiplier,
        step_size=schedule,
        clipping_norm=clipping_norm,
    )
    network = topology.complete(nodes) if nodes < 4 else topology.ring(nodes)
    run = dm.simulate(algorithm, problem, network, rounds=rounds, key=key, metrics=[])

    def noise(t: int) -> np.ndarray:
        if t == 0 or multiplier is None:
            return np.zeros((nodes, dim))
        scale = multiplier * 2 * schedule(t) * clipping_norm / records
        return kernels.gaussian((nodes, dim), scale, key.stream(Purpose.NOISE, t))

    x, received = gradient_descent(
        network.matrix(0).weights.toarray(),
        gradients_of(problem),
        noise,
        rounds=rounds,
        dim=dim,
        alpha=schedule,
        L=clipping_norm,
    )
    np.testing.assert_allclose(run.parameters, x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(run.released, received, rtol=1e-10, atol=1e-12)
    assert run.ledger == algorithm.plan(rounds)


def test_a_record_moves_the_next_message_by_the_sensitivity_and_no_further() -> None:
    problem = small_problem(3, 4, 2, 0)
    algorithm = dm.GradientDescent(records=4, noise_multiplier=1.0, clipping_norm=0.5)
    same, other = neighbours(problem)
    start = algorithm.init(same, Key.seeded(0))
    key = Key.seeded(0)
    x, y = (one_round(algorithm, start, 0, data, key).state.x for data in (same, other))
    moved = x - y
    assert np.linalg.norm(moved[1]) == pytest.approx(algorithm.sensitivity(1).bound)
    assert not moved[[0, 2]].any()


def test_its_cost_is_that_of_one_gaussian() -> None:
    plan = dm.GradientDescent(records=10, noise_multiplier=5.0).plan(17)
    assert plan.cost(1e-5).epsilon == pytest.approx(gdp_epsilon(delta=1e-5, mu=np.sqrt(16) / 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [],
)
def test_bad_arguments_are_named(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        dm.GradientDescent(**({"records": 1, "noise_multiplier": 1.0} | arguments))


def test_nodes_with_too_few_records_are_refused() -> None:
    with pytest.raises(ValueError, match="records is 5, but the smallest node has only 4 records"):
        dm.GradientDescent(records=5, noise_multiplier=1.0).init(
            small_problem(3, 4, 2, 0), Key.seeded(0)
        )
    problem = small_problem(3, 4, 2, 0)
    first, second, third = problem.partition
    uneven = (np.append(first, second[:1]), second[1:], third)
    with pytest.raises(ValueError, match="records is 4, but the smallest node has only 3 records"):
        dm.GradientDescent(records=4, noise_multiplier=1.0).init(
            replace(problem, partition=uneven), Key.seeded(0)
        )


def test_a_problem_that_chooses_its_batches_is_refused() -> None:
    class First(dm.LinearProblem):
        def batch(self, round, size):
            return super().batch(0, size)

    problem = small_problem(4, 12, 3, 0)
    mine = First(problem.train, problem.partition, "logistic")
    algorithm = dm.GradientDescent(records=12, noise_multiplier=1.0, batches=4)
    with pytest.raises(ValueError, match=r"batches in the order of its partition"):
        algorithm.init(mine, dm.Key.seeded(0))
