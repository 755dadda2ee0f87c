"""One table of tasks, which nothing may forget; counts are tuned and warned about as counts."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import fields
from typing import Any, get_args

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.calibration import CalibratedClassifierCV
from sklearn.multiclass import OneVsRestClassifier

import dpmesh as dm
from dpmesh.kernels.linear_model import LOSSES
from dpmesh.run.tasks import TASKS, TaskName, task_of, task_of_problem
from dpmesh.sklearn import PrivateClassifier, PrivateRegressor, evaluate
from dpmesh.sklearn.tuning import _utility

DRAW = np.random.default_rng(0)
X = DRAW.uniform(-1, 1, (300, 2))
SITE = np.arange(300) % 3

pytestmark = pytest.mark.filterwarnings("ignore:all records are one site")


def test_every_task_has_every_entry_and_every_loss_one_task() -> None:
    assert {*TASKS} == {*get_args(TaskName)}
    for name, task in TASKS.items():
        assert task.name == name
        for entry in fields(task):
            assert getattr(task, entry.name) not in (None, "", ()), f"{name} lacks {entry.name}"
        parameters = {*PrivateClassifier().get_params(), *PrivateRegressor().get_params()}
        assert task.range_parameter in parameters
    counted = Counter(loss for task in TASKS.values() for loss in task.losses)
    assert counted == dict.fromkeys(LOSSES, 1)


def fitted(name: TaskName) -> tuple[Any, Any]:
    model: Any = {
        "classes": PrivateClassifier(50.0, random_state=0, ranges=(-1, 1)),
        "labels": PrivateClassifier(50.0, random_state=0, ranges=(-1, 1)),
        "numbers": PrivateRegressor(50.0, random_state=0, ranges=(-1, 1), target_range=(-2, 2)),
        "counts": PrivateRegressor(50.0, random_state=0, ranges=(-1, 1), counts=9),
    }[name]
    target: Any = {
        "classes": X[:, 0] > 0,
        "labels": (X > 0).astype(int),
        "numbers": 2 * X[:, 0],
        "counts": np.round(9 * np.exp(2 * X[:, 0] - 2)),
    }[name]
    return model.fit(X, target, groups=SITE), target


@pytest.mark.parametrize("name", [*TASKS])
def test_a_fit_beats_the_trivial_model_in_utility(name: TaskName) -> None:
    model, target = fitted(name)
    assert task_of(model.model_).name == name
    trivial = np.median(target, axis=0) if target.ndim == 1 else np.zeros_like(target)
    if target.ndim == 1:
        trivial = np.full(len(target), trivial).astype(target.dtype)
    utilities = TASKS[name].utility(model.model_, trivial, target)
    assert np.ptp(utilities) <= 1
    assert np.abs(utilities).max() <= 1
    assert _utility(model, X, target) > utilities.sum() + 5


def test_rare_classes_weigh_as_their_public_shares_say() -> None:
    y = np.where(X[:, 0] > 0.8, "yes", "no")
    shares = {"no": 0.9, "yes": 0.1}
    model = PrivateClassifier(8.0, random_state=0, class_shares=shares).fit(X, y, groups=SITE)
    utility = TASKS["classes"].utility
    rare, frequent = (utility(model.model_, np.full(300, name), y).sum() for name in ("yes", "no"))
    assert rare == (y == "yes").sum()
    assert frequent == pytest.approx((y == "no").sum() / 9)


def test_a_regression_of_two_values_is_measured_as_a_regression() -> None:
    target = np.where(X[:, 0] > 0, 1.0, -1.0)
    model = PrivateRegressor(8.0, random_state=0, ranges=(-1, 1), target_range=(-1, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = model._encoded_problem(X, target, SITE).problem
    assert task_of_problem(problem).name == "numbers"
    with pytest.warns(UserWarning, match="y has two values only, -1 and 1: PrivateClassifier"):
        found = evaluate(model, X, target, groups=SITE, splits=1)
    assert found.verdict.metric == "R²"
    plain = dm.Dataset(X / 2, target)
    own = dm.LinearProblem(plain, [[0], [1]], "squared", test=plain)
    assert task_of_problem(own).name == "classes"


def test_a_count_beyond_its_bound_names_the_parameter() -> None:
    model = PrivateRegressor(8.0, counts=50, random_state=0, ranges=(-1, 1))
    with pytest.warns(UserWarning, match="are clipped; set counts= to what may occur"):
        model.fit(X, np.where(np.arange(300) == 0, -100, 3), groups=SITE)


@pytest.mark.parametrize(
    "wrap", [lambda model: CalibratedClassifierCV(model, cv=3), OneVsRestClassifier]
)
def test_fits_by_a_host_library_are_counted(wrap: Any) -> None:
    y = np.where(X[:, 0] > 0.3, "a", np.where(X[:, 1] > 0, "b", "c"))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        host = wrap(PrivateClassifier(1.0, random_state=0, ranges=(-1, 1))).fit(X, y)
    told = [str(one.message) for one in said if "each fit costs its epsilon" in str(one.message)]
    assert [text[:6] for text in told] == ["2 fits", "3 fits"]
    assert "at most epsilon = 3 (the sum) for the 3 fits" in told[-1]
    last: Any = getattr(host, "estimators_", None)
    last = last[-1] if last else host.calibrated_classifiers_[-1].estimator
    assert last.report_.fits == 3
    assert "fits        3 of these records" in str(last.report_)
    assert "epsilon = 3 (the sum)" in str(last.model_.about)


def test_fits_of_other_records_or_of_another_estimator_are_not_counted() -> None:
    y = X[:, 0] > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            model = PrivateClassifier(1.0, random_state=0, ranges=(-1, 1), classes=[False, True])
            model.fit(X[:150], y[:150], groups=SITE[:150])
            model.fit(X[150:], y[150:], groups=SITE[150:])
    assert model.report_.fits == 1


def test_masked_values_are_missing() -> None:
    hidden = np.ma.array(np.where(X > 0.5, -1.0, X), mask=X > 0.5)
    allowed = {place: {"range": [-1, 1], "missing": True} for place in (0, 1)}
    model = PrivateClassifier(8.0, random_state=0, ranges=allowed)
    y = X[:, 0] > 0
    masked = model.fit(hidden, y, groups=SITE).model_.weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        missing = model.fit(np.where(X > 0.5, np.nan, X), y, groups=SITE).model_.weights
    np.testing.assert_array_equal(masked, missing)
    with pytest.raises(ValueError, match="x0 is missing"):
        PrivateClassifier(8.0, ranges=(-1, 1)).fit(hidden, y, groups=SITE)
    with pytest.raises(ValueError, match="record 0, counted from 0: y has no label"):
        model.fit(X, np.ma.array(y.astype(int), mask=np.arange(300) < 100), groups=SITE)


def test_what_no_file_can_hold_is_refused_before_the_fit(tmp_path: Any) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": (X[:, 0] > 0).astype(int) + 1})
    y = X[:, 0] > 0
    listed = [*np.array([1, 2])]
    model = PrivateClassifier(8.0, random_state=0, ranges={"a": listed}).fit(table, y, groups=SITE)
    model.save(tmp_path / "model")
    again = PrivateClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(table), model.predict(table))
