"""Figure 4c of the quantized paper: the budget over the length of a run."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from dpmesh_papers._figure import Panel, drawn, lines_of
from dpmesh_papers._scaffold import Experiment, Progress, Row, pick
from dpmesh_papers.bounds.quantized import Powers
from dpmesh_papers.quantized import CHOSEN, DELTA, budgets
from dpmesh_papers.quantized_comparison import RECORDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpmesh.accounting.papers.quantized import Mode

HORIZONS = (30, 100, 300, 1000, 3000, 10_000, 30_000)
"""K: rounds in which messages carry noise."""

GROWING = Powers(step_size=0.9, consensus_step_size=0.7, sample_size=0.85, noise=0.05)
CONSTANT_SAMPLES = replace(GROWING, sample_size=0.0, sample_size_scale=50.0)
CONSTANT = replace(
    CONSTANT_SAMPLES,
    step_size=0.0,
    consensus_step_size=0.0,
    step_size_scale=0.02,
    consensus_step_size_scale=0.05,
)
"""With constant samples and steps."""

RUNS: dict[str, tuple[Powers, Mode]] = {
    "growing samples": (GROWING, "paper"),
    "growing samples, nonconvex": (GROWING, "safe"),
    "constant samples": (CONSTANT_SAMPLES, "paper"),
    "constant samples and steps": (CONSTANT, "paper"),
}
"""Schedules, and the recursion of the sensitivities."""


def figure4c(folder: Path, *, progress: Progress = print) -> list[Path]:
    """Compute the budget of runs of growing length, with growing and with constant samples."""
    experiment = Experiment(folder, "quantized-figure4c", progress)
    experiment.measure(
        ({"run": name, "horizon": horizon} for name in RUNS for horizon in HORIZONS), budget
    )
    return experiment.write(as_text, draw)


def budget(cell: Row) -> Row:
    """Return a run's sample size gamma_K, and its epsilons by Theorem 1 and by exact accounting."""
    powers, mode = RUNS[cell["run"]]
    horizon = cell["horizon"]
    paper, exact = budgets(powers, horizon, mode)
    sample_size = powers.schedules(horizon + 1).sample_size(1)
    return {"sample_size": sample_size, "paper": paper, "exact": exact}


def as_text(rows: list[Row]) -> str:
    """Return how the budget changes with the length, and all of it."""
    changes = []
    table = []
    for name in RUNS:
        rows_of_run = pick(rows, run=name)
        for column, accountant in (("paper", "Theorem 1"), ("exact", "exact")):
            epsilons = [row[column] for row in rows_of_run]
            changes.append(f"  {name + ', ' + accountant:<40} {_change(epsilons[0], epsilons[-1])}")
            label = ""
            if column == "paper":
                label = name
            table.append(f"{label:<30}" + "".join(f"{epsilon:>9.4g}" for epsilon in epsilons))
    longest = round((RECORDS + 1) ** (1 / GROWING.sample_size), -3)
    lines = [
        "Figure 4c: the budget over the length of a run.",
        "",
        CHOSEN,
        "",
        f"Chosen: alpha = {GROWING.step_size:g}, beta = {GROWING.consensus_step_size:g}, "
        f"gamma = {GROWING.sample_size:g}, zeta = {GROWING.noise:g}, C = 1, smoothness 1,",
        f"scales 1, delta = {DELTA:g}; or constant samples of "
        f"{CONSTANT_SAMPLES.sample_size_scale:g}; "
        f"or with them constant steps, alpha = {CONSTANT.step_size_scale:g}",
        f"and beta = {CONSTANT.consensus_step_size_scale:g}. The noise is the same in all of them. "
        "Steps and samples follow from the",
        "length K + 1 of the run that they are made for: each column is a run of its own, not the",
        "beginning of the next. In the table a run's first line is Theorem 1, the second exact.",
        "",
        "The paper: the budget of its algorithm stays finite as iterations go to infinity, that of",
        "others does not. Here, from the first column to the last, the budget of",
        *changes,
        f"No run is infinite: samples grow, and with the paper's {RECORDS:,} records of each node",
        f"none can be longer than about {longest:,.0f} rounds. That the budget stays finite is a",
        "claim on ever larger data.",
        "",
        f"{'K':<30}" + "".join(f"{horizon:>9,}" for horizon in HORIZONS),
        *table,
    ]
    return "\n".join(lines)


def _change(first: float, last: float) -> str:
    """Return the change from one epsilon to another in words."""
    if last == inf:
        return "is not proved"
    ratio = last / first
    if ratio > 1:
        return f"grows by a factor of {ratio:,.2f}"
    return f"falls by a factor of {1 / ratio:,.2f}"


def draw(rows: list[Row]) -> Figure:
    """Draw both epsilons over the length of a run; needs the extra ``plots``."""
    panels = []
    for column, title in (("paper", "Theorem 1"), ("exact", "exact")):
        lines = lines_of(rows, by="run", x="horizon", y=column)
        x = "iterations of the run"
        y = "epsilon"
        panels.append(Panel(title=title, x=x, y=y, log="xy", lines=lines))
    return drawn(panels)
