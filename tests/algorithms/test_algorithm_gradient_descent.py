"""Decentralized gradient descent against its loop-written twin, and how far one record moves it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from problems import contract_problem as make_problem
from twin_gradient_descent import (
    beside_its_twin,
    gradient_descent,
    moved_by_a_record,
    of_the_step,
    ring,
    small_problem,
    small_runs,
)

import dpmesh as dm
from dpmesh.accounting import gdp_epsilon
from dpmesh.algorithms.registry import NODES, RECORDS, ROUNDS
from dpmesh.audit import audit_layers
from dpmesh.keys import Key


@small_runs
def test_equals_its_twin(**case) -> None:
    run, network, given = beside_its_twin(dm.GradientDescent, ring, of_the_step, case)
    x, received = gradient_descent(network.matrix(0).weights.toarray(), **given)
    np.testing.assert_allclose(run.parameters, x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(run.released, received, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "part", "t"),
    [(dm.GradientDescent, "x", 1), (dm.PushSum, "x", 1), (dm.GradientTracking, "gradient", 0)],
)
def test_a_record_moves_what_is_sent_by_the_sensitivity_and_no_further(kind, part, t) -> None:
    algorithm = kind(records=4, noise_multiplier=2.0 if t else None, clipping_norm=0.5)
    moved = moved_by_a_record(algorithm, small_problem(3, 4, 2, 0), part)
    assert np.linalg.norm(moved[1]) == pytest.approx(algorithm.sensitivity(t).bound)
    assert not moved[[0, 2]].any()


def test_its_cost_is_that_of_one_gaussian() -> None:
    plan = dm.GradientDescent(records=10, noise_multiplier=10.0).plan(17)
    assert plan.cost(1e-5).epsilon == pytest.approx(gdp_epsilon(delta=1e-5, mu=np.sqrt(16) / 5))


def test_nodes_with_too_few_records_are_refused() -> None:
    with pytest.raises(ValueError, match="records is 5, but the smallest node has only 4 records"):
        dm.GradientDescent(records=5, noise_multiplier=2.0).init(
            small_problem(3, 4, 2, 0), Key.seeded(0)
        )
    problem = small_problem(3, 4, 2, 0)
    first, second, third = problem.partition
    uneven = (np.append(first, second[:1]), second[1:], third)
    with pytest.raises(ValueError, match="records is 4, but the smallest node has only 3 records"):
        dm.GradientDescent(records=4, noise_multiplier=2.0).init(
            replace(problem, partition=uneven), Key.seeded(0)
        )


def test_a_problem_that_chooses_its_batches_is_refused() -> None:
    class First(dm.LinearProblem):
        def batch(self, round, size):
            return super().batch(0, size)

    problem = small_problem(4, 12, 3, 0)
    mine = First(problem.train, problem.partition, "logistic")
    algorithm = dm.GradientDescent(records=12, noise_multiplier=2.0, batches=4)
    with pytest.raises(ValueError, match=r"batches in the order of its partition"):
        algorithm.init(mine, dm.Key.seeded(0))


RING = dm.topology.ring(NODES)


def run(algorithm: dm.GradientDescent) -> dm.Run:
    return dm.simulate(
        algorithm, make_problem(), RING, rounds=ROUNDS, key=dm.Key.seeded(0), delta=1e-5
    )


def test_it_is_gradient_descent_on_the_power_of_the_network_and_costs_the_same() -> None:
    """Against a loop over nodes that mixes with W^3 at once."""
    mixed = run(dm.GradientDescent(records=RECORDS, noise_multiplier=4.0, mixings=3))
    weights = np.linalg.matrix_power(RING.matrix(0).weights.toarray(), 3)
    power = dm.topology.Static(dm.topology.MixingMatrix(weights))
    at_once = dm.simulate(
        dm.GradientDescent(records=RECORDS, noise_multiplier=4.0),
        make_problem(),
        power,
        rounds=ROUNDS,
        key=dm.Key.seeded(0),
        delta=1e-5,
    )
    np.testing.assert_allclose(mixed.parameters, at_once.parameters, rtol=1e-9)
    assert mixed.ledger == at_once.ledger
    assert mixed.privacy.epsilon == at_once.privacy.epsilon


def test_every_mixing_is_traffic() -> None:
    plain, mixed = (
        run(dm.GradientDescent(records=RECORDS, noise_multiplier=4.0)),
        run(dm.GradientDescent(records=RECORDS, noise_multiplier=4.0, mixings=4)),
    )
    assert mixed.traffic.messages == 4 * plain.traffic.messages
    assert mixed.traffic.bits == 4 * plain.traffic.bits


@pytest.mark.slow
def test_audits_find_nothing() -> None:
    algorithm = dm.GradientDescent(records=4, noise_multiplier=3.0, mixings=3)
    layers = algorithm.worst_case(canaries=200)
    for result in audit_layers(*layers, runs=300, confidence=0.999, key=dm.Key.seeded(5)):
        assert not result.violated, str(result)


def test_no_mixing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mixings: wanted an integer of at least 1, got 0"):
        dm.GradientDescent(records=RECORDS, noise_multiplier=4.0, mixings=0)
