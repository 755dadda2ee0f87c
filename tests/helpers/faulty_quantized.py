"""Quantized gossip with planted faults, which an audit must flag."""

from __future__ import annotations

from dataclasses import fields

from faulty_mechanisms import HalvedGaussian, SilentGaussian

from dpmesh.algorithms import QuantizedGossip


class MissingFactor2(QuantizedGossip):
    """Takes the bound on one clipped gradient for that on the difference of two."""

    def next_sensitivity(self, sensitivity, k):
        halved = QuantizedGossip(**{**vars_of(self), "clipping_norm": self.clipping_norm / 2})
        return halved.next_sensitivity(sensitivity, k)


class MissingLipschitzTerm(QuantizedGossip):
    """Lemma 2 as printed: common records follow the state, and nobody counts it."""

    def next_sensitivity(self, sensitivity, k):
        printed = QuantizedGossip(**{**vars_of(self), "mode": "public_point"})
        return printed.next_sensitivity(sensitivity, k)


class HalvedNoise(QuantizedGossip):
    """Adds half of the noise."""

    kind = HalvedGaussian

    def mechanism_of(self, t):
        right = super().mechanism_of(t)
        return right if right.name == "none" else self.kind(right.noise_to_sensitivity)


class NoNoiseDrawn(HalvedNoise):
    """Sends its states by a mechanism that adds nothing, but quantized."""

    kind = SilentGaussian


class NoClipping(QuantizedGossip):
    """Takes gradients as they come, as in mode "paper"."""

    def round(self, state, t, problem, key):
        requests = QuantizedGossip(**{**vars_of(self), "clipping_norm": 1e9}).round(
            state, t, problem, key
        )
        message = next(requests)._replace(release=self.release_of(t))
        try:
            requests.send((yield message))
        except StopIteration as end:
            return end.value


class PublishesItsState(QuantizedGossip):
    """Publishes the states, which have no noise, for what arrived."""

    def published(self, state, received):
        return state.x


def vars_of(algorithm):
    """Return the parameters of an algorithm."""
    return {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
