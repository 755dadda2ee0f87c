"""``dpmesh privacy``: noise, epsilon and rounds of each algorithm, from public numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

import dpmesh as dm
from dpmesh._validate import fail, integer, positive
from dpmesh.cli._errors import telling
from dpmesh.cli.answers import MOST_ROUNDS, Answer, answered
from dpmesh.cli.mechanisms import gaussian, laplace, sgd
from dpmesh.cli.views import Seen, with_view

if TYPE_CHECKING:
    from dpmesh.privacy.accounting.papers.quantized import Mode
    from dpmesh.privacy.budget import Planned
    from dpmesh.privacy.views import View

privacy = typer.Typer(
    no_args_is_help=True,
    help="Compute noise, epsilon or rounds from public numbers, without data. For an algorithm "
    "whose cost grows with its rounds, give two of --epsilon, --noise and --rounds. Repeat "
    "--epsilon or --noise for a table.",
)

for mechanism in (gaussian, laplace, sgd):
    privacy.command()(telling(mechanism))

MOST_ROUNDS_OF_A_VIEW = 1000

AlgorithmT = TypeVar("AlgorithmT", bound="Planned")

Epsilon = Annotated[float | None, typer.Option(help="Compute what keeps it.")]
Noise = Annotated[float | None, typer.Option(help="Compute its cost: scale over sensitivity.")]
Rounds = Annotated[int | None, typer.Option(help="Total number of rounds.")]
Delta = Annotated[float, typer.Option(help="Keep it below 1 / units.")]
Models = Annotated[int, typer.Option(help="Number of classes if one-vs-all.")]
BatchSize = Annotated[int, typer.Option(help="Size of a mini-batch, b.")]
StepSize = Annotated[float, typer.Option(help="Largest step, eta.")]
Lipschitz = Annotated[float, typer.Option(help="Largest slope of the loss, L.")]


@privacy.command()
@telling
@answered
def cross_silo(
    sites: Annotated[int, typer.Option(help="Number of sites.")],
    records: Annotated[int, typer.Option(help="Records of all sites.")],
    dim: Annotated[int, typer.Option(help="Number of parameters.")],
    rounds: Annotated[int, typer.Option(help="Total number of rounds.")],
    epsilon: Epsilon = None,
    noise: Noise = None,
    delta: Delta = 1e-5,
    colluding: Annotated[int, typer.Option(help="Sites that may help the server.")] = 1,
    sampling_rate: Annotated[float, typer.Option(help="Share of records in a round.")] = 1.0,
) -> Answer:
    """Distributed SGD by secure sums, for replacing a record of any site.

    Give --epsilon or --noise to get the other.
    """
    _either(epsilon, noise)
    public: dict[str, Any] = {
        "sites": sites,
        "records": records,
        "dim": dim,
        "rounds": rounds,
        "colluding": colluding,
        "sampling_rate": sampling_rate,
    }
    if noise is None:
        budget = positive("epsilon", epsilon or 0.0)
        algorithm = dm.CrossSiloSGD.for_budget(epsilon=budget, delta=delta, **public)
    else:
        algorithm = dm.CrossSiloSGD(noise_multiplier=positive("noise", noise), **public)
    sums = algorithm.secure_sum
    meaning = f"over the sensitivity of the sum; {sums.modulus_bits} bits a number"
    return _answer(algorithm, rounds, delta, algorithm.noise_multiplier, meaning)


@privacy.command()
@telling
@answered
def federated(
    clients: Annotated[int, typer.Option(help="Number of clients, N.")],
    sampling_rate: Annotated[float, typer.Option(help="Expected share in a round, tau.")],
    epsilon: Epsilon = None,
    noise: Noise = None,
    rounds: Rounds = None,
    delta: Delta = 1e-5,
    sampling: Annotated[str, typer.Option(help="poisson or uniform.")] = "poisson",
    clipping_norm: Annotated[float, typer.Option(help="Largest norm of an update, L.")] = 1.0,
) -> Answer:
    """Federated learning, for adding (poisson) or replacing (uniform) a client."""

    def make(multiplier: float) -> dm.FederatedLearning:
        return dm.FederatedLearning(
            clients=clients,
            sampling_rate=sampling_rate,
            clipping_norm=clipping_norm,
            noise_multiplier=multiplier,
            sampling=sampling,  # type: ignore[arg-type]  # checked there
            local_steps=1,
        )

    algorithm, noise, rounds = _solve(make, epsilon, noise, rounds, delta)
    std = dm.privacy.rounded_up(algorithm.mechanism.noise_scale(algorithm.sensitivity(0), dim=1))
    return _answer(algorithm, rounds, delta, noise, f"standard deviation {std} on the sum of moves")


@privacy.command()
@telling
@answered
@with_view
def gradient_descent(
    records: Annotated[int, typer.Option(help="Fewest records of a node.")],
    epsilon: Epsilon = None,
    noise: Noise = None,
    rounds: Rounds = None,
    delta: Delta = 1e-5,
    clipping_norm: Annotated[float, typer.Option(help="Largest gradient, L.")] = 1.0,
    step_size: Annotated[float, typer.Option(help="Step of every round, alpha.")] = 1.0,
    *,
    seen: Seen,
) -> Answer:
    """Gradient descent by gossip, for replacing a record, which every round uses."""

    def make(multiplier: float) -> dm.GradientDescent:
        return dm.GradientDescent(
            records=records,
            noise_multiplier=multiplier,
            step_size=step_size,
            clipping_norm=clipping_norm,
        )

    algorithm, noise, rounds = _solve(make, epsilon, noise, rounds, delta, seen)
    std = dm.privacy.rounded_up(algorithm.mechanism.noise_scale(algorithm.sensitivity(1), dim=1))
    meaning = f"standard deviation {std} of n_t"
    return _answer(algorithm, rounds, delta, noise, meaning, seen)


@privacy.command()
@telling
@answered
@with_view
def online(
    epsilon: Epsilon = None,
    noise: Noise = None,
    delta: Annotated[float, typer.Option(help="0 for Laplace noise.")] = 0.0,
    dim: Annotated[int, typer.Option(help="Number of parameters.")] = 1,
    clipping_norm: Annotated[float, typer.Option(help="Largest gradient, L.")] = 1.0,
    batch_size: Annotated[int, typer.Option(help="Examples of a round, h.")] = 1,
    step_size: Annotated[float, typer.Option(help="First step, alpha_1.")] = 0.5,
    rounds: Annotated[int, typer.Option(help="Number of rounds, for --view.")] = 32,
    *,
    seen: Seen,
) -> Answer:
    """Online learning, for replacing an example, which one round uses: for any round count.

    Give --epsilon or --noise to get the other.
    """
    if seen[0] is not None and delta == 0:
        fail("delta", "one above 0, such as 1e-5, for a view", delta)

    def make(multiplier: float) -> dm.OnlineLearning:
        return dm.OnlineLearning(
            epsilon=_single_epsilon(None, multiplier, delta),
            delta=delta,
            step_size=step_size,
            clipping_norm=clipping_norm,
            batch_size=batch_size,
        )

    if seen[0] is not None:
        algorithm, noise, count = _solve(make, epsilon, noise, rounds, delta, seen)
        std = dm.privacy.rounded_up(algorithm.mechanism.noise_scale(algorithm.sensitivity(1), 1))
        meaning = f"gaussian, standard deviation {std} in the first round"
        return _answer(algorithm, count, delta, noise, meaning, seen)
    algorithm = dm.OnlineLearning(
        epsilon=_single_epsilon(epsilon, noise, delta),
        delta=delta,
        step_size=step_size,
        clipping_norm=clipping_norm,
        batch_size=batch_size,
    )
    mechanism, dim = algorithm.mechanism, integer("dim", dim, at_least=1)
    scale = dm.privacy.rounded_up(mechanism.noise_scale(algorithm.sensitivity(1), dim))
    return _answer(
        algorithm,
        None,
        delta,
        mechanism.noise_multiplier,
        f"{mechanism.distribution}, scale {scale}",
    )


@privacy.command()
@telling
@answered
@with_view
def quantized(
    step_size: Annotated[float, typer.Option(help="Gradient step, alpha.")],
    consensus_step_size: Annotated[float, typer.Option(help="Mixing step, beta.")],
    sample_size: Annotated[int, typer.Option(help="Records a round, gamma.")],
    epsilon: Epsilon = None,
    noise: Annotated[float | None, typer.Option(help="Standard deviation, sigma_0.")] = None,
    rounds: Rounds = None,
    delta: Delta = 1e-5,
    noise_exponent: Annotated[float, typer.Option(help="Noise grows by t^zeta.")] = 0.0,
    clipping_norm: Annotated[float, typer.Option(help="Largest gradient, C / 2.")] = 1.0,
    mode: Annotated[str, typer.Option(help="safe, paper or public_point.")] = "safe",
    smoothness: Annotated[float, typer.Option(help="Smoothness of a loss, L.")] = inf,
    *,
    seen: Seen,
) -> Answer:
    """Quantized gossip, for replacing a record, with the same sizes in all rounds."""
    gossip = dm.QuantizedGossip(
        step_size=step_size,
        consensus_step_size=consensus_step_size,
        sample_size=sample_size,
        noise_std=dm.schedules.PowerLaw(scale=1.0, exponent=noise_exponent),
        clipping_norm=clipping_norm,
        mode=cast("Mode", mode),
        smoothness=smoothness,
    )
    if seen[0] is not None:  # no rounding is proved for a view
        gossip = replace(gossip, compressor=None)

    def make(std: float) -> dm.QuantizedGossip:
        return replace(gossip, noise_std=dm.schedules.PowerLaw(scale=std, exponent=noise_exponent))

    algorithm, noise, rounds = _solve(make, epsilon, noise, rounds, delta, seen)
    meaning = f"standard deviation in round k: x (k + 1)^{noise_exponent:g}"
    return _answer(algorithm, rounds, delta, noise, meaning, seen)


@privacy.command()
@telling
@answered
def without_replacement(
    epsilon: Epsilon = None,
    noise: Noise = None,
    delta: Delta = 1e-5,
    models: Models = 1,
    copies: Annotated[int, typer.Option(help="Most nodes that hold a record.")] = 1,
    batch_size: BatchSize = 50,
    step_size: StepSize = 0.1,
    lipschitz: Lipschitz = 1.0,
) -> Answer:
    """SGD without replacement, for replacing a record, which one step uses: for any round count.

    Give --epsilon or --noise to get the other.
    """
    budget = _single_epsilon(epsilon, noise, delta)
    algorithm = dm.WithoutReplacement(
        epsilon=budget, delta=delta, models=models, batch_size=batch_size, copies=copies
    )
    mechanism = algorithm.mechanism
    over = mechanism.noise_scale(algorithm.sensitivity(0), dim=1)
    std = _noise_of_sgd(over, step_size, lipschitz, batch_size)
    meaning = f"over the sensitivity of all releases; {std}"
    return _answer(algorithm, None, delta, mechanism.noise_multiplier, meaning)


@privacy.command()
@telling
@answered
def with_replacement(
    records: Annotated[int, typer.Option(help="Records of each node.")],
    epsilon: Epsilon = None,
    noise: Noise = None,
    delta: Delta = 1e-5,
    models: Models = 1,
    batch_size: BatchSize = 50,
    visits: Annotated[int, typer.Option(help="Mean uses of a record, v.")] = 5,
    step_size: StepSize = 0.1,
    lipschitz: Lipschitz = 1.0,
) -> Answer:
    """SGD with replacement, for replacing a record, over all rounds of its node.

    Give --epsilon or --noise to get the other.
    """
    _either(epsilon, noise)

    def make(multiplier: float) -> dm.WithReplacement:
        return dm.WithReplacement(
            nodes=1,
            records=records,
            noise_multiplier=multiplier,
            models=models,
            batch_size=batch_size,
            visits=visits,
        )

    turns = make(1.0).turns_of_a_node
    algorithm, noise, rounds = _solve(make, epsilon, noise, turns, delta)
    std = _noise_of_sgd(noise, step_size, lipschitz, batch_size)
    meaning = f"over the sensitivity of one model; {std}"
    return _answer(algorithm, rounds, delta, noise, meaning)


def _noise_of_sgd(over: float, step_size: float, lipschitz: float, batch_size: int) -> str:
    """Describe the noise on a model: `over` times how far one record moves it in a step."""
    moved = 2 * positive("step_size", step_size) * positive("lipschitz", lipschitz) / batch_size
    return f"standard deviation {dm.privacy.rounded_up(over * moved)} of eta N"


def _solve(
    make: Callable[[float], AlgorithmT],
    epsilon: float | None,
    noise: float | None,
    rounds: int | None,
    delta: float,
    seen: Seen = (None, None),
) -> tuple[AlgorithmT, float, int]:
    """Find the one of epsilon, noise and rounds that is missing."""
    view, facts = seen
    given = {"--epsilon": epsilon, "--noise": noise, "--rounds": rounds}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 2:
        fail("options", "two of --epsilon, --noise and --rounds", ", ".join(names) or "none")
    if rounds is None and epsilon is not None and noise is not None:
        algorithm, budget = make(positive("noise", noise)), _budget(epsilon, delta, view)
        most = MOST_ROUNDS if view is None else MOST_ROUNDS_OF_A_VIEW
        rounds = budget.affordable_rounds(algorithm, facts, at_most=most)
        if rounds == 0:
            cost = dm.privacy.rounded_up(algorithm.plan(1).cost(delta).epsilon)
            fail("epsilon", f"at least {cost}, which one round costs", epsilon)
        return algorithm, noise, rounds
    rounds = integer("rounds", rounds or 0, at_least=1)
    if noise is None:
        noise = _budget(epsilon or 0.0, delta, view).calibrate(make, rounds, facts)
    return make(positive("noise", noise)), noise, rounds


def _budget(epsilon: float, delta: float, view: View | None) -> dm.privacy.Budget:
    return dm.privacy.Budget(epsilon, delta=delta, view=view)


def _single_epsilon(epsilon: float | None, noise: float | None, delta: float) -> float:
    """Return the epsilon of a record that affects one release, given it or the noise."""
    _either(epsilon, noise)
    if noise is None:
        return positive("epsilon", epsilon or 0.0)
    mu = 1 / positive("noise", noise)
    return mu if delta == 0 else dm.privacy.accounting.gdp_epsilon(delta=delta, mu=mu)


def _either(epsilon: float | None, noise: float | None) -> None:
    """Fail unless one of the two is given."""
    if (epsilon is None) == (noise is None):
        got = "none" if epsilon is None else "both"
        fail("options", "either --epsilon or --noise", got)


def _answer(
    algorithm: Planned,
    rounds: int | None,
    delta: float,
    noise: float,
    meaning: str,
    seen: Seen = (None, None),
) -> Answer:
    """Return the noise and the report; `rounds` is None if their number does not matter."""
    made: Any = algorithm
    view, facts = seen
    plan = made.plan(rounds or 2) if view is None else made.plan(rounds, facts)
    return Answer(noise, meaning, rounds, dm.privacy.report(plan, delta, view=view))
