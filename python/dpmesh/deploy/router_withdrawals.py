"""Withdrawals of parties from secure sums, as the router stores them.

A party that has used its attempts at a kind of sum, or its budget, sends a signed `Withdrawal`. It
holds for all later sums of this kind. Enough withdrawals justify an early end of the run.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.sums import Withdrawal, withdrawals_needed


class _StoredWithdrawal(NamedTuple):
    """A party's withdrawal from sums of one kind.

    Attributes
    ----------
    step
        The first step of this kind of sum in which the party takes no part.
    message
        The `Withdrawal`, as a message.
    """

    step: int
    message: bytes


class Withdrawals:
    """The withdrawals of a run, by kind of sum and party.

    Parameters
    ----------
    contract
        The contract.
    """

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._by_kind: defaultdict[int, dict[int, _StoredWithdrawal]] = defaultdict(dict)

    def store(self, message: bytes) -> int:
        """Store a withdrawal once it is verified, and return the number of its party.

        Of several withdrawals from one kind of sum, the one with the first step is stored: it
        justifies an early end at this step and at later ones.

        Raises
        ------
        ValueError
            If the message is no withdrawal, or its party did not sign it.
        """
        withdrawal = Withdrawal.read(message, self._contract)
        by_party = self._by_kind[self._contract.planned.kind_at(withdrawal.step)]
        stored = by_party.get(withdrawal.party)
        if stored is None or withdrawal.step < stored.step:
            by_party[withdrawal.party] = _StoredWithdrawal(withdrawal.step, message)
        return withdrawal.party

    def at(self, step: int) -> dict[int, bytes]:
        """Return the withdrawals that hold at a step, as messages, by party."""
        by_party = self._by_kind[self._contract.planned.kind_at(step)]
        return {
            party: withdrawal.message
            for party, withdrawal in by_party.items()
            if withdrawal.step <= step
        }

    def justify_an_end_at(self, step: int) -> bool:
        """Return True if enough withdrawals hold at a step for an early end of the run."""
        return len(self.at(step)) >= withdrawals_needed(self._contract)

    def proof_of_end(self, step: int) -> list[bytes]:
        """Return as many of the withdrawals that hold at a step as justify an early end."""
        return [*self.at(step).values()][: withdrawals_needed(self._contract)]
