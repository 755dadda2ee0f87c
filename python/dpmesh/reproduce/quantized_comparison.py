"""Figures 4a and 4b of the quantized paper: its algorithm against others built from our parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, sqrt
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh.algorithms import OnlineLearning, QuantizedGossip
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.bounds.quantized import Powers
from dpmesh.data import Dataset, iid, mnist
from dpmesh.keys import Key, Purpose, generator
from dpmesh.privacy import Budget, Quantizer
from dpmesh.privacy.accounting.papers.quantized import Mode
from dpmesh.privacy.shown import rounded_up
from dpmesh.problems import LinearProblem
from dpmesh.reproduce._output import Output, Progress
from dpmesh.reproduce.gradient_perturbation import GradientPerturbation
from dpmesh.reproduce.quantized import CHOSEN, DELTA, NODES, mnist_network, seeded_runs
from dpmesh.schedules import InverseSqrt, PowerLaw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpmesh.problems.jax_model import JaxProblem

Floats = npt.NDArray[np.float64]

RECORDS = 12_000
STEP = 0.05
"""Of the finer quantizer."""

SHOWN_EPSILON = 1.0
"""Of the curves over bits and over samples."""

WIDTH = 90
"""Of the text."""

TESTED = 2_000
"""Test images of the network, of 10,000."""

Learned = Literal["regression", "network"]


@dataclass(frozen=True)
class Point:
    """One run of Figure 4, or the mean over seeds.

    Parameters
    ----------
    algorithm, epsilon
        Which; epsilon is infinite without noise.
    accuracy
        On the test set, of what may be published, mean over the nodes.
    bits
        Bits that a node sends to one neighbour in the whole run.
    samples
        Gradients of records that a node computes.
    paper_epsilon
        Epsilon of the same run by Theorem 1; NaN for other algorithms, or where it proves nothing.
    """

    algorithm: str
    epsilon: float
    accuracy: float
    bits: float
    samples: int
    paper_epsilon: float


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the algorithms learn, and what their sensitivities rest on.

    Parameters
    ----------
    problem
        Makes it.
    powers
        Schedules of the quantized algorithm; noise on gradients takes its steps and samples.
    clipping_norm, mode, smoothness
        As `QuantizedGossip` has them.
    epsilons, coarse
        What is compared, and the step of the coarser quantizer: a network's float32 parameters,
        far out under more noise, would be rounded by more than their sensitivity allows.
    title, proof
        What is learned, and why all that is compared is proved, in words.
    chosen
        What the paper does not describe, in words.
    """

    problem: Callable[[], Any]
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


