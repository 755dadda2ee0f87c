"""``dpmesh verify``: recompute the epsilon that a file, or a run of another tool, claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import dpmesh.cli._options as options
from dpmesh._validate import nearest
from dpmesh.cli._errors import StrictCommand, SuggestingGroup, reporting_errors
from dpmesh.cli.other_tools import COMMANDS, command_named

_FILE_ARGUMENT = typer.Argument(
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
"""Name of the command for files, which may be left out: ``dpmesh verify model.dpmesh``."""


def file_claims(
    file: Annotated[Path, _FILE_ARGUMENT],
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
    """Group with commands for runs of other tools; any other first argument is a file."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [FILE, *COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command for runs of another tool, or for files."""
        if cmd_name in COMMANDS:
            return command_named(cmd_name)
        if cmd_name == FILE:
            return _file_command()
        return None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments as click does; put the command `FILE` before the name of a file.

        A first argument that is no file, but nearly the name of a command, is an unknown command.
        """
        first = args[0] if args else "--help"
        is_command = first in (FILE, "--help", *COMMANDS)
        is_misspelt_command = not Path(first).exists() and bool(nearest(first, COMMANDS))
        if not is_command and not is_misspelt_command:
            args = [FILE, *args]
        return super().parse_args(ctx, args)


def _file_command() -> Any:
    """Return the command for files."""
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
    """Do nothing: without a callback typer would make no group."""
