"""Theorems 3 and 4 of the without-replacement paper: formulas, and what was measured below them."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import log, sqrt

import numpy as np
import pytest
from one_round import one_round
from refused import refused

import dpmesh as dm
from dpmesh.algorithms.controllers import AlwaysGlobal, AlwaysLocal, RandomGlobal
from dpmesh.keys import Purpose, generator
from dpmesh.problems import best_fixed_predictor
from dpmesh.run import Broadcast
from dpmesh.schedules import Constant
from dpmesh_papers.bounds.complexity import rademacher_bound_linear, rademacher_complexity
from dpmesh_papers.bounds.without_replacement import (
    SinglePass,
    generalization_gap,
    squared_distance,
    suboptimality,
    theorem_3_as_printed,
    theorem_4_steps,
)

RUN = SinglePass(
    nodes=3,
    dim=4,
    records=1000,
    batch_size=5,
    steps=120,
    step_size=0.2,
    lipschitz=2.0,
    radius=1.5,
    regularization=0.1,
    noise_to_sensitivity=6.0,
    global_steps=40.0,
)


def test_corrected_theorem_3_by_hand() -> None:
    B, eta, T = 2.0 + 0.1 * 1.5, 0.2, 120
    noise = 4 * (6.0 * 2 * eta * 2.0 / 5) ** 2
    expected = 4 * 1.5**2 / (4 * T * eta) + eta * B**2 + 40 * noise / (2 * T * eta)
    for t in range(2, T + 1):
        s = (t - 1) * 5
        scale = (1 / sqrt(s) + 1 / sqrt(1000 - s)) * 2.0 * 1.5
        expected += s / 1000 * (sqrt(2) + 12) * scale / T
    assert suboptimality(RUN) == pytest.approx(expected, rel=1e-12)
    assert generalization_gap(RUN, 1) == 0


def test_printed_theorem_3_by_hand() -> None:
    """L is that of the loss (2) with its regularizer, 1 + lambda R in the paper's example."""
    L, eta, T, R = 2.0 + 0.1 * 1.5, 0.2, 120, 3.0
    B = L
    expected = 4 * R**2 / (4 * T * eta) + eta * B**2
    expected += 4 * log(1.25e5) * eta * L**2 / (25 * 0.25) * 40 / T
    gap = sqrt(5 * T) / 1000 + 2 / (sqrt(1000) + sqrt(1000 - 5 * T))
    expected += 2 * (2 + 12 * sqrt(2)) * R * L / 3 * gap
    assert theorem_3_as_printed(RUN, 0.5, 1e-5) == pytest.approx(expected, rel=1e-12)
    quiet = replace(RUN, global_steps=0.0)
    assert theorem_3_as_printed(quiet, 0.5, 1e-5) == theorem_3_as_printed(RUN, None, 1e-5)


def test_the_correction_is_the_dimension() -> None:
    """In one dimension, with the paper's noise, the corrected bound is below the printed one."""
    noise = sqrt(2 * log(1.25e5)) / 0.5
    one = replace(RUN, dim=1, noise_to_sensitivity=noise)
    assert suboptimality(one) < theorem_3_as_printed(one, 0.5, 1e-5)
    many = replace(one, dim=10_000)
    assert suboptimality(many) > theorem_3_as_printed(many, 0.5, 1e-5)


