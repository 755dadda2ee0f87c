"""Measures of a model on test records: accuracy, balanced accuracy and AUC, or R².

`Measures` maps the name of a measure to its value. The first one is the main measure, which
verdicts compare.
"""

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
"""Values of measures by name; the main measure comes first."""


def classification(scores: FloatArray, labels: Indices, *, balanced: bool = False) -> Measures:
    """Return accuracy, balanced accuracy and, for two classes, the area under the ROC curve.

    Parameters
    ----------
    scores
        Scores, shape (records, classes); the class with the largest score is predicted.
    labels
        Indices of true classes, shape (records,). Balanced accuracy is the mean recall of the
        classes among them. If one of two classes is missing, AUC is NaN.
    balanced
        True to put balanced accuracy first.
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
    """Return the measures of a model with several labels: means over labels, and each accuracy.

    Parameters
    ----------
    scores
        Scores, shape (records, labels): label k is predicted where its score is above 0.
    sets
        True labels of records as bit sets, shape (records,): label k is bit k.
    names
        Names of the labels, which name further measures such as ``"accuracy (ill)"``.
    """
    has_label = members(sets, len(names)).T
    measures_by_label = []
    for label_scores, truth in zip(scores.T, has_label, strict=True):
        scores_of_two_classes = np.stack([np.zeros_like(label_scores), label_scores], axis=1)
        measures_by_label.append(classification(scores_of_two_classes, truth.astype(int)))
    means: Measures = {}
    for metric in measures_by_label[0]:
        values = [measures[metric] for measures in measures_by_label]
        finite = [value for value in values if not isnan(value)]  # AUC needs both classes
        means[metric] = float(np.mean(finite)) if finite else nan
    for name, measures in zip(names, measures_by_label, strict=True):
        means[f"accuracy ({name})"] = measures["accuracy"]
    return means


def _area(scores: FloatArray, positive: Flags) -> float:
    """Return the area under the ROC curve; NaN without positive or without negative records.

    It is the probability that a positive record has a higher score than a negative one (ties count
    half), which is computed from the sum of the ranks of positive records (Mann-Whitney U).
    """
    positives = int(positive.sum())
    pairs = positives * (len(positive) - positives)
    if not pairs:
        return nan
    _, score_index, ties = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(ties) - (ties - 1) / 2
    rank_sum = float(mean_ranks[score_index][positive].sum())
    smallest_rank_sum = positives * (positives + 1) / 2
    return (rank_sum - smallest_rank_sum) / pairs


def regression(predicted: FloatArray, targets: FloatArray) -> Measures:
    """Return R²: 1 less the mean squared error over the variance of the targets."""
    variance = float(np.square(targets - targets.mean()).mean())
    squared_error = float(np.square(predicted - targets).mean())
    return {"R²": 1 - squared_error / (variance or 1.0)}


def shown(metric: str, value: float) -> str:
    """Return a measure as text: accuracies in percent, others with three decimals."""
    if not np.isfinite(value):
        return "-"
    if "accuracy" in metric:
        return f"{value:.1%}"
    return f"{value:.3f}"


def shown_difference(metric: str, low: float, high: float) -> str:
    """Return an interval of differences as text: of accuracies in percentage points."""
    if "accuracy" in metric:
        return f"{100 * low:.1f} to {100 * high:.1f} points"
    return f"{low:.3f} to {high:.3f}"


def shown_width(metric: str, width: float) -> str:
    """Return a width of an interval as text: of accuracies in percentage points."""
    if "accuracy" in metric:
        return f"{100 * width:.1f} points"
    return f"{width:.3f}"
