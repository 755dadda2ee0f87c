"""An estimator fitted to a part of the records and tested on the rest, beside its baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.utils import check_random_state

import dpmesh as dm
import dpmesh.run.baselines as baselines
from dpmesh._html import InNotebooks
from dpmesh._validate import fail, instance, probability
from dpmesh.keys import Key
from dpmesh.sklearn.base import site_of_each
from dpmesh.sklearn.estimators import PrivateClassifier, PrivateRegressor
from dpmesh.tables import as_table, rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation(InNotebooks):
    """Whether sharing paid: the score of a federation beside what its sites reach alone.

    The scores are for research: they are computed from held-out records without noise, the
    baselines are trained without it, and no epsilon covers them. The estimator may be published.

    Parameters
    ----------
    estimator
        Fitted to the training records.
    score
        Accuracy, or R², of its released model on the held-out records of all sites together.
    baselines
        Scores of chance, of sites alone, and of all records pooled, on the same records.
    """

    estimator: PrivateClassifier | PrivateRegressor
    score: float
    baselines: baselines.Baselines

    @property
    def sentence(self) -> str:
        """Whether sharing paid, in a sentence."""
        return self.baselines.sentence(self.score, self.estimator.epsilon)

    @property
    def note(self) -> str:
        """What to know of the comparison; empty for a linear model."""
        if self.estimator.model_.network is None:
            return ""
        parameters = self.estimator.model_.weights.size
        return f"The baselines are linear models; the federation's has {parameters} parameters."

    def __str__(self) -> str:
        table = self.baselines.table(self.score, self.estimator.epsilon)
        report = self.estimator.report_
        against = (
            f"\nThe epsilon holds against {report.against}." if report.privacy.is_private else ""
        )
        return f"{table}\n\n{self.sentence}{against}\n{self.note}".rstrip()


def evaluate(
    estimator: PrivateClassifier | PrivateRegressor,
    X: Any,
    y: Any,
    groups: Any = None,
    *,
    test_size: float = 0.25,
) -> Evaluation:
    """Fit to a part of every site's records; test on the rest, beside the baselines.

    Parameters
    ----------
    estimator
        A `PrivateClassifier` or `PrivateRegressor`; a clone of it is fitted, at its epsilon.
    X, y, groups
        As for its `fit`.
    test_size
        Share of each site's records that are held out, in (0, 1), rounded.

    Raises
    ------
    ValueError
        If an argument does not fit, or nothing is held out.
    """
    wanted = "a PrivateClassifier or PrivateRegressor"
    instance("estimator", estimator, wanted, PrivateClassifier, PrivateRegressor)
    probability("test_size", test_size, zero=False, one=False)
    table, targets = as_table(X), np.asarray(y)
    owners = site_of_each(groups, len(targets))
    draw = check_random_state(estimator.random_state)
    out = held_out(owners, test_size, draw)
    if not out.any():
        fail("test_size", "a share that holds out at least 1 record", test_size)
    kept = ~out
    fitted = clone(estimator).fit(rows(X, np.flatnonzero(kept)), targets[kept], owners[kept])
    problem = _problem(fitted, table.take(kept), targets[kept], owners[kept])
    tested = _problem(fitted, table.take(out), targets[out], owners[out])
    together = dm.LinearProblem(
        problem.train,
        problem.partition,
        problem.loss,
        test=tested.train,
        classes=problem.classes,
    )
    model = fitted.model_
    if model.network is None:
        score = float(baselines.scores(together, model.weights.reshape(1, -1))[0])
    else:
        score = float(fitted.score(rows(X, np.flatnonzero(out)), targets[out]))
    return Evaluation(
        estimator=fitted,
        score=score,
        baselines=baselines.compute(
            together,
            epsilon=estimator.epsilon,
            delta=estimator.delta,
            key=None if estimator.random_state is None else Key.seeded(int(draw.randint(2**31))),
        ),
    )


def held_out(owners: npt.NDArray[Any], share: float, draw: Any) -> npt.NDArray[np.bool_]:
    """Return which records are held out: the same share of every site, at random."""
    chosen = np.zeros(len(owners), dtype=bool)
    for site in np.unique(owners):
        own = np.flatnonzero(owners == site)
        count = min(round(share * len(own)), len(own) - 1)
        chosen[draw.permutation(own)[:count]] = True
    return chosen


def _problem(
    fitted: PrivateClassifier | PrivateRegressor, table: Any, y: Any, owners: Any
) -> dm.LinearProblem:
    """Return the records as the fitted model encodes them."""
    model = fitted.model_
    features = model.columns.encode(table.select(model.columns.names).columns).features
    if model.classes is not None:
        if not np.isin(y, model.classes).all():
            fail("y", "only classes that occur in the training records; give classes=", "others")
        labels = np.searchsorted(model.classes, y)
    else:
        assert model.target is not None
        labels = model.target.encode("y", y)[0][:, 0]
    parts = tuple(np.flatnonzero(owners == site) for site in np.unique(owners))
    train = dm.Dataset(features, labels)
    if model.classes is None:
        return dm.LinearProblem(train, parts, "squared")
    return dm.LinearProblem(train, parts, "softmax", classes=len(model.classes))
