"""SGD with replacement, the baseline: against a loop, its plan, and how far a record moves it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_round import one_round
from refused import refused
from twins import subgradient
from without_replacement_problems import make_problem, neighbours

import dpmesh as dm
from dpmesh import kernels
from dpmesh.algorithms import WithReplacement
from dpmesh.audit import alone, couple
from dpmesh.audit.transcript import record
from dpmesh.keys import Purpose
from dpmesh.privacy import FixedSizeSampling, report
from dpmesh.schedules import InverseSqrt


@given(
    M=st.integers(1, 4),
    K=st.sampled_from([None, 3]),
    d=st.integers(1, 4),
    n=st.integers(3, 7),
    b=st.integers(1, 3),
    z=st.one_of(st.none(), st.floats(0.1, 3)),
    seed=st.integers(0, 2**32),
)
def test_equals_a_loop(M, K, d, n, b, z, seed) -> None:
    problem = make_problem([n] * M, d, K, seed=seed, regularization=0.1)
    algorithm = WithReplacement(
        nodes=M, records=n, noise_multiplier=z and 2 * z, models=K or 1, batch_size=b, visits=2
    )
    key, rounds = dm.Key.seeded(seed), M * (2 * n // b)
    run = dm.simulate(algorithm, problem, rounds=rounds, key=key, metrics=[])
    w, turns = [np.zeros(d) for _ in range(K or 1)], [0] * M
    for t in range(rounds):
        coins = kernels.uniform(M, key.stream(Purpose.SAMPLE, t))
        m = min((m for m in range(M) if turns[m] < 2 * n // b), key=lambda m: coins[m])
        turns[m] += 1
        order = np.argsort(kernels.uniform(n, key.stream(Purpose.BATCHES, t)))[:b]
        noise = kernels.gaussian((K or 1, d), 1.0, key.stream(Purpose.NOISE, t))
        eta = 1 / sqrt(t + 1)
        for k in range(K or 1):
            g = 0.1 * w[k]
            for r in problem.partition[m][order]:
                y = problem.train.labels[r]
                label = y if K is None else 1 if y == k else -1
                g = g + subgradient("logistic", w[k], problem.train.features[r], label) / b
            w[k] = w[k] - eta * g + (z or 0.0) * 2 * eta / b * noise[k]
    np.testing.assert_allclose(run.released, np.concatenate(w)[np.newaxis], rtol=1e-10, atol=1e-10)
    assert turns == [2 * n // b] * M


class Pretrained(dm.LinearProblem):
    """Starts from models of public data, in float64 whatever the records' type."""

    def initial(self, key: dm.Key) -> np.ndarray:
        return np.full((1, self.dim), 0.25)


def test_models_start_where_the_problem_says_in_the_type_of_the_records() -> None:
    plain = make_problem([4, 4], 2, 3)
    train = replace(plain.train, features=plain.train.features.astype(np.float32))
    settings = {"classes": plain.classes, "feature_norm": 1.0}
    own = Pretrained(train, plain.partition, plain.loss, **settings)
    algorithm = WithReplacement(nodes=2, records=4, noise_multiplier=None, models=3, batch_size=2)
    start = algorithm.init(own, dm.Key.seeded(0)).released
    np.testing.assert_array_equal(start, np.full((3, 2), 0.25))
    run = dm.simulate(algorithm, own, rounds=1, metrics=[])
    assert run.released.dtype == np.float32
    assert np.abs(run.released - 0.25).max() < 1.01  # one step of at most 1


@pytest.mark.parametrize("t", [0, 8])
def test_the_noise_of_a_round_is_relative_to_how_far_a_record_moves_a_model(t: int) -> None:
    """The standard deviation of n draws is within 6 sqrt(1 / 2n) of itself: false alarm 2e-9."""
    K, d, b, z, L = 3, 20_000, 2, 1.5, 0.5
    problem = make_problem([5, 5], d, K)
    shorter = replace(problem.train, features=L * problem.train.features)
    problem = replace(problem, train=shorter, feature_norm=L)
    noisy = WithReplacement(
        nodes=2,
        records=5,
        noise_multiplier=2 * z,
        models=K,
        batch_size=b,
        visits=5,
        step_size=InverseSqrt(0.3),
    )
    key = dm.Key.seeded(7)
    state = noisy.init(problem, key)
    after, plain = (
        one_round(algorithm, state, t, problem, key).state.released
        for algorithm in (noisy, replace(noisy, noise_multiplier=None))
    )
    eta = 0.3 / sqrt(t + 1)
    found = (after - plain).std() / (z * 2 * eta * L / b)
    tolerance = 6 / sqrt(2 * K * d)
    assert abs(found - 1) < tolerance
    for wrong in (sqrt(K), 2, b, L, sqrt((t + 2) / (t + 1)), z):
        assert abs(found / wrong - 1) > tolerance
        assert abs(found * wrong - 1) > tolerance


