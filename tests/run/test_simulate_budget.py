"""Runs that keep to their budget, and record all that leaves the nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from problems import ONE, Spendthrift

import dpmesh as dm
from dpmesh.algorithms import Message
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.privacy import Budget, OverBudget, Release, report


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
    done = run(dm.OnlineLearning(epsilon=1.0), small_problem, budget=Budget(1.0, delta=1e-6))
    assert len(done.ledger.releases) == 10
    assert done.privacy.delta == 1e-6


def test_a_run_has_the_budget_that_earlier_ones_left(small_problem: dm.LinearProblem) -> None:
    first = run(dm.OnlineLearning(epsilon=0.4), small_problem)
    rest = Budget(1.0, spent=(first.ledger,))
    with pytest.raises(OverBudget, match=r"at most 1, which .* after 1 earlier run allows, got 10"):
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
    assert done.privacy.assumptions[1] == (
        "2 of 8 releases, which are not in the algorithm's plan, are no more sensitive than "
        "declared, and neither data nor releases decided on them"
    )
    ring = dm.topology.ring(small_problem.nodes)
    planned = dm.OnlineLearning(epsilon=0.1)  # it sends the same, and releases nothing else
    five, six = (
        dm.simulate(planned, small_problem, ring, rounds=rounds, key=dm.Key.seeded(0))
        for rounds in (5, 6)
    )
    np.testing.assert_array_equal(done.parameters, five.parameters)
    np.testing.assert_array_equal(done.released, six.released)  # of which the ledger counts round 5
    assert run(Spendthrift(epsilon=0.1), small_problem).privacy.epsilon == pytest.approx(2.9)


def test_a_run_that_calls_its_data_public_departs_from_its_plan(
    small_problem: dm.LinearProblem,
) -> None:
    """Its ledger says that nothing depends on the data."""

    class Public(dm.OnlineLearning):
        def round(self, state, t, problem, key):
            yield Message(state.w, Release(t, self.mechanism, replace(ONE, bound=0.0)))
            return state

    done = run(Public(), small_problem)
    assert done.privacy.epsilon == 0
    assert done.privacy.assumptions[1].startswith("10 of 10 releases, which are not in the algo")
    honest = report(dm.OnlineLearning().plan(10), seeded=True)
    assert run(dm.OnlineLearning(), small_problem).privacy.assumptions == honest.assumptions


def test_the_first_round_raises(small_problem: dm.LinearProblem) -> None:
    class Early(Spendthrift):
        first = 0

    with pytest.raises(OverBudget, match=r"would cost epsilon 0\.4, more than the budget of"):
        run(Early(epsilon=0.1), small_problem, budget=Budget(0.2))


def test_a_release_beyond_the_budget_leaves_no_noise(small_problem: dm.LinearProblem) -> None:
    """The ledger is asked before noise is drawn: a refused value reaches no carrier."""
    allowed = run(Spendthrift(epsilon=0.1), small_problem, budget=Budget(0.5))
    assert [release.round for release in allowed.ledger.releases] == [0, 1, 2, 3, 3, 4]
    assert allowed.privacy.epsilon == pytest.approx(0.5)
