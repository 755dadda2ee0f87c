"""Bounds of the audit: against published values, at exact error rates, and with their power."""

from __future__ import annotations

from math import log, nan

import audit_power
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused
from scipy import optimize, special, stats

from dpmesh.audit import one_run, statistics
from dpmesh.audit.claims import Claim, EpsilonClaim, GaussianClaim
from dpmesh.audit.statistics import Tally

LEVELS = st.floats(0.05, 4)
RUNS = st.integers(1, 400)
CONFIDENCES = st.sampled_from([0.9, 0.95, 1 - 1e-4])


@given(RUNS, st.floats(0.001, 0.999), st.sampled_from([0.025, 1e-4]))
def test_each_limit_of_a_rate_errs_no_more_often_than_it_says(
    runs: int, rate: float, error: float
) -> None:
    counts = np.arange(runs + 1)
    lower, upper = statistics.rate_limits(counts, runs, error)
    chance = stats.binom.pmf(counts, runs, rate)
    assert chance[lower > rate].sum() <= error * (1 + 1e-9)
    assert chance[upper < rate].sum() <= error * (1 + 1e-9)
    assert (lower[0], upper[-1]) == (0, 1)
    assert (np.diff(lower) > 0).all()
    assert (np.diff(upper) > 0).all()


@pytest.mark.slow
@given(LEVELS, RUNS, CONFIDENCES)
def test_a_true_claim_is_refuted_no_more_often_than_the_confidence_says(
    level: float, runs: int, confidence: float
) -> None:
    """`power` is exact and takes the worst threshold; the claim is what tests really achieve."""
    for claim, truth in (
        (GaussianClaim(level), audit_power.gaussian_curve(level)),
        (EpsilonClaim(level), audit_power.laplace_curve(level)),
    ):
        assert audit_power.power(claim, truth, runs, confidence) <= 1 - confidence


# Runs on each dataset that refute at 95% confidence and power, found by simulation to about 5%.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("claim", "truth", "runs"),
    [
        (GaussianClaim(1.0), audit_power.gaussian_curve(2.0), 85),
        (GaussianClaim(1 / 1.5), audit_power.gaussian_curve(2 / 1.5), 160),
        (GaussianClaim(1 / 2), audit_power.gaussian_curve(1.0), 270),
        (GaussianClaim(1 / 4), audit_power.gaussian_curve(0.5), 1_000),
        (GaussianClaim(1 / 6.667), audit_power.gaussian_curve(2 / 6.667), 2_800),
        (EpsilonClaim(4.377, delta=1e-5), audit_power.gaussian_curve(2.0), 22_000),
        (EpsilonClaim(1.993, delta=1e-5), audit_power.gaussian_curve(1.0), 14_000),
        (EpsilonClaim(0.1), audit_power.laplace_curve(0.2), 4_500),
        (EpsilonClaim(0.5), audit_power.laplace_curve(1.0), 350),
        (EpsilonClaim(1.0), audit_power.laplace_curve(2.0), 154),
        (EpsilonClaim(2.0), audit_power.laplace_curve(4.0), 132),
    ],
)
def test_runs_needed_to_find_a_missing_factor_2(
    claim: Claim, truth: audit_power.Curve, runs: int
) -> None:
    assert audit_power.runs_needed(claim, truth) == pytest.approx(runs, rel=0.1)


@given(LEVELS, st.floats(1e-6, 0.5), st.floats(0, 1e-3))
def test_a_claim_just_allows_its_best_test(level: float, fpr: float, delta: float) -> None:
    for claim in (GaussianClaim(level), EpsilonClaim(level, delta=delta)):
        tpr = claim.largest_tpr(np.array(fpr))
        assert fpr <= tpr <= 1
        if tpr < 1:
            assert claim.smallest_level(tpr, np.array(fpr)) == pytest.approx(level, rel=1e-6)


