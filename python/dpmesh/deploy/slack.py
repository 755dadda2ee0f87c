"""Faults that a contract bears, and what its reserve for them costs."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any

from dpmesh._epsilons import rounded_up
from dpmesh.deploy.contract import Contract
from dpmesh.noise.secure import SecureSum
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.filters import adaptive_cost
from dpmesh.privacy.plan import made_again


@dataclass(frozen=True, kw_only=True)
class Slack:
    """Numbers of faults that a contract bears.

    Parameters
    ----------
    missing
        Parties that may be missing at a time.
    attempts
        More sums of each kind than the rounds need: each stall, wrong part or refusal of a party
        takes one. None where such a fault costs the others nothing.
    noise
        The noise over that of the same contract without a reserve.
    restored
        The epsilon of a folder's budget that bears one restored copy of it.
    """

    missing: int
    attempts: int | None
    noise: float
    restored: float

    @classmethod
    def of(cls, contract: Contract) -> Slack:
        """Return the numbers of a contract."""
        sums, planned = contract.sums, contract.planned
        missing, attempts, noise = contract.nodes - contract.terms.quorum, None, 1.0
        if sums is not None and contract.has_one_model:
            needed: list[Any] = [[] for _ in planned.attempts]
            for step, release in enumerate(planned.summed):
                needed[planned.kind_at(step)].append(release)
            kinds = [*zip(planned.attempts, needed, strict=True)]
            attempts = min(len(allowed) - len(used) for allowed, used in kinds)
            spent = fsum(_precision(each) for allowed, _ in kinds for each in allowed)
            whole = fsum(_precision(each) for _, used in kinds for each in used)
            assert isinstance(sums, SecureSum)
            honest = sums.sites - sums.colluding
            noise = sqrt(spent / whole * honest / sums.honest)
        return cls(missing=missing, attempts=attempts, noise=noise, restored=_restored(contract))

    def lines(self, contract: Contract) -> list[str]:
        """Return them as lines for `dpmesh contract check`."""
        bears = "bears        any number of restarts"
        deadline = f"after {contract.terms.deadline:g} seconds"
        if self.missing == 0:
            bears += "; waits for a party that is away"
        elif self.missing == 1:
            bears += f"; 1 missing party at a time, {deadline}"
        else:
            bears += f"; {self.missing} missing parties at a time, {deadline}"
        lines = [bears]
        if self.attempts:
            faults = f"stalls, wrong parts and refusals of parties: {self.attempts} in all"
            lines.append(
                f"reserve      for {faults}; each further one ends the run a round earlier"
            )
            more = f"{100 * (self.noise - 1):.2g}% more noise than without a reserve"
            lines.append(f"             costs {more}")
        restored = f"restored     a budget of epsilon = {rounded_up(self.restored)} in the folder"
        lines.append(f"{restored} bears one --restored")
        return lines


def _precision(release: Any) -> float:
    """Return the share of a release in mu squared, but for a factor that all have in common."""
    return 1 / float(release.mechanism.noise_to_sensitivity) ** 2


def _restored(contract: Contract) -> float:
    """Return the budget that holds a contract twice, of which the second is charged afterwards."""
    delta = max(party.delta for party in contract.parties)
    plans = made_again(contract.plan, contract.plan)
    budget = 2 * contract.cost(delta)
    for _ in range(3):
        budget = adaptive_cost(plans, Budget(budget, delta=delta))
    return budget
