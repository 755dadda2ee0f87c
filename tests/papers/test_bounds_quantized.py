"""The quantized paper's rates: conditions, bounds, advice, and measured convergence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from point_problem import PointProblem
from refused import refused

import dpmesh as dm
from dpmesh import topology
from dpmesh.noise import Quantizer
from dpmesh_papers.bounds.quantized import Powers, ProblemConstants, advise

P1 = Powers(0.9, 0.7, 0.85, 0.05)
P2 = Powers(0.8, 0.6, 0.9, 0.0, sample_size_scale=2.0)
P3 = Powers(0.9, 0.7, 0.5, 0.1)
COMPLETE = topology.complete(5)
FLAT = ProblemConstants(
    dim=10,
    smoothness=1.0,
    polyak_lojasiewicz=1.0,
    gradient_variance=1.0,
    initial_gap=5.0,
    mixing_matrix=COMPLETE.matrix(0),
    dissimilarity=0.1,
    quantizer_step=0.001,
)


def test_theta_and_conditions_of_the_specification() -> None:
    assert P1.theta == pytest.approx(0.4)
    assert P3.theta == pytest.approx(0.3)
    assert replace(P1, step_size=0.7, consensus_step_size=0.4, noise=0.0).theta == pytest.approx(
        0.1
    )
    for powers in (P1, P2, P3):
        assert powers.violations() == ()
    assert P1.violations("paper") == P2.violations("paper") == ()
    (only,) = P3.violations("paper")
    assert only == "alpha - beta + gamma > 0.9 for a finite budget: got 0.7"
    assert "0 < beta < alpha < 1" in replace(P1, step_size=0.6).violations()[0]
    assert "2 beta - alpha > 2 max(zeta, 0)" in replace(P1, noise=0.3).violations()[0]


def test_conditions_on_their_borders_are_not_decided_by_rounding() -> None:
    """In floats 2 (0.7 - 0.5 + 0.3) is below 1, and 2 * 0.4 - 0.6 above 2 * 0.1."""
    assert Powers(0.7, 0.5, 0.3, 0.0).violations() == ()
    (only,) = Powers(0.6, 0.4, 0.9, 0.1).violations()
    assert only.startswith("2 beta - alpha > 2 max(zeta, 0)")
    (only,) = Powers(0.9, 0.7, 0.7, 0.1).violations("paper")  # 0.9 > 0.9
    assert only == "alpha - beta + gamma > 0.9 for a finite budget: got 0.9"


@given(st.floats(0.05, 0.95), st.floats(0, 0.4))
def test_the_best_beta_is_the_stated_one(alpha: float, zeta: float) -> None:
    def theta(beta: float) -> float:
        return Powers(alpha, beta, 0.0, zeta).theta

    best = (3 * alpha + 2 * zeta) / 4
    assert theta(best) == pytest.approx(alpha / 2 - zeta, abs=1e-12)
    assert max(theta(best + 0.01), theta(best - 0.01)) <= theta(best)


def quadratics(nodes: int, dim: int, spread: float, *, seed: int = 0) -> PointProblem:
    """The sum over nodes of |x - c_i|^2 / 2 in dim coordinates; the c_i average to 0."""
    centres = np.random.default_rng(seed).normal(size=(nodes, 1, dim))
    centres = spread * (centres - centres.mean(axis=0))
    return PointProblem(centres, lambda x, c: x - c, lambda x, c: ((x - c) ** 2).sum(-1) / 2)


def measured_gap(problem: PointProblem, powers: Powers, rounds: int, *, noisy: bool) -> float:
    """Mean over coordinates of F(x_i) - F*, after a run that starts at the optimum."""
    schedules = powers.schedules(rounds)
    algorithm = dm.QuantizedGossip(
        **(schedules if noisy else schedules._replace(noise_std=None))._asdict(),
        compressor=Quantizer(0.01) if noisy else None,
        clipping_norm=1e6,
    )
    run = dm.simulate(
        algorithm,
        problem,
        topology.complete(problem.nodes),
        rounds=rounds,
        key=dm.Key.seeded(rounds),
        metrics=[],
    )
    return float(problem.nodes / 2 * (run.parameters**2).mean())


@pytest.mark.slow
@pytest.mark.parametrize("zeta", [0.0, 0.1])
def test_noise_decays_at_the_rate(zeta: float) -> None:
    """The part of theta that is due to noise: 2 beta - alpha - 2 zeta.

    A quarter of the gap is the disagreement of the nodes, which decays faster: the slope is up to
    0.1 steeper at these horizons. 400 coordinates of 2 nodes estimate a gap within 5% (one standard
    deviation), the slope over a factor of 16 within 0.025.
    """
    powers = Powers(0.8, 0.6, 0.0, zeta)
    problem = quadratics(2, 400, spread=0.0)
    gaps = [measured_gap(problem, powers, rounds, noisy=True) for rounds in (250, 4000)]
    slope = np.log(gaps[0] / gaps[1]) / np.log(16)
    assert slope == pytest.approx(2 * 0.6 - 0.8 - 2 * zeta, abs=0.15)
    assert slope >= powers.theta - 0.08


@pytest.mark.slow
def test_disagreement_decays_at_the_rate() -> None:
    """The part that is due to nodes that differ: 2 (alpha - beta), without any noise.

    The nodes' distance from their mean is proportional to alpha_K / (alpha_K + beta_K) exactly, so
    the slope is the stated one up to that denominator, which is known.
    """
    powers = Powers(0.8, 0.6, 0.0, 0.0, step_size_scale=0.2)
    problem = quadratics(3, 50, spread=1.0)
    gaps = []
    for rounds in (500, 8000):
        schedules = powers.schedules(rounds)
        alpha, beta = schedules.step_size(1), schedules.consensus_step_size(1)
        gaps.append(measured_gap(problem, powers, rounds, noisy=False) * (1 + alpha / beta) ** 2)
    slope = np.log(gaps[0] / gaps[1]) / np.log(16)
    assert slope == pytest.approx(2 * (0.8 - 0.6), abs=0.005)


@pytest.mark.slow
@given(
    nodes=st.integers(2, 6),
    ring=st.booleans(),
    spread=st.sampled_from([0.0, 0.5]),
    noise=st.sampled_from([0.01, 0.3]),
    alpha=st.floats(0.3, 0.9),
    share=st.floats(0.1, 0.9),
    start=st.sampled_from([0.1, 3.0]),
)
def test_the_bound_on_the_gap_holds_on_quadratics(
    nodes, ring, spread, noise, alpha, share, start
) -> None:
    """With L = mu = 1 for each coordinate; 200 of them in place of the expectation."""
    rounds, dim = 60, 200
    beta = alpha / 2 + share * alpha / 2
    problem = replace(quadratics(nodes, dim, spread), start=start)
    network = topology.ring(nodes) if ring else topology.complete(nodes)
    constants = ProblemConstants(
        dim=dim,
        smoothness=1.0,
        polyak_lojasiewicz=nodes,  # |n x|^2 / 2 >= mu n |x|^2 / 2
        gradient_variance=0.0,
        initial_gap=nodes / 2 * dim * start**2,
        mixing_matrix=network.matrix(0),
        dissimilarity=float((problem.centres**2).sum() / 2),
        quantizer_step=0.1,
    )
    powers = Powers(alpha, beta, 0.0, 0.0, 0.2, 0.5, noise_scale=noise)
    schedules = powers.schedules(rounds)
    algorithm = dm.QuantizedGossip(
        **schedules._asdict(), compressor=Quantizer(0.1), clipping_norm=1e6
    )
    key = dm.Key.seeded(1)
    run = dm.simulate(algorithm, problem, network, rounds=rounds, key=key, metrics=[])
    gaps = nodes / 2 * (run.parameters**2).sum(axis=1)
    assert gaps.max() <= constants.gap(schedules, rounds)


def test_a_nonconvex_sum_arrives_at_its_global_minimum() -> None:
    """x^2 + 3 sin^2 x satisfies the PL condition and is not convex; its minimum, 0, is at x = 0.

    On the way there from 4 it is concave between 2.19 and 0.96; L is 8.
    """
    centres = np.zeros((5, 1, 40))
    problem = PointProblem(
        centres,
        lambda x, c: 2 * x + 3 * np.sin(2 * x),
        lambda x, c: (x**2 + 3 * np.sin(x) ** 2).sum(-1),
        start=4.0,
    )
    rounds = 2000
    powers = Powers(0.6, 0.45, 0.0, 0.05, noise_scale=0.02)
    algorithm = dm.QuantizedGossip(
        **powers.schedules(rounds)._asdict(),
        compressor=Quantizer(0.01),
        clipping_norm=100.0,
        smoothness=8.0,
    )
    run = dm.simulate(
        algorithm,
        problem,
        topology.ring(5),
        rounds=rounds,
        key=dm.Key.seeded(1),
        delta=1e-5,
        metrics=dm.Metrics(["loss"], every=100),
    )
    losses = run.history["loss"] / 40
    assert losses[0] > 0.1 > losses[-1]
    assert abs(run.parameters).max() < 0.1
    assert abs(run.released).max() < 0.2
    assert run.privacy.is_finite


SLOW = Powers(0.3, 0.2, 0.8, -0.2, step_size_scale=0.1, noise_scale=0.002)
"""Schedules that bring the bound on `FLAT` down within some thousand rounds."""


def test_a_single_run_keeps_to_the_mean_over_its_probability_of_failure() -> None:
    schedules = SLOW.schedules(3000)
    mean = FLAT.gap(schedules, 3000)
    assert FLAT.gap(schedules, 3000, failure=0.05) == pytest.approx(20 * mean, rel=1e-12)
    assert FLAT.gap(schedules, 3000, failure=1.0) == mean


@pytest.mark.slow
@pytest.mark.parametrize("goal", [3.0, 0.5, 0.2])
def test_oracle_complexity_is_the_shortest_horizon_whose_bound_suffices(goal: float) -> None:
    rounds, samples = FLAT.oracle_complexity(SLOW, goal)
    assert FLAT.gap(SLOW.schedules(rounds), rounds) <= goal
    assert FLAT.gap(SLOW.schedules(rounds - 1), rounds - 1) > goal
    assert samples == rounds * SLOW.schedules(rounds).sample_size(1)


def test_the_exponent_of_complexity_is_that_of_theorem_4() -> None:
    """Of a gap that is the rate itself, N = phi^(-1 / theta) and N^(1 + gamma) samples."""
    assert P1.complexity_exponent == pytest.approx(1.85 / 0.4)
    assert replace(P1, noise=0.25).complexity_exponent == np.inf  # theta = 0
    assert replace(P1, consensus_step_size=0.3).complexity_exponent == np.inf


def test_advice_meets_the_budget_with_all_of_it() -> None:
    advice = advise(1.0, 1e-5, rounds=2000, records=12_000, constants=FLAT, clipping_norm=0.5)
    assert advice.powers.violations() == ()
    schedules = advice.powers.schedules(2000)
    assert schedules.sample_size(1) == 12_000
    algorithm = dm.QuantizedGossip(**schedules._asdict(), clipping_norm=0.5, smoothness=1.0)
    assert algorithm.plan(2000).cost(1e-5).epsilon == pytest.approx(1.0, rel=1e-9)
    assert advice.epsilon == pytest.approx(1.0, rel=1e-9)
    assert advice.gap == pytest.approx(FLAT.gap(schedules, 2000), rel=1e-12)
    assert advice.gap < FLAT.initial_gap


def test_more_data_a_larger_budget_or_a_longer_run_never_hurt() -> None:
    def gap(epsilon: float = 0.3, records: int = 6000, rounds: int = 1500) -> float:
        return advise(
            epsilon, 1e-5, rounds=rounds, records=records, constants=FLAT, clipping_norm=0.5
        ).gap

    assert gap() >= max(gap(epsilon=3.0), gap(records=12_000), gap(rounds=4000))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_epsilon": 1e-3}, "got a gap below the initial 5 .best: .*, failed by"),
        ({"rounds": 50}, "got a gap below the initial 5"),
        ({"records": 1}, r"2 \(alpha - beta \+ gamma\) >= 1 for a finite budget, failed by"),
        ({"constants": replace(FLAT, smoothness=1e6)}, "alpha_K L <= 1/4, failed by"),
        ({"target_delta": 0.0}, "delta: wanted"),
    ],
)
def test_where_nothing_fits_the_reason_is_named(changes, message: str) -> None:
    wanted = {
        "target_epsilon": 1.0,
        "target_delta": 1e-5,
        "rounds": 2000,
        "records": 12_000,
        "constants": FLAT,
        "clipping_norm": 0.5,
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        advise(**wanted)


test_bad_input_is_named = refused(
    (
        lambda: replace(FLAT, mixing_matrix=topology.MixingMatrix(np.eye(2))),
        "mixing_matrix: wanted a connected graph, got one of 2 components",
    ),
    (
        lambda: FLAT.gap(replace(P1, step_size_scale=900.0).schedules(1000), 1000),
        "schedules: wanted alpha_K L <= 1/4, got 1.7",
    ),
    (
        lambda: FLAT.gap(SLOW.schedules(10), 10, failure=0.0),
        r"failure: wanted a number in \(0, 1\], got 0",
    ),
    (
        lambda: FLAT.oracle_complexity(SLOW, 1e-9, most_rounds=100),
        "gap: wanted one that the bound reaches within 100 rounds, got 1e-09",
    ),
    (lambda: FLAT.oracle_complexity(SLOW, 0.0), "gap: wanted .* greater than 0, got 0"),
    (lambda: FLAT.oracle_complexity(0.3, 1.0), "powers: wanted power laws, .*, got 0.3"),
    (lambda: FLAT.gap(SLOW, 10), "schedules: wanted schedules, such as .*, got Powers"),
)
