"""Tuning under one budget: the fits share it, and the choice has the distribution it claims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

import dpmesh as dm
from dpmesh.sklearn.tuning import _draw_candidate, _utility, tune

DRAW = np.random.default_rng(0)
X = DRAW.uniform(-1, 1, size=(400, 3))
SITE = np.arange(400) % 4

pytestmark = pytest.mark.filterwarnings("ignore:all records are one site")


@pytest.mark.slow
def test_all_fits_and_the_choice_cost_the_epsilon_of_the_estimator() -> None:
    y = np.where(X[:, 0] > 0, "a", "b")
    model = dm.sklearn.PrivateClassifier(epsilon=3.0, random_state=1)
    candidates = [{"algorithm": "secure"}, {"algorithm": "gossip"}, {"fit_intercept": False}]
    found = tune(model, candidates, X, y, SITE)
    assert found.params in candidates
    assert 2.9 < found.epsilon <= 3.0 + 1e-9
    assert found.epsilon_of_a_fit < 2.2
    report = found.estimator.report_.privacy
    assert report.epsilon == found.estimator.model_.about["epsilon"] == found.epsilon
    assert report.assumptions[-1] == "chosen among 3 fits, whose cost is counted"
    for name, value in found.params.items():
        assert getattr(found.estimator, name) == value
    assert found.estimator.predict(X).shape == y.shape
    assert "all fits and the choice cost epsilon = 3 " in str(found)
    alone = tune(model, [{}], X, y, SITE)
    assert alone.epsilon_of_a_fit == pytest.approx(3.0, rel=1e-2)


@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_a_held_out_record_moves_the_utility_by_at_most_1(task: str) -> None:
    numbers = 10 * X[:, 0]
    if task == "classes":
        y = np.where(X[:, 0] > 0, "a", "b")
        fitted = dm.sklearn.PrivateClassifier(random_state=1).fit(X, y)
        others = np.array(["a", "b"])
    else:
        y, others = numbers, np.array([-10.0, 10.0, 99.0, -99.0, np.nan])
        fitted = dm.sklearn.PrivateRegressor(target_range=(-10, 10), random_state=1).fit(X, y)
    before = _utility(fitted, X[:50], y[:50])
    moves = []
    for other in others:
        for row in (X[0], np.ones(3), -np.ones(3)):
            x, t = X[:50].copy(), y[:50].copy()
            x[7], t[7] = row, other
            moves.append(abs(_utility(fitted, x, t) - before))
    assert max(moves) <= 1
    assert max(moves) > 0.1


def test_the_choice_is_that_of_the_exponential_mechanism() -> None:
    utility, epsilon, draws = np.array([3.0, 5.0, 4.0]), 1.0, 4000
    draw = np.random.RandomState(0)
    found = np.bincount([_draw_candidate(utility, epsilon, draw) for _ in range(draws)])
    wanted = np.exp(epsilon / 2 * utility)
    wanted *= draws / wanted.sum()
    # chi-squared with 2 degrees of freedom: a right choice fails once in 10,000 runs
    assert float((np.square(found - wanted) / wanted).sum()) < 18.4
    wrong = np.exp(epsilon * utility)
    wrong *= draws / wrong.sum()
    assert float((np.square(found - wrong) / wrong).sum()) > 18.4


def test_what_cannot_be_tuned_is_refused() -> None:
    y = X[:, 0] > 0
    model = dm.sklearn.PrivateClassifier()
    with pytest.raises(ValueError, match="candidates: wanted a list"):
        tune(model, [], X, y, SITE)
    for wrong in ({"delta": 1e-3}, {"colluding": 0}, {"noise": "BetweenPartners"}):
        with pytest.raises(ValueError, match="candidates: wanted no delta, and no parameter that"):
            tune(model, [{}, wrong], X, y, SITE)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [None, "BetweenPartners"])
def test_rounds_and_epsilon_can_be_chosen_within_a_budget(noise: Any) -> None:
    y = np.where(X[:, 0] > 0, "a", "b")
    candidates = [{"rounds": 20, "epsilon": 1.0}, {"rounds": 60, "epsilon": 2.0}]
    model = dm.sklearn.PrivateClassifier(random_state=1)
    model.noise = noise
    found = tune(model, candidates, X, y, SITE, epsilon=4.0)
    assert 3.9 < found.epsilon <= 4.0 + 1e-9
    assert found.estimator.report_.privacy.epsilon == found.epsilon
    assert found.estimator.report_.rounds == found.params["rounds"]
    share = 2.0 / found.params["epsilon"]
    assert found.epsilon_of_a_fit == pytest.approx(share * found.estimator.epsilon, rel=1e-2)
