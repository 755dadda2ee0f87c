"""Theorem 2 of the quantized paper, as reconstructed, beside the gap that runs measure.

The text of the paper that we have lacks its inequalities; those of `bounds.quantized` are our own.
Over the horizon K + 1, the noise, and the number of nodes: the bound on every node's F(x_i) - F*,
the worst node's gap after a run, and the gap of the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpmesh.algorithms.quantized import QuantizedGossip
from dpmesh.data import Dataset
from dpmesh.keys import Key, Purpose, generator
from dpmesh.noise.compression import Quantizer
from dpmesh.problems import LinearProblem, best_fixed_predictor
from dpmesh.run import simulate
from dpmesh.topology import complete
from dpmesh_papers._figure import Line, Panel, drawn
from dpmesh_papers._scaffold import Experiment, Progress, Row, interval, paragraph, pick
from dpmesh_papers.bounds.quantized import Powers, ProblemConstants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIM = 5
RECORDS = 5_000
"""Number of records of each node: no horizon here asks for larger samples."""
REGULARIZATION = 0.5
CLIPPING_NORM = 10.0
"""Above every gradient of these runs: the bound is proved for gradients that are not clipped."""
QUANTIZER_STEP = 0.01
DELTA = 1e-5
SEARCH_RADIUS = 100.0
"""Radius of the ball in which minimizers are searched; none comes near it."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run: every axis of the figure varies one of these numbers.

    Parameters
    ----------
    rounds
        K + 1.
    noise_scale
        s of sigma_k = s (k + 1)^zeta.
    nodes
        n.
    """

    rounds: int = 1000
    noise_scale: float = 0.01
    nodes: int = 4

    @property
    def powers(self) -> Powers:
        """Schedules that converge with a finite budget, by `Powers.violations`."""
        return Powers(0.3, 0.2, 0.8, -0.2, step_size_scale=0.3, noise_scale=self.noise_scale)


AXES: dict[str, tuple[Any, ...]] = {
    "rounds": (100, 300, 1000, 3000),
    "noise_scale": (0.001, 0.01, 0.1, 1.0),
    "nodes": (2, 4, 8),
}
NAMES = {"rounds": "K + 1", "noise_scale": "noise s", "nodes": "n"}
SERIES = {"measured": "measured", "bound": "bound, proved", "start": "gap of the start"}


def bounds(
    folder: Path, *, seeds: int = 3, longest: int = 3000, progress: Progress = print
) -> list[Path]:
    """Measure the gap of quantized gossip on a strongly convex problem, beside its bound.

    Parameters
    ----------
    folder
        Folder for the files.
    seeds
        Runs of each setting.
    longest
        Longest K + 1; settings with more rounds are cut to it.
    progress
        Called with a line for each setting.
    """
    experiment = Experiment(folder, "bounds-quantized", progress)
    cells = [{"axis": axis, "value": value} for axis, values in AXES.items() for value in values]

    def measure(cell: Row) -> Row:
        setting = replace(Setting(), **{cell["axis"]: cell["value"]})
        return measured(replace(setting, rounds=min(setting.rounds, longest)), seeds)

    experiment.measure(cells, measure, in_words)
    return experiment.write(as_text, draw)


@cache
def records_of(nodes: int) -> LinearProblem:
    """Return regularized logistic regression on points of the unit ball with noisy labels."""
    draw = generator(Key.seeded(7), Purpose.SAMPLE)
    count = nodes * RECORDS
    features = draw.normal(size=(count, DIM))
    features /= np.maximum(1, np.linalg.norm(features, axis=1))[:, None]
    scores = features @ np.ones(DIM) + draw.normal(size=count)
    parts = tuple(np.arange(count).reshape(nodes, RECORDS))
    data = Dataset(features, np.where(scores > 0, 1, -1), "synthetic")
    return LinearProblem(data, parts, "logistic", regularization=REGULARIZATION, feature_norm=1.0)


def minimum_of(problem: LinearProblem, parts: Sequence[npt.NDArray[np.integer]]) -> float:
    """Return the smallest mean loss on the records of these parts."""
    records = np.concatenate(parts)
    minimum = best_fixed_predictor(problem, records, radius=SEARCH_RADIUS, tolerance=1e-10)
    return float(minimum.value)


@cache
def constants_of(nodes: int) -> ProblemConstants:
    """Return the problem's constants: F is the sum of the nodes' mean losses."""
    problem = records_of(nodes)
    smoothness = problem.model_constants().smoothness
    all_records = np.arange(nodes * RECORDS)[np.newaxis]
    start = float(problem.objective(np.zeros((1, DIM)), all_records)[0])
    lowest = minimum_of(problem, problem.partition)
    local_minima = sum(minimum_of(problem, (part,)) for part in problem.partition)
    return ProblemConstants(
        dim=DIM,
        smoothness=smoothness,
        polyak_lojasiewicz=nodes * REGULARIZATION,
        gradient_variance=1.0,  # a record's gradient is no longer than its features
        initial_gap=nodes * (start - lowest),
        mixing_matrix=complete(nodes).matrix(0),
        dissimilarity=nodes * lowest - local_minima,
        quantizer_step=QUANTIZER_STEP,
    )


def measured(setting: Setting, seeds: int) -> Row:
    """Return the worst node's gap, its bound, the start's gap, and the run's exact epsilon.

    `measured` is the largest F(x_i) - F* over the nodes, mean over the seeds, with half of its 95%
    `interval`; `samples` is gamma_K.
    """
    problem = records_of(setting.nodes)
    constants = constants_of(setting.nodes)
    schedules = setting.powers.schedules(setting.rounds)
    algorithm = QuantizedGossip(
        step_size=schedules.step_size,
        consensus_step_size=schedules.consensus_step_size,
        sample_size=schedules.sample_size,
        noise_std=schedules.noise_std,
        compressor=Quantizer(QUANTIZER_STEP),
        clipping_norm=CLIPPING_NORM,
        smoothness=constants.smoothness,
    )
    all_records = np.arange(setting.nodes * RECORDS)
    everywhere = np.broadcast_to(all_records, (setting.nodes, len(all_records)))
    lowest = minimum_of(problem, problem.partition)
    gaps = []
    for seed in range(seeds):
        run = simulate(
            algorithm,
            problem,
            complete(setting.nodes),
            rounds=setting.rounds,
            key=Key.seeded(seed),
            delta=DELTA,
            metrics=[],
        )
        losses = problem.objective(run.parameters, everywhere)
        gaps.append(setting.nodes * float(losses.max() - lowest))
    return {
        "rounds": setting.rounds,
        "measured": float(np.mean(gaps)),
        "interval": interval(gaps),
        "seeds": seeds,
        "bound": constants.gap(schedules, setting.rounds),
        "start": constants.initial_gap,
        "epsilon": algorithm.plan(setting.rounds, problem).cost(DELTA).epsilon,
        "samples": schedules.sample_size(1),
    }


def in_words(row: Row) -> str:
    """Return a setting's gap and bound as a line."""
    vacuous = ", vacuous" if row["bound"] > row["start"] else ""
    return (
        f"{NAMES[row['axis']]:>8} = {row['value']:<6g} gap {row['measured']:>8.2e}, "
        f"bound {row['bound']:>8.2e}, start {row['start']:.2e}, "
        f"epsilon {row['epsilon']:.3g}{vacuous}"
    )


