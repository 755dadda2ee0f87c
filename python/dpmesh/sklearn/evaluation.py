"""Evaluation of an estimator on held-out records, in comparison with its baselines.

`evaluate` repeats random splits into training and held-out (test) records. On each split it fits a
clone per epsilon (`_fit_split`), and encodes all records as each clone's feature map does
(`_problems`). It then scores the clone and the baselines of `dpmesh.run.baselines` on the held-out
records (`_compare_with_baselines`). `dpmesh.run.verdict.Verdict` compares the scores of all splits.
The scores have no noise, so no epsilon covers them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.utils import check_random_state

import dpmesh as dm
import dpmesh.run.baselines as baselines
from dpmesh._epsilons import as_given
from dpmesh._html import InNotebooks
from dpmesh._memory import return_freed_memory
from dpmesh._networks import scores_of
from dpmesh._table import Table
from dpmesh._validate import fail, instance, integer, one_of, positive, probability
from dpmesh.keys import Key
from dpmesh.run.candidates import MOST_RECORDS
from dpmesh.run.measures import Measures, shown
from dpmesh.run.populations import Population
from dpmesh.run.tasks import scores_of_test, task_of
from dpmesh.run.verdict import FEW, Verdict
from dpmesh.sklearn.base import RandomState, linear_problem
from dpmesh.sklearn.estimators import Estimator, PrivateClassifier, PrivateRegressor
from dpmesh.sklearn.repeated import with_new_history
from dpmesh.tables import Columns, as_table, rows
from dpmesh.tables import Table as DataTable
from dpmesh.tables.cells import Cells
from dpmesh.tables.features import COLUMNS, FeatureMap, stored_type
from dpmesh.tables.labels import read_labels
from dpmesh.tables.models import Outline
from dpmesh.tables.sites import site_of_each
from dpmesh.tables.table import ColumnLike, TableLike

SPLITS = FEW
"""Default number of splits for a linear model whose records, counted once for each class, hold at
most `baselines.LARGEST` numbers."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Evaluation(InNotebooks):
    """Result of `evaluate`: scores of a federated model beside baselines, and a fitted estimator.

    The estimator may be published, under the guarantee in its report. The scores may not: they are
    computed from held-out records without noise, the baselines are trained without noise, and no
    epsilon covers them.

    Parameters
    ----------
    estimator
        Fitted estimator: to the training records of the first split, or to all records where
        `evaluate` compared several epsilons.
    verdict
        Scores of the models of all splits, beside the majority class, single sites and a
        centralized model, on the same held-out records.
    by_epsilon
        Verdict of each compared epsilon; empty without `epsilons`. `estimator` and `verdict` belong
        to the epsilon `keep` of `evaluate`.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(300, 2))
    >>> model = dm.sklearn.PrivateClassifier(4.0, ranges=(-1, 1), classes=[False, True])
    >>> found = dm.sklearn.evaluate(model, X, X[:, 0] > 0, groups=np.arange(300) % 3, splits=1)
    >>> found.score > 0.5
    True
    """

    estimator: PrivateClassifier | PrivateRegressor
    verdict: Verdict
    by_epsilon: Mapping[float, Verdict] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """Mean score of the released models on held-out records, over the splits.

        For classes the accuracy, or the balanced accuracy with `class_shares`.
        """
        return self.verdict.score

    @property
    def baselines(self) -> baselines.Baselines:
        """Scores of the baselines, averaged over the splits."""
        return self.verdict.baselines

    @property
    def epsilon_table(self) -> Table:
        """Table with the score at each compared epsilon; without rows if none were compared."""
        metric = self.verdict.metric
        heads = ["epsilon", "unit", "adversary", metric, "95% interval", "beside single sites"]
        lines = []
        for epsilon, verdict in self.by_epsilon.items():
            splits = len(verdict.measured)
            between = "-"
            if splits > 1:
                ends = verdict.interval.low, verdict.interval.high
                between = " to ".join(shown(verdict.metric, end) for end in ends)
            no_verdict = f"{splits} splits give no verdict"
            if splits == 1:
                no_verdict = "1 split gives no verdict"
            score = shown(verdict.metric, verdict.score)
            claim = verdict.claim or no_verdict
            guarantee = [as_given(epsilon), verdict.protects, verdict.adversary]
            lines.append([*guarantee, score, between, claim])
        return Table(heads, lines)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence: improvement of the federation over single sites."""
        return self.verdict.sentence

    @property
    def note(self) -> str:
        """A caution that the baselines of a network are linear models; empty for a linear model."""
        if self.estimator.model_.network is None:
            return ""
        parameters = self.estimator.model_.weights.size
        return f"The baselines are linear models; the federation's has {parameters} parameters."

    def __repr__(self) -> str:
        report = self.estimator.report_
        against = ""
        if report.privacy.is_finite:
            against = f"\nThe epsilon is against {report.threat_model}."
        compared = [str(self.epsilon_table), ""] if self.by_epsilon else []
        tables = str(self.verdict.table)
        if self.verdict.populations and len(self.verdict.baselines.single_sites) > 1:
            tables = f"{tables}\n\n{self.verdict.population_table}"
        result = f"{tables}\n\n{self.sentence}{against}\n{self.note}".rstrip()
        return "\n".join([*compared, result])


def evaluate(
    estimator: Estimator,
    X: TableLike,
    y: ColumnLike,
    groups: ColumnLike = None,
    *,
    test_size: float = 0.25,
    splits: int | None = None,
    epsilons: Sequence[float] | None = None,
    keep: float | None = None,
    on_fit: Callable[[], object] | None = None,
) -> Evaluation:
    """Score an estimator on held-out records of repeated random splits, beside baselines.

    Each split holds out a share of the records of every site, fits a clone of the estimator to the
    others, and scores the clone on the held-out records. The baselines are the majority class (the
    mean, for numbers), models of single sites, and a centralized model.

    The scores are computed without noise, and no epsilon covers them: keep them private. The
    epsilon of the returned estimator covers the returned estimator alone.

    Parameters
    ----------
    estimator
        A `PrivateClassifier` or `PrivateRegressor`. It is cloned and stays unfitted.
    X, y, groups
        As for the estimator's `fit`.
    test_size
        Share of each site's records to hold out, in (0, 1); the number of records is rounded.
    splits
        Number of random splits, at least 1. With fewer than 5 the result states no verdict, and
        with fewer than 10 it warns of few splits. By default 10 for a small linear model, and 1
        for a network or a large table.
    epsilons
        Several epsilons to compare, in place of the estimator's. All are scored on the same splits.
        Afterwards a clone with the epsilon `keep` is fitted to all records with fresh noise. Its
        report states that no epsilon covers the scores, nor a choice by the scores.
    keep
        The one of `epsilons` for the returned estimator; by default the smallest. Name it before
        you see the scores: a choice by the scores is not covered by epsilon.
    on_fit
        Function without arguments, called after each fit, for example to advance a progress bar.

    Returns
    -------
    The scores, with a fitted estimator: fitted to the training records of the first split, or to
    all records if `epsilons` is given.

    Raises
    ------
    ValueError
        If an argument is invalid, or no record is held out.
    """
    expected = "a PrivateClassifier or PrivateRegressor"
    instance("estimator", estimator, expected, PrivateClassifier, PrivateRegressor)
    probability("test_size", test_size, zero=False, one=False)
    if splits is not None:
        integer("splits", splits, at_least=1)
    compared = _checked_epsilons(estimator, epsilons, keep)
    final_epsilon = compared[0] if keep is None else keep
    table = as_table(X)
    targets = estimator._checked_targets(X, y)
    if targets.ndim == 2 and hasattr(y, "columns") and getattr(estimator, "classes", 1) is None:
        label_names = [*y.columns]
        estimator = with_new_history(clone(estimator)).set_params(classes=label_names)
    _warn_of_binary_targets(estimator, targets)
    owners = site_of_each(groups, len(targets))
    split_draw, noise_draw = _generators(estimator.random_state)

    runs: dict[float | None, list[_ScoredFit]] = {epsilon: [] for epsilon in compared}
    total_splits = splits or 1
    finished_splits = 0
    while finished_splits < total_splits:
        is_tested = _draw_test_records_of(estimator, targets, owners, test_size, split_draw)
        if not is_tested.any():
            fail("test_size", "a share that holds out at least 1 record", test_size)
        train = np.flatnonzero(~is_tested)
        unfitted = [_clone_with_seed(estimator, epsilon, noise_draw) for epsilon in compared]
        fitted = _fit_split(
            unfitted,
            rows(X, train),
            targets[train],
            None if groups is None else owners[train],
            quiet=finished_splits > 0,
        )
        return_freed_memory()
        problems = _problems(fitted, table, targets, owners, is_tested)
        return_freed_memory()
        for epsilon, fit in zip(compared, fitted, strict=True):
            scored = _compare_with_baselines(fit, problems, noise_draw, owners[is_tested])
            runs[epsilon].append(scored)
            if on_fit is not None:
                on_fit()
        finished_splits += 1
        if splits is None and finished_splits == 1:
            total_splits = _default_splits(fitted[0], problems.of(fitted[0]))
    verdicts = {epsilon: _verdict(epsilon, runs[epsilon]) for epsilon in compared}
    if epsilons is None:
        first_split = runs[final_epsilon][0]
        return Evaluation(estimator=first_split.estimator, verdict=verdicts[final_epsilon])
    final = _clone_with_seed(estimator, final_epsilon, noise_draw).fit(X, y, groups)
    scored_epsilons = ", ".join(as_given(epsilon) for epsilon in compared if epsilon is not None)
    caution = (
        f"scores at epsilon {scored_epsilons} were looked at: no epsilon covers them, nor a choice "
        "by them"
    )
    assert final_epsilon is not None
    final._restate_cost(final_epsilon, caution)
    by_epsilon = {epsilon: verdict for epsilon, verdict in verdicts.items() if epsilon is not None}
    return Evaluation(estimator=final, verdict=verdicts[final_epsilon], by_epsilon=by_epsilon)


class _ScoredFit(NamedTuple):
    """A fit of one split at one epsilon, with its scores and the scores of its baselines."""

    estimator: PrivateClassifier | PrivateRegressor
    measured: Measures
    baselines: baselines.Baselines
    population: Population


@dataclass(frozen=True, kw_only=True, eq=False)
class _SplitProblems:
    """The records of a split, encoded by the feature map of each fit.

    The fits at several epsilons may have different feature maps.

    Parameters
    ----------
    by_features
        The problem of each feature map.
    widest
        The feature map with the most features. Its problem has the non-private baselines, which
        are thus the same for all epsilons.
    columns
        Encoded columns of training and test records, without a feature map.
    """

    by_features: dict[FeatureMap, dm.LinearProblem]
    widest: FeatureMap
    columns: tuple[Cells, Cells]

    def of(self, fitted: Estimator) -> dm.LinearProblem:
        """Return the records as the features of a fit encode them."""
        columns = fitted.model_.columns
        assert isinstance(columns, Columns)
        return self.by_features[columns.features]


def _checked_epsilons(
    estimator: Estimator, epsilons: Sequence[float] | None, keep: float | None
) -> list[float | None]:
    """Return the epsilons to compare, in order; the estimator's alone if none are given."""
    if epsilons is None:
        if keep is not None:
            fail("keep", "epsilons beside it", keep)
        return [estimator.epsilon]
    compared = sorted({positive("epsilons", epsilon) for epsilon in epsilons})
    if not compared:
        fail("epsilons", "at least 1 epsilon", "none")
    if keep is not None:
        one_of("keep", float(keep), compared)
    return [*compared]


