"""Theorem 2 of the online paper beside the regret that runs measure.

Over the length of the run T, epsilon, the number of learners m and the dimension n: the printed
bound (45) or (46), the corrected one, and the total regret of the worst learner (Definition 2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpmesh.algorithms.online import OnlineLearning
from dpmesh.data import Dataset
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh.run import Metrics, simulate
from dpmesh.schedules import InverseSqrt, InverseTime, Schedule
from dpmesh.topology import complete
from dpmesh_papers._figure import Line, Panel, drawn
from dpmesh_papers._scaffold import Experiment, Progress, Row, interval, paragraph, pick
from dpmesh_papers.bounds.online import (
    Mixing,
    OnlineRun,
    disagreement,
    disagreement_as_printed,
    laplace_noise,
    learner_regret,
    regret_as_printed,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RADIUS = 1.0
"""Radius of the ball W; the paper's R is its diameter."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run: every axis of the figure varies one of these numbers.

    Parameters
    ----------
    loss
        ``"hinge"``, convex, or ``"logistic"``, regularized to be strongly convex.
    rounds, nodes, dim
        T, m and n.
    epsilon
        Epsilon of each record; None for no noise.
    """

    loss: Literal["hinge", "logistic"]
    rounds: int = 400
    nodes: int = 4
    dim: int = 5
    epsilon: float | None = 1.0

    @property
    def strong_convexity(self) -> float:
        """The paper's lambda, which sets the learning rates."""
        if self.loss == "hinge":
            return 0.0
        return 0.5

    @property
    def step_size(self) -> Schedule:
        """Theorem 2's learning rates: 1 / (lambda t), or 1 / (2 sqrt t) for lambda = 0."""
        if self.strong_convexity == 0:
            return InverseSqrt(0.5)
        return InverseTime(scale=1 / self.strong_convexity)


AXES: dict[str, tuple[Any, ...]] = {
    "rounds": (100, 400, 1600),
    "epsilon": (None, 100.0, 10.0, 1.0, 0.1),
    "nodes": (2, 4, 8),
    "dim": (2, 5, 20),
}
SYMBOLS = {"rounds": "T", "epsilon": "epsilon", "nodes": "m", "dim": "n"}
SERIES = {"measured": "measured", "printed": "as printed", "corrected": "corrected, proved"}


def bounds(
    folder: Path, *, seeds: int = 3, longest: int = 1600, progress: Progress = print
) -> list[Path]:
    """Measure regret and disagreement of Algorithm 1, beside Theorem 2 and Lemma 4.

    Parameters
    ----------
    folder
        Folder for the files.
    seeds
        Runs of each setting.
    longest
        Longest T; settings with more rounds are cut to it.
    progress
        Called with a line for each setting.
    """
    experiment = Experiment(folder, "bounds-online", progress)
    cells = [
        {"loss": loss, "axis": axis, "value": value}
        for loss in ("hinge", "logistic")
        for axis, values in AXES.items()
        for value in values
    ]
    experiment.measure(cells, lambda cell: measured(setting_of(cell, longest), seeds), in_words)
    return experiment.write(as_text, draw)


def setting_of(cell: Row, longest: int) -> Setting:
    """Return the setting in which one axis has the cell's value."""
    setting = replace(Setting(loss=cell["loss"]), **{cell["axis"]: cell["value"]})
    return replace(setting, rounds=min(setting.rounds, longest))


def records_of(setting: Setting) -> LinearProblem:
    """Return examples from the unit ball with noisy labels, one of a learner for each round."""
    draw = generator(Key.seeded(5), Purpose.SAMPLE)
    count = setting.nodes * setting.rounds
    features = draw.normal(size=(count, setting.dim))
    features /= np.maximum(1, np.linalg.norm(features, axis=1))[:, None]
    scores = features @ np.ones(setting.dim) + draw.normal(size=count)
    labels = np.where(scores > 0, 1, -1)
    parts = tuple(np.arange(count).reshape(setting.nodes, setting.rounds))
    return LinearProblem(
        Dataset(features, labels, "synthetic"),
        parts,
        setting.loss,
        regularization=setting.strong_convexity,
        feature_norm=1.0,
    )


