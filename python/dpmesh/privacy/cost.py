"""Joint epsilon of releases of the same data, under adaptive composition.

`Plan.cost` calls `costs`. The releases of a plan touch *parts* of the data (`parts`): batches of
nodes. Each release has a *kind* (`kinds`): all that its epsilon depends on. There are several
proofs of epsilon, and each part gets the smallest:

- Gaussian releases by Gaussian DP or a Rényi curve, plus Laplace releases by the sum of epsilons;
- one privacy loss distribution of all releases;
- for custom mechanisms, the composition by dp-accounting (`custom_noise`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import dpmesh.accounting as accounting
from dpmesh._epsilons import rounded_up
from dpmesh._html import as_html
from dpmesh._privacy_types import NeighboringRelation
from dpmesh._ragged import Flags, Indices
from dpmesh.accounting._arguments import noises_to_sensitivity, rates
from dpmesh.accounting._compose import composed_epsilon
from dpmesh.accounting._merge import RoundKinds
from dpmesh.accounting._pairs import DominatingPair
from dpmesh.accounting.allocation import Allocation, allocated_epsilon
from dpmesh.accounting.discrete import FINE, SHARES_OF_DELTA, largest_epsilon, rounding_slack
from dpmesh.accounting.shares import sum_of_shares_epsilon
from dpmesh.noise.grid import MOST_NUMBERS
from dpmesh.privacy.custom_noise import custom_costs
from dpmesh.privacy.kinds import ALL_DATA, COARSE, Kind, kinds_of, sampled_by, samples_of
from dpmesh.privacy.parts import Numbers, Parts
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import RandomAllocation

MOST_COMPOSITIONS = 32
"""Most loss distributions that are composed, for the parts with the largest epsilon otherwise."""

_MOST_KINDS = 1024
"""Number of kinds in all compositions from which parts that cannot have the largest epsilon are
left out."""

Names = npt.NDArray[np.object_]

PURE = "pure differential privacy of Laplace noise"
NO_PROOF = "none: "
"""Start of an accountant's text where epsilon is infinite; the reason follows."""
WITHOUT_NOISE = f"{NO_PROOF}values left without noise"
SAMPLERS_ERR = "none: what samplers of noise on a grid err exceeds delta at such an epsilon"
NEEDS_DELTA = "none: Gaussian noise needs a delta above 0, such as 1e-5"


