"""Lipschitz constants of gradient steps, from public numbers alone.

A step ``b - alpha (mean gradient + lambda b)`` on convex losses of smoothness beta is Lipschitz
with ``max(|1 - alpha lambda|, |1 - alpha (lambda + beta)|)``. Its mean Jacobian between two points
has eigenvalues ``1 - alpha (lambda + h)`` with h in [0, beta].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, cast

import numpy as np

from dpmesh._epsilons import rounded_up
from dpmesh._validate import every, fail, non_negative, positive
from dpmesh.kernels.linear_model import KINKED, Loss, check_loss
from dpmesh.kernels.projection import Norm
from dpmesh.noise.mechanisms import Mechanism
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.views.reaction import DISTRIBUTIONS, NO_NOISE, Distribution, NotProved, Reaction
from dpmesh.schedules import Schedule, at


@dataclass(frozen=True, kw_only=True)
class LossFacts:
    """Public facts of the loss of a linear model, from which step constants are computed.

    Parameters
    ----------
    loss
        One of `dpmesh.kernels.linear`.
    feature_norm
        Largest L2 norm of a record's features; None if unknown.
    classes
        Number of classes of softmax and one-vs-all; None for one model.
    regularization
        lambda, the factor of ``|w|^2 / 2``.
    dim
        Number of parameters, which Laplace noise and grids need.

    Raises
    ------
    ValueError
        If a number is out of range, the loss is unknown, or softmax lacks its number of classes.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.views.LossFacts(loss="logistic", feature_norm=1.0, regularization=0.1).loss
    'logistic'
    """

    loss: Loss
    feature_norm: float | None
    classes: int | None = None
    regularization: float = 0.0
    dim: int | None = None

    @classmethod
    def of(cls, problem: Any) -> LossFacts:
        """Return the public facts of the loss of a `LinearProblem`; a `LossFacts` is copied."""
        return cls(
            loss=problem.loss,
            feature_norm=problem.feature_norm,
            classes=problem.classes,
            regularization=problem.regularization,
            dim=problem.dim,
        )

    def __post_init__(self) -> None:
        check_loss(self.loss, self.classes)
        every(self, positive, "feature_norm")
        every(self, non_negative, "regularization")

    @property
    def smoothness(self) -> float:
        """Smoothness beta of a record's loss without the regularizer; infinite if unknown."""
        if self.feature_norm is None or self.loss in KINKED:
            return inf
        square = self.feature_norm**2
        bounds = {"logistic": square / 4, "multilabel": square / 4, "softmax": square / 2}
        return bounds.get(self.loss, square)

    def not_proved(self, clipping_norm: float | None, norm: Norm = "l2") -> NotProved | None:
        """Return why clipped gradients may not be those of smooth convex losses; None if they are.

        With one score, a clipped gradient is the gradient of another convex loss of the same
        smoothness. With several scores, clipping scales all of them by one factor, and no such loss
        need exist: the clipping norm must then be so large that no gradient is clipped.

        Parameters
        ----------
        clipping_norm
            Largest norm of a record's gradient; None if nothing is clipped.
        norm
            Norm that is clipped.
        """
        if self.loss in KINKED:
            reason = f"the {self.loss} loss has a kink, where a step expands distances"
            return NotProved(reason=reason)
        if self.feature_norm is None:
            reason = "the norm of records has no public bound; give the problem a feature_norm"
            return NotProved(reason=reason)
        if self.classes is None or clipping_norm is None:
            return None
        if self.loss == "squared":
            reason = "gradients of one-vs-all squared losses are unbounded and clipped together"
            return NotProved(reason=reason)
        if norm == "l1":
            return NotProved(reason="scores of several classes are clipped together in L1 norm")
        largest_gradient = self.feature_norm * sqrt(2 if self.loss == "softmax" else self.classes)
        if clipping_norm < largest_gradient:
            bound = rounded_up(largest_gradient, 5)
            reason = (
                "a clipped gradient of several classes need not be that of a convex loss; choose "
                f"a clipping_norm of at least {bound}, which no gradient exceeds"
            )
            return NotProved(reason=reason)
        return None


def step_lipschitz(step_size: float, smoothness: float, regularization: float = 0.0) -> float:
    """Return the Lipschitz constant of a gradient step on convex losses.

    Parameters
    ----------
    step_size
        alpha, at least 0.
    smoothness
        beta of every record's loss, without the regularizer.
    regularization
        lambda.

    Returns
    -------
    At most 1 if ``alpha <= 2 / (beta + lambda)`` holds for a positive lambda or any beta.
    """
    alpha = non_negative("step_size", step_size)
    return max(abs(1 - alpha * regularization), abs(1 - alpha * (regularization + smoothness)))


def reaction_of_steps(
    facts: LossFacts,
    sensitivities: Sequence[Sensitivity],
    mechanism: Mechanism,
    *,
    step_size: float | Schedule,
    clipping_norm: float,
    one_round: bool = False,
) -> Reaction | NotProved:
    """Return the reaction of messages that are mixed and then step: ``x' = b - alpha g(b)``.

    Parameters
    ----------
    facts
        The loss.
    sensitivities
        Of the messages of each round.
    mechanism
        Their noise.
    step_size, clipping_norm
        The algorithm's; the norm that is clipped is that of the sensitivities.
    one_round
        Whether each record is used in one round only.

    Raises
    ------
    ValueError
        If Laplace noise for a clipped L2 norm comes without the number of parameters.
    """
    norm = sensitivities[0].norm
    refused = facts.not_proved(clipping_norm, norm)
    if refused is not None:
        return refused
    if not mechanism.adds_noise:
        return NO_NOISE
    if mechanism.law not in DISTRIBUTIONS or mechanism.spacing > 0:
        kind = mechanism.name
        return NotProved(reason=f"there is no proof for {kind} noise under a weaker adversary")
    if mechanism.norm == "l1" and norm == "l2" and facts.dim is None:
        fail("dim", "the number of parameters, which Laplace noise is scaled by", None)
    steps = [at(step_size, t + 1) for t in range(len(sensitivities))]
    smoothness, decay = facts.smoothness, facts.regularization
    return Reaction(
        sensitivity=np.array([sensitivity.bound for sensitivity in sensitivities]),
        noise=np.array(
            [mechanism.noise_scale(sensitivity, facts.dim or 1) for sensitivity in sensitivities]
        ),
        lipschitz=np.array([step_lipschitz(step, smoothness, decay) for step in steps]),
        distribution=cast("Distribution", mechanism.distribution),
        one_round=one_round,
    )