def measured(setting: Setting, seeds: int) -> Row:
    """Return total regret, disagreement after the last round, and both bounds on each.

    `measured` is the regret of Definition 2 of the worst learner, summed over all examples, mean
    over the seeds with half of its 95% `interval`; `distance` is the root mean square over the
    learners of |w_t^i - mean of w_t|, to which the corrected bound applies, too.
    """
    problem = records_of(setting)
    network = complete(setting.nodes)
    algorithm = OnlineLearning(epsilon=setting.epsilon, step_size=setting.step_size, radius=RADIUS)
    metrics = Metrics(["regret", "consensus_distance"], every=setting.rounds)
    totals = []
    distances = []
    for seed in range(seeds):
        run = simulate(
            algorithm,
            problem,
            network,
            rounds=setting.rounds,
            key=Key.seeded(seed),
            metrics=metrics,
        )
        examples = setting.nodes * setting.rounds
        totals.append(examples * run.history.last("worst_regret"))
        distances.append(run.history.last("consensus_distance"))
    online_run = online_run_of(setting, problem)
    mixing = Mixing.from_matrix(network.matrix(0))
    printed = regret_as_printed(online_run, mixing, epsilon=setting.epsilon)
    return {
        "rounds": setting.rounds,
        "measured": float(np.mean(totals)),
        "interval": interval(totals),
        "seeds": seeds,
        "printed": printed,
        "corrected": learner_regret(online_run, mixing),
        "trivial": trivial_regret(online_run),
        "distance": float(np.mean(distances)),
        "distance_printed": float(disagreement_as_printed(online_run, mixing)[-1]),
        "distance_corrected": float(disagreement(online_run, mixing)[-1]),
    }


def online_run_of(setting: Setting, problem: LinearProblem) -> OnlineRun:
    """Return the run as the bounds know it, with the paper's Laplace noise."""
    lipschitz = problem.constants(RADIUS).lipschitz
    noise = 0.0
    if setting.epsilon is not None:
        noise = laplace_noise(setting.epsilon, setting.dim, 1.0)
    return OnlineRun(
        nodes=setting.nodes,
        dim=setting.dim,
        rounds=setting.rounds,
        lipschitz=lipschitz,
        diameter=2 * RADIUS,
        strong_convexity=setting.strong_convexity,
        noise=noise,
        bounded_outside=setting.strong_convexity == 0,
    )


def trivial_regret(run: OnlineRun) -> float:
    """Return ``m T L R``, which no learner in the ball exceeds: above it a bound says nothing."""
    return run.nodes * run.rounds * run.lipschitz * run.diameter


def in_words(row: Row) -> str:
    """Return a setting's regret and bounds as a line."""
    value = "none" if row["value"] is None else f"{row['value']:g}"
    vacuous = ", vacuous" if row["corrected"] > row["trivial"] else ""
    return (
        f"{row['loss']:<9} {SYMBOLS[row['axis']]:>7} = {value:<5} regret {row['measured']:>9,.1f}, "
        f"printed {row['printed']:>12,.0f}, corrected {row['corrected']:>14,.0f}{vacuous}"
    )


def as_text(rows: list[Row]) -> str:
    """Return all regrets and bounds, and how many of the bounds hold and say something."""
    head = (
        "Theorem 2 of the online paper beside runs of Algorithm 1: total regret of the worst "
        "learner (Definition 2) over all learners' examples, synthetic examples of the unit ball, "
        "W of radius 1, a complete graph, Laplace noise. hinge: (46), logistic: (45) with "
        "lambda = 0.5. Unless varied: T = 400, m = 4, n = 5, epsilon = 1. corrected: proved, of "
        "order n^2 / epsilon^2. vacuous: the corrected bound is above m T L R, which no learner "
        "in W exceeds."
    )
    within = sum(row["measured"] <= row["corrected"] for row in rows)
    above = sum(row["measured"] > row["printed"] for row in rows)
    telling = [row for row in rows if row["corrected"] <= row["trivial"]]
    far_printed = sum(row["distance"] > row["distance_printed"] for row in rows)
    far_corrected = sum(row["distance"] > row["distance_corrected"] for row in rows)
    verdict = (
        f"Of {len(rows)} settings, regret is within the corrected bound in {within} and above the "
        f"printed one in {above}; the corrected bound says something (is not vacuous) in "
        f"{len(telling)}. Lemma 4: the distance from the mean learner after the last round is "
        f"above (19) as printed in {far_printed} settings, above the corrected bound in "
        f"{far_corrected}."
    )
    return "\n".join([paragraph(head), "", *map(in_words, rows), "", paragraph(verdict)])


def draw(rows: list[Row]) -> Figure:
    """Draw regret and both bounds over each axis; needs the extra ``plots``."""
    panels = []
    for loss in ("hinge", "logistic"):
        for axis in AXES:
            points = [row for row in pick(rows, loss=loss, axis=axis) if row["value"] is not None]
            lines = [
                Line(
                    label=label,
                    x=[row["value"] for row in points],
                    y=[max(row[column], 1e-3) for row in points],
                )
                for column, label in SERIES.items()
            ]
            trivial = [row["trivial"] for row in points]
            values = [row["value"] for row in points]
            lines.append(Line(label="m T L R: vacuous above", x=values, y=trivial))
            panels.append(
                Panel(title=loss, x=SYMBOLS[axis], y="total regret", log="xy", lines=lines)
            )
    return drawn(panels, columns=len(AXES))