def make_problem(nodes: int, records: int, dim: int, key: dm.Key, regularization: float = 0.0):
    draw = generator(key, Purpose.SPLIT)
    x = draw.normal(size=(nodes * records, dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.where(x @ draw.normal(size=dim) + 0.3 * draw.normal(size=len(x)) > 0, 1, -1)
    dataset = dm.data.Dataset(x, y, "synthetic")
    parts = tuple(np.split(draw.permutation(len(x)), nodes))
    options = {"feature_norm": 1.0, "regularization": regularization}
    return dm.LinearProblem(dataset, parts, "logistic", **options)


class Hearing(Broadcast):
    """Also keeps what it carries."""

    def __init__(self, heard: list) -> None:
        self.heard = heard

    def carry(self, round: int, packet):
        if packet.values is not None:
            self.heard.append(packet.values)
        return packet.values


def measured(algorithm: dm.WithoutReplacement, problem: dm.LinearProblem, key: dm.Key):
    """Run one pass; return suboptimality and generalization gap of each step, in order."""
    everything = np.arange(problem.train.records)[np.newaxis]
    best = best_fixed_predictor(problem, everything[0], radius=algorithm.radius).value
    state = algorithm.init(problem, key)
    excess, gaps = [], []
    for t in range(problem.rounds(algorithm.batch_size)):
        heard = [state.released.copy()]

        before, turns = state, algorithm.senders(t, state.used, problem.all_records, key)
        chosen = algorithm.controller.choose((problem.nodes, 1), t, key)
        state = one_round(algorithm, state, t, problem, key, Hearing(heard)).state
        batches = problem.batch(t, algorithm.batch_size)
        for m in turns:
            w = heard.pop(0) if chosen[m, 0] else before.local[m]
            F = problem.objective(w, everything)[0]
            excess.append(F - best)
            gaps.append(F - problem.objective(w, batches[[m]])[0])
    return np.array(excess), np.array(gaps)


def test_losses_of_linear_models_have_no_more_complexity_than_lemma_5_says() -> None:
    """Definition 4 by Monte Carlo, for what a run's models lose on each record beyond 0."""
    key, radius = dm.Key.seeded(3), 2.0
    problem = make_problem(2, 150, 4, key)
    draw = np.random.default_rng(0)
    models = draw.normal(size=(400, 4))
    models *= radius / np.linalg.norm(models, axis=1, keepdims=True)
    everything = np.tile(np.arange(300), (400, 1))
    losses = problem.record_losses(models, everything) - np.log(2)
    for s in (30, 150, 270):
        stream = key.stream(Purpose.METRIC, s)
        complexity = rademacher_complexity(losses, s, 2000, stream)
        bound = rademacher_bound_linear(s, 300, radius)
        assert 0.1 * bound < complexity.estimate < bound


def test_lemma_6_over_all_orders() -> None:
    """What was learned from may depend on the first records in any way, as by their maximum."""
    values, b, t = np.array([0.3, -1.0, 2.5, 0.7, 1.1, -0.2]), 2, 3
    n, s = len(values), (t - 1) * b
    left, right = [], []
    for order in permutations(range(n)):
        seen = np.array(order[:s])
        f = values * values[seen].max() + np.sin(np.arange(n) + seen[0])  # a model's losses
        now = f[list(order)]
        left.append(f.mean() - now[s : s + b].mean())
        right.append(s / n * (now[:s].mean() - now[s:].mean()))
    assert np.mean(left) == pytest.approx(np.mean(right), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("controller", [AlwaysGlobal(), AlwaysLocal(), RandomGlobal(0.3)])
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_measured_suboptimality_lies_below_theorem_3(controller, epsilon) -> None:
    nodes, records, dim, b, radius = 3, 4000, 5, 20, 2.0
    eta = 0.1
    excesses, gaps = [], []
    for seed in range(2):
        key = dm.Key.seeded(seed)
        problem = make_problem(nodes, records, dim, key)
        algorithm = dm.WithoutReplacement(
            epsilon=epsilon,
            delta=1e-5,
            models=1,
            batch_size=b,
            step_size=Constant(eta),
            controller=controller,
            radius=radius,
        )
        excess, gap = measured(algorithm, problem, key)
        excesses.append(excess.mean())
        gaps.append(gap)
    steps = nodes * records // b
    rate = {AlwaysGlobal(): 1.0, AlwaysLocal(): 0.0, RandomGlobal(0.3): 0.3}[controller]
    z = algorithm.mechanism.noise_to_sensitivity if epsilon else 0.0
    training = SinglePass(
        nodes=nodes,
        dim=dim,
        records=nodes * records,
        batch_size=b,
        steps=steps,
        step_size=eta,
        lipschitz=1.0,
        radius=radius,
        noise_to_sensitivity=z,
        global_steps=rate * steps,
    )
    bound = suboptimality(training)
    assert 0 < np.mean(excesses) < bound
    assert bound < 2 * radius  # less than what holds of any model in the ball
    step_bounds = [generalization_gap(training, t) for t in range(1, steps + 1)]
    assert np.mean(gaps) < np.mean(step_bounds)


@pytest.mark.slow
def test_distances_shrink_as_theorem_4_says() -> None:
    """All models together, without noise and with it: about by half when the steps double."""
    nodes, records, dim, b = 3, 8000, 4, 20
    for epsilon in (None, 1.0):
        totals = np.zeros(2)
        for seed in range(4):
            key = dm.Key.seeded(seed)
            problem = make_problem(nodes, records, dim, key, regularization=0.5)
            w_star = best_fixed_predictor(
                problem, np.arange(nodes * records), radius=10.0
            ).parameters
            algorithm = dm.WithoutReplacement(
                epsilon=epsilon,
                delta=1e-5,
                models=1,
                batch_size=b,
                step_size=theorem_4_steps(problem, 0.5),
                controller=RandomGlobal(0.5),
                radius=10.0,
            )
            state = algorithm.init(problem, key)
            for t in range(400):
                state = one_round(algorithm, state, t, problem, key).state
                if t + 1 in (50, 400):
                    every = np.vstack([state.local[:, 0], state.released])
                    totals[int(t + 1 > 50)] += ((every - w_star) ** 2).sum()
        slope = np.log(totals[1] / totals[0]) / np.log(8)
        training = SinglePass(
            nodes=nodes,
            dim=dim,
            records=nodes * records,
            batch_size=b,
            steps=1200,
            step_size=1.0,
            lipschitz=1.0,
            radius=10.0,
            regularization=0.5,
            noise_to_sensitivity=5.0,
        )
        rate = [squared_distance(training, 0.5, step=t) for t in (50, 400)]
        assert slope < np.log(rate[1] / rate[0]) / np.log(8) + 0.25  # no slower, but for chance


def test_rate_of_theorem_4_by_hand() -> None:
    B = 2.0 + 0.1 * 1.5
    expected = 3 / (0.25 * 0.1) ** 2 * (B**2 / 8 + B**2 * log(8) / 40 + 4 * 144 / 25 / 8)
    assert squared_distance(RUN, 0.25, step=8) == pytest.approx(expected, rel=1e-12)
    assert squared_distance(RUN, 0.25) == squared_distance(RUN, 0.25, step=40)


test_bad_input_is_named = refused(
    (lambda: replace(RUN, steps=201), "steps: wanted at most records / batch_size = 200"),
    (lambda: replace(RUN, global_steps=121), "global_steps: wanted at most 120 steps"),
    (
        lambda: squared_distance(replace(RUN, regularization=0.0), 0.5),
        r"run\.regularization: wanted a finite number greater than 0",
    ),
)
