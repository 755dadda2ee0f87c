"""Figures 2, 3 and 5 of the quantized paper (Chen, Wang, Zhang)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import dpmesh.topology as topology
from dpmesh.algorithms import QuantizedGossip
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.data import iid, mnist
from dpmesh.keys import Key, Purpose, generator
from dpmesh.privacy import Quantizer, accounting
from dpmesh.privacy.accounting.papers.quantized import Mode, sensitivities
from dpmesh.privacy.shown import rounded_up
from dpmesh.reproduce._output import Output, Progress
from dpmesh.reproduce.bounds.quantized import Powers
from dpmesh.reproduce.claims.quantized import theorem_1
from dpmesh.run import Metrics, Run, simulate
from dpmesh.run.metrics import Testable
from dpmesh.schedules import PowerLaw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dpmesh.problems.jax_model import JaxProblem

Floats = npt.NDArray[np.float64]

NODES = 5
DELTA = 1e-5
CHOSEN = """\
The text of the paper that we have lacks every number but these: MNIST, a convolutional network, 5
nodes with 12,000 training images each, the budget over 2,000 iterations. Its step sizes, sample
sizes, exponents, quantizer steps, noise, delta, network and graph are unknown: the ones here are
our own, so that shapes can be compared and values cannot."""


@dataclass(frozen=True)
class Cell:
    """One run of Figures 2 and 3.

    Parameters
    ----------
    step
        Of the quantizer.
    zeta
        Exponent of the noise.
    mode
        Where gradients are taken: ``"safe"`` at the state, as in the paper; ``"public_point"`` at
        the node's own message, with larger samples and tighter clipping.
    accuracy
        Of the nodes' models on the test set, mean over nodes and seeds.
    training_accuracy
        The same on all training records.
    released_accuracy
        Of what the nodes receive, which may be published, on the test set.
    bits
        Bits of a parameter in a message, in the last round.
    epsilon
        The proved epsilon, for a network, whose smoothness is unknown.
    unproved_epsilon
        What the recursion of Lemma 2, which does not hold for a network, would give under exact
        Gaussian accounting.
    """

    step: float
    zeta: float
    mode: Mode
    accuracy: float
    training_accuracy: float
    released_accuracy: float
    bits: float
    epsilon: float
    unproved_epsilon: float


POWERS = Powers(
    0.9,
    0.7,
    0.85,
    0.05,
    step_size_scale=50.0,
    consensus_step_size_scale=5.0,
    noise_scale=0.03,
)
"""Our schedules for Figures 2 and 3. They converge with all exponents of the noise below."""

QUANTIZER_STEPS = (0.01, 0.2, 0.5)
NOISE_EXPONENTS = (0.05, 0.14, 0.23)


def figure2(
    folder: Path,
    *,
    seeds: int = 1,
    rounds: int = 150,
    progress: Progress = print,
) -> list[Path]:
    """Train a network on MNIST with several quantizer steps and noise exponents.

    ``rounds`` is K + 1. The paper's 2,000 take hours on a laptop, as samples grow with the horizon.
    """
    problem = mnist_network()
    training = replace(problem, test=problem.train)
    cells, curves = [], {}
    for algorithm in _algorithms(rounds):
        metrics = ["accuracy", "compression"]
        runs = seeded_runs(algorithm, problem, rounds, seeds, metrics=metrics, times=5)
        cell = _cell(algorithm, runs, rounds, training)
        cells.append(cell)
        shown = runs[0].history.rounds("accuracy").astype(float)
        mean = np.mean([run.history["accuracy"] for run in runs], axis=0)
        curves[cell.step, cell.zeta, cell.mode] = shown, mean
        progress(_in_words(cell))
    output = Output(folder, "quantized-figure2")
    output.records(cells)
    output.text(_figure2_text(cells, rounds, seeds))
    output.figure(_draw(curves))
    return output.files


def seeded_runs(
    algorithm: AnyAlgorithm,
    problem: Testable,
    rounds: int,
    seeds: int,
    *,
    metrics: list[str],
    times: int,
) -> list[Run]:
    """Run an algorithm on the ring with each of the first seeds, measured about `times` times."""
    return [
        simulate(
            algorithm,
            problem,
            topology.ring(NODES),
            rounds=rounds,
            key=Key.seeded(seed),
            delta=DELTA,
            metrics=Metrics(metrics, every=max(1, rounds // times)),
        )
        for seed in range(seeds)
    ]


def _algorithms(rounds: int) -> Iterator[QuantizedGossip]:
    """Yield the paper's grid, and one whose budget is proved to gain by sampling."""
    for step in QUANTIZER_STEPS:
        for zeta in NOISE_EXPONENTS:
            schedules = replace(POWERS, noise=zeta).schedules(rounds)
            yield QuantizedGossip(**schedules._asdict(), compressor=Quantizer(step))
    schedules = replace(POWERS, sample_size_scale=10.0).schedules(rounds)
    finest = Quantizer(QUANTIZER_STEPS[0])
    yield QuantizedGossip(
        **schedules._asdict(), compressor=finest, clipping_norm=0.5, mode="public_point"
    )


