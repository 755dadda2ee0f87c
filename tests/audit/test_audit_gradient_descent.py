"""Audits of gradient descent, whose every message depends on every record.

Confidence and power are those of test_audit_online.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from audit_power import gaussian_curve, power
from faulty_mechanisms import HalvedGaussian

from dpmesh.algorithms import GradientDescent, Message
from dpmesh.algorithms.gradient_descent import GradientDescentState
from dpmesh.audit import GaussianClaim, alone, audit_layers, couple
from dpmesh.keys import Key

SURE = 1 - 1e-3


class HalvedNoise(GradientDescent):
    """Adds half of the noise."""

    @property
    def mechanism(self):
        return HalvedGaussian(super().mechanism.noise_to_sensitivity)


class MissingFactor2(GradientDescent):
    """Takes the bound on one clipped gradient for that on the difference of two."""

    def sensitivity(self, t):
        right = super().sensitivity(t)
        return replace(right, bound=right.bound / 2)


class ByCoordinate(GradientDescent):
    """Clips each coordinate of a gradient, in place of its norm."""

    def round(self, state, t, problem, key):
        b = yield Message(state.x, self.release_of(t))
        everyone = problem.full_batches[1].reshape(problem.nodes, -1)
        indptr = np.arange(problem.nodes + 1)
        gradients = [problem.gradient(b, (indptr, record)) for record in everyone.T]
        g = np.clip(gradients, -self.clipping_norm, self.clipping_norm).mean(axis=0)
        return GradientDescentState(b - self.step_size(t + 1) * g)


@pytest.mark.parametrize("dim", [1, 7])
def test_every_message_moves_as_far_as_it_may(dim: int) -> None:
    algorithm = GradientDescent(records=4, noise_multiplier=4.0)
    pair, _ = algorithm.worst_case(rounds=5, dim=dim)
    coupling = couple(algorithm, pair.problem, pair.neighbor, alone, rounds=5)
    assert not coupling.violated, str(coupling)
    for movement in coupling.movements[1:]:
        assert movement.distance == pytest.approx(movement.allowed, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "violated"),
    [
        (GradientDescent, (False, False, False)),
        (MissingFactor2, (True, True, True)),
        (HalvedNoise, (False, True, True)),
        (ByCoordinate, (True, True, False)),
    ],
)
def test_layers_tell_right_from_wrong(kind, violated: tuple[bool, ...]) -> None:
    """At mu = 1, or 2 in truth; 20,000 canaries show that in one run with 99% confidence."""
    assert power(GaussianClaim(1.0), gaussian_curve(2.0), 400, SURE) > SURE
    algorithm = kind(records=4, noise_multiplier=2 * (2**0.5))
    case = algorithm.worst_case(canaries=20_000)
    results = list(audit_layers(*case, runs=400, confidence=0.99, key=Key.seeded(1)))
    assert tuple(result.violated for result in results) == violated
    assert all(result.claim.level == pytest.approx(1.0) for result in results[1:])
