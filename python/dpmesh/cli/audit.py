"""``dpmesh audit``: lower bounds on what the algorithms leak, next to what they claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

import dpmesh as dm
from dpmesh._validate import one_of, probability

if TYPE_CHECKING:
    from dpmesh.privacy.audit import Crowd, Pair


def _online(canaries: int) -> tuple[Pair, Crowd]:
    return dm.privacy.audit.worst_cases.online(dm.OnlineLearning(epsilon=1.0), canaries=canaries)


def _federated(canaries: int) -> tuple[Pair, Crowd]:
    algorithm = dm.FederatedLearning(
        clients=2, sampling_rate=0.5, clipping_norm=1.0, noise_multiplier=1.0, local_steps=1
    )
    return dm.privacy.audit.worst_cases.federated(algorithm, canaries=canaries)


def _gradient_descent(canaries: int) -> tuple[Pair, Crowd]:
    algorithm = dm.GradientDescent(records=4, noise_multiplier=1.5)
    return dm.privacy.audit.worst_cases.gradient_descent(algorithm, canaries=canaries)


def _quantized(canaries: int) -> tuple[Pair, Crowd]:
    algorithm = dm.QuantizedGossip(
        step_size=0.5,
        consensus_step_size=0.2,
        sample_size=10,
        noise_std=1.0,
        compressor=dm.privacy.Quantizer(0.001, bits=16),
        smoothness=1.0,
    )
    return dm.privacy.audit.worst_cases.quantized(algorithm, rounds=6, canaries=canaries)


def _without_replacement(canaries: int) -> tuple[Pair, Crowd]:
    algorithm = dm.WithoutReplacement(
        epsilon=4.0,
        batch_size=2,
        step_size=0.001,
        controller=dm.controllers.Periodic(2),
        model_radius=1.0,
    )
    return dm.privacy.audit.worst_cases.without_replacement(algorithm, canaries=canaries)


def _with_replacement(canaries: int) -> tuple[Pair, Crowd]:
    algorithm = dm.WithReplacement(1, records=2, noise_multiplier=1.0, batch_size=1, step_size=0.01)
    return dm.privacy.audit.worst_cases.with_replacement(algorithm, canaries=canaries)


def _laplace(canaries: int) -> tuple[Pair, Crowd]:
    sensitivity = dm.privacy.Sensitivity(1.0, "l1", "numbers between 0 and 1")
    mechanism = dm.privacy.Laplace(1.0)
    return dm.privacy.audit.worst_cases.mechanism(mechanism, sensitivity, canaries=canaries)


def _gaussian(canaries: int) -> tuple[Pair, Crowd]:
    sensitivity = dm.privacy.Sensitivity(1.0, "l2", "numbers between 0 and 1")
    mechanism = dm.privacy.Gaussian(1.0)
    return dm.privacy.audit.worst_cases.mechanism(mechanism, sensitivity, canaries=canaries)


ALGORITHMS: dict[str, Callable[[int], tuple[Pair, Crowd]]] = {
    "federated": _federated,
    "gradient-descent": _gradient_descent,
    "online": _online,
    "quantized": _quantized,
    "with-replacement": _with_replacement,
    "without-replacement": _without_replacement,
}
CASES = ALGORITHMS | {"gaussian": _gaussian, "laplace": _laplace}


def audit(
    name: Annotated[str | None, typer.Argument(help="One of " + ", ".join(CASES) + ".")] = None,
    runs: Annotated[int, typer.Option(min=1, help="In each of two neighbouring worlds.")] = 1_000,
    canaries: Annotated[int, typer.Option(min=2, help="In the one run with many.")] = 1_000,
    confidence: Annotated[float, typer.Option(help="Of each lower bound.")] = 0.999,
    seed: Annotated[int | None, typer.Option(min=0, help="Make it reproducible.")] = None,
) -> None:
    """Audit an algorithm, a bare mechanism (gaussian, laplace), or all, where they leak most.

    Fail if one exceeds its claim.
    Three layers: two runs with the same releases, many short runs, one run with many canaries.
    """
    key = None if seed is None else dm.Key.seeded(seed)
    faults = []
    probability("confidence", confidence, zero=False, one=False)
    for case in CASES if name is None else [one_of("name", name, CASES)]:
        pair, crowd = CASES[case](canaries)
        typer.echo(f"{case}: {pair.algorithm}\n")
        for result in dm.privacy.audit.audit_layers(
            pair, crowd, runs=runs, confidence=confidence, key=key
        ):
            typer.echo(f"{result}\n")
            faults += [case] if result.violated else []
    if faults:
        typer.echo("leaks more than it claims: " + ", ".join(sorted(set(faults))))
        raise typer.Exit(1)
    typer.echo("no leak found, which proves nothing")
