"""What a model reaches on test records: accuracy, balanced accuracy and AUC, or R²."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._ragged import Flags
from dpmesh.kernels.linear_model import members

__all__ = [
    "Measures",
    "classification",
    "of_labels",
    "regression",
    "shown",
    "shown_difference",
    "shown_width",
]

Measures = dict[str, float]
"""By name; the first one is what verdicts are about."""


def classification(
    scores: npt.NDArray[Any], labels: npt.NDArray[Any], *, balanced: bool = False
) -> Measures:
    """Return accuracy, balanced accuracy and, for two classes, the area under the ROC curve.

    Parameters
    ----------
    scores
        Shape (records, classes).
    labels
        Shape (records,), integers from 0 on. Balanced accuracy is the mean, over the classes among
        them, of the share that is recognised; without one of two classes there is no AUC (NaN).
    balanced
        Whether balanced accuracy comes first.
    """
    right = scores.argmax(axis=1) == labels
    recognised = [right[labels == label].mean() for label in np.unique(labels)]
    found = {"accuracy": float(right.mean()), "balanced accuracy": float(np.mean(recognised))}
    found = dict(reversed(found.items())) if balanced else found
    if scores.shape[1] == 2:
        found["AUC"] = _area(scores[:, 1] - scores[:, 0], labels == 1)
    return found


def of_labels(
    scores: npt.NDArray[Any], sets: npt.NDArray[Any], names: npt.NDArray[Any]
) -> Measures:
    """Return the means over all labels of the measures of each, and the accuracy of each.

    Parameters
    ----------
    scores
        Shape (records, labels): above 0 for those that a record is said to have.
    sets
        The labels that records have, shape (records,): label k is bit k.
    names
        Of the labels.
    """
    pairs = zip(scores.T, members(sets, len(names)).T, strict=True)
    each = [classification(np.stack([0 * own, own], axis=1), has.astype(int)) for own, has in pairs]
    known = {name: [one[name] for one in each if one[name] == one[name]] for name in each[0]}
    found = {name: float(np.mean(own)) if own else float("nan") for name, own in known.items()}
    accuracies = (one["accuracy"] for one in each)
    return found | {f"accuracy ({n})": own for n, own in zip(names, accuracies, strict=True)}


def _area(scores: npt.NDArray[Any], positive: Flags) -> float:
    """Return the chance that a positive record scores above a negative one; ties count half."""
    count = int(positive.sum())
    pairs = count * (len(positive) - count)
    if not pairs:
        return float("nan")
    _, place, ties = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    return (float(ranks[positive].sum()) - count * (count + 1) / 2) / pairs


def regression(predicted: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Measures:
    """Return R²: 1 less the mean squared error over the variance of the targets."""
    spread = float(np.square(targets - targets.mean()).mean())
    return {"R²": 1 - float(np.square(predicted - targets).mean()) / (spread or 1.0)}


def shown(metric: str, value: float) -> str:
    """Return a measure as tables show it: accuracies in percent, others as they are."""
    if not np.isfinite(value):
        return "-"
    return f"{value:.1%}" if "accuracy" in metric else f"{value:.3f}"


def shown_difference(metric: str, low: float, high: float) -> str:
    """Return an interval of differences: of accuracies in points of percent."""
    if "accuracy" in metric:
        return f"{100 * low:.1f} to {100 * high:.1f} points"
    return f"{low:.3f} to {high:.3f}"


def shown_width(metric: str, width: float) -> str:
    """Return the size of a difference: of accuracies in points of percent."""
    return f"{100 * width:.1f} points" if "accuracy" in metric else f"{width:.3f}"
