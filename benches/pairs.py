"""Times of several ways to do one thing, taken in turn, so that a noisy machine is fair to all."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

ROUNDS = 9
SECONDS = 0.02  # of one sample, about


def threads_from_command_line() -> int:
    """The number of threads, first argument of the script; call this before importing dpmesh."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for library in ("RAYON", "OMP", "OPENBLAS"):
        os.environ[f"{library}_NUM_THREADS"] = str(count)
    print(f"{count} thread(s)")
    return count


def times(ways: dict[str, Callable[[], object]], threads: int = 1) -> dict[str, list[float]]:
    """Seconds of one call, by way and round: processor time on one thread, or else wall time."""
    clock = time.process_time if threads == 1 else time.perf_counter
    repeats = {}
    for name, call in ways.items():
        call()
        start = clock()
        call()
        repeats[name] = max(1, int(SECONDS / max(clock() - start, 1e-7)))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            start = clock()
            for _ in range(repeats[name]):
                call()
            seconds[name].append((clock() - start) / repeats[name])
    return seconds


def ratio(seconds: dict[str, list[float]], slow: str, fast: str) -> float:
    """How many times as long `slow` takes as `fast`: the median over rounds."""
    return statistics.median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))
