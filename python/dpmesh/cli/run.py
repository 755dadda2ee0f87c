"""``dpmesh run``: simulated experiments from files; ``dpmesh report``: a page about their results.

A file may have a *sweep*: lists of values, each combination of which is a *cell*, one run.
"""

from __future__ import annotations

import sys
import traceback
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import dpmesh.cli._options as options
from dpmesh._validate import one_of
from dpmesh.cli._progress import progress_bar

if TYPE_CHECKING:
    from dpmesh.experiments.sweep import Cell
    from dpmesh.settings import Settings

_FILE = typer.Argument(help="A TOML file; --settings lists what it may hold.")
_FOLDER = typer.Option(
    "--output",
    help="Folder for results (default: named after the file).",
    rich_help_panel=options.OUTPUT,
)
_PROCESSES = typer.Option(
    min=1,
    help="Number of runs in parallel (default: one per core).",
    rich_help_panel=options.OPERATION,
)
_ENGINE = typer.Option(
    help="Engine: mpi, all ranks together under mpiexec (default: one process).",
    rich_help_panel=options.OPERATION,
)
_MODULE = typer.Option(
    help="Your Python module, beside the file, whose parts it can name.",
    rich_help_panel=options.OPERATION,
)

_FOLDERS = typer.Argument(help="Folders of dpmesh run or Run.save; several are compared.")
_PAGE = typer.Option(
    help="Page to write, or only its first table (.tex, .csv); by default report.html, in the "
    "folder if there is only one."
)


def run(
    file: Annotated[Path | None, _FILE] = None,
    folder: Annotated[Path | None, _FOLDER] = None,
    processes: Annotated[int | None, _PROCESSES] = None,
    engine: Annotated[str | None, _ENGINE] = None,
    module: Annotated[str | None, _MODULE] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Show no progress bar.", rich_help_panel=options.OUTPUT)
    ] = False,
    settings_list: Annotated[
        bool,
        typer.Option(
            "--settings", help="List all settings of a file.", rich_help_panel=options.OUTPUT
        ),
    ] = False,
) -> None:
    """Run an experiment from a TOML file: all cells of its sweep that are not finished yet."""
    from dpmesh.experiments import read, run_sweep
    from dpmesh.experiments.experiment import all_keys
    from dpmesh.experiments.sweep import rounds_left

    if settings_list:
        typer.echo(all_keys())
        return
    if file is None:
        raise typer.BadParameter("wanted a TOML file, or --settings", param_hint="FILE")
    if folder is None:
        folder = Path(f"{file.stem}-results")
    try:
        sys.path.insert(0, str(file.resolve().parent))  # for modules that the file names
        settings = read(file, module)
        if engine is not None:
            one_of("engine", engine, ("mpi",))
            _run_on_ranks(settings, folder)
            return
        with progress_bar(rounds_left(settings, folder), unit="round", shown=not quiet) as progress:
            failed = run_sweep(settings, folder, processes=processes, progress=progress)
    except KeyboardInterrupt:
        again = f"the same command goes on from {folder}; a run without a seed begins anew"
        typer.echo(f"interrupted; {again}", err=True)
        raise typer.Exit(130) from None
    _report_failed(failed)
    if any(folder.glob("*/result.json")):
        _print_results(folder)
    if failed:
        raise typer.Exit(1)


def _run_on_ranks(settings: Settings, folder: Path) -> None:
    """Run an experiment on all MPI ranks; rank 0 prints the results, or why the run ended early.

    All ranks exit with the same code: 1 if a rank failed, 2 for an invalid file, 130 if
    interrupted.
    """
    from mpi4py import MPI

    from dpmesh.engines.mpi import RankFailed
    from dpmesh.experiments.ranks import command, run_on_ranks

    ranks = MPI.COMM_WORLD
    try:
        run_on_ranks(settings, folder)
        if ranks.rank == 0:
            _print_results(folder)
        return
    except RankFailed as error:
        if error.__cause__ is not None:  # this is the rank that failed
            traceback.print_exception(error.__cause__)
        message = f"Error: {error}\nto go on: {command(ranks)}"
        code = 1
    except ValueError as error:
        message = f"Error: {error}"
        code = 2
    except KeyboardInterrupt:
        message = f"interrupted; to go on: {command(ranks)}"
        code = 130
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        ranks.Abort(1)
    sys.stderr.flush()
    if ranks.rank == 0:
        typer.echo(message, err=True)
    ranks.Barrier()  # a launcher ends all ranks once one exits with an error
    raise typer.Exit(code)


def _report_failed(failed: list[tuple[Cell, Exception]]) -> None:
    """Print each reason of a failure once, with the first run that failed for it."""
    cells_by_reason: dict[str, list[str]] = defaultdict(list)
    for cell, reason in failed:
        cells_by_reason[str(reason)].append(cell.name)
    for text, (first, *further) in cells_by_reason.items():
        more = f" and {len(further)} more" if further else ""
        typer.echo(f"Error: {first}{more}: {text}", err=True)


def _print_results(folder: Path) -> None:
    """Print the table of results, the comparison with single sites, and the path of the page."""
    from dpmesh.experiments.results import load_results
    from dpmesh.experiments.summary import compared, grouped, missing_guarantees, sentences

    results = load_results(folder)[0]
    groups = grouped(results)
    typer.echo(f"\n{compared(groups)}\n")
    for text in missing_guarantees(groups):
        typer.echo(f"{text}\n")
    verdicts = sentences(groups)
    for text in verdicts:
        typer.echo(text)
    if verdicts:
        typer.echo("These scores are for research: no epsilon covers test records and baselines.\n")
    typer.echo(f"results in {folder}; a page of them: {_page(folder)}")


def _page(folder: Path) -> str:
    """Write the report page; return its path, or the command that writes it if a package lacks."""
    from dpmesh._extras import needed_by

    try:
        with needed_by("the page"):
            from dpmesh.experiments.page import write_page

            return str(write_page([folder]))
    except ModuleNotFoundError as error:
        return f"dpmesh report {folder} ({error})"


def report(
    folders: Annotated[list[Path], _FOLDERS], output: Annotated[Path | None, _PAGE] = None
) -> None:
    """Write one self-contained HTML page about finished runs, of dpmesh run or Run.save."""
    from dpmesh.experiments.page import write_page

    typer.echo(f"wrote {write_page(folders, output)}")
