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

from dpmesh.privacy.accounting.discrete import FINE
from dpmesh.privacy.kinds import GAUSSIANS, kinds_of, scales_of
from dpmesh.privacy.plan import Plan, total_cost

SHARE = 0.01
"""Share of delta for what noise on a grid is short of Gaussian noise."""


def adaptive_cost(plans: Sequence[Plan], delta: float) -> float:
    """Return the epsilon of plans of which each may depend on all releases of the others.

    It may be compared with a budget before each plan is added: the whole then keeps it.

    Parameters
    ----------
    plans
        On the same data, at least one.
    delta
        In (0, 1).

    Returns
    -------
    A little more than if all were fixed beforehand; infinity where no filter is
    proved: for releases of samples, Laplace beside Gaussian noise, and noise on coarse grids.

    Raises
    ------
    ValueError
        As `total_cost`.
    """
    pure = total_cost(plans, 0.0).epsilon
    if isfinite(pure):
        return pure
    # finite at a hundredth of delta, noise on a grid errs by no more than another hundredth
    if not all(map(_is_gaussian, plans)) or not isfinite(total_cost(plans, SHARE * delta).epsilon):
        return inf
    return total_cost(plans, (1 - 2 * SHARE) * delta).epsilon + delta


def _is_gaussian(plan: Plan) -> bool:
    """Whether all releases have Gaussian noise, perhaps on a fine grid, and concern all data."""
    for touching in plan.compositions():
        kinds, _ = kinds_of(touching, np.ones(len(touching), bool), plan.neighboring_relation)
        for kind in kinds:
            fine = kind.mechanism == "gaussian" or scales_of(kind)[0] >= FINE
            if kind.sampling is not None or kind.mechanism not in GAUSSIANS or not fine:
                return False
    return True
