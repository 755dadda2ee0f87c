"""Table 2 of the federated paper (Liang et al., DP-Fed-LS): logistic regression on MNIST.

The paper's own script measures on the first 1,010 test images (it breaks off after 101 batches of
10), at the best of all rounds by 10,000 private validation images, which costs privacy that is not
counted. Its model has an intercept, starts at random, and smooths its two tensors one by one. The
table shows that protocol beside ours: the last round, on all test images.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

import dpmesh.accounting as accounting
from dpmesh._epsilons import rounded_up
from dpmesh._privacy_types import NeighboringRelation
from dpmesh.algorithms.denoisers import AdaptiveSmoothing, Denoiser, LaplacianSmoothing, Reordered
from dpmesh.algorithms.federated import FederatedLearning, FederatedState
from dpmesh.algorithms.federated_updates import ClientUpdates
from dpmesh.data import Dataset, iid, mnist
from dpmesh.data.preprocessing import with_constant
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import ClientProblem, LinearProblem
from dpmesh.run import Broadcast
from dpmesh.run.channel import run_rounds
from dpmesh.schedules import ExponentialDecay
from dpmesh_papers._figure import Panel, drawn, lines_of
from dpmesh_papers._scaffold import (
    Experiment,
    Progress,
    Row,
    grid,
    kinds,
    over_seeds,
    pick,
    with_spread,
)
from dpmesh_papers.claims import federated as claims
from dpmesh_papers.claims.federated import Sampling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpmesh.problems.jax_model import JaxProblem

Noise = Literal["paper", "tight"]
"""That of Theorem 1 or 2, or the least by exact accounting, for the same epsilon."""
NOISES: tuple[Noise, ...] = ("paper", "tight")

EPSILONS = (6, 7, 8, 9)
SMOOTHINGS = (0.0, 1.0, 2.0, 3.0)
PAPER_ACCURACY: dict[Sampling, tuple[tuple[float, ...], ...]] = {
    "uniform": (
        (78.41, 81.85, 83.24, 84.62),
        (82.44, 85.12, 85.22, 84.69),
        (83.33, 84.65, 85.31, 85.27),
        (83.60, 83.53, 85.18, 85.35),
    ),
    "poisson": (
        (80.03, 82.05, 83.33, 84.52),
        (82.34, 84.85, 84.65, 84.49),
        (83.43, 84.85, 84.39, 85.87),
        (82.94, 84.29, 84.16, 84.79),
    ),
}
"""Table 2: a row for each smoothing, a column for each epsilon; percent."""

CLIENTS: dict[Sampling, int] = {"uniform": 1000, "poisson": 500}
"""N in section 6.1."""
TRAINING_RECORDS = 50_000
"""Records of all clients; the paper validates on the other 10,000."""
ROUNDS = 30
"""T."""
TESTED = 1_010
"""Test images of the paper's script."""
CLASSES = 10
SAMPLING_RATE = 0.05
"""tau."""
SENSITIVITY: dict[Sampling, int] = {"uniform": 2, "poisson": 1}
"""Sensitivity of the sum, in clipping norms: a client is replaced, or added or removed."""
CLIPPING_NORM = 0.3
"""L in section 6.1."""
WEIGHT_DECAY = 4e-5
"""lambda_0."""
PIXEL_MEAN = 0.1307
PIXEL_SCALE = 0.3081
"""With `PIXEL_MEAN`, public constants by which MNIST's pixels are customarily standardized."""


def table2(folder: Path, *, seeds: int = 3, progress: Progress = print) -> list[Path]:
    """Run Table 2: logistic regression on MNIST, DP-Fed against DP-Fed-LS, 32 cells.

    Every cell is run at the paper's noise, and at the noise that tight accounting needs for the
    same epsilon; the paper's four smoothing factors are joined by one that is chosen from the
    releases. Runs are seeded: all cells of a seed have the same data split, cohorts and noise up to
    scale. A row has the mean test `accuracy` in percent over the seeds, with its standard
    deviation, and `by_protocol`, at the paper's noise, that of the protocol of its script: the best
    of all rounds on 1,010 images, with an intercept and a random start.
    """
    train, test = (standardized(mnist(part)) for part in ("train", "test"))
    keys = [Key.seeded(seed) for seed in range(seeds)]
    repetitions = {
        sampling: [
            Repetition(
                key=key,
                problem=mnist_clients(train, test, clients, key),
                script=with_intercept(
                    train,
                    test,
                    clients,
                    key,
                    training_records=TRAINING_RECORDS,
                    weight_decay=WEIGHT_DECAY,
                ),
            )
            for key in keys
        ]
        for sampling, clients in CLIENTS.items()
    }

    def measured(cell: Row) -> Row:
        runs = repetitions[cell["sampling"]]
        accuracies = [100 * accuracy(cell, run.problem, run.key) for run in runs]
        by_protocol = np.nan
        if cell["paper"] is not None:
            of_script = [100 * accuracy_by_protocol(cell, run.script, run.key) for run in runs]
            by_protocol = float(np.mean(of_script))
        return over_seeds(accuracies) | {"by_protocol": by_protocol}

    experiment = Experiment(folder, "federated-table2", progress)
    experiment.measure(planned_cells(), measured, in_words)
    return experiment.write(as_text, draw)


