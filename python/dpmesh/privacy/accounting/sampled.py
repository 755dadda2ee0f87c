"""Epsilon of Gaussian releases of samples, by the tightest accountant that applies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, one_of
from dpmesh.privacy.accounting import _loss
from dpmesh.privacy.accounting._arguments import (
    Floats,
    only_add_remove,
    only_replace_one,
    open_probability,
    sampled_rounds,
)
from dpmesh.privacy.accounting.renyi import (
    best_order,
    rdp_epsilon,
    rdp_fixed_size_gaussian,
    rdp_poisson_gaussian,
)
from dpmesh.privacy.types import NeighboringRelation

Accountant = Literal["best", "pld", "rdp"]

MOST_DISTRIBUTIONS = 32
"""With more distinct rounds than this, ``"best"`` skips loss distributions, which take long."""


def poisson_gaussian_epsilon(
    delta: float,
    sampling_rate: npt.ArrayLike,
    noise_multiplier: npt.ArrayLike,
    *,
    neighboring_relation: NeighboringRelation,
    count: npt.ArrayLike = 1,
    accountant: Accountant = "best",
) -> float:
    """Return an epsilon of composed Gaussian releases of Poisson samples.

    Every unit is in each sample with probability `sampling_rate`, independently; the sum is divided
    by nothing that depends on the sample, and the size of the sample is not published.

    Parameters
    ----------
    delta
        In (0, 1).
    sampling_rate
        In (0, 1]: a number, or one for each round.
    noise_multiplier
        Standard deviation over the L2 sensitivity to adding or removing a unit: a number, or one
        for each round.
    neighboring_relation
        Only ``"add_remove"`` is proved.
    count
        How often each round happens: a number, or one for each round.
    accountant
        ``"pld"``: privacy loss distributions, within about 1e-6 of the truth, for `delta` from
        1e-10; infinite where noise is so small that their grid proves nothing, and further above
        the truth where rounds are so many that their rounding, 5e-16 for each, is a sizable part of
        `delta`. ``"rdp"``: the Rényi curve, some percent above, at any delta and for any number of
        distinct rounds. ``"best"``: the smaller of both; only ``"rdp"`` where the other does not
        apply or there are more than 32 distinct rounds.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths of the rounds differ.
    """
    rounds = sampled_rounds(sampling_rate, noise_multiplier, count)
    only_add_remove(neighboring_relation)
    curve = partial(rdp_poisson_gaussian, neighboring_relation=neighboring_relation)
    return _epsilon(delta, curve, _loss.poisson, rounds, accountant)


def fixed_size_gaussian_epsilon(
    delta: float,
    sampling_rate: npt.ArrayLike,
    noise_multiplier: npt.ArrayLike,
    *,
    neighboring_relation: NeighboringRelation,
    count: npt.ArrayLike = 1,
    accountant: Accountant = "best",
) -> float:
    """Return an epsilon of composed Gaussian releases of samples of fixed size.

    The samples are drawn without replacement. The result is an upper bound: the rounds' dominating
    pairs (Zhu, Dong and Wang 2022) are composed, and whether data attain them is not known. The
    same numbers in `poisson_gaussian_epsilon` give a lower bound, which data attain, 10 to 20%
    below.

    Parameters
    ----------
    delta, count, accountant
        As for `poisson_gaussian_epsilon`.
    sampling_rate
        Sample size over population, in (0, 1]: a number, or one for each round.
    noise_multiplier
        Standard deviation over the L2 sensitivity to *replacing* a unit, which is twice the
        clipping norm for a clipped sum: a number, or one for each round.
    neighboring_relation
        Only ``"replace_one"`` is proved.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths of the rounds differ.
    """
    rounds = sampled_rounds(sampling_rate, noise_multiplier, count)
    only_replace_one(neighboring_relation)
    curve = partial(rdp_fixed_size_gaussian, neighboring_relation=neighboring_relation)
    return _epsilon(delta, curve, _loss.fixed_size, rounds, accountant)


def _epsilon(
    delta: float,
    curve: Callable[..., Floats],
    sample: _loss.Sample,
    rounds: tuple[Floats, ...],
    accountant: Accountant,
) -> float:
    rate, multiplier, times = rounds
    delta = open_probability("delta", delta)
    one_of("accountant", accountant, get_args(Accountant))
    if accountant == "pld" and delta < _loss.SMALLEST_DELTA:
        fail("delta", f"at least {_loss.SMALLEST_DELTA:g} for accountant 'pld'", delta)
    used = times > 0
    if not used.any():
        return 0.0
    chosen = accountants(accountant, delta, rate[used], multiplier[used])
    epsilon = inf
    if "rdp" in chosen:
        epsilon = best_order(
            lambda orders: rdp_epsilon(
                delta, curve(rate, multiplier, count=times, orders=orders), orders=orders
            )
        ).epsilon
    if "pld" in chosen:
        releases = _loss.Rounds(_loss.GAUSSIAN, rate, multiplier, times)
        epsilon = min(epsilon, _loss.composed_epsilon(delta, sample, releases))
    return epsilon


def accountants(
    asked: Accountant, delta: float, sampling_rate: Floats, noise_multiplier: Floats
) -> tuple[Accountant, ...]:
    """The accountants whose least epsilon is asked for: ``"best"`` has two for some rounds."""
    if asked != "best":
        return (asked,)
    distinct = len(np.unique(np.column_stack([sampling_rate, noise_multiplier]), axis=0))
    if delta < _loss.SMALLEST_DELTA or distinct > MOST_DISTRIBUTIONS:
        return ("rdp",)
    return ("rdp", "pld")
