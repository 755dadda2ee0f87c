"""Choice of hyperparameters with DP: all fits and the choice have one privacy budget.

`tune` splits the records at random. The candidates are fitted to the training records and divide
the budget among them (sequential composition). The exponential mechanism chooses one by its scores
on the held-out records. A record is in one of the two parts, so fits and choice compose in
parallel.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.utils import check_random_state

from dpmesh._epsilons import rounded_up
from dpmesh._validate import fail, instance, positive, probability
from dpmesh.accounting import calibrate_noise
from dpmesh.defaults import Sizes
from dpmesh.privacy.plan import total_cost
from dpmesh.run.tasks import task_of
from dpmesh.sklearn.estimators import PrivateClassifier, PrivateRegressor
from dpmesh.sklearn.evaluation import draw_test_records
from dpmesh.sklearn.repeated import with_new_history
from dpmesh.tables import rows
from dpmesh.tables.cells import Cells
from dpmesh.tables.sites import site_of_each
from dpmesh.tables.table import ColumnLike, TableLike

_WANTED = "a PrivateClassifier or PrivateRegressor"

_LARGEST_SEED = 2**31 - 1
"""Exclusive upper bound of the seeds of fits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tuned:
    """Result of `tune`: the chosen candidate, and the privacy of all fits and the choice.

    Parameters
    ----------
    estimator
        The estimator of the chosen candidate, fitted to the training records.
    params
        Parameters that the chosen candidate sets.
    epsilon, delta
        Guarantee of all fits and the choice together, for replacing one record. The adversary is
        the adversary of the fits, and also learns which candidate was chosen.
    epsilon_of_a_fit
        Largest epsilon of a single fit.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(300, 2))
    >>> model = dm.sklearn.PrivateClassifier(4.0, ranges=(-1, 1), classes=[False, True])
    >>> two = [{"rounds": 5}, {"rounds": 10}]
    >>> found = dm.sklearn.tune(model, two, X, X[:, 0] > 0, groups=np.arange(300) % 3)
    >>> found.epsilon <= 4.0
    True
    """

    estimator: PrivateClassifier | PrivateRegressor
    params: Mapping[str, Any]
    epsilon: float
    delta: float
    epsilon_of_a_fit: float

    def __str__(self) -> str:
        chosen = ", ".join(f"{name}={value!r}" for name, value in self.params.items()) or "defaults"
        return (
            f"chosen: {chosen}; all fits and the choice cost epsilon = {rounded_up(self.epsilon)} "
            f"(a fit at most {rounded_up(self.epsilon_of_a_fit)}) at delta = "
            f"{rounded_up(self.delta)}"
        )


def tune(
    estimator: PrivateClassifier | PrivateRegressor,
    candidates: Sequence[Mapping[str, Any]],
    X: TableLike,
    y: ColumnLike,
    groups: ColumnLike = None,
    *,
    test_size: float = 0.25,
    epsilon: float | None = None,
) -> Tuned:
    """Choose hyperparameters with DP: fit each candidate, and select one on held-out records.

    The unit is a record, and neighbouring datasets differ in the value of one record (replace-one).
    The split into training and held-out records depends on positions alone, not on values.

    - All fits together have `epsilon` for a training record, by composition.
    - The choice has `epsilon` for a held-out record. It is the exponential mechanism (McSherry and
      Talwar 2007). The utility of a candidate is the number of correct predictions, weighted by
      `class_shares` if stated. For numbers and counts it is minus the sum of squared errors, in
      units of the public range. One record changes the utility by at most 1.
    - Each record is either a training record or a held-out record. So fits and choice compose in
      parallel, and have `epsilon` together.

    The held-out scores are computed in one place, so that the choice needs a trusted curator or a
    simulation.

    Parameters
    ----------
    estimator
        A `PrivateClassifier` or `PrivateRegressor` with a finite epsilon. It stays unfitted. State
        `classes` if a class is rare: a class without a training record is unknown otherwise.
    candidates
        Parameters of each candidate, such as ``[{"rounds": 50}, {"rounds": 200}]`` or
        ``[{"algorithm": "secure"}, {"algorithm": "gossip"}]``. The fits divide the budget, so that
        each further candidate leaves less epsilon to each fit. If candidates set ``epsilon``, their
        values are scaled by a common factor. No candidate may set ``delta``, ``colluding`` or
        ``noise``.
    X, y, groups
        As for the estimator's `fit`.
    test_size
        Share of each site's records to hold out, in (0, 1); the number of records is rounded.
    epsilon
        Epsilon of all fits and the choice together; by default the estimator's.

    Raises
    ------
    ValueError
        If an argument is invalid.
    """
    instance("estimator", estimator, _WANTED, PrivateClassifier, PrivateRegressor)
    if epsilon is None:
        epsilon = estimator.epsilon
    total = positive("epsilon", epsilon or 0.0)  # None fails like 0
    probability("test_size", test_size, zero=False, one=False)
    _check_candidates(candidates)
    targets = estimator._checked_targets(X, y)
    owners = site_of_each(groups, len(targets))
    is_seeded = estimator.random_state is not None
    draw = check_random_state(estimator.random_state)
    is_tested = draw_test_records(owners, test_size, draw)  # shape (records,)
    train_indices = np.flatnonzero(~is_tested)
    train = (rows(X, train_indices), targets[train_indices], owners[train_indices])
    estimators = [with_new_history(clone(estimator)).set_params(**params) for params in candidates]
    shares = [positive("epsilon", unfitted.epsilon or 0.0) for unfitted in estimators]
    divisor = _divisor(estimators, train, shares, total)
    fitted = []
    for unfitted, share in zip(estimators, shares, strict=True):
        seed = None
        if is_seeded:
            seed = int(draw.randint(_LARGEST_SEED))
        unfitted.set_params(epsilon=share / divisor, random_state=seed)
        fitted.append(unfitted.fit(*train))
    held_out_table = rows(X, np.flatnonzero(is_tested))
    held_out_targets = targets[is_tested]
    utility = np.array([_utility(model, held_out_table, held_out_targets) for model in fitted])
    best = _draw_candidate(utility, total, draw if is_seeded else None)
    ledgers = [model.ledger_ for model in fitted]
    delta = estimator.delta
    fit_epsilon = max(model.report_.privacy.epsilon for model in fitted)
    partners = estimator._colluding_partners
    epsilon_of_fits = total_cost(ledgers, delta, colluding=partners).epsilon
    # parallel composition: a record is either in the fits or in the choice
    spent = max(epsilon_of_fits, total)
    chosen = fitted[best]
    other_ledgers = [ledger for place, ledger in enumerate(ledgers) if place != best]
    reason = f"chosen among {len(fitted)} fits, whose cost is counted"
    chosen._restate_cost(spent, reason, other_ledgers, selection=total)
    return Tuned(
        estimator=chosen,
        params=dict(candidates[best]),
        epsilon=spent,
        delta=delta,
        epsilon_of_a_fit=fit_epsilon,
    )


