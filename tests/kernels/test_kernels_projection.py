"""Clipping and norms against numpy."""

from __future__ import annotations

import numpy as np
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
