"""Learning tasks: for each kind of label its losses, measures, baselines and names.

`TASKS` has an entry for each task: classes, several labels, numbers and counts. Estimators,
baselines, verdicts and report pages read it. Every field is required, so that a new task is
complete. An *outline* has the public facts about a model: its inputs, outputs and loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from dpmesh._arrays import FloatArray
from dpmesh._ragged import Numbers
from dpmesh.defaults import Task
from dpmesh.kernels.linear_model import Loss, members
from dpmesh.problems import LinearProblem
from dpmesh.run.measures import Measures, classification, of_labels, regression
from dpmesh.tables.cells import Cells
from dpmesh.tables.kinds import Count
from dpmesh.tables.models import Model, Outline

__all__ = ["BY_LOSS", "TASKS", "LearningTask", "TaskName", "measured", "task_of", "task_of_problem"]

TaskName = Literal["classes", "labels", "numbers", "counts"]
"""Names of tasks: one class, several binary labels, a number, or a count of each record."""

Scores: TypeAlias = FloatArray
"""Scores of test records, shape (records, outputs)."""

Labels: TypeAlias = Cells
"""Labels as models learn them, shape (records,)."""

Utility: TypeAlias = Callable[[Model, Cells, Cells], Numbers]
"""Utility of each record from a model, its predictions and the true labels, shape (records,)."""


@dataclass(frozen=True, kw_only=True)
class LearningTask:
    """Kind of label that a record has, with everything that depends on it.

    Parameters
    ----------
    name
        Key in `TASKS`.
    losses
        Losses of linear models for this task.
    defaults_task
        Task whose tuned constants `dpmesh.defaults.choose` uses for these labels.
    metric
        Main measure, which verdicts compare: ``"accuracy"`` or ``"R²"``.
    trivial
        Name, in tables, of the baseline that ignores features: majority class, or mean.
    noun
        Kind of label in the first lines of ``dpmesh fit`` and on its page.
    range_parameter
        Estimator parameter that states the public range of the label; warnings name it.
    utility
        Utility of each held-out record for `dpmesh.sklearn.tune`. Utilities span at most 1, so that
        replacing one record moves their sum by at most 1.
    measures
        Function that measures predictions, from the outline, scores of shape (records, outputs) and
        labels as models learn them. It returns the measures, the main one first.
    trivial_scores
        Function that returns the scores of the `trivial` baseline, shape (outputs,), from the
        outline and the training labels.
    """

    name: TaskName
    losses: tuple[Loss, ...]
    defaults_task: Task
    metric: str
    trivial: str
    noun: str
    range_parameter: str
    utility: Utility
    measures: Callable[[Outline, Scores, Labels], Measures]
    trivial_scores: Callable[[Outline, Labels], Numbers]


def task_of(outline: Outline) -> LearningTask:
    """Return the task of a model with this outline."""
    return BY_LOSS[outline.loss]


def task_of_problem(problem: LinearProblem) -> LearningTask:
    """Return the task by which a problem's models are measured.

    It follows from the loss, with one exception: if the test labels are all -1 or +1 and the
    outline states no range of a target, the task is classification under any loss.
    """
    assert problem.outline is not None
    by_loss = BY_LOSS[problem.loss]
    if problem.outline.target is None and by_loss.name != "labels" and problem.classifies:
        return TASKS["classes"]
    return by_loss


def measured(problem: LinearProblem, params: FloatArray) -> Measures:
    """Measure one linear model on the test records of a problem.

    Parameters
    ----------
    params
        Parameters of the model, shape (dim,).
    """
    assert problem.outline is not None
    assert problem.test is not None
    scores = scores_of_test(problem, params)
    return task_of_problem(problem).measures(problem.outline, scores, problem.test.labels)


def scores_of_test(problem: LinearProblem, params: FloatArray) -> Scores:
    """Return the scores of one linear model on the test records of a problem.

    Parameters
    ----------
    params
        Parameters of the model, shape (dim,). After private centering the last ones are the centre.
    """
    return problem.scores_of_test(params.reshape(-1))


def trivial_measures(problem: LinearProblem) -> Measures:
    """Measure the trivial predictor of all training records on the test records.

    R² is 0 by definition, since it compares with the mean of the test records.
    """
    assert problem.outline is not None
    assert problem.test is not None
    task = task_of_problem(problem)
    if task.metric == "R²":
        return {"R²": 0.0}
    constant = task.trivial_scores(problem.outline, problem.train.labels[problem.full_batches[1]])
    scores = np.tile(constant, (problem.test.records, 1))
    return task.measures(problem.outline, scores, problem.test.labels)


def _weighted_hits(model: Model, predicted: Cells, truth: Cells) -> Numbers:
    """Return 1 for each correct class, or the weight of the class if its public share is stated."""
    true_codes = model.class_kind.codes(np.asarray(truth))
    hits = (true_codes == model.class_kind.codes(np.asarray(predicted))).astype(np.float64)
    weights = model.class_weights
    if weights is None:
        return np.asarray(hits)
    weights_of_records = weights[np.maximum(true_codes, 0)]
    is_listed = true_codes >= 0
    return np.asarray(hits * np.where(is_listed, weights_of_records, 0.0))


def _share_of_labels(_: Model, predicted: Cells, truth: Cells) -> Numbers:
    """Return the share of each record's labels that is correct."""
    is_correct = np.asarray(predicted) == np.asarray(truth)
    return np.asarray(is_correct.mean(axis=1), np.float64)


