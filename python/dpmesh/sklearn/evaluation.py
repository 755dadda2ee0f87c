"""An estimator fitted to a part of the records and tested on the rest, beside its baselines."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.utils import check_random_state

import dpmesh as dm
import dpmesh.run.baselines as baselines
from dpmesh._epsilons import as_given
from dpmesh._html import InNotebooks
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
from dpmesh.sklearn.repeated import apart
from dpmesh.tables import Columns, as_table, rows
from dpmesh.tables import Table as DataTable
from dpmesh.tables.cells import Cells
from dpmesh.tables.features import COLUMNS, FeatureMap, stored_type
from dpmesh.tables.labels import read_labels
from dpmesh.tables.models import Outline
from dpmesh.tables.sites import site_of_each
from dpmesh.tables.table import ColumnLike, TableLike

SPLITS = FEW
"""Of a linear model whose table has at most `baselines.LARGEST` numbers, over all classes."""


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
            few = f"{splits} split{'s' * (splits > 1)} give{'s' * (splits == 1)} no verdict"
            score = shown(verdict.metric, verdict.score)
            claim = verdict.claim or few
            protected = [verdict.protects, verdict.adversary]
            lines.append([as_given(epsilon), *protected, score, between, claim])
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
            against = f"\nThe epsilon holds against {report.threat_model}."
        compared = [str(self.epsilon_table), ""] if self.by_epsilon else []
        tables = str(self.verdict.table)
        if self.verdict.populations and len(self.verdict.baselines.alone) > 1:
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
        estimator = apart(clone(estimator)).set_params(classes=[*y.columns])  # names of labels
    _say_if_two_values(estimator, targets)
    owners = site_of_each(groups, len(targets))
    split_draw, noise_draw = _draws(estimator.random_state)

    runs: dict[float | None, list[_Fitted]] = {epsilon: [] for epsilon in compared}
    wanted_splits = splits or 1
    done = 0
    while done < wanted_splits:
        tested = _held_out_of_all(estimator, targets, owners, test_size, split_draw)
        if not tested.any():
            fail("test_size", "a share that holds out at least 1 record", test_size)
        train = np.flatnonzero(~tested)
        fitted: list[PrivateClassifier | PrivateRegressor] = []
        for epsilon in compared:
            fitting = _with_noise_of_its_own(estimator, epsilon, noise_draw)
            with warnings.catch_warnings():
                if done or fitted:
                    warnings.simplefilter("ignore")  # the first fit warned
                sites = None if groups is None else owners[train]
                fitting.fit(rows(X, train), targets[train], sites)
            fitted.append(fitting)
        problems = _problems(fitted, table, targets, owners, tested)
        for epsilon, fit in zip(compared, fitted, strict=True):
            runs[epsilon].append(_beside(fit, problems, noise_draw, owners[tested]))
            if on_fit is not None:
                on_fit()
        done += 1
        if splits is None and done == 1:
            wanted_splits = _affordable(fitted[0], problems.of(fitted[0]))
    verdicts = {epsilon: _verdict(epsilon, runs[epsilon]) for epsilon in compared}
    if epsilons is None:
        return Evaluation(
            estimator=runs[final_epsilon][0].estimator, verdict=verdicts[final_epsilon]
        )
    final = _with_noise_of_its_own(estimator, final_epsilon, noise_draw).fit(X, y, groups)
    looked = ", ".join(as_given(epsilon) for epsilon in compared if epsilon is not None)
    why = f"scores at epsilon {looked} were looked at: no epsilon covers them, nor a choice by them"
    assert final_epsilon is not None
    final._restate_cost(final_epsilon, why)
    by_epsilon = {epsilon: verdict for epsilon, verdict in verdicts.items() if epsilon is not None}
    return Evaluation(estimator=final, verdict=verdicts[final_epsilon], by_epsilon=by_epsilon)


class _Fitted(NamedTuple):
    """A fit of one split and epsilon, with what it is compared with."""

    estimator: PrivateClassifier | PrivateRegressor
    measured: Measures
    baselines: baselines.Baselines
    population: Population


@dataclass(frozen=True, kw_only=True, eq=False)
class _Problems:
    """The records of a split, as each map of features encodes them.

    Parameters
    ----------
    by_features
        The problem of each map.
    widest
        The map whose problem has the baselines without privacy, which thus depend on no epsilon.
    columns
        Encoded columns of training and test records, without further features.
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


def _draws(random_state: RandomState) -> tuple[np.random.RandomState, np.random.RandomState | None]:
    """Return one generator for splits, which all epsilons share, and one for seeds of noise."""
    if random_state is None:
        return np.random.RandomState(), None
    draw = check_random_state(random_state)
    seeds = draw.randint(2**31 - 1, size=2)
    return np.random.RandomState(seeds[0]), np.random.RandomState(seeds[1])


def _with_noise_of_its_own(
    estimator: Estimator, epsilon: float | None, noise_draw: np.random.RandomState | None
) -> Estimator:
    """Return a clone at this epsilon, with a seed that no other fit has."""
    seed = None if noise_draw is None else int(noise_draw.randint(2**31))
    copy: Estimator = apart(clone(estimator))
    copy.set_params(epsilon=epsilon, random_state=seed)
    return copy


