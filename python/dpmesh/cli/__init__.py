"""The command line ``dpmesh``; needs the extra ``cli``.

Each module holds one command or several related ones. This file puts them into groups and panels of
the help: ``dpmesh contract ..`` (agreements between parties), ``dpmesh model ..``,
``dpmesh privacy ..`` (epsilon of an algorithm) and ``dpmesh verify ..`` (epsilon of a file).
"""

from __future__ import annotations

from typing import Annotated

import typer

from dpmesh import __version__
from dpmesh.cli._errors import StrictCommand, SuggestingGroup, reporting_errors
from dpmesh.cli.audit import audit
from dpmesh.cli.claims import verify as verify_claims
from dpmesh.cli.fit import fit
from dpmesh.cli.make import make
from dpmesh.cli.mesh import check, keys, leave, node, rehearse, restored, router, status, verify
from dpmesh.cli.papers import LazyCommand, benchmark, reproduce
from dpmesh.cli.predict import predict
from dpmesh.cli.privacy import privacy
from dpmesh.cli.ranges import ranges
from dpmesh.cli.run import report, run
from dpmesh.cli.start import demo, doctor, forecast
from dpmesh.cli.stats import stats
from dpmesh.cli.synthesize import synthesize

app = typer.Typer(
    cls=SuggestingGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # they hold private data
)


def _show_version(requested: bool) -> None:
    """Print the version and exit, if the option is set."""
    if requested:
        typer.echo(__version__)
        raise typer.Exit


_VERSION = typer.Option(
    "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
)


@app.callback()
def main(version: Annotated[bool, _VERSION] = False) -> None:
    """Differentially private federated and decentralized learning."""


contract = typer.Typer(
    cls=SuggestingGroup,
    no_args_is_help=True,
    help="Make, check and rehearse contracts between parties.",
)
model = typer.Typer(
    cls=SuggestingGroup, no_args_is_help=True, help="Models that parties learned together."
)

_PANELS = {
    "Start": (demo, doctor, ranges, stats, synthesize, fit, predict, forecast),
    "Research": (run, report),
    "Deploy": (node, router),
    "Privacy": (audit,),
}
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(cls=StrictCommand, rich_help_panel=panel)(reporting_errors(command))
for command in (reproduce, benchmark):
    app.command(cls=LazyCommand, rich_help_panel="Research")(command)
for contract_command in (keys, check, rehearse, status, leave, restored, make):
    contract.command(cls=StrictCommand)(reporting_errors(contract_command))
model.command(cls=StrictCommand)(reporting_errors(verify))
app.add_typer(contract, name="contract", rich_help_panel="Deploy")
app.add_typer(model, name="model", rich_help_panel="Deploy")
app.add_typer(privacy, name="privacy", rich_help_panel="Privacy")
app.add_typer(verify_claims, name="verify", rich_help_panel="Privacy")