class Cost(NamedTuple):
    """An epsilon and its accountant: the result of `Plan.cost` and `total_cost`.

    Attributes
    ----------
    epsilon
        Proved upper bound on epsilon at the requested delta; infinite if nothing is proved.
    accountant
        Method that proves the bound, in words.

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
    """The epsilon of each part of the data, and its accountant. Arrays have the shape (parts,).

    Attributes
    ----------
    epsilons
        Epsilon of all releases that touch a part.
    unprotected
        Number of releases without noise.
    pure
        Sum of the epsilons of Laplace releases, at delta 0.
    amplified
        Number of Laplace releases that sampling amplifies.
    gaussian_accountant
        Function from the index of a part to the name of the accountant of its Gaussian releases;
        an empty text if the part has none.
    together
        Name of the accountant of all releases of a part together, if its epsilon is the smallest;
        else an empty text.
    """

    epsilons: Numbers
    unprotected: Numbers
    pure: Numbers
    amplified: Numbers
    gaussian_accountant: Callable[[int], str]
    together: Names

    def where(self, chosen: Flags, rest: Costs | None) -> Costs:
        """Return costs with these epsilons for the chosen parts, and those in `rest` for others.

        If all parts are chosen, `rest` may be None.
        """
        if rest is None or chosen.all():
            return self

        def accountant(part: int) -> str:
            costs = self if chosen[part] else rest
            return costs.gaussian_accountant(part)

        return Costs(
            epsilons=np.where(chosen, self.epsilons, rest.epsilons),
            unprotected=np.where(chosen, self.unprotected, rest.unprotected),
            pure=np.where(chosen, self.pure, rest.pure),
            amplified=np.where(chosen, self.amplified, rest.amplified),
            gaussian_accountant=accountant,
            together=np.where(chosen, self.together, rest.together),
        )

    def cost(self, part: int) -> Cost:
        """Return the cost of one part."""
        epsilon = float(self.epsilons[part])
        accountant = self.gaussian_accountant(part)
        if self.unprotected[part]:
            return Cost(epsilon, WITHOUT_NOISE)
        if self.together[part]:
            return Cost(epsilon, self.together[part])
        if not accountant and not self.pure[part]:
            return Cost(epsilon, "nothing depends on the data")
        if not self.pure[part] or accountant == NEEDS_DELTA:
            return Cost(epsilon, accountant)
        pure = PURE
        if self.amplified[part]:
            pure += ", amplified by sampling"
        if accountant:
            return Cost(epsilon, f"{accountant}, plus {pure}")
        return Cost(epsilon, pure)


def costs(
    releases: Sequence[Release], parts: Parts, delta: float, relation: NeighboringRelation
) -> Costs:
    """Return the smallest proved epsilon at `delta` for each part of the data.

    Each drawn number of noise on a grid adds `SAMPLER_ERROR` to delta. A plan does not know how
    many numbers a release has, and counts `MOST_NUMBERS` for each row. So a share of delta is
    reserved for these errors; larger shares are tried if a smaller share proves nothing. If no
    share proves a finite epsilon, the sum of the epsilons of Laplace releases remains, which is
    pure DP up to the errors of samplers.

    Parameters
    ----------
    releases
        All releases that depend on the data.
    parts
        The parts of the data that the releases touch.
    delta
        In [0, 1).
    relation
        Neighbouring relation of the sensitivities.

    Raises
    ------
    ValueError
        If amplification by the sampling of a release is not proved under this relation.
    """
    distinct = _distinct(releases)
    for release in distinct.releases:
        if release.sampling is not None:
            release.sampling.require(relation)
    grid_rows = [release.mechanism.integer_rows for release in distinct.releases]
    grid_rows_by_release = np.array(grid_rows, dtype=np.float64)[distinct.place]
    # for each part, an upper bound on the numbers of noise on a grid
    numbers = MOST_NUMBERS * parts.totals(grid_rows_by_release)

    def exact(remaining_delta: float) -> Costs:
        return _costs_of_exact_noise(releases, distinct, parts, remaining_delta, relation)

    on_grid = numbers > 0
    if delta == 0 or not on_grid.any():
        return exact(delta)
    proved = None if on_grid.all() else exact(delta)
    for share in SHARES_OF_DELTA:
        with_rest = exact(delta * (1 - share))
        uses_delta = with_rest.epsilons != with_rest.pure  # pure epsilons need no delta
        slack = np.where(uses_delta, 2 * numbers * rounding_slack(), 0.0)
        epsilons = with_rest.epsilons + slack
        proved = with_rest._replace(epsilons=epsilons).where(on_grid, proved)
        is_too_large = uses_delta & (epsilons > largest_epsilon(delta, share, numbers))
        on_grid = on_grid & is_too_large & np.isfinite(epsilons)  # parts that are not proved yet
        if not on_grid.any():
            return proved
    pure = exact(0.0)
    proofs = np.where(np.isinf(pure.epsilons), SAMPLERS_ERR, pure.together)
    return pure._replace(together=proofs).where(on_grid, proved)


def _costs_of_exact_noise(
    releases: Sequence[Release],
    distinct: _Distinct,
    parts: Parts,
    delta: float,
    relation: NeighboringRelation,
) -> Costs:
    """Return costs as `costs` does, if all noise has its exact distribution.

    There are two proofs, of which the smaller epsilon counts. `separate` adds up the epsilons of
    Laplace releases and one epsilon of all Gaussian releases. `joint` is the epsilon of one loss
    distribution of all releases. Parts with releases of custom mechanisms, which have no law, have
    the epsilon of `custom_costs` instead.
    """
    noises = distinct.releases
    place = distinct.place
    failures = parts.totals(np.array([release.failure for release in noises])[place])
    fails_too_often = (failures > 0) & (failures >= delta)
    delta = max(0.0, delta - float(np.max(failures, initial=0.0)))

    noise_ratio = np.array([release.noise_to_sensitivity for release in noises], dtype=np.float64)
    is_custom = np.array([release.mechanism.law is None for release in noises], dtype=bool)
    is_noisy = (noise_ratio > 0) & ~is_custom
    noises_to_sensitivity(noise_ratio[is_noisy])  # fails if one is out of range
    kinds, kind_of_noise = kinds_of(noises, is_noisy, relation)
    rates("sampling_rate", np.array([kind.rate for kind in kinds] or [1.0]))

    # from here on arrays are by release, shape (releases,)
    kind_numbers = kind_of_noise[place]  # -1 for releases without noise, or with custom noise
    is_custom = is_custom[place]
    is_noisy = is_noisy[place]
    is_laplace = _by_release([kind.noise.is_pure for kind in kinds], kind_numbers, False)
    pure_epsilon = _by_release([kind.pure(relation) for kind in kinds], kind_numbers, 0.0)
    is_amplified = _by_release([kind.is_amplified(relation) for kind in kinds], kind_numbers, False)
    gaussian_kinds = np.where(is_laplace, -1, kind_numbers)

    # from here on arrays are by part of the data, shape (parts,)
    pure = parts.totals(pure_epsilon)
    amplified = parts.totals((is_laplace & is_amplified).astype(np.float64))
    unprotected = parts.totals((~is_noisy & ~is_custom).astype(np.float64))
    gaussian = _gaussian(kinds, gaussian_kinds, parts, delta, relation)
    if any(kind.moments for kind in kinds):
        coarse = [kind.by_moments() for kind in kinds]
        by_moments = _gaussian(coarse, gaussian_kinds, parts, delta, relation)
        gaussian = _cheaper(gaussian, by_moments)
    separate = pure + gaussian.epsilons
    joint, proofs = _together(kinds, kind_numbers, parts, separate, delta, relation)
    proofs[joint >= separate] = ""
    epsilons = np.where(unprotected > 0, inf, np.minimum(separate, joint))

    has_custom = parts.totals(is_custom.astype(np.float64)) > 0
    custom_parts = np.flatnonzero(has_custom & (unprotected == 0))
    touching = (
        [releases[index] for index in parts.releases(part)] for part in custom_parts.tolist()
    )
    costs_of_parts = custom_costs(touching, delta, relation)
    for part, (epsilon, proof) in zip(custom_parts, costs_of_parts, strict=True):
        epsilons[part] = epsilon
        proofs[part] = proof
    epsilons = np.where(fails_too_often, inf, epsilons)
    return Costs(epsilons, unprotected, pure, amplified, gaussian.accountant, proofs)


def _by_release(
    values: Sequence[float], kind_numbers: Indices, without_kind: float
) -> npt.NDArray[Any]:
    """Return the value of each release's kind; `without_kind` for releases of kind -1."""
    with_last = np.array([*values, without_kind])  # which the index -1 selects
    return with_last[kind_numbers]


