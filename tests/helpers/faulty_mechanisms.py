"""Mechanisms with planted faults, which an audit must flag."""

from __future__ import annotations

import numpy as np

from dpmesh.noise import Gaussian, Laplace


class HalvedLaplace(Laplace):
    """Draws half of the noise that it says."""

    def _add_noise(self, values, scale, stream):
        return super()._add_noise(values, scale / 2, stream)


class HalvedGaussian(Gaussian):
    """Draws half of the noise that it says."""

    def _add_noise(self, values, scale, stream):
        return super()._add_noise(values, scale / 2, stream)


class SilentLaplace(Laplace):
    """Draws no noise at all."""

    def _add_noise(self, values, scale, stream):
        return values.copy()


class SilentGaussian(Gaussian):
    """Draws no noise at all."""

    def _add_noise(self, values, scale, stream):
        return values.copy()


class ForgetsTheRound(Gaussian):
    """Draws the same noise in every round, as a generator with a seed of its own does."""

    def _add_noise(self, values, scale, stream):
        return values + scale * np.random.default_rng(0).normal(size=values.shape)


class ForgetsTheNode(Gaussian):
    """Draws the noise of one node, and gives it to all."""

    def _add_noise(self, values, scale, stream):
        return values + super()._add_noise(np.zeros_like(values), scale, stream)[:1]


class Antithetic(Gaussian):
    """Draws noise for the first half of a row, and takes the negative for the second."""

    def _add_noise(self, values, scale, stream):
        half = super()._add_noise(np.zeros_like(values), scale, stream)[:, ::2]
        return values + np.concatenate([half, -half], axis=1)


class CommonToNodes(Gaussian):
    """Takes 95% of the variance of its noise from one row, for all nodes."""

    def _add_noise(self, values, scale, source):
        independent = super()._add_noise(np.zeros_like(values), scale, source)
        common = self._common(independent, source.stream.round).normal(
            scale=scale, size=independent.shape
        )
        return values + np.sqrt(0.05) * independent + np.sqrt(0.95) * self._shared(common)

    def _common(self, independent, round):
        """Return a generator that differs in each call."""
        return np.random.default_rng(list(independent.tobytes()))

    def _shared(self, noise):
        return noise[:1]


class CommonToCoordinates(CommonToNodes):
    """Takes 95% of the variance of its noise from one column, for all coordinates."""

    def _shared(self, noise):
        return noise[:, :1]


class CommonToRounds(CommonToNodes):
    """Takes 95% of the variance of its noise from a generator that begins anew in every round."""

    seed = 0

    def _common(self, independent, round):
        if round == 0:
            CommonToRounds.seed = list(independent.tobytes())
        return np.random.default_rng(CommonToRounds.seed)

    def _shared(self, noise):
        return noise