@dataclass(frozen=True)
class Repetition:
    """The runs of one seed.

    Parameters
    ----------
    key
        Source of the randomness.
    problem
        Ours.
    script
        The paper's, with its test images and with its validation images.
    """

    key: Key
    problem: LinearProblem
    script: tuple[RandomStart, RandomStart]


def standardized(images: Dataset) -> Dataset:
    """Return the pixels, standardized by their customary mean and scale."""
    pixels = np.empty(images.features.shape, images.features.dtype)
    np.subtract(images.features, np.float32(PIXEL_MEAN), out=pixels)
    pixels /= np.float32(PIXEL_SCALE)
    return replace(images, features=pixels)


def mnist_clients(train: Dataset, test: Dataset, clients: int, key: Key) -> LinearProblem:
    """Partition 50,000 training images among the clients; the paper validates on the others."""
    draw = generator(key, Purpose.SPLIT)
    chosen = train.take(draw.permutation(train.records)[:TRAINING_RECORDS])
    parts = iid(chosen, clients, draw, equal_sizes=True)
    return LinearProblem(
        chosen, parts, "softmax", test=test, classes=10, regularization=WEIGHT_DECAY
    )


def planned_cells() -> list[Row]:
    """Return the cells with their noise: on the sum of updates, and over its sensitivity.

    A smoothing of None is `AdaptiveSmoothing`, which the paper does not have. `epsilon` is the
    target, `epsilon_proved` that of exact accounting, at delta = clients^-1.1.
    """
    cells: list[Row] = []
    for sampling, clients in CLIENTS.items():
        delta = clients**-1.1
        for (column, epsilon), noise in product(enumerate(EPSILONS), NOISES):
            z = noise_to_sensitivity(noise, sampling, epsilon, delta)
            cost = algorithm_of(sampling, z, LaplacianSmoothing(0)).plan(ROUNDS).cost(delta)
            papers: list[float | None] = [None] * len(SMOOTHINGS)
            if noise == "paper":
                papers = [row[column] for row in PAPER_ACCURACY[sampling]]
            cells += [
                {
                    "sampling": sampling,
                    "epsilon": epsilon,
                    "smoothing": smoothing,
                    "noise": noise,
                    "delta": delta,
                    "noise_std": z * CLIPPING_NORM * SENSITIVITY[sampling],
                    "noise_to_sensitivity": z,
                    "epsilon_proved": cost.epsilon,
                    "paper": paper,
                }
                for smoothing, paper in zip((*SMOOTHINGS, None), (*papers, None), strict=True)
            ]
    return cells


def noise_to_sensitivity(noise: Noise, sampling: Sampling, epsilon: float, delta: float) -> float:
    """Return the paper's z: noise over sensitivity, by its theorem, or the least that is proved."""
    if noise == "paper":
        return theorem_noise_to_sensitivity(sampling, epsilon, delta, ROUNDS)
    return tight_noise_to_sensitivity(sampling, epsilon, delta, ROUNDS)


def theorem_noise_to_sensitivity(
    sampling: Sampling, epsilon: float, delta: float, rounds: int
) -> float:
    """Return the noise of Theorem 1 (uniform) or 2 (Poisson) over the sensitivity of the sum."""
    theorem = claims.theorem_noise(
        target_epsilon=epsilon,
        target_delta=delta,
        sampling_rate=SAMPLING_RATE,
        rounds=rounds,
        clipping_norm=1.0,
        sampling=sampling,
    )
    return theorem.noise_std / SENSITIVITY[sampling]


def tight_noise_to_sensitivity(
    sampling: Sampling, epsilon: float, delta: float, rounds: int
) -> float:
    """Return the least noise over sensitivity that is proved to suffice, by exact accounting."""
    if sampling == "uniform":
        return accounting.fixed_size_gaussian_noise_to_sensitivity(
            target_epsilon=epsilon,
            target_delta=delta,
            sampling_rate=SAMPLING_RATE,
            neighboring_relation="replace_one",
            count=rounds,
        )
    return accounting.poisson_gaussian_noise_to_sensitivity(
        target_epsilon=epsilon,
        target_delta=delta,
        sampling_rate=SAMPLING_RATE,
        neighboring_relation="add_remove",
        count=rounds,
    )


