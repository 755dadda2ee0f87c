"""Non-private models of the baselines, chosen by cross-validation within the training records.

`non_private` chooses one model for each site and one for all records, for
`dpmesh.run.baselines.compute`. The candidates are:

- the trivial predictor: the most frequent class, or the mean target;
- linear models of scikit-learn, on the standardized columns and on the federation's features;
- for regressions and counts, the private training procedure without noise.

Columns that are constant among the training records are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from dpmesh._extras import needed_by
from dpmesh._memory import return_freed_memory
from dpmesh._ragged import Indices, Numbers
from dpmesh._rounded import RoundedFeatures
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
"""Largest number of records that a model learns from; of more, a stratified sample is drawn."""

FEWEST_RECORDS = 10
"""Number of records below which a site uses the trivial predictor."""

FEWEST_OF_A_CLASS = 3
"""Number of records of its rarest class below which a site uses the trivial predictor."""

FOLDS = 3
"""Number of folds of cross-validation."""

MANY_NUMBERS = 2_000_000
"""Records times features times outputs above which one penalty and one fold are tried."""

_BLOCK = 1 << 12
"""Number of test records that are scored at once."""

_INVERSE_PENALTIES = (0.01, 0.1, 1.0, 10.0)
"""Inverse L2 penalties C of logistic regressions."""

_COUNT_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
"""L2 penalties of Poisson regressions."""

_RIDGE_PENALTIES = np.logspace(-3, 4, 15)
"""L2 penalties of ridge regressions."""

_LEAST_DEVIATION = 1e-9
"""Standard deviation below which a column counts as constant."""

_LEAST_SHARE = 1e-12
"""Smallest expected share of the bound of a count, so that its logarithm is finite."""

_EXCLUDED = -1e9
"""Score of a class that is not among the training records of a site."""

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
class _Representation:
    """Features of all training and test records: the plain columns, or the federation's features.

    Parameters
    ----------
    train, test
        Training and test records, one row each.
    has_intercept
        True if the first feature is an intercept of 1 divided by the norm of the row, as all
        features are. Rows are then divided by it, which undoes the scaling.
    """

    train: Matrix
    test: Matrix
    has_intercept: bool = False

    def training_rows(self, records: Indices) -> Matrix:
        """Return the rows of some training records, without the scaling to norm 1."""
        rows = _rows(self.train, records)
        if not self.has_intercept:
            return rows
        unscaled = rows[:, 1:]
        unscaled /= rows[:, :1]  # in place: `rows` is a copy
        return unscaled

    def test_scores(self, scorer: Scorer) -> Numbers:
        """Return the scores of the test records, computed in blocks."""
        scores = []
        for first in range(0, self.test.shape[0], _BLOCK):
            rows = _rows(self.test, slice(first, first + _BLOCK))
            scores.append(scorer(self._unscaled(rows)))
        return np.concatenate(scores)

    def _unscaled(self, rows: Matrix) -> Matrix:
        """Return rows without intercept and scaling, if they have one."""
        if not self.has_intercept:
            return rows
        return rows[:, 1:] / rows[:, :1]


def _rows(features: Matrix, records: Indices | slice) -> Matrix:
    """Return some records of a matrix, those in 8 bits as float32."""
    if isinstance(features, RoundedFeatures):
        return features.rows(records, np.float32)
    return features[records]


def non_private(
    problem: LinearProblem, columns: tuple[Matrix, Matrix] | None = None, *, quick: bool = False
) -> NonPrivate:
    """Choose and train a model for each site and one for all records; score the test records.

    Parameters
    ----------
    problem
        A linear problem with test records.
    columns
        Encoded columns of training and test records, a matrix each of shape (records, columns).
        None uses the features of the problem alone.
    quick
        True to try one penalty and one fold only.

    Raises
    ------
    ModuleNotFoundError
        If scikit-learn (extra ``data``) is not installed.
    """
    with needed_by("baselines"):
        import_module("sklearn.linear_model")
    assert problem.test is not None
    representations = _representations(problem, columns)
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
            _scores_of_best(problem, representations, group, quick=quick) for group in groups
        )
        centralized = single_sites[0]
        if len(groups) > 1:
            centralized = _scores_of_best(problem, representations, all_records, quick=quick)
    return NonPrivate(
        single_sites=single_sites, centralized=centralized, sampled=len(all_records) > MOST_RECORDS
    )


def _representations(
    problem: LinearProblem, columns: tuple[Matrix, Matrix] | None
) -> list[_Representation]:
    """Return the plain columns, and the problem's features where these differ from the columns."""
    assert problem.test is not None
    assert problem.outline is not None
    outline = problem.outline.columns
    features = _Representation(
        train=problem.train.features,
        test=problem.test.features,
        has_intercept=isinstance(outline, Columns) and outline.intercept,
    )
    if columns is None:
        return [features]
    train_columns, test_columns = columns
    plain = _Representation(train=train_columns, test=test_columns)
    if isinstance(outline, Columns) and outline.features == COLUMNS:
        return [plain]
    return [plain, features]


