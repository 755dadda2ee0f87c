"""What the arena writes: one table in four forms, a figure, and a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import hypot
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from dpmesh._files import replace_text, replacing
from dpmesh.experiments.html import document, figures, table
from dpmesh.privacy.shown import rounded_up
from dpmesh.reproduce.arena.cells import (
    ALONE,
    AUDITED_RUNS,
    CHANCE,
    DELTA,
    POOLED,
    Cell,
    shown,
)
from dpmesh.reproduce.arena.methods import RULE
from dpmesh.reproduce.arena.tasks import HELD_OUT, TASKS
from dpmesh.run.verdict import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Made: TypeAlias = Mapping[str, Any]
"""What made the results of a task: settings, commit, machine."""

HEADLINE = "The arena: accuracy (%) on held-out records of all nodes"
NOTES = (
    f"Each column is an epsilon at delta = {DELTA:g}, for replacing one record, or one user where "
    "the task says so. Mean over nodes and seeds, and standard deviation over seeds; worst: of the "
    "worst node, at the largest epsilon. Proved: the largest epsilon by the ledger against "
    "somebody who sees every message, at the smallest budget; audited: a lower bound that "
    f"{AUDITED_RUNS} runs of a small problem show at the largest. MB: sent by a node. Seconds: of "
    "one run, on one machine. Records have norm 1.",
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


def table_of(cells: Sequence[Cell], task: str) -> tuple[list[str], list[list[str]], list[str]]:
    """Return heads, rows and notes (why a cell is empty, what a view is) of a task's table."""
    epsilons = epsilons_of(cells, task)
    heads = ["method", *(f"epsilon {epsilon:g}" for epsilon in epsilons), "worst", "proved"]
    heads += ["audited", "MB", "seconds", "one trusts"]
    rows: list[list[str]] = []
    reasons: dict[str, list[str]] = {}
    for line in lines_of(cells, task):
        first, last = line.first, line.last
        if note := first.why or first.view or _range(first):
            reasons.setdefault(note, []).append(line.method)
        rows.append(
            [
                line.method,
                *(shown(line.at(epsilon)) for epsilon in epsilons),
                "-" if last.worst is None else f"{100 * last.worst:.1f}",
                "-" if first.proved is None else rounded_up(first.proved, 3),
                "-" if last.audited is None else f"{last.audited:.2f}",
                "-" if last.bytes is None else f"{last.bytes / 1e6:.3g}",
                "-" if last.seconds is None else f"{last.seconds:.1f}",
                first.trust,
            ]
        )
    return heads, rows, [f"{', '.join(methods)}: {note}" for note, methods in reasons.items()]


def verdict(cells: Sequence[Cell]) -> str:
    """Say which methods beat a node alone, at which epsilon, and whom one trusts for that."""
    return " ".join(
        _verdict(lines)
        for task in dict.fromkeys(cell.task for cell in cells)
        if len(lines := {line.method: line for line in lines_of(cells, task)}) > 1
    )


def _verdict(lines: dict[str, Line]) -> str:
    """Return the sentence of one task: the best method of each kind of trust."""
    level = max((lines[m].first for m in (ALONE, CHANCE)), key=lambda cell: cell.accuracy or 0.0)
    alone = lines[ALONE].first.accuracy or 0.0
    best: dict[str, tuple[float, float, str]] = {}
    for line in lines.values():
        for epsilon, cell in line.cells.items():
            accuracy = cell.accuracy or 0.0
            if epsilon is not None and _beats(cell, level):
                found = epsilon, -accuracy, line.method
                best[cell.trust] = min(found, best.get(cell.trust, found))
    task = lines[ALONE].first.task
    says = f"On {task} a node alone without privacy reaches {100 * alone:.1f}%"
    if not best:
        return f"{says}, and no private method clearly beats it."
    parts = (
        f"{method} from epsilon {epsilon:g} on ({-100 * accuracy:.1f}%, trusting {trust})"
        for trust, (epsilon, accuracy, method) in best.items()
    )
    return f"{says}, and is clearly beaten by {'; '.join(parts)}."


def _beats(cell: Cell, level: Cell) -> bool:
    """Whether a method is above a level by more than the 95% interval of `dpmesh.run.verdict`."""
    if cell.accuracy is None or level.accuracy is None or cell.seeds < 2:
        return False
    spread = hypot(cell.spread or 0.0, level.spread or 0.0)
    gain = interval(cell.accuracy - level.accuracy, spread, cell.seeds, held_out=HELD_OUT)
    return gain.sign > 0


