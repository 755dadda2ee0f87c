"""Random allocation: oracle values, other means at few rounds, and what a plan is charged."""

import json
from dataclasses import replace
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from twin_allocation import bounds

from dpmesh import accounting
from dpmesh.accounting import (
    analytic_gaussian_noise_to_sensitivity,
    gdp_delta,
    gdp_epsilon,
    random_allocation_delta,
    random_allocation_epsilon,
    random_allocation_noise_to_sensitivity,
)
from dpmesh.accounting._allocated import GaussianStep, log_profile
from dpmesh.algorithms.allocation import dominating
from dpmesh.noise import Gaussian, Laplace, Sensitivity
from dpmesh.privacy import Budget, Plan, RandomAllocation, Release, total_cost
from dpmesh.privacy.charged import charged
from dpmesh.privacy.plan import made_again

ORACLES = json.loads(
    (Path(__file__).parents[1] / "oracles/oracles-random-allocation.json").read_text()
)["values"]
MOVED = Sensitivity(1.0, "l2", "2 C, replaced")


def profile(kind: str, epsilon: float, shifts: list[float], shares: list[float]) -> float:
    each = zip(shares, shifts, strict=True)
    return grouped(kind, epsilon, [(p, a, 1) for p, a in each])


def grouped(kind: str, epsilon: float, steps: list[tuple[float, float, int]]) -> float:
    factor = exp(epsilon)
    u, v, offset = {
        "replace": (1.0, factor, 0.0),
        "remove": (1.0, 0.0, -factor),
        "add": (0.0, factor, 1.0),
    }[kind]
    parts = [(GaussianStep(p, a, u, v), n) for p, a, n in steps]
    return exp(log_profile(parts, offset))


@pytest.mark.parametrize("oracle", ORACLES)
def test_oracle_values(oracle: dict[str, Any]) -> None:
    steps = oracle.get("steps")
    shifts = oracle["a"] if steps is None else [oracle["a"]] * steps
    shares = oracle["p"] if steps is None else [1 / steps] * steps
    found = profile(oracle["kind"], oracle["epsilon"], shifts, shares)
    assert oracle["delta_at_least"] <= found <= oracle["delta_at_most"]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("z", [0.3, 1.0, 3.0])
def test_one_round_is_the_gaussian_mechanism(epsilon: float, z: float) -> None:
    exact = gdp_delta(epsilon=epsilon, mu=1 / z)
    for relation in ("replace_one", "add_remove"):
        found = random_allocation_delta(
            epsilon=epsilon, noise_to_sensitivity=z, rounds=1, neighboring_relation=relation
        )
        assert exact <= found * (1 + 1e-12)
        assert found <= exact * 1.01


@pytest.mark.parametrize(("a", "epsilon"), [(0.6, 1.0), (1.5, 2.0)])
@pytest.mark.parametrize("rounds", [2, 3])
def test_few_rounds_agree_with_quadrature(rounds: int, a: float, epsilon: float) -> None:
    """Given all but the last step, its mean positive part is a known function."""
    factor, z = exp(epsilon), np.linspace(-9, 9, 20001 if rounds == 2 else 1201)
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    first = np.exp(a * z - a**2 / 2) - factor * np.exp(-a * z - a**2 / 2)
    if rounds == 3:
        first, weights = np.add.outer(first, first), np.multiply.outer(weights, weights)
    scaled = -first * exp(a**2 / 2)  # exp(a y) - factor exp(-a y) exceeds that beyond y
    both = np.sqrt(scaled**2 + 4 * factor)
    root = np.log(np.where(scaled > 0, (scaled + both) / 2, 2 * factor / (both - scaled))) / a
    second = ndtr(a - root) - factor * ndtr(-a - root) + first * ndtr(-root)
    exact = float(np.sum(weights * second)) / rounds
    found = profile("replace", epsilon, [a] * rounds, [1 / rounds] * rounds)
    assert exact * (1 - 1e-6) <= found <= exact * 1.002


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "epsilon", "steps", "cells"),
    [
        ("replace", 0.5, [(0.5, 0.6, 2)], 2**17),
        ("replace", 1.0, [(0.2, 0.5, 1), (0.5, 0.9, 1), (0.01, 0.3, 30)], 2**17),
        ("remove", 1.0, [(0.2, 0.5, 1), (0.5, 0.9, 1), (0.01, 0.3, 30)], 2**17),
        ("add", 1.0, [(0.1, 0.5, 10)], 2**17),
        ("remove", 3.0, [(0.1, 0.8, 10)], 2**17),
        ("remove", 1.0, [(0.01, 1.0, 100)], 2**17),
        ("replace", 0.5, [(0.001, 0.8918795486, 1000)], 2**17),  # jumps leave the window
        ("replace", 0.1, [(0.001, 0.26, 1000)], 2**17),
        ("replace", 0.5, [(1e-5, 2.0, 100_000)], 2**18),
    ],
)
def test_two_bounds_of_independent_code(
    kind: str, epsilon: float, steps: list[tuple[float, float, int]], cells: int
) -> None:
    """The gap to the lower bound is at most 0.1% of epsilon, at deltas from 1e-1 to 1e-12."""
    lower, upper = bounds(kind, epsilon, steps, cells)
    found = grouped(kind, epsilon, steps)
    assert lower * (1 - 1e-9) <= found <= upper * 1.002
    assert grouped(kind, epsilon * 1.001, steps) <= lower