def _cell(algorithm: QuantizedGossip, runs: list[Run], rounds: int, training: JaxProblem) -> Cell:
    def last(name: str) -> float:
        return float(np.mean([run.history.last(name) for run in runs]))

    assert isinstance(algorithm.compressor, Quantizer)
    assert isinstance(algorithm.noise_std, PowerLaw)
    return Cell(
        algorithm.compressor.step,
        algorithm.noise_std.exponent,
        algorithm.mode,
        last("accuracy"),
        float(np.mean([training.accuracy(run.parameters) for run in runs])),
        last("released_accuracy"),
        last("bits_per_node") / training.dim,
        runs[0].privacy.epsilon,
        replace(algorithm, mode="public_point").plan(rounds).cost(DELTA).epsilon,
    )


def mnist_network() -> JaxProblem:
    """Return MNIST partitioned among five nodes, and a small network; needs the extra ``jax``."""
    from dpmesh.problems.jax_model import JaxProblem
    from dpmesh.problems.networks import strided_convolutional

    train, test = (mnist(part) for part in ("train", "test"))
    parts = iid(train, NODES, generator(Key.seeded(0), Purpose.SPLIT), equal_sizes=True)
    return JaxProblem(
        train,
        parts,
        *strided_convolutional((28, 28, 1)),
        test=test,
        record_shape=(28, 28, 1),
        nodes_at_once=NODES,
        records_at_once=64,
    )


def _in_words(cell: Cell) -> str:
    return (
        f"step {cell.step:<5g} zeta {cell.zeta:<5g} {cell.mode:<13} accuracy {cell.accuracy:.3f} "
        f"(training {cell.training_accuracy:.3f}, released {cell.released_accuracy:.3f}), "
        f"{cell.bits:.2f} bits a parameter"
    )


def _figure2_text(cells: list[Cell], rounds: int, seeds: int) -> str:
    *paper, proved = cells
    by_step = {
        step: np.mean([cell.accuracy for cell in paper if cell.step == step])
        for step in QUANTIZER_STEPS
    }
    by_zeta = {
        zeta: np.mean([cell.accuracy for cell in paper if cell.zeta == zeta])
        for zeta in NOISE_EXPONENTS
    }
    schedules = POWERS.schedules(rounds)
    costs = cells[0].epsilon, cells[0].unproved_epsilon, proved.epsilon
    first, unproved, last = (rounded_up(epsilon, 4) for epsilon in costs)
    lines = [
        "Figures 2 and 3: test and training accuracy of a network on MNIST for several quantizer",
        "steps and noise exponents.",
        "",
        CHOSEN,
        "",
        f"Chosen: {rounds} rounds, {seeds} seed(s), a ring of 5 with weights 1/3, two strided",
        "convolutions and a linear layer (5,994 parameters), gradients clipped to norm 1,",
        f"{POWERS},",
        f"alpha_K = {schedules.step_size(1):.4g}, beta_K = {schedules.consensus_step_size(1):.4g},",
        f"gamma_K = {schedules.sample_size(1)}.",
        "",
        *map(_in_words, cells),
        "",
        "The paper: the smaller step and noise exponent, the better the accuracy. Averages of test",
        "accuracy here:",
        "step      " + ", ".join(f"{step:g}: {mean:.3f}" for step, mean in by_step.items()),
        "exponent  " + ", ".join(f"{zeta:g}: {mean:.3f}" for zeta, mean in by_zeta.items()),
        "",
        "Privacy: a network has no known smoothness, so that what is proved for gradients taken at",
        "the state does not gain by sampling: in the first row it is epsilon =",
        f"{first} at delta = {DELTA:g}. The recursion of Lemma 2, which is wrong",
        f"for nonconvex losses, would say {unproved}. It holds where",
        "gradients are taken at the node's own message: with ten times the samples and gradients",
        f"clipped to 1/2, the last row has a proved epsilon = {last}.",
    ]
    return "\n".join(lines)


