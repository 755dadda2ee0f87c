"""Training curves of the federated paper, with and without smoothing: Figures 2 and S10.

`federated_stability` measures networks by it, for Figures 3, 5, S11 and S12.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from dpmesh._privacy_types import Floats
from dpmesh.algorithms.denoisers import LaplacianSmoothing
from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.data import Dataset, mnist
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh_papers._figure import Line, Panel, drawn
from dpmesh_papers._scaffold import Experiment, Progress, Row, interval, kinds, pick
from dpmesh_papers.federated import (
    CLIENTS,
    ROUNDS,
    SMOOTHINGS,
    TRAINING_RECORDS,
    algorithm_of,
    mnist_clients,
    noise_to_sensitivity,
    standardized,
    states,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpmesh.problems.jax_model import JaxProblem

AnyProblem: TypeAlias = "LinearProblem | JaxProblem"

EPSILON = 7
SHOWN = 7
"""Number of rounds in the text, evenly spaced."""
AT_ONCE = 500
"""Records whose losses are computed together."""

QUANTITIES = {
    "loss": "training loss",
    "validation_loss": "validation loss",
    "training_accuracy": "training accuracy (%)",
    "accuracy": "validation accuracy (%)",
}
"""What is measured, in words, by its column."""


def figure2(folder: Path, *, seeds: int = 3, progress: Progress = print) -> list[Path]:
    """Run Figures 2 and S10: logistic regression on MNIST at the paper's noise for epsilon 7.

    Runs are seeded, and those of a seed have the same data split, cohorts and noise.
    """
    train = standardized(mnist("train"))
    keys = [Key.seeded(seed) for seed in range(seeds)]
    problems = {
        sampling: [mnist_clients(train, left_out(train, key), clients, key) for key in keys]
        for sampling, clients in CLIENTS.items()
    }

    def measured(cell: Row) -> Iterator[Row]:
        sampling = cell["sampling"]
        z = noise_to_sensitivity("paper", sampling, EPSILON, CLIENTS[sampling] ** -1.1)
        algorithm = algorithm_of(sampling, z, LaplacianSmoothing(cell["smoothing"]))
        for seed, (problem, key) in enumerate(zip(problems[sampling], keys, strict=True)):
            for row in training(algorithm, problem, key, ROUNDS):
                yield {"seed": seed, **row}

    title = (
        f"Figures 2 and S10: softmax regression on MNIST at the paper's noise for epsilon {EPSILON}"
        "; validation\non 10,000 images that no client holds."
    )
    experiment = Experiment(folder, "federated-figure2", progress)
    cells = [
        {"sampling": sampling, "smoothing": smoothing}
        for sampling, smoothing in product(CLIENTS, SMOOTHINGS)
    ]
    experiment.measure(cells, measured, partial(curve_of, experiment.rows))
    return experiment.write(partial(as_text, title), draw)


def left_out(train: Dataset, key: Key) -> Dataset:
    """Return the images that `mnist_clients` gives to no client: the paper validates on them."""
    order = generator(key, Purpose.SPLIT).permutation(train.records)
    return train.take(order[TRAINING_RECORDS:])


def training(
    algorithm: FederatedLearning, problem: AnyProblem, key: Key, rounds: int, *, every: int = 1
) -> Iterator[Row]:
    """Yield a row of losses and accuracies every few rounds.

    On the clients' records, `loss` and `training_accuracy`, and on the problem's test records,
    `validation_loss` and `accuracy`. Losses include weight decay; accuracies are in percent.
    """
    on_training, held_out = _views_of(problem)
    for t, state in enumerate(states(algorithm, problem, rounds, key), 1):
        if t % every == 0:
            model = algorithm.parameters(state)
            yield {
                "round": t,
                "loss": _loss(problem, model),
                "training_accuracy": 100 * float(on_training.accuracy(model)[0]),
                "validation_loss": _loss(held_out, model),
                "accuracy": 100 * float(problem.accuracy(model)[0]),
            }


@lru_cache(maxsize=8)  # a network is compiled for each problem
def _views_of(problem: AnyProblem) -> tuple[AnyProblem, AnyProblem]:
    """Return the problem tested on its training records, and one that trains on the test records.

    `accuracy` is of a problem's test records, `objective` of its training records.
    """
    assert problem.test is not None
    one_client = (np.arange(problem.test.records),)
    on_training = replace(problem, test=problem.train)
    held_out = replace(problem, train=problem.test, partition=one_client)
    return on_training, held_out


def _loss(problem: AnyProblem, model: Floats) -> float:
    """Return the mean loss of a model, shape (1, dim), on all training records, in parts."""
    records = problem.train.records
    starts = np.append(np.arange(0, records, AT_ONCE), records)
    rows = np.repeat(model, len(starts) - 1, axis=0)
    losses = problem.objective(rows, (starts, np.arange(records)))
    return float(np.average(losses, weights=np.diff(starts)))


class Curve(NamedTuple):
    """A quantity over the rounds."""

    rounds: list[int]
    means: list[float]
    """Over the repetitions."""
    intervals: list[float]
    """Half of the means' 95% intervals."""


