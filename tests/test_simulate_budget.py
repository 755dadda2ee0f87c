"""Runs that keep to their budget, and that tell all that leaves the nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from faulty_online import SendsMore, TellsLess

import dpmesh as dm
from dpmesh.algorithms.base import AnyAlgorithm, Info
from dpmesh.privacy import Budget, Laplace, OverBudget, Sensitivity, report

ONE = Sensitivity(1.0, "l2", "a test")


class Spendthrift(dm.OnlineLearning):
    """Lets out all of its data, too, from round 3 on: which was not planned."""

    def step(self, state, round, problem, exchange, key):
        state, info = super().step(state, round, problem, exchange, key)
        if round < 3:
            return state, info
        stream = key.stream(1000, round)
        _, more, _ = Laplace(2.5).release(state.w, ONE, stream, round=round)
        return state, replace(info, releases=(*info.releases, more))


def run(algorithm: AnyAlgorithm, small_problem: dm.LinearProblem, **options) -> dm.Run:
    ring = dm.topology.ring(small_problem.nodes)
    return dm.simulate(algorithm, small_problem, ring, rounds=10, key=dm.Key.seeded(0), **options)


@pytest.fixture
def small_problem() -> dm.LinearProblem:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(60, 3))
    train = dm.Dataset(features / 4, np.sign(features[:, 0]).astype(np.int64), "small")
    return dm.LinearProblem(train, np.arange(60).reshape(4, 15), "hinge")


def test_a_run_is_refused_before_its_first_round(small_problem: dm.LinearProblem) -> None:
    with pytest.raises(OverBudget, match=r"rounds: wanted at most 1, which epsilon = 0\.5"):
        run(dm.OnlineLearning(epsilon=1.0), small_problem, budget=Budget(0.5))
    done = run(dm.OnlineLearning(epsilon=1.0), small_problem, budget=Budget(1.0, 1e-6))
    assert len(done.ledger.releases) == 10
    assert done.privacy.delta == 1e-6


def test_a_run_has_the_budget_that_earlier_ones_left(small_problem: dm.LinearProblem) -> None:
    first = run(dm.OnlineLearning(epsilon=0.4), small_problem)
    rest = Budget(1.0, spent=(first.ledger,))
    with pytest.raises(
        OverBudget, match=r"at most 1, which .* after 1 earlier run affords, got 10"
    ):
        run(dm.OnlineLearning(epsilon=0.7), small_problem, budget=rest)
    run(dm.OnlineLearning(epsilon=0.6), small_problem, budget=rest)
    done = run(Spendthrift(epsilon=0.1), small_problem, budget=rest)
    assert rest.cost(done.ledger).epsilon <= 1.0
    assert "4 of 10: there the budget ended" in str(done)


def test_a_run_that_departs_from_its_plan_ends_at_the_budget(
    small_problem: dm.LinearProblem,
) -> None:
    done = run(Spendthrift(epsilon=0.1), small_problem, budget=Budget(1.0))
    assert [release.round for release in done.ledger.releases] == [0, 1, 2, 3, 3, 4, 4, 5]
    assert done.privacy.epsilon == pytest.approx(0.9)
    assert "rounds      5 of 10: there the budget ended" in str(done)
    strangers = "2 of 8 releases, which are not in the algorithm's plan"
    assumed = "are no more sensitive than they say, and neither data nor releases decided on them"
    assert f"not proved  {strangers}, {assumed}" in str(done)
    ring = dm.topology.ring(small_problem.nodes)
    whole = dm.simulate(Spendthrift(0.1), small_problem, ring, rounds=5, key=dm.Key.seeded(0))
    np.testing.assert_array_equal(done.released, whole.released)
    np.testing.assert_array_equal(done.parameters, whole.parameters)
    assert run(Spendthrift(epsilon=0.1), small_problem).privacy.epsilon == pytest.approx(2.9)


def test_a_run_that_calls_its_data_public_is_told_apart_from_its_plan(
    small_problem: dm.LinearProblem,
) -> None:
    """Its ledger says that nothing depends on the data."""

    class Public(dm.OnlineLearning):
        rehearsed = False

        def sensitivity(self, t: int) -> Sensitivity:
            return replace(super().sensitivity(t), bound=0.0 if self.rehearsed else 1.0)

        def step(self, state, round, problem, exchange, key):
            told = Public(self.epsilon)
            object.__setattr__(told, "rehearsed", True)
            return dm.OnlineLearning.step(told, state, round, problem, exchange, key)

    done = run(Public(), small_problem)
    assert done.privacy.epsilon == 0
    assert done.privacy.assumptions[0].startswith("10 of 10 releases, which are not in the algo")
    honest = report(dm.OnlineLearning().plan(10), seeded=True)
    assert run(dm.OnlineLearning(), small_problem).privacy.assumptions == honest.assumptions


def test_a_run_that_tells_less_than_it_releases_fails(small_problem: dm.LinearProblem) -> None:
    """Its report would say that nothing depends on the data."""
    with pytest.raises(ValueError, match="releases: wanted all that left in the round"):
        run(TellsLess(), small_problem)


def test_what_travels_without_a_release_is_refused(small_problem: dm.LinearProblem) -> None:
    """Their reports would say that nothing depends on the data, and that all had noise."""

    class Bare(dm.OnlineLearning):
        def step(self, state, round, problem, exchange, key):
            if round < 3:
                return super().step(state, round, problem, exchange, key)
            received = exchange(round, state.w)
            after = self.absorb(state, received, round, problem, problem.batch(round, 1))
            return after, Info((), 0, received)

    class Further(dm.OnlineLearning):
        """Mixes twice what it released once: the second time it depends on no data."""

        def step(self, state, round, problem, exchange, key):
            after, info = super().step(state, round, problem, exchange, key)
            public, noise = Sensitivity(0.0, "l1", "made of releases"), key.stream(1000, round)
            again = self.mechanism.release(info.received, public, noise, round=round)
            releases = (*info.releases, again.release)
            return after, replace(info, releases=releases, received=exchange(round, again.values))

    with pytest.raises(ValueError, match=r"messages: wanted ones .* got 1 in round 3, after 0"):
        run(Bare(), small_problem)
    with pytest.raises(ValueError, match=r"messages: wanted ones .* got 2 in round 0, after 1"):
        run(SendsMore(), small_problem)
    assert run(Further(), small_problem).privacy.epsilon == 1


def test_the_first_round_raises(small_problem: dm.LinearProblem) -> None:
    class Early(Spendthrift):
        def step(self, state, round, problem, exchange, key):
            return super().step(state, round + 3, problem, exchange, key)

    with pytest.raises(OverBudget, match=r"release: wanted at most epsilon = 0\.2"):
        run(Early(epsilon=0.1), small_problem, budget=Budget(0.2))
