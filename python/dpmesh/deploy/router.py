"""The router: it carries what nodes send each other, and is trusted with nothing else.

    router = Router(contract)
    while not router.done:
        for party, message in router.requests().items():    # by the party's number
            router.take(party, send(party, message))         # bytes out, bytes in
        if router.waits_since() > contract.terms.deadline:
            router.close()                                   # who is missing is left out

It keeps no secret and nothing on disk. One that is started anew asks any quorum for the signatures
of all and for how far each party got, and waits for absent parties no longer than for others: rows
are asked for from the first round on, and sums from the last one; nodes answer from their tables,
the same bits. What it does with rows is in `router_rows`, and with parts of sums in `router_sums`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from dpmesh.deploy.attendance import Attendance
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.router_rows import RowRouting
from dpmesh.deploy.router_sums import SumRouting
from dpmesh.deploy.signing import pack
from dpmesh.deploy.wire import (
    PRESENCE,
    RECOVERY_ANSWER,
    ROLLBACK_QUESTION,
    ROLLBACK_REPORT,
    SIGNATURE,
    WITHHOLD,
    Presence,
    RecoveryAnswer,
    Signature,
    StepQuestion,
    kind_of,
    presence_question,
    refusal_reason,
    signatures_question,
)

_log = logging.getLogger("dpmesh")

GONE = ("stopped", "restored", "another contract", "over budget")
"""Refusals after which a party is not asked again."""


class Router(Attendance):
    """Carries the messages of a contract's run.

    Parameters
    ----------
    contract
        The contract.
    clock
        Returns seconds.
    """

    def __init__(self, contract: Contract, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(contract, clock)
        self.bytes = 0
        """Bytes of all questions and answers so far."""
        self.routing: RowRouting | SumRouting
        """The routing of releases: of rows, or of parts of sums."""
        if contract.planned.first_sum is None:
            self.routing = RowRouting(self)
        else:
            self.routing = SumRouting(self)
        self._recalled: set[int] = set()
        """Parties that were asked for the signatures of all, since this router started."""
        self._handlers: dict[bytes, Callable[[int, bytes], None]] = {
            PRESENCE: self._take_presence,
            ROLLBACK_QUESTION: self.take_rollback_question,
            ROLLBACK_REPORT: self.take_rollback_report,
            SIGNATURE: self._take_signature,
            RECOVERY_ANSWER: self._take_recalled,
            **self.routing.handlers,
        }
        """The method that takes an answer, by the answer's kind."""

    @property
    def done(self) -> bool:
        """True once the run is over for all parties that are not late."""
        return self.schedule.is_last(self.open_position) and not self.awaited

    @property
    def failure(self) -> str:
        """Why the run cannot end any more: who ended early, and by which word; empty if it can.

        A quorum is needed for each round, and parties that are gone do not come back.
        """
        if self.done or self.is_quorum(self.all_parties - set(self.gone)):
            return ""
        names = [party.name for party in self.contract.parties]
        return ", ".join(f"{names[number]}: {self.gone[number]}" for number in sorted(self.gone))

    @property
    def ended(self) -> bytes:
        """The last messages of all that ended, by which a node knows that it is left out."""
        return pack(*self.routing.ended.values())

    @property
    def waits_for(self) -> list[str]:
        """Names of the parties for which the open position waits: below the quorum, all missing.

        Those that do not say what they have of a party that started are among them.
        """
        waited = self.awaited or (set() if self.has_quorum else self.absent)
        without = self.all_parties - self.absent - self.withdrawn - waited
        if self.is_paused and not self.is_quorum(without):
            waited = waited | self.late  # who may come back, so that the others go on
        held_up = {silent for party in waited for silent in self._silent(party)}
        return self.names(waited | held_up)

    @property
    def missing(self) -> list[str]:
        """Names of the parties that are late or gone."""
        return self.names(self.absent)

    def requests(self) -> dict[int, bytes]:
        """Return what to ask each party now, by its number; asking twice does no harm."""
        questions = {party: self.request(party) for party in range(self.contract.nodes)}
        return {party: message for party, message in questions.items() if message is not None}

    def request(self, party: int) -> bytes | None:
        """Return what to ask one party now; None if nothing."""
        if party in self.gone:
            return None
        message = self._question(party)
        if message is not None:
            self.bytes += len(message)
        return message

    def _question(self, party: int) -> bytes | None:
        """Return the next question.

        A party is asked what others that started want to know only if the run has no question.
        """
        if self.open_position is None:
            return self._question_before_the_start(party)
        question = self.routing.question_between(party)
        if question is not None:
            return question
        if self.routing.lacking:
            return None
        position = self.routing.next_position(party)
        is_confirmed = self._confirmed(party)
        if is_confirmed and position is not None:
            return StepQuestion(position, self.routing.attached(party)).as_bytes(self.contract)
        if is_confirmed and party in self.late:
            return presence_question(self.contract)  # is it back?
        if position is not None and self.routing.is_cut_off(party):
            attached = (*self.routing.attached(party), WITHHOLD)
            return StepQuestion(position, attached).as_bytes(self.contract)
        return self.rollback_questions(party, self.routing.askers(party))

    def _question_before_the_start(self, party: int) -> bytes | None:
        """Return the question for a party's signature, or for the signatures that it kept of all.

        The run starts once the router has the signatures of all parties.
        """
        if party not in self.present:
            return presence_question(self.contract)
        may_know = party in self.reported_progress and party not in self._recalled
        if may_know and len(self.signatures) < self.contract.nodes:
            return signatures_question(self.contract)
        return None

    def take(self, party: int, answer: bytes) -> None:
        """Take an answer. Who signed it counts; `party` only says who refuses, or starts.

        What is no answer is dropped, and the party named in the log: no message of a party ends a
        run for the others.
        """
        self.bytes += len(answer)
        self.responded.add(party)
        try:
            reason = refusal_reason(answer)
            take = self._handlers.get(kind_of(answer))
            if reason is not None:
                self._take_refusal(party, reason)
            elif take is not None:
                take(party, answer)
        except ValueError as error:
            name = self.contract.parties[party].name
            _log.warning("%s sends what this router refuses: %.200s", name, error)
        except Exception:
            name = self.contract.parties[party].name
            _log.exception("the router fails at what %s sent, and goes on", name)

    def _take_presence(self, party: int, answer: bytes) -> None:
        """Take a party's signature with its question and its progress after a start."""
        presence = Presence.read(answer)
        if presence.rollback_question:
            self.take_rollback_question(party, presence.rollback_question)
        if presence.progress is not None:
            self.routing.check_reached(presence.progress)
            self.reported_progress[party] = presence.progress
        self._take_signature(party, presence.signature)

    def _take_signature(self, party: int, answer: bytes) -> None:
        """Take a signature under the contract: its party is present, and no longer late."""
        signed = Signature.read(answer, self.contract)
        self.late.discard(signed.party)
        self.present.add(signed.party)
        self.signatures[signed.party] = answer
        if self.open_position is None:
            self._start(self.all_parties - self.present - set(self.gone))
        else:
            self.routing.settle()  # a quorum may be there again

    def _take_recalled(self, party: int, answer: bytes) -> None:
        """Take what a party kept of the run before this router started."""
        recalled = RecoveryAnswer.read(answer, self.contract)
        self._recalled.add(party)
        for message in recalled.signatures:
            signed = Signature.read(message, self.contract)
            self.signatures.setdefault(signed.party, message)
        if recalled.totals:
            self.routing.recall(party, recalled.totals)
        if self.open_position is None:
            self._start(self.all_parties - self.present - set(self.gone))

    def _start(self, absent: set[int] | frozenset[int]) -> None:
        """Open the first position once all have signed, and nobody is absent."""
        if (
            self.open_position is None
            and len(self.signatures) == self.contract.nodes
            and not absent
        ):
            self.routing.start()

    def close(self) -> bool:
        """End the wait for the open position, as its deadline has passed.

        Who holds up others is late, and not those who are held up.

        Returns
        -------
        Whether the run goes on. It pauses below the quorum, and for signatures: see `waits_for`.
        """
        if self.open_position is None:
            return self._start_without_absent()
        late = self._missing_their_deadline()
        if not late:
            return self.routing.give_up()
        for name in self.names(late):
            _log.warning("%s is missing in round %d", name, self.open_position.round)
        self.late |= late
        self.restart_deadline()
        self.routing.settle()
        return True

    def _missing_their_deadline(self) -> set[int]:
        """Return who is late now: nobody, if too few would be left.

        Of those who hold up others, parties that have answered nothing at all come first. If too
        many hold up others, but only some of them are silent, these are late.
        """
        there = self.all_parties - self.absent - self.withdrawn
        holding_up = self._holding_up()
        silent = {party for party in there if self._is_silent(party)}
        for late in (holding_up & silent, holding_up, silent):
            if late and self.is_quorum(there - late):
                return late
        return set()

    def _is_silent(self, party: int) -> bool:
        """Return True if a party has a question, and answered none since the position opened."""
        return party not in self.responded and self._question(party) is not None

    def _start_without_absent(self) -> bool:
        """Start a router anew among a quorum, if all had signed before."""
        absent = {*self.all_parties - self.present - set(self.gone)}
        if len(self.signatures) < self.contract.nodes:
            return False
        if not self.is_quorum(self.all_parties - absent - set(self.gone)):
            return False
        for name in self.names(absent):
            _log.warning("%s is missing as this router starts", name)
        self.late |= absent
        self._start(set())
        return True

    def _holding_up(self) -> set[int]:
        """Return the parties that the open position waits for, without those whom others hold up.

        A party that started waits for the words of others; who does not give them holds it up.
        """
        holding_up: set[int] = set()
        for party in self.awaited:
            holding_up |= (self._silent(party) - self.absent) or {party}
        return holding_up

    @property
    def awaited(self) -> set[int]:
        """For whom the open position waits."""
        if self.open_position is None:
            return {*self.all_parties} - (self.present & self.signatures.keys()) - set(self.gone)
        return self.routing.awaited

    def _confirmed(self, party: int) -> bool:
        """Return True if enough parties reported what they received of this one since its start."""
        if party not in self.unconfirmed:
            return True
        confirmers = self.routing.confirmers(party)
        return len(confirmers.parties & self.reporters(party)) >= confirmers.needed

    def _silent(self, party: int) -> set[int]:
        """Return those without whose word a party does not go on."""
        if self.open_position is None or self.routing.question_between(party) is not None:
            return set()
        holding_up = self.routing.holding_up(party)
        if holding_up:
            return holding_up
        if self._confirmed(party):
            return set()
        return self.routing.confirmers(party).parties - self.reporters(party)

    def _take_refusal(self, party: int, reason: str) -> None:
        """Go on after a refusal; some end a party's run for good."""
        _log.warning("%s refuses: %s", self.contract.parties[party].name, reason)
        self.routing.refused(party, reason)
        if reason in GONE:
            self.gone[party] = reason
        if self.open_position is None:
            self._start(self.all_parties - self.present - set(self.gone))
        else:
            self.routing.settle()
