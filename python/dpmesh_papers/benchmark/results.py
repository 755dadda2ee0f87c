"""Results of the benchmark: one table in four forms, a figure, and a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from dpmesh._epsilons import rounded_up
from dpmesh._files import replace_text, replacing
from dpmesh.experiments.html import document, figures, table
from dpmesh.run.verdict import LEAST, Difference, difference, holm_significant
from dpmesh_papers.benchmark.cells import ALONE, MAJORITY, POOLED, Cell
from dpmesh_papers.benchmark.methods import RULE
from dpmesh_papers.benchmark.task import DELTA, Task
from dpmesh_papers.benchmark.tasks import TASKS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Provenance: TypeAlias = Mapping[str, Any]
"""Settings, versions, commit, day and machine of the run of a task."""

HEADLINE = "The benchmark: accuracy (%) on held-out records of all nodes"
UNSTABLE = 20.0
"""Standard deviation over the splits, in points, from which on a cell is left out."""

NOTES = (
    "Cells are accuracies at an epsilon: the mean over nodes and splits, ± half of its 95% "
    "interval. The interval accounts for the overlap of splits of one table. Where all splits have "
    "the publisher's test records, it covers partitions and noise alone. "
    f"Delta is {DELTA:g}, or stated by the task. The neighboring relation is replace-one; the unit "
    "is a record, or a user where the heading says so. Rows are sorted by the accuracy at the "
    "smallest epsilon. Records have norm 1.\n\n"
    "- `*`: better than a single site without privacy and than the majority class, by paired "
    "differences over the splits (95% for all cells of a task together, Holm).\n"
    "- as majority: not clearly above the majority-class baseline.\n"
    f"- unstable: a standard deviation of {UNSTABLE:g} points or more over the splits.\n"
    "- worst: of the worst node, at the largest epsilon.\n"
    "- proved: the epsilon of the ledger at the smallest budget; the largest over the splits. For "
    "secure aggregation and secure gossip it is under the threat model of the row. For other rows "
    "it is against an adversary who reads all messages and knows all secrets that partners share, "
    "and exceeds the budget where the threat model of the row is weaker.\n"
    "- MB: sent by a node. Seconds: of one run, on one machine, busy or not.\n\n"
    f"`*`, *as majority* and *unstable* need at least {LEAST} splits. The numbers left out are in "
    "benchmark.json.\n\n"
    "The majority class is the largest class of the training records. Splits are random, so on "
    "balanced data that class is often a smaller one in the test records: its accuracy is then "
    "below that of a guess.",
    RULE,
)

AS_MAJORITY = "as majority"
"""Shown for what is not clearly above the majority-class baseline."""


class Line(NamedTuple):
    """A method on a task: its cells by epsilon."""

    method: str
    cells: dict[float | None, Cell]

    @property
    def first(self) -> Cell:
        """The cell at the smallest epsilon."""
        return next(iter(self.cells.values()))

    @property
    def last(self) -> Cell:
        """The cell at the largest epsilon."""
        return [*self.cells.values()][-1]

    def at(self, epsilon: float) -> Cell:
        """Return the cell of an epsilon, or the only one of a baseline."""
        return self.cells.get(epsilon, self.first)


def lines_of(cells: Sequence[Cell], task: str) -> list[Line]:
    """Return the methods of a task in their order."""
    lines: dict[str, Line] = {}
    for cell in cells:
        if cell.task == task:
            line = lines.setdefault(cell.method, Line(cell.method, {}))
            line.cells[cell.epsilon] = cell
    return [*lines.values()]


def epsilons_of(cells: Sequence[Cell], task: str) -> list[float]:
    """Return the budgets of a task, ascending."""
    epsilons = {cell.epsilon for cell in cells if cell.task == task}
    return sorted(epsilon for epsilon in epsilons if epsilon is not None)


def splits_of(cells: Sequence[Cell], task: str) -> int:
    """Return the number of splits of a task that all rows have."""
    counts = [len(cell.accuracy) for cell in cells if cell.task == task and not cell.why]
    return min(counts, default=0)


def gain_over(cell: Cell, *baselines: Cell) -> Difference:
    """Return the gain of a cell over the best of some baselines, paired by splits."""
    best = max(baselines, key=lambda baseline: baseline.mean)
    pairs = zip(cell.accuracy, best.accuracy, strict=False)
    gains = [accuracy - baseline_accuracy for accuracy, baseline_accuracy in pairs]
    return difference(gains, held_out=TASKS[cell.task].held_out)


def left_out(cell: Cell, majority: Cell) -> str:
    """Return the reason for which a private cell has no number to print; empty if it has one."""
    if len(cell.accuracy) < LEAST or cell.epsilon is None:
        return ""
    if 100 * np.std(cell.accuracy, ddof=1) >= UNSTABLE:
        return "unstable"
    if gain_over(cell, majority).sign > 0:
        return ""
    return AS_MAJORITY


def better_cells(lines: Sequence[Line]) -> set[tuple[str, float | None]]:
    """Return the cells of a task, by method and epsilon, that clearly beat both baselines.

    The baselines are the majority class and single sites without privacy. All private cells share
    Holm's procedure.
    """
    line_of_method = {line.method: line for line in lines}
    if ALONE not in line_of_method or MAJORITY not in line_of_method:
        return set()
    majority = line_of_method[MAJORITY].first
    alone = line_of_method[ALONE].first
    cells = [cell for line in lines for cell in line.cells.values()]
    private = [cell for cell in cells if cell.epsilon is not None and len(cell.accuracy) >= LEAST]
    gains = [gain_over(cell, alone, majority) for cell in private]
    are_significant = holm_significant([gain.p for gain in gains])
    better = set()
    for cell, gain, is_significant in zip(private, gains, are_significant, strict=True):
        if is_significant and gain.mean > 0 and not left_out(cell, majority):
            better.add((cell.method, cell.epsilon))
    return better


def shown(cell: Cell, majority: Cell, better: bool = False) -> str:
    """Return the accuracy of a cell in percent with its interval; "-" if there is none.

    A star follows if `better`.
    """
    if not cell.accuracy:
        return "-"
    reason = left_out(cell, majority)
    if reason:
        return reason
    text = f"{100 * cell.mean:.1f}"
    half_width = _half_width(cell)
    if not np.isnan(half_width):
        text += f" ± {half_width:.1f}"
    if better:
        text += " *"
    return text


def _half_width(cell: Cell) -> float:
    """Return half of the 95% interval, in points; NaN for one split."""
    if len(cell.accuracy) < 2:
        return np.nan
    interval = difference(cell.accuracy, held_out=TASKS[cell.task].held_out)
    return 100 * (interval.high - interval.mean)


class TaskTable(NamedTuple):
    """The table of a task, in texts.

    Attributes
    ----------
    heads
        Heads of the columns.
    rows
        A row for each method, sorted by its accuracy at the smallest epsilon.
    notes
        Reasons of empty cells, and threat models, each with the methods that it is about.
    """

    heads: list[str]
    rows: list[list[str]]
    notes: list[str]


def table_of(cells: Sequence[Cell], task: str) -> TaskTable:
    """Return the table of a task."""
    epsilons = epsilons_of(cells, task)
    lines = lines_of(cells, task)
    heads = ["method", "threat model", *(f"epsilon {epsilon:g}" for epsilon in epsilons)]
    heads += ["worst", "proved", "MB", "seconds"]
    rows: list[list[str]] = []
    methods_of_note: dict[str, list[str]] = {}
    majority = lines[0].first
    better = better_cells(lines)
    for line in sorted(lines, key=lambda line: _place(line, majority)):
        note = line.first.why or line.first.view or _range(line.first)
        if note:
            methods_of_note.setdefault(note, []).append(line.method)
        row = [line.method, line.first.trust]
        for epsilon in epsilons:
            cell = line.at(epsilon)
            row.append(shown(cell, majority, (line.method, cell.epsilon) in better))
        rows.append(row + _costs(line, majority))
    notes = [f"{'; '.join(methods)}: {note}" for note, methods in methods_of_note.items()]
    return TaskTable(heads, rows, notes)


def _place(line: Line, majority: Cell) -> tuple[bool, float]:
    """Return the sort key of a method: by accuracy at the smallest epsilon, left-out cells last."""
    if not line.first.accuracy or left_out(line.first, majority):
        return True, 0.0
    return False, -line.first.mean


def _costs(line: Line, majority: Cell) -> list[str]:
    """Return the worst node's accuracy, the proved epsilon, megabytes and seconds of a method."""
    last = line.last
    worst = proved = megabytes = seconds = "-"
    if last.worst and not left_out(last, majority):
        worst = f"{100 * np.mean(last.worst):.1f}"
    if line.first.proved is not None:
        proved = rounded_up(line.first.proved, 3)
    if last.bytes is not None:
        three_digits = float(f"{last.bytes / 1e6:.3g}")
        megabytes = f"{three_digits:,g}"
    if last.seconds is not None:
        seconds = f"{last.seconds:.1f}"
    return [worst, proved, megabytes, seconds]


