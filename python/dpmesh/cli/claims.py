"""``dpmesh verify``: recompute the epsilon that a file claims."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmesh._validate import fail

if TYPE_CHECKING:
    from dpmesh.privacy.verification import Statement, Verification

_THING = typer.Argument(
    metavar="FILE", help="Model file of dpmesh fit, or folder of a run of dpmesh run."
)


def verify(file: Annotated[Path, _THING]) -> None:
    """Recompute the privacy of a model file or a run from its mechanisms, and compare its claims.

    Exit code 1 if a recomputed epsilon exceeds a number that the file states. A claim that is
    larger than needed is noted. Consistent files do not prove which noise was drawn.
    """
    found = verification_of(file)
    typer.echo(str(found))
    if found.refuted:
        raise typer.Exit(1)


def verification_of(file: Path) -> Verification:
    """Return the comparison of a file's claims with its own plan.

    Raises
    ------
    ValueError
        If the file holds no plan.
    """
    from dpmesh.privacy.plan import Plan
    from dpmesh.privacy.verification import verify as compare

    if file.is_dir():
        from dpmesh.experiments.results import Result

        result = Result.load(file)
        return compare(result.ledger, [_reported("run.privacy", result.run["privacy"])])
    from dpmesh.tables.models import Model

    about = Model.load(file).about
    if about.get("plan") is None:
        fail("file", "a model file that carries its plan, as dpmesh fit writes it", str(file))
    claims = [_reported("about.privacy", about["privacy"])]
    claims.append(_reported("about.fit.privacy", about["fit"]["privacy"]))
    epsilon = inf if about["epsilon"] is None else float(about["epsilon"])
    claims.append(_stated("about.epsilon", epsilon, float(about["delta"])))
    return compare(Plan.from_dict(about["plan"]), claims, colluding=about.get("colluding"))


def _reported(where: str, report: dict[str, Any]) -> Statement:
    """Return the claim of a privacy report."""
    from dpmesh.privacy.verification import Statement

    return Statement(
        where=where,
        epsilon=float(report["epsilon"]),
        delta=float(report["delta"]),
        relation=report["neighboring_relation"],
        unit=report["unit"],
    )


def _stated(where: str, epsilon: float, delta: float) -> Statement:
    """Return a claim that names neither relation nor unit."""
    from dpmesh.privacy.verification import Statement

    return Statement(where=where, epsilon=epsilon, delta=delta)
