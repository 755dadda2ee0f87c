"""Messages from Python: exactly back, of the stated length, and none but the right ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refused import refused

from dpmesh import kernels

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


test_bad_input_is_named = refused(
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
