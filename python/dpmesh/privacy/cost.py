"""Joint epsilon of releases that concern the same data, under adaptive composition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import dpmesh.accounting as accounting
from dpmesh._epsilons import rounded_up
from dpmesh._html import as_html
from dpmesh._privacy_types import NeighboringRelation
from dpmesh._ragged import Indices
from dpmesh.accounting._arguments import noises_to_sensitivity, rates
from dpmesh.accounting._compose import composed_epsilon
from dpmesh.accounting._merge import RoundKinds
from dpmesh.accounting._pairs import DominatingPair
from dpmesh.accounting.allocation import Allocation, allocated_epsilon
from dpmesh.accounting.discrete import FINE, SHARES_OF_DELTA, largest_epsilon, rounding_slack
from dpmesh.accounting.shares import sum_of_shares_epsilon
from dpmesh.noise.grid import MOST_NUMBERS
from dpmesh.privacy.kinds import ALL_DATA, COARSE, Kind, kinds_of, sampled_by, samples_of
from dpmesh.privacy.own_noise import own_costs
from dpmesh.privacy.parts import Numbers, Parts
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import RandomAllocation

MOST_COMPOSITIONS = 32
"""With more distinct parts, those alone that may cost most have a loss distribution."""

_MOST_KINDS = 1024  # in all compositions of parts that cannot cost most

Names = npt.NDArray[np.object_]
Chosen = npt.NDArray[np.bool_]

PURE = "pure differential privacy of Laplace noise"
SAMPLERS_ERR = "none: what samplers of noise on a grid err exceeds delta at such an epsilon"
NEEDS_DELTA = "none: Gaussian noise needs a delta above 0, such as 1e-5"


class Cost(NamedTuple):
    """An epsilon, and the argument that proves it.

    Examples
    --------
    >>> import dpmesh as dm
    >>> cost = dm.GradientDescent(records=100, noise_multiplier=40.0).plan(50).cost(1e-5)
    >>> round(cost.epsilon, 3), cost.accountant
    (1.341, 'Gaussian differential privacy, exact, mu = 0.35')
    """

    epsilon: float
    accountant: str

    def __str__(self) -> str:
        return f"epsilon = {rounded_up(self.epsilon)} ({self.accountant})"

    def _repr_html_(self) -> str:
        return as_html(str(self))


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

    def where(self, chosen: Chosen, rest: Costs | None) -> Costs:
        """Return these costs of the chosen parts, and the others of the rest, if there are any."""
        if rest is None or chosen.all():
            return self
        epsilons, unprotected, pure, amplified, joint = (
            np.where(chosen, getattr(self, name), getattr(rest, name))
            for name in ("epsilons", "unprotected", "pure", "amplified", "together")
        )

        def accountant(part: int) -> str:
            costs = self if chosen[part] else rest
            return costs.gaussian_accountant(part)

        return Costs(epsilons, unprotected, pure, amplified, accountant, joint)

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

    Each number of noise on a grid that a release draws costs `SAMPLER_ERROR`: a release is charged
    for `MOST_NUMBERS`, since its plan does not know how many it has. Where that leaves no proof,
    Laplace noise by addition remains, which is pure up to that error.

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
    distinct = _distinct(releases)
    for release in distinct.releases:
        if release.sampling is not None:
            release.sampling.require(relation)
    rows = [release.mechanism.integer_rows for release in distinct.releases]
    rows_of_releases = np.array(rows, dtype=np.float64)[distinct.place]
    numbers = MOST_NUMBERS * parts.totals(rows_of_releases)

    def exact(remaining_delta: float) -> Costs:
        return _costs_of_exact_noise(releases, distinct, parts, remaining_delta, relation)

    on_grid = numbers > 0
    if delta == 0 or not on_grid.any():
        return exact(delta)
    cost = None if on_grid.all() else exact(delta)
    for share in SHARES_OF_DELTA:
        partial = exact(delta * (1 - share))
        rounded = partial.epsilons != partial.pure
        epsilons = partial.epsilons + np.where(rounded, 2 * numbers * rounding_slack(), 0.0)
        cost = partial._replace(epsilons=epsilons).where(on_grid, cost)
        unproved = rounded & (epsilons > largest_epsilon(delta, share, numbers))
        on_grid = on_grid & unproved & np.isfinite(epsilons)
        if not on_grid.any():
            return cost
    pure = exact(0.0)
    proofs = np.where(np.isinf(pure.epsilons), SAMPLERS_ERR, pure.together)
    return pure._replace(together=proofs).where(on_grid, cost)


def _costs_of_exact_noise(
    releases: Sequence[Release],
    distinct: _Distinct,
    parts: Parts,
    delta: float,
    relation: NeighboringRelation,
) -> Costs:
    """Return what releases cost if all noise has its exact distribution, as `costs`."""
    few, place = distinct
    failures = parts.totals(np.array([release.failure for release in few])[place])
    unsure = (failures > 0) & (failures >= delta)
    delta = max(0.0, delta - float(np.max(failures, initial=0.0)))
    multiplier = np.array([release.noise_to_sensitivity for release in few], dtype=np.float64)
    custom = np.array([release.mechanism.law is None for release in few], dtype=bool)
    noisy = (multiplier > 0) & ~custom
    noises_to_sensitivity(multiplier[noisy])
    kinds, which = kinds_of(few, noisy, relation)
    which = which[place]
    custom = custom[place]
    noisy = noisy[place]
    rates("sampling_rate", np.array([kind.rate for kind in kinds] or [1.0]))
    laplace = np.array([kind.noise.is_pure for kind in kinds] + [False])[which]
    alone = np.array([kind.pure(relation) for kind in kinds] + [0.0])[which]
    sampled = np.array([kind.is_amplified(relation) for kind in kinds] + [False])[which]
    pure = parts.totals(alone)
    amplified = parts.totals((laplace & sampled).astype(np.float64))
    unprotected = parts.totals((~noisy & ~custom).astype(np.float64))
    of_gaussian = np.where(laplace, -1, which)
    gaussian, accountant = _gaussian(kinds, of_gaussian, parts, delta, relation)
    if any(kind.moments for kind in kinds):
        coarse = [kind.by_moments() for kind in kinds]
        of_moments = _gaussian(coarse, of_gaussian, parts, delta, relation)
        gaussian, accountant = _cheaper((gaussian, accountant), of_moments)
    separate = pure + gaussian
    joint, proofs = _together(kinds, which, parts, separate, delta, relation)
    proofs[joint >= separate] = ""
    epsilons = np.where(unprotected > 0, inf, np.minimum(separate, joint))
    of_own = np.flatnonzero((parts.totals(custom.astype(np.float64)) > 0) & (unprotected == 0))
    touching = ([releases[index] for index in parts.releases(part)] for part in of_own.tolist())
    for part, paid in zip(of_own, own_costs(touching, delta, relation), strict=True):
        epsilons[part], proofs[part] = paid
    epsilons = np.where(unsure, inf, epsilons)
    return Costs(epsilons, unprotected, pure, amplified, accountant, proofs)


class _Distinct(NamedTuple):
    """Releases that differ in their noise, and the place there of each release of a plan.

    Attributes
    ----------
    releases
        The first release of each noise, in order.
    place
        Shape (releases of the plan,).
    """

    releases: list[Release]
    place: Indices


def _distinct(releases: Sequence[Release]) -> _Distinct:
    """Return one of the releases that share their noise, in order, and the place of each there."""
    keys = [
        (id(release.mechanism), id(release.sensitivity), id(release.sampling))
        for release in releases
    ]
    places = {key: nth for nth, key in enumerate(dict.fromkeys(keys))}
    first = dict(zip(reversed(keys), reversed(releases), strict=True))
    place = np.array([places[key] for key in keys], np.int64)
    return _Distinct([first[key] for key in places], place)


_Proved: TypeAlias = tuple[Numbers, Callable[[int], str]]
"""The epsilon of each part, and what names its proof."""


def _cheaper(first: _Proved, second: _Proved) -> _Proved:
    """Return the smaller epsilon of each part."""

    def name(part: int) -> str:
        cheaper = second if second[0][part] < first[0][part] else first
        return cheaper[1](part)

    return np.minimum(first[0], second[0]), name


def _gaussian(
    kinds: Sequence[Kind], which: Indices, parts: Parts, delta: float, relation: NeighboringRelation
) -> _Proved:
    """Return each part's epsilon for its Gaussian releases, and what names its proof.

    Exact for noise on all data; by Rényi curves for noise on a grid, or on samples.
    """
    if delta == 0:
        touched = parts.totals((which >= 0).astype(np.float64)) > 0
        return np.where(touched, inf, 0.0), lambda part: NEEDS_DELTA if touched[part] else ""
    occurring = [kinds[index] for index in np.unique(which[which >= 0])]
    if all(kind.is_exact for kind in occurring):
        squares = np.array([float(kind.noise_to_sensitivity) ** -2 for kind in kinds] + [0.0])
        mu = np.sqrt(parts.totals(squares[which]))
        values, part = np.unique(mu, return_inverse=True)
        exact = accounting.gdp_epsilon(delta=delta, mu=values)[part]
        rounded = np.array([kind.noise.of_integers for kind in kinds] + [False])[which]
        of_integers = parts.totals(rounded.astype(np.float64)) > 0
        return exact, lambda index: _exact_text(mu[index], of_integers[index])
    counts = parts.counts(which, len(kinds))
    distinct, part = np.unique(counts, axis=0, return_inverse=True)
    costs_of_counts = [_by_curve(kinds, times, delta, relation) for times in distinct]
    epsilons = np.array([cost.epsilon for cost in costs_of_counts])[part.reshape(-1)]
    return epsilons, lambda index: costs_of_counts[part.flat[index]].accountant


def _together(
    kinds: Sequence[Kind],
    which: Indices,
    parts: Parts,
    separate: Numbers,
    delta: float,
    relation: NeighboringRelation,
) -> tuple[Numbers, Names]:
    """Return the epsilon of each part by one loss distribution of all its releases, and its name.

    The largest is right; parts that cost less are left out where they are many.

    It is infinite where another proof is exact, which needs no loss distribution: for one release
    with Laplace noise, and Gaussian noise on all data; and where none is known, for Gaussian noise
    on the integers.
    """
    epsilons = np.full(len(parts.owners), inf)
    proofs = np.full(len(parts.owners), "", dtype=object)
    if delta == 0 or not kinds:
        return epsilons, proofs
    counts = parts.counts(which, len(kinds))
    plain = np.array([kind.is_exact for kind in kinds])
    unknown = np.array([kind.noise.law is None for kind in kinds])
    pure = np.array([kind.noise.is_pure for kind in kinds])
    allocated = np.array([kind.is_allocated for kind in kinds])
    exact = (counts[:, ~plain].sum(axis=1) == 0) | (
        (counts[:, ~pure | allocated].sum(axis=1) == 0) & (counts[:, pure].sum(axis=1) <= 1)
    )
    composes = ~exact & (counts[:, unknown].sum(axis=1) == 0)
    if not composes.any():
        return epsilons, proofs
    distinct, part = np.unique(counts[composes], axis=0, return_inverse=True)
    part = part.reshape(-1)
    most = np.zeros(len(distinct))
    np.maximum.at(most, part, separate[composes])
    composed_costs = [Cost(inf, "")] * len(distinct)
    largest, composed, spent = 0.0, 0, 0
    for row in np.argsort(-most, kind="stable").tolist():
        size = int(np.count_nonzero(distinct[row]))
        enough = composed >= MOST_COMPOSITIONS or spent + size > _MOST_KINDS
        if composed and enough and (most[row] <= largest or composed >= MOST_COMPOSITIONS):
            break
        composed_costs[row] = _composed(kinds, distinct[row], delta, relation)
        largest = max(largest, min(composed_costs[row].epsilon, float(most[row])))
        composed, spent = composed + 1, spent + size
    epsilons[composes] = np.array([cost.epsilon for cost in composed_costs])[part]
    proofs[composes] = np.array([cost.accountant for cost in composed_costs], dtype=object)[part]
    return epsilons, proofs


def _exact_text(mu: float, of_integers: bool) -> str:
    if mu <= 0:
        return ""
    qualifier = " of noise on a grid" if of_integers else ", exact"
    return f"Gaussian differential privacy{qualifier}, mu = {rounded_up(mu)}"


def _by_curve(
    kinds: Sequence[Kind], times: Numbers, delta: float, relation: NeighboringRelation
) -> Cost:
    """Return the cost of Gaussian releases by a Rényi curve, with a count for each kind."""
    occurring = [kind for kind, count in zip(kinds, times, strict=True) if count > 0]
    if not occurring:
        return Cost(0.0, "")
    sampled = sampled_by(occurring, relation)
    multiplier = np.array([kind.noise_to_sensitivity for kind in occurring])
    count = times[times > 0]
    if sampled is None and not any(kind.secure_sum or kind.noise is COARSE for kind in occurring):
        mu = accounting.gdp_mu(multiplier, count=count)
        of_integers = any(kind.noise.of_integers for kind in occurring)
        return Cost(accounting.gdp_epsilon(delta=delta, mu=mu), _exact_text(mu, of_integers))
    sampling_rate = np.ones(len(occurring))
    if sampled is not None:
        sampling_rate = np.array([kind.rate for kind in occurring])
    samples = samples_of(sampled)
    if any(kind.secure_sum is not None for kind in occurring):
        epsilon = _epsilon_of_sums(occurring, delta, sampling_rate, count, relation)
        is_fine = all(kind.scales[0] >= FINE for kind in occurring)
        accountant = "Gaussian accounting" if is_fine else "Rényi curve"
        return Cost(epsilon, f"{accountant} of sums of discrete Gaussian shares on {samples}")
    if any(kind.noise is COARSE for kind in occurring):
        epsilon = accounting.discrete_gaussian_epsilon(  # fine noise is charged too much
            delta=delta,
            noise_to_sensitivity=multiplier,
            neighboring_relation=relation,
            sampling_rate=sampling_rate,
            count=count,
        )
        return Cost(epsilon, f"Rényi curve of discrete Gaussian noise on {samples}")
    assert sampled is not None
    assert not issubclass(sampled, RandomAllocation)
    epsilon = sampled.curve(
        delta=delta,
        noise_to_sensitivity=multiplier,
        neighboring_relation=relation,
        sampling_rate=sampling_rate,
        count=count,
        accountant="rdp",
    )
    return Cost(epsilon, f"Rényi curve of {samples}")


def _epsilon_of_sums(
    kinds: Sequence[Kind],
    delta: float,
    sampling_rate: Numbers,
    count: Numbers,
    relation: NeighboringRelation,
) -> float:
    """Return the epsilon of Gaussian releases with sums of shares among them."""
    sums = [kind.secure_sum for kind in kinds]
    scales, shares = zip(*(kind.scales for kind in kinds), strict=True)
    return sum_of_shares_epsilon(
        delta=delta,
        noise_to_sensitivity=np.array([kind.noise_to_sensitivity for kind in kinds]),
        scale=scales,
        share=shares,
        sites=[1 if secure_sum is None else secure_sum.sites for secure_sum in sums],
        dim=[1 if secure_sum is None else secure_sum.numbers for secure_sum in sums],
        neighboring_relation=relation,
        sampling_rate=sampling_rate,
        count=count.astype(int),
    )


def _composed(
    kinds: Sequence[Kind], times: Numbers, delta: float, relation: NeighboringRelation
) -> Cost:
    """Return the cost of releases by a loss distribution, with a count for each kind."""
    count = {kind: number for kind, number in zip(kinds, times, strict=True) if number > 0}
    by_pair: dict[DominatingPair, list[Kind]] = {}
    for kind in count:
        by_pair.setdefault(kind.pair(relation), []).append(kind)
    rounds = [
        RoundKinds(
            pair,
            np.array([kind.rate for kind in members]),
            np.array([kind.noise_to_sensitivity for kind in members]),
            np.array([count[kind] for kind in members]),
        )
        for pair, members in by_pair.items()
    ]
    names = set().union(*(kind.noise_names for kind in count))
    samples = [kind.sampling.samples for kind in count if kind.sampling is not None]
    what = " and ".join(dict.fromkeys(samples)) or ALL_DATA
    if names != {"Gaussian"}:
        what = f"{' and '.join(sorted(names, reverse=True))} noise on {what}"
    pair, _, multiplier, number = rounds[0]
    if isinstance(pair, Allocation) and len(rounds) == 1 and number.tolist() == [1.0]:
        epsilon = allocated_epsilon(pair, delta, float(multiplier[0]))
        return Cost(epsilon, f"dominating pair of {what}")
    return Cost(composed_epsilon(delta, *rounds), f"privacy loss distribution of {what}")