def test_bounds_equal_published_values() -> None:
    tally = Tally(true_positives=190, positives=200, false_positives=20, negatives=200)
    tpr, _ = statistics.rate_limits(190, 200, 0.025)
    _, fpr = statistics.rate_limits(20, 200, 0.025)
    assert tpr == pytest.approx(0.90997246, rel=1e-8)
    assert fpr == pytest.approx(0.15021279, rel=1e-7)
    assert statistics.lower_bound(EpsilonClaim(1, delta=1e-5), tally) == pytest.approx(
        1.8013505, rel=1e-7
    )
    assert statistics.lower_bound(GaussianClaim(1), tally) == pytest.approx(2.3761067, rel=1e-7)


@pytest.mark.parametrize(
    "claim", [GaussianClaim(1.0), EpsilonClaim(1.0), EpsilonClaim(1.0, delta=1e-5)]
)
@pytest.mark.parametrize("tally", [(0, 5, 0, 5), (5, 5, 5, 5), (0, 5, 5, 5), (0, 1, 0, 10**6)])
def test_a_useless_test_proves_nothing(claim: Claim, tally: tuple[int, int, int, int]) -> None:
    assert statistics.lower_bound(claim, Tally(*tally)) == 0.0


def test_the_threshold_is_the_best_one() -> None:
    """Laplace noise of scale 1 at 0 and at 1: the best test is "at least 1"."""
    rng = np.random.default_rng(3)
    noise = rng.laplace(size=(2, 20_000))
    claim = EpsilonClaim(1.0)
    threshold = statistics.best_threshold(claim, noise[1] + 1, noise[0])
    assert 0.8 < threshold < 2.0
    fresh = rng.laplace(size=(2, 20_000))
    tally = statistics.count(threshold, fresh[1] + 1, fresh[0])
    assert tally.positives == tally.negatives == 20_000
    assert 0.8 < statistics.lower_bound(claim, tally, 1 - 1e-6) < 1.0


# m canaries, r guesses, v right, delta; the lower bound at 95% and the p-value of epsilon = 1.
@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "bound", "p_at_1"),
    [
        (1000, 100, 100, 0.0, 3.4929654, 2.4843786e-14),
        (2000, 200, 180, 1e-5, 1.793677, 0.00087244617),
    ],
)
def test_one_run_equals_published_values(
    m: int, r: int, v: int, delta: float, bound: float, p_at_1: float
) -> None:
    seen = {"canaries": m, "guesses": r, "correct": v, "delta": delta}
    assert one_run.epsilon_lower_bound(**seen) == pytest.approx(bound, rel=1e-6)
    assert one_run.p_value(1.0, **seen) == pytest.approx(p_at_1, rel=1e-6)


@pytest.mark.slow
@given(LEVELS, st.integers(1, 300), CONFIDENCES)
def test_one_run_errs_no_more_often_than_it_says(
    epsilon: float, guesses: int, confidence: float
) -> None:
    """At delta 0 the worst case is known: every guess is right with e^epsilon / (1 + e^epsilon)."""
    correct = np.arange(guesses + 1)
    refuted = np.array(
        [
            one_run.p_value(epsilon, canaries=guesses, guesses=guesses, correct=int(v))
            < 1 - confidence
            for v in correct
        ]
    )
    chance = stats.binom.pmf(correct, guesses, 1 / (1 + np.exp(-epsilon)))
    assert chance[refuted].sum() <= 1 - confidence


def largest_chance(mu: float, canaries: int, guesses: int, correct: int) -> float:
    """The chance of `correct` and more right guesses that mu-GDP allows, by linear programming.

    The constraints of `mu_is_refuted` are convex; here each is replaced by many tangents.
    """
    count = np.arange(guesses + 1)
    at = special.ndtr(np.linspace(-7, 5, 300))
    below = special.ndtr(special.ndtri(at) - mu)
    slopes = np.exp(special.ndtri(at) * mu - mu**2 / 2)
    rows, bounds = [], []
    for i in range(guesses):
        right = np.where(count > i, count / canaries, 0.0)
        wrong = np.where(count >= i, (guesses - count) / canaries, 0.0)
        rows.append(np.outer(slopes, right) - wrong)
        bounds.append(slopes * at - below)
    solved = optimize.linprog(
        -(count >= correct).astype(float),
        A_ub=np.concatenate(rows),
        b_ub=np.concatenate(bounds),
        A_eq=np.ones((1, guesses + 1)),
        b_eq=[1.0],
        bounds=(0, 1),
    )
    return float(-solved.fun)


