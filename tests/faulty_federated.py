"""Federated learning with planted faults, which an audit must flag."""

from __future__ import annotations

from dataclasses import replace

from faulty_mechanisms import HalvedGaussian, SilentGaussian

from dpmesh.algorithms import FederatedLearning


class MissingFactor2(FederatedLearning):
    """Takes the bound on one update for that on the difference of two."""

    def sensitivity(self, t):
        return replace(super().sensitivity(t), bound=self.clipping_norm)


class ByCoordinate(FederatedLearning):
    """Clips each coordinate of an update, in place of its norm."""

    def client_updates(self, w, cohort, t, problem, key, **options):
        loose = replace(self, clipping_norm=1e9)
        updates = FederatedLearning.client_updates(loose, w, cohort, t, problem, key)
        return updates.clip(-self.clipping_norm, self.clipping_norm)


class CorrectionAfterClipping(FederatedLearning):
    """Corrects a client's clipped update, in place of its gradients."""

    def client_updates(self, w, cohort, t, problem, key, *, clipping_norm, correction):
        updates = super().client_updates(w, cohort, t, problem, key, clipping_norm=clipping_norm)
        return updates - self.local_distance(t) * correction


class ControlWithoutNoise(FederatedLearning):
    """Gives all clients the mean of their control variates, as without privacy."""

    def round(self, state, t, problem, key):
        after = yield from super().round(state, t, problem, key)
        return replace(after, control=after.controls.mean(axis=0, keepdims=True))


class HalvedNoise(FederatedLearning):
    """Adds half of the noise."""

    @property
    def mechanism(self):
        return HalvedGaussian(super().mechanism.noise_multiplier)


class NoNoiseDrawn(FederatedLearning):
    """Releases the sums by a mechanism that adds nothing."""

    @property
    def mechanism(self):
        return SilentGaussian(super().mechanism.noise_multiplier)


class RealisedBatch(FederatedLearning):
    """Divides by the number of clients that took part, as the paper's Algorithm 1 does."""

    def round(self, state, t, problem, key):
        after = yield from super().round(state, t, problem, key)
        _, took_part = problem.records_of(self.sample(t, key))
        update = (after.w - state.w) * (self.expected_size / max(1, len(took_part)))
        return replace(after, w=state.w + update)
