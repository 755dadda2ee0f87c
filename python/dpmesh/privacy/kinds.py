"""Kinds of releases: a kind holds all that the epsilon of a release depends on.

`cost` counts the releases of each kind, instead of treating each release separately. A kind differs
from its release in two ways:

- noise on a grid becomes Laplace or Gaussian noise with an adjusted law or noise ratio, or
  `COARSE` noise, which has a Rényi curve only;
- a random allocation becomes one release for the whole group (`charged`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from math import frexp
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import NeighboringRelation
from dpmesh._ragged import Indices
from dpmesh._validate import fail
from dpmesh.accounting._pairs import GAUSSIAN, DominatingPair, Law
from dpmesh.accounting.allocation import Allocation
from dpmesh.accounting.discrete import FINE, gaussian_multiplier
from dpmesh.noise.grid import MOST_STEPS as MOST_GRID_STEPS
from dpmesh.noise.mechanisms import Mechanism
from dpmesh.noise.secure import NeighborSums, SecureSum
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import RandomAllocation, Sampling

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from dpmesh.noise.sensitivity import Sensitivity

MOST_STEPS = 64
"""Most steps of discrete Laplace noise in its law: with more, epsilon is that of real-valued noise
to 0.01%."""

MOMENTS_BELOW = 6.0
"""Scale of Gaussian noise, in steps, below which Rényi DP may prove a smaller epsilon.

The other proof converts it to Gaussian noise of a smaller scale, see `gaussian_multiplier`.
"""


class Noise(NamedTuple):
    """A distribution of noise."""

    name: str
    law: Law | None
    """Its losses; None if a Rényi curve alone is known."""
    is_discrete: bool = False

    @property
    def is_pure(self) -> bool:
        """True if it is pure DP, which needs no delta: Laplace noise."""
        return self.law is not None and self.law.is_pure


COARSE = Noise("discrete Gaussian", None, is_discrete=True)

ALL_DATA = "all data"


class Kind(NamedTuple):
    """The facts of a release that determine its epsilon."""

    noise: Noise
    noise_to_sensitivity: float
    sampling: Sampling | None
    secure_sum: SecureSum | NeighborSums | None
    moments: float = 0.0
    """Noise ratio of Gaussian noise on a coarse grid in its Rényi curve; else 0."""
    laplace_ratio: float = 0.0
    """Least noise ratio of the Laplace releases in an allocation with Gaussian releases; else 0."""

    @property
    def rate(self) -> float:
        """Rate at which a unit takes part."""
        if self.sampling is None:
            return 1.0
        return self.sampling.rate

    @property
    def is_exact(self) -> bool:
        """True if it is Gaussian noise on all data, whose epsilon has a formula."""
        return self.noise.law is GAUSSIAN and self.sampling is None

    @property
    def is_allocated(self) -> bool:
        """True if it stands for all releases of a group, of which a unit draws one."""
        return isinstance(self.sampling, RandomAllocation)

    @property
    def scales(self) -> tuple[float, float]:
        """Scale of the noise that the adversary does not know and scale of a share, in steps.

        Noise that is not of a secure sum counts as one share: of scale 1 on a coarse grid, where
        the scale is not known, and else as fine as any grid.
        """
        if self.secure_sum is not None:
            scale = self.noise_to_sensitivity * self.secure_sum.sensitivity
            return scale, self.secure_sum.smallest_share
        return 1.0 if self.noise is COARSE else float(MOST_GRID_STEPS), float(MOST_GRID_STEPS)

    def is_amplified(self, relation: NeighboringRelation) -> bool:
        """Return True if sampling reduces its epsilon under a relation."""
        return self.sampling is not None and self.sampling.amplifies_under == relation

    def by_moments(self) -> Kind:
        """Return the kind to be counted by its Rényi curve alone; itself without `moments`."""
        coarse = self._replace(noise=COARSE, noise_to_sensitivity=self.moments, moments=0.0)
        if self.moments:
            return coarse
        return self

    def pair(self, relation: NeighboringRelation) -> DominatingPair:
        """Return the pair that dominates a release with Laplace or Gaussian noise."""
        law = self.noise.law
        assert law is not None
        if self.sampling is None:
            return DominatingPair(law)
        pair = self.sampling.pair(law, relation)
        if isinstance(pair, Allocation) and self.laplace_ratio:
            return replace(pair, pure=self.laplace_ratio / self.noise_to_sensitivity)
        return pair

    @property
    def noise_names(self) -> set[str]:
        """The names of its noise."""
        if self.laplace_ratio:
            return {self.noise.name, "Laplace"}
        return {self.noise.name}

    def pure(self, relation: NeighboringRelation) -> float:
        """Return the pure epsilon of a release's Laplace noise; 0 if all its noise is Gaussian."""
        if self.laplace_ratio:
            return 1 / self.laplace_ratio
        if not self.noise.is_pure:
            return 0.0
        numbers = np.array(self.rate), np.array(self.noise_to_sensitivity)
        return float(self.pair(relation).largest(*numbers, deviations=0.0))