def verdict(cells: Sequence[Cell]) -> str:
    """Name the methods that beat a single node, their epsilon, and their threat model."""
    verdicts = []
    for task in dict.fromkeys(cell.task for cell in cells):
        lines = {line.method: line for line in lines_of(cells, task)}
        if len(lines) > 1:
            verdicts.append(_verdict(lines, splits_of(cells, task)))
    return "\n\n".join(verdicts)


def _verdict(lines: dict[str, Line], splits: int) -> str:
    """Return the sentence of one task: the best method of each threat model."""
    alone = lines[ALONE].first
    baseline = f"On {alone.task} a single node without privacy reaches {100 * alone.mean:.1f}%"
    if splits < LEAST:
        if splits == 1:
            return f"{baseline}; 1 split gives no verdict."
        return f"{baseline}; {splits} splits give no verdict."
    best: dict[str, tuple[float, float, str]] = {}
    for method, epsilon in better_cells([*lines.values()]):
        assert epsilon is not None
        cell = lines[method].at(epsilon)
        candidate = (epsilon, -cell.mean, method)
        best[cell.trust] = min(candidate, best.get(cell.trust, candidate))
    if not best:
        return f"{baseline}, and no private method clearly beats it."
    phrases = []
    for trust, (epsilon, loss, method) in sorted(best.items(), key=lambda item: item[1]):
        accuracy = -100 * loss
        phrases.append(f"{method} from epsilon {epsilon:g} on ({accuracy:.1f}%; {trust})")
    return f"{baseline}, and is clearly beaten by {'; '.join(phrases)}."


