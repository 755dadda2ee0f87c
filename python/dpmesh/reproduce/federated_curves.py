"""Figure 2 of the federated paper: training round by round, with and without smoothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpmesh.data import Dataset, mnist
from dpmesh.estimators import LaplacianSmoothing
from dpmesh.keys import Key, Purpose, generator
from dpmesh.privacy.accounting.papers.federated import Sampling
from dpmesh.problems import LinearProblem
from dpmesh.reproduce._output import Output, Progress
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

EPSILON = 7
SHOWN_ROUNDS = (1, 5, 10, 15, 20, 25, 30)


@dataclass(frozen=True)
class Point:
    """A model during training.

    Parameters
    ----------
    sampling, smoothing, seed
        Which run.
    round
        From 1.
    loss
        On the clients' records, weight decay included.
    accuracy
        On the images that no client holds, in percent.
    """

    sampling: Sampling
    smoothing: float
    seed: int
    round: int
    loss: float
    accuracy: float


def figure2(folder: Path, *, seeds: int = 3, progress: Progress = print) -> list[Path]:
    """Run Figure 2: logistic regression on MNIST at the paper's noise for epsilon 7.

    Runs are seeded, and those of a seed have the same data split, cohorts and noise.
    """
    train = standardized(mnist("train"))
    points: list[Point] = []
    for sampling, clients in CLIENTS.items():
        keys = [Key.seeded(seed) for seed in range(seeds)]
        problems = [mnist_clients(train, left_out(train, key), clients, key) for key in keys]
        for smoothing in SMOOTHINGS:
            for seed, (problem, key) in enumerate(zip(problems, keys, strict=True)):
                points += training(sampling, smoothing, seed, problem, key)
            progress(in_words(points, sampling, smoothing))
    output = Output(folder, "federated-figure2")
    output.records(points)
    output.text(as_text(points))
    output.figure(draw(points))
    return output.files


def left_out(train: Dataset, key: Key) -> Dataset:
    """Return the images that `mnist_clients` gives to no client: the paper validates on them."""
    order = generator(key, Purpose.SPLIT).permutation(train.records)
    return train.take(order[TRAINING_RECORDS:])


def training(
    sampling: Sampling, smoothing: float, seed: int, problem: LinearProblem, key: Key
) -> Iterator[Point]:
    """Yield the model of each round."""
    z = noise_multiplier("paper", sampling, EPSILON, CLIENTS[sampling] ** -1.1)
    algorithm = algorithm_of(sampling, z, LaplacianSmoothing(smoothing))
    everything = np.arange(problem.train.records)[np.newaxis]
    for t, state in enumerate(states(algorithm, problem, ROUNDS, key), 1):
        model = algorithm.parameters(state)
        loss, accuracy = problem.objective(model, everything), problem.accuracy(model)
        yield Point(sampling, smoothing, seed, t, float(loss[0]), 100 * float(accuracy[0]))


def curve(points: list[Point], sampling: Sampling, smoothing: float, quantity: str) -> list[float]:
    """Return the means over the seeds, by round."""
    mine = [p for p in points if (p.sampling, p.smoothing) == (sampling, smoothing)]
    rounds = sorted({p.round for p in mine})
    return [float(np.mean([getattr(p, quantity) for p in mine if p.round == t])) for t in rounds]


def in_words(points: list[Point], sampling: Sampling, smoothing: float) -> str:
    """Return one curve as two lines."""
    losses, accuracies = (
        [curve(points, sampling, smoothing, quantity)[t - 1] for t in SHOWN_ROUNDS]
        for quantity in ("loss", "accuracy")
    )
    return (
        f"{sampling:<8} smoothing {smoothing:g}  loss      "
        + "".join(f"{loss:>8.2f}" for loss in losses)
        + f"\n{'':<21} accuracy  "
        + "".join(f"{accuracy:>8.2f}" for accuracy in accuracies)
    )


def as_text(points: list[Point]) -> str:
    """Return all curves at some rounds; the paper shows curves only."""
    lines = [
        f"Figure 2: softmax regression on MNIST at the paper's noise for epsilon {EPSILON}; mean",
        f"of {1 + max(p.seed for p in points)} seeds. Loss on the clients' records, accuracy (%)",
        "on 10,000 images that no client holds.",
        "The paper: smoothing is slower at first, and better at the end.",
        "",
        f"{'round':<32}" + "".join(f"{t:>8}" for t in SHOWN_ROUNDS),
    ]
    for sampling in CLIENTS:
        lines += ["", *(in_words(points, sampling, smoothing) for smoothing in SMOOTHINGS)]
    return "\n".join(lines)


def draw(points: list[Point]) -> Figure:
    """Draw loss and accuracy over the rounds; needs the extra ``plots``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.2), layout="constrained")
    panels = [(sampling, quantity) for sampling in CLIENTS for quantity in ("loss", "accuracy")]
    for ax, (sampling, quantity) in zip(figure.subplots(1, 4), panels, strict=True):
        for smoothing in SMOOTHINGS:
            heights = curve(points, sampling, smoothing, quantity)
            ax.plot(range(1, len(heights) + 1), heights, label=f"smoothing {smoothing:g}")
        ax.set_title(f"{sampling} sampling")
        ax.set_xlabel("round")
        ax.set_ylabel("training loss" if quantity == "loss" else "validation accuracy (%)")
    figure.axes[0].legend(frameon=False)
    return figure