def _generators(
    random_state: RandomState,
) -> tuple[np.random.RandomState, np.random.RandomState | None]:
    """Return a generator of splits and a generator of seeds of noise; None for secret noise."""
    if random_state is None:
        return np.random.RandomState(), None
    draw = check_random_state(random_state)
    seeds = draw.randint(2**31 - 1, size=2)
    return np.random.RandomState(seeds[0]), np.random.RandomState(seeds[1])


def _clone_with_seed(
    estimator: Estimator, epsilon: float | None, noise_draw: np.random.RandomState | None
) -> Estimator:
    """Return a clone with this epsilon and its own seed of noise; None for secret noise."""
    seed = None
    if noise_draw is not None:
        seed = int(noise_draw.randint(2**31))
    copy: Estimator = with_new_history(clone(estimator))
    copy.set_params(epsilon=epsilon, random_state=seed)
    return copy


def _fit_split(
    estimators: Sequence[Estimator],
    train: TableLike,
    targets: Cells,
    sites: Cells | None,
    *,
    quiet: bool,
) -> list[Estimator]:
    """Fit each estimator to the training records of a split, and return them.

    Only the first estimator warns of the data, and none if `quiet` is True.
    """
    for place, estimator in enumerate(estimators):
        with warnings.catch_warnings():
            if quiet or place > 0:
                warnings.simplefilter("ignore")
            estimator.fit(train, targets, sites)
    return [*estimators]


