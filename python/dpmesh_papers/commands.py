"""``dpmesh reproduce``: tables and figures; ``dpmesh benchmark``: all methods beside each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from dpmesh._files import writable_folder
from dpmesh._validate import fail, one_of, positive
from dpmesh.cli._options import DataFolder
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


def reproduce(
    name: Annotated[str | None, _NAME] = None,
    folder: Annotated[Path, _FOLDER] = Path("dpmesh-results"),
    data: DataFolder = None,
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
        _reproduce_all(folder, seeds, quick)
    elif name is None:
        _list_experiments()
    else:
        _reproduce_one(name, folder, seeds, quick, has_data_folder=data is not None)


def _reproduce_all(folder: Path, seeds: int | None, quick: bool) -> None:
    outcomes = catalog.reproduce_all(folder, seeds=seeds, quick=quick, progress=typer.echo)
    for outcome in outcomes:
        typer.echo(outcome)
    if any(outcome.failed for outcome in outcomes):
        raise typer.Exit(1)


def _list_experiments() -> None:
    for name, reproduction in catalog.REPRODUCTIONS.items():
        typer.echo(f"{name:<37}{reproduction.data:<13}{reproduction.shows}")


def _reproduce_one(
    name: str, folder: Path, seeds: int | None, quick: bool, *, has_data_folder: bool
) -> None:
    reproduction = catalog.REPRODUCTIONS[one_of("name", name, tuple(catalog.REPRODUCTIONS))]
    if reproduction.data and not has_data_folder:
        from dpmesh.data.loaders import SOURCES

        files = SOURCES[reproduction.data]
        fail("--datasets", f"a folder whose subfolder {reproduction.data} holds {files}", "none")
    for path in catalog.reproduce(name, folder, seeds=seeds, quick=quick, progress=typer.echo):
        typer.echo(f"wrote {path}")


def benchmark(
    tasks: Annotated[list[str] | None, _TASKS] = None,
    folder: Annotated[Path, _TABLES] = Path("dpmesh-benchmark"),
    data: DataFolder = None,
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
    from dpmesh_papers.benchmark.cells import rows_of
    from dpmesh_papers.benchmark.folder import Options, run_task
    from dpmesh_papers.benchmark.results import as_markdown, read, write
    from dpmesh_papers.benchmark.tasks import TASKS

    if data is not None:
        os.environ["DPMESH_DATA"] = str(data)
    names = [one_of("task", name, tuple(TASKS)) for name in tasks or TASKS]
    for part in method or ():
        if not any(rows_of(TASKS[name], [part]) for name in names):
            fail("--method", "a part of the name of a row, such as gossip", part)
    options = Options(
        epsilons=sorted({positive("epsilon", value) for value in epsilon or ()}),
        splits=seeds,
        records=records,
        methods=method or (),
        quick=quick,
    )
    read(writable_folder(folder))  # an unusable folder fails now, not after a run
    shared_settings = provenance(
        records=options.most_records or "all", keys="Key.seeded(0), ..", quick=quick
    )
    provenances = {}
    for name in names:
        provenances[name] = run_task(name, folder, options, shared_settings, typer.echo)
        paths = write(folder)
    cells = [cell for cell in read(folder)[0] if cell.task in names]
    typer.echo(f"\n{as_markdown(cells, provenances)}\n")
    for path in paths:
        typer.echo(f"wrote {path}")
