"""Laplacian smoothing in place against scipy's real FFT."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.fft

from benches.measure import THREADS, Case, Way
from dpmesh import kernels

SHAPES = [
    (1, 4_096),
    (1, 7_680),  # 2^9 * 3 * 5, which also suits an FFT
    (1, 7_850),
    (1, 8_192),
    (1, 100_000),
    (1, 100_003),  # a prime
    (1, 3_400_000),
    (1, 20_000_000),
    (1_000, 10),
    (64, 650),
    (64, 7_850),
]
SMOOTHINGS = [0.5, 10.0, 100.0, 1e4, 1e8]
FROM_MEMORY = 10_000_000


def array(rows: int, dim: int, dtype: type) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, dim)).astype(dtype)


def by_fft(x: np.ndarray) -> Way:
    dim = x.shape[-1]
    damping = kernels.smoothing_spectrum(dim, 1.0)[: dim // 2 + 1].astype(x.dtype)

    def solve() -> object:
        spectrum = scipy.fft.rfft(x, workers=THREADS)
        spectrum *= damping
        return scipy.fft.irfft(spectrum, dim, workers=THREADS, overwrite_x=True)

    return solve


def against_fft(rows: int, dim: int, dtype: type) -> Case:
    x, copy = array(rows, dim, dtype), array(rows, dim, dtype)
    goals = {}
    if dim >= 4096 and THREADS == 1:
        goals["scipy"] = 50.0 if dtype is np.float32 else 35.0
    if x.size >= FROM_MEMORY:
        goals["scale"] = 0.65 if THREADS == 1 else 0.8
    return Case(
        f"smooth {dtype.__name__} {rows} x {dim}",
        lambda: kernels.smooth(x, 1.0, out=x),
        peers={"scipy": by_fft(copy)},
        limits={"scale": lambda: np.multiply(x, dtype(1), out=x)},
        goals=goals,
        values=x.size,
    )


def by_smoothing(smoothing: float, dtype: type) -> Case:
    x = array(1, 100_000, dtype)
    return Case(
        f"smooth {dtype.__name__} 1 x 100000, smoothing {smoothing:g}",
        lambda: kernels.smooth(x, smoothing, out=x),
        peers={"smoothing 1": lambda: kernels.smooth(x, 1.0, out=x)},
        values=x.size,
    )


def cases() -> Iterator[Case]:
    for shape in SHAPES:
        for dtype in (np.float32, np.float64):
            yield against_fft(*shape, dtype)
    for smoothing in SMOOTHINGS:
        for dtype in (np.float32, np.float64):
            yield by_smoothing(smoothing, dtype)
