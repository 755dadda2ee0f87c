"""Planned releases of a contract's parties and their privacy cost, rounding of rows included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True)
class Planned:
    """The releases of a contract: which stands where, and what each is charged.

    Parameters
    ----------
    settings, terms, algorithm
        Of the contract.
    problem
        That of a party whose records are all 0.
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
        of_algorithm = self.algorithm.plan(self.terms.rounds)
        return of_algorithm.with_releases(
            self.charged(release) for release in of_algorithm.releases
        )

    @cached_property
    def summed(self) -> tuple[Release, ...]:
        """The sums that parties add up under masks, one after another; none if they send rows.

        A round has one, or several: what is summed first may be a vector of another length.
        """
        if not is_summed(self.algorithm.release_of(0)):
            return ()
        sums: list[Release] = []
        for t in range(self.terms.rounds):
            of_round = self.algorithm.release_of(t)
            if isinstance(of_round, tuple):
                sums.extend(of_round)
            else:
                sums.append(of_round)
        return tuple(sums)

    @property
    def noise_scales(self) -> tuple[float, ...]:
        """Standard deviation of the noise in a number of each round's sum of records' vectors."""
        return tuple(self.algorithm.noise_scales)  # type: ignore[attr-defined]

    @property
    def sums(self) -> SecureSum | NeighborSums | None:
        """The numbers of the first sum that parties add up; None if they send rows.

        Those of others may differ in length, grid and noise.
        """
        if not self.summed:
            return None
        return self.sums_at(0)

    def sums_at(self, step: int) -> SecureSum | NeighborSums:
        """Return the numbers of a sum; fail if there is none."""
        if not step < len(self.summed):
            fail("step", f"one of the {len(self.summed)} sums that parties add up", step)
        mechanism: Any = self.summed[step].mechanism
        numbers: SecureSum | NeighborSums = mechanism.numbers
        return numbers

    @property
    def steps(self) -> int:
        """Number of sums; where parties send rows, number of rounds."""
        return len(self.summed) or self.terms.rounds

    def rounds_before(self, step: int) -> int:
        """Return how many rounds are over when a step begins."""
        if step < len(self.summed):
            return self.summed[step].round
        return min(step, self.terms.rounds)

    @cached_property
    def _kinds(self) -> dict[tuple[int, float], list[Release]]:
        """The planned sums that cost the same, by what they have in common."""
        kinds: dict[tuple[int, float], list[Release]] = {}
        for release in self.plan.releases if self.summed else ():
            kinds.setdefault(_kind(release), []).append(release)
        return kinds

    def kind_at(self, step: int) -> int:
        """Return the number of the kind of sum that a step is an attempt at."""
        return [*self._kinds].index(_kind(self.summed[step]))

    @cached_property
    def later_steps(self) -> tuple[int, ...]:
        """For each step, the number of later steps of the same kind."""
        counts = dict.fromkeys(self._kinds, 0)
        later = list[int]()
        for release in reversed(self.summed):
            kind = _kind(release)
            later.append(counts[kind])
            counts[kind] += 1
        return tuple(reversed(later))

    @cached_property
    def attempts(self) -> tuple[tuple[Release, ...], ...]:
        """The releases of sums that the plan allows, by kind."""
        return tuple(map(tuple, self._kinds.values()))

    @cached_property
    def needed(self) -> tuple[tuple[Release, ...], ...]:
        """The sums that the rounds need, by kind."""
        by_kind: list[list[Release]] = [[] for _ in self._kinds]
        for step, release in enumerate(self.summed):
            by_kind[self.kind_at(step)].append(release)
        return tuple(map(tuple, by_kind))

    @property
    def reserves(self) -> tuple[int, ...]:
        """Attempts beside one for each sum that the rounds need, by kind."""
        kinds = zip(self.attempts, self.needed, strict=True)
        return tuple(len(allowed) - len(required) for allowed, required in kinds)

    @cached_property
    def _secrets(self) -> dict[int, Secrets | None]:
        """Secrets that partners share, by the round with correlated noise."""
        shared: dict[int, Secrets | None] = {}
        for release in self.plan.releases:
            joint = release.mechanism.joint_event
            if joint is not None and joint.secrets is not None:
                shared[release.round] = joint.secrets_of(release.mechanism.joint_row)
        return shared

    @cached_property
    def has_partners(self) -> bool:
        """True if nodes share secrets with partners for the noise of their rows."""
        return bool(self._secrets)

    def secrets_at(self, t: int) -> Secrets | None:
        """Return what partners share in round t, if they do."""
        return self._secrets.get(t)

    def releases(self, node: int, t: int) -> tuple[Release, ...]:
        """Return what a party releases if it sends in round t, from public numbers alone."""
        releases = self.algorithm.release_by(node, t)
        if isinstance(releases, Release):
            releases = (releases,)
        return tuple(
            release for release in releases if release.nodes is None or node in release.nodes
        )

    def charged(self, release: Release) -> Release:
        """Return what is charged for a release: rounding may move neighbours a little further.

        The noise stays as it is.
        """
        if release.sensitivity.bound == 0 or self.summed:
            return release
        mechanism = release.mechanism
        more = 1 + self.rounding
        joint = mechanism.joint_event
        if joint is not None:
            mechanism = CorrelatedRow.of(self._moved(joint), mechanism.joint_row)
        else:
            mechanism = replace(
                mechanism, noise_to_sensitivity=mechanism.noise_to_sensitivity / more
            )
        sensitivity = replace(release.sensitivity, bound=release.sensitivity.bound * more)
        return replace(release, mechanism=mechanism, sensitivity=sensitivity)

    def _moved(self, joint: CorrelatedGaussian) -> CorrelatedGaussian:
        """Return the joint event of rows whose values move further, under the same noise."""
        if joint not in self._joints:
            more = 1 + self.rounding
            moved = np.asarray(joint.sensitivities) * more
            scaled = joint.noise_to_sensitivity / more
            self._joints[joint] = replace(joint, noise_to_sensitivity=scaled, sensitivities=moved)
        return self._joints[joint]

    @cached_property
    def _joints(self) -> dict[CorrelatedGaussian, CorrelatedGaussian]:
        return {}

    @cached_property
    def rounding(self) -> float:
        """The largest share of a sensitivity that rounding may add to it.

        A row and those it is made of are rounded: in each round that moves two neighbours apart by
        at most ``4 2**-digits largest_row``, sqrt(dim) times that in L1 norm.
        """
        terms = self.terms
        largest = 0.0
        dim = int(self.problem.dim)
        precision = PRECISION[terms.numbers]
        longest = terms.largest_row * np.sqrt(self.models)  # a message has a row of each model
        error = 4 * 2.0**-precision.digits * longest * terms.rounds
        for release in self.algorithm.plan(terms.rounds).touching:
            mechanism = release.mechanism
            unit = self.algorithm.unit_of(release.round, self.problem)
            noise = mechanism.noise_scale(release.sensitivity, dim) * unit
            l1 = np.sqrt(dim) if mechanism.norm == "l1" else 1.0
            largest = max(largest, float(l1 * error * mechanism.noise_to_sensitivity / noise))
        if largest > precision.share:
            most = f"wanted at most {terms.largest_row * precision.share / largest:.3g}"
            reason = f"{most}: {terms.numbers} rounds longer rows by too much beside the noise"
            self.settings.fail("contract.largest_row", f"{reason}, got {terms.largest_row:g}")
        return largest


def _kind(release: Any) -> tuple[int, float]:
    """Return what sums that cost the same have in common: their length, and their noise."""
    return release.mechanism.numbers.dim, release.mechanism.noise_to_sensitivity
