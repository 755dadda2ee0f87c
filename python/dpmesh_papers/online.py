"""Figures 1 and 2 and Table 1 of the online paper (Li, Zhou, Chen, Jiang), and better mechanisms.

Its figures show no numbers except axes; we compare what the paper says of them in words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from dpmesh.algorithms.online import OnlineLearning
from dpmesh.schedules import at
from dpmesh_papers._figure import Panel, drawn, lines_of
from dpmesh_papers._scaffold import (
    CONFIDENCE,
    Experiment,
    Progress,
    Row,
    compared,
    grid,
    kinds,
    paragraph,
    pick,
    with_spread,
)
from dpmesh_papers.online_runs import (
    MOST_NODES,
    NODES,
    OUR_CHOICES,
    SOURCES,
    PartitionedSource,
    Source,
    accuracies,
    epsilon_in_words,
    in_words,
    measured,
    read,
    runs_in_words,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILONS = (0.01, 0.1, 1.0, None)
"""None for no noise."""
LEAST_DIFFERENCE = 0.001
"""Difference of average regrets below which curves count as alike.

The zero predictor's regret is about 1."""

EXPLANATION = (
    "With one example a round, noise of scale 2 alpha sqrt(n) / epsilon in each "
    "of n coordinates leaves little to learn from at small epsilon. The noise of RCV1's 47,236 "
    "dimensions drowns every example even at epsilon 1; the projection then holds all learners on "
    "the sphere, in directions of noise, at about the regret of the zero predictor. More nodes "
    "average more noise away, which works against what they lose by mixing slowly: under noise "
    "fewer nodes are not better. The paper has 100,000 documents of RCV1, we have 12,160."
)

PAPER_ACCURACY = {
    None: (82.51, 74.64, 65.72),
    1.0: (82.51, 74.64, 65.72),
    0.1: (80.17, 70.86, 62.34),
    0.01: (75.69, 64.81, 50.36),
}
"""Table 1 in percent: for each epsilon 1, 4 and 64 nodes."""

EXPLANATION_OF_TABLE = (
    "Without noise ours are better than the paper's: lambda and W may differ, and its text gives "
    "88.74% for the cell that its table has at 82.51%. Its private accuracies are out of reach of "
    "its mechanism: at epsilon = 1 a broadcast carries noise of scale 2 alpha sqrt(47236) = 435 "
    "alpha in each coordinate, while an example moves it by at most alpha; and its rows for "
    "epsilon = 1 and for no noise agree to the last digit, which runs with such noise do not. "
    "What better mechanisms reach at the same epsilon: online-mechanisms."
)

DELTA = 1e-5
"""Of Gaussian noise, in `mechanisms`."""
L1_NORM = 9.0
"""Four in five of RCV1's documents have a smaller L1 norm; all have L2 norm 1."""


class RegretSetting(NamedTuple):
    """A curve of Figure 1 or 2."""

    epsilon: float | None
    """None for no noise."""
    nodes: int
    batch_size: int = 1


def figure1(
    folder: Path, *, seeds: int = 5, checkpoints: int | None = None, progress: Progress = print
) -> list[Path]:
    """Run Figure 1: regret against epsilon with 64 nodes, and against nodes at epsilon 0.1."""
    settings = [RegretSetting(epsilon, MOST_NODES) for epsilon in EPSILONS]
    settings += [RegretSetting(0.1, nodes) for nodes in NODES if nodes != MOST_NODES]
    experiment = Experiment(folder, "online-figure1", progress)
    _measure_regrets(experiment, settings, seeds, checkpoints)

    def draw(rows: list[Row]) -> Figure:
        return _draw_regrets(_panels_of_figure1(rows), "interval")

    return experiment.write(text_of_figure1, draw)


