"""The calibration of a regression: what a record moves, what it costs, and what it is worth."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federated_parts import changed

import dpmesh as dm
from dpmesh.algorithms import Calibrated, GradientDescent, RecordSums
from dpmesh.algorithms.calibrated import DISTANCE, LONGEST
from dpmesh.audit import alone, couple
from dpmesh.defaults import Sizes, choose
from dpmesh.defaults.rule import CALIBRATION_SHARE, calibration_pays, mu_of
from dpmesh.keys import Key
from dpmesh.privacy.views import OneNode
from dpmesh.run.carriers import Gossip
from dpmesh.sklearn import PrivateRegressor
from dpmesh.tables.calibration import Calibration, moments_of
from dpmesh.topology import complete, ring

SITES, RECORDS = 4, 40
SIZES = Sizes(nodes=SITES, fewest_records=RECORDS, total_records=SITES * RECORDS, dim=3, features=3)


def problem(first_target: float = 1.0, loss: Any = "squared") -> dm.LinearProblem:
    """Records of norm 1, of which the first one has this target."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((SITES * RECORDS, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.clip(x[:, 0] ** 2, 0, 1)
    y[0] = first_target
    parts = np.arange(len(x)).reshape(SITES, RECORDS)
    return dm.LinearProblem(dm.Dataset(x, y), tuple(parts), loss, feature_norm=1.0)


def chosen(method: Any, epsilon: float | None = 4.0, **others: Any) -> Any:
    how: Any = {"task": "regression", "algorithm": method, "calibrate": True, "delta": 1e-5}
    return choose(SIZES, epsilon=epsilon, **{**how, **others})


