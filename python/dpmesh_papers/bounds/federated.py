"""Theorems 3 to 6 and Corollaries 1 and 2 of the federated paper: how error and rounds grow.

For Theorem 3 and the corollaries the paper omits constants and, for strongly convex losses,
logarithms. So do `error`, `rounds` and `corollary_2_as_printed`: their values show how a bound
changes with the smoothing, the number of clients and so on, not how large an error is. Theorems 4
to 6 have constants (`error_terms_as_printed`), which their proof does not bear out: (25) omits the
products of a client's later gradients with the noise of its earlier mini-batches, on which the
later models depend; these are positive where a loss is concave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import cos, exp, inf, log, pi, sqrt
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
    """Return the smallest eigenvalue of A^-1, where A is the matrix of Laplacian smoothing.

    Smoothing multiplies strong convexity by this factor, which is at most 1.

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
    constant = losses.needed(case)
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
        return spread * price / (constant * curvature_left(losses.dim, smoothing))
    if case == "convex":
        return sqrt(spread * constant * price)
    return sqrt(spread * constant * losses.smoothness * price)


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
    constant = losses.needed(case)
    accuracy = positive("accuracy", accuracy)
    S = integer("cohort", cohort, at_least=1)
    K = integer("local_steps", local_steps, at_least=1)
    absent = 1 - probability("sampling_rate", sampling_rate, zero=False)
    nu = non_negative("noise", noise)
    smoothing = non_negative("smoothing", smoothing)
    beta = losses.smoothness
    G = losses.dissimilarity
    start = (1 + 4 * smoothing) * beta * losses.dissimilarity_factor**2
    dimension = _dimension(case, losses.dim, smoothing)
    noisy = dimension * (losses.lipschitz * nu / S) ** 2
    variance = losses.gradient_variance / (K * S)
    tail = variance + noisy + absent * G**2 / S
    if case == "strongly_convex":
        curvature = constant * curvature_left(losses.dim, smoothing)
        return (start + tail / accuracy + sqrt(beta / accuracy) * G) / curvature
    if case == "convex":
        return constant * (
            start / accuracy + tail / accuracy**2 + sqrt(beta) * G / (accuracy * sqrt(accuracy))
        )
    return constant * (
        start / accuracy + beta * tail / accuracy**2 + beta * G / (accuracy * sqrt(accuracy))
    )


def _dimension(case: Case, dim: int, smoothing: float) -> float:
    """Return the number of dimensions in which the noise acts in the bound of this case."""
    effective = kernels.effective_dimensions(dim, smoothing)
    if case == "nonconvex":
        return effective.squared
    return effective.linear


@dataclass(frozen=True, kw_only=True)
class ErrorTerms:
    """The four terms of the meta theorem (15), as printed.

    Parameters
    ----------
    initial
        Term of the first model's distance to an optimum.
    heterogeneity
        Term of the differences between the clients' losses.
    variance
        Term of mini-batches.
    privacy
        Term of the privacy noise.
    learning_rate
        eta-tilde, the product of the clients' and the server's learning rates, at which they hold.
    """

    initial: float
    heterogeneity: float
    variance: float
    privacy: float
    learning_rate: float

    @property
    def total(self) -> float:
        """The right-hand side of (15)."""
        return self.initial + self.heterogeneity + self.variance + self.privacy


