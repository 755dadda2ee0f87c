"""What releases that touch the same data cost together, under adaptive composition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh._ragged import Indices
from dpmesh.privacy import accounting
from dpmesh.privacy.accounting import _loss
from dpmesh.privacy.accounting._arguments import (
    noise_multipliers,
    only_add_remove,
    only_replace_one,
    rates,
)
from dpmesh.privacy.accounting.sampled import MOST_DISTRIBUTIONS, Accountant, accountants
from dpmesh.privacy.parts import Numbers, Parts
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import FixedSizeSampling, PoissonSampling, Sampling
from dpmesh.privacy.shown import rounded_up
from dpmesh.privacy.types import NeighboringRelation

MOST_LOSS_DISTRIBUTIONS = 8
"""With more distinct parts, some share one cost: that of the most releases of each kind in any."""

Names = npt.NDArray[np.object_]
Chosen = npt.NDArray[np.bool_]

SAMPLED = {
    None: "all data",
    PoissonSampling: "Poisson samples",
    FixedSizeSampling: "samples of fixed size",
}

PROOFS = {"pld": "privacy loss distribution", "rdp": "Rényi curve"}
PURE = "pure differential privacy of Laplace noise"
NEEDS_DELTA = "none: Gaussian noise needs a delta above 0, such as 1e-5"


class Cost(NamedTuple):
    """An epsilon, and the argument that proves it."""

    epsilon: float
    accountant: str

    def __str__(self) -> str:
        return f"epsilon = {rounded_up(self.epsilon)} ({self.accountant})"


class _Kind(NamedTuple):
    """What a release costs depends on this alone."""

    mechanism: str
    noise_multiplier: float
    sampling: Sampling | None

    @property
    def rate(self) -> float:
        return 1.0 if self.sampling is None else self.sampling.rate


def _amplified(released: Release | _Kind, relation: NeighboringRelation) -> bool:
    return released.sampling is not None and released.sampling.amplifies_under == relation


class Costs(NamedTuple):
    """The epsilon of each part, and what proves it.

    Attributes
    ----------
    epsilons
        Shape (parts,), as all arrays here.
    unprotected
        Number of releases without noise.
    pure
        Epsilon of Laplace releases by addition.
    amplified
        Number of Laplace releases that sampling amplifies.
    gaussian_accountant
        Names the proof of a part's Gaussian releases; empty if it has none.
    together
        The proof of all of a part's releases in one, where that is best; else empty.
    """

    epsilons: Numbers
    unprotected: Numbers
    pure: Numbers
    amplified: Numbers
    gaussian_accountant: Callable[[int], str]
    together: Names

    def cost(self, part: int) -> Cost:
        """Return the cost of one part."""
        epsilon = float(self.epsilons[part])
        accountant = self.gaussian_accountant(part)
        if self.unprotected[part]:
            return Cost(epsilon, "none: values left without noise")
        if self.together[part]:
            return Cost(epsilon, self.together[part])
        if not accountant and not self.pure[part]:
            return Cost(epsilon, "nothing depends on the data")
        if not self.pure[part] or accountant == NEEDS_DELTA:
            return Cost(epsilon, accountant)
        pure = PURE + (", amplified by sampling" if self.amplified[part] else "")
        return Cost(epsilon, f"{accountant}, plus {pure}" if accountant else pure)


def costs(
    releases: Sequence[Release], parts: Parts, delta: float, relation: NeighboringRelation
) -> Costs:
    """Return the smallest epsilon at `delta` that we can prove for each part of the data.

    Parameters
    ----------
    releases
        All that depend on the data.
    parts
        Which parts of the data they touch.
    delta
        In [0, 1).
    relation
        The neighbouring relation that the sensitivities are for.

    Raises
    ------
    ValueError
        If a release was sampled in a way that is not proved to amplify under this relation.
    """
    if any(isinstance(release.sampling, FixedSizeSampling) for release in releases):
        only_replace_one(relation)  # to add a unit swaps it for another in a sample
    multiplier = np.array([release.noise_multiplier for release in releases], dtype=np.float64)
    laplace = np.array([release.name.endswith("laplace") for release in releases], dtype=bool)
    noisy = multiplier > 0
    noise_multipliers(multiplier[noisy])
    epsilon = np.divide(1, multiplier, out=np.zeros_like(multiplier), where=noisy & laplace)
    sampled = np.array([_amplified(release, relation) for release in releases], dtype=bool)
    rate = np.array([release.sampling.rate if release.sampling else 1.0 for release in releases])
    rates("sampling_rate", rate)
    pure = parts.totals(np.where(sampled, _loss.sampled_loss(rate, epsilon), epsilon))
    amplified = parts.totals((sampled & laplace).astype(np.float64))
    unprotected = parts.totals((~noisy).astype(np.float64))
    gaussian, accountant = _gaussian(releases, noisy & ~laplace, parts, delta, relation)
    apart = pure + gaussian
    together, proofs = _together(releases, noisy, parts, delta, relation)
    proofs[together >= apart] = ""
    epsilons = np.where(unprotected > 0, inf, np.minimum(apart, together))
    return Costs(epsilons, unprotected, pure, amplified, accountant, proofs)


def _gaussian(
    releases: Sequence[Release],
    chosen: Chosen,
    parts: Parts,
    delta: float,
    relation: NeighboringRelation,
) -> tuple[Numbers, Callable[[int], str]]:
    """Return each part's epsilon for its Gaussian releases, and what names its proof."""
    if delta == 0:
        touched = parts.totals(chosen.astype(np.float64)) > 0
        return np.where(touched, inf, 0.0), lambda part: NEEDS_DELTA if touched[part] else ""
    kinds, which = _kinds(releases, chosen)
    if all(kind.sampling is None and kind.mechanism == "gaussian" for kind in kinds):
        squares = np.array([float(kind.noise_multiplier) ** -2 for kind in kinds] + [0.0])
        mu = np.sqrt(parts.totals(squares[which]))
        values, part = np.unique(mu, return_inverse=True)
        return accounting.gdp_epsilon(delta, values)[part], lambda index: _exact_text(mu[index])
    counts = parts.counts(which, len(kinds))
    distinct, part = np.unique(counts, axis=0, return_inverse=True)
    most, like = _shared(distinct)
    found = [_composed(kinds, times, delta, relation, "best") for times in most]
    if len(most) < len(distinct):
        own = [_composed(kinds, times, delta, relation, "rdp") for times in distinct]
        found = [min(cost, found[row]) for cost, row in zip(own, like, strict=True)]
    epsilons = np.array([cost.epsilon for cost in found])[part.reshape(-1)]
    return epsilons, lambda index: found[part.flat[index]].accountant


