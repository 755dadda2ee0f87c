"""Random allocation: oracle values, other means at few rounds, and what a plan is charged."""

import json
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from dpmesh.privacy import (
    Budget,
    Gaussian,
    Laplace,
    Plan,
    RandomAllocation,
    Release,
    Sensitivity,
    accounting,
    total_cost,
)
from dpmesh.privacy.accounting import (
    gdp_delta,
    gdp_epsilon,
    random_allocation_delta,
    random_allocation_epsilon,
    random_allocation_noise_multiplier,
)
from dpmesh.privacy.accounting._allocated import GaussianPart, log_profile
from dpmesh.privacy.charged import charged

ORACLES = json.loads(
    (Path(__file__).parents[1] / "data/oracles-random-allocation.json").read_text()
)["values"]
MOVED = Sensitivity(1.0, "l2", "2 C, replaced")


def profile(kind: str, epsilon: float, shifts: list[float], shares: list[float]) -> float:
    factor = exp(epsilon)
    u, v, offset = {
        "replace": (1.0, factor, 0.0),
        "remove": (1.0, 0.0, -factor),
        "add": (0.0, factor, 1.0),
    }[kind]
    parts = [(GaussianPart(p, a, u, v), 1) for p, a in zip(shares, shifts, strict=True)]
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
            epsilon=epsilon, noise_multiplier=z, rounds=1, neighboring_relation=relation
        )
        assert exact <= found * (1 + 1e-12)
        assert found <= exact * 1.01


@pytest.mark.parametrize(("a", "epsilon"), [(0.6, 1.0), (1.5, 2.0)])
def test_two_rounds_agree_with_quadrature(a: float, epsilon: float) -> None:
    """Given the first step, the second one's mean positive part is a known function."""
    factor, z = exp(epsilon), np.linspace(-9, 9, 20001)
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    first = np.exp(a * z - a**2 / 2) - factor * np.exp(-a * z - a**2 / 2)
    scaled = -first * exp(a**2 / 2)  # exp(a y) - factor exp(-a y) exceeds that beyond y
    root = np.log((scaled + np.sqrt(scaled**2 + 4 * factor)) / 2) / a
    second = ndtr(a - root) - factor * ndtr(-a - root) + first * ndtr(-root)
    exact = float(np.sum(weights * second)) / 2
    found = profile("replace", epsilon, [a, a], [0.5, 0.5])
    assert exact * (1 - 1e-6) <= found <= exact * 1.002


def test_unlikely_rounds_leave_the_rest_unreleased() -> None:
    """The profile of one release with probability 1/4, by quadrature."""
    factor, z = exp(1.0), np.linspace(-9, 9, 20001)
    weights = np.exp(-(z**2) / 2)
    up, down = np.exp(z / 2 - 1 / 8), np.exp(-z / 2 - 1 / 8)
    inside = 0.25 * (up - factor * down) + 0.75 * (1 - factor)
    exact = float(np.sum(weights * np.maximum(inside, 0)) / np.sum(weights))
    found = random_allocation_delta(
        epsilon=1.0, noise_multiplier=1.0, shares=[0.25], neighboring_relation="replace_one"
    )
    assert found == pytest.approx(exact, rel=2e-3)


def test_more_rounds_and_more_noise_cost_less() -> None:
    def delta(z: float, rounds: int, epsilon: float = 1.0) -> float:
        return random_allocation_delta(
            epsilon=epsilon,
            noise_multiplier=z,
            rounds=rounds,
            neighboring_relation="replace_one",
        )

    values = [delta(1.0, t) for t in (1, 2, 5, 20, 100)]
    assert values == sorted(values, reverse=True)
    assert delta(0.6, 20) > delta(0.8, 20) > delta(1.2, 20)
    assert delta(0.6, 20, 0.5) > delta(0.6, 20, 1.0) > delta(0.6, 20, 2.0)


def test_noise_keeps_the_budget() -> None:
    """The table of the page, for replacing a record at delta 1e-5."""
    for rounds, expected in ((1, 3.731), (10, 1.182), (100, 0.458)):
        z = random_allocation_noise_multiplier(
            target_epsilon=1.0,
            target_delta=1e-5,
            rounds=rounds,
            neighboring_relation="replace_one",
        )
        assert z == pytest.approx(expected, rel=1e-3)
        epsilon = random_allocation_epsilon(
            delta=1e-5, noise_multiplier=z, rounds=rounds, neighboring_relation="replace_one"
        )
        assert 1 - 1e-6 <= epsilon <= 1


def test_laplace_gains_nothing_without_delta() -> None:
    arguments = {"noise_multiplier": 1.0, "rounds": 20, "neighboring_relation": "replace_one"}
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


def test_a_group_is_charged_whole_from_its_first_release_on() -> None:
    assert plan(1).cost(1e-5) == plan(10).cost(1e-5)
    assert plan(10).cost(1e-5).epsilon == pytest.approx(1.0, rel=1e-3)
    assert Plan.from_dict(plan(10).as_dict()) == plan(10)
    unequal = plan(2, shares=(0.25, 0.5))
    assert Plan.from_dict(json.loads(json.dumps(unequal.as_dict()))) == unequal


def test_a_batch_that_is_released_again_gains_nothing() -> None:
    assert plan(11).cost(1e-5).epsilon == pytest.approx(
        gdp_epsilon(delta=1e-5, mu=2**0.5 / 1.182), rel=1e-9
    )


def test_other_cycles_and_runs_compose() -> None:
    one, other = plan(10), plan(10, cycle=1)
    both = one.with_releases((*one.releases, *other.releases))
    assert len(charged(both.touching)) == 2
    assert total_cost([one, one], 1e-5).epsilon == pytest.approx(1.465, rel=2e-3)


def test_failures_are_paid_from_delta() -> None:
    assert plan(10, failure=1e-6).cost(1e-5).epsilon == plan(10).cost(9e-6).epsilon
    assert plan(10, failure=1e-5).cost(1e-5).epsilon == float("inf")


def test_grids_and_laplace_noise() -> None:
    on_grid = Release(0, Gaussian(1.0, grid=2**-20), MOVED, sampling=RandomAllocation(rounds=10))
    alone = Plan(releases=(on_grid,), neighboring_relation="add_remove", unit="record")
    assert alone.cost(1e-5).epsilon < gdp_epsilon(delta=1e-5, mu=1.0)
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

    assert "each record is used in one secret round of 10" in str(report(plan(10), 1e-5))


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="rounds"):
        RandomAllocation()
    with pytest.raises(ValueError, match="shares"):
        RandomAllocation(shares=(0.7, 0.7))
    with pytest.raises(ValueError, match="either rounds or shares"):
        accounting.random_allocation_epsilon(
            delta=1e-5, noise_multiplier=1.0, neighboring_relation="replace_one"
        )
