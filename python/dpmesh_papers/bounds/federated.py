"""Theorems 3 to 6 and Corollaries 1 and 2 of the federated paper: how error and rounds grow.

Symbols of the paper: N clients of which S = tau N take part in each of T rounds, with K local steps
at the learning rate eta_l; eta_g is the server's. Laplacian smoothing multiplies by A^-1, whose
eigenvalues are ``Lambda_i = 1 / (1 + 2 sigma (1 - cos(2 pi i / d)))`` in d dimensions with the
smoothing factor sigma. A squared norm "in A^-1" is ``<v, A^-1 v>``. Clients are sampled uniformly
without replacement.

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
from dpmesh_papers.bounds.floats import refuse_overflow

Case = Literal["strongly_convex", "convex", "nonconvex"]


@dataclass(frozen=True, kw_only=True)
class LossConstants:
    """Constants of the clients' losses f_1, .., f_N and of their mean f that the bounds use.

    Parameters
    ----------
    dim
        d, the number of parameters.
    lipschitz
        L: largest norm of a gradient of a client's loss (Assumption 6, where the paper means the
        norm).
    smoothness
        beta: Lipschitz constant of the clients' gradients (Assumption 2).
    gradient_variance
        varsigma^2(sigma): variance of mini-batch gradients, squared norms in A^-1, averaged over
        the clients (Assumption 5).
    dissimilarity, dissimilarity_factor
        G >= 0 and B >= 1 of Assumption 1, ``mean_j |grad f_j|^2 <= G^2 + B^2 |grad f|^2``; G = 0
        for clients of one distribution.
    strong_convexity
        mu (Assumption 3); needed for ``"strongly_convex"``.
    squared_distance
        D_sigma: squared distance of the first model from an optimum, in the norm of A; needed for
        ``"convex"``.
    initial_gap
        F_0: the first model's loss less the smallest; needed for ``"nonconvex"``.
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
        for name in _CASE_CONSTANTS.values():
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))

    def case_constant(self, case: Case) -> float:
        """Return the constant that only this case needs: mu, D_sigma or F_0.

        Raises
        ------
        ValueError
            If there is no such case, or its constant is missing.
        """
        name = _CASE_CONSTANTS[one_of("case", case, tuple(_CASE_CONSTANTS))]
        value: float | None = getattr(self, name)
        if value is None:
            return fail(name, f"a number, for the case {case!r}", None)
        return value


_CASE_CONSTANTS: dict[Case, str] = {
    "strongly_convex": "strong_convexity",
    "convex": "squared_distance",
    "nonconvex": "initial_gap",
}


def smallest_eigenvalue(dim: int, smoothing: float) -> float:
    """Return Lambda_min, the smallest eigenvalue of A^-1: at most 1, at least 1 / (1 + 4 sigma).

    Smoothing multiplies strong convexity by it: ``mu_sigma = mu Lambda_min`` (Theorem 3, Lemma 8).

    Raises
    ------
    ValueError
        If `dim` is not an integer of at least 1, or `smoothing` is not finite and at least 0.
    """
    highest_frequency = integer("dim", dim, at_least=1) // 2
    laplacian = 2 * (1 - cos(2 * pi * highest_frequency / dim))
    return 1 / (1 + non_negative("smoothing", smoothing) * laplacian)


