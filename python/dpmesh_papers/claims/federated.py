"""The federated paper (DP-Fed-LS): Lemmas 2 and 3, Theorems 1 and 2, and how its tables count.

``tau`` is the fraction of N clients in a round, ``L`` the clipping norm of a client's update,
``nu`` the standard deviation of the noise on the *sum* of updates, ``T`` the number of rounds;
guarantees are user-level, a user being a client. Under uniform subsampling (of fixed size, without
replacement) a client is replaced and the sum moves by ``2 L``, under Poisson subsampling one is
added or removed and it moves by ``L``; the sum must be divided by the public ``tau N``, never by
the number of clients that happened to take part.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Literal, NamedTuple

import numpy as np

from dpmesh._validate import integer, one_of, positive, probability
from dpmesh.accounting._arguments import open_probability
from dpmesh.accounting.papers import NotProved
from dpmesh.accounting.renyi import (
    RdpGuarantee,
    rdp_epsilon,
    rdp_fixed_size_gaussian,
    rdp_poisson_gaussian,
)

Sampling = Literal["uniform", "poisson"]

UNIFORM_ORDERS: tuple[float, ...] = tuple(range(2, 257))
POISSON_ORDERS: tuple[float, ...] = (*(1 + k / 10 for k in range(1, 100)), *range(12, 64))
"""The orders that reproduce the paper's Tables 3 and 6."""

_LAMBDAS = 4096
"""Points of the first search for lambda."""


class SubsamplingLemma(NamedTuple):
    """Lemma 2 or 3: the Rényi DP of Gaussian noise on the sum over a random subset.

    With the sensitivity 1, the variance nu^2 and the sampling rate tau it is at most ``factor tau^2
    alpha / nu^2`` at the order alpha, if nu^2 is at least `least_variance` and ``alpha - 1 <= (2/3)
    nu^2 ln(1 / (tau alpha (1 + nu^2)))``.
    """

    factor: float
    least_variance: float
    sensitivity: float
    """Of the sum, in units of L."""


LEMMAS: dict[Sampling, SubsamplingLemma] = {
    "uniform": SubsamplingLemma(factor=3.5, least_variance=2 / 3, sensitivity=2.0),
    "poisson": SubsamplingLemma(factor=2.0, least_variance=5 / 9, sensitivity=1.0),
}
"""Lemmas 2 and 3, by the subsampling of clients."""


class TheoremNoise(NamedTuple):
    """The noise of Theorem 1 or 2."""

    noise_std: float
    """nu, on the sum of the clipped updates."""
    lambda_: float
    """lambda, the share of epsilon that Rényi DP takes; its conversion takes the rest."""
    order: float
    """alpha, at which the theorem applies its lemma."""


