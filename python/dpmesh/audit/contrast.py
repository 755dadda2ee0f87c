"""A score that pilot runs teach: a weighted sum of what was seen that separates datasets best.

A likelihood ratio believes that all noise is independent, as claimed. Where numbers share some of
it, a difference of them has less. Fisher's linear discriminant (1936) finds such contrasts from the
covariance of the numbers, whatever they are: of coordinates, nodes or rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import Floats
from dpmesh.audit.transcript import Transcript

_MOST = 100
_HUGE = 1e100  # its square is a number
_RIDGE = 1e-9  # relative to a number's variance; what is smaller is taken for rounding


def numbers_for(runs: int) -> int:
    """Return how many numbers of each run to look at: ten runs for each teach their covariance."""
    return min(_MOST, runs // 10)


def seen_in(run: Transcript, most: int) -> npt.NDArray[np.float64]:
    """Return the first numbers that a run released, received and sent, then zeros: (most,)."""
    numbers, place = np.zeros(most), 0
    for values in (*run.released, *run.received, *run.sent):
        some = values.ravel()[: most - place]
        numbers[place : place + some.size] = some
        place += some.size
    return np.nan_to_num(numbers).clip(-_HUGE, _HUGE)


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A weighted sum of numbers, which has mean 1/2 in one dataset's pilot and -1/2 in the other's.

    Parameters
    ----------
    weights, middle
        Shape (numbers,): ``weights @ (number - middle)``.
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
        What was seen in the pilot runs on either dataset, shape (runs, numbers).
    """
    means = positives.mean(axis=0), negatives.mean(axis=0)
    within = np.concatenate((positives - means[0], negatives - means[1]))
    apart, middle = means[0] - means[1], (means[0] + means[1]) / 2
    covariance = within.T @ within / len(within)
    size = np.sqrt(np.diag(covariance) + apart**2 / 4)
    scale = np.where(size > 0, size, 1.0)
    correlation = covariance / np.outer(scale, scale) + _RIDGE * np.eye(len(scale))
    weights = np.linalg.solve(correlation, apart / scale) / scale
    between = weights @ apart
    return Contrast(weights=weights / between if between > 0 else weights, middle=middle)


def unseen_scores(
    positives: Floats, negatives: Floats
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return scores of the pilot runs, each by the contrast of a half to which it does not belong.

    A contrast flatters the runs that it comes from.
    """
    both = positives, negatives
    scores = np.zeros(len(positives)), np.zeros(len(negatives))
    if not positives.shape[1]:  # too few runs to look at a number
        return scores
    for half, other in ((0, 1), (1, 0)):
        learned = contrast(*(numbers[other::2] for numbers in both))
        for score, numbers in zip(scores, both, strict=True):
            score[half::2] = learned(numbers[half::2])
    return scores
