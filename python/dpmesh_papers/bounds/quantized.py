"""The quantized paper's rates, and schedules that meet a budget.

The inequalities behind Theorems 1 and 2 are missing from the text that we have. Those here are our
own, and proved sufficient for convergence and for a finite budget. Symbols: K + 1 rounds, alpha_K
and beta_K the two step sizes, gamma_K the size of a sample, sigma_k the noise, L the smoothness, mu
the Polyak-Lojasiewicz constant, s^2 the variance of a record's gradient, n nodes, d parameters,
rho_L and l_n the second smallest and the largest eigenvalue of I - A. With

    S = sum_i |x_i - mean|^2,   V = F(mean) - F*,   M = F* - sum_i f_i*,   W_k = d (sigma_k^2 + q)

(q is the variance that the quantizer adds to a number, at most its step^2 / 4) one iteration gives

    E S' <= (1 - beta rho_L + 4 alpha^2 L^2 / (beta rho_L)) S + 8 L alpha^2 / (beta rho_L) (V + M)
            + n alpha^2 s^2 / gamma + n beta^2 W_k
    E V' <= (1 - alpha mu / (2n)) V + (alpha L^2 / 2 + L^3 alpha^2) S
            + L / 2 alpha^2 s^2 / gamma + L / 2 beta^2 W_k
    F(x_i) - F* <= 2 V + n L S

under the Polyak-Lojasiewicz condition |grad F|^2 >= 2 mu (F - F*) and the step sizes of
`ProblemConstants.step_sizes_too_large`, for nodes that start at one point (S = 0) and send it
without noise, as `QuantizedGossip` does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import dpmesh.accounting as accounting
from dpmesh._validate import (
    as_python_numbers,
    fail,
    instance,
    integer,
    non_negative,
    positive,
    probability,
)
from dpmesh.accounting.papers.quantized import Mode, sensitivities
from dpmesh.topology import MixingMatrix
from dpmesh_papers.bounds.powers import Condition, Powers, Schedules, unmet

__all__ = ["Advice", "Complexity", "Powers", "ProblemConstants", "Schedules", "advise"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ProblemConstants:
    """Constants of the problem and of the network that the bounds use.

    F is the sum, not the mean, of the nodes' losses f_i, each a mean over the node's records.

    Parameters
    ----------
    dim
        d, the number of parameters.
    smoothness
        L: Lipschitz constant of every node's gradient (Assumption 2); for `advise`, of every
        record's.
    polyak_lojasiewicz
        mu: ``|grad F|^2 >= 2 mu (F - F*)`` (Assumption 2(iv)). For convex losses with a
        regularizer, the number of nodes times its factor.
    gradient_variance
        s^2: variance of a record's gradient around its node's.
    initial_gap
        F at the common start of all nodes less F*.
    mixing_matrix
        A, symmetric and connected (Assumption 1).
    dissimilarity
        M: F* less the sum of the minima of the f_i; 0 if one point minimizes all of them.
    quantizer_step
        Step of the quantizer (3), which adds at most step^2 / 4 to the variance of a number; 0 if
        nothing is quantized.
    """

    dim: int
    smoothness: float
    polyak_lojasiewicz: float
    gradient_variance: float
    initial_gap: float
    mixing_matrix: MixingMatrix
    dissimilarity: float = 0.0
    quantizer_step: float = 0.0

    def __post_init__(self) -> None:
        as_python_numbers(self)
        integer("dim", self.dim, at_least=1)
        for name in ("smoothness", "polyak_lojasiewicz", "initial_gap"):
            positive(name, getattr(self, name))
        for name in ("gradient_variance", "dissimilarity", "quantizer_step"):
            non_negative(name, getattr(self, name))
        components = self.mixing_matrix.components
        if components != 1:
            fail("mixing_matrix", "a connected graph", f"one of {components} components")

    def step_sizes_too_large(self, schedules: Schedules) -> tuple[str, ...]:
        """Return the conditions of the inequalities above that these schedules violate.

        Each is a line ``condition: got value``.
        """
        return tuple(map(str, self._unmet_conditions(schedules)))

    def _unmet_conditions(self, schedules: Schedules) -> tuple[Condition, ...]:
        alpha = schedules.step_size(1)
        beta = schedules.consensus_step_size(1)
        rho, largest = self._spectrum
        spread = beta * (largest + rho)
        gradient_step = alpha * self.smoothness
        return unmet(
            Condition(beta <= 1, "beta_K <= 1", f"{beta:g}"),
            Condition(spread <= 2, "beta_K (l_n + rho_L) <= 2", f"{spread:g}"),
            Condition(beta * rho <= 1, "beta_K rho_L <= 1", f"{beta * rho:g}"),
            Condition(gradient_step <= 0.25, "alpha_K L <= 1/4", f"{gradient_step:g}"),
        )

    def gap(self, schedules: Schedules, rounds: int, *, failure: float | None = None) -> float:
        """Return the bound on F(x_i) - F* after `rounds` rounds, for every node i.

        It iterates the inequalities above, and is infinite where they diverge.

        Parameters
        ----------
        schedules, rounds
            The run.
        failure
            None bounds the mean over runs (Theorem 2). A number in (0, 1] bounds a single run, but
            for this probability: the mean's bound over it (Theorem 3, by Markov's inequality).

        Raises
        ------
        ValueError
            If an argument is out of its range, or the step sizes are too large for the
            inequalities.
        """
        instance("schedules", schedules, "schedules, such as powers.schedules(rounds)", Schedules)
        failure_probability = 1.0
        if failure is not None:
            failure_probability = probability("failure", failure, zero=False)
        violated = self._unmet_conditions(schedules)
        if violated:
            fail("schedules", violated[0].requirement, violated[0].actual)
        mean_gap = self._gaps([schedules], integer("rounds", rounds, at_least=1))[0]
        return float(mean_gap) / failure_probability

    def oracle_complexity(
        self, powers: Powers, gap: float, *, most_rounds: int = 10_000
    ) -> Complexity:
        """Return the rounds and samples until `gap` bounds the mean gap (Definition 5, Theorem 4).

        Parameters
        ----------
        powers
            The schedules of all horizons; their samples may be larger than the data.
        gap
            phi, positive.
        most_rounds
            Longest horizon to try.

        Raises
        ------
        ValueError
            If an argument is out of its range, or the bound does not reach `gap`.
        """
        instance("powers", powers, "power laws, such as advise(..).powers", Powers)
        target = positive("gap", gap)
        longest = integer("most_rounds", most_rounds, at_least=1)

        def suffices(rounds: int) -> bool:
            schedules = powers.schedules(rounds)
            if self._unmet_conditions(schedules):
                return False
            return self.gap(schedules, rounds) <= target

        doubling = [2**k for k in range(longest.bit_length()) if 2**k < longest]
        sufficient = next(filter(suffices, [*doubling, longest]), None)
        if sufficient is None:
            return fail("gap", f"one that the bound reaches within {longest} rounds", target)
        too_short = sufficient // 2  # the horizon tried before
        rounds = too_short + 1
        rounds += bisect_left(range(rounds, sufficient), True, key=suffices)
        return Complexity(rounds, rounds * powers.schedules(rounds).sample_size(1))

    def _gaps(self, all_schedules: Sequence[Schedules], rounds: int) -> Floats:
        """Return the bounds of many schedules at once, shape (schedules,)."""
        alpha = np.array([schedules.step_size(1) for schedules in all_schedules])
        beta = np.array([schedules.consensus_step_size(1) for schedules in all_schedules])
        gamma = np.array([schedules.sample_size(1) for schedules in all_schedules])
        rho, _ = self._spectrum
        n = self.mixing_matrix.nodes
        L = self.smoothness
        sampling_variance = alpha**2 * self.gradient_variance / gamma
        quantizer_variance = self.quantizer_step**2 / 4
        contraction = 1 - beta * rho + 4 * (alpha * L) ** 2 / (beta * rho)
        gap_to_distance = 8 * L * alpha**2 / (beta * rho)
        descent = 1 - alpha * self.polyak_lojasiewicz / (2 * n)
        distance_to_gap = alpha * L**2 / 2 + L**3 * alpha**2
        S = np.zeros(len(all_schedules))
        V = np.full(len(all_schedules), self.initial_gap)
        with np.errstate(over="ignore", invalid="ignore"):  # a bound that diverges is infinite
            for noise_variance in _noise_variances(all_schedules, rounds):
                message_variance = self.dim * beta**2 * (noise_variance + quantizer_variance)
                variance = sampling_variance + message_variance
                next_S = contraction * S + gap_to_distance * (V + self.dissimilarity) + n * variance
                V = descent * V + distance_to_gap * S + L / 2 * variance
                S = next_S
            return np.nan_to_num(2 * V + n * L * S, nan=inf)

    @property
    def _spectrum(self) -> tuple[float, float]:
        """rho_L and l_n."""
        matrix = self.mixing_matrix
        return matrix.algebraic_connectivity, matrix.largest_laplacian_eigenvalue


class Complexity(NamedTuple):
    """Rounds and samples until the bound reaches a gap.

    Attributes
    ----------
    rounds
        K + 1 of the shortest horizon that suffices, provided that longer ones do, too.
    samples
        Gradients of records that each node computes in all rounds.
    """

    rounds: int
    samples: int


class Advice(NamedTuple):
    """Schedules that converge and meet a budget.

    Attributes
    ----------
    powers
        Exponents and scales; ``QuantizedGossip(**powers.schedules(rounds)._asdict(), ..)``.
    gap
        Bound on every node's expected gap after the run.
    epsilon
        Epsilon of the run: at most the target.
    """

    powers: Powers
    gap: float
    epsilon: float


def advise(
    target_epsilon: float,
    target_delta: float,
    *,
    rounds: int,
    records: int,
    constants: ProblemConstants,
    clipping_norm: float,
    mode: Mode = "safe",
) -> Advice:
    """Return the power laws with the smallest bound on the gap that meet a budget at a horizon.

    The samples are as large as the data allow, which helps privacy and accuracy alike; the noise is
    the least that meets the budget; alpha, beta, zeta and a1 are searched on a grid, with a2 = 1.

    Parameters
    ----------
    target_epsilon, target_delta
        The budget, for replacing one record.
    rounds
        The horizon K + 1, at least 2.
    records
        Largest sample: at most the fewest records of a node.
    constants
        The problem and the network.
    clipping_norm, mode
        As of `QuantizedGossip`, whose smoothness is that of the constants. The bound on the gap is
        proved for gradients at the states that need no clipping, not for ``"public_point"``.

    Raises
    ------
    ValueError
        If an argument is out of range, or nothing on the grid meets the budget; the error states
        why.
    """
    rounds = integer("rounds", rounds, at_least=2)
    records = integer("records", records, at_least=1)
    clipping_norm = positive("clipping_norm", clipping_norm)
    target_mu = 1 / accounting.analytic_gaussian_noise_to_sensitivity(
        target_epsilon=target_epsilon, target_delta=target_delta
    )
    reasons: Counter[str] = Counter()
    converging = []
    for candidate in _candidates(sample_size=log(records) / log(rounds)):
        violated = candidate.unmet_conditions()
        violated += constants._unmet_conditions(candidate.schedules(rounds))
        if violated:
            reasons[violated[0].requirement] += 1
        else:
            converging.append(candidate)
    if converging:
        mus = _gdp_mus(converging, rounds, clipping_norm, mode, constants.smoothness)
        scales = mus / target_mu * (1 + 1e-12)
        calibrated = [
            replace(candidate, noise_scale=float(scale))
            for candidate, scale in zip(converging, scales, strict=True)
        ]
        gaps = constants._gaps([powers.schedules(rounds) for powers in calibrated], rounds)
        best = int(gaps.argmin())
        if gaps[best] < constants.initial_gap:
            mu = float(mus[best] / scales[best])
            epsilon = accounting.gdp_epsilon(delta=target_delta, mu=mu)
            return Advice(calibrated[best], float(gaps[best]), epsilon)
        improvement = f"a gap below the initial {constants.initial_gap:g} (best: {gaps[best]:.3g})"
        reasons[improvement] = len(calibrated)
    counted = "; ".join(f"{reason}, failed by {count}" for reason, count in reasons.most_common())
    return fail("target_epsilon", "a budget that some schedule meets and converges", counted)


def _gdp_mus(
    candidates: Sequence[Powers], rounds: int, clipping_norm: float, mode: Mode, smoothness: float
) -> Floats:
    """Return the mu of Gaussian differential privacy of many schedules with equal samples.

    ``mu^2 = sum_k (Delta_k / sigma_k)^2`` over the noisy rounds; shape (candidates,).
    """
    all_schedules = [powers.schedules(rounds) for powers in candidates]
    deltas = sensitivities(
        rounds - 1,
        step_size=[schedules.step_size(1) for schedules in all_schedules],
        consensus_step_size=[schedules.consensus_step_size(1) for schedules in all_schedules],
        gradient_bound=2 * clipping_norm,
        sample_size=all_schedules[0].sample_size(1),
        mode=mode,
        smoothness=smoothness,
    )
    noise_variances = _noise_variances(all_schedules, rounds)
    next(noise_variances)  # x_0, without noise and of no sensitivity
    squares = np.zeros(len(all_schedules))
    for delta, variance in zip(deltas, noise_variances, strict=True):
        squares += delta**2 / variance
    return np.sqrt(squares)


STEP_EXPONENTS = tuple(np.arange(0.3, 0.96, 0.05).tolist())
"""alpha in `advise`."""
NOISE_EXPONENTS = (-0.2, -0.1, 0.0, 0.1, 0.2)
"""zeta in `advise`."""
STEP_SCALES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""a1 in `advise`."""


def _candidates(sample_size: float) -> Iterator[Powers]:
    """Yield exponents with positive theta, beta between alpha / 2 + zeta and alpha, and scales."""
    for alpha, zeta, share in product(STEP_EXPONENTS, NOISE_EXPONENTS, (0.25, 0.5, 0.75)):
        lowest_beta = alpha / 2 + max(zeta, 0.0)
        beta = lowest_beta + share * (alpha - lowest_beta)
        if beta >= alpha:
            continue
        for scale in STEP_SCALES:
            yield Powers(alpha, beta, sample_size, zeta, step_size_scale=scale)


def _noise_variances(all_schedules: Sequence[Schedules], rounds: int) -> Iterator[Floats]:
    """Yield sigma_k^2 of the messages of each round, shape (schedules,): 0 in the first, of x_0."""
    scales = np.array([schedules.noise_std.scale for schedules in all_schedules])
    exponents = np.array([schedules.noise_std.exponent for schedules in all_schedules])
    yield np.zeros(len(all_schedules))
    for k in range(1, rounds):
        yield (scales * (k + 1.0) ** exponents) ** 2
