"""Noise as it leaves: within rows, between rounds, at all block borders, on every cipher and type.

Each check is one kind of mistake, for all samplers; beside it stands a sampler with that mistake,
which the check must refuse.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dpmesh import kernels
from dpmesh.keys import Key, Purpose, Stream

Draw = Callable[[tuple[int, int], Stream], np.ndarray]

LARGE = 2.0**24
"""A scale at which two integers of noise agree with a chance of about 1e-8."""

SAMPLERS: dict[str, Draw] = {
    "discrete_gaussian": lambda shape, stream: kernels.discrete_gaussian(shape, LARGE, stream),
    "discrete_laplace": lambda shape, stream: kernels.discrete_laplace(shape, LARGE, stream),
} | {
    f"{law}-{dtype}": lambda shape, stream, law=law, dtype=dtype: getattr(kernels, law)(
        shape, 1.0, stream, dtype=dtype
    )
    for law in ("gaussian", "laplace")
    for dtype in ("float32", "float64")
}
BLOCKS = (8, 16, 128, 512, 1024, 4096)
DIMS = (3, 11, *(block + step for block in BLOCKS for step in (-1, 0, 1)))
ROUNDS = (0, 1, 2**8, 2**16, 2**16 + 1, 2**24, 2**31, 2**32 - 1)

samplers = pytest.mark.parametrize("draw", SAMPLERS.values(), ids=SAMPLERS)
ciphers = pytest.mark.parametrize("cipher", ["aes", "chacha20"])


def stream(cipher: str, round: int = 0) -> Stream:
    return Key.seeded(52, cipher).stream(Purpose.NOISE, round)


def repeats(noise: np.ndarray) -> float:
    """Return the largest share of a row's numbers, up to the sign, that stand in it twice."""
    rows = np.sort(np.abs(noise), axis=1)
    return float(np.mean(np.diff(rows, axis=1) == 0, axis=1).max())


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return that of signs, of numbers that are all drawn anew, in its standard deviations."""
    return float(abs(np.sum(np.sign(one) * np.sign(other))) / np.sqrt(one.size))


def within_rows(draw: Draw, cipher: str, dim: int) -> None:
    rows = max(2, 4096 // dim)
    noise = draw((rows, dim), stream(cipher))
    # float32 has 2**23 numbers between two powers of 2: in a long row some agree
    assert repeats(noise) <= (0.01 if dim > 100 else 0.0)
    both = draw((2, dim), stream(cipher))
    assert (both == noise[:2]).all()  # whatever the number of rows
    assert np.mean(both[0] == both[1]) <= 0.01
    for lag in {1, 2, dim // 2, *(block for block in BLOCKS if block < dim)}:
        assert correlation(noise[:, lag:], noise[:, :-lag]) < 6, lag
    assert correlation(noise[1:], noise[:-1]) < 6


def between_rounds(draw: Draw, cipher: str, dim: int) -> None:
    drawn = [draw((1, dim), stream(cipher, t))[0] for t in ROUNDS]
    for later, noise in enumerate(drawn):
        for earlier in drawn[:later]:
            assert np.mean(np.abs(noise) == np.abs(earlier)) <= 0.01


def signs_and_tails(draw: Draw, cipher: str, dim: int) -> None:
    noise = draw((max(1, 200_000 // dim), dim), stream(cipher)).ravel()
    size = np.sort(np.abs(noise))
    for share in (1.0, 0.1, 0.01, 0.002):  # of the largest numbers
        tail = noise[np.abs(noise) >= size[int((1 - share) * (size.size - 1))]]
        assert abs(np.sum(np.sign(tail))) < 6 * np.sqrt(tail.size), share


@samplers
@ciphers
@pytest.mark.parametrize("dim", DIMS)
def test_a_row_repeats_nothing_of_itself_or_of_others(draw: Draw, cipher: str, dim: int) -> None:
    within_rows(draw, cipher, dim)


@samplers
@ciphers
@pytest.mark.parametrize("dim", [11, 1025])
def test_rounds_share_nothing_up_to_the_last(draw: Draw, cipher: str, dim: int) -> None:
    between_rounds(draw, cipher, dim)


@samplers
@ciphers
@pytest.mark.parametrize("dim", [11, 4097])
def test_tails_have_both_signs(draw: Draw, cipher: str, dim: int) -> None:
    signs_and_tails(draw, cipher, dim)


@ciphers
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dim", [11, 4095, 4096, 4097, 9000])
def test_pair_noise_cancels_in_all_columns(cipher: str, dtype: str, threads: int, dim: int) -> None:
    before = kernels.get_threads()
    kernels.set_threads(threads)
    try:
        noise = np.zeros((2, dim), dtype=dtype)
        kernels.add_pair_gaussian(noise, [7], [[0, 1]], 1.0, stream(cipher))
    finally:
        kernels.set_threads(before)
    assert cancels(noise)
    assert repeats(noise[:1]) <= 0.01


def cancels(noise: np.ndarray) -> bool:
    return bool((noise[0] == -noise[1]).all() and (noise[0] != 0).all())


def twice_in_a_row(shape: tuple[int, int], stream: Stream) -> np.ndarray:
    noise = SAMPLERS["discrete_gaussian"](shape, stream)
    if shape[1] == 11:
        noise[::7, 8] = noise[::7, 0]  # 15% of short rows
    return noise


def from_16_bits(shape: tuple[int, int], source: Stream) -> np.ndarray:
    """As if the nonce held 16 bits of the round: streams are known by their first words."""
    low = {words(stream("aes", t)): stream("aes", t % 2**16) for t in ROUNDS}
    return SAMPLERS["gaussian-float64"](shape, low[words(source)])


def words(source: Stream) -> bytes:
    found = np.empty(4, dtype=np.uint32)
    source.words(0, found)
    return found.tobytes()


def positive_tail(shape: tuple[int, int], stream: Stream) -> np.ndarray:
    noise = SAMPLERS["laplace-float64"](shape, stream)
    return np.where(noise < -5, -noise, noise)


@pytest.mark.parametrize(
    ("check", "draw", "dim"),
    [
        (within_rows, twice_in_a_row, 11),
        (between_rounds, from_16_bits, 11),
        (signs_and_tails, positive_tail, 11),
    ],
)
def test_planted_mistakes_are_found(check: Callable[..., None], draw: Draw, dim: int) -> None:
    with pytest.raises(AssertionError):
        check(draw, "aes", dim)


def test_one_sign_at_both_ends_is_found() -> None:
    noise = kernels.add_pair_gaussian(np.zeros((2, 9000)), [7], [[0, 1]], 1.0, stream("aes"))
    noise[1, 4096:] *= -1
    assert not cancels(noise)
