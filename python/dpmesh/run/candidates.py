"""Non-private models that a baseline chooses from, by cross-validation inside its training records.

Candidates: the trivial predictor; linear models of scikit-learn on the standardized columns, and on
the same public features as the federation; and, where its loss is another one, the private
procedure with its noise off. Columns that are constant among the training records are dropped,
since nothing can be learned of them there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from dpmesh._extras import needed_by
from dpmesh._ragged import Indices, Numbers
from dpmesh.data import Dataset
from dpmesh.defaults import Sizes, choose
from dpmesh.kernels.linear_model import members
from dpmesh.problems import LinearProblem
from dpmesh.run.tasks import LearningTask, task_of_problem
from dpmesh.schedules import at
from dpmesh.tables import Columns
from dpmesh.tables.cells import Cells
from dpmesh.tables.features import COLUMNS, unit

__all__ = ["MOST_RECORDS", "NonPrivate", "non_private"]

MOST_RECORDS = 20_000
"""Records that a baseline learns from; of more it takes a stratified sample."""

FEWEST_RECORDS = 10
"""Records below which a site has the trivial predictor."""

FEWEST_OF_A_CLASS = 3
"""Records of its rarest class below which a site has the trivial predictor."""

FOLDS = 3

MANY_NUMBERS = 2_000_000
"""Records times features times outputs from which on one penalty and one fold must do."""

_AT_ONCE = 1 << 12
"""Test records that are scored at once."""

_INVERSE_PENALTIES = (0.01, 0.1, 1.0, 10.0)
_COUNT_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
_RIDGE_PENALTIES = np.logspace(-3, 4, 15)
_STANDARD = 1e-9
"""Spread below which a column is constant."""

Matrix: TypeAlias = Any
"""Records as rows: a dense array or a sparse matrix, shape (records, columns)."""

Scorer: TypeAlias = Callable[[Matrix], Numbers]
"""Scores of records, shape (records, outputs), as the losses of `dpmesh` define them."""

Fit: TypeAlias = Callable[[Matrix, Cells], Scorer]
"""Learns from records and labels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NonPrivate:
    """Scores of the chosen models on the test records.

    Parameters
    ----------
    single_sites
        Scores of the model of each node, shape (test records, outputs) each.
    centralized
        Scores of the model of all nodes' records, shape (test records, outputs).
    sampled
        True if the model of all records learned from a sample of them.
    """

    single_sites: tuple[Numbers, ...]
    centralized: Numbers
    sampled: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class _View:
    """One representation of all records.

    Parameters
    ----------
    train, test
        Training and test records.
    by_intercept
        Whether rows begin with an intercept and were divided by their norms, which it tells.
    """

    train: Matrix
    test: Matrix
    by_intercept: bool = False

    def learned(self, records: Indices) -> Matrix:
        """Return some of the training records."""
        rows = self.train[records]
        return _by_intercept(rows) if self.by_intercept else rows

    def test_scores(self, scorer: Scorer) -> Numbers:
        """Return the scores of the test records, which are read in blocks."""
        scores = []
        for first in range(0, self.test.shape[0], _AT_ONCE):
            rows = self.test[first : first + _AT_ONCE]
            scores.append(scorer(_by_intercept(rows) if self.by_intercept else rows))
        return np.concatenate(scores)


def non_private(
    problem: LinearProblem, columns: tuple[Matrix, Matrix] | None = None, *, quick: bool = False
) -> NonPrivate:
    """Choose and train a model of each node and one of all records, and score the test records.

    Parameters
    ----------
    problem
        A linear problem with test records.
    columns
        The encoded columns of training and test records, without further features; None recovers
        them where the features are the columns, and uses the features otherwise.
    quick
        Whether one penalty and one fold must do, also for small sites.

    Raises
    ------
    ModuleNotFoundError
        Without scikit-learn (extra ``data``).
    """
    with needed_by("baselines"):
        import_module("sklearn.linear_model")
    assert problem.test is not None
    views = _views(problem, columns)
    groups = [np.asarray(part, np.int64) for part in problem.partition]
    all_records = np.concatenate(groups)
    with (
        threadpool_limits(limits=1),  # many small fits, which threads only slow down
        import_module("sklearn").config_context(
            assume_finite=True,
            skip_parameter_validation=True,  # all fits are of checked records
        ),
    ):
        single_sites = tuple(
            _scores_of_best(problem, views, group, quick=quick) for group in groups
        )
        centralized = single_sites[0]
        if len(groups) > 1:
            centralized = _scores_of_best(problem, views, all_records, quick=quick)
    return NonPrivate(
        single_sites=single_sites, centralized=centralized, sampled=len(all_records) > MOST_RECORDS
    )


def _views(problem: LinearProblem, columns: tuple[Matrix, Matrix] | None) -> list[_View]:
    """Return the columns, and the features where they are others."""
    assert problem.test is not None
    assert problem.outline is not None
    outline = problem.outline.columns
    features = _View(
        train=problem.train.features,
        test=problem.test.features,
        by_intercept=isinstance(outline, Columns) and outline.intercept,
    )
    if columns is None:
        return [features]
    train_columns, test_columns = columns
    plain = _View(train=train_columns, test=test_columns)
    if isinstance(outline, Columns) and outline.features == COLUMNS:
        return [plain]
    return [plain, features]


