"""Routing of sums: the router adds up masked parts, and sees none of them.

A position is a round and an attempt at its sums: one for all, or one for each party over its
neighbours. The parties of a cohort take part in an attempt; once all of them have answered, their
parts add up to totals, which go out with the next headers. If one of them is late, those who are
left begin another attempt of a sum for all; sums over neighbours wait for it. A party for which
others had to begin another attempt is left out of later ones, as long as a quorum is there without
it, so that it cannot spend what the others may still release. If a total has a wrong tag, one of
the parts is wrong, and masks hide which: the next attempts leave out one party after another, until
a total opens. If no attempt is reserved, or none may be missing, parties send the same parts again.

Nothing is kept on disk. A router that is started anew opens the last attempt that any party has
begun, with its header, and asks the parties for totals that others have missed; sums over
neighbours are asked for from the first attempt on. Parties answer from their tables.

A party that has spent the attempts that the contract allows it says so, signed, and adds to no sum
like it any more. Once too few are left for another attempt, the run ends early: all parties that
can be reached get these words, and sign the totals so far as they sign those of a whole run.
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
"""Seconds after which a party whose part was wrong is asked for it again."""
STRIDE = 2**10
"""By how much attempts are counted on if a router started anew without some parties: these may
have begun some of which the others know nothing."""


TAKES_NO_PART = ("not the next round", "bad cohort", "bad key", "malformed")
"""Refusals of a party that takes no part in an attempt."""
FITS_NO_OTHER = "sends a part that fits no other"


class _SpentStatement(NamedTuple):
    """A party's signed statement that it has no attempts left at sums of one kind.

    Attributes
    ----------
    step
        The first step, of this kind of sum, to which the party does not add.
    message
        The statement, a `Withdrawal` as bytes.
    """

    step: int
    message: bytes


class SumRouting:
    """The routing of a run whose parties add up sums: which attempt is open, and for whom it waits.

    A `Router` makes it, and calls it for each question and answer. It sees masked parts and totals,
    has no secrets, and keeps nothing on disk: a new router asks the parties for what it needs.

    Parameters
    ----------
    router
        The router that asks the parties for their parts.
    """

    def __init__(self, router: Attendance) -> None:
        self._router = router
        self._contract = router.contract
        self._schedule = router.schedule
        self.handlers: dict[bytes, Callable[[int, bytes], None]] = {
            MASKED_PARTS: self._take_parts,
            TAG_SECRET: self._take_dealt,
            RELAYED_SECRET: self._take_relayed,
            SEAL: self._take_seal,
            WITHDRAWAL: self._take_spent,
        }
        self.ended: dict[int, bytes] = {}
        """What each party signed at the end."""
        self._deals: dict[int, list[bytes]] = {}
        """The secret for tags of each dealer, sealed for each party."""
        self._dealer = 0
        """The party whose secret the tags of the open attempt are made of, in a sum for all."""
        self._cohort: set[int] = set()
        """Parties that take part in the open attempt."""
        self._stride = 1
        """Number by which the next attempt exceeds this one: `STRIDE` after some restarts."""
        self._parts: dict[int, list[MaskedPart]] = {}
        """The parts of each party in the open attempt, one for each sum that it adds to."""
        self._refused: set[int] = set()
        """Parties that take no part in the open attempt."""
        self._paused: dict[int, float] = {}
        """Time at which a party is asked again, if its last answer was of no use."""
        self._pauses: dict[int, float] = {}
        """Seconds of the next such pause of each party, in the open attempt."""
        self._pause = PAUSE
        """Seconds of the next pause of all parties, after a total that no party accepts."""
        self._suspect: int | None = None
        """The party without which a total is added up again, as one of its parts was wrong."""
        self._suspects: set[int] = set()
        """Parties that added to all totals of the doubted step that no party accepted."""
        self._suspected_at = 0
        """The doubted step: that of the last total that no party accepted."""
        self._doubting: set[int] = set()
        """Parties that refuse the last total."""
        self._attempts_cost: Counter[int] = Counter()
        """Number of attempts that the others were charged in vain, by the party at fault."""
        self._repeated: Counter[int] = Counter()
        """Number of attempts beside the first of each step that this router has begun, by kind."""
        self._spent: defaultdict[int, dict[int, _SpentStatement]] = defaultdict(dict)
        """By kind of sum: the statements of parties without attempts, by party."""
        self._for_all = router.contract.has_one_model
        """True for one sum for all parties; False for one for each party over its neighbours."""
        self._totals: dict[int, list[Total]] = {}
        """The totals of each step: one for all, or one for each party."""
        self._recalled_from: dict[int, int] = {}
        """The party that had stored a step's total, by step."""
        self._dealers: set[int] = set()
        """Parties whose secrets the tags of these totals are made of."""
        self._deals_nothing: set[int] = set()
        """Parties that have erased their secrets, as their run is over. Of sums over neighbours the
        others have what these dealt before."""
        self._relays_nothing: set[tuple[int, int]] = set()
        """Pairs of a party and a dealer whose secret this party does not have."""
        self._furthest = -1
        """The last step that was open."""
        self._first_step = 0
        """The step that was open when this router started."""
        self._lagging: set[int] = set()
        """Parties that had not reached that step."""
        self._distrusted: set[int] = set()
        """Parties that had stored totals which others refuse."""
        self._transcripts = [router.contract.hash] * router.contract.nodes
        """The transcript of each party; of sums over neighbours alone."""
        self._transcripts_before = self._transcripts
        """What they were before the last totals."""

    @property
    def _ends(self) -> bool:
        """True once all rounds are over."""
        return self._router.open_position is not None and self._schedule.is_closing(
            self._router.open_position
        )

    @property
    def awaited(self) -> set[int]:
        """Parties that the open position waits for."""
        router = self._router
        position = router.open_position
        assert position is not None
        if self._ends:
            return {*router.all_parties - router.in_time[position] - router.absent}
        lacking = self.lacking
        if lacking:
            return lacking - router.absent
        return self._cohort - self._parts.keys() - self._refused - router.absent - router.withdrawn

    @property
    def lacking(self) -> set[int]:
        """Dealers of the open attempt whose secret for tags has not arrived yet."""
        if self._ends:
            return set()
        dealers = {self._dealer} if self._for_all else {*self._router.all_parties}
        return dealers - self._deals.keys() - self._deals_nothing

    def start(self) -> None:
        """Open the first position, or the last attempt that any party has begun."""
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
        self._lagging = {*router.all_parties}
        if early:
            for message in withdrawals_by_party(
                unpack(last.header), last.position.round, self._contract
            ).values():
                self._keep_word(message)
        if self._schedule.is_closing(last.position):
            self.open(
                self._schedule.closing_position(last.position.round)
            )  # seals are collected anew
        else:
            self.open(last.position, Header.read(last.header, self._contract))

    def check_reached(self, reached: StepProgress) -> None:
        """Fail unless a party can have reached the position that it states."""
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
        """Open a position for the cohort of a header, or for the parties of `_next_cohort`."""
        router = self._router
        router.in_time.clear()
        router.open_at(position, again=position.round <= self._furthest)
        self._furthest = max(self._furthest, position.round)
        self._pauses.clear()
        self._parts, self._refused, self._doubting = {}, set(), set()
        router.withdrawn = set() if self._ends else {*self._words_at(position.round)}
        if header is None:
            self._cohort = self._next_cohort()
            if not self._deals:
                self._dealer = min(self._cohort)
        else:
            self._cohort = {*header.cohort}
            self._dealer = header.dealer
        self.settle()

    def _next_cohort(self) -> set[int]:
        """Return the parties that are there, without those that have cost attempts of others.

        Of these as many take part as a quorum needs, those first that have cost the fewest, and
        last a suspect, without whom a total is to be added up.
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
        """Return the place of a party at fault: by the attempts it cost, and a suspect last."""
        return party == self._suspect, self._attempts_cost[party], party

    def settle(self) -> None:
        """Open the next position if the open one is over, or another attempt if it cannot end."""
        router = self._router
        if router.open_position is None or self._schedule.is_last(router.open_position):
            return
        if self._ends:
            if not self.awaited:
                self.open(Position(router.open_position.round, router.open_position.exchange + 1))
            return
        if router.withdrawn and not router.is_quorum(self._may_add_again):
            self._end_early()
            return
        if (step := self._lost_step()) is not None:
            self._go_back_to(step)
            return
        if self._cannot_end():
            self._try_again()
            return
        if self.awaited:
            return
        complete: list[list[MaskedPart]] = []
        if not self.lacking:
            complete = self._complete_sums()
        if complete:
            self._take_totals(complete)
            self.open(Position(router.open_position.round + 1))
        elif self._has_reserve(router.open_position.round) or self.lacking:
            self._try_again()
        else:
            self._ask_those_apart_again()

    def _has_reserve(self, step: int) -> bool:
        """Return True if attempts reserved for a step's kind of sum are left.

        Without any, another attempt would cost the others the last round. So the party whose part
        is wrong is asked for it again, and named: it has stored the part, and is charged nothing.
        """
        kind = self._kind_at(step)
        return self._contract.planned.reserve_by_kind[kind] > self._repeated[kind]

    def _ask_those_apart_again(self) -> None:
        """Ask the parties with another agreement than most again, or all if there is no majority.

        If all are asked again, none holds up the others, and each has another deadline.
        """
        apart = self._apart()
        if not apart:
            self._router.restart_deadline()
        for party in apart or self._disagreeing():
            del self._parts[party]
            self._ask_again_later(party, FITS_NO_OTHER)

    def _ask_again_later(self, party: int, fault: str) -> None:
        """Ask a party for the same part again, later each time, and log once what it did."""
        if party not in self._pauses:
            _log.warning("%s %s; it is asked again", self._contract.parties[party].name, fault)
        pause = self._pauses.get(party, PAUSE)
        self._pauses[party] = min(2 * pause, self._longest_pause)
        self._paused[party] = self._router.now() + pause

    @property
    def _longest_pause(self) -> float:
        """Most seconds before parties are asked again: they have as many to answer in time."""
        return self._contract.terms.deadline / 2

    def _cannot_end(self) -> bool:
        """Return True if the open attempt waits for the part or the word of a party that is out.

        A party that started needs the words of its whole cohort.
        """
        out = self._cohort & (self._router.absent | self._router.withdrawn)
        if not self._for_all or not out:
            return False
        if out - self._parts.keys():
            return True
        started = (self._cohort - self._parts.keys()) & self._router.unconfirmed.keys()
        return any(out - self._router.reporters(party) for party in started)

    def _try_again(self) -> None:
        """Begin another attempt, if a quorum is there."""
        position = self._router.open_position
        if position is not None and self._router.has_quorum:
            self._count_costs()
            self._warn_of_an_early_end(position.round)
            self.open(Position(position.round, position.exchange + self._stride))

    def _lost_step(self) -> int | None:
        """Return the first step whose total only parties that are out have kept; None if none is.

        A party may take a total, and be lost together with the router that made it.
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

    def _go_back_to(self, step: int) -> None:
        """Add up a step again among those who are there.

        Parties that took its lost total have another transcript from then on. They count as having
        cost an attempt, so that later attempts do without them as long as a quorum is there.
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
    def _may_add_again(self) -> set[int]:
        """Parties that have attempts left, the late ones among them."""
        return {*self._router.all_parties - self._router.gone.keys() - self._router.withdrawn}

    def give_up(self) -> bool:
        """End the run early if too few parties have attempts left, not counting those late now.

        Returns
        -------
        True if the run has ended.
        """
        router = self._router
        if self._ends or not router.withdrawn:
            return False
        if router.is_quorum(router.all_parties - router.absent - router.withdrawn - self.awaited):
            return False
        return self._end_early()

    def _end_early(self) -> bool:
        """Have all parties sign the totals so far; or end the run without, if they would not."""
        router = self._router
        position = router.open_position
        assert position is not None
        spent = self._words_at(position.round)
        if len(spent) < withdrawals_needed(self._contract):
            if not router.is_quorum(self._may_add_again):
                router.gone |= dict.fromkeys(spent, "over budget")
            return False
        rounds = self._contract.planned.rounds_before(position.round)
        names = ", ".join(router.names({*spent}))
        text = "the run ends early, after %d of %d rounds: %s may release no more"
        _log.warning(text, rounds, self._contract.terms.rounds, names)
        self.open(self._schedule.closing_position(position.round))
        return True

    def _take_spent(self, _: int, answer: bytes) -> None:
        """Go on without a party that has spent its attempts at sums like the open one."""
        router = self._router
        if router.open_position is None or self._ends or not self._for_all:
            return
        party = self._keep_word(answer)
        if party in self._words_at(router.open_position.round):
            router.withdrawn.add(party)
            self.settle()

    def _keep_word(self, message: bytes) -> int:
        """Keep the word of a party that has spent its attempts, and return its number.

        The one of the first step is kept: it justifies an early end there and at later steps. If
        the router goes back to an earlier step, the party is asked again, and says so of that one.
        """
        word = Withdrawal.read(message, self._contract)
        words = self._spent[self._kind_at(word.step)]
        kept = words.get(word.party)
        if kept is None or word.step < kept.step:
            words[word.party] = _SpentStatement(word.step, message)
        return word.party

    def _words_at(self, step: int) -> dict[int, bytes]:
        """Return the words after which a run may end early before a step, by party."""
        words = self._spent[self._kind_at(step)]
        return {party: word.message for party, word in words.items() if word.step <= step}

    def _warn_of_an_early_end(self, step: int) -> None:
        """Say at once, and once, that the attempts left are fewer than the rounds left.

        Parameters
        ----------
        step
            The one of which another attempt begins.
        """
        router, contract = self._router, self._contract
        if not self._for_all:
            return
        kind = self._kind_at(step)
        reserve = contract.planned.reserve_by_kind[kind]
        self._repeated[kind] += 1
        if self._repeated[kind] != reserve + 1:
            return
        costly = {party for party, cost in self._attempts_cost.items() if cost > 0}
        names = ", ".join(router.names(costly)) or "a router that was restarted"
        text = "the run will end before round %d, with the model of the rounds until then: "
        text += "attempts were spent by %s, and the contract reserves %d beside its rounds"
        _log.error(text, contract.terms.rounds, names, reserve)

    def _count_costs(self) -> None:
        """Note which parties have cost the others an attempt that they were charged for.

        These are the parties that are out or refuse, and those with another agreement than most.
        """
        failing = self._cohort & (self._router.absent | self._refused)
        if not self._for_all or not self._parts.keys() - failing:
            return
        for party in failing | self._apart():
            self._attempts_cost[party] += 1

    def _apart(self) -> set[int]:
        """Return the parties whose agreement differs from that of the majority, if there is one."""
        minority: set[int] = set()
        for agreement_of_party in self._agreements().values():
            ((common, count),) = Counter(agreement_of_party.values()).most_common(1)
            if 2 * count > len(agreement_of_party):
                minority |= {
                    party for party, agreement in agreement_of_party.items() if agreement != common
                }
        return minority

    def _disagreeing(self) -> set[int]:
        """Return the parties that add to a sum for which not all have the same agreement."""
        disagreeing: set[int] = set()
        for agreement_of_party in self._agreements().values():
            if len({*agreement_of_party.values()}) > 1:
                disagreeing |= agreement_of_party.keys()
        return disagreeing

    def _agreements(self) -> dict[Header, dict[int, bytes]]:
        """Return the agreement of each party that has sent a part, by the header of the sum."""
        agreements: dict[Header, dict[int, bytes]] = {}
        for party, parts in self._parts.items():
            for part in parts:
                agreements.setdefault(part.header, {})[party] = part.agreement
        return agreements

    def _complete_sums(self) -> list[list[MaskedPart]]:
        """Return the parts of each sum, by dealer; nothing until all parts of all sums arrived."""
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
        """Add up the parts of each sum of the open step."""
        position = self._router.open_position
        assert position is not None
        totals = [Total(parts[0].header, *add_parts(parts, self._contract)) for parts in groups]
        self._totals[position.round] = totals
        self._end_suspicion(position.round)
        self._recalled_from.pop(position.round, None)
        self._dealers |= {total.header.dealer for total in totals}
        if self._for_all:
            self._dealer = totals[0].header.dealer  # another one, if this router was started anew
            return
        self._transcripts_before = self._transcripts
        self._transcripts = [*self._transcripts]
        for receiver, (total, parts) in enumerate(zip(totals, groups, strict=True)):
            so_far = self._transcripts[receiver], parts[0].agreement, total.packed
            self._transcripts[receiver] = digest(*so_far)

    def _end_suspicion(self, step: int) -> None:
        """Name the party without which a total opened, once a later step is added up."""
        if step <= self._suspected_at:
            return
        self._pause = PAUSE
        self._suspects.clear()
        if self._suspect is None:
            return
        (total,) = self._totals[self._suspected_at]
        if self._suspect in total.header.cohort:
            self._acquit()  # no quorum was there without it
            return
        (name,) = self._router.names({self._suspect})
        text = "the total without %s opens: its part was wrong, or another's was wrong once"
        _log.warning(text, name)
        self._suspect = None

    def next_position(self, party: int) -> Position | None:
        """Return the position that a party is to answer next, if any."""
        position = self._router.open_position
        assert position is not None
        if self._router.now() < self._paused.get(party, 0.0):
            return None
        is_asked = party in self.awaited or (
            self._ends and party not in self._router.in_time[position]
        )
        if is_asked and not self._missed(party):
            return position
        return None

    def _progress_of(self, party: int) -> Position:
        """Return the position that a party has reached, as far as this router knows."""
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
        """Return True if a party has signed the end, and so erased its secrets."""
        return self._schedule.is_closing(self._progress_of(party))

    def _missed(self, party: int) -> list[int]:
        """Return the steps whose totals a party needs, and which this router cannot give it yet."""
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
        """Return True if a party has, or can receive, the secret for tags of a dealer.

        It has the one of the attempt that it answered before this router started.
        """
        if dealer in self._deals or dealer == party:
            return True
        reached = self._router.reported_progress.get(party)
        if reached is None or not reached.header:
            return False
        return Header.read(reached.header, self._contract).dealer == dealer

    def question_between(self, party: int) -> bytes | None:
        """Return the question for a dealer's secret, or for totals that other parties lack."""
        if self._deals_wanted(party):
            signatures = self._router.signatures.items()
            signed = (message for number, message in signatures if number != party)
            return pack(TAG_SECRET_QUESTION, self._contract.hash, *signed)
        dealer = self._relay_wanted(party)
        if dealer is not None:
            return pack(RELAY_QUESTION, self._contract.hash, *int_fields(dealer))
        since = self._recalls_wanted(party)
        if since is not None:
            return totals_question(self._contract, since)
        return None

    def _deals_wanted(self, party: int) -> bool:
        """Return True if a party is to deal its secret for tags."""
        if party in self.lacking:
            return True
        if self._has_ended(party):
            return False
        return self._for_all and party in self._dealers and party not in self._deals

    def _relay_wanted(self, party: int) -> int | None:
        """Return the lost dealer whose secret for tags a party is to pass on; None without one.

        Parties that missed totals need it. Those who have taken them have it until they end.
        """
        router = self._router
        if not self._for_all or self._has_ended(party):
            return None
        for dealer in sorted(self._dealers - self._deals.keys()):
            if dealer in router.absent and (party, dealer) not in self._relays_nothing:
                return dealer
        return None

    def _recalls_wanted(self, party: int) -> int | None:
        """Return the first step whose total a party is to send to the router; None without one."""
        self._lagging = {
            laggard
            for laggard in self._lagging
            if self._first_lacking_step(laggard) < self._first_step
        }
        if party in self._distrusted:
            return None
        unknown = {
            step
            for laggard in self._lagging - self._router.absent
            for step in self._missed(laggard)
            if step not in self._totals
        }
        available = {step for step in unknown if step < self._first_lacking_step(party)}
        return min(available, default=None)

    def holding_up(self, party: int) -> set[int]:
        """Return the parties that hold up another one, which lacks their secrets or totals."""
        missed = self._missed(party)
        if not missed:
            return set()
        there = self._router.all_parties - self._router.absent - {party}
        dealers = {self._totals[step][0].header.dealer for step in missed if step in self._totals}
        keepers = {
            keeper
            for keeper in there
            if self._recalls_wanted(keeper) is not None or self._relay_wanted(keeper) is not None
        }
        return (dealers & there) | keepers

    def recall(self, party: int, totals: tuple[bytes, ...]) -> None:
        """Store totals that a party had accepted before this router started."""
        for message in totals:
            total = Total.read(message, self._contract)
            step = total.header.position.round
            if (
                self._for_all
                and step not in self._totals
                and step < self._first_lacking_step(party)
            ):
                self._totals[step] = [replace(total, header=total.header.common)]
                self._dealers.add(total.header.dealer)
                self._recalled_from[step] = party
        self.settle()

    def askers(self, party: int) -> set[int]:
        """Return the parties whose start this one must confirm: all that have started."""
        return {*self._router.unconfirmed}

    def confirmers(self, party: int) -> Confirmers:
        """Return the parties that must confirm a start: the rest of the cohort that is there."""
        others = self._cohort - self._router.absent - {party}
        return Confirmers(others, len(others))

    def is_cut_off(self, party: int) -> bool:
        """Return False: a cohort is of the parties left, so some can always confirm a start."""
        return False

    def attached(self, party: int) -> tuple[bytes, ...]:
        """Return the messages with a party's question: signatures, lacking totals, headers."""
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
            sealed = replace(total, header=self._sealed(total.header, party))
            totals.append(sealed.as_bytes(contract))
        if self._ends:
            return (*signed, *totals, *self._reasons(position), *self.ended.values())
        headers = [
            self._sealed(header, party).as_bytes(contract)
            for header in self._headers(position, party)
        ]
        return (*signed, *router.reports_for(party, self._cohort), *totals, *headers)

    def _reasons(self, position: Position) -> list[bytes]:
        """Return the words after which a run ends early; none at the end of a whole run."""
        if not self._schedule.is_early(position):
            return []
        words = self._words_at(position.round)
        return [*words.values()][: withdrawals_needed(self._contract)]

    def _headers(self, position: Position, party: int) -> list[Header]:
        """Return the header of each sum that a party is to add to."""
        if self._for_all:
            return [Header(position, tuple(sorted(self._cohort)), self._dealer)]
        receivers = self._contract.planned.sum_at(0).receivers
        return [
            Header(position, tuple(sorted(senders)), to, transcript=self._transcripts[to])
            for to, senders in enumerate(receivers)
            if party in senders
        ]

    def _sealed(self, header: Header, party: int) -> Header:
        """Return a header with its dealer's secret, sealed for a party that may lack it."""
        if header.dealer not in self._deals:
            return header  # the party has this secret
        return replace(header, sealed_tag_secret=self._deals[header.dealer][party])

    def _take_parts(self, party: int, answer: bytes) -> None:
        """Take a party's parts of the open attempt, and leave out the party if they are wrong."""
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
        self.settle()

    def _are_asked_for(self, parts: list[MaskedPart], position: Position, party: int) -> bool:
        """Return True if parts are of the headers that a party is asked to answer, one of each.

        A part with another cohort or dealer fits no other part: its total would never be whole, or
        would be of this party alone.
        """
        headers = {  # parts name no transcript
            replace(header.common, transcript=b"") for header in self._headers(position, party)
        }
        return len(parts) == len(headers) and {part.header for part in parts} == headers

    def _leave_out(self, party: int) -> None:
        """Go on without a party whose parts of the attempt are wrong, or ask for them again."""
        if self._router.open_position is None or self.next_position(party) is None or self._ends:
            return
        if not self._has_reserve(self._router.open_position.round):
            self._ask_again_later(party, FITS_NO_OTHER)
            return
        self._refused.add(party)
        self.settle()

    def _take_dealt(self, party: int, answer: bytes) -> None:
        """Take a dealer's secret for tags, sealed for each party."""
        _, _, number, *sealed = unpack(answer)
        if read_ints(number) == (party,) and len(sealed) == self._contract.nodes:
            self._deals[party] = sealed
            self.settle()

    def _take_relayed(self, party: int, answer: bytes) -> None:
        """Take the secret of a lost dealer, which a party has sealed for the others."""
        _, _, number, *sealed = unpack(answer)
        (dealer,) = read_ints(number)
        if self._relay_wanted(party) == dealer and len(sealed) == self._contract.nodes:
            self._deals[dealer] = sealed
            self.settle()

    def _take_seal(self, party: int, answer: bytes) -> None:
        """Take a party's signature of its totals at the end."""
        seal = Seal.read(answer, self._contract)
        position = self._router.open_position
        if position is not None and self._ends and seal[:2] == (position, party):
            self.ended[party] = answer
            self._router.note_answer(party, position)
            self._router.in_time[position].add(party)
            self.settle()

    def refused(self, party: int, reason: str) -> None:
        """Go on after a refusal: of a total, of an attempt, of a secret, or of the end."""
        if reason == "not dealt" and party in self.lacking and not self._for_all:
            self._deals_nothing.add(party)
        elif reason == "not dealt" and (dealer := self._relay_wanted(party)) is not None:
            self._relays_nothing.add((party, dealer))
        elif reason == "bad total":
            self._refuses_total(party)
        elif reason in TAKES_NO_PART or reason.startswith("not signed by"):
            self._router.last_answered[party] = None  # it may need older totals, or signatures
            position = self._router.open_position
            if position is None:
                return
            if self._ends:
                self._ask_again_later(party, "does not sign the end of the run")
            elif self._has_reserve(position.round):
                self._refused.add(party)
            else:
                self._ask_again_later(party, "takes no part in the open sum")

    def _refuses_total(self, party: int) -> None:
        """Ask another party for totals that one had kept; else add up the last step again."""
        doubtful = {step for step in self._recalled_from if step >= self._first_lacking_step(party)}
        if doubtful:
            self._distrusted |= {self._recalled_from[step] for step in doubtful}
            for step in doubtful:
                del self._totals[step], self._recalled_from[step]
            return
        position = self._router.open_position
        if position is None or position.round - 1 not in self._totals:
            return
        if position.round - 1 < self._first_lacking_step(party):
            return  # its question had the total of a step that is open again by now
        self._doubting.add(party)
        is_refused_by_all = self._doubting >= self._cohort - self._router.absent - self._refused
        if self._for_all and not is_refused_by_all:
            return
        step = position.round - 1
        self._acquit()
        suspect = self._next_suspect(step)
        if suspect is None:
            self._ask_for_parts_again(step)
        else:
            self._add_up_without(suspect, step)

    def _next_suspect(self, step: int) -> int | None:
        """Return whose part of a total is to be left out next; None if nobody's may be.

        The search may spend the attempts of later rounds, too, as the wrong part would spoil these.
        """
        planned = self._contract.planned
        kind = self._kind_at(step)
        reserve = planned.reserve_by_kind[kind]
        attempts_left = reserve + planned.later_sums[step] - self._repeated[kind]
        ends_with_a_model = planned.rounds_before(step) > 0
        if reserve == 0 or (attempts_left <= 0 and not ends_with_a_model):
            return None
        router = self._router
        there = router.all_parties - router.absent
        may_add = there - self._words_at(step).keys()
        (doubted,) = self._totals[step]
        cohort = {*doubted.header.cohort}
        self._suspects = (self._suspects & cohort) or cohort
        suspect = min(self._suspects & there, default=None)
        if suspect is None or not router.is_quorum(may_add - {suspect}):
            return None
        return suspect

    def _add_up_without(self, suspect: int, step: int) -> None:
        """Begin another attempt at a step whose total nobody takes, without one more party.

        If the total without a party is wrong, too, that party is not the one whose part was wrong.
        """
        (doubted,) = self._totals.pop(step)
        self._suspect = suspect
        self._suspected_at = step
        self._attempts_cost[suspect] += 1
        self._warn_of_an_early_end(step)
        self.open(Position(step, doubted.header.position.exchange + self._stride))

    def _acquit(self) -> None:
        """Take back what the suspect has cost: no total without it has opened."""
        if self._suspect is not None:
            self._attempts_cost[self._suspect] -= 1
            self._suspect = None

    def _ask_for_parts_again(self, step: int) -> None:
        """Ask all parties for the same parts again: one was wrong, and no attempt may be spent."""
        totals = self._totals.pop(step)
        self._suspected_at = step
        self._transcripts = self._transcripts_before
        adds = [{*total.header.cohort} for total in totals]
        suspects = set.intersection(*(adds[0 if self._for_all else n] for n in self._doubting))
        names = " or ".join(self._router.names(suspects - self._doubting or suspects))
        self._pause = min(2 * self._pause, self._longest_pause)
        text = "a part of round %d is wrong, of %s; asking for it again in %g seconds"
        rounds = self._contract.planned.rounds_before(step)
        _log.warning(text, rounds, names or "a neighbor", self._pause)
        self._paused = dict.fromkeys(self._router.all_parties, self._router.now() + self._pause)
        self.open(totals[0].header.position, totals[0].header if self._for_all else None)
