"""Compressors: unbiased, of the stated length, decoded exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_round import Stage
from refused import refused
from scipy import stats

from dpmesh import kernels
from dpmesh.algorithms import Message
from dpmesh.keys import Key, Purpose
from dpmesh.noise import Compressor, Gaussian, Levels, Quantizer, RandomSparsifier, Sensitivity
from dpmesh.privacy import Release

KEY = Key.seeded(1)
COINS = KEY.stream(Purpose.QUANTIZE)
COMPRESSORS = [
    Quantizer(0.3),
    Quantizer(0.05, bits=3),
    Levels(1),
    Levels(20),
    RandomSparsifier(0.01),
    RandomSparsifier(0.6),
]
Z = stats.norm.isf(0.5e-6)
"""What a standard Gaussian number exceeds with probability 1e-6: the false alarms of each check."""


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(
    rows=st.integers(1, 4),
    dim=st.integers(1, 70),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 1e6]),
    seed=st.integers(0, 2**32),
)
def test_messages_decode_to_the_values_and_have_the_stated_length(
    compressor, dtype, rows, dim, scale, seed
) -> None:
    x = (scale * np.random.default_rng(seed).standard_cauchy((rows, dim))).astype(dtype)
    compressed = compressor.compress(x, COINS)
    messages = [compressed.message(row) for row in range(rows)]
    assert compressed.bits.tolist() == [8 * len(message) for message in messages]
    assert compressed.values.dtype == dtype
    decoded = compressor.decode(messages, dim, dtype)
    assert decoded.dtype == dtype
    np.testing.assert_array_equal(decoded, compressed.values)
    some = np.random.default_rng(seed).permutation(rows)[: 1 + seed % rows]
    packet = compressed.packet(some)
    from_packet = compressor.decode_packet(packet, len(some), dim, dtype)
    assert from_packet.dtype == dtype
    assert from_packet.tobytes() == compressed.values[some].tobytes()
    # a length for each width of codes; for each row a count in 4 bytes instead of a kind in 1
    most = compressed.bits[some].sum() // 8
    assert len(packet) <= most + max(8 * min(32, len(some)), 3 * len(some))


@pytest.mark.parametrize("compressor", COMPRESSORS)
@given(packet=st.binary(max_size=60), rows=st.integers(1, 3), dim=st.integers(1, 9))
def test_a_packet_of_whatever_bytes_is_read_or_refused(compressor, packet, rows, dim) -> None:
    try:
        read = compressor.decode_packet(packet, rows, dim, np.float64)
    except ValueError:
        return
    assert read.shape == (rows, dim)


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_values_are_unbiased(compressor) -> None:
    """The mean over many rows of the same numbers; 10 standard errors more would fail."""
    x = np.repeat(np.array([[-2.3, -0.01, 0.0, 0.149, 0.31, 7.0]]), 40_000, axis=0)
    error = compressor.compress(x, COINS).values - x
    spread = error.std(axis=0) / np.sqrt(len(x))
    assert (abs(error.mean(axis=0)) <= Z * spread + 1e-12).all()
    assert (abs((error + 10 * spread).mean(axis=0)) > Z * spread)[spread > 0].all()


@pytest.mark.parametrize("levels", [1, 4, 50])
def test_the_error_of_levels_is_within_its_bound(levels: int) -> None:
    """The mean over 2000 rows; the bound is on the expectation, and far from tight."""
    dim = 30
    x = np.repeat(np.random.default_rng(0).normal(size=(1, dim)), 2000, axis=0)
    error = ((Levels(levels).compress(x, COINS).values - x) ** 2).sum(axis=1).mean()
    assert error <= min(dim / levels**2, np.sqrt(dim) / levels) * (x[0] ** 2).sum()


def test_the_variance_of_sparsified_numbers_is_the_stated_one() -> None:
    """Of 400,000 draws of a number 2: kept with probability 0.3, (1 / 0.3 - 1) 4."""
    values = RandomSparsifier(0.3).compress(np.full((1, 400_000), 2.0), COINS).values
    assert set(np.unique(values)) == {0.0, 2.0 / 0.3}
    assert stats.binomtest(int((values > 0).sum()), values.size, 0.3).pvalue > 1e-6
    assert values.var() == pytest.approx((1 / 0.3 - 1) * 4, rel=0.02)


def test_few_numbers_are_sent_with_their_places() -> None:
    x = np.ones((1, 8000), np.float32)
    compressed = RandomSparsifier(0.001).compress(x, COINS)
    kept = np.count_nonzero(compressed.values)
    assert compressed.bits[0] == 8 * (1 + 8 * kept) < 8000
    many = RandomSparsifier(0.5).compress(x, COINS)
    assert many.bits[0] == 8 * (1 + 1000 + 4 * np.count_nonzero(many.values))


def test_a_code_that_needs_more_bits_is_escaped_and_never_clipped() -> None:
    x = np.array([[0.0, 1.0, -1.0, 3.0, 1e9, -4.0]])  # multiples of the step: no coins
    narrow = Quantizer(1.0, bits=3).compress(x, COINS)
    np.testing.assert_array_equal(narrow.values, x)
    escaped = 2
    assert narrow.bits.tolist() == [8 * (1 + 3 + 8 * escaped)]  # a header, 6 codes in 18 bits
    assert Quantizer(1.0).compress(x, COINS).bits.tolist() == [8 * (1 + 3 + 8)]  # 4 bits a code


@pytest.mark.parametrize("bits", [None, 4])
def test_codes_around_the_range_of_32_bits(bits: int | None) -> None:
    whole = [2.0**31 - 3, 2.0**31 - 2, 2.0**31 - 1, 2.0**31, 2.0**40]
    for largest in whole:
        for x in (np.array([[largest, 1.0]]), np.array([[-largest, 1.0]])):
            compressed = Quantizer(1.0, bits=bits).compress(x, COINS)
            np.testing.assert_array_equal(compressed.values, x)
            messages = [compressed.message(0)]
            np.testing.assert_array_equal(Quantizer(1.0, bits=bits).decode(messages, 2, x.dtype), x)


def test_each_node_takes_the_shortest_message() -> None:
    x = np.array([[0.0] * 16, [100.0] * 16, [1.0] * 15 + [1e6]])
    bits = Quantizer(1.0).compress(x, COINS).bits
    codes = x.astype(np.int64)
    for row, length in enumerate(bits):
        assert length == min(8 * (1 + kernels.pack(codes[row], b).nbytes) for b in range(1, 33))
    assert len(set(bits)) == 3


def sent(values: np.ndarray, compressor: Compressor, sensitivity: Sensitivity) -> tuple[Any, Any]:
    """Return what arrives of values that a round sends compressed, and what was sent."""

    def script(state: Any, t: int) -> Any:
        arrived.append((yield Message(values, Release(t, Gaussian(2.0), sensitivity), compressor)))

    arrived, stage = [], Stage(len(values))
    return stage.run(script).sent, (arrived[0], stage)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    "compressor", [Quantizer(2.5e38, bits=4), Quantizer(2.5e38), Levels(1), RandomSparsifier(0.5)]
)
def test_what_its_type_cannot_hold_is_not_sent(compressor) -> None:
    x, public = np.full((2, 100), 3.3e38, np.float32), Sensitivity(0.0, "l2", "a test")
    with pytest.raises(ValueError, match="values: wanted numbers whose compression float32 can ho"):
        sent(x, compressor, public)
    sent(x.astype(float), compressor, public)


@pytest.mark.parametrize("bound", [0.0, 1.5])
def test_what_was_released_travels_compressed(bound: float) -> None:
    """The release is that of the noise: compression is post-processing."""
    x, sensitivity = np.ones((3, 7)), Sensitivity(bound, "l2", "a test")
    (bits, times), (arrived, stage) = sent(x, Quantizer(0.1), sensitivity)
    (passage,) = stage.passages
    coins = Key.seeded(1).stream(Purpose.QUANTIZE, 0)
    expected = Quantizer(0.1).compress(passage.noisy, coins)
    np.testing.assert_array_equal(arrived, expected.values)
    np.testing.assert_array_equal(bits, expected.bits)
    assert times == 1
    assert stage.ledger.releases == [Release(0, Gaussian(2.0), sensitivity)]


test_bad_input_is_named = refused(
    (lambda: Quantizer(1.0).compress(np.array([[np.inf]]), COINS), "x: .*inf"),
    (
        lambda: Quantizer(1e-3).compress(np.array([[1e300]]), COINS),
        "x: wanted values with codes from",
    ),
    (lambda: Levels(3).compress(np.array([[np.nan]]), COINS), "x: wanted finite values, got NaN"),
    (lambda: Levels(3).compress(np.array([[1e200]]), COINS), "values: wanted rows whose squared"),
    (lambda: Levels(3).decode([b"abc"], 3, np.float64), "8 bytes of norm and the codes, got 3"),
    (
        lambda: RandomSparsifier(0.5).compress(np.array([[np.inf]]), COINS),
        "values: wanted finite values",
    ),
    (lambda: RandomSparsifier(0.5).decode([b"x"], 3, np.float64), "a byte of kind"),
    (
        lambda: RandomSparsifier(0.5).decode([b"\0\7"], 3, np.float64),
        "a number for each of 3 places",
    ),
    (
        lambda: RandomSparsifier(0.5).decode([b"\1\3\0\0\0" + bytes(8)], 3, np.float64),
        "a number for each of 1 places",
    ),
    (lambda: Quantizer(1.0).decode([b""], 3, np.float64), "no bytes in message 0"),
    (lambda: Quantizer(1.0).decode([b"\x04\x00"], 9, np.float64), "message"),
    (lambda: Quantizer(1.0).decode([b"\x00\x00"], 1, np.float64), "bits"),
    (
        lambda: Quantizer(1.0).decode_packet(b"\x04", 2, 9, np.float64),
        "packet: wanted 2 bytes of bits",
    ),
    (
        lambda: Quantizer(1.0).decode_packet(b"\x04", 1, 9, np.float64),
        "packet: wanted 1 length of codes",
    ),
    (
        lambda: Levels(3).decode_packet(b"abc", 1, 3, np.float64),
        "packet: wanted 1 norms, got 3 bytes",
    ),
    (
        lambda: RandomSparsifier(0.5).decode_packet(b"x", 1, 3, np.float64),
        "packet: wanted 1 counts",
    ),
    (
        lambda: RandomSparsifier(0.5).decode_packet(bytes(6), 1, 3, np.float64),
        "packet: wanted 4 bytes, got 6",
    ),
    (
        lambda: RandomSparsifier(0.5).decode_packet(
            b"\1\0\0\0" + bytes([33, 0, 0, 0]) + bytes(8), 1, 33, np.float64
        ),
        "packet: wanted places below 33, got 33",
    ),
)
