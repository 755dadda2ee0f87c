"""Theorem 3 and Corollary 1 of the federated paper, against the formulas written out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import log, sqrt

import numpy as np
import pytest
from refused import refused

from dpmesh_papers.bounds.federated import (
    LossConstants,
    corollary_2_as_printed,
    error,
    error_terms_as_printed,
    rounds,
    smallest_eigenvalue,
)

LOSSES = LossConstants(
    dim=50,
    lipschitz=2.0,
    smoothness=3.0,
    gradient_variance=0.7,
    dissimilarity=0.4,
    dissimilarity_factor=1.5,
    strong_convexity=0.1,
    squared_distance=5.0,
    initial_gap=2.5,
)
BUDGET = {"epsilon": 2.0, "delta": 1e-5, "clients": 1000, "sampling_rate": 0.1, "local_steps": 4}
RUN = {"accuracy": 0.01, "cohort": 100, "sampling_rate": 0.1, "local_steps": 4, "noise": 1.3}
CASES = ("strongly_convex", "convex", "nonconvex")


def spectrum(dim: int, sigma: float) -> np.ndarray:
    return 1 / (1 + 2 * sigma * (1 - np.cos(2 * np.pi * np.arange(dim) / dim)))


@pytest.mark.parametrize("sigma", [0.0, 1.0, 30.0])
def test_theorem_3(sigma: float) -> None:
    kept = spectrum(50, sigma)
    d, d_tilde, mu_sigma = kept.sum(), (kept**2).sum(), 0.1 * kept.min()
    spread = 0.7 / 4 + 0.9 * 0.4**2
    log_delta = log(1e5)
    expected = {
        "strongly_convex": (spread + d) * 4 * log_delta / (mu_sigma * 4 * 1e6),
        "convex": sqrt((spread + d) * 5 * 4 * log_delta) / (2 * 1000),
        "nonconvex": sqrt((spread + d_tilde) * 2.5 * 3 * 4 * log_delta) / (2 * 1000),
    }
    for case in CASES:
        assert error(case, LOSSES, smoothing=sigma, **BUDGET) == pytest.approx(expected[case])


@pytest.mark.parametrize("sigma", [0.0, 1.0, 30.0])
def test_corollary_1(sigma: float) -> None:
    kept = spectrum(50, sigma)
    d, d_tilde, mu_sigma = kept.sum(), (kept**2).sum(), 0.1 * kept.min()
    e, S, K, L, nu, G, B, beta, D, F = 0.01, 100, 4, 2.0, 1.3, 0.4, 1.5, 3.0, 5.0, 2.5
    expected = {
        "strongly_convex": (1 + 4 * sigma) * beta * B**2 / mu_sigma
        + 0.7 / (mu_sigma * K * S * e)
        + d * L**2 * nu**2 / (mu_sigma * S**2 * e)
        + sqrt(beta) * G / (mu_sigma * sqrt(e))
        + 0.9 * G**2 / (mu_sigma * e * S),
        "convex": (1 + 4 * sigma) * beta * B**2 * D / e
        + 0.7 * D / (K * S * e**2)
        + d * D * L**2 * nu**2 / (S**2 * e**2)
        + sqrt(beta) * D * G / e**1.5
        + 0.9 * D * G**2 / (e**2 * S),
        "nonconvex": (1 + 4 * sigma) * beta * B**2 * F / e
        + 0.7 * beta * F / (K * S * e**2)
        + d_tilde * F * L**2 * nu**2 * beta / (S**2 * e**2)
        + beta * F * G / e**1.5
        + 0.9 * F * beta * G**2 / (e**2 * S),
    }
    for case in CASES:
        assert rounds(case, LOSSES, smoothing=sigma, **RUN) == pytest.approx(expected[case])


@pytest.mark.parametrize("dim", [1, 2, 7, 8])
def test_smallest_eigenvalue_is_that_of_the_spectrum(dim: int) -> None:
    assert smallest_eigenvalue(dim, 2.5) == pytest.approx(spectrum(dim, 2.5).min())
    assert smallest_eigenvalue(dim, 2.5) >= 1 / (1 + 4 * 2.5)


def test_smoothing_trades_noise_for_curvature() -> None:
    assert error("nonconvex", LOSSES, smoothing=3, **BUDGET) < error("nonconvex", LOSSES, **BUDGET)
    assert error("strongly_convex", LOSSES, smoothing=3, **BUDGET) > error(
        "strongly_convex", LOSSES, **BUDGET
    )


test_bad_input_is_named = refused(
    (lambda: replace(LOSSES, dissimilarity_factor=0.5), "dissimilarity_factor: wanted at leas"),
    (
        lambda: error("convex", replace(LOSSES, squared_distance=None), **BUDGET),
        "squared_distance: wanted a number, for the case 'convex', got None",
    ),
    (lambda: error("convex", LOSSES, **BUDGET | {"epsilon": 12.0}), "epsilon: wanted at most"),
)


TERMS = {"rounds": 400, "cohort": 100, "sampling_rate": 0.1, "local_steps": 4, "noise": 1.3}


@pytest.mark.parametrize("sigma", [0.0, 1.0, 30.0])
def test_theorem_5_by_hand(sigma: float) -> None:
    kept = spectrum(50, sigma)
    T, S, K, G, D, beta, server = 400, 100, 4, 0.4, 5.0, 3.0, 10.0
    noisy = kept.sum() * (2.0 * 1.3 / S) ** 2
    H = (1 / (server**2 * K) + 1 / (S * K)) * 0.7 + 4 / S * 0.9 * G**2 + noisy
    Q = 24 * beta * G**2
    rate = min(
        sqrt(D / (H * T * K**2)),
        (D / (Q * T * K**3)) ** (1 / 3),
        kept.min() / (8 * K * beta * (1 + 1.5**2)),
    )
    terms = error_terms_as_printed(
        "convex", LOSSES, global_step_size=server, smoothing=sigma, **TERMS
    )
    assert terms.learning_rate == pytest.approx(rate)
    assert terms.initial == pytest.approx(2 * D / (rate * T * K))
    assert terms.variance == pytest.approx(2 * rate * (1 + S / server**2) * 0.7 / S)
    assert terms.privacy == pytest.approx(2 * rate * K * noisy)
    drift = Q * rate**2 * K**2 + 8 * rate * 0.9 * K / S * G**2
    assert terms.heterogeneity == pytest.approx(drift)
    assert terms.total == pytest.approx(
        terms.initial + terms.heterogeneity + terms.variance + terms.privacy
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sigma", [0.0, 2.0])
def test_terms_keep_below_the_rates_that_the_theorems_state(case: str, sigma: float) -> None:
    """Theorems 5 and 6 print each term twice: by eta-tilde, and a rate that it is below."""
    terms = error_terms_as_printed(case, LOSSES, smoothing=sigma, **{**TERMS, "rounds": 200_000})
    assert min(terms.initial, terms.heterogeneity, terms.variance, terms.privacy) > 0
    T, S, K, D, F, beta = 200_000, 100, 4, 5.0, 2.5, 3.0
    kept = spectrum(50, sigma)
    spread = (1 + S) * 0.7 / (K * S * T)
    if case == "convex":
        assert terms.variance <= 2 * sqrt(spread * D) * (1 + 1e-12)
        assert terms.privacy <= 2 * sqrt(D * 4 * 1.3**2 * kept.sum() / (S**2 * T)) * (1 + 1e-12)
    if case == "nonconvex":
        assert terms.variance <= 4 * sqrt(spread * F * beta) * (1 + 1e-12)


def test_a_run_without_noise_of_any_kind_is_limited_by_its_start_alone() -> None:
    quiet = replace(LOSSES, gradient_variance=0.0, dissimilarity=0.0)
    for case in CASES:
        terms = error_terms_as_printed(case, quiet, **{**TERMS, "noise": 0.0, "rounds": 10**6})
        assert terms.total == terms.initial


def test_theorem_4_names_the_rounds_that_it_needs() -> None:
    with pytest.raises(ValueError, match=r"rounds: wanted at least .* \(Theorem 4\), got 3"):
        error_terms_as_printed("strongly_convex", LOSSES, **{**TERMS, "rounds": 3})


@pytest.mark.parametrize("sigma", [0.0, 3.0])
def test_corollary_2_by_hand(sigma: float) -> None:
    kept = spectrum(50, sigma)
    spread = 0.7 / 4 + 4 * 0.9 * 0.4**2
    expected = sqrt((spread + kept.sum()) * 5 * 4 * log(1e5)) / (2 * 1000)
    found = corollary_2_as_printed("convex", LOSSES, smoothing=sigma, **BUDGET)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(("case", "factor"), [("convex", 29), ("nonconvex", 84)])
@pytest.mark.parametrize("lambda_", [0.05, 0.5, 2 - sqrt(2), 0.9])
def test_corollary_2_does_not_follow_from_theorems_5_and_6(
    case: str, factor: int, lambda_: float
) -> None:
    """With the noise and the rounds that it substitutes, (15) is far above what it prints."""
    losses = replace(LOSSES, dim=10_000, gradient_variance=0.0, dissimilarity=0.0)
    epsilon, log_delta, clients, tau, L = 2.0, log(1e5), 1000, 0.1, losses.lipschitz
    cohort = 100
    C_0 = 14 / lambda_ * (1 + 1 / (1 - lambda_))
    assert C_0 > 81
    T = max(1, round(epsilon**2 * clients**2 / (C_0 * L**2 * cohort * log_delta)))
    spent = log_delta / (1 - lambda_) + epsilon
    terms = error_terms_as_printed(
        case,
        losses,
        rounds=T,
        cohort=cohort,
        sampling_rate=tau,
        local_steps=4,
        noise=tau / epsilon * sqrt(14 * T / lambda_ * spent),  # (4), over the clipping norm
        global_step_size=sqrt(cohort),
    )
    printed = corollary_2_as_printed(case, losses, **BUDGET)
    assert terms.initial + terms.privacy > factor * printed


def test_theorem_6_prints_half_of_its_own_term_of_the_noise() -> None:
    """Its first form is 4 sqrt(F_0 L^2 nu^2 beta d / (S^2 T)) where noise limits eta-tilde."""
    quiet = replace(LOSSES, gradient_variance=0.0, dissimilarity=0.0)
    T, S = 10**6, 100
    terms = error_terms_as_printed("nonconvex", quiet, **{**TERMS, "rounds": T})
    rate = sqrt(2.5 * 3.0 * 50 * (2.0 * 1.3 / S) ** 2 / T)
    assert terms.privacy == pytest.approx(4 * rate)
    assert terms.privacy > 2 * rate


@pytest.mark.parametrize("steps", [3, 5, 40])
def test_the_recursion_of_lemma_7_fails_as_printed(steps: int) -> None:
    """A constant loss, mini-batch gradients of variance 1: the drift adds up, and never shrinks."""
    drift = [0.0]
    for _ in range(steps):
        drift.append(drift[-1] + 1.0)  # in units of the squared step
    for sign, fails in ((-1, True), (1, False)):
        factor = 1 + sign / (steps - 1)
        over = [later > factor * before + 1.0 for before, later in pairwise(drift)]
        assert any(over) == fails


def test_lemma_7_stands_with_the_factor_of_young() -> None:
    """At the longest allowed step the unrolled recursion stays within the lemma's constants."""
    for steps in [*range(2, 60), 1000]:
        factor = 1 + 1 / (steps - 1) + 2 * steps / (16 * steps) ** 2  # step: 1 / (16 K beta)
        sums = np.cumsum(factor ** np.arange(steps))  # of 2 K step^2 |grad|^2 + step^2 variance
        assert sums.sum() <= 2 * steps**2


def test_equation_25_drops_products_of_either_sign() -> None:
    """Two local steps on h w^2 / 2 with unit noise, from w = 1: what E|g_0 + g_1|^2 is."""
    step = 0.1
    for curvature in (-1.0, 1.0):
        products = 0.0
        whole = 0.0
        for noise in (-1.0, 1.0):
            first = curvature * 1.0
            second = curvature * (1.0 - step * (first + noise))
            mean_square = (first + second) ** 2
            whole += (mean_square + 2 * noise * (first + second) + 2.0) / 2  # later noise: mean 0
            products += 2 * noise * (first + second) / 2
        assert products == pytest.approx(-2 * step * curvature)
        assert whole > 0