def as_text(cells: Sequence[Cell]) -> str:
    """Return all tables as text."""
    parts = [f"{HEADLINE}.", *NOTES]
    for task, title in _titles(cells):
        heads, rows, notes = table_of(cells, task)
        widths = [max(len(row[place]) for row in [heads, *rows]) for place in range(len(heads))]
        aligned = [
            "  ".join(
                text.ljust(width) if place in (0, len(heads) - 1) else text.rjust(width)
                for place, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in [heads, *rows]
        ]
        parts.append("\n".join([f"{task}: {title}", "", *aligned, *notes]))
    return "\n\n".join([*parts, verdict(cells)])


def as_markdown(cells: Sequence[Cell], made: Mapping[str, Made]) -> str:
    """Return all tables as Markdown, and what made each."""
    parts = [f"# {HEADLINE}", *NOTES]
    for task, title in _titles(cells):
        heads, rows, notes = table_of(cells, task)
        written = ["| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows]]
        parts += [f"## {task}: {title}", "\n".join(written)]
        parts.append("\n".join(f"- {note}" for note in notes))
    by = "\n".join(f"- `dpmesh arena {task}`: {_in_words(one)}" for task, one in made.items())
    return "\n\n".join([*parts, verdict(cells), f"Made by\n\n{by}"])


def as_page(cells: Sequence[Cell], made: Mapping[str, Made]) -> str:
    """Return one self-contained HTML page."""
    body = [f"<h1>{HEADLINE}</h1>", f"<p>{escape(verdict(cells))}</p>"]
    body += [f'<p class="note">{escape(note)}</p>' for note in NOTES]
    body.append(figures([(draw(cells), "accuracy of all methods by task")]))
    for task, title in _titles(cells):
        heads, rows, notes = table_of(cells, task)
        body.append(f"<h2>{escape(task)}: {escape(title)}</h2>")
        body.append(f'<div class="wide">{table(heads, rows)}</div>')
        body += [f'<p class="note">{escape(note)}</p>' for note in notes]
    body.append(table(["task", "made by"], [[task, _in_words(by)] for task, by in made.items()]))
    return document("dpmesh arena", body)


def draw(cells: Sequence[Cell]) -> Figure:
    """Draw the accuracy of every method at every epsilon, a panel for each task."""
    from matplotlib.figure import Figure

    ran = [task for task, _ in _titles(cells) if any(c.accuracy for c in cells if c.task == task)]
    across = min(2, len(ran)) or 1
    down = -(-len(ran) // across) or 1
    figure = Figure(figsize=(7.5 * across, 5.6 * down), layout="constrained")
    axes = np.ravel(figure.subplots(down, across, squeeze=False))
    for ax, task in zip(axes, ran, strict=False):
        _draw(ax, task, lines_of(cells, task), epsilons_of(cells, task))
    for ax in axes[len(ran) :]:
        ax.set_axis_off()
    if ran:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def read(folder: Path) -> tuple[list[Cell], dict[str, Made]]:
    """Return the cells that a folder's ``arena.json`` holds, and what made each task's.

    Raises
    ------
    ValueError
        If the file is not one that `write` wrote.
    """
    try:
        saved = json.loads((folder / "arena.json").read_text())
        return [Cell(**cell) for cell in saved["cells"]], {**saved["made"]}
    except FileNotFoundError:
        return [], {}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder / 'arena.json'} is not a result of this version: remove it, or name another "
            f"folder ({type(error).__name__}: {error})"
        ) from error


def write(cells: Sequence[Cell], folder: Path, made: Mapping[str, Made]) -> list[Path]:
    """Write ``arena.txt``, ``.md``, ``.json``, ``.png`` and ``.html``; return their paths.

    Other tasks that the folder has keep their results. `made` is what made those of each task.

    Raises
    ------
    ValueError
        As `read`.
    OSError
        If the folder cannot be written to.
    """
    kept, made_before = read(folder)
    known = [*(cell for cell in kept if cell.task not in made), *cells]
    known.sort(key=lambda cell: [*TASKS].index(cell.task))
    by = {task: {**made_before, **made}[task] for task, _ in _titles(known)}
    saved: dict[str, Any] = {"made": by, "rule": RULE, "verdict": verdict(known)}
    saved["cells"] = [cell.as_dict() for cell in known]
    texts = {
        "txt": as_text(known) + "\n",
        "md": as_markdown(known, by) + "\n",
        "json": json.dumps(saved, indent=1),
        "html": as_page(known, by),
    }
    for kind, text in texts.items():
        replace_text(folder / f"arena.{kind}", text)
    with replacing(folder / "arena.png") as file:
        draw(known).savefig(file, format="png", dpi=110)
    return [folder / f"arena.{kind}" for kind in (*texts, "png")]


def _in_words(by: Made) -> str:
    return "; ".join(f"{name} {value}" for name, value in by.items())


def _range(cell: Cell) -> str:
    """Say how far nodes that work alone are apart."""
    if cell.method != ALONE or cell.worst is None or cell.best is None:
        return ""
    return f"worst node {100 * cell.worst:.1f}, best {100 * cell.best:.1f}"


def _titles(cells: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    for task in dict.fromkeys(cell.task for cell in cells):
        yield task, TASKS[task].title


def _draw(ax: Axes, task: str, lines: Sequence[Line], epsilons: Sequence[float]) -> None:
    levels = {CHANCE: ":", ALONE: "-", POOLED: "--"}
    rows = [line for line in lines if line.method not in levels]
    for line in lines:
        if line.method in levels and line.first.accuracy is not None:
            style = levels[line.method]
            ax.axvline(100 * line.first.accuracy, color="0.3", linestyle=style, label=line.method)
    for number, epsilon in enumerate(epsilons):
        heights = [100 * (line.at(epsilon).accuracy or np.nan) for line in rows]
        spreads = [100 * (line.at(epsilon).spread or 0.0) for line in rows]
        shift = np.arange(len(rows)) + 0.16 * (number - (len(epsilons) - 1) / 2)
        colour, name = f"C{number}", f"epsilon {epsilon:g}"
        ax.errorbar(heights, shift, xerr=spreads, fmt="o", ms=4, color=colour, label=name)
    ax.set_yticks(range(len(rows)), labels=[line.method for line in rows], fontsize=8)
    ax.invert_yaxis()
    ax.set(title=f"{task}: {TASKS[task].title}", xlabel="accuracy (%)", xlim=(0, 100))
    ax.grid(axis="x", alpha=0.3)
