"""Budgets: what they allow, the noise that keeps them, the rounds that they afford."""

from __future__ import annotations

import doctest
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpmesh as dm
from dpmesh.keys import Purpose
from dpmesh.privacy import (
    Budget,
    Gaussian,
    Laplace,
    Ledger,
    OverBudget,
    Plan,
    Release,
    Sensitivity,
    budget,
    total_cost,
)
from dpmesh.privacy.door import kept_by
from dpmesh.privacy.foreseen import strangers
from dpmesh.schedules import Constant, HorizonPower, SampleSize

ONE = Sensitivity(1.0, "l2", "a test")


@dataclass(frozen=True)
class Repeated:
    """One release of everybody's data in each round."""

    noise: float
    mechanism: type = Gaussian

    def plan(self, rounds: int) -> Plan:
        releases = [self.mechanism(self.noise).planned(t, ONE) for t in range(rounds)]
        return Plan(tuple(releases), "replace_one", "record")


def federated(sampling: str) -> dm.FederatedLearning:
    return dm.FederatedLearning(
        500, 0.05, clipping_norm=0.3, noise_multiplier=1.0, sampling=sampling, local_steps=1
    )


def online(noise: float) -> dm.OnlineLearning:
    return dm.OnlineLearning(epsilon=1 / noise)


def quantized(noise: float) -> dm.QuantizedGossip:
    return dm.QuantizedGossip(
        step_size=HorizonPower(1.0, -0.9, 50),
        consensus_step_size=HorizonPower(1.0, -0.7, 50),
        sample_size=SampleSize(1.0, 0.85, 50),
        noise_std=Constant(noise),
    )


def without_replacement(noise: float) -> dm.WithoutReplacement:
    return dm.WithoutReplacement(epsilon=1 / noise, models=3)


ALGORITHMS = {
    "poisson": lambda noise: replace(federated("poisson"), noise_multiplier=noise),
    "uniform": lambda noise: replace(federated("uniform"), noise_multiplier=noise),
    "online": online,
    "quantized": quantized,
    "without_replacement": without_replacement,
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("epsilon", [0.3, 4.0])
def test_every_algorithm_is_calibrated(name: str, epsilon: float) -> None:
    make, goal, rounds = ALGORITHMS[name], Budget(epsilon, 1e-5), 40
    noise = goal.calibrate(make, rounds)
    cost = make(noise).plan(rounds).cost(goal.delta).epsilon
    assert epsilon - 1e-6 * min(1, epsilon) <= cost <= epsilon
    assert goal.allows(make(noise).plan(rounds))
    assert make(0.999 * noise).plan(rounds).cost(goal.delta).epsilon > epsilon
    assert goal.require(make(noise), rounds) == make(noise).plan(rounds)


@settings(deadline=None)
@given(st.floats(0.1, 20), st.floats(0.5, 50))
def test_affordable_rounds_are_the_most(epsilon: float, noise: float) -> None:
    goal = Budget(epsilon, 1e-6)
    most = goal.affordable_rounds(Repeated(noise), at_most=200)
    assert most == 200 or not goal.allows(Repeated(noise).plan(most + 1))
    assert most == 0 or goal.allows(Repeated(noise).plan(most))


def test_rounds_that_cost_nothing_more_are_all_affordable() -> None:
    assert Budget(1.0).affordable_rounds(dm.OnlineLearning(epsilon=1.0), at_most=500) == 500
    assert Budget(0.99).affordable_rounds(dm.OnlineLearning(epsilon=1.0), at_most=500) == 1


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.7, 1.1, 3.3])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_an_algorithm_keeps_the_epsilon_that_it_was_given(epsilon: float, delta: float) -> None:
    assert Budget(epsilon, delta).allows(dm.OnlineLearning(epsilon, delta).plan(50))


