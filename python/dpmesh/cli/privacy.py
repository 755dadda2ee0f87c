"""``dpmesh privacy``: bare mechanisms, and each algorithm of the registry once it is asked for."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import typer
from typer.core import TyperGroup

from dpmesh.cli._errors import telling
from dpmesh.cli.mechanisms import gaussian, laplace, sgd


class WithAlgorithms(TyperGroup):
    """The commands of mechanisms and those of the registry, which is not loaded for other help."""

    @cached_property
    def _algorithms(self) -> dict[str, Any]:
        from dpmesh.cli.priced import algorithms

        return dict(typer.main.get_group(algorithms).commands)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return sorted([*super().list_commands(ctx), *self._algorithms])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name, if there is one."""
        return super().get_command(ctx, cmd_name) or self._algorithms.get(cmd_name)


privacy = typer.Typer(
    cls=WithAlgorithms,
    no_args_is_help=True,
    help="Compute noise, epsilon or rounds from public numbers, without data. For an algorithm "
    "whose cost grows with its rounds, give two of --epsilon, --noise and --rounds; the third is "
    "computed. Repeat --epsilon or --noise for a table.",
)
for mechanism in (gaussian, laplace, sgd):
    privacy.command()(telling(mechanism))
