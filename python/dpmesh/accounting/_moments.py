"""Cumulants of privacy losses at many orders, and the epsilon that each order proves.

The composer (`_compose`) calls `moments_of` once for each grid and direction. It uses the cumulants
for a first epsilon, to choose and normalise tilts, and for Chernoff's bounds on tails.

- A *node* is a sampling rate and a noise ratio with a loss distribution. A *kind* of round is a
  mixture of nodes (`_merge`).
- The *order* theta is the Rényi order alpha minus 1; it may be negative.
- The *cumulant* ``K(theta) = log E exp(theta loss)`` is theta times the Rényi divergence of order
  theta + 1. Cumulants of a composition add up over its rounds.
- A loss on a grid is an integer *index* times `interval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, log, log2, sqrt
from typing import NamedTuple

import numpy as np

from dpmesh.accounting._arguments import Floats
from dpmesh.accounting._loss import UNIT, LossDistribution
from dpmesh.accounting._merge import Mixtures

_NEAR_FACTORS = np.array([0.5, 0.6, 0.7, 0.78, 0.86, 0.93, 1.0, 1.08, 1.16, 1.28, 1.45, 1.7])
"""Multiples of the best order of the wide search that the near search evaluates, ascending."""

_DOUBLINGS_ABOVE_GUESS = 9
"""The wide search has orders from the guessed best order up to ``2**8`` times the guess."""

_FEWEST_HALVINGS = 6
"""The wide search has orders down to ``2**-6`` times the guess, or further."""

_CUMULANT_ROUNDING = 1e-12
"""Bound of the rounding of a cumulant of one kind of round."""

_OPERATIONS_OF_SQUARING = 8
"""Units of rounding by which ``x**n`` from repeated squaring may be off, over n."""


class Moments(NamedTuple):
    """Cumulants ``K(theta) = log E exp(theta loss)`` of nodes and of the whole composition.

    Attributes
    ----------
    orders
        Values of theta, ascending, shape (orders,).
    nodes
        Cumulants of the nodes, shape (nodes, orders).
    total
        Cumulants of the composition, upper bounds, shape (orders,).
    """

    orders: Floats
    nodes: Floats
    total: Floats

    @classmethod
    def composed(
        cls, orders: Floats, nodes: Floats, mixtures: Mixtures, rounding: Floats | float = 0.0
    ) -> Moments:
        """Return the cumulants of nodes, and of the composition of all rounds.

        Parameters
        ----------
        orders
            Values of theta, ascending, shape (orders,).
        nodes
            Cumulants of the nodes, shape (nodes, orders).
        mixtures
            Kinds of rounds as mixtures of the nodes.
        rounding
            Bound of the error of the nodes' cumulants at each order.
        """
        kinds = mixtures.log_mean(nodes) + _CUMULANT_ROUNDING + rounding  # shape (kinds, orders)
        # no BLAS product, which would wake threads
        total = np.sum(mixtures.times[:, None] * kinds, axis=0)
        return cls(orders, nodes, total)

    def chernoff_order(self, loss: float) -> int:
        """Return the index of the order whose Chernoff bound on larger losses is smallest.

        The bound is ``P(sum of losses >= loss) <= exp(K(theta) - theta loss)``, for theta of at
        least 0.
        """
        with np.errstate(invalid="ignore"):
            exponents = np.where(self.orders >= 0, self.total - self.orders * loss, inf)
        return int(np.nanargmin(exponents))


def moments_of(
    losses: Sequence[LossDistribution], mixtures: Mixtures, delta: float, interval: float
) -> Moments:
    """Return cumulants at negative and positive orders, densest near the best order at `delta`.

    A wide search over powers of 2 finds about the best order, and a near search refines it.

    Parameters
    ----------
    losses
        Loss distribution of each node.
    mixtures
        Kinds of rounds as mixtures of the nodes.
    delta
        In (0, 1).
    interval
        Interval of the grid of losses.
    """
    wide = _wide_moments(losses, mixtures, delta, interval)
    epsilons = epsilon_by_order(wide, delta)
    best = int(np.argmin(epsilons))
    if epsilons[best] == inf:
        return wide
    near_orders = wide.orders[best] * _NEAR_FACTORS
    near_nodes = np.array([_log_moments(loss, near_orders * interval) for loss in losses])
    near = Moments.composed(near_orders, near_nodes, mixtures)
    # between the near orders, cumulants of the near search replace the less exact wide ones
    is_outside = (wide.orders < near_orders[0]) | (wide.orders > near_orders[-1])
    orders = np.concatenate([wide.orders[is_outside], near_orders])
    nodes = np.concatenate([wide.nodes[:, is_outside], near_nodes], axis=1)
    total = np.concatenate([wide.total[is_outside], near.total])
    ascending = np.argsort(orders)
    return Moments(orders[ascending], nodes[:, ascending], total[ascending])


def _wide_moments(
    losses: Sequence[LossDistribution], mixtures: Mixtures, delta: float, interval: float
) -> Moments:
    """Return the cumulants at 0, and at positive and negative orders in powers of 2.

    Let s be the root of the sum of all rounds' mean squared losses. For Gaussian losses the best
    order is about ``sqrt(2 log(1 / delta) + 1) / s``. The smallest order that can help is
    ``log(1 / delta)`` over the largest loss: a smaller order proves no epsilon below that loss.
    """
    squares = []
    for loss in losses:
        indices = np.arange(loss.first, loss.last + 1.0)
        squares.append(float(np.sum(loss.masses * np.square(indices))))
    total_square = float(np.sum(mixtures.times * mixtures.mean(np.array(squares))))
    root_of_squares = interval * sqrt(total_square)
    guess = sqrt(2 * log(1 / delta) + 1) / max(root_of_squares, 1e-300)
    largest_loss = interval * max(1, *(loss.last for loss in losses))
    guess_over_smallest = guess * largest_loss / log(1 / delta)
    halvings = max(_FEWEST_HALVINGS, ceil(log2(guess_over_smallest)) + 3)
    powers = np.arange(halvings + _DOUBLINGS_ABOVE_GUESS)
    orders = np.asarray(guess * 2.0 ** (powers - halvings))
    rounding = _OPERATIONS_OF_SQUARING * UNIT * 2.0**powers
    return Moments.composed(
        np.concatenate([-orders[::-1], [0.0], orders]),
        np.array([_log_moments_by_squaring(loss, orders * interval) for loss in losses]),
        mixtures,
        np.concatenate([rounding[::-1], [0.0], rounding]),
    )


def _log_moments(loss: LossDistribution, orders: Floats) -> Floats:
    """Return ``log E exp(order index)`` of a loss's index on its grid, shape (orders,).

    The largest index is factored out, so that no exponential overflows.
    """
    below_largest = np.arange(loss.first - loss.last, 1.0)  # index minus the largest index
    with np.errstate(under="ignore", divide="ignore"):
        means = [np.sum(loss.masses * np.exp(order * below_largest)) for order in orders]
        logs: Floats = np.log(means) + orders * loss.last
    return logs


def _log_moments_by_squaring(loss: LossDistribution, orders: Floats) -> Floats:
    """Return ``log E exp(order index)`` at ``-orders[::-1]``, 0 and `orders`, in this sequence.

    Each of the positive `orders` is twice the order before. So the exponentials are squared from
    one order to the next, which is faster than a new exponential.
    """
    offsets = np.arange(loss.masses.size, dtype=np.float64)  # index minus the smallest index
    middle = orders.size
    logs = np.zeros(2 * orders.size + 1)
    logs[middle] = np.log(np.sum(loss.masses))
    # exponentials at +order and -order, at most 1: the largest or smallest index is factored out
    rising = np.exp(orders[0] * (offsets - offsets[-1]))
    falling = np.exp(-orders[0] * offsets)
    with np.errstate(divide="ignore", under="ignore"):
        for index, order in enumerate(orders):
            upper_mean = np.sum(loss.masses * rising)
            lower_mean = np.sum(loss.masses * falling)
            logs[middle + 1 + index] = np.log(upper_mean) + order * loss.last
            logs[middle - 1 - index] = np.log(lower_mean) - order * loss.first
            rising *= rising
            falling *= falling
    return logs


def epsilon_by_order(moments: Moments, delta: float) -> Floats:
    """Return the epsilon that the cumulant at each order proves at `delta`, shape (orders,).

    The conversion is Canonne, Kamath and Steinke 2020, Proposition 12, at alpha = theta + 1:
    ``(K(theta) - log(delta) - log(1 + theta)) / theta - log(1 + 1 / theta)``. Epsilon is infinite
    at orders theta of at most 0, which prove nothing.
    """
    theta = moments.orders
    cumulant = moments.total
    with np.errstate(invalid="ignore", divide="ignore"):
        numerator = cumulant - log(delta) - np.log1p(theta)
        epsilons = numerator / theta - np.log1p(1 / theta)
    is_valid = (theta > 0) & np.isfinite(epsilons)
    return np.where(is_valid, epsilons, inf)
