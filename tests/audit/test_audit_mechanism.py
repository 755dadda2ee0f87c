"""The audit of bare mechanisms: halved noise is flagged, what is right is left alone.

The confidence is 1 - 1e-4, so that a right mechanism is flagged under at most one key in 10,000;
the keys are fixed, and were not chosen.
"""

from __future__ import annotations

import numpy as np
import pytest
from faulty_mechanisms import HalvedGaussian, HalvedLaplace, SilentLaplace
from refused import refused
from scipy.stats import laplace, norm

from dpmesh.audit import EpsilonClaim, GaussianClaim, audit_mechanism, claim_of
from dpmesh.audit.scores import log_likelihood_ratio
from dpmesh.keys import Key
from dpmesh.noise import Gaussian, Laplace, NoNoise, Sensitivity
from dpmesh.privacy import Plan, Release

SURE = 1 - 1e-4
ONE = Sensitivity(1.0, "l2", "a test")


@pytest.mark.parametrize(
    ("mechanism", "fault"),
    [(Laplace, HalvedLaplace), (Laplace, SilentLaplace), (Gaussian, HalvedGaussian)],
)
@pytest.mark.parametrize("noise_to_sensitivity", [0.7, 1.0, 2.0])
def test_halved_noise_is_measured(mechanism, fault, noise_to_sensitivity: float) -> None:
    right, wrong = (
        audit_mechanism(
            kind(noise_to_sensitivity),
            ONE,
            delta=1e-5,
            confidence=SURE,
            runs=20_000,
            key=Key.seeded(1),
        )
        for kind in (mechanism, fault)
    )
    level = 1 / noise_to_sensitivity
    assert right.claim.level == pytest.approx(level)
    assert not right.violated
    assert 0.8 * level < right.lower_bound <= level
    assert wrong.violated
    assert wrong.lower_bound > 1.7 * level


@pytest.mark.parametrize("mechanism", [Laplace, Gaussian])
@pytest.mark.parametrize("dim", [1, 3])
def test_replacing_a_clipped_row_needs_twice_the_clipping_norm(mechanism, dim: int) -> None:
    clipping = mechanism(1.0, clipping_norm=1.0)
    row = np.eye(dim)[0] * 5.0  # clipped to 1
    for moved, violated in ((2.0, False), (1.0, True)):
        result = audit_mechanism(
            clipping,
            Sensitivity(moved, clipping.norm, "of clipped rows"),
            pair=(row, -row),
            runs=20_000,
            confidence=SURE,
            key=Key.seeded(2),
        )
        assert result.violated == violated, str(result)


@pytest.mark.parametrize(("kind", "law"), [("l1", laplace), ("l2", norm)])
def test_the_score_is_the_logarithm_of_the_ratio_of_densities(kind, law) -> None:
    values, one, other = np.random.default_rng(0).normal(size=(3, 4, 5))
    ratio = (law.logpdf(values, one, 3.0) - law.logpdf(values, other, 3.0)).sum(axis=1)
    exact = log_likelihood_ratio(values, one, other, kind, 3.0, every_bit=True)
    np.testing.assert_allclose(exact, ratio, rtol=1e-12)
    rounded = log_likelihood_ratio(values, one, other, kind, 3.0)
    np.testing.assert_array_equal(rounded, exact.round(5))


def test_the_diagonal_is_worst_for_laplace_noise_and_an_l2_distance() -> None:
    """Laplace noise for an L1 distance, given an L2 one, is short by sqrt(dim)."""
    l1 = Sensitivity(1.0, "l1", "taken for an L2 distance")
    diagonal = np.full(9, 1 / 6)
    result = audit_mechanism(
        Laplace(2.0), l1, pair=(diagonal, -diagonal), confidence=SURE, key=Key.seeded(3)
    )
    assert result.violated
    assert not audit_mechanism(
        Laplace(2.0), ONE, dim=9, confidence=SURE, key=Key.seeded(3)
    ).violated


def test_every_bit_of_floating_point_noise_says_more_than_is_claimed() -> None:
    """Why the score is rounded, and what noise on a grid is for."""
    noise = {"runs": 20_000, "confidence": SURE, "key": Key.seeded(12)}
    assert not audit_mechanism(Laplace(1.0), ONE, **noise).violated
    assert audit_mechanism(Laplace(1.0), ONE, every_bit=True, **noise).lower_bound > 3.0


@pytest.mark.parametrize("pair", [None, ([0.6], [-0.4])])
@pytest.mark.parametrize("mechanism", [Laplace, Gaussian])
def test_no_bit_of_noise_on_a_grid_says_more_than_is_claimed(mechanism, pair) -> None:
    result = audit_mechanism(
        mechanism(1.0, grid=2.0**-10),
        ONE,
        pair=pair,
        runs=20_000,
        delta=1e-5,
        confidence=SURE,
        every_bit=True,
        key=Key.seeded(13),
    )
    assert not result.violated, str(result)


def test_a_claim_is_gaussian_if_all_noise_is() -> None:
    nothing = Sensitivity(0.0, "l2", "does not depend on the data")
    first, second = Release(0, Gaussian(5.0), nothing), Release(1, Gaussian(4.0), ONE)
    third = Release(2, Laplace(2.0), ONE)
    claim = claim_of(
        Plan(releases=(first, second, second), neighboring_relation="replace_one", unit="record"),
        1e-5,
    )
    assert isinstance(claim, GaussianClaim)
    assert claim.mu == pytest.approx(8**-0.5)
    assert claim.in_words(0.5) == "mu = 0.5 (epsilon = 1.9931 at delta = 1e-05)"
    assert claim_of(
        Plan(releases=(first, third, third), neighboring_relation="replace_one", unit="record")
    ) == EpsilonClaim(1.0)


def test_results_in_words() -> None:
    mechanism = Laplace(1.0)
    text = str(audit_mechanism(mechanism, ONE, runs=2_000, confidence=SURE, key=Key.seeded(4)))
    assert "audit     2 x 2000 runs of Laplace(noise_to_sensitivity=1.0" in text
    assert "claim     epsilon = 1 at delta = 0" in text
    assert "with confidence 0.9999" in text
    assert "verdict   no violation found (an audit cannot prove the claim)" in text
    fault = audit_mechanism(SilentLaplace(1.0), ONE, runs=2_000, confidence=SURE)
    assert "verdict   violated" in str(fault)


test_bad_input_is_named = refused(
    (lambda: audit_mechanism(NoNoise(), ONE), "delta: .* a finite epsilon, or more noise, got 0.0"),
    (
        lambda: audit_mechanism(Laplace(1.0), ONE, pair=([1.0], [1.0, 2.0])),
        r"pair: wanted two rows of one length, got shapes \(1,\) and \(2,\)",
    ),
    (
        lambda: audit_mechanism(Laplace(1.0), ONE, pair=(["1"], [1j])),
        "pair: wanted an array of float32 or float64, got dtype <U1",
    ),
)