def as_markdown(cells: Sequence[Cell], provenances: Mapping[str, Provenance]) -> str:
    """Return all tables as Markdown with aligned columns, and the settings of each.

    Parameters
    ----------
    cells
        The cells of all tasks.
    provenances
        The settings of each task's run.
    """
    parts = [f"# {HEADLINE}", *NOTES]
    for task, title in _titles(cells):
        heads, rows, notes = table_of(cells, task)
        records = provenances.get(task, {}).get("records", "all")
        if records != "all":
            title += f", {records:,} records"
        parts.append(f"## {task}: {title}")
        parts.append(_aligned(heads, rows))
        parts.append("\n".join(f"- {note}" for note in notes))
    parts.append(verdict(cells))
    commands = [
        f"- `dpmesh benchmark {task}`: {_in_words(provenance)}"
        for task, provenance in provenances.items()
    ]
    parts.append("Made by\n\n" + "\n".join(commands))
    return "\n\n".join(parts)


def _aligned(heads: list[str], rows: list[list[str]]) -> str:
    """Return a table of Markdown whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for line in (heads, ["-" * width for width in widths], *rows):
        cells = " | ".join(map(str.ljust, line, widths))
        lines.append(f"| {cells} |")
    return "\n".join(lines)


def as_page(cells: Sequence[Cell], provenances: Mapping[str, Provenance]) -> str:
    """Return one self-contained HTML page; the parameters are those of `as_markdown`."""
    sentences = f'<p style="white-space: pre-line">{escape(verdict(cells))}</p>'
    body = [f"<h1>{HEADLINE}</h1>", sentences]
    texts = (escape(note.replace("`", "")) for note in NOTES)
    body += [f'<p class="note" style="white-space: pre-line">{text}</p>' for text in texts]
    body.append(figures([(draw(cells), "accuracy of all methods by task")]))
    for task, title in _titles(cells):
        heads, rows, notes = table_of(cells, task)
        body += [f"<h2>{escape(task)}: {escape(title)}</h2>", table(heads, rows)]
        body += [f'<p class="note">{escape(note)}</p>' for note in notes]
    runs = [[task, _in_words(provenance)] for task, provenance in provenances.items()]
    body.append(table(["task", "made by"], runs))
    return document("dpmesh benchmark", body)


def draw(cells: Sequence[Cell]) -> Figure:
    """Draw the accuracy of every method at every epsilon, a panel for each task."""
    from matplotlib.figure import Figure

    tasks = [task for task, _ in _titles(cells) if splits_of(cells, task)]
    columns = min(2, len(tasks)) or 1
    rows = ceil(len(tasks) / columns) or 1
    figure = Figure(figsize=(7.5 * columns, 5.6 * rows), layout="constrained")
    axes = np.ravel(figure.subplots(rows, columns, squeeze=False))
    epsilons = sorted({epsilon for task in tasks for epsilon in epsilons_of(cells, task)})
    handles: dict[str, Artist] = {}
    for ax, task in zip(axes, tasks, strict=False):
        _draw(ax, task, lines_of(cells, task), epsilons)
        handles_of_panel, labels = ax.get_legend_handles_labels()
        handles |= dict(zip(labels, handles_of_panel, strict=True))
    for ax in axes[len(tasks) :]:
        ax.set_axis_off()
    if tasks:
        figure.legend([*handles.values()], [*handles], loc="outside upper center", ncols=4)
    return figure


def read(folder: Path) -> tuple[list[Cell], dict[str, Provenance]]:
    """Return the cells of a folder's ``benchmark.json``, and the settings of each task's run.

    Raises
    ------
    ValueError
        If the file is not one that `write` wrote.
    """
    try:
        saved = json.loads((folder / "benchmark.json").read_text())
        return [Cell.from_dict(cell) for cell in saved["cells"]], {**saved["made"]}
    except FileNotFoundError:
        return [], {}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder / 'benchmark.json'} is not a result of this version: remove it, or name "
            f"another folder ({type(error).__name__}: {error})"
        ) from error


def save(cells: Sequence[Cell], folder: Path, provenances: Mapping[str, Provenance]) -> None:
    """Write ``benchmark.json``: these cells, and those of other tasks that the folder has.

    `provenances` has the settings of each task's run.

    Raises
    ------
    ValueError
        As `read`.
    OSError
        If the folder cannot be written to.
    """
    saved_cells, saved_provenances = read(folder)
    all_cells = [cell for cell in saved_cells if cell.task not in provenances]
    all_cells += cells
    order = list(TASKS)
    all_cells.sort(key=lambda cell: (order.index(cell.task), cell.epsilon or 0.0))
    all_provenances = {**saved_provenances, **provenances}
    shown_provenances = {task: all_provenances[task] for task, _ in _titles(all_cells)}
    rows = ",\n  ".join(json.dumps(vars(cell)) for cell in all_cells)
    text = f'{{"made": {json.dumps(shown_provenances, indent=1)},\n "cells": [\n  {rows}]}}\n'
    replace_text(folder / "benchmark.json", text)


def write(folder: Path) -> list[Path]:
    """Write ``benchmark.md``, ``.png`` and ``.html`` of ``benchmark.json``; return all paths.

    Raises
    ------
    ValueError
        As `read`.
    OSError
        If the folder cannot be written to.
    """
    cells, provenances = read(folder)
    texts = {"md": as_markdown(cells, provenances) + "\n", "html": as_page(cells, provenances)}
    for kind, text in texts.items():
        replace_text(folder / f"benchmark.{kind}", text)
    with replacing(folder / "benchmark.png") as file:
        draw(cells).savefig(file, format="png", dpi=110)
    return [folder / f"benchmark.{kind}" for kind in ("json", *texts, "png")]


def _in_words(provenance: Provenance) -> str:
    return "; ".join(f"{name} {value}" for name, value in provenance.items())


def _range(cell: Cell) -> str:
    """Return the accuracies of the worst and the best single node; empty for other rows."""
    if cell.method != ALONE or not cell.worst:
        return ""
    return f"worst node {100 * np.mean(cell.worst):.1f}, best {100 * np.mean(cell.best):.1f}"


def _titles(cells: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    """Yield the name of each task, and its title with the number of splits that ran."""
    for task in dict.fromkeys(cell.task for cell in cells):
        count = splits_of(cells, task)
        yield task, title_of(task, count)


def title_of(task: str, count: int) -> str:
    """Return the title of a task, the number of its splits, and caveats of its numbers."""
    splits = "1 split"
    if count != 1:
        splits = f"{count} splits"
    unit = ""
    if TASKS[task].unit == "user":
        unit = "; the unit is a user"
    return f"{TASKS[task].title}{unit}; {splits}{_about(TASKS[task])}"


def _about(task: Task) -> str:
    """Return the caveats of a task's numbers: an unusual delta, tuned constants, private steps."""
    words = ""
    if task.delta != DELTA:
        words = f"; delta {task.delta:.2g}"
    if task.tuned_on:
        words += "; the rule's constants were chosen on this table"
    if task.not_covered:
        words += f"; not covered by any epsilon: {task.not_covered}"
    return words