def as_text(rows: list[Row]) -> str:
    """Return all gaps and bounds, and how many of the bounds hold and say something."""
    head = (
        "Theorem 2 of the quantized paper, as reconstructed (the text that we have lacks its "
        "inequalities), beside runs of Algorithm 1: gap F(x_i) - F* of the worst node, "
        f"regularized logistic regression in {DIM} dimensions, {RECORDS:,} synthetic records a "
        "node, a complete graph, a quantizer step of 0.01. Unless varied: K + 1 = 1,000, s = 0.01, "
        "n = 4. epsilon: "
        f"exact, replacing one record, delta {DELTA:g}, clipping norm {CLIPPING_NORM:g} (no "
        "gradient is clipped). vacuous: the bound is above the gap of the start."
    )
    within = sum(row["measured"] <= row["bound"] for row in rows)
    telling = sum(row["bound"] <= row["start"] for row in rows)
    verdict = (
        f"Of {len(rows)} settings, the gap is within the bound in {within}; the bound is below the "
        f"start's gap in {telling}."
    )
    return "\n".join([paragraph(head), "", *map(in_words, rows), "", paragraph(verdict)])


def draw(rows: list[Row]) -> Figure:
    """Draw gap and bound over each axis; needs the extra ``plots``."""
    panels = []
    for axis in AXES:
        points = pick(rows, axis=axis)
        values = [row["value"] for row in points]
        lines = [
            Line(label=label, x=values, y=[row[column] for row in points])
            for column, label in SERIES.items()
        ]
        panels.append(Panel(title="", x=NAMES[axis], y="F(x_i) - F*", log="xy", lines=lines))
    return drawn(panels)
