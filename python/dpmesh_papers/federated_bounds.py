"""Theorem 5 of the federated paper beside the error that runs measure.

Over the number of rounds T, the noise nu_1, the number of clients N and the smoothing sigma: the
sum of the four terms of (15) as printed, the mean of f(w^t) - f* over the rounds, and the error of
the first model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpmesh.algorithms.denoisers import LaplacianSmoothing
from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.algorithms.federated_updates import ClientUpdates
from dpmesh.data import Dataset
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem, best_fixed_predictor
from dpmesh.run import Metrics, simulate
from dpmesh_papers._figure import Line, Panel, drawn
from dpmesh_papers._scaffold import Experiment, Progress, Row, interval, paragraph, pick
from dpmesh_papers.bounds.federated import ErrorTerms, LossConstants, error_terms_as_printed

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.figure import Figure

DIM = 20
RECORDS = 20
"""Number of records of each client."""
BATCH_SIZE = 5
LOCAL_STEPS = 4
"""The paper's K."""
SEARCH_RADIUS = 20.0
"""Radius of the ball in which the optimum is searched."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run: every axis of the figure varies one of these numbers.

    Parameters
    ----------
    rounds
        T.
    noise
        nu_1: standard deviation of the noise on the sum over the clipping norm.
    clients
        N; all take part in every round, so that S = N and tau = 1.
    smoothing
        sigma.
    """

    rounds: int = 200
    noise: float = 4.0
    clients: int = 200
    smoothing: float = 0.0


AXES: dict[str, tuple[Any, ...]] = {
    "rounds": (20, 200, 1000, 10_000),
    "noise": (1.0, 4.0, 16.0, 64.0),
    "clients": (50, 200, 800),
    "smoothing": (0.0, 1.0, 10.0),
}
SYMBOLS = {"rounds": "T", "noise": "nu_1", "clients": "N", "smoothing": "sigma"}
SERIES = {"measured": "measured", "printed": "(15), Theorem 5 as printed", "start": "first model"}


def bounds(
    folder: Path, *, seeds: int = 3, longest: int = 10_000, progress: Progress = print
) -> list[Path]:
    """Measure the error of DP-Fed-LS on a convex problem, beside Theorem 5.

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
    experiment = Experiment(folder, "bounds-federated", progress)
    cells = [{"axis": axis, "value": value} for axis, values in AXES.items() for value in values]

    def measure(cell: Row) -> Row:
        setting = replace(Setting(), **{cell["axis"]: cell["value"]})
        return measured(replace(setting, rounds=min(setting.rounds, longest)), seeds)

    experiment.measure(cells, measure, in_words)
    return experiment.write(as_text, draw)


@cache
def records_of(clients: int) -> LinearProblem:
    """Return logistic regression on points of the unit ball with noisy labels."""
    draw = generator(Key.seeded(11), Purpose.SAMPLE)
    count = clients * RECORDS
    features = draw.normal(size=(count, DIM))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    scores = features @ np.ones(DIM) + draw.normal(size=count)
    parts = tuple(np.arange(count).reshape(clients, RECORDS))
    data = Dataset(features, np.where(scores > 0, 1, -1), "synthetic")
    return LinearProblem(data, parts, "logistic", feature_norm=1.0)


def optimum(problem: LinearProblem) -> tuple[npt.NDArray[np.float64], float]:
    """Return the best model and its mean loss."""
    best = best_fixed_predictor(problem, np.arange(problem.train.records), radius=SEARCH_RADIUS)
    return best.parameters, float(best.value)


def losses_of(setting: Setting) -> LossConstants:
    """Return the constants: records have norm 1, so gradients are at most 1 long.

    G = L = 1 bounds the clients' gradients, whatever they are. A mean of b gradients, drawn without
    replacement, has a variance of at most 1 / b in any norm that A^-1 makes.
    """
    problem = records_of(setting.clients)
    best, _ = optimum(problem)
    second_differences = np.roll(best, 1) - 2 * best + np.roll(best, -1)
    squared_norm_in_A = float(best @ (best - setting.smoothing * second_differences))
    return LossConstants(
        dim=DIM,
        lipschitz=1.0,
        smoothness=problem.model_constants().smoothness,
        gradient_variance=1 / BATCH_SIZE,
        dissimilarity=1.0,
        squared_distance=squared_norm_in_A,  # the first model is 0
    )


def terms_of(setting: Setting) -> ErrorTerms:
    """Return Theorem 5's terms with eta_g = sqrt(S), which Corollary 2 asks for."""
    return error_terms_as_printed(
        "convex",
        losses_of(setting),
        rounds=setting.rounds,
        cohort=setting.clients,
        sampling_rate=1.0,
        local_steps=LOCAL_STEPS,
        noise=setting.noise,
        global_step_size=sqrt(setting.clients),
        smoothing=setting.smoothing,
    )


