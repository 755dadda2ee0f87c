"""``dpmesh arena``: all methods on the same tasks at the same epsilon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from dpmesh._files import writable_folder
from dpmesh._validate import one_of, positive

QUICK_RECORDS = 3_000

DataFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option("--data", envvar="DPMESH_DATA", help="Folder of all data sets: mnist, rcv1, .."),
]

_TASKS = typer.Argument(help="Tasks, such as digits-by-class; all by default.")
_FOLDER = typer.Option(help="Folder for the tables, figure and page.")
_EPSILON = typer.Option(help="Budgets; by default 1, 2, 4 and 8.")
_SEEDS = typer.Option(min=1, help="Splits that all methods learn; 10 by default.")
_RECORDS = typer.Option(min=1000, help="Most records of tasks with data files; by default all.")
_QUICK = typer.Option("--quick", help="One split, epsilon 2, at most 3,000 records.")


def arena(
    tasks: Annotated[list[str] | None, _TASKS] = None,
    folder: Annotated[Path, _FOLDER] = Path("dpmesh-arena"),
    data: DataFolder = None,
    epsilon: Annotated[list[float] | None, _EPSILON] = None,
    seeds: Annotated[int | None, _SEEDS] = None,
    records: Annotated[int | None, _RECORDS] = None,
    quick: Annotated[bool, _QUICK] = False,
) -> None:
    """Compare all methods on the same tasks, beside chance, alone and pooled.

    The table shows whom one trusts with each method, what it costs by proof, and what it sends. The
    folder keeps what has run: the same command goes on where an earlier one ended, with more splits
    or budgets if asked for, and tasks can run in turn.
    """
    from dpmesh.reproduce._output import made
    from dpmesh.reproduce.arena.cells import EPSILONS, SPLITS, cells_of
    from dpmesh.reproduce.arena.results import as_markdown, read, save, write
    from dpmesh.reproduce.arena.tasks import TASKS

    if data is not None:
        os.environ["DPMESH_DATA"] = str(data)
    chosen = [one_of("task", task, tuple(TASKS)) for task in tasks or TASKS]
    budgets = sorted({positive("epsilon", one) for one in epsilon or ()})
    budgets = budgets or [*((2.0,) if quick else EPSILONS)]
    most = QUICK_RECORDS if quick and records is None else records
    known, before = read(writable_folder(folder))
    by = made(epsilons=budgets, records=most or "all", keys="Key.seeded(0), ..", quick=quick)
    for task in chosen:
        old = before.get(task, {})
        same = {**old, "date": by["date"], "epsilons": budgets} == by  # a night has two dates
        kept = [cell for cell in known if cell.task == task and same]
        own = by | {"epsilons": sorted({*budgets, *(old["epsilons"] if same else ())})}
        splits = seeds or (1 if quick else SPLITS)
        for cells in cells_of(
            task, epsilons=budgets, splits=splits, most=most, before=kept, progress=typer.echo
        ):
            save(cells, folder, {task: own})
        paths = write(folder)
    ran = [cell for cell in read(folder)[0] if cell.task in chosen]
    typer.echo(f"\n{as_markdown(ran, dict.fromkeys(chosen, by))}\n")
    for path in paths:
        typer.echo(f"wrote {path}")