def _draw(curves: dict[tuple[float, float, Mode], tuple[Floats, Floats]]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots(1, len(QUANTIZER_STEPS), sharey=True)
    for ax, step in zip(axes, QUANTIZER_STEPS, strict=True):
        for zeta in NOISE_EXPONENTS:
            ax.plot(*curves[step, zeta, "safe"], label=f"noise exponent {zeta:g}")
        if step == QUANTIZER_STEPS[0]:
            proved = curves[step, POWERS.noise, "public_point"]
            ax.plot(*proved, "k--", label="gradients at messages")
        ax.set_title(f"quantizer step {step:g}")
        ax.set_xlabel("iteration")
    axes[0].set_ylabel("test accuracy")
    axes[0].legend(frameon=False)
    return figure


@dataclass(frozen=True)
class Figure5Point:
    """One point of Figure 5.

    Parameters
    ----------
    zeta, gamma
        Exponents of the noise and of the sample size.
    paper
        Epsilon of Theorem 1; infinite if an iteration's is 1 or more, when it proves nothing.
    exact
        Epsilon of the same sensitivities by exact Gaussian accounting.
    safe
        The same for losses that need not be convex, with smoothness 1.
    finite_in_paper, finite
        Whether the budget stays bounded as the horizon grows, by either accounting.
    """

    zeta: float
    gamma: float
    paper: float
    exact: float
    safe: float
    finite_in_paper: bool
    finite: bool


def figure5(folder: Path, *, iterations: int = 2000) -> list[Path]:
    """Compute the budget over noise and sample-size exponents, by the paper's accounting and ours.

    ``iterations`` is K, the paper's 2,000.
    """
    zetas, gammas = np.linspace(-0.2, 0.3, 11), np.linspace(0.3, 1.0, 15)
    points = [_budget(zeta, gamma, iterations) for zeta in zetas for gamma in gammas]
    output = Output(folder, "quantized-figure5")
    output.records(points)
    output.text(_figure5_text(points, iterations))
    output.figure(_surfaces(points))
    return output.files


def _budget(zeta: float, gamma: float, iterations: int) -> Figure5Point:
    powers = Powers(0.9, 0.7, float(gamma), float(zeta))
    step, consensus, sample, noise = powers.schedules(iterations + 1)
    numbers = {
        "step_size": step(1),
        "consensus_step_size": consensus(1),
        "gradient_bound": 1.0,
        "sample_size": sample(1),
        "smoothness": 1.0,
    }
    stds = np.array([noise(k + 1) for k in range(1, iterations + 1)])
    claimed = sensitivities(iterations, mode="paper", **numbers)
    safe = sensitivities(iterations, mode="safe", **numbers)
    try:
        paper = theorem_1(target_delta=DELTA, sensitivities=claimed, noise_stds=stds).epsilon
    except ValueError:  # not proved
        paper = inf
    exact, proved = (
        accounting.gdp_epsilon(delta=DELTA, mu=accounting.gdp_mu(stds / delta))
        for delta in (claimed, safe)
    )
    bounded = [
        not any("finite" in condition for condition in powers.violations(accountant))
        for accountant in ("paper", "tight")
    ]
    return Figure5Point(powers.noise, powers.sample_size, paper, exact, proved, *bounded)


def _figure5_text(points: list[Figure5Point], iterations: int) -> str:
    def falls(name: str) -> str:
        by = {(p.zeta, p.gamma): asdict(p)[name] for p in points}
        zetas, gammas = (sorted(set(axis)) for axis in zip(*by, strict=True))
        table = np.array([[by[zeta, gamma] for gamma in gammas] for zeta in zetas])
        known = np.where(np.isfinite(table), table, 1e300)
        steps = np.concatenate([np.diff(known, axis=axis).ravel() for axis in (0, 1)])
        return "falls" if (steps <= 0).all() else "does not always fall"

    ratios = [p.paper / p.exact for p in points if p.paper < inf]
    lines = [
        f"Figure 5: the budget of {iterations} iterations over the exponents of noise and samples.",
        "",
        CHOSEN,
        "",
        "Chosen: alpha = 0.9, beta = 0.7, C = 1, all scales 1, delta = 1e-5, smoothness 1; delta_k",
        "in proportion to (k + 1)^-2 and normalised; as they are the paper's sum to 0.645.",
        "",
        "The paper: the budget falls as either exponent grows. Here it",
        f"  {falls('paper')} by Theorem 1,",
        f"  {falls('exact')} by exact accounting of the same sensitivities,",
        f"  {falls('safe')} by exact accounting of sensitivities that hold for nonconvex losses.",
        "",
        f"Theorem 1 says {min(ratios):.3g} to {max(ratios):.3g} times the exact epsilon. Where an",
        "iteration has an epsilon of 1 or more it proves nothing: at "
        f"{sum(p.paper == inf for p in points)} of {len(points)} points.",
        "As the horizon grows the budget stays finite at",
        f"{sum(p.finite_in_paper for p in points)} points by Theorem 1 and at "
        f"{sum(p.finite for p in points)} by exact accounting.",
        "",
        "zeta   gamma  Theorem 1  exact      nonconvex",
    ]
    lines += [
        f"{p.zeta:<6.2f} {p.gamma:<6.2f} {p.paper:<10.4g} {p.exact:<10.4g} {p.safe:.4g}"
        for p in points
    ]
    return "\n".join(lines)


def _surfaces(points: list[Figure5Point]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    titles = {"paper": "Theorem 1", "exact": "exact", "safe": "exact, nonconvex losses"}
    axes: list[Axes] = list(figure.subplots(1, len(titles), sharey=True))
    gammas = sorted({p.gamma for p in points})
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        for zeta in sorted({p.zeta for p in points})[::2]:
            row = [asdict(p)[name] for p in points if p.zeta == zeta]
            ax.semilogy(gammas, row, label=f"noise exponent {zeta:.1f}")
        ax.set_title(title)
        ax.set_xlabel("sample-size exponent")
    axes[0].set_ylabel("epsilon")
    axes[0].legend(frameon=False, fontsize="small")
    return figure