@pytest.mark.parametrize(
    ("mu", "canaries", "guesses", "correct"),
    [(1.0, 12, 12, 11), (1.0, 20, 12, 12), (0.5, 12, 8, 7), (2.0, 15, 10, 10), (0.3, 10, 10, 9)],
)
def test_one_run_of_gaussian_privacy_refutes_what_has_too_small_a_chance(
    mu: float, canaries: int, guesses: int, correct: int
) -> None:
    chance = largest_chance(mu, canaries, guesses, correct)
    for factor, refuted in ((1.01, True), (0.99, False)):
        assert refuted == one_run.mu_is_refuted(
            mu, canaries=canaries, guesses=guesses, correct=correct, confidence=1 - factor * chance
        )


@given(LEVELS, st.integers(1, 100), CONFIDENCES)
def test_one_run_of_gaussian_privacy_errs_no_more_often_than_it_says(
    mu: float, guesses: int, confidence: float
) -> None:
    """Independent Gaussian canaries: every guess is right with Phi(mu / 2)."""
    correct = np.arange(guesses + 1)
    refuted = np.array(
        [
            one_run.mu_is_refuted(
                mu, canaries=guesses, guesses=guesses, correct=int(v), confidence=confidence
            )
            for v in correct
        ]
    )
    assert (np.diff(refuted.astype(int)) >= 0).all()
    chance = stats.binom.pmf(correct, guesses, special.ndtr(mu / 2))
    assert chance[refuted].sum() <= 1 - confidence


def test_the_lower_bound_on_mu_is_where_refutation_ends() -> None:
    seen = {"canaries": 1_000, "guesses": 200, "correct": 190}
    bound = one_run.mu_lower_bound(**seen)
    assert one_run.mu_is_refuted(bound - 1e-6, **seen)
    assert not one_run.mu_is_refuted(bound + 1e-6, **seen)
    assert one_run.mu_lower_bound(canaries=200, guesses=200, correct=100) == 0.0


@pytest.mark.slow
@given(st.integers(0, 200), st.integers(0, 200), st.floats(0, 1e-3))
def test_one_run_is_monotone(first: int, second: int, delta: float) -> None:
    """More right guesses never prove less, and a delta never more."""
    fewer, more = sorted((first, second))
    bounds = [
        one_run.epsilon_lower_bound(canaries=200, guesses=200, correct=v, delta=d)
        for v, d in ((fewer, 0.0), (more, 0.0), (more, delta))
    ]
    assert bounds[0] <= bounds[1]
    assert bounds[2] <= bounds[1]


test_bad_input_is_named = refused(
    (lambda: statistics.rate_limits(3, 2, 0.1), "successes: wanted counts .*, got 3.0 of 2.0"),
    (lambda: statistics.rate_limits(0, 0, 0.1), "successes: wanted counts"),
    (lambda: statistics.rate_limits(1, 2, 0.0), r"error: wanted a number in \(0, 1\), got 0"),
    (
        lambda: statistics.lower_bound(EpsilonClaim(1.0), Tally(1, 1, 0, 1), 1.0),
        r"confidence: wanted a number in \(0, 1\), got 1",
    ),
    (
        lambda: statistics.best_threshold(EpsilonClaim(1.0), [nan], [0.0]),
        "positives: wanted .* none NaN, got 1 NaN",
    ),
    (lambda: statistics.best_threshold(EpsilonClaim(1.0), [0.0], []), "negatives: wanted 1 sc"),
)


def test_a_run_of_right_guesses_proves_what_its_chance_says() -> None:
    """All r of r right has chance (e^eps / (1 + e^eps))^r, which is 5% at the bound."""
    q = 0.05 ** (1 / 50)
    bound = one_run.epsilon_lower_bound(canaries=50, guesses=50, correct=50)
    assert bound == pytest.approx(log(q / (1 - q)), rel=1e-9)
