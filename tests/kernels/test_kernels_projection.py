"""Clipping and norms against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refused import refused

from dpmesh import kernels

MATRICES = st.one_of(
    *(
        hnp.arrays(
            dtype,
            hnp.array_shapes(min_dims=1, max_dims=3, max_side=40),
            elements=st.floats(-1e6, 1e6, width=32),
        )
        for dtype in (np.float32, np.float64)
    )
)
BOUNDS = st.floats(1e-3, 1e3)


@given(MATRICES, st.sampled_from(["l1", "l2"]))
def test_norms_equal_numpy(x: np.ndarray, norm: kernels.projection.Norm) -> None:
    expected = np.linalg.norm(x.astype(np.float64), ord=int(norm[1]), axis=-1)
    np.testing.assert_allclose(kernels.row_norms(x, norm=norm), expected, rtol=1e-14)


@given(MATRICES, st.sampled_from([np.nan, np.inf, -np.inf]), st.data())
def test_one_number_that_is_not_finite_is_found(
    x: np.ndarray, bad: float, data: st.DataObject
) -> None:
    assert kernels.all_finite(x)
    x.flat[data.draw(st.integers(0, x.size - 1))] = bad
    assert not kernels.all_finite(x)


@given(MATRICES, BOUNDS, st.sampled_from(["l1", "l2"]))
def test_clipping_scales_only_long_rows(
    x: np.ndarray, bound: float, norm: kernels.projection.Norm
) -> None:
    norms = kernels.row_norms(x, norm=norm)[..., None]
    expected = np.where(norms > bound, x * (bound / np.maximum(norms, bound)), x)
    clipped = kernels.clip_rows(x, bound, norm=norm)
    assert clipped.dtype == x.dtype
    np.testing.assert_allclose(clipped, expected, rtol=4 * np.finfo(x.dtype).eps, atol=1e-44)


test_bad_input_is_named = refused(
    (lambda: kernels.clip_rows([[np.nan, 1.0]], 1.0), "x: wanted finite values, got norm NaN"),
    (lambda: kernels.clip_rows([[np.inf, 1.0]], 1.0), "x: wanted finite values, got norm inf"),
    (lambda: kernels.clip_rows([[1.0]], 0.0), "bound: wanted .* greater than 0, got 0"),
    (lambda: kernels.clip_rows([[3e-170]], 1e-170), "bound: wanted .* got 1e-170"),
    (lambda: kernels.clip_rows([[1.0]], np.nan), "bound: wanted a finite .* 0, got nan"),
    (lambda: kernels.clip_rows([[1.0]], 1.0, norm=np.ones(2)), "norm: wanted one of 'l1',"),
    (lambda: kernels.clip_rows([[1.0]], 1.0, norm="l3"), "norm: wanted one of 'l1', 'l2'"),
    (lambda: kernels.clip_rows(np.empty((0, 3)), 1.0), "x: wanted at least 1 element"),
    (lambda: kernels.clip_rows(["a"], 1.0), "x: wanted an array of float32 or float64"),
    (
        lambda: kernels.clip_rows([[1.0]], 1.0, out=np.empty((2, 1))),
        r"out: wanted an array of float64 and shape \(1, 1\), .*got float64 \(2, 1\)",
    ),
    (lambda: kernels.row_norms([1j]), "x: wanted an array of float32 or float64, got dtype"),
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(5,), (3, 70_001)])
def test_rounded_as_numpy_does(dtype, shape):
    rng = np.random.default_rng(1)
    x, y, z = (rng.standard_normal(shape).astype(dtype) for _ in range(3))
    expected = dtype(0.3) * x + dtype(-2.5) * y + dtype(1 / 3) * z
    terms = (0.3, x), (-2.5, y), (1 / 3, z)
    np.testing.assert_array_equal(kernels.weighted_sum(*terms), expected)
    out = np.empty(shape, dtype)
    assert kernels.weighted_sum(*terms, out=out) is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(kernels.weighted_sum((2, x[..., ::2])), 2 * x[..., ::2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 3), (60, 1_001)])
def test_columns_are_summed_as_numpy_does(dtype, shape):
    x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    expected = x.sum(axis=0, dtype=np.float64)
    np.testing.assert_array_equal(kernels.column_sums(x), expected)
    np.testing.assert_array_equal(kernels.column_sums(x[:, ::-1]), expected[::-1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: kernels.weighted_sum(), "terms: wanted at least 1, got 0"),
        (lambda x: kernels.weighted_sum((1.0, x), (1.0, x[:2])), r"terms: .* shape \(3,\), as the"),
        (lambda x: kernels.weighted_sum((1.0, x), (1.0, np.float32(x))), "terms: .* got float32"),
        (lambda x: kernels.weighted_sum((1.0, x.astype(str))), "terms: wanted an array of float32"),
        (lambda x: kernels.weighted_sum(1.0, x), "terms: wanted pairs of a weight .*, got 1.0"),
        (lambda x: kernels.weighted_sum((np.nan, x)), "weights: wanted a finite number, got nan"),
        (lambda x: kernels.weighted_sum((1.0, x), out=x[:2]), "out: wanted an array of float64"),
        (
            lambda x: kernels.weighted_sum((1.0, x), out=x),
            "terms: wanted an array that nothing else writes",
        ),
        (kernels.column_sums, "x: wanted 2 axes, got shape"),
        (lambda x: kernels.column_sums(x[:0, None]), "x: wanted at least 1 element"),
        (lambda x: kernels.column_sums(x[:, None].astype(str)), "x: wanted an array of float32"),
    ],
)
def test_bad_sums_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.ones(3))
