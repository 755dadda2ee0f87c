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

from dpmesh.keys import Key
from dpmesh.problems import LinearProblem
from dpmesh.run import Metrics, simulate
from dpmesh.run.baselines import Baselines, compute, private_single_sites
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

SCORES_OF_BASELINES: dict[str, Callable[[Baselines], npt.ArrayLike]] = {
    MAJORITY: lambda baselines: baselines.majority_class,
    ALONE: lambda baselines: baselines.single_sites,
    POOLED: lambda baselines: baselines.centralized,
}
"""Accuracies of the baselines without privacy: one number, or one of each site."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """A method's run on one split.

    Parameters
    ----------
    scores
        Test accuracy of the model of each node that is tested, shape (nodes,).
    bytes
        Bytes that a node sends on average.
    seconds
        Duration on one machine; None for baselines.
    proved
        Epsilon by the ledger, against an adversary who sees every message; None without privacy.
    view
        Threat model of the epsilon in words, if the adversary does not see all messages.
    """

    scores: npt.NDArray[np.float64]
    bytes: float = 0.0
    seconds: float | None = None
    proved: float | None = None
    view: str = ""


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
        """Mean accuracy over the splits; NaN if there is none."""
        if not self.accuracy:
            return np.nan
        return float(np.mean(self.accuracy))

    def has_split(self, split: int) -> bool:
        """Return True if nothing is left to run of a split, counted from 0."""
        return bool(self.why) or len(self.accuracy) > split

    def with_split(self, measurement: Measurement) -> Cell:
        """Return the cell with one more split."""
        scores = measurement.scores
        proved = measurement.proved
        if proved is not None and self.proved is not None:
            proved = max(self.proved, proved)
        return replace(
            self,
            accuracy=(*self.accuracy, float(scores.mean())),
            worst=(*self.worst, float(scores.min())),
            best=(*self.best, float(scores.max())),
            bytes=measurement.bytes,
            seconds=measurement.seconds,
            proved=proved,
            view=measurement.view,
        )

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
    most_records: int | None,
    earlier: Sequence[Cell] = (),
    methods: Sequence[str] = (),
    progress: Callable[[str], None],
) -> Iterator[list[Cell]]:
    """Run the cells that `earlier` lacks, split after split; yield all cells after each run.

    The baselines come first. Without its data, a task has one cell, which says so.

    Parameters
    ----------
    name
        The task, a name of `TASKS`.
    epsilons
        Budgets of the private rows.
    splits
        Number of splits that each cell shall have.
    most_records
        Number of records to keep of a task with data files; None for all.
    earlier
        Cells of earlier runs.
    methods
        Rows to run: those whose names contain one of these; all if it is empty.
    progress
        Called with a line for each finished run.
    """
    task = TASKS[name]
    cells = {(cell.method, cell.epsilon): cell for cell in earlier}
    rows = rows_of(task, methods)
    settings = _settings_of(rows, epsilons)
    progress(f"{name}: {task.title}")
    for split in range(splits):
        if all(setting in cells and cells[setting].has_split(split) for setting in settings):
            continue
        try:
            empty_cells = _cells_of_split(
                name, task, rows, Key.seeded(split), epsilons, most_records
            )
        except (ValueError, FileNotFoundError, ImportError) as error:
            progress(f"{name}: {error}")
            yield [Cell(task=name, method="all", trust="", epsilon=None, why=str(error))]
            return
        for empty_cell, measure in empty_cells:
            setting = empty_cell.method, empty_cell.epsilon
            cell = cells.setdefault(setting, empty_cell)
            if cell.has_split(split):
                continue
            try:
                cells[setting] = cell.with_split(measure())
            except CannotRun as reason:
                cells[setting] = replace(cell, why=str(reason))
            progress(f"  split {split}, {in_words(cells[setting])}")
            yield [*cells.values()]
    yield [*cells.values()]


def _settings_of(
    rows: Sequence[MethodRow], epsilons: Sequence[float]
) -> list[tuple[str, float | None]]:
    """Return method and epsilon of each cell that rows and baselines have."""
    private_methods = [ALONE_PRIVATE, *(row.name for row in rows)]
    settings: list[tuple[str, float | None]] = [(method, None) for method in SCORES_OF_BASELINES]
    settings += product(private_methods, epsilons)
    return settings


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
    rows = [*ROWS, *task.extra_rows]
    if not methods:
        return rows
    return [row for row in rows if any(method in row.name for method in methods)]


def _cells_of_split(
    name: str,
    task: Task,
    rows: Sequence[MethodRow],
    key: Key,
    epsilons: Sequence[float],
    most_records: int | None,
) -> list[tuple[Cell, Callable[[], Measurement]]]:
    """Return the cells of a split, still empty, each with the function that measures it.

    Raises
    ------
    ValueError, FileNotFoundError, ImportError
        If the task's data are not there.
    """
    problem = task.problem(key, most_records=most_records)
    baselines = cache(partial(compute, problem))
    cells: list[tuple[Cell, Callable[[], Measurement]]] = []
    for method in SCORES_OF_BASELINES:
        trust = NO_RELEASE
        if method == POOLED:
            trust = "trusted server, without privacy"
        cell = Cell(task=name, method=method, trust=trust, epsilon=None, bytes=0.0)
        cells.append((cell, partial(_baseline, method, baselines)))
    for epsilon in epsilons:
        cell = Cell(
            task=name, method=ALONE_PRIVATE, trust=ALL_MESSAGES_PUBLIC, epsilon=epsilon, bytes=0.0
        )
        cells.append((cell, partial(_alone_private, task, problem, epsilon, key)))
    featured = None
    if task.featured is not None:
        featured = partial(task.problem, key, most_records=most_records, featured=True)
    for row, epsilon in product(rows, epsilons):
        cell = Cell(task=name, method=row.name, trust=row.trust, epsilon=epsilon)
        setting = Setting(
            problem=problem, unit=task.unit, epsilon=epsilon, delta=task.delta, featured=featured
        )
        cells.append((cell, partial(_run, row, setting, key)))
    return cells


def _as_scores(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return accuracies as an array, shape (nodes,)."""
    return np.atleast_1d(np.asarray(values, np.float64))


