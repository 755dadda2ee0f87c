"""Bounds of the online paper: its formulas, and what was measured below them."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pytest
from one_round import one_round
from refused import refused

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh.problems import best_fixed_predictor
from dpmesh.reproduce.bounds.online import (
    Learning,
    Mixing,
    laplace_noise,
    regret,
    regret_as_printed,
)
from dpmesh.run import Gossip
from dpmesh.schedules import InverseSqrt, InverseTime


def test_convex_regret_by_hand() -> None:
    m, n, T, L, R, epsilon = 3, 4, 100, 2.0, 5.0, 0.5
    learning = Learning(
        nodes=m, dim=n, rounds=T, lipschitz=L, diameter=R, noise=laplace_noise(epsilon, n, L)
    )
    steps = (m * R**2 + m * L**2 / 2) * sqrt(T)
    noise = 4 * m * n**2 * L**2 / epsilon**2 * sqrt(2) * sqrt(T)
    assert regret(learning) == pytest.approx(steps + noise)


def test_printed_regret_by_hand() -> None:
    m, n, T, L, R, lam, epsilon = 3, 4, 100, 2.0, 5.0, 0.25, 0.5
    theta, beta = 1.1, 0.9
    slow = 3 * beta * theta * m * L / (1 - beta)
    convex = m * L * (R + slow + 6.5 * L) * (sqrt(T) - 0.5) + m * R / 2
    strong = m * L / lam * (R + slow + 6.5 * L) * (1 + log(T)) + m * R / 2
    factor = (slow + (2 * L + 1) / (2 * m)) * 2 * sqrt(2) * m * n * L / epsilon
    mixing, flat = (
        Mixing(theta=theta, beta=beta),
        Learning(nodes=m, dim=n, rounds=T, lipschitz=L, diameter=R),
    )
    curved = Learning(nodes=m, dim=n, rounds=T, lipschitz=L, diameter=R, strong_convexity=lam)
    assert regret_as_printed(flat, mixing, epsilon=None) == pytest.approx(convex)
    assert regret_as_printed(curved, mixing, epsilon=None) == pytest.approx(strong)
    noisy = regret_as_printed(flat, mixing, epsilon=epsilon)
    assert noisy == pytest.approx(convex + factor * (sqrt(T) - 0.5))
    noisy = regret_as_printed(curved, mixing, epsilon=epsilon)
    assert noisy == pytest.approx(strong + factor * (1 + log(T)) / lam)


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
def test_measured_regret_is_below_the_bound(loss: str, lam: float, epsilon: float | None) -> None:
    nodes, rounds, dim, radius = 4, 200, 5, 1.0
    problem, network = synthetic(loss, nodes, rounds, dim, lam), topology.ring(nodes)
    step_size = InverseTime(scale=1 / lam) if lam else InverseSqrt(0.5)
    algorithm = dm.OnlineLearning(epsilon=epsilon, step_size=step_size, radius=radius)
    noise = algorithm.noise_std(1, dim) / step_size(1)
    if epsilon is not None:
        assert noise == pytest.approx(laplace_noise(epsilon, dim, 1.0))
    steepest = problem.constants(radius).lipschitz
    learning = Learning(
        nodes=nodes,
        dim=dim,
        rounds=rounds,
        lipschitz=steepest,
        diameter=2 * radius,
        strong_convexity=lam,
        noise=noise,
        bounded_outside=lam == 0,
    )
    best = best_fixed_predictor(problem, radius=radius)
    smallest = nodes * rounds * (best.value - best.gap)

    own = []
    for seed in range(3):
        key, mixtures = dm.Key.seeded(seed), 0.0
        state = algorithm.init(problem, key)
        for t in range(rounds):
            state, received, *_ = one_round(algorithm, state, t, problem, key, Gossip(network))
            mixtures += problem.objective(received, problem.batch(t, 1)).sum()
        own.append(mixtures - smallest)
    assert np.mean(own) <= regret(learning)
    if epsilon is None:
        assert regret(learning) <= 10 * max(np.mean(own), sqrt(nodes * rounds))  # and not vacuous


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
    learning = Learning(
        nodes=nodes,
        dim=dim,
        rounds=rounds,
        lipschitz=steepest,
        diameter=2 * radius,
        strong_convexity=lam,
        noise=noise,
    )
    assert np.mean(paid) <= regret(learning)


def test_corrected_and_printed_differ_in_kind() -> None:
    """The price of privacy is n^2 / epsilon^2; the paper's n / epsilon cannot be had this way."""

    def noisy(epsilon: float) -> float:
        return regret(
            Learning(
                nodes=4,
                dim=10,
                rounds=100,
                lipschitz=1.0,
                diameter=2.0,
                noise=laplace_noise(epsilon, 10, 1.0),
            )
        )

    quiet = regret(Learning(nodes=4, dim=10, rounds=100, lipschitz=1.0, diameter=2.0))
    assert (noisy(0.1) - quiet) / (noisy(1.0) - quiet) == pytest.approx(100)


test_bad_input_is_named = refused(
    (
        lambda: Learning(
            nodes=1, dim=1, rounds=1, lipschitz=1.0, diameter=1.0, bounded_outside=False
        ),
        "strong_convexity: wanted greater than 0 without bounded_outside, got 0",
    )
)