@pytest.mark.slow
@given(
    z=st.floats(0.3, 4.0),
    epsilon=st.floats(0.0, 3.0),
    rounds=st.integers(1, 40),
    more=st.integers(0, 40),
    relation=st.sampled_from(["replace_one", "add_remove"]),
    noise=st.sampled_from(["gaussian", "laplace"]),
    parts=st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
@settings(max_examples=12)
def test_cost_falls_with_noise_rounds_and_equal_shares(
    z, epsilon, rounds, more, relation, noise, parts
) -> None:
    def delta(z: float, epsilon: float = epsilon, **how: Any) -> float:
        given = {"neighboring_relation": relation, "noise": noise, **how}
        return random_allocation_delta(epsilon=epsilon, noise_to_sensitivity=z, **given)

    rounding = 1.003  # upwards, of each
    one = delta(z, rounds=rounds)
    assert delta(1.2 * z, rounds=rounds) <= one * rounding + 1e-30
    assert delta(z, epsilon + 0.1, rounds=rounds) <= one * rounding + 1e-30
    if noise == "gaussian" or epsilon > 0.1:
        assert delta(z, rounds=rounds + more) <= one * rounding + 1e-30
    whole = sum(parts)
    kinds = [
        RandomAllocation(shares=tuple(n / whole for n in parts)),
        RandomAllocation(shares=tuple(n / whole for n in parts[1:])) if parts[1:] else None,
        RandomAllocation(rounds=rounds),
    ]
    worst = dominating([each for each in kinds if each is not None])
    most = delta(z, shares=worst.shares) if worst.shares else delta(z, rounds=worst.rounds)
    assert delta(z, shares=kinds[0].shares) <= most * rounding + 1e-30
    assert delta(z, rounds=len(parts)) <= delta(z, shares=kinds[0].shares) * rounding + 1e-30
    assert one <= most * rounding + 1e-30


@pytest.mark.slow
def test_passes_compose() -> None:
    """Two passes cost more than one and less than twice as much; more noise costs less."""
    one, two, quieter = (
        random_allocation_epsilon(
            delta=1e-3,
            noise_to_sensitivity=z,
            cycles=cycles,
            rounds=3,
            neighboring_relation="replace_one",
        )
        for z, cycles in ((0.9, 1), (0.9, 2), (1.2, 2))
    )
    assert max(one, quieter) < two < 2 * one


def test_unlikely_rounds_leave_the_rest_unreleased() -> None:
    """The profile of one release with probability 1/4, by quadrature."""
    factor, z = exp(1.0), np.linspace(-9, 9, 20001)
    weights = np.exp(-(z**2) / 2)
    up, down = np.exp(z / 2 - 1 / 8), np.exp(-z / 2 - 1 / 8)
    inside = 0.25 * (up - factor * down) + 0.75 * (1 - factor)
    exact = float(np.sum(weights * np.maximum(inside, 0)) / np.sum(weights))
    found = random_allocation_delta(
        epsilon=1.0, noise_to_sensitivity=1.0, shares=[0.25], neighboring_relation="replace_one"
    )
    assert found == pytest.approx(exact, rel=2e-3)
    settled = random_allocation_delta(  # who is added can move nothing that far
        epsilon=2.0, noise_to_sensitivity=0.2, shares=[0.25], neighboring_relation="add_remove"
    )
    end = (np.log((exp(2.0) - 0.75) / 0.25) + 12.5) / 5  # from there on who was removed shows
    left = 0.25 * ndtr(5 - end) - (exp(2.0) - 0.75) * ndtr(-end)
    assert settled == pytest.approx(left, rel=1e-6)


def test_noise_keeps_the_budget() -> None:
    """The table of the page, for replacing a record at delta 1e-5."""
    for rounds, expected in ((1, 3.731), (10, 1.182), (100, 0.458)):
        z = random_allocation_noise_to_sensitivity(
            target_epsilon=1.0, target_delta=1e-5, rounds=rounds, neighboring_relation="replace_one"
        )
        assert z == pytest.approx(expected, rel=1e-3)
        epsilon = random_allocation_epsilon(
            delta=1e-5, noise_to_sensitivity=z, rounds=rounds, neighboring_relation="replace_one"
        )
        assert 1 - 1e-6 <= epsilon <= 1


def test_laplace_gains_nothing_without_delta() -> None:
    arguments = {"noise_to_sensitivity": 1.0, "rounds": 20, "neighboring_relation": "replace_one"}
    assert random_allocation_epsilon(delta=0.0, noise="laplace", **arguments) == 1.0
    assert random_allocation_epsilon(delta=1e-5, noise="laplace", **arguments) < 1.0


def plan(made: int, z: float = 1.182, **fields: Any) -> Plan:
    how = fields if "shares" in fields else {"rounds": 10} | fields
    allocation = RandomAllocation(**how)
    return Plan(
        releases=tuple(Release(t, Gaussian(z), MOVED, sampling=allocation) for t in range(made)),
        neighboring_relation="replace_one",
        unit="record",
    )


@pytest.mark.parametrize("share", [0.4949480642016347, 0.33286880269871066, 0.3, 0.8123456789])
@pytest.mark.parametrize("noise_to_sensitivity", [1.3, 1.73])
def test_laplace_noise_of_unequal_shares_costs_at_most_one_round(
    share: float, noise_to_sensitivity: float
) -> None:
    """At the epsilon of one round no step exceeds 0, nor does the rest but for rounding."""
    epsilon = random_allocation_epsilon(
        delta=1e-4,
        noise_to_sensitivity=noise_to_sensitivity,
        shares=(share, 1 - share),
        neighboring_relation="replace_one",
        noise="laplace",
    )
    assert 0 < epsilon <= 1 / noise_to_sensitivity


def test_a_group_is_charged_whole_from_its_first_release_on() -> None:
    assert plan(1).cost(1e-5) == plan(10).cost(1e-5)
    assert plan(10).cost(1e-5).epsilon == pytest.approx(1.0, rel=1e-3)
    assert Plan.from_dict(plan(10).as_dict()) == plan(10)
    unequal = plan(2, shares=(0.25, 0.5))
    assert Plan.from_dict(json.loads(json.dumps(unequal.as_dict()))) == unequal


def test_unequal_noise_is_charged_as_the_least() -> None:
    noisy = plan(10, 2.0)
    mixed = noisy.with_releases((*noisy.releases[:9], *plan(10, 1.182).releases[9:]))
    assert mixed.cost(1e-5).epsilon == plan(10, 1.182).cost(1e-5).epsilon


def test_a_batch_that_is_released_again_gains_nothing() -> None:
    assert plan(11).cost(1e-5).epsilon == pytest.approx(
        gdp_epsilon(delta=1e-5, mu=2**0.5 / 1.182), rel=1e-9
    )


def test_runs_that_repeat_each_other_gain_nothing() -> None:
    """The rounds that records drew are as good as known after the first of them."""
    again = made_again(plan(10), plan(10))
    assert made_again(plan(10)) == (plan(10),)
    known = gdp_epsilon(delta=1e-5, mu=2**0.5 / 1.182)
    assert total_cost(again, 1e-5).epsilon == pytest.approx(known, rel=1e-9)


@pytest.mark.slow
def test_other_cycles_and_runs_compose() -> None:
    one, other = plan(10), plan(10, cycle=1)
    both = one.with_releases((*one.releases, *other.releases))
    assert len(charged(both.touching)) == 2
    assert total_cost([one, one], 1e-5).epsilon == pytest.approx(1.465, rel=2e-3)


@pytest.mark.slow
def test_failures_are_paid_from_delta() -> None:
    assert plan(10, failure=1e-6).cost(1e-5).epsilon == plan(10).cost(9e-6).epsilon
    assert plan(10, failure=1e-5).cost(1e-5).epsilon == float("inf")
    twice, sure = made_again(plan(10, failure=1e-6), plan(10, failure=1e-6)), [plan(10)] * 2
    known = total_cost(made_again(*sure), 8e-6).epsilon
    assert known <= total_cost(twice, 1e-5).epsilon <= known * 1.001
    assert plan(11, failure=1e-6).cost(1e-5).epsilon >= plan(11).cost(9e-6).epsilon


def test_grids_and_laplace_noise() -> None:
    on_grid = Release(0, Gaussian(1.0, grid=2**-20), MOVED, sampling=RandomAllocation(rounds=10))
    alone = Plan(releases=(on_grid,), neighboring_relation="add_remove", unit="record")
    assert alone.cost(1e-5).epsilon < gdp_epsilon(delta=1e-5, mu=1.0)
    replaced = Plan(releases=(on_grid,), neighboring_relation="replace_one", unit="record")
    half = (replace(on_grid, mechanism=Gaussian(0.5)),)
    assert replaced.cost(1e-5).epsilon >= replaced.with_releases(half).cost(1e-5).epsilon
    laplace = Release(
        0, Laplace(1.0), Sensitivity(1.0, "l1", ""), sampling=RandomAllocation(rounds=10)
    )
    pure = Plan(releases=(laplace,), neighboring_relation="replace_one", unit="record")
    assert pure.cost(0.0).epsilon == 1.0
    assert pure.cost(1e-3).epsilon < 1.0


def test_a_budget_calibrates_it() -> None:
    budget = Budget(1.0, delta=1e-5)

    class Allocated:
        def __init__(self, z: float) -> None:
            self.z = z

        def plan(self, rounds: int) -> Plan:
            return plan(rounds, self.z)

    assert budget.calibrate(Allocated, 10) == pytest.approx(1.182, rel=1e-3)


def test_the_report_states_the_secret() -> None:
    from dpmesh.privacy import report

    assert "each record is used in one round of 10, a secret one" in str(report(plan(10), 1e-5))


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="rounds"):
        RandomAllocation()
    with pytest.raises(ValueError, match="shares"):
        RandomAllocation(shares=(0.7, 0.7))
    with pytest.raises(ValueError, match="either rounds or shares"):
        accounting.random_allocation_epsilon(
            delta=1e-5, noise_to_sensitivity=1.0, neighboring_relation="replace_one"
        )


@pytest.mark.slow
@pytest.mark.parametrize(("passes", "rounds"), [(20, 5), (10, 10)])
def test_a_path_of_allocated_batches_has_the_noise_of_full_batches(
    passes: int, rounds: int
) -> None:
    """Steps of one size: batches of a share 1 / rounds have `rounds` times the sensitivity."""
    budget = {"target_epsilon": 1.0, "target_delta": 1e-5}
    steps = passes * rounds
    full = sqrt(steps) * analytic_gaussian_noise_to_sensitivity(**budget) * sqrt(steps)
    once = random_allocation_noise_to_sensitivity(
        rounds=rounds, cycles=passes, neighboring_relation="replace_one", **budget
    )
    assert once * rounds * sqrt(steps) / full == pytest.approx(1.0, abs=1e-3)
