"""An estimator fitted to a part of the records and tested on the rest, beside its baselines."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
from dpmesh.run.measures import Measures, classification, shown
from dpmesh.run.verdict import LEAST, Verdict
from dpmesh.sklearn.base import linear_problem
from dpmesh.sklearn.estimators import PrivateClassifier, PrivateRegressor
from dpmesh.sklearn.repeated import apart
from dpmesh.tables import Columns, as_table, rows
from dpmesh.tables.labels import read_labels
from dpmesh.tables.models import Outline
from dpmesh.tables.sites import site_of_each

SPLITS = LEAST
"""Of a linear model whose table has at most `baselines.LARGEST` numbers, over all classes."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Evaluation(InNotebooks):
    """Whether sharing paid: the scores of a federation beside what its sites reach alone.

    The scores are for research: they are computed from held-out records without noise, the
    baselines are trained without it, and no epsilon covers them. The estimator may be published.

    Parameters
    ----------
    estimator
        Fitted to the training records of the first split.
    verdict
        Scores of its released model and of those of further splits, beside chance, sites alone, and
        all records pooled, on the same held-out records.
    by_epsilon
        The verdict of each epsilon, where several were looked at; `estimator` and `verdict` are
        those of the one that was named beforehand.

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
        """Accuracy, or R², of released models on held-out records, on average over the splits."""
        return self.verdict.score

    @property
    def baselines(self) -> baselines.Baselines:
        """The means of the baselines over the splits."""
        return self.verdict.baselines

    def epsilons(self) -> list[list[str]]:
        """Return the lines of a table of scores over epsilon, that of heads first."""
        lines = [["epsilon", self.verdict.metric, "95% interval", "beside sites alone"]]
        for epsilon, found in self.by_epsilon.items():
            splits, between = len(found.measured), "-"
            if splits > 1:
                ends = found.interval.low, found.interval.high
                between = " to ".join(shown(found.metric, end) for end in ends)
            few = f"{splits} split{'s' * (splits > 1)} give{'s' * (splits == 1)} no verdict"
            score, claim = shown(found.metric, found.score), found.claim or few
            lines.append([as_given(epsilon), score, between, claim])
        return lines

    @property
    def sentence(self) -> str:
        """Whether sharing paid, in a sentence."""
        return self.verdict.sentence

    @property
    def note(self) -> str:
        """What to know of the comparison; empty for a linear model."""
        if self.estimator.model_.network is None:
            return ""
        parameters = self.estimator.model_.weights.size
        return f"The baselines are linear models; the federation's has {parameters} parameters."

    def __repr__(self) -> str:
        report, against = self.estimator.report_, ""
        if report.privacy.is_private:
            against = f"\nThe epsilon holds against {report.against}."
        head, *rows = self.epsilons()
        looked = [str(Table(head, rows)), ""] if rows else []
        own = f"{self.verdict.table}\n\n{self.sentence}{against}\n{self.note}".rstrip()
        return "\n".join([*looked, own])


def evaluate(
    estimator: PrivateClassifier | PrivateRegressor,
    X: Any,
    y: Any,
    groups: Any = None,
    *,
    test_size: float = 0.25,
    splits: int | None = None,
    epsilons: Sequence[float] | None = None,
    keep: float | None = None,
) -> Evaluation:
    """Fit to a part of every site's records and test on the rest, again and again.

    Each split draws its own held-out records. The model of the first one may be published; what
    those of the others learned is in the scores alone.

    Parameters
    ----------
    estimator
        A `PrivateClassifier` or `PrivateRegressor`; clones of it are fitted, each at its epsilon.
    X, y, groups
        As for its `fit`.
    test_size
        Share of each site's records that are held out, in (0, 1), rounded.
    splits
        How often; fewer than 5 give no verdict. By default 5, and 1 for a network or a large table,
        where a fit takes long.
    epsilons
        Epsilons to compare, each with noise of its own, in place of the estimator's. The one to
        `keep` is then fitted again to all records, with fresh noise. No epsilon covers the scores
        that were looked at, nor a choice by them, and the model's report says so.
    keep
        Which of them the model has, named before the scores are known: by default the smallest.

    Raises
    ------
    ValueError
        If an argument does not fit, or nothing is held out.
    """
    wanted = "a PrivateClassifier or PrivateRegressor"
    instance("estimator", estimator, wanted, PrivateClassifier, PrivateRegressor)
    probability("test_size", test_size, zero=False, one=False)
    if splits is not None:
        integer("splits", splits, at_least=1)
    if epsilons is not None:
        options = {"test_size": test_size, "splits": splits}
        return _over_epsilons(estimator, (X, y, groups), epsilons, keep, options)
    if keep is not None:
        fail("keep", "epsilons beside it", keep)
    table, targets = as_table(X), estimator.targets(X, y)
    if targets.ndim == 2 and hasattr(y, "columns") and getattr(estimator, "classes", 1) is None:
        estimator = apart(clone(estimator)).set_params(classes=[*y.columns])  # names of labels
    _say_if_two_values(estimator, targets)
    owners = site_of_each(groups, len(targets))
    draw = check_random_state(estimator.random_state)
    found: list[tuple[Any, Measures, baselines.Baselines]] = []
    while not found or len(found) < (splits or 1):
        out = _held_out_of_all(estimator, targets, owners, test_size, draw)
        if not out.any():
            fail("test_size", "a share that holds out at least 1 record", test_size)
        kept = np.flatnonzero(~out)
        own = apart(clone(estimator))
        if found and estimator.random_state is not None:  # noise of its own
            own.set_params(random_state=int(draw.randint(2**31)))
        with warnings.catch_warnings():
            if found:
                warnings.simplefilter("ignore")  # the first fit warned
            own.fit(rows(X, kept), targets[kept], None if groups is None else owners[kept])
        problem = _problem(own, table, targets, owners, out)
        key = None if estimator.random_state is None else Key.seeded(int(draw.randint(2**31)))
        budget: Any = {"epsilon": estimator.epsilon, "delta": estimator.delta, "key": key}
        beside = baselines.compute(problem, **budget, most=baselines.SHOWN)
        found.append((own, _measured(own, problem), beside))
        if splits is None:
            splits = _affordable(own, problem)
    fitted, measured, others = zip(*found, strict=True)
    verdict = Verdict(measured=measured, beside=others, epsilon=estimator.epsilon)
    return Evaluation(estimator=fitted[0], verdict=verdict)


def _say_if_two_values(estimator: Any, targets: npt.NDArray[Any]) -> None:
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


def _over_epsilons(
    estimator: Any,
    data: tuple[Any, Any, Any],
    epsilons: Sequence[float],
    keep: float | None,
    options: Mapping[str, Any],
) -> Evaluation:
    """Evaluate at each epsilon; fit the one to keep again, with noise that no score has seen."""
    each = sorted({positive("epsilons", one) for one in epsilons})
    if not each:
        fail("epsilons", "at least 1 epsilon", "none")
    kept = one_of("keep", each[0] if keep is None else float(keep), each)
    draw = check_random_state(estimator.random_state)

    def at(epsilon: float) -> Any:
        seed = None if estimator.random_state is None else int(draw.randint(2**31))
        return apart(clone(estimator)).set_params(epsilon=epsilon, random_state=seed)

    found = {one: evaluate(at(one), *data, **options).verdict for one in each}
    final = at(kept).fit(*data)
    looked = ", ".join(map(as_given, each))
    why = f"scores at epsilon {looked} were looked at: no epsilon covers them, nor a choice by them"
    final.charge(kept, why)
    return Evaluation(estimator=final, verdict=found[kept], by_epsilon=found)


def _affordable(fitted: PrivateClassifier | PrivateRegressor, problem: dm.LinearProblem) -> int:
    """Return how many splits take a few seconds, by public sizes."""
    numbers = problem.train.features.size * (problem.classes or 1)
    return SPLITS if fitted.model_.network is None and numbers <= baselines.LARGEST else 1


def _held_out_of_all(
    estimator: Any, targets: npt.NDArray[Any], owners: npt.NDArray[Any], share: float, draw: Any
) -> npt.NDArray[np.bool_]:
    """Return which records are held out, but for one of a class that only they would have."""
    out = held_out(owners, share, draw)
    names = isinstance(estimator, PrivateClassifier) and estimator.classes is None
    if names and targets.ndim == 1:
        for label in {*targets[out].tolist()} - {*targets[~out].tolist()}:
            out[np.flatnonzero(targets == label)[0]] = False
    return out


def held_out(owners: npt.NDArray[Any], share: float, draw: Any) -> npt.NDArray[np.bool_]:
    """Return which records are held out: the same share of every site, at random."""
    chosen = np.zeros(len(owners), dtype=bool)
    for site in np.unique(owners):
        own = np.flatnonzero(owners == site)
        count = min(round(share * len(own)), len(own) - 1)
        chosen[draw.permutation(own)[:count]] = True
    return chosen


def _problem(
    fitted: PrivateClassifier | PrivateRegressor,
    table: Any,
    y: npt.NDArray[Any],
    owners: npt.NDArray[Any],
    out: npt.NDArray[np.bool_],
) -> dm.LinearProblem:
    """Return the records as the fitted model encodes them, those that are held out for testing."""
    model = fitted.model_
    assert isinstance(model.columns, Columns)
    columns = replace(model.columns, centre=None)
    features = columns.encode(table.select(columns.names).columns).features
    if model.target is None and not model.several:
        y = read_labels("y", model.listed, y)
    everything, kept = dm.Dataset(features, model.learned(y)), np.flatnonzero(~out)
    sites = owners[kept]
    parts = tuple(np.flatnonzero(sites == site) for site in np.unique(sites))
    described = {name: getattr(model, name) for name in ("classes", "target", "shares", "several")}
    outline = Outline(columns=columns, **described)
    return linear_problem(outline, everything.take(kept), parts, everything.take(out))


def _measured(fitted: PrivateClassifier | PrivateRegressor, problem: dm.LinearProblem) -> Measures:
    """Return what the released model reaches on the held-out records."""
    model = fitted.model_
    if model.network is None:
        return baselines.measured(problem, model.params[np.newaxis])
    assert problem.test is not None
    scores = scores_of(model.network, model.weights[0], problem.test.features)
    return classification(scores, problem.test.labels, balanced=model.shares is not None)
