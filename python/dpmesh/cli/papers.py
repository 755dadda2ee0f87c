"""``dpmesh reproduce`` and ``dpmesh benchmark``, which the distribution's other package holds."""

from __future__ import annotations

from typing import Any

import typer

import dpmesh._entry_points as entry_points
from dpmesh.cli._errors import Once, reporting_errors


class Deferred(Once):
    """A command whose function is imported when it is called, not when commands are listed."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return the context of the command itself, as click does."""
        return self.resolved().make_context(info_name, args, parent=parent, **extra)

    def resolved(self) -> Any:
        """Return the command itself, with its options."""
        function: Any = entry_points.loaded(entry_points.COMMANDS, str(self.name))
        if function is None:
            typer.echo(
                f"Error: this installation of dpmesh lacks the command {self.name}: its list of "
                "commands is older than its code (install it again: pip install .)",
                err=True,
            )
            raise typer.Exit(2)
        command = typer.Typer(add_completion=False)
        command.command(self.name, cls=Once)(reporting_errors(function))
        return typer.main.get_command(command)


def reproduce() -> None:
    """List the papers' tables and figures, or run one: its numbers stand beside the paper's."""


def benchmark() -> None:
    """Compare all methods on the same tasks, beside majority-class and single-site baselines."""
