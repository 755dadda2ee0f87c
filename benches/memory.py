"""How much memory our whole runs add at their peak, beside NumPy's: ``python -m benches.memory``.

Each way runs once in a process of its own, with data and libraries loaded before: what counts is
the peak above that, with the pages of code that are used for the first time. Needs Linux.
"""

from __future__ import annotations

import ctypes
import importlib
import subprocess
import sys
from itertools import islice
from pathlib import Path

RUNS = {
    "federated, direct": ("federated", 0),
    "federated, span": ("federated", 1),
    "gossip": ("gossip", 0),
    "online, d = 10": ("online", 1),
    "online, d = 47,236": ("online", 2),
}


def added(bench: str, place: int, way: str) -> float:
    """Run one way of one case; return what it added at its peak, in MiB."""
    case = next(islice(importlib.import_module(f"benches.bench_{bench}").cases(), place, None))
    run = case.ours if way == "ours" else case.peers[way]
    ctypes.CDLL(None).malloc_trim(0)  # what came free while the data were loaded
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
    run()
    return resident("VmHWM") - before


def resident(what: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) / 1024


def main() -> None:
    """Print a line for each run."""
    for name, (bench, place) in RUNS.items():
        most = []
        for way in ("ours", "numpy"):
            command = [sys.executable, "-m", "benches.memory", bench, str(place), way]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            most.append(float(done.stdout.split()[-1]))
        ours, numpy = most
        missed = "" if ours <= numpy else "  MISSED"
        print(f"{name:>20}  ours {ours:.1f} MiB  numpy {numpy:.1f} MiB{missed}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(added(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
    else:
        main()