def _compare_with_baselines(
    fitted: Estimator,
    problems: _SplitProblems,
    noise_draw: np.random.RandomState | None,
    test_owners: Cells,
) -> _ScoredFit:
    """Score a fit and its baselines on the held-out records of its split.

    Parameters
    ----------
    fitted
        The fitted estimator.
    problems
        The records of the split.
    noise_draw
        Generator of the seed of private single-site baselines; None for secret noise.
    test_owners
        Site of each held-out record, shape (test records,).
    """
    problem = problems.of(fitted)
    shared = problems.by_features[problems.widest]
    is_large = shared.train.records > MOST_RECORDS
    without_privacy = baselines.compute(shared, columns=problems.columns, quick=is_large)
    return_freed_memory()
    if fitted.epsilon is not None:
        key = None
        if noise_draw is not None:
            key = Key.seeded(int(noise_draw.randint(2**31)))
        shown_nodes = baselines.SHOWN_OF_MANY if is_large else baselines.SHOWN
        private = baselines.private_single_site_measures(
            problem, fitted.epsilon, fitted.delta, key=key, most=shown_nodes
        )
        without_privacy = without_privacy.with_private_single_sites(
            private, fitted.epsilon, fitted.delta
        )
    scores = _scores(fitted, problem)
    sites = np.unique(test_owners, return_inverse=True)[1]
    return _ScoredFit(
        estimator=fitted,
        measured=_measured(fitted, problem, scores),
        baselines=without_privacy,
        population=baselines.population(shared, sites, scores),
    )


