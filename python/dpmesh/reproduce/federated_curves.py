"""Training curves of the federated paper, with and without smoothing: Figures 2 and S10.

`federated_stability` measures networks by it, for Figures 3, 5, S11 and S12.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.data import Dataset, mnist
from dpmesh.denoisers import LaplacianSmoothing
from dpmesh.keys import Key, Purpose, generator
from dpmesh.privacy.types import Floats
from dpmesh.problems import LinearProblem
from dpmesh.reproduce._output import Output, Progress
from dpmesh.reproduce.claims.federated import Sampling
from dpmesh.reproduce.federated import (
    CLIENTS,
    ROUNDS,
    SMOOTHINGS,
    TRAINING_RECORDS,
    algorithm_of,
    mnist_clients,
    noise_multiplier,
    standardized,
    states,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpmesh.problems.jax_model import JaxProblem

AnyProblem: TypeAlias = "LinearProblem | JaxProblem"
ProblemT = TypeVar("ProblemT", bound=AnyProblem)

EPSILON = 7
SHOWN = 7
"""Rounds in the text, evenly spaced."""
AT_ONCE = 500
"""Records whose losses are computed together."""

QUANTITIES = {
    "loss": "training loss",
    "validation_loss": "validation loss",
    "training_accuracy": "training accuracy (%)",
    "accuracy": "validation accuracy (%)",
}


@dataclass(frozen=True)
class Point:
    """A model during training.

    Parameters
    ----------
    sampling, smoothing, seed
        Which run.
    round
        From 1.
    loss, training_accuracy
        On the clients' records; losses include weight decay, accuracies are in percent.
    validation_loss, accuracy
        On records that no client holds.
    """

    sampling: Sampling
    smoothing: float
    seed: int
    round: int
    loss: float
    training_accuracy: float
    validation_loss: float
    accuracy: float


def figure2(folder: Path, *, seeds: int = 3, progress: Progress = print) -> list[Path]:
    """Run Figures 2 and S10: logistic regression on MNIST at the paper's noise for epsilon 7.

    Runs are seeded, and those of a seed have the same data split, cohorts and noise.
    """
    train = standardized(mnist("train"))
    points: list[Point] = []
    for sampling, clients in CLIENTS.items():
        keys = [Key.seeded(seed) for seed in range(seeds)]
        problems = [mnist_clients(train, left_out(train, key), clients, key) for key in keys]
        z = noise_multiplier("paper", sampling, EPSILON, clients**-1.1)
        for smoothing in SMOOTHINGS:
            algorithm = algorithm_of(sampling, z, LaplacianSmoothing(smoothing))
            for seed, (problem, key) in enumerate(zip(problems, keys, strict=True)):
                run = training(algorithm, problem, key, ROUNDS)
                points += [Point(sampling, smoothing, seed, t, *found) for t, found in run]
            progress(in_words(points, sampling, smoothing))
    title = (
        f"Figures 2 and S10: softmax regression on MNIST at the paper's noise for epsilon {EPSILON}"
        "; validation\non 10,000 images that no client holds."
    )
    return written(folder, "federated-figure2", title, points)


def left_out(train: Dataset, key: Key) -> Dataset:
    """Return the images that `mnist_clients` gives to no client: the paper validates on them."""
    order = generator(key, Purpose.SPLIT).permutation(train.records)
    return train.take(order[TRAINING_RECORDS:])


def training(
    algorithm: FederatedLearning, problem: AnyProblem, key: Key, rounds: int, *, every: int = 1
) -> Iterator[tuple[int, tuple[float, ...]]]:
    """Yield the number of a round, and what `Point` has of its model, every few rounds."""
    on_training, held_out = replace(problem, test=problem.train), _of_test_records(problem)
    for t, state in enumerate(states(algorithm, problem, rounds, key), 1):
        if t % every == 0:
            model = algorithm.parameters(state)
            rates = (100 * float(one.accuracy(model)[0]) for one in (on_training, problem))
            losses = (_loss(one, model) for one in (problem, held_out))
            yield t, tuple(number for pair in zip(losses, rates, strict=True) for number in pair)


def _of_test_records(problem: ProblemT) -> ProblemT:
    assert problem.test is not None
    return replace(problem, train=problem.test, partition=(np.arange(problem.test.records),))


def _loss(problem: AnyProblem, model: Floats) -> float:
    records = problem.train.records
    starts = np.append(np.arange(0, records, AT_ONCE), records)
    rows = np.repeat(model, len(starts) - 1, axis=0)
    losses = problem.objective(rows, (starts, np.arange(records)))
    return float(np.average(losses, weights=np.diff(starts)))


def curve(points: Sequence[Point], quantity: str) -> tuple[list[int], list[float]]:
    """Return the rounds of one curve, and the means over the seeds."""
    rounds = sorted({p.round for p in points})
    return rounds, [
        float(np.mean([getattr(p, quantity) for p in points if p.round == t])) for t in rounds
    ]


def _of(points: list[Point], sampling: Sampling, smoothing: float) -> list[Point]:
    return [p for p in points if (p.sampling, p.smoothing) == (sampling, smoothing)]


def in_words(points: list[Point], sampling: Sampling, smoothing: float) -> str:
    """Return one curve as lines, one for each quantity."""
    mine = _of(points, sampling, smoothing)
    lines: list[str] = []
    for quantity, name in QUANTITIES.items():
        numbers = "".join(f"{value:>8.2f}" for value in shown(curve(mine, quantity)[1]))
        head = f"{sampling:<8} smoothing {smoothing:g}" if not lines else ""
        lines.append(f"{head:<23}{name:<25}{numbers}")
    return "\n".join(lines)


def shown(values: list[float]) -> list[float]:
    """Return the first, the last, and some between."""
    places = np.linspace(0, len(values) - 1, min(SHOWN, len(values))).round().astype(int)
    return [values[place] for place in places]


def written(folder: Path, name: str, title: str, points: list[Point]) -> list[Path]:
    """Write the table, all curves at some rounds, and the figure; the paper shows curves only."""
    rounds = shown([float(t) for t in sorted({p.round for p in points})])
    lines = [
        title,
        f"Mean of {1 + max(p.seed for p in points)} seed(s).",
        "The paper: smoothing is slower at first, and better at the end.",
        "",
        f"{'round':<48}" + "".join(f"{t:>8g}" for t in rounds),
    ]
    runs = dict.fromkeys((p.sampling, p.smoothing) for p in points)
    output = Output(folder, name)
    output.records(points)
    output.text("\n".join([*lines, *(in_words(points, *run) for run in runs)]))
    output.figure(draw(points))
    return output.files


def draw(points: list[Point]) -> Figure:
    """Draw all quantities over the rounds; needs the extra ``plots``."""
    from matplotlib.figure import Figure

    samplings = [*dict.fromkeys(p.sampling for p in points)]
    figure = Figure(figsize=(12, 3.2 * len(samplings)), layout="constrained")
    for axes, sampling in zip(
        figure.subplots(len(samplings), len(QUANTITIES), squeeze=False), samplings, strict=True
    ):
        for ax, (quantity, name) in zip(axes, QUANTITIES.items(), strict=True):
            for smoothing in dict.fromkeys(p.smoothing for p in points):
                x, y = curve(_of(points, sampling, smoothing), quantity)
                ax.plot(x, y, label=f"smoothing {smoothing:g}")
            ax.set_title(f"{sampling} sampling")
            ax.set_xlabel("round")
            ax.set_ylabel(name)
    figure.axes[0].legend(frameon=False)
    return figure
