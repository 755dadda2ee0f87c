"""The linear problem: streams of records, objectives, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from dpmesh.data import Dataset
from dpmesh.problems import LinearProblem

RNG = np.random.default_rng(4)
X = RNG.normal(size=(20, 3))
SIGNS, CLASSES = RNG.choice([-1, 1], 20), np.arange(20) % 4
PARTITION = (np.array([5, 3, 1, 0, 2]), np.array([7, 19, 4]), np.array([10, 8, 12, 9]))


def problem(**changes: Any) -> LinearProblem:
    settings: Any = {"train": Dataset(X, SIGNS, "x"), "partition": PARTITION, "loss": "hinge"}
    return LinearProblem(**(settings | changes))


def test_sizes_and_records() -> None:
    p = problem()
    assert (p.nodes, p.dim) == (3, 3)
    assert p.records.tolist() == [5, 3, 4]
    assert p.zeros().shape == (3, 3)
    assert p.zeros(7).shape == (7, 3)
    assert problem(train=Dataset(X, CLASSES, "x"), classes=4).dim == 12
    assert problem(train=Dataset(X.astype("f"), SIGNS, "x")).zeros().dtype == np.float32
    indptr, indices = p.full_batches
    for node, part in enumerate(PARTITION):
        np.testing.assert_array_equal(indices[indptr[node] : indptr[node + 1]], part)


@pytest.mark.parametrize("nodes", [[3], [-1], [], [0.5]])
def test_the_problem_of_nodes_that_do_not_exist_is_refused(nodes: list[int]) -> None:
    with pytest.raises(ValueError, match="nodes: wanted"):
        problem().for_nodes(nodes)


def test_batches_follow_the_stream_and_use_each_record_once() -> None:
    p = problem()
    assert p.rounds(1) == 3
    assert p.batch(0, 1).tolist() == [[5], [7], [10]]
    assert p.batch(2, 1).tolist() == [[1], [4], [12]]
    assert p.batch(0, 3).tolist() == [[5, 3, 1], [7, 19, 4], [10, 8, 12]]
    used = np.concatenate([p.batch(t, 1) for t in range(p.rounds(1))], axis=1)
    assert np.unique(used).size == used.size
    with pytest.raises(ValueError, match=r"round: wanted below 3, where .* got 3"):
        p.batch(3, 1)
    with pytest.raises(ValueError, match="round: wanted below 0, where the records"):
        p.batch(0, 4)
    for call, message in [
        (lambda: p.batch(-1, 1), "round: wanted an integer of at least 0, got -1"),
        (lambda: p.batch(0, 0), "size: wanted an integer of at least 1, got 0"),
        (lambda: p.rounds(0), "size: wanted an integer of at least 1, got 0"),
        (lambda: p.zeros(0), "nodes: wanted an integer of at least 1, got 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_gradient_step_and_objective_belong_together(form: Any) -> None:
    p = problem(train=Dataset(form(X), SIGNS, "x"), loss="logistic", regularization=0.3)
    w, move = RNG.normal(size=(2, 3, 3))
    gradient = p.gradient(w, p.full_batches)
    step = 1e-6
    above, below = (p.objective(w + h * move, p.full_batches) for h in (step, -step))
    np.testing.assert_allclose((above - below) / (2 * step), (gradient * move).sum(1), atol=1e-8)
    moved = p.step(w, [0.1, 0.0, 0.5], p.full_batches)
    np.testing.assert_allclose(moved, w - np.array([[0.1], [0], [0.5]]) * gradient, atol=1e-15)
    means = np.add.reduceat(p.record_losses(w, p.full_batches), p.full_batches[0][:-1]) / p.records
    expected = means + 0.15 * (w**2).sum(1)
    np.testing.assert_allclose(p.objective(w, p.full_batches), expected, rtol=1e-12)
    clipped = p.gradient(p.zeros(), p.batch(0, 1), clipping_norm=0.1)
    assert (np.linalg.norm(clipped, axis=1) <= 0.1 + 1e-15).all()


def test_accuracy_is_that_of_the_test_records() -> None:
    test = Dataset(X[:10], SIGNS[:10], "test")
    p = problem(test=test)
    w = RNG.normal(size=(5, 3))
    right = np.where(X[:10] @ w.T > 0, 1, -1) == SIGNS[:10, None]
    np.testing.assert_allclose(p.accuracy(w), right.mean(0))
    x = X.astype(np.float32)
    single = problem(train=Dataset(x, SIGNS, "x"), test=Dataset(x[:10], SIGNS[:10], "test"))
    np.testing.assert_allclose(single.accuracy(w), p.accuracy(w))  # of a run that went to float64
    with pytest.raises(ValueError, match="test: wanted records to measure the accuracy on"):
        problem().accuracy(w)


def test_constants_come_from_public_bounds() -> None:
    longest = float(np.linalg.norm(X, axis=1).max())
    p = problem(feature_norm=longest, regularization=0.5)
    assert p.constants(radius=2).loss_lipschitz == longest
    assert p.constants(radius=2).lipschitz == longest + 1
    p = problem(feature_norm=longest, label_bound=3.0, loss="squared")
    assert p.constants(radius=2).loss_lipschitz == pytest.approx((2 * longest + 3) * longest)
    with pytest.raises(ValueError, match="feature_norm: wanted a public bound on the norm"):
        problem().constants()


def test_models_of_a_node_and_their_own_objectives_and_constants() -> None:
    longest = float(np.linalg.norm(X, axis=1).max())
    classes = {"train": Dataset(X, CLASSES, "x"), "classes": 4, "feature_norm": longest}
    one_vs_all = problem(loss="logistic", regularization=0.3, **classes)
    together = problem(loss="softmax", **classes)
    alone = problem(loss="logistic", regularization=0.3, feature_norm=longest)
    assert [p.models for p in (one_vs_all, together, alone)] == [4, 1, 1]
    for p in (one_vs_all, together, alone):
        w = RNG.normal(size=(3, p.dim))
        each = p.class_objectives(w, p.full_batches)
        assert each.shape == (3, p.models)
        np.testing.assert_allclose(each.sum(axis=1), p.objective(w, p.full_batches), rtol=1e-12)
    assert one_vs_all.model_constants() == alone.constants()
    assert together.model_constants() == together.constants()
    squared = problem(loss="squared", label_bound=3.0, **classes)
    assert squared.model_constants(2.0).loss_lipschitz == (2 * longest + 1) * longest


OTHER = Dataset(X[:, :2], SIGNS, "other")
FAINT = np.full((20, 3), 1e-25, np.float32)  # whose squares no float32 holds
LONG = float(np.linalg.norm(X, axis=1).max()) * 0.999


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "softmax"}, "classes: wanted the number of classes"),
        ({"classes": 1}, "classes: wanted an integer of at least 2, got 1"),
        ({"classes": 3}, "train: wanted integer labels from 0 to 2, got -1"),
        ({"train": Dataset(X, CLASSES, "x")}, "train: wanted labels of -1 .*relabelled.*, got 0"),
        (
            {"train": Dataset(X, SIGNS / 1.0, "x"), "classes": 2},
            "train: wanted integer labels from 0 to 1, got labels of float64",
        ),
        (
            {"train": Dataset(X, 2.0 * SIGNS, "x"), "loss": "squared"},
            r"train: wanted labels of at most 1.0 \(label_bound\), got",
        ),
        (
            {"train": Dataset(X, 2.0 * SIGNS, "x"), "loss": "absolute"},
            r"train: wanted labels of at most 1.0 \(label_bound\), got",
        ),
        ({"train": (X, SIGNS)}, "train: wanted a Dataset, such as .*, got "),
        ({"test": X}, "test: wanted a Dataset, .*, or None, got array"),
        ({"partition": 4}, "partition: wanted an array of indices for each node, got 4"),
        ({"partition": ()}, "partition: wanted at least 1 node, got none"),
        ({"partition": ([0], [])}, "partition: wanted integer indices .* for node 1"),
        ({"partition": np.array(["a", "b"])}, "partition: wanted .* data.by_user .* for node 0"),
        ({"partition": ([0.0],)}, "partition: wanted integer indices .*, got float64"),
        ({"partition": ([0], [20])}, "partition: wanted indices from 0 to 19, got 20"),
        ({"partition": ([0], [-1])}, "partition: wanted indices from 0 to 19, got -1"),
        ({"partition": ([0], [1, 0])}, "partition: wanted each record at one node, got record 0"),
        ({"partition": ([3, 3],)}, "partition: wanted each record at one node, got record 3"),
        ({"test": OTHER}, "test: wanted 3 features of float64, as in train, got 2 of float64"),
        ({"test": Dataset(X, CLASSES, "x")}, "test: wanted labels of -1 and"),
        ({"feature_norm": LONG}, "feature_norm: wanted at least the norm of every record, got"),
        (
            {"feature_norm": LONG, "train": Dataset(sparse.csr_array(X), SIGNS, "x")},
            "feature_norm: wanted at least the norm of every record, got",
        ),
        (
            {"feature_norm": 1e-26, "train": Dataset(sparse.csr_array(FAINT), SIGNS, "x")},
            "feature_norm: wanted at least the norm of every record, got",
        ),
        ({"label_bound": 0, "loss": "squared"}, "label_bound: wanted a finite number greater"),
    ],
)
def test_bad_input_is_named(changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        problem(**changes)
