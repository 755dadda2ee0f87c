"""``dpmesh doctor``: what this installation can do."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata, util
from pathlib import Path

import typer

import dpmesh
from dpmesh import _core
from dpmesh._extras import EXTRAS


def doctor() -> None:
    """Show the engines, extras, threads and data sets that this installation finds."""
    typer.echo(f"dpmesh     {dpmesh.__version__}, Python {platform.python_version()}")
    typer.echo(f"processor  {platform.machine()}, {os.cpu_count()} cores seen")
    typer.echo(f"threads    {_core.get_threads()}: kernels.set_threads or DPMESH_NUM_THREADS")
    folder = os.environ.get("DPMESH_DATA")
    if folder is None:
        typer.echo("data sets  none: DPMESH_DATA is not set")
    else:
        found = sorted(path.name for path in Path(folder).glob("*") if path.is_dir())
        typer.echo(f"data sets  {', '.join(found) or 'none'} in DPMESH_DATA")
    for extra, distributions in EXTRAS.items():
        versions = _versions(distributions)
        if versions is None:
            typer.echo(f"missing    {extra}: pip install {' '.join(distributions)}")
        else:
            typer.echo(f"extra      {extra}: {versions}")
    typer.echo("engine     one process: always")
    for engine, ready in (("MPI", _mpi()), ("Flower", _flower())):
        typer.echo(f"engine     {engine}: {ready}")


def _versions(distributions: tuple[str, ...]) -> str | None:
    """Return name and version of each, or None if one is missing."""
    try:
        return ", ".join(f"{name} {metadata.version(name)}" for name in distributions)
    except metadata.PackageNotFoundError:
        return None


def _mpi() -> str:
    launcher = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    launcher = launcher or shutil.which("mpiexec")
    if util.find_spec("mpi4py") is None:
        return "no, it needs the extra mpi"
    return "yes" if launcher else "no, there is no mpiexec: pip install mpich, or your system's"


def _flower() -> str:
    return "no, it needs the extra flower" if util.find_spec("flwr") is None else "yes"
