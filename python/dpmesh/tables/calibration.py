"""Calibration of a regression: a linear map that corrects the mean and slope of predictions.

DP training clips gradients, so that predictions of skewed targets are too low in total.
`dpmesh.algorithms.Calibrated` releases the noisy sum of `moments_of` over all records in its last
round, and `Calibration.of` computes the map from this sum. In this module, predictions p and
targets y are in units in which the public range of the target is [-1, 1]. A *score* is the output
of the linear model: p itself, or for counts the logarithm of the expected share of their bound.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._validate import every, integer, number
from dpmesh.tables.cells import FloatArray
from dpmesh.tables.kinds import Count, Number

__all__ = ["MOMENTS", "Calibration", "moments_of", "predictions_of", "scores_of_predictions"]

Floats = npt.NDArray[np.float64]

MOMENTS = 5
"""Number of second moments of the vector (1, p, y), without the moment 1 * 1."""

STEEPEST = 3.0
"""Largest slope of a calibration."""

DAMPING = 4.0
"""Variance of the predictions, in standard deviations of the noise of its mean square, at which the
slope is halfway between 1 and the least-squares slope."""

LEAST_SHARE = 1e-12
"""Smallest expected count as a share of its bound, so that its logarithm is finite."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A map of predictions p in [-1, 1] to ``mean_target + slope * (p - mean_prediction)``.

    All numbers are released with noise.

    Parameters
    ----------
    slope
        In [0, 3].
    mean_prediction, mean_target
        Noisy means over all records, in units in which the public range of the target is [-1, 1].
    noise
        Standard deviation of the noise in each of these means; 0 without noise.
    records
        Number of records of all sites, a public number.

    Raises
    ------
    ValueError
        If a number is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from dpmesh.tables.calibration import Calibration, moments_of
    >>> p, y = np.array([0.0, 0.1, 0.2]), np.array([-0.1, 0.4, 0.9])
    >>> total = moments_of(p, y).sum(axis=0)
    >>> Calibration.of(total, noise=0.0, records=3).of_predictions(p).round(6)
    array([0.1, 0.4, 0.7])
    """

    slope: float
    mean_prediction: float
    mean_target: float
    noise: float
    records: int

    def __post_init__(self) -> None:
        every(self, number, "slope", "mean_prediction", "mean_target", "noise")
        integer("records", self.records, at_least=1)

    @classmethod
    def of(cls, total: FloatArray, *, noise: float, records: int) -> Calibration:
        """Compute the map from noisy moments.

        The least-squares slope is covariance(p, y) / variance(p). Large noise shrinks the slope
        towards 1, the slope without calibration:
        ``1 + (covariance - variance) variance / (variance^2 + (4 noise / records)^2)``.

        Parameters
        ----------
        total
            Noisy sum of `moments_of` over all records, shape (5,).
        noise
            Standard deviation of the noise in each of the five sums.
        records
            Number of records of all sites.
        """
        means = np.asarray(total, np.float64) / records
        # `moments_of` multiplies p, y and p y by sqrt(2)
        scaled_prediction, scaled_target, mean_square, scaled_product, _ = means
        mean_prediction = scaled_prediction / sqrt(2)
        mean_target = scaled_target / sqrt(2)
        variance = mean_square - mean_prediction**2
        covariance = scaled_product / sqrt(2) - mean_prediction * mean_target
        damped_square = variance**2 + (DAMPING * noise / records) ** 2
        slope = 1.0
        if variance > 0 and damped_square > 0:
            slope += (covariance - variance) * variance / damped_square
        return cls(
            slope=float(np.clip(slope, 0.0, STEEPEST)),
            mean_prediction=float(np.clip(mean_prediction, -1, 1)),
            mean_target=float(np.clip(mean_target, -1, 1)),
            noise=float(noise / sqrt(2) / records),
            records=int(records),
        )

    def of_predictions(self, predictions: FloatArray) -> Floats:
        """Return calibrated predictions, clipped to [-1, 1]."""
        mapped = self.mean_target + self.slope * (predictions - self.mean_prediction)
        return np.asarray(np.clip(mapped, -1, 1))

    def of_scores(self, scores: FloatArray, target: Number | None) -> Floats:
        """Return calibrated scores of a regression, in the shape of `scores`.

        Parameters
        ----------
        scores
            Scores of the model without calibration.
        target
            The public range of the target.
        """
        predictions = predictions_of(scores, target)
        return scores_of_predictions(self.of_predictions(predictions), target)

    def as_dict(self) -> dict[str, Any]:
        """Return the map in plain types that JSON can hold."""
        return asdict(self)


def predictions_of(scores: FloatArray, target: Number | None) -> Floats:
    """Convert scores to predictions in units in which the target's public range is [-1, 1]."""
    if isinstance(target, Count):
        return np.asarray(2 * np.exp(np.minimum(scores, 0.0)) - 1)
    return np.asarray(np.clip(scores, -1, 1))


def scores_of_predictions(predictions: FloatArray, target: Number | None) -> Floats:
    """Convert predictions in [-1, 1] to scores, the inverse of `predictions_of`."""
    if isinstance(target, Count):
        return np.asarray(np.log(np.maximum((1 + predictions) / 2, LEAST_SHARE)))
    return np.asarray(predictions)


def moments_of(predictions: Floats, targets: Floats) -> Floats:
    """Return the second moments of (1, p, y) of each record, shape (records, 5).

    The moments of a record are sqrt(2) p, sqrt(2) y, p^2, sqrt(2) p y and y^2. With the factor
    sqrt(2), the L2 norm of these five numbers is the Frobenius norm of the 3 x 3 matrix of second
    moments without its entry 1 * 1.

    Parameters
    ----------
    predictions, targets
        In [-1, 1], shape (records,).
    """
    moments = [
        sqrt(2) * predictions,
        sqrt(2) * targets,
        predictions**2,
        sqrt(2) * predictions * targets,
        targets**2,
    ]
    return np.stack(moments, axis=1)
