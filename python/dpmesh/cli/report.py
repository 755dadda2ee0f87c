"""``dpmesh report``: a page about finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of dpmesh run or Run.save; several are compared.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            help="Page to write, or only its first table (.tex, .csv); by default report.html, in "
            "the folder if there is only one."
        ),
    ] = None,
) -> None:
    """Write one self-contained HTML page about finished runs, of dpmesh run or Run.save."""
    from dpmesh.experiments.page import write_page

    typer.echo(f"wrote {write_page(folders, output)}")