def test_what_is_over_the_budget_is_refused_with_what_is_affordable() -> None:
    goal = Budget(1.0)
    with pytest.raises(
        OverBudget, match="rounds: wanted at most 4, which epsilon = 1 at delta = 0"
    ):
        goal.require(Repeated(4.0, Laplace), 10)
    with pytest.raises(ValueError, match="rounds: wanted none: epsilon = 1 at delta = 0 is too"):
        goal.require(Repeated(0.5, Laplace), 10)
    with pytest.raises(OverBudget, match=r"rounds: wanted none: .*, got 1, which cost epsilon = 2"):
        goal.require(Repeated(0.5, Laplace), 1)
    with pytest.raises(OverBudget, match=r"rounds: wanted at most 1, which .* got 2, which cost"):
        goal.require(Repeated(1.0, Laplace), 2)
    with pytest.raises(
        OverBudget, match=r"cost epsilon = inf \(none: Gaussian noise needs a delta"
    ):
        goal.require(Repeated(4.0, Gaussian), 1)


def test_what_earlier_runs_spent_counts() -> None:
    """Ten rounds at 0.1 are the budget of 1; four of them were spent before."""
    earlier = Repeated(10.0, Laplace).plan(3), Repeated(10.0, Laplace).plan(1)
    goal = Budget(1.0, spent=[*earlier])
    assert goal.cost(Repeated(10.0, Laplace).plan(2)).epsilon == pytest.approx(0.6)
    assert goal.affordable_rounds(Repeated(10.0, Laplace)) == 6
    assert goal.calibrate(lambda noise: Repeated(noise, Laplace), 3) == pytest.approx(5.0)
    assert goal.allows(Repeated(10.0, Laplace).plan(6))
    with pytest.raises(OverBudget, match=r"at most 6, which epsilon = 1 .* after 2 earlier runs"):
        goal.require(Repeated(10.0, Laplace), 7)
    ledger = Ledger(Plan((), "replace_one", "record"), goal)
    for release in Repeated(10.0, Laplace).plan(6).releases:
        ledger.admit(release)
    with pytest.raises(OverBudget, match=r"got 1\.1 with it"):
        ledger.admit(Laplace(10.0).planned(6, ONE))
    nothing_left = replace(goal, spent=(Repeated(1.0, Laplace).plan(1),))
    assert nothing_left.affordable_rounds(Repeated(10.0, Laplace)) == 0
    assert hash(goal) == hash(Budget(1.0, spent=earlier))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_runs_together_cost_no_more_than_the_budget(name: str) -> None:
    first = ALGORITHMS[name](4.0).plan(20)
    whole = Budget(1.5 * first.cost(1e-5).epsilon, 1e-5)
    rest = replace(whole, spent=(first,))
    second = ALGORITHMS[name](rest.calibrate(ALGORITHMS[name], 10)).plan(10)
    together = total_cost([first, second], 1e-5).epsilon
    assert whole.epsilon * (1 - 1e-5) <= together <= whole.epsilon
    assert rest.cost(second).epsilon == together


def test_a_run_without_releases_spends_nothing() -> None:
    nothing = Plan((), "replace_one", "record")
    plan = Repeated(4.0, Laplace).plan(3)
    assert Budget(1.0, spent=(nothing,)).cost(plan).epsilon == plan.cost().epsilon
    assert Budget(1.0, spent=(plan,)).cost(nothing).epsilon == plan.cost().epsilon


def test_no_more_rounds_are_tried_than_asked_for() -> None:
    """A schedule of two steps is for three rounds, and has no fourth."""
    algorithm = replace(quantized(5.0), step_size=HorizonPower(1.0, -0.5, 2))
    goal = Budget(algorithm.plan(2).cost(1e-5).epsilon, 1e-5)
    with pytest.raises(OverBudget, match="rounds: wanted at most 2, which"):
        goal.require(algorithm, 3)


