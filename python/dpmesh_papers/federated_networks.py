"""Tables 3 to 6 of the federated paper: networks; needs the extra ``jax``.

The paper trains a network of 3.4 million parameters on SVHN and an LSTM of 0.8 million, for hours
on GPUs. Tables 3, 4 and 5 are scaled down: a similar network on every second pixel of MNIST, fewer
records and rounds, the same noise multipliers, sampling and clipping; whoever has SVHN's files runs
them at the paper's size. Table 6 is run in full if JAX has a GPU, and scaled down on a CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import jax
import numpy as np

from dpmesh._epsilons import rounded_up
from dpmesh.algorithms.denoisers import (
    Denoiser,
    Identity,
    JamesStein,
    LaplacianSmoothing,
    Reordered,
    SoftThreshold,
)
from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.algorithms.federated_updates import ClientUpdates
from dpmesh.data import Dataset, iid, mnist, shakespeare, svhn
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import networks
from dpmesh.problems.jax_model import JaxProblem
from dpmesh.schedules import ExponentialDecay
from dpmesh_papers._figure import Panel, drawn, lines_of
from dpmesh_papers._scaffold import (
    Experiment,
    Progress,
    Row,
    compared,
    kinds,
    paragraph,
    pick,
    repeated,
    with_spread,
)
from dpmesh_papers.claims.federated import Sampling
from dpmesh_papers.federated import WEIGHT_DECAY, final_accuracy, noise_multiplier, standardized

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN = "smoothing 0"
"""The method without smoothing, DP-Fed."""
SAMPLINGS: tuple[Sampling, ...] = ("uniform", "poisson")
Epsilons: TypeAlias = dict[Sampling, dict[float, float]]
"""The paper's epsilons, by sampling and the paper's noise multiplier z."""
Papers: TypeAlias = dict[str, tuple[float, ...]]
"""The paper's accuracies in percent by method, in the order of the table's `Epsilons`."""


@dataclass(frozen=True)
class Training:
    """Parameters of one section of the paper, and of our run of it.

    Parameters
    ----------
    paper_clients, paper_rounds, sampling_rate, clipping_norm, step_size
        The paper's number of clients N, rounds T, sampling rate tau, clipping norm L, and clients'
        learning rate eta_l of the first round. N, T, tau and the noise determine its epsilon. Our
        run has the same tau, L and eta_l.
    clients, rounds, batch_size, local_epochs
        Our values. Shakespeare's texts have a client for each role, whatever `clients`.
    """

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
        self, sampling: Sampling, noise_to_sensitivity: float, clients: int, denoiser: Denoiser
    ) -> FederatedLearning:
        """Return the algorithm of one cell, whose z is `noise_to_sensitivity`."""
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
            noise_multiplier=noise_multiplier(sampling, noise_to_sensitivity),
            denoiser=denoiser,
        )


IMAGES = Training(
    paper_clients=2000,
    paper_rounds=200,
    sampling_rate=0.05,
    clipping_norm=0.7,
    step_size=0.1,
    clients=1000,
    rounds=20,
    batch_size=10,
    local_epochs=5,
)
"""Section 6.2, scaled down."""
IMAGES_IN_FULL = replace(IMAGES, clients=2000, rounds=200, batch_size=50, local_epochs=10)
RECORDS_IN_FULL = 300
"""Number of records of a client, of SVHN's training and extra images together."""
TABLE3_EPSILONS: Epsilons = {
    "uniform": {1.5: 5.23, 1.3: 6.34, 1.1: 7.84, 1.0: 8.66},
    "poisson": {1.5: 2.56, 1.3: 3.19, 1.1: 4.24, 1.0: 5.07},
}
TABLE3: Papers = {
    "smoothing 0": (81.40, 82.46, 85.18, 85.84, 82.29, 83.82, 85.53, 86.56),
    "smoothing 0.5": (82.72, 84.65, 86.49, 86.32, 84.27, 85.47, 87.00, 87.50),
    "smoothing 1": (82.39, 84.13, 85.88, 86.39, 84.65, 85.38, 86.37, 87.26),
    "smoothing 1.5": (82.19, 83.97, 86.03, 85.66, 84.23, 85.12, 86.58, 87.35),
}
TABLE4: Papers = {
    **{name: TABLE3[name] for name in ("smoothing 0", "smoothing 0.5")},
    "James-Stein": (52.12, 52.41, 59.73, 61.77, 56.23, 55.60, 60.43, 60.64),
    "soft-threshold": (20.05, 18.52, 21.72, 25.15, 22.12, 16.96, 23.24, 26.89),
}
"""Two rows of Table 3 stand beside those of Table 4."""

