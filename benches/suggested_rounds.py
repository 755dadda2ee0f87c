"""The rule by which the tables of secure sums choose their number of rounds."""

from __future__ import annotations

from dpmesh.privacy.accounting import analytic_gaussian_noise_multiplier
from dpmesh.privacy.types import NeighboringRelation

FEWEST_ROUNDS, MOST_ROUNDS = 5, 200
_DISTANCE = 10.0


def suggested_rounds(
    *,
    epsilon: float,
    delta: float,
    records: int,
    step_size: float,
    curvature_trace: float,
    neighboring_relation: NeighboringRelation = "replace_one",
) -> int:
    """Return how many rounds to train a linear model, from public numbers alone.

    It minimizes ``R^2 / (2 tau) + trace tau^2 / (2 mu^2 N'^2)`` over the distance ``tau = rounds *
    step_size``: what is left of the way to a model at distance R = 10, plus what noise adds; N' is
    the number of records, or half of it for replace-one. Since noise in flat directions costs
    nothing, the trace of the Hessian of a record's loss counts, not the dimension: ``1 - 1 /
    classes`` for softmax on records of norm 1.
    """
    mu = 1 / analytic_gaussian_noise_multiplier(target_epsilon=epsilon, target_delta=delta)
    effective = records / 2 if neighboring_relation == "replace_one" else records
    tau: float = (_DISTANCE**2 * mu**2 * effective**2 / (2 * curvature_trace)) ** (1 / 3)
    return min(max(round(tau / step_size), FEWEST_ROUNDS), MOST_ROUNDS)
