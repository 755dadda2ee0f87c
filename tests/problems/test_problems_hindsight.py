"""The best fixed predictor against other solvers, and its certificate against random points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import optimize, sparse
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from dpmesh.data import Dataset, breast_cancer
from dpmesh.kernels.linear_model import KINKED, Loss
from dpmesh.problems import LinearProblem, NotReached, best_fixed_predictor

TASKS: list[tuple[Loss, int | None]] = [
    ("logistic", None),
    ("hinge", None),
    ("squared", None),
    ("absolute", None),
    ("huber", None),
    ("hinge", 3),
    ("absolute", 3),
    ("logistic", 3),
    ("softmax", 3),
]


def problem(
    loss: Loss, classes: int | None, regularization: float = 0.0, form: Any = np.asarray
) -> LinearProblem:
    """200 noisy records in 3 dimensions at 2 nodes."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 3))
    scores = x @ rng.normal(size=(3, classes or 1)) + rng.normal(size=(200, classes or 1))
    labels = scores.argmax(axis=1) if classes else np.where(scores[:, 0] > 0, 1, -1)
    partition = (np.arange(100), np.arange(100, 200))
    return LinearProblem(
        Dataset(form(x), labels, "x"),
        partition,
        loss,
        test=None,
        classes=classes,
        regularization=regularization,
    )


def objective(p: LinearProblem, w: np.ndarray) -> np.ndarray:
    """Mean loss over all records plus the regularizer, at each row of `w`."""
    return p.objective(w, np.tile(np.arange(p.train.records), (len(w), 1)))


