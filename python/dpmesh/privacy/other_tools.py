"""Epsilon of runs of other tools, from the numbers that their users state.

A noise multiplier is the standard deviation of the noise on a sum over the clipping norm, as in
Opacus, TensorFlow Privacy, jax-privacy, Flower and pfl. Their accountants compare datasets of which
one has one unit more (add-remove); where one unit is replaced, a sum moves by twice the norm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Literal, get_args

from dpmesh._epsilons import rounded_up
from dpmesh._privacy_types import NeighboringRelation, Unit
from dpmesh._validate import fail, integer, non_negative, one_of, positive, probability
from dpmesh.accounting import (
    calibrate_noise,
    gdp_epsilon,
    gdp_mu,
    noise_to_sensitivity,
    poisson_gaussian_epsilon,
)
from dpmesh.noise.mechanisms import Laplace
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.verification import Verification, is_below

__all__ = ["OtherRun", "Tool", "check_claim", "dp_sgd", "fedavg", "gaussian", "laplace"]

Tool = Literal["opacus", "tensorflow-privacy", "jax-privacy"]

POISSON = "assumes Poisson sampling; shuffled batches and cohorts of fixed size are not covered"

UNSAMPLED = "assumes that every release touches all data"


@dataclass(frozen=True, kw_only=True)
class OtherRun:
    """Noisy sums of clipped vectors that another tool released.

    Parameters
    ----------
    name
        Of the procedure, such as ``"dp-sgd"``.
    unit
        Whose vector is clipped.
    releases
        Number of noisy sums, such as steps or rounds.
    sampling_rate
        Probability that a unit is in a sum, in (0, 1].
    distribution
        Of the noise: Gaussian beside vectors clipped in L2 norm, Laplace beside L1 norm.

    Examples
    --------
    >>> from dpmesh.privacy.other_tools import dp_sgd
    >>> run = dp_sgd(records=60000, batch_size=256, epochs=60)
    >>> run.releases
    14100
    >>> round(run.epsilon(1.1, delta=1e-5), 2)
    2.38
    """

    name: str
    unit: Unit
    releases: int
    sampling_rate: float = 1.0
    distribution: Literal["gaussian", "laplace"] = "gaussian"

    def __post_init__(self) -> None:
        integer("releases", self.releases, at_least=1)
        probability("sampling_rate", self.sampling_rate, zero=False)

    @property
    def assumption(self) -> str:
        """The assumption of the epsilon."""
        if self.sampling_rate == 1:
            return UNSAMPLED
        return POISSON

    def epsilon(
        self, noise_multiplier: float, *, delta: float, relation: NeighboringRelation = "add_remove"
    ) -> float:
        """Return the epsilon of all releases.

        Parameters
        ----------
        noise_multiplier
            Standard deviation of Gaussian noise, or scale of Laplace noise, over the clipping norm.
        delta
            In [0, 1); above 0 for Gaussian noise.
        relation
            Neighboring relation.

        Raises
        ------
        ValueError
            If an argument is out of its range.
        """
        positive("noise_multiplier", noise_multiplier)
        one_of("relation", relation, get_args(NeighboringRelation))
        ratio = noise_to_sensitivity(noise_multiplier, neighboring_relation=relation)
        if self.distribution == "laplace":
            return self._laplace_epsilon(ratio, delta, relation)
        probability("delta", delta, zero=False, one=False)
        if self.sampling_rate == 1:
            mu = gdp_mu(ratio, count=self.releases)
            return gdp_epsilon(delta=delta, mu=mu)
        return poisson_gaussian_epsilon(
            delta=delta,
            sampling_rate=self.sampling_rate,
            noise_to_sensitivity=ratio,
            neighboring_relation=relation,
            count=self.releases,
        )

    def calibrated(
        self, epsilon: float, *, delta: float, relation: NeighboringRelation = "add_remove"
    ) -> float:
        """Return the least noise multiplier at which all releases together keep an epsilon.

        Parameters
        ----------
        epsilon, delta
            The budget.
        relation
            Neighbouring relation of the guarantee.

        Raises
        ------
        ValueError
            If an argument is out of its range.
        """
        return calibrate_noise(
            lambda multiplier: self.epsilon(multiplier, delta=delta, relation=relation),
            target_epsilon=positive("epsilon", epsilon),
        )

    def _laplace_epsilon(self, ratio: float, delta: float, relation: NeighboringRelation) -> float:
        mechanism = Laplace(ratio)
        moved = 1 / noise_to_sensitivity(1.0, neighboring_relation=relation)  # clipping norms
        sensitivity = Sensitivity(moved, "l1", "sums of clipped vectors")
        releases = [Release(t, mechanism, sensitivity) for t in range(self.releases)]
        plan = Plan(releases=tuple(releases), neighboring_relation=relation, unit=self.unit)
        return plan.cost(delta).epsilon


def dp_sgd(
    *,
    records: int,
    batch_size: int,
    epochs: int | None = None,
    steps: int | None = None,
    tool: Tool = "opacus",
) -> OtherRun:
    """Return the releases of DP-SGD.

    Parameters
    ----------
    records
        Number of training records.
    batch_size
        Expected number of records in a batch.
    epochs, steps
        Passes over the data, or number of steps: one of them. jax-privacy counts steps alone.
    tool
        Tool whose rounding of steps and sampling rate applies. Opacus has
        ``ceil(records / batch_size)`` steps an epoch, and samples at one over that; TensorFlow
        Privacy has ``ceil(epochs * records / batch_size)`` steps in all, and samples at
        ``batch_size / records``, as jax-privacy does.

    Raises
    ------
    ValueError
        If a number is out of its range, or both or neither of `epochs` and `steps` are given.
    """
    integer("records", records, at_least=1)
    integer("batch_size", batch_size, at_least=1, below=records + 1)
    one_of("tool", tool, get_args(Tool))
    if (epochs is None) == (steps is None):
        got = "none" if epochs is None else "both"
        fail("epochs", "either epochs or steps", got)
    if epochs is not None:
        integer("epochs", epochs, at_least=1)
        if tool == "jax-privacy":
            fail("epochs", "steps in their place, which jax-privacy counts", epochs)
    rate = batch_size / records
    if tool == "opacus":
        rate = 1 / ceil(records / batch_size)
    if steps is None:
        assert epochs is not None
        steps = epochs * ceil(records / batch_size)
        if tool == "tensorflow-privacy":
            steps = ceil(epochs * records / batch_size)
    return OtherRun(name="dp-sgd", unit="record", releases=steps, sampling_rate=rate)


def fedavg(*, clients: int, cohort: int, rounds: int) -> OtherRun:
    """Return the releases of federated averaging with noise at a trusted server.

    Parameters
    ----------
    clients
        Number of clients in the population.
    cohort
        Expected number of clients in a round.
    rounds
        Number of rounds.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """
    integer("clients", clients, at_least=1)
    integer("cohort", cohort, at_least=1, below=clients + 1)
    integer("rounds", rounds, at_least=1)
    rate = cohort / clients
    return OtherRun(name="fedavg", unit="user", releases=rounds, sampling_rate=rate)


def gaussian(*, releases: int = 1) -> OtherRun:
    """Return releases of sums of all data with Gaussian noise."""
    return OtherRun(name="gaussian", unit="record", releases=releases)


def laplace(*, releases: int = 1) -> OtherRun:
    """Return releases of sums of all data with Laplace noise."""
    return OtherRun(name="laplace", unit="record", releases=releases, distribution="laplace")


PROCEDURES: dict[str, Callable[..., OtherRun]] = {
    "dp-sgd": dp_sgd,
    "fedavg": fedavg,
    "gaussian": gaussian,
    "laplace": laplace,
}
"""By the name of their command."""


def check_claim(
    run: OtherRun,
    *,
    claims: float,
    noise_multiplier: float,
    delta: float,
    relation: NeighboringRelation = "add_remove",
) -> Verification:
    """Compare a claimed epsilon of a run with the epsilon that is proved for it.

    Parameters
    ----------
    run
        The releases.
    claims
        The claimed epsilon.
    noise_multiplier, delta, relation
        As for `OtherRun.epsilon`. The result also states the epsilon under the other relation.

    Examples
    --------
    >>> from dpmesh.privacy.other_tools import check_claim, fedavg
    >>> run = fedavg(clients=1000, cohort=20, rounds=100)
    >>> check_claim(run, claims=1.0, noise_multiplier=1.0, delta=1e-5).refuted
    True
    """
    non_negative("claims", claims)
    epsilon = run.epsilon(noise_multiplier, delta=delta, relation=relation)
    is_false = is_below(claims, epsilon)
    word = "WRONG" if is_false else "ok   "
    facts = f"{run.name}: claims epsilon = {rounded_up(claims)}, {_priced(epsilon, delta)}"
    lines = [f"{word} {facts} ({_in_words(relation, run.unit)}; {_apart(claims, epsilon)})"]
    other_relation: NeighboringRelation = (
        "replace_one" if relation == "add_remove" else "add_remove"
    )
    other_epsilon = run.epsilon(noise_multiplier, delta=delta, relation=other_relation)
    lines.append(f"      {_priced(other_epsilon, delta)} ({_in_words(other_relation, run.unit)})")
    lines.append(f"      {run.assumption}")
    return Verification(lines=tuple(lines), refuted=is_false)


def _priced(epsilon: float, delta: float) -> str:
    shown = rounded_up(epsilon) if isfinite(epsilon) else "infinity"
    return f"its noise gives epsilon = {shown} at delta = {rounded_up(delta)}"


def _in_words(relation: NeighboringRelation, unit: Unit) -> str:
    return f"{relation.replace('_', '-')}, one {unit}"


def _apart(claimed: float, epsilon: float) -> str:
    """Return by how much a claim differs from an epsilon."""
    if not isfinite(epsilon) or epsilon == 0:
        if epsilon:
            return "no claim is true"
        return "any claim is true"
    share = abs(claimed - epsilon) / epsilon
    difference = f"{abs(claimed - epsilon):.3g} ({share:.1%})"
    if is_below(claimed, epsilon):
        return f"too small by {difference}"
    return f"larger than needed by {difference}"
