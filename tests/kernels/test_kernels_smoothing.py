"""Laplacian smoothing against dense solves and numpy's Fourier transform."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refused import refused

from dpmesh import kernels

DTYPES = st.sampled_from([np.float32, np.float64])
SMOOTHINGS = st.one_of(st.just(0.0), st.floats(-6, 6).map(lambda e: 10.0**e))
POWERS = st.integers(1, 4)
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-12}


def laplacian(dim: int) -> np.ndarray:
    eye = np.eye(dim)
    return 2 * eye - np.roll(eye, 1, axis=0) - np.roll(eye, -1, axis=0)


def fft_solution(x: np.ndarray, smoothing: float, power: int = 1) -> np.ndarray:
    dim = x.shape[-1]
    symbol = 1 + smoothing * (4 * np.sin(np.pi * np.arange(dim) / dim) ** 2) ** power
    return np.fft.ifft(np.fft.fft(x.astype(np.float64)) / symbol).real


def assert_smoothed(u: np.ndarray, expected: np.ndarray, dtype: np.dtype) -> None:
    assert u.dtype == dtype
    error = np.abs(u - expected).max(axis=-1)
    assert (error <= TOLERANCE[u.dtype] * np.abs(expected).max(axis=-1)).all()


def rows(seed: int, *shape: int, dtype: type = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@given(st.integers(1, 40), SMOOTHINGS, POWERS, DTYPES, st.integers(0, 2**32))
def test_it_is_the_solution_of_the_dense_system(
    dim: int, smoothing: float, power: int, dtype: type, seed: int
) -> None:
    # Eigenvectors solve it to the last digits; elimination would lose what the condition costs.
    values, vectors = np.linalg.eigh(laplacian(dim))
    x = rows(seed, 2, dim, dtype=dtype)
    damped = 1 + smoothing * np.clip(values, 0, None) ** power
    # The eigenvalue 0 comes out as about 1e-15, which a large smoothing would magnify.
    damped[np.argmin(values)] = 1.0
    expected = (x @ vectors / damped) @ vectors.T
    assert_smoothed(kernels.smooth(x, smoothing, power=power), expected, x.dtype)


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 64, 127, 2048, 2053, 7850, 65_536, 100_003])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("smoothing", [0.0, 0.01, 1.0, 30.0, 100.0, 1e3, 1e6])
def test_both_methods_equal_the_fourier_transform(dim: int, dtype: type, smoothing: float) -> None:
    x = rows(dim, 2, dim, dtype=dtype)
    expected = fft_solution(x, smoothing)
    for method in ("recursion", "fft"):
        assert_smoothed(kernels.smooth(x, smoothing, method=method), expected, x.dtype)


@given(st.integers(2, 3000), SMOOTHINGS, POWERS)
def test_what_is_solved_satisfies_the_equation(dim: int, smoothing: float, power: int) -> None:
    x = rows(dim, dim)
    image = u = kernels.smooth(x, smoothing, power=power)
    for _ in range(power):
        image = 2 * image - np.roll(image, 1) - np.roll(image, -1)
    # Rounding of u is magnified by the largest eigenvalue of A.
    largest = 1 + smoothing * 4.0**power
    np.testing.assert_allclose(u + smoothing * image, x, atol=1e-14 * largest * np.abs(u).max())
    assert u.mean() == pytest.approx(x.mean(), rel=1e-9, abs=1e-12)


@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=30), SMOOTHINGS, DTYPES, st.booleans())
def test_in_place_and_strided_forms_agree(
    shape: tuple[int, ...], smoothing: float, dtype: type, fft: bool
) -> None:
    method = "fft" if fft else "recursion"
    x = rows(7, *shape, dtype=dtype)
    kept = x.copy()
    expected = kernels.smooth(x, smoothing, method=method)
    np.testing.assert_array_equal(x, kept)
    wide = np.repeat(x, 2, axis=-1)
    strided = kernels.smooth(wide[..., ::2], smoothing, method=method)
    np.testing.assert_array_equal(strided, expected)
    out = np.full_like(x, np.nan)
    assert kernels.smooth(x, smoothing, method=method, out=out) is out
    np.testing.assert_array_equal(out, expected)
    assert kernels.smooth(x, smoothing, method=method, out=x) is x
    np.testing.assert_array_equal(x, expected)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), SMOOTHINGS, POWERS, DTYPES)
def test_each_block_is_a_cycle_of_its_own(
    blocks: list[int], smoothing: float, power: int, dtype: type
) -> None:
    x = rows(3, 4, sum(blocks), dtype=dtype)
    parts = np.split(x, np.cumsum(blocks)[:-1], axis=-1)
    expected = np.concatenate(
        [kernels.smooth(part, smoothing, power=power) for part in parts], axis=-1
    )
    smoothed = kernels.smooth(x, smoothing, power=power, blocks=blocks)
    np.testing.assert_array_equal(smoothed, expected)


def test_short_cycles_wrap_as_the_papers_matrix_does() -> None:
    np.testing.assert_array_equal(kernels.smooth([3.0], 5.0), [3.0])
    for smoothing in (0.5, 100.0):
        two = np.array([[1 + 2 * smoothing, -2 * smoothing]] * 2)
        two[1] = two[1, ::-1]
        np.testing.assert_allclose(kernels.smooth(two @ [5.0, 1.0], smoothing), [5, 1], rtol=1e-13)
        three = (1 + 3 * smoothing) * np.eye(3) - smoothing
        expected = [5.0, 1.0, 2.0]
        np.testing.assert_allclose(
            kernels.smooth(three @ expected, smoothing), expected, rtol=1e-13
        )


def test_nan_is_not_hidden() -> None:
    for smoothing in (0.0, 1.0, 1e4):
        x = rows(1, 5000)
        x[2500] = np.nan
        assert np.isnan(kernels.smooth(x, smoothing)[2500])


@given(st.integers(1, 3000), SMOOTHINGS, POWERS)
def test_spectrum_and_effective_dimensions_follow_their_formulas(
    dim: int, smoothing: float, power: int
) -> None:
    sine = np.sin(np.pi * np.arange(dim) / dim)
    expected = 1 / (1 + smoothing * (4 * sine**2) ** power)
    spectrum = kernels.smoothing_spectrum(dim, smoothing, power=power)
    # sin(pi x) beyond pi/2 loses digits to the rounding of pi; smoothing magnifies them.
    np.testing.assert_allclose(spectrum, expected, rtol=1e-12 * power)
    sums = kernels.effective_dimensions(dim, smoothing, power=power)
    np.testing.assert_allclose(sums.linear, expected.sum(), rtol=1e-11)
    np.testing.assert_allclose(sums.squared, (expected**2).sum(), rtol=1e-11)


def test_no_smoothing_damps_nothing_whatever_the_power() -> None:
    np.testing.assert_array_equal(kernels.smoothing_spectrum(4, 0.0, power=1000), np.ones(4))
    assert kernels.effective_dimensions(4, 0.0, power=1000) == (4, 4)


@pytest.mark.parametrize("dim", [1, 5, 10**15])
def test_the_largest_smoothing_leaves_the_mean(dim: int) -> None:
    largest = np.finfo(np.float64).max
    for smoothing in (1e199, 1e204, 1e300, largest):
        np.testing.assert_allclose(kernels.effective_dimensions(dim, smoothing), 1, rtol=1e-12)


def test_effective_dimensions_are_the_variance_that_is_left() -> None:
    """Within five standard errors: false alarms at 6e-7, were the seed not fixed."""
    count, dim, smoothing = 2000, 100, 2.0
    noise = rows(0, count, dim)
    left = np.square(kernels.smooth(noise, smoothing)).sum() / count
    expected = kernels.effective_dimensions(dim, smoothing).squared
    assert abs(left / expected - 1) < 5 * np.sqrt(2 / (count * expected))


def test_effective_dimensions_of_a_long_cycle_are_immediate() -> None:
    sums = kernels.effective_dimensions(10**15, 6.0)
    assert sums.linear == pytest.approx(10**15 / 5, rel=1e-14)
    assert sums.squared == pytest.approx(10**15 * 13 / 125, rel=1e-14)


def test_no_more_eigenvalues_are_summed_than_minutes_allow() -> None:
    """Their blocks alone would take more memory than there is, and end the process."""
    with pytest.raises(ValueError, match=r"^dim: wanted at most 68719476736 for powers above 1"):
        kernels.effective_dimensions(2**53, 1.0, power=2)


X = np.ones((2, 6))


test_bad_input_is_named = refused(
    (lambda: kernels.smooth(["a"], 1.0), "x: wanted an array of float32 or float64"),
    (lambda: kernels.smooth(np.empty((2, 0)), 1.0), "x: wanted at least 1 element"),
    (
        lambda: kernels.smooth(X, 1.0, power=2, method="recursion"),
        "method: wanted 'fft' for power 2, got 'recursion'",
    ),
    (
        lambda: kernels.smooth(X, 1.0, blocks=[2, 3]),
        "blocks: wanted lengths that sum to the 6 elements of a row, got sum 5",
    ),
    (
        lambda: kernels.smooth(X, 1.0, blocks=[6, 0]),
        "blocks: wanted an integer of at least 1, got 0",
    ),
    (lambda: kernels.smooth(X, 1.0, blocks=6), "blocks: wanted a sequence of lengths, got 6"),
    (lambda: kernels.smooth(X, 1.0, blocks=[]), "blocks: wanted lengths that sum"),
    (lambda: kernels.smooth(X, 1.0, out=np.empty(6)), "out: wanted an array of float64"),
)
