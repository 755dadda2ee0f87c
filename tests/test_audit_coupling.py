"""Coupled runs read what is planned, let out, written down and sent.

Faults of whole algorithms are in test_audit_online.py and its likes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from faulty_mechanisms import Antithetic, ForgetsTheNode, ForgetsTheRound, SilentGaussian

from dpmesh import topology
from dpmesh.algorithms import Info
from dpmesh.keys import Key, Purpose
from dpmesh.privacy import Gaussian, Laplace, Plan, Sensitivity
from dpmesh.privacy.audit import alone, couple
from dpmesh.privacy.audit.mechanism import OneRelease
from dpmesh.privacy.compression import Quantizer


@dataclass(frozen=True)
class Sum:
    """Releases the sum of its numbers, each between 0 and 1."""

    noise_multiplier: float = 1.0
    travels: ClassVar = "server"
    sensitivity: ClassVar = Sensitivity(1.0, "l2", "numbers between 0 and 1")

    def mechanism(self):
        return Gaussian(self.noise_multiplier)

    def plan(self, rounds):
        planned = (self.mechanism().planned(t, self.sensitivity) for t in range(rounds))
        return Plan(tuple(planned), "replace_one", "record")

    def init(self, problem, key):
        return None

    def step(self, state, round, problem, exchange, key):
        emission = self.release(problem, round, key)
        return None, Info((emission.release,), emission.bits_per_node, emission.values)

    def release(self, problem, round, key, purpose=Purpose.NOISE):
        noise = key.stream(purpose, round)
        return self.mechanism().release(
            np.array([[problem.sum()]]), self.sensitivity, noise, round=round
        )

    def parameters(self, state):
        return np.zeros((1, 1))


class SumByItsData(Sum):
    """Writes down a noise that depends on the data."""

    def step(self, state, round, problem, exchange, key):
        other = SumByItsData(1.0 + abs(problem).max())
        return Sum.step(other, state, round, problem, exchange, key)


class SumTwice(Sum):
    """Releases twice and writes down one."""

    def step(self, state, round, problem, exchange, key):
        self.release(problem, round, key, purpose=1000)
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


class SumByItsLength(Sum):
    """Sends as many bits, and as many messages, as its data say."""

    def step(self, state, round, problem, exchange, key):
        state, said = super().step(state, round, problem, exchange, key)
        ones = int(problem[0])
        return state, replace(said, bits_per_node=np.array([8 + ones]), messages=ones)


class SumOfBatches(Sum):
    """Releases the number of one record a round, in whatever order."""

    batches: ClassVar = (1, 0)

    def plan(self, rounds):
        planned = (self.mechanism().planned(t, self.sensitivity, batch=t) for t in range(rounds))
        return Plan(tuple(planned), "replace_one", "record")

    def release(self, problem, round, key):
        batch = self.batches[round]
        return self.mechanism().release(
            problem[[[batch]]],
            self.sensitivity,
            key.stream(Purpose.NOISE, round),
            round=round,
            batch=batch,
        )


class SumOfOneBatch(SumOfBatches):
    """Takes the same record twice, where the plan has each of them once."""

    batches = (0, 0)


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
            ["all releases together: mu = 2, planned is 1.41422"],
        ),
        (SumOfBatches, []),
        (
            SumOfOneBatch,
            [
                "the first run let out 1 releases that were not planned",
                "the second run wrote down 1 releases that were not planned",
            ],
        ),
        (SumUnwritten, ["the second run let out 2 releases that it did not write down"]),
        (
            SumBesides,
            [
                "message 0 sent depends on data that did not pass the door",
                "message 1 received depends on data that did not pass the door",
            ],
        ),
        (
            SumByItsLength,
            [
                "round 0: the length of messages depends on data",
                "round 1: the number of messages depends on data",
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
    with pytest.raises(ValueError, match=r"exchange: wanted how messages travel, such .*Static"):
        couple(Sum(), np.zeros(1), np.zeros(1), topology.complete(2), rounds=1)


ONE = Sensitivity(1.0, "l2", "a test")


@pytest.mark.parametrize("compressor", [None, Quantizer(0.5, bits=8)])
@pytest.mark.parametrize(
    ("door", "fault"),
    [
        (ForgetsTheRound, "have the noise of another"),
        (ForgetsTheNode, "have the noise of another"),
        (Antithetic, "have the noise of another"),
        (SilentGaussian, "round 1: released without its noise"),
    ],
)
def test_noise_that_is_missing_or_shared_is_found(door, fault: str, compressor) -> None:
    """Also behind a compressor, which hides it in its steps."""
    rows = np.zeros((2, 4))
    algorithm = OneRelease(door(2.0, compressor=compressor), ONE)
    assert fault in str(couple(algorithm, rows, rows, alone, rounds=2, key=Key.seeded(0)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "door",
    [
        Gaussian(2.0),
        Laplace(2.0),
        Gaussian(2.0, grid=2.0**-6),
        Laplace(2.0, grid=0.25),
        Gaussian(2.0, compressor=Quantizer(0.5, bits=16)),
    ],
)
def test_noise_that_meets_by_chance_is_no_fault(door, dtype) -> None:
    rows = np.full((50, 100), 1000.0, dtype)
    assert not couple(OneRelease(door, ONE), rows, rows, alone, rounds=4).violated
