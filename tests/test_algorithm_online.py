"""Online learning against its loop-written twin, and its privacy plan."""

from __future__ import annotations

from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import online_learning

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh.keys import Purpose
from dpmesh.privacy.accounting import analytic_gaussian_noise_multiplier
from dpmesh.schedules import InverseSqrt, InverseTime


def make_problem(
    loss: str, nodes: int, records: int, dim: int, *, regularization: float = 0.0, seed: int = 0
) -> dm.LinearProblem:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(nodes * records, dim))
    labels = np.where(features @ rng.normal(size=dim) + rng.normal(size=len(features)) > 0, 1, -1)
    parts = tuple(np.split(rng.permutation(nodes * records), nodes))
    dataset = dm.data.Dataset(features, labels, "synthetic")
    return dm.LinearProblem(dataset, parts, loss, regularization=regularization)


def make_topology(kind: str, nodes: int, key: dm.Key) -> topology.Topology:
    if kind == "matchings":
        return topology.random_matchings(nodes, key=key)
    if kind == "dropping":
        return topology.edge_dropping(topology.complete(nodes), keep=0.5, key=key)
    return topology.ring(nodes)


@given(
    loss=st.sampled_from(["hinge", "logistic", "squared"]),
    graph=st.sampled_from(["ring", "matchings", "dropping"]),
    nodes=st.sampled_from([2, 4, 6]),
    dim=st.integers(1, 12),
    rounds=st.integers(1, 9),
    batch_size=st.integers(1, 3),
    epsilon=st.one_of(st.none(), st.floats(0.1, 100)),
    delta=st.sampled_from([0.0, 1e-5]),
    schedule=st.sampled_from([InverseSqrt(0.5), InverseTime(2.0)]),
    clipping_norm=st.floats(0.1, 3),
    radius=st.floats(0.2, 5),
    regularization=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**32),
)
def test_equals_its_twin(
    loss,
    graph,
    nodes,
    dim,
    rounds,
    batch_size,
    epsilon,
    delta,
    schedule,
    clipping_norm,
    radius,
    regularization,
    seed,
) -> None:
    key = dm.Key.seeded(seed)
    records = rounds * batch_size
    problem = make_problem(loss, nodes, records, dim, regularization=regularization, seed=seed)
    network = make_topology(graph, nodes, key)
    algorithm = dm.OnlineLearning(epsilon, delta, schedule, radius, clipping_norm, batch_size)

    run = dm.simulate(algorithm, problem, network, rounds=rounds, key=key, metrics=["loss"])

    train, h = problem.train, batch_size
    draw = kernels.gaussian if delta else kernels.laplace
    multiplier = (
        0.0
        if epsilon is None
        else analytic_gaussian_noise_multiplier(epsilon, delta)
        if delta
        else 1 / epsilon
    )
    w = online_learning(
        loss=loss,
        examples=lambda i, t: [
            (train.features[r], train.labels[r]) for r in problem.partition[i][t * h : (t + 1) * h]
        ],
        A=lambda t: network.matrix(t).weights.toarray(),
        alpha=schedule,
        noise=lambda j, t: draw((nodes, dim), 1.0, key.stream(Purpose.NOISE, t))[j],
        norm_factor=1.0 if delta else sqrt(dim),
        multiplier=multiplier,
        m=nodes,
        n=dim,
        T=rounds,
        L=clipping_norm,
        radius=radius,
        lam=regularization,
    )
    np.testing.assert_allclose(run.parameters, w[rounds], rtol=1e-10, atol=1e-10)


@given(rounds=st.integers(1, 30), epsilon=st.one_of(st.none(), st.floats(1e-3, 1e3)))
def test_ledger_equals_plan(rounds: int, epsilon: float | None) -> None:
    algorithm = dm.OnlineLearning(epsilon)
    problem = make_problem("hinge", 3, rounds, 2)
    run = dm.simulate(algorithm, problem, topology.ring(3), rounds=rounds, metrics=["loss"])
    assert run.ledger == algorithm.plan(rounds)
    touched = rounds > 1  # the first broadcast does not depend on the data
    expected = 0.0 if not touched else inf if epsilon is None else epsilon
    assert run.privacy.epsilon == pytest.approx(expected, rel=1e-12)


def test_sensitivity_is_lemma_1_and_reached() -> None:
    algorithm = dm.OnlineLearning(0.5, clipping_norm=3.0)
    for t in (1, 2, 100):
        l2 = algorithm.sensitivity(t)
        assert l2.bound == pytest.approx(2 * 3.0 / (2 * sqrt(t)))
        scale = algorithm.mechanism.noise_scale(l2, 10)
        assert scale == pytest.approx(2 * (1 / (2 * sqrt(t))) * sqrt(10) * 3.0 / 0.5)


