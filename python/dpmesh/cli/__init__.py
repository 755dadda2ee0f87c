"""The command line; needs the extra ``cli``. One file for each command."""

from __future__ import annotations

from typing import Annotated

import typer

from dpmesh import __version__
from dpmesh.cli._errors import Once, telling
from dpmesh.cli.arena import arena
from dpmesh.cli.audit import audit
from dpmesh.cli.demo import demo
from dpmesh.cli.doctor import doctor
from dpmesh.cli.fit import fit
from dpmesh.cli.make import make
from dpmesh.cli.mesh import contract, model, node, router
from dpmesh.cli.plan import plan
from dpmesh.cli.predict import predict
from dpmesh.cli.privacy import privacy
from dpmesh.cli.ranges import ranges
from dpmesh.cli.report import report
from dpmesh.cli.reproduce import reproduce
from dpmesh.cli.run import run
from dpmesh.cli.stats import stats

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # they hold private data
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Differentially private learning among many nodes."""


_PANELS = {
    "Start": (demo, doctor, ranges, stats, fit, predict, plan),
    "Research": (run, report, reproduce, arena),
    "Deploy": (node, router),
    "Privacy": (audit,),
}
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(cls=Once, rich_help_panel=panel)(telling(command))
contract.command(cls=Once)(telling(make))
app.add_typer(contract, name="contract", rich_help_panel="Deploy")
app.add_typer(model, name="model", rich_help_panel="Deploy")
app.add_typer(privacy, name="privacy", rich_help_panel="Privacy")
