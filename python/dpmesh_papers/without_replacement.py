"""Tables I and II and Figures 1 to 4 of the without-replacement paper (Jin, He, Dai)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpmesh._epsilons import rounded_up
from dpmesh.algorithms.controllers import AlwaysGlobal
from dpmesh.keys import Key
from dpmesh.problems import LinearProblem
from dpmesh_papers._figure import Line, Panel, drawn, lines_of
from dpmesh_papers._scaffold import Experiment, Progress, Row, kinds, pick
from dpmesh_papers.without_replacement_cells import (
    COLLABORATIVE,
    LEARNED,
    LOCAL,
    NOISELESS,
    NOISY,
    WITH_REPLACEMENT,
    Comparison,
    controllers,
    in_words,
    kind_of,
    measured,
    shown,
)
from dpmesh_papers.without_replacement_setting import (
    BATCH_SIZE,
    CASES,
    Case,
    ExperimentData,
    Noise,
    covertype_setting,
    dealt_out,
    mnist_setting,
    shuffled_copies,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NODES = (1, 3, 5, 10, 20)
EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
NODES_OF_FIGURES = 10

DataName = Literal["Covertype", "MNIST"]
PaperTable = dict[tuple[Case, str, Noise], tuple[float | None, ...]]
"""Accuracies in percent for each of `NODES`, by case, method and noise; None where it has none."""

PAPER: dict[DataName, PaperTable] = {
    "Covertype": {
        ("convex", NOISELESS, "none"): (56.24, 61.64, 61.90, 62.83, 64.10),
        ("convex", COLLABORATIVE, "paper"): (54.21, 58.22, 58.63, 59.82, 60.22),
        ("convex", LEARNED, "paper"): (None, 59.05, 59.22, 60.65, 61.23),
        ("strongly convex", NOISELESS, "none"): (62.79, 64.44, 65.31, 65.96, 66.04),
        ("strongly convex", COLLABORATIVE, "paper"): (50.60, 51.68, 52.60, 55.24, 57.73),
        ("strongly convex", LEARNED, "paper"): (None, 55.25, 59.27, 61.34, 62.37),
    },
    "MNIST": {
        ("convex", NOISELESS, "none"): (77.74, 84.07, 85.49, 86.83, 87.69),
        ("convex", COLLABORATIVE, "paper"): (63.86, 71.48, 74.04, 76.80, 78.17),
        ("convex", LEARNED, "paper"): (None, 77.17, 79.87, 80.52, 81.93),
        ("strongly convex", NOISELESS, "none"): (84.80, 88.13, 88.51, 88.76, 88.96),
        ("strongly convex", COLLABORATIVE, "paper"): (55.04, 63.46, 65.63, 68.00, 73.90),
        ("strongly convex", LEARNED, "paper"): (None, 71.03, 75.39, 80.93, 82.97),
    },
}
"""Tables I and II."""

NOISES: tuple[Noise, ...] = ("paper", "proved")
SETTINGS = {"Covertype": covertype_setting, "MNIST": mnist_setting}


def table(
    folder: Path,
    *,
    data: DataName,
    seeds: int = 3,
    records: int | None = None,
    intercept: bool = True,
    progress: Progress = print,
) -> list[Path]:
    """Run Table I (Covertype) or II (MNIST): one-vs-all logistic regression at epsilon 1.

    1, 3, 5, 10 and 20 nodes hold all training records each. Every method is run at the paper's
    noise, and at the noise that keeps a record's budget in all models and nodes that it enters.
    Runs are seeded: all cells of a seed have the same order of the data. Covertype is the sample of
    50,000 records, 40,000 of them for training, where the paper draws 60,000 of 464,809. Without
    an intercept, of which the paper says nothing, the table has full collaboration alone.
    """
    prepared_data = SETTINGS[data](records, intercept=intercept)
    paper = PAPER[data]
    keys = [Key.seeded(seed) for seed in range(seeds)]

    @lru_cache(maxsize=1)  # cells of one comparison follow each other
    def comparison_of(nodes: int, case: Case) -> Comparison:
        problems = [shuffled_copies(prepared_data, nodes, case, key) for key in keys]
        return Comparison(prepared_data, case, nodes, nodes, problems, keys)

    def run(cell: Row) -> Row:
        comparison = comparison_of(cell["nodes"], cell["case"])
        method = cell["method"]
        known_controllers = controllers(comparison.problems[0].rounds(BATCH_SIZE))
        controller = known_controllers.get(method, AlwaysGlobal())
        if method == NOISELESS:
            at_one_node = [_at_one_node(problem) for problem in comparison.problems]
            comparison = replace(comparison, problems=at_one_node)
        result = measured(comparison, controller, cell["noise"], 1.0)
        papers = paper.get((cell["case"], method, cell["noise"]), (None,) * len(NODES))
        return result | {"paper": papers[NODES.index(cell["nodes"])]}

    name = "table1"
    source = f"Table I, {data}"
    if data == "MNIST":
        name = "table2"
        source = f"Table II, {data}"
    if not intercept:
        name += "-intercept"
        source += ", without an intercept"
    experiment = Experiment(folder, f"without-replacement-{name}", progress)
    cells = [
        {"case": case, "nodes": nodes, "method": method, "noise": noise, "epsilon": 1.0}
        for nodes, case, (method, noise) in product(NODES, CASES, _methods(intercept))
    ]
    experiment.measure(cells, run, in_words)
    return experiment.write(partial(table_as_text, source=source), draw_table)


def _at_one_node(problem: LinearProblem) -> LinearProblem:
    """Return the problem of one node that has the records of all nodes, one node after another."""
    return replace(problem, partition=(np.concatenate(problem.partition),))


def _methods(intercept: bool) -> list[tuple[str, Noise]]:
    """Return methods and noises of a table; without an intercept those that are compared."""
    if not intercept:
        return [(COLLABORATIVE, "paper")]
    noises: dict[str, tuple[Noise, ...]] = {
        NOISELESS: ("none",),
        COLLABORATIVE: ("none", "paper", "proved"),
        LOCAL: ("none",),
        NOISY: ("proved",),
    }
    methods = (NOISELESS, *controllers(1))
    return [
        (method, noise) for method in methods for noise in noises.get(method, ("paper", "proved"))
    ]


def figure(
    folder: Path,
    *,
    number: int,
    data: DataName,
    case: Case,
    seeds: int = 5,
    records: int | None = None,
    progress: Progress = print,
) -> list[Path]:
    """Run Figure 1, 2, 3 or 4: accuracy over epsilon for 10 nodes that share the data.

    Of Covertype they share the 40,000 training records of `table`, where the paper's share 60,000:
    so few that steps of 0.1 without noise find little more than the largest class, 48.8% of the
    test records.
    """
    prepared_data = SETTINGS[data](records)
    keys = [Key.seeded(seed) for seed in range(seeds)]
    problems = [dealt_out(prepared_data, NODES_OF_FIGURES, case, key) for key in keys]
    comparison = Comparison(prepared_data, case, NODES_OF_FIGURES, 1, problems, keys)
    known_controllers = controllers(problems[0].rounds(BATCH_SIZE))

    def run(cell: Row) -> Row:
        controller = known_controllers.get(cell["method"])
        return measured(comparison, controller, cell["noise"], cell["epsilon"])

    private = [method for method in (*known_controllers, WITH_REPLACEMENT) if method != LOCAL]
    methods: list[tuple[str, Noise, float]] = [
        (COLLABORATIVE, "none", EPSILONS[-1]),
        (LOCAL, "none", EPSILONS[-1]),
    ]
    methods += [
        (method, noise, epsilon)
        for epsilon, noise, method in product(EPSILONS, NOISES, private)
        if method != NOISY or noise == "proved"  # the paper has no noise for it
    ]
    cells = [
        {
            "case": case,
            "nodes": NODES_OF_FIGURES,
            "method": method,
            "noise": noise,
            "epsilon": epsilon,
        }
        for method, noise, epsilon in methods
    ]
    experiment = Experiment(folder, f"without-replacement-figure{number}", progress)
    experiment.measure(cells, run, in_words)
    return experiment.write(
        partial(figure_as_text, name=data, data=prepared_data), partial(draw_figure, name=data)
    )


def table_as_text(rows: list[Row], source: str) -> str:
    """Return the paper's numbers beside ours."""
    lines = [
        f"{source}: test accuracy (%) after one pass at epsilon 1, mean of {rows[0]['seeds']} "
        "seeds\nand half of the 95 % interval. 1,000 test records are public instead, and not "
        "tested on.",
        *ABOUT_TABLES,
        _row("nodes", [str(nodes) for nodes in NODES]),
    ]
    for case in CASES:
        lines += ["", case]
        rows_of_case = pick(rows, case=case)
        for noise, method in product(("none", "paper", "proved"), kinds(rows_of_case, "method")):
            row = pick(rows_of_case, noise=noise, method=method)
            if row:
                lines += _lines_of_a_method(f"{method}, noise {noise}", row)
    full = pick(rows, method=COLLABORATIVE, noise="paper")
    gap = np.mean([abs(row["released"] - row["paper"]) for row in full])
    lines += ["", f"Full collaboration, noise paper: {gap:.1f} points from the paper on average."]
    return "\n".join([*lines, *_caveats(rows)])