ORDERS = {"BCWH": (3, 2, 1, 0), "BCHW": (3, 2, 0, 1), "BWHC": (3, 1, 0, 2), "BHWC": (3, 0, 1, 2)}
"""Axes of a kernel (height, width, channel, batch of filters), the slowest first."""
TABLE5_EPSILONS = {sampling: {1.1: epsilons[1.1]} for sampling, epsilons in TABLE3_EPSILONS.items()}
TABLE5: Papers = {
    "smoothing 0": (85.18, 85.53),
    "smoothing 0.5 BCWH": (86.49, 87.00),
    "smoothing 0.5 BCHW": (87.45, 86.77),
    "smoothing 0.5 BWHC": (86.79, 86.43),
    "smoothing 0.5 BHWC": (86.93, 87.48),
    "smoothing 1 BCWH": (85.88, 86.37),
    "smoothing 1 BCHW": (87.41, 86.15),
    "smoothing 1 BWHC": (86.97, 87.21),
    "smoothing 1 BHWC": (87.42, 87.24),
    "smoothing 1.5 BCWH": (86.03, 86.58),
    "smoothing 1.5 BCHW": (87.10, 86.23),
    "smoothing 1.5 BWHC": (87.11, 86.83),
    "smoothing 1.5 BHWC": (86.34, 87.04),
}
TEXTS_IN_FULL = Training(
    paper_clients=975,
    paper_rounds=100,
    sampling_rate=0.2,
    clipping_norm=5.0,
    step_size=1.47,
    clients=0,
    rounds=100,
    batch_size=50,
    local_epochs=5,
)
"""Section 6.3."""
TEXTS_IN_SMALL = replace(TEXTS_IN_FULL, rounds=15, batch_size=10)
TABLE6_EPSILONS: Epsilons = {
    "uniform": {1.6: 14.94, 1.4: 17.69, 1.2: 22.43, 1.0: 27.24},
    "poisson": {1.6: 6.78, 1.4: 8.22, 1.2: 10.41, 1.0: 14.04},
}
TABLE6: Papers = {
    "smoothing 0": (38.22, 38.47, 39.96, 41.87, 38.81, 39.42, 40.19, 41.55),
    "smoothing 0.5": (39.14, 40.27, 41.95, 43.76, 39.07, 40.02, 42.02, 43.59),
    "smoothing 1": (39.18, 40.94, 42.60, 43.90, 39.45, 41.07, 42.09, 43.78),
    "smoothing 1.5": (40.16, 40.89, 42.50, 43.95, 39.38, 40.99, 42.19, 43.67),
}
IN_SMALL = (1.6, 1.0)
"""The noise multipliers of Table 6 on a CPU."""
TABLES = {
    "table3": (TABLE3, TABLE3_EPSILONS),
    "table4": (TABLE4, TABLE3_EPSILONS),
    "table5": (TABLE5, TABLE5_EPSILONS),
    "table6": (TABLE6, TABLE6_EPSILONS),
}


def table(
    folder: Path,
    *,
    table: str,
    data: str = "mnist",
    seeds: int = 3,
    rounds: int | None = None,
    clients: int | None = None,
    progress: Progress = print,
) -> list[Path]:
    """Train a network with and without smoothing (Table 3), or with other estimators (Table 4).

    Table 5 smooths convolution kernels that are laid out in four orders, Table 6 predicts
    Shakespeare's next character, in full where JAX finds a GPU.
    """
    in_small = data == "texts" and jax.default_backend() != "gpu"
    setup = setup_of("small texts" if in_small else data, rounds, clients)
    papers, epsilons = TABLES[table]
    cells = _cells(setup.training, papers, epsilons)
    if in_small:
        cells = [cell for cell in cells if cell["noise_to_sensitivity"] in IN_SMALL]
    name = f"federated-{table}"
    if data == "svhn":
        name += "-svhn"
    experiment = Experiment(folder, name, progress)
    experiment.measure(cells, trained(setup, seeds, progress), in_words)
    x = "noise_to_sensitivity"
    if table == "table5":
        x = "method"
    return experiment.write(partial(as_text, name, data), partial(draw, x=x))