def _negative_squared_error(model: Model, predicted: Cells, truth: Cells) -> Numbers:
    """Return minus the squared error in units of the public range; -1 where one is not finite."""
    assert model.target is not None
    low, high = model.target.ends
    predicted = np.clip(np.asarray(predicted, np.float64), low, high)
    truth = np.clip(np.asarray(truth, np.float64), low, high)
    error = (predicted - truth) / (high - low)
    return np.asarray(-np.nan_to_num(np.square(error), nan=1.0))


def _class_measures(outline: Outline, scores: Scores, labels: Labels) -> Measures:
    """Measure classes; labels are indices of classes, or -1 and +1 if a record has one score."""
    if scores.shape[1] == 1:
        scores = np.concatenate([-scores, scores], axis=1)
        labels = (labels > 0).astype(int)
    return classification(scores, labels, balanced=outline.shares is not None)


def _most_frequent_class(outline: Outline, labels: Labels) -> Numbers:
    """Return scores that predict the most frequent class."""
    is_signed = outline.outputs == 1 or bool((labels < 0).any())
    class_indices = labels > 0 if is_signed else labels
    counts = np.bincount(np.asarray(class_indices, np.int64), minlength=max(outline.outputs, 2))
    if is_signed:
        return np.array([1.0 if counts[1] > counts[0] else -1.0])
    scores = np.zeros(len(counts))
    scores[int(counts.argmax())] = 1
    return scores


def _label_measures(outline: Outline, scores: Scores, labels: Labels) -> Measures:
    """Measure several labels, which are bit sets."""
    assert outline.classes is not None
    return of_labels(scores, labels, outline.classes)


def _most_frequent_labels(outline: Outline, labels: Labels) -> Numbers:
    """Return scores that predict the more frequent value of each label."""
    assert outline.classes is not None
    return np.asarray(members(labels, len(outline.classes)).mean(axis=0) - 0.5)


def _number_measures(outline: Outline, scores: Scores, labels: Labels) -> Measures:
    """Measure predictions, clipped to the public range of the target if it has one."""
    predicted = scores[:, 0]
    if outline.target is not None:
        predicted = np.clip(predicted, -1, 1)
    return regression(predicted, labels)


def _mean(_: Outline, labels: Labels) -> Numbers:
    """Return the mean target."""
    return np.array([labels.mean()])


def _count_measures(_: Outline, scores: Scores, labels: Labels) -> Measures:
    """Measure expected counts: scores are logarithms of shares of the public bound."""
    return regression(Count(high=1.0).expected(scores[:, 0]), labels)


def _log_mean(_: Outline, labels: Labels) -> Numbers:
    """Return the logarithm of the mean count over its bound."""
    mean = max(float(labels.mean()), 1e-12)  # a mean of 0 has no logarithm
    return np.array([np.log(mean)])


TASKS: dict[TaskName, LearningTask] = {
    "classes": LearningTask(
        name="classes",
        losses=("softmax", "logistic", "hinge"),
        defaults_task="classification",
        metric="accuracy",
        trivial="majority class",
        noun="classes",
        range_parameter="classes",
        utility=_weighted_hits,
        measures=_class_measures,
        trivial_scores=_most_frequent_class,
    ),
    "labels": LearningTask(
        name="labels",
        losses=("multilabel",),
        defaults_task="classification",
        metric="accuracy",
        trivial="majority class of each label",
        noun="several labels",
        range_parameter="classes",
        utility=_share_of_labels,
        measures=_label_measures,
        trivial_scores=_most_frequent_labels,
    ),
    "numbers": LearningTask(
        name="numbers",
        losses=("squared", "absolute", "huber"),
        defaults_task="regression",
        metric="R²",
        trivial="mean",
        noun="a number (regression)",
        range_parameter="target_range",
        utility=_negative_squared_error,
        measures=_number_measures,
        trivial_scores=_mean,
    ),
    "counts": LearningTask(
        name="counts",
        losses=("poisson",),
        defaults_task="counts",
        metric="R²",
        trivial="mean",
        noun="a count (Poisson regression)",
        range_parameter="counts",
        utility=_negative_squared_error,
        measures=_count_measures,
        trivial_scores=_log_mean,
    ),
}

BY_LOSS: dict[Loss, LearningTask] = {loss: task for task in TASKS.values() for loss in task.losses}
"""The task of each loss of a linear model."""

assert {*TASKS} == {*get_args(TaskName)}