def client_updates(sampling: Sampling) -> ClientUpdates:
    """Return the sampling, clipping and local training of clients of section 6.1."""
    return ClientUpdates(
        clients=CLIENTS[sampling],
        sampling_rate=SAMPLING_RATE,
        clipping_norm=CLIPPING_NORM,
        sampling=sampling,
        batch_size=10,
        epochs=5,
        step_size=ExponentialDecay(scale=0.1, rate=0.99),
    )


def algorithm_of(
    sampling: Sampling, z: float | None, denoiser: Denoiser, updates: ClientUpdates | None = None
) -> FederatedLearning:
    """Return the algorithm with the parameters of section 6.1.

    Parameters
    ----------
    sampling
        Subsampling of clients: ``"uniform"`` or ``"poisson"``.
    z
        Standard deviation of the noise over the sensitivity of the sum; None for no noise.
    denoiser
        The denoiser of the sum.
    updates
        The clients' updates, with the same sampling; by default `client_updates`.
    """
    multiplier = None
    if z is not None:
        multiplier = noise_multiplier(sampling, z)
    if updates is None:
        updates = client_updates(sampling)
    return FederatedLearning(updates, noise_multiplier=multiplier, denoiser=denoiser)


def noise_multiplier(sampling: Sampling, z: float) -> float:
    """Return the noise on the sum over the clipping norm; the paper's z is over the sensitivity."""
    relation: NeighboringRelation = "add_remove"
    if sampling == "uniform":
        relation = "replace_one"
    return z / accounting.noise_to_sensitivity(1.0, neighboring_relation=relation)


def accuracy(cell: Row, problem: LinearProblem, key: Key) -> float:
    """Run one cell with one key; return the test accuracy of the last model, a share."""
    smoothing = cell["smoothing"]
    denoiser: Denoiser = AdaptiveSmoothing(rounds=4 * ROUNDS)
    if smoothing is not None:
        denoiser = LaplacianSmoothing(smoothing)
    algorithm = algorithm_of(cell["sampling"], cell["noise_to_sensitivity"], denoiser)
    return final_accuracy(algorithm, problem, ROUNDS, key)


def accuracy_by_protocol(cell: Row, problems: tuple[RandomStart, RandomStart], key: Key) -> float:
    """Run one cell with one key as the paper's script does; return the accuracy that it reports."""
    tested, validated = problems
    denoiser = by_tensor(cell["smoothing"], tested.train.dim)
    algorithm = algorithm_of(cell["sampling"], cell["noise_to_sensitivity"], denoiser)
    return best_accuracy(algorithm, tested, validated, ROUNDS, key)


def final_accuracy(
    algorithm: FederatedLearning, problem: LinearProblem | JaxProblem, rounds: int, key: Key
) -> float:
    """Return the test accuracy of the last model."""
    (last_state,) = deque(states(algorithm, problem, rounds, key), maxlen=1)
    return float(problem.accuracy(algorithm.parameters(last_state))[0])


def states(
    algorithm: FederatedLearning, problem: ClientProblem, rounds: int, key: Key
) -> Iterator[FederatedState]:
    """Yield the state after each round, over a network that loses no message."""
    for step in run_rounds(algorithm, problem, Broadcast(), rounds=rounds, key=key):
        yield step.state


def in_words(row: Row) -> str:
    """Return one cell as a line."""
    paper = ""
    if row["paper"] is not None:
        paper = f", by its protocol {row['by_protocol']:.2f}, paper {row['paper']:.2f}"
    return (
        f"{row['sampling']:<8} epsilon {row['epsilon']}  {row['noise']} noise "
        f"{row['noise_std']:.3f}  {_smoothed(row['smoothing']):<16}  "
        f"{with_spread(row['accuracy'], row['spread'], 2)}{paper}"
    )


def _smoothed(smoothing: float | None) -> str:
    if smoothing is None:
        return "smoothing chosen"
    return f"smoothing {smoothing:g}"


