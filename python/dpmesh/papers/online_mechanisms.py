"""The online paper's mechanism against better ones at the same epsilon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpmesh.algorithms.online import OnlineLearning
from dpmesh.papers._output import Output
from dpmesh.papers.online_runs import (
    MOST_NODES,
    SOURCES,
    Copies,
    Point,
    Tell,
    accuracies,
    label_axes,
    points_of,
)

DELTA = 1e-5
L1_NORM = 9.0
"""Of RCV1's documents four in five have a smaller L1 norm; all have L2 norm 1."""

MECHANISMS = ("paper", "mixture", "l1", "gaussian")


def mechanisms(folder: Path, *, seeds: int = 3, tell: Tell = print) -> list[Path]:
    """Compare the paper's mechanism with better ones at the same epsilon, with 64 nodes.

    ``paper``: Laplace noise for clipped L2 norms. ``mixture``: the same, the projection moved to
    the mixture. ``l1``: Laplace noise for clipped L1 norms. ``gaussian``: Gaussian noise at
    delta = 1e-5; these two with the projection of the mixture.

    Parameters
    ----------
    folder
        Where ``online-mechanisms.csv``, ``.txt`` and ``.png`` go.
    seeds
        Runs of each setting.
    tell
        Called with a line for every finished setting.
    """
    epsilons = {"synthetic": (0.1, 1.0, 10.0), "rcv1": (1.0, 10.0, 100.0, 1000.0)}
    points: list[Point] = []
    panels = []
    lines = [f"{'data':<11}{'epsilon':>8}" + "".join(f"{name:>22}" for name in MECHANISMS)]
    for source in SOURCES:
        smaller_steps = replace(source, strong_convexity=max(source.strong_convexity, 0.1))
        copies = Copies.of(smaller_steps, seeds)
        last: dict[str, list[Point]] = {name: [] for name in MECHANISMS}
        for epsilon in epsilons[source.name]:
            columns = []
            for name, algorithm in rivals(copies.algorithm(epsilon), source.name).items():
                runs = copies.run(algorithm)
                curve = points_of(copies, runs, algorithm, name, MOST_NODES)
                last[name].append(curve[-1])
                points += curve
                column = f"{curve[-1].regret:.4f}"
                problem = copies.repeats[MOST_NODES].problem
                if problem.test is not None:
                    column += f" ({100 * accuracies(problem, runs.parameters).mean():.1f}%)"
                columns.append(column)
                tell(f"{source.name} epsilon {epsilon:g} {name}: {column}")
            row = "".join(f"{column:>22}" for column in columns)
            lines.append(f"{source.name:<11}{epsilon:>8g}{row}")
        panels.append((source, last))
    noises = [
        f"{name} {algorithm.noise_std(1, dim) / algorithm.step_size(1):.4g}"
        for dim, data in ((10, "synthetic"), (47_236, "rcv1"))
        for name, algorithm in rivals(OnlineLearning(1.0), data).items()
    ]
    text = [
        f"Average regret for each example (and accuracy on RCV1) after one pass, {seeds} runs,",
        f"64 nodes, with the same epsilon for each example. Gaussian noise has delta = {DELTA:g}",
        f"besides. L1 norms are clipped at {L1_NORM:g} on RCV1 (of unit L2 norms), at sqrt(10) on",
        "the synthetic data, where nothing is clipped and nothing gained. lambda is 0.1 on RCV1.",
        "",
        *lines,
        "",
        "Standard deviation of the noise in each coordinate over alpha_t, at epsilon 1:",
        "synthetic: " + ", ".join(noises[: len(MECHANISMS)]),
        "rcv1:      " + ", ".join(noises[len(MECHANISMS) :]),
    ]
    from matplotlib.figure import Figure

    output = Output(folder, "online-mechanisms")
    output.records(points)
    output.text("\n".join(text))
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for ax, (source, last) in zip(figure.subplots(1, 2), panels, strict=True):
        for name, line in last.items():
            errors = [point.interval for point in line]
            ax.errorbar(
                [point.epsilon for point in line],
                [point.regret for point in line],
                errors,
                capsize=3,
                marker="o",
                label=name,
            )
        label_axes(ax, source.name, "epsilon")
    output.figure(figure)
    return output.files


def rivals(paper: OnlineLearning, data: str) -> dict[str, OnlineLearning]:
    """Return the mechanisms to compare, at the epsilon of `paper`."""
    mixture = replace(paper, projection="mixture")
    l1_norm = L1_NORM if data == "rcv1" else 10**0.5
    return {
        "paper": paper,
        "mixture": mixture,
        "l1": replace(mixture, norm="l1", clipping_norm=l1_norm),
        "gaussian": replace(mixture, delta=DELTA),
    }
