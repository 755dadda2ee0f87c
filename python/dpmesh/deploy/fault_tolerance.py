"""Faults that a contract tolerates, and the price in noise: lines of ``dpmesh contract check``.

Where one secure sum is for all parties, a contract can prepare for two kinds of faults:

- Missing parties. The noise of a sum is then large enough without their shares.
- Failed *attempts* at a sum, such as one in which a party stalls. The contract reserves more sums
  than its rounds need. All of them count towards the privacy budget, so each needs more noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any

from dpmesh._epsilons import rounded_up
from dpmesh.deploy.contract import Contract
from dpmesh.noise.secure import SecureSum
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.filters import adaptive_cost
from dpmesh.privacy.plan import made_again

_BUDGET_STEPS = 3
"""Steps of the iteration for the budget of a restored folder, see `_budget_with_restore`."""


@dataclass(frozen=True, kw_only=True)
class FaultTolerance:
    """Numbers of faults that a contract tolerates, and the noise that they add.

    Parameters
    ----------
    missing
        Number of parties that may be missing at a time.
    attempts
        Number of reserved attempts, for each kind of sum: first those of first stages, last those
        of the rounds. Each stall, wrong part or refusal of a party takes one attempt. Empty where
        there is no sum for all parties, as faults then take none.
    noise_of_missing
        Standard deviation of the noise, relative to the same contract in which no party may be
        missing; at least 1.
    noise_of_attempts
        Standard deviation of the noise, relative to the same contract without reserved attempts; at
        least 1.
    restored_epsilon
        The epsilon of a folder's budget with which the folder may be restored once from an older
        copy, and go on.
    """

    missing: int
    attempts: tuple[int, ...]
    noise_of_missing: float
    noise_of_attempts: float
    restored_epsilon: float

    @classmethod
    def of(cls, contract: Contract) -> FaultTolerance:
        """Return the fault tolerance of a contract."""
        attempts: tuple[int, ...] = ()
        noise_of_missing = 1.0
        noise_of_attempts = 1.0
        if contract.has_one_model:
            sums = contract.planned.first_sum
            assert isinstance(sums, SecureSum)
            attempts = contract.planned.reserve_by_kind
            allowed_precision = _total_precision(contract.planned.allowed_by_kind)
            needed_precision = _total_precision(contract.planned.needed_by_kind)
            noise_of_attempts = sqrt(allowed_precision / needed_precision)
            noise_of_missing = sqrt((sums.sites - sums.colluding) / sums.honest)
        return cls(
            missing=contract.nodes - contract.terms.quorum,
            attempts=attempts,
            noise_of_missing=noise_of_missing,
            noise_of_attempts=noise_of_attempts,
            restored_epsilon=_budget_with_restore(contract),
        )

    @property
    def noise(self) -> float:
        """Standard deviation of the noise, relative to the same contract without any tolerance."""
        return self.noise_of_missing * self.noise_of_attempts

    @property
    def _shown_attempts(self) -> str:
        """The number of reserved attempts, in words."""
        *before_rounds, in_rounds = self.attempts
        if not before_rounds:
            return f"{in_rounds} in all"
        if {*before_rounds} == {in_rounds}:
            return f"{in_rounds} of each kind of sum"
        return f"{in_rounds} in the rounds, {min(before_rounds)} before them"

    def lines(self, contract: Contract) -> list[str]:
        """Return the lines of ``dpmesh contract check`` about the contract's fault tolerance."""
        tolerated = "tolerates    any number of restarts"
        deadline = f"after {contract.terms.deadline:g} seconds"
        if self.missing == 0:
            tolerated += "; waits for a party that is away"
        elif self.missing == 1:
            tolerated += f"; 1 missing party at a time, {deadline}"
        else:
            tolerated += f"; {self.missing} missing parties at a time, {deadline}"
        lines = [tolerated]
        if any(self.attempts):
            faults = f"stalls, wrong parts and refusals of parties: {self._shown_attempts}"
            lines.append(
                f"reserve      for {faults}; each further one ends the run a round earlier"
            )
            shares = f"{_percent(self.noise_of_missing - 1)} for missing parties"
            shares += f", {_percent(self.noise_of_attempts - 1)} for the reserve"
            lines.append(f"             costs {_percent(self.noise - 1)} more noise: {shares}")
            fewer_records = _percent(1 - 1 / self.noise)
            lines.append(f"             as much as with {fewer_records} fewer records")
        epsilon = rounded_up(self.restored_epsilon)
        restored = f"restored     a budget of epsilon = {epsilon} in the folder"
        lines.append(f"{restored} allows one --restored")
        return lines


def _percent(share: float) -> str:
    """Return a share as a percentage, with two digits."""
    return f"{100 * share:.2g}%"


def _total_precision(kinds: Iterable[Iterable[Any]]) -> float:
    """Return the sum of 1 / z^2 over the releases of all kinds of sums, z = noise_to_sensitivity.

    It is proportional to the square of the parameter mu of Gaussian DP.
    """
    return fsum(
        1 / float(release.mechanism.noise_to_sensitivity) ** 2
        for releases in kinds
        for release in releases
    )


def _budget_with_restore(contract: Contract) -> float:
    """Return the epsilon of a budget that holds a contract twice.

    The second time is charged after the folder was restored, so that it depends on releases of the
    first time: both are composed adaptively. `adaptive_cost` depends on the budget itself, and
    is iterated.
    """
    delta = max(party.delta for party in contract.parties)
    plans = made_again(contract.plan, contract.plan)
    epsilon = 2 * contract.cost(delta)
    for _ in range(_BUDGET_STEPS):
        epsilon = adaptive_cost(plans, Budget(epsilon, delta=delta))
    return epsilon
