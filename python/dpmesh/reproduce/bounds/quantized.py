"""The power laws of the quantized paper's schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from dpmesh._validate import every, non_negative, number, one_of, positive
from dpmesh.schedules import HorizonPower, PowerLaw, SampleSize

ROUNDING = 1e-12
"""Sums of exponents are compared up to this: 2 (0.7 - 0.5 + 0.3) is a little less than 1."""

Accountant = Literal["paper", "tight"]


class Schedules(NamedTuple):
    """The schedules of `QuantizedGossip`, by its names."""

    step_size: HorizonPower
    consensus_step_size: HorizonPower
    sample_size: SampleSize
    noise_std: PowerLaw


@dataclass(frozen=True)
class Powers:
    """The paper's power laws, which give the schedules of any horizon.

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
        every(self, number, "step_size", "consensus_step_size", "noise")
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

    def stays_finite(self, accountant: Accountant) -> bool:
        """Whether the budget stays finite as the horizon grows, by Theorem 1 or exact accounting.

        Theorem 1 (``"paper"``) requires alpha - beta + gamma > 1 - zeta, Gaussian differential
        privacy (``"tight"``) 2 (alpha - beta + gamma) >= 1 - 2 zeta, and > where that is 0.
        """
        one_of("accountant", accountant, ("paper", "tight"))
        decay = self.step_size - self.consensus_step_size + self.sample_size
        if accountant == "paper":
            return decay - max(0.0, 1 - self.noise) > ROUNDING
        needed = 1 - 2 * self.noise
        strict = abs(needed) < ROUNDING
        return 2 * decay - max(0.0, needed) > (ROUNDING if strict else -ROUNDING)
