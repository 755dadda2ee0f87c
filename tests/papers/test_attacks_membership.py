"""Membership inference: curves against a slow count, and attacks that win where they should."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused
from scipy import integrate, stats

from dpmesh_papers.attacks import likelihood_ratio_attack, scored, threshold_attack

some_scores = st.lists(st.integers(-4, 4), min_size=1, max_size=12)


@given(members=some_scores, others=some_scores)
def test_the_curve_is_what_counting_gives(members, others) -> None:
    attack = scored(members, others)
    points = [(0.0, 0.0)]
    for threshold in sorted({*members, *others}, reverse=True):
        found = [np.mean([s >= threshold for s in scores]) for scores in (others, members)]
        points.append(tuple(found))
    np.testing.assert_allclose(np.column_stack([attack.fpr, attack.tpr]), points)
    wins = np.mean([(m > o) + (m == o) / 2 for m in members for o in others])
    assert attack.auc == pytest.approx(wins)
    assert attack.auc == pytest.approx(integrate.trapezoid(attack.tpr, attack.fpr))
    assert attack.tpr_at(0.0) == max([t for f, t in points if f == 0])
    assert attack.tpr_at(1.0) == 1.0


def test_small_losses_are_members() -> None:
    attack = threshold_attack([0.1, 0.2, 0.9], [1.0, 2.0, 0.3])
    assert attack.auc == pytest.approx(8 / 9)
    assert threshold_attack([1.0, 2.0], [1.0, 2.0]).auc == 0.5


def test_auc_of_two_normals_is_known() -> None:
    """Phi(shift / sqrt 2), within 6 standard errors (at most 1 / sqrt(4 n) each for n of both)."""
    rng = np.random.default_rng(0)
    n = 20_000
    attack = scored(rng.normal(1.0, 1, n), rng.normal(0, 1, n))
    assert attack.auc == pytest.approx(stats.norm.cdf(1 / np.sqrt(2)), abs=6 / np.sqrt(4 * n))


def shadow_world(seed: int, leak: float):
    """Records of very different difficulty; having a record moves its log-odds by `leak`."""
    rng = np.random.default_rng(seed)
    models, records = 33, 2000
    difficulty = rng.normal(0, 3, records)
    members = rng.random((models, records)) < 0.5
    log_odds = difficulty + leak * members + rng.normal(0, 0.5, (models, records))
    losses = np.logaddexp(0, -log_odds)
    return losses[0], members[0], losses[1:], members[1:]


def test_the_likelihood_ratio_sees_what_a_threshold_cannot() -> None:
    losses, members, *shadows = shadow_world(1, leak=1.0)
    weak = threshold_attack(losses[members], losses[~members])
    strong = likelihood_ratio_attack(losses, members, *shadows)
    assert weak.auc < 0.65
    assert strong.auc > 0.85
    assert strong.tpr_at(0.01) > 0.1


def test_neither_finds_what_is_not_there() -> None:
    """AUC of guessing: 1/2 within 6 standard errors, sqrt(1 / 12 m + 1 / 12 n)."""
    losses, members, *shadows = shadow_world(2, leak=0.0)
    tolerance = 6 * np.sqrt(1 / (12 * members.sum()) + 1 / (12 * (~members).sum()))
    for attack in (
        threshold_attack(losses[members], losses[~members]),
        likelihood_ratio_attack(losses, members, *shadows),
    ):
        assert abs(attack.auc - 0.5) < tolerance


def test_a_certain_model_keeps_scores_finite() -> None:
    losses = np.array([0.0, 1e-30, 800.0])
    shadows = np.tile([0.0, 0.0, 700.0], (4, 1))
    had = np.array([[True] * 3, [False] * 3] * 2)
    assert np.isfinite(likelihood_ratio_attack(losses, losses < 1, shadows, had).auc)


test_bad_input_is_named = refused(
    (lambda: scored([], [1.0]), "members: wanted at least 1 element"),
    (lambda: scored([1.0], [np.nan]), "others: wanted numbers, got NaN"),
    (lambda: threshold_attack([np.nan], [1.0]), "member_losses: wanted numbers, got NaN"),
    (lambda: scored([1j], [1.0]), "members: wanted an array of float32 or float64, .*complex"),
    (lambda: scored([1.0], ["x"]), "others: wanted an array of float32 or float64"),
    (lambda: scored([1.0], [[1.0], [1.0, 2.0]]), "others: wanted an array, got"),
    (lambda: threshold_attack([1.0], [[1.0]]), "other_losses: wanted 1 axes"),
    (lambda: scored([1.0], [2.0]).tpr_at(1.5), r"fpr: wanted a number in \[0, 1\]"),
    (
        lambda: likelihood_ratio_attack([-1.0], [True], [[1.0]], [[True]]),
        "losses: wanted finite cross-entropies of at least 0",
    ),
    (
        lambda: likelihood_ratio_attack(
            [1.0, 2.0], [True, False], [[np.inf] * 2] * 2, [[True] * 2, [False] * 2]
        ),
        "shadow_losses: wanted finite cross-entropies of at least 0, got .*infinity",
    ),
    (
        lambda: likelihood_ratio_attack([1.0], [1], [[1.0]], [[True]]),
        "is_member: wanted booleans of shape",
    ),
    (
        lambda: likelihood_ratio_attack([1.0], [True], [[1.0, 2.0]], [[True, False]]),
        r"shadow_losses: wanted shape \(models, 1\)",
    ),
    (
        lambda: likelihood_ratio_attack([1.0], [True], [[1.0]], [[True]], least_spread=np.nan),
        "least_spread: wanted a finite number, got nan",
    ),
    (
        lambda: likelihood_ratio_attack([1.0], [True], [[1.0]], [[True]]),
        "shadow_members: wanted models with and without each record",
    ),
)
