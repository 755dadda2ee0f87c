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

SIZE, STEP = 10_000_000, 0.5
KEYS = {name: Key.seeded(1, name) for name in ("aes", "chacha20")}
GENERATOR = np.random.Generator(np.random.SFC64(1))

x = (8 * np.random.default_rng(0).standard_normal(SIZE)).astype(np.float32)
copy, t, floor, coin = (np.empty_like(x) for _ in range(4))
up = np.empty(SIZE, bool)


def numpy_quantize(values: np.ndarray, codes: np.ndarray) -> None:
    np.multiply(values, np.float32(1 / STEP), out=t)
    np.floor(t, out=floor)
    np.subtract(t, floor, out=t)
    GENERATOR.random(out=coin, dtype=np.float32)
    np.less(coin, t, out=up)
    np.add(floor, up, out=floor)
    np.copyto(codes, floor, casting="unsafe")


def plain_numpy_quantize(dtype: type) -> np.ndarray:
    t = x / np.float32(STEP)
    floor = np.floor(t)
    return (floor + (GENERATOR.random(SIZE, dtype=np.float32) < t - floor)).astype(dtype)


def numpy_pack(codes: np.ndarray) -> np.ndarray:
    symbols = ((codes << 1) ^ (codes >> 7)).view(np.uint8)
    return np.packbits(np.unpackbits(symbols[:, None], axis=1, count=5, bitorder="little"))


def quantization(name: str, dtype: type) -> Iterator[Case]:
    coins = KEYS[name].stream(Purpose.QUANTIZE)
    codes, numpy_codes = np.empty(SIZE, dtype), np.empty(SIZE, dtype)
    yield Case(
        f"quantize to {np.dtype(dtype)}, {name}",
        lambda: kernels.quantize(x, STEP, coins, out=codes),
        peers={
            "numpy": lambda: numpy_quantize(x, numpy_codes),
            "plain numpy": lambda: plain_numpy_quantize(dtype),
        },
        limits={"copy": lambda: np.copyto(copy, x)},
        goals={"numpy": 6.0} if name == "aes" and dtype is not np.int32 else {},
        values=SIZE,
    )


def packing() -> Iterator[Case]:
    coins = KEYS["aes"].stream(Purpose.QUANTIZE)
    codes = np.clip(kernels.quantize(x, 8.0, coins, dtype=np.int8), -15, 15)
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