@dataclass(frozen=True)
class Setup:
    """The parameters of runs on one kind of data, and their problem.

    Parameters
    ----------
    training
        The parameters.
    make_problem
        Returns the problem of a key.
    """

    training: Training
    make_problem: Callable[..., JaxProblem]


def setup_of(data: str, rounds: int | None, clients: int | None) -> Setup:
    """Return one of `SETUPS`, with other numbers of rounds and clients if given."""
    setup = SETUPS[data]
    if rounds is not None:
        setup = replace(setup, training=replace(setup.training, rounds=rounds))
    if clients is not None:
        setup = replace(setup, make_problem=partial(setup.make_problem, clients=clients))
    return setup


def _cells(training: Training, papers: Papers, epsilons: Epsilons) -> list[Row]:
    """Return the cells of a table, with the proved epsilon of the paper's runs."""
    columns = [
        (sampling, z, epsilon)
        for sampling, epsilons_of_sampling in epsilons.items()
        for z, epsilon in epsilons_of_sampling.items()
    ]
    return [
        {
            "sampling": sampling,
            "noise_to_sensitivity": z,
            "method": method,
            "epsilon": epsilon,
            "epsilon_proved": _proved(
                training, sampling, z, training.paper_clients, training.paper_rounds
            ),
            "paper": paper,
        }
        for method, numbers in papers.items()
        for (sampling, z, epsilon), paper in zip(columns, numbers, strict=True)
    ]


def denoiser_of(method: str, problem: JaxProblem) -> Denoiser:
    """Return a denoiser by its name, such as ``"smoothing 0.5 BCHW"`` or ``"James-Stein"``.

    Smoothing is of each tensor by itself; kernels are laid out in the order that the name ends in.
    """
    if method in SHRINKING:
        return SHRINKING[method]
    smoothing, *order = method.removeprefix("smoothing ").split()
    denoiser = LaplacianSmoothing(float(smoothing), blocks=problem.blocks)
    if not order:
        return denoiser
    return Reordered(denoiser, problem.flattening({4: ORDERS[order[0]]}))


SHRINKING: dict[str, Denoiser] = {"James-Stein": JamesStein(), "soft-threshold": SoftThreshold()}


