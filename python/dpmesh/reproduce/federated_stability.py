"""Networks of the federated paper during training: Figures 3, 4, 5, S11, S12; needs ``jax``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from dpmesh.denoisers import LaplacianSmoothing
from dpmesh.keys import Key
from dpmesh.problems.jax_model import JaxProblem
from dpmesh.reproduce import federated_curves as curves
from dpmesh.reproduce import federated_networks as networks
from dpmesh.reproduce._output import Output, Progress
from dpmesh.reproduce.federated import states
from dpmesh.reproduce.federated_networks import SAMPLINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISE_MULTIPLIERS = (2.0, 2.5, 3.0)
STEP_SIZES = (0.05, 0.125)
SMOOTHINGS = {"DP-Fed": 0.0, "DP-Fed-LS": 1.0}
ROUNDS = 40
EVERY = 4

CURVES = {
    "images": (
        "federated-figure3",
        "Figures 3 and S11: the paper's network learns SVHN for 200 rounds. Ours: a network of\n"
        "13,000 parameters on every second pixel of MNIST, at the same noise multipliers.",
        "IMAGES",
        "small_images",
        (1.5, 1.0),
    ),
    "svhn": (
        "federated-figure3-svhn",
        "Figures 3 and S11: the paper's network on SVHN, from a random start, where the paper's\n"
        "begins as trained on MNIST.",
        "IMAGES_IN_FULL",
        "street_numbers",
        (1.5, 1.0),
    ),
    "texts": (
        "federated-figure5",
        "Figures 5 and S12: the next character of Shakespeare. The paper's network has two LSTM\n"
        "layers of width 256. Ours: one of width 32, windows of 10, at the same noise multipliers.",
        "TEXTS_IN_SMALL",
        "small_texts",
        (1.0, 1.0),
    ),
}
"""Name, title, parameters, problem, and noise multipliers for uniform and Poisson sampling."""


@dataclass(frozen=True)
class Point:
    """A model during training.

    Parameters
    ----------
    noise_multiplier, step_size, model
        Which run; ``"DP-Fed-LS"`` smooths.
    round
        From 1.
    accuracy
        On the test set, in percent.
    """

    noise_multiplier: float
    step_size: float
    model: str
    round: int
    accuracy: float


def figure4(folder: Path, *, rounds: int = ROUNDS, progress: Progress = print) -> list[Path]:
    """Run Figure 4: Poisson sampling, large noise, two local step sizes, one run of each.

    The paper's network is larger and learns SVHN for 200 rounds; this is that of `table3`.
    """
    key = Key.seeded(0)
    problem = networks.small_images(key)
    progress(f"{rounds} rounds for each curve; the first also compiles the network")
    points: list[Point] = []
    for z, step_size, model in product(NOISE_MULTIPLIERS, STEP_SIZES, SMOOTHINGS):
        points += training(problem, key, z, step_size, model, rounds)
        progress(in_words(points, z, step_size, model))
    output = Output(folder, "federated-figure4")
    output.records(points)
    output.text(as_text(points))
    output.figure(draw(points))
    return output.files


def learning(
    folder: Path,
    *,
    of: str,
    rounds: int | None = None,
    clients: int | None = None,
    progress: Progress = print,
) -> list[Path]:
    """Draw losses and accuracies over training: of images (Figures 3 and S11) or texts (5, S12).

    The noise is the paper's in these figures, `multipliers` of `CURVES`; networks and data are
    those of `networks.images` and `networks.table6`. Ours validates on the test records, since
    nothing is chosen by them.
    """
    name, title, training_of, make, multipliers = CURVES[of]
    trained = getattr(networks, training_of)
    rounds = trained.rounds if rounds is None else rounds
    key = Key.seeded(0)
    fewer = {} if clients is None else {"clients": clients}
    problem = getattr(networks, make)(key, **fewer)
    progress(f"{rounds} rounds for each curve; the first also compiles the network")
    points: list[curves.Point] = []
    for sampling, z in zip(SAMPLINGS, multipliers, strict=True):
        for smoothing in (0.0, 0.5, 1.0, 1.5):
            estimator = LaplacianSmoothing(smoothing, blocks=problem.blocks)
            algorithm = trained.algorithm(sampling, z, problem.nodes, estimator)
            run = curves.training(algorithm, problem, key, rounds, every=min(rounds, EVERY))
            points += [curves.Point(sampling, smoothing, 0, t, *found) for t, found in run]
            progress(curves.in_words(points, sampling, smoothing))
    return curves.written(folder, name, title, points)


def training(
    problem: JaxProblem, key: Key, z: float, step_size: float, model: str, rounds: int
) -> Iterator[Point]:
    """Yield the model every few rounds."""
    estimator = LaplacianSmoothing(SMOOTHINGS[model], blocks=problem.blocks)
    images = replace(networks.IMAGES, step_size=step_size)
    algorithm = images.algorithm("poisson", z, problem.nodes, estimator)
    for t, state in enumerate(states(algorithm, problem, rounds, key), 1):
        if t % EVERY == 0:
            accuracy = float(problem.accuracy(algorithm.parameters(state))[0])
            yield Point(z, step_size, model, t, 100 * accuracy)


def curve(points: list[Point], z: float, step_size: float, model: str) -> list[Point]:
    """Return the points of one run."""
    wanted = z, step_size, model
    return [p for p in points if (p.noise_multiplier, p.step_size, p.model) == wanted]


def in_words(points: list[Point], z: float, step_size: float, model: str) -> str:
    """Return one curve as a line."""
    accuracies = "".join(f"{p.accuracy:>7.1f}" for p in curve(points, z, step_size, model))
    return f"z {z:<4g} step size {step_size:<6g} {model:<10}{accuracies}"


def as_text(points: list[Point]) -> str:
    """Return all curves; the paper shows curves only."""
    shown = "".join(f"{t:>7}" for t in sorted({p.round for p in points}))
    lines = [
        "Figure 4: test accuracy (%) by round under much noise, Poisson sampling.",
        "Ours: a network of 13,000 parameters on every second pixel of MNIST, not SVHN.",
        "The paper: the more noise and the larger the steps, the more smoothing is ahead; without",
        "it, accuracy falls in the course of training.",
        "",
        f"{'round':<35}{shown}",
    ]
    runs = product(NOISE_MULTIPLIERS, STEP_SIZES, SMOOTHINGS)
    return "\n".join([*lines, *(in_words(points, *run) for run in runs)])


def draw(points: list[Point]) -> Figure:
    """Draw accuracy over the rounds; needs the extra ``plots``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.5), layout="constrained")
    panels = figure.subplots(1, len(NOISE_MULTIPLIERS), sharey=True)
    for ax, z in zip(panels, NOISE_MULTIPLIERS, strict=True):
        for (i, step_size), (model, style) in product(
            enumerate(STEP_SIZES), zip(SMOOTHINGS, (":", "-"), strict=True)
        ):
            run = curve(points, z, step_size, model)
            x, y = [p.round for p in run], [p.accuracy for p in run]
            ax.plot(x, y, style, color=f"C{i}", label=f"{model}, step size {step_size:g}")
        ax.set_title(f"z = {z:g}")
        ax.set_xlabel("round")
    figure.axes[0].set_ylabel("test accuracy (%)")
    figure.axes[0].legend(frameon=False)
    return figure