def _by_intercept(features: Matrix) -> Matrix:
    """Return features divided by their intercept, which was 1 before records had norm 1."""
    return features[:, 1:] / features[:, :1]


def _scores_of_best(
    problem: LinearProblem, views: Sequence[_View], records: Indices, *, quick: bool
) -> Numbers:
    """Choose a model of these records by cross-validation; return its scores of test records."""
    outline = problem.outline
    task = task_of_problem(problem)
    assert outline is not None
    records = _sample(records, problem.train.labels, task)
    labels = problem.train.labels[records]
    trivial = task.trivial_scores(outline, labels)
    test_records = views[0].test.shape[0]
    trivial_of_test = np.tile(trivial, (test_records, 1))
    if _is_trivial(labels, task):
        return trivial_of_test
    outputs = max(problem.classes or 1, 1)
    features = views[-1].train.shape[1]
    is_small = not quick and len(records) * features * outputs <= MANY_NUMBERS
    folds = _folds(labels, task)
    if not is_small:
        folds = folds[:1]
    validated = np.concatenate(folds)

    def quality(scores: Numbers) -> float:
        """Return the main measure of scores of the records in all folds."""
        measures = task.measures(outline, scores, labels[validated])
        return next(iter(measures.values()))

    best_quality = quality(np.tile(trivial, (len(validated), 1)))
    best: tuple[_View, Fit] | None = None
    for view in views:
        rows = view.learned(records)
        outside = [_without(rows, labels, fold) for fold in folds]
        inside = [rows[fold] for fold in folds]
        for fit in _fits(problem, task, outputs, is_small):
            scores_of_folds = []
            for training, validation_rows in zip(outside, inside, strict=True):
                scorer = fit(*training)
                scores_of_folds.append(scorer(validation_rows))
            fit_quality = quality(np.concatenate(scores_of_folds))
            if fit_quality > best_quality:
                best_quality = fit_quality
                best = (view, fit)
    if best is None:
        return trivial_of_test
    view, fit = best
    return view.test_scores(fit(view.learned(records), labels))


def _is_trivial(labels: Cells, task: LearningTask) -> bool:
    """Return whether there is too little to learn from."""
    if len(labels) < FEWEST_RECORDS:
        return True
    if task.name != "classes":
        return False
    counts = np.unique(labels, return_counts=True)[1]
    return len(counts) < 2 or int(counts.min()) < FEWEST_OF_A_CLASS


def _sample(records: Indices, labels: Cells, task: LearningTask) -> Indices:
    """Return at most `MOST_RECORDS`, the same share of each class."""
    if len(records) <= MOST_RECORDS:
        return records
    order = np.random.default_rng(0).permutation(len(records))
    if task.name == "classes":
        order = order[np.argsort(labels[records[order]], kind="stable")]
    evenly_spaced = np.linspace(0, len(records) - 1, MOST_RECORDS).astype(np.int64)
    return np.sort(records[order[evenly_spaced]])


def _folds(labels: Cells, task: LearningTask) -> list[Indices]:
    """Return places of records, the same share of each class in each fold."""
    order = np.random.default_rng(0).permutation(len(labels))
    if task.name == "classes":
        order = order[np.argsort(labels[order], kind="stable")]
    return [np.sort(order[first::FOLDS]) for first in range(FOLDS)]


def _without(rows: Matrix, labels: Cells, fold: Indices) -> tuple[Matrix, Cells]:
    """Return the records that are not in a fold."""
    remaining = np.setdiff1d(np.arange(len(labels)), fold)
    return rows[remaining], labels[remaining]


def _fits(problem: LinearProblem, task: LearningTask, outputs: int, is_small: bool) -> list[Fit]:
    """Return the candidates of a task, one for each penalty."""
    if task.name == "numbers":
        return [_ridge, _procedure(problem)]
    if task.name == "counts":
        poisson = [_poisson(penalty) for penalty in _COUNT_PENALTIES]
        return [_count_ridge, *poisson, _procedure(problem)]
    penalties = _INVERSE_PENALTIES if is_small else (1.0,)
    if task.name == "labels":
        return [_labels(penalty, outputs) for penalty in penalties]
    assert problem.outline is not None
    balanced = problem.outline.shares is not None
    return [_classes(penalty, outputs, balanced) for penalty in penalties]


def _scaler(rows: Matrix) -> Callable[[Matrix], Matrix]:
    """Return a function that standardizes columns; those that are constant here are dropped."""
    if hasattr(rows, "tocsr"):
        return lambda records: records  # columns of 0 alone have no weight
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    rounding = 16 * np.finfo(rows.dtype).eps * np.abs(mean)
    varying = deviation > np.maximum(_STANDARD, rounding)
    mean, deviation = mean[varying], deviation[varying]

    def standardized(records: Matrix) -> Matrix:
        """Return a copy of the columns that vary, at mean 0 and deviation 1."""
        columns = records[:, varying]
        columns -= mean
        columns /= deviation
        return columns

    return standardized