ABOUT_TABLES = (
    "global: the released model. local: the nodes' own, on average, which nobody may publish.",
    "noise paper: the paper's formula for each single release; what a record pays is below.",
    "noise proved: what keeps epsilon 1 for a record in all models and nodes that it enters.",
    "The paper's noiseless accuracies grow with the nodes like those of one model that is",
    "handed on. Equations 5 and 6 average it with old local models, and get at most about",
    "twice as far in a round as one node, however many there are.",
    "always local: a node learns alone, from all of the data as every node here has them.",
    "ours less the paper's: * where it is beyond the interval of our seeds. But for what the",
    "lines above explain, the cause is unknown.",
    "",
)


def _lines_of_a_method(name: str, row: list[Row]) -> Iterator[str]:
    """Yield the paper's accuracies of a method and ours, by number of nodes."""
    method = row[0]["method"]
    noise = row[0]["noise"]
    has_paper = row[-1]["paper"] is not None
    if has_paper:
        papers = ["" if cell["paper"] is None else f"{cell['paper']:.2f}" for cell in row]
        yield _row(f"{name}: paper", papers)
    if method != LOCAL:
        yield _row(f"{name}: global", [shown(cell, "released") for cell in row])
    if has_paper:
        yield _row("  ours less the paper's", [_difference(cell) for cell in row])
    if method != NOISELESS:
        yield _row(f"{name}: local", [shown(cell, "local") for cell in row])
    if noise != "none" and method == COLLABORATIVE:
        yield _row(f"epsilon of a record, noise {noise}", _costs(row))


