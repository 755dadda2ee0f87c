"""Networks of the federated paper during training: Figures 3, 4, 5, S11, S12; needs ``jax``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from dpmesh.algorithms.denoisers import LaplacianSmoothing
from dpmesh.keys import Key
from dpmesh_papers import federated_curves as curves
from dpmesh_papers import federated_networks as networks
from dpmesh_papers._figure import Panel, drawn, lines_of
from dpmesh_papers._scaffold import Experiment, Progress, Row, kinds, pick
from dpmesh_papers.claims.federated import Sampling
from dpmesh_papers.federated import states
from dpmesh_papers.federated_networks import SAMPLINGS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISE_MULTIPLIERS = (2.0, 2.5, 3.0)
"""The paper's z in Figure 4: noise over the sensitivity of the sum."""
STEP_SIZES = (0.05, 0.125)
"""First eta_l in Figure 4."""
SMOOTHINGS = {"DP-Fed": 0.0, "DP-Fed-LS": 1.0}
ROUNDS = 40
EVERY = 4
"""Rounds from one measurement to the next."""


@dataclass(frozen=True)
class TrainingCurves:
    """A pair of figures of the paper: losses and accuracies by round.

    Parameters
    ----------
    name
        Name of the experiment's files.
    title
        The paper's runs and ours, in words.
    noise_multipliers
        The paper's z, by sampling.
    """

    name: str
    title: str
    noise_multipliers: dict[Sampling, float]


CURVES = {
    "mnist": TrainingCurves(
        "federated-figure3",
        "Figures 3 and S11: the paper's network learns SVHN for 200 rounds. Ours: a network of\n"
        "13,000 parameters on every second pixel of MNIST, at the same noise multipliers.",
        {"uniform": 1.5, "poisson": 1.0},
    ),
    "svhn": TrainingCurves(
        "federated-figure3-svhn",
        "Figures 3 and S11: the paper's network on SVHN, from a random start, where the paper's\n"
        "begins as trained on MNIST.",
        {"uniform": 1.5, "poisson": 1.0},
    ),
    "small texts": TrainingCurves(
        "federated-figure5",
        "Figures 5 and S12: the next character of Shakespeare. The paper's network has two LSTM\n"
        "layers of width 256. Ours: one of width 32, windows of 10, at the same noise multipliers.",
        {"uniform": 1.0, "poisson": 1.0},
    ),
}
"""By the name in `federated_networks.SETUPS`."""


def figure4(
    folder: Path, *, rounds: int = ROUNDS, clients: int | None = None, progress: Progress = print
) -> list[Path]:
    """Run Figure 4: Poisson sampling, large noise, two local step sizes, one run of each.

    The paper's network is larger and learns SVHN for 200 rounds; this is that of `table3`.
    """
    key = Key.seeded(0)
    setup = networks.setup_of("mnist", rounds, clients)
    problem = setup.make_problem(key)
    progress(f"{rounds} rounds for each curve; the first also compiles the network")

    def measured(cell: Row) -> Iterator[Row]:
        denoiser = LaplacianSmoothing(SMOOTHINGS[cell["model"]], blocks=problem.blocks)
        training = replace(setup.training, step_size=cell["step_size"])
        z = cell["noise_to_sensitivity"]
        algorithm = training.algorithm("poisson", z, problem.nodes, denoiser)
        for t, state in enumerate(states(algorithm, problem, rounds, key), 1):
            if t % EVERY == 0:
                accuracy = float(problem.accuracy(algorithm.parameters(state))[0])
                yield {"round": t, "accuracy": 100 * accuracy}

    experiment = Experiment(folder, "federated-figure4", progress)
    cells = [
        {"noise_to_sensitivity": z, "step_size": step_size, "model": model}
        for z, step_size, model in product(NOISE_MULTIPLIERS, STEP_SIZES, SMOOTHINGS)
    ]
    experiment.measure(cells, measured, partial(curve_of, experiment.rows))
    return experiment.write(as_text, draw)


CURVE = "noise_to_sensitivity", "step_size", "model"
"""Names of the settings that the rows of one curve have in common."""


def learning(
    folder: Path,
    *,
    of: str,
    rounds: int | None = None,
    clients: int | None = None,
    progress: Progress = print,
) -> list[Path]:
    """Draw losses and accuracies over training: of images (Figures 3 and S11) or texts (5, S12).

    The noise is the paper's in these figures; networks and data are those of `networks.table`.
    Ours validates on the test records, since nothing is chosen by them. `of` names the data, as in
    `CURVES`.
    """
    figures = CURVES[of]
    setup = networks.setup_of(of, rounds, clients)
    rounds = setup.training.rounds
    key = Key.seeded(0)
    problem = setup.make_problem(key)
    progress(f"{rounds} rounds for each curve; the first also compiles the network")

    def measured(cell: Row) -> Iterator[Row]:
        sampling = cell["sampling"]
        z = figures.noise_multipliers[sampling]
        denoiser = LaplacianSmoothing(cell["smoothing"], blocks=problem.blocks)
        algorithm = setup.training.algorithm(sampling, z, problem.nodes, denoiser)
        for row in curves.training(algorithm, problem, key, rounds, every=min(rounds, EVERY)):
            yield {"seed": 0, **row}

    experiment = Experiment(folder, figures.name, progress)
    settings = [
        {"sampling": sampling, "smoothing": smoothing}
        for sampling, smoothing in product(SAMPLINGS, (0.0, 0.5, 1.0, 1.5))
    ]
    experiment.measure(settings, measured, partial(curves.curve_of, experiment.rows))
    return experiment.write(partial(curves.as_text, figures.title), curves.draw)


def curve_of(rows: list[Row], row: Row) -> str:
    """Return the curve of a row as a line."""
    points = pick(rows, **{name: row[name] for name in CURVE})
    accuracies = "".join(f"{point['accuracy']:>7.1f}" for point in points)
    z, step_size, model = (row[name] for name in CURVE)
    return f"z {z:<4g} step size {step_size:<6g} {model:<10}{accuracies}"


def as_text(rows: list[Row]) -> str:
    """Return the text of Figure 4: a line of accuracies for each curve.

    The paper prints no numbers of this figure, so that there are none beside ours.
    """
    shown = "".join(f"{t:>7}" for t in sorted(kinds(rows, "round")))
    lines = [
        "Figure 4: test accuracy (%) by round under much noise, Poisson sampling.",
        "Ours: a network of 13,000 parameters on every second pixel of MNIST, not SVHN.",
        "The paper: the more noise and the larger the steps, the more smoothing is ahead; without",
        "it, accuracy falls in the course of training.",
        "",
        f"{'round':<35}{shown}",
    ]
    ends = {tuple(row[name] for name in CURVE): row for row in rows}
    return "\n".join([*lines, *(curve_of(rows, row) for row in ends.values())])


def draw(rows: list[Row]) -> Figure:
    """Draw accuracy over the rounds; needs the extra ``plots``."""
    named = [row | {"name": f"{row['model']}, step size {row['step_size']:g}"} for row in rows]
    panels = [
        Panel(
            title=f"z = {z:g}",
            x="round",
            y="test accuracy (%)",
            lines=lines_of(pick(named, noise_to_sensitivity=z), by="name", x="round", y="accuracy"),
            kind="bands",
        )
        for z in kinds(rows, "noise_to_sensitivity")
    ]
    return drawn(panels)
