"""What algorithms of a user's own send and call received has its noise, which nobody knows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from unguarded import unguarded

import dpmesh as dm
from dpmesh.algorithms import Info, Travel
from dpmesh.keys import Key, Purpose
from dpmesh.privacy import Gaussian, Plan, Sensitivity
from dpmesh.privacy.compression import Quantizer

GIVEN = "wanted the values that a release returned, got those that it was given"
FOLLOWS = "wanted what the exchange returned, or a copy of what follows from that alone"
ONE = Sensitivity(1.0, "l2", "a test")


@dataclass(frozen=True)
class Steps:
    """A node releases its state and steps from what it receives."""

    travels: ClassVar[Travel] = "gossip"

    def plan(self, rounds: int) -> Plan:
        planned = (Gaussian(1.0).planned(t, ONE) for t in range(rounds))
        return Plan(tuple(planned), "replace_one", "record")

    def init(self, problem: Any, key: Key) -> Any:
        return problem.zeros()

    def key(self, key: Key) -> Key:
        return key

    def sent(self, state: Any, released: Any) -> Any:
        return released

    def told(self, state: Any, received: Any, after: Any) -> Any:
        return received

    def step(self, state: Any, t: int, problem: Any, exchange: Any, key: Key) -> Any:
        noise = self.key(key).stream(Purpose.NOISE, t)
        values, release, bits = Gaussian(1.0).release(state, ONE, noise, round=t)
        received = exchange(t, self.sent(state, values))
        after = received + 7.0
        return after, Info((release,), bits, self.told(state, received, after))

    def parameters(self, state: Any) -> Any:
        return state


class SendsItsState(Steps):
    def sent(self, state: Any, released: Any) -> Any:
        return state


class SendsPartOfIt(Steps):
    def sent(self, state: Any, released: Any) -> Any:
        return state[:, ::2]


class SendsSmoothed(Steps):
    """Whatever is computed from a release is one."""

    def sent(self, state: Any, released: Any) -> Any:
        return dm.kernels.smooth(released, 1.0)


class TellsItsState(Steps):
    def told(self, state: Any, received: Any, after: Any) -> Any:
        return state


class TellsItsNextState(Steps):
    def told(self, state: Any, received: Any, after: Any) -> Any:
        return after


class TellsItsStateReadOnly(Steps):
    """As an array of JAX, which nobody can write to."""

    def told(self, state: Any, received: Any, after: Any) -> Any:
        state.setflags(write=False)
        return state


class StepsInWhatItReceived(Steps):
    """As PyTorch does with an array of numpy, whether or not it may be written to."""

    def step(self, state: Any, *arguments: Any) -> Any:
        _, info = super().step(state, *arguments)
        after: Any = unguarded(info.received)
        after += 7.0
        return after, info


class TellsACopy(Steps):
    """What is computed from messages alone may be told, as a copy."""

    def told(self, state: Any, received: Any, after: Any) -> Any:
        return after.copy()


class OwnKey(Steps):
    def key(self, key: Key) -> Key:
        return Key.seeded(3)


class SendsItsColumns(SendsItsState):
    """Has them one after another, where a release copies."""

    def step(self, state: Any, *arguments: Any) -> Any:
        return super().step(np.asfortranarray(state), *arguments)


class BesideEachOther(Steps):
    """Keeps what it received beside its models, in one array."""

    def init(self, problem: Any, key: Key) -> Any:
        return np.zeros((problem.nodes, 2, problem.dim))

    def step(self, state: Any, t: int, problem: Any, exchange: Any, key: Key) -> Any:
        after, info = super().step(self.parameters(state), t, problem, exchange, key)
        both = np.stack([after, info.received], axis=1)
        return both, replace(info, received=both[:, 1])

    def parameters(self, state: Any) -> Any:
        return state[:, 0]


class PublicCoins(Steps):
    """What noise protects may be compressed by coins that everybody knows."""

    def step(self, state: Any, t: int, problem: Any, exchange: Any, key: Key) -> Any:
        noise, coins = key.stream(Purpose.NOISE, t), Key.seeded(3).stream(Purpose.QUANTIZE, t)
        mechanism = Gaussian(1.0, compressor=Quantizer(0.5))
        values, release, bits = mechanism.release(state, ONE, noise, round=t, coins=coins)
        received = exchange(t, values)
        return received, Info((release,), bits, received)


def simulate(algorithm: Steps, key: Key) -> dm.Run:
    rng = np.random.default_rng(0)
    records = dm.Dataset(rng.normal(size=(4, 3)), np.array([1, -1, 1, -1]))
    problem = dm.LinearProblem(records, np.split(np.arange(4), 2), "logistic")
    return dm.simulate(algorithm, problem, dm.topology.complete(2), rounds=2, key=key, metrics=[])


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (SendsItsState(), f"messages: {GIVEN}"),
        (SendsPartOfIt(), f"messages: {GIVEN}"),
        (SendsItsColumns(), f"messages: {GIVEN}"),
        (TellsItsState(), f"received: {GIVEN}"),
        (TellsItsStateReadOnly(), f"received: {GIVEN}"),
        (TellsItsNextState(), f"received: {FOLLOWS}, got the nodes' own parameters"),
        (StepsInWhatItReceived(), f"received: {FOLLOWS}, got the nodes' own parameters"),
    ],
)
def test_values_from_before_their_noise_are_refused(algorithm: Steps, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(algorithm, Key.seeded(1))


@pytest.mark.parametrize("algorithm", [SendsSmoothed(), TellsACopy(), BesideEachOther()])
def test_what_is_computed_from_releases_travels_and_is_told(algorithm: Steps) -> None:
    assert simulate(algorithm, Key.seeded(1)).privacy.releases == 2


def test_noise_of_a_seeded_key_is_refused_where_the_report_would_hide_it() -> None:
    assert any("seed" in said for said in simulate(OwnKey(), Key.seeded(1)).privacy.assumptions)
    with pytest.raises(
        ValueError, match="stream: wanted one of the run's key, got one of a seeded"
    ):
        simulate(OwnKey(), Key.generate())
    simulate(PublicCoins(), Key.generate())
