"""Laplacian smoothing against scipy's real FFT, beside the limit: scaling x in place.

Usage: ``python benches/bench_smoothing.py [threads]``
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from pairs import ratio, threads_from_command_line, times

THREADS = threads_from_command_line()

import numpy as np  # noqa: E402
import scipy.fft  # noqa: E402

from dpmesh import kernels  # noqa: E402

CASES = [
    (1, 4_096),
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
SMOOTHINGS = [0.5, 1.0, 10.0, 100.0, 1e4, 1e8]


def array(rows: int, dim: int, dtype: type) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, dim)).astype(dtype)


def by_fft(x: np.ndarray, smoothing: float) -> Callable[[], object]:
    dim = x.shape[-1]
    damping = kernels.smoothing_spectrum(dim, smoothing)[: dim // 2 + 1].astype(x.dtype)

    def solve() -> object:
        spectrum = scipy.fft.rfft(x, workers=THREADS)
        spectrum *= damping
        return scipy.fft.irfft(spectrum, dim, workers=THREADS, overwrite_x=True)

    return solve


print(f"{'rows':>6} {'dim':>9} {'type':>8} {'us':>9} {'ns/value':>9} {'scipy':>7} {'scale':>6}")
for rows, dim in CASES:
    for dtype in (np.float32, np.float64):
        x, one = array(rows, dim, dtype), dtype(1)
        ways = {
            "smooth": lambda x=x: kernels.smooth(x, 1.0, out=x),
            "scipy": by_fft(x.copy(), 1.0),
            "scale": lambda x=x, one=one: np.multiply(x, one, out=x),
        }
        seconds = times(ways, THREADS)
        median = statistics.median(seconds["smooth"])
        print(
            f"{rows:>6} {dim:>9} {dtype.__name__:>8} {median * 1e6:>9.1f}"
            f" {median / x.size * 1e9:>9.3f} {ratio(seconds, 'scipy', 'smooth'):>6.1f}x"
            f" {ratio(seconds, 'scale', 'smooth'):>6.0%}"
        )

print(f"\n100,000 values: time by smoothing, in that of smoothing 1\n{'type':>8}", end="")
print("".join(f" {smoothing:>7g}" for smoothing in SMOOTHINGS))
for dtype in (np.float32, np.float64):
    x = array(1, 100_000, dtype)
    ways = {str(s): lambda x=x, s=s: kernels.smooth(x, s, out=x) for s in SMOOTHINGS}
    seconds = times(ways, THREADS)
    ratios = "".join(f" {ratio(seconds, str(s), '1.0'):>7.2f}" for s in SMOOTHINGS)
    print(f"{dtype.__name__:>8}{ratios}")
