"""Baselines against scikit-learn, and what is shown beside a run."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.run import Run
from dpmesh.run.baselines import LARGEST, Baselines, alone_private, beside, compute, measured


def problem(loss: str = "softmax") -> dm.LinearProblem:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(300, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    truth = x @ draw.normal(size=5)
    y = (truth > 0).astype(int) if loss == "softmax" else truth / np.abs(truth).max()
    train, test = dm.Dataset(x[:200], y[:200]), dm.Dataset(x[200:], y[200:])
    parts = tuple(np.array_split(np.arange(200), [30, 60, 130]))
    classes = 2 if loss == "softmax" else None
    return dm.LinearProblem(train, parts, loss, test=test, classes=classes)  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_pooled_and_alone_are_those_of_scikit_learn(loss: str) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    own = problem(loss)
    found = compute(own)
    assert (found.metric, found.chance, found.alone_private) == ("R²", 0.0, None)
    assert own.test is not None
    for part, score in (*zip(own.partition, found.alone, strict=True), (slice(200), found.pooled)):
        model = linear.RidgeCV(np.logspace(-4, 3, 15), fit_intercept=False)
        model.fit(own.train.features[part], own.train.labels[part])
        expected = model.score(own.test.features, own.test.labels)
        assert score == pytest.approx(expected, abs=1e-9)


def test_classes_are_told_by_accuracy() -> None:
    own = problem()
    found = compute(own, epsilon=4.0, key=dm.Key.seeded(1), most=2)
    assert own.test is not None
    assert found.chance == (own.test.labels == np.bincount(own.train.labels).argmax()).mean()
    assert found.others["balanced accuracy"].chance == found.others["AUC"].chance == 0.5
    assert found.pooled > found.chance
    assert found.alone.shape == (4,)
    assert found.alone_private is not None
    assert found.alone_private.shape == (2,)
    again = alone_private(own, 4.0, key=dm.Key.seeded(1), most=2)
    np.testing.assert_array_equal(again, found.alone_private)
    copied = Baselines.from_dict(json.loads(json.dumps(found.as_dict())))
    assert repr(copied) == repr(found)
    assert [*found.measures] == ["accuracy", "balanced accuracy", "AUC"]
    with pytest.raises(ValueError, match="key: wanted a seeded key"):
        alone_private(own, 4.0, key=dm.Key.generate())
    with pytest.raises(ValueError, match="test: wanted records"):
        compute(replace(own, test=None))


def test_a_better_model_scores_better() -> None:
    own = problem("squared")
    truth = np.linalg.lstsq(np.asarray(own.train.features), own.train.labels, rcond=None)[0]
    zero, best = (measured(own, w[np.newaxis])["R²"] for w in (np.zeros(5), truth))
    assert zero <= 0.05
    assert best == pytest.approx(1)


def test_a_column_that_is_constant_at_a_node_has_no_weight_there() -> None:
    """Such as one that is missing there: elsewhere it would move every prediction."""
    sklearn = pytest.importorskip("dpmesh.sklearn")
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, (300, 2))
    y, site = (0.5 * x[:, 0] + 0.3 * x[:, 1]).clip(-1, 1), np.arange(300) % 3
    x[site == 0, 1] = np.nan
    ranges = [[-1, 1], {"range": [-1, 1], "missing": True}]
    model = sklearn.PrivateRegressor(8.0, ranges=ranges, random_state=0)
    found = sklearn.evaluate(model, x, y, groups=site)
    assert 0.3 < found.baselines.alone[0] < found.baselines.alone[1]
    own = problem()
    features = np.array(own.train.features)
    features[own.partition[0], 2] = 0.3
    changed = replace(own, train=dm.Dataset(features, own.train.labels))
    without = features.copy()
    without[own.partition[0], 2] = 0
    alone = replace(own, train=dm.Dataset(without, own.train.labels))
    np.testing.assert_array_equal(compute(changed).alone[0], compute(alone).alone[0])


def run_of(own: dm.LinearProblem, delta: float | None = None) -> Run:
    algorithm = dm.GradientDescent(records=30, noise_multiplier=2.0)
    return dm.simulate(algorithm, own, dm.topology.ring(4), rounds=4, delta=delta, metrics=[])


def test_a_run_is_shown_beside_what_it_costs_and_a_pickle_leaves_the_data_behind() -> None:
    run = run_of(problem(), 1e-5)
    found = run.baselines
    assert found is not None
    assert found.alone_private is not None
    assert found.epsilon is not None
    assert found.epsilon == pytest.approx(run.privacy.epsilon, rel=1e-5)
    assert run.score == run.problem.accuracy(run.released).mean()
    copied = pickle.loads(pickle.dumps(run))
    assert copied.problem is None
    assert repr(copied) == repr(run)
    assert copied.measured == run.measured
    assert repr(Baselines.from_dict(run.as_dict()["baselines"])) == repr(found)


def test_a_run_without_a_guarantee_or_without_data_has_no_such_baseline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (plain := run_of(problem()).baselines) is not None
    assert plain.alone_private is None
    untested = run_of(replace(problem(), test=None))
    assert untested.baselines is None
    assert untested.score is None
    assert "chance" not in repr(untested)
    own = problem()
    monkeypatch.setattr("dpmesh.run.baselines.LARGEST", 200 * 5 * 2 - 1)
    assert LARGEST > 200 * 5 * 2
    assert beside(own, run_of(problem()).privacy) is None


def test_columns_that_nobody_scaled_are_noticed() -> None:
    own = problem()
    raw = dm.Dataset(1000 * np.asarray(own.train.features), own.train.labels)
    with pytest.warns(UserWarning, match="norms of 1000 and more, far above 1: scale the columns"):
        run_of(replace(own, train=raw))
