"""Budgets: what they allow, the noise that keeps them, the rounds that they afford."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import refused

import dpmesh as dm
from dpmesh.noise import Gaussian, Laplace, Sensitivity
from dpmesh.privacy import Budget, Ledger, OverBudget, Plan, Release, total_cost
from dpmesh.schedules import Constant, HorizonPower, SampleSize

ONE = Sensitivity(1.0, "l2", "a test")


@dataclass(frozen=True)
class Repeated:
    """One release of everybody's data in each round."""

    noise: float
    mechanism: type = Gaussian

    def plan(self, rounds: int) -> Plan:
        releases = [Release(t, self.mechanism(self.noise), ONE) for t in range(rounds)]
        return Plan(releases=tuple(releases), neighboring_relation="replace_one", unit="record")


def federated(sampling: str) -> dm.FederatedLearning:
    return dm.FederatedLearning(
        dm.ClientUpdates(
            clients=500, sampling_rate=0.05, clipping_norm=0.3, sampling=sampling, steps=1
        ),
        noise_multiplier=1.0,
    )


def online(noise: float) -> dm.OnlineLearning:
    return dm.OnlineLearning(epsilon=1 / noise)


def quantized(noise: float) -> dm.QuantizedGossip:
    return dm.QuantizedGossip(
        step_size=HorizonPower(scale=1.0, exponent=-0.9, rounds=50),
        consensus_step_size=HorizonPower(scale=1.0, exponent=-0.7, rounds=50),
        sample_size=SampleSize(scale=1.0, exponent=0.85, rounds=50),
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
    make, goal, rounds = ALGORITHMS[name], Budget(epsilon, delta=1e-5), 40
    noise = goal.calibrate(make, rounds)
    cost = make(noise).plan(rounds).cost(goal.delta).epsilon
    assert epsilon - 1e-6 * min(1, epsilon) <= cost <= epsilon
    assert goal.allows(make(noise).plan(rounds))
    assert make(0.999 * noise).plan(rounds).cost(goal.delta).epsilon > epsilon
    assert goal.require(make(noise), rounds) == make(noise).plan(rounds)


@pytest.mark.slow
@settings(deadline=None)
@given(st.floats(0.1, 20), st.floats(0.5, 50))
def test_affordable_rounds_are_the_most(epsilon: float, noise: float) -> None:
    goal = Budget(epsilon, delta=1e-6)
    most = goal.affordable_rounds(Repeated(noise), at_most=200)
    assert most == 200 or not goal.allows(Repeated(noise).plan(most + 1))
    assert most == 0 or goal.allows(Repeated(noise).plan(most))


def test_rounds_that_cost_nothing_more_are_all_affordable() -> None:
    assert Budget(1.0).affordable_rounds(dm.OnlineLearning(epsilon=1.0), at_most=500) == 500
    assert Budget(0.99).affordable_rounds(dm.OnlineLearning(epsilon=1.0), at_most=500) == 1


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.7, 1.1, 3.3])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_an_algorithm_keeps_the_epsilon_that_it_was_given(epsilon: float, delta: float) -> None:
    assert Budget(epsilon, delta=delta).allows(
        dm.OnlineLearning(epsilon=epsilon, delta=delta).plan(50)
    )


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
    with pytest.raises(ValueError, match=r"^delta must be positive: .* Try Budget\(1, delta=1e-5"):
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
    ledger = Ledger(Plan(releases=(), neighboring_relation="replace_one", unit="record"), goal)
    for release in Repeated(10.0, Laplace).plan(6).releases:
        ledger.admit(release, None)
        ledger.end_round()
    with pytest.raises(OverBudget, match=r"would cost epsilon 1\.1, more"):
        ledger.admit(Release(6, Laplace(10.0), ONE), None)
    nothing_left = replace(goal, spent=(Repeated(1.0, Laplace).plan(1),))
    assert nothing_left.affordable_rounds(Repeated(10.0, Laplace)) == 0
    assert hash(goal) == hash(Budget(1.0, spent=earlier))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_runs_together_cost_no_more_than_the_budget(name: str) -> None:
    first = ALGORITHMS[name](4.0).plan(20)
    whole = Budget(1.5 * first.cost(1e-5).epsilon, delta=1e-5)
    rest = replace(whole, spent=(first,))
    second = ALGORITHMS[name](rest.calibrate(ALGORITHMS[name], 10)).plan(10)
    together = total_cost([first, second], 1e-5).epsilon
    assert whole.epsilon * (1 - 1e-5) <= together <= whole.epsilon
    assert rest.cost(second).epsilon == together


def test_a_run_without_releases_spends_nothing() -> None:
    nothing = Plan(releases=(), neighboring_relation="replace_one", unit="record")
    plan = Repeated(4.0, Laplace).plan(3)
    assert Budget(1.0, spent=(nothing,)).cost(plan).epsilon == plan.cost().epsilon
    assert Budget(1.0, spent=(plan,)).cost(nothing).epsilon == plan.cost().epsilon


def test_no_more_rounds_are_tried_than_asked_for() -> None:
    """A schedule of two steps is for three rounds, and has no fourth."""
    algorithm = replace(quantized(5.0), step_size=HorizonPower(scale=1.0, exponent=-0.5, rounds=2))
    goal = Budget(algorithm.plan(2).cost(1e-5).epsilon, delta=1e-5)
    with pytest.raises(OverBudget, match="rounds: wanted at most 2, which"):
        goal.require(algorithm, 3)


test_bad_input_is_named = refused(
    (lambda: Budget(1.0).calibrate(Repeated, 0), "rounds: wanted an integer of at least 1, got 0"),
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
    (lambda: Budget(1.0).calibrate(Repeated, 1), "delta must be positive: Gaussian noise"),
    (
        lambda: Budget(
            1.0, spent=Plan(releases=(), neighboring_relation="replace_one", unit="user")
        ),
        "spent: wanted a tuple of",
    ),
    (lambda: Budget(1.0, spent=[online(1.0)]), "spent: wanted plans, such as .*, got Online"),
    (
        lambda: Budget(1.0, spent=[federated("poisson").plan(1)]).cost(online(1.0).plan(1)),
        "neighboring_relation: wanted one of 'add_remove', got 'replace_one'",
    ),
    (
        lambda: Budget(0.4, spent=[Repeated(2.0, Laplace).plan(1)]).calibrate(
            lambda noise: Repeated(noise, Laplace), 1
        ),
        "spent: wanted plans of an epsilon below 0.4, got 0.5",
    ),
    (
        lambda: Budget(1.0).affordable_rounds(Repeated(1.0), at_most=0),
        "at_most: wanted an integer of at least 1, got 0",
    ),
)
