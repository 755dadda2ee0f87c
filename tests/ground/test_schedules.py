"""Schedules against the papers' formulas."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from dpmesh import algorithms
from dpmesh import schedules as s

POSITIVE = st.floats(1e-3, 1e3)
EXPONENTS = st.floats(-2, 2)
TIMES = st.integers(1, 10**6)


@given(POSITIVE, EXPONENTS, st.floats(0, 100), TIMES)
def test_values_are_the_formulas(a: float, p: float, offset: float, t: int) -> None:
    expected = {
        s.Constant(a): a,
        s.InverseTime(scale=a, offset=offset): a / (t + offset),
        s.InverseSqrt(a): a * t**-0.5,
        s.PowerLaw(scale=a, exponent=p, offset=offset): a * (t + offset) ** p,
        s.HorizonPower(scale=a, exponent=p, rounds=10**6): a * 10 ** (6 * p),
    }
    for schedule, value in expected.items():
        assert schedule(t) == pytest.approx(value, rel=1e-12)


def test_the_horizon_indexed_schedules_give_the_quantized_papers_values() -> None:
    # Oracles O1 and O1b: a1 = a2 = a3 = 1, (alpha, beta, gamma) = (0.9, 0.7, 0.85).
    for horizon, alpha, beta, gamma in [
        (2000, 0.001068753673, 0.004887953187, 639),
        (100, 0.01570763365, 0.03953438965, 50),
    ]:
        for k in (0, 1, horizon):
            assert s.HorizonPower(scale=1, exponent=-0.9, rounds=horizon + 1)(
                k + 1
            ) == pytest.approx(alpha, rel=1e-9)
            assert s.HorizonPower(scale=1, exponent=-0.7, rounds=horizon + 1)(
                k + 1
            ) == pytest.approx(beta, rel=1e-9)
            assert s.SampleSize(scale=1, exponent=0.85, rounds=horizon + 1)(k + 1) == gamma


@given(st.integers(1, 400), st.integers(1, 6))
def test_a_sample_size_that_is_an_integer_does_not_drop_by_one(root: int, power: int) -> None:
    rounds = root**power
    assert s.SampleSize(scale=1, exponent=1 / power, rounds=rounds)(1) == root
    assert s.SampleSize(scale=3, exponent=1 / power, rounds=rounds)(1) == 3 * root


def test_a_sample_size_that_floating_point_misses() -> None:
    assert math.floor(1000 ** (1 / 3)) == 9  # the trap
    assert s.SampleSize(scale=1, exponent=1 / 3, rounds=1000)(1) == 10
    assert s.SampleSize(scale=1, exponent=1 / 3, rounds=999)(1) == 9
    assert s.SampleSize(scale=0.1, exponent=0.0, rounds=5)(1) == 1


def test_decay_and_pieces() -> None:
    decay = s.ExponentialDecay(scale=2.0, rate=0.5)
    assert [decay(t) for t in (1, 2, 3)] == [2.0, 1.0, 0.5]
    pieces = s.Piecewise(starts=(1, 4, 6), values=(0.3, 0.2, 0.1))
    assert [pieces(t) for t in range(1, 8)] == [0.3, 0.3, 0.3, 0.2, 0.2, 0.1, 0.1]


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (s.Constant(np.float32(0.5)), "Constant(value=0.5)"),
        (s.InverseTime(scale=2), "InverseTime(scale=2.0, offset=0.0)"),
        (s.InverseSqrt(0.5), "InverseSqrt(scale=0.5)"),
        (s.PowerLaw(scale=1, exponent=-0.5), "PowerLaw(scale=1.0, exponent=-0.5, offset=0.0)"),
        (
            s.HorizonPower(scale=1, exponent=-0.9, rounds=10),
            "HorizonPower(scale=1.0, exponent=-0.9, rounds=10)",
        ),
        (s.ExponentialDecay(scale=1, rate=0.9), "ExponentialDecay(scale=1.0, rate=0.9)"),
        (
            s.Piecewise(starts=[1, 9], values=[2, np.float64(1)]),
            "Piecewise(starts=(1, 9), values=(2.0, 1.0))",
        ),
        (
            s.SampleSize(scale=1, exponent=0.5, rounds=10),
            "SampleSize(scale=1.0, exponent=0.5, rounds=10)",
        ),
    ],
)
def test_schedules_are_values(schedule: s.Schedule, text: str) -> None:
    assert repr(schedule) == text
    copy = pickle.loads(pickle.dumps(schedule))
    assert copy == schedule
    assert hash(copy) == hash(schedule)
    with pytest.raises(ValueError, match=r"t: wanted an integer of at least 1.*, got 0"):
        schedule(0)
    with pytest.raises(ValueError, match=r"t: wanted an integer of at least 1.*, got 1\.5"):
        schedule(1.5)  # type: ignore[arg-type]


test_bad_input_is_named = refused(
    (
        lambda: s.PowerLaw(scale=1, exponent=400)(10),
        "PowerLaw.*: wanted a finite value .* t = 10, got inf",
    ),
    (
        lambda: s.HorizonPower(scale=1, exponent=-400, rounds=10),
        "HorizonPower.*: wanted .* greater than 0 .* got 0",
    ),
    (
        lambda: s.HorizonPower(scale=1, exponent=1, rounds=5)(6),
        r"HorizonPower.*: wanted t of at most 5, .*, got 6",
    ),
    (
        lambda: s.ExponentialDecay(scale=1, rate=0.1)(999),
        "ExponentialDecay.*: wanted .* t = 999, got 0",
    ),
    (
        lambda: s.Piecewise(starts=(), values=()),
        "starts: wanted ascending integers, the first of them 1",
    ),
    (lambda: s.Piecewise(starts=(2,), values=(1.0,)), "starts: wanted ascending integers"),
    (
        lambda: s.Piecewise(starts=(1, 3, 3), values=(1.0, 1.0, 1.0)),
        "starts: wanted ascending integers",
    ),
    (
        lambda: s.Piecewise(starts=(1, 2), values=(1.0,)),
        "values: wanted 2 values, one for each start, got 1",
    ),
    (
        lambda: s.SampleSize(scale=1, exponent=999, rounds=10),
        "SampleSize.*: wanted a finite value .*, got inf",
    ),
    (
        lambda: s.SampleSize(scale=1, exponent=1, rounds=5)(6),
        r"SampleSize.*: wanted t of at most 5, .*, got 6",
    ),
)


GOSSIP: dict[str, Any] = {
    "step_size": 0.1,
    "consensus_step_size": 0.2,
    "sample_size": 5,
    "noise_std": 1.0,
}


def test_a_number_is_kept_as_the_schedule_that_it_stands_for() -> None:
    gossip = algorithms.QuantizedGossip(**GOSSIP)
    spelt = algorithms.QuantizedGossip(
        step_size=s.Constant(0.1),
        consensus_step_size=s.Constant(0.2),
        sample_size=s.SampleSize(scale=5),
        noise_std=s.Constant(1.0),
    )
    assert gossip == spelt
    assert str(gossip) == str(spelt)
    assert replace(gossip, noise_std=None).noise_std is None
    assert replace(gossip, sample_size=1).sample_size == s.SampleSize(scale=1)
    for make in (algorithms.OnlineLearning, algorithms.WithoutReplacement):
        assert make(step_size=np.float32(0.5)).step_size == s.Constant(0.5)
    descent = algorithms.GradientDescent(records=10, noise_multiplier=2.0, step_size=2)
    assert descent.step_size == s.Constant(2.0)
    assert s.at(descent.step_size, 7) == s.at(2.0, 7) == 2.0
    learning = algorithms.FederatedLearning(
        algorithms.ClientUpdates(
            clients=10, sampling_rate=0.1, clipping_norm=1.0, steps=1, step_size=0.3
        ),
        noise_multiplier=1.0,
        average=algorithms.Average(weights=1),
    )
    assert learning.contribution.step_size == s.Constant(0.3)
    assert learning.average == algorithms.Average(weights=s.Constant(1.0))


@pytest.mark.parametrize("wrong", [0, -0.1, math.nan, math.inf, True, "Constant", None])
def test_algorithms_ask_for_schedules(wrong: object) -> None:
    wanted = "wanted a finite number greater than 0 or a schedule, such as .*, got "
    for name in ("step_size", "consensus_step_size"):
        with pytest.raises(ValueError, match=f"^{name}: {wanted}{wrong!r}"):
            algorithms.QuantizedGossip(**{**GOSSIP, name: wrong})
    with pytest.raises(ValueError, match="sample_size: wanted an integer of at least 1"):
        algorithms.QuantizedGossip(**{**GOSSIP, "sample_size": wrong})
    if wrong is not None:
        with pytest.raises(ValueError, match=f"^noise_std: {wanted}"):
            algorithms.QuantizedGossip(**{**GOSSIP, "noise_std": wrong})
    for make in (algorithms.OnlineLearning, algorithms.WithoutReplacement):
        with pytest.raises(ValueError, match=f"^step_size: {wanted}"):
            make(step_size=wrong)
    with pytest.raises(ValueError, match=f"^step_size: {wanted}"):
        algorithms.FederatedLearning(
            algorithms.ClientUpdates(
                clients=10, sampling_rate=0.1, clipping_norm=1.0, steps=1, step_size=wrong
            ),
            noise_multiplier=1.0,
        )


def test_a_sample_size_without_rounds_is_the_same_in_any_run() -> None:
    assert [s.SampleSize(scale=10)(t) for t in (1, 10**9)] == [10, 10]
    with pytest.raises(ValueError, match="rounds: wanted the length of the run"):
        s.SampleSize(scale=10, exponent=0.5)


@pytest.mark.parametrize("later", [-0.5, math.nan, math.inf, -1])
def test_a_schedule_that_is_no_number_of_at_least_0_later_is_named(later: float) -> None:
    """A step back would move a state as far as a step, and what is accounted for is none."""
    steps = algorithms.WithoutReplacement(step_size=lambda t: 0.1 if t == 1 else later).step_size
    assert s.at(steps, 1) == 0.1
    with pytest.raises(ValueError, match=f"schedule: wanted .* at least 0 at t = 2, got {later}"):
        s.at(steps, 2)


@pytest.mark.parametrize(
    "setting", ["step_size", "consensus_step_size", "sample_size", "noise_std"]
)
def test_a_schedule_that_changes_its_mind_is_named(setting: str) -> None:
    """A node would take one step and account for another."""
    counter = count(1)
    settings = {"step_size": 0.1, "consensus_step_size": 0.5, "sample_size": 1, "noise_std": 1.0}
    message = f"{setting}: wanted a schedule that depends on t alone, got 1 and then 2 at t = 1"
    with pytest.raises(ValueError, match=message):
        algorithms.QuantizedGossip(**settings | {setting: lambda t: next(counter)})
