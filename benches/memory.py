"""Memory that whole runs add at their peak, ours and NumPy's: ``python -m benches.memory``.

Each way runs twice in a process of its own, with data and libraries loaded before. The first run
also adds the pages of code that are used for the first time: what counts is the peak of the second
above the memory in use before it, in tenths of a MiB, the system's resolution. Needs Linux.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benches.measure import Way

RUNS = {
    "federated, direct": ("federated", 0),
    "federated, span": ("federated", 1),
    "gossip": ("gossip", 0),
    "online, d = 10": ("online", 1),
    "online, d = 47,236": ("online", 2),
}


def both_runs(bench: str, place: int, way: str) -> tuple[float, float]:
    """Run one way of one case twice; return the memory that each run added at its peak, in MiB."""
    case = next(islice(importlib.import_module(f"benches.bench_{bench}").cases(), place, None))
    run = case.ours if way == "ours" else case.peers[way]
    return added(run), added(run)


def added(run: Way) -> float:
    """Return the memory that a run adds at its peak to the memory in use, in MiB."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory freed while the data were loaded
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is resident now
    run()
    return round(resident("VmHWM") - before, 1)


def resident(what: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) / 1024


def main() -> None:
    """Print a line for each run."""
    for name, (bench, place) in RUNS.items():
        most, first = {}, {}
        for way in ("ours", "numpy"):
            command = [sys.executable, "-m", "benches.memory", bench, str(place), way]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            first[way], most[way] = map(float, done.stdout.split()[-2:])
        cells = [f"{way} {most[way]:.1f} MiB (first run {first[way]:.1f})" for way in most]
        cells += ["MISSED"] if most["ours"] > most["numpy"] else []
        print(f"{name:>20}  {'  '.join(cells)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(*both_runs(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
    else:
        main()
