"""Calibration keeps its budget, comes close to it, and says how many rounds it buys."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refused import refused
from sampled_calls import NOISE, SAMPLED, poisson_epsilon

from dpmesh import accounting

EPSILONS = st.floats(math.log(1e-6), math.log(50)).map(math.exp)
DELTAS = st.floats(math.log(1e-15), math.log(0.1)).map(math.exp)
RATES = st.floats(math.log(1e-6), 0).map(math.exp)


def close_below(epsilon: float, target: float) -> bool:
    return target - 1e-6 * min(1, target) <= epsilon <= target


@given(EPSILONS, DELTAS, st.floats(1e-3, 1e3))
def test_any_accountant_is_calibrated(target: float, delta: float, guess: float) -> None:
    noise = accounting.calibrate_noise(
        lambda s: accounting.gdp_epsilon(delta=delta, mu=1 / s), target_epsilon=target, guess=guess
    )
    exact = accounting.analytic_gaussian_noise_to_sensitivity(
        target_epsilon=target, target_delta=delta
    )
    assert noise >= exact * (1 - 1e-12)
    # where delta alone covers the release, epsilon jumps to 0 at a finite noise
    spent = accounting.gdp_epsilon(delta=delta, mu=1 / noise)
    assert spent <= target
    assert spent >= target * (1 - 1e-6) - 1e-6 or noise == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("kind", SAMPLED)
def test_what_no_order_attains_is_named(kind: str) -> None:
    """At a delta of 1e-300 the largest order proves 5e-6 and no less."""
    noise_to_sensitivity = NOISE[kind]
    with pytest.raises(ValueError, match="target_epsilon: wanted an epsilon that noise attains"):
        noise_to_sensitivity(target_epsilon=1e-7, target_delta=1e-300, sampling_rate=0.5)
    with pytest.raises(ValueError, match=r"target_epsilon: wanted less than .*, got 1e\+300"):
        noise_to_sensitivity(target_epsilon=1e300, target_delta=1e-5, sampling_rate=0.5)


@pytest.mark.parametrize("kind", SAMPLED)
def test_next_to_no_sample_costs_next_to_nothing(kind: str) -> None:
    noise_to_sensitivity, epsilon = NOISE[kind], SAMPLED[kind]
    assert 0 <= epsilon(1e-5, 1e-300, 1.0) < 1e-9
    noise = noise_to_sensitivity(target_epsilon=2.0, target_delta=1e-30, sampling_rate=1e-30)
    assert epsilon(1e-30, 1e-30, noise) <= 2


@pytest.mark.parametrize("guess", [0.02, 1.0, 1.6, 50.0])
def test_few_costs_are_asked_for_and_none_twice(guess: float) -> None:
    asked = []

    def cost(noise: float) -> float:
        asked.append(noise)
        return poisson_epsilon(1e-5, 0.05, noise, count=200, accountant="rdp")

    noise = accounting.calibrate_noise(cost, target_epsilon=2.0, guess=guess)
    assert close_below(cost(noise), 2.0)
    asked.pop()
    assert len(set(asked)) == len(asked)
    assert len(asked) <= 7 + abs(math.log2(guess / noise))


@given(
    st.floats(0.01, 100),
    st.floats(1e-3, 1e3),
    st.floats(0.4, 40),
    st.lists(st.tuples(st.floats(1e-2, 1e2), st.floats(0, 1e3)), max_size=4),
)
def test_steep_and_broken_costs_are_calibrated(
    target: float, guess: float, steepness: float, jumps: list[tuple[float, float]]
) -> None:
    asked = 0

    def cost(noise: float) -> float:
        nonlocal asked
        asked += 1
        power = steepness * math.log(10 / noise)
        smooth = math.exp(power) if power < 700 else math.inf
        return smooth + sum(height for place, height in jumps if noise < place)

    noise = accounting.calibrate_noise(cost, target_epsilon=target, guess=guess)
    assert cost(noise) <= target
    assert close_below(cost(noise), target) or cost(noise * (1 - 1e-12)) > target
    assert asked < 500


@pytest.mark.parametrize("sampling", SAMPLED)
@given(
    EPSILONS,
    DELTAS,
    st.lists(st.tuples(RATES, st.floats(0.1, 10)), min_size=1, max_size=5),
    st.data(),
)
def test_rounds_that_differ_are_calibrated(
    sampling: str,
    target: float,
    delta: float,
    rounds: list[tuple[float, float]],
    data: st.DataObject,
) -> None:
    noise_to_sensitivity, epsilon = NOISE[sampling], SAMPLED[sampling]
    rate, relative = map(np.array, zip(*rounds, strict=True))
    goal = {"target_epsilon": target, "target_delta": delta, "sampling_rate": rate}
    options = {"count": data.draw(st.integers(1, 10**6)), "accountant": "rdp"}
    factor = noise_to_sensitivity(**goal, relative_noise=relative, **options)
    spent = epsilon(delta, rate, factor * relative, **options)
    assert spent <= target
    if not close_below(spent, target):
        # only where delta alone covers rounds with this noise, and no longer with a little less
        assert epsilon(delta, rate, factor * (1 - 1e-6) * relative, **options) > target


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLED)
@settings(max_examples=4)
@given(st.floats(0.1, 20), st.floats(0.001, 0.5), st.integers(1, 300))
def test_loss_distributions_are_calibrated(
    sampling: str, target: float, rate: float, count: int
) -> None:
    noise_to_sensitivity, epsilon = NOISE[sampling], SAMPLED[sampling]
    goal = {"target_epsilon": target, "target_delta": 1e-6, "sampling_rate": rate, "count": count}
    noise = noise_to_sensitivity(**goal)
    assert close_below(epsilon(1e-6, rate, noise, count=count), target)
    assert noise <= noise_to_sensitivity(**goal, accountant="rdp")


@given(EPSILONS, DELTAS, st.floats(1, 1e4))
def test_affordable_rounds_are_the_most(target: float, delta: float, noise: float) -> None:
    def epsilon(rounds: int) -> float:
        return accounting.gdp_epsilon(delta=delta, mu=accounting.gdp_mu(noise, count=rounds))

    rounds = accounting.affordable_rounds(epsilon, target_epsilon=target)
    assert rounds == 0 or epsilon(rounds) <= target
    assert epsilon(rounds + 1) > target


def test_rounds_that_are_all_affordable_are_soon_known() -> None:
    asked: list[int] = []
    assert accounting.affordable_rounds(
        lambda n: asked.append(n) or 0.0, target_epsilon=1.0, at_most=100_000
    )
    assert sum(asked) < 3 * 100_000  # the cost of n rounds takes time that grows with n


def test_affordable_rounds_know_their_limit() -> None:
    assert accounting.affordable_rounds(lambda _: 0.0, target_epsilon=1.0, at_most=37) == 37
    assert accounting.affordable_rounds(lambda n: float(n), target_epsilon=36.5, at_most=37) == 36
    assert accounting.affordable_rounds(lambda _: 2.0, target_epsilon=1.0) == 0


GOAL = {"target_epsilon": 1, "target_delta": 0.1, "sampling_rate": 0.1}

test_bad_input_is_named = refused(
    (
        lambda: accounting.calibrate_noise(lambda _: 2.0, target_epsilon=1.0),
        r"target_epsilon: wanted at least 2.0, which it costs at any noise .*, got 1.0",
    ),
    (
        lambda: accounting.calibrate_noise(lambda s: 2.0 + 1 / s, target_epsilon=1.0),
        r"target_epsilon: wanted an epsilon that noise attains, such as 2\.0.*, got 1.0",
    ),
    (
        lambda: accounting.calibrate_noise(lambda _: 0.5, target_epsilon=1.0),
        "target_epsilon: wanted less than 0.5, which it costs however little .*, got 1.0",
    ),
    (
        lambda: NOISE["poisson"](target_epsilon=1, target_delta=0, sampling_rate=0.1),
        r"target_delta: wanted a number in \(0, 1\), got 0",
    ),
    (
        lambda: NOISE["fixed_size"](**GOAL, relative_noise=[1, 0]),
        "noise_to_sensitivity: wanted finite numbers greater than 0, got 0",
    ),
    (lambda: NOISE["fixed_size"](**GOAL, count=0), "count: wanted at least 1 round"),
)
