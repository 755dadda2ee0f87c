"""``dpmesh demo``: where sharing pays and where it does not, on real digits."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import dpmesh as dm
from dpmesh._files import writable_folder

if TYPE_CHECKING:
    from dpmesh.demo import Panel


def demo(
    folder: Annotated[Path, typer.Option(help="Folder for the figure and the numbers.")] = Path(
        "dpmesh-demo"
    ),
    seed: Annotated[
        int | None, typer.Option(min=0, help="Make the demo reproducible. It is then not private.")
    ] = None,
) -> None:
    """Learn handwritten digits at many sites, privately, beside chance, alone and pooled."""
    from dpmesh.demo import EPSILONS, KEYS, run_demo, save

    import_module("matplotlib")
    writable_folder(folder)

    def show(panel: Panel) -> None:
        typer.echo(f"{panel.verdict}: {panel.title}\n")
        typer.echo(f"{'epsilon':<37}{''.join(f'{epsilon:>15g}' for epsilon in EPSILONS)}")
        for name, cells in panel.rows():
            typer.echo(f"{name:<37}{''.join(f'{cell:>15}' for cell in cells)}")
        typer.echo(f"\n{panel.sentence}\n")

    typer.echo("Sites keep their records and learn one model; epsilon protects each record.")
    typer.echo(
        "Secure sum: the server learns only noisy sums over all sites; one site may collude."
    )
    typer.echo("Gossip: sites send each other noisy models, and everybody may read them.")
    typer.echo(
        f"Accuracy on held-out digits of all sites; mean and standard deviation of {KEYS} splits.\n"
    )
    key = dm.Key.generate() if seed is None else dm.Key.seeded(seed)
    panels = run_demo(key, show)
    typer.echo(f"The privacy report of the secure sum at epsilon {EPSILONS[1]:g}:\n")
    typer.echo(f"{panels[0].privacy[1]}\n")
    for path in save(panels, folder):
        typer.echo(f"wrote {path}")
