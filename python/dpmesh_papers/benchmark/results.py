"""What the benchmark writes: one table in four forms, a figure, and a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from dpmesh._epsilons import rounded_up
from dpmesh._files import replace_text, replacing
from dpmesh.experiments.html import document, figures, table
from dpmesh.run.verdict import LEAST, Difference, clearly, difference
from dpmesh_papers.benchmark.cells import ALONE, CHANCE, POOLED, Cell
from dpmesh_papers.benchmark.methods import RULE
from dpmesh_papers.benchmark.task import DELTA, Task
from dpmesh_papers.benchmark.tasks import TASKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Made: TypeAlias = Mapping[str, Any]
"""What made the results of a task: settings, commit, machine."""

HEADLINE = "The benchmark: accuracy (%) on held-out records of all nodes"
UNSTABLE = 20.0
"""Standard deviation over the splits, in points, from which on a cell is left out."""

NOTES = (
    f"Accuracy at an epsilon, at delta = {DELTA:g} or the task's own, for replacing one record, or "
    "one user where the task says so: the mean over nodes and splits, and half of its 95% "
    "interval, which counts that splits of one table overlap. Where all splits have the "
    "publisher's test records, it is about partitions and noise alone. Records have norm 1.\n\n"
    "- `*`: better than a node alone without privacy and than chance, by paired differences over "
    "the splits (95% for all cells of a task together, Holm).\n"
    "- at chance: not clearly above the largest class.\n"
    f"- unstable: a standard deviation of {UNSTABLE:g} points or more over the splits.\n"
    "- worst: of the worst node, at the largest epsilon.\n"
    "- proved: the largest epsilon by the ledger against somebody who sees every message, at the "
    "smallest budget.\n"
    "- MB: sent by a node. Seconds: of one run, on one machine, busy or not.\n\n"
    f"The first three take {LEAST} splits; the numbers left out are in benchmark.json.",
    RULE,
)


class Line(NamedTuple):
    """A method on a task: its cells by epsilon."""

    method: str
    cells: dict[float | None, Cell]

    @property
    def first(self) -> Cell:
        """At the smallest epsilon."""
        return next(iter(self.cells.values()))

    @property
    def last(self) -> Cell:
        """At the largest."""
        return [*self.cells.values()][-1]

    def at(self, epsilon: float) -> Cell:
        """The cell of an epsilon, or the only one of a baseline."""
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
    return sorted({c.epsilon for c in cells if c.task == task and c.epsilon is not None})


def splits_of(cells: Sequence[Cell], task: str) -> int:
    """Return how many splits of a task all rows have."""
    return min((len(c.accuracy) for c in cells if c.task == task and not c.why), default=0)


def paired(cell: Cell, *levels: Cell) -> Difference:
    """Return the interval of what a cell is above the highest of several others, by splits."""
    level = max(levels, key=lambda other: other.mean)
    both = [one - other for one, other in zip(cell.accuracy, level.accuracy, strict=False)]
    return difference(both, held_out=TASKS[cell.task].held_out)


def left_out(cell: Cell, chance: Cell) -> str:
    """Return why the number of a private cell means nothing; empty if it does."""
    if len(cell.accuracy) < LEAST or cell.epsilon is None:
        return ""
    if 100 * np.std(cell.accuracy, ddof=1) >= UNSTABLE:
        return "unstable"
    return "" if paired(cell, chance).sign > 0 else "at chance"


def beating(lines: Sequence[Line]) -> set[tuple[str, float | None]]:
    """Return the cells of a task, by method and epsilon, that clearly beat alone and chance."""
    by = {line.method: line for line in lines}
    if not {ALONE, CHANCE} <= {*by}:
        return set()
    levels = [by[ALONE].first, by[CHANCE].first]
    private = [c for line in lines for c in line.cells.values() if c.epsilon is not None]
    private = [cell for cell in private if len(cell.accuracy) >= LEAST]
    gains = [paired(cell, *levels) for cell in private]
    clear = clearly([gain.p for gain in gains])
    return {
        (cell.method, cell.epsilon)
        for cell, gain, sure in zip(private, gains, clear, strict=True)
        if sure and gain.mean > 0 and not left_out(cell, by[CHANCE].first)
    }


def shown(cell: Cell, chance: Cell, better: bool = False) -> str:
    """Return the accuracy of a cell in percent with its interval; "-" if there is none."""
    if not cell.accuracy:
        return "-"
    if why := left_out(cell, chance):
        return why
    half = _half(cell)
    return f"{100 * cell.mean:.1f}{'' if np.isnan(half) else f' ± {half:.1f}'}{' *' * better}"


def _half(cell: Cell) -> float:
    """Return half of the 95% interval, in points; NaN for one split."""
    if len(cell.accuracy) < 2:
        return np.nan
    found = difference(cell.accuracy, held_out=TASKS[cell.task].held_out)
    return 100 * (found.high - found.mean)


def table_of(cells: Sequence[Cell], task: str) -> tuple[list[str], list[list[str]], list[str]]:
    """Return heads, rows and notes (why a cell is empty, what a view is) of a task's table."""
    epsilons, lines = epsilons_of(cells, task), lines_of(cells, task)
    heads = ["method", "one trusts", *(f"epsilon {epsilon:g}" for epsilon in epsilons)]
    heads += ["worst", "proved", "MB", "seconds"]
    rows: list[list[str]] = []
    reasons: dict[str, list[str]] = {}
    chance, better = lines[0].first, beating(lines)

    def kept(cell: Cell) -> bool:
        return bool(cell.worst) and not left_out(cell, chance)

    for line in lines:
        first, last = line.first, line.last
        if note := first.why or first.view or _range(first):
            reasons.setdefault(note, []).append(line.method)
        found = [line.at(epsilon) for epsilon in epsilons]
        rows.append(
            [
                line.method,
                first.trust,
                *(shown(cell, chance, (line.method, cell.epsilon) in better) for cell in found),
                f"{100 * np.mean(last.worst):.1f}" if kept(last) else "-",
                "-" if first.proved is None else rounded_up(first.proved, 3),
                "-" if last.bytes is None else f"{float(f'{last.bytes / 1e6:.3g}'):,g}",
                "-" if last.seconds is None else f"{last.seconds:.1f}",
            ]
        )
    return heads, rows, [f"{', '.join(methods)}: {note}" for note, methods in reasons.items()]


