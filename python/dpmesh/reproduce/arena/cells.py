"""The cells of the arena: each method, at each epsilon, over the seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np

import dpmesh.run.baselines as baselines
from dpmesh.algorithms.registry import entry_of
from dpmesh.audit import audit_pair, claiming
from dpmesh.keys import Key
from dpmesh.privacy import accounting
from dpmesh.reproduce.arena.given import EVERYBODY, CannotRun, Row, Setting
from dpmesh.reproduce.arena.methods import ROWS
from dpmesh.reproduce.arena.tasks import TASKS, Task
from dpmesh.run import simulate

DELTA = 1e-5
EPSILONS = (1.0, 2.0, 4.0, 8.0)
SEEDS = 3
MOST_ALONE = 8
"""Nodes, evenly spaced, that work alone and private."""

CHANCE, ALONE, ALONE_PRIVATE, POOLED = (
    "chance (largest class)",
    "alone, without privacy",
    "alone, private",
    "pooled, without privacy",
)
NO_RELEASE = "nobody: nothing is released"
AUDITED_RUNS = 500


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method at an epsilon on a task; numbers are None where there are none.

    Parameters
    ----------
    task, method, trust
        Which, and whom a node has to trust with its records.
    epsilon
        The budget, None without privacy.
    accuracy, spread
        Mean over nodes and seeds, and standard deviation over the seeds (None for one).
    worst, best
        Of a single node, mean over the seeds.
    bytes, seconds
        Sent by a node on average; of one run here, on one machine.
    proved
        The largest epsilon of a run by its ledger, against somebody who sees every message.
    view
        What the epsilon holds against if not everybody, in words.
    audited
        A lower bound on epsilon that an audit measured, for the same algorithm with noise for the
        same epsilon, on data on which it leaks most.
    seeds
        Number of runs.
    why
        Why there is no result; empty if there is one.
    """

    task: str
    method: str
    trust: str
    epsilon: float | None
    accuracy: float | None = None
    spread: float | None = None
    worst: float | None = None
    best: float | None = None
    bytes: float | None = None
    seconds: float | None = None
    proved: float | None = None
    view: str = ""
    audited: float | None = None
    seeds: int = 0
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it in plain types that JSON can hold."""
        return asdict(self)


def cells_of(
    name: str,
    *,
    epsilons: Sequence[float],
    seeds: int,
    quick: bool,
    progress: Callable[[str], None],
) -> Iterator[Cell]:
    """Yield all cells of a task, the baselines first."""
    task = TASKS[name]
    try:
        problems = [task.problem(Key.seeded(seed), quick=quick) for seed in range(seeds)]
    except (ValueError, FileNotFoundError, ImportError) as error:
        progress(f"{name}: {error}")
        yield Cell(task=name, method="all", trust="", epsilon=None, why=str(error))
        return
    progress(f"{name}: {task.title}")
    yield from _baselines(name, task, problems, epsilons)
    for row in ROWS:
        for epsilon in epsilons:
            cell = _cell(name, task, row, epsilon, problems)
            if row.audited and not cell.why and not quick:
                cell = replace(cell, audited=audited(row.audited, epsilon))
            progress(f"  {in_words(cell)}")
            yield cell


def in_words(cell: Cell) -> str:
    """Return a cell as a line."""
    head = f"{cell.method}, epsilon {cell.epsilon:g}" if cell.epsilon else cell.method
    return f"{head}: {cell.why or shown(cell)}"


def shown(cell: Cell) -> str:
    """Return the accuracy of a cell in percent, with its spread; "-" if there is none."""
    if cell.accuracy is None:
        return "-"
    spread = "" if cell.spread is None else f" ± {100 * cell.spread:.1f}"
    return f"{100 * cell.accuracy:.1f}{spread}"


def _cell(name: str, task: Task, row: Row, epsilon: float, problems: Sequence[Any]) -> Cell:
    empty = Cell(task=name, method=row.name, trust=row.trust, epsilon=epsilon)
    if task.unit == "user" and not row.user:
        return replace(empty, why="protects a record; this task's unit is all records of a person")
    found = []
    for seed, problem in enumerate(problems):
        given = Setting(problem=problem, unit=task.unit, epsilon=epsilon, delta=DELTA)
        try:
            trial = row.trial(given)
        except CannotRun as reason:
            return replace(empty, why=str(reason))
        begin = perf_counter()
        run = simulate(
            trial.algorithm,
            trial.problem,
            trial.topology,
            rounds=trial.rounds,
            key=Key.seeded(seed).derive(row.name.encode()),
            budget=trial.budget or given.budget,
            metrics=[],
            progress=False,
        )
        seconds = perf_counter() - begin
        found.append((run, trial.problem.accuracy(run.released), seconds, problem.nodes))
    runs = [run for run, *_ in found]
    return replace(
        empty,
        **_statistics([scores for _, scores, *_ in found]),
        bytes=fmean(run.traffic.bits / 8 / nodes for run, _, _, nodes in found),
        seconds=fmean(seconds for _, _, seconds, _ in found),
        proved=max(run.privacy.epsilon for run in runs),
        view=runs[0].privacy.view or "",
    )


def _statistics(scores: Sequence[np.ndarray]) -> dict[str, Any]:
    means = [float(own.mean()) for own in scores]
    return {
        "accuracy": fmean(means),
        "spread": float(np.std(means, ddof=1)) if len(means) > 1 else None,
        "worst": fmean(float(own.min()) for own in scores),
        "best": fmean(float(own.max()) for own in scores),
        "seeds": len(means),
    }


def _baselines(
    name: str, task: Task, problems: Sequence[Any], epsilons: Sequence[float]
) -> Iterator[Cell]:
    found = [baselines.compute(problem) for problem in problems]
    for method, scores in (
        (CHANCE, [np.array([own.chance]) for own in found]),
        (ALONE, [own.alone for own in found]),
        (POOLED, [np.array([own.pooled]) for own in found]),
    ):
        trust = "whoever pools the records" if method == POOLED else NO_RELEASE
        yield Cell(
            task=name, method=method, trust=trust, epsilon=None, **_statistics(scores), bytes=0.0
        )
    for epsilon in epsilons:
        cell = Cell(task=name, method=ALONE_PRIVATE, trust=EVERYBODY, epsilon=epsilon)
        if task.unit == "user":
            yield replace(cell, why="a person's model hides no person")
            continue
        scores = [
            baselines.alone_private(
                problem, epsilon, DELTA, key=Key.seeded(seed).derive(b"alone"), most=MOST_ALONE
            )
            for seed, problem in enumerate(problems)
        ]
        yield replace(cell, **_statistics(scores), proved=epsilon, bytes=0.0)


@cache
def audited(name: str, epsilon: float) -> float:
    """Return a lower bound on the epsilon of an algorithm whose noise is made for `epsilon`.

    Few rounds on the data on which it leaks most, 500 runs on either of two neighbouring data sets;
    it is exceeded by the truth with a confidence of 0.95.
    """
    like = entry_of(name).audited
    rounds = like.worst_case(canaries=2)[0].rounds
    algorithm = claiming(like, rounds=rounds, delta=DELTA, epsilon=epsilon)
    pair, _ = algorithm.worst_case(delta=DELTA, canaries=2)
    result = audit_pair(pair, runs=AUDITED_RUNS, key=Key.seeded(0))
    return accounting.gdp_epsilon(delta=DELTA, mu=result.lower_bound)
