"""The noise multiplier of clipping algorithms, and what the accountants need of it."""

from __future__ import annotations

from typing import get_args

from dpmesh._privacy_types import NeighboringRelation
from dpmesh._validate import one_of, positive


def noise_to_sensitivity(
    noise_multiplier: float, *, neighboring_relation: NeighboringRelation
) -> float:
    """Convert a noise multiplier into a noise ratio: standard deviation over the L2 sensitivity.

    A sum of clipped vectors changes by at most one clipping norm if a unit is added or removed, and
    by at most two if a unit is replaced. So the result is `noise_multiplier` under
    ``"add_remove"``, and half of it under ``"replace_one"``.

    Parameters
    ----------
    noise_multiplier
        Standard deviation of the noise on the sum over the clipping norm of one unit, as in Opacus,
        Flower and dp-accounting; positive.
    neighboring_relation
        ``"add_remove"`` or ``"replace_one"``.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.accounting.noise_to_sensitivity(2.2, neighboring_relation="replace_one")
    1.1
    """
    one_of("neighboring_relation", neighboring_relation, get_args(NeighboringRelation))
    multiplier = positive("noise_multiplier", noise_multiplier)
    if neighboring_relation == "replace_one":
        return multiplier / 2
    return multiplier
