"""``dpmesh plan``: what accuracy to expect, before any data are touched."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from dpmesh.cli._sites import Noise


def plan(
    sites: Annotated[int, typer.Option(min=1, help="Number of sites.")],
    records: Annotated[int, typer.Option(min=1, help="Number of records of each site.")],
    features: Annotated[int, typer.Option(min=1, help="Numbers in a record.")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget of the training.")],
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")] = 1e-5,
    classes: Annotated[int, typer.Option(min=2, max=10, help="Number of classes.")] = 2,
    algorithm: Annotated[
        Literal["secure", "gossip"] | None,
        typer.Option(help="How sites learn together; by default a secure sum from 3 sites on."),
    ] = None,
    noise: Noise = None,
    colluding: Annotated[
        int, typer.Option(min=0, help="Sites that may collude, for a secure sum or --noise.")
    ] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Make the answer reproducible.")] = None,
) -> None:
    """Estimate the accuracy of a federation, by simulation on public data of its shape."""
    from dpmesh.forecast import forecast
    from dpmesh.keys import Key

    found = forecast(
        sites=sites,
        records=records,
        features=features,
        epsilon=epsilon,
        delta=delta,
        classes=classes,
        algorithm=algorithm,
        noise=noise,
        colluding=colluding,
        key=None if seed is None else Key.seeded(seed),
    )
    typer.echo(found)
    typer.echo(
        "\nMeans of 5 runs on public data that were drawn to this shape (alone and pooled: without "
        "privacy).\nHow hard your own task is, they cannot know."
    )