def skewed(records: int = 9_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts with a tail to the right, in [0, 30]."""
    draw = np.random.default_rng(0)
    z = draw.uniform(-1, 1, (records, 4))
    rate = 2.9 * np.exp(0.6 * z[:, 0] - 0.4 * z[:, 1])
    visits = draw.negative_binomial(0.7, 0.7 / (0.7 + rate)).clip(0, 30).astype(float)
    return z, visits, np.arange(records) % 5


def test_no_two_records_are_farther_apart_than_the_distance() -> None:
    draw = np.random.default_rng(0)
    ends = np.array([*product((-1.0, 0.0, 1.0), repeat=2)])
    pairs = np.concatenate([ends, draw.uniform(-1, 1, (300, 2))])
    moments = moments_of(pairs[:, 0], pairs[:, 1])
    full = np.stack([np.outer(v, v) for v in np.c_[np.ones(len(pairs)), pairs]])
    apart = np.linalg.norm(moments[:, np.newaxis] - moments, axis=2)
    frobenius = np.linalg.norm(full[:, np.newaxis] - full, axis=(2, 3))
    assert apart == pytest.approx(frobenius)
    assert apart.max() == pytest.approx(DISTANCE)
    assert np.linalg.norm(moments, axis=1).max() == pytest.approx(LONGEST)


@pytest.mark.parametrize("method", ["secure", "gossip"])
def test_a_record_moves_the_moments_as_far_as_is_charged(method: str) -> None:
    choice = chosen(method, rounds=4, epsilon=400.0)
    algorithm, rounds = choice.algorithm, choice.rounds
    pair = problem(1.0), problem(-1.0)
    carrier = alone if method == "secure" else Gossip(complete(SITES))
    options: Any = {"rounds": rounds, "key": Key.seeded(1)}
    found = couple(algorithm, *pair, carrier, **options)
    assert not found.violated, found
    moved = found.movements[-1]
    assert moved.allowed == pytest.approx(DISTANCE, rel=0.01)
    assert 2 < moved.distance <= moved.allowed
    charged = replace(algorithm.moments, diameter=algorithm.moments.diameter / 4)
    object.__setattr__(algorithm, "moments", charged)  # which the constructor refuses
    assert "moved by" in couple(algorithm, *pair, carrier, **options).faults[0]


@pytest.mark.parametrize("method", ["secure", "gossip"])
@pytest.mark.parametrize("dropouts", [0, 1])
def test_the_ledger_has_what_the_plan_says(method: str, dropouts: int) -> None:
    if method == "gossip" and dropouts:
        pytest.skip("gossip goes on from its quorum on")
    choice = chosen(method, dropouts=dropouts)
    algorithm = choice.algorithm
    plan = algorithm.plan(choice.rounds)
    assert 3.99 < plan.cost(1e-5).epsilon <= 4.0
    own = algorithm.moments.plan(1).cost(1e-5).epsilon
    share = (mu_of(own, 1e-5) / mu_of(4.0, 1e-5)) ** 2
    of_moments = CALIBRATION_SHARE * (1 + dropouts)
    rounds = choice.rounds - (method == "gossip")
    of_rounds = (1 - CALIBRATION_SHARE) * (1 + dropouts / rounds)
    assert share == pytest.approx(of_moments / (of_moments + of_rounds), rel=0.02)
    how: Any = {"rounds": choice.rounds, "key": Key.seeded(0), "delta": 1e-5, "metrics": []}
    run = dm.simulate(algorithm, problem(), choice.topology, **how)
    last = [release for release in run.ledger.touching if release.sensitivity.bound == DISTANCE]
    assert len(last) == 1
    assert last[0].round == choice.rounds - 1
    if not dropouts:
        assert run.ledger.cost(1e-5).epsilon == plan.cost(1e-5).epsilon
        assert len(run.ledger.releases) == len(plan.releases)
    assert run.released.shape == (1, 3 + 5)
    total = run.released[0, 3:]
    model = run.released[0, :3]
    records = problem()
    predictions = np.clip(records.train.features @ model, -1, 1)
    targets = np.asarray(records.train.labels, np.float64)
    truth = moments_of(predictions, targets).sum(axis=0)
    assert np.abs(total - truth).max() < 6 * algorithm.moments.noise_scale


def test_without_noise_the_map_is_that_of_least_squares() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        p = np.clip(draw.normal(0.2, 0.2, 200), -1, 1)
        y = np.clip(draw.uniform(-0.3, 0.3) + draw.uniform(0, 2) * p, -1, 1)
        total = moments_of(p, y).sum(axis=0)
        found = Calibration.of(total, noise=0.0, records=200)
        slope, level = np.polyfit(p, y, 1)
        assert found.slope == pytest.approx(np.clip(slope, 0, 3))
        expected = np.clip(level + slope * p, -1, 1)
        assert found.of_predictions(p) == pytest.approx(expected)
    same = Calibration.of(moments_of(np.zeros(5), np.full(5, 0.4)).sum(axis=0), noise=0, records=5)
    assert same.slope == 1.0
    assert same.mean_target == pytest.approx(0.4)


def test_noise_pulls_the_slope_to_one() -> None:
    draw = np.random.default_rng(0)
    p = draw.normal(0, 0.1, 1000)
    total = moments_of(p, 0.5 * p).sum(axis=0)
    slopes = [Calibration.of(total, noise=s, records=1000).slope for s in (0.0, 1.0, 5.0, 100.0)]
    assert slopes == sorted(slopes)
    assert slopes[0] == pytest.approx(0.5)
    assert slopes[-1] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("learned", [{"target_range": (0, 30)}, {"counts": 30}])
@pytest.mark.parametrize("epsilon", [None, 4.0])
def test_predictions_of_a_skewed_target_add_up(
    learned: dict[str, Any], epsilon: float | None, tmp_path: Path
) -> None:
    z, visits, sites = skewed()
    totals = []
    for calibrate in (None, False):
        model = PrivateRegressor(
            epsilon, ranges=(-1, 1), random_state=0, calibrate=calibrate, **learned
        )
        model.fit(z, visits, groups=sites)
        totals.append(model.predict(z).sum() / visits.sum())
        assert ("added up to" in str(model.report_)) == (calibrate is None)
        model.save(tmp_path / "m.dpmesh")
        loaded = PrivateRegressor.load(tmp_path / "m.dpmesh")
        np.testing.assert_array_equal(loaded.predict(z), model.predict(z))
        assert loaded.report_ == model.report_
        if epsilon is not None:
            assert 3.99 < model.ledger_.cost(1e-5).epsilon <= epsilon
    assert totals[0] == pytest.approx(1, abs=0.03)
    assert totals[1] < 0.9


def test_it_is_on_where_the_noise_is_small_by_public_numbers() -> None:
    large = Sizes(nodes=5, fewest_records=4_000, total_records=20_000, dim=9)
    assert calibration_pays(large, 1.0, 1e-5)
    assert not calibration_pays(large, 0.1, 1e-5)
    assert calibration_pays(large, None, 1e-5)
    z, visits, sites = skewed(300)
    few = PrivateRegressor(1.0, ranges=(-1, 1), target_range=(0, 30)).fit(z, visits, groups=sites)
    assert "none, since too few records" in few.report_.calibration
    assert few.model_.calibration is None


def test_scores_are_of_calibrated_predictions() -> None:
    z, visits, sites = skewed(4_000)
    model = PrivateRegressor(8.0, ranges=(-1, 1), target_range=(0, 30), random_state=0)
    found = dm.sklearn.evaluate(model, z, visits, groups=sites, splits=1)
    own = found.estimator
    assert own.model_.calibration is not None
    tested = np.setdiff1d(np.arange(4_000), np.arange(0))
    assert found.score == pytest.approx(own.score(z[tested], visits[tested]), abs=0.03)


def test_what_cannot_be_calibrated_is_refused() -> None:
    how: Any = {"epsilon": 1.0, "delta": 1e-5, "calibrate": True}
    with pytest.raises(ValueError, match="calibrate: wanted False for a classifier"):
        choose(SIZES, **how)
    with pytest.raises(ValueError, match="calibrate: wanted False for a contract"):
        choose(SIZES, task="regression", between_parties=True, **how)
    with pytest.raises(ValueError, match="wanted False unless all nodes are neighbours"):
        choose(SIZES, task="regression", topology=ring(SITES), **how)
    z, visits, sites = skewed(300)
    made = PrivateRegressor(
        1.0,
        ranges=(-1, 1),
        target_range=(0, 30),
        algorithm=lambda noise: GradientDescent(records=60, noise_multiplier=noise),
        rounds=5,
        calibrate=True,
    )
    with pytest.raises(ValueError, match="calibrate: wanted None or False beside an algorithm"):
        made.fit(z, visits, groups=sites)
    algorithm = chosen("gossip").algorithm
    with pytest.raises(ValueError, match="moments: wanted"):
        replace(algorithm, moments=replace(algorithm.moments, diameter=1.0))
    summed = chosen("secure").algorithm
    added = changed(summed.algorithm, neighboring_relation="add_remove")
    with pytest.raises(ValueError, match="algorithm: this algorithm has record-level DP under add"):
        replace(summed, algorithm=added)
    records = problem()
    labels = np.where(records.train.labels > 0.5, 1.0, -1.0)
    data = dm.Dataset(records.train.features, labels)
    signs = dm.LinearProblem(data, records.partition, "logistic", feature_norm=1.0)
    with pytest.raises(ValueError, match="problem: wanted a regression"):
        algorithm.init(signs, Key.seeded(0))
    with pytest.raises(ValueError, match="algorithm: calibration needs totals"):
        Calibrated(
            algorithm=RecordSums(dim=3, sites=3, records=9, noise_to_sensitivity=1.0, secure=False),
            rounds=1,
            moments=algorithm.moments,
        )


def test_a_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    choice = chosen("gossip", rounds=4)
    how: Any = {"rounds": choice.rounds, "key": Key.seeded(0), "delta": 1e-5, "metrics": []}
    whole = dm.simulate(choice.algorithm, problem(), choice.topology, **how)

    def stop(rounds: int, values: Any) -> None:
        if rounds == 2:
            raise dm.StopRun

    checkpoint = dm.run.Checkpoint(tmp_path / "c", every=1)
    metrics = dm.Metrics([], every=1, callback=stop)
    first = {**how, "metrics": metrics, "checkpoint": checkpoint}
    dm.simulate(choice.algorithm, problem(), choice.topology, **first)
    again = {**how, "checkpoint": checkpoint}
    resumed = dm.simulate(choice.algorithm, problem(), choice.topology, **again)
    np.testing.assert_array_equal(resumed.released, whole.released)


def test_a_view_names_the_moments_as_the_reason_why_no_less_is_proved() -> None:
    choice = chosen("gossip", rounds=4)
    view = OneNode(topology=ring(SITES))
    for rounds in (choice.rounds - 1, choice.rounds):
        cost = choice.algorithm.plan(rounds, problem()).cost(1e-5, view=view)
        assert cost.reason == Calibrated.view_refusal
        assert cost.epsilon == cost.full_view_epsilon
