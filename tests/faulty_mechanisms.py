"""Mechanisms with planted faults, which an audit must flag."""

from __future__ import annotations

from dpmesh.privacy import Gaussian, Laplace


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
