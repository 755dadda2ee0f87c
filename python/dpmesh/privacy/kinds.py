"""Releases that cost alike: a kind is all that a cost depends on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import frexp
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh._ragged import Indices
from dpmesh._validate import fail
from dpmesh.privacy.accounting._pairs import (
    GAUSSIAN,
    LAPLACE,
    FixedSize,
    Pair,
    Poisson,
    Unsampled,
    integer_laplace,
)
from dpmesh.privacy.accounting._poisson_pairs import PublishedSample
from dpmesh.privacy.accounting.allocation import Allocation
from dpmesh.privacy.accounting.discrete import FINE, gaussian_multiplier
from dpmesh.privacy.grid import MOST_STEPS as MOST_GRID_STEPS
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import FixedSizeSampling, PoissonSampling, RandomAllocation, Sampling
from dpmesh.privacy.secure import DistributedDiscreteGaussian, NeighborSums, SecureSum
from dpmesh.privacy.types import NeighboringRelation

MOST_STEPS = 64
"""Beyond them noise on integers costs what noise on the real numbers costs, to 0.01%."""

MOMENTS_BELOW = 6.0
"""Steps of Gaussian noise below which its moments may prove more than its smoothing."""

LAWS = {
    "gaussian": (GAUSSIAN, "Gaussian"),
    "laplace": (LAPLACE, "Laplace"),
    "discrete_laplace": (integer_laplace(), "discrete Laplace"),
    "discrete_gaussian": (GAUSSIAN, "discrete Gaussian"),
}
GAUSSIANS = ("gaussian", "discrete_gaussian")
COARSE = "coarse_gaussian"


class Kind(NamedTuple):
    """What a release costs depends on this alone."""

    mechanism: str
    noise_multiplier: float
    sampling: Sampling | None
    secure_sum: SecureSum | NeighborSums | None
    steps: int = 1
    """By which neighbours move a row on a grid, at least, if the noise is Laplace."""
    moments: float = 0.0
    """The noise multiplier of the moments of Gaussian noise on a coarse grid; else 0."""

    @property
    def rate(self) -> float:
        """How often a unit takes part."""
        return 1.0 if self.sampling is None else self.sampling.rate

    def is_amplified(self, relation: NeighboringRelation) -> bool:
        """Whether sampling makes it cheaper under a relation."""
        return self.sampling is not None and self.sampling.amplifies_under == relation

    def by_moments(self) -> Kind:
        """Return the kind by its moments alone, if it is on a coarse grid."""
        coarse = self._replace(mechanism=COARSE, noise_multiplier=self.moments, moments=0.0)
        return coarse if self.moments else self


def pair_of(kind: Kind, relation: NeighboringRelation) -> Pair:
    """Return the pair that dominates a release with Laplace or Gaussian noise."""
    law, _ = LAWS[kind.mechanism]
    if kind.mechanism == "discrete_laplace":
        law = integer_laplace(kind.steps)
    if isinstance(kind.sampling, RandomAllocation):
        shares = tuple((share, 1.0, count) for share, count in kind.sampling.alike)
        return Allocation(shares, relation, "laplace" if law.has_atom else "gaussian")
    if isinstance(kind.sampling, FixedSizeSampling):
        return FixedSize(law)
    if isinstance(kind.sampling, PoissonSampling):
        return Poisson(law) if relation == "add_remove" else PublishedSample(law)
    return Unsampled(law)


def kinds_of(
    releases: Sequence[Release], chosen: npt.NDArray[np.bool_], relation: NeighboringRelation
) -> tuple[list[Kind], Indices]:
    """Return the kinds of the chosen releases, and each release's kind: -1 for the others."""
    numbers: dict[Kind, int] = {}
    which = np.full(len(releases), -1)
    for index in np.flatnonzero(chosen).tolist():
        release = releases[index]
        joint = release.mechanism
        sums = joint.numbers if isinstance(joint, DistributedDiscreteGaussian) else None
        if sums is not None and sums.neighboring_relation != relation:
            fail(
                "neighboring_relation",
                f"that of the secure sum, {sums.neighboring_relation}",
                relation,
            )
        kind = _on_grid(
            release, Kind(release.name, release.noise_multiplier, release.sampling, sums)
        )
        which[index] = numbers.setdefault(_allocated(kind, release, relation), len(numbers))
    return list(numbers), which


def _on_grid(release: Release, kind: Kind) -> Kind:
    """Return the kind of a release on a grid by the scale of its noise there.

    A row of d numbers moves by at most ``N >= sensitivity / grid + 1`` steps in the norm of the
    mechanism, and the noise has a scale of ``noise_multiplier * N`` steps.
    """
    grid = release.mechanism.grid
    if grid is None or kind.secure_sum is not None:
        return kind
    steps = release.sensitivity.bound / grid + 1
    if kind.mechanism == "discrete_laplace":
        return kind._replace(steps=min(2 ** (frexp(steps)[1] - 1), MOST_STEPS))
    z = kind.noise_multiplier
    if (scale := z * steps) < FINE:
        return kind._replace(mechanism=COARSE)
    moments = z if scale < MOMENTS_BELOW else 0.0
    return kind._replace(noise_multiplier=gaussian_multiplier(z, scale), moments=moments)


def _allocated(kind: Kind, release: Release, relation: NeighboringRelation) -> Kind:
    """Return the kind of an allocated release; that of a release of all data where none is proved.

    A unit's own part is half the sensitivity where one is replaced; rounded to a grid, it moves the
    values by no more steps than the sensitivity does.
    """
    if not isinstance(kind.sampling, RandomAllocation):
        return kind
    if kind.mechanism not in LAWS or kind.secure_sum is not None:
        return kind._replace(sampling=None)
    one = replace(kind.sampling, cycle=0, failure=0.0)
    halved = release.mechanism.grid is not None and relation == "replace_one"
    return kind._replace(sampling=one, noise_multiplier=kind.noise_multiplier / (1 + halved))


def scales_of(kind: Kind) -> tuple[float, float]:
    """Return the scales of a sum's unknown noise and of a share of it, in steps.

    Other noise is one share: of no known scale on a coarse grid, else of the finest.
    """
    if kind.secure_sum is not None:
        return kind.noise_multiplier * kind.secure_sum.sensitivity, kind.secure_sum.smallest_share
    return 1.0 if kind.mechanism == COARSE else float(MOST_GRID_STEPS), float(MOST_GRID_STEPS)


def sampled_by(kinds: Iterable[Kind], relation: NeighboringRelation) -> type[Sampling] | None:
    """Return how releases are sampled, if that has a Rényi curve: all in one way, or unsampled."""
    samplings = {type(kind.sampling) for kind in kinds if kind.sampling is not None}
    if len(samplings) != 1:
        return None
    sampling = samplings.pop()
    return sampling if sampling.amplifies_under == relation else None
