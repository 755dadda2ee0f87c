"""Tables 3 to 6 of the federated paper: networks; needs the extra ``jax``.

The paper trains a network of 3.4 million parameters on SVHN and an LSTM of 0.8 million, for hours
on GPUs. Tables 3, 4 and 5 are scaled down: a similar network on every second pixel of MNIST, fewer
records and rounds, the same noise multipliers, sampling and clipping; whoever has SVHN's files runs
them at the paper's size. Table 6 is run in full if JAX has a GPU, and scaled down on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.algorithms.federated_updates import ClientUpdates
from dpmesh.data import Dataset, iid, mnist, shakespeare, svhn
from dpmesh.estimators import (
    Estimator,
    Identity,
    JamesStein,
    LaplacianSmoothing,
    Reordered,
    SoftThreshold,
)
from dpmesh.keys import Key, Purpose, generator
from dpmesh.privacy.accounting.papers.federated import Sampling
from dpmesh.privacy.shown import rounded_up
from dpmesh.problems import networks
from dpmesh.problems.jax_model import JaxProblem
from dpmesh.reproduce._output import Output, Progress
from dpmesh.reproduce._scaffold import over_seeds, with_spread
from dpmesh.reproduce.federated import WEIGHT_DECAY, final_accuracy, standardized
from dpmesh.schedules import ExponentialDecay

SAMPLINGS: tuple[Sampling, ...] = ("uniform", "poisson")
MakeEstimator = Callable[[JaxProblem], Estimator]


@dataclass(frozen=True)
class Training:
    """Parameters of one section of the paper, and of our run of it.

    Parameters
    ----------
    section
        6.2 (images) or 6.3 (texts).
    paper_clients, paper_rounds, sampling_rate, clipping_norm, step_size
        The paper's values; the first two determine its privacy.
    clients, rounds, batch_size, local_epochs
        Our values; texts have as many clients as there are roles.
    """

    section: str
    paper_clients: int
    paper_rounds: int
    sampling_rate: float
    clipping_norm: float
    step_size: float
    clients: int
    rounds: int
    batch_size: int
    local_epochs: int

    def algorithm(
        self, sampling: Sampling, noise_multiplier: float, clients: int, estimator: Estimator
    ) -> FederatedLearning:
        """Return the algorithm of one cell."""
        return FederatedLearning(
            ClientUpdates(
                clients=clients,
                sampling_rate=self.sampling_rate,
                clipping_norm=self.clipping_norm,
                sampling=sampling,
                batch_size=self.batch_size,
                epochs=self.local_epochs,
                step_size=ExponentialDecay(scale=self.step_size, rate=0.99),
            ),
            noise_multiplier=noise_multiplier,
            denoiser=estimator,
        )


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Parameters
    ----------
    sampling, noise_multiplier, method
        Which cell.
    epsilon
        What the paper says that its run costs.
    epsilon_proved
        What we can prove that it costs, at the paper's numbers of clients and rounds.
    paper
        The paper's accuracy in percent.
    accuracy, spread
        Ours: mean and standard deviation over the seeds.
    seeds
        Number of runs.
    """

    sampling: Sampling
    noise_multiplier: float
    method: str
    epsilon: float
    epsilon_proved: float
    paper: float
    accuracy: float = np.nan
    spread: float = np.nan
    seeds: int = 0


IMAGES = Training("6.2", 2000, 200, 0.05, 0.7, 0.1, 1000, 20, 10, 5)
IMAGES_IN_FULL = replace(IMAGES, clients=2000, rounds=200, batch_size=50, local_epochs=10)
RECORDS_IN_FULL = 300
"""Of a client, of SVHN's training and extra images together."""
IMAGE_MULTIPLIERS = (1.5, 1.3, 1.1, 1.0)
TABLE3_EPSILONS = {"uniform": (5.23, 6.34, 7.84, 8.66), "poisson": (2.56, 3.19, 4.24, 5.07)}
TABLE3 = {
    "smoothing 0": (81.40, 82.46, 85.18, 85.84, 82.29, 83.82, 85.53, 86.56),
    "smoothing 0.5": (82.72, 84.65, 86.49, 86.32, 84.27, 85.47, 87.00, 87.50),
    "smoothing 1": (82.39, 84.13, 85.88, 86.39, 84.65, 85.38, 86.37, 87.26),
    "smoothing 1.5": (82.19, 83.97, 86.03, 85.66, 84.23, 85.12, 86.58, 87.35),
}
TABLE4 = {
    **{name: TABLE3[name] for name in ("smoothing 0", "smoothing 0.5")},
    "James-Stein": (52.12, 52.41, 59.73, 61.77, 56.23, 55.60, 60.43, 60.64),
    "soft-threshold": (20.05, 18.52, 21.72, 25.15, 22.12, 16.96, 23.24, 26.89),
}
IMAGE_TABLES = {"table3": TABLE3, "table4": TABLE4}
"""Percent; columns as in `TABLE3_EPSILONS`. Two rows of Table 3 stand beside those of Table 4."""