def _together(
    releases: Sequence[Release],
    noisy: Chosen,
    parts: Parts,
    delta: float,
    relation: NeighboringRelation,
) -> tuple[Numbers, Names]:
    """Return the epsilon of each part by one loss distribution of all its releases, and its name.

    It is computed for parts with Laplace noise and more than one release; elsewhere it is infinite,
    as it is for noise on the integers or too many kinds of releases.
    """
    epsilons, proofs = np.full(len(parts.owners), inf), np.full(len(parts.owners), "", dtype=object)
    laplace = np.array([release.name == "laplace" for release in releases], dtype=bool)
    mixed = parts.totals((noisy & laplace).astype(np.float64)) > 0
    mixed &= parts.totals(noisy.astype(np.float64)) > 1
    if delta < _loss.SMALLEST_DELTA or not mixed.any():
        return epsilons, proofs
    kinds, which = _kinds(releases, noisy)
    if len(kinds) > MOST_DISTRIBUTIONS:
        return epsilons, proofs
    counts = parts.counts(which, len(kinds))[mixed]
    distinct, part = np.unique(counts, axis=0, return_inverse=True)
    most, like = _shared(distinct)
    found = [_composed_together(kinds, times, delta, relation) for times in most]
    part = like[part.reshape(-1)]
    epsilons[mixed] = np.array([cost.epsilon for cost in found])[part]
    proofs[mixed] = np.array([cost.accountant for cost in found], dtype=object)[part]
    return epsilons, proofs


def _kinds(releases: Sequence[Release], chosen: Chosen) -> tuple[list[_Kind], Indices]:
    """Return the kinds of the chosen releases, and each release's kind: -1 for the others."""
    numbers: dict[_Kind, int] = {}
    which = np.full(len(releases), -1)
    for index in np.flatnonzero(chosen).tolist():
        release = releases[index]
        kind = _Kind(release.name, release.noise_multiplier, release.sampling)
        which[index] = numbers.setdefault(kind, len(numbers))
    return list(numbers), which


