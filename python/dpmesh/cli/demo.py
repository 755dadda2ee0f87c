"""``dpmesh demo``: private online learning on real digits."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

import dpmesh as dm
from dpmesh._files import writable_folder


def demo(
    folder: Annotated[Path, typer.Option(help="Folder for the figure and the numbers.")] = Path(
        "dpmesh-demo"
    ),
    seed: Annotated[
        int | None, typer.Option(min=0, help="Makes the demo reproducible, and so not private.")
    ] = None,
) -> None:
    """Learn digits on 16 nodes over a changing network, with and without privacy."""
    from dpmesh.demo import run_demo, save

    import_module("matplotlib")
    writable_folder(folder)
    columns = ("accuracy", "released_accuracy", "regret")

    def show(name: str, run: dm.Run) -> None:
        cells = "".join(f"{run.history.last(column):>12.3f}" for column in columns)
        typer.echo(f"{name:<14}{cells}{run.traffic.megabytes:>8.2f}")

    typer.echo("Online learning on scikit-learn's digits, even against odd, 16 nodes, a network")
    typer.echo("that changes every round. 'released' is the accuracy of what may be published.\n")
    typer.echo(f"{'':<14}{'accuracy':>12}{'released':>12}{'regret':>12}{'MB':>8}")
    key = dm.Key.generate() if seed is None else dm.Key.seeded(seed)
    runs = run_demo(key, show)
    name, last = list(runs.items())[-1]
    typer.echo(f"\nThe privacy report of {name}:\n\n{last.privacy}\n")
    for path in save(runs, folder):
        typer.echo(f"wrote {path}")