def test_a_ledger_takes_no_more_than_the_budget() -> None:
    goal, plan = Budget(1.0), Repeated(4.0, Laplace).plan(10)
    ledger = Ledger(plan, goal)
    assert Ledger(plan).allows(*plan.releases)
    for release in plan.releases[:4]:
        assert ledger.allows(release)
        ledger.admit(release)
        ledger.add(release)
    assert not ledger.allows(plan.releases[4])
    with pytest.raises(
        OverBudget, match=r"release: wanted at most epsilon = 1 .*got 1\.25 with it"
    ):
        ledger.admit(plan.releases[4])
    assert ledger.plan == Repeated(4.0, Laplace).plan(4)
    assert ledger.allows(Laplace(1.0).planned(0, Sensitivity(0.0, "l2", "a constant")))
    ledger.add(plan.releases[4])
    assert ledger.plan.cost().epsilon == 1.25


def test_a_ledger_watches_what_departs_from_an_approved_plan() -> None:
    planned = Repeated(4.0, Laplace).plan(4)
    ledger = Ledger(planned, Budget(1.0))
    for release in (planned.releases[0], Laplace(2.0).planned(1, ONE), planned.releases[2]):
        ledger.admit(release)
        ledger.add(release)
    with pytest.raises(OverBudget):
        ledger.admit(planned.releases[3])
    free = Ledger(planned)
    free.admit(Laplace(1e-3).planned(0, ONE))
    assert free.plan.cost().epsilon == 1e3


def test_what_was_planned_is_looked_up_and_not_searched() -> None:
    def calls(rounds: int) -> int:
        plan, count = Repeated(4.0, Laplace).plan(rounds), 0
        ledger = Ledger(plan, Budget(1e9))

        def counter(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(counter)
        try:
            ledger.admit(plan.releases[0])
            ledger.add(plan.releases[0])
        finally:
            sys.setprofile(None)
        return count

    assert calls(1000) == calls(10)


def test_a_departure_is_paid_for_by_rounds_that_were_planned() -> None:
    """As planned alone the last of them would leave; what was not planned has spent its part."""
    planned = Repeated(4.0, Laplace).plan(4)
    ledger = Ledger(planned, Budget(1.0))
    for release in (Laplace(4.0).planned(0, ONE, batch=None, nodes=(0,)), *planned.releases[:3]):
        ledger.admit(release)
        ledger.add(release)
    with pytest.raises(OverBudget, match=r"got 1\.25 with it"):
        ledger.admit(planned.releases[3])


def test_what_was_not_planned_leaves_less_for_what_was_in_the_same_round() -> None:
    planned = Repeated(1.0, Laplace).plan(1)
    ledger = Ledger(planned, Budget(1.0))
    ledger.admit(Laplace(2.0).planned(0, ONE))
    with pytest.raises(OverBudget, match=r"got 1\.5 with it"):
        ledger.admit(planned.releases[0])


def test_pieces_of_one_planned_batch_are_counted_once() -> None:
    whole = Repeated(4.0, Laplace).plan(4)
    planned = whole.with_releases(replace(r, batch=r.round) for r in whole.releases)
    ledger = Ledger(planned, Budget(1.0))
    for release in planned.releases:
        for _ in range(3):
            ledger.admit(release)
        assert ledger.plan.releases[-2:].count(release) == 1
        ledger.add(release)
    assert ledger.plan == planned


def test_pieces_of_what_was_not_planned_are_releases_each() -> None:
    ledger = Ledger(Repeated(4.0, Laplace).plan(1))
    release = Laplace(4.0).planned(0, ONE, batch=9)
    for _ in range(2):
        ledger.admit(release)
    assert ledger.plan.releases == (release, release)


def test_a_second_release_of_a_batch_is_no_piece_of_the_first() -> None:
    """Noise of another purpose is that of a release of its own; two that are planned are two."""
    batches = Repeated(4.0, Laplace).plan(2)
    once = batches.with_releases(replace(r, batch=r.round) for r in batches.releases)
    release = once.releases[0]
    twice = once.with_releases((release, *once.releases))
    for plan in (once, twice):
        ledger = Ledger(plan)
        for purpose in (Purpose.NOISE, 1000, Purpose.NOISE, 1000):  # two nodes, each sends two
            ledger.admit(release, purpose)
        with pytest.raises(ValueError, match="releases: wanted all that left in the round"):
            ledger.add(release)
        ledger.add(release, release)
        assert ledger.plan.releases == (release, release)


def test_what_left_must_be_written_down() -> None:
    planned = Repeated(4.0, Laplace).plan(2).releases[0]
    more = Laplace(1.0).planned(0, ONE, nodes=(1, 2))
    some, others = replace(planned, nodes=(0, 1)), replace(more, nodes=(1, 3))
    for told in ((), (more,), (planned,), (planned, others), (some, more)):
        ledger = Ledger(Repeated(4.0, Laplace).plan(2))
        ledger.admit(planned)
        ledger.admit(more)
        with pytest.raises(ValueError, match="releases: wanted all that left in the round, such"):
            ledger.add(*told)
    ledger.add(more, planned)  # in any order
    assert ledger.plan.releases == (more, planned)
    twice = Ledger(Repeated(4.0, Laplace).plan(2))
    for _ in range(2):
        twice.admit(more)
    with pytest.raises(ValueError, match="releases: wanted all"):
        twice.add(more)
    twice.add(replace(more, nodes=(2, 1)), replace(more, nodes=(0, 1, 2)))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1.0, 2.0])), min_size=1, max_size=8),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_a_run_that_is_as_planned_costs_no_more(of_plan, batches: list[int]) -> None:
    """Batches that chance gave out otherwise are told apart where one of them pays more."""

    def release(t: int, batch: int) -> Release:
        return Laplace(of_plan[t][1]).planned(t, ONE, batch=batch)

    rounds = range(len(of_plan))
    planned = Plan(tuple(release(t, of_plan[t][0]) for t in rounds), "replace_one", "record")
    ledger = Ledger(planned)
    ledger.add(*(release(t, batches[t]) for t in rounds))
    more = ledger.plan.cost().epsilon > planned.cost().epsilon
    assert strangers(planned, planned.releases) == 0
    assert not more or "not in the algorithm's plan" in ledger.plan.assumptions[-1]


