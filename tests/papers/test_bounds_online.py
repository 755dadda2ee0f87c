"""Bounds of the online paper: its formulas, and what was measured below them."""

from __future__ import annotations

import math
from dataclasses import replace
from math import e, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_round import one_round
from refused import refused

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh.problems import best_fixed_predictor
from dpmesh.run import Gossip
from dpmesh.schedules import InverseSqrt, InverseTime
from dpmesh_papers.bounds.connectivity import check_weights
from dpmesh_papers.bounds.online import (
    Mixing,
    OnlineRun,
    batch_regret_as_printed,
    convergence,
    convergence_as_printed,
    disagreement,
    disagreement_as_printed,
    l1_sensitivity,
    laplace_noise,
    learner_regret,
    regret,
    regret_as_printed,
)
from dpmesh_papers.claims.online import sides_of_42


def test_convex_regret_by_hand() -> None:
    m, n, T, L, R, epsilon = 3, 4, 100, 2.0, 5.0, 0.5
    run = OnlineRun(
        nodes=m, dim=n, rounds=T, lipschitz=L, diameter=R, noise=laplace_noise(epsilon, n, L)
    )
    steps = (m * R**2 + m * L**2 / 2) * sqrt(T)
    noise = 4 * m * n**2 * L**2 / epsilon**2 * sqrt(2) * sqrt(T)
    assert regret(run) == pytest.approx(steps + noise)


def test_printed_regret_by_hand() -> None:
    m, n, T, L, R, lam, epsilon = 3, 4, 100, 2.0, 5.0, 0.25, 0.5
    theta, beta = 1.1, 0.9
    slow = 3 * beta * theta * m * L / (1 - beta)
    convex = m * L * (R + slow + 6.5 * L) * (sqrt(T) - 0.5) + m * R / 2
    strong = m * L / lam * (R + slow + 6.5 * L) * (1 + log(T)) + m * R / 2
    factor = (slow + (2 * L + 1) / (2 * m)) * 2 * sqrt(2) * m * n * L / epsilon
    mixing, flat = (
        Mixing(theta=theta, beta=beta),
        OnlineRun(nodes=m, dim=n, rounds=T, lipschitz=L, diameter=R),
    )
    curved = OnlineRun(nodes=m, dim=n, rounds=T, lipschitz=L, diameter=R, strong_convexity=lam)
    assert regret_as_printed(flat, mixing, epsilon=None) == pytest.approx(convex)
    assert regret_as_printed(curved, mixing, epsilon=None) == pytest.approx(strong)
    noisy = regret_as_printed(flat, mixing, epsilon=epsilon)
    assert noisy == pytest.approx(convex + factor * (sqrt(T) - 0.5))
    noisy = regret_as_printed(curved, mixing, epsilon=epsilon)
    assert noisy == pytest.approx(strong + factor * (1 + log(T)) / lam)


NETWORKS = {
    "ring": topology.ring(5),
    "star": topology.star(4),
    "matchings": topology.random_matchings(4, key=dm.Key.seeded(0)),
    "dropping": topology.edge_dropping(topology.ring(5), 0.5, key=dm.Key.seeded(1)),
}
WINDOWS = {"ring": 1, "star": 1, "matchings": 12, "dropping": 12}


@pytest.mark.parametrize("name", NETWORKS)
def test_products_of_matrices_keep_to_lemma_3(name: str) -> None:
    network, rounds = NETWORKS[name], 200
    bounds = [Mixing.from_topology(network, WINDOWS[name], rounds)]
    if isinstance(network, topology.Static):
        bounds.append(Mixing.from_matrix(network.matrix(0)))
    for first in (0, 7):
        product = np.eye(network.nodes)
        for length in range(1, 60):
            product = network.matrix(first + length - 1).weights @ product
            apart = np.abs(product - 1 / network.nodes).max()
            for mixing in bounds:
                assert apart <= mixing.theta * mixing.beta**length + 1e-12


