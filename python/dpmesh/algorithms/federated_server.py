"""Server optimizers on noisy averages: momentum, Adam, averaged models, clipping norms."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt
from typing import ClassVar, Protocol

import numpy as np

from dpmesh._privacy_types import Floats, Released
from dpmesh._validate import every, fail, integer, positive, probability
from dpmesh.schedules import Schedule, at, keep_schedules


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """A clipping norm that follows a quantile of the clients' updates.

    With each update goes a bit: whether it ended inside the ball of radius C_t. Their noisy share b
    moves the radius: ``C_(t+1) = C_t exp(-step_size (b - quantile))``.

    Parameters
    ----------
    quantile
        Share of the updates that should end inside the ball, in (0, 1).
    step_size
        Of the logarithm of the radius.
    noise_std
        Standard deviation of the noise on the number of bits; None for 1/20 of the updates that
        arrive on average, as in the paper, or as much as is possible if that is too little.

    Guarantee
    ---------
    The bits are released in one vector with the sum of the updates, each bit less 1/2 times
    `weight` C_t (0 of a client without records, as of one that is absent), by one Gaussian release
    of the algorithm's noise multiplier: they cost no epsilon, but the noise on the updates grows by
    ``sqrt(1 + weight^2 / 4)``. Source: Andrew, Thakkar,
    McMahan and Ramaswamy, "Differentially Private Learning with Adaptive Clipping", 2021,
    Algorithm 1 and Theorem 1, whose two noise multipliers are these.

    Examples
    --------
    >>> import dpmesh as dm
    >>> clipping = dm.algorithms.AdaptiveClipping(quantile=0.5, step_size=0.2)
    >>> updates = dm.ClientUpdates(clients=100, steps=5, adaptive_clipping=clipping)
    >>> dm.FederatedLearning(updates, noise_multiplier=1.0).plan(20).cost(1e-5).epsilon > 0
    True
    """

    quantile: float = 0.5
    step_size: float = 0.2
    noise_std: float | None = None

    def __post_init__(self) -> None:
        every(self, positive, "step_size", "noise_std")
        probability("quantile", self.quantile, zero=False, one=False)

    def weight(self, least_std: float, updates: float) -> float:
        """Return how far a bit moves the released vector, in units of C_t.

        Parameters
        ----------
        least_std
            Noise on the number of bits if they were released alone, which is their least.
        updates
            How many arrive on average.

        Raises
        ------
        ValueError
            If `noise_std` is not above `least_std`.
        """
        if least_std == 0:
            return 1.0
        std = max(updates / 20, 2 * least_std) if self.noise_std is None else self.noise_std
        if std <= least_std:
            fail("noise_std", f"more than {least_std:g}, what the bits would need alone", std)
        return 2 * least_std / sqrt(std**2 - least_std**2)

    def next_norm(self, clipping_norm: float, share_inside: float) -> float:
        """Return C_(t+1)."""
        return clipping_norm * exp(-self.step_size * (share_inside - self.quantile))


class ServerOptimizer(Protocol):
    """A server optimizer on estimated averages of updates: post-processing, without epsilon."""

    count: ClassVar[int]
    """How many vectors it remembers."""

    def step(self, delta: Released, moments: Floats) -> tuple[Floats, Floats]:
        """Return the direction, shape (1, dim), and the new moments, shape (count, dim)."""


@dataclass(frozen=True)
class ServerMomentum:
    """``m_t = decay m_(t-1) + Delta_t``, the direction of step t.

    Parameters
    ----------
    decay
        Share of the last direction that stays, in [0, 1).

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.algorithms.ServerMomentum(0.9).decay
    0.9
    """

    decay: float = 0.9
    count: ClassVar[int] = 1

    def __post_init__(self) -> None:
        every(self, probability, "decay", one=False)

    def step(self, delta: Released, moments: Floats) -> tuple[Floats, Floats]:
        """Return the momentum, twice."""
        moments = moments.dtype.type(self.decay) * moments + delta
        return moments, moments


@dataclass(frozen=True, kw_only=True)
class ServerAdam:
    """Adam on averages of updates: FedAdam of Reddi et al., 2021, Algorithm 2.

    Parameters
    ----------
    decay, square_decay
        Of the means of the averages and of their squares, in [0, 1).
    adaptivity
        Added to the square root of the latter: the paper's tau.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.algorithms.ServerAdam().decay
    0.9
    """

    decay: float = 0.9
    square_decay: float = 0.99
    adaptivity: float = 1e-3
    count: ClassVar[int] = 2

    def __post_init__(self) -> None:
        every(self, probability, "decay", "square_decay", one=False)
        positive("adaptivity", self.adaptivity)

    def step(self, delta: Released, moments: Floats) -> tuple[Floats, Floats]:
        """Return the mean over the root mean square, and both means."""
        new = np.concatenate([delta, delta**2])
        decays = np.array([[self.decay], [self.square_decay]], moments.dtype)
        moments = decays * moments + (1 - decays) * new
        return moments[:1] / (np.sqrt(moments[1:]) + moments.dtype.type(self.adaptivity)), moments


@dataclass(frozen=True, kw_only=True)
class Average:
    """The output: an average of the models in place of the last one.

    Parameters
    ----------
    since
        The first model w^t that counts; w^0 is the start. The output before it is the last model.
    weights
        The weights a_t of w^(t-1), t = 1, 2, ..

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.algorithms.Average(since=10).since
    10
    """

    since: int = 0
    weights: float | Schedule = 1.0

    def __post_init__(self) -> None:
        every(self, integer, "since")
        keep_schedules(self, "weights")
        if at(self.weights, self.since + 1) == 0:
            fail("weights", "a first weight greater than 0", 0)

    def next(self, output: Released, weight: float, w: Released, t: int) -> tuple[Floats, float]:
        """Return the weighted average of the models up to w^t, and the sum of their weights.

        Parameters
        ----------
        output, weight
            The same up to w^(t-1).
        w
            The model w^t, shape (1, dim).
        t
            Its number; before `since` the average is w^t itself, of weight 0.
        """
        if t < self.since:
            return w, 0.0
        a = at(self.weights, t + 1)
        weight += a
        return output + w.dtype.type(a / weight) * (w - output), weight