def figure_as_text(rows: list[Row], name: str, data: ExperimentData) -> str:
    """Return our numbers; the paper shows curves only."""
    records = data.train.records
    labels = data.test.labels
    largest_class = np.unique(labels, return_counts=True)[1].max() / len(labels)
    lines = [
        f"{name}, {rows[0]['case']}: test accuracy (%) of the released model over epsilon, for",
        f"{NODES_OF_FIGURES} nodes that share {records:,} records; mean of {rows[0]['seeds']} "
        "seeds, and half of the 95 % interval.",
        "noise paper: its formula for each single release. proved: what keeps the budget, but for",
        f"{LEARNED}, whose controller looks at private losses: no proof covers its decisions.",
        "The paper says: Algorithm 1 above fully collaborative, that above with replacement.",
        "With replacement, proved: secret samples amplify privacy, which the paper does not use.",
        f"The largest class has {100 * largest_class:.1f}% of the test records.",
        "",
        _row("epsilon", [f"{epsilon:g}" for epsilon in EPSILONS]),
    ]
    for noise in ("none", "paper", "proved"):
        rows_of_noise = pick(rows, noise=noise)
        for method in kinds(rows_of_noise, "method"):
            row = pick(rows_of_noise, method=method)
            label = f"{method}, noise {noise}"
            if method == LOCAL:
                label += ": local"
            lines.append(_row(label, list(map(shown, row))))
            if method in (COLLABORATIVE, WITH_REPLACEMENT) and noise != "none":
                lines.append(_row("  epsilon of a record", _costs(row)))
    return "\n".join([*lines, "", *_different_epsilons(rows), *_caveats(rows)])


