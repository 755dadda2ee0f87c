"""How ``dpmesh privacy`` answers: as text, as JSON or as a figure."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

import dpmesh as dm
from dpmesh._validate import fail

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Draw epsilon over the noise into this file.")
]

MOST_ROUNDS = 100_000
"""That are tried."""

LARGE_DELTA = 0.01
CURVE = 25  # points


class Answer(NamedTuple):
    """The noise of an algorithm, what it is relative to, the rounds if they matter; its report."""

    noise: float
    meaning: str
    rounds: int | None
    report: dm.privacy.Report

    def __str__(self) -> str:
        number = {None: "any number", MOST_ROUNDS: f"{MOST_ROUNDS} or more"}
        lines = [
            f"noise       {dm.privacy.rounded_up(self.noise, 8)} ({self.meaning})",
            f"rounds      {number.get(self.rounds, str(self.rounds))}",
            *str(self.report).splitlines(),
        ]
        if self.rounds is None:  # nor does the number of releases matter
            lines = [line for line in lines if not line.startswith("releases")]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        own = {"noise": self.noise, "meaning": self.meaning, "rounds": self.rounds}
        return own | {"report": self.report.as_dict()}


def answered(command: Callable[..., Answer]) -> Callable[..., None]:
    """Give a command the option ``--json``, and print what it answers."""
    own = signature(command, eval_str=True)
    option = Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)

    @wraps(command)
    def printed(json: bool, **given: Any) -> None:
        answer = command(**given)
        warn_of_delta(answer.report.delta, given.get("records") or given.get("clients"))
        typer.echo(json_format.dumps(answer.as_dict()) if json else str(answer))

    merged = own.replace(parameters=[*own.parameters.values(), option], return_annotation=None)
    printed.__signature__ = merged  # type: ignore[attr-defined]
    printed.__annotations__ = {each.name: each.annotation for each in merged.parameters.values()}
    return printed


def warn_of_delta(delta: float, units: int | None = None) -> None:
    """Warn of a delta at which a guarantee may reveal whole units."""
    if units is not None and delta > 1 / units:
        which = f"1 / {units}: a mechanism that publishes one unit as it is keeps it"
        typer.echo(f"Warning: delta is above {which}.", err=True)
    elif units is None and delta > LARGE_DELTA:
        typer.echo("Warning: delta should be well below 1 / number of records.", err=True)


def draw(
    path: Path, rows: list[tuple[float, float]], epsilon_of: Callable[[float], float], delta: float
) -> None:
    """Draw epsilon over the noise multiplier, around those of the rows, which are marked."""
    from matplotlib.figure import Figure

    if path.suffix.lower() not in (".pdf", ".png", ".svg"):
        fail("plot", "a file that ends in .pdf, .png or .svg", str(path))
    noises = [noise for _, noise in rows]
    curve = np.geomspace(min(noises) / 2, 2 * max(noises), CURVE)
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    ax = figure.subplots()
    ax.loglog(curve, [epsilon_of(float(noise)) for noise in curve])
    ax.plot(noises, [epsilon for epsilon, _ in rows], "o")
    ax.set(xlabel="noise multiplier", ylabel=f"epsilon at delta = {delta:g}")
    ax.grid(which="both", alpha=0.3)
    figure.savefig(path)
