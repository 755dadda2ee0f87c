"""Markdown tables of the benchmark's results in each paper's setting.

A table has the paper's own methods, methods that every table has (`COMMON_METHODS`), baselines, and
the best method under each threat model. A *row* of the benchmark is a method with its threat model
(`trust`); a *cell* is a method at an epsilon on a task. `dpmesh_papers.quoted` writes the tables
into their pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpmesh_papers.benchmark.cells import ALONE, ALONE_PRIVATE, MAJORITY, POOLED, Cell
from dpmesh_papers.benchmark.methods import ROWS
from dpmesh_papers.benchmark.results import Line, lines_of, shown, splits_of, title_of
from dpmesh_papers.benchmark.setting import ALL_MESSAGES_PUBLIC
from dpmesh_papers.benchmark.tasks import TASKS

COMMON_METHODS = (
    "gradient descent by gossip",
    "gossip, up to 400 steps",
    *(
        row.name
        for row in ROWS
        if row.name.startswith("one message") and row.trust == ALL_MESSAGES_PUBLIC
    ),
    ALONE_PRIVATE,
)
"""Methods that every paper's table has."""
BASELINES = (MAJORITY, ALONE, POOLED)


def best_of(lines: Sequence[Line], trust: str, epsilon: float) -> Line | None:
    """Return the private method of a threat model with the highest mean at an epsilon."""
    candidates = [
        line
        for line in lines
        if line.method not in BASELINES and line.first.trust == trust and line.at(epsilon).accuracy
    ]
    return max(candidates, key=lambda line: line.at(epsilon).mean, default=None)


def table_of_task(cells: Sequence[Cell], name: str) -> str:
    """Return the Markdown table of the task `name`, under a line with its setting and epsilon."""
    task = TASKS[name]
    epsilon = task.epsilons[0]
    lines = lines_of(cells, name)
    majority = next(line for line in lines if line.method == MAJORITY).first
    methods_of_paper = {row.name for row in task.extra_rows}
    trusts = [trust for trust in _trusts(lines) if not missing_rows(lines, name, trust)]
    bests = [best_of(lines, trust, epsilon) for trust in trusts]
    best_names = [line.method for line in bests if line is not None]
    shown_methods = {*methods_of_paper, *COMMON_METHODS, *best_names, *BASELINES}
    shown_methods |= {line.method for line in lines if line.method.startswith("one message")}
    heading = f"{title_of(name, splits_of(cells, name))}. Epsilon {epsilon:g}."
    if any(missing_rows(lines, name, trust) for trust in _trusts(lines)):
        heading += " Not all rows of the benchmark have run here,"
        heading += " and those of servers only in part."
    rows = [f"| threat model | method | accuracy (%) |\n|{3 * '---|'}"]
    for line in _ordered(lines, epsilon):
        cell = line.at(epsilon)
        if line.method not in shown_methods or not cell.accuracy:
            continue
        mark = ""
        if line.method in best_names:
            mark = ", **best under this threat model**"
        rows.append(f"| {cell.trust} | {line.method}{mark} | {shown(cell, majority)} |")
    return "\n".join([heading, "", *rows])


def missing_rows(lines: Sequence[Line], name: str, trust: str) -> list[str]:
    """Return the methods of a threat model that have not run on a task."""
    methods = {line.method for line in lines}
    rows = [*ROWS, *TASKS[name].extra_rows]
    return [row.name for row in rows if row.trust == trust and row.name not in methods]


def _trusts(lines: Sequence[Line]) -> list[str]:
    """Return the threat models of private methods; public messages come first."""
    trusts = dict.fromkeys(line.first.trust for line in lines if line.method not in BASELINES)
    return sorted(trusts, key=lambda trust: trust != ALL_MESSAGES_PUBLIC)


def _ordered(lines: Sequence[Line], epsilon: float) -> Iterator[Line]:
    """Yield the baselines, then each threat model's methods from the best on."""
    yield from (line for line in lines if line.method in BASELINES)
    for trust in _trusts(lines):
        lines_of_trust = [line for line in lines if line.first.trust == trust]
        private = [line for line in lines_of_trust if line.method not in BASELINES]
        yield from sorted(private, key=lambda line: -line.at(epsilon).mean)


def tables(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the table of each paper's task that has run, by the task's name."""
    ran = [name for name in TASKS if name.startswith("paper-") and splits_of(cells, name)]
    return {name: table_of_task(cells, name) for name in ran}