def test_assumption_2_is_checked() -> None:
    swap = topology.MixingMatrix(np.array([[0.0, 1.0], [1.0, 0.0]]))
    message = "topology: wanted own and positive weights of at least 1.0, got 0.0 in round 0"
    with pytest.raises(ValueError, match=message):
        Mixing.from_topology(topology.Static(swap), 1, 10)
    pairs = topology.random_matchings(4, key=dm.Key.seeded(0))
    with pytest.raises(ValueError, match="a connected union of graphs over every 1"):
        Mixing.from_topology(pairs, 1, 10)
    check_weights(pairs, 0.5, 10)
    with pytest.raises(ValueError, match=r"of at least 0\.6, got 0\.5 in round 0"):
        check_weights(pairs, 0.6, 10)
    with pytest.raises(ValueError, match="smallest_weight: wanted"):
        check_weights(pairs, 0.0, 10)
    assert Mixing.from_assumption_2(3, 0.2, 1).theta == pytest.approx((1 - 0.2 / 36) ** -2)
    assert Mixing.from_assumption_2(3, 0.2, 4).beta == pytest.approx((1 - 0.2 / 36) ** 0.25)


def synthetic(loss: str, nodes: int, rounds: int, dim: int, lam: float) -> dm.LinearProblem:
    """Examples from the unit ball with noisy labels; the hinge and logistic L is 1."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(nodes * rounds, dim))
    features /= np.maximum(1, np.linalg.norm(features, axis=1))[:, None]
    labels = np.where(features @ np.ones(dim) + rng.normal(size=len(features)) > 0, 1, -1)
    parts = tuple(np.arange(nodes * rounds).reshape(nodes, rounds))
    data = dm.Dataset(features, labels, "synthetic")
    return dm.LinearProblem(data, parts, loss, regularization=lam, feature_norm=1.0)


@pytest.mark.parametrize("epsilon", [None, 1.0, 8.0])
@pytest.mark.parametrize(("loss", "lam"), [("hinge", 0.0), ("logistic", 0.5)])
def test_measured_regret_is_below_the_bounds(loss: str, lam: float, epsilon: float | None) -> None:
    nodes, rounds, dim, radius = 4, 200, 5, 1.0
    problem, network = synthetic(loss, nodes, rounds, dim, lam), topology.ring(nodes)
    step_size = InverseTime(scale=1 / lam) if lam else InverseSqrt(0.5)
    algorithm = dm.OnlineLearning(epsilon=epsilon, step_size=step_size, radius=radius)
    noise = algorithm.noise_std(1, dim) / step_size(1)
    if epsilon is not None:
        assert noise == pytest.approx(laplace_noise(epsilon, dim, 1.0))
    steepest = problem.constants(radius).lipschitz
    run = OnlineRun(
        nodes=nodes,
        dim=dim,
        rounds=rounds,
        lipschitz=steepest,
        diameter=2 * radius,
        strong_convexity=lam,
        noise=noise,
        bounded_outside=lam == 0,
    )
    mixing = Mixing.from_matrix(network.matrix(0))
    best = best_fixed_predictor(problem, radius=radius)
    smallest = nodes * rounds * (best.value - best.gap)

    own, learners, apart = [], [], np.zeros(rounds)
    repeats = 3
    for seed in range(repeats):
        key, losses, mixtures = dm.Key.seeded(seed), np.zeros(nodes), 0.0
        state = algorithm.init(problem, key)
        for t in range(rounds):
            examples = problem.batch(t, 1)
            everybody = np.broadcast_to(examples.ravel(), (nodes, nodes))
            losses += nodes * problem.objective(state.w, everybody)
            spread = kernels.row_norms(state.w - state.w.mean(axis=0))
            apart[t] += spread.mean() / repeats
            state, received, *_ = one_round(algorithm, state, t, problem, key, Gossip(network))
            mixtures += problem.objective(received, examples).sum()
        own.append(mixtures - smallest)
        learners.append(losses - smallest)
    assert np.mean(own) <= regret(run)
    assert (np.mean(learners, axis=0) <= learner_regret(run, mixing)).all()
    assert (apart <= disagreement(run, mixing) * (1 + 1e-9)).all()
    if epsilon is None:
        assert regret(run) <= 10 * max(np.mean(own), sqrt(nodes * rounds))  # and not vacuous


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize(("loss", "lam"), [("hinge", 0.0), ("logistic", 0.5)])
def test_regret_of_projected_mixtures_is_below_the_bound(loss, lam, delta) -> None:
    """Subgradients are taken inside W, so that L need not hold outside of it."""
    nodes, rounds, dim, radius = 4, 200, 5, 1.0
    problem, network = synthetic(loss, nodes, rounds, dim, lam), topology.ring(nodes)
    step_size = InverseTime(scale=1 / lam) if lam else InverseSqrt(0.5)
    algorithm = dm.OnlineLearning(
        epsilon=2.0, delta=delta, step_size=step_size, radius=radius, projection="mixture"
    )
    steepest = problem.constants(radius).lipschitz
    noise = algorithm.noise_std(1, dim) / step_size(1)
    best = best_fixed_predictor(problem, radius=radius)
    paid = []
    for seed in range(3):
        key, losses = dm.Key.seeded(seed), 0.0
        state = algorithm.init(problem, key)
        for t in range(rounds):
            state, received, *_ = one_round(algorithm, state, t, problem, key, Gossip(network))
            inside = kernels.clip_rows(received, radius)
            losses += problem.objective(inside, problem.batch(t, 1)).sum()
        paid.append(losses - nodes * rounds * (best.value - best.gap))
    run = OnlineRun(
        nodes=nodes,
        dim=dim,
        rounds=rounds,
        lipschitz=steepest,
        diameter=2 * radius,
        strong_convexity=lam,
        noise=noise,
    )
    assert np.mean(paid) <= regret(run)


def test_corrected_and_printed_differ_in_kind() -> None:
    """The price of privacy is n^2 / epsilon^2; the paper's n / epsilon cannot be had this way."""

    def noisy(epsilon: float) -> float:
        return regret(
            OnlineRun(
                nodes=4,
                dim=10,
                rounds=100,
                lipschitz=1.0,
                diameter=2.0,
                noise=laplace_noise(epsilon, 10, 1.0),
            )
        )

    quiet = regret(OnlineRun(nodes=4, dim=10, rounds=100, lipschitz=1.0, diameter=2.0))
    assert (noisy(0.1) - quiet) / (noisy(1.0) - quiet) == pytest.approx(100)