def _baseline(method: str, baselines: Callable[[], Baselines]) -> Measurement:
    """Return the scores of a baseline without privacy; all share one computation of a split."""
    return Measurement(scores=_as_scores(SCORES_OF_BASELINES[method](baselines())))


def _alone_private(task: Task, problem: LinearProblem, epsilon: float, key: Key) -> Measurement:
    """Return the scores of private models of at most `MOST_ALONE` single sites."""
    if task.unit == "user":
        raise CannotRun("a person's model hides no person")
    scores = private_single_sites(
        problem, epsilon, task.delta, key=key.derive(b"alone"), most=MOST_ALONE
    )
    return Measurement(scores=_as_scores(scores), proved=epsilon)


def _run(row: MethodRow, setting: Setting, key: Key) -> Measurement:
    """Run a method once."""
    if setting.unit == "user" and not row.user:
        raise CannotRun("protects a record; this task's unit is all records of a person")
    trial = row.trial(setting)
    start = perf_counter()
    run = simulate(
        trial.algorithm,
        trial.problem,
        trial.topology,
        rounds=trial.rounds,
        key=key.derive(row.name.encode()),
        budget=trial.budget or setting.budget,
        metrics=Metrics([], progress=False),
    )
    scores = _as_scores(trial.problem.accuracy(run.released))
    return Measurement(
        scores=scores,
        bytes=run.traffic.bits / 8 / setting.problem.nodes,
        seconds=perf_counter() - start,
        proved=run.privacy.epsilon,
        view=run.privacy.view or "",
    )
