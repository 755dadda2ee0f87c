"""An algorithm of a user's own that steps in place touches nothing that was released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.algorithms import Info, Travel
from dpmesh.keys import Purpose
from dpmesh.privacy import Gaussian, Plan, Sensitivity

PRIVATE = 7.0


@dataclass(frozen=True)
class Steps:
    """Node i releases its state, at first without noise; then it steps by PRIVATE."""

    travels: ClassVar[Travel] = "gossip"

    def sensitivity(self, t: int) -> Sensitivity:
        return Sensitivity(min(t, 1) * PRIVATE, "l2", "one step")

    def plan(self, rounds: int) -> Plan:
        planned = (Gaussian(1.0).planned(t, self.sensitivity(t)) for t in range(rounds))
        return Plan(tuple(planned), "replace_one", "record")

    def init(self, problem: Any, key: dm.Key) -> Any:
        return np.zeros((problem.nodes, 3))

    def step(self, state: Any, t: int, problem: Any, exchange: Any, key: dm.Key) -> Any:
        noise = key.stream(Purpose.NOISE, t)
        sent, release, bits = Gaussian(1.0).release(state, self.sensitivity(t), noise, round=t)
        received = exchange(t, sent)
        messages = None if self.travels == "gossip" else problem.nodes
        info = Info((release,), bits, received, messages=messages)
        return self.absorb(state, sent, received), info

    def absorb(self, state: Any, sent: Any, received: Any) -> Any:
        return received + PRIVATE

    def parameters(self, state: Any) -> Any:
        return state


class FromReceived(Steps):
    def absorb(self, state: Any, sent: Any, received: Any) -> Any:
        received += PRIVATE
        return received


class FromSent(Steps):
    def absorb(self, state: Any, sent: Any, received: Any) -> Any:
        sent += PRIVATE
        return sent


class FromState(Steps):
    def absorb(self, state: Any, sent: Any, received: Any) -> Any:
        state += PRIVATE
        return state


def by_server(kind: type[Steps]) -> Steps:
    return type("ByServer", (kind,), {"travels": "server"})()


def released(algorithm: Steps, rounds: int) -> Any:
    rng = np.random.default_rng(0)
    records = dm.Dataset(rng.normal(size=(4, 3)), np.array([1, -1, 1, -1]))
    problem = dm.LinearProblem(records, np.split(np.arange(4), 2), "logistic")
    topology = dm.topology.complete(2) if algorithm.travels == "gossip" else None
    key = dm.Key.seeded(1)
    return dm.simulate(algorithm, problem, topology, rounds=rounds, key=key, metrics=[]).released


@pytest.mark.parametrize("kind", [FromReceived, FromSent])
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_step_in_what_was_released_is_refused(kind: type[Steps], rounds: int) -> None:
    """What the run calls released would be the state without noise."""
    for algorithm in (kind(), by_server(kind)):
        with pytest.raises(ValueError, match="read-only"):
            released(algorithm, rounds)


def test_a_step_in_the_own_state_moves_nothing_that_was_released() -> None:
    for algorithm in (FromState(), by_server(FromState)):
        np.testing.assert_array_equal(released(algorithm, 1), 0.0)