def _costs(row: list[Row]) -> list[str]:
    """Return a record's exact epsilons of some cells."""
    return [rounded_up(cell["epsilon_proved"], 3) for cell in row]


def _different_epsilons(rows: list[Row]) -> Iterator[str]:
    """Yield the epsilons of the methods that the paper's noise compares; they differ."""
    compared = {row["method"]: row for row in pick(rows, noise="paper", epsilon=1.0)}
    if LEARNED in compared and WITH_REPLACEMENT in compared:
        baseline = compared[WITH_REPLACEMENT]
        learned = compared[LEARNED]
        baseline_cost, learned_cost = _costs([baseline, learned])
        yield "At the paper's noise for epsilon 1 methods of different epsilons are compared: with"
        yield (
            f"replacement a record pays {baseline_cost} ({shown(baseline)}), by Algorithm 1 "
            f"{learned_cost} ({shown(learned)})."
        )


def _caveats(rows: list[Row]) -> Iterator[str]:
    """Yield what reports name as not proved, by method, at the largest number of nodes."""
    yield ""
    yield "Components or feature norms are fitted to the training data: no epsilon covers that."
    reported = {row["method"]: row["not_proved"] for row in rows if row["noise"] != "none"}
    for method, text in reported.items():
        if text:
            yield f"not proved of {method}: {text}"


def draw_table(rows: list[Row]) -> Figure:
    """Draw accuracy over the number of nodes; needs the extra ``plots``."""
    panels = []
    noiseless = [row for row in pick(rows, noise="none") if row["method"] in (NOISELESS, LOCAL)]
    for case, noise in product(CASES, (noise for noise in NOISES if pick(rows, noise=noise))):
        points = pick([*noiseless, *pick(rows, noise=noise)], case=case)
        title = f"{case}, noise: {noise}"
        y = "test accuracy (%); x: the paper's"
        ticks = sorted(kinds(rows, "nodes"))
        limits = (0.0, 100.0)
        lines = _lines(points, "nodes")
        panels.append(Panel(title=title, x="nodes", y=y, lines=lines, ticks=ticks, limits=limits))
    return drawn(panels, columns=2)


def draw_figure(rows: list[Row], name: str) -> Figure:
    """Draw accuracy over epsilon; needs the extra ``plots``."""
    noiseless = pick(rows, noise="none")
    panels = [
        Panel(
            title=f"{name}, {rows[0]['case']}, noise: {noise}",
            x="epsilon",
            y="accuracy of what is released (%)",
            lines=_lines(pick(rows, noise=noise), "epsilon"),
            levels={f"{row['method']}, noiseless": row[kind_of(row)] for row in noiseless},
            log="x",
            limits=(0.0, 100.0),
        )
        for noise in NOISES
    ]
    return drawn(panels)


def _lines(rows: list[Row], x: str) -> list[Line]:
    """Return a line for each method."""
    named = [
        row | {"y": row[kind_of(row)], "half": row[f"{kind_of(row)}_interval"]} for row in rows
    ]
    return lines_of(named, by="method", x=x, y="y", spread="half", paper="paper")


def _difference(row: Row) -> str:
    """Return our global model's accuracy less the paper's; ``*`` marks a clear difference."""
    if row["paper"] is None:
        return ""
    difference = row["released"] - row["paper"]
    if abs(difference) > row["released_interval"]:  # never for one seed, whose interval is NaN
        return f"{difference:+.2f}*"
    return f"{difference:+.2f} "


def _row(name: str, columns: list[str]) -> str:
    return f"{name:<42}" + "".join(f"{column:>14}" for column in columns)
