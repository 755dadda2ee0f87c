"""``dpmesh reproduce``: tables and figures; ``dpmesh benchmark``: all methods beside each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

import dpmesh.cli._options as options
from dpmesh._files import writable_folder
from dpmesh._validate import fail, one_of, positive
from dpmesh_papers import catalog

_NAME = typer.Argument(help="Name of a table or figure, such as federated-table2.")
_FOLDER = typer.Option("--output", help="Folder for the figure and the numbers.")
_SEEDS = typer.Option(min=1, help="Number of repetitions; by default the experiment's own.")
_ALL = typer.Option("--all", help="Run all of them; name those whose data are missing.")
_QUICK = typer.Option("--quick", help="Run in small: one repetition, few rounds. It takes minutes.")

_TASKS = typer.Argument(help="Tasks, such as digits-by-class; all by default.")
_TABLES = typer.Option("--output", help="Folder for the tables, figure and page.")
_EPSILON = typer.Option(help="Budgets; by default the task's: 1, 2, 4 and 8.")
_SPLITS = typer.Option(min=1, help="Splits that all methods learn; by default the task's: 10.")
_RECORDS = typer.Option(min=1000, help="Most records of tasks with data files; by default all.")
_METHODS = typer.Option("--method", help="Only rows whose names contain it; may be repeated.")
_SHORT = typer.Option("--quick", help="One split, epsilon 2, at most 3,000 records.")
QUICK_RECORDS = 3_000
QUICK_EPSILONS = (2.0,)


def reproduce(
    name: Annotated[str | None, _NAME] = None,
    folder: Annotated[Path, _FOLDER] = Path("dpmesh-results"),
    data: options.DataFolder = None,
    seeds: Annotated[int | None, _SEEDS] = None,
    everything: Annotated[bool, _ALL] = False,
    quick: Annotated[bool, _QUICK] = False,
) -> None:
    """List the papers' tables and figures, or run one: its numbers stand beside the paper's."""
    if data is not None:
        os.environ["DPMESH_DATA"] = str(data)
    if everything:
        if name is not None:
            fail("--all", "it, or the name of one", name)
        outcomes = catalog.reproduce_all(folder, seeds=seeds, quick=quick, progress=typer.echo)
        for outcome in outcomes:
            typer.echo(outcome)
        if any(outcome.failed for outcome in outcomes):
            raise typer.Exit(1)
        return
    if name is None:
        for experiment, reproduction in catalog.REPRODUCTIONS.items():
            typer.echo(f"{experiment:<37}{reproduction.data:<13}{reproduction.shows}")
        return
    chosen = catalog.REPRODUCTIONS[one_of("name", name, tuple(catalog.REPRODUCTIONS))]
    if chosen.data and data is None:
        from dpmesh.data.loaders import SOURCES

        files = SOURCES[chosen.data]
        fail("--datasets", f"a folder whose subfolder {chosen.data} holds {files}", "none")
    for path in catalog.reproduce(name, folder, seeds=seeds, quick=quick, progress=typer.echo):
        typer.echo(f"wrote {path}")


def benchmark(
    tasks: Annotated[list[str] | None, _TASKS] = None,
    folder: Annotated[Path, _TABLES] = Path("dpmesh-benchmark"),
    data: options.DataFolder = None,
    epsilon: Annotated[list[float] | None, _EPSILON] = None,
    seeds: Annotated[int | None, _SPLITS] = None,
    records: Annotated[int | None, _RECORDS] = None,
    method: Annotated[list[str] | None, _METHODS] = None,
    quick: Annotated[bool, _SHORT] = False,
) -> None:
    """Compare all methods on the same tasks, beside majority-class and single-site baselines.

    The table shows what each method assumes about trust, what it costs by proof, and what it sends.
    The folder keeps what has run: the same command goes on where an earlier one ended, with more
    splits or budgets if asked for, and tasks can run in turn.
    """
    from dpmesh_papers._output import provenance
    from dpmesh_papers.benchmark.cells import cells_of, rows_of
    from dpmesh_papers.benchmark.results import as_markdown, read, save, write
    from dpmesh_papers.benchmark.tasks import TASKS

    if data is not None:
        os.environ["DPMESH_DATA"] = str(data)
    chosen = [one_of("task", task, tuple(TASKS)) for task in tasks or TASKS]
    for name in method or ():
        if not any(rows_of(TASKS[task], [name]) for task in chosen):
            fail("--method", "a part of the name of a row, such as gossip", name)
    given_epsilons = sorted({positive("epsilon", value) for value in epsilon or ()})
    most_records = QUICK_RECORDS if quick and records is None else records
    saved_cells, saved_settings = read(writable_folder(folder))
    shared_settings = provenance(
        records=most_records or "all", keys="Key.seeded(0), ..", quick=quick
    )
    ran_by = {}
    for task in chosen:
        default_epsilons = QUICK_EPSILONS if quick else TASKS[task].epsilons
        budgets = given_epsilons or [*default_epsilons]
        run_settings = {"epsilons": budgets, **shared_settings}
        ran_by[task] = run_settings
        earlier = saved_settings.get(task, {})
        # a night has two dates
        comparable = {**earlier, "date": run_settings["date"], "epsilons": budgets}
        earlier_cells = []
        all_budgets = {*budgets}
        if comparable == run_settings:
            earlier_cells = [cell for cell in saved_cells if cell.task == task]
            all_budgets |= {*earlier["epsilons"]}
        settings = run_settings | {"epsilons": sorted(all_budgets)}
        default_splits = 1 if quick else TASKS[task].splits
        for cells in cells_of(
            task,
            epsilons=budgets,
            splits=seeds or default_splits,
            most=most_records,
            before=earlier_cells,
            methods=method or (),
            progress=typer.echo,
        ):
            save(cells, folder, {task: settings})
        paths = write(folder)
    cells_of_tasks = [cell for cell in read(folder)[0] if cell.task in chosen]
    typer.echo(f"\n{as_markdown(cells_of_tasks, ran_by)}\n")
    for path in paths:
        typer.echo(f"wrote {path}")
