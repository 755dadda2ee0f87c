"""Epsilon of runs of Opacus, TensorFlow Privacy, JAX Privacy and Flower, in their terms.

The same commands, such as ``dp-sgd``, are in ``dpmesh privacy``, which computes epsilon or noise,
and in ``dpmesh verify``, which checks a claimed epsilon.
"""

from __future__ import annotations

import json as json_format
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

import dpmesh.cli._options as options
from dpmesh._validate import fail
from dpmesh.cli._errors import StrictCommand, SuggestingGroup, reporting_errors

if TYPE_CHECKING:
    from dpmesh._privacy_types import NeighboringRelation
    from dpmesh.privacy.other_tools import OtherRun

_NOISE = "Standard deviation of the noise on the sum over the clipping norm."
_SCALE = "Scale of the noise on the sum over the clipping norm (L1)."
_CLAIMS = "Epsilon to check: exit code 1 if it is too small."
_TOOL = "Tool whose rounding of steps and sampling rate applies."
_STEPS = "Number of steps, in place of --epochs."

Noise = Annotated[
    float | None, typer.Option("--noise-multiplier", help=_NOISE, rich_help_panel=options.CLAIM)
]
Scale = Annotated[
    float | None, typer.Option("--noise-multiplier", help=_SCALE, rich_help_panel=options.CLAIM)
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        help="Privacy budget: compute the noise multiplier that keeps it.",
        rich_help_panel=options.CLAIM,
    ),
]
Claims = Annotated[float | None, typer.Option(help=_CLAIMS, rich_help_panel=options.CLAIM)]
Delta = Annotated[
    float,
    typer.Option(
        help="Delta of the guarantee; keep it below 1 / units.", rich_help_panel=options.CLAIM
    ),
]
Relation: TypeAlias = Annotated[
    Literal["add-remove", "replace-one"],
    typer.Option(help="Neighboring relation of the claim.", rich_help_panel=options.CLAIM),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=options.OUTPUT)]
Releases = Annotated[
    int,
    typer.Option(
        min=1, help="Number of releases that touch all data.", rich_help_panel=options.ALGORITHM
    ),
]


def dp_sgd(
    context: typer.Context,
    records: Annotated[
        int, typer.Option(help="Number of training records.", rich_help_panel=options.ALGORITHM)
    ],
    batch_size: Annotated[
        int,
        typer.Option(
            help="Expected number of records in a batch.", rich_help_panel=options.ALGORITHM
        ),
    ],
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the data.", rich_help_panel=options.ALGORITHM)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help=_STEPS, rich_help_panel=options.ALGORITHM)
    ] = None,
    noise_multiplier: Noise = None,
    epsilon: Epsilon = None,
    claims: Claims = None,
    delta: Delta = 1e-5,
    relation: Relation = "add-remove",
    tool: Annotated[
        Literal["opacus", "tensorflow-privacy", "jax-privacy"],
        typer.Option(help=_TOOL, rich_help_panel=options.ALGORITHM),
    ] = "opacus",
    json: Json = False,
) -> None:
    """Compute or check the epsilon of DP-SGD with Poisson-sampled batches, for one record."""
    from dpmesh.privacy import other_tools

    run = other_tools.dp_sgd(
        records=records, batch_size=batch_size, epochs=epochs, steps=steps, tool=tool
    )
    _print_answer(context, run, noise_multiplier, epsilon, claims, delta, relation, json=json)


def fedavg(
    context: typer.Context,
    clients: Annotated[
        int,
        typer.Option(
            help="Number of clients in the population.", rich_help_panel=options.ALGORITHM
        ),
    ],
    cohort: Annotated[
        int,
        typer.Option(
            help="Expected number of clients in a round.", rich_help_panel=options.ALGORITHM
        ),
    ],
    rounds: Annotated[
        int, typer.Option(help="Number of rounds.", rich_help_panel=options.ALGORITHM)
    ],
    noise_multiplier: Noise = None,
    epsilon: Epsilon = None,
    claims: Claims = None,
    delta: Delta = 1e-5,
    relation: Relation = "add-remove",
    json: Json = False,
) -> None:
    """Compute or check the user-level epsilon of federated averaging with a trusted server."""
    from dpmesh.privacy import other_tools

    run = other_tools.fedavg(clients=clients, cohort=cohort, rounds=rounds)
    _print_answer(context, run, noise_multiplier, epsilon, claims, delta, relation, json=json)


def gaussian(
    context: typer.Context,
    noise_multiplier: Noise = None,
    releases: Releases = 1,
    epsilon: Epsilon = None,
    claims: Claims = None,
    delta: Delta = 1e-5,
    relation: Relation = "add-remove",
    json: Json = False,
) -> None:
    """Compute or check the epsilon of Gaussian noise on sums of clipped vectors."""
    from dpmesh.privacy import other_tools

    run = other_tools.gaussian(releases=releases)
    _print_answer(context, run, noise_multiplier, epsilon, claims, delta, relation, json=json)


