"""Measures of a model on test records: accuracy, balanced accuracy and AUC, or R²."""

from __future__ import annotations

from math import isnan, nan

import numpy as np

from dpmesh._arrays import FloatArray
from dpmesh._ragged import Flags, Indices
from dpmesh.kernels.linear_model import members
from dpmesh.tables.cells import Cells

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
"""Measures by name; verdicts are about the first one."""


def classification(scores: FloatArray, labels: Indices, *, balanced: bool = False) -> Measures:
    """Return accuracy, balanced accuracy and, for two classes, the area under the ROC curve.

    Parameters
    ----------
    scores
        Shape (records, classes).
    labels
        Shape (records,), integers from 0 on. Balanced accuracy is the mean, over the classes among
        them, of the share that is recognised; without one of two classes there is no AUC (NaN).
    balanced
        If true, balanced accuracy comes first.
    """
    correct = scores.argmax(axis=1) == labels
    recalls = [correct[labels == label].mean() for label in np.unique(labels)]
    accuracy = float(correct.mean())
    balanced_accuracy = float(np.mean(recalls))
    if balanced:
        measures = {"balanced accuracy": balanced_accuracy, "accuracy": accuracy}
    else:
        measures = {"accuracy": accuracy, "balanced accuracy": balanced_accuracy}
    if scores.shape[1] == 2:
        measures["AUC"] = _area(scores[:, 1] - scores[:, 0], labels == 1)
    return measures


def of_labels(scores: FloatArray, sets: Indices, names: Cells) -> Measures:
    """Return the means over all labels of the measures of each, and the accuracy of each.

    Parameters
    ----------
    scores
        Shape (records, labels): above 0 for those that a record is said to have.
    sets
        The labels that records have, shape (records,): label k is bit k.
    names
        Names of the labels.
    """
    has_label = members(sets, len(names)).T
    measures_by_label = []
    for label_scores, has in zip(scores.T, has_label, strict=True):
        two_classes = np.stack([np.zeros_like(label_scores), label_scores], axis=1)
        measures_by_label.append(classification(two_classes, has.astype(int)))
    means: Measures = {}
    for metric in measures_by_label[0]:
        values = [measures[metric] for measures in measures_by_label]
        finite = [value for value in values if not isnan(value)]  # AUC needs both classes
        means[metric] = float(np.mean(finite)) if finite else nan
    for name, measures in zip(names, measures_by_label, strict=True):
        means[f"accuracy ({name})"] = measures["accuracy"]
    return means


def _area(scores: FloatArray, positive: Flags) -> float:
    """Return the chance that a positive record scores above a negative one; ties count half."""
    positives = int(positive.sum())
    pairs = positives * (len(positive) - positives)
    if not pairs:
        return nan
    _, place, ties = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(ties) - (ties - 1) / 2
    rank_sum = float(mean_ranks[place][positive].sum())
    smallest_rank_sum = positives * (positives + 1) / 2
    return (rank_sum - smallest_rank_sum) / pairs


def regression(predicted: FloatArray, targets: FloatArray) -> Measures:
    """Return R²: 1 less the mean squared error over the variance of the targets."""
    variance = float(np.square(targets - targets.mean()).mean())
    squared_error = float(np.square(predicted - targets).mean())
    return {"R²": 1 - squared_error / (variance or 1.0)}


def shown(metric: str, value: float) -> str:
    """Return a measure as tables show it: accuracies in percent, others as they are."""
    if not np.isfinite(value):
        return "-"
    if "accuracy" in metric:
        return f"{value:.1%}"
    return f"{value:.3f}"


def shown_difference(metric: str, low: float, high: float) -> str:
    """Return an interval of differences: of accuracies in points of percent."""
    if "accuracy" in metric:
        return f"{100 * low:.1f} to {100 * high:.1f} points"
    return f"{low:.3f} to {high:.3f}"


def shown_width(metric: str, width: float) -> str:
    """Return the size of a difference: of accuracies in points of percent."""
    if "accuracy" in metric:
        return f"{100 * width:.1f} points"
    return f"{width:.3f}"
