"""Repeated fits of the same records by one estimator and its clones in this process.

A host library, such as scikit-learn's calibration, bagging, one-vs-rest or cross-validation, clones
an estimator and fits every clone at the whole epsilon. Clones share one history here, so that each
fit knows how many earlier ones saw some of its records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator

from dpmesh.tables.cells import Cells

__all__ = ["EarlierFits", "apart", "earlier_fits", "same_history"]

_DIGITS = 9
"""Decimal digits of a record's mark: what matrix products of other sizes round alike."""

_BLOCK = 4096
"""Records that are read at once."""


@dataclass(frozen=True, kw_only=True)
class EarlierFits:
    """Earlier fits that saw records of this one.

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
    """Marks of the records and the epsilon of each fit."""

    fits: list[tuple[npt.NDArray[np.float64], float]] = field(default_factory=list)


_histories: WeakKeyDictionary[BaseEstimator, _History] = WeakKeyDictionary()
"""By estimator. It is not part of estimators, so that no pickle holds marks of records."""


def same_history(clone: BaseEstimator, original: BaseEstimator) -> None:
    """Let a clone share the history of its original."""
    _histories[clone] = _histories.setdefault(original, _History())


def apart(clone: EstimatorT) -> EstimatorT:
    """Return a clone with a new history, whose caller counts its fits itself."""
    _histories[clone] = _History()
    return clone


def earlier_fits(estimator: BaseEstimator, features: Cells, epsilon: float) -> EarlierFits:
    """Record a fit, and return the earlier ones that saw some of its records.

    Parameters
    ----------
    estimator
        The estimator that fits.
    features
        Encoded records, shape (records, features).
    epsilon
        Epsilon of this fit.
    """
    history = _histories.setdefault(estimator, _History())
    marks = _marks(features)
    overlapping = [
        spent for earlier_marks, spent in history.fits if np.isin(marks, earlier_marks).any()
    ]
    history.fits.append((marks, epsilon))
    return EarlierFits(count=len(overlapping), epsilon=float(sum(overlapping)))


def _marks(features: Cells) -> npt.NDArray[np.float64]:
    """Return one number for each distinct record, sorted: a product with a fixed direction."""
    direction = np.random.Philox(key=0).random_raw(features.shape[1]) / 2.0**64 - 0.5
    products = np.empty(len(features))
    for first in range(0, len(features), _BLOCK):
        block = features[first : first + _BLOCK]
        products[first : first + _BLOCK] = block.astype(np.float64) @ direction
    return np.unique(products.round(_DIGITS))
