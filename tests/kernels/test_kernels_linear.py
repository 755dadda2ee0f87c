"""Losses, gradients and steps of linear models against loops in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from linear_calls import (
    linear_accuracy,
    linear_class_losses,
    linear_gradient,
    linear_loss,
    linear_record_losses,
    linear_step,
)
from scipy import sparse, special

from dpmesh import kernels
from dpmesh.kernels.linear_model import REGRESSION, Loss

BINARY: list[Loss] = ["logistic", "hinge", "squared", "absolute", "huber"]
TASKS: list[tuple[Loss, bool]] = [*((loss, many) for loss in BINARY for many in (False, True))]
TASKS += [("softmax", True), ("poisson", False)]


@dataclass
class Case:
    """One stack of nodes with everything that the kernels take."""

    params: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    batches: tuple[np.ndarray, np.ndarray]
    loss: Loss
    classes: int | None

    @property
    def model(self) -> tuple[Any, ...]:
        return (self.features, self.labels, self.batches, self.loss)

    @property
    def nodes(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Parameters, (outputs, dim), and records of each node."""
        indptr, indices = self.batches
        rows = self.params.astype(np.float64).reshape(len(self.params), -1, self.features.shape[1])
        return list(zip(rows, np.split(indices, indptr[1:-1]), strict=True))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    loss, many = draw(st.sampled_from(TASKS))
    classes = draw(st.integers(2, 6)) if many else None
    nodes, records, dim = (
        draw(st.integers(1, 5)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 40)),
    )
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    features = rng.normal(size=(records, dim)) * (rng.random((records, dim)) < 0.5)
    labels: np.ndarray = rng.integers(classes or 2, size=records)
    if classes is None:
        labels = rng.normal(size=records) if loss in REGRESSION else 2 * labels - 1
        labels = rng.random(records) if loss == "poisson" else labels
    indptr = np.concatenate([[0], rng.integers(0, 8, nodes).cumsum()])
    return Case(
        params=rng.normal(size=(nodes, (classes or 1) * dim)).astype(dtype),
        features=features.astype(dtype),
        labels=labels,
        batches=(indptr, rng.integers(records, size=indptr[-1])),
        loss=loss,
        classes=classes,
    )


def slow_loss(scores: np.ndarray, label: Any, loss: Loss) -> tuple[float, np.ndarray]:
    """Loss of one record and its slope in each score, from textbook formulas."""
    if loss == "softmax":
        slopes = special.softmax(scores)
        slopes[label] -= 1
        return special.logsumexp(scores) - scores[label], slopes
    targets = label if len(scores) == 1 else np.where(np.arange(len(scores)) == label, 1, -1)
    margins = scores * targets
    if loss == "logistic":
        return np.logaddexp(0, -margins).sum(), -targets * special.expit(-margins)
    if loss == "hinge":
        return np.maximum(0, 1 - margins).sum(), np.where(margins < 1, -targets, 0.0)
    if loss == "absolute":
        return np.abs(scores - targets).sum(), np.sign(scores - targets)
    if loss == "huber":
        return special.huber(1, scores - targets).sum(), np.clip(scores - targets, -1, 1)
    if loss == "poisson":
        share = np.exp(np.minimum(scores, 0))
        return (share + np.maximum(scores, 0) - targets * scores).sum(), share - targets
    return ((scores - targets) ** 2).sum() / 2, scores - targets


