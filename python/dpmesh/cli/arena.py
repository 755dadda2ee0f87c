"""``dpmesh arena``: all methods on the same tasks at the same epsilon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from dpmesh._files import writable_folder
from dpmesh._validate import one_of, positive


def arena(
    tasks: Annotated[
        list[str] | None, typer.Argument(help="Tasks, such as digits-by-class; all by default.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder for the tables, figure and page.")] = Path(
        "dpmesh-arena"
    ),
    data: Annotated[
        Path | None,
        typer.Option(envvar="DPMESH_DATA", help="Folder of all data sets: mnist, rcv1, .."),
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="Budgets; by default 1, 2, 4 and 8.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each cell; 3 by default.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="One seed, epsilon 2, at most 3,000 records, and no audits."),
    ] = False,
) -> None:
    """Compare all methods on the same tasks, beside chance, alone and pooled.

    The table shows what each method costs by proof, what an audit measured, what it sends, and whom
    one has to trust. The folder keeps the results of other tasks, so that one can run them in turn.
    """
    from dpmesh.reproduce._output import made
    from dpmesh.reproduce.arena.cells import EPSILONS, SEEDS, Cell, cells_of
    from dpmesh.reproduce.arena.results import as_text, read, write
    from dpmesh.reproduce.arena.tasks import TASKS

    if data is not None:
        os.environ["DPMESH_DATA"] = str(data)
    chosen = [one_of("task", task, tuple(TASKS)) for task in tasks or TASKS]
    budgets = tuple(sorted({positive("epsilon", one) for one in epsilon or ()}))
    budgets = budgets or ((2.0,) if quick else EPSILONS)
    count = seeds or (1 if quick else SEEDS)
    read(writable_folder(folder))  # fail now rather than after the runs
    by = made(epsilons=list(budgets), seeds=count, keys="Key.seeded(0), ..", quick=quick)
    cells: list[Cell] = []
    for task in chosen:
        own = [*cells_of(task, epsilons=budgets, seeds=count, quick=quick, progress=typer.echo)]
        paths = write(own, folder, {task: by})
        cells += own
    typer.echo(f"\n{as_text(cells)}\n")
    for path in paths:
        typer.echo(f"wrote {path}")
