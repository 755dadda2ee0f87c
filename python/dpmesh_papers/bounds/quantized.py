"""The quantized paper's rates, and schedules that meet a budget.

The inequalities behind Theorems 1 and 2 are missing from the text that we have. Those here are our
own, and proved sufficient for convergence and for a finite budget. With K + 1 rounds, alpha_K and
beta_K the two step sizes, gamma_K the size of a sample, sigma_k the noise and L the smoothness,
rho_L and l_n the second smallest and the largest eigenvalue of I - A,

    S = sum_i |x_i - mean|^2,   V = F(mean) - F*,   M = F* - sum_i f_i*,   W_k = d (sigma_k^2 + q)

(q is the variance that the quantizer adds to a number, at most its step^2 / 4) one iteration gives

    E S' <= (1 - beta rho_L + 4 alpha^2 L^2 / (beta rho_L)) S + 8 L alpha^2 / (beta rho_L) (V + M)
            + n alpha^2 s^2 / gamma + n beta^2 W_k
    E V' <= (1 - alpha mu / (2n)) V + (alpha L^2 / 2 + L^3 alpha^2) S
            + L / 2 alpha^2 s^2 / gamma + L / 2 beta^2 W_k
    F(x_i) - F* <= 2 V + n L S

under the Polyak-Lojasiewicz condition |grad F|^2 >= 2 mu (F - F*) and the step sizes of
`Landscape.step_sizes_too_large`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
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
from dpmesh_papers.bounds.powers import Powers, Schedules, unmet

__all__ = ["Advice", "Complexity", "Landscape", "Powers", "Schedules", "advise"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """Constants of the problem and of the network that the bounds use.

    Parameters
    ----------
    dim
        d, the number of parameters.
    smoothness
        L: Lipschitz constant of every node's gradient; for `advise`, of every record's.
    polyak_lojasiewicz
        mu: half the squared norm of the gradient of F = sum_i f_i is at least mu (F - F*). For
        convex losses, the number of nodes times the factor of the regularizer.
    gradient_variance
        s^2: variance of a record's gradient around its node's.
    initial_gap
        F at the start less F*.
    mixing_matrix
        A, symmetric and connected.
    dissimilarity
        M: F* less the sum of the nodes' own minima; 0 if one point minimizes all of them.
    quantizer_step
        0 if nothing is quantized.
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
        """Return the conditions of the inequalities above that these schedules violate."""
        alpha = schedules.step_size(1)
        beta = schedules.consensus_step_size(1)
        rho, largest = self._spectrum
        spread = beta * (largest + rho)
        steep = alpha * self.smoothness
        return unmet(
            (beta <= 1, "beta_K <= 1", f"{beta:g}"),
            (spread <= 2, "beta_K (l_n + rho_L) <= 2", f"{spread:g}"),
            (beta * rho <= 1, "beta_K rho_L <= 1", f"{beta * rho:g}"),
            (steep <= 0.25, "alpha_K L <= 1/4", f"{steep:g}"),
        )

    def gap(self, schedules: Schedules, rounds: int, *, failure: float | None = None) -> float:
        """Return the bound on F(x_i) - F* after `rounds` rounds, for every node i.

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
        share = 1.0
        if failure is not None:
            share = probability("failure", failure, zero=False)
        wrong = self.step_sizes_too_large(schedules)
        if wrong:
            fail("schedules", *wrong[0].split(": got "))
        return float(self._gaps([schedules], integer("rounds", rounds, at_least=1))[0]) / share

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

        def reached(rounds: int) -> bool:
            schedules = powers.schedules(rounds)
            return (
                not self.step_sizes_too_large(schedules) and self.gap(schedules, rounds) <= target
            )

        horizons = [*(2**k for k in range(longest.bit_length()) if 2**k < longest), longest]
        sufficient = next((rounds for rounds in horizons if reached(rounds)), None)
        if sufficient is None:
            return fail("gap", f"one that the bound reaches within {longest} rounds", target)
        shorter = range(sufficient // 2 + 1, sufficient)  # the last one tried was too short
        rounds = sufficient // 2 + 1 + bisect_left(shorter, True, key=reached)
        return Complexity(rounds, rounds * powers.schedules(rounds).sample_size(1))

    def _gaps(self, all_schedules: Sequence[Schedules], rounds: int) -> Floats:
        """Return the bounds of many schedules at once."""
        alpha = np.array([schedules.step_size(1) for schedules in all_schedules])
        beta = np.array([schedules.consensus_step_size(1) for schedules in all_schedules])
        gamma = np.array([schedules.sample_size(1) for schedules in all_schedules])
        rho, _ = self._spectrum
        n = self.mixing_matrix.nodes
        smooth = self.smoothness
        mu = self.polyak_lojasiewicz
        sampled = alpha**2 * self.gradient_variance / gamma
        rounding = self.quantizer_step**2 / 4
        squared_distance = np.zeros(len(all_schedules))
        mean_gap = np.full(len(all_schedules), self.initial_gap)
        with np.errstate(over="ignore", invalid="ignore"):  # a bound that diverges is infinite
            for noise in chain(
                [np.zeros(len(all_schedules))], _variances(all_schedules, rounds)
            ):  # x_0: no noise
                drift = sampled + beta**2 * self.dim * (noise + rounding)
                squared_distance, mean_gap = (
                    (1 - beta * rho + 4 * (alpha * smooth) ** 2 / (beta * rho)) * squared_distance
                    + 8 * smooth * alpha**2 / (beta * rho) * (mean_gap + self.dissimilarity)
                    + n * drift,
                    (1 - alpha * mu / (2 * n)) * mean_gap
                    + (alpha * smooth**2 / 2 + smooth**3 * alpha**2) * squared_distance
                    + smooth / 2 * drift,
                )
            return np.nan_to_num(2 * mean_gap + n * smooth * squared_distance, nan=inf)

    @property
    def _spectrum(self) -> tuple[float, float]:
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
    landscape: Landscape,
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
    landscape
        The problem and the network.
    clipping_norm, mode
        As of `QuantizedGossip`; its smoothness is that of the landscape. The bound on the gap is
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
    target = 1 / accounting.analytic_gaussian_noise_to_sensitivity(
        target_epsilon=target_epsilon, target_delta=target_delta
    )
    reasons: Counter[str] = Counter()
    possible = []
    for candidate in _candidates(log(records) / log(rounds)):
        too_large = landscape.step_sizes_too_large(candidate.schedules(rounds))
        wrong = candidate.violations() + too_large
        reasons.update(condition.split(": got ")[0] for condition in wrong[:1])
        if not wrong:
            possible.append(candidate)
    if possible:
        schedules = [candidate.schedules(rounds) for candidate in possible]
        mus = _mus(schedules, rounds, clipping_norm, mode, landscape.smoothness)
        scales = mus / target * (1 + 1e-12)
        possible = [
            replace(candidate, noise_scale=float(scale))
            for candidate, scale in zip(possible, scales, strict=True)
        ]
        schedules = [candidate.schedules(rounds) for candidate in possible]
        gaps = landscape._gaps(schedules, rounds)
        best = int(gaps.argmin())
        if gaps[best] < landscape.initial_gap:
            epsilon = accounting.gdp_epsilon(delta=target_delta, mu=float(mus[best] / scales[best]))
            return Advice(possible[best], float(gaps[best]), epsilon)
        improvement = f"a gap below the initial {landscape.initial_gap:g} (best: {gaps[best]:.3g})"
        reasons[improvement] = len(possible)
    counted = "; ".join(f"{reason}, failed by {count}" for reason, count in reasons.most_common())
    return fail("target_epsilon", "a budget that some schedule meets and converges", counted)


def _mus(
    all_schedules: Sequence[Schedules],
    rounds: int,
    clipping_norm: float,
    mode: Mode,
    smoothness: float,
) -> Floats:
    """Return the mu of Gaussian differential privacy of many schedules with equal samples."""
    deltas = sensitivities(
        rounds - 1,
        step_size=[schedules.step_size(1) for schedules in all_schedules],
        consensus_step_size=[schedules.consensus_step_size(1) for schedules in all_schedules],
        gradient_bound=2 * clipping_norm,
        sample_size=all_schedules[0].sample_size(1),
        mode=mode,
        smoothness=smoothness,
    )
    squares = np.zeros(len(all_schedules))
    for delta, variance in zip(deltas, _variances(all_schedules, rounds), strict=True):
        squares += delta**2 / variance
    return np.sqrt(squares)


def _candidates(sample_size: float) -> Iterator[Powers]:
    """Yield exponents with positive theta, beta between alpha / 2 + zeta and alpha, and scales."""
    for alpha in np.arange(0.3, 0.96, 0.05).tolist():
        for zeta in (-0.2, -0.1, 0.0, 0.1, 0.2):
            lowest = alpha / 2 + max(zeta, 0.0)
            for share in (0.25, 0.5, 0.75):
                beta = lowest + share * (alpha - lowest)
                if beta >= alpha:
                    continue
                for scale in (0.01, 0.03, 0.1, 0.3, 1.0):
                    yield Powers(alpha, beta, sample_size, zeta, step_size_scale=scale)


def _variances(many: Sequence[Schedules], rounds: int) -> Iterator[Floats]:
    """Yield the variances of the noise from round 1 on."""
    scale = np.array([schedules.noise_std.scale for schedules in many])
    exponent = np.array([schedules.noise_std.exponent for schedules in many])
    for k in range(1, rounds):
        yield (scale * (k + 1.0) ** exponent) ** 2
