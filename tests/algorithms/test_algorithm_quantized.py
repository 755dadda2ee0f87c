"""Quantized gossip against its loop-written twin."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_round import one_round, watcher_of
from quantized_problems import make_algorithm, make_problem, make_topology
from refused import refused
from scipy import stats
from twin_quantized import quantized_gossip
from twins import shorten, subgradient

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh.keys import Purpose
from dpmesh.noise import Levels, Quantizer, RandomSparsifier
from dpmesh.run.carriers import Gossip
from dpmesh.schedules import Constant, HorizonPower, PowerLaw, SampleSize
from dpmesh_papers.claims.quantized import paper_budget


@pytest.mark.slow
@given(
    case=st.builds(
        SimpleNamespace,
        loss=st.sampled_from(["hinge", "logistic", "squared", "absolute", "huber"]),
        graph=st.sampled_from(["ring", "complete", "dropping"]),
        nodes=st.sampled_from([2, 3, 5]),
        dim=st.integers(1, 9),
        rounds=st.integers(1, 12),
        exponents=st.tuples(*[st.floats(0.1, 1)] * 2, st.floats(0, 0.6), st.floats(-0.5, 0.5)),
        noisy=st.booleans(),
        step=st.sampled_from([None, 1e-3, 0.1, 2.0]),
        mode=st.sampled_from(["safe", "public_point"]),
        clipping_norm=st.floats(0.1, 3),
        regularization=st.sampled_from([0.0, 0.1]),
        seed=st.integers(0, 2**32),
    )
)
def test_equals_its_twin(case) -> None:
    alpha, beta, gamma, zeta = case.exponents
    key = dm.Key.seeded(case.seed)
    problem = make_problem(
        case.loss, case.nodes, dim=case.dim, regularization=case.regularization, seed=case.seed
    )
    network = make_topology(case.graph, case.nodes, key)
    size, sigma = (
        SampleSize(scale=1.0, exponent=gamma, rounds=case.rounds),
        PowerLaw(scale=0.3, exponent=zeta),
    )
    algorithm = dm.QuantizedGossip(
        step_size=HorizonPower(scale=0.8, exponent=-alpha, rounds=case.rounds),
        consensus_step_size=HorizonPower(scale=0.9, exponent=-beta, rounds=case.rounds),
        sample_size=size,
        noise_std=sigma if case.noisy else None,
        compressor=None if case.step is None else Quantizer(case.step),
        clipping_norm=case.clipping_norm,
        mode=case.mode,
    )
    run = dm.simulate(algorithm, problem, network, rounds=case.rounds, key=key, metrics=["loss"])

    train = problem.train
    shape = case.nodes, case.dim

    def noise(i: int, k: int) -> np.ndarray:
        if k == 0 or not case.noisy:
            return np.zeros(case.dim)
        return sigma(k + 1) * kernels.gaussian(shape, 1.0, key.stream(Purpose.NOISE, k))[i]

    def records(i: int, k: int) -> list[int]:
        most = max(len(part) for part in problem.partition)
        coins = kernels.uniform((case.nodes, most), key.stream(Purpose.SAMPLE, k))[i]
        mine = problem.partition[i]
        return [mine[r] for r in sorted(range(len(mine)), key=lambda r: coins[r])[: size(1)]]

    x, sent = quantized_gossip(
        x0=[np.zeros(case.dim)] * case.nodes,
        gradient=lambda i, w, r: shorten(
            subgradient(case.loss, w, train.features[r], train.labels[r]), case.clipping_norm
        ),
        regularization=case.regularization,
        records=records,
        A=lambda k: network.matrix(k).weights.toarray(),
        alpha=algorithm.step_size(1),
        beta=algorithm.consensus_step_size(1),
        noise=noise,
        coins=lambda i, k: kernels.uniform(shape, key.stream(Purpose.QUANTIZE, k))[i],
        step=case.step,
        n=case.nodes,
        K=case.rounds - 1,
        at_public_point=case.mode == "public_point",
    )
    np.testing.assert_allclose(run.parameters, x[case.rounds], rtol=1e-10, atol=1e-10)
    mixed = network.matrix(case.rounds - 1).weights @ np.array(sent[-1])
    np.testing.assert_allclose(run.released, mixed, rtol=1e-10, atol=1e-10)


def test_the_twin_gives_the_trace_of_the_specification() -> None:
    """Worked out by hand: three nodes, quadratics around c, given normals and uniforms."""
    c = [0.0, 1.0, -1.0]
    normals = [[0.3, -0.2, 0.7], [-0.4, 1.1, 0.25]]
    uniforms = [[0.9, 0.05, 0.5], [0.2, 0.3, 0.99]]
    weights = (np.ones((3, 3)) + np.eye(3)) / 4
    x, sent = quantized_gossip(
        x0=[np.array([1.0]), np.array([-0.5]), np.array([2.0])],
        gradient=lambda i, w, record: w - c[i],
        regularization=0.0,
        records=lambda i, k: [0],
        A=lambda k: weights,
        alpha=0.1,
        beta=0.25,
        noise=lambda i, k: np.array([(k + 1) ** 0.1 * normals[k][i]]),
        coins=lambda i, k: np.array([uniforms[k][i]]),
        step=0.5,
        n=3,
        K=1,
    )
    np.testing.assert_array_equal(np.ravel(sent), [1.0, -0.5, 2.5, 0.5, 1.0, 1.5])
    np.testing.assert_allclose(np.ravel(x[1]), [0.9, -0.06875, 1.54375], rtol=1e-12)
    np.testing.assert_allclose(np.ravel(x[2]), [0.80375, 0.3053125, 1.1846875], rtol=1e-12)


@pytest.mark.parametrize("compressor", [Levels(16), RandomSparsifier(0.5)])
def test_other_compressors_fit_the_slot_at_the_same_privacy(compressor) -> None:
    problem = make_problem(dim=20)
    plain = make_algorithm(6)
    algorithm = replace(plain, compressor=compressor)
    run = dm.simulate(algorithm, problem, topology.ring(4), rounds=6, delta=1e-5)
    assert run.ledger == algorithm.plan(6) == plain.plan(6)
    assert 0 < run.traffic.bits < 6 * 8 * 20 * 64


def test_traffic_is_the_length_of_the_messages() -> None:
    """Over a graph whose nodes have different numbers of listeners."""
    problem, star, key = make_problem(dim=40), topology.star(4), dm.Key.seeded(1)
    algorithm = make_algorithm(6)
    run = dm.simulate(algorithm, problem, star, rounds=6, key=key, metrics=["loss"])
    state, total, passages = algorithm.init(problem, key), 0, []
    for k in range(6):
        done = one_round(algorithm, state, k, problem, key, Gossip(star), watcher_of(passages))
        state, codes = done.state, np.rint(passages[k].values / 0.05).astype(np.int64)
        for node in range(4):
            lengths = [kernels.pack(codes[node], bits).nbytes + 1 for bits in range(1, 33)]
            assert done.sent.bits[node] == 8 * min(lengths)
            total += 8 * min(lengths) * len(star.matrix(k).neighbours(node))
    assert run.traffic == dm.run.Traffic(6 * 6, total)
    options = {"rounds": 6, "key": key, "metrics": dm.Metrics(every=6)}
    measured = dm.simulate(algorithm, problem, star, **options).history
    mean = float(done.sent.bits.mean())
    assert measured.last("bits_per_node") == mean
    assert measured.last("compression") == 32 * 40 / mean
    floats = dm.simulate(replace(algorithm, compressor=None), problem, star, **options)
    assert floats.traffic.bits == 36 * 40 * 64
    assert "compression" not in floats.history.metrics


def test_samples_are_without_replacement_and_uniform() -> None:
    """Each record as often as any other; a chi-squared test with 1e-6 false alarms."""
    problem = make_problem(nodes=2, records=6)
    algorithm = make_algorithm(1, sample_size=SampleSize(scale=3, exponent=0, rounds=1))
    drawn = np.zeros(12)
    for seed in range(4000):
        indptr, batch = algorithm.sample(0, problem, dm.Key.seeded(seed))
        assert indptr.tolist() == [0, 3, 6]
        for node, own in enumerate(np.split(batch, 2)):
            assert len(set(own)) == 3
            assert set(own) <= set(problem.partition[node])
        drawn[batch] += 1
    for part in problem.partition:
        m = len(part)
        expected = 4000 * 3 / m
        # covariance of the counts: 4000 p (1 - p) m / (m - 1) (I - 11' / m) with p = 3 / m
        statistic = ((drawn[part] - expected) ** 2).sum() / (expected * (1 - 3 / m)) * (m - 1) / m
        assert stats.chi2.sf(statistic, m - 1) > 1e-6
        skewed = drawn[part] * (1 + 0.2 * (np.arange(m) == 0))
        statistic = ((skewed - expected) ** 2).sum() / (expected * (1 - 3 / m)) * (m - 1) / m
        assert stats.chi2.sf(statistic, m - 1) < 1e-6


test_bad_input_is_named = refused(
    (lambda: make_algorithm(5, grid=0.3), "grid: wanted a power of 2"),
    (lambda: make_algorithm(5).plan(7), "HorizonPower.*: wanted t of at most 5, .*, got 6"),
    (lambda: paper_budget(make_algorithm(5), 1, 1e-5), "rounds: wanted .* at least 2, got 1"),
    (
        lambda: paper_budget(make_algorithm(5, noise_std=None), 5, 1e-5),
        "noise_std: wanted noise, got None",
    ),
    (
        lambda: simulate(sample_size=SampleSize(scale=10, exponent=0, rounds=5)),
        "sample_size: wanted at most [0-9], the records of the smallest node, got 10",
    ),
    (lambda: make_algorithm(5, compressor=4), "compressor: wanted a compressor, with compress"),
    (
        lambda: make_algorithm(5, compressor=SimpleNamespace(compress=len, decode=len)),
        "compressor: wanted .* decode, decode_packet",
    ),
    (
        lambda: make_algorithm(5, smoothness=1.0).init(
            replace(make_problem("hinge"), feature_norm=None), dm.Key.seeded(0)
        ),
        "smoothness: wanted infinity, since the hinge loss has a kink, got 1.0",
    ),
    (
        lambda: make_algorithm(5, smoothness=1.0).init(
            replace(make_problem("absolute"), feature_norm=None), dm.Key.seeded(0)
        ),
        "smoothness: wanted infinity, since the absolute loss has a kink, got 1.0",
    ),
    (
        lambda: simulate(regularization=0.1, smoothness=0.1),
        "smoothness: wanted at least the problem's 0.25, got 0.1",
    ),
    (
        lambda: simulate(mode="paper", smoothness=0.26, clipping_norm=0.5),
        "clipping_norm: wanted at least the problem's 1 in mode 'paper', got 0.5",
    ),
    (
        lambda: simulate(
            regularization=2.0, step_size=Constant(0.5), consensus_step_size=Constant(0.9)
        ),
        r"regularization: wanted at most 2 \(1 - consensus_step_size\) / step_size = 0.4",
    ),
    (
        lambda: simulate(
            regularization=0.2,
            step_size=Constant(0.5),
            consensus_step_size=Constant(0.9),
            mode="paper",
            smoothness=0.25,
        ),
        r"regularization: wanted at most 2 .* / step_size - smoothness = 0.15, got 0.2",
    ),
    (
        lambda: simulate(regularization=0.1, consensus_step_size=Constant(1.1)),
        r"regularization: wanted at most 2 .* / step_size = 0, got 0.1",
    ),
)


def simulate(*, regularization: float = 0.0, **changes) -> dm.Run:
    problem = make_problem(regularization=regularization)
    return dm.simulate(make_algorithm(5, **changes), problem, topology.ring(4), rounds=5)
