"""Federated learning with planted faults, which an audit must flag."""

from __future__ import annotations

from dataclasses import fields, replace

from faulty_mechanisms import HalvedGaussian, SilentGaussian

from dpmesh.algorithms import ClientUpdates, FederatedLearning


class MissingFactor2(FederatedLearning):
    """Takes the bound on one update for that on the difference of two."""

    def sensitivity(self, t):
        return replace(super().sensitivity(t), bound=self.contribution.clipping_norm)


class ByCoordinate(ClientUpdates):
    """Clips each coordinate of an update, in place of its norm."""

    def updates(self, w, cohort, t, problem, key, **options):
        updates = super().updates(w, cohort, t, problem, key, clipping_norm=1e9)
        return updates.clip(-self.clipping_norm, self.clipping_norm)


class CorrectionAfterClipping(ClientUpdates):
    """Corrects a client's clipped update, in place of its gradients."""

    def updates(self, w, cohort, t, problem, key, *, clipping_norm, correction):
        updates = super().updates(w, cohort, t, problem, key, clipping_norm=clipping_norm)
        return updates - self.total_step(t) * correction


class ControlWithoutNoise(FederatedLearning):
    """Gives all clients the mean of their control variates, as without privacy."""

    def round(self, state, t, problem, key):
        after = yield from super().round(state, t, problem, key)
        return replace(after, control=after.controls.mean(axis=0, keepdims=True))


class HalvedNoise(FederatedLearning):
    """Adds half of the noise."""

    @property
    def mechanism(self):
        return HalvedGaussian(super().mechanism.noise_to_sensitivity)


class NoNoiseDrawn(FederatedLearning):
    """Releases the sums by a mechanism that adds nothing."""

    @property
    def mechanism(self):
        return SilentGaussian(super().mechanism.noise_to_sensitivity)


class RealisedBatch(FederatedLearning):
    """Divides by the number of clients that took part, as the paper's Algorithm 1 does."""

    def round(self, state, t, problem, key):
        after = yield from super().round(state, t, problem, key)
        _, took_part = problem.records_of(self.cohort(t, key, problem.nodes))
        update = (after.w - state.w) * (self.expected_size / max(1, len(took_part)))
        return replace(after, w=state.w + update, output=state.w + update)


def with_fault(fault, algorithm):
    """Return the algorithm with a planted fault, in itself or in its contribution."""
    sound = algorithm.contribution if issubclass(fault, ClientUpdates) else algorithm
    planted = fault(**{field.name: getattr(sound, field.name) for field in fields(sound)})
    return replace(algorithm, contribution=planted) if sound is not algorithm else planted
