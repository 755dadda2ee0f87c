"""Local training on linear models against its steps one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from linear_calls import linear_loss, linear_step, linear_training
from scipy import sparse

from dpmesh import kernels
from dpmesh._ragged import Walks

LOSSES = [("logistic", None), ("hinge", 3), ("squared", None), ("absolute", None), ("softmax", 4)]


def make_walks(rng, nodes: int, records: int) -> Walks:
    """Nodes of 0 to 5 steps, batches of 0 to 4 records, which may repeat."""
    steps = np.concatenate([[0], rng.integers(0, 6, nodes).cumsum()])
    indptr = np.concatenate([[0], rng.integers(0, 5, steps[-1]).cumsum()])
    return Walks(steps, (indptr, rng.integers(records, size=indptr[-1])))


def slowly(start, x, y, walks, loss, *, step_size, radius, classes, regularization):
    """One node after the other, each step by `linear_step` and a clip."""
    steps, (indptr, indices) = walks
    moves, losses = [], []
    options = {"classes": classes, "regularization": regularization}
    for first, last in pairwise(steps):
        w, before = start, np.nan
        for i in range(first, last):
            batch = indices[np.newaxis, indptr[i] : indptr[i + 1]]
            if i == first:
                before = linear_loss(start, x, y, batch, loss, **options)[0]
            stepped = linear_step(w, step_size, x, y, batch, loss, **options)
            w = start + kernels.clip_rows(stepped - start, radius)
        moves.append((w - start)[0])
        losses.append(before)
    return np.array(moves), np.array(losses)


@given(
    task=st.sampled_from(LOSSES),
    nodes=st.integers(1, 6),
    records=st.integers(1, 9),
    dim=st.integers(1, 40),
    step_size=st.floats(0.01, 0.8),
    radius=st.floats(0.05, 5),
    regularization=st.sampled_from([0.0, 0.3]),
    form=st.sampled_from(["direct", "span", None]),
    dtype=st.sampled_from([np.float32, np.float64]),
    is_sparse=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_equals_single_steps(
    task, nodes, records, dim, step_size, radius, regularization, form, dtype, is_sparse, seed
) -> None:
    rng = np.random.default_rng(seed)
    loss, classes = task
    x = rng.normal(size=(records, dim)) * (rng.random((records, dim)) < 0.6) / np.sqrt(dim)
    x = x.astype(dtype)
    y = rng.integers(classes, size=records) if classes else rng.choice([-1.0, 1.0], records)
    start = rng.normal(size=(1, dim * (classes or 1))).astype(dtype)
    walks = make_walks(rng, nodes, records)
    options = {"step_size": step_size, "radius": radius, "classes": classes}
    options["regularization"] = regularization
    features = sparse.csr_array(x) if is_sparse else x
    moves, losses = linear_training(start, features, y, walks, loss, form=form, **options)
    slow_moves, slow_losses = slowly(start, x, y, walks, loss, **options)
    assert moves.dtype == dtype
    tolerance = 1e-4 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(moves, slow_moves, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(losses, slow_losses, rtol=1e-4)
    assert kernels.row_norms(moves).max() <= radius * (1 + 1e-4)


def test_the_cheaper_form_is_one_of_the_two() -> None:
    """With five epochs over 20 records of 300 features the span pays, with one it does not."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 300)), rng.integers(5, size=20)
    start = rng.normal(size=(1, 1500))
    options = {"step_size": 0.1, "radius": 1.0, "classes": 5}
    for epochs, cheaper in ((5, "span"), (1, "direct")):
        order = np.concatenate([rng.permutation(20) for _ in range(epochs)])
        steps = 2 * epochs
        walks = Walks(np.array([0, steps]), (np.arange(steps + 1) * 10, order))
        moves = {
            form: linear_training(start, x, y, walks, "softmax", form=form, **options)[0]
            for form in (None, "direct", "span")
        }
        np.testing.assert_allclose(moves["direct"], moves["span"], rtol=1e-10, atol=1e-12)
        assert not np.array_equal(moves["direct"], moves["span"])
        np.testing.assert_array_equal(moves[None], moves[cheaper])


def test_the_span_of_many_sparse_records_is_that_of_dense_ones() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 30)) * (rng.random((20, 30)) < 0.3)
    y, start = rng.choice([-1.0, 1.0], 20), rng.normal(size=(1, 30))
    walks = Walks(np.array([0, 2]), (np.array([0, 10, 20]), np.arange(20)))
    of_sparse, of_dense = (
        linear_training(
            start, features, y, walks, "logistic", step_size=0.5, radius=0.2, form="span"
        )[0]
        for features in (sparse.csr_array(x), x)
    )
    np.testing.assert_allclose(of_sparse, of_dense, rtol=1e-10, atol=1e-12)


def test_what_is_not_finite_is_passed_on() -> None:
    walks = Walks(np.array([0, 1]), (np.array([0, 1]), np.array([0])))
    x, y = np.ones((1, 2)), np.ones(1)
    for form in ("direct", "span"):
        moves, losses = linear_training(
            np.array([[np.nan, 0.0]]), x, y, walks, "squared", step_size=1, radius=1, form=form
        )
        assert np.isnan(moves).any()
        assert np.isnan(losses).all()


GOOD = {
    "start": np.zeros((1, 3)),
    "features": np.ones((4, 3)),
    "labels": np.ones(4),
    "walks": Walks(np.array([0, 1]), (np.array([0, 2]), np.array([0, 1]))),
    "loss": "logistic",
    "step_size": 0.1,
    "radius": 1.0,
}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"start": np.zeros((2, 3))}, "start: wanted 1 model, got 2"),
        ({"start": np.zeros(3)}, "start: wanted 2 axes"),
        ({"start": np.zeros((1, 4))}, r"start: wanted shape \(nodes, 3\)"),
        ({"step_size": -1.0}, "step_size: wanted a finite number of at least 0"),
        ({"radius": 0.0}, "radius: wanted a finite number greater than 0"),
        ({"radius": np.nan}, "radius: wanted a finite number"),
        ({"regularization": -1.0}, "regularization: wanted a finite number of at least 0"),
        ({"form": "fast"}, "form: wanted one of 'direct', 'span', got 'fast'"),
        ({"walks": (0, 1)}, r"walks: wanted Walks\(steps, batches\), got tuple"),
        (
            {"walks": Walks(np.array([0, 2]), (np.array([0, 2]), np.array([0, 1])))},
            "walks: wanted steps that rise from 0 to 1",
        ),
        (
            {"walks": Walks(np.array([0, 1]), (np.array([0, 2]), np.array([0, 4])))},
            "batches: wanted records from 0 to 3, got 4",
        ),
        ({"labels": np.zeros(4)}, "labels: wanted labels of -1 or"),
    ],
)
def test_bad_input_is_named(bad, message) -> None:
    arguments = GOOD | bad
    positional = [arguments.pop(n) for n in ("start", "features", "labels", "walks", "loss")]
    with pytest.raises(ValueError, match=message):
        linear_training(*positional, **arguments)
