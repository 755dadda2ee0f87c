"""Quantization from Python: its law, its forms, its errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refused import refused
from scipy import stats

from dpmesh import kernels
from dpmesh.keys import Key, Purpose

KEY = Key.seeded(1)
COINS = KEY.stream(Purpose.QUANTIZE)
NOISE = KEY.stream(Purpose.NOISE)
Z = stats.norm.isf(0.5e-6)
"""What a standard Gaussian number exceeds with probability 1e-6: the false alarms of each check."""

TYPES = [(x, codes) for x in (np.float32, np.float64) for codes in (np.int16, np.int32, np.int64)]


@pytest.mark.parametrize(("dtype", "code_type"), TYPES)
def test_codes_are_unbiased_with_the_stated_variance(dtype: type, code_type: type) -> None:
    x = (30 * np.sin(np.arange(300_000))).astype(dtype)
    codes = kernels.quantize(x, 0.3, COINS, dtype=code_type)
    assert codes.dtype == code_type
    t = x.astype(np.float64) / 0.3
    assert np.all((codes == np.floor(t)) | (codes == np.ceil(t)))
    error = 0.3 * codes.astype(np.float64) - x
    p = t - np.floor(t)
    variance = 0.09 * p * (1 - p)

    def z(values: np.ndarray, variance: np.ndarray) -> float:
        return abs(values.sum()) / np.sqrt(variance.sum())

    assert z(error, variance) < Z
    assert z(error * (p - 0.5), variance * (p - 0.5) ** 2) < Z
    assert z(error**2 - variance, variance * (0.09 - 4 * variance)) < Z
    assert z(error + 0.01, variance) > Z
    assert z((0.3 * np.round(t) - x) * (p - 0.5), variance * (p - 0.5) ** 2) > Z


def test_the_numbers_of_the_specification() -> None:
    codes = kernels.quantize(np.full(1_000_000, -2.3), 0.5, COINS, dtype=np.int8)
    values = kernels.dequantize(codes, 0.5)
    assert set(values) == {-2.5, -2.0}
    assert stats.binomtest(int((values == -2.5).sum()), values.size, 0.6).pvalue > 1e-6
    noisy = kernels.quantize(
        kernels.add_noise("gaussian", np.full(1_000_000, 0.37), 1.3, NOISE), 1.0, COINS
    )
    for code, p in ((1, 0.2630054292), (0, 0.2820323593)):
        count = int((noisy == code).sum())
        assert stats.binomtest(count, noisy.size, p).pvalue > 1e-6
        assert stats.binomtest(count, noisy.size, 1.02 * p).pvalue < 1e-6


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6, unique=True),
    st.integers(1, 600),
    st.sampled_from(TYPES),
)
def test_every_form_gives_the_same(nodes: list[int], dim: int, types: tuple[type, type]) -> None:
    dtype, code_type = types
    x = np.cos(np.arange(len(nodes) * dim)).reshape(len(nodes), dim).astype(dtype)
    codes = kernels.quantize(x, 0.01, COINS, dtype=code_type, nodes=nodes)
    out = np.empty_like(codes)
    assert kernels.quantize(x, 0.01, COINS, dtype=code_type, nodes=nodes, out=out) is out
    np.testing.assert_array_equal(out, codes)
    strided = np.repeat(x, 2, axis=-1)[:, ::2]
    again = kernels.quantize(strided, 0.01, COINS, dtype=code_type, nodes=nodes)
    np.testing.assert_array_equal(again, codes)
    for node, row, row_codes in zip(nodes, x, codes, strict=True):
        alone = kernels.quantize(row, 0.01, COINS, dtype=code_type, nodes=[node])
        np.testing.assert_array_equal(alone, row_codes)

    for out_type in (np.float32, np.float64):
        values = kernels.dequantize(codes, 0.01, dtype=out_type)
        np.testing.assert_array_equal(values, (codes * 0.01).astype(out_type))


X = np.zeros((2, 3))


test_bad_input_is_named = refused(
    (
        lambda: kernels.quantize([[0.0], [300.0]], 1.0, COINS, dtype=np.int8),
        "x: wanted values with codes from -128 to 127, got 300 of code 300 in row 1",
    ),
    (lambda: kernels.quantize([0.0, np.nan], 1.0, COINS), "x: wanted finite values, got NaN"),
    (lambda: kernels.quantize(X, 1e-200, COINS), "step: wanted a number between 1e-150 and"),
    (
        lambda: kernels.quantize(X, 1.0, COINS, dtype=np.uint8),
        "dtype: wanted int8, int16, int32 or int64, got uint8",
    ),
    (
        lambda: kernels.quantize(X, 1.0, COINS, out=np.empty((3, 2), np.int8)),
        r"out: wanted an array of int8 and shape \(2, 3\), .*got int8 \(3, 2\)",
    ),
    (
        lambda: kernels.quantize(X, 1.0, COINS, out=np.empty((2, 3))),
        "out: wanted int8, int16, int32 or int64, got float64",
    ),
    (lambda: kernels.quantize(X[None], 1.0, COINS), r"x: wanted shape \(dim,\) or"),
    (lambda: kernels.quantize([], 1.0, COINS), "x: wanted at least 1 element"),
    (lambda: kernels.quantize(["a"], 1.0, COINS), "x: wanted an array of float32 or"),
    (lambda: kernels.quantize(X, 1.0, COINS, nodes=[1, 1]), "nodes: wanted distinct nodes"),
    (
        lambda: kernels.dequantize(np.array([0.5]), 1.0),
        "codes: wanted an array of int8, int16, int32 or int64, got dtype float64",
    ),
    (lambda: kernels.dequantize([1], 1.0, dtype=np.int8), "dtype: wanted float32 or float64"),
)


CODES = st.one_of(
    *(
        hnp.arrays(dtype, hnp.array_shapes(max_dims=3, max_side=20))
        for dtype in (np.int8, np.int16, np.int32, np.int64)
    )
)
SMALL = hnp.arrays(
    np.int32, hnp.array_shapes(max_dims=2, max_side=40), elements=st.integers(-40, 40)
)


@given(st.one_of(CODES, SMALL), st.integers(1, 32))
def test_codes_come_back_exactly(codes: np.ndarray, bits: int) -> None:
    packed = kernels.pack(codes, bits)
    back = kernels.unpack(packed)
    assert back.dtype == codes.dtype
    np.testing.assert_array_equal(back, codes)
    np.testing.assert_array_equal(kernels.unpack(kernels.pack(codes.T, bits)), codes.T)


@given(st.one_of(CODES, SMALL), st.integers(1, 32))
def test_the_length_is_that_of_symbols_and_escaped_codes(codes: np.ndarray, bits: int) -> None:
    wide = codes.astype(np.int64)
    escaped = (wide > 2 ** (bits - 1) - 1) | (wide < 1 - 2 ** (bits - 1))
    packed = kernels.pack(codes, bits)
    assert packed.nbytes == -(-codes.size * bits // 8) + 8 * escaped.sum()
    sizes = -(-codes.shape[-1] * bits // 8) + 8 * escaped.sum(axis=-1)
    np.testing.assert_array_equal(kernels.packed_sizes(codes, bits), sizes)
    assert (kernels.bits_needed(codes) <= bits) == (not escaped.any())


def test_a_message_written_by_hand() -> None:
    """Symbols 0, 1, 2, 5 and 7 (escape) of 3 bits, from the lowest: 000 100 010 101 111."""
    packed = kernels.pack(np.array([0, -1, 1, -3, 300]), 3)
    assert packed.message == bytes([0b10001000, 0b01111010, 44, 1, 0, 0, 0, 0, 0, 0])
    assert packed.dtype == np.int64
    assert packed.shape == (5,)


PACKED = kernels.pack(np.arange(9, dtype=np.int8), 5)


test_bad_packing_is_named = refused(
    (lambda: kernels.pack(np.ones(3), 4), "codes: wanted an array of int8, int16, int32 or"),
    (lambda: kernels.pack([], 4), "codes: wanted an array of int8, int16, int32 or int64"),
    (lambda: kernels.pack(np.empty(0, np.int8), 4), "codes: wanted at least 1 element"),
    (lambda: kernels.packed_sizes([0.5], 2), "codes: wanted an array of int8, int16, int32"),
    (lambda: kernels.bits_needed([0.5]), "codes: wanted an array of int8, int16, int32"),
    (lambda: kernels.unpack(b"123"), "packed: wanted a Packed, got bytes"),
    (
        lambda: kernels.unpack(replace(PACKED, message=b"123")),
        "message: wanted at least 6 bytes for 9 codes of 5 bits, got 3",
    ),
    (
        lambda: kernels.unpack(replace(PACKED, message=PACKED.message + b"1")),
        "message: wanted 6 bytes, and 8 for each of 0 escaped codes, got 7",
    ),
    (
        lambda: kernels.unpack(replace(PACKED, dtype=np.dtype(float))),
        "dtype: wanted int8, int16, int32 or int64, got float64",
    ),
)
