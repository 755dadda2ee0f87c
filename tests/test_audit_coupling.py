"""Coupled runs flag the faults of papers in small algorithms, and leave corrected ones alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from faulty_algorithms import NonconvexGossip, PoissonMean, StronglyConvexSteps, Toy, info

from dpmesh.keys import Key
from dpmesh.privacy import Gaussian, Sensitivity
from dpmesh.privacy.audit import alone, couple


def test_coupling_flags_division_by_the_realised_batch() -> None:
    """All others send -1: divided by the number of participants, the mean moves twice as far."""
    target, absent = np.full(12, -1.0), np.full(12, -1.0)
    target[0], absent[0] = 1.0, np.nan
    right = couple(PoissonMean(), target, absent, alone, rounds=10)
    assert not right.violated
    assert max(m.distance / m.allowed for m in right.movements) == pytest.approx(1.0)
    wrong = couple(PoissonMean(by_realised_batch=True), target, absent, alone, rounds=10)
    assert wrong.violated
    assert max(m.distance / m.allowed for m in wrong.movements) > 1.7


def test_coupling_flags_strongly_convex_steps_beyond_their_condition() -> None:
    x = np.concatenate((np.ones(48), [0.0, 1.0]))
    y = np.concatenate((np.ones(24), -np.ones(24), [1.0, 1.0]))
    other = np.concatenate((y[:-1], [-1.0]))
    second = np.ones(50), np.ones(50)
    worlds = [(x, y), second], [(x, other), second]
    assert not couple(StronglyConvexSteps(delayed=True), *worlds, alone, rounds=1).violated
    wrong = couple(StronglyConvexSteps(), *worlds, alone, rounds=1)
    assert wrong.violated
    (movement,) = wrong.movements
    assert movement.distance == pytest.approx(10_400, rel=1e-6)
    assert movement.allowed == pytest.approx(1_600, rel=1e-6)


def test_coupling_flags_the_missing_lipschitz_term() -> None:
    problem, other = np.zeros(50), np.zeros(50)
    problem[0], other[0] = 1.0, -1.0  # clipped to C / 2 either way
    right = couple(NonconvexGossip(lipschitz=1.0), problem, other, alone, rounds=60)
    assert not right.violated
    assert max(m.distance / m.allowed for m in right.movements[1:]) > 0.9
    wrong = couple(NonconvexGossip(), problem, other, alone, rounds=60)
    assert wrong.violated
    assert max(m.distance / m.allowed for m in wrong.movements[1:]) > 1.5


@dataclass(frozen=True)
class Sum(Toy):
    """Releases the sum of its numbers, each between 0 and 1."""

    def sensitivity(self, t: int) -> Sensitivity:
        return Sensitivity(1.0, "l2", "numbers between 0 and 1")

    def init(self, problem, key):
        return None

    def step(self, state, round, problem, exchange, key):
        emission = self.release(np.array([[problem.sum()]]), round, key)
        return None, info(emission)


class SumByItsData(Sum):
    """Writes down a noise that depends on the data."""

    def step(self, state, round, problem, exchange, key):
        other = SumByItsData(1.0 + abs(problem).max())
        return Sum.step(other, state, round, problem, exchange, key)


class SumTwice(Sum):
    """Releases twice and writes down one."""

    def step(self, state, round, problem, exchange, key):
        self.release(np.array([[problem.sum()]]), round, key)
        return super().step(state, round, problem, exchange, key)


class SumUnwritten(Sum):
    """Releases and does not write it down."""

    def step(self, state, round, problem, exchange, key):
        state, said = super().step(state, round, problem, exchange, key)
        return state, replace(said, releases=())


class SumBesides(Sum):
    """Gives away what it should have released, in a message to others or as what it received."""

    def step(self, state, round, problem, exchange, key):
        exchange(round, problem[None, :])
        state, said = super().step(state, round, problem, exchange, key)
        return state, replace(said, received=problem[None, :])


class SumOnDemand(Sum):
    """Sends a message if its data ask for it."""

    def step(self, state, round, problem, exchange, key):
        if problem[0] > 0:
            exchange(round, np.zeros((1, 1)))
        return super().step(state, round, problem, exchange, key)


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        (Sum, []),
        (
            SumByItsData,
            ["the first run let out 2 releases that were not planned"],
        ),
        (
            SumTwice,
            ["all releases together: mu = 2, planned is 1.41421"],
        ),
        (SumUnwritten, ["the second run let out 2 releases that it did not write down"]),
        (
            SumBesides,
            [
                "message 0 sent depends on data that did not pass the door",
                "message 1 received depends on data that did not pass the door",
            ],
        ),
        (SumOnDemand, ["2 messages sent on the one data, 0 on the other"]),
    ],
)
def test_coupling_reads_what_is_planned_written_down_and_sent(kind, faults: list[str]) -> None:
    problem, other = np.array([1.0, 0.3]), np.array([0.0, 0.3])
    coupling = couple(kind(), problem, other, alone, rounds=2)
    assert coupling.violated == bool(faults)
    for fault in faults:
        assert fault in str(coupling)


def test_a_scale_that_the_mechanism_misstates_is_flagged() -> None:
    class Short(Gaussian):
        def noise_scale(self, sensitivity, dim):
            return super().noise_scale(sensitivity, dim) / 2

    class ShortSum(Sum):
        def mechanism(self):
            return Short(self.noise_multiplier)

    problem, other = np.array([1.0, 0.3]), np.array([0.0, 0.3])
    coupling = couple(ShortSum(), problem, other, alone, rounds=1, key=Key.seeded(0))
    assert coupling.faults == (
        "round 0: moved by 1, allowed is 0.5 (numbers between 0 and 1)",
        "all releases together: mu = 2, planned is 1",
    )


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="rounds: wanted an integer of at least 1, got 0"):
        couple(Sum(), np.zeros(1), np.zeros(1), alone, rounds=0)
