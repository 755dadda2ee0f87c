"""``dpmesh report``: a page about finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="Where dpmesh run put its results.")],
    output: Annotated[
        Path | None, typer.Option(help="The page; by default report.html in the folder.")
    ] = None,
) -> None:
    """Write one self-contained HTML page about the finished runs in a folder."""
    from dpmesh.experiments.page import write_page

    typer.echo(f"wrote {write_page(folder, output)}")