def test_the_mean_iterate_converges_as_the_theorem_says() -> None:
    rounds, dim, lam, radius, failure = 500, 3, 0.5, 1.0, 1e-3
    problem = synthetic("logistic", 1, rounds, dim, lam)
    large = synthetic("logistic", 1, 100_000, dim, lam)  # stands for the distribution
    algorithm = dm.OnlineLearning(epsilon=None, step_size=InverseTime(scale=1 / lam), radius=radius)
    state, losses, mean = algorithm.init(problem, dm.Key.seeded(0)), 0.0, np.zeros((1, dim))
    for t in range(rounds):
        mean += state.w / rounds
        losses += problem.objective(state.w, problem.batch(t, 1))[0]
        state = one_round(algorithm, state, t, problem, dm.Key.seeded(0)).state
    paid = losses - rounds * best_fixed_predictor(problem, radius=radius).value
    steepest = problem.constants(radius).lipschitz
    bound = convergence(
        max(paid, 0.0),
        rounds=rounds,
        lipschitz=steepest,
        strong_convexity=lam,
        failure=failure,
        loss_bound=log(1 + e) + lam / 2,
    )
    everything = np.arange(100_000)[None]
    risk = large.objective(mean, everything)[0] - best_fixed_predictor(large, radius=radius).value
    assert 0 <= risk <= bound