@refuse_overflow
def error(
    case: Case,
    losses: LossConstants,
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
    gradient's squared norm in A^-1, after ``T = epsilon^2 N^2 / (C_0 L^2 S log(1 / delta))``
    rounds, at which privacy and optimization balance. With ``s = varsigma^2 / K + (1 - tau) G^2``,
    ``p = L^2 log(1 / delta) / (epsilon N)^2`` and the effective dimensions ``d_1 = sum Lambda_i``
    and ``d_2 = sum Lambda_i^2``:

        strongly convex   (s + d_1) p / mu_sigma
        convex            sqrt((s + d_1) D_sigma p)
        nonconvex         sqrt((s + d_2) F_0 beta p)

    The theorem assumes the noise of Theorem 1, the clipping norm eta_l K L, at which it takes
    clipping to change nothing, and eta_g >= sqrt(S).

    Parameters
    ----------
    case
        ``"strongly_convex"``, ``"convex"`` or ``"nonconvex"``.
    losses
        The constants of the losses.
    epsilon, delta
        The user-level budget of the run; the theorem requires log(1 / delta) >= epsilon.
    clients, sampling_rate, local_steps
        N, tau, K.
    smoothing
        sigma.

    Raises
    ------
    ValueError
        If an argument is out of its range, or a constant that the case needs is missing.
    """
    constant = losses.case_constant(case)
    epsilon = positive("epsilon", epsilon)
    delta = probability("delta", delta, zero=False, one=False)
    if log(1 / delta) < epsilon:
        fail("epsilon", f"at most log(1 / delta) = {log(1 / delta):.4g}", epsilon)
    N = integer("clients", clients, at_least=1)
    tau = probability("sampling_rate", sampling_rate, zero=False)
    K = integer("local_steps", local_steps, at_least=1)
    sampled_variance = losses.gradient_variance / K + (1 - tau) * losses.dissimilarity**2
    variance = sampled_variance + _effective_dimension(case, losses.dim, smoothing)
    price = losses.lipschitz**2 * log(1 / delta) / (epsilon * N) ** 2
    if case == "strongly_convex":
        return variance * price / (constant * smallest_eigenvalue(losses.dim, smoothing))
    if case == "convex":
        return sqrt(variance * constant * price)
    return sqrt(variance * constant * losses.smoothness * price)


@refuse_overflow
def rounds(
    case: Case,
    losses: LossConstants,
    *,
    accuracy: float,
    cohort: int,
    sampling_rate: float,
    local_steps: int,
    noise: float,
    smoothing: float = 0.0,
) -> float:
    """Return the rounds of Corollary 1 until the error is `accuracy`, up to a constant.

    With the effective dimensions d_1 and d_2 of `error`, ``b = (1 + 4 sigma) beta B^2`` and
    ``v = varsigma^2 / (K S) + d_1 (L nu_1 / S)^2 + (1 - tau) G^2 / S`` (d_2 if nonconvex):

        strongly convex   (b + v / e + sqrt(beta / e) G) / mu_sigma
        convex            D_sigma (b / e + v / e^2 + sqrt(beta) G / e^(3/2))
        nonconvex         F_0 (b / e + beta v / e^2 + beta G / e^(3/2))

    Parameters
    ----------
    case, losses, sampling_rate, local_steps, smoothing
        As for `error`.
    accuracy
        e, the error to reach.
    cohort
        S, the number of clients in a round.
    noise
        nu_1: standard deviation of the noise on the sum over the clipping norm, the same for all
        numbers of rounds.

    Raises
    ------
    ValueError
        If an argument is out of its range, or a constant that the case needs is missing.
    """
    constant = losses.case_constant(case)
    accuracy = positive("accuracy", accuracy)
    S = integer("cohort", cohort, at_least=1)
    K = integer("local_steps", local_steps, at_least=1)
    absent = 1 - probability("sampling_rate", sampling_rate, zero=False)
    nu = non_negative("noise", noise)
    smoothing = non_negative("smoothing", smoothing)
    beta = losses.smoothness
    G = losses.dissimilarity
    start = (1 + 4 * smoothing) * beta * losses.dissimilarity_factor**2
    dimension = _effective_dimension(case, losses.dim, smoothing)
    privacy_variance = dimension * (losses.lipschitz * nu / S) ** 2
    batch_variance = losses.gradient_variance / (K * S)
    variance = batch_variance + privacy_variance + absent * G**2 / S
    if case == "strongly_convex":
        curvature = constant * smallest_eigenvalue(losses.dim, smoothing)
        return (start + variance / accuracy + sqrt(beta / accuracy) * G) / curvature
    if case == "convex":
        drift = sqrt(beta) * G / (accuracy * sqrt(accuracy))
        return constant * (start / accuracy + variance / accuracy**2 + drift)
    drift = beta * G / (accuracy * sqrt(accuracy))
    return constant * (start / accuracy + beta * variance / accuracy**2 + drift)


def _effective_dimension(case: Case, dim: int, smoothing: float) -> float:
    """Return ``sum Lambda_i^2`` for the nonconvex case (Lemma 6), else ``sum Lambda_i`` (Lemma 5).

    Smoothed noise acts in so many dimensions.
    """
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


@refuse_overflow
def error_terms_as_printed(
    case: Case,
    losses: LossConstants,
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

    With the product eta of the learning rates (eta-tilde), tau and S, and d_1 and d_2 of `error`:

        start          3 mu_sigma exp(-mu_sigma eta K T / 2) D_sigma  (Theorem 4),
                       2 D_sigma / (eta K T)  (5),  8 F_0 / (eta K T)  (6)
        heterogeneity  24 beta G^2 (eta K)^2 + 8 eta (1 - tau) (K / S) G^2  (4, 5),
                       32 beta^2 G^2 (eta K)^2 + 16 beta eta (1 - tau) (K / S) G^2  (6)
        variance       2 eta (1 + S / eta_g^2) varsigma^2 / S,  2 beta times that  (6)
        privacy        2 eta K d_1 (L nu_1 / S)^2,  2 beta times that with d_2  (6)

    They are not proved bounds: (25) leaves out the products of a client's later gradients with the
    noise of its earlier mini-batches, on which its later models depend, and Lemma 7 is used for
    mini-batch gradients. Where clients take one local step (K = 1) nothing is left out. Of each
    term the theorems print a first form, in eta-tilde, which is here, and a second one in T. For
    the noise of Theorem 6 the second form has a factor of 2 where the first one gives 4.

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
    eta_g = positive("global_step_size", global_step_size)
    if eta_g < 1:
        fail("global_step_size", "at least 1", eta_g)
    constant = losses.case_constant(case)
    beta = losses.smoothness
    G = losses.dissimilarity
    batch_variance = losses.gradient_variance
    smallest = smallest_eigenvalue(losses.dim, smoothing)
    dimension = _effective_dimension(case, losses.dim, smoothing)
    privacy_variance = dimension * (losses.lipschitz * nu / S) ** 2
    H = (
        (1 / (eta_g**2 * K) + 1 / (S * K)) * batch_variance
        + 4 / S * absent * G**2
        + privacy_variance
    )
    largest_rate = smallest / (8 * K * beta * (1 + losses.dissimilarity_factor**2))

    scale = 1.0
    drift = 24 * beta * G**2  # Q_1
    if case == "strongly_convex":
        curvature = constant * smallest
        distance = losses.case_constant("convex")
        rate = _rate_of_theorem_4(T, K, curvature, distance, H, largest_rate)
        initial = 3 * curvature * exp(-curvature * rate * K * T / 2) * distance
    elif case == "convex":
        rate = _balanced_rate(T, K, constant, H, drift, largest_rate)
        initial = 2 * constant / (rate * T * K)
    else:
        scale = 2 * beta
        drift = 32 * beta**2 * G**2  # Q_2
        rate = _balanced_rate(T, K, constant, beta * H, drift, largest_rate)
        initial = 8 * constant / (rate * T * K)
    return ErrorTerms(
        initial=initial,
        heterogeneity=drift * (rate * K) ** 2 + 8 * scale * rate * absent * K / S * G**2,
        variance=2 * scale * rate * (1 + S / eta_g**2) * batch_variance / S,
        privacy=2 * scale * rate * K * privacy_variance,
        learning_rate=rate,
    )


def _rate_of_theorem_4(
    T: int, K: int, curvature: float, distance: float, H: float, largest_rate: float
) -> float:
    """Return eta-tilde of Theorem 4, ``2 ln(max(e, mu_sigma^2 T D_sigma / H)) / (mu_sigma K T)``.

    It is `largest_rate` at most. Fail if T is shorter than ``1 / (mu_sigma eta-tilde K)``.
    """
    growth = inf
    if H:
        growth = log(max(exp(1), curvature**2 * T * distance / H))
    rate = min(2 * growth / (curvature * K * T), largest_rate)
    if T * curvature * rate * K < 1:
        fail("rounds", f"at least {1 / (curvature * rate * K):.4g} (Theorem 4)", T)
    return rate


def _balanced_rate(
    T: int, K: int, start: float, H: float, drift: float, largest_rate: float
) -> float:
    """Return eta-tilde of Theorems 5 and 6, at which the terms of (15) balance.

    ``min(sqrt(start / (H T K^2)), cbrt(start / (drift T K^3)), largest_rate)``, with D_sigma, H and
    Q_1 of Theorem 5, or F_0, beta H and Q_2 of Theorem 6.
    """
    rate = largest_rate
    if H:
        rate = min(rate, sqrt(start / (H * T * K**2)))
    if drift:
        rate = min(rate, (start / (drift * T * K**3)) ** (1 / 3))
    return rate


@refuse_overflow
def corollary_2_as_printed(
    case: Literal["convex", "nonconvex"],
    losses: LossConstants,
    *,
    epsilon: float,
    delta: float,
    clients: int,
    sampling_rate: float,
    local_steps: int,
    smoothing: float = 0.0,
) -> float:
    """Return the right-hand side of Corollary 2, which prints no constant and means one.

    ``sqrt((varsigma^2 / K + 4 (1 - tau) G^2 + d_1) D_sigma L^2 log(1 / delta)) / (epsilon N)``; for
    nonconvex losses with d_2 for d_1 and F_0 beta for D_sigma. It substitutes Theorem 1's noise
    into Theorems 5 and 6 at ``T = epsilon^2 N^2 / (C_0 L^2 S log(1 / delta))`` with
    ``C_0 = (14 / lambda) (1 + 1 / (1 - lambda))``, lambda in (0, 1) of Theorem 1, and drops C_0,
    which is at least 81. As printed it does not follow: by those theorems the terms of start and
    noise together are at least 29 times (convex) or 84 times (nonconvex) its part of the noise,
    ``sqrt(d_1 D_sigma L^2 log(1 / delta)) / (epsilon N)``, whatever lambda and the learning rates.
    So it holds up to a constant, like `error`. The strongly convex case is `error` itself.

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
    with_four_times_the_square = replace(losses, dissimilarity=2 * losses.dissimilarity)
    return error(
        case,
        with_four_times_the_square,
        epsilon=epsilon,
        delta=delta,
        clients=clients,
        sampling_rate=sampling_rate,
        local_steps=local_steps,
        smoothing=smoothing,
    )
