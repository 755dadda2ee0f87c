"""Figures 1 and 2 of the online paper (Li, Zhou, Chen, Jiang).

The figures show no numbers except axes; we compare what the paper says of them in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from dpmesh.reproduce._output import Output, Progress
from dpmesh.reproduce._scaffold import CONFIDENCE, with_spread
from dpmesh.reproduce.online_runs import (
    MOST_NODES,
    NODES,
    OPEN,
    SOURCES,
    Copies,
    Point,
    counted,
    label_axes,
    measure,
    name_of,
    paragraph,
    read,
)

EPSILONS = (0.01, 0.1, 1.0, None)
LEAST_DIFFERENCE = 0.001
"""Of average regrets, of which the zero predictor's is about 1: below it curves count as alike."""

WHY = (
    "Where they differ: with one example a round, noise of scale 2 alpha sqrt(n) / epsilon in each "
    "of n coordinates leaves little to learn from at small epsilon. The noise of RCV1's 47,236 "
    "dimensions drowns every example even at epsilon 1; the projection then holds all learners on "
    "the sphere, in directions of noise, at about the regret of the zero predictor. More nodes "
    "average more noise away, which works against what they lose by mixing slowly: under noise "
    "fewer nodes are not better. The paper has 100,000 documents of RCV1, we have 12,160."
)


def figure1(
    folder: Path, *, seeds: int = 5, checkpoints: int | None = None, progress: Progress = print
) -> list[Path]:
    """Regret against epsilon with 64 nodes, and against nodes with epsilon = 0.1."""
    points: list[Point] = []
    panels: list[tuple[str, list[list[Point]]]] = []
    for source in read(SOURCES, checkpoints):
        copies = Copies.of(source, seeds, NODES)
        settings = [(epsilon, MOST_NODES) for epsilon in EPSILONS]
        settings += [(0.1, nodes) for nodes in NODES if nodes != MOST_NODES]
        curves = {}
        for epsilon, nodes in settings:
            curves[epsilon, nodes] = measure(copies, copies.algorithm(epsilon), nodes, progress)
            points += curves[epsilon, nodes]
        panels.append((f"{source.name}, 64 nodes", [curves[e, MOST_NODES] for e in EPSILONS]))
        panels.append((f"{source.name}, epsilon 0.1", [curves[0.1, m] for m in NODES]))
    text = [
        paragraph(
            "Figure 1: average regret for each example (the paper divides by iterations) of "
            f"Algorithm 1 on hinge losses, mean of {counted(seeds, SOURCES)} +- {CONFIDENCE:.0%} "
            f"interval. {OPEN}"
        ),
        "",
        *_table(panels),
        "",
        "The paper's curves have no numbers. What it says of them, and what we find:",
        *_verdicts(panels),
        paragraph(WHY),
    ]
    return write(folder, "online-figure1", points, text, panels, "interval")


def figure2(
    folder: Path, *, seeds: int = 5, checkpoints: int | None = None, progress: Progress = print
) -> list[Path]:
    """Mean and spread of the regret with batches of 1 and of 5, with and without privacy."""
    points: list[Point] = []
    panels: list[tuple[str, list[list[Point]]]] = []
    lines = []
    for source in read(SOURCES, checkpoints):
        copies = Copies.of(source, seeds)
        for batch_size in (1, 5):
            curves = [
                measure(copies, copies.algorithm(epsilon, batch_size), MOST_NODES, progress)
                for epsilon in (1.0, None)
            ]
            panels.append((f"{source.name}, batch size {batch_size}", curves))
            points += [point for curve in curves for point in curve]
            private, plain = (curve[-1] for curve in curves)
            for name, last in (("epsilon 1", private), ("no noise", plain)):
                lines.append(
                    f"{source.name:<10} batch size {batch_size}, {name:<10} regret "
                    f"{last.regret:.4f}, standard deviation between runs {last.spread:.1e}"
                )
    text = [
        paragraph(
            "Figure 2: mean and spread of the average regret for each example, "
            f"{counted(seeds, SOURCES)}, 64 nodes, Algorithm 2. The paper does not say at which "
            f"epsilon; ours is 1. {OPEN}"
        ),
        "",
        *lines,
        "",
        paragraph(
            "The paper says: with batch size 1 the private regret varies more than the other; with "
            "5 the two vary nearly alike. Noise shrinks with the batch, as 1 / h; so do the rounds."
        ),
        paragraph(WHY),
    ]
    return write(folder, "online-figure2", points, text, panels, "spread")


