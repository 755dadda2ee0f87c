"""The privacy of a whole run: its releases, and what they cost together.

A plan is made from public numbers, before a run. The ledger that a run keeps is a plan too, made of
the releases that happened; the two must be equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import hypot, inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpmesh._validate import probability
from dpmesh.privacy import accounting
from dpmesh.privacy.events import NeighboringRelation, Release, Unit
from dpmesh.privacy.sampling import PoissonSampling

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class Cost(NamedTuple):
    """An epsilon, and the argument that proves it."""

    epsilon: float
    accountant: str


@dataclass(frozen=True)
class Plan:
    """All releases of a run, with what is needed to say what they cost.

    Parameters
    ----------
    releases
        In the order in which they happen.
    neighboring_relation
        Which datasets count as neighbours: ``"replace_one"`` or ``"add_remove"``.
    unit
        What is replaced, added or removed: a record, or all records of a user.
    assumptions
        What the guarantee rests on and this package cannot check.
    """

    releases: tuple[Release, ...]
    neighboring_relation: NeighboringRelation
    unit: Unit
    assumptions: tuple[str, ...] = ()

    def with_releases(self, releases: Iterable[Release]) -> Plan:
        """Return the same kind of plan with other releases: the ledger of a run."""
        return replace(self, releases=tuple(releases))

    def compositions(self) -> list[tuple[Release, ...]]:
        """Return the sequences of releases that one unit's data can touch, each distinct one once.

        Batches are disjoint, and given the earlier releases no later one depends on a batch again:
        so a unit pays for the releases of its own batch and for those that depend on all of the
        data (adaptive parallel composition).
        """
        common: list[Release] = []
        by_batch: dict[int, list[Release]] = defaultdict(list)
        for release in self.releases:
            if release.sensitivity.bound == 0:
                continue
            (common if release.batch is None else by_batch[release.batch]).append(release)
        distinct = {}
        for own in by_batch.values() or [[]]:
            touched = (*common, *own)
            costs = tuple((r.mechanism, r.noise_multiplier, r.sampling) for r in touched)
            distinct[costs] = touched
        return list(distinct.values())

    def cost(self, delta: float = 0.0) -> Cost:
        """Return the smallest epsilon that we can prove for the whole plan at this delta.

        Parameters
        ----------
        delta
            In [0, 1). At 0, Gaussian releases have infinite epsilon.

        Raises
        ------
        ValueError
            If `delta` is outside [0, 1), or a release was sampled in a way that is not proved to
            amplify under this neighbouring relation.
        """
        probability("delta", delta, one=False)
        return max(self._cost(releases, delta) for releases in self.compositions())

    def event(self, delta: float = 1e-9) -> DpEvent:
        """Return the composition that costs most at `delta`, as one event of dp-accounting."""
        import dp_accounting

        worst = max(self.compositions(), key=lambda r: self._cost(r, delta).epsilon)
        return dp_accounting.ComposedDpEvent([release.event for release in worst])

    def _cost(self, releases: tuple[Release, ...], delta: float) -> Cost:
        """Return the cost of releases that touch the same data, each chosen given the earlier."""
        if not releases:
            return Cost(0.0, "nothing depends on the data")
        if any(release.noise_multiplier == 0 for release in releases):
            return Cost(inf, "none: values left without noise")
        laplace = [release for release in releases if release.mechanism == "laplace"]
        gaussian = [release for release in releases if release.mechanism == "gaussian"]
        pure = sum(1 / release.noise_multiplier for release in laplace)
        if not gaussian:
            return Cost(pure, "pure differential privacy of Laplace noise")
        cost = _gaussian_cost(gaussian, delta, self.neighboring_relation)
        if not laplace:
            return cost
        added = f"{cost.accountant}, plus pure differential privacy of Laplace noise"
        return Cost(pure + cost.epsilon, added)


def _gaussian_cost(releases: list[Release], delta: float, relation: NeighboringRelation) -> Cost:
    """Return the cost of Gaussian releases: of samples, or of all of the data."""
    multipliers = [release.noise_multiplier for release in releases]
    kinds = {type(release.sampling) for release in releases if release.sampling is not None}
    if len(kinds) != 1:  # of all the data; or samples of both kinds, which together amplify nothing
        mu = hypot(*(1 / multiplier for multiplier in multipliers))
        epsilon = accounting.gdp_epsilon(delta, mu) if delta > 0 else inf
        return Cost(epsilon, f"Gaussian differential privacy, exact, mu = {mu:.6g}")
    rates = [1.0 if r.sampling is None else r.sampling.rate for r in releases]
    rounds, counts = np.unique(np.column_stack([rates, multipliers]), axis=0, return_counts=True)
    if kinds == {PoissonSampling}:
        compose, kind = accounting.poisson_gaussian_epsilon, "Poisson samples"
    else:
        compose, kind = accounting.fixed_size_gaussian_epsilon, "samples of fixed size"
    epsilon = inf
    if delta > 0:
        rate, multiplier = rounds.T
        epsilon = compose(delta, rate, multiplier, neighboring_relation=relation, count=counts)
    return Cost(epsilon, f"privacy loss distribution or Rényi curve of {kind}")
