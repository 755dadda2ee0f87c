"""``dpmesh reproduce`` and ``dpmesh benchmark``, whose code is in the package `dpmesh_papers`.

Entry points of the distribution name their functions, so that `dpmesh` imports no `dpmesh_papers`.
"""

from __future__ import annotations

from typing import Any

import typer

import dpmesh._entry_points as entry_points
from dpmesh.cli._errors import StrictCommand, reporting_errors


class LazyCommand(StrictCommand):
    """A command whose function is imported when it runs, not when commands are listed."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return the context of the imported command, as click does."""
        return self.imported_command().make_context(info_name, args, parent=parent, **extra)

    def imported_command(self) -> Any:
        """Import the function of this name, and return its command with all options."""
        function: Any = entry_points.loaded(entry_points.COMMANDS, str(self.name))
        if function is None:
            typer.echo(
                f"Error: this installation of dpmesh lacks the command {self.name}: its list of "
                "commands is older than its code (install it again: pip install .)",
                err=True,
            )
            raise typer.Exit(2)
        command = typer.Typer(add_completion=False)
        command.command(self.name, cls=StrictCommand)(reporting_errors(function))
        return typer.main.get_command(command)


def reproduce() -> None:
    """List the papers' tables and figures, or run one and compare its numbers with the paper's."""


def benchmark() -> None:
    """Compare all methods on the same tasks, with majority-class and single-site baselines."""
