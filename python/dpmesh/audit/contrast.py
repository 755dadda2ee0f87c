"""A score learned from pilot runs: the weighted sum of observed numbers that separates them best.

A likelihood ratio believes that all noise is independent, as claimed. Where numbers share some of
it, a difference of them has less. Fisher's linear discriminant (1936) finds such contrasts from the
covariance of the numbers, whatever they are: of coordinates, nodes or rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import Floats
from dpmesh._validate import integer
from dpmesh.audit.transcript import Transcript

_MOST_NUMBERS = 100

_HUGE = 1e100  # its square is a number
_RIDGE = 1e-9  # relative to a number's variance; what is smaller is taken for rounding


def numbers_for(runs: int) -> int:
    """Return the count of numbers of each run to look at: ten runs for each teach a covariance."""
    runs = integer("runs", runs, at_least=1)
    return min(_MOST_NUMBERS, runs // 10)


def seen_in(run: Transcript, most: int) -> npt.NDArray[np.float64]:
    """Return the first numbers that a run released, received and sent, then zeros: (most,)."""
    numbers = np.zeros(most)
    filled = 0
    for values in (*run.released, *run.received, *run.sent):
        prefix = values.ravel()[: most - filled]
        numbers[filled : filled + prefix.size] = prefix
        filled += prefix.size
    return np.nan_to_num(numbers).clip(-_HUGE, _HUGE)


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A linear score ``weights @ (numbers - middle)`` that tells two datasets apart.

    Its mean is 1/2 over the pilot runs on one dataset and -1/2 over those on the other.

    Parameters
    ----------
    weights
        Shape (numbers,).
    middle
        The mean of both datasets' mean numbers, shape (numbers,).
    """

    weights: npt.NDArray[np.float64]
    middle: npt.NDArray[np.float64]

    def __call__(self, numbers: Floats) -> npt.NDArray[np.float64]:
        """Return the score of each run from its numbers, shape (runs, numbers)."""
        return np.asarray((numbers - self.middle) @ self.weights)


def contrast(positives: Floats, negatives: Floats) -> Contrast:
    """Return Fisher's linear discriminant.

    Parameters
    ----------
    positives, negatives
        Numbers seen in the pilot runs on either dataset, shape (runs, numbers).
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
    """Return scores of the pilot runs, each by the contrast of a half to which it does not belong.

    A contrast flatters the runs that it comes from.

    Parameters
    ----------
    positives, negatives
        Numbers seen in the pilot runs on either dataset, shape (runs, numbers).

    Returns
    -------
    Scores of the positive and of the negative runs, shape (runs,) each.
    """
    positive_scores = np.zeros(len(positives))
    negative_scores = np.zeros(len(negatives))
    has_numbers = positives.shape[1] > 0  # else there are too few runs to look at a number
    if has_numbers:
        for half, other_half in ((0, 1), (1, 0)):
            learned = contrast(positives[other_half::2], negatives[other_half::2])
            positive_scores[half::2] = learned(positives[half::2])
            negative_scores[half::2] = learned(negatives[half::2])
    return positive_scores, negative_scores
