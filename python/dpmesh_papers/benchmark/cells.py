"""The cells of the benchmark: each method, at each epsilon, over the splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

import dpmesh.run.baselines as baselines
from dpmesh.keys import Key
from dpmesh.problems import LinearProblem
from dpmesh.run import Metrics, simulate
from dpmesh_papers.benchmark.methods import ROWS
from dpmesh_papers.benchmark.setting import ALL_MESSAGES_PUBLIC, CannotRun, MethodRow, Setting
from dpmesh_papers.benchmark.task import Task
from dpmesh_papers.benchmark.tasks import TASKS

MOST_ALONE = 8
"""Nodes, evenly spaced, that work alone and private."""

MAJORITY = "majority-class baseline"
ALONE = "single site, without privacy"
ALONE_PRIVATE = "single site, private"
POOLED = "centralized, without privacy"
NO_RELEASE = "none: nothing is released"

Measured = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A method at an epsilon on a task; numbers are None where there are none.

    Parameters
    ----------
    task, method, trust
        Names of task and method, and the threat model.
    epsilon
        The budget, None without privacy.
    accuracy, worst, best
        Accuracies of each split, in their order: the mean over nodes, the worst, the best node.
    bytes, seconds
        Bytes that a node sends on average, and seconds of a run on one machine, in the last split.
    proved
        The largest epsilon of a run by its ledger, against an adversary who sees every message.
    view
        Threat model of the epsilon in words, if the adversary does not see all messages.
    why
        Reason for a missing result; empty if there is one.
    """

    task: str
    method: str
    trust: str
    epsilon: float | None
    accuracy: tuple[float, ...] = ()
    worst: tuple[float, ...] = ()
    best: tuple[float, ...] = ()
    bytes: float | None = None
    seconds: float | None = None
    proved: float | None = None
    view: str = ""
    why: str = ""

    @property
    def mean(self) -> float:
        """Accuracy over the splits; NaN if there is none."""
        return float(np.mean(self.accuracy)) if self.accuracy else np.nan

    def joined(self, scores: npt.NDArray[np.float64], **others: Any) -> Cell:
        """Return the cell with one more split: the scores of its nodes."""
        split_scores = {"accuracy": scores.mean(), "worst": scores.min(), "best": scores.max()}
        longer: Measured = {
            name: (*getattr(self, name), float(score)) for name, score in split_scores.items()
        }
        if self.proved is not None and "proved" in others:
            others["proved"] = max(self.proved, others["proved"])
        return replace(self, **longer, **others)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Cell:
        """Return the cell whose fields were saved."""
        lists = {name: tuple(saved[name]) for name in ("accuracy", "worst", "best")}
        return cls(**{**saved, **lists})


def cells_of(
    name: str,
    *,
    epsilons: Sequence[float],
    splits: int,
    most: int | None,
    before: Sequence[Cell] = (),
    methods: Sequence[str] = (),
    progress: Callable[[str], None],
) -> Iterator[list[Cell]]:
    """Run the cells that `before` lacks, split after split; yield all cells after each run.

    The baselines come first.

    Parameters
    ----------
    name
        The task, a name of `TASKS`.
    epsilons
        Budgets of the private rows.
    splits
        Number of splits that each cell shall have.
    most
        Number of records to keep of a task with data files; None for all.
    before
        Cells of earlier runs.
    methods
        Rows to run: those whose names contain one of these; all if it is empty.
    progress
        Called with a line for each finished run.
    """
    task = TASKS[name]
    cells = {(cell.method, cell.epsilon): cell for cell in before}
    rows = rows_of(task, methods)
    names = {MAJORITY, ALONE, POOLED, ALONE_PRIVATE, *(row.name for row in rows)}
    count = 3 + len(epsilons) * (1 + len(rows))
    progress(f"{name}: {task.title}")
    for split in range(splits):
        chosen = [cell for cell in cells.values() if cell.method in names]
        relevant = [cell for cell in chosen if cell.epsilon in (None, *epsilons)]
        finished = [cell for cell in relevant if cell.why or len(cell.accuracy) > split]
        if len(finished) == count:
            continue
        try:
            trials = _trials(name, task, rows, Key.seeded(split), epsilons, most)
        except (ValueError, FileNotFoundError, ImportError) as error:
            progress(f"{name}: {error}")
            yield [Cell(task=name, method="all", trust="", epsilon=None, why=str(error))]
            return
        for empty, run in trials:
            setting = empty.method, empty.epsilon
            cell = cells.setdefault(setting, empty)
            if cell.why or len(cell.accuracy) > split:
                continue
            try:
                cells[setting] = cell.joined(**run())
            except CannotRun as reason:
                cells[setting] = replace(cell, why=str(reason))
            progress(f"  split {split}, {in_words(cells[setting])}")
            yield [*cells.values()]
    yield [*cells.values()]


