"""Runs of the benchmark whose results a folder keeps: a later run goes on where one ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpmesh_papers.benchmark.cells import Cell, cells_of
from dpmesh_papers.benchmark.results import Provenance, read, save
from dpmesh_papers.benchmark.task import Task
from dpmesh_papers.benchmark.tasks import TASKS

QUICK_RECORDS = 3_000
QUICK_EPSILONS = (2.0,)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run; those that are empty or None follow from the task.

    Parameters
    ----------
    epsilons
        Budgets of the private rows.
    splits
        Number of splits.
    records
        Number of records to keep of tasks with data files; None for all.
    methods
        Parts of the names of the rows to run; empty for all rows.
    quick
        If true, one split, epsilon 2 and at most 3,000 records, unless other options say otherwise.
    """

    epsilons: Sequence[float] = ()
    splits: int | None = None
    records: int | None = None
    methods: Sequence[str] = ()
    quick: bool = False

    @property
    def most_records(self) -> int | None:
        """Number of records to keep of tasks with data files; None for all."""
        if self.records is None and self.quick:
            return QUICK_RECORDS
        return self.records

    def epsilons_of(self, task: Task) -> list[float]:
        """Return the budgets of the private rows of a task."""
        if self.epsilons:
            return [*self.epsilons]
        if self.quick:
            return [*QUICK_EPSILONS]
        return [*task.epsilons]

    def splits_of(self, task: Task) -> int:
        """Return the number of splits of a task."""
        if self.splits is not None:
            return self.splits
        if self.quick:
            return 1
        return task.splits


def run_task(
    name: str,
    folder: Path,
    options: Options,
    shared_settings: Mapping[str, Any],
    progress: Callable[[str], None],
) -> Provenance:
    """Run what a folder lacks of a task, and keep all cells after each run; return its settings.

    Earlier cells are kept if they were made by the same settings, but for the date, as a night has
    two, and for the epsilons, which join the earlier ones. Other cells are measured again.

    Parameters
    ----------
    name
        The task, a name of `TASKS`.
    folder
        The folder of results.
    options
        Options of the run.
    shared_settings
        Settings, versions and commit that all tasks of this run share.
    progress
        Called with a line for each finished run.
    """
    task = TASKS[name]
    epsilons = options.epsilons_of(task)
    settings = {"epsilons": epsilons, **shared_settings}
    earlier_cells, earlier_settings = _earlier(name, folder, settings)
    epsilons_in_folder = sorted({*epsilons, *earlier_settings["epsilons"]})
    for cells in cells_of(
        name,
        epsilons=epsilons,
        splits=options.splits_of(task),
        most_records=options.most_records,
        earlier=earlier_cells,
        methods=options.methods,
        progress=progress,
    ):
        save(cells, folder, {name: settings | {"epsilons": epsilons_in_folder}})
    return settings


def _earlier(
    name: str, folder: Path, settings: Mapping[str, Any]
) -> tuple[list[Cell], Mapping[str, Any]]:
    """Return a task's cells in a folder and their settings, if these are comparable.

    Otherwise there are no cells, and the settings are the new ones.
    """
    cells, provenances = read(folder)
    earlier_settings = provenances.get(name, {})
    same_run = {"date": settings["date"], "epsilons": settings["epsilons"]}
    if {**earlier_settings, **same_run} != settings:
        return [], settings
    return [cell for cell in cells if cell.task == name], earlier_settings
