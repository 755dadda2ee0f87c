"""Federated learning with planted faults, which an audit must flag."""

from __future__ import annotations

from dataclasses import replace

from faulty_mechanisms import HalvedGaussian, SilentGaussian

from dpmesh.algorithms import FederatedLearning


class MissingFactor2(FederatedLearning):
    """Takes the bound on one move for that on the difference of two."""

    @property
    def sensitivity(self):
        return replace(super().sensitivity, bound=self.clipping_norm)


class ByCoordinate(FederatedLearning):
    """Clips each coordinate of a move, in place of its norm."""

    def client_updates(self, w, cohort, t, problem, key):
        loose = replace(self, clipping_norm=1e9)
        moves, losses = FederatedLearning.client_updates(loose, w, cohort, t, problem, key)
        return moves.clip(-self.clipping_norm, self.clipping_norm), losses


class HalvedNoise(FederatedLearning):
    """Adds half of the noise."""

    @property
    def mechanism(self):
        return HalvedGaussian(super().mechanism.noise_multiplier)


class NoNoiseDrawn(FederatedLearning):
    """Lets the sums out through a door that adds nothing."""

    @property
    def mechanism(self):
        return SilentGaussian(super().mechanism.noise_multiplier)


class RealisedBatch(FederatedLearning):
    """Divides by the number of clients that took part, as the paper's Algorithm 1 does."""

    def step(self, state, round, problem, exchange, key):
        after, info = super().step(state, round, problem, exchange, key)
        _, took_part = problem.records_of(self.sample(round, key))
        move = (after.w - state.w) * (self.expected_size / max(1, len(took_part)))
        return replace(after, w=state.w + move), replace(info, received=state.w + move)


class PastTheDoor(FederatedLearning):
    """Lets a noisy sum out, and sends another one besides, without noise."""

    def step(self, state, round, problem, exchange, key):
        moves, _ = self.client_updates(state.w, self.sample(round, key), round, problem, key)
        exchange(round, moves.sum(axis=0, keepdims=True))
        return super().step(state, round, problem, exchange, key)