def measured(setting: Setting, seeds: int) -> Row:
    """Return the mean error over the rounds, the printed bound and its terms.

    `measured` is the mean of f(w^t) - f* over the rounds and the seeds, which is no less than the
    error of the averaged model; `start` is that of the first model.
    """
    problem = records_of(setting.clients)
    _, lowest = optimum(problem)
    terms = terms_of(setting)
    server_rate = sqrt(setting.clients)
    client_rate = terms.learning_rate / server_rate
    updates = ClientUpdates(
        clients=setting.clients,
        sampling_rate=1.0,
        clipping_norm=client_rate * LOCAL_STEPS,
        steps=LOCAL_STEPS,
        batch_size=BATCH_SIZE,
        step_size=client_rate,
    )
    algorithm = FederatedLearning(
        updates,
        noise_multiplier=setting.noise,
        denoiser=LaplacianSmoothing(setting.smoothing),
        step_size=server_rate,
    )
    all_records = np.arange(problem.train.records)[np.newaxis]

    def excess(
        problem: LinearProblem,
        _parameters: npt.NDArray[np.float64],
        released: npt.NDArray[np.float64],
    ) -> float:
        return float(problem.objective(released[:1], all_records)[0] - lowest)

    errors = []
    for seed in range(seeds):
        run = simulate(
            algorithm,
            problem,
            rounds=setting.rounds,
            key=Key.seeded(seed),
            delta=1e-5,
            metrics=Metrics([excess], every=max(1, setting.rounds // 100)),
        )
        errors.append(float(run.history["excess"].mean()))
    start = float(problem.objective(np.zeros((1, DIM)), all_records)[0] - lowest)
    return {
        "rounds": setting.rounds,
        "measured": float(np.mean(errors)),
        "interval": interval(errors),
        "seeds": seeds,
        "printed": terms.total,
        "initial": terms.initial,
        "heterogeneity": terms.heterogeneity,
        "variance": terms.variance,
        "privacy": terms.privacy,
        "start": start,
    }


def in_words(row: Row) -> str:
    """Return a setting's error and the terms of its bound as a line."""
    vacuous = ", vacuous" if row["printed"] > row["start"] else ""
    return (
        f"{SYMBOLS[row['axis']]:>6} = {row['value']:<5g} error {row['measured']:.4f}, (15) "
        f"{row['printed']:>9.3f} = {row['initial']:.3f} + {row['heterogeneity']:.3f} + "
        f"{row['variance']:.4f} + {row['privacy']:.4f}{vacuous}"
    )


def as_text(rows: list[Row]) -> str:
    """Return all errors and bounds, and how many of the bounds hold and say something."""
    head = (
        "The meta theorem (15) of the federated paper with Theorem 5's terms (start, "
        "heterogeneity, variance, privacy), as printed, beside runs of DP-Fed-LS at its learning "
        f"rates: mean of f(w^t) - f* over the rounds, logistic regression in {DIM} dimensions, "
        f"{RECORDS} synthetic records a client, all clients in every round, K = {LOCAL_STEPS}, "
        f"batches of {BATCH_SIZE}. Unless varied: T = 200, nu_1 = 4, N = 200, sigma = 0. vacuous: "
        "the bound is above the error of the first model."
    )
    within = sum(row["measured"] <= row["printed"] for row in rows)
    telling = sum(row["printed"] <= row["start"] for row in rows)
    verdict = (
        f"Of {len(rows)} settings, the error is within the printed bound in {within}; the bound is "
        f"below the first model's error, {rows[0]['start']:.4f} at N = 200, in {telling}. The "
        "theorem's proof has a gap (25), so that no guarantee follows from these numbers."
    )
    return "\n".join([paragraph(head), "", *map(in_words, rows), "", paragraph(verdict)])


def draw(rows: list[Row]) -> Figure:
    """Draw error and bound over each axis; needs the extra ``plots``."""
    panels = []
    for axis in AXES:
        points = pick(rows, axis=axis)
        values = [row["value"] for row in points]
        lines = [
            Line(label=label, x=values, y=[row[column] for row in points])
            for column, label in SERIES.items()
        ]
        log: Literal["y", "xy"] = "xy"
        if axis == "smoothing":
            log = "y"
        panels.append(Panel(title="", x=SYMBOLS[axis], y="f(w) - f*", log=log, lines=lines))
    return drawn(panels)
