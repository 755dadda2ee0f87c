"""``dpmesh audit``: lower bounds on what the algorithms leak, next to what they claim."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated

import typer

import dpmesh as dm
from dpmesh._validate import fail, one_of, probability
from dpmesh.cli.views import Network, Nodes, Observer, seat_of

if TYPE_CHECKING:
    from dpmesh.algorithms.registry import Entry
    from dpmesh.audit import Crowd, Pair


def _worst_case(entry: Entry, canaries: int) -> tuple[Pair, Crowd]:
    """Return the data on which an algorithm of the registry leaks most."""
    make = getattr(dm.audit.worst_cases, entry.worst_case)
    made: tuple[Pair, Crowd] = make(entry.audited, canaries=canaries, **entry.options)
    return made


def _laplace(canaries: int) -> tuple[Pair, Crowd]:
    sensitivity = dm.privacy.Sensitivity(1.0, "l1", "numbers between 0 and 1")
    mechanism = dm.privacy.Laplace(1.0)
    return dm.audit.worst_cases.mechanism(mechanism, sensitivity, canaries=canaries)


def _gaussian(canaries: int) -> tuple[Pair, Crowd]:
    sensitivity = dm.privacy.Sensitivity(1.0, "l2", "numbers between 0 and 1")
    mechanism = dm.privacy.Gaussian(1.0)
    return dm.audit.worst_cases.mechanism(mechanism, sensitivity, canaries=canaries)


@cache
def cases() -> dict[str, Callable[[int], tuple[Pair, Crowd]]]:
    """Return what makes the data of each case, given a number of canaries."""
    from dpmesh.algorithms.registry import REGISTRY

    found: dict[str, Callable[[int], tuple[Pair, Crowd]]] = {
        entry.name: partial(_worst_case, entry) for entry in REGISTRY if entry.audited is not None
    }
    return found | {"gaussian": _gaussian, "laplace": _laplace}


def audit(
    name: Annotated[
        str | None, typer.Argument(help="An algorithm, gaussian or laplace; all by default.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs on each of two datasets.")] = 1_000,
    canaries: Annotated[int, typer.Option(min=2, help="Canaries of the single run.")] = 1_000,
    confidence: Annotated[float, typer.Option(help="Confidence of each lower bound.")] = 0.999,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of a reproducible audit.")] = None,
    view: Observer = None,
    target: Annotated[
        int | None, typer.Option(help="Whose record, for --view; by default the worst node.")
    ] = None,
    nodes: Nodes = 16,
    network: Network = "meetings",
    rounds: Annotated[int, typer.Option(help="Number of rounds of each run, for --view.")] = 16,
) -> None:
    """Audit an algorithm, a bare mechanism (gaussian, laplace), or all, where they leak most.

    Fail if one exceeds its claim.
    Three layers: two runs with the same releases, many short runs, one run with many canaries.
    With --view, gossip is audited from the seat of that observer, who sees its own messages alone.
    """
    key = None if seed is None else dm.Key.seeded(seed)
    faults = []
    probability("confidence", confidence, zero=False, one=False)
    if view is not None:
        if name not in (None, "gradient-descent"):
            fail("view", "gradient-descent, whose view is audited", name)
        seat = seat_of(view, nodes=nodes, network=network, seed=seed or 0)
        for forgetful in (False, True):
            others = "wipe out what they receive" if forgetful else "pass on what they receive"
            seen = dm.audit.audit_view(
                seat,
                rounds=rounds,
                target=target,
                forgetful=forgetful,
                runs=runs,
                confidence=confidence,
                key=key,
            )
            typer.echo(f"gradient descent on {seat.topology}; other nodes {others}\n\n{seen}\n")
            faults += ["the view"] if seen.violated else []
        _conclude(faults)
        return
    for case in cases() if name is None else [one_of("name", name, cases())]:
        pair, crowd = cases()[case](canaries)
        typer.echo(f"{case}: {pair.algorithm}\n")
        for result in dm.audit.audit_layers(pair, crowd, runs=runs, confidence=confidence, key=key):
            typer.echo(f"{result}\n")
            faults += [case] if result.violated else []
    _conclude(faults)


def _conclude(faults: list[str]) -> None:
    if faults:
        typer.echo("leaks more than it claims: " + ", ".join(sorted(set(faults))))
        raise typer.Exit(1)
    typer.echo("no violation found (an audit cannot prove a claim)")