class _Distinct(NamedTuple):
    """Releases that differ in their noise, and the place there of each release of a plan.

    Attributes
    ----------
    releases
        The first release of each noise, in order.
    place
        Index in `releases` of each release of the plan, shape (releases of the plan,).
    """

    releases: list[Release]
    place: Indices


def _distinct(releases: Sequence[Release]) -> _Distinct:
    """Return the releases that differ in mechanism, sensitivity or sampling, and their places.

    Objects are compared by identity, which is fast; equal objects may appear more than once.
    """
    place_of_noise: dict[tuple[int, int, int], int] = {}
    first_releases: list[Release] = []
    places = []
    for release in releases:
        noise = (id(release.mechanism), id(release.sensitivity), id(release.sampling))
        if noise not in place_of_noise:
            place_of_noise[noise] = len(first_releases)
            first_releases.append(release)
        places.append(place_of_noise[noise])
    return _Distinct(first_releases, np.array(places, np.int64))


class _Proved(NamedTuple):
    """The epsilon of each part, shape (parts,), and the name of a part's proof."""

    epsilons: Numbers
    accountant: Callable[[int], str]


def _cheaper(first: _Proved, second: _Proved) -> _Proved:
    """Return the smaller epsilon of each part."""

    def accountant(part: int) -> str:
        cheaper = second if second.epsilons[part] < first.epsilons[part] else first
        return cheaper.accountant(part)

    return _Proved(np.minimum(first.epsilons, second.epsilons), accountant)