def theorem_noise(
    *,
    target_epsilon: float,
    target_delta: float,
    sampling_rate: float,
    rounds: int,
    clipping_norm: float,
    sampling: Sampling,
) -> TheoremNoise:
    """Return the noise of Theorem 1 (uniform) or Theorem 2 (Poisson), at the best lambda.

    ``nu = (tau L / epsilon) sqrt(c T / lambda (ln(1/delta) / (1 - lambda) + epsilon))`` with c = 14
    or 2, (4) and (5), for the lambda in (0, 1) of smallest nu at which both side conditions hold:
    those of the lemma, for the variance nu^2 over the squared sensitivity of the sum and the order
    ``alpha = ln(1/delta) / ((1 - lambda) epsilon) + 1``. The paper searches a grid; here the end of
    the feasible interval is found exactly. Without the conditions the formula is not private: at
    epsilon 6 it can cost 12.5.

    Parameters
    ----------
    target_epsilon, target_delta
        The budget of all rounds together.
    sampling_rate
        tau, in (0, 1].
    rounds
        T.
    clipping_norm
        L.
    sampling
        ``"uniform"`` (replace-one) or ``"poisson"`` (add-remove).

    Raises
    ------
    NotProved
        If no lambda satisfies both conditions: the budget is too small for the theorem.
    ValueError
        If an argument is out of its range.
    """
    target_epsilon = positive("target_epsilon", target_epsilon)
    target_delta = open_probability("target_delta", target_delta)
    sampling_rate = probability("sampling_rate", sampling_rate, zero=False)
    rounds = integer("rounds", rounds, at_least=1)
    clipping_norm = positive("clipping_norm", clipping_norm)
    one_of("sampling", sampling, ("uniform", "poisson"))

    log_inverse_delta = log(1 / target_delta)
    lemma = LEMMAS[sampling]

    def order_at(lambda_: float) -> float:
        return log_inverse_delta / ((1 - lambda_) * target_epsilon) + 1

    def variance_at(lambda_: float) -> float:
        """Return nu^2 over the squared sensitivity of the sum."""
        budget_factor = log_inverse_delta / (1 - lambda_) + target_epsilon
        composed = lemma.factor * rounds / lambda_ * budget_factor
        return composed * (sampling_rate / target_epsilon) ** 2

    def satisfies_conditions(lambda_: float) -> bool:
        variance = variance_at(lambda_)
        order = order_at(lambda_)
        if variance < lemma.least_variance:
            return False
        return order - 1 <= _bound_on_order(sampling_rate, variance, order)

    lambdas = np.linspace(0, 1, _LAMBDAS + 1)[1:-1]
    feasible = filter(satisfies_conditions, map(float, lambdas))
    best = min(feasible, key=variance_at, default=None)
    if best is None:
        raise NotProved(
            f"target_epsilon: no lambda in (0, 1) satisfies both conditions of the theorem at"
            f" {target_epsilon:.4g}, with {rounds} rounds, sampling rate {sampling_rate:.4g} and"
            f" delta {target_delta:.4g}"
        )
    # the smallest noise lies beside it: at the end of the feasible interval, or inside
    for step in 1 / _LAMBDAS / 2.0 ** np.arange(1, 46):
        inside = [x for x in (best - step, best + step) if 0 < x < 1]
        best = min([best, *filter(satisfies_conditions, inside)], key=variance_at)
    noise = sqrt(variance_at(best)) * lemma.sensitivity * clipping_norm
    return TheoremNoise(noise, best, order_at(best))


def table_epsilon(
    target_delta: float,
    *,
    sampling_rate: float,
    noise_to_sensitivity: float,
    rounds: int,
    sampling: Sampling,
) -> RdpGuarantee:
    """Return epsilon as in the paper's Tables 3 and 6, by the moments accountants of its time.

    Uniform: Theorem 27 of Wang, Balle and Kasiviswanathan at integer orders. Poisson: the exact
    Rényi curve at `POISSON_ORDERS`. Both by Mironov's conversion. Valid, and 1.3 to 2.6 times the
    tight epsilon.

    Parameters
    ----------
    target_delta
        In (0, 1); the paper takes ``N**-1.1``.
    sampling_rate
        tau, in (0, 1].
    noise_to_sensitivity
        z: the standard deviation on the sum over ``2 L`` (uniform) or over ``L`` (Poisson).
    rounds
        T.
    sampling
        ``"uniform"`` (replace-one) or ``"poisson"`` (add-remove).

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    integer("rounds", rounds, at_least=1)
    if one_of("sampling", sampling, ("uniform", "poisson")) == "uniform":
        orders = UNIFORM_ORDERS
        curve = rdp_fixed_size_gaussian(
            sampling_rate=sampling_rate,
            noise_to_sensitivity=noise_to_sensitivity,
            neighboring_relation="replace_one",
            bound="theorem_27",
            count=rounds,
            orders=orders,
        )
    else:
        orders = POISSON_ORDERS
        curve = rdp_poisson_gaussian(
            sampling_rate=sampling_rate,
            noise_to_sensitivity=noise_to_sensitivity,
            neighboring_relation="add_remove",
            count=rounds,
            orders=orders,
        )
    return rdp_epsilon(delta=target_delta, rdp=curve, orders=orders, conversion="mironov")


def _bound_on_order(sampling_rate: float, variance: float, order: float) -> float:
    """Return the lemmas' bound on ``alpha - 1``: ``2/3 nu^2 ln(1 / (tau alpha (1 + nu^2)))``."""
    return 2 / 3 * variance * -log(sampling_rate * order * (1 + variance))
