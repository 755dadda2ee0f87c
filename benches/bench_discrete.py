"""Noise on the integers, against numpy's geometric draws (insecure) and a sampler in plain Python.

numpy has the discrete Laplace law as a difference of two geometric variables, and no discrete
Gaussian one. The plain Python is the rejection of Canonne, Kamath and Steinke with `random`'s
floats: not exact, but as short as it can be.

Usage: ``python benches/bench_discrete.py [threads]``
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

from pairs import ratio, threads_from_command_line, times

THREADS = threads_from_command_line()

import numpy as np  # noqa: E402

from dpmesh import kernels  # noqa: E402
from dpmesh.keys import Key  # noqa: E402

SHAPES = [(64, 10), (16, 600), (1, 1_000_000)]
PLAIN = 200
numpy_generator = np.random.Generator(np.random.SFC64(1))


def plain_laplace(scale: float) -> int:
    success = -math.expm1(-1 / scale)
    return int(math.log(random.random()) / math.log1p(-success)) - int(
        math.log(random.random()) / math.log1p(-success)
    )


def plain_gaussian(scale: float) -> int:
    while True:
        candidate = plain_laplace(scale)
        if random.random() < math.exp(-((abs(candidate) - scale) ** 2) / (2 * scale**2)):
            return candidate


PLAIN_LAWS = {"laplace": plain_laplace, "gaussian": plain_gaussian}


def numpy_laplace(scale: float, shape: tuple[int, int]) -> np.ndarray:
    success = -math.expm1(-1 / scale)
    return numpy_generator.geometric(success, shape) - numpy_generator.geometric(success, shape)


def ways(law: str, scale: float, shape: tuple[int, int]) -> dict[str, Callable[[], object]]:
    """Noise from each cipher, `PLAIN` samples in plain Python, and numpy's where it has the law."""
    draw, plain = getattr(kernels, f"discrete_{law}"), PLAIN_LAWS[law]
    out = np.empty(shape, dtype=np.int64)
    aes, chacha20 = (Key.generate(cipher).stream(1) for cipher in ("aes", "chacha20"))
    found: dict[str, Callable[[], object]] = {
        "aes": lambda: draw(shape, scale, aes, out=out),
        "chacha20": lambda: draw(shape, scale, chacha20, out=out),
        "plain": lambda: [plain(scale) for _ in range(PLAIN)],
    }
    if law == "laplace":
        found["numpy"] = lambda: numpy_laplace(scale, shape)
    return found


print("ns each; how many times as long numpy and plain Python take")
for law in PLAIN_LAWS:
    for scale in (1.5, 100.0, 1e5):
        for shape in SHAPES:
            seconds, size = times(ways(law, scale, shape), THREADS), shape[0] * shape[1]
            cells = [f"{law:>8} {scale:>8g} {shape!s:>13}"]
            for cipher in ("aes", "chacha20"):
                each = statistics.median(seconds[cipher]) / size * 1e9
                cells.append(f"{cipher} {each:>6.2f}")
            cells.append(f"plain {ratio(seconds, 'plain', 'aes') * size / PLAIN:>4.0f}x")
            if "numpy" in seconds:
                cells.append(f"numpy {ratio(seconds, 'numpy', 'aes'):>5.1f}x")
            print("  ".join(cells))
