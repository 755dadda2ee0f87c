"""Lower confidence bounds from the outcomes of a test that distinguishes two datasets.

True and false positive rates are taken at the ends of exact confidence intervals (Clopper, Pearson
1934), so a bound holds for any number of runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from dpmesh._validate import fail, probability
from dpmesh.audit.claims import Claim, Rates


class Tally(NamedTuple):
    """Numbers of positive outcomes of a test, in positive runs and in negative ones."""

    true_positives: int
    positives: int
    false_positives: int
    negatives: int


def rate_limits(
    successes: npt.ArrayLike, trials: npt.ArrayLike, error: float
) -> tuple[Rates, Rates]:
    """Return the lower and the upper confidence limit of a rate, by Clopper and Pearson.

    Each limit alone is wrong with probability at most `error`, whatever the rate is.

    Parameters
    ----------
    successes, trials
        Counts, 0 <= successes <= trials, trials >= 1; arrays are broadcast.
    error
        In (0, 1).

    Raises
    ------
    ValueError
        If a count or `error` is out of range.
    """
    error = probability("error", error, zero=False, one=False)
    k, n = np.broadcast_arrays(np.asarray(successes, float), np.asarray(trials, float))
    is_valid = (k >= 0) & (k <= n) & (n >= 1)
    if not is_valid.all():
        fail("successes", "counts from 0 to trials, of 1 trial or more", f"{k} of {n}")
    # the maxima keep the arguments positive where the limit is 0 or 1
    lower_quantile = special.betaincinv(np.maximum(k, 1), n - k + 1, error)
    upper_quantile = special.betaincinv(k + 1, np.maximum(n - k, 1), 1 - error)
    lower = np.where(k == 0, 0.0, lower_quantile)
    upper = np.where(k == n, 1.0, upper_quantile)
    return lower, upper


def lower_bound(claim: Claim, tally: Tally, confidence: float = 0.95) -> float:
    """Return a lower confidence bound on the level, epsilon or mu, of the true guarantee.

    Parameters
    ----------
    claim
        The kind of guarantee and its delta; its own level has no influence.
    tally
        Outcomes of a test that was chosen before these runs.
    confidence
        Probability, in (0, 1), with which the bound holds; both rates share the error.

    Raises
    ------
    ValueError
        If a count or `confidence` is out of range.
    """
    confidence = probability("confidence", confidence, zero=False, one=False)
    error = (1 - confidence) / 2
    tpr = rate_limits(tally.true_positives, tally.positives, error)[0]
    fpr = rate_limits(tally.false_positives, tally.negatives, error)[1]
    return float(claim.smallest_level(tpr, fpr))


def count(threshold: float, positives: npt.ArrayLike, negatives: npt.ArrayLike) -> Tally:
    """Return the outcomes of the test "positive if the score is at least `threshold`".

    Parameters
    ----------
    threshold
        Chosen on other runs, see `best_threshold`.
    positives, negatives
        Scores of the runs on either dataset.
    """
    positive_scores = np.asarray(positives)
    negative_scores = np.asarray(negatives)
    return Tally(
        true_positives=int((positive_scores >= threshold).sum()),
        positives=positive_scores.size,
        false_positives=int((negative_scores >= threshold).sum()),
        negatives=negative_scores.size,
    )


def best_threshold(
    claim: Claim, positives: npt.ArrayLike, negatives: npt.ArrayLike, confidence: float = 0.95
) -> float:
    """Return the threshold at which these pilot scores would give the largest lower bound.

    All thresholds share the error (Bonferroni), so that luck at one of them does not count as
    power. The bound itself must still come from fresh runs.

    Parameters
    ----------
    claim
        The kind of guarantee and its delta.
    positives, negatives
        Scores of the pilot runs on either dataset.
    confidence
        In (0, 1).

    Raises
    ------
    ValueError
        If there is no score, a score is NaN, or `confidence` is out of range.
    """
    confidence = probability("confidence", confidence, zero=False, one=False)
    positive_scores = _sorted_scores("positives", positives)
    negative_scores = _sorted_scores("negatives", negatives)
    pooled = np.sort(np.concatenate((positive_scores, negative_scores)))
    ranks = np.geomspace(1, pooled.size, 500).astype(int)  # finest where few scores are larger
    thresholds = np.unique(pooled[-ranks])
    error = (1 - confidence) / 2 / thresholds.size
    true_positives = positive_scores.size - np.searchsorted(positive_scores, thresholds)
    false_positives = negative_scores.size - np.searchsorted(negative_scores, thresholds)
    tpr = rate_limits(true_positives, positive_scores.size, error)[0]
    fpr = rate_limits(false_positives, negative_scores.size, error)[1]
    levels = claim.smallest_level(tpr, fpr)
    return float(thresholds[np.argmax(levels)])


def _sorted_scores(name: str, scores: npt.ArrayLike) -> Rates:
    """Return the scores in ascending order; fail if there is none, or one is NaN."""
    ascending = np.sort(scores, axis=None)
    missing = np.isnan(ascending)
    if not ascending.size or missing.any():
        fail(name, "1 score or more, and none NaN", f"{missing.sum()} NaN")
    return ascending
