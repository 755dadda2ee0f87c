"""Contrasts: scores that are linear combinations of observed numbers, learned from pilot runs.

A likelihood ratio assumes that all noise is independent, as claimed. If numbers share a part of
their noise, their difference has less noise than the ratio assumes. Fisher's linear discriminant
(1936) finds such contrasts from the covariance of the numbers, between coordinates, nodes or
rounds. `result.tell_apart` uses a contrast if it refutes the claim by more than the usual score.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import Floats
from dpmesh._validate import integer
from dpmesh.audit.transcript import Transcript

_MOST_NUMBERS = 100
"""Most numbers of a run that a contrast may use."""

_RUNS_PER_NUMBER = 10
"""Least number of pilot runs for each number, so that a covariance can be estimated."""

_HUGE = 1e100
"""Numbers are clipped to this magnitude, whose square does not overflow."""

_RIDGE = 1e-9
"""Added to the variances, relative to them: smaller eigenvalues are taken for rounding."""


def contrast_length(runs: int) -> int:
    """Return the number of numbers of each run that a contrast of so many pilot runs uses."""
    runs = integer("runs", runs, at_least=1)
    return min(_MOST_NUMBERS, runs // _RUNS_PER_NUMBER)


def observed_numbers(run: Transcript, length: int) -> npt.NDArray[np.float64]:
    """Return the first numbers that a run released, received and sent, shape (length,).

    Zeros fill the array if there are fewer numbers.
    """
    numbers = np.zeros(length)
    filled = 0
    for values in (*run.released, *run.received, *run.sent):
        prefix = values.ravel()[: length - filled]
        numbers[filled : filled + prefix.size] = prefix
        filled += prefix.size
    return np.nan_to_num(numbers).clip(-_HUGE, _HUGE)


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A linear score ``weights @ (numbers - middle)`` that distinguishes two datasets.

    Its mean is 1/2 over the positive pilot runs and -1/2 over the negative pilot runs, if they
    differ.

    Parameters
    ----------
    weights
        Weight of each number, shape (numbers,).
    middle
        Midpoint of the mean numbers of both datasets, shape (numbers,).
    """

    weights: npt.NDArray[np.float64]
    middle: npt.NDArray[np.float64]

    def __call__(self, numbers: Floats) -> npt.NDArray[np.float64]:
        """Return the score of each run from its numbers, shape (runs, numbers)."""
        return np.asarray((numbers - self.middle) @ self.weights)


def contrast(positives: Floats, negatives: Floats) -> Contrast:
    """Return Fisher's linear discriminant of two samples, scaled as in `Contrast`.

    Parameters
    ----------
    positives, negatives
        Numbers observed in the pilot runs on either dataset, shape (runs, numbers).
    """
    positive_mean = positives.mean(axis=0)
    negative_mean = negatives.mean(axis=0)
    difference = positive_mean - negative_mean
    deviations = np.concatenate((positives - positive_mean, negatives - negative_mean))
    covariance = deviations.T @ deviations / len(deviations)
    pooled_deviation = np.sqrt(np.diag(covariance) + difference**2 / 4)
    scale = np.where(pooled_deviation > 0, pooled_deviation, 1.0)
    correlation = covariance / np.outer(scale, scale) + _RIDGE * np.eye(len(scale))
    weights = np.linalg.solve(correlation, difference / scale) / scale
    separation = weights @ difference
    if separation > 0:
        weights = weights / separation
    return Contrast(weights=weights, middle=(positive_mean + negative_mean) / 2)


def unseen_scores(
    positives: Floats, negatives: Floats
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return cross-validated scores of the pilot runs: each by a contrast of the other half.

    A contrast separates the runs that it was learned from too well.

    Parameters
    ----------
    positives, negatives
        Numbers observed in the pilot runs on either dataset, shape (runs, numbers).

    Returns
    -------
    Scores of the positive and of the negative runs, shape (runs,) each.
    """
    positive_scores = np.zeros(len(positives))
    negative_scores = np.zeros(len(negatives))
    has_numbers = positives.shape[1] > 0  # False if there are too few runs for any number
    if has_numbers:
        for half, other_half in ((0, 1), (1, 0)):
            learned = contrast(positives[other_half::2], negatives[other_half::2])
            positive_scores[half::2] = learned(positives[half::2])
            negative_scores[half::2] = learned(negatives[half::2])
    return positive_scores, negative_scores