def small_images(key: Key, *, clients: int = IMAGES.clients) -> JaxProblem:
    """Partition images of MNIST, every second pixel, among clients of 20 each."""
    draw = generator(key, Purpose.SPLIT)
    train, test = (_every_second_pixel(standardized(mnist(part))) for part in ("train", "test"))
    chosen = train.take(draw.permutation(train.records)[: 20 * clients])
    return JaxProblem(
        chosen,
        iid(chosen, clients, draw, equal_sizes=True),
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


def texts(_: Key) -> JaxProblem:
    """Return all roles of Shakespeare with the paper's windows and network."""
    return _characters(window=80, stride=1, least_records=100, hidden=256, layers=2)


def small_texts(_: Key) -> JaxProblem:
    """Return the roles with windows of 10 characters, 60 apart, and one layer of width 32."""
    return _characters(window=10, stride=60, least_records=3, hidden=32, layers=1)


def _characters(
    *, window: int, stride: int, least_records: int, hidden: int, layers: int
) -> JaxProblem:
    """Return prediction of the character after a window by LSTM layers; a role is a client."""
    roles = shakespeare(window=window, stride=stride, least_records=least_records)
    model = networks.recurrent(len(roles.alphabet), hidden=hidden, layers=layers)
    return JaxProblem(
        roles.train, roles.partition, *model, test=roles.test, regularization=WEIGHT_DECAY
    )


SETUPS = {
    "mnist": Setup(IMAGES, small_images),
    "svhn": Setup(IMAGES_IN_FULL, street_numbers),
    "texts": Setup(TEXTS_IN_FULL, texts),
    "small texts": Setup(TEXTS_IN_SMALL, small_texts),
}
"""By the name of the data."""


def trained(setup: Setup, seeds: int, progress: Progress) -> Callable[[Row], Row]:
    """Return the function that trains a cell; cells of a seed share data, cohorts and noise."""
    training = setup.training
    progress(
        f"{seeds} x {training.rounds} rounds for each cell; the first also compiles the network"
    )
    keys = [Key.seeded(seed) for seed in range(seeds)]
    problems = [setup.make_problem(key) for key in keys]

    def measured(cell: Row) -> Row:
        sampling = cell["sampling"]
        z = cell["noise_to_sensitivity"]
        accuracies = []
        for problem, key in zip(problems, keys, strict=True):
            denoiser = denoiser_of(cell["method"], problem)
            algorithm = training.algorithm(sampling, z, problem.nodes, denoiser)
            accuracies.append(100 * final_accuracy(algorithm, problem, training.rounds, key))
        epsilon = _proved(training, sampling, z, problems[0].nodes, training.rounds)
        return {"own_epsilon": epsilon} | repeated(accuracies)

    return measured


def in_words(row: Row) -> str:
    """Return one cell as a line: each accuracy beside the epsilon of its own run."""
    accuracy = with_spread(row["accuracy"], row["interval"], 2)
    return (
        f"{row['sampling']:<8} z {row['noise_to_sensitivity']:<4g} {row['method']:<19} "
        f"ours {accuracy} at epsilon {rounded_up(row['own_epsilon'], 3)}  paper {row['paper']:.2f} "
        f"at {rounded_up(row['epsilon_proved'], 3)} (it says {row['epsilon']:.2f})"
    )


@cache
def _proved(training: Training, sampling: Sampling, z: float, clients: int, rounds: int) -> float:
    """Return the exact epsilon of a run of so many clients and rounds, at delta = clients^-1.1."""
    plan = training.algorithm(sampling, z, clients, Identity()).plan(rounds)
    return plan.cost(clients**-1.1).epsilon


REASONS = {
    "svhn": (
        "Ours: the paper's network, clients and rounds, but from a random start, where the",
        "paper's begins as trained on MNIST.",
    ),
    "mnist": (
        "The paper's numbers are of SVHN, and cannot be compared one by one. Ours: a network",
        "of 13,000 parameters on every second pixel of MNIST, and 20 rounds.",
    ),
    "texts": (
        "On a processor ours is one LSTM layer of width 32, windows of 10, and 15 rounds; the",
        "paper's is a larger network after more rounds.",
    ),
}


def verdict(rows: list[Row]) -> str:
    """Return how often methods beat no smoothing at the same noise, here and in the paper."""
    pairs = [
        (row, plain)
        for row in rows
        if row["method"] != PLAIN
        for plain in pick(
            rows,
            method=PLAIN,
            sampling=row["sampling"],
            noise_to_sensitivity=row["noise_to_sensitivity"],
        )
    ]
    ours = Counter(compared(row, plain) for row, plain in pairs)
    papers = sum(row["paper"] > plain["paper"] for row, plain in pairs)
    counts = ", ".join(f"{words} {count}" for words, count in ours.most_common())
    return (
        f"Beside {PLAIN} at the same noise, of {len(pairs)} cells, ours: {counts}; the paper's, "
        f"which have no intervals: higher {papers}."
    )


def as_text(name: str, data: str, rows: list[Row]) -> str:
    """Return all cells, why they differ from the paper's, and what smoothing gains."""
    title = f"{name}: test accuracy (%), half of its 95% interval, and epsilon by proof."
    return "\n".join([title, *REASONS[data], paragraph(verdict(rows)), "", *map(in_words, rows)])


def draw(rows: list[Row], *, x: str) -> Figure:
    """Draw accuracy over the noise or the method; needs the extra ``plots``."""
    named = [row | {"ours": "ours"} for row in rows]
    by = "method"
    if x == "method":
        by = "ours"
    return drawn(
        [
            Panel(
                title=f"{sampling.capitalize()} sampling",
                x=x.replace("_", " "),
                y="test accuracy (%); x: the paper's",
                lines=lines_of(
                    pick(named, sampling=sampling),
                    by=by,
                    x=x,
                    y="accuracy",
                    spread="interval",
                    paper="paper",
                ),
            )
            for sampling in kinds(rows, "sampling")
        ]
    )
