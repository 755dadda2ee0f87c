"""Many runs find noise that nodes, coordinates or rounds have in common, and nothing else.

Confidence and power are those of test_audit_online.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from audit_power import gaussian_curve, power
from faulty_mechanisms import CommonToCoordinates, CommonToNodes, CommonToRounds
from scipy import stats

from dpmesh.algorithms import GradientDescent
from dpmesh.audit import GaussianClaim, OneRelease, alone, audit_algorithm, audit_mechanism
from dpmesh.audit.contrast import contrast, observed_numbers
from dpmesh.audit.result import Observations, tell_apart
from dpmesh.audit.transcript import Transcript
from dpmesh.keys import Key
from dpmesh.noise import Gaussian, Sensitivity

SURE = 1 - 1e-3
ONE = Sensitivity(1.0, "l2", "a test")
ALL = [(Gaussian, False), (CommonToNodes, True), (CommonToCoordinates, True)]


def many_runs(pair, runs: int = 700):
    datasets = pair.algorithm, pair.problem, pair.neighbor, alone
    settings = {"rounds": pair.rounds, "delta": 1e-5, "runs": runs, "score": pair.score}
    return audit_algorithm(*datasets, confidence=SURE, key=Key.seeded(1), **settings)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "violated"), [*ALL, (CommonToRounds, True)])
def test_noise_that_is_partly_common_is_found(kind, violated: bool) -> None:
    """With 5% of the variance, a contrast has 4 times the claimed mu, or nearly."""
    assert power(GaussianClaim(2**0.5), gaussian_curve(2.5), 700, SURE) > SURE
    pair, _ = OneRelease(mechanism=kind(1.0), sensitivity=ONE).worst_case(dim=3, canaries=2)
    result = many_runs(pair)
    assert result.violated == violated, str(result)
    assert ("by a contrast" in str(result)) == violated


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "violated"), ALL)
def test_algorithms_are_looked_at_in_the_same_way(kind, violated: bool) -> None:
    @dataclass(frozen=True)
    class Descent(GradientDescent):
        @property
        def mechanism(self):
            return kind(self.noise_to_sensitivity)

    pair, _ = Descent(records=4, noise_multiplier=3.0).worst_case(canaries=2)
    assert many_runs(pair).violated == violated


def test_a_bare_mechanism_is_looked_at_coordinate_by_coordinate() -> None:
    for kind, violated in ((Gaussian, False), (CommonToCoordinates, True)):
        result = audit_mechanism(
            kind(1.0), ONE, dim=3, runs=2_000, confidence=SURE, key=Key.seeded(2)
        )
        assert result.violated == violated, str(result)


def test_a_contrast_has_the_weights_of_fisher() -> None:
    draws = np.random.default_rng(0)
    noise = draws.multivariate_normal([0, 0], [[2.0, 1.0], [1.0, 3.0]], size=(2, 400_000))
    score = contrast(noise[0] + [1.0, -2.0], noise[1])
    np.testing.assert_allclose(score.weights / score.weights[0], [1.0, -1.0], atol=0.02)
    assert score(noise[0] + [1.0, -2.0]).mean() == pytest.approx(0.5)
    assert score(noise[1]).mean() == pytest.approx(-0.5)


def test_numbers_that_tell_nothing_have_no_weight() -> None:
    """Constants, copies, and what no run has; a copy halves the weight of what it repeats."""
    one, other = np.random.default_rng(1).normal(size=(2, 1_000, 1))
    seen = [np.hstack([x, np.full_like(x, 7.0), x, 0 * x]) for x in (one + 1, other)]
    (w,) = contrast(one + 1, other).weights
    np.testing.assert_allclose(contrast(*seen).weights, [w / 2, 0, w / 2, 0], rtol=1e-6)
    assert not contrast(one, one).weights.any()


def test_what_is_seen_has_the_length_that_is_wanted() -> None:
    run = Transcript(received=[np.array([[1.0, np.nan], [3.0, np.inf]])], sent=[np.ones((1, 9))])
    np.testing.assert_array_equal(observed_numbers(run, 3), [1, 0, 3])
    assert observed_numbers(run, 20).tolist()[3:] == [1e100] + 9 * [1] + 7 * [0]
    assert observed_numbers(run, 0).size == 0


@pytest.mark.slow
def test_a_contrast_adds_no_false_alarm() -> None:
    """At the boundary of a claim: 10 numbers, all of which the contrast could overfit.

    At a confidence of 0.8 at most a fifth of 300 audits may be wrong; more than 95 are in one of
    1e6 keys.
    """
    assert stats.binom.sf(95, 300, 0.2) < 1e-6
    draws, mu = np.random.default_rng(2), 0.5

    def look(first: bool) -> Observations:
        numbers = draws.normal(size=(100, 10)) + mu * first / np.sqrt(10)
        return Observations(numbers[:, 0], numbers)

    settings = {"runs": 100, "confidence": 0.8, "subject": "a test"}
    alarms = [tell_apart(GaussianClaim(mu), look, **settings).violated for _ in range(300)]
    assert sum(alarms) <= 95