def _gaussian(
    kinds: Sequence[Kind],
    kind_numbers: Indices,
    parts: Parts,
    delta: float,
    relation: NeighboringRelation,
) -> _Proved:
    """Return each part's epsilon for its Gaussian releases alone, and its accountant.

    If no release is sampled and no noise is on a coarse grid, epsilon is that of Gaussian DP, exact
    for real-valued noise. Otherwise it is computed from Rényi curves.

    Parameters
    ----------
    kinds
        Kinds of releases.
    kind_numbers
        The kind of each release; -1 for those that are not Gaussian. Shape (releases,).
    parts, delta, relation
        As for `costs`.
    """
    is_gaussian = kind_numbers >= 0
    if delta == 0:
        is_touched = parts.totals(is_gaussian.astype(np.float64)) > 0
        epsilons = np.where(is_touched, inf, 0.0)
        return _Proved(epsilons, lambda part: NEEDS_DELTA if is_touched[part] else "")
    occurring = [kinds[number] for number in np.unique(kind_numbers[is_gaussian])]
    if all(kind.is_exact for kind in occurring):
        # releases of noise ratios s_1, s_2, .. are together mu-GDP with mu^2 = sum of 1 / s_i^2
        squares = [float(kind.noise_to_sensitivity) ** -2 for kind in kinds]
        mu = np.sqrt(parts.totals(_by_release(squares, kind_numbers, 0.0)))
        distinct_mu, place = np.unique(mu, return_inverse=True)
        epsilons = accounting.gdp_epsilon(delta=delta, mu=distinct_mu)[place]
        discrete_kinds = [kind.noise.is_discrete for kind in kinds]
        is_discrete = _by_release(discrete_kinds, kind_numbers, False)
        has_discrete = parts.totals(is_discrete.astype(np.float64)) > 0
        return _Proved(epsilons, lambda part: _exact_text(mu[part], has_discrete[part]))
    counts = parts.counts(kind_numbers, len(kinds))  # shape (parts, kinds)
    distinct_counts, place = np.unique(counts, axis=0, return_inverse=True)
    place = place.reshape(-1)
    curve_costs = [_by_curve(kinds, times, delta, relation) for times in distinct_counts]
    epsilons = np.array([cost.epsilon for cost in curve_costs])[place]
    return _Proved(epsilons, lambda part: curve_costs[place[part]].accountant)


def _together(
    kinds: Sequence[Kind],
    kind_numbers: Indices,
    parts: Parts,
    separate: Numbers,
    delta: float,
    relation: NeighboringRelation,
) -> tuple[Numbers, Names]:
    """Return the epsilon of each part by one loss distribution of all its releases.

    Epsilon is infinite for parts without such a distribution:

    - if another proof is exact: one release of Laplace noise, or Gaussian noise on all data;
    - if no distribution is known: Gaussian noise on a coarse grid;
    - if there are many parts, and others have a larger epsilon by another proof.

    Parameters
    ----------
    kinds, kind_numbers, parts, delta, relation
        As for `_gaussian`, with Laplace releases among them.
    separate
        Epsilon of each part by another proof, shape (parts,).

    Returns
    -------
    Epsilons and the names of their accountants, shape (parts,) each.
    """
    epsilons = np.full(len(parts.owners), inf)
    proofs = np.full(len(parts.owners), "", dtype=object)
    if delta == 0 or not kinds:
        return epsilons, proofs
    counts = parts.counts(kind_numbers, len(kinds))  # shape (parts, kinds)
    composes = ~_has_exact_proof(kinds, counts)
    has_no_law = np.array([kind.noise.law is None for kind in kinds])
    composes &= counts[:, has_no_law].sum(axis=1) == 0
    if not composes.any():
        return epsilons, proofs
    # parts with the same releases are composed once, as one group
    group_counts, group = np.unique(counts[composes], axis=0, return_inverse=True)
    group = group.reshape(-1)
    group_separate = np.zeros(len(group_counts))
    np.maximum.at(group_separate, group, separate[composes])
    group_costs = [Cost(inf, "")] * len(group_counts)
    largest = 0.0  # epsilon of all groups so far
    composed_kinds = 0
    largest_first = np.argsort(-group_separate, kind="stable").tolist()
    for compositions, number in enumerate(largest_first):
        kinds_of_group = int(np.count_nonzero(group_counts[number]))
        has_most_compositions = compositions >= MOST_COMPOSITIONS
        has_most_kinds = composed_kinds + kinds_of_group > _MOST_KINDS
        cannot_be_largest = group_separate[number] <= largest
        if compositions and (has_most_compositions or (has_most_kinds and cannot_be_largest)):
            break
        cost = _composed(kinds, group_counts[number], delta, relation)
        group_costs[number] = cost
        largest = max(largest, min(cost.epsilon, float(group_separate[number])))
        composed_kinds += kinds_of_group
    epsilons[composes] = np.array([cost.epsilon for cost in group_costs])[group]
    proofs[composes] = np.array([cost.accountant for cost in group_costs], dtype=object)[group]
    return epsilons, proofs