MIXED = "several kinds of noise"
"""Name of noise that has different kinds in the releases of one allocation."""


@dataclass(frozen=True)
class MixedNoise(Mechanism):
    """Noise of one of several kinds, where the adversary does not know which kind it is.

    A random allocation whose releases have different kinds of noise counts as a release with this
    noise. It is for accounting alone, and draws no noise.

    Parameters
    ----------
    noise_to_sensitivity
        Least noise ratio among the members.
    members
        For each kind of noise, the release with the least noise.
    """

    _: KW_ONLY
    members: tuple[Release, ...]

    distribution = "mixed"
    norm = "l2"

    @property
    def name(self) -> str:
        """`MIXED`."""
        return MIXED

    @property
    def integer_rows(self) -> int:
        """The most rows of noise on a grid that a record's row of a member rests on."""
        return max(member.mechanism.integer_rows for member in self.members)

    @property
    def event(self) -> DpEvent:
        """All members together, which cost no less than one of them."""
        import dp_accounting

        return dp_accounting.ComposedDpEvent([m.mechanism.event for m in self.members])

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        raise NotImplementedError("this noise is for accounting alone")


def has_allocation_proof(release: Release) -> bool:
    """Return True if amplification by random allocation is proved for this kind of noise."""
    kind = _on_grid(release, _as_released(release))
    return kind.noise.law is not None and kind.secure_sum is None


def kinds_of(
    releases: Sequence[Release], chosen: npt.NDArray[np.bool_], relation: NeighboringRelation
) -> tuple[list[Kind], Indices]:
    """Return the distinct kinds of the chosen releases, and the number of each release's kind.

    The number is an index in the list of kinds; -1 for releases that are not chosen.

    Raises
    ------
    ValueError
        If a secure sum is for another neighbouring relation.
    """
    numbers: dict[Kind, int] = {}
    which = np.full(len(releases), -1)
    for index in np.flatnonzero(chosen).tolist():
        kind = _kind_of(releases[index], relation)
        which[index] = numbers.setdefault(kind, len(numbers))
    return list(numbers), which


def _kind_of(release: Release, relation: NeighboringRelation) -> Kind:
    if isinstance(release.mechanism, MixedNoise):
        return _mixed([_kind_of(member, relation) for member in release.mechanism.members])
    kind = _as_released(release)
    sums = kind.secure_sum
    if sums is not None and sums.neighboring_relation != relation:
        expected = f"that of the secure sum, {sums.neighboring_relation}"
        fail("neighboring_relation", expected, relation)
    return _allocated(_on_grid(release, kind), release, relation)


def _as_released(release: Release) -> Kind:
    """Return the kind of a release before its grid and its allocation are counted."""
    mechanism = release.mechanism
    return Kind(
        _noise_of(mechanism), release.noise_to_sensitivity, release.sampling, mechanism.sums
    )