def verdict(cells: Sequence[Cell]) -> str:
    """Say which methods beat a node alone, at which epsilon, and whom one trusts for that."""
    tasks = dict.fromkeys(cell.task for cell in cells)
    return "\n\n".join(
        _verdict(lines, splits_of(cells, task))
        for task in tasks
        if len(lines := {line.method: line for line in lines_of(cells, task)}) > 1
    )


def _verdict(lines: dict[str, Line], splits: int) -> str:
    """Return the sentence of one task: the best method of each kind of trust."""
    best: dict[str, tuple[float, float, str]] = {}
    for method, epsilon in beating([*lines.values()]):
        assert epsilon is not None
        cell = lines[method].at(epsilon)
        found = epsilon, -cell.mean, method
        best[cell.trust] = min(found, best.get(cell.trust, found))
    alone = lines[ALONE].first
    says = f"On {alone.task} a node alone without privacy reaches {100 * alone.mean:.1f}%"
    if splits < LEAST:
        return f"{says}; {splits} split{'s give' if splits != 1 else ' gives'} no verdict."
    if not best:
        return f"{says}, and no private method clearly beats it."
    parts = (
        f"{method} from epsilon {epsilon:g} on ({-100 * accuracy:.1f}%, trusting {trust})"
        for trust, (epsilon, accuracy, method) in sorted(best.items(), key=lambda one: one[1])
    )
    return f"{says}, and is clearly beaten by {'; '.join(parts)}."


def as_markdown(cells: Sequence[Cell], made: Mapping[str, Made]) -> str:
    """Return all tables as Markdown whose columns are aligned, and what made each."""
    parts = [f"# {HEADLINE}", *NOTES]
    for task, title in _titles(cells):
        heads, rows, notes = table_of(cells, task)
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = [heads, ["-" * width for width in widths], *rows]
        written = [" | ".join(map(str.ljust, line, widths)) for line in lines]
        most = made.get(task, {}).get("records", "all")
        title += "" if most == "all" else f", {most:,} records"
        parts += [f"## {task}: {title}", "\n".join(f"| {line} |" for line in written)]
        parts.append("\n".join(f"- {note}" for note in notes))
    by = "\n".join(f"- `dpmesh benchmark {task}`: {_in_words(one)}" for task, one in made.items())
    return "\n\n".join([*parts, verdict(cells), f"Made by\n\n{by}"])


def as_page(cells: Sequence[Cell], made: Mapping[str, Made]) -> str:
    """Return one self-contained HTML page."""
    says = f'<p style="white-space: pre-line">{escape(verdict(cells))}</p>'
    body = [f"<h1>{HEADLINE}</h1>", says]
    texts = (escape(note.replace("`", "")) for note in NOTES)
    body += [f'<p class="note" style="white-space: pre-line">{text}</p>' for text in texts]
    body.append(figures([(draw(cells), "accuracy of all methods by task")]))
    for task, title in _titles(cells):
        heads, rows, notes = table_of(cells, task)
        body += [f"<h2>{escape(task)}: {escape(title)}</h2>", table(heads, rows)]
        body += [f'<p class="note">{escape(note)}</p>' for note in notes]
    body.append(table(["task", "made by"], [[task, _in_words(by)] for task, by in made.items()]))
    return document("dpmesh benchmark", body)


