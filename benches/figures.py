"""Figures of the recorded measurements, for docs/speed.md: ``python -m benches.figures``.

They show `reference.jsonl`, which `python -m benches --record` writes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from dpmesh.plots import COLOURS

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
KINDS = ("online", "gossip", "federated")
GROWING = ("rounds", "nodes", "dimension")
NAMES = {
    "clipped_sums": "clipped sums",
    "cnn": "federated, convolutional network",
    "discrete": "noise on the integers",
    "qnet": "deep-Q step",
    "quantize": "quantization",
    "without_replacement": "without replacement",
}
PLACES = {"rounds": 0, "nodes": 1, "dimension": 2}  # in "rounds x nodes x dimension"


Line: TypeAlias = dict[str, Any]
"""A recorded case, as `benches.measure.measure` returns it, with its benchmark."""


def measurements() -> list[Line]:
    """Return all recorded cases, without the lines about the machine."""
    lines = map(json.loads, (HERE / "reference.jsonl").read_text().splitlines())
    return [line for line in lines if "case" in line]


def ratios(cases: list[Line], path: Path) -> None:
    """Draw a row for each benchmark and peer, with a mark for each case."""
    times_as_fast: dict[tuple[str, str], Ratios] = defaultdict(Ratios)
    for case in cases:
        for peer, ratio in case["times_as_fast"].items():
            if peer.startswith("smoothing"):  # ours with another factor
                continue
            row_ratios = times_as_fast[case["bench"], peer]
            row_ratios.add(ratio, threads=case["threads"])
            if peer in case["goals"]:
                row_ratios.goals.add(case["goals"][peer])
    rows = sorted(times_as_fast, key=lambda row: times_as_fast[row].median)
    figure, ax = plt.subplots(figsize=(7, 0.26 * len(rows) + 1), layout="constrained")
    for y, row in enumerate(rows):
        row_ratios = times_as_fast[row]
        marks(ax, row_ratios.one_thread, y + 0.14, COLOURS[0], "one thread" if y == 0 else None)
        marks(ax, row_ratios.all_cores, y - 0.14, COLOURS[1], "all cores" if y == 0 else None)
        ax.plot(sorted(row_ratios.goals), [y] * len(row_ratios.goals), "k|", markersize=9)
    ax.axvline(1, color="0.5", linewidth=0.8)
    ax.set_xscale("log")
    names = [f"{NAMES.get(bench, bench)} / {peer}" for bench, peer in rows]
    ax.set_yticks(range(len(rows)), names, fontsize="small")
    ax.set_xlabel("times as fast as the peer; | a goal")
    ax.grid(axis="x", alpha=0.3)
    ax.legend(loc="lower right", frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)


@dataclass
class Ratios:
    """Ratios to one peer in all cases of a benchmark, and their goals."""

    one_thread: list[float] = field(default_factory=list)
    all_cores: list[float] = field(default_factory=list)
    goals: set[float] = field(default_factory=set)

    def add(self, ratio: float, *, threads: int) -> None:
        """Add the ratio of one case."""
        if threads > 1:
            self.all_cores.append(ratio)
        else:
            self.one_thread.append(ratio)

    @property
    def median(self) -> float:
        """Median over all cases."""
        return float(np.median(self.one_thread + self.all_cores))


def marks(ax: Axes, ratios: list[float], height: float, colour: str, label: str | None) -> None:
    """Draw a mark for each ratio."""
    heights = np.full(len(ratios), height)
    ax.plot(ratios, heights, "o", color=colour, markersize=3.5, alpha=0.7, label=label)


def growth(cases: list[Line], path: Path) -> None:
    """Draw time and memory of whole runs, with the slope between the two largest."""
    figure, axes = plt.subplots(2, 3, figsize=(9, 5.5), layout="constrained")
    most_threads = max(case["threads"] for case in cases)
    for column, quantity in enumerate(GROWING):
        for row, (measured, unit) in enumerate((("seconds", "seconds"), ("mib", "MiB added"))):
            ax = axes[row, column]
            for kind, colour in zip(KINDS, COLOURS, strict=False):
                name = f"{kind}, {quantity}: "
                x, y = curve(cases, name, PLACES[quantity], 1, measured)
                slope = np.log(y[-1] / y[-2]) / np.log(x[-1] / x[-2])
                label = f"{kind}, slope {slope:.2f}"
                ax.loglog(x, y, "o-", color=colour, markersize=4, linewidth=1.2, label=label)
                if most_threads > 1:
                    x, y = curve(cases, name, PLACES[quantity], most_threads, measured)
                    ax.loglog(x, y, "x:", color=colour, markersize=4, linewidth=1.2)
            ax.set_xlabel(quantity)
            ax.set_ylabel(unit if column == 0 else "")
            ax.grid(alpha=0.3)
            ax.legend(frameon=False, fontsize="x-small")
    figure.savefig(path, dpi=150)


def curve(
    cases: list[Line], name: str, place: int, threads: int, measured: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return one curve: the growing size, and the seconds or MiB."""
    same_threads = [case for case in cases if case["threads"] == threads]
    on_curve = [case for case in same_threads if case["case"].startswith(name)]
    shapes = [case["case"].removeprefix(name).split(" x ") for case in on_curve]
    sizes = np.array([int(shape[place]) for shape in shapes])
    resolution = 0.1 if measured == "mib" else 0.0  # of the system
    return sizes, np.maximum([case[measured] for case in on_curve], resolution)


def main() -> None:
    """Draw both."""
    cases = measurements()
    ratios(cases, IMAGES / "speed.png")
    growth([case for case in cases if case["bench"] == "growth"], IMAGES / "growth.png")


if __name__ == "__main__":
    main()