@held_by_floats
def error_terms_as_printed(
    case: Case,
    losses: Losses,
    *,
    rounds: int,
    cohort: int,
    sampling_rate: float,
    local_steps: int,
    noise: float,
    global_step_size: float = 1.0,
    smoothing: float = 0.0,
) -> ErrorTerms:
    """Return the terms of (15) by Theorem 4, 5 or 6, with the constants that they print.

    They are not proved bounds: (25) leaves out the products of a client's later gradients with the
    noise of its earlier mini-batches, on which its later models depend, and Lemma 7 is used for
    mini-batch gradients. Where clients take one local step (K = 1) nothing is left out.

    Parameters
    ----------
    case
        ``"strongly_convex"`` (Theorem 4), ``"convex"`` (5) or ``"nonconvex"`` (6).
    losses
        The constants of the losses. Theorem 4 needs `squared_distance` as well.
    rounds
        T.
    cohort, sampling_rate, local_steps
        S, tau, K.
    noise
        nu_1: standard deviation of the noise on the sum over the clipping norm ``eta_l K L``.
    global_step_size
        eta_g, at least 1.
    smoothing
        sigma.

    Raises
    ------
    ValueError
        If an argument is out of its range, a constant that the case needs is missing, or T is
        shorter than Theorem 4 requires.
    """
    T = integer("rounds", rounds, at_least=1)
    S = integer("cohort", cohort, at_least=1)
    K = integer("local_steps", local_steps, at_least=1)
    absent = 1 - probability("sampling_rate", sampling_rate, zero=False)
    nu = non_negative("noise", noise)
    server_rate = positive("global_step_size", global_step_size)
    if server_rate < 1:
        fail("global_step_size", "at least 1", server_rate)
    constant = losses.needed(case)
    beta = losses.smoothness
    G = losses.dissimilarity
    L = losses.lipschitz
    variance = losses.gradient_variance
    smallest = curvature_left(losses.dim, smoothing)
    dimension = _dimension(case, losses.dim, smoothing)
    noisy = dimension * (L * nu / S) ** 2
    drift = (1 / (server_rate**2 * K) + 1 / (S * K)) * variance + 4 / S * absent * G**2 + noisy  # H
    steepest = smallest / (8 * K * beta * (1 + losses.dissimilarity_factor**2))

    if case == "strongly_convex":
        curvature = constant * smallest
        distance = losses.needed("convex")
        growth = inf
        if drift:
            growth = log(max(exp(1), curvature**2 * T * distance / drift))
        rate = min(2 * growth / (curvature * K * T), steepest)
        if T * curvature * rate * K < 1:
            fail("rounds", f"at least {1 / (curvature * rate * K):.4g} (Theorem 4)", T)
        initial = 3 * curvature * exp(-curvature * rate * K * T / 2) * distance
        scale = 1.0
        spread = 24 * beta * G**2
    elif case == "convex":
        spread = 24 * beta * G**2
        rate = min(
            _rate(constant, drift * T * K**2, 2), _rate(constant, spread * T * K**3, 3), steepest
        )
        initial = 2 * constant / (rate * T * K)
        scale = 1.0
    else:
        spread = 32 * beta**2 * G**2
        rate = min(
            _rate(constant, drift * T * beta * K**2, 2),
            _rate(constant, spread * T * K**3, 3),
            steepest,
        )
        initial = 8 * constant / (rate * T * K)
        scale = 2 * beta
    return ErrorTerms(
        initial=initial,
        heterogeneity=spread * (rate * K) ** 2 + 8 * scale * rate * absent * K / S * G**2,
        variance=2 * scale * rate * (1 + S / server_rate**2) * variance / S,
        privacy=2 * scale * rate * K * noisy,
        learning_rate=rate,
    )


def _rate(numerator: float, denominator: float, root: int) -> float:
    """Return a root of a quotient; infinite where the denominator is 0."""
    if denominator == 0:
        return inf
    return float((numerator / denominator) ** (1 / root))


@held_by_floats
def corollary_2_as_printed(
    case: Literal["convex", "nonconvex"],
    losses: Losses,
    *,
    epsilon: float,
    delta: float,
    clients: int,
    sampling_rate: float,
    local_steps: int,
    smoothing: float = 0.0,
) -> float:
    """Return the right-hand side of Corollary 2, which prints no constant and means one.

    ``sqrt((variance / K + 4 (1 - tau) G^2 + d) D L^2 log(1 / delta)) / (epsilon N)``; for
    nonconvex losses with F_0 beta for D. It substitutes Theorem 1's noise into Theorems 5 and 6 at
    ``T = epsilon^2 N^2 / (C_0 L^2 S log(1 / delta))`` with a constant C_0 that the paper does not
    give, so it holds up to a constant, like `error`. The strongly convex case is `error` itself.

    Parameters
    ----------
    case, losses, epsilon, delta, clients, sampling_rate, local_steps, smoothing
        As for `error`.

    Raises
    ------
    ValueError
        If an argument is out of its range, or a constant that the case needs is missing.
    """
    one_of("case", case, ("convex", "nonconvex"))
    heavier = replace(losses, dissimilarity=2 * losses.dissimilarity)
    return error(
        case,
        heavier,
        epsilon=epsilon,
        delta=delta,
        clients=clients,
        sampling_rate=sampling_rate,
        local_steps=local_steps,
        smoothing=smoothing,
    )
