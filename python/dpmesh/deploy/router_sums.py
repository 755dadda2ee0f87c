"""Routing of secure sums: the router adds up masked parts, and cannot read any of them.

`dpmesh.deploy.router.Router` makes a `SumRouting` for a run in which parties add up vectors. It is
a state machine: answers of parties and ends of deadlines move the run from position to position.

A position of the run is a *step* (a sum for all parties, or one for each party over its neighbours)
and the number of an *attempt* at it. The parties of a *cohort* take part in an attempt. One party,
the *dealer*, deals the tag secret with which the others check the total. See `dpmesh.deploy.sums`
for tag, agreement, transcript, seal and withdrawal.

A run without faults:

1. All parties sign the contract, and the first position opens.
2. The dealer seals its tag secret for each other party. It stays the dealer in later steps. (In
   sums over neighbours each receiver of a total deals its own tag secret.)
3. Each party of the cohort gets the header of the attempt, and the total of the step before. It
   checks the total, and answers with its masked parts.
4. The router adds up the parts. The next step opens, at 3.
5. After the last step each party gets the last total, and signs all totals: its *seal*.
6. Each party gets the seals of all others.

    state       open position       the router waits for
    ----------  ------------------  ----------------------------------------------------------
    signing     none                signatures of all parties (1)
    dealing     step, attempt       tag secrets of dealers (2)
    adding      step, attempt       masked parts of the cohort (3)
    sealing     end, exchange 0     seals of all present parties (5)
    sealed      end, exchange 1     seals again, of parties that now have those of all others (6)

The end is that of the whole run, or an early one (`dpmesh.deploy.schedule.Schedule.is_early`). No
state follows on "sealed", nor on "sealing" in sums over neighbours.

Faults move the run back, to another attempt or to an early end:

    state       event                                      next state
    ----------  -----------------------------------------  ---------------------------------------
    dealing,    a party of the cohort is late, refuses,    the next attempt at this step, without
      adding    or disagrees with most                     the party at fault
    adding      the same, and no attempt is reserved       adding: this party is asked again
    adding      all refuse the total of the step before    the next attempt at the step before,
                                                           without a suspect
    adding      the same, and no attempt is reserved       adding at the step before, in the same
                                                           attempt: all are asked again
    dealing,    too few parties may release more, and      sealing of an early end
      adding    enough withdrawals show it
    signing     all have signed a run that an earlier      that of the last attempt, or of the end,
                router began                               which any party has reached
    adding      only absent parties have an earlier total  another attempt at the step of this total

The reasons, in a sum for all parties:

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

The state of a `SumRouting` is made of:

- `router_attempt.Attempt`: the open attempt; decides if it is complete, and who disagrees;
- `router_faults.Faults`: parties at fault, the search for a wrong part, the reserve;
- `router_pauses.Pauses`: when a party is asked again;
- `router_withdrawals.Withdrawals`: which parties have withdrawn from a kind of sum;
- `router_secrets.TagSecrets`: which tag secrets the router has, and asks for;
- `router_totals.Totals`: which totals the router has, which party lacks some, and who has them.
"""

from __future__ import annotations

import logging

from dpmesh._validate import fail
from dpmesh.deploy.attendance import Attendance
from dpmesh.deploy.router_attempt import Attempt
from dpmesh.deploy.router_base import Routing
from dpmesh.deploy.router_faults import Faults
from dpmesh.deploy.router_pauses import Pauses
from dpmesh.deploy.router_secrets import TagSecrets
from dpmesh.deploy.router_totals import Totals
from dpmesh.deploy.router_withdrawals import Withdrawals
from dpmesh.deploy.schedule import Confirmers
from dpmesh.deploy.signing import unpack
from dpmesh.deploy.sums import (
    MASKED_PARTS,
    RELAYED_SECRET,
    SEAL,
    TAG_SECRET,
    WITHDRAWAL,
    Header,
    MaskedPart,
    Seal,
    withdrawals_by_party,
    withdrawals_needed,
)
from dpmesh.deploy.wire import Position, StepProgress

_log = logging.getLogger("dpmesh")

STRIDE = 2**10
"""Step between the numbers of attempts, if a router restarted without some parties. These parties
may have begun attempts that no other party knows of, and their numbers must not be used again."""
TAKES_NO_PART = ("not the next round", "bad cohort", "bad key", "malformed")
"""Refusals after which a party takes no part in an attempt."""
FITS_NO_OTHER = "sends a part that fits no other"


