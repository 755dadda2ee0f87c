"""Sampling schemes: secret draws of the units that take part in a release, which amplify privacy.

A *unit* is a record or a user, the unit of privacy.
"""

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
    """Poisson sampling: every unit takes part in a release independently with probability `rate`.

    Amplification by sampling is proved under ``"add_remove"``, as long as neither the sample nor
    its size is published. Under ``"replace_one"`` a release counts as if the sample were published.

    Parameters
    ----------
    rate
        Sampling rate, in (0, 1].

    Raises
    ------
    ValueError
        If `rate` is outside (0, 1].

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
    """Function that returns the epsilon of composed Gaussian releases of Poisson samples."""

    rate: float

    def __post_init__(self) -> None:
        every(self, probability, "rate", zero=False)

    def event(self, release: DpEvent) -> DpEvent:
        """Return the sampled release as an event of dp-accounting."""
        import dp_accounting

        return dp_accounting.PoissonSampledDpEvent(self.rate, release)

    def pair(self, law: Law, relation: NeighboringRelation) -> DominatingPair:
        """Return a dominating pair of distributions for a sampled release.

        Parameters
        ----------
        law
            Distribution of the privacy loss of the release without sampling.
        relation
            Neighbouring relation.
        """
        if relation == "add_remove":
            return Poisson(law)
        return PublishedSample(law)

    def require(self, relation: NeighboringRelation) -> None:
        """Accept both neighbouring relations; no error is raised."""


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampling:
    """Sampling without replacement: `size` of `population` units take part in a release.

    Amplification by sampling is proved under ``"replace_one"``, as long as the sample is not
    published. Its size is public.

    Parameters
    ----------
    size
        Number of units in a sample, from 1 to `population`.
    population
        Number of units, at least 1.

    Raises
    ------
    ValueError
        If a number is out of range.

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
    """Function that returns the epsilon of composed Gaussian releases of samples of fixed size."""

    size: int
    population: int

    def __post_init__(self) -> None:
        every(self, integer, "population", at_least=1)
        integer("size", self.size, at_least=1, below=self.population + 1)

    @property
    def rate(self) -> float:
        """Sampling rate ``size / population``."""
        return self.size / self.population

    def event(self, release: DpEvent) -> DpEvent:
        """Return the sampled release as an event of dp-accounting."""
        import dp_accounting

        return dp_accounting.SampledWithoutReplacementDpEvent(self.population, self.size, release)

    def pair(self, law: Law, relation: NeighboringRelation) -> DominatingPair:
        """Return a dominating pair of distributions for a sampled release.

        `law` is the distribution of the privacy loss of the release without sampling.
        """
        return FixedSize(law)

    def require(self, relation: NeighboringRelation) -> None:
        """Raise a `ValueError` unless the neighbouring relation is ``"replace_one"``."""
        only_replace_one(relation)


@dataclass(frozen=True, kw_only=True)
class RandomAllocation:
    """Random allocation: each unit takes part in one secret, randomly drawn release of a group.

    Units draw their releases independently, before the first release. So the number of units in a
    release is random. This number and the draws must stay secret, and a release without any unit
    must have noise too. All releases of a group carry an equal `RandomAllocation`. Epsilon is that
    of the whole group from its first release on, also if the run ends early.

    Let C be a bound on the norm of one unit's contribution. The declared sensitivity of a release
    must be 2 C under ``"replace_one"``, and C under ``"add_remove"``.

    Parameters
    ----------
    rounds
        Number of releases of the group, all equally likely. Give either `rounds` or `shares`.
    shares
        Probability of each release, in (0, 1]. If they add up to less than 1, a unit takes part in
        no release with the remaining probability.
    cycle
        Number of the pass over the data, from 0. Units draw anew in each pass, and each pass is a
        group.
    failure
        Upper bound on the probability that a release is more sensitive than declared. It is added
        to delta.

    Raises
    ------
    ValueError
        If a number is out of its range, or if `rounds` and `shares` contradict each other or both
        are missing.

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
    def release_counts(self) -> tuple[tuple[float, int], ...]:
        """Distinct probabilities of a release, ascending, and the number of releases of each."""
        if not self.shares:
            return ((1 / self.rounds, self.rounds),)
        return tuple(sorted(Counter(self.shares).items()))

    @property
    def without_amplification(self) -> RandomAllocation | None:
        """Sampling of one release for an adversary who knows the draws of all units.

        Each unit takes part, and only the `failure` still counts; None if that is 0.
        """
        if self.failure == 0:
            return None
        return replace(self, rounds=1, shares=())

    def event(self, release: DpEvent) -> DpEvent:
        """Return `release` without amplification: dp-accounting has no event for allocations."""
        return release

    def pair(self, law: Law, relation: NeighboringRelation) -> DominatingPair:
        """Return a dominating pair of distributions for all releases of the group together.

        Parameters
        ----------
        law
            Distribution of the privacy loss of a release without sampling.
        relation
            Neighbouring relation.
        """
        shares = tuple((share, 1.0, count) for share, count in self.release_counts)
        return Allocation(LAPLACE if law.is_pure else GAUSSIAN, shares, relation)

    def require(self, relation: NeighboringRelation) -> None:
        """Accept both neighbouring relations; no error is raised."""


Sampling = PoissonSampling | FixedSizeSampling | RandomAllocation


def sampling_of(stored: Mapping[str, Any]) -> Sampling:
    """Return the sampling whose fields these are."""
    if "rate" in stored:
        return PoissonSampling(**stored)
    if "shares" in stored:
        return RandomAllocation(**{**stored, "shares": tuple(stored["shares"])})
    return FixedSizeSampling(**stored)
