"""Quantized gossip against its loop-written twin, and its privacy."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from point_problem import PointProblem
from scipy import stats
from twin_quantized import quantized_gossip
from twins import shorten, subgradient

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh.keys import Purpose
from dpmesh.privacy import Levels, Quantizer, RandomSparsifier, accounting
from dpmesh.privacy.accounting.papers import quantized as claims
from dpmesh.privacy.accounting.papers._refusal import NotProved
from dpmesh.privacy.audit import couple
from dpmesh.schedules import Constant, HorizonPower, PowerLaw, SampleSize
from dpmesh.simulator.exchange import Gossip


def make_problem(
    loss: str = "logistic",
    nodes: int = 4,
    records: int = 9,
    dim: int = 3,
    *,
    regularization: float = 0.0,
    seed: int = 0,
) -> dm.LinearProblem:
    """Records of norm at most 1, more of them on some nodes than on others."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(nodes * records, dim))
    features /= np.maximum(np.linalg.norm(features, axis=1), 1)[:, np.newaxis]
    labels = np.where(features @ rng.normal(size=dim) > 0, 1, -1)
    cuts = np.arange(1, nodes) * records - rng.integers(0, records // 2, nodes - 1)
    parts = tuple(np.split(rng.permutation(nodes * records), cuts))
    dataset = dm.Dataset(features, labels, "synthetic")
    return dm.LinearProblem(dataset, parts, loss, regularization=regularization, feature_norm=1.0)


def make_topology(kind: str, nodes: int, key: dm.Key) -> topology.Topology:
    if kind == "dropping":
        return topology.edge_dropping(topology.complete(nodes), keep=0.5, key=key)
    return topology.complete(nodes) if kind == "complete" else topology.ring(nodes)


def make_algorithm(rounds: int, **changes) -> dm.QuantizedGossip:
    chosen = {
        "step_size": HorizonPower(0.5, -0.9, rounds),
        "consensus_step_size": HorizonPower(0.9, -0.7, rounds),
        "sample_size": SampleSize(1.0, 0.5, rounds),
        "noise_std": PowerLaw(0.1, 0.05),
        "compressor": Quantizer(0.05),
        **changes,
    }
    return dm.QuantizedGossip(**chosen)


@given(
    loss=st.sampled_from(["hinge", "logistic", "squared"]),
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
def test_equals_its_twin(
    loss,
    graph,
    nodes,
    dim,
    rounds,
    exponents,
    noisy,
    step,
    mode,
    clipping_norm,
    regularization,
    seed,
) -> None:
    alpha, beta, gamma, zeta = exponents
    key = dm.Key.seeded(seed)
    problem = make_problem(loss, nodes, dim=dim, regularization=regularization, seed=seed)
    network = make_topology(graph, nodes, key)
    size, sigma = SampleSize(1.0, gamma, rounds), PowerLaw(0.3, zeta)
    algorithm = dm.QuantizedGossip(
        HorizonPower(0.8, -alpha, rounds),
        HorizonPower(0.9, -beta, rounds),
        size,
        sigma if noisy else None,
        None if step is None else Quantizer(step),
        clipping_norm,
        mode,
    )
    run = dm.simulate(algorithm, problem, network, rounds=rounds, key=key, metrics=["loss"])

    train = problem.train
    shape = nodes, dim

    def noise(i: int, k: int) -> np.ndarray:
        if k == 0 or not noisy:
            return np.zeros(dim)
        return sigma(k + 1) * kernels.gaussian(shape, 1.0, key.stream(Purpose.NOISE, k))[i]

    def records(i: int, k: int) -> list[int]:
        most = max(len(part) for part in problem.partition)
        coins = kernels.uniform((nodes, most), key.stream(Purpose.SAMPLE, k))[i]
        mine = problem.partition[i]
        return [mine[r] for r in sorted(range(len(mine)), key=lambda r: coins[r])[: size(1)]]

    x, sent = quantized_gossip(
        x0=[np.zeros(dim)] * nodes,
        gradient=lambda i, w, r: shorten(
            subgradient(loss, w, train.features[r], train.labels[r]), clipping_norm
        ),
        regularization=regularization,
        records=records,
        A=lambda k: network.matrix(k).weights.toarray(),
        alpha=algorithm.step_size(1),
        beta=algorithm.consensus_step_size(1),
        noise=noise,
        coins=lambda i, k: kernels.uniform(shape, key.stream(Purpose.QUANTIZE, k))[i],
        step=step,
        n=nodes,
        K=rounds - 1,
        at_public_point=mode == "public_point",
    )
    np.testing.assert_allclose(run.parameters, x[rounds], rtol=1e-10, atol=1e-10)
    mixed = network.matrix(rounds - 1).weights @ np.array(sent[-1])
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


@given(
    rounds=st.integers(1, 12),
    mode=st.sampled_from(claims.MODES),
    smoothness=st.sampled_from([0.3, 1.0]),
    zeta=st.floats(-0.5, 0.5),
    noisy=st.booleans(),
)
def test_ledger_equals_plan(rounds, mode, smoothness, zeta, noisy) -> None:
    noise = PowerLaw(0.1, zeta) if noisy else None
    algorithm = make_algorithm(
        rounds,
        noise_std=noise,
        mode=mode,
        smoothness=smoothness,
        consensus_step_size=HorizonPower(0.5, -0.7, rounds),
    )
    run = dm.simulate(
        algorithm, make_problem(), topology.ring(4), rounds=rounds, delta=1e-5, metrics=["loss"]
    )
    assert run.ledger == algorithm.plan(rounds)
    assert len(run.ledger.releases) == rounds
    if rounds == 1:
        assert run.privacy.epsilon == 0.0  # x_0 does not depend on the data
    elif not noisy:
        assert run.privacy.epsilon == inf
    else:
        sigma = [algorithm.noise_std(k + 1) for k in range(1, rounds)]
        delta = claims.sensitivities(
            rounds - 1,
            step_size=algorithm.step_size(1),
            consensus_step_size=algorithm.consensus_step_size(1),
            gradient_bound=2.0,
            sample_size=algorithm.sample_size(1),
            mode=mode,
            smoothness=smoothness,
        )
        mu = accounting.gdp_mu(np.array(sigma) / delta)
        assert run.privacy.epsilon == pytest.approx(accounting.gdp_epsilon(1e-5, mu), rel=1e-12)


@pytest.mark.parametrize(
    ("rounds", "mode", "epsilon"),
    [
        (2001, "paper", 0.02717701854),  # O5 and O6 of the specification
        (2001, "safe", 0.03464885742),
        (101, "paper", 0.1668379843),
        (101, "safe", 0.2392132167),
    ],
)
def test_the_budgets_of_the_specification(rounds: int, mode, epsilon: float) -> None:
    algorithm = dm.QuantizedGossip(
        HorizonPower(1.0, -0.9, rounds),
        HorizonPower(1.0, -0.7, rounds),
        SampleSize(1.0, 0.85, rounds),
        PowerLaw(1.0, 0.05),
        clipping_norm=0.5,
        mode=mode,
        smoothness=1.0,
    )
    assert algorithm.plan(rounds).cost(1e-5).epsilon == pytest.approx(epsilon, rel=1e-9)
    if mode == "paper":
        claimed = {2001: 3.084395895, 101: 3.072701821}[rounds]  # O4
        assert algorithm.paper_budget(rounds, 1e-5).epsilon == pytest.approx(claimed, rel=1e-9)


def test_where_the_papers_claims_are_not_proved_they_are_refused() -> None:
    """O7: one record a round; and a smoothness that nobody knows."""
    algorithm = make_algorithm(
        101,
        step_size=HorizonPower(1.0, -0.9, 101),
        consensus_step_size=HorizonPower(1.0, -0.7, 101),
        sample_size=SampleSize(1.0, 0.0, 101),
        noise_std=PowerLaw(1.0, 0.1),
        clipping_norm=0.5,
        mode="paper",
        smoothness=1.0,
    )
    assert algorithm.plan(101).cost(1e-5).epsilon == pytest.approx(10.75440902, rel=1e-9)
    with pytest.raises(NotProved, match=r"below 1 in each iteration, got 1\.576"):
        algorithm.paper_budget(101, 1e-5)
    with pytest.raises(NotProved, match="smoothness"):
        replace(algorithm, smoothness=inf).plan(101)


@pytest.mark.parametrize("mode", claims.MODES)
def test_replacing_a_record_moves_a_state_within_the_sensitivity(mode) -> None:
    """Two runs on neighbouring data that hear the same messages, of a convex loss."""
    problem = make_problem("logistic", 3)
    features, labels = problem.train.features.copy(), problem.train.labels.copy()
    record = problem.partition[0][0]
    features[record] = [1.0, 0.0, 0.0]
    worlds = []
    for label in (-1, 1):
        labels[record] = label
        train = dm.Dataset(features, labels.copy(), "neighbour")
        worlds.append(replace(problem, train=train))
    fewest = min(len(part) for part in problem.partition)
    algorithm = make_algorithm(
        40, sample_size=SampleSize(fewest, 0.0, 40), mode=mode, smoothness=0.26
    )
    seen = couple(algorithm, *worlds, Gossip(topology.ring(3)), rounds=40)
    assert not seen.violated, str(seen)
    assert max(m.distance / m.allowed for m in seen.movements[1:]) > 0.2


class WithoutLipschitzTerm(dm.QuantizedGossip):
    """Lemma 2 as printed: common records follow the state, and nobody counts it."""

    def next_sensitivity(self, sensitivity: float, k: int) -> float:
        printed = dm.QuantizedGossip(**{**vars(self), "mode": "public_point"})
        return printed.next_sensitivity(sensitivity, k)


def test_lemma_2_as_printed_is_wrong_for_nonconvex_losses() -> None:
    """Records that push away from themselves: the safe recursion holds and is nearly reached."""

    def away(x: np.ndarray, centre: np.ndarray) -> np.ndarray:
        return centre - x

    worlds = []
    for centre in (-1.0, 1.0):  # clipped to C / 2 either way
        centres = np.zeros((3, 50, 1))
        centres[0, 0] = centre
        worlds.append(PointProblem(centres, away, lambda x, c: -((x - c) ** 2).sum(-1) / 2))
    schedules = Constant(0.04), Constant(0.1), SampleSize(50, 0, 60), Constant(0.1)
    options = {"compressor": Quantizer(0.01), "clipping_norm": 0.5, "smoothness": 1.0}
    ring = Gossip(topology.ring(3))
    right = couple(dm.QuantizedGossip(*schedules, **options), *worlds, ring, rounds=60)
    assert not right.violated, str(right)
    assert max(m.distance / m.allowed for m in right.movements[1:]) > 0.9
    wrong = couple(WithoutLipschitzTerm(*schedules, **options), *worlds, ring, rounds=60)
    assert wrong.violated
    assert max(m.distance / m.allowed for m in wrong.movements[1:]) > 1.5


def test_noise_on_the_quantizers_own_grid() -> None:
    """The messages are the noisy integers, accounted as discrete Gaussian noise."""
    problem, rounds = make_problem(dim=5), 8
    plain = make_algorithm(rounds, noise_std=Constant(0.5))
    gridded = replace(plain, grid=2.0**-5, compressor=Quantizer(2.0**-5))
    run = dm.simulate(gridded, problem, topology.ring(4), rounds=rounds, delta=1e-5)
    assert run.ledger == gridded.plan(rounds)
    assert {release.mechanism for release in run.ledger.releases[1:]} == {"discrete_gaussian"}
    usual = plain.plan(rounds).cost(1e-5).epsilon
    assert usual < run.privacy.epsilon < 1.5 * usual  # Rényi in place of exact accounting
    key = dm.Key.seeded(0)
    state = gridded.init(problem, key)
    for k in range(3):
        emission = gridded.emit(state, k, key)
        codes = emission.values * 2**5
        np.testing.assert_array_equal(codes, np.rint(codes))
        if k > 0:
            uncompressed = replace(gridded, compressor=None).emit(state, k, key)
            np.testing.assert_array_equal(emission.values, uncompressed.values)
        state, _ = gridded.step(state, k, problem, Gossip(topology.ring(4)), key)
    mechanism, delta = gridded.mechanism(1, 0.01), 0.01
    scale = mechanism.noise_scale(dm.privacy.Sensitivity(delta, "l2", ""), 5)
    assert scale == pytest.approx(0.5 * (1 + 2.0**-5 * np.sqrt(5) / delta), rel=1e-9)
    labels = problem.train.labels.copy()
    labels[problem.partition[0][0]] *= -1
    neighbour = replace(problem, train=dm.Dataset(problem.train.features, labels, "neighbour"))
    seen = couple(gridded, problem, neighbour, Gossip(topology.ring(4)), rounds=rounds)
    assert not seen.violated, str(seen)


@pytest.mark.parametrize("compressor", [Levels(16), RandomSparsifier(0.5)])
def test_other_compressors_fit_the_slot_at_the_same_privacy(compressor) -> None:
    problem = make_problem(dim=20)
    plain = make_algorithm(6)
    algorithm = replace(plain, compressor=compressor)
    run = dm.simulate(algorithm, problem, topology.ring(4), rounds=6, delta=1e-5)
    assert run.ledger == algorithm.plan(6) == plain.plan(6)
    assert 0 < run.traffic.bits < 6 * 8 * 20 * 64


def test_only_the_node_of_the_record_moves() -> None:
    problem = make_problem()
    labels = problem.train.labels.copy()
    labels[problem.partition[1][0]] *= -1
    other = replace(problem, train=dm.Dataset(problem.train.features, labels, "neighbour"))
    algorithm = make_algorithm(5, sample_size=SampleSize(5, 0, 5))
    key, said = dm.Key.seeded(0), []
    state, moved = algorithm.init(problem, key), algorithm.init(other, key)
    for k in range(5):
        z, *_ = algorithm.emit(state, k, key)
        received = Gossip(topology.ring(4))(k, z)
        batches = algorithm.sample(k, problem, key)
        state = algorithm.absorb(state, z, received, k, problem, batches)
        moved = algorithm.absorb(moved, z, received, k, other, batches)
        said.append(np.linalg.norm(state.x - moved.x, axis=1))
    assert max(norms[1] for norms in said) > 0
    assert not np.delete(said, 1, axis=1).any()


def test_traffic_is_the_length_of_the_messages() -> None:
    """Over a graph whose nodes have different numbers of listeners."""
    problem, star, key = make_problem(dim=40), topology.star(4), dm.Key.seeded(1)
    algorithm = make_algorithm(6)
    run = dm.simulate(algorithm, problem, star, rounds=6, key=key, metrics=["loss"])
    state, total = algorithm.init(problem, key), 0
    for k in range(6):
        emission = algorithm.emit(state, k, key)
        codes = np.rint(emission.values / 0.05).astype(np.int64)
        for node in range(4):
            lengths = [kernels.pack(codes[node], bits).nbytes + 1 for bits in range(1, 33)]
            assert emission.bits_per_node[node] == 8 * min(lengths)
            total += 8 * min(lengths) * len(star.matrix(k).neighbours(node))
        state, _ = algorithm.step(state, k, problem, Gossip(star), key)
    assert run.traffic == dm.simulator.Traffic(6 * 6, total)
    measured = dm.simulate(algorithm, problem, star, rounds=6, key=key, every=6).history
    mean = float(emission.bits_per_node.mean())
    assert measured.last("bits_per_node") == mean
    assert measured.last("compression") == 32 * 40 / mean
    floats = dm.simulate(
        replace(algorithm, compressor=None), problem, star, rounds=6, key=key, every=6
    )
    assert floats.traffic.bits == 36 * 40 * 64
    assert "compression" not in floats.history.metrics


def test_samples_are_without_replacement_and_uniform() -> None:
    """Each record as often as any other; a chi-squared test with 1e-6 false alarms."""
    problem = make_problem(nodes=2, records=6)
    algorithm = make_algorithm(1, sample_size=SampleSize(3, 0, 1))
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


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_same_bits_on_any_number_of_threads(threads: int) -> None:
    problem = make_problem(nodes=64, dim=700)
    before = kernels.get_threads()
    runs = []
    for count in (before, threads):
        kernels.set_threads(count)
        ring = topology.ring(64)
        runs.append(dm.simulate(make_algorithm(3), problem, ring, rounds=3, key=dm.Key.seeded(3)))
    kernels.set_threads(before)
    np.testing.assert_array_equal(runs[0].parameters, runs[1].parameters)
    assert runs[0].traffic == runs[1].traffic


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_algorithm(5, clipping_norm=0), "clipping_norm: wanted .* greater than 0"),
        (lambda: make_algorithm(5, mode="exact"), "mode: wanted one of 'paper', 'safe', 'public_"),
        (
            lambda: make_algorithm(5, smoothness=np.nan),
            "smoothness: wanted .* or infinity, got nan",
        ),
        (lambda: make_algorithm(5, grid=0.3), "grid: wanted a power of 2"),
        (lambda: make_algorithm(5).plan(0), "rounds: wanted an integer of at least 1, got 0"),
        (lambda: make_algorithm(5).plan(7), "t: wanted an integer of at least 1 and below 6"),
        (lambda: make_algorithm(5).paper_budget(1, 1e-5), "rounds: wanted .* at least 2, got 1"),
        (
            lambda: make_algorithm(5, noise_std=None).paper_budget(5, 1e-5),
            "noise_std: wanted noise, got None",
        ),
        (
            lambda: simulate(sample_size=SampleSize(10, 0, 5)),
            "sample_size: wanted at most [0-9], the records of the poorest node, got 10",
        ),
        (
            lambda: simulate(smoothness=0.1),
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
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def simulate(*, regularization: float = 0.0, **changes) -> dm.Run:
    problem = make_problem(regularization=regularization)
    return dm.simulate(make_algorithm(5, **changes), problem, topology.ring(4), rounds=5)