def _verdict(epsilon: float | None, runs: Sequence[_ScoredFit]) -> Verdict:
    """Return the comparison of the fits of all splits at one epsilon with their baselines."""
    privacy = runs[0].estimator.report_.privacy
    return Verdict(
        protects=privacy.unit if privacy.is_finite else "",
        adversary=privacy.adversary_in_brief,
        measured=[run.measured for run in runs],
        baselines_by_split=[run.baselines for run in runs],
        epsilon=epsilon,
        populations=[run.population for run in runs],
    )


def _warn_of_binary_targets(estimator: Estimator, targets: Cells) -> None:
    """Warn that the targets of a regressor have two values only, as the classes of a classifier."""
    if not isinstance(estimator, PrivateRegressor):
        return
    values = np.unique(targets)
    if len(values) == 2:
        low, high = values.tolist()
        warnings.warn(
            f"y has two values only, {low:g} and {high:g}: PrivateClassifier predicts such "
            "classes; a regression is scored by R², not by accuracy",
            UserWarning,
            stacklevel=3,
        )


def _default_splits(fitted: Estimator, problem: dm.LinearProblem) -> int:
    """Return the default number of splits: several if their fits and baselines take seconds."""
    numbers = problem.train.features.size * (problem.classes or 1)
    if fitted.model_.network is None and numbers <= baselines.LARGEST:
        return SPLITS
    return 1


def _draw_test_records_of(
    estimator: Estimator, targets: Cells, owners: Cells, share: float, draw: np.random.RandomState
) -> npt.NDArray[np.bool_]:
    """Return a mask of held-out records, stratified by class for a classifier, shape (records,).

    If the estimator reads its classes from the training records, each class keeps at least one
    training record.
    """
    is_stratified = isinstance(estimator, PrivateClassifier) and targets.ndim == 1
    strata = targets if is_stratified else None
    is_tested = draw_test_records(owners, share, draw, classes=strata)
    if is_stratified and estimator.classes is None:
        untrained = {*targets[is_tested].tolist()} - {*targets[~is_tested].tolist()}
        for label in untrained:
            first_record = np.flatnonzero(targets == label)[0]
            is_tested[first_record] = False
    return is_tested


def draw_test_records(
    owners: Cells, share: float, draw: np.random.RandomState, *, classes: Cells | None = None
) -> npt.NDArray[np.bool_]:
    """Return a random mask of held-out records, shape (records,), with the same share of each site.

    At least one record of each site is not held out.

    Parameters
    ----------
    owners
        Site of each record, shape (records,).
    share
        Share of each site's records to hold out; the number of records is rounded.
    draw
        Random generator.
    classes
        Class of each record. The held-out records of a site then have each class in proportion, up
        to one record. None does not stratify.
    """
    is_tested = np.zeros(len(owners), dtype=bool)
    codes = None
    if classes is not None:
        codes = np.unique(classes.astype(str), return_inverse=True)[1]
    for site in np.unique(owners):
        members = draw.permutation(np.flatnonzero(owners == site))
        count = min(round(share * len(members)), len(members) - 1)
        if codes is not None and count > 0:
            # systematic sampling: equally spaced places among the members sorted by class
            members = members[np.argsort(codes[members], kind="stable")]
            places = (np.arange(count) + draw.random_sample()) * len(members) / count
            members = members[places.astype(np.int64)]
        is_tested[members[:count]] = True
    return is_tested


