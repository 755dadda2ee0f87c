"""``dpmesh demo``, ``doctor`` and ``forecast``: commands that need no data of the user."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import import_module, metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import dpmesh as dm
import dpmesh.cli._options as options
from dpmesh import _core
from dpmesh._extras import EXTRAS
from dpmesh._files import writable_folder
from dpmesh.cli._progress import echo_above_bar, progress_bar

if TYPE_CHECKING:
    from dpmesh.demo import Panel

_FOLDER = typer.Option("--output", help="Folder for the figure and the numbers.")
_SEED = typer.Option(min=0, help="Make the demo reproducible. It is then not private.")
_AGAIN = typer.Option(min=0, help="Make the answer reproducible.", rich_help_panel=options.OUTPUT)


def demo(
    folder: Annotated[Path, _FOLDER] = Path("dpmesh-demo"),
    seed: Annotated[int | None, _SEED] = None,
) -> None:
    """Learn handwritten digits at many sites; compare with majority class and single sites."""
    from dpmesh.demo import EPSILONS, KEYS, RUNS, run_demo, save

    import_module("matplotlib")
    writable_folder(folder)

    def show(panel: Panel) -> None:
        """Print the table and the verdict of a federation."""
        lines = [f"{panel.verdict}: {panel.title}\n"]
        head = ("epsilon", [f"{epsilon:g}" for epsilon in EPSILONS])
        for name, cells in (head, *panel.rows()):
            columns = [f"{cell:>15}" for cell in cells]
            lines.append(f"{name:<37}{''.join(columns)}")
        lines.append(f"\n{panel.sentence}\n")
        echo_above_bar("\n".join(lines))

    typer.echo(
        "Sites keep their records and learn one model; epsilon protects each record.\n"
        "Secure aggregation: the server learns only noisy sums of all sites; one may collude.\n"
        "Gossip: sites send each other noisy models, and anyone may read them.\n"
        f"Accuracy on held-out digits of all sites; mean and standard deviation of {KEYS} splits.\n"
    )
    key = dm.Key.generate() if seed is None else dm.Key.seeded(seed)
    with progress_bar(RUNS, unit="run") as advance:
        panels = run_demo(key, show, lambda: advance(1))
    typer.echo(f"The privacy report of secure aggregation at epsilon {EPSILONS[1]:g}:\n")
    typer.echo(f"{panels[0].privacy[1]}\n")
    for path in save(panels, folder):
        typer.echo(f"wrote {path}")


def forecast(
    sites: Annotated[
        int, typer.Option(min=1, help="Number of sites.", rich_help_panel=options.DATA)
    ],
    records: Annotated[
        int,
        typer.Option(min=1, help="Number of records of each site.", rich_help_panel=options.DATA),
    ],
    features: Annotated[
        int, typer.Option(min=1, help="Numbers in a record.", rich_help_panel=options.DATA)
    ],
    epsilon: Annotated[
        float, typer.Option(help="Privacy budget of the training.", rich_help_panel=options.PRIVACY)
    ],
    delta: options.Delta = 1e-5,
    classes: Annotated[
        int, typer.Option(min=2, max=10, help="Number of classes.", rich_help_panel=options.DATA)
    ] = 2,
    algorithm: options.Method = None,
    noise: options.Mechanism = None,
    colluding: options.Colluding = 1,
    seed: Annotated[int | None, _AGAIN] = None,
) -> None:
    """Estimate the accuracy of a federation, by simulation on public data of its shape."""
    import dpmesh.forecast as simulated

    key = None if seed is None else dm.Key.seeded(seed)
    runs = simulated.runs_of_forecast(sites, records, classes)
    with progress_bar(runs, unit="run") as advance:
        expected = simulated.forecast(
            sites=sites,
            records=records,
            features=features,
            classes=classes,
            epsilon=epsilon,
            delta=delta,
            algorithm=algorithm,
            noise=noise,
            colluding=colluding,
            key=key,
            on_run=lambda: advance(1),
        )
    typer.echo(expected)
    typer.echo(
        "\nMeans of 5 runs on public data that were drawn to this shape (single and central: "
        "without privacy).\nHow hard your own task is, they cannot know."
    )


def doctor() -> None:
    """Show the engines, extras, threads and data sets that this installation finds."""
    typer.echo(f"dpmesh     {dm.__version__}, Python {platform.python_version()}")
    typer.echo(f"processor  {platform.machine()}, {os.cpu_count()} cores seen")
    typer.echo(f"threads    {_core.get_threads()}: kernels.set_threads or DPMESH_NUM_THREADS")
    folder = os.environ.get("DPMESH_DATA")
    if folder is None:
        typer.echo("data sets  none: DPMESH_DATA is not set")
    else:
        names = sorted(path.name for path in Path(folder).glob("*") if path.is_dir())
        typer.echo(f"data sets  {', '.join(names) or 'none'} in DPMESH_DATA")
    for extra, distributions in EXTRAS.items():
        versions = _versions(distributions)
        if versions is None:
            typer.echo(f"missing    {extra}: pip install {' '.join(distributions)}")
        else:
            typer.echo(f"extra      {extra}: {versions}")
    typer.echo("engine     one process: always")
    typer.echo(f"engine     MPI: {_mpi()}")
    flower = "yes" if util.find_spec("flwr") else "no, it needs the extra flower"
    typer.echo(f"engine     Flower: {flower}")


def _versions(distributions: tuple[str, ...]) -> str | None:
    """Return names and versions of distributions in words, or None if one is not installed."""
    try:
        return ", ".join(f"{name} {metadata.version(name)}" for name in distributions)
    except metadata.PackageNotFoundError:
        return None


def _mpi() -> str:
    """Return in words whether the MPI engine works: it needs mpi4py and mpiexec."""
    launcher = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    launcher = launcher or shutil.which("mpiexec")
    if util.find_spec("mpi4py") is None:
        return "no, it needs the extra mpi"
    if launcher:
        return "yes"
    return "no, there is no mpiexec: pip install mpich, or your system's"
