"""``dpmesh verify``: recompute the epsilon that a file, or a run of another tool, claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import dpmesh.cli._options as options
from dpmesh._validate import nearest
from dpmesh.cli._errors import StrictCommand, SuggestingGroup, reporting_errors
from dpmesh.cli.other_tools import COMMANDS, command_named

_THING = typer.Argument(
    metavar="FILE",
    help="Model file, folder of a run, contract, party's folder, answers (.json), synthetic table "
    "(.csv or its .toml), or a TOML file about a run of another tool.",
)
_CONTRACT = typer.Option(help="Contract whose parties signed the file.")
_MODULE = typer.Option(
    help="Your Python module, whose algorithm the contract names.",
    callback=options.import_from_this_folder,
)

FILE = "FILE"
"""Name of the command of files; it may be left out."""


def file_claims(
    file: Annotated[Path, _THING],
    contract: Annotated[Path | None, _CONTRACT] = None,
    module: Annotated[str | None, _MODULE] = None,
) -> None:
    """Recompute the privacy of a file from its mechanisms, and compare its claims.

    Exit code 1 if a recomputed epsilon exceeds a number that the file states. A claim that is
    larger than needed is noted. Consistent files do not prove which noise was drawn.
    """
    from dpmesh.cli.claimed_files import verification_of

    verification = verification_of(file, contract=contract, module=module)
    typer.echo(str(verification))
    if verification.refuted:
        raise typer.Exit(1)


class Claims(SuggestingGroup):
    """Commands for runs of other tools; anything else is a file."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [FILE, *COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a procedure, or that of files."""
        if cmd_name in COMMANDS:
            return command_named(cmd_name)
        if cmd_name == FILE:
            return _command_of_files()
        return None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return what is left of the arguments; those of a file get the name of its command."""
        first = args[0] if args else "--help"
        is_command = first in (FILE, "--help", *COMMANDS)
        if not is_command and (Path(first).exists() or not nearest(first, COMMANDS)):
            args = [FILE, *args]
        return super().parse_args(ctx, args)


def _command_of_files() -> Any:
    application = typer.Typer(cls=SuggestingGroup, add_completion=False)
    application.command(FILE, cls=StrictCommand)(reporting_errors(file_claims))
    return typer.main.get_command(application)


verify = typer.Typer(
    cls=Claims,
    no_args_is_help=True,
    help="Recompute the epsilon that a file claims (dpmesh verify model.dpmesh), or a run of "
    "another tool (dpmesh verify dp-sgd ..). Exit code 1 if the claim is too small.",
)


@verify.callback()
def _of_claims() -> None:
    """Keep a group, which typer makes of commands alone."""
