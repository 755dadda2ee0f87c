"""Sums of clipped gradients in float64: their definition, and what one record adds at most."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dpmesh import kernels
from dpmesh.kernels import LinearModel
from dpmesh.kernels.linear_model import Loss

LOSSES: list[tuple[Loss, int | None]] = [
    ("logistic", None),
    ("squared", None),
    ("huber", 3),
    ("softmax", 4),
    ("multilabel", 3),
]


def labels_of(loss: Loss, classes: int | None, records: int, rng: Any) -> Any:
    """Return labels that suit the loss."""
    if classes is not None:
        return rng.integers(2**classes if loss == "multilabel" else classes, size=records)
    return rng.normal(size=records) if loss == "squared" else rng.choice([-1, 1], size=records)


@given(
    st.sampled_from(LOSSES),
    st.sampled_from([1, 2, 5, 255, 257, 600]),
    st.integers(1, 40),
    st.sampled_from(["l1", "l2"]),
    st.integers(0, 10**6),
)
def test_sums_are_those_of_gradients_that_are_clipped_one_by_one(
    task: tuple[Loss, int | None], records: int, dim: int, norm: Any, seed: int
) -> None:
    (loss, classes), rng = task, np.random.default_rng(seed)
    features = rng.normal(size=(records, dim)).astype(np.float32)
    features[rng.random(features.shape) < 0.3] = 0
    labels, weights = labels_of(loss, classes, records, rng), rng.random(records)
    params = rng.normal(size=(2, dim * (classes or 1)))
    order, cut = rng.permutation(records), int(rng.integers(records + 1))
    batches = np.array([0, cut, records]), order
    wide = LinearModel(features.astype(np.float64), labels, loss, classes=classes, weights=weights)
    singles = np.arange(records + 1), order
    rows = np.repeat(params, [cut, records - cut], axis=0)
    gradients = wide.gradient(rows, singles)
    clipped = kernels.clip_rows(gradients, 0.4, norm=norm)
    expected = [clipped[:cut].sum(axis=0), clipped[cut:].sum(axis=0)]
    results = []
    for stored in (features, sparse.csr_array(features)):
        model = LinearModel(stored, labels, loss, classes=classes, weights=weights)
        got = model.clipped_sums(params, batches, clipping_norm=0.4, norm=norm)
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, expected, atol=1e-11 * records)
        results.append(got)
    same = wide.clipped_sums(params, batches, clipping_norm=0.4, norm=norm)
    assert same.tobytes() == results[0].tobytes()  # in whichever type the features are stored


@given(
    st.integers(1, 60),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([1e-12, 1e-3, 1.0, 1e12, 3e37]),
    st.sampled_from([-1, 0, 1]),
    st.integers(0, 10**6),
)
def test_a_record_at_its_bound_adds_no_more_than_the_bound(
    dim: int, dtype: Any, size: float, moved: int, seed: int
) -> None:
    """Bounds one unit in the last place below, at and above the length of a record's gradient."""
    rng = np.random.default_rng(seed)
    features = (size * rng.uniform(-1, 1, size=(1, dim))).astype(dtype)
    model = LinearModel(features, [1.0], "squared")
    batches = np.array([0, 1]), np.array([0])
    gradient = -features.astype(np.float64)
    length = float(kernels.row_norms(gradient)[0])
    bound = float(np.nextafter(length, np.inf if moved > 0 else 0)) if moved else length
    got = model.clipped_sums(np.zeros((1, dim)), batches, clipping_norm=bound)[0]
    assert sum(Fraction(x) ** 2 for x in got.tolist()) <= Fraction(bound) ** 2
    np.testing.assert_allclose(got, gradient[0], rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_not_finite_changes_no_other_part(dtype: Any, bad: float) -> None:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(9, 6)).astype(dtype)
    features[4, 2] = bad
    model = LinearModel(features, rng.integers(3, size=9), "softmax", classes=3)
    params = rng.normal(size=(1, 18))
    everyone, others = np.arange(9), np.delete(np.arange(9), 4)
    sums = [
        model.clipped_sums(params, (np.array([0, len(own)]), own), clipping_norm=0.5)
        for own in (everyone, others, everyone[4:5])
    ]
    assert sums[0].tobytes() == sums[1].tobytes()
    assert (sums[2] == 0).all()


def test_arguments_that_do_not_fit_are_refused() -> None:
    model = LinearModel(np.ones((2, 3), np.float32), [1, -1], "logistic")
    batches = np.array([0, 2]), np.array([0, 1])
    with pytest.raises(ValueError, match=r"params: wanted shape \(nodes, 3\)"):
        model.clipped_sums(np.zeros((1, 4)), batches, clipping_norm=1.0)
    with pytest.raises(ValueError, match="clipping_norm"):
        model.clipped_sums(np.zeros((1, 3)), batches, clipping_norm=0.0)
    with pytest.raises(ValueError, match="batches"):
        model.clipped_sums(np.zeros((2, 3)), batches, clipping_norm=1.0)
    with pytest.raises(ValueError, match="batches: wanted records from 0 to 1"):
        model.clipped_sums(np.zeros((1, 3)), (np.array([0, 1]), np.array([2])), clipping_norm=1.0)
