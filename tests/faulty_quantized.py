"""Quantized gossip with planted faults, which an audit must flag."""

from __future__ import annotations

from dataclasses import replace

from faulty_mechanisms import HalvedGaussian, SilentGaussian

from dpmesh.algorithms import QuantizedGossip
from dpmesh.privacy import NoNoise


class MissingFactor2(QuantizedGossip):
    """Takes the bound on one clipped gradient for that on the difference of two."""

    def next_sensitivity(self, sensitivity, k):
        halved = QuantizedGossip(**{**vars(self), "clipping_norm": self.clipping_norm / 2})
        return halved.next_sensitivity(sensitivity, k)


class MissingLipschitzTerm(QuantizedGossip):
    """Lemma 2 as printed: common records follow the state, and nobody counts it."""

    def next_sensitivity(self, sensitivity, k):
        printed = QuantizedGossip(**{**vars(self), "mode": "public_point"})
        return printed.next_sensitivity(sensitivity, k)


class HalvedNoise(QuantizedGossip):
    """Adds half of the noise."""

    door = HalvedGaussian

    def mechanism(self, k, sensitivity):
        right = super().mechanism(k, sensitivity)
        if isinstance(right, NoNoise):
            return right
        return self.door(right.noise_multiplier, compressor=right.compressor)


class NoNoiseDrawn(HalvedNoise):
    """Sends its states through a door that adds nothing, but quantized."""

    door = SilentGaussian


class NoClipping(QuantizedGossip):
    """Takes gradients as they come, as in mode "paper"."""

    def absorb(self, state, z, received, k, problem, batches):
        paper = QuantizedGossip(**{**vars(self), "mode": "paper", "smoothness": 1e-9})
        moved = paper.absorb(state, z, received, k, problem, batches)
        return replace(moved, sensitivity=self.next_sensitivity(state.sensitivity, k))


class PastTheDoor(QuantizedGossip):
    """Passes the door, writes that down, and sends its states as they are."""

    def step(self, state, round, problem, exchange, key):
        def state_instead(round, z):
            return exchange(round, state.x)

        return super().step(state, round, problem, state_instead, key)