def _problems(
    fits: Sequence[PrivateClassifier | PrivateRegressor],
    table: DataTable,
    y: Cells,
    owners: Cells,
    is_tested: npt.NDArray[np.bool_],
) -> _SplitProblems:
    """Encode the records of a split by each feature map of the fits.

    Parameters
    ----------
    fits
        The fitted estimators, one per epsilon.
    table, y, owners
        Columns, targets and sites of all records.
    is_tested
        Mask of the held-out records, shape (records,).
    """
    model = fits[0].model_
    assert isinstance(model.columns, Columns)
    if model.target is None and not model.multilabel:
        y = read_labels("y", model.class_kind, y)
    labels = model.encode_labels(y)
    columns = (
        _plain_columns(model.columns, table, ~is_tested),
        _plain_columns(model.columns, table, is_tested),
    )
    return_freed_memory()
    by_features: dict[FeatureMap, dm.LinearProblem] = {}
    for fitted in fits:
        columns_of_fit = fitted.model_.columns
        assert isinstance(columns_of_fit, Columns)
        if columns_of_fit.features not in by_features:
            problem = _problem(fitted, table, labels, owners, is_tested)
            by_features[columns_of_fit.features] = problem
    widest = max(by_features, key=lambda features: by_features[features].dim)
    return _SplitProblems(by_features=by_features, widest=widest, columns=columns)


def _plain_columns(
    columns: Columns, table: DataTable, is_used: npt.NDArray[np.bool_]
) -> npt.NDArray[np.floating[Any]]:
    """Return the encoded columns of some records, without a feature map, shape (records, columns).

    They are in float32 where the features of a large table are not in float64.
    """
    dtype: type[np.floating[Any]] = np.float64
    if stored_type(len(is_used), columns.dim) != np.float64:
        dtype = np.float32
    plain = replace(columns, centre=None, features=COLUMNS, intercept=True)
    records = [column[is_used] for column in table.select(plain.names).columns]
    encoded = plain.encode(records, dtype=dtype).features
    # a record (1, columns) was scaled to norm 1: division by its constant undoes the scaling
    unscaled: npt.NDArray[np.floating[Any]] = encoded[:, 1:]
    unscaled /= encoded[:, :1]
    return unscaled


def _problem(
    fitted: Estimator,
    table: DataTable,
    labels: Cells,
    owners: Cells,
    is_tested: npt.NDArray[np.bool_],
) -> dm.LinearProblem:
    """Return a linear problem of all records, encoded by the feature map of a fitted model.

    Parameters are as of `_problems`; `labels` are the encoded targets.
    """
    model = fitted.model_
    assert isinstance(model.columns, Columns)
    columns = replace(model.columns, centre=None)
    values = table.select(columns.names).columns
    trained = np.flatnonzero(~is_tested)
    tested = np.flatnonzero(is_tested)
    dtype = stored_type(len(trained), columns.dim, rounded=model.network is None)

    def encoded(records: npt.NDArray[np.int64]) -> dm.Dataset:
        features = columns.encode([column[records] for column in values], dtype=dtype)
        return dm.Dataset(features.features, labels[records])

    sites = owners[trained]
    parts = tuple(np.flatnonzero(sites == site) for site in np.unique(sites))
    outline = Outline(
        columns=columns,
        classes=model.classes,
        target=model.target,
        shares=model.shares,
        multilabel=model.multilabel,
    )
    return linear_problem(outline, encoded(trained), parts, encoded(tested))


def _scores(fitted: Estimator, problem: dm.LinearProblem) -> Cells:
    """Return the scores of the released model on the held-out records."""
    model = fitted.model_
    assert problem.test is not None
    if model.network is not None:
        return scores_of(model.network, model.weights[0], problem.test.features)
    return model.calibrated(scores_of_test(problem, model.params))


def _measured(fitted: Estimator, problem: dm.LinearProblem, scores: Cells) -> Measures:
    """Return the performance measures of the released model on the held-out records."""
    model = fitted.model_
    assert problem.test is not None
    return task_of(model).measures(model, scores, problem.test.labels)
