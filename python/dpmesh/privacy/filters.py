"""Epsilon of plans that were chosen in turn, each after looking at earlier releases.

A loss distribution proves what plans cost that were fixed beforehand. Whoever chooses the next plan
after a release, each time so that the whole keeps the budget, may spend more than that. What holds
is a filter, a sum that no choice moves. Two filters share delta, and either may allow all plans:

- mu^2 of Gaussian noise on all data (Smith and Thakurta 2022, "Fully adaptive composition for
  Gaussian differential privacy");
- the epsilons of plans of any kind, each at a delta of its own (Rogers et al. 2016, "Privacy
  odometers and filters").

Plans may run side by side (Haney et al. 2023, "Concurrent composition for interactive differential
privacy with adaptive privacy-loss parameters"). Proofs: ``docs/privacy/accounting.md``.
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

SHARE = 0.01
"""Share of delta for what noise on a grid is short of Gaussian noise."""
APART = 0.1
"""Share of delta for plans whose epsilons are added up."""
LEAST = 1e-3
"""Share of the budget's epsilon that a plan costs at least where epsilons are added up."""


def adaptive_cost(plans: Sequence[Plan], budget: Budget) -> float:
    """Return the epsilon of plans of which each may depend on all releases of the others.

    It is compared with the budget before each plan is added: the whole then keeps it.

    Parameters
    ----------
    plans
        On the same data, at least one.
    budget
        Its delta is that of the cost; what it held before is not counted.

    Returns
    -------
    A little more than if all were fixed beforehand, for Gaussian noise on all data; else the sum of
    the plans' epsilons, each at a share of a tenth of delta.

    Raises
    ------
    ValueError
        As `total_cost`.
    """
    pure = total_cost(plans, 0.0).epsilon
    return min(pure, _by_mu(plans, budget), sum(_apart(plan, budget) for plan in plans))


def _apart(plan: Plan, budget: Budget) -> float:
    """Return the epsilon of one plan at its own delta, which is in proportion to it.

    Plans whose epsilons add up to the budget's have at most `APART` of delta together.
    """
    if not plan.touching:
        return 0.0
    delta = APART * budget.delta
    least = max(plan.cost(delta).epsilon, LEAST * budget.epsilon)
    if not isfinite(least):
        return inf
    share_of_delta = delta * min(1.0, least / budget.epsilon)
    return max(plan.cost(share_of_delta).epsilon, least)


def _by_mu(plans: Sequence[Plan], budget: Budget) -> float:
    """Return the epsilon of Gaussian noise of the sum of mu^2; infinity if there is another.

    Samplers may err by `SHARE` of delta, at the budget's epsilon.
    """
    touching = [(plan, releases) for plan in plans for releases in plan.compositions()]
    if not all(_is_gaussian(releases, plan) for plan, releases in touching):
        return inf
    numbers = float(sum(plan.copies * sum(map(_drawn, releases)) for plan, releases in touching))
    if numbers and budget.epsilon > largest_epsilon(budget.delta, SHARE, np.array(numbers)):
        return inf
    delta = (1 - APART - 2 * SHARE) * budget.delta
    return total_cost(plans, delta).epsilon + budget.delta


def _is_gaussian(touching: Sequence[Release], plan: Plan) -> bool:
    """Return True if all releases have Gaussian noise, fine grids included, on all data."""
    kinds, _ = kinds_of(touching, np.ones(len(touching), bool), plan.neighboring_relation)
    return all(release.mechanism.law is not None for release in touching) and all(
        _is_gaussian_sum(kind, plan)
        if kind.secure_sum is not None
        else kind.is_exact and not kind.moments
        for kind in kinds
    )


def _is_gaussian_sum(kind: Kind, plan: Plan) -> bool:
    """Return True if a secure sum counts as one of all data, with noise of many steps."""
    return not kind.is_amplified(plan.neighboring_relation) and kind.scales[0] >= FINE


def _drawn(release: Release) -> int:
    """Return how many numbers of noise on a grid a release rests on."""
    sums = release.mechanism.sums
    if sums is not None:
        return sums.numbers * sums.sites
    return MOST_NUMBERS * release.mechanism.integer_rows
