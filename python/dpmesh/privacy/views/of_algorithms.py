"""Reactions of this package's algorithms, from their public attributes.

Each function takes the public numbers of one algorithm and returns its `Reaction`, or `NotProved`
with the reason why a view costs as much as everybody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import TypeAlias

import numpy as np

from dpmesh._validate import fail, integer
from dpmesh.kernels.linear_model import KINKED
from dpmesh.kernels.projection import Norm
from dpmesh.privacy.compression import Compressor, Quantizer
from dpmesh.privacy.views.reaction import Distribution, NotProved, Numbers, Reaction
from dpmesh.privacy.views.steps import LossFacts, step_lipschitz
from dpmesh.schedules import Schedule, at

Answer: TypeAlias = Reaction | NotProved

NO_NOISE = NotProved(reason="messages carry no noise")


def gradient_descent(
    rounds: int,
    facts: LossFacts,
    *,
    records: int,
    noise_multiplier: float | None,
    step_size: float | Schedule,
    clipping_norm: float,
) -> Answer:
    """Return the reaction of `GradientDescent`: ``x_(t+1) = b_t - alpha g(b_t)``.

    Parameters
    ----------
    rounds
        Number of rounds.
    facts
        The loss.
    records, noise_multiplier, step_size, clipping_norm
        The algorithm's.
    """
    refused = facts.not_proved(clipping_norm)
    if refused is not None:
        return refused
    if noise_multiplier is None:
        return NO_NOISE
    sensitivity = _moves(rounds, step_size, 2 * clipping_norm / records)
    return Reaction(
        sensitivity=sensitivity,
        noise=noise_multiplier * sensitivity,
        lipschitz=_steps(rounds, step_size, facts.smoothness, facts.regularization),
    )


def online(
    rounds: int,
    facts: LossFacts,
    *,
    noise_multiplier: float | None,
    step_size: float | Schedule,
    clipping_norm: float,
    batch_size: int,
    norm: Norm = "l2",
    distribution: Distribution = "gaussian",
    dim: int | None = None,
) -> Answer:
    """Return the reaction of `OnlineLearning`: one fresh example, or batch, a round.

    Every projection of the algorithm is L2 nonexpansive. Each record is used in one round.

    Parameters
    ----------
    rounds
        Number of rounds.
    facts
        The loss.
    noise_multiplier
        Scale of the noise over the sensitivity in the mechanism's norm: L2 for Gaussian noise, L1
        for Laplace noise.
    step_size, clipping_norm, batch_size, norm
        The algorithm's.
    distribution
        Of the noise.
    dim
        Number of parameters: Laplace noise for a clipped L2 norm is larger by its square root.

    Raises
    ------
    ValueError
        If Laplace noise for a clipped L2 norm comes without `dim`.
    """
    refused = facts.not_proved(clipping_norm, norm)
    if refused is not None:
        return refused
    if noise_multiplier is None:
        return NO_NOISE
    sensitivity = _moves(rounds, step_size, 2 * clipping_norm / batch_size)
    noise = noise_multiplier * sensitivity
    if distribution == "laplace" and norm == "l2":
        if dim is None:
            fail("dim", "the number of parameters, which Laplace noise is scaled by", None)
        noise = noise * sqrt(integer("dim", dim, at_least=1))
    return Reaction(
        sensitivity=sensitivity,
        noise=noise,
        lipschitz=_steps(rounds, step_size, facts.smoothness, facts.regularization),
        distribution=distribution,
        one_round=True,
    )


def quantized(
    rounds: int,
    facts: LossFacts,
    *,
    mode: str,
    step_size: float | Schedule,
    consensus_step_size: float | Schedule,
    sample_size: float | Schedule,
    noise_std: float | Schedule | None,
    clipping_norm: float,
    smoothness: float = inf,
    compressor: Compressor | None = None,
    grid: float | None = None,
    dim: int | None = None,
) -> Answer:
    """Return the reaction of `QuantizedGossip`.

    ``x' = (1 - beta) x + beta sum_j a_ij z^j - alpha g``. The fresh movement alpha 2 L / gamma is
    not the ledger's sensitivity: there the un-noised own state carries earlier movements on.

    Parameters
    ----------
    rounds
        Number of rounds.
    facts
        The loss.
    mode, step_size, consensus_step_size, sample_size, noise_std, clipping_norm, smoothness, \