def test_replacing_an_example_moves_one_broadcast_within_the_sensitivity() -> None:
    """Two runs on neighbouring data that hear the same broadcasts, as in the guarantee's proof."""
    nodes, rounds, dim, touched = 3, 6, 4, 2
    key, network = dm.Key.seeded(1), topology.ring(3)
    algorithm = dm.OnlineLearning(1.0, clipping_norm=1.0, radius=100.0)
    problem = make_problem("hinge", nodes, rounds, dim, regularization=0.5)
    features = problem.train.features.copy()
    record = problem.partition[0][touched]
    features[record] *= -50.0  # a worst case: the clipped subgradient turns around
    other = replace(problem, train=replace(problem.train, features=features))

    class Tape:
        """Hands the first world's broadcasts to both."""

        def __init__(self) -> None:
            self.heard: list[dm.privacy.Released] = []
            self.playing = False

        def __call__(self, round: int, messages: dm.privacy.Released) -> dm.privacy.Released:
            if not self.playing:
                self.heard.append(messages)
            return kernels.mix(network.matrix(round).weights, self.heard[round])

    tape, states = Tape(), []
    for world in (problem, other):
        state, path = algorithm.init(world, key), []
        for t in range(rounds):
            path.append(state.w)
            state, _ = algorithm.step(state, t, world, tape, key)
        states.append(path)
        tape.playing = True
    for t, (w, v) in enumerate(zip(*states, strict=True)):
        moved = np.linalg.norm(w - v, axis=1)
        if t == touched + 1:
            assert 0.9 * algorithm.sensitivity(t).bound < moved[0]
            assert moved[0] <= algorithm.sensitivity(t).bound * (1 + 1e-12)
            assert not moved[1:].any()
        else:
            assert not moved.any()


def test_a_seeded_run_repeats_and_says_so() -> None:
    problem = make_problem("logistic", 4, 10, 3)
    runs = [
        dm.simulate(
            dm.OnlineLearning(1.0), problem, topology.ring(4), rounds=10, key=dm.Key.seeded(7)
        )
        for _ in range(2)
    ]
    np.testing.assert_array_equal(runs[0].parameters, runs[1].parameters)
    assert "no private release" in str(runs[0].privacy)
    fresh = [
        dm.simulate(dm.OnlineLearning(1.0), problem, topology.ring(4), rounds=10) for _ in range(2)
    ]
    assert (fresh[0].parameters != fresh[1].parameters).all()
    assert "no private release" not in str(fresh[0].privacy)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_same_bits_on_any_number_of_threads(threads: int) -> None:
    problem = make_problem("hinge", 64, 3, 700)
    before = kernels.get_threads()
    runs = []
    for count in (before, threads):
        kernels.set_threads(count)
        runs.append(
            dm.simulate(
                dm.OnlineLearning(1.0),
                problem,
                topology.ring(64),
                rounds=3,
                key=dm.Key.seeded(3),
                metrics=["loss"],
            )
        )
    kernels.set_threads(before)
    np.testing.assert_array_equal(runs[0].parameters, runs[1].parameters)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dm.OnlineLearning(0.0), "epsilon: wanted a finite number greater than 0, got 0"),
        (lambda: dm.OnlineLearning(-1.0), "epsilon: wanted .* greater than 0, got -1"),
        (lambda: dm.OnlineLearning(np.nan), "epsilon: wanted a finite number, got nan"),
        (lambda: dm.OnlineLearning(delta=1.0), r"delta: wanted a number in \[0, 1\), got 1"),
        (lambda: dm.OnlineLearning(batch_size=0), "batch_size: wanted an integer of at least 1"),
        (lambda: dm.OnlineLearning(radius=0), "radius: wanted .* greater than 0, got 0"),
        (lambda: dm.OnlineLearning(clipping_norm=np.inf), "clipping_norm: wanted a finite number"),
        (lambda: dm.OnlineLearning().plan(0), "rounds: wanted an integer of at least 1, got 0"),
    ],
)
def test_bad_parameters_are_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_each_example_is_used_once() -> None:
    problem = make_problem("hinge", 3, 5, 2)
    with pytest.raises(ValueError, match="round"):
        dm.simulate(dm.OnlineLearning(1.0), problem, topology.ring(3), rounds=6)
