"""``dpmesh privacy gaussian``, ``laplace`` and ``sgd``: noise and epsilon without an algorithm."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable
from math import ceil, sqrt
from pathlib import Path
from typing import Annotated

import typer

import dpmesh as dm
from dpmesh._validate import fail, integer, positive, probability
from dpmesh.cli.answers import Json, Plot, draw, table, warn_of_delta

Epsilons = Annotated[
    list[float] | None, typer.Option("--epsilon", help="Compute the noise; repeat for a table.")
]
Noises = Annotated[
    list[float] | None,
    typer.Option(
        "--noise", help="Compute the epsilon of this noise multiplier; repeat for a table."
    ),
]
Delta = Annotated[
    float, typer.Option(help="Delta of the guarantee; take it well below 1 / number of records.")
]
Rounds = Annotated[int, typer.Option(help="Number of releases of the same data.")]


def gaussian(
    epsilon: Epsilons = None,
    noise: Noises = None,
    rounds: Rounds = 1,
    delta: Delta = 1e-5,
    json: Json = False,
    plot: Plot = None,
) -> None:
    """Price Gaussian noise: standard deviation over L2 sensitivity, exactly."""
    count = integer("rounds", rounds, at_least=1)
    warn_of_delta(delta)

    def epsilon_of(noise: float) -> float:
        mu = dm.privacy.accounting.gdp_mu(noise, count=count)
        return dm.privacy.accounting.gdp_epsilon(delta=delta, mu=mu)

    def noise_for(target: float) -> float:
        return sqrt(count) * dm.privacy.accounting.analytic_gaussian_noise_multiplier(
            target_epsilon=target, target_delta=delta
        )

    _answer(epsilon, noise, epsilon_of, noise_for, {"rounds": count, "delta": delta}, json, plot)


def laplace(
    epsilon: Epsilons = None,
    noise: Noises = None,
    rounds: Rounds = 1,
    delta: Annotated[float, typer.Option(help="Delta of the guarantee; 0 for pure epsilon.")] = 0.0,
    json: Json = False,
    plot: Plot = None,
) -> None:
    """Price Laplace noise: scale over L1 sensitivity."""
    count = integer("rounds", rounds, at_least=1)
    warn_of_delta(delta)

    def epsilon_of(noise: float) -> float:
        return dm.privacy.accounting.laplace_epsilon(
            delta=delta, noise_multiplier=noise, count=count
        )

    def noise_for(target: float) -> float:
        if delta == 0:
            return count / positive("epsilon", target)
        return dm.privacy.accounting.calibrate_noise(
            epsilon_of, target_epsilon=target, guess=count / positive("epsilon", target)
        )

    _answer(epsilon, noise, epsilon_of, noise_for, {"rounds": count, "delta": delta}, json, plot)


def sgd(
    records: Annotated[int, typer.Option(help="Number of records.")],
    batch: Annotated[int, typer.Option(help="Expected records of a batch.")],
    epochs: Annotated[float, typer.Option(help="Expected visits of each record.")],
    epsilon: Epsilons = None,
    noise: Noises = None,
    delta: Delta = 1e-5,
    json: Json = False,
    plot: Plot = None,
) -> None:
    """Price DP-SGD on Poisson batches, for adding or removing a record.

    Noise is relative to the clipping norm, on the sum of the batch's gradients.
    """
    rate = integer("batch", batch, at_least=1, below=records + 1) / records
    steps = ceil(positive("epochs", epochs) / rate)
    warn_of_delta(delta, records)

    def epsilon_of(noise: float) -> float:
        return dm.privacy.accounting.poisson_gaussian_epsilon(
            delta=delta,
            sampling_rate=rate,
            noise_multiplier=noise,
            neighboring_relation="add_remove",
            count=steps,
        )

    def noise_for(target: float) -> float:
        return dm.privacy.accounting.poisson_gaussian_noise_multiplier(
            target_epsilon=target,
            target_delta=delta,
            sampling_rate=rate,
            neighboring_relation="add_remove",
            count=steps,
        )

    _answer(epsilon, noise, epsilon_of, noise_for, {"rounds": steps, "delta": delta}, json, plot)


def _answer(
    epsilons: list[float] | None,
    noises: list[float] | None,
    epsilon_of: Callable[[float], float],
    noise_for: Callable[[float], float],
    public: dict[str, float],
    json: bool,
    plot: Path | None,
) -> None:
    """Print a row for each epsilon or each noise that was asked for."""
    if bool(epsilons) == bool(noises):
        fail("options", "either --epsilon or --noise", "both" if epsilons else "none")
    probability("delta", public["delta"], one=False)
    rows = [(target, noise_for(target)) for target in epsilons or ()]
    rows += [(epsilon_of(noise), noise) for noise in noises or ()]
    if plot is not None:
        draw(plot, rows, epsilon_of, public["delta"])
    if json:
        answers = [{"epsilon": x, "noise_multiplier": z, **public} for x, z in rows]
        typer.echo(json_format.dumps(answers))
        return
    typer.echo(table((x, z, int(public["rounds"]), public["delta"]) for x, z in rows))
