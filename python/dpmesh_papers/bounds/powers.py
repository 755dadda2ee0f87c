"""The power laws of the quantized paper's schedules, and which of them converge."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

from dpmesh._validate import as_python_numbers, non_negative, number, one_of, positive
from dpmesh.schedules import HorizonPower, PowerLaw, SampleSize

Accountant = Literal["paper", "tight"]

ROUNDING = 1e-12
"""Sums of exponents are compared up to this: 0.7 - 0.5 + 0.3 is a little less than 0.5."""


class Schedules(NamedTuple):
    """The schedules of `QuantizedGossip`, by its names."""

    step_size: HorizonPower
    """alpha_K."""
    consensus_step_size: HorizonPower
    """beta_K."""
    sample_size: SampleSize
    """gamma_K."""
    noise_std: PowerLaw
    """sigma_k."""


@dataclass(frozen=True)
class Powers:
    """The paper's power laws, which give the schedules of any horizon K + 1.

    Our text of the paper has the exponents in words alone: the constants and the rounding of
    gamma_K are reconstructed.

    Parameters
    ----------
    step_size
        The exponent alpha of alpha_K = a1 / (K + 1)^alpha.
    consensus_step_size
        The exponent beta of beta_K = a2 / (K + 1)^beta.
    sample_size
        The exponent gamma of gamma_K = floor(a3 (K + 1)^gamma), at least 0.
    noise
        The exponent zeta of sigma_k = s (k + 1)^zeta.
    step_size_scale, consensus_step_size_scale, sample_size_scale, noise_scale
        a1, a2, a3 and s, positive.
    """

    step_size: float
    consensus_step_size: float
    sample_size: float
    noise: float
    step_size_scale: float = 1.0
    consensus_step_size_scale: float = 1.0
    sample_size_scale: float = 1.0
    noise_scale: float = 1.0

    def __post_init__(self) -> None:
        as_python_numbers(self)
        for name in ("step_size", "consensus_step_size", "noise"):
            number(name, getattr(self, name))
        non_negative("sample_size", self.sample_size)
        for name in ("step_size", "consensus_step_size", "sample_size", "noise"):
            positive(f"{name}_scale", getattr(self, f"{name}_scale"))

    def schedules(self, rounds: int) -> Schedules:
        """Return the schedules of a run of `rounds` = K + 1 rounds."""
        return Schedules(
            HorizonPower(scale=self.step_size_scale, exponent=-self.step_size, rounds=rounds),
            HorizonPower(
                scale=self.consensus_step_size_scale,
                exponent=-self.consensus_step_size,
                rounds=rounds,
            ),
            SampleSize(scale=self.sample_size_scale, exponent=self.sample_size, rounds=rounds),
            PowerLaw(scale=self.noise_scale, exponent=self.noise),
        )

    @property
    def theta(self) -> float:
        """The rate: the gap of every node shrinks as (K + 1)^-theta, if theta is positive.

        min(2 (alpha - beta), 2 beta - alpha - 2 max(zeta, 0)): of the nodes' disagreement, and of
        the noise. Ours; the paper's Theorem 2 is missing from our text. Both exponents are sharp.
        The best beta is (3 alpha + 2 zeta) / 4, with theta = alpha / 2 - zeta (zeta >= 0).
        """
        disagreement = 2 * (self.step_size - self.consensus_step_size)
        noise = 2 * self.consensus_step_size - self.step_size - 2 * max(self.noise, 0.0)
        return min(disagreement, noise)

    @property
    def complexity_exponent(self) -> float:
        """(1 + gamma) / theta: a gap of phi takes O(phi^-this) gradients of records (Theorem 4).

        Infinite where theta is not positive.
        """
        if self.theta <= ROUNDING:
            return inf
        return (1 + self.sample_size) / self.theta

    def stays_finite(self, accountant: Accountant) -> bool:
        """Return True if the privacy budget stays finite as the horizon grows.

        Theorem 1, as reconstructed (``"paper"``), requires alpha - beta + gamma > max(0, 1 - zeta):
        sensitivities Delta_k are of the order (K + 1)^-(alpha - beta + gamma), and it sums all
        Delta_k / sigma_k. Gaussian differential privacy (``"tight"``) sums the squares. It requires
        2 (alpha - beta + gamma) >= max(0, 1 - 2 zeta), strictly where 1 - 2 zeta is 0.
        """
        return self._finite_budget(accountant).holds

    def violations(self, accountant: Accountant = "tight") -> tuple[str, ...]:
        """Return the conditions that fail for the family of all horizons: none if it converges.

        Each is a line ``condition: got value``. Converging and a finite budget together are the
        paper's Corollary 1, as reconstructed.

        Parameters
        ----------
        accountant
            The accounting by which the budget must stay finite as the horizon grows: Gaussian
            differential privacy (``"tight"``), or Theorem 1 (``"paper"``), which requires far more.
        """
        return tuple(map(str, self.unmet_conditions(accountant)))

    def unmet_conditions(self, accountant: Accountant = "tight") -> tuple[Condition, ...]:
        """Return the conditions of `violations` that do not hold."""
        alpha = self.step_size
        beta = self.consensus_step_size
        noise_decay = 2 * beta - alpha
        noise_growth = 2 * max(self.noise, 0.0)
        two_time_scales = Condition(
            holds=0 < beta < alpha < 1,
            requirement="0 < beta < alpha < 1",
            actual=f"{beta:g}, {alpha:g}",
        )
        vanishing_noise = Condition(
            holds=noise_decay - noise_growth > ROUNDING,
            requirement="2 beta - alpha > 2 max(zeta, 0)",
            actual=f"{noise_decay:g}",
        )
        return unmet(two_time_scales, vanishing_noise, self._finite_budget(accountant))

    def _finite_budget(self, accountant: Accountant) -> Condition:
        """Return the condition of `stays_finite`."""
        one_of("accountant", accountant, ("paper", "tight"))
        decay = self.step_size - self.consensus_step_size + self.sample_size
        if accountant == "paper":
            symbols = "alpha - beta + gamma"
            exponent = decay
            growth = 1 - self.noise
            strict = True
        else:
            symbols = "2 (alpha - beta + gamma)"
            exponent = 2 * decay
            growth = 1 - 2 * self.noise
            strict = abs(growth) < ROUNDING  # a sum of 1 / k grows as a logarithm
        threshold = max(0.0, growth)
        if strict:
            holds = exponent - threshold > ROUNDING
            relation = ">"
        else:
            holds = exponent - threshold > -ROUNDING
            relation = ">="
        requirement = f"{symbols} {relation} {threshold:g} for a finite budget"
        return Condition(holds=holds, requirement=requirement, actual=f"{exponent:g}")


class Condition(NamedTuple):
    """An inequality in the paper's symbols."""

    holds: bool
    requirement: str
    """The inequality, such as ``0 < beta < alpha < 1``."""
    actual: str
    """The value of its left-hand side."""

    def __str__(self) -> str:
        """Return the line of a violation."""
        return f"{self.requirement}: got {self.actual}"


def unmet(*conditions: Condition) -> tuple[Condition, ...]:
    """Return the conditions that do not hold."""
    return tuple(condition for condition in conditions if not condition.holds)