ORDERS = {
    "BCWH": (3, 2, 1, 0),
    "BCHW": (3, 2, 0, 1),
    "BWHC": (3, 1, 0, 2),
    "BHWC": (3, 0, 1, 2),
}
"""Axes of a kernel (height, width, channel, batch of filters), the slowest first."""
TABLE5 = {
    0.5: (86.49, 87.45, 86.79, 86.93, 87.00, 86.77, 86.43, 87.48),
    1.0: (85.88, 87.41, 86.97, 87.42, 86.37, 86.15, 87.21, 87.24),
    1.5: (86.03, 87.10, 87.11, 86.34, 86.58, 86.23, 86.83, 87.04),
}
"""Percent, at noise multiplier 1.1: uniform in the four orders, Poisson in the four orders."""
TABLE5_PLAIN = (85.18, 85.53)

TEXTS_IN_FULL = Training("6.3", 975, 100, 0.2, 5.0, 1.47, 0, 100, 50, 5)
TEXTS_IN_SMALL = replace(TEXTS_IN_FULL, rounds=15, batch_size=10)
TEXT_MULTIPLIERS = (1.6, 1.4, 1.2, 1.0)
TABLE6_EPSILONS = {"uniform": (14.94, 17.69, 22.43, 27.24), "poisson": (6.78, 8.22, 10.41, 14.04)}
TABLE6 = {
    0.0: (38.22, 38.47, 39.96, 41.87, 38.81, 39.42, 40.19, 41.55),
    0.5: (39.14, 40.27, 41.95, 43.76, 39.07, 40.02, 42.02, 43.59),
    1.0: (39.18, 40.94, 42.60, 43.90, 39.45, 41.07, 42.09, 43.78),
    1.5: (40.16, 40.89, 42.50, 43.95, 39.38, 40.99, 42.19, 43.67),
}


def images(
    folder: Path,
    *,
    table: str,
    data: str = "mnist",
    seeds: int = 1,
    rounds: int | None = None,
    clients: int | None = None,
    progress: Progress = print,
) -> list[Path]:
    """Train a network with and without smoothing (Table 3), or with other estimators (Table 4).

    Table 5 smooths convolution kernels that are laid out in four orders.
    """
    training, make, name = IMAGE_DATA[data]
    training = replace(training, rounds=rounds or training.rounds)
    make_problem = globals()[make] if clients is None else partial(globals()[make], clients=clients)
    cells, methods = _orders() if table == "table5" else _estimators(table)
    cells = run(training, cells, methods, make_problem, seeds, progress)
    x = "method" if table == "table5" else "noise multiplier"
    return _written(folder, f"federated-{table}{name}", cells, data, x)


def _estimators(table: str) -> tuple[list[Cell], dict[str, MakeEstimator]]:
    columns = list(product(SAMPLINGS, enumerate(IMAGE_MULTIPLIERS)))
    cells = [
        _cell(IMAGES, sampling, z, method, TABLE3_EPSILONS[sampling][i], paper[place])
        for method, paper in IMAGE_TABLES[table].items()
        for place, (sampling, (i, z)) in enumerate(columns)
    ]
    return cells, {
        "James-Stein": lambda _: JamesStein(),
        "soft-threshold": lambda _: SoftThreshold(),
        **{f"smoothing {smoothing:g}": _smoothing(smoothing) for smoothing in (0, 0.5, 1, 1.5)},
    }


def _orders() -> tuple[list[Cell], dict[str, MakeEstimator]]:
    methods: dict[str, MakeEstimator] = {"smoothing 0": _smoothing(0.0)}
    cells = [
        _cell(IMAGES, sampling, 1.1, "smoothing 0", TABLE3_EPSILONS[sampling][2], paper)
        for sampling, paper in zip(SAMPLINGS, TABLE5_PLAIN, strict=True)
    ]
    for smoothing, papers in TABLE5.items():
        for place, (sampling, (order, axes)) in enumerate(product(SAMPLINGS, ORDERS.items())):
            method = f"smoothing {smoothing:g} {order}"
            methods[method] = _smoothing(smoothing, axes)
            epsilon = TABLE3_EPSILONS[sampling][2]
            cells.append(_cell(IMAGES, sampling, 1.1, method, epsilon, papers[place]))
    return cells, methods


