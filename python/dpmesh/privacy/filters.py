"""What plans cost that were chosen one after the other, after looking at what others released.

A loss distribution proves what plans cost that were fixed beforehand. Whoever chooses the next plan
after a release, each time so that the whole keeps the budget, may spend more than that: see
``docs/privacy/accounting.md``. What holds is a filter, a sum that no choice moves:

- the epsilon of pure releases;
- mu^2 of Gaussian releases of all data (Smith and Thakurta 2022, "Fully adaptive composition for
  Gaussian differential privacy"), also among plans that are run side by side (Haney et al. 2023,
  "Concurrent composition for interactive differential privacy with adaptive privacy-loss
  parameters").
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

import numpy as np

from dpmesh.privacy.accounting.discrete import largest_epsilon
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.grid import MOST_NUMBERS
from dpmesh.privacy.kinds import GAUSSIANS, kinds_of
from dpmesh.privacy.plan import Plan, total_cost

SHARE = 0.01
"""Share of delta for what noise on a grid is short of Gaussian noise."""


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
    A little more than if all were fixed beforehand; infinity where no filter is
    proved: for releases of samples, Laplace beside Gaussian noise, and noise on coarse grids.

    Raises
    ------
    ValueError
        As `total_cost`.
    """
    pure, delta = total_cost(plans, 0.0).epsilon, budget.delta
    if isfinite(pure):
        return pure
    rows = sum(
        plan.copies * release.mechanism.integer_rows
        for plan in plans
        for touching in plan.compositions()
        for release in touching
    )
    proved = all(map(_is_gaussian, plans))
    if rows and proved:  # the samplers may err by SHARE of delta, at the budget's epsilon
        most = largest_epsilon(delta, SHARE, np.array(float(MOST_NUMBERS * rows)))
        proved = bool(budget.epsilon <= most)
    return total_cost(plans, (1 - 2 * SHARE) * delta).epsilon + delta if proved else inf


def _is_gaussian(plan: Plan) -> bool:
    """Whether all releases have Gaussian noise, perhaps on a fine grid, and concern all data."""
    for touching in plan.compositions():
        kinds, _ = kinds_of(touching, np.ones(len(touching), bool), plan.neighboring_relation)
        for kind in kinds:
            gaussian = kind.mechanism in GAUSSIANS and not kind.moments
            if kind.sampling is not None or not gaussian:
                return False
    return True
