"""Online learning with planted faults, which an audit must flag."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from faulty_mechanisms import HalvedLaplace, SilentLaplace

from dpmesh.algorithms import Info, OnlineLearning
from dpmesh.algorithms.online import OnlineState
from dpmesh.keys import Key
from dpmesh.privacy import Mechanism, Sensitivity
from dpmesh.privacy.mechanisms import Emission


class MissingFactor2(OnlineLearning):
    """Takes one clipped subgradient for the difference of two."""

    def sensitivity(self, t: int) -> Sensitivity:
        two = super().sensitivity(t)
        return replace(two, bound=two.bound / 2)


class ByCoordinate(OnlineLearning):
    """Clips each coordinate of a subgradient, in place of its norm."""

    def _stepped(self, state, b, alpha, problem, examples, radius):
        g = problem.gradient(b, examples).clip(-self.clipping_norm, self.clipping_norm)
        return b - alpha * g


class HalvedNoise(OnlineLearning):
    """Broadcasts with half of the noise."""

    @property
    def mechanism(self) -> Mechanism:
        return HalvedLaplace(super().mechanism.noise_multiplier)


class NoNoiseDrawn(OnlineLearning):
    """Broadcasts through a door that adds nothing."""

    @property
    def mechanism(self) -> Mechanism:
        return SilentLaplace(super().mechanism.noise_multiplier)


class TellsLess(OnlineLearning):
    """Leaves out of the ledger what it released."""

    def step(self, state, round, problem, exchange, key):
        after, info = super().step(state, round, problem, exchange, key)
        return after, replace(info, releases=())


class SendsMore(OnlineLearning):
    """Sends the models besides what it released."""

    def step(self, state, round, problem, exchange, key):
        after, info = super().step(state, round, problem, exchange, key)
        return after, replace(info, received=exchange(round, after.w))


@dataclass(frozen=True)
class OwnStep(OnlineLearning):
    """The online algorithm with a hook for what it sends and for the point that it steps from."""

    def step(self, state: OnlineState, round: int, problem, exchange, key: Key):
        emission = self.emit(state, round, key)
        b = exchange(round, self.message(state, emission))
        g = problem.gradient(
            b, problem.batch(round, self.batch_size), clipping_norm=self.clipping_norm
        )
        w = self.start(state, b, emission, round) - self.step_size(round + 1) * g
        info = Info((emission.release,), emission.bits_per_node, b)
        return OnlineState(np.clip(w, -self.radius, self.radius)), info

    def message(self, state: OnlineState, emission: Emission):
        return emission.values

    def start(self, state: OnlineState, b, emission: Emission, t: int):
        return b


class UnnoisedRegularizer(OwnStep):
    """Algorithm 2 of the online paper as printed: the gradient of the regularizer is taken at w_t.

    With phi = lambda and steps 1 / (lambda t), a record of the first round costs e epsilon.
    """

    def start(self, state, b, emission, t):
        return b - self.step_size(t + 1) * 1.0 * state.w


class RegularizerAtBroadcasts(OwnStep):
    """The same, corrected: the gradient of the regularizer is taken at b_t."""

    def start(self, state, b, emission, t):
        return b - self.step_size(t + 1) * 1.0 * b


class OwnUnnoisedWeight(OwnStep):
    """Mixes its own parameters without their noise, here with weight 1 / 2."""

    def start(self, state, b, emission, t):
        return b + 0.5 * (state.w - emission.values)


class PastTheDoor(OwnStep):
    """Passes the door, writes that down, and sends its parameters as they are."""

    def message(self, state, emission):
        return state.w.copy()
