"""Figure 4c of the quantized paper: the budget over the length of a run."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpmesh.privacy import accounting
from dpmesh.privacy.accounting.papers.quantized import sensitivities, theorem_1
from dpmesh.reproduce._output import Output
from dpmesh.reproduce.bounds.quantized import Powers
from dpmesh.reproduce.quantized import CHOSEN, DELTA
from dpmesh.reproduce.quantized_comparison import RECORDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpmesh.privacy.accounting.papers.quantized import Mode

HORIZONS = (30, 100, 300, 1000, 3000, 10_000, 30_000)
"""K: rounds in which messages carry noise."""

GROWING = Powers(0.9, 0.7, 0.85, 0.05)
CONSTANT = Powers(0.9, 0.7, 0.0, 0.05, sample_size_scale=50.0)
STEADY = Powers(0.0, 0.0, 0.0, 0.05, 0.02, 0.05, 50.0)

RUNS: dict[str, tuple[Powers, Mode]] = {
    "growing samples": (GROWING, "paper"),
    "growing samples, nonconvex": (GROWING, "safe"),
    "constant samples": (CONSTANT, "paper"),
    "constant samples and steps": (STEADY, "paper"),
}


@dataclass(frozen=True)
class Point:
    """The budget of one run.

    Parameters
    ----------
    run
        Which schedules, and whether losses may be nonconvex.
    horizon
        K.
    sample_size
        gamma_K.
    paper
        Epsilon of Theorem 1; infinite where an iteration's is 1 or more, when it proves nothing.
    exact
        Epsilon of the same sensitivities by exact Gaussian accounting.
    """

    run: str
    horizon: int
    sample_size: int
    paper: float
    exact: float


def figure4c(folder: Path) -> list[Path]:
    """Compute the budget of runs of growing length, with growing and with constant samples."""
    points = [
        _budget(name, powers, mode, horizon)
        for name, (powers, mode) in RUNS.items()
        for horizon in HORIZONS
    ]
    output = Output(folder, "quantized-figure4c")
    output.records(points)
    output.text(_text(points))
    output.figure(_draw(points))
    return output.files


def _budget(name: str, powers: Powers, mode: Mode, horizon: int) -> Point:
    step, consensus, sample, noise = powers.schedules(horizon + 1)
    deltas = sensitivities(
        horizon,
        step_size=step(1),
        consensus_step_size=consensus(1),
        gradient_bound=1.0,
        sample_size=sample(1),
        mode=mode,
        smoothness=1.0,
    )
    stds = np.array([noise(k + 1) for k in range(1, horizon + 1)])
    try:
        paper = theorem_1(target_delta=DELTA, sensitivities=deltas, noise_stds=stds).epsilon
    except ValueError:  # not proved
        paper = inf
    exact = accounting.gdp_epsilon(delta=DELTA, mu=accounting.gdp_mu(stds / deltas))
    return Point(name, horizon, sample(1), paper, exact)


def _text(points: list[Point]) -> str:
    changes, table = [], []
    for name in RUNS:
        own = [point for point in points if point.run == name]
        for how, accountant in (("paper", "Theorem 1"), ("exact", "exact")):
            epsilons = [getattr(point, how) for point in own]
            changes.append(f"  {name + ', ' + accountant:<40} {_change(epsilons[0], epsilons[-1])}")
            row = name if how == "paper" else ""
            table.append(f"{row:<30}" + "".join(f"{epsilon:>9.4g}" for epsilon in epsilons))
    longest = round((RECORDS + 1) ** (1 / GROWING.sample_size), -3)
    lines = [
        "Figure 4c: the budget over the length of a run.",
        "",
        CHOSEN,
        "",
        f"Chosen: alpha = {GROWING.step_size:g}, beta = {GROWING.consensus_step_size:g}, "
        f"gamma = {GROWING.sample_size:g}, zeta = {GROWING.noise:g}, C = 1, smoothness 1,",
        f"scales 1, delta = {DELTA:g}; or constant samples of {CONSTANT.sample_size_scale:g}; "
        f"or with them constant steps, alpha = {STEADY.step_size_scale:g}",
        f"and beta = {STEADY.consensus_step_size_scale:g}. The noise is the same in all of them. "
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
    if last == inf:
        return "is not proved"
    ratio = last / first
    how, factor = ("grows", ratio) if ratio > 1 else ("falls", 1 / ratio)
    return f"{how} by a factor of {factor:,.2f}"


def _draw(points: list[Point]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots(1, 2)
    for ax, how, title in zip(axes, ("paper", "exact"), ("Theorem 1", "exact"), strict=True):
        for name in RUNS:
            own = [point for point in points if point.run == name]
            heights = [getattr(point, how) for point in own]
            ax.loglog(HORIZONS, heights, marker="o", markersize=3, label=name)
        ax.set(title=title, xlabel="iterations of the run", ylabel="epsilon")
        ax.grid(alpha=0.3)
    axes[0].legend(frameon=False, fontsize="small")
    return figure
