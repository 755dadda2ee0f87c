"""The router: it carries messages between nodes, and is trusted with nothing else.

    router = Router(contract)
    while not router.done:
        for party, message in router.requests().items():    # by the party's number
            router.take(party, send(party, message))         # bytes out, bytes in
        if router.waits_since() > contract.terms.deadline:
            router.close()                                   # who is missing is left out

A malicious router can delay or stop a run. The router has no secret, and keeps nothing on disk. If
it restarts, it asks any quorum for the signatures of all parties and for their progress, and does
not wait longer for absent parties than for others. It asks for rows from the first round on, and
for sums from the last attempt; nodes answer from their folders, with the same bits.

A `Router` is an `Attendance` (presence, progress and restarts of parties) with a `Routing`, for all
that depends on the messages of the run: `RowRouting` (`router_rows`) or `SumRouting`
(`router_sums`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from dpmesh.deploy.attendance import Attendance
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.router_base import Routing
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

FINAL_REFUSALS = ("stopped", "restored", "another contract", "over budget")
"""Reasons of refusals after which a party is not asked again."""


class Router(Attendance):
    """Carries the messages of a contract's run between nodes, over any transport.

    Ask each party what `requests` returns, and give its answer to `take`, until the run is `done`.
    If a deadline passes, call `close`.

    Parameters
    ----------
    contract
        The contract.
    clock
        Returns the time in seconds, from any origin.
    """

    def __init__(self, contract: Contract, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(contract, clock)
        self.bytes = 0
        """Bytes of all questions and answers so far."""
        self.routing: Routing
        """What depends on the messages of the run: rows, or parts of sums."""
        if contract.planned.first_sum is None:
            self.routing = RowRouting(self)
        else:
            self.routing = SumRouting(self)
        self._asked_for_signatures: set[int] = set()
        """Parties that answered the question for the signatures of all parties."""
        self._handlers: dict[bytes, Callable[[int, bytes], None]] = {
            PRESENCE: self._take_presence,
            ROLLBACK_QUESTION: self.take_rollback_question,
            ROLLBACK_REPORT: self.take_rollback_report,
            SIGNATURE: self._take_signature,
            RECOVERY_ANSWER: self._take_recovery_answer,
            **self.routing.handlers,
        }
        """The method that takes an answer, by the answer's kind."""

    @property
    def done(self) -> bool:
        """True once the run is over for all parties that are not late."""
        return self.schedule.is_last(self.open_position) and not self.awaited

    @property
    def failure(self) -> str:
        """Reason why the run cannot go on: parties that are gone, with their refusals; or empty.

        Each round needs a quorum, and parties that are gone do not come back.
        """
        if self.done or self.is_quorum(self.all_parties - set(self.gone)):
            return ""
        names = [party.name for party in self.contract.parties]
        return ", ".join(f"{names[number]}: {self.gone[number]}" for number in sorted(self.gone))

    @property
    def ended(self) -> bytes:
        """The signed last messages of parties whose run is over, packed.

        They prove to a node that the run is over without it, see `Outcome.is_over`.
        """
        return pack(*self.routing.ended.values())

    @property
    def waits_for(self) -> list[str]:
        """Names of the parties that the run waits for; below the quorum, of all absent parties.

        Parties whose reports on a restarted party are missing are among them.
        """
        waited = self.awaited or (set() if self.has_quorum else self.absent)
        without = self.all_parties - self.absent - self.withdrawn - waited
        if self.is_paused and not self.is_quorum(without):
            waited = waited | self.late  # if they come back, the others can go on
        held_up = {silent for party in waited for silent in self._blocking_parties(party)}
        return self.names(waited | held_up)

    @property
    def missing(self) -> list[str]:
        """Names of the parties that are late or gone."""
        return self.names(self.absent)

    def requests(self) -> dict[int, bytes]:
        """Return the current question to each party, by its number; there may be none for some.

        A question may be sent again: the party answers the same bytes.
        """
        questions = {party: self.request(party) for party in range(self.contract.nodes)}
        return {party: message for party, message in questions.items() if message is not None}

    def request(self, party: int) -> bytes | None:
        """Return the current question to one party; None if there is none."""
        if party in self.gone:
            return None
        message = self._question(party)
        if message is not None:
            self.bytes += len(message)
        return message

    def _question(self, party: int) -> bytes | None:
        """Return the current question to a party; None if there is none.

        It is a rollback question of restarted parties only if the run has no question to ask.
        """
        if self.open_position is None:
            return self._question_before_the_start(party)
        question = self.routing.question_before_step(party)
        if question is not None:
            return question
        if self.routing.missing_dealers:
            return None
        position = self.routing.next_position(party)
        is_confirmed = self._is_confirmed(party)
        if is_confirmed and position is not None:
            return StepQuestion(position, self.routing.attachments(party)).as_bytes(self.contract)
        if is_confirmed and party in self.late:
            return presence_question(self.contract)  # is it back?
        if position is not None and self.routing.is_cut_off(party):
            attached = (*self.routing.attachments(party), WITHHOLD)
            return StepQuestion(position, attached).as_bytes(self.contract)
        return self.rollback_questions(party, self.routing.parties_to_confirm(party))

    def _question_before_the_start(self, party: int) -> bytes | None:
        """Return the question for a party's signature, or for the signatures of all that it stored.

        The run starts once the router has the signatures of all parties.
        """
        if party not in self.present:
            return presence_question(self.contract)
        may_know = party in self.reported_progress and party not in self._asked_for_signatures
        if may_know and len(self.signatures) < self.contract.nodes:
            return signatures_question(self.contract)
        return None

    def take(self, party: int, answer: bytes) -> None:
        """Take an answer of a party.

        The signature shows the party of a signed answer. Any other bytes are dropped, and the log
        names the party: no message of a party ends the run for the others.

        Parameters
        ----------
        party
            Number of the party that the transport names. Refusals, which are not signed, and
            restarts count as its own.
        answer
            The answer, as bytes. It may be any bytes.
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
        """Take a party's signature, with its rollback question and its progress."""
        presence = Presence.read(answer)
        if presence.rollback_question:
            self.take_rollback_question(party, presence.rollback_question)
        if presence.progress is not None:
            self.routing.check_progress(presence.progress)
            self.reported_progress[party] = presence.progress
        self._take_signature(party, presence.signature)

    def _take_signature(self, party: int, answer: bytes) -> None:
        """Take a signature under the contract: its party is present, and no longer late."""
        signed = Signature.read(answer, self.contract)
        self.late.discard(signed.party)
        self.present.add(signed.party)
        self.signatures[signed.party] = answer
        if self.open_position is None:
            self._start_if_complete()
        else:
            self.routing.advance()  # a quorum may be there again

    def _take_recovery_answer(self, party: int, answer: bytes) -> None:
        """Take the signatures and totals that a party stored under an earlier router of the run."""
        recalled = RecoveryAnswer.read(answer, self.contract)
        self._asked_for_signatures.add(party)
        for message in recalled.signatures:
            signed = Signature.read(message, self.contract)
            self.signatures.setdefault(signed.party, message)
        if recalled.totals:
            self.routing.take_stored_totals(party, recalled.totals)
        if self.open_position is None:
            self._start_if_complete()

    def _start_if_complete(self) -> None:
        """Start the run if all parties have signed, and all are present or gone."""
        have_signed = len(self.signatures) == self.contract.nodes
        if have_signed and not self.all_parties - self.present - set(self.gone):
            self.routing.start()

    def close(self) -> bool:
        """End the wait for the open position; call it when the deadline has passed.

        Parties that hold up the run are late from now on, above all those that are silent. A party
        that waits for messages of another one does not hold up the run: the other one does.

        Returns
        -------
        True if the run goes on. False if it pauses, below the quorum or for lack of signatures: see
        `waits_for`.
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
        self.routing.advance()
        return True

    def _missing_their_deadline(self) -> set[int]:
        """Return the parties that are late now; none, if less than a quorum would be left.

        These are the first of three sets that leaves a quorum: silent parties that hold up others,
        all parties that hold up others, all silent parties.
        """
        there = self.all_parties - self.absent - self.withdrawn
        holding_up = self._parties_holding_up()
        silent = {party for party in there if self._is_silent(party)}
        for late in (holding_up & silent, holding_up, silent):
            if late and self.is_quorum(there - late):
                return late
        return set()

    def _is_silent(self, party: int) -> bool:
        """Return True if a party has a question, and answered none since the position opened."""
        return party not in self.responded and self._question(party) is not None

    def _start_without_absent(self) -> bool:
        """Start the run of a restarted router with a quorum, if it has the signatures of all.

        Returns
        -------
        True if the run starts.
        """
        absent = {*self.all_parties - self.present - set(self.gone)}
        if len(self.signatures) < self.contract.nodes:
            return False
        if not self.is_quorum(self.all_parties - absent - set(self.gone)):
            return False
        for name in self.names(absent):
            _log.warning("%s is missing as this router starts", name)
        self.late |= absent
        self.routing.start()
        return True

    def _parties_holding_up(self) -> set[int]:
        """Return the parties that hold up the open position.

        A party that waits for messages of others, as a restarted party for their reports, does not
        hold it up: these others do.
        """
        holding_up: set[int] = set()
        for party in self.awaited:
            holding_up |= (self._blocking_parties(party) - self.absent) or {party}
        return holding_up

    @property
    def awaited(self) -> set[int]:
        """Parties that the open position waits for.

        Before the run they are all parties that are absent or have not signed, but for those that
        have left the run for good.
        """
        if self.open_position is None:
            return {*self.all_parties} - (self.present & self.signatures.keys()) - set(self.gone)
        return self.routing.awaited

    def _is_confirmed(self, party: int) -> bool:
        """Return True if enough parties have reported on a party since its start."""
        if party not in self.unconfirmed:
            return True
        confirmers = self.routing.confirmers(party)
        return len(confirmers.parties & self.reporters(party)) >= confirmers.needed

    def _blocking_parties(self, party: int) -> set[int]:
        """Return the parties whose reports, secrets or totals another party waits for."""
        if self.open_position is None or self.routing.question_before_step(party) is not None:
            return set()
        holding_up = self.routing.blocking(party)
        if holding_up:
            return holding_up
        if self._is_confirmed(party):
            return set()
        return self.routing.confirmers(party).parties - self.reporters(party)

    def _take_refusal(self, party: int, reason: str) -> None:
        """Go on after a refusal; some reasons end the party's run for good."""
        _log.warning("%s refuses: %s", self.contract.parties[party].name, reason)
        self.routing.take_refusal(party, reason)
        if reason in FINAL_REFUSALS:
            self.gone[party] = reason
        if self.open_position is None:
            self._start_if_complete()
        else:
            self.routing.advance()