@pytest.mark.slow
def test_the_ledger_has_the_releases_of_the_plan_and_their_cost() -> None:
    algorithm = WithReplacement(
        nodes=4, records=60, noise_multiplier=3.0, models=3, batch_size=5, visits=2
    )
    run = dm.simulate(algorithm, make_problem([60] * 4, 2, 3), rounds=96, delta=1e-5)
    plan = algorithm.plan(96)
    assert run.traffic == dm.run.Traffic(3 * 96, 3 * 96 * 2 * 64)

    def kinds(ledger):
        return Counter(replace(release, round=0) for release in ledger.releases)

    assert kinds(run.ledger) == kinds(plan)
    assert run.privacy.epsilon == pytest.approx(plan.cost(1e-5).epsilon, rel=1e-12)
    assert all(
        release.sampling == FixedSizeSampling(size=5, population=60) for release in plan.releases
    )
    one_node = (
        WithReplacement(nodes=1, records=60, noise_multiplier=3.0, models=3, batch_size=5, visits=2)
        .plan(24)
        .cost(1e-5)
    )
    assert run.privacy.epsilon == pytest.approx(one_node.epsilon, rel=1e-12)
    assert dm.privacy.report(replace(algorithm, noise_multiplier=None).plan(3)).epsilon == inf
    for rounds in (1, 12, 48):  # in which chance may give a node all of its turns
        some = dm.simulate(algorithm, make_problem([60] * 4, 2, 3), rounds=rounds, delta=1e-5)
        assert some.privacy.epsilon <= algorithm.plan(rounds).cost(1e-5).epsilon
    assert algorithm.plan(24).cost(1e-5).epsilon == pytest.approx(one_node.epsilon, rel=1e-12)


def test_a_record_moves_only_the_releases_that_drew_it_and_within_the_sensitivity() -> None:
    algorithm = WithReplacement(
        nodes=2, records=12, noise_multiplier=2.0, models=3, batch_size=3, visits=3
    )
    problem = make_problem([12, 12], 3, 3)
    key = dm.Key.seeded(5)
    one, other = neighbours(problem, 1, 4)
    run = record(algorithm, one, alone, rounds=24, key=key)
    again = record(algorithm, other, alone, rounds=24, key=key, replay=run)
    touched = problem.partition[1][4]
    for t, (passage, twin) in enumerate(zip(run.passages, again.passages, strict=True)):
        drawn = passage.release.batch == 1 and touched in algorithm.sample(1, t, problem, key)
        distance = np.linalg.norm(passage.inside - twin.inside)
        assert (distance > 0) == drawn
        assert distance <= algorithm.sensitivity(0).bound


def test_without_noise_gradients_need_no_bound() -> None:
    algorithm, problem = (
        WithReplacement(nodes=2, records=6, noise_multiplier=None, batch_size=2),
        make_problem([6, 6], 2),
    )
    run = dm.simulate(algorithm, replace(problem, loss="squared"), rounds=3)
    assert np.isfinite(run.parameters).all()


def test_losses_are_those_before_the_step() -> None:
    algorithm, problem = (
        WithReplacement(nodes=2, records=5, noise_multiplier=2.0, models=3, batch_size=2),
        make_problem([5, 5], 2, 3),
    )
    state = algorithm.init(problem, dm.Key.seeded(0))
    losses = algorithm.losses(state, 0, problem, dm.Key.seeded(0))
    assert losses == pytest.approx([3 * log(2)])  # of three logistic models that are 0


test_bad_input_is_named = refused(
    (
        lambda: WithReplacement(nodes=1, records=9, noise_multiplier=2.0, batch_size=10),
        "batch_size: wanted at most 9",
    ),
    (
        lambda: WithReplacement(nodes=2, records=9, noise_multiplier=2.0, batch_size=3).plan(31),
        "rounds: wanted at most 30, 15 turns of each node, got 31",
    ),
    (
        lambda: dm.simulate(
            WithReplacement(nodes=2, records=9, noise_multiplier=2.0, batch_size=3),
            make_problem([9, 8], 2),
            rounds=1,
        ),
        "problem: wanted 2 nodes of 9 records each, got",
    ),
    (
        lambda: dm.simulate(
            WithReplacement(nodes=1, records=9, noise_multiplier=2.0, batch_size=3),
            replace(make_problem([9], 2), loss="squared"),
            rounds=1,
        ),
        "clipping_norm: wanted a number, since the loss does not bound its gradients, got",
    ),
    (
        lambda: dm.simulate(
            WithReplacement(nodes=1, records=9, noise_multiplier=2.0, models=2, batch_size=3),
            make_problem([9], 2),
            rounds=1,
        ),
        "models: wanted 1, as the problem has, got 2",
    ),
)


def test_turns_by_chance_are_as_planned() -> None:
    """Which node has its turn is tossed, and not in the plan."""
    algorithm = WithReplacement(nodes=3, records=6, noise_multiplier=2.0, batch_size=2)
    one, other = neighbours(make_problem([6] * 3, 2, None, seed=1), 1, 4)
    run = dm.simulate(algorithm, one, rounds=45, delta=1e-5)
    assert run.ledger.releases != algorithm.plan(45).releases
    assert run.privacy.assumptions == report(algorithm.plan(45), 1e-5).assumptions
    assert not couple(algorithm, one, other, alone, rounds=45).faults