def curve_over_rounds(rows: list[Row], quantity: str) -> Curve:
    """Return the curve of one quantity over the rounds of rows of one setting."""
    rounds = sorted(kinds(rows, "round"))
    repetitions = [[row[quantity] for row in pick(rows, round=t)] for t in rounds]
    means = [float(np.mean(values)) for values in repetitions]
    return Curve(rounds, means, [interval(values) for values in repetitions])


def curve_of(rows: list[Row], row: Row) -> str:
    """Return the curve of a row as lines, one for each quantity."""
    points = pick(rows, sampling=row["sampling"], smoothing=row["smoothing"])
    lines: list[str] = []
    for quantity, name in QUANTITIES.items():
        curve = curve_over_rounds(points, quantity)
        numbers = "".join(f"{value:>8.2f}" for value in evenly_spaced(curve.means))
        label = ""
        if not lines:
            label = f"{row['sampling']:<8} smoothing {row['smoothing']:g}"
        lines.append(f"{label:<23}{name:<25}{numbers}")
    return "\n".join(lines)


def evenly_spaced(values: list[float]) -> list[float]:
    """Return at most `SHOWN` of the values, the first and the last among them."""
    places = np.linspace(0, len(values) - 1, min(SHOWN, len(values))).round().astype(int)
    return [values[place] for place in places]


def as_text(title: str, rows: list[Row]) -> str:
    """Return all curves at some rounds; the paper shows curves only."""
    rounds = evenly_spaced([float(t) for t in sorted(kinds(rows, "round"))])
    ends = {(row["sampling"], row["smoothing"]): row for row in rows}
    lines = [
        title,
        f"Mean of {1 + max(row['seed'] for row in rows)} seed(s).",
        "The paper: smoothing is slower at first, and better at the end.",
        "",
        f"{'round':<48}" + "".join(f"{t:>8g}" for t in rounds),
    ]
    return "\n".join([*lines, *(curve_of(rows, row) for row in ends.values())])


def draw(rows: list[Row]) -> Figure:
    """Draw all quantities over the rounds; needs the extra ``plots``."""
    panels = []
    for sampling, (quantity, name) in product(kinds(rows, "sampling"), QUANTITIES.items()):
        lines = []
        for smoothing in kinds(rows, "smoothing"):
            points = pick(rows, sampling=sampling, smoothing=smoothing)
            rounds, means, intervals = curve_over_rounds(points, quantity)
            label = f"smoothing {smoothing:g}"
            lines.append(Line(label=label, x=rounds, y=means, spread=intervals))
        title = f"{sampling.capitalize()} sampling"
        panels.append(Panel(title=title, x="round", y=name, lines=lines, kind="bands"))
    return drawn(panels, columns=len(QUANTITIES))