def figure2(
    folder: Path, *, seeds: int = 5, checkpoints: int | None = None, progress: Progress = print
) -> list[Path]:
    """Run Figure 2: mean and spread of the regret with batches of 1 and of 5, private and not."""
    settings = [
        RegretSetting(epsilon, MOST_NODES, batch_size)
        for batch_size in (1, 5)
        for epsilon in (1.0, None)
    ]
    experiment = Experiment(folder, "online-figure2", progress)
    _measure_regrets(experiment, settings, seeds, checkpoints)

    def draw(rows: list[Row]) -> Figure:
        return _draw_regrets(_panels_of_figure2(rows), "spread")

    return experiment.write(text_of_figure2, draw)


def _measure_regrets(
    experiment: Experiment, settings: Sequence[RegretSetting], seeds: int, checkpoints: int | None
) -> None:
    """Measure the paper's mechanism on all data in these settings."""
    sources = read(SOURCES, checkpoints)
    partitioned = {source.name: PartitionedSource.deal(source, seeds, NODES) for source in sources}
    cells = [
        {
            "data": name,
            "mechanism": "paper",
            "epsilon": setting.epsilon,
            "nodes": setting.nodes,
            "batch_size": setting.batch_size,
        }
        for name in partitioned
        for setting in settings
    ]

    def run(cell: Row) -> list[Row]:
        data = partitioned[cell["data"]]
        algorithm = data.algorithm(cell["epsilon"], cell["batch_size"])
        return measured(data, cell, algorithm)

    experiment.measure(cells, run, in_words)


class RegretPanel(NamedTuple):
    """A panel of Figure 1 or 2: a curve of regret for each value of one setting."""

    title: str
    varied: Literal["epsilon", "nodes"]
    rows: list[Row]


def _panels_of_figure1(rows: list[Row]) -> list[RegretPanel]:
    panels = []
    for data in kinds(rows, "data"):
        rows_of_data = pick(rows, data=data)
        at_most_nodes = pick(rows_of_data, nodes=MOST_NODES)
        panels.append(RegretPanel(f"{data}, {MOST_NODES} nodes", "epsilon", at_most_nodes))
        at_one_epsilon = pick(rows_of_data, epsilon=0.1)
        panels.append(RegretPanel(f"{data}, epsilon 0.1", "nodes", at_one_epsilon))
    return panels


def _panels_of_figure2(rows: list[Row]) -> list[RegretPanel]:
    return [
        RegretPanel(
            f"{data}, batch size {batch_size}",
            "epsilon",
            pick(rows, data=data, batch_size=batch_size),
        )
        for data in kinds(rows, "data")
        for batch_size in kinds(rows, "batch_size")
    ]


def _draw_regrets(panels: Sequence[RegretPanel], band: str) -> Figure:
    """Draw regret over examples, with the column `band` as bands; needs the extra ``plots``."""
    names: dict[str, Callable[[Any], str]] = {
        "epsilon": lambda epsilon: f"epsilon {epsilon_in_words(epsilon)}",
        "nodes": lambda nodes: f"epsilon 0.1, nodes: {nodes}",
    }
    return drawn(
        [
            Panel(
                title=title,
                x="examples of all nodes together",
                y="average regret",
                log="x",
                ticks=kinds(rows, "examples"),
                kind="bands",
                lines=lines_of(
                    rows, by=varied, x="examples", y="regret", spread=band, name=names[varied]
                ),
            )
            for title, varied, rows in panels
        ],
        columns=2,
    )


def _ends(rows: list[Row]) -> list[Row]:
    """Return the last row of each curve."""
    setting = ("data", "mechanism", "epsilon", "nodes", "batch_size")
    last: dict[tuple[object, ...], Row] = {}
    for row in rows:
        last[tuple(row[name] for name in setting)] = row
    return list(last.values())


def text_of_figure1(rows: list[Row]) -> str:
    """Return the ends of all curves, and verdicts on what the paper says of them."""
    panels = _panels_of_figure1(rows)
    lines = []
    for title, _, rows_of_panel in panels:
        ends = _ends(rows_of_panel)
        lines.append(f"{title}: after {ends[0]['examples']} examples")
        lines += [
            f"    epsilon {epsilon_in_words(row['epsilon']):<6}{row['nodes']:>3} nodes   "
            f"{with_spread(row['regret'], row['interval'], 4)}   "
            f"worst learner {row['worst_regret']:.4f}"
            for row in ends
        ]
    heading = (
        "Figure 1: average regret for each example (the paper divides by iterations) of "
        f"Algorithm 1 on hinge losses, mean of {runs_in_words(rows)} +- {CONFIDENCE:.0%} interval. "
        f"{OUR_CHOICES}"
    )
    introduction = "The paper's curves have no numbers. What it says of them, and what we find:"
    return "\n".join(
        [
            paragraph(heading),
            "",
            *lines,
            "",
            introduction,
            *verdicts(panels),
            paragraph(EXPLANATION),
        ]
    )


