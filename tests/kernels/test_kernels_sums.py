"""Sums of arrays."""

import numpy as np
import pytest

from dpmesh import kernels


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
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.ones(3))
