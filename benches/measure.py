"""Times of several ways to do one thing, taken in turn, so that noise affects all alike."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benches.memory import added

Way = Callable[[], object]

SECONDS = 0.02  # approximate length of one sample
REST = 0.1  # seconds before a sample: some libraries' threads keep spinning after their work
THREADS = int(os.environ.get("DPMESH_NUM_THREADS", "1"))


@dataclass(frozen=True)
class Case:
    """One benchmark: an operation, and ways to do it.

    Parameters
    ----------
    name
        The operation, with the shape and type of its data.
    ours
        This package's way.
    peers
        Other ways to do the same, by name.
    limits
        Ways to do the least that any program must do, such as copying the same bytes.
    goals
        The least speedup over a peer, or share of a limit, that we want.
    most
        The most seconds that a call should take.
    values
        Number of values of one call; 1 for a call as a whole.
    part
        Peers that do only this part of the work.
    rounds
        Samples of each way.
    memory
        If true, the memory that a call adds at its peak is measured, too. Needs Linux.
    """

    name: str
    ours: Way
    peers: Mapping[str, Way] = field(default_factory=dict)
    limits: Mapping[str, Way] = field(default_factory=dict)
    goals: Mapping[str, float] = field(default_factory=dict)
    values: int = 1
    part: Mapping[str, float] = field(default_factory=dict)
    most: float = math.inf
    rounds: int = 9
    memory: bool = False


def measure(case: Case) -> dict[str, Any]:
    """Return medians: of our seconds, and of the ratios of samples taken in the same round."""
    ways = {"ours": case.ours, **case.peers, **case.limits}
    seconds = _times(ways, case.rounds)

    def ratio(name: str) -> float:
        pairs = zip(seconds[name], seconds["ours"], strict=True)
        median = statistics.median(theirs / ours for theirs, ours in pairs)
        return median / case.part.get(name, 1.0)

    ratios = {name: ratio(name) for name in (*case.peers, *case.limits)}
    our_seconds = statistics.median(seconds["ours"])
    goals = dict(case.goals)
    missed = [name for name, goal in case.goals.items() if ratios.get(name, goal) < goal]
    if case.most < math.inf:
        goals["seconds"] = case.most
    if our_seconds > case.most:
        missed.append("seconds")
    result = {
        "case": case.name,
        "threads": THREADS,
        "seconds": float(f"{our_seconds:.4g}"),
        "values": case.values,
        "times_as_fast": {name: float(f"{ratios[name]:.3g}") for name in case.peers},
        "share_of_limit": {name: round(ratios[name], 3) for name in case.limits},
        "goals": goals,
        "missed": missed,
    }
    if case.memory:
        result["mib"] = added(case.ours)
    return result


def as_line(result: Mapping[str, Any]) -> str:
    """Return a measurement as a line of text."""
    seconds_per_value = result["seconds"] / result["values"]
    cells = [f"{result['case']:>44} {with_unit(seconds_per_value):>9}"]
    cells += [f"{name} {ratio:.3g}x" for name, ratio in result["times_as_fast"].items()]
    cells += [f"{share:.0%} of {name}" for name, share in result["share_of_limit"].items()]
    if "mib" in result:
        cells.append(f"{result['mib']} MiB")
    cells += [f"MISSED {name} {result['goals'][name]:g}" for name in result["missed"]]
    return "  ".join(cells)


def with_unit(seconds: float) -> str:
    """Return a time in its largest unit of at least 1."""
    fitting = [(unit, factor) for unit, factor in UNITS if seconds >= 1 / factor]
    unit, factor = (fitting or UNITS[-1:])[0]
    return f"{seconds * factor:.3g} {unit}"


UNITS = [("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)]


def _times(ways: Mapping[str, Way], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of one call, by way and round: processor time on one thread, else wall."""
    clock = time.perf_counter
    if THREADS == 1:
        clock = time.process_time
    repeats = {}
    for name, call in ways.items():
        call()
        start = clock()
        call()
        call_seconds = max(clock() - start, 1e-7)
        repeats[name] = max(1, int(SECONDS / call_seconds))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            time.sleep(REST)
            start = clock()
            for _ in range(repeats[name]):
                call()
            seconds[name].append((clock() - start) / repeats[name])
    return seconds


def skipped(package: str, source: str = "") -> bool:
    """Return True if a peer is not installed; then print that, and its source if not PyPI."""
    if importlib.util.find_spec(package):
        return False
    place = f" (see {source})" if source else ""
    print(f"{package} is not installed{place}: skipped", file=sys.stderr)
    return True


if __name__ == "__main__":
    results = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # some peers are talkative
        benchmark = importlib.import_module(f"benches.bench_{sys.argv[1]}")
        for case in benchmark.cases():
            print(json.dumps(measure(case)), file=results, flush=True)
