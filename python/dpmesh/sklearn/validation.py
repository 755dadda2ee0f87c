"""Cross-validation under one budget."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.model_selection import KFold, StratifiedKFold

from dpmesh._validate import fail, instance, integer, positive
from dpmesh.defaults import Sizes
from dpmesh.privacy.accounting import calibrate_noise
from dpmesh.privacy.plan import Plan, total_cost
from dpmesh.privacy.shown import rounded_up
from dpmesh.sklearn.estimators import PrivateClassifier, PrivateRegressor
from dpmesh.tables import rows
from dpmesh.tables.sites import site_of_each


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossValidation:
    """Scores on held-out records, and what the fits cost together.

    Parameters
    ----------
    scores
        Of each fold, shape (folds,): accuracy, or R². They are computed from held-out records
        without noise: for research, and covered by no epsilon.
    epsilon, delta
        What all fits cost a record together: it is in all training sets but one.
    epsilon_of_a_fit
        What each fit costs by itself.
    """

    scores: npt.NDArray[np.float64]
    epsilon: float
    delta: float
    epsilon_of_a_fit: float

    def __str__(self) -> str:
        mean, spread = self.scores.mean(), self.scores.std()
        return (
            f"score {mean:.3f} +- {spread:.3f} over {len(self.scores)} folds; the fits cost "
            f"epsilon = {rounded_up(self.epsilon)} together "
            f"({rounded_up(self.epsilon_of_a_fit)} each) at delta = {rounded_up(self.delta)}"
        )


def cross_validate(
    estimator: PrivateClassifier | PrivateRegressor,
    X: Any,
    y: Any,
    groups: Any = None,
    *,
    cv: int = 5,
) -> CrossValidation:
    """Cross-validate within the estimator's epsilon, which all fits share.

    Each fold holds out a part of every site. Each record is in the training sets of ``cv - 1``
    fits; each fit gets the epsilon at which these cost `estimator.epsilon` together. A final fit on
    all records costs its own epsilon on top: ``dm.privacy.total_cost`` of the ledgers.

    Parameters
    ----------
    estimator
        A `PrivateClassifier` or `PrivateRegressor` with a finite epsilon; it is not fitted.
    X, y, groups
        As for its `fit`.
    cv
        Number of folds, at least 2 and at most the records of the smallest site.

    Raises
    ------
    ValueError
        If an argument does not fit.
    """
    wanted = "a PrivateClassifier or PrivateRegressor"
    instance("estimator", estimator, wanted, PrivateClassifier, PrivateRegressor)
    integer("cv", cv, at_least=2)
    total, delta = positive("epsilon", estimator.epsilon or 0.0), estimator.delta
    targets = estimator.targets(X, y)
    owners = None if groups is None else site_of_each(groups, len(targets))
    folds = _folds(targets, owners, cv, estimator.random_state)
    parts = [
        (rows(X, fitted), targets[fitted], None if owners is None else owners[fitted])
        for fitted, _ in folds
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fits warn
        sizes = [Sizes.of(clone(estimator).encoded(*part).problem) for part in parts]

    def joint(scale: float) -> float:
        chosen = {own: estimator.choice(own, total / scale) for own in {*sizes}}
        plans = {own: one.algorithm.plan(one.rounds) for own, one in chosen.items()}
        return _largest_cost([plans[own] for own in sizes], delta, estimator.partners)

    guess = sqrt(cv - 1)
    each = total if cv == 2 else total / calibrate_noise(joint, target_epsilon=total, guess=guess)
    scores, ledgers, epsilons = [], [], []
    for part, (_, held_out) in zip(parts, folds, strict=True):
        own = clone(estimator).set_params(epsilon=each).fit(*part)
        scores.append(own.score(rows(X, held_out), targets[held_out]))
        ledgers.append(own.ledger_)
        epsilons.append(own.report_.privacy.epsilon)
    return CrossValidation(
        scores=np.array(scores),
        epsilon=_largest_cost(ledgers, delta, estimator.partners),
        delta=delta,
        epsilon_of_a_fit=max(epsilons),
    )


def _folds(
    targets: npt.NDArray[Any], owners: npt.NDArray[Any] | None, cv: int, seed: Any
) -> list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Return the records that are fitted and held out in each fold: a part of every site."""
    if owners is None:
        return [*KFold(cv, shuffle=True, random_state=seed).split(targets)]
    names, counts = np.unique(owners, return_counts=True)
    if cv > counts.min():
        few = f"{names[counts.argmin()]} with {counts.min()}"
        fail("groups", f"at least {cv} records at each site, as many as folds (cv)", few)
    split = StratifiedKFold(cv, shuffle=True, random_state=seed)
    return [*split.split(np.zeros((len(targets), 1)), owners)]


def _largest_cost(fits: list[Plan], delta: float, colluding: int | None) -> float:
    """Return what the fits cost a record that one of them holds out, at most."""
    return max(
        total_cost(fits[:out] + fits[out + 1 :], delta, colluding=colluding).epsilon
        for out in {fits.index(fit) for fit in fits}
    )