def test_the_published_mean_converges_as_the_theorem_says() -> None:
    """Of each learner, under noise: b_t depends on no example of round t, and stays in the ball."""
    nodes, rounds, dim, lam, radius, failure = 2, 2000, 3, 0.5, 1.0, 1e-3
    problem = synthetic("logistic", nodes, rounds, dim, lam)
    large = synthetic("logistic", 1, 100_000, dim, lam)  # stands for the distribution
    algorithm = dm.OnlineLearning(
        epsilon=5.0,
        step_size=InverseTime(scale=1 / lam),
        radius=radius,
        projection="mixture",
        average=True,
    )
    losses, graph = np.zeros(nodes), topology.complete(nodes)

    def pay(_problem: dm.LinearProblem, _parameters: np.ndarray, means: np.ndarray) -> float:
        t = len(sums)
        sums.append((t + 1) * means)
        examples = problem.batch(t, 1)
        losses[:] += problem.objective(np.array(sums[t] - sums[t - 1] if t else means), examples)
        return 0.0

    sums: list[np.ndarray] = []
    measured = dm.Metrics([pay], every=1)
    run = dm.simulate(
        algorithm, problem, graph, rounds=rounds, key=dm.Key.seeded(3), metrics=measured
    )
    lowest = best_fixed_predictor(large, radius=radius).value
    for i in range(nodes):
        alone = replace(problem, partition=(problem.partition[i],))
        paid = losses[i] - rounds * best_fixed_predictor(alone, radius=radius).value
        bound = convergence(
            max(paid, 0.0),
            rounds=rounds,
            lipschitz=problem.constants(radius).lipschitz,
            strong_convexity=lam,
            failure=failure,
            loss_bound=log(1 + e) + lam / 2,
        )
        risk = large.objective(run.released[i : i + 1], np.arange(100_000)[None])[0] - lowest
        assert 0 <= risk <= bound


CONVERGING = {"rounds": 5, "lipschitz": 1.0, "strong_convexity": 1.0, "failure": 0.1}


test_bad_input_is_named = refused(
    (
        lambda: OnlineRun(
            nodes=1, dim=1, rounds=1, lipschitz=1.0, diameter=1.0, bounded_outside=False
        ),
        "strong_convexity: wanted greater than 0 without bounded_outside, got 0",
    ),
    (lambda: convergence(1.0, **{**CONVERGING, "failure": 0.0}), "failure: wanted a number"),
    (lambda: convergence(1.0, **{**CONVERGING, "failure": 0.5}), "failure: wanted a number below"),
)


@pytest.mark.parametrize("rounds", [3, 10, 10**6])
def test_convergence_is_promised_with_some_probability_alone(rounds: int) -> None:
    """The theorem holds with probability 1 - 4 failure ln T, from T = 3 on, for failure < 1/e."""
    options = {"rounds": rounds, "lipschitz": 1.0, "strong_convexity": 1.0}
    least = min(math.exp(-1), 1 / (4 * math.log(rounds)))
    assert convergence(1.0, failure=least * (1 - 1e-9), **options) > 0
    with pytest.raises(ValueError, match="failure: wanted a number below"):
        convergence(1.0, failure=least, **options)


@given(st.integers(1, 6), st.integers(1, 9), st.floats(0, 0.99), st.floats(0, 3))
def test_printed_disagreement_is_equation_19(
    nodes: int, rounds: int, beta: float, noise: float
) -> None:
    run = OnlineRun(nodes=nodes, dim=4, rounds=rounds, lipschitz=2.0, diameter=1.0, noise=noise)
    bounds = disagreement_as_printed(run, Mixing(theta=1.5, beta=beta))
    step = {t: 1 / (2 * sqrt(t)) for t in range(1, rounds + 1)}
    length = {t: sqrt(4) * noise * step[t] for t in range(1, rounds)}
    assert bounds[0] == 0
    for t in range(1, rounds):
        slow = sum(beta ** (t - k) * step[k] for k in range(1, t))
        noisy = sum(beta ** (t - k) * nodes * length[k] for k in range(1, t))
        assert bounds[t] == pytest.approx(nodes * 2.0 * 1.5 * slow + 1.5 * noisy + 4 * step[t])


def test_printed_convergence_by_hand() -> None:
    R, T, L, lam, gamma, h, m = 30.0, 200, 2.0, 0.5, 0.01, 5, 4
    tail = max(16 * L**2 / lam, 6) * log(1 / gamma) / T
    lemma_9 = R / T + 4 * sqrt(L**2 * log(T) / lam) * sqrt(R) / T + tail
    theorem_4 = (
        h**2 * R / (m * T) + 4 * sqrt(L**2 * log(T / h) / lam) * h * sqrt(h * R / m) / T + h * tail
    )

    def printed(**options: int) -> float:
        return convergence_as_printed(
            R, rounds=T, lipschitz=L, strong_convexity=lam, failure=gamma, **options
        )

    assert printed() == pytest.approx(lemma_9)
    assert printed(batch_size=h, nodes=m) == pytest.approx(theorem_4)
    assert batch_regret_as_printed(R, h) == h * R
    with pytest.raises(ValueError, match="batch_size: wanted a divisor of rounds = 200"):
        printed(batch_size=7)


