"""Routing of secure sums: the router adds up masked parts, and cannot read any of them.

A position of the run is a *step* (a sum for all parties, or one for each party over its neighbours)
and an *attempt* at it. The parties of a *cohort* take part in an attempt. Once all of them have
sent their masked parts, the router adds up the totals, which go out with the next headers. See
`dpmesh.deploy.sums` for dealer, tag, agreement, transcript, seal and withdrawal.

What happens if something fails, in a sum for all parties:

- *A party is late or refuses.* The other parties begin another attempt. Later attempts leave out
  the party at fault, as long as a quorum remains, so that it cannot use up the releases of others.
- *A total has a wrong tag*, so a part is wrong, and masks hide whose. The next attempts leave out
  one party after another (the *suspect*), until a total opens.
- *The contract reserves no attempt* for that. Parties are then asked for the same parts again.
- *A party withdraws*, as it has used its attempts. If too few parties are left for another attempt,
  the run ends early: all parties get the withdrawals, and sign the totals so far as at the end of a
  whole run.
- *The router restarts.* Nothing is kept on disk. A new router opens the last attempt that any party
  has begun, with its header, and asks parties for totals that others lack.

Sums over neighbours wait for each party, and a new router asks again from the first attempt on:
nodes answer from their folders.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from dpmesh._validate import fail
from dpmesh.deploy.attendance import Attendance
from dpmesh.deploy.schedule import Confirmers
from dpmesh.deploy.signing import digest, pack, unpack
from dpmesh.deploy.sums import (
    MASKED_PARTS,
    RELAY_QUESTION,
    RELAYED_SECRET,
    SEAL,
    TAG_SECRET,
    TAG_SECRET_QUESTION,
    WITHDRAWAL,
    Header,
    MaskedPart,
    Seal,
    Total,
    Withdrawal,
    add_parts,
    withdrawals_by_party,
    withdrawals_needed,
)
from dpmesh.deploy.wire import Position, StepProgress, int_fields, read_ints, totals_question

_log = logging.getLogger("dpmesh")

PAUSE = 1.0
"""Seconds before a party whose part was wrong is first asked for it again."""
STRIDE = 2**10
"""Step between the numbers of attempts, if a router restarted without some parties. These parties
may have begun attempts that no other party knows of, and their numbers must not be used again."""

TAKES_NO_PART = ("not the next round", "bad cohort", "bad key", "malformed")
"""Refusals after which a party takes no part in an attempt."""
FITS_NO_OTHER = "sends a part that fits no other"


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


class SumRouting:
    """The part of a router for runs of secure sums: which attempt is open, and who is asked what.

    It sees masked parts and totals, and has no secrets.
    `dpmesh.deploy.router_rows.RowRouting` has the same methods for rows.

    Parameters
    ----------
    router
        The router, as its base class.
    """

    def __init__(self, router: Attendance) -> None:
        self._router = router
        self._contract = router.contract
        self._schedule = router.schedule
        self.handlers: dict[bytes, Callable[[int, bytes], None]] = {
            MASKED_PARTS: self._take_parts,
            TAG_SECRET: self._take_tag_secret,
            RELAYED_SECRET: self._take_relayed_secret,
            SEAL: self._take_seal,
            WITHDRAWAL: self._take_withdrawal,
        }
        self.ended: dict[int, bytes] = {}
        """The seal of each party, as a message, by party."""
        self._sealed_secrets: dict[int, list[bytes]] = {}
        """By dealer: its tag secret, sealed for each party."""
        self._dealer = 0
        """Dealer of the tag secret of the open attempt, in a sum for all."""
        self._cohort: set[int] = set()
        """Parties that take part in the open attempt."""
        self._stride = 1
        """Step between the numbers of attempts: 1, or `STRIDE` after some restarts."""
        self._parts: dict[int, list[MaskedPart]] = {}
        """The parts of each party in the open attempt, one for each sum that it adds to."""
        self._refused: set[int] = set()
        """Parties that refused to take part in the open attempt, or sent a wrong part."""
        self._ask_again_at: dict[int, float] = {}
        """Time at which a party whose last answer was of no use is asked again, by party."""
        self._pause_of_party: dict[int, float] = {}
        """Seconds of the next such pause in the open attempt, by party."""
        self._pause_of_all = PAUSE
        """Seconds of the next pause of all parties, after a total that no party accepted."""
        self._suspect: int | None = None
        """The party that is left out of the doubted step, to see if its part was wrong."""
        self._suspects: set[int] = set()
        """Parties that took part in all attempts at the doubted step with a wrong total."""
        self._doubted_step = 0
        """The step of the last total that no party accepted."""
        self._refusing_total: set[int] = set()
        """Parties that refused the last total."""
        self._attempts_cost: Counter[int] = Counter()
        """By party: number of failed attempts that others were charged for by its fault."""
        self._extra_attempts: Counter[int] = Counter()
        """By kind of sum: number of repeated attempts that this router has begun."""
        self._withdrawals: defaultdict[int, dict[int, _StoredWithdrawal]] = defaultdict(dict)
        """By kind of sum: the withdrawals, by party."""
        self._for_all = router.contract.has_one_model
        """True for one sum for all parties; False for one for each party over its neighbours."""
        self._totals: dict[int, list[Total]] = {}
        """The totals of each step: one for all, or one for each party."""
        self._source_of_total: dict[int, int] = {}
        """By step: the party that sent a stored total to this router after its restart."""
        self._dealers_of_totals: set[int] = set()
        """Dealers of the tag secrets of these totals."""
        self._cannot_deal: set[int] = set()
        """Parties that have erased their secrets, as their run is over. In sums over neighbours,
        others have the tag secrets that these dealt before."""
        self._cannot_relay: set[tuple[int, int]] = set()
        """Pairs of a party, and a dealer whose tag secret this party does not have."""
        self._last_opened_step = -1
        """The latest step that was open so far."""
        self._first_step = 0
        """The step that was open when this router started."""
        self._laggards: set[int] = set()
        """Parties that may lack totals of earlier steps, after a restart of this router."""
        self._distrusted: set[int] = set()
        """Parties that sent stored totals which other parties refused."""
        self._transcripts = [router.contract.hash] * router.contract.nodes
        """In sums over neighbours: the transcript of each party."""
        self._previous_transcripts = self._transcripts
        """The same before the last totals."""

    @property
    def _is_closing(self) -> bool:
        """True if the open position is a closing position: parties sign the end of the run."""
        return self._router.open_position is not None and self._schedule.is_closing(
            self._router.open_position
        )

    @property
    def awaited(self) -> set[int]:
        """Parties that the open position waits for: dealers first, then the cohort."""
        router = self._router
        position = router.open_position
        assert position is not None
        if self._is_closing:
            return {*router.all_parties - router.in_time[position] - router.absent}
        lacking = self.missing_dealers
        if lacking:
            return lacking - router.absent
        return self._cohort - self._parts.keys() - self._refused - router.absent - router.withdrawn

    @property
    def missing_dealers(self) -> set[int]:
        """Dealers of the open attempt whose tag secret has not arrived yet."""
        if self._is_closing:
            return set()
        dealers = {self._dealer} if self._for_all else {*self._router.all_parties}
        return dealers - self._sealed_secrets.keys() - self._cannot_deal

    def start(self) -> None:
        """Open the first position; after a restart, the last attempt that any party has begun."""
        router = self._router
        reached = [
            step for party, step in router.reported_progress.items() if party not in router.absent
        ]
        if not reached or not self._for_all:
            self.open(router.schedule.after(None))
            return
        if router.late:
            self._stride = STRIDE
        early = [step for step in reached if self._schedule.is_early(step.position)]
        last = max(early or reached, key=lambda step: step.position)
        self._first_step = last.position.round
        self._laggards = {*router.all_parties}
        if early:
            for message in withdrawals_by_party(
                unpack(last.header), last.position.round, self._contract
            ).values():
                self._store_withdrawal(message)
        if self._schedule.is_closing(last.position):
            self.open(
                self._schedule.closing_position(last.position.round)
            )  # seals are collected anew
        else:
            self.open(last.position, Header.read(last.header, self._contract))

    def check_progress(self, reached: StepProgress) -> None:
        """Fail unless a party can have made the progress that it states.

        Raises
        ------
        ValueError
            If the position is none of the run, or the header does not fit it.
        """
        position = reached.position
        if position > self._schedule.end or position.round < 0:
            fail("message", "a position of the contract's run", position)
        if self._schedule.is_early(position):
            words = withdrawals_by_party(unpack(reached.header), position.round, self._contract)
            if position.round == self._schedule.end.round or len(words) < withdrawals_needed(
                self._contract
            ):
                fail("message", "the words after which a run ends early", f"{len(words)} of them")
            return
        if reached.header and Header.read(reached.header, self._contract).position != position:
            fail("header", f"that of the attempt {position}", "another")
        if self._for_all and position.round < self._schedule.end.round and not reached.header:
            fail("message", "the header of an attempt", "none")

    def open(self, position: Position, header: Header | None = None) -> None:
        """Open a position, and begin its deadline.

        Parameters
        ----------
        position
            The position.
        header
            A header whose cohort and dealer the attempt has; by default a new cohort.
        """
        router = self._router
        router.in_time.clear()
        router.open_at(position, again=position.round <= self._last_opened_step)
        self._last_opened_step = max(self._last_opened_step, position.round)
        self._pause_of_party.clear()
        self._parts, self._refused, self._refusing_total = {}, set(), set()
        router.withdrawn = set() if self._is_closing else {*self._withdrawals_at(position.round)}
        if header is None:
            self._cohort = self._next_cohort()
            if not self._sealed_secrets:
                self._dealer = min(self._cohort)
        else:
            self._cohort = {*header.cohort}
            self._dealer = header.dealer
        self.advance()

    def _next_cohort(self) -> set[int]:
        """Return the parties that take part in the next attempt.

        These are the present parties that have cost the others no attempt. If they are fewer than a
        quorum, others join them, in the order of `_order_of_fault`.
        """
        there = self._router.all_parties - self._router.absent - self._router.withdrawn
        cohort = {party for party in there if self._attempts_cost[party] == 0}
        costly = sorted(there - cohort, key=self._order_of_fault)
        for party in costly:
            if self._router.is_quorum(cohort):
                break
            cohort.add(party)
        return cohort

    def _order_of_fault(self, party: int) -> tuple[bool, int, int]:
        """Return the sort key of parties at fault: by the attempts they cost, the suspect last."""
        return party == self._suspect, self._attempts_cost[party], party

    def advance(self) -> None:
        """Go on as far as the answers so far allow.

        The next position is opened if the open one is over, and another attempt if it is stuck.
        """
        router = self._router
        if router.open_position is None or self._schedule.is_last(router.open_position):
            return
        if self._is_closing:
            if not self.awaited:
                self.open(Position(router.open_position.round, router.open_position.exchange + 1))
            return
        if router.withdrawn and not router.is_quorum(self._may_take_part):
            self._end_early()
            return
        lost_step = self._lost_step()
        if lost_step is not None:
            self._repeat_from(lost_step)
            return
        if self._is_stuck():
            self._begin_attempt()
            return
        if self.awaited:
            return
        complete: list[list[MaskedPart]] = []
        if not self.missing_dealers:
            complete = self._complete_sums()
        if complete:
            self._take_totals(complete)
            self.open(Position(router.open_position.round + 1))
        elif self._has_reserve(router.open_position.round) or self.missing_dealers:
            self._begin_attempt()
        else:
            self._ask_minority_again()

    def _has_reserve(self, step: int) -> bool:
        """Return True if reserved attempts are left for a step's kind of sum.

        Without a reserve, another attempt would cost the run its last round. The party whose part
        is wrong is then named, and asked for the part again: it has stored it, and is charged
        nothing.
        """
        kind = self._kind_at(step)
        return self._contract.planned.reserve_by_kind[kind] > self._extra_attempts[kind]

    def _ask_minority_again(self) -> None:
        """Ask the parties again whose agreement differs from most; all if there is no majority.

        If all are asked again, none of them is at fault, and the deadline begins again.
        """
        minority = self._minority()
        if not minority:
            self._router.restart_deadline()
        for party in minority or self._disagreeing():
            del self._parts[party]
            self._ask_again_later(party, FITS_NO_OTHER)

    def _ask_again_later(self, party: int, fault: str) -> None:
        """Ask a party for the same answer again, after a pause that doubles; log its fault once."""
        if party not in self._pause_of_party:
            _log.warning("%s %s; it is asked again", self._contract.parties[party].name, fault)
        pause = self._pause_of_party.get(party, PAUSE)
        self._pause_of_party[party] = min(2 * pause, self._longest_pause)
        self._ask_again_at[party] = self._router.now() + pause

    @property
    def _longest_pause(self) -> float:
        """Longest pause in seconds: half a deadline, so that the other half is left to answer."""
        return self._contract.terms.deadline / 2

    def _is_stuck(self) -> bool:
        """Return True if the open attempt waits for a part or a report of an absent party.

        A party that started needs the rollback reports of its whole cohort.
        """
        absent = self._cohort & (self._router.absent | self._router.withdrawn)
        if not self._for_all or not absent:
            return False
        if absent - self._parts.keys():
            return True
        started = (self._cohort - self._parts.keys()) & self._router.unconfirmed.keys()
        return any(absent - self._router.reporters(party) for party in started)

    def _begin_attempt(self) -> None:
        """Begin another attempt at the open step, if a quorum is present."""
        position = self._router.open_position
        if position is not None and self._router.has_quorum:
            self._count_costs()
            self._warn_of_an_early_end(position.round)
            self.open(Position(position.round, position.exchange + self._stride))

    def _lost_step(self) -> int | None:
        """Return the first step whose total only absent parties have stored; None if there is none.

        A party may have accepted a total, and be lost together with the router that made it.
        """
        router = self._router
        position = router.open_position
        if position is None or not self._for_all or not router.has_quorum:
            return None
        there = router.all_parties - router.absent
        reached = max(
            self._first_lacking_step(party) for party in there - self._distrusted or there
        )
        unknown = {*range(reached, position.round)} - self._totals.keys()
        return min(unknown, default=None)

    def _repeat_from(self, step: int) -> None:
        """Begin a step again among the present parties, and drop all later totals.

        Absent parties that accepted its lost total have another transcript from then on. They count
        as at fault, so that later attempts leave them out, as long as a quorum remains.
        """
        router = self._router
        there = router.all_parties - router.absent
        for party in router.all_parties - there:
            self._attempts_cost[party] += 1
        self._totals = {
            earlier_step: totals
            for earlier_step, totals in self._totals.items()
            if earlier_step < step
        }
        reached = [self._progress_of(party) for party in there]
        last = max((position.exchange for position in reached if position.round == step), default=0)
        text = "round %d is added up again: only missing parties know its total"
        _log.warning(text, self._contract.planned.rounds_before(step))
        self._warn_of_an_early_end(step)
        self.open(Position(step, last + STRIDE))

    def _kind_at(self, step: int) -> int:
        """Return the number of the kind of sum of a step."""
        return self._contract.planned.kind_at(step)

    @property
    def _may_take_part(self) -> set[int]:
        """Parties that may take part in another attempt, late ones included."""
        return {*self._router.all_parties - self._router.gone.keys() - self._router.withdrawn}

    def give_up(self) -> bool:
        """End the run early, if withdrawn and absent parties leave less than a quorum.

        The router calls it when the deadline has passed.

        Returns
        -------
        True if the early end has begun.
        """
        router = self._router
        if self._is_closing or not router.withdrawn:
            return False
        if router.is_quorum(router.all_parties - router.absent - router.withdrawn - self.awaited):
            return False
        return self._end_early()

    def _end_early(self) -> bool:
        """Have all parties sign the totals so far, if enough of them have withdrawn.

        Else, if withdrawals leave no quorum for ever, the run fails.

        Returns
        -------
        True if the early end has begun.
        """
        router = self._router
        position = router.open_position
        assert position is not None
        spent = self._withdrawals_at(position.round)
        if len(spent) < withdrawals_needed(self._contract):
            if not router.is_quorum(self._may_take_part):
                router.gone |= dict.fromkeys(spent, "over budget")
            return False
        rounds = self._contract.planned.rounds_before(position.round)
        names = ", ".join(router.names({*spent}))
        text = "the run ends early, after %d of %d rounds: %s may release no more"
        _log.warning(text, rounds, self._contract.terms.rounds, names)
        self.open(self._schedule.closing_position(position.round))
        return True

    def _take_withdrawal(self, _: int, answer: bytes) -> None:
        """Take a withdrawal, and go on without its party at sums of that kind."""
        router = self._router
        if router.open_position is None or self._is_closing or not self._for_all:
            return
        party = self._store_withdrawal(answer)
        if party in self._withdrawals_at(router.open_position.round):
            router.withdrawn.add(party)
            self.advance()

    def _store_withdrawal(self, message: bytes) -> int:
        """Store a verified withdrawal, and return the number of its party.

        Of several withdrawals from one kind of sum, the one with the first step is stored: it
        justifies an early end at this step and at later ones.
        """
        withdrawal = Withdrawal.read(message, self._contract)
        withdrawals = self._withdrawals[self._kind_at(withdrawal.step)]
        stored = withdrawals.get(withdrawal.party)
        if stored is None or withdrawal.step < stored.step:
            withdrawals[withdrawal.party] = _StoredWithdrawal(withdrawal.step, message)
        return withdrawal.party

    def _withdrawals_at(self, step: int) -> dict[int, bytes]:
        """Return the withdrawals that hold at a step, as messages, by party."""
        withdrawals = self._withdrawals[self._kind_at(step)]
        return {
            party: withdrawal.message
            for party, withdrawal in withdrawals.items()
            if withdrawal.step <= step
        }

    def _warn_of_an_early_end(self, step: int) -> None:
        """Count another attempt at a step; log once that the run will end early for lack of them.

        Parameters
        ----------
        step
            The step at which another attempt begins.
        """
        router = self._router
        contract = self._contract
        if not self._for_all:
            return
        kind = self._kind_at(step)
        reserve = contract.planned.reserve_by_kind[kind]
        self._extra_attempts[kind] += 1
        if self._extra_attempts[kind] != reserve + 1:
            return
        costly = {party for party, cost in self._attempts_cost.items() if cost > 0}
        names = ", ".join(router.names(costly)) or "a router that was restarted"
        text = "the run will end before round %d, with the model of the rounds until then: "
        text += "attempts were spent by %s, and the contract reserves %d beside its rounds"
        _log.error(text, contract.terms.rounds, names, reserve)

    def _count_costs(self) -> None:
        """Note the parties through whose fault the open attempt failed, if others were charged.

        These are the parties that are absent or refuse, and those whose agreement differs from the
        majority's.
        """
        failing = self._cohort & (self._router.absent | self._refused)
        if not self._for_all or not self._parts.keys() - failing:
            return
        for party in failing | self._minority():
            self._attempts_cost[party] += 1

    def _minority(self) -> set[int]:
        """Return the parties whose agreement differs from most, if there is a majority."""
        minority: set[int] = set()
        for agreement_of_party in self._agreements().values():
            ((common, count),) = Counter(agreement_of_party.values()).most_common(1)
            if 2 * count > len(agreement_of_party):
                minority |= {
                    party for party, agreement in agreement_of_party.items() if agreement != common
                }
        return minority

    def _disagreeing(self) -> set[int]:
        """Return the parties of each sum for which parties have different agreements."""
        disagreeing: set[int] = set()
        for agreement_of_party in self._agreements().values():
            if len({*agreement_of_party.values()}) > 1:
                disagreeing |= agreement_of_party.keys()
        return disagreeing

    def _agreements(self) -> dict[Header, dict[int, bytes]]:
        """Return the agreements in the parts of the open attempt, by header and party."""
        agreements: dict[Header, dict[int, bytes]] = {}
        for party, parts in self._parts.items():
            for part in parts:
                agreements.setdefault(part.header, {})[party] = part.agreement
        return agreements

    def _complete_sums(self) -> list[list[MaskedPart]]:
        """Return the parts of each sum, in the order of dealers; nothing until all are complete.

        A sum is complete once its whole cohort has sent parts with the same agreement.
        """
        groups: dict[tuple[Header, bytes], dict[int, MaskedPart]] = {}
        for party, parts in sorted(self._parts.items()):
            for part in parts:
                groups.setdefault((part.header, part.agreement), {})[party] = part
        by_dealer = {
            header.dealer: [*parts.values()]
            for (header, _), parts in groups.items()
            if (*parts,) == header.cohort
        }
        complete = len(by_dealer) == len(self._contract.planned.sum_at(0).receivers)
        if complete:
            return [parts for _, parts in sorted(by_dealer.items())]
        return []

    def _take_totals(self, groups: list[list[MaskedPart]]) -> None:
        """Add up the complete sums of the open step, and store their totals."""
        position = self._router.open_position
        assert position is not None
        totals = [Total(parts[0].header, *add_parts(parts, self._contract)) for parts in groups]
        self._totals[position.round] = totals
        self._name_suspect(position.round)
        self._source_of_total.pop(position.round, None)
        self._dealers_of_totals |= {total.header.dealer for total in totals}
        if self._for_all:
            self._dealer = totals[
                0
            ].header.dealer  # that of a header, after a restart of this router
            return
        self._previous_transcripts = self._transcripts
        self._transcripts = [*self._transcripts]
        for receiver, (total, parts) in enumerate(zip(totals, groups, strict=True)):
            transcript = self._transcripts[receiver]
            self._transcripts[receiver] = digest(transcript, parts[0].agreement, total.packed)

    def _name_suspect(self, step: int) -> None:
        """Log the suspect, once a step after the doubted one is added up: its part was wrong."""
        if step <= self._doubted_step:
            return
        self._pause_of_all = PAUSE
        self._suspects.clear()
        if self._suspect is None:
            return
        (total,) = self._totals[self._doubted_step]
        if self._suspect in total.header.cohort:
            self._clear_suspect()  # it took part, as no quorum was present without it
            return
        (name,) = self._router.names({self._suspect})
        text = "the total without %s opens: its part was wrong, or another's was wrong once"
        _log.warning(text, name)
        self._suspect = None

    def next_position(self, party: int) -> Position | None:
        """Return the position that a party is to answer next, if any."""
        position = self._router.open_position
        assert position is not None
        if self._router.now() < self._ask_again_at.get(party, 0.0):
            return None
        is_asked = party in self.awaited or (
            self._is_closing and party not in self._router.in_time[position]
        )
        if is_asked and not self._lacking_steps(party):
            return position
        return None

    def _progress_of(self, party: int) -> Position:
        """Return the last known position of a party; the first position if none is known."""
        before = self._router.last_answered[party]
        if before is not None:
            return before
        if self._for_all and party in self._router.reported_progress:
            return self._router.reported_progress[party].position
        return Position(0)

    def _first_lacking_step(self, party: int) -> int:
        """Return the first step whose total a party lacks."""
        return self._progress_of(party).round

    def _has_ended(self, party: int) -> bool:
        """Return True if a party has signed the end of the run, and so erased its secrets."""
        return self._schedule.is_closing(self._progress_of(party))

    def _lacking_steps(self, party: int) -> list[int]:
        """Return the steps whose totals a party lacks, and which this router cannot send it yet.

        The router lacks the total, or the party lacks the dealer's tag secret.
        """
        position = self._router.open_position
        assert position is not None
        missed = []
        for step in range(self._first_lacking_step(party), position.round):
            totals = self._totals.get(step)
            if totals is None:
                missed.append(step)
                continue
            total = totals[0 if self._for_all else party]
            if not self._can_open(party, total.header.dealer):
                missed.append(step)
        return missed

    def _can_open(self, party: int, dealer: int) -> bool:
        """Return True if a party has a dealer's tag secret, or this router can send it.

        A party has the secret of the attempt that it answered before this router started.
        """
        if dealer in self._sealed_secrets or dealer == party:
            return True
        reached = self._router.reported_progress.get(party)
        if reached is None or not reached.header:
            return False
        return Header.read(reached.header, self._contract).dealer == dealer

    def question_before_step(self, party: int) -> bytes | None:
        """Return the question for a tag secret, or for totals that others lack, if one is due.

        A party is asked for these before it is asked for its next step.
        """
        if self._must_deal(party):
            signatures = self._router.signatures.items()
            signed = (message for number, message in signatures if number != party)
            return pack(TAG_SECRET_QUESTION, self._contract.hash, *signed)
        dealer = self._dealer_to_relay(party)
        if dealer is not None:
            return pack(RELAY_QUESTION, self._contract.hash, *int_fields(dealer))
        since = self._first_total_to_fetch(party)
        if since is not None:
            return totals_question(self._contract, since)
        return None

    def _must_deal(self, party: int) -> bool:
        """Return True if a party is to deal its tag secret."""
        if party in self.missing_dealers:
            return True
        if self._has_ended(party):
            return False
        return (
            self._for_all and party in self._dealers_of_totals and party not in self._sealed_secrets
        )

    def _dealer_to_relay(self, party: int) -> int | None:
        """Return the lost dealer whose tag secret a party is to seal for others; None without one.

        Parties that missed totals need the secret. Parties that accepted these totals have it,
        until they sign the end.
        """
        router = self._router
        if not self._for_all or self._has_ended(party):
            return None
        for dealer in sorted(self._dealers_of_totals - self._sealed_secrets.keys()):
            if dealer in router.absent and (party, dealer) not in self._cannot_relay:
                return dealer
        return None

    def _first_total_to_fetch(self, party: int) -> int | None:
        """Return the first step whose total a party is to send to this router; None without one."""
        self._laggards = {
            laggard
            for laggard in self._laggards
            if self._first_lacking_step(laggard) < self._first_step
        }
        if party in self._distrusted:
            return None
        unknown = {
            step
            for laggard in self._laggards - self._router.absent
            for step in self._lacking_steps(laggard)
            if step not in self._totals
        }
        available = {step for step in unknown if step < self._first_lacking_step(party)}
        return min(available, default=None)

    def blocking(self, party: int) -> set[int]:
        """Return the parties that hold up another one, as they have totals or secrets it lacks."""
        missed = self._lacking_steps(party)
        if not missed:
            return set()
        there = self._router.all_parties - self._router.absent - {party}
        dealers = {self._totals[step][0].header.dealer for step in missed if step in self._totals}
        asked = {
            other
            for other in there
            if self._first_total_to_fetch(other) is not None
            or self._dealer_to_relay(other) is not None
        }
        return (dealers & there) | asked

    def take_stored_totals(self, party: int, totals: tuple[bytes, ...]) -> None:
        """Store totals that a party accepted before this router started."""
        for message in totals:
            total = Total.read(message, self._contract)
            step = total.header.position.round
            if (
                self._for_all
                and step not in self._totals
                and step < self._first_lacking_step(party)
            ):
                self._totals[step] = [replace(total, header=total.header.common)]
                self._dealers_of_totals.add(total.header.dealer)
                self._source_of_total[step] = party
        self.advance()

    def parties_to_confirm(self, party: int) -> set[int]:
        """Return the parties that need this party's report: all whose start is unconfirmed."""
        return {*self._router.unconfirmed}

    def confirmers(self, party: int) -> Confirmers:
        """Return the parties that must report on a start: the present others of the cohort."""
        others = self._cohort - self._router.absent - {party}
        return Confirmers(others, len(others))

    def is_cut_off(self, party: int) -> bool:
        """Return False: a cohort has present parties alone, so the others can confirm a start."""
        return False

    def attachments(self, party: int) -> tuple[bytes, ...]:
        """Return the messages attached to a party's question: its inputs of the open position.

        These are signatures (with its first question), the totals that it lacks, and headers with
        rollback reports; at a closing position withdrawals and seals.
        """
        router = self._router
        contract = self._contract
        position = router.open_position
        assert position is not None
        signed: tuple[bytes, ...] = ()
        if router.last_answered[party] is None:
            signed = tuple(router.signatures.values())
        totals = []
        for step in range(self._first_lacking_step(party), position.round):
            total = self._totals[step][0 if self._for_all else party]
            sealed = replace(total, header=self._with_tag_secret(total.header, party))
            totals.append(sealed.as_bytes(contract))
        if self._is_closing:
            return (*signed, *totals, *self._withdrawals_for_end(position), *self.ended.values())
        headers = [
            self._with_tag_secret(header, party).as_bytes(contract)
            for header in self._headers(position, party)
        ]
        return (*signed, *router.reports_for(party, self._cohort), *totals, *headers)

    def _withdrawals_for_end(self, position: Position) -> list[bytes]:
        """Return the withdrawals that justify an early end; none at the end of a whole run."""
        if not self._schedule.is_early(position):
            return []
        withdrawals = self._withdrawals_at(position.round)
        return [*withdrawals.values()][: withdrawals_needed(self._contract)]

    def _headers(self, position: Position, party: int) -> list[Header]:
        """Return the header of each sum that a party adds to at a position."""
        if self._for_all:
            return [Header(position, tuple(sorted(self._cohort)), self._dealer)]
        receivers = self._contract.planned.sum_at(0).receivers
        return [
            Header(position, tuple(sorted(senders)), to, transcript=self._transcripts[to])
            for to, senders in enumerate(receivers)
            if party in senders
        ]

    def _with_tag_secret(self, header: Header, party: int) -> Header:
        """Return a header with the tag secret, sealed for a party, if the router has it."""
        if header.dealer not in self._sealed_secrets:
            return header  # the party has the secret
        return replace(header, sealed_tag_secret=self._sealed_secrets[header.dealer][party])

    def _take_parts(self, party: int, answer: bytes) -> None:
        """Take a party's parts of the open attempt; leave out the party if they are malformed."""
        position = self._router.open_position
        _, *messages = unpack(answer)
        try:
            parts = [MaskedPart.read(message, self._contract) for message in messages]
        except ValueError:
            self._leave_out(party)
            raise
        if (
            position is None
            or {part.header.position for part in parts} != {position}
            or self.next_position(party) is None
        ):
            return
        if not self._are_asked_for(parts, position, party):
            self._leave_out(party)
            fail("parts", "one for each header that the party is asked to answer", "others")
        self._router.note_answer(party, position)
        self._parts[party] = parts
        self.advance()

    def _are_asked_for(self, parts: list[MaskedPart], position: Position, party: int) -> bool:
        """Return True if there is one part for each header that a party is asked to answer.

        A part with another cohort or dealer fits no other part.
        """
        headers = {  # parts state no transcript
            replace(header.common, transcript=b"") for header in self._headers(position, party)
        }
        return len(parts) == len(headers) and {part.header for part in parts} == headers

    def _leave_out(self, party: int) -> None:
        """Go on without a party whose parts are wrong; ask for them again without a reserve."""
        if (
            self._router.open_position is None
            or self.next_position(party) is None
            or self._is_closing
        ):
            return
        if not self._has_reserve(self._router.open_position.round):
            self._ask_again_later(party, FITS_NO_OTHER)
            return
        self._refused.add(party)
        self.advance()

    def _take_tag_secret(self, party: int, answer: bytes) -> None:
        """Take a dealer's tag secret, sealed for each party."""
        _, _, number, *sealed = unpack(answer)
        if read_ints(number) == (party,) and len(sealed) == self._contract.nodes:
            self._sealed_secrets[party] = sealed
            self.advance()

    def _take_relayed_secret(self, party: int, answer: bytes) -> None:
        """Take the tag secret of a lost dealer, sealed by another party for each party."""
        _, _, number, *sealed = unpack(answer)
        (dealer,) = read_ints(number)
        if self._dealer_to_relay(party) == dealer and len(sealed) == self._contract.nodes:
            self._sealed_secrets[dealer] = sealed
            self.advance()

    def _take_seal(self, party: int, answer: bytes) -> None:
        """Take a party's seal at the end of the run."""
        seal = Seal.read(answer, self._contract)
        position = self._router.open_position
        if position is not None and self._is_closing and seal[:2] == (position, party):
            self.ended[party] = answer
            self._router.note_answer(party, position)
            self._router.in_time[position].add(party)
            self.advance()

    def take_refusal(self, party: int, reason: str) -> None:
        """Go on after a party refused a tag secret, a total, an attempt, or the end of the run."""
        if reason == "not dealt" and party in self.missing_dealers and not self._for_all:
            self._cannot_deal.add(party)
        elif reason == "not dealt" and (dealer := self._dealer_to_relay(party)) is not None:
            self._cannot_relay.add((party, dealer))
        elif reason == "bad total":
            self._take_refusal_of_total(party)
        elif reason in TAKES_NO_PART or reason.startswith("not signed by"):
            self._router.last_answered[party] = None  # it may need older totals, or signatures
            position = self._router.open_position
            if position is None:
                return
            if self._is_closing:
                self._ask_again_later(party, "does not sign the end of the run")
            elif self._has_reserve(position.round):
                self._refused.add(party)
            else:
                self._ask_again_later(party, "takes no part in the open sum")

    def _take_refusal_of_total(self, party: int) -> None:
        """Go on after a party refused a total.

        If the total came from another party after a restart, it is fetched from a further one. Else
        the last step is added up again: once all parties refuse its total, in a sum for all.
        """
        doubtful = {
            step for step in self._source_of_total if step >= self._first_lacking_step(party)
        }
        if doubtful:
            self._distrusted |= {self._source_of_total[step] for step in doubtful}
            for step in doubtful:
                del self._totals[step], self._source_of_total[step]
            return
        position = self._router.open_position
        if position is None or position.round - 1 not in self._totals:
            return
        if position.round - 1 < self._first_lacking_step(party):
            return  # its question had the total of a step that is open again by now
        self._refusing_total.add(party)
        is_refused_by_all = (
            self._refusing_total >= self._cohort - self._router.absent - self._refused
        )
        if self._for_all and not is_refused_by_all:
            return
        step = position.round - 1
        self._clear_suspect()
        suspect = self._next_suspect(step)
        if suspect is None:
            self._ask_for_parts_again(step)
        else:
            self._add_up_without(suspect, step)

    def _next_suspect(self, step: int) -> int | None:
        """Return the party to leave out of the next attempt at a step; None if none may be.

        The search may also use the attempts of later rounds, as the wrong part would spoil these.
        """
        planned = self._contract.planned
        kind = self._kind_at(step)
        reserve = planned.reserve_by_kind[kind]
        attempts_left = reserve + planned.later_sums[step] - self._extra_attempts[kind]
        ends_with_a_model = planned.rounds_before(step) > 0
        if reserve == 0 or (attempts_left <= 0 and not ends_with_a_model):
            return None
        router = self._router
        there = router.all_parties - router.absent
        may_add = there - self._withdrawals_at(step).keys()
        (doubted,) = self._totals[step]
        cohort = {*doubted.header.cohort}
        self._suspects = (self._suspects & cohort) or cohort
        suspect = min(self._suspects & there, default=None)
        if suspect is None or not router.is_quorum(may_add - {suspect}):
            return None
        return suspect

    def _add_up_without(self, suspect: int, step: int) -> None:
        """Begin another attempt at a step whose total no party accepts, without a new suspect.

        If the total without a suspect has a wrong tag, too, another party's part was wrong.
        """
        (doubted,) = self._totals.pop(step)
        self._suspect = suspect
        self._doubted_step = step
        self._attempts_cost[suspect] += 1
        self._warn_of_an_early_end(step)
        self.open(Position(step, doubted.header.position.exchange + self._stride))

    def _clear_suspect(self) -> None:
        """Clear the suspect, and take back its fault: no total without it has opened."""
        if self._suspect is not None:
            self._attempts_cost[self._suspect] -= 1
            self._suspect = None

    def _ask_for_parts_again(self, step: int) -> None:
        """Ask all parties for the same parts again, after a pause: one of the parts was wrong."""
        totals = self._totals.pop(step)
        self._doubted_step = step
        self._transcripts = self._previous_transcripts
        adds = [{*total.header.cohort} for total in totals]
        suspects = set.intersection(
            *(adds[0 if self._for_all else n] for n in self._refusing_total)
        )
        names = " or ".join(self._router.names(suspects - self._refusing_total or suspects))
        self._pause_of_all = min(2 * self._pause_of_all, self._longest_pause)
        text = "a part of round %d is wrong, of %s; asking for it again in %g seconds"
        rounds = self._contract.planned.rounds_before(step)
        _log.warning(text, rounds, names or "a neighbor", self._pause_of_all)
        self._ask_again_at = dict.fromkeys(
            self._router.all_parties, self._router.now() + self._pause_of_all
        )
        self.open(totals[0].header.position, totals[0].header if self._for_all else None)