def as_text(rows: list[Row]) -> str:
    """Return the table as the paper prints it, several numbers in each cell."""
    seeds = rows[0]["seeds"]
    lines = [
        "Table 2: test accuracy (%) of logistic regression on MNIST after 30 rounds.",
        "In each cell: the paper's / ours by its protocol / ours / ours at the noise that tight",
        f"accounting needs for the same epsilon; mean of {seeds} seeds. All but the last",
        "have the paper's noise. Its protocol: the best of 30 rounds by private validation images,",
        "on the first 1,010 test images; an intercept, a random start, smoothing by tensor.",
        "Ours: the last round, on all 10,000.",
        "smoothing chosen: picked from the releases, as if for 4 times the rounds.",
    ]
    widths = (18, 25)
    for sampling in kinds(rows, "sampling"):
        rows_of_sampling = pick(rows, sampling=sampling)
        plain = pick(rows_of_sampling, smoothing=0.0)
        _, *stds = grid(
            plain,
            row="noise",
            column="epsilon",
            name="{} noise".format,
            show=lambda row: f"{row['noise_std']:.3f}",
            widths=widths,
        )
        _, *proved = grid(
            plain,
            row="noise",
            column="epsilon",
            name=lambda _: "  proved epsilon",
            show=lambda row: rounded_up(row["epsilon_proved"], 3),
            widths=widths,
        )
        heading, *table = grid(
            pick(rows_of_sampling, noise="paper"),
            row="smoothing",
            column="epsilon",
            show=partial(_beside_tight, rows_of_sampling),
            name=_smoothed,
            head="epsilon {}".format,
            corner=f"{sampling} sampling",
            widths=widths,
        )
        noises = [line for pair in zip(stds, proved, strict=True) for line in pair]
        lines += ["", heading, *noises, *table]
    return "\n".join(lines)


def _beside_tight(rows: list[Row], row: Row) -> str:
    """Return the paper's accuracy and ours, at its noise and at the tight noise."""
    tight_cells = pick(rows, epsilon=row["epsilon"], smoothing=row["smoothing"], noise="tight")
    tight = [f"{cell['accuracy']:.2f}" for cell in tight_cells]
    paper = "- / -"
    if row["paper"] is not None:
        paper = f"{row['paper']:.2f}/{row['by_protocol']:.2f}"
    return "/".join([paper, f"{row['accuracy']:.2f}", *tight])


def draw(rows: list[Row]) -> Figure:
    """Draw accuracy over epsilon, one line for each smoothing; needs the extra ``plots``."""
    return drawn(
        [
            Panel(
                title=f"{sampling.capitalize()} sampling, {noise} noise",
                x="epsilon",
                y="test accuracy (%); x: the paper's",
                ticks=EPSILONS,
                lines=lines_of(
                    pick(rows, sampling=sampling, noise=noise),
                    by="smoothing",
                    x="epsilon",
                    y="accuracy",
                    spread="spread",
                    paper="paper",
                    name=_smoothed,
                ),
            )
            for sampling, noise in product(kinds(rows, "sampling"), NOISES)
        ],
        columns=2,
    )


@dataclass(frozen=True)
class RandomStart(LinearProblem):
    """A linear model with an intercept that starts within 1 / sqrt(features), as PyTorch's does."""

    def initial(self, key: Key) -> npt.NDArray[np.float64]:
        """Return the first model, uniform in +-1 / sqrt(features), shape (1, dim)."""
        bound = (self.train.dim - 1) ** -0.5  # PyTorch does not count the intercept's feature
        return generator(key, Purpose.INIT).uniform(-bound, bound, (1, self.dim))


def with_intercept(
    train: Dataset,
    test: Dataset,
    clients: int,
    key: Key,
    *,
    training_records: int,
    weight_decay: float,
) -> tuple[RandomStart, RandomStart]:
    """Return the problem tested as the script tests, and the same with its validation images.

    Clients have `training_records` of the training images together; validation has the others.
    """
    draw = generator(key, Purpose.SPLIT)
    order = draw.permutation(train.records)
    chosen = train.take(order[:training_records])
    validation = train.take(order[training_records:])
    tested = test.take(np.arange(min(TESTED, test.records)))
    chosen, validation, tested = (with_constant(part) for part in (chosen, validation, tested))
    parts = iid(chosen, clients, draw, equal_sizes=True)
    problem = RandomStart(
        chosen, parts, "softmax", test=tested, classes=CLASSES, regularization=weight_decay
    )
    return problem, replace(problem, test=validation)


def by_tensor(smoothing: float, features: int) -> Reordered:
    """Return smoothing of the weights, class by class, and of the intercepts by themselves.

    `features` counts the constant feature of the intercepts, the last.
    """
    positions = np.arange(CLASSES * features).reshape(CLASSES, features)
    order = np.concatenate([positions[:, :-1].ravel(), positions[:, -1]])
    blocks = CLASSES * (features - 1), CLASSES
    return Reordered(LaplacianSmoothing(smoothing, blocks=blocks), order)


def best_accuracy(
    algorithm: FederatedLearning, tested: RandomStart, validated: RandomStart, rounds: int, key: Key
) -> float:
    """Return the test accuracy at the round that is best on the validation images."""
    accuracies = []
    for step in run_rounds(algorithm, tested, Broadcast(), rounds=rounds, key=key):
        model = algorithm.parameters(step.state)
        on_validation = float(validated.accuracy(model)[0])
        on_test = float(tested.accuracy(model)[0])
        accuracies.append((on_validation, on_test))
    _, accuracy_at_best = max(accuracies, key=lambda pair: pair[0])
    return accuracy_at_best