def slow(
    case: Case,
    regularization: float = 0.0,
    clipping_norm: float = np.inf,
    norm: str = "l2",
    divide_by: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients and objectives, record after record."""
    gradients, losses = [], []
    for w, batch in case.nodes:
        total, gradient = 0.0, np.zeros_like(w)
        for record in batch:
            x = case.features[record].astype(np.float64)
            value, slopes = slow_loss(w @ x, case.labels[record], case.loss)
            own = np.outer(slopes, x)
            length = np.linalg.norm(own.ravel(), ord=int(norm[1]))
            gradient += own * min(1, clipping_norm / max(length, 1e-300))
            total += value
        divisor = divide_by or max(len(batch), 1)
        gradients.append((gradient / divisor + regularization * w).ravel())
        losses.append(total / divisor + regularization / 2 * (w**2).sum())
    return np.array(gradients), np.array(losses)


def tolerance(case: Case) -> dict[str, float]:
    """Rounding of sums of up to 40 products of numbers of size 10."""
    epsilon = float(np.finfo(case.params.dtype).eps)
    return {"rtol": 100 * epsilon, "atol": 400 * epsilon}


@given(st.integers(0, 2**32), st.floats(0.01, 3))
def test_clipped_square_errors_are_those_of_huber(seed: int, bound: float) -> None:
    """Of records of norm 1: so least squares, clipped, are Huber regression."""
    rng = np.random.default_rng(seed)
    x, y, w = rng.normal(size=(20, 3)), rng.normal(size=20), rng.normal(size=(1, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    batch = np.arange(20)[np.newaxis]
    clipped = linear_gradient(w, x, y, batch, "squared", clipping_norm=bound)
    huber = bound * linear_gradient(w / bound, x, y / bound, batch, "huber")
    np.testing.assert_allclose(clipped, huber, rtol=1e-9, atol=1e-12)


@given(
    cases(),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([None, 0.2, 3.0]),
    st.sampled_from(["l1", "l2"]),
    st.sampled_from([None, 2.5]),
)
def test_all_equal_loops(
    case: Case,
    regularization: float,
    clipping_norm: float | None,
    norm: kernels.projection.Norm,
    divide_by: float | None,
) -> None:
    gradient, loss = slow(case, regularization, clipping_norm or np.inf, norm, divide_by)
    settings: Any = {"classes": case.classes, "regularization": regularization}
    settings |= {"divide_by": divide_by}
    got = linear_loss(case.params, *case.model, **settings)
    np.testing.assert_allclose(got, loss, **tolerance(case))

    settings |= {"clipping_norm": clipping_norm, "norm": norm}
    got = linear_gradient(case.params, *case.model, **settings)
    assert got.dtype == case.params.dtype
    np.testing.assert_allclose(got, gradient, **tolerance(case))
    out = np.full_like(case.params, np.nan)
    assert linear_gradient(case.params, *case.model, **settings, out=out) is out
    np.testing.assert_array_equal(out, got)

    steps = np.linspace(0, 1, len(case.params))
    moved = linear_step(case.params, steps, *case.model, **settings)
    expected = case.params - steps[:, None] * gradient
    np.testing.assert_allclose(moved, expected, **tolerance(case))
    longest = np.sqrt((moved**2).sum(axis=1)).max() + 0.1
    inside = linear_step(case.params, steps, *case.model, **settings, radius=longest / 2)
    np.testing.assert_array_equal(inside, kernels.clip_rows(moved, longest / 2))
    own = linear_step(case.params, steps, *case.model, **settings, out=case.params)
    assert own is case.params
    np.testing.assert_array_equal(case.params, moved)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_batches_of_one_length_are_as_good_in_rows(size: int) -> None:
    rng = np.random.default_rng(size)
    x, y = rng.standard_normal((20, 11)), rng.choice([-1, 1], 20)
    w, rows = rng.standard_normal((5, 11)), rng.integers(0, 20, (5, size))
    ragged = np.arange(6) * size, rows.ravel()
    for kernel in (linear_gradient, partial(linear_step, step_size=0.3)):
        one, other = (
            kernel(w, features=x, labels=y, batches=batches, loss="hinge")
            for batches in (rows, ragged)
        )
        np.testing.assert_array_equal(one, other)
    of_rows = linear_record_losses(w, x, y, rows, "hinge")
    assert of_rows.shape == (5, size)
    np.testing.assert_array_equal(of_rows.ravel(), linear_record_losses(w, x, y, ragged, "hinge"))


@given(cases())
def test_losses_are_those_of_their_records(case: Case) -> None:
    settings: Any = {"classes": case.classes}
    each = linear_record_losses(case.params, *case.model, **settings)
    sums = linear_loss(case.params, *case.model, divide_by=1, **settings)
    parts = np.split(each, case.batches[0][1:-1])
    np.testing.assert_allclose([part.sum() for part in parts], sums, rtol=1e-12, atol=1e-12)


@given(cases(), st.sampled_from([0.0, 0.3]), st.sampled_from([None, 2.5]))
def test_class_losses_are_those_of_each_model_alone(
    case: Case, regularization: float, divide_by: float | None
) -> None:
    if case.classes is None or case.loss == "softmax":
        return
    settings: Any = {"regularization": regularization, "divide_by": divide_by}
    got = linear_class_losses(case.params, *case.model, classes=case.classes, **settings)
    for k, model in enumerate(np.split(case.params, case.classes, axis=1)):
        signs = np.where(case.labels == k, 1, -1)
        alone = case.features, signs, case.batches, case.loss
        expected = linear_loss(model, *alone, **settings)
        np.testing.assert_allclose(got[:, k], expected, rtol=1e-12, atol=1e-12)


@given(cases(), st.sampled_from([np.int32, np.int64]))
def test_sparse_features_give_what_dense_ones_give(case: Case, index: type) -> None:
    csr = sparse.csr_array(case.features)
    csr.indices, csr.indptr = csr.indices.astype(index), csr.indptr.astype(index)
    settings: Any = {"classes": case.classes, "clipping_norm": 1.0}
    for kernel in (linear_gradient, lambda w, *rest, **s: linear_step(w, 1, *rest, **s)):
        dense = kernel(case.params, *case.model, **settings)
        got = kernel(case.params, csr, *case.model[1:], **settings)
        np.testing.assert_allclose(got, dense, **tolerance(case))
    rows = case.params.reshape(-1, case.features.shape[1])
    scores = kernels.linear_scores(rows, csr)
    assert scores.dtype == case.params.dtype
    np.testing.assert_allclose(
        scores, kernels.linear_scores(rows, case.features), **tolerance(case)
    )
    np.testing.assert_allclose(scores, case.features @ rows.T, **tolerance(case))


@given(cases())
def test_gradients_are_the_derivatives_of_losses(case: Case) -> None:
    case.params, case.features = case.params.astype(np.float64), case.features.astype(np.float64)
    settings: Any = {"classes": case.classes, "regularization": 0.1}
    gradient = linear_gradient(case.params, *case.model, **settings)
    direction = np.random.default_rng(0).normal(size=case.params.shape)
    step = 1e-6
    above = linear_loss(case.params + step * direction, *case.model, **settings)
    below = linear_loss(case.params - step * direction, *case.model, **settings)
    # Rounding of losses over the step; a kink inside the step has probability 1e-5.
    np.testing.assert_allclose(
        (above - below) / (2 * step), (gradient * direction).sum(1), atol=1e-6
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize(("loss", "many"), TASKS)
def test_no_record_contributes_more_than_the_clipping_norm(
    loss: Loss, many: bool, norm: kernels.projection.Norm, dtype: type
) -> None:
    rng = np.random.default_rng(1)
    features = (10 * rng.normal(size=(50, 30))).astype(dtype)
    labels = rng.integers(4, size=50) if many else rng.choice([-1, 1], 50)
    labels = np.abs(labels) if loss == "poisson" else labels
    params = np.tile(rng.normal(size=30 * (4 if many else 1)), (50, 1)).astype(dtype)
    each = np.arange(50)[:, None]
    classes = 4 if many else None
    arguments = (features, labels, each, loss)
    free = linear_gradient(params, *arguments, classes=classes)
    lengths = kernels.row_norms(free, norm=norm)
    bound = float(np.quantile(lengths, 0.8))
    clipped = linear_gradient(params, *arguments, classes=classes, clipping_norm=bound, norm=norm)
    expected = free * np.minimum(1, bound / np.maximum(lengths, 1e-30))[:, None]
    epsilon = np.finfo(dtype).eps
    np.testing.assert_allclose(clipped, expected, rtol=1e2 * epsilon, atol=1e2 * epsilon)
    assert kernels.row_norms(clipped, norm=norm).max() <= bound * (1 + 4 * epsilon)
    moved = linear_step(params, 1.0, *arguments, classes=classes, clipping_norm=bound, norm=norm)
    np.testing.assert_allclose(moved, params - clipped, rtol=1e2 * epsilon, atol=1e2 * epsilon)
    assert (lengths > bound).any()


@pytest.mark.parametrize("classes", [None, 4])
def test_a_large_batch_is_the_mean_of_small_ones(classes: int | None) -> None:
    rng = np.random.default_rng(3)
    x, records = rng.normal(size=(900, 30)), np.arange(900)[None]
    y = rng.integers(classes, size=900) if classes else rng.choice([-1, 1], 900)
    w = rng.normal(size=(1, 30 * (classes or 1)))
    settings: Any = {"classes": classes, "regularization": 0.3, "clipping_norm": 1.0}
    gradient = linear_gradient(w, x, y, records, "logistic", **settings)
    parts = [
        linear_gradient(w, x, y, part, "logistic", **settings)
        for part in np.split(records, 9, axis=1)
    ]
    np.testing.assert_allclose(gradient, np.mean(parts, axis=0), rtol=1e-12, atol=1e-12)
    moved = linear_step(w, 0.5, x, y, records, "logistic", **settings)
    np.testing.assert_allclose(moved, w - 0.5 * gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", ["logistic", "hinge", "softmax"])
def test_extreme_margins(loss: Loss, dtype: type) -> None:
    x, each = np.array([[1.0]], dtype), [[0], [0]]
    if loss == "softmax":
        params, labels, classes = np.array([[1e4, 0], [0, 1e4]], dtype), [1], 2
        slopes = [[1, -1], [0, 0]]
    else:
        params, labels, classes = np.array([[-1e4], [1e4]], dtype), [1], None
        slopes = [[-1], [0]]
    value = 1e4 + (loss == "hinge")
    got = linear_loss(params, x, labels, each, loss, classes=classes)
    np.testing.assert_array_equal(got, [value, 0])
    got = linear_gradient(params, x, labels, each, loss, classes=classes)
    np.testing.assert_array_equal(got, slopes)


def test_nan_is_passed_on() -> None:
    for loss in BINARY:
        got = linear_gradient([[np.nan]], [[1.0]], [1], [[0]], loss, clipping_norm=1.0)
        assert np.isnan(got).all()


@given(cases())
def test_accuracy_counts_signs_and_largest_scores(case: Case) -> None:
    if case.classes is None:
        case.labels = np.where(case.labels > 0, 1, -1)
    got = linear_accuracy(case.params, case.features, case.labels, classes=case.classes)
    for accuracy, (w, _) in zip(got, case.nodes, strict=True):
        scores = case.features.astype(np.float64) @ w.T
        right = np.sign(scores[:, 0]) == case.labels
        if case.classes is None:
            right |= (scores[:, 0] == 0) & (case.labels == -1)
        else:
            right = scores.argmax(1) == case.labels
        assert accuracy == pytest.approx(right.mean())