def draw(cells: Sequence[Cell]) -> Figure:
    """Draw the accuracy of every method at every epsilon, a panel for each task."""
    from matplotlib.figure import Figure

    ran = [task for task, _ in _titles(cells) if splits_of(cells, task)]
    across = min(2, len(ran)) or 1
    down = -(-len(ran) // across) or 1
    figure = Figure(figsize=(7.5 * across, 5.6 * down), layout="constrained")
    axes = np.ravel(figure.subplots(down, across, squeeze=False))
    budgets = sorted({epsilon for task in ran for epsilon in epsilons_of(cells, task)})
    known: dict[str, Any] = {}
    for ax, task in zip(axes, ran, strict=False):
        _draw(ax, task, lines_of(cells, task), budgets)
        known |= {name: line for line, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    for ax in axes[len(ran) :]:
        ax.set_axis_off()
    if ran:
        figure.legend([*known.values()], [*known], loc="outside upper center", ncols=4)
    return figure


def read(folder: Path) -> tuple[list[Cell], dict[str, Made]]:
    """Return the cells that a folder's ``benchmark.json`` holds, and what made each task's.

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


def save(cells: Sequence[Cell], folder: Path, made: Mapping[str, Made]) -> None:
    """Write ``benchmark.json``: these cells, and those of other tasks that the folder has.

    `made` is what made those of each task.

    Raises
    ------
    ValueError
        As `read`.
    OSError
        If the folder cannot be written to.
    """
    kept, before = read(folder)
    known = [*(cell for cell in kept if cell.task not in made), *cells]
    known.sort(key=lambda cell: ([*TASKS].index(cell.task), cell.epsilon or 0.0))
    by = {task: {**before, **made}[task] for task, _ in _titles(known)}
    rows = ",\n  ".join(json.dumps(vars(cell)) for cell in known)
    text = f'{{"made": {json.dumps(by, indent=1)},\n "cells": [\n  {rows}]}}\n'
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
    known, by = read(folder)
    texts = {"md": as_markdown(known, by) + "\n", "html": as_page(known, by)}
    for kind, text in texts.items():
        replace_text(folder / f"benchmark.{kind}", text)
    with replacing(folder / "benchmark.png") as file:
        draw(known).savefig(file, format="png", dpi=110)
    return [folder / f"benchmark.{kind}" for kind in ("json", *texts, "png")]


def _in_words(by: Made) -> str:
    return "; ".join(f"{name} {value}" for name, value in by.items())


def _range(cell: Cell) -> str:
    """Say how far nodes that work alone are apart."""
    if cell.method != ALONE or not cell.worst:
        return ""
    return f"worst node {100 * np.mean(cell.worst):.1f}, best {100 * np.mean(cell.best):.1f}"


def _titles(cells: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    """Yield the name of each task, and what it is, with the number of splits that ran."""
    for task in dict.fromkeys(cell.task for cell in cells):
        count = splits_of(cells, task)
        yield task, title_of(task, count)


def title_of(task: str, count: int) -> str:
    """Return what a task is, the number of its splits, and what a reader has to know."""
    return f"{TASKS[task].title}; {count} split{'s' * (count != 1)}{_about(TASKS[task])}"


def _about(task: Task) -> str:
    """Return what a reader of a task's numbers has to know beside them."""
    words = "" if task.delta == DELTA else f"; delta {task.delta:.2g}"
    if task.tuned_on:
        words += "; the rule's constants were chosen on this table"
    if task.not_covered:
        words += f"; not covered by any epsilon: {task.not_covered}"
    return words


def _draw(ax: Axes, task: str, lines: Sequence[Line], epsilons: Sequence[float]) -> None:
    levels = {CHANCE: ":", ALONE: "-", POOLED: "--"}
    lines = [line for line in lines if any(cell.accuracy for cell in line.cells.values())]
    rows = [line for line in lines if line.method not in levels]
    for line in lines:
        if line.method in levels:
            style = levels[line.method]
            ax.axvline(100 * line.first.mean, color="0.3", linestyle=style, label=line.method)
    for number, epsilon in enumerate(epsilons):
        if not (found := [line.cells[epsilon] for line in rows if epsilon in line.cells]):
            continue
        kept = [np.nan if left_out(cell, lines[0].first) else 100 * cell.mean for cell in found]
        halves = np.nan_to_num([_half(cell) for cell in found])
        shift = np.arange(len(rows)) + 0.16 * (number - (len(epsilons) - 1) / 2)
        colour, name = f"C{number}", f"epsilon {epsilon:g}"
        ax.errorbar(kept, shift, xerr=halves, fmt="o", ms=4, color=colour, label=name)
    ax.set_yticks(range(len(rows)), labels=[line.method for line in rows], fontsize=8)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    title = fill(f"{task}: {TASKS[task].title}", 48)
    ax.set(title=title, xlabel="accuracy (%)", xlim=(0, 100))
    ax.grid(axis="x", alpha=0.3)