def _scores_of_best(
    problem: LinearProblem,
    representations: Sequence[_Representation],
    records: Indices,
    *,
    quick: bool,
) -> Numbers:
    """Choose and train a model of some training records; return its scores on the test records."""
    outline = problem.outline
    task = task_of_problem(problem)
    assert outline is not None
    if quick:  # a large table: the rows of the model before
        return_freed_memory()
    records = _sample(records, problem.train.labels, task)
    labels = problem.train.labels[records]
    trivial = task.trivial_scores(outline, labels)
    test_records = representations[0].test.shape[0]
    trivial_of_test = np.tile(trivial, (test_records, 1))
    if _is_trivial(labels, task):
        return trivial_of_test
    outputs = max(problem.classes or 1, 1)
    features = representations[-1].train.shape[1]
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
    best: tuple[_Representation, Fit] | None = None
    for representation in representations:
        outside = [_without(representation, records, labels, fold) for fold in folds]
        inside = [representation.training_rows(records[fold]) for fold in folds]
        for fit in _fits(problem, task, outputs, is_small):
            scores_of_folds = []
            for training, validation_rows in zip(outside, inside, strict=True):
                scorer = fit(*training)
                scores_of_folds.append(scorer(validation_rows))
            fit_quality = quality(np.concatenate(scores_of_folds))
            if fit_quality > best_quality:
                best_quality = fit_quality
                best = (representation, fit)
        del outside, inside  # before others are made
    if best is None:
        return trivial_of_test
    representation, fit = best
    scorer = fit(representation.training_rows(records), labels)
    return representation.test_scores(scorer)


def _is_trivial(labels: Cells, task: LearningTask) -> bool:
    """Return True if there are too few records, or too few of a class, to train a model."""
    if len(labels) < FEWEST_RECORDS:
        return True
    if task.name != "classes":
        return False
    counts = np.unique(labels, return_counts=True)[1]
    return len(counts) < 2 or int(counts.min()) < FEWEST_OF_A_CLASS


def _sample(records: Indices, labels: Cells, task: LearningTask) -> Indices:
    """Return at most `MOST_RECORDS` records: all, or a sample with the same share of each class."""
    if len(records) <= MOST_RECORDS:
        return records
    order = np.random.default_rng(0).permutation(len(records))
    if task.name == "classes":
        order = order[np.argsort(labels[records[order]], kind="stable")]
    evenly_spaced = np.linspace(0, len(records) - 1, MOST_RECORDS).astype(np.int64)
    return np.sort(records[order[evenly_spaced]])


def _folds(labels: Cells, task: LearningTask) -> list[Indices]:
    """Return the positions of the records of each fold, stratified by class."""
    order = np.random.default_rng(0).permutation(len(labels))
    if task.name == "classes":
        order = order[np.argsort(labels[order], kind="stable")]
    return [np.sort(order[first::FOLDS]) for first in range(FOLDS)]


def _without(
    representation: _Representation, records: Indices, labels: Cells, fold: Indices
) -> tuple[Matrix, Cells]:
    """Return rows and labels of the records outside of a fold."""
    remaining = np.setdiff1d(np.arange(len(labels)), fold)
    return representation.training_rows(records[remaining]), labels[remaining]


