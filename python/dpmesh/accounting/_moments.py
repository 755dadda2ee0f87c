"""Moments of privacy losses at many orders: the epsilon that each proves, and ends of tails."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, log, log2, sqrt
from typing import NamedTuple

import numpy as np

from dpmesh.accounting._arguments import Floats
from dpmesh.accounting._loss import UNIT, LossDistribution
from dpmesh.accounting._merge import Mixtures

_BESIDE = np.array([0.5, 0.6, 0.7, 0.78, 0.86, 0.93, 1.0, 1.08, 1.16, 1.28, 1.45, 1.7])
"""Multiples of the best order that are tried, too."""

_ORDERS_ABOVE_GUESS = 9
"""Doublings of the guessed best order that are tried."""


class Moments(NamedTuple):
    """Cumulants ``K(theta) = log E exp(theta loss)`` of nodes and of the whole composition.

    Attributes
    ----------
    orders
        Values of theta, ascending, shape (orders,).
    nodes
        Cumulants of the nodes, shape (nodes, orders).
    total
        Cumulants of the composition, shape (orders,).
    """

    orders: Floats
    nodes: Floats
    total: Floats

    @classmethod
    def of(
        cls, orders: Floats, nodes: Floats, mixtures: Mixtures, rounding: Floats | float = 0.0
    ) -> Moments:
        """Return the cumulants of nodes, and of the composition of all kinds of rounds.

        `rounding` bounds the errors of the nodes' cumulants at each order.
        """
        # each cumulant is raised by its rounding; the sum is no BLAS product, which wakes threads
        kinds = mixtures.log_mean(nodes) + 1e-12 + rounding
        total = np.sum(mixtures.times[:, None] * kinds, axis=0)
        return cls(orders, nodes, total)

    def nearest(self, epsilon: float) -> int:
        """Return the order, at least 0, by which Chernoff's bound at this loss is smallest."""
        with np.errstate(invalid="ignore"):
            exponents = np.where(self.orders >= 0, self.total - self.orders * epsilon, inf)
        return int(np.nanargmin(exponents))


def moments_of(
    losses: Sequence[LossDistribution], mixtures: Mixtures, delta: float, interval: float
) -> Moments:
    """Return the cumulants at orders on both sides of 0, more of them beside the best."""
    wide = _wide_moments(losses, mixtures, delta, interval)
    epsilons = proved(wide, delta)
    best = int(np.argmin(epsilons))
    if epsilons[best] == inf:
        return wide
    near_orders = wide.orders[best] * _BESIDE
    near_nodes = np.array([_log_moments(loss, near_orders * interval) for loss in losses])
    near = Moments.of(near_orders, near_nodes, mixtures)
    # among those of both searches, the near ones are exact to more digits
    is_outside = (wide.orders < near_orders[0]) | (wide.orders > near_orders[-1])
    orders = np.concatenate([wide.orders[is_outside], near_orders])
    nodes = np.concatenate([wide.nodes[:, is_outside], near_nodes], axis=1)
    total = np.concatenate([wide.total[is_outside], near.total])
    ascending = np.argsort(orders)
    return Moments(orders[ascending], nodes[:, ascending], total[ascending])


def _wide_moments(
    losses: Sequence[LossDistribution], mixtures: Mixtures, delta: float, interval: float
) -> Moments:
    """Return the cumulants at -orders, 0 and orders, each twice the one before.

    For Gaussian losses of mean square s^2 in all, the best order is about ``sqrt(2 log(1 / delta) +
    1) / s``. The least order that can help is ``log(1 / delta)`` over the largest loss: a smaller
    one proves no epsilon below that loss.
    """
    squares = []
    for loss in losses:
        indices = np.arange(loss.first, loss.last + 1.0)
        squares.append(float(np.sum(loss.masses * np.square(indices))))
    total_square = float(np.sum(mixtures.times * mixtures.mean(np.array(squares))))
    root_mean_square = interval * sqrt(total_square)
    guess = sqrt(2 * log(1 / delta) + 1) / max(root_mean_square, 1e-300)
    largest_loss = interval * max(1, *(loss.last for loss in losses))
    halvings = max(6, ceil(log2(guess * largest_loss / log(1 / delta))) + 3)
    powers = np.arange(halvings + _ORDERS_ABOVE_GUESS)
    orders = np.asarray(guess * 2.0 ** (powers - halvings))
    errors = 8 * UNIT * 2.0**powers  # of powers by squaring
    return Moments.of(
        np.concatenate([-orders[::-1], [0.0], orders]),
        np.array([_log_moments_of_powers(loss, orders * interval) for loss in losses]),
        mixtures,
        np.concatenate([errors[::-1], [0.0], errors]),
    )


def _log_moments(loss: LossDistribution, orders: Floats) -> Floats:
    """Return ``log E exp(order x)`` at each order, for the index x of the loss on its grid.

    The largest index is taken out of the exponential, so that nothing overflows.
    """
    x = np.arange(loss.first - loss.last, 1.0)  # less the largest index
    with np.errstate(under="ignore", divide="ignore"):
        means = [np.sum(loss.masses * np.exp(order * x)) for order in orders]
        logs: Floats = np.log(means) + orders * loss.last
    return logs


def _log_moments_of_powers(loss: LossDistribution, orders: Floats) -> Floats:
    """Return ``log E exp(order x)`` at -orders, 0 and orders, each twice the one before.

    As the orders double, the exponentials are squared in place of computed anew.
    """
    x = np.arange(loss.masses.size, dtype=np.float64)
    middle = orders.size
    logs = np.zeros(2 * orders.size + 1)
    logs[middle] = np.log(np.sum(loss.masses))
    rising = np.exp(orders[0] * (x - x[-1]))
    falling = np.exp(-orders[0] * x)
    with np.errstate(divide="ignore", under="ignore"):
        for index, order in enumerate(orders):
            upper_mean = np.sum(loss.masses * rising)
            lower_mean = np.sum(loss.masses * falling)
            logs[middle + 1 + index] = np.log(upper_mean) + order * loss.last
            logs[middle - 1 - index] = np.log(lower_mean) - order * loss.first
            rising *= rising
            falling *= falling
    return logs


def proved(moments: Moments, delta: float) -> Floats:
    """Return the epsilon that each order proves; infinite for those that are not positive.

    By the conversion of Canonne, Kamath and Steinke 2020, Proposition 12, at order alpha - 1.
    """
    theta = moments.orders
    cumulant = moments.total
    with np.errstate(invalid="ignore", divide="ignore"):
        numerator = cumulant - log(delta) - np.log1p(theta)
        epsilons = numerator / theta - np.log1p(1 / theta)
    is_valid = (theta > 0) & np.isfinite(epsilons)
    return np.where(is_valid, epsilons, inf)