TASKS: dict[Learned, Task] = {
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


def figure4(
    folder: Path,
    *,
    of: Learned = "regression",
    seeds: int = 1,
    rounds: int = 200,
    progress: Progress = print,
) -> list[Path]:
    """Compare accuracy against epsilon, bits and samples, on a task on MNIST."""
    task = TASKS[of]
    problem = task.problem()
    points, curves = [], {}
    for name, (make, samples) in contenders(rounds, task).items():
        for epsilon in task.epsilons:
            algorithm = make(epsilon)
            metrics = ["released_accuracy"]
            runs = seeded_runs(algorithm, problem, rounds, seeds, metrics=metrics, times=20)
            accuracies = np.mean([run.history["released_accuracy"] for run in runs], axis=0)
            bits = runs[0].traffic.bits / runs[0].traffic.messages * rounds
            claim = _claim(algorithm, rounds)
            points.append(Point(name, epsilon, accuracies[-1], bits, samples * rounds, claim))
            progress(_in_words(points[-1]))
            if epsilon == SHOWN_EPSILON:
                share = runs[0].history.rounds("released_accuracy") / rounds
                curves[name] = share, accuracies
    output = Output(folder, f"quantized-figure4{'' if of == 'regression' else f'-{of}'}")
    output.records(points)
    output.text(_text(points, rounds, seeds, task))
    output.figure(_draw(points, curves))
    return output.files


def _of_norm_1(images: Dataset) -> Dataset:
    norms = kernels.row_norms(images.features)[:, np.newaxis]
    return replace(images, features=images.features / norms)


def contenders(rounds: int, task: Task) -> dict[str, tuple[Callable[[float], AnyAlgorithm], int]]:
    """Return each algorithm as a function of epsilon, and its samples per node and round."""
    small = replace(task.powers, sample_size=0.0, sample_size_scale=60.0)
    large = task.powers.schedules(rounds).sample_size(1)
    alpha = task.powers.schedules(rounds).step_size(1)

    def quantized(powers: Powers, step: float | None) -> Callable[[float], QuantizedGossip]:
        schedules = powers.schedules(rounds)
        gossip = QuantizedGossip(
            **schedules._asdict(),
            compressor=None if step is None else Quantizer(step),
            clipping_norm=task.clipping_norm,
            mode=task.mode,
            smoothness=task.smoothness,
        )

        def with_noise(scale: float) -> QuantizedGossip:
            return replace(gossip, noise_std=PowerLaw(scale=scale, exponent=powers.noise))

        def make(epsilon: float) -> QuantizedGossip:
            if epsilon == inf:
                return replace(gossip, noise_std=None)
            return with_noise(Budget(epsilon, delta=DELTA).calibrate(with_noise, rounds))

        return make

    def gradients(epsilon: float) -> GradientPerturbation:
        plain = GradientPerturbation(
            step_size=alpha,
            sample_size=large,
            records=RECORDS,
            noise_multiplier=None,
            clipping_norm=task.clipping_norm,
        )
        if epsilon == inf:
            return plain
        budget = Budget(epsilon, delta=DELTA)
        noise = budget.calibrate(lambda z: replace(plain, noise_multiplier=z), rounds)
        return replace(plain, noise_multiplier=noise)

    def online(epsilon: float) -> OnlineLearning:
        private = None if epsilon == inf else epsilon
        return OnlineLearning(
            epsilon=private,
            delta=DELTA,
            step_size=InverseSqrt(2.0),
            radius=30.0,
            clipping_norm=task.clipping_norm,
            batch_size=RECORDS // rounds,
        )

    return {
        "quantized": (quantized(task.powers, STEP), large),
        "coarse": (quantized(task.powers, task.coarse), large),
        "not quantized": (quantized(task.powers, None), large),
        "constant sample": (quantized(small, STEP), 60),
        "noise on gradients": (gradients, large),
        "online learning": (online, RECORDS // rounds),
    }


def _claim(algorithm: AnyAlgorithm, rounds: int) -> float:
    """Return what Theorem 1 says, where it says something."""
    if not isinstance(algorithm, QuantizedGossip) or algorithm.noise_std is None:
        return float("nan")
    try:
        return algorithm.paper_budget(rounds, DELTA).epsilon
    except ValueError:
        return float("nan")


def _in_words(point: Point) -> str:
    charged = point.paper_epsilon
    claim = "" if np.isnan(charged) else f", Theorem 1: {rounded_up(charged, 3)}"
    return (
        f"{point.algorithm:<19} epsilon {point.epsilon:<5g} accuracy {point.accuracy:.3f}, "
        f"{point.bits / 8e6:.3g} MB, {point.samples:,} samples{claim}"
    )


def _text(points: list[Point], rounds: int, seeds: int, task: Task) -> str:
    best = {
        epsilon: max((p for p in points if p.epsilon == epsilon), key=lambda p: p.accuracy)
        for epsilon in task.epsilons
    }
    shown = {p.algorithm: p for p in points if p.epsilon == SHOWN_EPSILON}
    quantized, floats = shown["quantized"], shown["not quantized"]
    saved, lost = floats.bits / quantized.bits, floats.accuracy - quantized.accuracy
    claimed = quantized.paper_epsilon
    schedules = task.powers.schedules(rounds)
    lines = [
        f"Figure 4: the quantized algorithm against others, {task.title} on MNIST, 5 nodes.",
        "",
        CHOSEN,
        "",
        fill(
            "The paper compares with seven other papers' algorithms on a network. Here are those "
            f"that share our pieces, {task.proof}: the online paper's algorithm, which is [24] of "
            "the paper, with Gaussian noise; noise on gradients in place of states, unquantized, "
            "as in [29] and [30]; constant samples. Not reproduced, as the paper does not describe "
            "them and we do not have their texts: DP-ADMM [25], quantized DP-SGD [26], "
            "zeroth-order ADMM [27], dual averaging [28], A(DP)^2 SGD [29], Wang and Basar [30]. "
            "Figure 4c, the budget over the length of a run, is quantized-figure4c.",
            WIDTH,
        ),
        "",
        fill(
            f"Chosen: {rounds} rounds, {seeds} seed(s), a ring with weights 1/3, {task.chosen}, "
            f"{task.powers}, alpha_K = {schedules.step_size(1):.4g}, "
            f"beta_K = {schedules.consensus_step_size(1):.4g}, "
            f"gamma_K = {schedules.sample_size(1)}; quantizer steps {STEP:g} and, for 'coarse', "
            f"{task.coarse:g}. As "
            f"much noise as epsilon at delta = {DELTA:g} needs by exact accounting; replacing one "
            "record. Accuracy is that of what the nodes receive, which may be published.",
            WIDTH,
        ),
        "",
        *map(_in_words, points),
        "",
        "The paper: its algorithm is the most accurate, and cheapest in privacy. Here the best are",
        *(
            f"  epsilon {epsilon:<5g} {p.algorithm} ({p.accuracy:.3f})"
            for epsilon, p in best.items()
        ),
        "A state remembers every record that it was moved by, so that secret sampling is not",
        "proved to amplify its privacy; noise on gradients gains from it, and online learning uses",
        f"each record once. Quantization with step {STEP:g} sends",
        f"{saved:.3g} times fewer bits than floats at epsilon = {SHOWN_EPSILON:g} and takes",
        f"{lost:.3f} of accuracy. At that epsilon Theorem 1 "
        + ("proves nothing." if np.isnan(claimed) else f"charges {rounded_up(claimed, 3)}."),
    ]
    return "\n".join(lines)


def _draw(points: list[Point], curves: dict[str, tuple[Floats, Floats]]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    against_epsilon, against_bits, against_samples = figure.subplots(1, 3, sharey=True)
    for name, (share, accuracies) in curves.items():
        own = [p for p in points if p.algorithm == name]
        private = [p for p in own if p.epsilon < inf]
        (shown,) = (p for p in own if p.epsilon == SHOWN_EPSILON)
        against_epsilon.semilogx(
            [p.epsilon for p in private], [p.accuracy for p in private], ".-", label=name
        )
        against_bits.semilogx(share * shown.bits / 8e6, accuracies)
        against_samples.semilogx(share * shown.samples, accuracies)
    against_epsilon.set_xlabel("epsilon")
    against_bits.set_xlabel(f"MB from a node to a neighbour, epsilon = {SHOWN_EPSILON:g}")
    against_samples.set_xlabel(f"samples of a node, epsilon = {SHOWN_EPSILON:g}")
    against_epsilon.set_ylabel("test accuracy of what is released")
    figure.legend(loc="outside right center", frameon=False, fontsize="small")
    return figure
