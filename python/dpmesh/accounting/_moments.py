"""Moments of privacy losses at many orders: what each order alone proves, and where tails end."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, log, log2, sqrt
from typing import NamedTuple

import numpy as np

from dpmesh.accounting._arguments import Floats
from dpmesh.accounting._loss import UNIT, Loss
from dpmesh.accounting._merge import Mixtures

_BESIDE = np.array([0.5, 0.6, 0.7, 0.78, 0.86, 0.93, 1.0, 1.08, 1.16, 1.28, 1.45, 1.7])  # the best


class Moments(NamedTuple):
    """Cumulants ``K(theta) = log E exp(theta loss)`` of nodes and of the whole composition."""

    orders: Floats
    nodes: Floats  # shape (nodes, orders)
    total: Floats

    @classmethod
    def of(
        cls, orders: Floats, nodes: Floats, mixtures: Mixtures, rounding: Floats | float = 0.0
    ) -> Moments:
        # each cumulant is raised by its rounding; the sum is no BLAS product, which wakes threads
        kinds = mixtures.log_of(nodes) + 1e-12 + rounding
        return cls(orders, nodes, np.sum(mixtures.times[:, None] * kinds, axis=0))

    def nearest(self, epsilon: float) -> int:
        """Return the order, at least 0, by which Chernoff's bound at this loss is smallest."""
        with np.errstate(invalid="ignore"):
            exponents = np.where(self.orders >= 0, self.total - self.orders * epsilon, inf)
        return int(np.nanargmin(exponents))


def moments_of(
    losses: Sequence[Loss], mixtures: Mixtures, delta: float, interval: float
) -> Moments:
    """Return the cumulants at orders on both sides of 0, more of them beside the best."""
    squares = [
        float(np.sum(loss.masses * np.square(np.arange(loss.first, loss.last + 1.0))))
        for loss in losses
    ]
    spread = interval * sqrt(float(np.sum(mixtures.times * mixtures.of(np.array(squares)))))
    guess = sqrt(2 * log(1 / delta) + 1) / max(spread, 1e-300)
    largest = interval * max(1, *(loss.last for loss in losses))
    halvings = max(6, ceil(log2(guess * largest / log(1 / delta))) + 3)  # from the least that helps
    powers = np.arange(halvings + 9)
    orders = np.asarray(guess * 2.0 ** (powers - halvings))
    errors = 8 * UNIT * 2.0**powers  # of powers by squaring
    far = Moments.of(
        np.concatenate([-orders[::-1], [0.0], orders]),
        np.array([_log_moments_of_powers(loss, orders * interval) for loss in losses]),
        mixtures,
        np.concatenate([errors[::-1], [0.0], errors]),
    )
    found = proved(far, delta)
    best = int(np.argmin(found))
    if found[best] == inf:
        return far
    beside = far.orders[best] * _BESIDE
    near = np.array([_log_moments(loss, beside * interval) for loss in losses])
    own = Moments.of(beside, near, mixtures)
    kept = (far.orders < beside[0]) | (far.orders > beside[-1])
    together = np.concatenate([far.orders[kept], beside])
    sorting = np.argsort(together)
    return Moments(
        together[sorting],
        np.concatenate([far.nodes[:, kept], near], axis=1)[:, sorting],
        np.concatenate([far.total[kept], own.total])[sorting],
    )


def _log_moments(loss: Loss, orders: Floats) -> Floats:
    """Return ``log E exp(order x)``."""
    x = np.arange(loss.first - loss.last, 1.0)
    with np.errstate(under="ignore", divide="ignore"):
        means = [np.sum(loss.masses * np.exp(order * x)) for order in orders]
        found: Floats = np.log(means) + orders * loss.last
    return found


def _log_moments_of_powers(loss: Loss, orders: Floats) -> Floats:
    """Return ``log E exp(order x)`` at -orders, 0 and orders, each twice the one before."""
    x = np.arange(loss.masses.size, dtype=np.float64)
    found = np.zeros(2 * orders.size + 1)
    found[orders.size] = np.log(np.sum(loss.masses))
    rising, falling = np.exp(orders[0] * (x - x[-1])), np.exp(-orders[0] * x)
    with np.errstate(divide="ignore", under="ignore"):
        for index, order in enumerate(orders):
            above, below = np.sum(loss.masses * rising), np.sum(loss.masses * falling)
            found[orders.size + 1 + index] = np.log(above) + order * loss.last
            found[orders.size - 1 - index] = np.log(below) - order * loss.first
            rising *= rising
            falling *= falling
    return found


def proved(moments: Moments, delta: float) -> Floats:
    """Return the epsilon that each order proves; infinite for those that are not positive.

    By the conversion of Canonne, Kamath and Steinke 2020, Proposition 12, at order alpha - 1.
    """
    theta, cumulant = moments.orders, moments.total
    with np.errstate(invalid="ignore", divide="ignore"):
        proved = (cumulant - log(delta) - np.log1p(theta)) / theta - np.log1p(1 / theta)
    return np.where((theta > 0) & np.isfinite(proved), proved, inf)