def _has_exact_proof(kinds: Sequence[Kind], counts: Numbers) -> Flags:
    """Return True for parts whose epsilon is exact without a loss distribution, shape (parts,).

    All releases of such a part have Gaussian noise on all data, or the part has a single release,
    with Laplace noise and without random allocation.
    """
    is_exact = np.array([kind.is_exact for kind in kinds])
    is_pure = np.array([kind.noise.is_pure for kind in kinds])
    is_allocated = np.array([kind.is_allocated for kind in kinds])
    all_exact = counts[:, ~is_exact].sum(axis=1) == 0
    all_plain_laplace = counts[:, ~is_pure | is_allocated].sum(axis=1) == 0
    at_most_one_laplace = counts[:, is_pure].sum(axis=1) <= 1
    return np.asarray(all_exact | (all_plain_laplace & at_most_one_laplace))


def _exact_text(mu: float, is_discrete: bool) -> str:
    """Return the name of the exact proof of Gaussian releases; empty if there are none."""
    if mu <= 0:
        return ""
    qualifier = " of noise on a grid" if is_discrete else ", exact"
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
        is_discrete = any(kind.noise.is_discrete for kind in occurring)
        return Cost(accounting.gdp_epsilon(delta=delta, mu=mu), _exact_text(mu, is_discrete))
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
    """Return the epsilon of Gaussian releases, at least one of them by a secure sum.

    The noise of a secure sum is the sum of *shares*, one of each site. Noise that is not of a
    secure sum counts as one share.

    Parameters
    ----------
    kinds
        Kinds of the releases.
    delta
        In (0, 1).
    sampling_rate, count
        Sampling rate of each kind, and its number of releases, shape (kinds,).
    relation
        Neighbouring relation.
    """
    sums = [kind.secure_sum for kind in kinds]
    scales, shares = zip(*(kind.scales for kind in kinds), strict=True)
    return sum_of_shares_epsilon(
        delta=delta,
        noise_to_sensitivity=np.array([kind.noise_to_sensitivity for kind in kinds]),
        scale=scales,
        share=shares,
        sites=[1 if secure_sum is None else secure_sum.sites for secure_sum in sums],
        dim=[1 if secure_sum is None else secure_sum.released_scalars for secure_sum in sums],
        neighboring_relation=relation,
        sampling_rate=sampling_rate,
        count=count.astype(int),
    )


def _composed(
    kinds: Sequence[Kind], times: Numbers, delta: float, relation: NeighboringRelation
) -> Cost:
    """Return the cost of releases by the privacy loss distribution of all of them together.

    `times` has the number of releases of each kind, shape (kinds,).
    """
    releases_of_kind = {
        kind: number for kind, number in zip(kinds, times, strict=True) if number > 0
    }
    kinds_by_pair: dict[DominatingPair, list[Kind]] = {}
    for kind in releases_of_kind:
        kinds_by_pair.setdefault(kind.pair(relation), []).append(kind)
    rounds = [
        RoundKinds(
            pair,
            np.array([kind.rate for kind in members]),
            np.array([kind.noise_to_sensitivity for kind in members]),
            np.array([releases_of_kind[kind] for kind in members]),
        )
        for pair, members in kinds_by_pair.items()
    ]
    names = set().union(*(kind.noise_names for kind in releases_of_kind))
    samples = [kind.sampling.samples for kind in releases_of_kind if kind.sampling is not None]
    subject = " and ".join(dict.fromkeys(samples)) or ALL_DATA
    if names != {"Gaussian"}:
        subject = f"{' and '.join(sorted(names, reverse=True))} noise on {subject}"
    pair, _, noise_ratio, times_of_pair = rounds[0]
    is_one_round = len(rounds) == 1 and times_of_pair.tolist() == [1.0]
    if isinstance(pair, Allocation) and is_one_round:
        epsilon = allocated_epsilon(pair, delta, float(noise_ratio[0]))
        return Cost(epsilon, f"dominating pair of {subject}")
    return Cost(composed_epsilon(delta, *rounds), f"privacy loss distribution of {subject}")