def _fits(problem: LinearProblem, task: LearningTask, outputs: int, is_small: bool) -> list[Fit]:
    """Return the candidate models of a task; logistic and Poisson regressions for each penalty."""
    if task.name == "numbers":
        return [_ridge, _procedure(problem)]
    if task.name == "counts":
        poisson = [_poisson(penalty) for penalty in _COUNT_PENALTIES]
        return [_count_ridge, *poisson, _procedure(problem)]
    inverse_penalties = _INVERSE_PENALTIES if is_small else (1.0,)
    if task.name == "labels":
        return [_labels(inverse_penalty, outputs) for inverse_penalty in inverse_penalties]
    assert problem.outline is not None
    balanced = problem.outline.shares is not None  # private training then weights classes, too
    return [_classes(inverse_penalty, outputs, balanced) for inverse_penalty in inverse_penalties]


def _scaler(rows: Matrix) -> Callable[[Matrix], Matrix]:
    """Return a function that standardizes columns by these rows, and drops constant ones."""
    if hasattr(rows, "tocsr"):
        return lambda records: records  # sparse rows; an all-zero column gets no weight
    mean = rows.mean(axis=0)
    deviation = rows.std(axis=0)
    rounding = 16 * np.finfo(rows.dtype).eps * np.abs(mean)
    varying = deviation > np.maximum(_LEAST_DEVIATION, rounding)
    mean = mean[varying]
    deviation = deviation[varying]

    def standardized(records: Matrix) -> Matrix:
        """Return a copy of the columns that vary, at mean 0 and deviation 1."""
        columns = records[:, varying]
        columns -= mean
        columns /= deviation
        return columns

    return standardized


def _classes(inverse_penalty: float, outputs: int, balanced: bool) -> Fit:
    """Return a logistic regression of classes; labels are -1 and +1, or indices of classes.

    With `balanced`, records are weighted so that all classes have the same total weight.
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
            scores_of_classes = np.full((len(decision), outputs), _EXCLUDED)
            scores_of_classes[:, model.classes_.astype(int)] = decision
            return scores_of_classes

        return scores

    return fit


def _labels(inverse_penalty: float, outputs: int) -> Fit:
    """Return a logistic regression for each label; a label that is constant here stays constant."""

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
    """Fit a ridge regression whose penalty is chosen by leave-one-out cross-validation."""
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
    """Fit a ridge regression of counts over their bound; scores are logarithms of predictions."""
    shares = _ridge(rows, labels)
    return lambda records: np.log(np.clip(shares(records), _LEAST_SHARE, 1.0))


def _poisson(penalty: float) -> Fit:
    """Return a Poisson regression of counts over their bound."""

    def fit(rows: Matrix, labels: Cells) -> Scorer:
        mean = float(labels.mean())
        if mean <= 0:
            return lambda records: np.full((records.shape[0], 1), np.log(_LEAST_SHARE))
        scale = _scaler(rows)
        linear = import_module("sklearn.linear_model")
        model = linear.PoissonRegressor(alpha=penalty, max_iter=300).fit(scale(rows), labels / mean)

        def scores(records: Matrix) -> Numbers:
            shares = mean * model.predict(scale(records))
            return np.asarray(np.log(np.clip(shares, _LEAST_SHARE, 1.0))).reshape(-1, 1)

        return scores

    return fit


def _procedure(problem: LinearProblem) -> Fit:
    """Return the private training procedure without noise: clipped gradient descent.

    Its hyperparameters are those of `dpmesh.defaults.choose`. Rows have an intercept and L2 norm 1,
    as in private training, and no columns that are constant among the training records.
    """

    def fit(rows: Matrix, labels: Cells) -> Scorer:
        varying = _dense(rows).std(axis=0) > _LEAST_DEVIATION

        def encoded(records: Matrix) -> Numbers:
            columns = _dense(records)[:, varying]
            intercept = np.ones((len(columns), 1))
            return unit(np.concatenate([intercept, columns], axis=1))

        local_problem = LinearProblem(
            Dataset(encoded(rows), labels),
            [np.arange(len(labels))],
            problem.loss,
            feature_norm=1.0,
            label_bound=problem.label_bound,
        )
        task = task_of_problem(problem).defaults_task
        descent = choose(Sizes.of(local_problem), epsilon=None, delta=1e-5, task=task)
        algorithm = descent.algorithm
        step_size = at(algorithm.step_size, 1)
        model = local_problem.zeros()
        for _ in range(descent.rounds):
            model = local_problem.step(
                model, step_size, local_problem.full_batches, clipping_norm=algorithm.clipping_norm
            )
        return lambda records: np.asarray(encoded(records) @ model.T)

    return fit