def _classes(inverse_penalty: float, outputs: int, balanced: bool) -> Fit:
    """Return a logistic regression of classes, which are -1 and +1 or places among classes.

    With `balanced`, all classes weigh the same, as in balanced accuracy.
    """

    def fit(rows: Matrix, labels: Cells) -> Scorer:
        scale = _scaler(rows)
        weights = "balanced" if balanced else None
        model = _logistic(inverse_penalty, weights).fit(scale(rows), labels)

        def scores(records: Matrix) -> Numbers:
            decision = model.decision_function(scale(records))
            if decision.ndim == 1:
                decision = np.stack([-decision, decision], axis=1) / 2
            if outputs == 1:
                return np.asarray(decision[:, 1:] - decision[:, :1])
            of_all_classes = np.full((len(decision), outputs), -1e9)
            of_all_classes[:, model.classes_.astype(int)] = decision
            return of_all_classes

        return scores

    return fit


def _labels(inverse_penalty: float, outputs: int) -> Fit:
    """Return a logistic regression of each label, or its constant value."""

    def fit(rows: Matrix, labels: Cells) -> Scorer:
        scale = _scaler(rows)
        scaled = scale(rows)
        has_label = members(labels, outputs).T
        models = []
        for column in has_label:
            varies = len(np.unique(column)) > 1
            models.append(_logistic(inverse_penalty).fit(scaled, column) if varies else None)

        def scores(records: Matrix) -> Numbers:
            columns = []
            for model, column in zip(models, has_label, strict=True):
                if model is None:
                    constant = 1.0 if column[0] else -1.0
                    columns.append(np.full(records.shape[0], constant))
                else:
                    columns.append(model.decision_function(scale(records)))
            return np.stack(columns, axis=1)

        return scores

    return fit


def _logistic(inverse_penalty: float, class_weight: str | None = None) -> Any:
    """Return scikit-learn's logistic regression, not fitted yet."""
    linear = import_module("sklearn.linear_model")
    return linear.LogisticRegression(
        C=inverse_penalty, class_weight=class_weight, max_iter=1000, tol=1e-3
    )


def _ridge(rows: Matrix, labels: Cells) -> Scorer:
    """Return a ridge whose penalty is chosen by leaving out one record at a time."""
    scale = _scaler(rows)
    linear = import_module("sklearn.linear_model")
    scaled = scale(_dense(rows))
    if not scaled.shape[1]:
        mean = float(labels.mean())
        return lambda records: np.full((records.shape[0], 1), mean)
    model = linear.RidgeCV(_RIDGE_PENALTIES).fit(scaled, labels)
    return lambda records: np.asarray(model.predict(scale(records))).reshape(-1, 1)


def _dense(rows: Matrix) -> Matrix:
    """Return rows as a dense array."""
    if hasattr(rows, "toarray"):
        return rows.toarray()
    return rows


def _count_ridge(rows: Matrix, labels: Cells) -> Scorer:
    """Return a ridge of shares of the bound, whose scores are their logarithms."""
    shares = _ridge(rows, labels)
    return lambda records: np.log(np.clip(shares(records), 1e-12, 1.0))


def _poisson(penalty: float) -> Fit:
    """Return a Poisson regression of shares of the bound."""

    def fit(rows: Matrix, labels: Cells) -> Scorer:
        mean = float(labels.mean())
        if mean <= 0:
            return lambda records: np.full((records.shape[0], 1), np.log(1e-12))
        scale = _scaler(rows)
        linear = import_module("sklearn.linear_model")
        model = linear.PoissonRegressor(alpha=penalty, max_iter=300).fit(scale(rows), labels / mean)

        def scores(records: Matrix) -> Numbers:
            shares = mean * model.predict(scale(records))
            return np.asarray(np.log(np.clip(shares, 1e-12, 1.0))).reshape(-1, 1)

        return scores

    return fit


def _procedure(problem: LinearProblem) -> Fit:
    """Return the private procedure with its noise off: clipped gradient descent by the rule.

    Records have an intercept and norm 1, as for the private one, without the columns that are
    constant among the training records.
    """

    def fit(rows: Matrix, labels: Cells) -> Scorer:
        varying = _dense(rows).std(axis=0) > _STANDARD

        def encoded(records: Matrix) -> Numbers:
            columns = _dense(records)[:, varying]
            intercept = np.ones((len(columns), 1))
            return unit(np.concatenate([intercept, columns], axis=1))

        alone = LinearProblem(
            Dataset(encoded(rows), labels),
            [np.arange(len(labels))],
            problem.loss,
            feature_norm=1.0,
            label_bound=problem.label_bound,
        )
        rule = task_of_problem(problem).rule
        descent = choose(Sizes.of(alone), epsilon=None, delta=1e-5, task=rule)
        algorithm = descent.algorithm
        step_size = at(algorithm.step_size, 1)
        model = alone.zeros()
        for _ in range(descent.rounds):
            model = alone.step(
                model, step_size, alone.everything, clipping_norm=algorithm.clipping_norm
            )
        return lambda records: np.asarray(encoded(records) @ model.T)

    return fit
