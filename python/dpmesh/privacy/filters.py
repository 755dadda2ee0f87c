"""Privacy filters: epsilon of plans that were chosen adaptively, after earlier releases.

A privacy loss distribution bounds the epsilon of plans that were fixed beforehand. It does not
cover plans that are chosen after a release, each time such that all plans together keep the budget.
A privacy filter does: it lets plans run as long as a sum over them stays below a bound, and its
proof allows any adaptive choice of the plans. Two filters share delta, and a run may continue if
either allows it. They bound:

- the sum of mu^2, for Gaussian noise on all data (Smith and Thakurta 2022, "Fully adaptive
  composition for Gaussian differential privacy");
- the sum of the epsilons of plans of any kind, each at a separate delta (Rogers et al. 2016,
  "Privacy odometers and filters").

Plans may run side by side (Haney et al. 2023, "Concurrent composition for interactive differential
privacy with adaptive privacy-loss parameters"). Proofs: ``docs/privacy/accounting_proofs.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

import numpy as np

from dpmesh.accounting.discrete import FINE, largest_epsilon
from dpmesh.noise.grid import MOST_NUMBERS
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.kinds import Kind, kinds_of
from dpmesh.privacy.plan import Plan, total_cost
from dpmesh.privacy.releases import Release

GRID_SHARE = 0.01
"""Share of delta for the difference between noise on a grid and Gaussian noise."""
SUM_SHARE = 0.1
"""Share of delta for the filter that adds up epsilons."""
MIN_EPSILON_SHARE = 1e-3
"""Least epsilon of a plan in the sum of epsilons, as a share of the budget's epsilon."""


def adaptive_cost(plans: Sequence[Plan], budget: Budget) -> float:
    """Return an epsilon of plans that may each depend on all releases of the other plans.

    If this epsilon is compared with the budget before each plan is added, all plans together keep
    the budget.

    Parameters
    ----------
    plans
        Plans on the same data, at least one.
    budget
        Budget with the delta of the result. Plans in its `spent` count only if `plans` has them.

    Returns
    -------
    The smallest bound of: the epsilon at delta 0, the filter for Gaussian noise, and the sum of
    epsilons. For Gaussian noise on all data, it is slightly above the epsilon of plans that are
    fixed beforehand.

    Raises
    ------
    ValueError
        As `total_cost`.
    """
    pure = total_cost(plans, 0.0).epsilon
    sum_of_epsilons = sum(_epsilon_in_sum(plan, budget) for plan in plans)
    return min(pure, _by_mu(plans, budget), sum_of_epsilons)


def _epsilon_in_sum(plan: Plan, budget: Budget) -> float:
    """Return the epsilon of one plan for the filter that adds up epsilons.

    Its delta is proportional to a smaller epsilon, that at ``SUM_SHARE * budget.delta``. So plans
    whose epsilons add up to at most the budget's use at most `SUM_SHARE` of delta together.
    """
    if not plan.touching:
        return 0.0
    sum_delta = SUM_SHARE * budget.delta
    smallest = max(plan.cost(sum_delta).epsilon, MIN_EPSILON_SHARE * budget.epsilon)
    if not isfinite(smallest):
        return inf
    plan_delta = sum_delta * min(1.0, smallest / budget.epsilon)
    return max(plan.cost(plan_delta).epsilon, smallest)


def _by_mu(plans: Sequence[Plan], budget: Budget) -> float:
    """Return the epsilon by the sum of mu^2; infinity if some noise is not Gaussian on all data.

    Errors of samplers of noise on a grid may use `GRID_SHARE` of delta, at the budget's epsilon.
    """
    grid_numbers = 0
    for plan in plans:
        for releases in plan.compositions():
            if not _is_gaussian(releases, plan):
                return inf
            grid_numbers += plan.copies * sum(map(_grid_numbers, releases))
    if grid_numbers:
        drawn = np.array(float(grid_numbers))
        if budget.epsilon > largest_epsilon(budget.delta, GRID_SHARE, drawn):
            return inf
    delta = (1 - SUM_SHARE - 2 * GRID_SHARE) * budget.delta
    return total_cost(plans, delta).epsilon + budget.delta


def _is_gaussian(releases: Sequence[Release], plan: Plan) -> bool:
    """Return True if all releases have Gaussian noise, fine grids included, on all data."""
    kinds, _ = kinds_of(releases, np.ones(len(releases), bool), plan.neighboring_relation)
    if any(release.mechanism.law is None for release in releases):
        return False
    return all(_is_gaussian_kind(kind, plan) for kind in kinds)


def _is_gaussian_kind(kind: Kind, plan: Plan) -> bool:
    """Return True if a kind of release counts as Gaussian noise on all data.

    The noise of a secure sum must have a scale of at least `FINE` steps of the grid, and no
    amplification by sampling. Other noise on a grid must be so fine that the proof by a Gaussian is
    the best one: coarser noise has `Kind.moments`, from which Rényi DP may prove a smaller epsilon.
    """
    if kind.secure_sum is None:
        return kind.is_exact and not kind.moments
    return not kind.is_amplified(plan.neighboring_relation) and kind.scales[0] >= FINE


def _grid_numbers(release: Release) -> int:
    """Return an upper bound on the numbers of noise on a grid that a release draws."""
    sums = release.mechanism.sums
    if sums is not None:
        return sums.released_scalars * sums.sites
    return MOST_NUMBERS * release.mechanism.integer_rows
