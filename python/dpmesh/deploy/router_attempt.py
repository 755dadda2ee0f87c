"""One attempt at a step of secure sums: the parts that arrived, and whether they fit each other.

All decisions here follow from the cohort and the parts alone: no time, no storage, no messages.
`dpmesh.deploy.router_sums.SumRouting` opens attempts, and acts on these decisions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dpmesh.deploy.sums import Header, MaskedPart


@dataclass(kw_only=True)
class Attempt:
    """An attempt at a step, as the router sees it: who takes part, and what has arrived.

    A part states the `agreement` of its party: a hash of all that the parties of the attempt must
    have in common. Masks of parts with different agreements do not cancel.

    Parameters
    ----------
    cohort
        Numbers of the parties that take part.
    dealer
        Number of the party whose tag secret authenticates the total, in a sum for all. Not used in
        sums over neighbours, each of which its receiver deals for.
    """

    cohort: frozenset[int]
    dealer: int
    parts: dict[int, list[MaskedPart]] = field(default_factory=dict)
    """The parts of each party, one for each sum that it adds to."""
    refused: set[int] = field(default_factory=set)
    """Parties that refused to take part, or sent a wrong part."""
    refusing_total: set[int] = field(default_factory=set)
    """Parties that refused the total of the step before."""

    @property
    def unanswered(self) -> set[int]:
        """Parties of the cohort that neither sent their parts nor refused."""
        return {*self.cohort - self.parts.keys() - self.refused}

    def failing(self, absent: set[int]) -> set[int]:
        """Return the parties through whose fault the attempt failed, if others were charged.

        These are the parties of the cohort that are absent or refused, and the minority. Nobody was
        charged if no other party has sent its parts: the set is then empty.

        Parameters
        ----------
        absent
            Numbers of the parties that are absent now.
        """
        without_part = {*self.cohort & (absent | self.refused)}
        if not self.parts.keys() - without_part:
            return set()
        return without_part | self.minority()

    def minority(self) -> set[int]:
        """Return the parties whose agreement differs from most, if there is a majority."""
        minority: set[int] = set()
        for agreement_of_party in self._agreements().values():
            ((common, count),) = Counter(agreement_of_party.values()).most_common(1)
            if 2 * count > len(agreement_of_party):
                minority |= {
                    party for party, agreement in agreement_of_party.items() if agreement != common
                }
        return minority

    def disagreeing(self) -> set[int]:
        """Return the parties of each sum for which parties have different agreements."""
        disagreeing: set[int] = set()
        for agreement_of_party in self._agreements().values():
            if len({*agreement_of_party.values()}) > 1:
                disagreeing |= agreement_of_party.keys()
        return disagreeing

    def _agreements(self) -> dict[Header, dict[int, bytes]]:
        """Return the agreements in the parts, by header and party."""
        agreements: dict[Header, dict[int, bytes]] = {}
        for party, parts in self.parts.items():
            for part in parts:
                agreements.setdefault(part.header, {})[party] = part.agreement
        return agreements

    def complete_sums(self, sums: int) -> list[list[MaskedPart]]:
        """Return the parts of each sum, in the order of dealers; nothing until all are complete.

        A sum is complete once its whole cohort has sent parts with the same agreement.

        Parameters
        ----------
        sums
            Number of sums in a step: 1 for all parties, or one for each party.
        """
        groups: dict[tuple[Header, bytes], dict[int, MaskedPart]] = {}
        for party, parts in sorted(self.parts.items()):
            for part in parts:
                groups.setdefault((part.header, part.agreement), {})[party] = part
        by_dealer = {
            header.dealer: [*parts.values()]
            for (header, _), parts in groups.items()
            if (*parts,) == header.cohort
        }
        if len(by_dealer) != sums:
            return []
        return [parts for _, parts in sorted(by_dealer.items())]
