"""Gradient tracking against its loop-written twin, and what tracking buys."""

from __future__ import annotations

import numpy as np
import pytest
from twin_gradient_descent import (
    audits_catch_half_the_noise,
    beside_its_twin,
    clipped_mean,
    gradients_of,
    ring,
    small_problem,
    small_runs,
)

import dpmesh as dm
from dpmesh import topology
from dpmesh.accounting import gdp_epsilon
from dpmesh.keys import Key


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
def test_equals_its_twin(**case) -> None:
    run, network, given = beside_its_twin(dm.GradientTracking, ring, lambda t, step: 1.0, case)
    x = gradient_tracking(network.matrix(0).weights.toarray(), **given)
    np.testing.assert_allclose(run.parameters, x, rtol=1e-9, atol=1e-11)
    np.testing.assert_array_equal(run.released, run.parameters)


def test_its_cost_is_that_of_one_gaussian() -> None:
    plan = dm.GradientTracking(records=10, noise_multiplier=10.0).plan(17)
    assert plan.cost(1e-5).epsilon == pytest.approx(gdp_epsilon(delta=1e-5, mu=np.sqrt(17) / 5))
    fewer = dm.GradientTracking(records=10, noise_multiplier=10.0, batches=5).plan(17)
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


@pytest.mark.slow
def test_audits_find_nothing_and_catch_half_the_noise() -> None:
    audits_catch_half_the_noise(dm.GradientTracking)