def _draw(ax: Axes, task: str, lines: Sequence[Line], epsilons: Sequence[float]) -> None:
    """Draw a task: a vertical line for each baseline, a row of points for each private method.

    The points of a row, one for each epsilon, stand below each other.
    """
    styles = {MAJORITY: ":", ALONE: "-", POOLED: "--"}
    majority = lines[0].first
    lines = [line for line in lines if any(cell.accuracy for cell in line.cells.values())]
    for line in lines:
        if line.method in styles:
            style = styles[line.method]
            ax.axvline(100 * line.first.mean, color="0.3", linestyle=style, label=line.method)
    private = [line for line in lines if line.method not in styles]
    for number, epsilon in enumerate(epsilons):
        cells = [line.cells[epsilon] for line in private if epsilon in line.cells]
        if not cells:
            continue
        means = [np.nan if left_out(cell, majority) else 100 * cell.mean for cell in cells]
        half_widths = np.nan_to_num([_half_width(cell) for cell in cells])
        heights = np.arange(len(private)) + 0.16 * (number - (len(epsilons) - 1) / 2)
        ax.errorbar(
            means,
            heights,
            xerr=half_widths,
            fmt="o",
            ms=4,
            color=f"C{number}",
            label=f"epsilon {epsilon:g}",
        )
    ax.set_yticks(range(len(private)), labels=[line.method for line in private], fontsize=8)
    ax.set_ylim(len(private) - 0.4, -0.6)
    title = fill(f"{task}: {TASKS[task].title}", 48)
    ax.set(title=title, xlabel="accuracy (%)", xlim=(0, 100))
    ax.grid(axis="x", alpha=0.3)