def table6(
    folder: Path, *, seeds: int = 1, rounds: int | None = None, progress: Progress = print
) -> list[Path]:
    """Predict Shakespeare's next character with and without smoothing (Table 6)."""
    in_full = jax.default_backend() == "gpu"
    training = TEXTS_IN_FULL if in_full else TEXTS_IN_SMALL
    training = replace(training, rounds=rounds or training.rounds)
    methods = {f"smoothing {smoothing:g}": _smoothing(smoothing) for smoothing in TABLE6}
    columns = list(product(SAMPLINGS, enumerate(TEXT_MULTIPLIERS)))
    cells = [
        _cell(
            training,
            sampling,
            z,
            f"smoothing {smoothing:g}",
            TABLE6_EPSILONS[sampling][i],
            p[place],
        )
        for smoothing, p in TABLE6.items()
        for place, (sampling, (i, z)) in enumerate(columns)
        if in_full or z in (TEXT_MULTIPLIERS[0], TEXT_MULTIPLIERS[-1])
    ]
    make = texts if in_full else small_texts
    cells = run(training, cells, methods, make, seeds, progress)
    return _written(folder, "federated-table6", cells, "texts", "noise multiplier")


def small_images(key: Key) -> JaxProblem:
    """Partition 20,000 images of MNIST, every second pixel, among 1,000 clients."""
    draw = generator(key, Purpose.SPLIT)
    train, test = (_every_second_pixel(standardized(mnist(part))) for part in ("train", "test"))
    chosen = train.take(draw.permutation(train.records)[: 20 * IMAGES.clients])
    return JaxProblem(
        chosen,
        iid(chosen, IMAGES.clients, draw, equal_sizes=True),
        *networks.convolutional((14, 14, 1), channels=(8, 16), hidden=(32, 32)),
        test=test,
        record_shape=(14, 14, 1),
        regularization=WEIGHT_DECAY,
    )


def street_numbers(key: Key, *, clients: int = IMAGES_IN_FULL.clients) -> JaxProblem:
    """Partition SVHN, its extra images included, among the clients, with the paper's network."""
    draw = generator(key, Purpose.SPLIT)
    train, extra = svhn("train"), svhn("extra")
    chosen = draw.permutation(train.records + extra.records)[: RECORDS_IN_FULL * clients]
    pixels = np.concatenate([train.features, extra.features])[chosen]
    labels = np.concatenate([train.labels, extra.labels])[chosen]
    train = replace(train, features=pixels, labels=labels)
    return JaxProblem(
        train,
        iid(train, clients, draw, equal_sizes=True),
        *networks.convolutional((32, 32, 3)),
        test=svhn("test"),
        record_shape=(32, 32, 3),
        regularization=WEIGHT_DECAY,
    )


def _every_second_pixel(images: Dataset) -> Dataset:
    pixels = images.features.reshape(-1, 28, 28)[:, ::2, ::2]
    return replace(images, features=np.ascontiguousarray(pixels.reshape(-1, 14 * 14)))


IMAGE_DATA = {
    "mnist": (IMAGES, "small_images", ""),
    "svhn": (IMAGES_IN_FULL, "street_numbers", "-svhn"),
}
"""Parameters, the problem's function, and what the files' names end in."""


def texts(_: Key) -> JaxProblem:
    """Return all roles of Shakespeare with the paper's windows and network."""
    return _characters(80, 1, 100, hidden=256, layers=2)


def small_texts(_: Key) -> JaxProblem:
    """Return the roles with windows of 10 characters, 60 apart, and one layer of width 32."""
    return _characters(10, 60, 3, hidden=32, layers=1)


def _characters(window: int, stride: int, least: int, *, hidden: int, layers: int) -> JaxProblem:
    roles = shakespeare(window=window, stride=stride, least_records=least)
    model = networks.recurrent(len(roles.alphabet), hidden=hidden, layers=layers)
    return JaxProblem(
        roles.train, roles.partition, *model, test=roles.test, regularization=WEIGHT_DECAY
    )


