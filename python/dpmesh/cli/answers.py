"""How ``dpmesh privacy`` answers: as text or as JSON."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable, Iterable
from copy import copy
from functools import wraps
from inspect import Parameter, signature
from itertools import product
from typing import Annotated, Any, NamedTuple, get_args

import typer

import dpmesh as dm

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

MOST_ROUNDS = 100_000
"""Rounds that are tried."""

LARGE_DELTA = 0.01


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
        """Return the answer in plain types."""
        own = {"noise": self.noise, "meaning": self.meaning, "rounds": self.rounds}
        return own | {"report": self.report.as_dict()}


def answered(command: Callable[..., Answer]) -> Callable[..., None]:
    """Print what a command answers, as JSON with ``--json``; more values make a table."""
    own = signature(command, eval_str=True)
    options = {**own.parameters, "json": Parameter("json", Parameter.KEYWORD_ONLY, default=False)}
    options["json"] = options["json"].replace(annotation=Json)
    for name in ("epsilon", "noise"):
        options[name] = options[name].replace(annotation=_many(options[name].annotation))

    @wraps(command)
    def printed(
        json: bool, epsilon: list[float] | None, noise: list[float] | None, **given: Any
    ) -> None:
        none: list[float | None] = [None]
        pairs = product(epsilon or none, noise or none)
        answers = [command(epsilon=one, noise=other, **given) for one, other in pairs]
        warn_of_delta(answers[0].report.delta, given.get("records") or given.get("clients"))
        if json:
            plain = [answer.as_dict() for answer in answers]
            typer.echo(json_format.dumps(plain[0] if len(plain) == 1 else plain))
        elif len(answers) == 1:
            typer.echo(str(answers[0]))
        else:
            rows = ((a.report.epsilon, a.noise, a.rounds or "any", a.report.delta) for a in answers)
            typer.echo(table(rows))

    merged = own.replace(parameters=[*options.values()], return_annotation=None)
    printed.__signature__ = merged  # type: ignore[attr-defined]
    printed.__annotations__ = {each.name: each.annotation for each in merged.parameters.values()}
    return printed


def _many(annotation: Any) -> Any:
    """Return the annotation of an option that takes a number, for several."""
    _, option = get_args(annotation)
    several = copy(option)
    several.metavar = "FLOAT"  # newer releases of typer name the list, in a wide column
    return Annotated[list[float] | None, several]


def table(rows: Iterable[tuple[float, float, int | str, float]]) -> str:
    """Return epsilons, noises, rounds and deltas under each other."""
    lines = [f"{'epsilon':>12}{'noise':>14}{'rounds':>10}{'delta':>10}"]
    for epsilon, noise, rounds, delta in rows:
        shown = dm.privacy.rounded_up(epsilon), dm.privacy.rounded_up(noise, 8)
        lines.append(f"{shown[0]:>12}{shown[1]:>14}{rounds:>10}{delta:>10.3g}")
    return "\n".join(lines)


def warn_of_delta(delta: float, units: int | None = None) -> None:
    """Warn of a delta at which a guarantee may reveal whole units."""
    if units is not None and delta > 1 / units:
        which = f"1 / {units}: a mechanism that publishes one unit as it is keeps it"
        typer.echo(f"Warning: delta is above {which}.", err=True)
    elif units is None and delta > LARGE_DELTA:
        typer.echo("Warning: delta should be well below 1 / number of records.", err=True)