def _noise_of(mechanism: Mechanism) -> Noise:
    """Return the distribution of a mechanism's noise, with its losses if they have a law."""
    losses = mechanism.losses
    if losses is None:
        has_own_curve = mechanism.sums is not None or mechanism.is_joint
        states_its_loss = mechanism.law is None
        if mechanism.adds_noise and not has_own_curve and not states_its_loss:
            expected = f"the Law by which this package accounts for {mechanism.distribution} noise"
            fail(_law_field(mechanism), expected, f"none in {type(mechanism).__name__}")
        return Noise(mechanism.name, None, is_discrete=True)
    if losses is not GAUSSIAN and not losses.is_pure:
        expected = "GAUSSIAN or a law of pure DP: no proof adds up releases of another law"
        fail(_law_field(mechanism), expected, f"another in {type(mechanism).__name__}")
    name = mechanism.distribution.capitalize()
    if mechanism.grid is None:
        return Noise(name, losses)
    return Noise(f"discrete {name}", losses, is_discrete=True)


def _law_field(mechanism: Mechanism) -> str:
    """Return the name of the attribute that states the law of a mechanism."""
    if mechanism.grid is None:
        return "losses_of_reals"
    return "losses_of_integers"


def _mixed(members: Sequence[Kind]) -> Kind:
    """Return one kind for members of an allocation: the least Gaussian and the least pure noise."""
    pure = [kind for kind in members if kind.noise.is_pure]
    gaussian = [kind for kind in members if not kind.noise.is_pure]
    least = min(gaussian or pure, key=lambda kind: kind.noise_to_sensitivity)
    if not gaussian or not pure:
        return least._replace(moments=0.0)  # those of another grid may be smaller
    laplace_ratio = min(kind.noise_to_sensitivity for kind in pure)
    return least._replace(moments=0.0, laplace_ratio=laplace_ratio)


def _on_grid(release: Release, kind: Kind) -> Kind:
    """Return the kind of a release on a grid by the scale of its noise there.

    A row of d numbers moves by at most ``N >= sensitivity / grid + 1`` steps in the norm of the
    mechanism, and the noise has a scale of ``noise_to_sensitivity * N`` steps.
    """
    grid = release.mechanism.grid
    if grid is None or kind.secure_sum is not None:
        return kind
    steps = release.sensitivity.bound / grid + 1
    law = kind.noise.law
    if law is not None and law.is_pure:
        if law.of_steps is not None:
            law = law.of_steps(min(2 ** (frexp(steps)[1] - 1), MOST_STEPS))
        return kind._replace(noise=kind.noise._replace(law=law))
    z = kind.noise_to_sensitivity
    scale = z * steps
    if scale < FINE:
        return kind._replace(noise=COARSE)
    moments = z if scale < MOMENTS_BELOW else 0.0
    return kind._replace(noise_to_sensitivity=gaussian_multiplier(z, scale), moments=moments)


def _allocated(kind: Kind, release: Release, relation: NeighboringRelation) -> Kind:
    """Return the kind of an allocated release; that of a release of all data where none is proved.

    A unit's own part is half the sensitivity where one is replaced; rounded to a grid, it moves the
    values by no more steps than the sensitivity does.
    """
    if not isinstance(kind.sampling, RandomAllocation):
        return kind
    if kind.noise.law is None or kind.secure_sum is not None:
        return kind._replace(sampling=None)
    one_cycle = replace(kind.sampling, cycle=0, failure=0.0)
    halved = release.mechanism.grid is not None and relation == "replace_one"
    return kind._replace(
        sampling=one_cycle, noise_to_sensitivity=kind.noise_to_sensitivity / (1 + halved)
    )


def samples_of(sampling: Sampling | type[Sampling] | None) -> str:
    """Return the data of releases with this sampling in words, such as "Poisson samples"."""
    if sampling is None:
        return ALL_DATA
    return sampling.samples


def sampled_by(kinds: Iterable[Kind], relation: NeighboringRelation) -> type[Sampling] | None:
    """Return the sampling whose Rényi curve covers these kinds, else None.

    All sampled kinds must have one class of sampling, which amplifies under the relation.
    """
    samplings = {type(kind.sampling) for kind in kinds if kind.sampling is not None}
    if len(samplings) != 1:
        return None
    sampling = samplings.pop()
    if sampling.amplifies_under == relation:
        return sampling
    return None
