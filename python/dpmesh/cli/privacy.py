"""``dpmesh privacy``: epsilon of algorithms of this package, and of runs of other tools.

The commands of algorithms come from the registry (`dpmesh.algorithms.registry`), which takes long
to import: it is imported when a command or this group's help is shown.
"""

from __future__ import annotations

import sys
from typing import Any

import typer

from dpmesh.cli._errors import SuggestingGroup
from dpmesh.cli.other_tools import COMMANDS, command_named


class WithAlgorithms(SuggestingGroup):
    """Group with a command for each algorithm of the registry, and for runs of other tools."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        from dpmesh.algorithms.registry import REGISTRY

        return sorted([*COMMANDS, *(entry.name for entry in REGISTRY)])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name, or of module:name, which imports the module; else None."""
        from dpmesh.algorithms.registry import entry_of
        from dpmesh.cli.algorithm_commands import command_of

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
    """Do nothing: without a callback typer would make no group."""
