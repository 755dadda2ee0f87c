"""Quantization of float32 against numpy, alone and after Gaussian noise, beside a copy of x.

``numpy`` is its fastest way on this machine: buffers given, random bits of the fastest insecure
generator; ``plain numpy`` is what one would write. Packing into 5 bits is against ``packbits``.

Usage: ``python benches/bench_quantize.py [threads]``
"""

from __future__ import annotations

import statistics

from pairs import ratio, threads_from_command_line, times

THREADS = threads_from_command_line()

import numpy as np  # noqa: E402

from dpmesh import kernels  # noqa: E402
from dpmesh.keys import Key, Purpose  # noqa: E402

SIZE, STEP, SCALE = 10_000_000, 0.5, 1.3
KEYS = {name: Key.seeded(1, name) for name in ("aes", "chacha20")}
GENERATOR = np.random.Generator(np.random.SFC64(1))

x = (8 * np.random.default_rng(0).standard_normal(SIZE)).astype(np.float32)
copy, noisy, t, floor, coin = (np.empty_like(x) for _ in range(5))
up = np.empty(SIZE, bool)


def numpy_quantize(values: np.ndarray, codes: np.ndarray) -> None:
    np.multiply(values, np.float32(1 / STEP), out=t)
    np.floor(t, out=floor)
    np.subtract(t, floor, out=t)
    GENERATOR.random(out=coin, dtype=np.float32)
    np.less(coin, t, out=up)
    np.add(floor, up, out=floor)
    np.copyto(codes, floor, casting="unsafe")


def numpy_quantize_noisy(codes: np.ndarray) -> None:
    GENERATOR.standard_normal(out=noisy, dtype=np.float32)
    np.multiply(noisy, np.float32(SCALE), out=noisy)
    np.add(x, noisy, out=noisy)
    numpy_quantize(noisy, codes)


def plain_numpy_quantize(dtype: type) -> np.ndarray:
    t = x / np.float32(STEP)
    floor = np.floor(t)
    return (floor + (GENERATOR.random(SIZE, dtype=np.float32) < t - floor)).astype(dtype)


def numpy_pack(codes: np.ndarray) -> np.ndarray:
    symbols = ((codes << 1) ^ (codes >> 7)).view(np.uint8)
    return np.packbits(np.unpackbits(symbols[:, None], axis=1, count=5, bitorder="little"))


def report(what: str, seconds: dict[str, list[float]]) -> None:
    fastest = next(iter(seconds))
    ns = statistics.median(seconds[fastest]) / SIZE * 1e9
    others = (f"{name} {ratio(seconds, name, fastest):.1f}x" for name in seconds if name != fastest)
    print(f"{what:>24}: {ns:5.2f} ns; " + ", ".join(others))


def compare(name: str, key: Key, dtype: type) -> None:
    noise, coins = key.stream(Purpose.NOISE), key.stream(Purpose.QUANTIZE)
    codes, other = np.empty(SIZE, dtype), np.empty(SIZE, dtype)
    ways = {
        "ours": lambda: kernels.quantize(x, STEP, coins, out=codes),
        "numpy": lambda: numpy_quantize(x, other),
        "plain numpy": lambda: plain_numpy_quantize(dtype),
        "copy": lambda: np.copyto(copy, x),
    }
    report(f"{name} to {np.dtype(dtype)}", times(ways, THREADS))
    ways = {
        "ours": lambda: kernels.quantize_noisy(x, SCALE, STEP, noise, coins, out=codes),
        "numpy": lambda: numpy_quantize_noisy(other),
    }
    report(f"{name} noise to {np.dtype(dtype)}", times(ways, THREADS))


for name, key in KEYS.items():
    for dtype in (np.int8, np.int16, np.int32):
        compare(name, key, dtype)

coins = KEYS["aes"].stream(Purpose.QUANTIZE)
codes = np.clip(kernels.quantize(x, 8.0, coins, dtype=np.int8), -15, 15)
packed = kernels.pack(codes, 5)
ways = {"ours": lambda: kernels.pack(codes, 5), "numpy": lambda: numpy_pack(codes)}
report("pack into 5 bits", times(ways, THREADS))
report("unpack", times({"ours": lambda: kernels.unpack(packed)}, THREADS))