class SumRouting(Routing):
    """The routing of runs of secure sums: which attempt is open, and which party is asked what.

    It sees masked parts and totals, and has no secrets.

    Parameters
    ----------
    router
        The router, as its base class.
    """

    def __init__(self, router: Attendance) -> None:
        self._router = router
        self._contract = router.contract
        self._schedule = router.schedule
        self._has_one_sum = router.contract.has_one_model
        """True for one sum for all parties; False for one for each party over its neighbours."""
        self._attempt = Attempt(cohort=frozenset(), dealer=0)
        """The open attempt; one of no party before the first position opens."""
        self.faults = Faults(router.contract)
        """Parties at fault, the search for a wrong part, and the reserve."""
        self._pauses = Pauses(longest=router.contract.terms.deadline / 2)  # half is left to answer
        self._withdrawals = Withdrawals(router.contract)
        self._secrets = TagSecrets(router)
        if not self._has_one_sum:
            self._secrets.dealers_of_attempt = router.all_parties
        self.totals = Totals(router, self._secrets)
        """The totals so far, and the parties that lack some."""
        self._seals: dict[int, bytes] = {}
        """The seal of each party, as a message, by party."""
        self._stride = 1
        """Step between the numbers of attempts: 1, or `STRIDE` after some restarts."""
        self._last_opened_step = -1
        """The latest step that was open so far."""
        self.handlers = {
            MASKED_PARTS: self._take_parts,
            TAG_SECRET: self._take_tag_secret,
            RELAYED_SECRET: self._take_relayed_secret,
            SEAL: self._take_seal,
            WITHDRAWAL: self._take_withdrawal,
        }

    # The state

    @property
    def _is_closing(self) -> bool:
        """True if the open position is a closing position: parties sign the end of the run."""
        position = self._router.open_position
        return position is not None and self._schedule.is_closing(position)

    @property
    def ended(self) -> dict[int, bytes]:
        """The seal of each party whose run is over, by party."""
        return self._seals

    @property
    def missing_dealers(self) -> set[int]:
        """Dealers of the open attempt whose tag secret has not arrived yet."""
        return self._secrets.missing_dealers

    @property
    def awaited(self) -> set[int]:
        """Parties that the open position waits for: dealers first, then the cohort."""
        router = self._router
        position = router.open_position
        assert position is not None
        if self._is_closing:
            return {*router.all_parties - router.in_time[position] - router.absent}
        if self.missing_dealers:
            return self.missing_dealers - router.absent
        return self._attempt.unanswered - router.absent - router.withdrawn

    @property
    def _may_take_part(self) -> set[int]:
        """Parties that may take part in another attempt, late ones included."""
        return {*self._router.all_parties - self._router.gone.keys() - self._router.withdrawn}

    def _is_stuck(self) -> bool:
        """Return True if the open attempt waits for a part or a report of an absent party.

        A party that started needs the rollback reports of its whole cohort.
        """
        router = self._router
        attempt = self._attempt
        absent = attempt.cohort & (router.absent | router.withdrawn)
        if not self._has_one_sum or not absent:
            return False
        if absent - attempt.parts.keys():
            return True
        started = (attempt.cohort - attempt.parts.keys()) & router.unconfirmed.keys()
        return any(absent - router.reporters(party) for party in started)

    # Transitions

    def start(self) -> None:
        """Open the first position; after a restart, the last attempt that any party has begun."""
        router = self._router
        reached = [
            progress
            for party, progress in router.reported_progress.items()
            if party not in router.absent
        ]
        if not reached or not self._has_one_sum:
            self._open(self._schedule.after(None))
        else:
            self._restart(reached)

    def _restart(self, reached: list[StepProgress]) -> None:
        """Open the last attempt or end that any party has reached under an earlier router.

        Parameters
        ----------
        reached
            The progress of each present party that has reported any.
        """
        if self._router.late:
            self._stride = STRIDE
        early_ends = [
            progress for progress in reached if self._schedule.is_early(progress.position)
        ]
        last = max(early_ends or reached, key=lambda progress: progress.position)
        last_step = last.position.round
        self.totals.start_again(last_step)
        if early_ends:
            withdrawals = withdrawals_by_party(unpack(last.header), last_step, self._contract)
            for message in withdrawals.values():
                self._withdrawals.store(message)
        if self._schedule.is_closing(last.position):
            self._open(self._schedule.closing_position(last_step))  # seals are collected anew
        else:
            self._open(last.position, Header.read(last.header, self._contract))

    def _open(self, position: Position, header: Header | None = None) -> None:
        """Open a position, and begin its deadline.

        Parameters
        ----------
        position
            The position.
        header
            A header whose cohort and dealer the attempt has. By default the cohort is new, and the
            dealer is that of the attempt before if the router has its tag secret.
        """
        router = self._router
        router.in_time.clear()
        is_reopened = position.round <= self._last_opened_step
        router.open_at(position, is_reopened=is_reopened)
        self._last_opened_step = max(self._last_opened_step, position.round)
        self._pauses.begin_attempt()
        router.withdrawn = set()
        if not self._is_closing:
            router.withdrawn = {*self._withdrawals.at(position.round)}
        if header is not None:
            self._attempt = Attempt(cohort=frozenset(header.cohort), dealer=header.dealer)
        else:
            self._attempt = self._new_attempt()
        self._secrets.dealers_of_attempt = self._dealers_at(position)
        self.advance()

    def _new_attempt(self) -> Attempt:
        """Return an attempt among the present parties.

        The dealer is that of the attempt before, if the router has its tag secret. The secret may
        be lost with the dealer: then the first party of the cohort deals.
        """
        router = self._router
        present = router.all_parties - router.absent - router.withdrawn
        cohort = self.faults.next_cohort({*present})
        dealer = self._attempt.dealer
        if not self._secrets.has(dealer):
            dealer = min(cohort, default=dealer)
        return Attempt(cohort=cohort, dealer=dealer)

    def _dealers_at(self, position: Position) -> frozenset[int]:
        """Return the dealers of the open attempt; none at a closing position."""
        if self._schedule.is_closing(position):
            return frozenset()
        if self._has_one_sum:
            return frozenset({self._attempt.dealer})
        return self._router.all_parties

    def advance(self) -> None:
        """Move to the next state, if the answers so far allow: see the tables of this module.

        The next position is opened if the open one is over, and another attempt if it is stuck.
        """
        router = self._router
        position = router.open_position
        if position is None or self._schedule.is_last(position):
            return
        if self._is_closing:
            if not self.awaited:
                self._open(Position(position.round, position.exchange + 1))
            return
        if router.withdrawn and not router.is_quorum(self._may_take_part):
            self._end_early()
            return
        lost_step = self.totals.lost_step()
        if lost_step is not None:
            self._repeat_from(lost_step)
            return
        if self._is_stuck():
            self._begin_attempt()
            return
        if self.awaited:
            return
        if self.missing_dealers:  # the missing ones are absent
            self._begin_attempt()
            return
        self._end_attempt(position)

    def _end_attempt(self, position: Position) -> None:
        """End the open attempt, which all parties of its cohort have answered.

        If their parts fit each other, they are added up, and the next step opens. Else the parties
        that disagree are left out of another attempt or, without a reserve, asked again.
        """
        sums = len(self._contract.planned.sum_at(0).receivers)
        complete = self._attempt.complete_sums(sums)
        if complete:
            self._take_totals(position.round, complete)
            self._open(Position(position.round + 1))
        elif self.faults.has_reserve(position.round):
            self._begin_attempt()
        else:
            self._ask_minority_again()

    def _take_totals(self, step: int, sums: list[list[MaskedPart]]) -> None:
        """Add up the complete sums of the open step; end the search for a wrong part in another."""
        self.totals.add_up(step, sums)
        faults = self.faults
        if step <= faults.doubted_step:
            return
        self._pauses.end_pauses_of_all()
        cohort: tuple[int, ...] = ()
        if faults.suspect is not None:
            (doubted,) = self.totals.by_step[faults.doubted_step]
            cohort = doubted.header.cohort
        culprit = faults.end_search(cohort)
        if culprit is not None:
            (name,) = self._router.names({culprit})
            text = "the total without %s opens: its part was wrong, or another's was wrong once"
            _log.warning(text, name)

    def _begin_attempt(self) -> None:
        """Begin another attempt at the open step, if a quorum is present."""
        position = self._router.open_position
        if position is not None and self._router.has_quorum:
            self._count_costs()
            self._count_repeated_attempt(position.round)
            self._open(Position(position.round, position.exchange + self._stride))

    def _count_costs(self) -> None:
        """Note the parties through whose fault the open attempt failed, if others were charged."""
        if self._has_one_sum:
            self.faults.blame(self._attempt.failing(self._router.absent))

    def _count_repeated_attempt(self, step: int) -> None:
        """Count another attempt at a step; log once that the run will end early for lack of them.

        Parameters
        ----------
        step
            The step at which another attempt begins.
        """
        if not self._has_one_sum or not self.faults.count_repeated_attempt(step):
            return
        planned = self._contract.planned
        names = ", ".join(self._router.names(self.faults.parties_at_fault))
        text = "the run will end before round %d, with the model of the rounds until then: "
        text += "attempts were spent by %s, and the contract reserves %d beside its rounds"
        rounds = self._contract.terms.rounds
        reserve = planned.reserve_by_kind[planned.kind_at(step)]
        _log.error(text, rounds, names or "a router that was restarted", reserve)

    def _repeat_from(self, step: int) -> None:
        """Begin a step again among the present parties, and drop all later totals.

        Absent parties that accepted its lost total have another transcript from then on. They count
        as at fault, so that later attempts leave them out, as long as a quorum remains.
        """
        router = self._router
        present = router.all_parties - router.absent
        self.faults.blame({*router.absent})
        self.totals.drop_from(step)
        reached = [router.progress_of(party) for party in present]
        attempts = [position.exchange for position in reached if position.round == step]
        last_attempt = max(attempts, default=0)
        text = "round %d is added up again: only missing parties know its total"
        _log.warning(text, self._contract.planned.rounds_before(step))
        self._count_repeated_attempt(step)
        self._open(Position(step, last_attempt + STRIDE))

    def _add_up_without(self, suspect: int, step: int) -> None:
        """Begin another attempt at a step whose total no party accepts, without a new suspect.

        If the total without a suspect has a wrong tag, too, another party's part was wrong.
        """
        (doubted,) = self.totals.take_back(step)
        self.faults.begin_search_without(suspect, step)
        self._count_repeated_attempt(step)
        self._open(Position(step, doubted.header.position.exchange + self._stride))

    def _ask_for_parts_again(self, step: int) -> None:
        """Ask all parties for the same parts again, after a pause: one of the parts was wrong."""
        refusing = self._attempt.refusing_total
        totals = self.totals.take_back(step)
        self.faults.doubted_step = step
        router = self._router
        seconds = self._pauses.pause_all(router.all_parties, router.now())
        cohorts = [{*totals[self._sum_index(party)].header.cohort} for party in refusing]
        suspects = set.intersection(*cohorts)
        names = " or ".join(router.names(suspects - refusing or suspects))
        text = "a part of round %d is wrong, of %s; asking for it again in %g seconds"
        rounds = self._contract.planned.rounds_before(step)
        _log.warning(text, rounds, names or "a neighbor", seconds)
        header = None
        if self._has_one_sum:
            header = totals[0].header
        self._open(totals[0].header.position, header)

    def _sum_index(self, party: int) -> int:
        """Return the index, among the sums of a step, of the one whose total a party gets."""
        if self._has_one_sum:
            return 0
        return party

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
        step = position.round
        withdrawn = self._withdrawals.at(step).keys()
        if not self._withdrawals.justify_an_end_at(step):
            if not router.is_quorum(self._may_take_part):
                router.gone |= dict.fromkeys(withdrawn, "over budget")
            return False
        rounds = self._contract.planned.rounds_before(step)
        names = ", ".join(router.names({*withdrawn}))
        text = "the run ends early, after %d of %d rounds: %s may release no more"
        _log.warning(text, rounds, self._contract.terms.rounds, names)
        self._open(self._schedule.closing_position(step))
        return True

    def _ask_minority_again(self) -> None:
        """Ask the parties again whose agreement differs from most; all if there is no majority.

        If all are asked again, none of them is at fault, and the deadline begins again.
        """
        minority = self._attempt.minority()
        if not minority:
            self._router.restart_deadline()
        for party in minority or self._attempt.disagreeing():
            del self._attempt.parts[party]
            self._ask_again_later(party, FITS_NO_OTHER)

    def _ask_again_later(self, party: int, fault: str) -> None:
        """Ask a party for the same answer again, after a pause that doubles; log its fault once."""
        if self._pauses.pause(party, self._router.now()):
            _log.warning("%s %s; it is asked again", self._contract.parties[party].name, fault)

    # Questions

    def question_before_step(self, party: int) -> bytes | None:
        """Return the question for a tag secret, or for totals that others lack, if one is due.

        A party is asked for these before it is asked for its next step.
        """
        return self._secrets.question(party) or self.totals.question(party)

    def next_position(self, party: int) -> Position | None:
        """Return the position that a party is to answer next, if any."""
        router = self._router
        position = router.open_position
        assert position is not None
        if not self._pauses.is_over(party, router.now()):
            return None
        is_asked = party in self.awaited
        if self._is_closing:
            is_asked = party not in router.in_time[position]
        if is_asked and not self.totals.missing_steps(party):
            return position
        return None

    def attachments(self, party: int) -> tuple[bytes, ...]:
        """Return the messages attached to a party's question: its inputs of the open position.

        These are signatures (with its first question), the totals that it lacks, and headers with
        rollback reports; at a closing position withdrawals and seals.
        """
        router = self._router
        position = router.open_position
        assert position is not None
        signed: tuple[bytes, ...] = ()
        if router.last_answered[party] is None:
            signed = tuple(router.signatures.values())
        totals = self.totals.messages_for(party)
        if self._is_closing:
            withdrawals: list[bytes] = []
            if self._schedule.is_early(position):
                withdrawals = self._withdrawals.proof_of_end(position.round)
            return (*signed, *totals, *withdrawals, *self._seals.values())
        reports = router.reports_for(party, {*self._attempt.cohort})
        headers = [
            self._secrets.attach(header, party).as_bytes(self._contract)
            for header in self._headers(position, party)
        ]
        return (*signed, *reports, *totals, *headers)

    def _headers(self, position: Position, party: int) -> list[Header]:
        """Return the header of each sum that a party adds to at a position."""
        if self._has_one_sum:
            return [Header(position, tuple(sorted(self._attempt.cohort)), self._attempt.dealer)]
        senders_by_receiver = self._contract.planned.sum_at(0).receivers
        transcripts = self.totals.transcripts
        return [
            Header(position, tuple(sorted(senders)), receiver, transcript=transcripts[receiver])
            for receiver, senders in enumerate(senders_by_receiver)
            if party in senders
        ]

    def confirmers(self, party: int) -> Confirmers:
        """Return the parties that must report on a start: the present others of the cohort."""
        others = {*self._attempt.cohort} - self._router.absent - {party}
        return Confirmers(others, len(others))

    def parties_to_confirm(self, party: int) -> set[int]:
        """Return the parties that need this party's report: all whose start is unconfirmed."""
        return {*self._router.unconfirmed}

    def is_cut_off(self, party: int) -> bool:
        """Return False: a cohort has present parties alone, so the others can confirm a start."""
        return False

    def blocking(self, party: int) -> set[int]:
        """Return the parties that hold up another one, as they have totals or secrets it lacks."""
        return self.totals.blocking(party)

    # Answers

    def check_progress(self, reached: StepProgress) -> None:
        """Fail unless a party can have made the progress that it states.

        Raises
        ------
        ValueError
            If the position is none of the run, or the header does not fit it.
        """
        position = reached.position
        contract = self._contract
        last_step = self._schedule.end.round
        if position > self._schedule.end or position.round < 0:
            fail("message", "a position of the contract's run", position)
        if self._schedule.is_early(position):
            withdrawals = withdrawals_by_party(unpack(reached.header), position.round, contract)
            is_whole_run = position.round == last_step
            if is_whole_run or len(withdrawals) < withdrawals_needed(contract):
                count = f"{len(withdrawals)} of them"
                fail("message", "the words after which a run ends early", count)
            return
        if reached.header and Header.read(reached.header, contract).position != position:
            fail("header", f"that of the attempt {position}", "another")
        if self._has_one_sum and position.round < last_step and not reached.header:
            fail("message", "the header of an attempt", "none")

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
        self._attempt.parts[party] = parts
        self.advance()

    def _are_asked_for(self, parts: list[MaskedPart], position: Position, party: int) -> bool:
        """Return True if there is one part for each header that a party is asked to answer.

        A part with another cohort or dealer fits no other part.
        """
        headers = {header.common for header in self._headers(position, party)}
        return len(parts) == len(headers) and {part.header for part in parts} == headers

    def _leave_out(self, party: int) -> None:
        """Go on without a party whose parts are wrong; ask for them again without a reserve."""
        position = self._router.open_position
        if position is None or self._is_closing or self.next_position(party) is None:
            return
        if not self.faults.has_reserve(position.round):
            self._ask_again_later(party, FITS_NO_OTHER)
            return
        self._attempt.refused.add(party)
        self.advance()

    def _take_tag_secret(self, party: int, answer: bytes) -> None:
        """Take a dealer's tag secret, sealed for each party."""
        if self._secrets.take_dealt(party, answer):
            self.advance()

    def _take_relayed_secret(self, party: int, answer: bytes) -> None:
        """Take the tag secret of a lost dealer, sealed by another party for each party."""
        if self._secrets.take_relayed(party, answer):
            self.advance()

    def _take_seal(self, party: int, answer: bytes) -> None:
        """Take a party's seal at the end of the run."""
        seal = Seal.read(answer, self._contract)
        position = self._router.open_position
        if position is None or not self._is_closing:
            return
        if seal.position == position and seal.party == party:
            self._seals[party] = answer
            self._router.note_answer(party, position)
            self._router.in_time[position].add(party)
            self.advance()

    def _take_withdrawal(self, _: int, answer: bytes) -> None:
        """Take a withdrawal, and go on without its party at sums of that kind."""
        router = self._router
        if router.open_position is None or self._is_closing or not self._has_one_sum:
            return
        party = self._withdrawals.store(answer)
        if party in self._withdrawals.at(router.open_position.round):
            router.withdrawn.add(party)
            self.advance()

    def take_stored_totals(self, party: int, totals: tuple[bytes, ...]) -> None:
        """Take totals that a party accepted before this router started."""
        self.totals.take_stored(party, totals)
        self.advance()

    # Refusals

    def take_refusal(self, party: int, reason: str) -> None:
        """Go on after a party refused a tag secret, a total, an attempt, or the end of the run."""
        if reason == "not dealt":
            self._secrets.take_refusal(party)
        elif reason == "bad total":
            self._take_refusal_of_total(party)
        elif reason in TAKES_NO_PART or reason.startswith("not signed by"):
            self._take_refusal_of_attempt(party)

    def _take_refusal_of_attempt(self, party: int) -> None:
        """Leave a party out of the open attempt; ask it again at the end, or without a reserve."""
        self._router.last_answered[party] = None  # it may need older totals, or signatures
        position = self._router.open_position
        if position is None:
            return
        if self._is_closing:
            self._ask_again_later(party, "does not sign the end of the run")
        elif self.faults.has_reserve(position.round):
            self._attempt.refused.add(party)
        else:
            self._ask_again_later(party, "takes no part in the open sum")

    def _take_refusal_of_total(self, party: int) -> None:
        """Go on after a party refused a total.

        If the total came from another party after a restart, it is fetched from a further one. Else
        the last step is added up again: once all parties refuse its total, in a sum for all.
        """
        first_missing_step = self.totals.first_missing_step(party)
        if self.totals.drop_fetched_from(first_missing_step):
            return
        position = self._router.open_position
        if position is None:
            return
        step = position.round - 1
        if step not in self.totals.by_step:
            return
        if step < first_missing_step:
            return  # its question had the total of a step that is open again by now
        self._attempt.refusing_total.add(party)
        if self._has_one_sum and not self._is_refused_by_all():
            return
        suspect = self._next_suspect(step)
        if suspect is None:
            self._ask_for_parts_again(step)
        else:
            self._add_up_without(suspect, step)

    def _is_refused_by_all(self) -> bool:
        """Return True if all present parties of the open attempt refuse the total before it."""
        attempt = self._attempt
        accepting = attempt.cohort - self._router.absent - attempt.refused - attempt.refusing_total
        return not accepting

    def _next_suspect(self, step: int) -> int | None:
        """Clear the suspect, and return the next one to leave out of a step; None without one."""
        self.faults.clear_suspect()
        router = self._router
        present = router.all_parties - router.absent
        eligible = present - self._withdrawals.at(step).keys()
        cohort = self.totals.by_step[step][0].header.cohort
        return self.faults.next_suspect(step, cohort, {*present}, {*eligible})
