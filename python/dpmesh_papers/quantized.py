"""Figures 2, 3 and 5 of the quantized paper (Chen, Wang, Zhang).

Symbols: K + 1 rounds, step sizes alpha_K and beta_K, samples of gamma_K records and noise sigma_k
are power laws with the exponents alpha, beta, gamma and zeta (`bounds.quantized.Powers`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import dpmesh.accounting as accounting
import dpmesh.topology as topology
from dpmesh._epsilons import rounded_up
from dpmesh.accounting.papers import NotProved
from dpmesh.accounting.papers.quantized import Mode, sensitivities
from dpmesh.algorithms import QuantizedGossip
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.data import iid, mnist
from dpmesh.keys import Key, Purpose, generator
from dpmesh.noise import Quantizer
from dpmesh.problems import Problem
from dpmesh.run import Metrics, Run, simulate
from dpmesh_papers._figure import Panel, drawn, lines_of
from dpmesh_papers._scaffold import Experiment, Progress, Row, kinds, pick, repeated
from dpmesh_papers.bounds.quantized import Powers
from dpmesh_papers.claims.quantized import theorem_1

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpmesh.problems.jax_model import JaxProblem

NODES = 5
DELTA = 1e-5
CHOSEN = """\
The text of the paper that we have lacks every number but these: MNIST, a convolutional network, 5
nodes with 12,000 training images each, the budget over 2,000 iterations. Its step sizes, sample
sizes, exponents, quantizer steps, noise, delta, network and graph are unknown: the ones here are
our own, so that shapes can be compared and values cannot."""


POWERS = Powers(
    0.9, 0.7, 0.85, 0.05, step_size_scale=50.0, consensus_step_size_scale=5.0, noise_scale=0.03
)
"""Our schedules for Figures 2 and 3. They converge with all exponents of the noise below."""

QUANTIZER_STEPS = (0.01, 0.2, 0.5)
NOISE_EXPONENTS = (0.05, 0.14, 0.23)
"""zeta."""


def figure2(
    folder: Path, *, seeds: int = 1, rounds: int = 150, progress: Progress = print
) -> list[Path]:
    """Train a network on MNIST with several quantizer steps and noise exponents.

    ``rounds`` is K + 1. The paper's 2,000 take hours on a laptop, as samples grow with the horizon.
    Gradients are taken at the state, as in the paper (``"safe"``), or at the node's own message,
    with larger samples and tighter clipping (``"public_point"``).

    A row is a round in which a run was measured, its accuracy the mean over nodes and seeds. The
    last row of a run also has the accuracy of training records and of released messages, the `bits`
    of a message for each parameter, the proved `epsilon`, and `unproved_epsilon`, that of the
    recursion of Lemma 2, which does not hold for a network, under exact Gaussian accounting.
    """
    problem = mnist_network()
    assert problem.test is not None
    on_training = replace(problem, test=problem.train.take(np.arange(problem.test.records)))

    def measured(cell: Row) -> list[Row]:
        algorithm = _algorithm(cell, rounds)
        metrics = ["accuracy", "compression"]
        runs = seeded_runs(algorithm, problem, rounds, seeds, metrics=metrics, times=5)

        def last(name: str) -> float:
            return float(np.mean([run.history.last(name) for run in runs]))

        measured_rounds = runs[0].history.rounds("accuracy").tolist()
        accuracies = np.transpose([run.history["accuracy"] for run in runs])
        by_lemma_2 = replace(algorithm, mode="public_point")  # whose recursion is the lemma's
        end = {
            "training_accuracy": np.mean([on_training.accuracy(run.parameters) for run in runs]),
            "released_accuracy": last("released_accuracy"),
            "bits": last("bits_per_node") / problem.dim,
            "epsilon": runs[0].privacy.epsilon,
            "unproved_epsilon": by_lemma_2.plan(rounds).cost(DELTA).epsilon,
        }
        points = [
            {"round": t, **repeated(values)}
            for t, values in zip(measured_rounds, accuracies, strict=True)
        ]
        return [*points[:-1], points[-1] | end]

    cells = [
        {"step": step, "zeta": zeta, "mode": "safe"}
        for step, zeta in product(QUANTIZER_STEPS, NOISE_EXPONENTS)
    ]
    cells.append({"step": QUANTIZER_STEPS[0], "zeta": POWERS.noise, "mode": "public_point"})
    experiment = Experiment(folder, "quantized-figure2", progress)
    experiment.measure(cells, measured, _in_words)
    text = partial(text_of_figure2, rounds=rounds, seeds=seeds)
    return experiment.write(text, _draw_accuracies)


def seeded_runs(
    algorithm: AnyAlgorithm,
    problem: Problem,
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


def _algorithm(cell: Row, rounds: int) -> QuantizedGossip:
    """Return the algorithm of a cell.

    It is one of the paper's grid, or in the mode ``"public_point"`` the one whose epsilon is proved
    to fall with the sample size.
    """
    compressor = Quantizer(cell["step"])
    if cell["mode"] == "safe":
        schedules = replace(POWERS, noise=cell["zeta"]).schedules(rounds)
        return QuantizedGossip(**schedules._asdict(), compressor=compressor)
    schedules = replace(POWERS, sample_size_scale=10.0).schedules(rounds)
    return QuantizedGossip(
        **schedules._asdict(), compressor=compressor, clipping_norm=0.5, mode="public_point"
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


def _in_words(row: Row) -> str:
    return (
        f"step {row['step']:<5g} zeta {row['zeta']:<5g} {row['mode']:<13} accuracy "
        f"{row['accuracy']:.3f} (training {row['training_accuracy']:.3f}, released "
        f"{row['released_accuracy']:.3f}), {row['bits']:.2f} bits a parameter"
    )


def text_of_figure2(rows: list[Row], *, rounds: int, seeds: int) -> str:
    """Return the ends of all runs, averages over the grid, and epsilons."""
    ends = [row for row in rows if row.get("bits") is not None]
    paper = pick(ends, mode="safe")
    at_messages = pick(ends, mode="public_point")
    step_means = {
        step: np.mean([row["accuracy"] for row in pick(paper, step=step)])
        for step in kinds(paper, "step")
    }
    zeta_means = {
        zeta: np.mean([row["accuracy"] for row in pick(paper, zeta=zeta)])
        for zeta in kinds(paper, "zeta")
    }
    schedules = POWERS.schedules(rounds)
    first = rounded_up(ends[0]["epsilon"], 4)
    unproved = rounded_up(ends[0]["unproved_epsilon"], 4)
    last = ", ".join(rounded_up(row["epsilon"], 4) for row in at_messages)
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
        *map(_in_words, ends),
        "",
        "The paper: the smaller step and noise exponent, the better the accuracy. Averages of test",
        "accuracy here:",
        "step      " + ", ".join(f"{step:g}: {mean:.3f}" for step, mean in step_means.items()),
        "exponent  " + ", ".join(f"{zeta:g}: {mean:.3f}" for zeta, mean in zeta_means.items()),
        "",
        "Privacy: a network has no known smoothness, so that what is proved for gradients taken at",
        "the state does not gain by sampling: in the first row it is epsilon =",
        f"{first} at delta = {DELTA:g}. The recursion of Lemma 2, which is wrong",
        f"for nonconvex losses, would say {unproved}. It holds where",
        "gradients are taken at the node's own message: with ten times the samples and gradients",
        f"clipped to 1/2, the last row has a proved epsilon = {last}.",
    ]
    return "\n".join(lines)


def _draw_accuracies(rows: list[Row]) -> Figure:
    """Draw accuracy over rounds; needs the extra ``plots``."""
    names = {"public_point": "gradients at messages"}
    named = [
        row | {"name": names.get(row["mode"], f"noise exponent {row['zeta']:g}")} for row in rows
    ]
    panels = []
    for step in kinds(rows, "step"):
        rows_of_step = pick(named, step=step)
        lines = lines_of(rows_of_step, by="name", x="round", y="accuracy", spread="interval")
        title = f"quantizer step {step:g}"
        y = "test accuracy"
        panels.append(Panel(title=title, x="iteration", y=y, lines=lines, kind="bands"))
    return drawn(panels)


def figure5(folder: Path, *, iterations: int = 2000, progress: Progress = print) -> list[Path]:
    """Compute the budget over noise and sample-size exponents, by the paper's accounting and ours.

    ``iterations`` is K, the paper's 2,000. Columns of the result:

    - ``paper``: Theorem 1's epsilon; infinite if that of an iteration is 1 or more, where the
      theorem proves nothing.
    - ``exact``: epsilon for the paper's sensitivities by exact Gaussian accounting.
    - ``safe``: the same for losses that need not be convex, of smoothness 1.
    - ``finite_in_paper`` and ``finite``: True if the budget stays bounded as K grows, by Theorem 1
      and by exact accounting.
    """
    experiment = Experiment(folder, "quantized-figure5", progress)
    points = product(np.linspace(-0.2, 0.3, 11).tolist(), np.linspace(0.3, 1.0, 15).tolist())
    cells = ({"zeta": zeta, "gamma": gamma} for zeta, gamma in points)
    experiment.measure(cells, partial(_budget, iterations=iterations))
    return experiment.write(partial(text_of_figure5, iterations=iterations), _draw_budgets)


def _budget(cell: Row, *, iterations: int) -> Row:
    powers = Powers(0.9, 0.7, cell["gamma"], cell["zeta"])
    paper, exact = budgets(powers, iterations, "paper")
    _, safe = budgets(powers, iterations, "safe")
    return {
        "paper": paper,
        "exact": exact,
        "safe": safe,
        "finite_in_paper": powers.stays_finite("paper"),
        "finite": powers.stays_finite("tight"),
    }


def budgets(powers: Powers, iterations: int, mode: Mode) -> tuple[float, float]:
    """Return the epsilon of a run by Theorem 1, and by exact accounting of its sensitivities.

    Both are for replacing one record, at delta = 1e-5, with C = 1 and losses of smoothness 1.
    Theorem 1 proves nothing, which is infinity here, where an iteration's epsilon is 1 or more.
    `iterations` is K, `mode` the recursion of the sensitivities as of `QuantizedGossip`.
    """
    step, consensus, sample, noise = powers.schedules(iterations + 1)
    deltas = sensitivities(
        iterations,
        step_size=step(1),
        consensus_step_size=consensus(1),
        gradient_bound=1.0,
        sample_size=sample(1),
        mode=mode,
        smoothness=1.0,
    )
    stds = np.array([noise(k + 1) for k in range(1, iterations + 1)])
    try:
        paper = theorem_1(target_delta=DELTA, sensitivities=deltas, noise_stds=stds)
    except NotProved:
        paper = inf
    exact = accounting.gdp_epsilon(delta=DELTA, mu=accounting.gdp_mu(stds / deltas))
    return paper, exact


def text_of_figure5(rows: list[Row], *, iterations: int) -> str:
    """Return how the budgets change with both exponents, and all of them."""

    def trend(name: str) -> str:
        table = [[row[name] for row in pick(rows, zeta=zeta)] for zeta in kinds(rows, "zeta")]
        finite = np.where(np.isfinite(table), table, 1e300)
        steps = np.concatenate([np.diff(finite, axis=axis).ravel() for axis in (0, 1)])
        if (steps <= 0).all():
            return "falls"
        return "does not always fall"

    ratios = [row["paper"] / row["exact"] for row in rows if row["paper"] < inf]
    lines = [
        f"Figure 5: the budget of {iterations} iterations over the exponents of noise and samples.",
        "",
        CHOSEN,
        "",
        "Chosen: alpha = 0.9, beta = 0.7, C = 1, all scales 1, delta = 1e-5, smoothness 1; delta_k",
        "in proportion to (k + 1)^-2 and normalised; as they are the paper's sum to 0.645.",
        "",
        "The paper: the budget falls as either exponent grows. Here it",
        f"  {trend('paper')} by Theorem 1,",
        f"  {trend('exact')} by exact accounting of the same sensitivities,",
        f"  {trend('safe')} by exact accounting of sensitivities that hold for nonconvex losses.",
        "",
        f"Theorem 1 says {min(ratios):.3g} to {max(ratios):.3g} times the exact epsilon. Where an",
        "iteration has an epsilon of 1 or more it proves nothing: at "
        f"{len(rows) - len(ratios)} of {len(rows)} points.",
        "As the horizon grows the budget stays finite at",
        f"{sum(row['finite_in_paper'] for row in rows)} points by Theorem 1 and at "
        f"{sum(row['finite'] for row in rows)} by exact accounting.",
        "",
        "zeta   gamma  Theorem 1  exact      nonconvex",
    ]
    lines += [
        f"{row['zeta']:<6.2f} {row['gamma']:<6.2f} {row['paper']:<10.4g} {row['exact']:<10.4g} "
        f"{row['safe']:.4g}"
        for row in rows
    ]
    return "\n".join(lines)


def _draw_budgets(rows: list[Row]) -> Figure:
    """Draw the budget over the sample-size exponent; needs the extra ``plots``."""
    titles = {"paper": "Theorem 1", "exact": "exact", "safe": "exact, nonconvex losses"}
    shown_exponents = kinds(rows, "zeta")[::2]
    shown_rows = [row for row in rows if row["zeta"] in shown_exponents]
    panels = []
    for name, title in titles.items():
        lines = lines_of(
            shown_rows, by="zeta", x="gamma", y=name, name=lambda zeta: f"noise exponent {zeta:.1f}"
        )
        x = "sample-size exponent"
        panels.append(Panel(title=title, x=x, y="epsilon", log="y", lines=lines, kind="bands"))
    return drawn(panels)
