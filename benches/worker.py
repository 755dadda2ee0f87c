"""Peers in processes of their own that wait for rounds to run: their start is not measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from benches.measure import Way

Worker = subprocess.Popen[str]


def started(module: str, *arguments: object, **place: object) -> Worker:
    """Start `benches.module` with one thread, and with `place` in its environment.

    It runs as many rounds as each line of its standard input says, and then prints "done". It ends
    with this process, which closes its standard input.
    """
    environment = {"OMP_NUM_THREADS": 1, **place}
    return subprocess.Popen(
        [sys.executable, "-m", f"benches.{module}", *map(str, arguments)],
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def running(workers: Sequence[Worker], rounds: int) -> Way:
    """Return the way to run `rounds` rounds in all workers, at the same time."""

    def run() -> None:
        for worker in workers:
            worker.stdin.write(f"{rounds}\n")
            worker.stdin.flush()
        for worker in workers:
            if worker.stdout.readline() != "done\n":
                raise RuntimeError(f"a process failed: {worker.args}")

    return run