def verdicts(panels: Sequence[RegretPanel]) -> list[str]:
    """Return, for each panel, the number of steps along its axis in which regret clearly falls.

    The paper says that regret falls with larger epsilon, and with fewer nodes.
    """
    lines = []
    for title, varied, rows in panels:
        ends = sorted(_ends(rows), key=partial(_place, varied=varied))
        claim = "less regret for fewer nodes"
        if varied == "epsilon":
            claim = "less regret for larger epsilon"
            ends.reverse()
        outcomes = [_outcome(better, worse) for better, worse in pairwise(ends)]
        counts = ", ".join(f"{name} in {outcomes.count(name)}" for name in dict.fromkeys(outcomes))
        lines.append(f"    {title}: {claim} - of {len(outcomes)} steps {counts}")
    return lines


def _place(row: Row, *, varied: str) -> float:
    """Return a row's value of the varied setting; infinity for no noise."""
    if row[varied] is None:
        return inf
    return float(row[varied])


def _outcome(better: Row, worse: Row) -> str:
    """Return the verdict on the claim that the first regret is less than the second."""
    if abs(better["regret"] - worse["regret"]) < LEAST_DIFFERENCE:
        return "no difference"
    verdict = compared(worse, better, "regret")
    if verdict == "ahead":
        return "so it is"
    if verdict == "behind":
        return "the other way round"
    return verdict


def text_of_figure2(rows: list[Row]) -> str:
    """Return means and spreads at the ends of all curves, and what the paper says of them."""
    lines = [
        f"{row['data']:<10} batch size {row['batch_size']}, "
        f"epsilon {epsilon_in_words(row['epsilon']):<6} regret {row['regret']:.4f}, "
        f"standard deviation between runs {row['spread']:.1e}"
        for row in _ends(rows)
    ]
    heading = (
        "Figure 2: mean and spread of the average regret for each example, "
        f"{runs_in_words(rows)}, 64 nodes, Algorithm 2. The paper does not say at which epsilon; "
        f"ours is 1. {OUR_CHOICES}"
    )
    claim = (
        "The paper says: with batch size 1 the private regret varies more than the other; with "
        "5 the two vary nearly alike. Noise shrinks with the batch, as 1 / h; so do the rounds."
    )
    return "\n".join([paragraph(heading), "", *lines, "", paragraph(claim), paragraph(EXPLANATION)])


def table1(
    folder: Path, *, seeds: int = 5, checkpoints: int | None = None, progress: Progress = print
) -> list[Path]:
    """Run Table 1: accuracy of a private support vector machine on RCV1, by epsilon and nodes.

    In percent with half of the 95% interval over runs: of the learners' own models, and of the last
    broadcasts, which may be published. `chance` is the majority-class baseline: the share of the
    largest class in the test set.
    """
    (source,) = read(SOURCES[-1:], checkpoints)
    data = PartitionedSource.deal(source, seeds, NODES)
    cells = [
        {"epsilon": epsilon, "nodes": nodes, "paper": paper}
        for epsilon, papers in PAPER_ACCURACY.items()
        for nodes, paper in zip(NODES, papers, strict=True)
    ]

    def run(cell: Row) -> Row:
        problem = data.repeats[cell["nodes"]].problem
        runs = data.run(data.algorithm(cell["epsilon"]), cell["nodes"])
        assert problem.test is not None
        class_sizes = np.unique(problem.test.labels, return_counts=True)[1]
        chance = 100 * float(class_sizes.max()) / problem.test.records
        return {**accuracies(problem, runs), "chance": chance, "runs": len(runs.losses)}

    experiment = Experiment(folder, "online-table1", progress)
    experiment.measure(cells, run, _cell_in_words)
    return experiment.write(text_of_table1, draw_table1)


