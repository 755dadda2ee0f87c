"""Rows of one message: sensitivity, the model that follows, and the papers' settings as tasks."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dpmesh.data import Dataset
from dpmesh.keys import Key
from dpmesh.problems import LinearProblem
from dpmesh.run import Metrics, simulate
from dpmesh_papers.benchmark.cells import ALONE, MAJORITY, Cell
from dpmesh_papers.benchmark.methods import ROWS
from dpmesh_papers.benchmark.one_message import DIAMETER, ClassMoments, one_message
from dpmesh_papers.benchmark.paper_settings import PAPER_TASKS
from dpmesh_papers.benchmark.results import as_markdown, lines_of
from dpmesh_papers.benchmark.setting import (
    ALL_MESSAGES_PUBLIC,
    ONE_SITE_COLLUDES,
    CannotRun,
    MethodRow,
    Setting,
)
from dpmesh_papers.benchmark.tasks import TASKS
from dpmesh_papers.paper_tables import best_of, table_of_task


def problem_of(x: np.ndarray, labels: np.ndarray, nodes: int = 2, **others) -> LinearProblem:
    parts = tuple(np.array_split(np.arange(x.shape[0]), nodes))
    return LinearProblem(Dataset(x, labels), parts, **{"loss": "softmax", **others})


def vectors(x: np.ndarray, labels: np.ndarray, *, second_moments: bool, **others) -> np.ndarray:
    """Return the vectors of records that are not clipped before."""
    problem = problem_of(x, labels, nodes=1, **others)
    (block,) = ClassMoments(problem=problem, second_moments=second_moments).vectors(0)
    return np.asarray(block)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-3, 3), min_size=6, max_size=6),
    st.lists(st.integers(0, 2), min_size=2, max_size=2),
    st.booleans(),
)
def test_two_records_are_no_further_apart_than_stated(
    numbers: list[float], labels: list[int], second_moments: bool
) -> None:
    x = np.array(numbers).reshape(2, 3)
    moments = ClassMoments(
        problem=problem_of(x, np.array(labels), nodes=1, classes=3), second_moments=second_moments
    )
    one, other = vectors(x, np.array(labels), second_moments=second_moments, classes=3)
    allowed = moments.diameter * moments.longest
    assert np.linalg.norm(one - other) <= allowed * (1 + 1e-9)
    assert max(np.linalg.norm(one), np.linalg.norm(other)) <= moments.longest * (1 + 1e-9)


@pytest.mark.parametrize("signs", [False, True])
def test_records_at_120_degrees_reach_the_largest_distance(signs: bool) -> None:
    x = np.array([[1.0, 0.0], [-0.5, sqrt(0.75)]])
    others = {"loss": "logistic"} if signs else {"classes": 2}
    one, other = vectors(x, np.array([1, 1]), second_moments=True, **others)
    assert np.linalg.norm(one - other) == pytest.approx(DIAMETER, rel=1e-12)


@pytest.mark.parametrize("second_moments", [False, True])
def test_totals_are_sums_of_vectors(second_moments: bool) -> None:
    draw = np.random.default_rng(0)
    x, labels = draw.normal(size=(40, 5)), draw.integers(3, size=40)
    moments = ClassMoments(problem=problem_of(x, labels, classes=3), second_moments=second_moments)
    for node in range(2):
        (block,) = moments.vectors(node)
        np.testing.assert_allclose(moments.total(node), np.sum(block, axis=0), atol=1e-12)
    if not second_moments:
        thin = replace(moments, problem=problem_of(sparse.csr_array(x), labels, classes=3))
        np.testing.assert_allclose(thin.total(1), moments.total(1), atol=1e-12)


def test_without_noise_the_model_is_least_squares() -> None:
    draw = np.random.default_rng(1)
    x = draw.normal(size=(300, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels = (x @ draw.normal(size=(4, 3))).argmax(axis=1)
    moments = ClassMoments(problem=problem_of(x, labels, classes=3), second_moments=True)
    model = moments.model(moments.total(0) + moments.total(1)).reshape(3, 4)
    expected = np.linalg.lstsq(x, np.eye(3)[labels], rcond=None)[0]
    np.testing.assert_allclose(model.T, expected, atol=1e-9)


def setting_of(row_task: str, epsilon: float, seed: int) -> Setting:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(1200, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    binary = row_task == "paper-online"
    labels = np.sign(x[:, 0]).astype(int) if binary else draw.integers(3, size=1200)
    kind = {"loss": "logistic"} if binary else {"loss": "softmax", "classes": 3}
    problem = problem_of(x, labels, nodes=6, test=Dataset(x, labels), feature_norm=1.0, **kind)
    delta = TASKS[row_task].delta
    return Setting(problem=problem, unit="record", epsilon=epsilon, delta=delta)


OWN_ROWS = [(name, row) for name in PAPER_TASKS for row in PAPER_TASKS[name].extra_rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "row"), OWN_ROWS, ids=[f"{name}: {row.name}" for name, row in OWN_ROWS]
)
def test_a_row_of_a_paper_keeps_its_budget_by_public_numbers(name: str, row: MethodRow) -> None:
    if name == "paper-quantized":
        with pytest.raises(CannotRun, match="12,000 records"):
            row.trial(setting_of(name, 1.0, 0))
        return
    trials = [row.trial(setting_of(name, 1.0, seed)) for seed in (0, 1)]
    assert trials[0].algorithm == trials[1].algorithm
    plan = trials[0].algorithm.plan(trials[0].rounds, trials[0].problem)
    assert 0.95 < plan.cost(TASKS[name].delta).epsilon <= 1 + 1e-9


def test_one_message_learns_signs_from_labels_of_minus_and_plus_one() -> None:
    setting = setting_of("paper-online", 4.0, 0)
    for second_moments in (False, True):
        trial = one_message(setting, second_moments=second_moments, secure=True)
        quiet = Metrics([], progress=False)
        run = simulate(trial.algorithm, trial.problem, rounds=1, key=Key.seeded(0), metrics=quiet)
        assert trial.problem.accuracy(run.released)[0] > 0.9


def test_a_table_says_what_no_epsilon_covers() -> None:
    name = "paper-without-replacement"
    cells = [
        Cell(task=name, method=method, trust="x", epsilon=None, accuracy=(0.5,))
        for method in (MAJORITY, ALONE)
    ]
    page = as_markdown(cells, {})
    assert "not covered by any epsilon: PCA fitted on the private images" in page
    assert "delta 2.8e-10" in page


def test_every_paper_is_a_task_and_two_tables_were_never_seen() -> None:
    papers = ("online", "quantized", "federated", "without-replacement")
    assert all(f"paper-{paper}" in TASKS for paper in papers)
    unseen = [name for name, task in TASKS.items() if not task.tuned_on and not task.data]
    assert sorted(unseen) == ["marriages", "voters"]


def test_a_papers_table_marks_the_best_of_each_threat_model() -> None:
    name = "paper-online"

    def cell(method: str, accuracy: float, trust: str, epsilon: float | None = 1.0) -> Cell:
        accuracies = tuple(accuracy + 0.001 * split for split in range(5))
        return Cell(task=name, method=method, trust=trust, epsilon=epsilon, accuracy=accuracies)

    own = PAPER_TASKS[name].extra_rows[0].name
    cells = [
        cell(MAJORITY, 0.5, "x", None),
        cell(ALONE, 0.8, "x", None),
        cell(own, 0.70, ALL_MESSAGES_PUBLIC),
        cell("one message, class sums", 0.75, ALL_MESSAGES_PUBLIC),
        cell("gradient descent on a ring", 0.6, ALL_MESSAGES_PUBLIC),
        cell("secure aggregation, momentum", 0.88, ONE_SITE_COLLUDES),
        cell("secure aggregation, 1 site may collude", 0.91, ONE_SITE_COLLUDES),
    ]
    assert "best under" not in table_of_task(cells, name)  # rows are missing
    ran = {known.method for known in cells}
    missing = [row for row in (*ROWS, *PAPER_TASKS[name].extra_rows) if row.name not in ran]
    cells += [
        Cell(task=name, method=row.name, trust=row.trust, epsilon=1.0, why="not asked for")
        for row in missing
    ]
    table = table_of_task(cells, name)
    assert "| one message, class sums, **best under this threat model** | 75.2 ± 0.2 |" in table
    assert "| secure aggregation, 1 site may collude, **best under this threat model** |" in table
    assert f"| {own} | 70.2 ± 0.2 |" in table
    assert "ring" not in table
    assert "momentum" not in table
    best = best_of(lines_of(cells, name), ALL_MESSAGES_PUBLIC, 1.0)
    assert best is not None
    assert best.method == "one message, class sums"
