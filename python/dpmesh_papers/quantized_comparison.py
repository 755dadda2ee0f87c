"""Figures 4a and 4b of the quantized paper: its algorithm against others built from our parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf, isnan, nan, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._epsilons import rounded_up
from dpmesh.accounting.papers import NotProved
from dpmesh.accounting.papers.quantized import Mode
from dpmesh.algorithms import OnlineLearning, QuantizedGossip
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.data import Dataset, iid, mnist
from dpmesh.keys import Key, Purpose, generator
from dpmesh.noise import Quantizer
from dpmesh.privacy import Budget
from dpmesh.problems import LinearProblem
from dpmesh.schedules import InverseSqrt, PowerLaw
from dpmesh_papers._figure import Line, Panel, drawn, lines_of
from dpmesh_papers._scaffold import (
    Experiment,
    Progress,
    Row,
    compared,
    only,
    paragraph,
    pick,
    repeated,
    with_spread,
)
from dpmesh_papers.bounds.quantized import Powers
from dpmesh_papers.claims.quantized import paper_budget
from dpmesh_papers.gradient_perturbation import GradientPerturbation
from dpmesh_papers.quantized import CHOSEN, DELTA, NODES, mnist_network, seeded_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpmesh.problems.jax_model import JaxProblem

RECORDS = 12_000
"""Records of a node."""
STEP = 0.05
"""Step of the finer quantizer."""

SHOWN_EPSILON = 1.0
"""Epsilon of the curves over bits and over samples."""

RIVAL = "noise on gradients"
"""The strongest rival of the quantized algorithm."""

TESTED = 2_000
"""Number of test images of the network, out of 10,000."""

ModelName = Literal["regression", "network"]
AnyProblem: TypeAlias = "LinearProblem | JaxProblem"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A problem to learn, and the constants that the algorithms' sensitivities rest on.

    Parameters
    ----------
    problem
        Function that returns the problem.
    powers
        Schedules of the quantized algorithm; noise on gradients takes its steps and samples.
    clipping_norm, mode, smoothness
        As of `QuantizedGossip`.
    epsilons
        Epsilons at which the algorithms are compared.
    coarse
        Step of the coarser quantizer. A network's float32 parameters, far out under more noise,
        would be rounded by more than their sensitivity allows.
    title
        The problem in words.
    proof
        The reason why all compared algorithms are proved, in words.
    chosen
        Our choices where the paper describes none, in words.
    """

    problem: Callable[[], AnyProblem]
    powers: Powers
    clipping_norm: float
    mode: Mode
    smoothness: float = inf
    epsilons: tuple[float, ...]
    coarse: float
    title: str
    proof: str
    chosen: str


def mnist_regression() -> LinearProblem:
    """Return softmax regression on images of norm 1 in float64, which much noise needs."""
    train, test = (_of_norm_1(mnist(part)) for part in ("train", "test"))
    parts = iid(train, NODES, generator(Key.seeded(0), Purpose.SPLIT), equal_sizes=True)
    return LinearProblem(train, parts, "softmax", test=test, classes=10, feature_norm=1.0)


def mnist_small_network() -> JaxProblem:
    """Return the network of Figures 2 and 3, tested on fewer images; needs the extra ``jax``."""
    problem = mnist_network()
    assert problem.test is not None
    return replace(problem, test=problem.test.take(np.arange(TESTED)))


TASKS: dict[ModelName, Task] = {
    "regression": Task(
        problem=mnist_regression,
        powers=Powers(
            0.9,
            0.7,
            0.85,
            0.0,
            step_size_scale=100.0,
            consensus_step_size_scale=15.0,
            sample_size_scale=20.0,
        ),
        clipping_norm=sqrt(2),  # softmax regression on records of norm 1 needs no clipping to it
        mode="paper",  # proved here: convex, and alpha L <= 2 (1 - beta)
        smoothness=0.5,
        epsilons=(0.1, 0.3, 1.0, 3.0, inf),
        coarse=1.0,
        title="softmax regression",
        proof="on a convex problem, for which all of them are proved",
        chosen="images of norm 1",
    ),
    "network": Task(
        problem=mnist_small_network,
        powers=Powers(
            0.9,
            0.7,
            0.85,
            0.0,
            step_size_scale=55.0,
            consensus_step_size_scale=12.0,
            sample_size_scale=65.0,
        ),
        clipping_norm=0.5,
        mode="public_point",
        epsilons=(0.3, 1.0, 3.0, inf),
        coarse=0.2,
        title="a convolutional network",
        proof="each record's gradient clipped to norm 1/2, which is what their proofs need of "
        "nonconvex losses; the quantized algorithm takes gradients at the node's own message "
        "instead of its state, where Lemma 2 would be wrong",
        chosen="gray images, where the paper has 'binary' ones; two strided convolutions and a "
        f"linear layer (5,994 parameters); the first {TESTED:,} test images",
    ),
}


