"""``dpmesh reproduce``: the papers' tables and figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from dpmesh._validate import fail, one_of
from dpmesh.cli.arena import DataFolder
from dpmesh.reproduce import catalog

_NAME = typer.Argument(help="Name of a table or figure, such as federated-table2.")
_FOLDER = typer.Option(help="Folder for the figure and the numbers.")
_SEEDS = typer.Option(min=1, help="Number of repetitions; by default the experiment's own.")
_ALL = typer.Option("--all", help="Run all of them; name those whose data are missing.")
_QUICK = typer.Option("--quick", help="Run in small: one repetition, few rounds. It takes minutes.")


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
        outcomes = catalog.reproduce_all(folder, seeds=seeds, quick=quick, progress=typer.echo)
        for outcome in outcomes:
            typer.echo(outcome)
        if any(outcome.failed for outcome in outcomes):
            raise typer.Exit(1)
        return
    if name is None:
        for known, shown in catalog.REPRODUCTIONS.items():
            typer.echo(f"{known:<37}{shown.data:<13}{shown.shows}")
        return
    wanted = catalog.REPRODUCTIONS[one_of("name", name, tuple(catalog.REPRODUCTIONS))]
    if wanted.data and data is None:
        from dpmesh.data.loaders import SOURCES

        files = SOURCES[wanted.data]
        fail("--data", f"a folder whose subfolder {wanted.data} holds {files}", "none")
    for path in catalog.reproduce(name, folder, seeds=seeds, quick=quick, progress=typer.echo):
        typer.echo(f"wrote {path}")
