"""Which units take part in a release: drawn by secret coins, which amplifies privacy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from dpmesh._privacy_types import NeighboringRelation
from dpmesh._validate import as_python_numbers, every, fail, integer, probability
from dpmesh.accounting._arguments import only_replace_one
from dpmesh.accounting._pairs import GAUSSIAN, LAPLACE, DominatingPair, FixedSize, Law, Poisson
from dpmesh.accounting._poisson_pairs import PublishedSample
from dpmesh.accounting.allocation import Allocation, share_array
from dpmesh.accounting.sampled import fixed_size_gaussian_epsilon, poisson_gaussian_epsilon

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class PoissonSampling:
    """Each unit takes part with probability `rate`, in (0, 1], independently.

    Amplifies under ``"add_remove"``, as long as neither who took part nor how many is published.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.PoissonSampling(0.01).rate
    0.01
    """

    amplifies_under: ClassVar[NeighboringRelation] = "add_remove"
    samples: ClassVar[str] = "Poisson samples"
    failure: ClassVar[float] = 0.0
    curve = staticmethod(poisson_gaussian_epsilon)
    """The epsilon of releases with Gaussian noise, by their Rényi curve."""

    rate: float

    def __post_init__(self) -> None:
        every(self, probability, "rate", zero=False)

    def event(self, release: DpEvent) -> DpEvent:
        """Return the sampled release as an event of dp-accounting."""
        import dp_accounting

        return dp_accounting.PoissonSampledDpEvent(self.rate, release)

    def pair(self, law: Law, relation: NeighboringRelation) -> DominatingPair:
        """Return the pair that dominates a sampled release whose noise has these losses."""
        if relation == "add_remove":
            return Poisson(law)
        return PublishedSample(law)

    def require(self, relation: NeighboringRelation) -> None:
        """Accept both relations: a sample that is published costs no less than this."""


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampling:
    """`size` out of `population` units take part, drawn without replacement.

    Amplifies under ``"replace_one"``, as long as who took part is not published.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.FixedSizeSampling(size=10, population=1000).rate
    0.01
    """

    amplifies_under: ClassVar[NeighboringRelation] = "replace_one"
    samples: ClassVar[str] = "samples of fixed size"
    failure: ClassVar[float] = 0.0
    curve = staticmethod(fixed_size_gaussian_epsilon)
    """The epsilon of releases with Gaussian noise, by their Rényi curve."""

    size: int
    population: int

    def __post_init__(self) -> None:
        every(self, integer, "population", at_least=1)
        integer("size", self.size, at_least=1, below=self.population + 1)

    @property
    def rate(self) -> float:
        """Share of the units that take part."""
        return self.size / self.population

    def event(self, release: DpEvent) -> DpEvent:
        """Return the sampled release as an event of dp-accounting."""
        import dp_accounting

        return dp_accounting.SampledWithoutReplacementDpEvent(self.population, self.size, release)

    def pair(self, law: Law, relation: NeighboringRelation) -> DominatingPair:
        """Return the pair that dominates a sampled release whose noise has these losses."""
        return FixedSize(law)

    def require(self, relation: NeighboringRelation) -> None:
        """Fail under another relation: to add a unit swaps it for another in a sample."""
        only_replace_one(relation)


@dataclass(frozen=True, kw_only=True)
class RandomAllocation:
    """Each unit takes part in one release of a group, which it draws secretly beforehand.

    All releases of the group have an equal sampling, and are one event: the whole group is charged
    from its first release on, also if a run ends early. Groups of other cycles are other events.

    The sensitivity of a release must be twice a bound of one unit's own part under
    ``"replace_one"``, and that bound under ``"add_remove"``. Units draw independently, so that the
    number in a release is random; it stays secret, as does who took part, and a release of no unit
    has noise, too.

    Parameters
    ----------
    rounds
        Number of releases, each as likely as the others. Give this or `shares`.
    shares
        Probability of each release, in (0, 1]; what is missing to 1 is never released.
    cycle
        Number of the pass over the data, from 0; units draw anew in each.
    failure
        Probability, at most, that releases are more sensitive than declared: it is added to delta.

    Raises
    ------
    ValueError
        If a number is out of its range, or both or neither of `rounds` and `shares` are given.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.RandomAllocation(rounds=50).rate
    0.02
    """

    amplifies_under: ClassVar[None] = None
    samples: ClassVar[str] = "random allocation"

    rounds: int = 0
    shares: tuple[float, ...] = ()
    cycle: int = 0
    failure: float = 0.0

    def __post_init__(self) -> None:
        as_python_numbers(self)
        if self.shares:
            shares = share_array(self.shares)
            if self.rounds not in (0, shares.size):
                fail("rounds", "either rounds or shares", "both")
            object.__setattr__(self, "shares", tuple(shares.tolist()))
            object.__setattr__(self, "rounds", shares.size)
        integer("rounds", self.rounds, at_least=1)
        integer("cycle", self.cycle)
        probability("failure", self.failure, one=False)

    @property
    def rate(self) -> float:
        """Largest probability of a release."""
        return max(self.shares, default=1 / self.rounds)

    @property
    def alike(self) -> tuple[tuple[float, int], ...]:
        """The distinct shares, and how many releases have each."""
        if not self.shares:
            return ((1 / self.rounds, self.rounds),)
        return tuple(sorted(Counter(self.shares).items()))

    @property
    def known(self) -> RandomAllocation | None:
        """The sampling of a release if everybody knows who takes part: what may fail is left."""
        if self.failure:
            return replace(self, rounds=1, shares=())
        return None

    def event(self, release: DpEvent) -> DpEvent:
        """Return the release itself: dp-accounting has no event for less."""
        return release

    def pair(self, law: Law, relation: NeighboringRelation) -> DominatingPair:
        """Return the pair that dominates all releases whose noise has these losses."""
        shares = tuple((share, 1.0, count) for share, count in self.alike)
        return Allocation(LAPLACE if law.has_atom else GAUSSIAN, shares, relation)

    def require(self, relation: NeighboringRelation) -> None:
        """Accept both relations."""


Sampling = PoissonSampling | FixedSizeSampling | RandomAllocation


def sampling_of(stored: Mapping[str, Any]) -> Sampling:
    """Return the sampling whose fields these are."""
    if "rate" in stored:
        return PoissonSampling(**stored)
    if "shares" in stored:
        return RandomAllocation(**{**stored, "shares": tuple(stored["shares"])})
    return FixedSizeSampling(**stored)
