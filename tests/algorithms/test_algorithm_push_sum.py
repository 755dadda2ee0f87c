"""Push-sum against its loop-written twin, over directed networks that change in each round."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from problems import contract_problem
from twin_gradient_descent import (
    audits_catch_half_the_noise,
    beside_its_twin,
    clipped_mean,
    gradients_of,
    moved_by_a_record,
    of_the_step,
    small_problem,
    small_runs,
)

import dpmesh as dm
from dpmesh import topology
from dpmesh.algorithms.registry import NODES, RECORDS, ROUNDS
from dpmesh.keys import Key


def push_sum(matrix, gradients, noise, *, rounds, dim, alpha, L):
    """Return the models x / w after the last round, and its ratios z."""
    nodes = len(gradients)
    x, w, z = np.zeros((nodes, dim)), np.ones(nodes), np.zeros((nodes, dim))
    for t in range(rounds):
        P, sent = matrix(t), x + noise(t)
        b, following = np.zeros_like(x), np.zeros(nodes)
        for i in range(nodes):
            for j in range(nodes):
                b[i] = b[i] + P[i, j] * sent[j]
                following[i] = following[i] + P[i, j] * w[j]
        w = following
        for i in range(nodes):
            z[i] = b[i] / w[i]
            x[i] = b[i] - alpha(t + 1) * clipped_mean(gradients[i], z[i], L)
    return x / w[:, np.newaxis], z


def directed(nodes, seed, key):
    return topology.random_directed(nodes, 1 + seed % (nodes - 1), key=key)


@small_runs
def test_equals_its_twin(**case) -> None:
    run, network, given = beside_its_twin(dm.PushSum, directed, of_the_step, case)
    models, ratios = push_sum(lambda t: network.matrix(t).weights.toarray(), **given)
    np.testing.assert_allclose(run.parameters, models, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(run.released, ratios, rtol=1e-10, atol=1e-12)


def test_a_record_moves_no_weight() -> None:
    algorithm = dm.PushSum(records=4, noise_multiplier=2.0, clipping_norm=0.5)
    assert not moved_by_a_record(algorithm, small_problem(3, 4, 2, 0), "weight").any()


def test_over_doubly_stochastic_matrices_it_is_gradient_descent() -> None:
    options = {"records": RECORDS, "noise_multiplier": 4.0, "mixings": 2}
    pushed, plain = (
        dm.simulate(
            kind(**options),
            contract_problem(),
            topology.ring(NODES),
            rounds=ROUNDS,
            key=Key.seeded(0),
            delta=1e-5,
        )
        for kind in (dm.PushSum, dm.GradientDescent)
    )
    np.testing.assert_allclose(pushed.parameters, plain.parameters, rtol=1e-10)
    assert pushed.privacy.epsilon == plain.privacy.epsilon


@pytest.mark.slow
def test_it_finds_the_optimum_of_all_nodes_where_gradient_descent_favours_some() -> None:
    """Node 0 receives from all, so that plain mixing weighs its records most."""
    graph = nx.DiGraph([(i, (i + 1) % 5) for i in range(5)] + [(i, 0) for i in range(1, 5)])
    network, problem = topology.directed(graph), small_problem(5, 20, 3, 2)
    step = dm.schedules.InverseSqrt(1.0)
    algorithm = dm.PushSum(records=20, noise_multiplier=None, step_size=step, clipping_norm=50.0)
    run = dm.simulate(algorithm, problem, network, rounds=2_000, key=Key.seeded(0), metrics=[])
    gradient = np.mean(
        [np.mean([g(run.released[0]) for g in own], axis=0) for own in gradients_of(problem)], 0
    )
    assert np.linalg.norm(gradient) < 0.02
    np.testing.assert_allclose(run.released, run.released[:1].repeat(5, axis=0), atol=0.1)
    with pytest.raises(ValueError, match="topology: wanted doubly stochastic matrices"):
        dm.simulate(
            dm.GradientDescent(records=20, noise_multiplier=None), problem, network, rounds=1
        )


@pytest.mark.slow
def test_audits_find_nothing_and_catch_half_the_noise() -> None:
    audits_catch_half_the_noise(dm.PushSum)