def run(
    training: Training,
    cells: Iterable[Cell],
    methods: dict[str, MakeEstimator],
    make_problem: Callable[[Key], JaxProblem],
    seeds: int,
    progress: Progress,
) -> list[Cell]:
    """Return the cells with their accuracies; cells of a seed share data, cohorts and noise."""
    progress(
        f"{seeds} x {training.rounds} rounds for each cell; the first also compiles the network"
    )
    keys = [Key.seeded(seed) for seed in range(seeds)]
    problems = [make_problem(key) for key in keys]
    finished = []
    for cell in cells:
        accuracies = []
        for problem, key in zip(problems, keys, strict=True):
            estimator = methods[cell.method](problem)
            algorithm = training.algorithm(
                cell.sampling, cell.noise_multiplier, problem.nodes, estimator
            )
            accuracies.append(100 * final_accuracy(algorithm, problem, training.rounds, key))
        finished.append(replace(cell, **over_seeds(accuracies)))
        progress(in_words(finished[-1]))
    return finished


def in_words(cell: Cell) -> str:
    """Return one cell as a line."""
    accuracy = with_spread(cell.accuracy, cell.spread, 2)
    return (
        f"{cell.sampling:<8} z {cell.noise_multiplier:<4g} {cell.method:<19} "
        f"epsilon {cell.epsilon:.2f} (proved {rounded_up(cell.epsilon_proved, 3)})  "
        f"accuracy {accuracy}, paper {cell.paper:.2f}"
    )


def _smoothing(smoothing: float, axes: tuple[int, ...] | None = None) -> MakeEstimator:
    """Return smoothing of each tensor, kernels laid out along these axes."""

    def make(problem: JaxProblem) -> Estimator:
        estimator = LaplacianSmoothing(smoothing, blocks=problem.blocks)
        return estimator if axes is None else Reordered(estimator, problem.flattening({4: axes}))

    return make


def _cell(
    training: Training, sampling: Sampling, z: float, method: str, epsilon: float, paper: float
) -> Cell:
    """Return a cell with what the paper's run of it costs."""
    return Cell(sampling, z, method, epsilon, _proved(training, sampling, z), paper)


@cache
def _proved(training: Training, sampling: Sampling, z: float) -> float:
    clients = training.paper_clients
    plan = training.algorithm(sampling, z, clients, Identity()).plan(training.paper_rounds)
    return plan.cost(clients**-1.1).epsilon


def _written(folder: Path, name: str, cells: list[Cell], what: str, x: str) -> list[Path]:
    output = Output(folder, name)
    output.records(cells)
    reasons = {
        "svhn": (
            "Ours: the paper's network, clients and rounds, but from a random start, where the",
            "paper's begins as trained on MNIST.",
        ),
        "mnist": (
            "The paper's numbers are of SVHN, and cannot be compared one by one. Ours: a network",
            "of 13,000 parameters on every second pixel of MNIST, and 20 rounds.",
            "There smoothing pays where noise is high (uniform sampling, large z); elsewhere it",
            "costs more in speed than it takes away in noise.",
        ),
        "texts": (
            "On a processor ours is one LSTM layer of width 32, windows of 10, and 15 rounds:",
            "there smoothing costs more in speed than it takes away in noise. The paper's is a",
            "larger network after more rounds, where it pays.",
        ),
    }
    title = f"{name}: test accuracy (%) beside the paper's."
    lines = [title, *reasons[what], "", *map(in_words, cells)]
    output.text("\n".join(lines))
    output.figure(_draw(cells, x))
    return output.files


def _draw(cells: list[Cell], x: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for ax, sampling in zip(figure.subplots(1, 2, sharey=True), SAMPLINGS, strict=True):
        mine = [cell for cell in cells if cell.sampling == sampling]
        for name, places, heights in _curves(mine, x):
            ax.plot(places, heights, "o-", label=name)
        ax.set_title(f"{sampling} sampling")
        ax.tick_params(axis="x", rotation=90 if x == "method" else 0)
        ax.set_xlabel(x)
    figure.axes[0].set_ylabel("test accuracy (%)")
    figure.axes[0].legend(frameon=False)
    return figure


def _curves(cells: list[Cell], x: str) -> Iterator[tuple[str, list[Any], list[float]]]:
    """Yield name, positions and heights of the curves over the methods, or of one per method."""
    if x == "method":
        methods = [cell.method for cell in cells]
        yield "ours", methods, [cell.accuracy for cell in cells]
        yield "paper", methods, [cell.paper for cell in cells]
        return
    for method in dict.fromkeys(cell.method for cell in cells):
        line = [cell for cell in cells if cell.method == method]
        yield method, [c.noise_multiplier for c in line], [c.accuracy for c in line]
