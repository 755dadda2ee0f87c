"""Online learning with planted faults, which an audit must flag."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from faulty_mechanisms import HalvedLaplace, SilentLaplace

from dpmesh.algorithms import Message, OnlineLearning
from dpmesh.algorithms.online import OnlineState
from dpmesh.noise import Mechanism, Sensitivity


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


class AddedOneByOne(OnlineLearning):
    """Adds each gradient onto the model, whose type rounds it as often."""

    def _stepped(self, state, b, alpha, problem, examples, radius):
        w = b.copy()
        for records in examples.T[:, :, np.newaxis]:
            g = problem.gradient(b, records, clipping_norm=self.clipping_norm)
            w -= np.float32(alpha / examples.shape[1]) * g
        return w


class HalvedNoise(OnlineLearning):
    """Broadcasts with half of the noise."""

    @property
    def mechanism(self) -> Mechanism:
        return HalvedLaplace(super().mechanism.noise_to_sensitivity)


class NoNoiseDrawn(OnlineLearning):
    """Broadcasts by a mechanism that adds nothing."""

    @property
    def mechanism(self) -> Mechanism:
        return SilentLaplace(super().mechanism.noise_to_sensitivity)


@dataclass(frozen=True)
class OwnStep(OnlineLearning):
    """The online algorithm with a hook for the point that it steps from."""

    def round(self, state, t, problem, key):
        b = yield Message(state.w, self.release_of(t))
        g = problem.gradient(b, problem.batch(t, self.batch_size), clipping_norm=self.clipping_norm)
        w = self.start(state, b, t) - self.step_size(t + 1) * g
        return OnlineState(np.clip(w, -self.radius, self.radius))

    def start(self, state, b, t):
        return b


class UnnoisedRegularizer(OwnStep):
    """Algorithm 2 of the online paper as printed: the gradient of the regularizer is taken at w_t.

    With phi = lambda and steps 1 / (lambda t), a record of the first round costs e epsilon.
    """

    def start(self, state, b, t):
        return b - self.step_size(t + 1) * 1.0 * state.w


class RegularizerAtBroadcasts(OwnStep):
    """`OwnStep` with the gradient of the regularizer at b_t, as it should be."""

    def start(self, state, b, t):
        return b - self.step_size(t + 1) * 1.0 * b


class OwnUnnoisedWeight(OwnStep):
    """Mixes its own parameters without their noise, here with weight 1 / 2; nobody else sends."""

    def start(self, state, b, t):
        return b + 0.5 * (state.w - b)


class PublishesItsState(OnlineLearning):
    """Publishes the learners' own parameters, which have no noise, for what arrived."""

    def published(self, state, received):
        return state.w


class DeclaredPublic(OnlineLearning):
    """Declares that its parameters do not depend on the data."""

    def sensitivity(self, t: int) -> Sensitivity:
        return replace(super().sensitivity(t), bound=0.0)


class SendsAgain(OnlineLearning):
    """Sends its parameters after the step, too, which the plan does not have."""

    def round(self, state, t, problem, key):
        after = yield from super().round(state, t, problem, key)
        yield Message(after.w, replace(self.release_of(t + 1), round=t))
        return after