NAMES: dict[ModelName, str] = {
    "regression": "quantized-figure4",
    "network": "quantized-figure4-network",
}


def figure4(
    folder: Path,
    *,
    of: ModelName = "regression",
    seeds: int = 1,
    rounds: int = 200,
    progress: Progress = print,
) -> list[Path]:
    """Compare accuracy over epsilon, bits and samples, on a task on MNIST.

    `of` names the model that learns. A row is a round in which a run was measured: the last one,
    and at epsilon 1 about 20 of them. `accuracy` is that of what may be published on the test set,
    mean over nodes and seeds; `bits` and `samples`, up to that round, are what a node sends to one
    neighbour, and the gradients of records that it computes. `paper_epsilon` is Theorem 1's of the
    whole run; NaN for other algorithms, or where it proves nothing.
    """
    task = TASKS[of]
    problem = task.problem()
    rivals = contenders(rounds, task)
    experiment = Experiment(folder, NAMES[of], progress)

    def measured(cell: Row) -> list[Row]:
        contender = rivals[cell["algorithm"]]
        algorithm = contender.at_epsilon(cell["epsilon"])
        metrics = ["released_accuracy"]
        runs = seeded_runs(algorithm, problem, rounds, seeds, metrics=metrics, times=20)
        message_bits = runs[0].traffic.bits / runs[0].traffic.messages
        measured_rounds = runs[0].history.rounds("released_accuracy").tolist()
        accuracies = np.transpose([run.history["released_accuracy"] for run in runs])
        paper_epsilon = _paper_epsilon(algorithm, rounds)
        points = [
            {
                "round": t,
                **repeated(values.tolist()),
                "bits": message_bits * t,
                "samples": contender.samples * t,
                "paper_epsilon": paper_epsilon,
            }
            for t, values in zip(measured_rounds, accuracies, strict=True)
        ]
        if cell["epsilon"] == SHOWN_EPSILON:
            return points
        return points[-1:]

    cells = [
        {"algorithm": name, "epsilon": epsilon} for name, epsilon in product(rivals, task.epsilons)
    ]
    experiment.measure(cells, measured, _in_words)
    return experiment.write(partial(as_text, of=of), draw)


def _of_norm_1(images: Dataset) -> Dataset:
    """Return images scaled to norm 1."""
    norms = kernels.row_norms(images.features)[:, np.newaxis]
    return replace(images, features=images.features / norms)


@dataclass(frozen=True)
class Contender:
    """A compared algorithm.

    Parameters
    ----------
    at_epsilon
        Function of the epsilon of a whole run, which returns the algorithm with noise for it. At
        infinity the algorithm has no noise.
    samples
        Number of records whose gradients a node computes in a round.
    """

    at_epsilon: Callable[[float], AnyAlgorithm]
    samples: int


def contenders(rounds: int, task: Task) -> dict[str, Contender]:
    """Return the compared algorithms by name, for runs of so many rounds."""
    constant_samples = replace(task.powers, sample_size=0.0, sample_size_scale=60.0)
    sample_size = task.powers.schedules(rounds).sample_size(1)

    def quantized(powers: Powers, quantizer_step: float | None) -> Contender:
        plain = _noiseless_gossip(task, powers, quantizer_step, rounds)
        at_epsilon = partial(_gossip_at_epsilon, plain=plain, powers=powers, rounds=rounds)
        return Contender(at_epsilon, powers.schedules(rounds).sample_size(1))

    return {
        "quantized": quantized(task.powers, STEP),
        "coarse": quantized(task.powers, task.coarse),
        "not quantized": quantized(task.powers, None),
        "constant sample": quantized(constant_samples, STEP),
        RIVAL: Contender(partial(_noisy_gradients, task=task, rounds=rounds), sample_size),
        "online learning": Contender(
            partial(_online_learning, task=task, rounds=rounds), RECORDS // rounds
        ),
    }


