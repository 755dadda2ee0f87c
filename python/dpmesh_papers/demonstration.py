"""The demo again and again: what the defaults reach, with intervals over splits and keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpmesh.demo import DELTA, EPSILONS, Panel, run_demo, split_accuracies
from dpmesh.keys import Key
from dpmesh.run.verdict import difference
from dpmesh_papers import _figure
from dpmesh_papers._figure import drawn, lines_of
from dpmesh_papers._scaffold import (
    Experiment,
    Progress,
    Row,
    grid,
    kinds,
    paragraph,
    pick,
    repeated,
    with_spread,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HELD_OUT = 0.25
"""Share of the records that a split of `dpmesh.demo` tests on."""
VERDICTS = {1: "ahead", 0: "inconclusive", -1: "behind"}
"""Verdicts by the sign of a difference."""
METHODS = ("secure sum", "gossip", "site alone, not private")


def demonstration(folder: Path, *, seeds: int = 2, progress: Progress = print) -> list[Path]:
    """Measure a secure sum and gossip at each epsilon, on five splits for each seed."""

    def measured(cell: Row) -> list[Row]:
        panels = run_demo(Key.seeded(cell["key"]), lambda panel: progress(panel.sentence))
        return [row for panel in panels for row in rows_of(panel)]

    experiment = Experiment(folder, "demo", progress)
    experiment.measure([{"key": seed} for seed in range(seeds)], measured)
    return experiment.write(as_text, draw)


def rows_of(panel: Panel) -> list[Row]:
    """Return a row for each method, epsilon and split."""
    by_method: tuple[list[Sequence[float]], ...] = (
        [split_accuracies(verdict).tolist() for verdict in panel.secure],
        [split_accuracies(verdict).tolist() for verdict in panel.gossip],
        [
            [float(split.single_sites.mean()) for split in verdict.baselines_by_split]
            for verdict in panel.secure
        ],
    )
    return [
        {"sites": panel.title, "method": method, "epsilon": epsilon, "accuracy": 100 * accuracy}
        for method, by_epsilon in zip(METHODS, by_method, strict=True)
        for epsilon, splits in zip(EPSILONS, by_epsilon, strict=True)
        for accuracy in splits
    ]


def means(rows: list[Row]) -> list[Row]:
    """Return the mean of each cell and half its 95% interval."""
    settings = ("sites", "method", "epsilon")
    values_of_cells = dict.fromkeys(tuple(row[name] for name in settings) for row in rows)
    cells = [dict(zip(settings, values, strict=True)) for values in values_of_cells]
    return [cell | repeated(accuracies(rows, **cell), held_out=HELD_OUT) for cell in cells]


def accuracies(rows: list[Row], **cell: object) -> list[float]:
    """Return the accuracies of a cell, split by split."""
    return [row["accuracy"] for row in pick(rows, **cell)]


def verdict_beside(rows: list[Row], method: str, rival: str, **cell: object) -> str:
    """Return the verdict on a method and its rival in a cell, by paired differences of splits."""
    ours = accuracies(rows, method=method, **cell)
    theirs = accuracies(rows, method=rival, **cell)
    differences = np.subtract(ours, theirs)
    return VERDICTS[difference(differences, held_out=HELD_OUT).sign]


def as_text(rows: list[Row]) -> str:
    """Return a table for each federation, with verdicts on pairs of methods."""
    cells = means(rows)
    text = (
        f"Accuracy (%) of released models on handwritten digits, delta {DELTA:g}, by the defaults; "
        f"mean of {cells[0]['seeds']} splits with keys of their own +- half of the 95% interval, "
        "which counts that splits overlap; verdicts by paired differences."
    )
    lines = [paragraph(text)]
    for sites in kinds(cells, "sites"):
        lines += ["", sites]
        lines += grid(
            pick(cells, sites=sites),
            row="method",
            column="epsilon",
            show=lambda row: with_spread(row["accuracy"], row["interval"], 1),
            head=lambda epsilon: f"epsilon {epsilon:g}",
        )
        for method, rival in combinations(METHODS, 2):
            verdicts = [
                verdict_beside(rows, method, rival, sites=sites, epsilon=epsilon)
                for epsilon in EPSILONS
            ]
            lines.append(f"{method}, beside {rival}: {', '.join(verdicts)}")
    return "\n".join(lines)


def draw(rows: list[Row]) -> Figure:
    """Draw accuracy over epsilon; needs the extra ``plots``."""
    cells = means(rows)
    panels = []
    for sites in kinds(cells, "sites"):
        cells_of_panel = pick(cells, sites=sites)
        lines = lines_of(cells_of_panel, by="method", x="epsilon", y="accuracy", spread="interval")
        y = "accuracy (%)"
        panels.append(_figure.Panel(title=sites, x="epsilon", y=y, log="x", lines=lines))
    return drawn(panels, columns=1)
