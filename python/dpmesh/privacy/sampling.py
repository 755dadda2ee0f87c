"""Which units take part in a release: drawn by secret coins, which amplifies privacy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dpmesh._validate import as_python_numbers, integer, probability
from dpmesh.privacy.types import NeighboringRelation

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class PoissonSampling:
    """Each unit takes part with probability `rate`, in (0, 1], independently.

    Amplifies under ``"add_remove"``, as long as neither who took part nor how many is published.
    """

    amplifies_under: ClassVar[NeighboringRelation] = "add_remove"

    rate: float

    def __post_init__(self) -> None:
        as_python_numbers(self)
        probability("rate", self.rate, zero=False)

    def event(self, release: DpEvent) -> DpEvent:
        """Return the sampled release as an event of dp-accounting."""
        import dp_accounting

        return dp_accounting.PoissonSampledDpEvent(self.rate, release)


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampling:
    """`size` out of `population` units take part, drawn without replacement.

    Amplifies under ``"replace_one"``, as long as who took part is not published.
    """

    amplifies_under: ClassVar[NeighboringRelation] = "replace_one"

    size: int
    population: int

    def __post_init__(self) -> None:
        as_python_numbers(self)
        integer("population", self.population, at_least=1)
        integer("size", self.size, at_least=1, below=self.population + 1)

    @property
    def rate(self) -> float:
        """Share of the units that take part."""
        return self.size / self.population

    def event(self, release: DpEvent) -> DpEvent:
        """Return the sampled release as an event of dp-accounting."""
        import dp_accounting

        return dp_accounting.SampledWithoutReplacementDpEvent(self.population, self.size, release)


Sampling = PoissonSampling | FixedSizeSampling


def sampling_of(stored: Mapping[str, Any]) -> Sampling:
    """Return the sampling whose fields these are."""
    return PoissonSampling(**stored) if "rate" in stored else FixedSizeSampling(**stored)