def _check_candidates(candidates: Sequence[Mapping[str, Any]]) -> None:
    """Fail unless candidates are parameters that leave the guarantee's adversary as it is."""
    if not candidates or not all(isinstance(candidate, Mapping) for candidate in candidates):
        fail("candidates", "a list of parameters, such as [{'algorithm': 'gossip'}]", candidates)
    for name in {*chain(*candidates)} & {"delta", "colluding", "noise"}:
        expected = (
            "no delta, and no parameter that states whom one trusts: set them on the estimator"
        )
        fail("candidates", expected, name)


def _divisor(
    estimators: Sequence[PrivateClassifier | PrivateRegressor],
    train: tuple[TableLike, Cells, Cells],
    shares: Sequence[float],
    total: float,
) -> float:
    """Return the divisor of all epsilons with which the fits together have the epsilon `total`.

    Parameters
    ----------
    estimators
        The unfitted candidates.
    train
        Table, targets and sites of the training records.
    shares
        The epsilon parameter of each candidate.
    total
        The epsilon of all fits together.
    """
    if len(estimators) == 1:
        return shares[0] / total
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fits warn
        encoded = [clone(estimator)._encoded_problem(*train) for estimator in estimators]
    sizes = [Sizes.of(training_data.problem) for training_data in encoded]

    def epsilon_of_all(divisor: float) -> float:
        """Return the epsilon of all fits, each with its share divided by `divisor`."""
        plans = []
        for estimator, estimator_sizes, share in zip(estimators, sizes, shares, strict=True):
            choice = estimator._choose_settings(estimator_sizes, share / divisor)
            plans.append(choice.algorithm.plan(choice.rounds))
        partners = estimators[0]._colluding_partners
        return total_cost(plans, estimators[0].delta, colluding=partners).epsilon

    # `calibrate_noise` finds the least argument with an epsilon of at most `total`. A larger
    # divisor gives a smaller epsilon, as more noise does.
    guess = sqrt(len(estimators)) * max(shares) / total
    return calibrate_noise(epsilon_of_all, target_epsilon=total, guess=guess)


def _utility(estimator: PrivateClassifier | PrivateRegressor, X: TableLike, y: Cells) -> float:
    """Return the utility of a fit on held-out records; replacing one changes it by at most 1."""
    task = task_of(estimator.model_)
    return float(task.utility(estimator.model_, estimator.predict(X), y).sum())


def _draw_candidate(
    utility: npt.NDArray[np.float64], epsilon: float, draw: np.random.RandomState | None
) -> int:
    """Draw the index of a candidate by the exponential mechanism (McSherry and Talwar 2007).

    The probability of index i is proportional to ``exp(epsilon * utility[i] / 2)``. That is
    epsilon-DP for replacing one record if one record changes each utility by at most 1.

    Parameters
    ----------
    utility
        Utility of each candidate, shape (candidates,).
    epsilon
        Epsilon of the choice.
    draw
        Generator of a seeded choice, which is not private; None for the operating system's.
    """
    weights = np.exp(epsilon / 2 * (utility - utility.max()))
    cumulative = np.cumsum(weights) / weights.sum()
    if draw is None:
        coin = secrets.SystemRandom().random()
    else:
        coin = float(draw.random_sample())
    return int(np.searchsorted(cumulative, coin, side="right").clip(0, len(utility) - 1))
