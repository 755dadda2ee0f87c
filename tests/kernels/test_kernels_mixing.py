"""Sparse mixing against scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from dpmesh import _core, kernels
from dpmesh.kernels.mixing import Mixing
from dpmesh.topology import MixingMatrix


def random_matrix(rng: np.random.Generator, rows: int, nodes: int, density: float) -> sp.csr_array:
    there = rng.random((rows, nodes)) < density
    return sp.csr_array(np.where(there, rng.random((rows, nodes)), 0.0))


@st.composite
def problems(draw: st.DrawFn) -> tuple[sp.csr_array, np.ndarray]:
    """A random matrix, often with empty rows, and vectors of any number of axes."""
    rows, nodes, seed = draw(st.tuples(*3 * [st.integers(1, 30)]))
    tail = draw(st.lists(st.sampled_from([1, 2, 3, 7, 31, 32, 61, 257]), max_size=2))
    density = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    rng = np.random.default_rng(seed)
    matrix = random_matrix(rng, rows, nodes, density)
    return matrix.astype(dtype), rng.standard_normal((nodes, *tail)).astype(dtype)


@given(problems())
def test_the_result_goes_where_it_is_told(problem: tuple[sp.csr_array, np.ndarray]) -> None:
    matrix, x = problem
    mixed = kernels.mix(matrix, x)
    assert (mixed.dtype, mixed.shape) == (x.dtype, (matrix.shape[0], *x.shape[1:]))
    out = np.full_like(mixed, np.nan)
    assert kernels.mix(matrix, x, out=out) is out
    np.testing.assert_array_equal(out, mixed)


@given(problems())
def test_mixing_equals_scipy(problem: tuple[sp.csr_array, np.ndarray]) -> None:
    matrix, x = problem
    flat = x.reshape(x.shape[0], -1)
    mixed = kernels.mix(matrix, x).reshape(-1, flat.shape[1])
    error = np.abs(mixed - matrix @ flat)
    assert np.all(error <= 30 * np.finfo(x.dtype).eps * (abs(matrix) @ abs(flat)))


@given(problems())
def test_every_form_of_matrix_and_array_gives_the_same(
    problem: tuple[sp.csr_array, np.ndarray],
) -> None:
    matrix, x = problem
    expected = kernels.mix(matrix, x)
    long = matrix.copy()
    long.indptr, long.indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
    for form in (matrix.toarray(), matrix.tocoo(), matrix.tocsc(), sp.csr_matrix(matrix), long):
        np.testing.assert_array_equal(kernels.mix(form, x), expected)
    np.testing.assert_array_equal(kernels.mix(matrix, np.asfortranarray(x)), expected)
    strided = np.repeat(x, 2, axis=0)[::2]
    np.testing.assert_array_equal(kernels.mix(matrix, strided), expected)


@pytest.mark.parametrize("nodes", [2, 40])  # of many, tile by tile
def test_product_and_sum_are_rounded_together(nodes: int) -> None:
    matrix, x = np.ones((nodes, nodes)), np.zeros((nodes, 300))
    matrix[:, 0], x[0] = -1, 1 + 2.0**-29
    matrix[:, 1] = x[1] = 1 + 2.0**-30  # whose square is larger than x[0] by 2^-60
    np.testing.assert_array_equal(kernels.mix(matrix, x), np.full_like(x, 2.0**-60))


def test_weights_are_rounded_to_the_type_of_x() -> None:
    third = np.array([[1 / 3, 2 / 3]])
    x = np.array([[1.0], [1.0]], dtype=np.float32)
    expected = np.float32(1 / 3) + np.float32(2 / 3)
    assert kernels.mix(third, x).tolist() == [[expected]]
    assert kernels.mix(np.array([[True, False]]), x).tolist() == [[1.0]]


def test_nan_and_infinity_are_passed_on() -> None:
    mixed = kernels.mix(np.eye(3), [np.nan, np.inf, 1.0])
    np.testing.assert_array_equal(mixed, [np.nan, np.inf, 1.0])


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_matrix_made_ready_gives_the_same_bits(rows: int, dtype: type) -> None:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(64, 70)).astype(dtype)
    equal = np.tile(draws.random(64), (rows, 1))
    for matrix in (equal, equal + np.eye(rows, 64), equal * (np.arange(64) < 60)):
        ready = Mixing(sp.csr_array(matrix))
        for _ in range(2):
            np.testing.assert_array_equal(ready.mix(x), kernels.mix(matrix, x))


def broken_csr(column: int, places: type[np.signedinteger[Any]]) -> sp.csr_array:
    matrix = sp.csr_array(np.eye(2))
    matrix.indptr, matrix.indices = matrix.indptr.astype(places), matrix.indices.astype(places)
    matrix.indices[1] = column
    return matrix


X = np.ones((2, 3))


test_bad_input_is_named = refused(
    (lambda: kernels.mix(np.eye(3), X), "matrix: wanted a column for each of the 2 rows of x"),
    (lambda: kernels.mix(np.ones(2), X), "matrix: wanted at least 1 row and 1 column, got shape"),
    (lambda: kernels.mix(np.empty((0, 2)), X), "matrix: wanted at least 1 row and 1 column"),
    (lambda: kernels.mix([["a", "b"]], X), "matrix: wanted a matrix of real numbers"),
    (
        lambda: kernels.mix(MixingMatrix(np.eye(2)), X),
        "matrix: wanted an array or a sparse one, such as the weights .*, got MixingMatrix",
    ),
    (lambda: kernels.mix(1j * np.eye(2), X), "matrix: wanted a matrix of real numbers"),
    (lambda: kernels.mix(broken_csr(2, np.int32), X), "indices: wanted columns below 2, got 2"),
    (lambda: kernels.mix(broken_csr(-1, np.int32), X), "indices: wanted columns below 2"),
    (lambda: kernels.mix(broken_csr(-5, np.int64), X), "indices: wanted columns below 2, got -5"),
    (lambda: kernels.mix(broken_csr(2**32, np.int64), X), "indices: wanted columns below 2"),
    (lambda: kernels.mix(np.eye(2), X.astype(complex)), "x: wanted an array of float32 or"),
    (lambda: kernels.mix(np.eye(2), np.empty((2, 0))), "x: wanted at least 1 element"),
    (
        lambda: _core.mix((np.zeros(2, "i"), np.zeros(0, "i"), X[0, :0]), X[:0], None),
        "columns: wanted at least 1, got 0",
    ),
    (
        lambda: kernels.mix(np.eye(2), X, out=np.empty((2, 2))),
        r"out: wanted an array of float64 and shape \(2, 3\), .*got float64 \(2, 2\)",
    ),
    (lambda: kernels.mix(np.eye(2), X, out=X), "out: wanted a writeable array of its own"),
)