def _shared(counts: Numbers) -> tuple[Numbers, Indices]:
    """Return a few counts, and for each given one the index of one that is no less.

    Of many, those of the same kinds of releases share one; if these are too many, all do.
    """
    if len(counts) <= MOST_LOSS_DISTRIBUTIONS:
        return counts, np.arange(len(counts))
    kinds, which = np.unique(counts > 0, axis=0, return_inverse=True)
    which = which.reshape(-1)
    if len(kinds) > MOST_LOSS_DISTRIBUTIONS:
        which = np.zeros_like(which)
    return np.array([counts[which == row].max(axis=0) for row in np.unique(which)]), which


def _exact_text(mu: float) -> str:
    return f"Gaussian differential privacy, exact, mu = {rounded_up(mu)}" if mu > 0 else ""


def _composed(
    kinds: Sequence[_Kind],
    times: Numbers,
    delta: float,
    relation: NeighboringRelation,
    accountant: Accountant,
) -> Cost:
    """Return the cost of Gaussian releases, with a count for each kind."""
    used = [kind for kind, count in zip(kinds, times, strict=True) if count > 0]
    if not used:
        return Cost(0.0, "")
    sampled = _sampled(used)
    rate = np.array([1.0 if sampled is None else kind.rate for kind in used])
    multiplier = np.array([kind.noise_multiplier for kind in used])
    count = times[times > 0]
    what = SAMPLED[sampled]
    if sampled is PoissonSampling:
        only_add_remove(relation)
    if any(kind.mechanism == "discrete_gaussian" for kind in used):
        epsilon = accounting.discrete_gaussian_epsilon(
            delta, multiplier, neighboring_relation=relation, sampling_rate=rate, count=count
        )
        return Cost(epsilon, f"Rényi curve of discrete Gaussian noise on {what}")
    if sampled is None:
        mu = accounting.gdp_mu(multiplier, count=count)
        return Cost(accounting.gdp_epsilon(delta, mu), _exact_text(mu))
    epsilon_of = (
        accounting.poisson_gaussian_epsilon
        if sampled is PoissonSampling
        else accounting.fixed_size_gaussian_epsilon
    )
    epsilon_by = partial(
        epsilon_of, delta, rate, multiplier, neighboring_relation=relation, count=count
    )
    chosen = accountants(accountant, delta, rate, multiplier)
    costs = (Cost(epsilon_by(accountant=name), f"{PROOFS[name]} of {what}") for name in chosen)
    return min(costs, key=lambda cost: cost.epsilon)


def _composed_together(
    kinds: Sequence[_Kind], times: Numbers, delta: float, relation: NeighboringRelation
) -> Cost:
    """Return the cost of Laplace and Gaussian releases, with a count for each kind."""
    count = {kind: number for kind, number in zip(kinds, times, strict=True) if number > 0}
    by_law = [
        (law, [kind for kind in count if kind.mechanism == name])
        for name, law in (("laplace", _loss.LAPLACE), ("gaussian", _loss.GAUSSIAN))
    ]
    if sum(len(of_law) for _, of_law in by_law) < len(count):
        return Cost(inf, "")
    sampled = _sampled(kind for kind in count if _amplified(kind, relation))
    rounds = [
        _loss.Rounds(
            law,
            np.array([kind.rate if _amplified(kind, relation) else 1.0 for kind in of_law]),
            np.array([kind.noise_multiplier for kind in of_law]),
            np.array([count[kind] for kind in of_law]),
        )
        for law, of_law in by_law
        if of_law
    ]
    sample = _loss.poisson if sampled is PoissonSampling else _loss.fixed_size
    what = "Laplace noise" if len(rounds) == 1 else "Laplace and Gaussian noise"
    return Cost(
        _loss.composed_epsilon(delta, sample, *rounds),
        f"privacy loss distribution of {what} on {SAMPLED[sampled]}",
    )


def _sampled(kinds: Iterable[_Kind]) -> type[Sampling] | None:
    """Return how releases are sampled; if in two ways, neither amplifies."""
    samplings = {type(kind.sampling) for kind in kinds if kind.sampling is not None}
    return samplings.pop() if len(samplings) == 1 else None