def in_words(cell: Cell) -> str:
    """Return a cell, its last split, as a line."""
    name = cell.method
    if cell.epsilon:
        name += f", epsilon {cell.epsilon:g}"
    if cell.why:
        return f"{name}: {cell.why}"
    return f"{name}: {100 * cell.accuracy[-1]:.1f}"


def rows_of(task: Task, methods: Sequence[str] = ()) -> list[MethodRow]:
    """Return the rows of a task whose names contain one of `methods`; all if there are none."""
    rows = [*ROWS, *task.own_rows]
    if not methods:
        return rows
    return [row for row in rows if any(method in row.name for method in methods)]


def _trials(
    name: str,
    task: Task,
    rows: Sequence[MethodRow],
    key: Key,
    epsilons: Sequence[float],
    most: int | None,
) -> list[tuple[Cell, Callable[[], Measured]]]:
    """Return the cells of a split, each with the function that measures it.

    Raises
    ------
    ValueError, FileNotFoundError, ImportError
        If the task's data are not there.
    """
    problem = task.problem(key, most=most)
    plain = cache(partial(baselines.compute, problem))
    trials: list[tuple[Cell, Callable[[], Measured]]] = []
    baseline_fields = (
        (MAJORITY, "majority_class"),
        (ALONE, "single_sites"),
        (POOLED, "centralized"),
    )
    for method, field_name in baseline_fields:
        trust = "trusted server, without privacy" if method == POOLED else NO_RELEASE
        cell = Cell(task=name, method=method, trust=trust, epsilon=None, bytes=0.0)
        trials.append((cell, lambda name=field_name: _scores(getattr(plain(), name))))  # type: ignore[misc]
    for epsilon in epsilons:
        cell = Cell(
            task=name, method=ALONE_PRIVATE, trust=ALL_MESSAGES_PUBLIC, epsilon=epsilon, bytes=0.0
        )
        trials.append((cell, partial(_alone_private, task, problem, epsilon, key)))
    for row, epsilon in product(rows, epsilons):
        cell = Cell(task=name, method=row.name, trust=row.trust, epsilon=epsilon)
        setting = Setting(
            problem=problem,
            unit=task.unit,
            epsilon=epsilon,
            delta=task.delta,
            featured=task.featured and partial(task.problem, key, most=most, featured=True),
        )
        trials.append((cell, partial(_run, row, setting, key)))
    return trials


def _scores(values: Any) -> Measured:
    return {"scores": np.atleast_1d(np.asarray(values, np.float64))}


def _alone_private(task: Task, problem: LinearProblem, epsilon: float, key: Key) -> Measured:
    if task.unit == "user":
        raise CannotRun("a person's model hides no person")
    site_key = key.derive(b"alone")
    scores = baselines.private_single_sites(
        problem, epsilon, task.delta, key=site_key, most=MOST_ALONE
    )
    return _scores(scores) | {"proved": epsilon}


def _run(row: MethodRow, setting: Setting, key: Key) -> Measured:
    if setting.unit == "user" and not row.user:
        raise CannotRun("protects a record; this task's unit is all records of a person")
    trial = row.trial(setting)
    begin = perf_counter()
    run = simulate(
        trial.algorithm,
        trial.problem,
        trial.topology,
        rounds=trial.rounds,
        key=key.derive(row.name.encode()),
        budget=trial.budget or setting.budget,
        metrics=Metrics([], progress=False),
    )
    return _scores(trial.problem.accuracy(run.released)) | {
        "seconds": perf_counter() - begin,
        "bytes": run.traffic.bits / 8 / setting.problem.nodes,
        "proved": run.privacy.epsilon,
        "view": run.privacy.view or "",
    }
