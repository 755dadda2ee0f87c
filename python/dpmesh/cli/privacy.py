"""``dpmesh privacy``: algorithms of the registry, once asked for, and runs of other tools."""

from __future__ import annotations

import sys
from typing import Any

import typer

from dpmesh.cli._errors import SuggestingGroup
from dpmesh.cli.other_tools import COMMANDS, command_named


class WithAlgorithms(SuggestingGroup):
    """The commands of the registry, which is not loaded for other help."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        from dpmesh.algorithms.registry import REGISTRY

        return sorted([*COMMANDS, *(entry.name for entry in REGISTRY)])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, if there is one; a module is imported first."""
        from dpmesh.algorithms.registry import entry_of
        from dpmesh.cli.priced import command_of

        if cmd_name in COMMANDS:
            return command_named(cmd_name)
        if ":" not in cmd_name and cmd_name not in self.list_commands(ctx):
            return None
        sys.path.insert(0, "")  # modules in this folder
        try:
            return command_of(entry_of(cmd_name))
        except ValueError as error:
            ctx.fail(str(error))


privacy = typer.Typer(
    cls=WithAlgorithms,
    no_args_is_help=True,
    help="Compute noise, epsilon or rounds from public numbers, without data. For an algorithm "
    "whose cost grows with its rounds, give two of --epsilon, --noise and --rounds; the third is "
    "computed. Repeat --epsilon or --noise for a table.",
)


@privacy.callback()
def _of_algorithms() -> None:
    """Keep a group, which typer makes of commands alone."""
