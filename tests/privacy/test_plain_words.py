"""What an epsilon means for a person: bounds beside the tests that attain them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

import dpmesh as dm
from dpmesh.accounting import analytic_gaussian_noise_to_sensitivity
from dpmesh.privacy.plain_words import found_at, plain_words, right_guesses


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 12.0])
def test_randomized_response_attains_the_bounds_and_gaussian_noise_does_not(epsilon: float) -> None:
    expected = np.exp(epsilon) / (1 + np.exp(epsilon))
    assert right_guesses(epsilon) == pytest.approx(expected)
    assert found_at(1 - expected, epsilon) == pytest.approx(expected)
    assert found_at(0.0, epsilon) == 0.0
    mu = 1 / analytic_gaussian_noise_to_sensitivity(target_epsilon=epsilon, target_delta=1e-5)
    assert norm.cdf(mu / 2) <= right_guesses(epsilon, 1e-5)
    for a in (1e-6, 0.01, 0.5):
        assert norm.cdf(norm.ppf(a) + mu) <= found_at(a, epsilon, 1e-5) + 1e-12


def test_a_board_reads_numbers_and_what_is_not_covered() -> None:
    text = plain_words(2.0, 1e-5, "the server")
    for said in ("at most 88.1 of 100", "7.4 in 100", "Threat model: the server", "epsilon = 2,"):
        assert said in text
    assert right_guesses(np.inf) == found_at(0.01, np.inf) == 1.0
    with pytest.raises(ValueError, match="epsilon: wanted"):
        plain_words(-1.0, 0.0, "")


@pytest.mark.parametrize("seeded", [False, True])
def test_the_words_of_a_fit_say_that_seeded_noise_is_not_private(seeded: bool) -> None:
    pytest.importorskip("sklearn")
    from dpmesh.sklearn.report import FitReport

    plan = dm.GradientDescent(records=400, noise_multiplier=8.0).plan(5)
    fit = FitReport(
        estimator="PrivateClassifier()",
        sites=3,
        records=400,
        algorithm="GradientDescent",
        topology="None",
        rounds=5,
        megabytes=1.0,
        privacy=dm.privacy.report(plan, 1e-5, seeded=seeded),
        threat_model="the server",
    )
    assert fit.plain_words.startswith("NOT private: the noise is seeded") == seeded
    assert "What this means for one person" in fit.plain_words