def _cell_in_words(row: Row) -> str:
    accuracy = with_spread(row["accuracy"], row["accuracy_interval"], 2)
    setting = f"epsilon {epsilon_in_words(row['epsilon']):<4} {row['nodes']:>2} nodes"
    return f"{setting}  {accuracy}, paper {row['paper']}"


def text_of_table1(rows: list[Row]) -> str:
    """Return the table as the paper prints it, three numbers in each cell."""
    head = (
        "Table 1: test accuracy (%) of a linear support vector machine on RCV1: the paper's / "
        f"ours (learners' own models, mean of {rows[0]['runs']} runs +- {CONFIDENCE:.0%} "
        f"interval; in brackets the last broadcasts, which may be published). {OUR_CHOICES}"
    )
    table = grid(
        rows,
        row="epsilon",
        column="nodes",
        show=lambda row: (
            f"{row['paper']:.2f} / {with_spread(row['accuracy'], row['accuracy_interval'], 2)} "
            f"({row['released_accuracy']:.2f})"
        ),
        name=lambda epsilon: f"epsilon {epsilon_in_words(epsilon)}",
        head=lambda nodes: f"{nodes} node(s)",
        widths=(14, 32),
    )
    private = [row for row in rows if row["epsilon"] is not None]
    above = [row for row in private if row["accuracy"] - row["accuracy_interval"] > row["chance"]]
    chance = (
        f"The largest class has {rows[0]['chance']:.1f}% of the test documents. Of {len(private)} "
        f"private cells {len(above)} are clearly above that, by their intervals."
    )
    return "\n".join(
        [paragraph(head), "", *table, "", paragraph(chance), paragraph(EXPLANATION_OF_TABLE)]
    )


def draw_table1(rows: list[Row]) -> Figure:
    """Draw accuracy over epsilon; needs the extra ``plots``."""
    named = [row | {"name": epsilon_in_words(row["epsilon"])} for row in rows]
    lines = lines_of(
        named,
        by="nodes",
        x="name",
        y="accuracy",
        spread="accuracy_interval",
        paper="paper",
        name=lambda nodes: f"{nodes} node(s)",
    )
    y = "test accuracy (%); x: the paper's"
    return drawn([Panel(title="RCV1", x="epsilon", y=y, lines=lines)])


def mechanisms(
    folder: Path, *, seeds: int = 3, checkpoints: int | None = None, progress: Progress = print
) -> list[Path]:
    """Compare the paper's mechanism with better ones at the same epsilon, with 64 nodes.

    ``paper``: Laplace noise for clipped L2 norms. ``mixture``: the same, the projection moved to
    the mixture. ``l1``: Laplace noise for clipped L1 norms. ``gaussian``: Gaussian noise at
    delta = 1e-5; these two with the projection of the mixture.
    """
    experiment = Experiment(folder, "online-mechanisms", progress)
    synthetic, rcv1 = read(SOURCES, checkpoints)
    for contest in contests(synthetic, rcv1):
        data = PartitionedSource.deal(contest.source, seeds)

        def run(cell: Row, data: PartitionedSource = data) -> list[Row]:
            paper = data.algorithm(cell["epsilon"], cell["batch_size"])
            return measured(data, cell, rivals(paper, cell["data"])[cell["mechanism"]])

        cells = [
            {
                "data": contest.source.name,
                "nodes": MOST_NODES,
                "batch_size": contest.batch_size,
                "mechanism": mechanism,
                "epsilon": epsilon,
            }
            for epsilon in contest.epsilons
            for mechanism in rivals(data.algorithm(1.0), contest.source.name)
        ]
        experiment.measure(cells, run, lambda row: f"{in_words(row)}{_percent(row)}")
    return experiment.write(text_of_mechanisms, draw_mechanisms)