def _noiseless_gossip(
    task: Task, powers: Powers, quantizer_step: float | None, rounds: int
) -> QuantizedGossip:
    """Return the paper's algorithm without noise; a step of None is without quantization."""
    schedules = powers.schedules(rounds)
    compressor = None
    if quantizer_step is not None:
        compressor = Quantizer(quantizer_step)
    return QuantizedGossip(
        step_size=schedules.step_size,
        consensus_step_size=schedules.consensus_step_size,
        sample_size=schedules.sample_size,
        noise_std=None,
        compressor=compressor,
        clipping_norm=task.clipping_norm,
        mode=task.mode,
        smoothness=task.smoothness,
    )


def _gossip_at_epsilon(
    epsilon: float, *, plain: QuantizedGossip, powers: Powers, rounds: int
) -> QuantizedGossip:
    """Return the algorithm with the least noise s (k + 1)^zeta that keeps an epsilon."""
    if epsilon == inf:
        return plain

    def with_noise(scale: float) -> QuantizedGossip:
        return replace(plain, noise_std=PowerLaw(scale=scale, exponent=powers.noise))

    return with_noise(Budget(epsilon, delta=DELTA).calibrate(with_noise, rounds))


def _noisy_gradients(epsilon: float, *, task: Task, rounds: int) -> GradientPerturbation:
    """Return noise on gradients, with the step and the sample size of the paper's algorithm."""
    schedules = task.powers.schedules(rounds)
    plain = GradientPerturbation(
        step_size=schedules.step_size(1),
        sample_size=schedules.sample_size(1),
        records=RECORDS,
        noise_to_sensitivity=None,
        clipping_norm=task.clipping_norm,
    )
    if epsilon == inf:
        return plain

    def with_noise(z: float) -> GradientPerturbation:
        return replace(plain, noise_to_sensitivity=z)

    return with_noise(Budget(epsilon, delta=DELTA).calibrate(with_noise, rounds))


def _online_learning(epsilon: float, *, task: Task, rounds: int) -> OnlineLearning:
    """Return the online paper's algorithm, which uses each record once, with Gaussian noise."""
    return OnlineLearning(
        epsilon=None if epsilon == inf else epsilon,
        delta=DELTA,
        step_size=InverseSqrt(2.0),
        radius=30.0,
        clipping_norm=task.clipping_norm,
        batch_size=RECORDS // rounds,
    )


def _paper_epsilon(algorithm: AnyAlgorithm, rounds: int) -> float:
    """Return the epsilon of Theorem 1; NaN for other algorithms, or where it proves nothing."""
    if not isinstance(algorithm, QuantizedGossip) or algorithm.noise_std is None:
        return nan
    try:
        return paper_budget(algorithm, rounds, DELTA)
    except NotProved:
        return nan


def _in_words(row: Row) -> str:
    paper_epsilon = row["paper_epsilon"]
    claim = ""
    if not isnan(paper_epsilon):
        claim = f", Theorem 1: {rounded_up(paper_epsilon, 3)}"
    return (
        f"{row['algorithm']:<19} epsilon {row['epsilon']:<5g} accuracy {_accuracy(row)}, "
        f"{row['bits'] / 8e6:.3g} MB, {row['samples']:,} samples{claim}"
    )


def _accuracy(row: Row) -> str:
    return with_spread(row["accuracy"], row["interval"], 3)


