"""Gradient tracking against its loop-written twin, and what tracking buys."""

from __future__ import annotations

import numpy as np
import pytest
from one_round import one_round
from twin_gradient_descent import (
    audits_catch_half_the_noise,
    clipped_mean,
    gradients_of,
    neighbours,
    small_problem,
    small_runs,
)

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.accounting import gdp_epsilon


def gradient_tracking(A, gradients, noise, *, rounds, dim, alpha, L):
    """Return the models after the last round."""
    nodes = len(gradients)
    x, y, h = (np.zeros((nodes, dim)) for _ in range(3))
    for t in range(rounds):
        before, noisy = h, noise(t)
        h = np.array([clipped_mean(gradients[i], x[i], L) + noisy[i] for i in range(nodes)])
        c = np.zeros_like(y)
        if t > 0:
            for i in range(nodes):
                for j in range(nodes):
                    c[i] = c[i] + A[i, j] * y[j]
        y = c + h - before
        following = np.zeros_like(x)
        for i in range(nodes):
            for j in range(nodes):
                following[i] = following[i] + A[i, j] * (x[j] - alpha(t + 1) * y[j])
        x = following
    return x


@small_runs
def test_equals_its_twin(nodes, records, dim, rounds, multiplier, clipping_norm, seed) -> None:
    problem, key = small_problem(nodes, records, dim, seed), Key.seeded(seed)
    schedule = dm.schedules.InverseSqrt(0.7)
    algorithm = dm.GradientTracking(
        records=records,
        noise_multiplier=multiplier,
        step_size=schedule,
        clipping_norm=clipping_norm,
    )
    network = topology.complete(nodes) if nodes < 4 else topology.ring(nodes)
    run = dm.simulate(algorithm, problem, network, rounds=rounds, key=key, metrics=[])

    def noise(t: int) -> np.ndarray:
        if multiplier is None:
            return np.zeros((nodes, dim))
        scale = multiplier * 2 * clipping_norm / records
        return kernels.gaussian((nodes, dim), scale, key.stream(Purpose.NOISE, t))

    x = gradient_tracking(
        network.matrix(0).weights.toarray(),
        gradients_of(problem),
        noise,
        rounds=rounds,
        dim=dim,
        alpha=schedule,
        L=clipping_norm,
    )
    np.testing.assert_allclose(run.parameters, x, rtol=1e-9, atol=1e-11)
    np.testing.assert_array_equal(run.released, run.parameters)
    assert run.ledger == algorithm.plan(rounds)


def test_a_record_moves_the_gradient_by_the_sensitivity_and_all_else_follows_from_releases() -> (
    None
):
    data = small_problem(3, 4, 2, 0)
    algorithm = dm.GradientTracking(records=4, noise_multiplier=None, clipping_norm=0.5)
    pair = neighbours(data)
    start = algorithm.init(data, Key.seeded(0))
    one, other = (one_round(algorithm, start, 0, each, Key.seeded(0)).state for each in pair)
    moved = one.gradient - other.gradient
    assert np.linalg.norm(moved[1]) == pytest.approx(algorithm.sensitivity(0).bound)
    assert not moved[[0, 2]].any()


def test_its_cost_is_that_of_one_gaussian() -> None:
    plan = dm.GradientTracking(records=10, noise_multiplier=5.0).plan(17)
    assert plan.cost(1e-5).epsilon == pytest.approx(gdp_epsilon(delta=1e-5, mu=np.sqrt(17) / 5))
    fewer = dm.GradientTracking(records=10, noise_multiplier=5.0, batches=5).plan(17)
    assert fewer.cost(1e-5).epsilon == pytest.approx(gdp_epsilon(delta=1e-5, mu=np.sqrt(4) / 5))


def test_a_constant_step_ends_at_the_optimum_of_all_nodes() -> None:
    """Nodes with records of their own pull gradient descent away from it, and not the tracker."""
    problem, network = small_problem(6, 10, 3, 1), topology.ring(6)
    options = {"records": 10, "noise_multiplier": None, "step_size": 0.5, "clipping_norm": 50.0}

    def slope(kind: type) -> float:
        run = dm.simulate(kind(**options), problem, network, rounds=600, key=Key.seeded(0))
        each = [np.mean([g(run.released[0]) for g in own], 0) for own in gradients_of(problem)]
        return float(np.linalg.norm(np.mean(each, axis=0)))

    assert slope(dm.GradientTracking) < 1e-4 < 1e-2 < slope(dm.GradientDescent)


def test_audits_find_nothing_and_catch_half_the_noise() -> None:
    audits_catch_half_the_noise(dm.GradientTracking)
