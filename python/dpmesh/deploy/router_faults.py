"""Faults in secure sums: who costs the others attempts, whose part was wrong, what is reserved.

Each failed attempt is charged to the parties that sent their parts. So the router counts, for each
party, the attempts that failed by its fault, and leaves out parties at fault as long as a quorum
remains. A contract reserves some attempts of each kind of sum beyond those of its rounds.

A total with a wrong tag contains a wrong part, and masks hide whose. The *search* for it leaves out
one party after another, the *suspect*, in further attempts at the same step, until a total opens.

All decisions here follow from what the router reports: no time, no storage, no messages.
"""

from __future__ import annotations

from collections import Counter

from dpmesh.deploy.contract import Contract


class Faults:
    """Attempts that parties cost the others, the search for a wrong part, and the reserve.

    Parameters
    ----------
    contract
        The contract.
    """

    def __init__(self, contract: Contract) -> None:
        self._planned = contract.planned
        self._quorum = contract.terms.quorum
        self.attempts_cost: Counter[int] = Counter()
        """By party: number of failed attempts that others were charged for by its fault."""
        self._extra_attempts: Counter[int] = Counter()
        """By kind of sum: number of repeated attempts that this router has begun."""
        self.suspect: int | None = None
        """The party that is left out of the doubted step, to see if its part was wrong."""
        self._candidates: set[int] = set()
        """Parties that took part in all attempts at the doubted step with a wrong total."""
        self.doubted_step = 0
        """The step of the last total that no party accepted."""

    # Cohorts

    def next_cohort(self, present: set[int]) -> frozenset[int]:
        """Return the parties that take part in the next attempt.

        These are the parties that have cost the others no attempt. If they are fewer than a quorum,
        others join them: by the attempts that they cost, fewest first, and the suspect last.

        Parameters
        ----------
        present
            Numbers of the parties that are present and have not withdrawn.
        """
        cohort = {party for party in present if self.attempts_cost[party] == 0}
        at_fault = sorted(
            present - cohort,
            key=lambda party: (party == self.suspect, self.attempts_cost[party], party),
        )
        lacking = max(0, self._quorum - len(cohort))
        return frozenset(cohort).union(at_fault[:lacking])

    def blame(self, parties: set[int]) -> None:
        """Note that a failed attempt was the fault of these parties."""
        self.attempts_cost.update(parties)

    @property
    def parties_at_fault(self) -> set[int]:
        """Parties that have cost the others an attempt."""
        return {party for party, cost in self.attempts_cost.items() if cost > 0}

    # The reserve

    def has_reserve(self, step: int) -> bool:
        """Return True if reserved attempts are left for a step's kind of sum.

        Without a reserve, another attempt would cost the run its last round. The party whose part
        is wrong is then named, and asked for the part again: it has stored it, and is charged
        nothing.
        """
        kind = self._planned.kind_at(step)
        return self._planned.reserve_by_kind[kind] > self._extra_attempts[kind]

    def count_repeated_attempt(self, step: int) -> bool:
        """Count another attempt at a step.

        Returns
        -------
        True if it is the first one of its kind of sum beyond the reserve: the run will then end
        before its last round, for lack of attempts.
        """
        kind = self._planned.kind_at(step)
        self._extra_attempts[kind] += 1
        return self._extra_attempts[kind] == self._planned.reserve_by_kind[kind] + 1

    # The search for a wrong part

    def next_suspect(
        self, step: int, cohort: tuple[int, ...], present: set[int], eligible: set[int]
    ) -> int | None:
        """Return the party to leave out of the next attempt at a step; None if none may be.

        The search may also use the attempts of later rounds, as the wrong part would spoil these.

        Parameters
        ----------
        step
            The step whose total no party accepts.
        cohort
            Numbers of the parties that took part in it.
        present
            Numbers of the parties that are present.
        eligible
            Numbers of the present parties that have not withdrawn from the step's kind of sum.
        """
        planned = self._planned
        kind = planned.kind_at(step)
        reserve = planned.reserve_by_kind[kind]
        attempts_left = reserve + planned.later_sums[step] - self._extra_attempts[kind]
        ends_with_a_model = planned.rounds_before(step) > 0
        if reserve == 0 or (attempts_left <= 0 and not ends_with_a_model):
            return None
        self._candidates = (self._candidates & {*cohort}) or {*cohort}
        suspect = min(self._candidates & present, default=None)
        if suspect is None or len(eligible - {suspect}) < self._quorum:
            return None
        return suspect

    def begin_search_without(self, suspect: int, step: int) -> None:
        """Leave a suspect out of further attempts at a step, as if it was at fault."""
        self.suspect = suspect
        self.doubted_step = step
        self.attempts_cost[suspect] += 1

    def clear_suspect(self) -> None:
        """Clear the suspect, and take back its fault: no total without it has opened."""
        if self.suspect is not None:
            self.attempts_cost[self.suspect] -= 1
            self.suspect = None

    def end_search(self, cohort: tuple[int, ...]) -> int | None:
        """End the search, once the total of the doubted step has opened.

        Parameters
        ----------
        cohort
            Numbers of the parties whose parts this total has; not used without a suspect.

        Returns
        -------
        The suspect, if its part was wrong: the total without it opened. None without a suspect, or
        if it took part, as no quorum was present without it; it then is at fault no longer.
        """
        self._candidates.clear()
        if self.suspect in cohort:
            self.clear_suspect()
        culprit = self.suspect
        self.suspect = None
        return culprit
