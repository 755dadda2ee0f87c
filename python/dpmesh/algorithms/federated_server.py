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
    """Adaptive clipping norm, which follows a quantile of the norms of clients' updates.

    Each client adds an indicator bit to its update: 1 if the update's norm is below the clipping
    norm C_t. The noisy fraction b of set bits gives the next norm:
    ``C_(t+1) = C_t exp(-step_size (b - quantile))``.

    Parameters
    ----------
    quantile
        Target fraction of updates with a norm below the clipping norm, in (0, 1).
    step_size
        Learning rate of the logarithm of the clipping norm.
    noise_std
        Standard deviation of the noise on the number of set bits, more than half of the noise
        multiplier. None for the larger of the noise multiplier and, as in the paper, 1/20 of the
        expected number of updates.

    Guarantee
    ---------
    Updates and bits are released together, as one Gaussian release of the algorithm's noise
    multiplier. A client's vector is its update, followed by (bit - 1/2) `weight` C_t; the last
    number is 0 for a client without records, as for an absent one. The bits therefore add nothing
    to epsilon, and the noise on the updates is larger by the factor ``sqrt(1 + weight^2 / 4)``.
    Source: Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive
    Clipping", 2021, Algorithm 1 and Theorem 1, which has these two noise multipliers.

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
        """Return the weight of a bit in the released vector, in units of C_t.

        Parameters
        ----------
        least_std
            Standard deviation of the noise on the number of set bits if they were released alone,
            at the same epsilon: the smallest one possible.
        updates
            Expected number of updates in a round.

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
        """Return the next clipping norm C_(t+1), given C_t and the noisy fraction of set bits."""
        return clipping_norm * exp(-self.step_size * (share_inside - self.quantile))


class ServerOptimizer(Protocol):
    """A server optimizer on estimated averages of updates: post-processing, without epsilon."""

    count: ClassVar[int]
    """How many vectors it remembers."""

    def step(self, delta: Released, moments: Floats) -> tuple[Floats, Floats]:
        """Return the direction, shape (1, dim), and the new moments, shape (count, dim)."""


@dataclass(frozen=True)
class ServerMomentum:
    """Server momentum (FedAvgM): steps along ``m_t = decay m_(t-1) + Delta_t``.

    Delta_t is the noisy average of round t. Momentum is post-processing: it adds no epsilon.

    Parameters
    ----------
    decay
        Fraction of the last direction m_(t-1) that is kept, in [0, 1).

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
        """Return the direction m_t, and m_t as the new memory."""
        moments = moments.dtype.type(self.decay) * moments + delta
        return moments, moments


@dataclass(frozen=True, kw_only=True)
class ServerAdam:
    """Server Adam (FedAdam): Adam steps along noisy averages; post-processing.

    Source: Reddi et al., 2021, Algorithm 2.

    Parameters
    ----------
    decay, square_decay
        Decay of the running means of the averages and of their squares, beta_1 and beta_2, in
        [0, 1).
    adaptivity
        Positive number added to the root mean square, the paper's tau (epsilon of Adam).

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
        """Return the direction, the mean over the root mean square, and both means as memory."""
        new = np.concatenate([delta, delta**2])
        decays = np.array([[self.decay], [self.square_decay]], moments.dtype)
        moments = decays * moments + (1 - decays) * new
        return moments[:1] / (np.sqrt(moments[1:]) + moments.dtype.type(self.adaptivity)), moments


@dataclass(frozen=True, kw_only=True)
class Average:
    """Weighted average of the global models of several rounds, as the output of a run.

    Parameters
    ----------
    since
        Index t of the first global model w^t in the average; w^0 is the initial model. Until then
        the output is the last model.
    weights
        Weights a_t of w^(t-1) for t = 1, 2, ..: a number or a schedule.

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
            Weighted average up to w^(t-1), shape (1, dim), and the sum of its weights.
        w
            Global model w^t, shape (1, dim).
        t
            Index of the model. Before `since` the average is w^t itself, with a weight of 0.
        """
        if t < self.since:
            return w, 0.0
        a = at(self.weights, t + 1)
        weight += a
        return output + w.dtype.type(a / weight) * (w - output), weight