class Contest(NamedTuple):
    """Data and batch size on which mechanisms are compared at some epsilons."""

    source: Source
    batch_size: int
    epsilons: tuple[float, ...]


def contests(synthetic: Source, rcv1: Source) -> list[Contest]:
    """Return the contests of the mechanisms.

    Steps suit the noise: on RCV1 they are shorter than without noise, by a larger lambda.
    """
    short_steps = replace(rcv1, strong_convexity=0.1)
    batch_size = rcv1.checkpoints[-1] // 5
    large_batches = replace(rcv1, strong_convexity=0.3, checkpoints=(batch_size, 5 * batch_size))
    return [
        Contest(synthetic, 1, (0.1, 1.0, 10.0)),
        Contest(short_steps, 1, (1.0, 10.0, 100.0, 1000.0)),
        Contest(large_batches, batch_size, (1.0, 10.0, 100.0)),
    ]


def rivals(paper: OnlineLearning, data: str) -> dict[str, OnlineLearning]:
    """Return the mechanisms to compare by name, at the epsilon of `paper`."""
    mixture = replace(paper, projection="mixture")
    l1_norm = 10**0.5  # of the unit vector in 10 dimensions with equal coordinates
    if data == "rcv1":
        l1_norm = L1_NORM
    return {
        "paper": paper,
        "mixture": mixture,
        "l1": replace(mixture, norm="l1", clipping_norm=l1_norm),
        "gaussian": replace(mixture, delta=DELTA),
    }


def _ends_of_contests(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the ends of the curves of each contest, by its title."""
    pairs = dict.fromkeys((row["data"], row["batch_size"]) for row in rows)
    return {
        f"{data}, batch size {batch_size}": _ends(pick(rows, data=data, batch_size=batch_size))
        for data, batch_size in pairs
    }


def _percent(row: Row) -> str:
    """Return the accuracies of a row in brackets, if there are any."""
    if row["accuracy"] is None:
        return ""
    return f" ({row['accuracy']:.1f}/{row['released_accuracy']:.1f})"


def text_of_mechanisms(rows: list[Row]) -> str:
    """Return regrets and accuracies of all mechanisms, and their noise."""
    head = (
        "Average regret for each example after one pass, and on RCV1 the accuracy in percent of "
        f"the learners' own models / of the last broadcasts, which may be published: {MOST_NODES} "
        f"nodes, {runs_in_words(rows)}, the same epsilon for each example. Gaussian noise has "
        f"delta = {DELTA:g} besides. L1 norms are clipped at {L1_NORM:g} on RCV1, whose L2 norms "
        "are 1, and at sqrt(10) on the synthetic data, where that clips nothing and buys nothing. "
        "On RCV1 lambda is 0.1 with batches of 1 and 0.3 with large ones."
    )
    lines = [paragraph(head)]
    for title, ends in _ends_of_contests(rows).items():
        lines += ["", title]
        lines += grid(
            ends,
            row="epsilon",
            column="mechanism",
            show=lambda row: f"{row['regret']:.4f}{_percent(row)}",
            name=lambda epsilon: f"epsilon {epsilon:g}",
            widths=(24, 20),
        )
    lines += ["", "Standard deviation of the noise in each coordinate over alpha_t, epsilon and"]
    lines.append("batch 1, in the same order:")
    for dim, data in ((10, "synthetic"), (47_236, "rcv1")):
        noises = [
            f"{algorithm.noise_std(1, dim) / at(algorithm.step_size, 1):.4g}"
            for algorithm in rivals(OnlineLearning(epsilon=1.0), data).values()
        ]
        lines.append(f"{data:<24}" + "".join(f"{noise:>20}" for noise in noises))
    return "\n".join(lines)


def draw_mechanisms(rows: list[Row]) -> Figure:
    """Draw regret over epsilon; needs the extra ``plots``."""
    panels = []
    for title, ends in _ends_of_contests(rows).items():
        lines = lines_of(ends, by="mechanism", x="epsilon", y="regret", spread="interval")
        panels.append(Panel(title=title, x="epsilon", y="average regret", log="x", lines=lines))
    return drawn(panels)