@pytest.mark.parametrize("radius", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("regularization", [0.0, 0.05])
@pytest.mark.parametrize(("loss", "classes"), TASKS)
def test_no_point_of_the_ball_refutes_the_certificate(
    loss: Loss, classes: int | None, regularization: float, radius: float
) -> None:
    p = problem(loss, classes, regularization)
    best = best_fixed_predictor(p, radius=radius, tolerance=1e-5)
    assert 0 <= best.gap <= 1e-5
    assert np.linalg.norm(best.parameters) <= radius * (1 + 1e-12)
    assert best.value == pytest.approx(objective(p, best.parameters[None])[0], rel=1e-12)
    # Points at all distances from the predictor, moved into the ball.
    rng = np.random.default_rng(6)
    moves = rng.normal(size=(2000, p.dim)) * radius * np.logspace(-8, 0, 2000)[:, None]
    points = best.parameters + moves
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    points *= np.minimum(1, radius / lengths)
    assert objective(p, points).min() >= best.value - best.gap - 1e-12


@pytest.mark.parametrize("radius", [0.5, 3.0])
@pytest.mark.parametrize(("loss", "classes"), TASKS)
def test_a_general_solver_finds_the_same_value(
    loss: Loss, classes: int | None, radius: float
) -> None:
    p = problem(loss, classes, 0.01)
    best = best_fixed_predictor(p, radius=radius, tolerance=1e-6)
    found = optimize.minimize(
        lambda w: objective(p, w[None])[0],
        best.parameters + 0.1,
        jac=lambda w: p.gradient(w[None], np.arange(200)[None])[0],
        constraints={"type": "ineq", "fun": lambda w: radius**2 - w @ w, "jac": lambda w: -2 * w},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    # SLSQP may leave the ball by rounding, and stops early at kinks.
    assert best.value - best.gap - 1e-7 <= found.fun
    assert found.fun <= best.value + (0.1 if loss in KINKED else 1e-7)


@pytest.mark.parametrize(("dim", "radius"), [(1, 0.2), (1, 30.0), (3, 30.0)])
def test_least_absolute_deviations_are_a_linear_program(dim: int, radius: float) -> None:
    """In one dimension a ball is an interval; in more it is so large that it does not bind."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(40, dim))
    y = x.sum(axis=1) + rng.laplace(size=40)
    p = LinearProblem(Dataset(x, y, "x"), (np.arange(40),), "absolute", label_bound=100.0)
    best = best_fixed_predictor(p, radius=radius, tolerance=1e-6)
    # The mean of t, at least, with -t <= <w, x> - y <= t.
    cost, eye = np.append(np.zeros(dim), np.full(40, 1 / 40)), np.eye(40)
    rows, ends = np.block([[x, -eye], [-x, -eye]]), np.append(y, -y)
    limits = [(-radius, radius)] * dim + [(0, None)] * 40
    program = optimize.linprog(cost, rows, ends, bounds=limits)
    assert best.value - best.gap - 1e-9 <= program.fun <= best.value + 1e-9


def standardized() -> Dataset:
    data = breast_cancer()
    x = data.features
    return Dataset((x - x.mean(axis=0)) / x.std(axis=0), data.labels, "x")


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize("regularization", [1e-3, 0.1])
def test_scikit_learn_finds_the_same_predictor(loss: Loss, regularization: float) -> None:
    data = standardized()
    p = LinearProblem(data, (np.arange(data.records),), loss, regularization=regularization)
    best = best_fixed_predictor(p, tolerance=1e-6)
    settings: Any = {"C": 1 / (regularization * data.records), "fit_intercept": False}
    if loss == "logistic":
        model = LogisticRegression(tol=1e-8, max_iter=10_000, **settings)
    else:
        settings |= {"loss": "hinge", "dual": True, "random_state": 0}
        model = LinearSVC(tol=1e-6, max_iter=10_000_000, **settings)
    theirs = model.fit(data.features, data.labels).coef_
    value = objective(p, theirs)[0]
    assert best.value - best.gap <= value <= best.value + 1e-6
    # |w - w*|^2 <= 2 (F(w) - F(w*)) / lambda for each of the two.
    distance = np.linalg.norm(best.parameters - theirs)
    assert distance <= 2 * np.sqrt(2 * 2e-6 / regularization)


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_one_vs_all_without_a_ball_is_one_problem_for_each_class(loss: Loss) -> None:
    p = problem(loss, 3, 0.1)
    total = 0.0
    for k in range(3):
        signs = np.where(p.train.labels == k, 1, -1)
        single = LinearProblem(
            Dataset(p.train.features, signs, "x"), p.partition, loss, regularization=0.1
        )
        total += best_fixed_predictor(single, tolerance=1e-6).value
    assert best_fixed_predictor(p, tolerance=1e-6).value == pytest.approx(total, abs=4e-6)


@pytest.mark.parametrize(("loss", "classes"), TASKS)
def test_sparse_features_and_chosen_records(loss: Loss, classes: int | None) -> None:
    chosen = np.arange(0, 200, 3)
    dense = best_fixed_predictor(problem(loss, classes), chosen, radius=1)
    p = problem(loss, classes, form=sparse.csr_array)
    got = best_fixed_predictor(p, chosen, radius=1)
    assert got.value == pytest.approx(dense.value, abs=2e-5)
    subset = Dataset(p.train.features[chosen], p.train.labels[chosen], "x")
    p = LinearProblem(subset, (np.arange(len(chosen)),), loss, test=None, classes=classes)
    assert best_fixed_predictor(p, radius=1).value == pytest.approx(dense.value, abs=2e-5)


def test_separable_records_cost_nothing_on_a_large_ball() -> None:
    x = np.array([[1.0, 0.2], [-1.0, 0.3]])
    p = LinearProblem(Dataset(x, [1, -1], "x"), ([0], [1]), "hinge")
    assert best_fixed_predictor(p, radius=1e3).value <= 1e-5
    p = LinearProblem(Dataset(x, [1, -1], "x"), ([0], [1]), "logistic")
    assert best_fixed_predictor(p, radius=1e3).value <= 1e-5


@pytest.mark.parametrize(
    ("margins", "radius"),
    [([-0.8, 0.9], 2.0), ([-1.0, 0.9, 0.2], 10.0), ([1.0, 0.8, -0.7, -1.0, 0.0], 10.0)],
)
def test_a_minimizer_at_a_kink_is_found(margins: list[float], radius: float) -> None:
    x, nodes = np.array(margins)[:, np.newaxis], (np.arange(len(margins)),)
    p = LinearProblem(Dataset(x, np.ones(len(margins)), "x"), nodes, "hinge")
    kinks = np.append([1 / z for z in margins if z and abs(1 / z) <= radius], [-radius, radius])
    smallest = np.maximum(0, 1 - kinks[:, np.newaxis] * margins).mean(axis=1).min()
    assert best_fixed_predictor(p, radius=radius).value == pytest.approx(smallest, abs=1e-5)


@pytest.mark.parametrize("radius", [1e155, 1e308])
def test_a_ball_without_end_changes_nothing(radius: float) -> None:
    p = problem("logistic", None, 0.1)
    without = best_fixed_predictor(p, tolerance=1e-6).value
    assert best_fixed_predictor(p, radius=radius).value == pytest.approx(without, abs=2e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: best_fixed_predictor(p, radius=1e-310), "radius: wanted .* at least 1e-30"),
        (lambda p: best_fixed_predictor(p), "radius: wanted a radius, since there is no regular"),
        (lambda p: best_fixed_predictor(p, radius=0), "radius: wanted a finite number greater"),
        (lambda p: best_fixed_predictor(p, radius=1, tolerance=0), "tolerance: wanted a finite"),
        (lambda p: best_fixed_predictor(p, [], radius=1), "records: wanted integer indices"),
        (lambda p: best_fixed_predictor(p, [0.5], radius=1), "records: wanted integer indices"),
        (lambda p: best_fixed_predictor(p, [200], radius=1), "records: wanted indices from 0 to"),
        (lambda p: best_fixed_predictor(p, [-1], radius=1), "records: wanted indices from 0 to"),
    ],
)
def test_bad_input_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(problem("hinge", None))


def test_a_tolerance_out_of_reach_is_an_error() -> None:
    with pytest.raises(NotReached, match="tolerance: wanted a gap of at most 1e-18, reached"):
        best_fixed_predictor(problem("hinge", None), range(9), radius=1, tolerance=1e-18)
