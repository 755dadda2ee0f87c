"""Theorem 3 and Corollary 1 of the federated paper: how error and rounds grow.

The paper omits constants and, for strongly convex losses, logarithms. So do these functions: their
values show how a bound changes with the smoothing, the number of clients and so on, not how large
an error is. Theorems 4 to 6 have constants, which their proof does not bear out: (25) omits the
products of a client's later gradients with the noise of its earlier mini-batches, on which the
later models depend; these are positive where a loss is concave.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, log, pi, sqrt
from typing import Literal

import dpmesh.kernels as kernels
from dpmesh._validate import (
    as_python_numbers,
    fail,
    integer,
    non_negative,
    one_of,
    positive,
    probability,
)
from dpmesh_papers.bounds.floats import held_by_floats

Case = Literal["strongly_convex", "convex", "nonconvex"]


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Constants of the clients' losses that the bounds use.

    Parameters
    ----------
    dim
        Number of parameters.
    lipschitz
        L: largest norm of a gradient of a client's loss (Assumption 6, where the paper means the
        norm).
    smoothness
        beta: Lipschitz constant of the gradients (Assumption 2).
    gradient_variance
        Variance of mini-batch gradients in the norm of A^-1, averaged over the clients (5).
    dissimilarity, dissimilarity_factor
        G >= 0 and B >= 1 of Assumption 1; G = 0 for clients of one distribution.
    strong_convexity
        mu (Assumption 3); needed for ``"strongly_convex"``.
    squared_distance
        Squared distance of the first model from an optimum in the norm of A; needed for
        ``"convex"``.
    initial_gap
        The first model's loss less the smallest; needed for ``"nonconvex"``.
    """

    dim: int
    lipschitz: float
    smoothness: float
    gradient_variance: float
    dissimilarity: float = 0.0
    dissimilarity_factor: float = 1.0
    strong_convexity: float | None = None
    squared_distance: float | None = None
    initial_gap: float | None = None

    def __post_init__(self) -> None:
        as_python_numbers(self)
        integer("dim", self.dim, at_least=1)
        positive("lipschitz", self.lipschitz)
        positive("smoothness", self.smoothness)
        non_negative("gradient_variance", self.gradient_variance)
        non_negative("dissimilarity", self.dissimilarity)
        if positive("dissimilarity_factor", self.dissimilarity_factor) < 1:
            fail("dissimilarity_factor", "at least 1", self.dissimilarity_factor)
        for name in _NEEDED.values():
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))

    def needed(self, case: Case) -> float:
        """Return the constant that only this case needs."""
        name = _NEEDED[one_of("case", case, tuple(_NEEDED))]
        value: float | None = getattr(self, name)
        return fail(name, f"a number, for the case {case!r}", None) if value is None else value


_NEEDED = {
    "strongly_convex": "strong_convexity",
    "convex": "squared_distance",
    "nonconvex": "initial_gap",
}


def curvature_left(dim: int, smoothing: float) -> float:
    """Return the smallest eigenvalue of A^-1, by which smoothing divides strong convexity.

    Raises
    ------
    ValueError
        If `dim` is not an integer of at least 1, or `smoothing` is not finite and at least 0.
    """
    highest = integer("dim", dim, at_least=1) // 2
    return 1 / (1 + 2 * non_negative("smoothing", smoothing) * (1 - cos(2 * pi * highest / dim)))


@held_by_floats
def error(
    case: Case,
    losses: Losses,
    *,
    epsilon: float,
    delta: float,
    clients: int,
    sampling_rate: float,
    local_steps: int,
    smoothing: float = 0.0,
) -> float:
    """Return the error of Theorem 3 up to a constant (and a logarithm, if strongly convex).

    It is the expected loss of the averaged model less the optimum, or for ``"nonconvex"`` the
    gradient's squared norm, in the norm of A^-1, after the number of rounds at which privacy and
    optimization balance.

    Parameters
    ----------
    case
        ``"strongly_convex"``, ``"convex"`` or ``"nonconvex"``.
    losses
        The constants of the losses.
    epsilon, delta
        The budget; the theorem requires log(1 / delta) >= epsilon.
    clients, sampling_rate, local_steps
        N, tau, K.
    smoothing
        sigma.

    Raises
    ------
    ValueError
        If an argument is out of its range, or a constant that the case needs is missing.
    """
    needed = losses.needed(case)
    epsilon = positive("epsilon", epsilon)
    delta = probability("delta", delta, zero=False, one=False)
    if log(1 / delta) < epsilon:
        fail("epsilon", f"at most log(1 / delta) = {log(1 / delta):.4g}", epsilon)
    clients = integer("clients", clients, at_least=1)
    sampling_rate = probability("sampling_rate", sampling_rate, zero=False)
    local_steps = integer("local_steps", local_steps, at_least=1)
    spread = (
        losses.gradient_variance / local_steps
        + (1 - sampling_rate) * losses.dissimilarity**2
        + _dimension(case, losses.dim, smoothing)
    )
    price = losses.lipschitz**2 * log(1 / delta) / (epsilon * clients) ** 2
    if case == "strongly_convex":
        return spread * price / (needed * curvature_left(losses.dim, smoothing))
    slope = needed if case == "convex" else needed * losses.smoothness
    return sqrt(spread * slope * price)


@held_by_floats
def rounds(
    case: Case,
    losses: Losses,
    *,
    accuracy: float,
    cohort: int,
    sampling_rate: float,
    local_steps: int,
    noise: float,
    smoothing: float = 0.0,
) -> float:
    """Return the rounds of Corollary 1 until the error is `accuracy`, up to a constant.

    Parameters
    ----------
    case, losses, sampling_rate, local_steps, smoothing
        As for `error`.
    accuracy
        The error to reach.
    cohort
        S, the number of clients in a round.
    noise
        nu_1: standard deviation of the noise on the sum over the clipping norm.

    Raises
    ------
    ValueError
        If an argument is out of its range, or a constant that the case needs is missing.
    """
    needed = losses.needed(case)
    goal = positive("accuracy", accuracy)
    S = integer("cohort", cohort, at_least=1)
    K = integer("local_steps", local_steps, at_least=1)
    absent = 1 - probability("sampling_rate", sampling_rate, zero=False)
    nu, smoothing = non_negative("noise", noise), non_negative("smoothing", smoothing)
    beta, G = losses.smoothness, losses.dissimilarity
    start = (1 + 4 * smoothing) * beta * losses.dissimilarity_factor**2
    dimension = _dimension(case, losses.dim, smoothing)
    noisy = dimension * (losses.lipschitz * nu / S) ** 2
    variance = losses.gradient_variance / (K * S)
    tail = variance + noisy + absent * G**2 / S
    if case == "strongly_convex":
        left = needed * curvature_left(losses.dim, smoothing)
        return (start + tail / goal + sqrt(beta / goal) * G) / left
    if case == "convex":
        return needed * (start / goal + tail / goal**2 + sqrt(beta) * G / (goal * sqrt(goal)))
    return needed * (start / goal + beta * tail / goal**2 + beta * G / (goal * sqrt(goal)))


def _dimension(case: Case, dim: int, smoothing: float) -> float:
    """Return the number of dimensions in which the noise acts in the bound of this case."""
    effective = kernels.effective_dimensions(dim, smoothing)
    return effective.squared if case == "nonconvex" else effective.linear