def _beside(
    fitted: Estimator,
    problems: _Problems,
    noise_draw: np.random.RandomState | None,
    test_owners: Cells,
) -> _Fitted:
    """Measure a fit beside the baselines of its split."""
    problem = problems.of(fitted)
    shared = problems.by_features[problems.widest]
    is_large = shared.train.records > MOST_RECORDS
    without_privacy = baselines.compute(shared, columns=problems.columns, quick=is_large)
    if fitted.epsilon is not None:
        key = None if noise_draw is None else Key.seeded(int(noise_draw.randint(2**31)))
        shown_nodes = baselines.SHOWN_OF_MANY if is_large else baselines.SHOWN
        private = baselines.alone_private_measures(
            problem, fitted.epsilon, fitted.delta, key=key, most=shown_nodes
        )
        without_privacy = without_privacy.beside(private, fitted.epsilon, fitted.delta)
    scores = _scores(fitted, problem)
    sites = np.unique(test_owners, return_inverse=True)[1]
    return _Fitted(
        estimator=fitted,
        measured=_measured(fitted, problem, scores),
        baselines=without_privacy,
        population=baselines.population(shared, sites, scores),
    )


def _verdict(epsilon: float | None, runs: Sequence[_Fitted]) -> Verdict:
    privacy = runs[0].estimator.report_.privacy
    return Verdict(
        protects=privacy.unit if privacy.is_finite else "",
        adversary=privacy.adversary_in_brief,
        measured=[run.measured for run in runs],
        beside=[run.baselines for run in runs],
        epsilon=epsilon,
        populations=[run.population for run in runs],
    )


def _say_if_two_values(estimator: Estimator, targets: Cells) -> None:
    """Warn before anything is learned that a regression has the targets of a classifier."""
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


def _affordable(fitted: Estimator, problem: dm.LinearProblem) -> int:
    """Return how many splits take a few seconds, by public sizes."""
    numbers = problem.train.features.size * (problem.classes or 1)
    if fitted.model_.network is None and numbers <= baselines.LARGEST:
        return SPLITS
    return 1


def _held_out_of_all(
    estimator: Estimator, targets: Cells, owners: Cells, share: float, draw: np.random.RandomState
) -> npt.NDArray[np.bool_]:
    """Return which records are held out, but for one of a class that only they would have."""
    one_class_each = isinstance(estimator, PrivateClassifier) and targets.ndim == 1
    out = held_out(owners, share, draw, classes=targets if one_class_each else None)
    if one_class_each and estimator.classes is None:
        for label in {*targets[out].tolist()} - {*targets[~out].tolist()}:
            out[np.flatnonzero(targets == label)[0]] = False
    return out


def held_out(
    owners: Cells, share: float, draw: np.random.RandomState, *, classes: Cells | None = None
) -> npt.NDArray[np.bool_]:
    """Return which records are held out at random: the same share of every site.

    Parameters
    ----------
    owners
        Site of each record, shape (records,).
    share
        Share of each site's records, rounded.
    draw
        A `numpy.random.RandomState`.
    classes
        Class of each record: the share of each class at each site is then kept, up to one record.
        None does not stratify.
    """
    chosen = np.zeros(len(owners), dtype=bool)
    codes = None if classes is None else np.unique(classes.astype(str), return_inverse=True)[1]
    for site in np.unique(owners):
        members = draw.permutation(np.flatnonzero(owners == site))
        count = min(round(share * len(members)), len(members) - 1)
        if codes is not None and count > 0:
            members = members[np.argsort(codes[members], kind="stable")]
            places = (np.arange(count) + draw.random_sample()) * len(members) / count
            members = members[places.astype(np.int64)]
        chosen[members[:count]] = True
    return chosen


def _problems(
    fits: Sequence[PrivateClassifier | PrivateRegressor],
    table: DataTable,
    y: Cells,
    owners: Cells,
    out: npt.NDArray[np.bool_],
) -> _Problems:
    """Return the records of a split, for each map of features that a fit has."""
    model = fits[0].model_
    assert isinstance(model.columns, Columns)
    plain = replace(model.columns, centre=None, features=COLUMNS, intercept=True)
    encoded = plain.encode(table.select(plain.names).columns).features
    columns = encoded[:, 1:] / encoded[:, :1]
    if model.target is None and not model.several:
        y = read_labels("y", model.listed, y)
    labels = model.learned(y)
    by_features: dict[FeatureMap, dm.LinearProblem] = {}
    for fitted in fits:
        columns_of_fit = fitted.model_.columns
        assert isinstance(columns_of_fit, Columns)
        if columns_of_fit.features not in by_features:
            by_features[columns_of_fit.features] = _problem(fitted, table, labels, owners, out)
    widest = max(by_features, key=lambda features: by_features[features].dim)
    return _Problems(by_features=by_features, widest=widest, columns=(columns[~out], columns[out]))


def _problem(
    fitted: Estimator, table: DataTable, labels: Cells, owners: Cells, out: npt.NDArray[np.bool_]
) -> dm.LinearProblem:
    """Return the records as the fitted model encodes them, those that are held out for testing."""
    model = fitted.model_
    assert isinstance(model.columns, Columns)
    columns = replace(model.columns, centre=None)
    values = table.select(columns.names).columns
    trained, tested = np.flatnonzero(~out), np.flatnonzero(out)
    dtype = stored_type(len(trained), columns.dim)

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
        several=model.several,
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
    """Return what the released model reaches on the held-out records."""
    model = fitted.model_
    assert problem.test is not None
    return task_of(model).measures(model, scores, problem.test.labels)