def test_the_paper_s_noise_is_its_sensitivity_over_epsilon() -> None:
    assert l1_sensitivity(0.5, 9, 2.0) == 2 * 0.5 * 3 * 2.0
    std = laplace_noise(0.3, 9, 2.0, batch_size=4)
    assert std == pytest.approx(sqrt(2) * l1_sensitivity(1.0, 9, 2.0, 4) / 0.3)


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_equation_42_drops_a_term_linear_in_the_rounds(lam: float) -> None:
    """A mean learner that stays at the far end of W: S_1 outgrows what (42) prints."""
    excess = []
    for rounds in (100, 1000, 10_000):
        t = np.arange(1, rounds + 2)
        steps = 1 / (lam * t) if lam else 1 / (2 * np.sqrt(t))
        sides = sides_of_42(
            np.full(rounds + 1, 2.0),
            steps,
            diameter=2.0,
            lipschitz=1.0,
            strong_convexity=lam,
            nodes=3,
        )
        assert sides.left <= sides.printed + sides.dropped + 1e-9  # the line before is right
        assert sides.left > sides.printed
        excess.append(sides.left - sides.printed)
    assert excess[2] / excess[1] == pytest.approx(10, rel=0.1)


def test_equation_42_holds_where_lambda_is_at_least_l() -> None:
    t = np.arange(1, 102)
    sides = sides_of_42(np.full(101, 2.0), 1 / t, diameter=2.0, lipschitz=1.0, strong_convexity=1.0)
    assert sides.left <= sides.printed


def test_a_run_of_algorithm_1_exceeds_equation_42() -> None:
    """One learner, no noise, losses that turn around at half time: S_1 is linear in the rounds."""
    excess = []
    for rounds in (1000, 10_000):
        steps = 1 / (2 * np.sqrt(np.arange(1, rounds + 2)))
        w, distances = -1.0, []
        for t in range(rounds + 1):
            distances.append(max(1.0 - w, 1e-300))  # from w* = 1, the best of [-1, 1] in hindsight
            gradient = 0.9 if t < rounds // 2 else -1.0  # of length at most L = 1
            w = float(np.clip(w - steps[t] * gradient, -1, 1))
        sides = sides_of_42(distances, steps, diameter=2.0, lipschitz=1.0, strong_convexity=0.0)
        assert sides.left <= sides.printed + sides.dropped
        excess.append(sides.left - sides.printed)
    assert excess[0] > 0
    assert excess[1] > 9 * excess[0]


@given(st.floats(1e-3, 2.0), st.floats(1e-3, 2.0))
def test_equation_32_compares_distances_with_their_squares(later: float, earlier: float) -> None:
    """It holds where the distances sum to at least 1 and grow, or to at most 1 and fall."""
    holds = later - earlier <= later**2 - earlier**2
    assert holds == ((later - earlier) * (later + earlier - 1) >= 0) or np.isclose(
        later - earlier, later**2 - earlier**2, atol=1e-12
    )


def test_step_44_fails_for_long_noise_and_for_long_steps() -> None:
    """|sigma + d|^2 <= (2 L + 1) |sigma| + L^2 alpha, one learner, L = 1."""

    def holds(noise: float, alpha: float) -> bool:
        return (noise + alpha) ** 2 <= 3 * noise + alpha

    assert holds(0.5, 0.5)
    assert not holds(4.0, 0.5)
    assert not holds(0.0, 1.5)


def test_lambda_of_at_least_l_needs_a_small_set() -> None:
    """Subgradients at two ends of W differ by lambda R, and by at most 2 L: R <= 2 L / lambda."""
    for lam in (0.5, 1.0, 2.0):
        largest = 2 * 1.0 / lam
        ends = np.array([-largest / 2, largest / 2])
        gradients = lam * ends  # of lambda |w|^2 / 2, as steep as L = 1 allows
        assert np.abs(gradients).max() == pytest.approx(1.0)
        assert (largest <= 2) == (lam >= 1)