def write(
    folder: Path,
    name: str,
    points: Sequence[Point],
    text: Sequence[str],
    panels: Sequence[tuple[str, list[list[Point]]]],
    band: str,
) -> list[Path]:
    """Write the points, the text, and a figure of all panels with bands; needs ``plots``."""
    from matplotlib.figure import Figure

    output = Output(folder, name)
    output.records(points)
    output.text("\n".join(text))
    figure = Figure(figsize=(9, 7), layout="constrained")
    for ax, (title, curves) in zip(figure.subplots(2, 2).ravel(), panels, strict=True):
        for curve in curves:
            x = [point.examples for point in curve]
            middle = np.array([point.regret for point in curve])
            width = np.array([getattr(point, band) for point in curve])
            varied = "nodes" if "epsilon" in title else "epsilon"
            value = getattr(curve[0], varied)
            label = f"{varied} {name_of(value) if varied == 'epsilon' else value}"
            ax.plot(x, middle, marker="o", markersize=3, label=label)
            ax.fill_between(x, middle - width, middle + width, alpha=0.25)
        label_axes(ax, title, "examples of all nodes together")
        ax.set_xticks(x, [f"{count:,}" for count in x])
        ax.set_xticks([], minor=True)  # their labels would overlap
    output.figure(figure)
    return output.files


def _table(panels: Iterable[tuple[str, list[list[Point]]]]) -> list[str]:
    lines = []
    for title, curves in panels:
        lines.append(f"{title}: after {curves[0][-1].examples} examples")
        for curve in curves:
            last = curve[-1]
            regret = with_spread(last.regret, last.interval, 4)
            lines.append(
                f"    epsilon {name_of(last.epsilon):<6}{last.nodes:>3} nodes   "
                f"{regret}   worst learner {last.worst_regret:.4f}"
            )
    return lines


def _verdicts(panels: Iterable[tuple[str, list[list[Point]]]]) -> list[str]:
    """Say of each panel whether regret falls as the paper says it does."""
    lines = []
    for title, curves in panels:
        if "nodes" in title:
            claim, order = "less regret for larger epsilon", curves[::-1]
        else:
            claim, order = "less regret for fewer nodes", curves
        neighbours = list(pairwise(curve[-1] for curve in order))
        pairs = [(a, b) for a, b in neighbours if abs(a.regret - b.regret) >= LEAST_DIFFERENCE]
        alike = len(neighbours) - len(pairs)
        overlap = ", with intervals that overlap" if order[0][-1].runs > 1 else ", of one run each"
        if not pairs:
            found = f"no difference: neighbouring curves end within {LEAST_DIFFERENCE:g}"
        elif all(a.regret + a.interval < b.regret - b.interval for a, b in pairs):
            found = "so it is, with intervals apart"
        elif all(a.regret <= b.regret for a, b in pairs):
            found = f"so it is in our means{overlap}"
        else:
            found = f"not in our means{overlap}"
            if all(a.regret - a.interval > b.regret + b.interval for a, b in pairs):
                found = "the other way round, with intervals apart"
        if pairs and alike:
            found += f"; {alike} of {len(neighbours)} steps change it by less than "
            found += f"{LEAST_DIFFERENCE:g}"
        lines.append(f"    {title}: {claim} - {found}")
    return lines
