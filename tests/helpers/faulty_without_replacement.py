"""SGD without replacement with planted faults, which an audit must flag."""

from __future__ import annotations

import numpy as np
from faulty_mechanisms import HalvedGaussian, SilentGaussian

from dpmesh.algorithms import WithoutReplacement
from dpmesh.algorithms.controllers import AlwaysGlobal


class MissingFactor2(WithoutReplacement):
    """Takes the bound on one gradient for that on the difference of two."""

    def _lemma4(self, problem, largest_step):
        return super()._lemma4(problem, largest_step) / 2


class ExpandingSteps(WithoutReplacement):
    """Forgets the condition of Lemma 4 on the step sizes, as the paper's experiments do."""

    def _lemma4(self, problem, largest_step):
        lipschitz = problem.model_constants(self.radius).loss_lipschitz
        return 2 * largest_step * lipschitz / self.batch_size


class NoProjection(WithoutReplacement):
    """Lets models leave the ball in which gradients are bounded."""

    def _projected(self, w):
        return w


class HalvedNoise(WithoutReplacement):
    """Adds half of the noise."""

    @property
    def mechanism(self):
        return HalvedGaussian(super().mechanism.noise_to_sensitivity)


class NoNoiseDrawn(WithoutReplacement):
    """Releases the models by a mechanism that adds nothing."""

    @property
    def mechanism(self):
        return SilentGaussian(super().mechanism.noise_to_sensitivity)


class PublishesALocalModel(WithoutReplacement):
    """Publishes a node's local models for the global ones."""

    def published(self, state, received):
        return state.local[0].reshape(1, -1)


class Telltale(AlwaysGlobal):
    """A controller whose decisions depend on private data: global as soon as the model is up."""

    public = False

    def decide(self, state, observation, round, key):
        up = observation.local_models.sum(axis=-1) > 0
        return up & observation.acting[:, np.newaxis], None
