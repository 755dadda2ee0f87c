"""Quantization of float32 against numpy, and packing into 5 bits.

``numpy`` is the fastest way on this machine: preallocated buffers, random bits of the fastest
insecure generator; ``plain numpy`` is what one would naturally write. Packing is compared with
``packbits``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benches.measure import Case
from dpmesh import kernels
from dpmesh.keys import Key, Purpose

SIZE = 10_000_000
STEP = 0.5
KEYS = {name: Key.seeded(1, name) for name in ("aes", "chacha20")}
GENERATOR = np.random.Generator(np.random.SFC64(1))

values = (8 * np.random.default_rng(0).standard_normal(SIZE)).astype(np.float32)

# Buffers of NumPy's fastest way.
scaled, floor, coin = (np.empty_like(values) for _ in range(3))
is_up = np.empty(SIZE, bool)


def numpy_quantize(codes: np.ndarray) -> None:
    """Write the codes of all values, rounded up or down at random, by NumPy's fastest way."""
    np.multiply(values, np.float32(1 / STEP), out=scaled)
    np.floor(scaled, out=floor)
    fraction = np.subtract(scaled, floor, out=scaled)
    GENERATOR.random(out=coin, dtype=np.float32)
    np.less(coin, fraction, out=is_up)
    np.add(floor, is_up, out=floor)
    np.copyto(codes, floor, casting="unsafe")


def plain_numpy_quantize(dtype: type) -> np.ndarray:
    """Return the codes of all values, as one would naturally write it."""
    scaled = values / np.float32(STEP)
    floor = np.floor(scaled)
    is_up = GENERATOR.random(SIZE, dtype=np.float32) < scaled - floor
    return (floor + is_up).astype(dtype)


def numpy_pack(codes: np.ndarray) -> np.ndarray:
    """Return codes of -16 to 15 in 5 bits each, in zigzag order."""
    symbols = ((codes << 1) ^ (codes >> 7)).view(np.uint8)
    return np.packbits(np.unpackbits(symbols[:, None], axis=1, count=5, bitorder="little"))


def quantization(name: str, dtype: type) -> Iterator[Case]:
    coins = KEYS[name].stream(Purpose.QUANTIZE)
    codes = np.empty(SIZE, dtype)
    numpy_codes = np.empty(SIZE, dtype)
    copy = np.empty_like(values)
    yield Case(
        f"quantize to {np.dtype(dtype)}, {name}",
        lambda: kernels.quantize(values, STEP, coins, out=codes),
        peers={
            "numpy": lambda: numpy_quantize(numpy_codes),
            "plain numpy": lambda: plain_numpy_quantize(dtype),
        },
        limits={"copy": lambda: np.copyto(copy, values)},
        goals={"numpy": 6.0} if name == "aes" and dtype is not np.int32 else {},
        values=SIZE,
    )


def packing() -> Iterator[Case]:
    coins = KEYS["aes"].stream(Purpose.QUANTIZE)
    codes = np.clip(kernels.quantize(values, 8.0, coins, dtype=np.int8), -15, 15)
    packed = kernels.pack(codes, 5)
    limits = {"copy": lambda: codes.copy()}
    yield Case(
        "pack into 5 bits",
        lambda: kernels.pack(codes, 5),
        peers={"numpy": lambda: numpy_pack(codes)},
        limits=limits,
        values=SIZE,
    )
    yield Case("unpack", lambda: kernels.unpack(packed), limits=limits, values=SIZE)


def cases() -> Iterator[Case]:
    for name in KEYS:
        for dtype in (np.int8, np.int16, np.int32):
            yield from quantization(name, dtype)
    yield from packing()
