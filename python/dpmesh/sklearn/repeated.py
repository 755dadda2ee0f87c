"""Repeated fits of the same records by one estimator and its clones in this process.

scikit-learn's calibration, bagging, one-vs-rest and cross-validation clone an estimator, and fit
each clone with the whole epsilon. By sequential composition the epsilons add up. `_histories`
holds one history of fits for an estimator and all its clones: per fit, the *fingerprints* of its
records (`fingerprints_of`) and its epsilon. `PrivateEstimator.fit` asks `earlier_fits` for the fits
that shared a record, and states the total in its report. `evaluate` and `tune` count their fits
themselves, and give each clone a new history (`with_new_history`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator

__all__ = [
    "EarlierFits",
    "Fingerprints",
    "earlier_fits",
    "fingerprints_of",
    "share_history",
    "with_new_history",
]

Fingerprints: TypeAlias = npt.NDArray[np.float64]
"""One number for each distinct record, sorted."""

_DIGITS = 9
"""Decimal digits of a fingerprint. Matrix products of different sizes round further digits
differently for the same record."""

_BLOCK = 4096
"""Number of records that are multiplied at once."""


@dataclass(frozen=True, kw_only=True)
class EarlierFits:
    """Earlier fits that used at least one record of this fit.

    Parameters
    ----------
    count
        Number of earlier fits.
    epsilon
        Sum of their epsilons.
    """

    count: int
    epsilon: float


EstimatorT = TypeVar("EstimatorT", bound=BaseEstimator)


@dataclass
class _History:
    """Fingerprints of the records, and the epsilon, of each fit."""

    fits: list[tuple[Fingerprints, float]] = field(default_factory=list)


_histories: WeakKeyDictionary[BaseEstimator, _History] = WeakKeyDictionary()
"""By estimator. No attribute of an estimator: a pickle must not hold fingerprints of records."""


def share_history(clone: BaseEstimator, original: BaseEstimator) -> None:
    """Let a clone share the history of its original."""
    _histories[clone] = _histories.setdefault(original, _History())


def with_new_history(clone: EstimatorT) -> EstimatorT:
    """Give a clone a new, empty history and return the clone; the caller counts its fits."""
    _histories[clone] = _History()
    return clone


def earlier_fits(
    estimator: BaseEstimator, fingerprints: Fingerprints, epsilon: float
) -> EarlierFits:
    """Add a fit to the history, and return the earlier fits that shared a record with it.

    Parameters
    ----------
    estimator
        The estimator that is fitted.
    fingerprints
        Fingerprints of the records, see `fingerprints_of`.
    epsilon
        Epsilon of this fit.
    """
    history = _histories.setdefault(estimator, _History())
    overlapping_epsilons = []
    for earlier_fingerprints, earlier_epsilon in history.fits:
        if np.isin(fingerprints, earlier_fingerprints).any():
            overlapping_epsilons.append(earlier_epsilon)
    history.fits.append((fingerprints, epsilon))
    return EarlierFits(count=len(overlapping_epsilons), epsilon=float(sum(overlapping_epsilons)))


def fingerprints_of(features: Any) -> Fingerprints:
    """Return the product of each distinct record with a fixed direction.

    A fit that centers its records in place must compute them before: the centre differs from fit
    to fit.

    Parameters
    ----------
    features
        Encoded records, shape (records, features): an array, or features in 8 bits.
    """
    direction = np.random.Philox(key=0).random_raw(features.shape[1]) / 2.0**64 - 0.5
    products = np.empty(len(features))
    for first in range(0, len(features), _BLOCK):
        block = features[first : first + _BLOCK]
        products[first : first + _BLOCK] = block.astype(np.float64) @ direction
    return np.unique(products.round(_DIGITS))
