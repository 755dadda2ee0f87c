"""Quantization: unbiased, with the stated variance, and packed exactly."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpmesh import kernels
from dpmesh.keys import Key, Purpose

CODES = st.sampled_from([np.int8, np.int16, np.int32, np.int64])


def stream(purpose: Purpose = Purpose.QUANTIZE, seed: int = 4):
    return Key.seeded(seed).stream(purpose, 0)


@given(
    hnp.arrays(np.float64, hnp.array_shapes(max_dims=2, max_side=30), elements=st.floats(-50, 50)),
    st.floats(0.5, 10),
)
def test_codes_are_the_floor_or_the_ceiling(x: np.ndarray, step: float) -> None:
    codes = kernels.quantize(x, step, stream())
    up = codes - np.floor(x / step)
    assert np.isin(up, (0, 1)).all()
    back = kernels.dequantize(codes, step)
    np.testing.assert_array_equal(back, codes * step)
    assert (np.abs(back - x) <= step * (1 + 1e-12)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [-2.3, 0.1, 1e4 + 0.3])
def test_mean_and_variance(dtype: type, value: float) -> None:
    """Off by 6 standard errors once in 5e8; a bias of a hundredth of the step is seen."""
    step, draws = 0.5, 1_000_000
    x = np.full(draws, value, dtype=dtype)
    errors = kernels.dequantize(kernels.quantize(x, step, stream()), step) - x.astype(np.float64)
    variance = kernels.quantization_variance(x[:1], step)[0]
    limit = 6 * sqrt(variance / draws)
    assert abs(errors.mean()) <= limit
    assert limit < step / 100
    assert abs((errors**2).mean() - variance) <= 6 * step**2 / sqrt(draws)


def test_the_example_of_the_specification() -> None:
    codes = kernels.quantize(np.full(200_000, -2.3), 0.5, stream())
    share = (codes == -5).mean()
    assert set(np.unique(codes)) == {-5, -4}
    assert abs(share - 0.6) <= 6 * sqrt(0.24 / 200_000)
    assert kernels.quantization_variance([-2.3], 0.5)[0] == pytest.approx(0.06)


@given(st.integers(1, 5), st.integers(1, 200), st.sampled_from([np.float32, np.float64]))
def test_noise_and_quantization_in_one_pass_equal_two(rows: int, dim: int, dtype: type) -> None:
    x = np.random.default_rng(0).normal(size=(rows, dim)).astype(dtype)
    noise, coins = stream(Purpose.NOISE), stream()
    scales = np.linspace(0.5, 2, rows)
    fused = kernels.quantize_noisy(x, scales, 0.1, noise, coins)
    apart = kernels.quantize(kernels.add_gaussian(x, scales, noise), 0.1, coins)
    np.testing.assert_array_equal(fused, apart)


def test_the_same_bits_on_any_number_of_threads() -> None:
    x = np.random.default_rng(1).normal(size=(3, 200_000)).astype(np.float32)
    before, results = kernels.get_threads(), []
    for threads in (1, 2, 7):
        kernels.set_threads(threads)
        results.append(kernels.quantize(x, 0.01, stream(), dtype=np.int16))
    kernels.set_threads(before)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@given(st.data(), CODES, st.integers(1, 32))
def test_packing_is_exact(data, dtype: type, bits: int) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=2, max_side=50))
    codes = data.draw(hnp.arrays(dtype, shape))
    if dtype is np.int64:
        codes = codes % 2**51 - 2**50
    packed = kernels.pack(codes, bits)
    back = kernels.unpack(packed)
    assert back.dtype == codes.dtype
    np.testing.assert_array_equal(back, codes)
    fits = np.abs(codes.astype(np.int64)) <= 2 ** (bits - 1) - 1
    assert len(packed.message) == -(-codes.size * bits // 8) + 8 * (~fits).sum()
    needed = kernels.bits_needed(codes)
    if needed <= 32:
        assert len(kernels.pack(codes, needed).message) == -(-codes.size * needed // 8)


def test_sizes_are_those_of_the_messages() -> None:
    codes = np.array([[0, 1, -1], [100, 0, 0]], dtype=np.int16)
    expected = [len(kernels.pack(row, 3).message) for row in codes]
    np.testing.assert_array_equal(kernels.packed_sizes(codes, 3), expected)


X = np.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.quantize(X * 1000, 1.0, stream(), dtype=np.int8), "x: wanted .*int8|x: "),
        (lambda: kernels.quantize(X * np.nan, 1.0, stream()), "x: wanted"),
        (lambda: kernels.quantize(X * np.inf, 1.0, stream()), "x: wanted"),
        (lambda: kernels.quantize(X, 0.0, stream()), "step: wanted .* greater than 0, got 0"),
        (lambda: kernels.quantize(X, 1.0, None), "stream: wanted a Stream"),
        (lambda: kernels.quantize(X, 1.0, stream(), dtype=np.uint8), "dtype: wanted one of"),
        (lambda: kernels.quantize(X, 1.0, stream(), nodes=[1]), "nodes: wanted an integer for"),
        (lambda: kernels.quantize_noisy(X, -1.0, 1.0, stream(Purpose.NOISE), stream()), "scale"),
        (lambda: kernels.quantize_noisy(X, 1.0, 1.0, stream(), stream()), "coins: wanted a stream"),
        (lambda: kernels.dequantize([1.5], 1.0), "codes: wanted integers"),
        (lambda: kernels.dequantize([1], -1.0), "step: wanted .* greater than 0"),
        (lambda: kernels.quantization_variance([np.nan], 1.0), "x: wanted"),
        (lambda: kernels.pack([1], 0), "bits: wanted an integer of at least 1 and below 33, got 0"),
        (lambda: kernels.pack([1], 33), "bits: wanted an integer of at least 1 and below 33"),
        (
            lambda: kernels.unpack(kernels.Packed(b"", 3, (2,), np.dtype(np.int32))),
            "message: wanted at least 1 bytes",
        ),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
