"""Noise added in place, against numpy's fastest generator (SFC64, insecure), which only draws it.

Beside it the limit: scaling the same array in place.

Usage: ``python benches/bench_noise.py [threads]``
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from pairs import ratio, threads_from_command_line, times

THREADS = threads_from_command_line()

import numpy as np  # noqa: E402

from dpmesh import kernels  # noqa: E402
from dpmesh.keys import Key  # noqa: E402

SHAPES = [(64, 10), (16, 600), (1, 8192), (1, 1_000_000)]
numpy_generator = np.random.Generator(np.random.SFC64(1))


def numpy_draw(law: str, x: np.ndarray) -> Callable[[], object]:
    """The draw alone. numpy has no Laplace in float32: there it is the float64 one."""
    if law == "laplace":
        return lambda: numpy_generator.laplace(size=x.shape)
    return lambda: numpy_generator.standard_normal(dtype=x.dtype, out=x)


def ways(law: str, dtype: type, shape: tuple[int, int]) -> dict[str, Callable[[], object]]:
    """Noise from each cipher added in place, numpy's draw, and the limit."""
    add = getattr(kernels, f"add_{law}")
    x, drawn, scaled = np.zeros((3, *shape), dtype=dtype)
    aes, chacha20 = (Key.generate(cipher).stream(1) for cipher in ("aes", "chacha20"))
    return {
        "aes": lambda: add(x, 1.5, aes, out=x),
        "chacha20": lambda: add(x, 1.5, chacha20, out=x),
        "numpy": numpy_draw(law, drawn),
        "scale": lambda: np.multiply(scaled, dtype(1), out=scaled),
    }


print("ns each, and how many times as long numpy takes; the limit's share of AES's time")
print(f"{'':>36} {'aes':>6} {'chacha20':>15} {'limit':>11}")
for law in ("gaussian", "laplace"):
    for dtype in (np.float32, np.float64):
        for shape in SHAPES:
            seconds = times(ways(law, dtype, shape), THREADS)
            cells = [f"{law:>8} {dtype.__name__} {shape!s:>13}"]
            for cipher in ("aes", "chacha20"):
                each = statistics.median(seconds[cipher]) / (shape[0] * shape[1]) * 1e9
                cells.append(f"{each:>6.2f} {ratio(seconds, 'numpy', cipher):>5.1f}x")
            print("  ".join(cells), f"{ratio(seconds, 'scale', 'aes'):>7.0%}")
