"""What the parties of a contract are charged: the plan, with the rounding of rows in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.deploy.terms import Terms
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.rounding import DOUBLE, SINGLE
from dpmesh.privacy.rows import CorrelatedRow
from dpmesh.settings import Settings

if TYPE_CHECKING:
    from dpmesh.privacy.correlated import CorrelatedGaussian

PRECISION = {kind.name: kind for kind in (DOUBLE, SINGLE)}


@dataclass(frozen=True)
class Charges:
    """What the releases of a contract are charged.

    Parameters
    ----------
    settings, terms, algorithm
        Of the contract.
    problem
        That of a party whose records are all 0.
    models
        Number of a party's models that share no parameters.
    summed
        Whether parties add up integers under masks, which nothing rounds.
    """

    settings: Settings
    terms: Terms
    algorithm: AnyAlgorithm
    problem: Any
    models: int
    summed: bool

    @cached_property
    def plan(self) -> Plan:
        """What is charged for a whole run."""
        made = self.algorithm.plan(self.terms.rounds)
        return made.with_releases(self.charged(release) for release in made.releases)

    def charged(self, release: Release) -> Release:
        """Return what is charged for a release: rounding may move neighbours a little further.

        The noise stays as it is.
        """
        if release.sensitivity.bound == 0 or self.summed:
            return release
        mechanism, more = release.mechanism, 1 + self.rounding
        if isinstance(mechanism, CorrelatedRow):
            mechanism = CorrelatedRow.of(self._moved(mechanism.joint), mechanism.row)
        else:
            mechanism = replace(mechanism, noise_multiplier=mechanism.noise_multiplier / more)
        return replace(
            release,
            mechanism=mechanism,
            sensitivity=replace(release.sensitivity, bound=release.sensitivity.bound * more),
        )

    def _moved(self, joint: CorrelatedGaussian) -> CorrelatedGaussian:
        """Return the joint event of rows whose values move further, under the same noise."""
        if joint not in self._joints:
            more = 1 + self.rounding
            moved = np.asarray(joint.sensitivities) * more
            scaled = joint.noise_multiplier / more
            self._joints[joint] = replace(joint, noise_multiplier=scaled, sensitivities=moved)
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
        terms, largest, dim = self.terms, 0.0, int(self.problem.dim)
        precision = PRECISION[terms.numbers]
        longest = terms.largest_row * np.sqrt(self.models)  # a message has a row of each model
        apart = 4 * 2.0**-precision.digits * longest * terms.rounds
        for release in self.algorithm.plan(terms.rounds).touching:
            mechanism, unit = (
                release.mechanism,
                self.algorithm.unit_of(release.round, self.problem),
            )
            noise = mechanism.noise_scale(release.sensitivity, dim) * unit
            l1 = np.sqrt(dim) if mechanism.norm == "l1" else 1.0
            largest = max(largest, float(l1 * apart * mechanism.noise_multiplier / noise))
        if largest > precision.share:
            most = f"wanted at most {terms.largest_row * precision.share / largest:.3g}"
            reason = f"{most}: {terms.numbers} rounds longer rows by too much beside the noise"
            self.settings.fail("contract.largest_row", f"{reason}, got {terms.largest_row:g}")
        return largest
