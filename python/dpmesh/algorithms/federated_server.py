"""The server's parts of `FederatedLearning`: optimizers, averaged models, adaptive clipping norms.

All of them are post-processing of noisy averages Delta_t of the clients' vectors. Adaptive clipping
adds one number to each client's vector: see `AdaptiveClipping`.
"""

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
        Standard deviation of the noise on the number of set bits, above half of the algorithm's
        noise multiplier. None for the larger of the noise multiplier and 1/20 of the expected
        number of updates, the paper's choice.

    Guarantee
    ---------
    Updates and bits are released together, as one Gaussian release with the algorithm's noise
    multiplier. A client's vector is its update, followed by (bit - 1/2) weight C_t, where the
    weight follows from `noise_std`. A client without records sends 0 there, like an absent client.
    The bits therefore add nothing to epsilon, and the noise on the updates is larger by the factor
    ``sqrt(1 + weight^2 / 4)``.
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
            at the same epsilon. Noise of updates and bits together must be larger. 0 without noise.
        updates
            Expected number of updates in a round.

        Raises
        ------
        ValueError
            If `noise_std` is not above `least_std`.
        """
        if least_std == 0:  # without noise any weight will do
            return 1.0
        std = max(updates / 20, 2 * least_std) if self.noise_std is None else self.noise_std
        if std <= least_std:
            fail("noise_std", f"more than {least_std:g}, what the bits would need alone", std)
        return 2 * least_std / sqrt(std**2 - least_std**2)

    def next_norm(self, clipping_norm: float, set_fraction: float) -> float:
        """Return the clipping norm C_(t+1) of the next round.

        Parameters
        ----------
        clipping_norm
            Clipping norm C_t of this round.
        set_fraction
            Noisy fraction b of set bits.
        """
        return clipping_norm * exp(-self.step_size * (set_fraction - self.quantile))


class ServerOptimizer(Protocol):
    """Protocol of a server optimizer on noisy averages: post-processing, without epsilon."""

    count: ClassVar[int]
    """Number of vectors that it remembers from round to round, such as 1 for momentum."""

    def step(self, delta: Released, moments: Floats) -> tuple[Floats, Floats]:
        """Return the direction of the server's step, and the optimizer's new memory.

        Parameters
        ----------
        delta
            Denoised average of the round, shape (1, dim).
        moments
            Memory from the round before, shape (count, dim); zeros before the first round.

        Returns
        -------
        The direction, shape (1, dim), along which the server moves the global model, and the new
        memory, shape (count, dim).
        """


@dataclass(frozen=True)
class ServerMomentum:
    """Server momentum (FedAvgM): the server steps along ``m_t = decay m_(t-1) + Delta_t``.

    Delta_t is the denoised average of round t. Momentum is post-processing: it adds no epsilon.

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
        """Return the direction m_t, shape (1, dim), and the new memory, which is m_t again.

        Parameters
        ----------
        delta
            Denoised average Delta_t of the round, shape (1, dim).
        moments
            The last direction m_(t-1), shape (1, dim); zeros before the first round.
        """
        direction = moments.dtype.type(self.decay) * moments + delta
        return direction, direction


@dataclass(frozen=True, kw_only=True)
class ServerAdam:
    """Server Adam (FedAdam): Adam steps along denoised averages Delta_t.

    The direction is ``m_t / (sqrt(v_t) + adaptivity)``, where m_t and v_t are running means of
    Delta_t and of its square in each coordinate, without bias correction. Adam is post-processing:
    it adds no epsilon. Source: Reddi et al., 2021, Algorithm 2.

    Parameters
    ----------
    decay
        Decay beta_1 of the running mean m_t, in [0, 1).
    square_decay
        Decay beta_2 of the running mean v_t of squares, in [0, 1).
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
        """Return the direction, shape (1, dim), and the new memory m_t and v_t, shape (2, dim).

        Parameters
        ----------
        delta
            Denoised average Delta_t of the round, shape (1, dim).
        moments
            The means m_(t-1) and v_(t-1), shape (2, dim); zeros before the first round.
        """
        powers = np.concatenate([delta, delta**2])
        decays = np.array([[self.decay], [self.square_decay]], moments.dtype)
        means = decays * moments + (1 - decays) * powers
        mean, mean_square = means[:1], means[1:]
        direction = mean / (np.sqrt(mean_square) + means.dtype.type(self.adaptivity))
        return direction, means


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
        if at(self.weights, self.since + 1) == 0:  # the average would be 0 / 0
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
            Index t of the model.

        Returns
        -------
        The average, shape (1, dim), and the sum of its weights. Before `since` these are w^t and 0.
        """
        if t < self.since:
            return w, 0.0
        model_weight = at(self.weights, t + 1)
        total_weight = weight + model_weight
        fraction = w.dtype.type(model_weight / total_weight)
        return output + fraction * (w - output), total_weight