compressor, grid
        The algorithm's.
    dim
        Number of parameters; needed with a grid.

    Raises
    ------
    ValueError
        If there is a grid and no `dim`.
    """
    if noise_std is None:
        return NO_NOISE
    if compressor is not None and not (
        isinstance(compressor, Quantizer) and compressor.step == grid
    ):
        reason = (
            "rounding may part two unseen messages by a whole step; use compressor=None, or a "
            "Quantizer of the grid's own step"
        )
        return NotProved(reason=reason)
    alpha, beta = _values(rounds, step_size), _values(rounds, consensus_step_size)
    kept = _kept_by_quantized(
        facts, alpha, beta, mode=mode, clipping_norm=clipping_norm, smoothness=smoothness
    )
    if isinstance(kept, NotProved):
        return kept
    own, own_message = kept
    fresh = np.zeros(rounds)
    fresh[1:] = (alpha * 2 * clipping_norm / _values(rounds, sample_size))[:-1]
    rounding = 0.0
    if grid is not None:
        if dim is None:
            fail("dim", "the number of parameters, which rounding to a grid adds up over", None)
        rounding = grid * sqrt(integer("dim", dim, at_least=1))
    noise = np.zeros(rounds)
    noise[1:] = [at(noise_std, k + 1) for k in range(1, rounds)]
    return Reaction(
        sensitivity=fresh,
        noise=noise,
        lipschitz=beta,
        own_state=own,
        own_message=own_message,
        distribution="gaussian" if grid is None else "discrete_gaussian",
        rounding=rounding,
    )


def _kept_by_quantized(
    facts: LossFacts,
    alpha: Numbers,
    beta: Numbers,
    *,
    mode: str,
    clipping_norm: float,
    smoothness: float,
) -> tuple[Numbers, Numbers | None] | NotProved:
    """Return how much of the difference of its own state and message a node keeps in a round."""
    decay, curved = facts.regularization, facts.smoothness
    rougher = facts.loss in KINKED or smoothness < curved < inf
    if mode != "paper" and smoothness < inf and rougher:
        return NotProved(reason="the losses are less smooth than `smoothness` states")
    if mode == "paper":
        if (alpha * (curved + decay) > 2 * (1 - beta)).any():
            reason = "step_size (smoothness + regularization) exceeds 2 (1 - consensus_step_size)"
            return facts.not_proved(None) or NotProved(reason=reason)
        return facts.not_proved(None) or (1 - beta, None)
    low, high = decay - smoothness, decay + smoothness
    if mode == "safe":
        if smoothness == inf:
            return NotProved(reason="mode 'safe' needs a finite smoothness")
        return np.maximum(abs(1 - beta - alpha * low), abs(1 - beta - alpha * high)), None
    refused = facts.not_proved(clipping_norm)
    if refused is None:
        low, high = decay, decay + curved
    elif smoothness == inf:
        return refused
    return abs(1 - beta), np.stack([alpha * low, alpha * high], axis=1)


def with_replacement(
    rounds: int,
    facts: LossFacts,
    *,
    holders: Sequence[int],
    nodes: int,
    noise_multiplier: float | None,
    step_size: float | Schedule,
    batch_size: int,
    loss_lipschitz: float,
) -> Answer:
    """Return the reaction of `WithReplacement` if each model goes to the next holder alone.

    No amplification by sampling: compare with the cost against everybody, and use the smaller. The
    network is `HandOver`; message t, sent by holder t, is the model after its step.

    Parameters
    ----------
    rounds
        Number of rounds.
    facts
        The loss.
    holders
        Who steps in each round, drawn by public coins.
    nodes
        Number of nodes.
    noise_multiplier, step_size, batch_size
        The algorithm's.
    loss_lipschitz
        Largest norm of a gradient of one model's loss.
    """
    refused = facts.not_proved(None)
    if refused is not None:
        return refused
    if noise_multiplier is None:
        return NO_NOISE
    if len(holders) != rounds:
        fail("holders", f"{rounds} nodes, one for each round", len(holders))
    models = 1 if facts.classes is None or facts.loss == "softmax" else facts.classes
    alpha = _values(rounds, step_size)
    unit = 2 * alpha * loss_lipschitz / batch_size
    fresh = np.zeros((rounds, nodes))
    fresh[np.arange(rounds), list(holders)] = unit * sqrt(models)
    lipschitz = np.ones(rounds)
    lipschitz[:-1] = [
        step_lipschitz(float(step), facts.smoothness, facts.regularization) for step in alpha[1:]
    ]
    return Reaction(sensitivity=fresh, noise=noise_multiplier * unit, lipschitz=lipschitz)


def without_replacement() -> NotProved:
    """Return why `WithoutReplacement` has no views: all nodes know each global model."""
    return NotProved(reason="every node receives the global model after each update")


def federated() -> NotProved:
    """Return why `FederatedLearning` has no views: the server publishes all models."""
    reason = (
        "all models are public; hiding all but the last is not proved for random cohorts divided "
        "by a constant"
    )
    return NotProved(reason=reason)


def _values(rounds: int, schedule: float | Schedule) -> Numbers:
    return np.array([at(schedule, t + 1) for t in range(rounds)], dtype=np.float64)


def _moves(rounds: int, step_size: float | Schedule, factor: float) -> Numbers:
    """How far the step before round t moves x_t: 0 in round 0."""
    moves = np.zeros(rounds)
    moves[1:] = _values(rounds, step_size)[:-1] * factor
    return moves


def _steps(
    rounds: int, step_size: float | Schedule, smoothness: float, regularization: float
) -> Numbers:
    alpha = _values(rounds, step_size)
    return np.array([step_lipschitz(float(step), smoothness, regularization) for step in alpha])
