"""Coupled runs compare what is planned, released, published and sent.

Faults of whole algorithms are in test_audit_online.py and its likes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from faulty_mechanisms import Antithetic, ForgetsTheNode, ForgetsTheRound, SilentGaussian

from dpmesh import topology
from dpmesh.algorithms import Algorithm, Message, Relay
from dpmesh.audit import alone, couple
from dpmesh.audit.mechanism import OneRelease
from dpmesh.keys import Key
from dpmesh.noise import Gaussian, Laplace, Sensitivity
from dpmesh.privacy import Release


@dataclass(frozen=True)
class Sum(Algorithm):
    """Releases the sum of its numbers, each between 0 and 1."""

    noise_to_sensitivity: float = 1.0
    communication: ClassVar = "server"
    sensitivity: ClassVar = Sensitivity(1.0, "l2", "numbers between 0 and 1")

    def mechanism(self):
        return Gaussian(self.noise_to_sensitivity)

    def release_of(self, t):
        return Release(t, self.mechanism(), self.sensitivity)

    def init(self, problem, key):
        return None

    def round(self, state, t, problem, key):
        yield Message(np.array([[problem.sum()]]), self.release_of(t), copies=1)

    def parameters(self, state):
        return np.zeros((1, 1))


class SumByItsData(Sum):
    """Releases with a noise that depends on the data."""

    def round(self, state, t, problem, key):
        other = Gaussian(1.0 + abs(problem).max())
        yield Message(np.array([[problem.sum()]]), Release(t, other, self.sensitivity))


class SumTwice(Sum):
    """Releases twice, and plans one."""

    def round(self, state, t, problem, key):
        for _ in range(2):
            yield from super().round(state, t, problem, key)


class SumPublished(Sum):
    """Publishes its numbers without noise."""

    def round(self, state, t, problem, key):
        yield from super().round(state, t, problem, key)
        return problem[None, :]

    def published(self, state, received):
        return state


class SumDeclaredPublic(Sum):
    """Declares that its numbers do not depend on the data."""

    sensitivity: ClassVar = Sensitivity(0.0, "l2", "nobody's numbers")


class SumOnDemand(Sum):
    """Sends what it received once more if its data ask for it."""

    def round(self, state, t, problem, key):
        yield from super().round(state, t, problem, key)
        if problem[0] > 0:
            yield Relay()


class SumReleasedOnDemand(Sum):
    """Releases if its data ask for it."""

    def round(self, state, t, problem, key):
        if problem[0] > 0:
            yield from super().round(state, t, problem, key)


class SumOfBatches(Sum):
    """Releases the number of one record a round, in whatever order."""

    batches: ClassVar = (1, 0)

    def release_of(self, t):
        return replace(super().release_of(t), batch=t)

    def round(self, state, t, problem, key):
        batch = self.batches[t]
        yield Message(problem[[[batch]]], replace(self.release_of(t), batch=batch))


class SumOfOneBatch(SumOfBatches):
    """Takes the same record twice, where the plan has each of them once."""

    batches = (0, 0)


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        (Sum, []),
        (SumByItsData, ["the first run made 2 releases that were not planned"]),
        (
            SumTwice,
            [
                "the first run made 2 releases that were not planned",
                "all releases together: mu = 2, planned is 1.41422",
            ],
        ),
        (SumOfBatches, []),
        (
            SumOfOneBatch,
            [
                "the first run made 1 releases that were not planned",
                "the second run made 1 releases that were not planned",
            ],
        ),
        (SumPublished, ["what round 0 published depends on data beyond its releases"]),
        (SumDeclaredPublic, ["round 0: moved by 1, allowed is 0 (nobody's numbers)"]),
        (SumOnDemand, ["round 0: the length of messages depends on data"]),
        (
            SumReleasedOnDemand,
            [
                "2 releases on the one data, 0 on the other",
                "2 rounds published on the one data, 0 on the other",
            ],
        ),
    ],
)
def test_coupling_compares_what_is_planned_released_and_sent(kind, faults: list[str]) -> None:
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
            return Short(self.noise_to_sensitivity)

    problem, other = np.array([1.0, 0.3]), np.array([0.0, 0.3])
    coupling = couple(ShortSum(), problem, other, alone, rounds=1, key=Key.seeded(0))
    assert coupling.faults == (
        "round 0: moved by 1, allowed is 0.5 (numbers between 0 and 1)",
        "all releases together: mu = 2, planned is 1",
    )


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="rounds: wanted an integer of at least 1, got 0"):
        couple(Sum(), np.zeros(1), np.zeros(1), alone, rounds=0)
    with pytest.raises(ValueError, match=r"carrier: wanted a carrier of messages, such .*Static"):
        couple(Sum(), np.zeros(1), np.zeros(1), topology.complete(2), rounds=1)


ONE = Sensitivity(1.0, "l2", "a test")


@pytest.mark.parametrize(
    ("mechanism", "fault"),
    [
        (ForgetsTheRound, "have the noise of another"),
        (ForgetsTheNode, "have the noise of another"),
        (Antithetic, "have the noise of another"),
        (SilentGaussian, "round 1: released without its noise"),
    ],
)
def test_noise_that_is_missing_or_shared_is_found(mechanism, fault: str) -> None:
    rows = np.zeros((2, 4))
    algorithm = OneRelease(mechanism=mechanism(2.0), sensitivity=ONE)
    assert fault in str(couple(algorithm, rows, rows, alone, rounds=2, key=Key.seeded(0)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "mechanism", [Gaussian(2.0), Laplace(2.0), Gaussian(2.0, grid=2.0**-6), Laplace(2.0, grid=0.25)]
)
def test_noise_that_meets_by_chance_is_no_fault(mechanism, dtype) -> None:
    rows = np.full((50, 100), 1000.0, dtype)
    assert not couple(
        OneRelease(mechanism=mechanism, sensitivity=ONE), rows, rows, alone, rounds=4
    ).violated
