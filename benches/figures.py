"""Figures of the recorded measurements, for docs/speed.md: ``python -m benches.figures``.

They show `reference.jsonl`, which `python -m benches --record` writes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from dpmesh.plots import COLOURS

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
KINDS = ("online", "gossip", "federated")
GROWING = ("rounds", "nodes", "dimension")
NAMES = {
    "cnn": "federated, convolutional network",
    "discrete": "noise on the integers",
    "qnet": "deep-Q step",
    "quantize": "quantization",
    "without_replacement": "without replacement",
}
PLACES = {"rounds": 0, "nodes": 1, "dimension": 2}  # in "rounds x nodes x dimension"


def measurements() -> list[dict[str, Any]]:
    """Return all recorded cases, without the lines about the machine."""
    lines = map(json.loads, (HERE / "reference.jsonl").read_text().splitlines())
    return [line for line in lines if "case" in line]


def ratios(cases: list[dict[str, Any]], path: Path) -> None:
    """Draw a row for each benchmark and peer, with a mark for each case."""
    found: Any = defaultdict(lambda: defaultdict(list))
    goals: dict[tuple[str, str], set[float]] = defaultdict(set)
    for case in cases:
        for peer, times in case["times_as_fast"].items():
            if peer.startswith("smoothing"):  # ours with another factor
                continue
            found[case["bench"], peer][case["threads"] > 1].append(times)
            if peer in case["goals"]:
                goals[case["bench"], peer].add(case["goals"][peer])
    rows = sorted(
        found, key=lambda row: np.median([t for times in found[row].values() for t in times])
    )
    figure, ax = plt.subplots(figsize=(7, 0.26 * len(rows) + 1), layout="constrained")
    for y, row in enumerate(rows):
        for several, shift in ((False, 0.14), (True, -0.14)):
            times = found[row][several]
            ax.plot(
                times,
                np.full(len(times), y + shift),
                "o",
                color=COLOURS[int(several)],
                markersize=3.5,
                alpha=0.7,
                label=("one thread", "all cores")[several] if y == 0 else None,
            )
        ax.plot(sorted(goals[row]), [y] * len(goals[row]), "k|", markersize=9)
    ax.axvline(1, color="0.5", linewidth=0.8)
    ax.set_xscale("log")
    ax.set_yticks(
        range(len(rows)),
        [f"{NAMES.get(bench, bench)} / {peer}" for bench, peer in rows],
        fontsize="small",
    )
    ax.set_xlabel("times as fast as the peer; | a goal")
    ax.grid(axis="x", alpha=0.3)
    ax.legend(loc="lower right", frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)


def growth(cases: list[dict[str, Any]], path: Path) -> None:
    """Draw time and memory of whole runs, with the slope between the two largest."""
    figure, axes = plt.subplots(2, 3, figsize=(9, 5.5), layout="constrained")
    for column, what in enumerate(GROWING):
        for row, (field, unit) in enumerate((("seconds", "seconds"), ("mib", "MiB added"))):
            ax = axes[row, column]
            for kind, colour in zip(KINDS, COLOURS, strict=False):
                for threads in (1, max(case["threads"] for case in cases)):
                    x, y = sizes(cases, f"{kind}, {what}: ", PLACES[what], threads, field)
                    steep = np.log(y[-1] / y[-2]) / np.log(x[-1] / x[-2])
                    style = "o-" if threads == 1 else "x:"
                    label = f"{kind}, slope {steep:.2f}" if threads == 1 else None
                    ax.loglog(x, y, style, color=colour, markersize=4, linewidth=1.2, label=label)
            ax.set_xlabel(what)
            ax.set_ylabel(unit if column == 0 else "")
            ax.grid(alpha=0.3)
            ax.legend(frameon=False, fontsize="x-small")
    figure.savefig(path, dpi=150)


def sizes(
    cases: list[dict[str, Any]], name: str, place: int, threads: int, field: str
) -> tuple[Any, Any]:
    """Return one curve: what grows, and what it costs."""
    some = [case for case in cases if case["case"].startswith(name) and case["threads"] == threads]
    shapes = [case["case"].removeprefix(name).split(" x ") for case in some]
    least = 0.1 if field == "mib" else 0.0  # the system's resolution
    cost = np.maximum([case[field] for case in some], least)
    return np.array([int(shape[place]) for shape in shapes]), cost


def main() -> None:
    """Draw both."""
    cases = measurements()
    ratios(cases, IMAGES / "speed.png")
    growth([case for case in cases if case["bench"] == "growth"], IMAGES / "growth.png")


if __name__ == "__main__":
    main()