def laplace(
    context: typer.Context,
    noise_multiplier: Scale = None,
    releases: Releases = 1,
    epsilon: Epsilon = None,
    claims: Claims = None,
    delta: Delta = 0.0,
    relation: Relation = "add-remove",
    json: Json = False,
) -> None:
    """Compute or check the epsilon of Laplace noise on sums of clipped vectors."""
    from dpmesh.privacy import other_tools

    run = other_tools.laplace(releases=releases)
    _print_answer(context, run, noise_multiplier, epsilon, claims, delta, relation, json=json)


COMMANDS: dict[str, Callable[..., None]] = {
    "dp-sgd": dp_sgd,
    "fedavg": fedavg,
    "gaussian": gaussian,
    "laplace": laplace,
}
"""Commands of ``dpmesh privacy`` and of ``dpmesh verify``, by name."""


def command_named(name: str) -> Any:
    """Return the click command of a name in `COMMANDS`."""
    application = typer.Typer(cls=SuggestingGroup, add_completion=False)
    application.command(name, cls=StrictCommand)(reporting_errors(COMMANDS[name]))
    return typer.main.get_command(application)


def _print_answer(
    context: typer.Context,
    run: OtherRun,
    noise_multiplier: float | None,
    epsilon: float | None,
    claims: float | None,
    delta: float,
    relation: Literal["add-remove", "replace-one"],
    *,
    json: bool,
) -> None:
    """Print what a command computed: epsilon and noise multiplier, or the verification of a claim.

    Parameters
    ----------
    context
        Context of the command; its parent is ``dpmesh privacy`` or ``dpmesh verify``.
    run
        The run of another tool.
    noise_multiplier, epsilon
        Exactly one is stated; the other one is None and is computed.
    claims
        Claimed epsilon to verify; None to verify nothing.
    delta, relation
        Delta and neighboring relation of the guarantee.
    json
        True to print JSON.
    """
    from dpmesh.privacy.other_tools import check_claim

    neighboring_relation: NeighboringRelation = "replace_one"
    if relation == "add-remove":
        neighboring_relation = "add_remove"
    if (noise_multiplier is None) == (epsilon is None):
        got = "none" if epsilon is None else "both"
        fail("options", "either --noise-multiplier or --epsilon", got)
    is_verification = context.parent is not None and context.parent.info_name == "verify"
    if is_verification and (claims is None or noise_multiplier is None):
        fail("--claims", "the epsilon that is claimed, beside --noise-multiplier", "none")
    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = run.calibrated(epsilon, delta=delta, relation=neighboring_relation)
    if claims is None:
        _print_epsilon(run, noise_multiplier, delta, neighboring_relation, json=json)
        return
    verification = check_claim(
        run,
        claims=claims,
        noise_multiplier=noise_multiplier,
        delta=delta,
        relation=neighboring_relation,
    )
    if json:
        content = {"lines": verification.lines, "refuted": verification.refuted}
        typer.echo(json_format.dumps(content))
    else:
        typer.echo(str(verification))
    if verification.refuted:
        raise typer.Exit(1)


def _print_epsilon(
    run: OtherRun,
    noise_multiplier: float,
    delta: float,
    relation: NeighboringRelation,
    *,
    json: bool,
) -> None:
    """Print the epsilon of a run under both relations."""
    from dpmesh._epsilons import NEIGHBOURS, rounded_up

    other_relation: NeighboringRelation = "add_remove"
    if relation == "add_remove":
        other_relation = "replace_one"
    epsilons = {}
    for neighboring_relation in (relation, other_relation):
        epsilons[neighboring_relation] = run.epsilon(
            noise_multiplier, delta=delta, relation=neighboring_relation
        )
    if json:
        content = {
            "procedure": run.name,
            "unit": run.unit,
            "releases": run.releases,
            "sampling_rate": run.sampling_rate,
            "noise_multiplier": noise_multiplier,
            "delta": delta,
            "relation": relation,
            "epsilon": epsilons[relation],
            "epsilon_by_relation": epsilons,
            "assumption": run.assumption,
        }
        typer.echo(json_format.dumps(content))
        return
    ratio = "scale" if run.distribution == "laplace" else "standard deviation"
    meaning = f"{ratio} of the noise on a sum over the clipping norm"
    other_epsilon = rounded_up(epsilons[other_relation])
    lines = [
        f"privacy     epsilon = {rounded_up(epsilons[relation])}, delta = {rounded_up(delta)}",
        f"neighbours  {NEIGHBOURS[relation].format(unit=run.unit)}",
        f"unit        one {run.unit}",
        f"noise       {rounded_up(noise_multiplier, 8)} ({meaning})",
        f"releases    {run.releases}, sampling rate {run.sampling_rate:.6g}",
        f"beside it   epsilon = {other_epsilon} under {other_relation.replace('_', '-')}",
        f"assumption  {run.assumption.removeprefix('assumes ')}",
    ]
    typer.echo("\n".join(lines))
