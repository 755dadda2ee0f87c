"""Faults that a contract tolerates, and the noise that its reserve for them adds."""

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


@dataclass(frozen=True, kw_only=True)
class Slack:
    """Numbers of faults that a contract tolerates, and the noise that they add.

    Parameters
    ----------
    missing
        Parties that may be missing at a time.
    attempts
        More sums than the rounds need, of each kind, those of the first stages first: each stall,
        wrong part or refusal of a party takes one. Empty where that costs the others nothing.
    noise_of_missing
        The noise over that of the same contract whose sums need the noise of all parties.
    noise_of_attempts
        The noise over that of the same contract without more sums than rounds.
    restored
        The epsilon of a folder's budget that allows one restored copy of it.
    """

    missing: int
    attempts: tuple[int, ...]
    noise_of_missing: float
    noise_of_attempts: float
    restored: float

    @classmethod
    def of(cls, contract: Contract) -> Slack:
        """Return the numbers of a contract."""
        missing = contract.nodes - contract.terms.quorum
        attempts: tuple[int, ...] = ()
        noise_of_missing = noise_of_attempts = 1.0
        if contract.has_one_model:
            sums = contract.planned.first_sum
            assert isinstance(sums, SecureSum)
            attempts = contract.planned.reserve_by_kind
            precision = _precision(contract.planned.allowed_by_kind)
            noise_of_attempts = sqrt(precision / _precision(contract.planned.needed_by_kind))
            noise_of_missing = sqrt((sums.sites - sums.colluding) / sums.honest)
        return cls(
            missing=missing,
            attempts=attempts,
            noise_of_missing=noise_of_missing,
            noise_of_attempts=noise_of_attempts,
            restored=_restored(contract),
        )

    @property
    def noise(self) -> float:
        """The noise over that of the same contract that tolerates no missing party."""
        return self.noise_of_missing * self.noise_of_attempts

    @property
    def _shown_attempts(self) -> str:
        *before, in_rounds = self.attempts
        if not before:
            return f"{in_rounds} in all"
        if {*before} == {in_rounds}:
            return f"{in_rounds} of each kind of sum"
        return f"{in_rounds} in the rounds, {min(before)} before them"

    def lines(self, contract: Contract) -> list[str]:
        """Return them as lines for `dpmesh contract check`."""
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
            shares = f"{_percent(self.noise_of_missing)} for missing parties"
            shares += f", {_percent(self.noise_of_attempts)} for the reserve"
            lines.append(f"             costs {_percent(self.noise)} more noise: {shares}")
            records = _percent(2 - 1 / self.noise)
            lines.append(f"             as much as with {records} fewer records")
        restored = f"restored     a budget of epsilon = {rounded_up(self.restored)} in the folder"
        lines.append(f"{restored} allows one --restored")
        return lines


def _percent(factor: float) -> str:
    """Return how much more than 1 a factor is."""
    return f"{100 * (factor - 1):.2g}%"


def _precision(kinds: Iterable[Iterable[Any]]) -> float:
    """Return the shares of sums in mu squared, but for a factor that all have in common."""
    return fsum(
        1 / float(release.mechanism.noise_to_sensitivity) ** 2
        for releases in kinds
        for release in releases
    )


def _restored(contract: Contract) -> float:
    """Return the budget that holds a contract twice, of which the second is charged afterwards."""
    delta = max(party.delta for party in contract.parties)
    plans = made_again(contract.plan, contract.plan)
    budget = 2 * contract.cost(delta)
    for _ in range(3):
        budget = adaptive_cost(plans, Budget(budget, delta=delta))
    return budget
