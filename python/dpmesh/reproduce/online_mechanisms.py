"""The online paper's mechanism against better ones at the same epsilon."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dpmesh.algorithms.online import OnlineLearning
from dpmesh.reproduce._output import Output, Progress
from dpmesh.reproduce.online_runs import (
    MOST_NODES,
    SOURCES,
    Copies,
    Point,
    Source,
    accuracies,
    counted,
    label_axes,
    paragraph,
    points_of,
    read,
)
from dpmesh.run import RepeatedRuns
from dpmesh.schedules import at

DELTA = 1e-5
L1_NORM = 9.0
"""Four in five of RCV1's documents have a smaller L1 norm; all have L2 norm 1."""


@dataclass(frozen=True)
class Contest:
    """Data, a batch size, and the epsilons at which the mechanisms are compared."""

    source: Source
    batch_size: int
    epsilons: tuple[float, ...]


MECHANISMS = ("paper", "mixture", "l1", "gaussian")


def mechanisms(
    folder: Path, *, seeds: int = 3, checkpoints: int | None = None, progress: Progress = print
) -> list[Path]:
    """Compare the paper's mechanism with better ones at the same epsilon, with 64 nodes.

    ``paper``: Laplace noise for clipped L2 norms. ``mixture``: the same, the projection moved to
    the mixture. ``l1``: Laplace noise for clipped L1 norms. ``gaussian``: Gaussian noise at
    delta = 1e-5; these two with the projection of the mixture.
    """
    from matplotlib.figure import Figure

    points: list[Point] = []
    lines: list[str] = []
    output = Output(folder, "online-mechanisms")
    contests = planned(*read(SOURCES, checkpoints))
    figure = Figure(figsize=(13, 3.8), layout="constrained")
    for contest, ax in zip(contests, figure.subplots(1, len(contests)), strict=True):
        copies = Copies.of(contest.source, seeds)
        curves: dict[str, list[Point]] = {name: [] for name in MECHANISMS}
        title = f"{contest.source.name}, batch size {contest.batch_size}"
        lines += ["", _row(title, MECHANISMS)]
        for epsilon in contest.epsilons:
            columns = []
            paper = copies.algorithm(epsilon, contest.batch_size)
            for name, algorithm in rivals(paper, contest.source.name).items():
                runs = copies.run(algorithm)
                curve = points_of(copies, runs, algorithm, name, MOST_NODES)
                points += curve
                curves[name].append(curve[-1])
                columns.append(f"{curve[-1].regret:.4f}{_accuracies(copies, runs)}")
                progress(f"{title}, epsilon {epsilon:g}, {name}: {columns[-1]}")
            lines.append(_row(f"epsilon {epsilon:g}", columns))
        for name, line in curves.items():
            x, y = [point.epsilon for point in line], [point.regret for point in line]
            errors = [point.interval for point in line]
            ax.errorbar(x, y, errors, capsize=3, marker="o", label=name)
        label_axes(ax, title, "epsilon")
    output.records(points)
    output.text("\n".join([paragraph(_introduction(seeds)), *lines, "", *_noises()]))
    output.figure(figure)
    return output.files


def planned(synthetic: Source, rcv1: Source) -> list[Contest]:
    """Return the contests, with steps that suit the noise: on RCV1 shorter than without noise."""
    slow = replace(rcv1, strong_convexity=0.1)
    rounds = 5
    batch_size = rcv1.at[-1] // rounds
    large = replace(rcv1, strong_convexity=0.3, at=(batch_size, rounds * batch_size))
    return [
        Contest(synthetic, 1, (0.1, 1.0, 10.0)),
        Contest(slow, 1, (1.0, 10.0, 100.0, 1000.0)),
        Contest(large, batch_size, (1.0, 10.0, 100.0)),
    ]


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


def _accuracies(copies: Copies, runs: RepeatedRuns) -> str:
    problem = copies.repeats[MOST_NODES].problem
    if problem.test is None:
        return ""
    own, released = (100 * accuracies(problem, x).mean() for x in (runs.parameters, runs.released))
    return f" ({own:.1f}/{released:.1f})"


def _introduction(seeds: int) -> str:
    return (
        "Average regret for each example after one pass, and on RCV1 the accuracy in percent of "
        f"the learners' own models / of the last broadcasts, which may be published: {MOST_NODES} "
        f"nodes, {counted(seeds, SOURCES)}, the same epsilon for each example. Gaussian noise has "
        f"delta = {DELTA:g} besides. L1 norms are clipped at {L1_NORM:g} on RCV1, whose L2 norms "
        "are 1, and at sqrt(10) on the synthetic data, where that clips nothing and buys nothing. "
        "On RCV1 lambda is 0.1 with batches of 1 and 0.3 with large ones."
    )


def _noises() -> list[str]:
    lines = [
        "Standard deviation of the noise in each coordinate over alpha_t, epsilon and batch 1:"
    ]
    for dim, data in ((10, "synthetic"), (47_236, "rcv1")):
        algorithms = rivals(OnlineLearning(epsilon=1.0), data).values()
        noises = [f"{a.noise_std(1, dim) / at(a.step_size, 1):.4g}" for a in algorithms]
        lines.append(_row(data, noises))
    return lines


def _row(name: str, columns: Iterable[str]) -> str:
    return f"{name:<24}" + "".join(f"{column:>20}" for column in columns)
