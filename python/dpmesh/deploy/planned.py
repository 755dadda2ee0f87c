"""The releases that a contract plans, and what a folder is charged for each of them.

Parties send rows, or masked parts of secure sums. A sum may be attempted several times, and each
attempt counts as a release: a contract then plans more releases than its rounds need (a reserve).
Sums of the same length and noise are of one *kind*: in the ledger, an attempt at one of them can
stand for an attempt at any other. A *step* is one sum of the run; a round has one sum or several.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dpmesh._validate import fail
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.deploy.terms import Terms
from dpmesh.noise.rounding import DOUBLE, SINGLE
from dpmesh.noise.rows import CorrelatedRow
from dpmesh.noise.secure import NeighborSums, SecureSum
from dpmesh.noise.secure.mechanism import is_summed
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.settings import Settings

if TYPE_CHECKING:
    from dpmesh.noise.correlated import CorrelatedGaussian, Secrets

PRECISION = {kind.name: kind for kind in (DOUBLE, SINGLE)}
"""Floating-point numbers that a contract can have, by name."""
SumKind: TypeAlias = tuple[int, float]
"""The length and the noise of sums that cost the same."""


@dataclass(frozen=True)
class PlannedReleases:
    """The releases of a contract's run, all computed from the contract alone.

    A `Contract` makes it. Folders charge its `plan`; nodes and routers ask it which sum a step adds
    up, and how many attempts are left.

    Parameters
    ----------
    settings, terms, algorithm
        Of the contract.
    problem
        The contract's dummy problem, whose records are all 0.
    models
        Number of a party's models that share no parameters.
    """

    settings: Settings
    terms: Terms
    algorithm: AnyAlgorithm
    problem: Any
    models: int

    @cached_property
    def plan(self) -> Plan:
        """The privacy plan that a whole run is charged."""
        plan = self.algorithm.plan(self.terms.rounds)
        return plan.with_releases(self.as_charged(release) for release in plan.releases)

    @cached_property
    def sum_releases(self) -> tuple[Release, ...]:
        """The releases of the sums that the rounds need, in their order; none if parties send rows.

        A step of a run of sums is a place in this list. A round has one sum or several.
        """
        if not is_summed(self.algorithm.release_of(0)):
            return ()
        releases: list[Release] = []
        for t in range(self.terms.rounds):
            of_round = self.algorithm.release_of(t)
            if isinstance(of_round, tuple):
                releases.extend(of_round)
            else:
                releases.append(of_round)
        return tuple(releases)

    @property
    def noise_scales(self) -> tuple[float, ...]:
        """Standard deviation of the noise in each coordinate of each estimated sum.

        `RecordSums` estimates one sum, as the mean over its rounds; `AdaptiveSums` one a round.
        """
        return tuple(self.algorithm.noise_scales)  # type: ignore[attr-defined]

    @property
    def first_sum(self) -> SecureSum | NeighborSums | None:
        """Sizes of the first sum that parties add up; None if they send rows.

        Later sums may differ in length, grid and noise; they have the same parties.
        """
        if not self.sum_releases:
            return None
        return self.sum_at(0)

    def sum_at(self, step: int) -> SecureSum | NeighborSums:
        """Return the sizes of the sum of a step.

        Raises
        ------
        ValueError
            If the run has no such step, or no sums.
        """
        if not step < len(self.sum_releases):
            fail("step", f"one of the {len(self.sum_releases)} sums that parties add up", step)
        mechanism: Any = self.sum_releases[step].mechanism
        sizes: SecureSum | NeighborSums = mechanism.numbers
        return sizes

    @property
    def steps(self) -> int:
        """Number of sums; where parties send rows, number of rounds."""
        return len(self.sum_releases) or self.terms.rounds

    def rounds_before(self, step: int) -> int:
        """Return the number of rounds that are over when a step begins."""
        if step < len(self.sum_releases):
            return self.sum_releases[step].round
        return min(step, self.terms.rounds)

    @cached_property
    def _releases_by_kind(self) -> dict[SumKind, list[Release]]:
        """All planned releases of sums, reserved attempts among them, by kind."""
        releases: dict[SumKind, list[Release]] = {}
        if not self.sum_releases:
            return releases
        for release in self.plan.releases:
            releases.setdefault(_kind_of(release), []).append(release)
        return releases

    def kind_at(self, step: int) -> int:
        """Return the number of the kind of a step's sum."""
        return [*self._releases_by_kind].index(_kind_of(self.sum_releases[step]))

    @cached_property
    def later_sums(self) -> tuple[int, ...]:
        """For each step, the number of later steps whose sums are of the same kind."""
        counts = dict.fromkeys(self._releases_by_kind, 0)
        later: list[int] = []
        for release in reversed(self.sum_releases):
            kind = _kind_of(release)
            later.append(counts[kind])
            counts[kind] += 1
        return tuple(reversed(later))

    @cached_property
    def allowed_by_kind(self) -> tuple[tuple[Release, ...], ...]:
        """For each kind of sum, the releases that the plan allows: its number of attempts."""
        return tuple(map(tuple, self._releases_by_kind.values()))

    @cached_property
    def needed_by_kind(self) -> tuple[tuple[Release, ...], ...]:
        """For each kind of sum, the releases that the rounds need."""
        needed: list[list[Release]] = [[] for _ in self._releases_by_kind]
        for step, release in enumerate(self.sum_releases):
            needed[self.kind_at(step)].append(release)
        return tuple(map(tuple, needed))

    @property
    def reserve_by_kind(self) -> tuple[int, ...]:
        """For each kind of sum, the number of attempts that may fail."""
        kinds = zip(self.allowed_by_kind, self.needed_by_kind, strict=True)
        return tuple(len(allowed) - len(needed) for allowed, needed in kinds)

    @cached_property
    def _secrets_by_round(self) -> dict[int, Secrets | None]:
        """Secrets that partners share for correlated noise, by round."""
        secrets: dict[int, Secrets | None] = {}
        for release in self.plan.releases:
            joint = release.mechanism.joint_event
            if joint is not None and joint.secrets is not None:
                secrets[release.round] = joint.secrets_of(release.mechanism.joint_row)
        return secrets

    @cached_property
    def has_partners(self) -> bool:
        """True if nodes share secrets with partners for correlated noise of their rows."""
        return bool(self._secrets_by_round)

    def secrets_at(self, t: int) -> Secrets | None:
        """Return the secrets that partners share in round t; None without any."""
        return self._secrets_by_round.get(t)

    def releases(self, node: int, t: int) -> tuple[Release, ...]:
        """Return the releases of a node that sends in round t, before rounding is charged."""
        releases = self.algorithm.release_by(node, t)
        if isinstance(releases, Release):
            releases = (releases,)
        return tuple(
            release for release in releases if release.nodes is None or node in release.nodes
        )

    def as_charged(self, release: Release) -> Release:
        """Return a release with a larger sensitivity, for the rounding of rows; sums are exact.

        The noise stays as it is.
        """
        if release.sensitivity.bound == 0 or self.sum_releases:
            return release
        mechanism = release.mechanism
        factor = 1 + self.rounding_share
        joint = mechanism.joint_event
        if joint is not None:
            mechanism = CorrelatedRow.of(self._joint_as_charged(joint), mechanism.joint_row)
        else:
            noise_to_sensitivity = mechanism.noise_to_sensitivity / factor
            mechanism = replace(mechanism, noise_to_sensitivity=noise_to_sensitivity)
        sensitivity = replace(release.sensitivity, bound=release.sensitivity.bound * factor)
        return replace(release, mechanism=mechanism, sensitivity=sensitivity)

    def _joint_as_charged(self, joint: CorrelatedGaussian) -> CorrelatedGaussian:
        """Return the joint event of correlated rows with larger sensitivities, made once."""
        if joint not in self._charged_joints:
            factor = 1 + self.rounding_share
            self._charged_joints[joint] = replace(
                joint,
                noise_to_sensitivity=joint.noise_to_sensitivity / factor,
                sensitivities=np.asarray(joint.sensitivities) * factor,
            )
        return self._charged_joints[joint]

    @cached_property
    def _charged_joints(self) -> dict[CorrelatedGaussian, CorrelatedGaussian]:
        """Joint events as they are charged, by the algorithm's own."""
        return {}

    @cached_property
    def rounding_share(self) -> float:
        """Largest share of a sensitivity that rounding may add to it, over all releases.

        A row and the rows it is made of are rounded. In each round that moves the values of two
        neighbours apart by at most ``4 2**-digits largest_row`` in L2 norm, and by sqrt(dim) times
        that in L1 norm.

        Raises
        ------
        ValueError
            If it is larger than the type of the numbers allows.
        """
        terms = self.terms
        largest_share = 0.0
        dim = int(self.problem.dim)
        precision = PRECISION[terms.numbers]
        longest = terms.largest_row * np.sqrt(self.models)  # a message has a row of each model
        error = 4 * 2.0**-precision.digits * longest * terms.rounds
        for release in self.algorithm.plan(terms.rounds).touching:
            mechanism = release.mechanism
            factor = self.algorithm.least_scale_factor(release.round, self.problem)
            noise = mechanism.noise_scale(release.sensitivity, dim) * factor
            norm_factor = 1.0
            if mechanism.norm == "l1":
                norm_factor = np.sqrt(dim)
            share = norm_factor * error * mechanism.noise_to_sensitivity / noise
            largest_share = max(largest_share, float(share))
        if largest_share > precision.share:
            largest_row = terms.largest_row * precision.share / largest_share
            reason = f"wanted at most {largest_row:.3g}: {terms.numbers} rounds longer rows by too"
            self.settings.fail(
                "contract.largest_row", f"{reason} much beside the noise, got {terms.largest_row:g}"
            )
        return largest_share


def _kind_of(release: Any) -> SumKind:
    """Return the kind of a release of a sum."""
    return release.mechanism.numbers.dim, release.mechanism.noise_to_sensitivity