def test_a_batch_that_pays_twice_is_not_as_planned() -> None:
    planned = Plan(
        tuple(Laplace(1.0).planned(t, ONE, batch=t) for t in range(3)), "replace_one", "record"
    )
    cases = ((2, 0, 1), 0), ((7, 0, 5), 0), ((0, 1, 0), 1), ((1, 1, 1), 2), ((7, 7, 5), 1)
    for batches, expected in cases:
        run = [Laplace(1.0).planned(t, ONE, batch=batch) for t, batch in enumerate(batches)]
        assert strangers(planned, run) == expected
    assert strangers(planned, [Laplace(1.0).planned(0, ONE)]) == 1


def test_what_a_round_releases_twice_is_not_as_planned() -> None:
    planned = Repeated(1.0).plan(3)
    assert strangers(planned, 2 * planned.releases) == 3
    ledger = Ledger(planned, Budget(planned.cost(1e-5).epsilon, 1e-5))
    ledger.add(planned.releases[0])
    assert ledger.allows(*planned.releases[1:])
    assert not ledger.allows(*planned.releases)


def test_batches_by_chance_are_part_of_the_approved_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each release was accounted for anew: of 1,000 rounds that took 300 times as long."""
    planned = Plan(
        tuple(Laplace(1.0).planned(t, ONE, batch=t // 2) for t in range(4)), "replace_one", "record"
    )
    ledger = Ledger(planned, Budget(2.0))

    def costs(plan: Plan, delta: float) -> None:
        raise AssertionError("accounted for anew")

    monkeypatch.setattr(Plan, "cost", costs)
    for t, batch in enumerate((1, 7, 1)):
        release = Laplace(1.0).planned(t, ONE, batch=batch)
        ledger.admit(release)
        ledger.add(release)
    with pytest.raises(AssertionError, match="anew"):
        ledger.admit(Laplace(1.0).planned(3, ONE, batch=1))


def test_a_release_of_all_data_that_leaves_twice_is_no_piece_of_one() -> None:
    planned = Repeated(4.0).plan(2)
    ledger = Ledger(planned)
    for _ in range(2):
        ledger.admit(planned.releases[0])
    with pytest.raises(ValueError, match="releases: wanted all that left in the round"):
        ledger.add(planned.releases[0])
    ledger.add(*2 * planned.releases[:1])
    assert ledger.plan.cost(1e-5) == planned.cost(1e-5)


def test_a_keeper_stands_at_the_door_within_the_block_only() -> None:
    def refuse(release: Release, purpose: int) -> None:
        raise OverBudget("closed")

    def leave() -> None:
        stream = dm.Key.seeded(0).stream(Purpose.NOISE, 0)
        Laplace(1.0).release(np.zeros((1, 2)), ONE, stream, round=0)

    for _ in range(2):
        with pytest.raises(OverBudget, match="closed"), kept_by(refuse):
            leave()
        leave()


def test_examples_of_the_docstrings() -> None:
    assert doctest.testmod(budget).failed == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Budget(0.0), "epsilon: wanted a finite number greater than 0, got 0.0"),
        (lambda: Budget(float("inf")), "epsilon: wanted a finite number, got inf"),
        (lambda: Budget(1.0, 1.0), r"delta: wanted a number in \[0, 1\), got 1.0"),
        (lambda: Budget(1.0, -1e-9), r"delta: wanted a number in \[0, 1\), got"),
        (
            lambda: Budget(1.0).calibrate(Repeated, 0),
            "rounds: wanted an integer of at least 1, got 0",
        ),
        (lambda: Budget(1.0).require(1.0, 1), "algorithm: wanted an algorithm, with plan, got 1"),
        (lambda: Budget(1.0).allows(online(1.0)), "plan: wanted a Plan, such as .*, got Online"),
        (lambda: Budget(1.0).affordable_rounds(1.0), "algorithm: wanted an algorithm, with plan"),
        (lambda: Budget(1.0).calibrate(online(1.0), 1), "algorithm: wanted a function that makes"),
        (
            lambda: Budget(1.0).calibrate(lambda noise: online(noise).plan(1), 1),
            "algorithm: wanted a function that makes an algorithm, with plan, got Plan",
        ),
        (lambda: total_cost(online(1.0).plan(1)), "plans: wanted a list of plans, got Plan"),
        (lambda: Budget(1.0).calibrate(online, 1, guess=0), "guess: wanted a finite number"),
        (lambda: Budget(1.0).calibrate(Repeated, 1), "epsilon: wanted an epsilon that noise"),
        (lambda: Budget(1.0, spent=Plan((), "replace_one", "user")), "spent: wanted a tuple of"),
        (lambda: Budget(1.0, spent=[online(1.0)]), "spent: wanted plans, such as .*, got Online"),
        (
            lambda: Budget(1.0, spent=[federated("poisson").plan(1)]).cost(online(1.0).plan(1)),
            "neighboring_relation: wanted one of 'add_remove', got 'replace_one'",
        ),
        (
            lambda: Budget(0.4, spent=[Repeated(2.0, Laplace).plan(1)]).calibrate(
                lambda noise: Repeated(noise, Laplace), 1
            ),
            "spent: wanted plans that cost less than epsilon = 0.4 .*, got 0.5",
        ),
        (
            lambda: Budget(1.0).affordable_rounds(Repeated(1.0), at_most=0),
            "at_most: wanted an integer of at least 1, got 0",
        ),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