def as_text(rows: list[Row], of: ModelName = "regression") -> str:
    """Return the comparison with what the paper says."""
    task = TASKS[of]
    rounds = max(row["round"] for row in rows)
    schedules = task.powers.schedules(rounds)
    ends = pick(rows, round=rounds)
    lines = [
        f"Figure 4: the quantized algorithm against others, {task.title} on MNIST, 5 nodes.",
        "",
        CHOSEN,
        "",
        paragraph(
            "The paper compares with seven other papers' algorithms on a network. Here are those "
            f"that share our pieces, {task.proof}: the online paper's algorithm, which is [24] of "
            "the paper, with Gaussian noise; noise on gradients in place of states, unquantized, "
            "as in [29] and [30]; constant samples. Not reproduced, as the paper does not describe "
            "them and we do not have their texts: DP-ADMM [25], quantized DP-SGD [26], "
            "zeroth-order ADMM [27], dual averaging [28], A(DP)^2 SGD [29], Wang and Basar [30]. "
            "Figure 4c, the budget over the length of a run, is quantized-figure4c."
        ),
        "",
        paragraph(
            f"Chosen: {rounds} rounds, a ring with weights 1/3, {task.chosen}, "
            f"{task.powers}, alpha_K = {schedules.step_size(1):.4g}, "
            f"beta_K = {schedules.consensus_step_size(1):.4g}, "
            f"gamma_K = {schedules.sample_size(1)}; quantizer steps {STEP:g} and, for 'coarse', "
            f"{task.coarse:g}. As much noise as epsilon at delta = {DELTA:g} needs by exact "
            "accounting; replacing one record. Accuracy is that of what the nodes receive, which "
            f"may be published: mean of {rows[0]['seeds']} seed(s) and half of its 95% interval."
        ),
        "",
        *map(_in_words, ends),
        "",
        "The paper: its algorithm is the most accurate, and cheapest in privacy. Here, beside",
        f"{RIVAL}, it is",
        *_verdicts(ends),
        "",
        paragraph(
            "A state remembers every record that it was moved by, so that secret sampling is not "
            "proved to amplify its privacy; noise on gradients gains from it, and online learning "
            f"uses each record once. {_price(ends)}"
        ),
    ]
    return "\n".join(lines)


def _verdicts(ends: list[Row]) -> list[str]:
    """Return the verdicts, by epsilon, on the quantized algorithm and its strongest rival."""
    lines = []
    for row in pick(ends, algorithm="quantized"):
        for rival in pick(ends, algorithm=RIVAL, epsilon=row["epsilon"]):
            accuracies = f"{_accuracy(row)} and {_accuracy(rival)}"
            lines.append(f"  epsilon {row['epsilon']:<5g} {compared(row, rival)} ({accuracies})")
    return lines


def _price(ends: list[Row]) -> str:
    """Return how many bits quantization saves, what accuracy it costs, and Theorem 1's epsilon."""
    try:
        quantized, floats = (
            only(ends, epsilon=SHOWN_EPSILON, algorithm=name)
            for name in ("quantized", "not quantized")
        )
    except LookupError:
        return ""
    paper_epsilon = quantized["paper_epsilon"]
    claim = "proves nothing"
    if not isnan(paper_epsilon):
        claim = f"charges {rounded_up(paper_epsilon, 3)}"
    return (
        f"At epsilon = {SHOWN_EPSILON:g} quantization with step {STEP:g} sends "
        f"{floats['bits'] / quantized['bits']:.3g} times fewer bits than unquantized messages of "
        f"this run; beside them its accuracy is {_accuracy(quantized)} to {_accuracy(floats)}: "
        f"{compared(quantized, floats)}. Theorem 1 {claim} there."
    )


def draw(rows: list[Row]) -> Figure:
    """Draw accuracy over epsilon, bits and samples; needs the extra ``plots``."""
    private = [row for row in rows if row["epsilon"] < inf]
    ends = pick(private, round=max(row["round"] for row in rows))
    shown = [row | {"MB": row["bits"] / 8e6} for row in pick(private, epsilon=SHOWN_EPSILON)]
    title = f"epsilon = {SHOWN_EPSILON:g}"
    y = "test accuracy of what is released"
    panels = [Panel(title="", x="epsilon", y=y, log="x", lines=_curves(ends, "epsilon"))]
    for x, name in (("MB", "MB from a node to a neighbour"), ("samples", "samples of a node")):
        lines = _curves(shown, x)
        panels.append(Panel(title=title, x=name, y=y, log="x", lines=lines, kind="bands"))
    return drawn(panels)


def _curves(rows: list[Row], x: str) -> list[Line]:
    return lines_of(rows, by="algorithm", x=x, y="accuracy", spread="interval")
