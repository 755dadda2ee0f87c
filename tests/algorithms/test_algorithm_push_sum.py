"""Push-sum against its loop-written twin, over directed networks that change in each round."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from one_round import one_round
from problems import contract_problem
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
from dpmesh.algorithms.registry import NODES, RECORDS, ROUNDS
from dpmesh.keys import Key, Purpose


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


@small_runs
def test_equals_its_twin(nodes, records, dim, rounds, multiplier, clipping_norm, seed) -> None:
    problem, key = small_problem(nodes, records, dim, seed), Key.seeded(seed)
    schedule = dm.schedules.InverseSqrt(0.7)
    algorithm = dm.PushSum(
        records=records,
        noise_multiplier=multiplier,
        step_size=schedule,
        clipping_norm=clipping_norm,
    )
    network = topology.random_directed(nodes, 1 + seed % (nodes - 1), key=key)
    run = dm.simulate(algorithm, problem, network, rounds=rounds, key=key, metrics=[])

    def noise(t: int) -> np.ndarray:
        if t == 0 or multiplier is None:
            return np.zeros((nodes, dim))
        scale = multiplier * 2 * schedule(t) * clipping_norm / records
        return kernels.gaussian((nodes, dim), scale, key.stream(Purpose.NOISE, t))

    models, ratios = push_sum(
        lambda t: network.matrix(t).weights.toarray(),
        gradients_of(problem),
        noise,
        rounds=rounds,
        dim=dim,
        alpha=schedule,
        L=clipping_norm,
    )
    np.testing.assert_allclose(run.parameters, models, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(run.released, ratios, rtol=1e-10, atol=1e-12)
    assert run.ledger == algorithm.plan(rounds)


def test_a_record_moves_the_next_message_by_the_sensitivity_and_no_further() -> None:
    data = small_problem(3, 4, 2, 0)
    algorithm = dm.PushSum(records=4, noise_multiplier=1.0, clipping_norm=0.5)
    pair = neighbours(data)
    start = algorithm.init(data, Key.seeded(0))
    one, other = (one_round(algorithm, start, 0, each, Key.seeded(0)).state for each in pair)
    moved = one.x - other.x
    assert np.linalg.norm(moved[1]) == pytest.approx(algorithm.sensitivity(1).bound)
    assert not moved[[0, 2]].any()
    np.testing.assert_array_equal(one.weight, other.weight)


def test_over_doubly_stochastic_matrices_it_is_gradient_descent() -> None:
    options = {"records": RECORDS, "noise_multiplier": 2.0, "mixings": 2}
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


def test_audits_find_nothing_and_catch_half_the_noise() -> None:
    audits_catch_half_the_noise(dm.PushSum)
