"""Epsilon of Gaussian releases of samples, by the tightest accountant that applies.

There are two accountants: Rényi DP (`renyi`), and the composition of privacy loss distributions
(`_compose`, as *PLD* in other libraries). Each public function checks its arguments, chooses the
dominating pair and the Rényi curve of its sampling, and returns the smaller of both epsilons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import NeighboringRelation
from dpmesh._validate import integer, one_of
from dpmesh.accounting._arguments import Floats, only_replace_one, open_probability, sampled_rounds
from dpmesh.accounting._compose import composed_epsilon
from dpmesh.accounting._merge import RoundKinds
from dpmesh.accounting._pairs import GAUSSIAN, DominatingPair, FixedSize, Poisson
from dpmesh.accounting._poisson_pairs import PublishedSizeGaussian, ReplacedGaussian
from dpmesh.accounting.renyi import (
    RdpGuarantee,
    best_order,
    rdp_epsilon,
    rdp_fixed_size_gaussian,
    rdp_gaussian,
    rdp_poisson_gaussian,
)

Accountant = Literal["best", "pld", "rdp"]

Curve = Callable[..., Floats]
"""A function of sampling rates, noise ratios, counts and orders that returns a Rényi curve."""


def poisson_gaussian_epsilon(
    *,
    delta: float,
    sampling_rate: npt.ArrayLike,
    noise_to_sensitivity: npt.ArrayLike,
    neighboring_relation: NeighboringRelation,
    count: npt.ArrayLike = 1,
    accountant: Accountant = "best",
) -> float:
    """Return the epsilon of composed Gaussian releases of Poisson samples, as in DP-SGD.

    In each round every unit is in the sample with probability `sampling_rate`, independently. The
    sample and its size must stay secret: the noisy sum must not be divided by the size. If the size
    is published, use `published_size_gaussian_epsilon`. Every `accountant` gives an upper bound.

    Parameters
    ----------
    delta
        In (0, 1).
    sampling_rate
        In (0, 1]: a number, or one for each round.
    noise_to_sensitivity
        Standard deviation over the L2 sensitivity under `neighboring_relation`: a number, or one
        for each round. For units that each add a vector of norm at most C, the sensitivity is C
        under ``"add_remove"`` and 2 C under ``"replace_one"``.
    neighboring_relation
        ``"add_remove"`` or ``"replace_one"``. Under ``"replace_one"`` the vector of each unit must
        be clipped to half the sensitivity.
    count
        Number of repetitions of each round: a number, or one for each round.
    accountant
        ``"pld"``: composition of privacy loss distributions. One round is exact. For a few distinct
        rounds the result is within about 1e-6 of the exact value, for a thousand distinct rounds
        within 2%, and within 1% at very small rates and deltas. Beyond about 1e8 rounds, or at
        noise ratios below 1e-6, it proves little or nothing. ``"rdp"``: the Rényi curve, some
        percent above the exact value, and more at small sampling rates. Under ``"replace_one"``
        it has no amplification by sampling. ``"best"``: the smaller of both.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths of the rounds differ.
    """
    rounds = sampled_rounds(sampling_rate, noise_to_sensitivity, count)
    pair, curve = sampled_pair("poisson", neighboring_relation)
    return sampled_epsilon(delta, pair, curve, rounds, accountant)


def fixed_size_gaussian_epsilon(
    *,
    delta: float,
    sampling_rate: npt.ArrayLike,
    noise_to_sensitivity: npt.ArrayLike,
    neighboring_relation: NeighboringRelation,
    count: npt.ArrayLike = 1,
    accountant: Accountant = "best",
) -> float:
    """Return the epsilon of composed Gaussian releases of samples of fixed size.

    In each round a sample of fixed size is drawn without replacement, and stays secret. The result
    is an upper bound, from the composition of dominating pairs of the rounds (Zhu, Dong and Wang
    2022). It is not known whether data attain this bound. `poisson_gaussian_epsilon` of the same
    rates and noise ratios under add-remove is a lower bound that data attain. The result is 7 to
    20% above it in the settings of docs/privacy/accounting.md.

    Parameters
    ----------
    delta, count, accountant
        As for `poisson_gaussian_epsilon`.
    sampling_rate
        Sample size over population, in (0, 1]: a number, or one for each round.
    noise_to_sensitivity
        Standard deviation over the L2 sensitivity to *replacing* a unit, which is twice the
        clipping norm for a clipped sum: a number, or one for each round.
    neighboring_relation
        Only ``"replace_one"`` is proved.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths of the rounds differ.
    """
    rounds = sampled_rounds(sampling_rate, noise_to_sensitivity, count)
    pair, curve = sampled_pair("fixed_size", neighboring_relation)
    return sampled_epsilon(delta, pair, curve, rounds, accountant)


def published_size_gaussian_epsilon(
    *,
    delta: float,
    sampling_rate: npt.ArrayLike,
    noise_to_sensitivity: npt.ArrayLike,
    population: int,
    count: npt.ArrayLike = 1,
) -> float:
    """Return the epsilon of Gaussian releases of Poisson samples whose size is published.

    The size is published, for example, if the noisy sum is divided by it, or if it is logged. Given
    the size, a unit in the sample takes the place of another unit. So the unit changes the sum by
    up to twice the clipping norm. The size itself reveals a unit, too: without the unit, a sample
    of the whole population is impossible. The relation is add-remove, and the adversary knows all
    other units. Some datasets attain the result.

    Parameters
    ----------
    delta, sampling_rate, count
        As for `poisson_gaussian_epsilon`.
    noise_to_sensitivity
        Standard deviation of the noise on the sum over the *clipping norm*: a number, or one for
        each round.
    population
        Number of units in the larger of two neighbouring datasets, at least 1.

    Returns
    -------
    An upper bound; infinite if samples hold the whole population with a probability above `delta`,
    as at a rate of 1.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths of the rounds differ.
    """
    rate, noise, counts = sampled_rounds(sampling_rate, noise_to_sensitivity, count)
    delta = open_probability("delta", delta)
    pair = PublishedSizeGaussian(population=integer("population", population, at_least=1))
    if np.any((rate == 1) & (counts > 0)):  # the size is that of the data, with or without the unit
        return inf
    return composed_epsilon(delta, RoundKinds(pair, rate, noise, counts))


def sampled_pair(sampling: str, relation: NeighboringRelation) -> tuple[DominatingPair, Curve]:
    """Return the dominating pair of sampled Gaussian releases, and their Rényi curve.

    Parameters
    ----------
    sampling
        ``"poisson"`` or ``"fixed_size"``.
    relation
        The neighbouring relation.

    Raises
    ------
    ValueError
        If the relation is unknown, or not proved for samples of fixed size.
    """
    one_of("neighboring_relation", relation, get_args(NeighboringRelation))
    if sampling == "fixed_size":
        only_replace_one(relation)
        curve = partial(rdp_fixed_size_gaussian, neighboring_relation="replace_one")
        return FixedSize(GAUSSIAN), curve
    if relation == "replace_one":
        return ReplacedGaussian(), unsampled_curve
    return Poisson(GAUSSIAN), partial(rdp_poisson_gaussian, neighboring_relation="add_remove")


def unsampled_curve(
    *,
    sampling_rate: Floats,
    noise_to_sensitivity: Floats,
    count: Floats,
    orders: npt.ArrayLike | None = None,
) -> Floats:
    """Return the Rényi curve without amplification by sampling: an upper bound."""
    del sampling_rate
    return rdp_gaussian(noise_to_sensitivity, count=count, orders=orders)


def curve_epsilon(delta: float, curve: Curve, rounds: tuple[Floats, ...]) -> float:
    """Return the epsilon that a Rényi curve proves at the best of `DEFAULT_ORDERS`.

    `rounds` are the sampling rates, noise ratios and counts of rounds, shape (rounds,) each.
    """
    rate, noise, counts = rounds
    if not np.any(counts):
        return 0.0

    def guarantee(orders: Sequence[float]) -> RdpGuarantee:
        divergences = curve(
            sampling_rate=rate, noise_to_sensitivity=noise, count=counts, orders=orders
        )
        return rdp_epsilon(delta=delta, rdp=divergences, orders=orders)

    return best_order(guarantee).epsilon


def sampled_epsilon(
    delta: float,
    pair: DominatingPair,
    curve: Curve,
    rounds: tuple[Floats, ...],
    accountant: Accountant,
) -> float:
    """Return the epsilon of sampled releases by one accountant, or the smaller of both.

    Parameters
    ----------
    delta
        In (0, 1).
    pair, curve
        Dominating pair and Rényi curve of the sampling.
    rounds
        Sampling rates, noise ratios and counts of rounds, shape (rounds,) each.
    accountant
        As for `poisson_gaussian_epsilon`.
    """
    delta = open_probability("delta", delta)
    one_of("accountant", accountant, get_args(Accountant))
    epsilon = inf
    if accountant != "pld":
        epsilon = curve_epsilon(delta, curve, rounds)
    if accountant != "rdp":
        epsilon = min(epsilon, composed_epsilon(delta, RoundKinds(pair, *rounds)))
    return epsilon
