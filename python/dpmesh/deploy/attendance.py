"""Presence, progress and restarts of the parties of a run, as its router sees them.

`Attendance` is the base of `dpmesh.deploy.router.Router`. At any time one position of the run (a
round, and an exchange of messages in it) is *open*: the router asks parties for their messages of
this position, until all have answered or a deadline has passed.

A party whose process starts asks the others for later releases of it than its own folder has
(`RollbackQuestion`). So a folder that was restored from an older copy is found before it releases
anything twice. The router collects these questions, sends them to the other parties in one message,
and returns their signed reports to the party that asked. A party is *unconfirmed* from its question
until its next answer to the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.row import RollbackReport
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import digest
from dpmesh.deploy.wire import Position, RollbackQuestion, StepProgress

DEADLINES = 3
"""A run that stays in one round for this many deadlines counts as paused."""


class StoredReport(NamedTuple):
    """A party's `RollbackReport`, as the router stores it.

    Attributes
    ----------
    questions_hash
        Hash of the message with the questions that the report answers.
    message
        The signed report, as a message.
    """

    questions_hash: bytes
    message: bytes


class Attendance:
    """The parties of a run as its router sees them, and the position that is open.

    Parameters
    ----------
    contract
        The contract.
    clock
        Returns the time in seconds, from any origin.
    """

    def __init__(self, contract: Contract, clock: Callable[[], float]) -> None:
        self.contract = contract
        self.schedule = Schedule(contract)
        self._clock = clock
        self.all_parties = frozenset(range(contract.nodes))
        self.gone: dict[int, str] = {}
        """Parties that are not asked any more, with the reason of their last refusal."""
        self.signatures: dict[int, bytes] = {}
        """Each party's signature under the contract, as a message."""
        self.present: set[int] = set()
        """Parties that have answered this router."""
        self.reported_progress: dict[int, StepProgress] = {}
        """The last step of parties, as they stated it when they first answered this router."""
        self.last_answered: dict[int, Position | None] = dict.fromkeys(self.all_parties)
        """The last position that each party answered to this router; None before."""
        self.in_time: dict[Position, set[int]] = {}
        """Parties that answered a position while it was open, by position."""
        self.late: set[int] = set()
        """Parties that missed a deadline, and have not come back."""
        self.withdrawn: set[int] = set()
        """Parties that have withdrawn from sums of the kind of the open one."""
        self.unconfirmed: dict[int, RollbackQuestion] = {}
        """The rollback question of each party that started and is not confirmed yet."""
        self.starts = 0
        """Number of rollback questions so far: each start of a party has a new one."""
        self._questions: dict[bytes, tuple[RollbackQuestion, ...]] = {}
        """The questions in each message that this router sent, by the hash of the message."""
        self._newest_questions: tuple[RollbackQuestion, ...] = ()
        """The questions in the newest of these messages."""
        self._reports: dict[RollbackQuestion, dict[int, StoredReport]] = {}
        """The reports on each question, by reporter."""
        self.responded: set[int] = set()
        """Parties that have answered anything since the deadline of the open position began."""
        self.open_position: Position | None = None
        """The position that is open; None while the parties sign."""
        now = clock()
        self._deadline_began = now
        """Time at which the deadline of the open position began."""
        self._round_began = now
        """Time at which the round of the open position began."""

    @property
    def absent(self) -> set[int]:
        """Parties that are late or gone: the run goes on without them."""
        return self.late | set(self.gone)

    @property
    def has_quorum(self) -> bool:
        """True if the parties that are neither absent nor withdrawn are a quorum."""
        return self.is_quorum(self.all_parties - self.absent - self.withdrawn)

    def is_quorum(self, parties: set[int] | frozenset[int]) -> bool:
        """Return True if these are at least as many parties as the contract's quorum."""
        return len(parties) >= self.contract.terms.quorum

    def now(self) -> float:
        """Return the time, in seconds."""
        return self._clock()

    def waits_since(self) -> float:
        """Return the seconds since the deadline of the open position began."""
        return self._clock() - self._deadline_began

    @property
    def is_paused(self) -> bool:
        """True if the deadline has passed, or if the round takes more than `DEADLINES` deadlines.

        Each attempt at a sum of a round has a deadline of its own.
        """
        deadline = self.contract.terms.deadline
        seconds_in_round = self._clock() - self._round_began
        return self.waits_since() > deadline or seconds_in_round > DEADLINES * deadline

    def restart_deadline(self) -> None:
        """Begin another deadline for the open position."""
        self._deadline_began = self._clock()
        self.responded.clear()

    def names(self, parties: set[int]) -> list[str]:
        """Return the names of parties, from their numbers, in the order of the numbers."""
        return [self.contract.parties[number].name for number in sorted(parties)]

    def open_at(self, position: Position, *, is_reopened: bool = False) -> None:
        """Open a position and begin its deadline.

        Parameters
        ----------
        position
            The position.
        is_reopened
            True if its round was open before, so that the time in the round goes on.
        """
        self.open_position = position
        if not is_reopened:
            self._round_began = self._clock()
        self.in_time[position] = set()
        self.restart_deadline()

    def note_answer(self, party: int, position: Position) -> None:
        """Note that a party answered a position: it is not late, and its start is confirmed."""
        self.last_answered[party] = position
        self.late.discard(party)
        self.unconfirmed.pop(party, None)

    def progress_of(self, party: int) -> Position:
        """Return the last known position of a party; the first position if none is known.

        In runs with one sum for all, it is the position that the party reported to this router, as
        long as it has answered none. In other runs a new router asks again from the first position
        on, whatever parties reported.
        """
        answered = self.last_answered[party]
        if answered is not None:
            return answered
        if self.contract.has_one_model and party in self.reported_progress:
            return self.reported_progress[party].position
        return Position(0)

    def rollback_questions(self, party: int, askers: set[int]) -> bytes | None:
        """Return a message with the rollback questions that a party has not answered yet, if any.

        The newest message is sent again as long as it contains all unanswered questions, even if it
        also contains answered ones. Fewer different messages mean fewer bytes: a report refers to
        the message that it answers, so a party that asked needs each of these messages, too.

        Parameters
        ----------
        party
            Number of the party that is asked for later releases of the others.
        askers
            Numbers of the parties that need its report.

        Returns
        -------
        The message; None if the party has answered all questions of `askers`.
        """
        present = sorted(askers - set(self.gone))
        questions = [self.unconfirmed[asker] for asker in present if asker in self.unconfirmed]
        unanswered = [
            question
            for question in questions
            if question.party != party and party not in self._reports_on(question)
        ]
        if not unanswered:
            return None
        if not set(unanswered) <= set(self._newest_questions):
            self._newest_questions = tuple(questions)
        message = RollbackQuestion.together(self.contract, self._newest_questions)
        self._questions[digest(message)] = self._newest_questions
        return message

    def take_rollback_question(self, party: int, answer: bytes) -> None:
        """Store a party's question after a start, and drop its question of an earlier start.

        Reports on replaced questions are dropped. A question in the name of another party is
        ignored.
        """
        (question,) = RollbackQuestion.read(answer, self.contract)
        if question.party != party or self.unconfirmed.get(party) == question:
            return
        self.unconfirmed[party] = question
        self.starts += 1
        current = {*self.unconfirmed.values()}
        for replaced in self._reports.keys() - current:
            del self._reports[replaced]
        if len(self._questions) > 2 * self.contract.nodes:  # so that many starts fill no memory
            self._questions = {
                questions_hash: questions
                for questions_hash, questions in self._questions.items()
                if not current.isdisjoint(questions)
            }

    def take_rollback_report(self, _: int, answer: bytes) -> None:
        """Store a signed report for each question in the message that it answers.

        Who sends the report does not matter: its signature shows the reporter.
        """
        report = RollbackReport.read(answer, self.contract, self._questions)
        stored = StoredReport(report.questions_hash, answer)
        for question in self._questions[report.questions_hash]:
            self._reports.setdefault(question, {})[report.reporter] = stored

    def _reports_on(self, question: RollbackQuestion) -> dict[int, StoredReport]:
        """Return the reports on a question, by reporter."""
        return self._reports.get(question, {})

    def reporters(self, party: int) -> set[int]:
        """Return the parties that have reported on an unconfirmed party since its start."""
        question = self.unconfirmed.get(party)
        if question is None:
            return set()
        return {*self._reports_on(question)}

    def reports_for(self, party: int, confirmers: set[int]) -> tuple[bytes, ...]:
        """Return the messages that confirm a party's start: questions, then reports on them.

        Parameters
        ----------
        party
            Number of the party. There are no messages unless it is unconfirmed.
        confirmers
            Numbers of the parties whose reports the party needs. Other reports are left out, so
            that the bytes of a start grow with the party's neighbours and not with all parties.
        """
        question = self.unconfirmed.get(party)
        if question is None:
            return ()
        reports = [
            report
            for reporter, report in sorted(self._reports_on(question).items())
            if reporter in confirmers
        ]
        hashes = dict.fromkeys(report.questions_hash for report in reports)
        questions = [
            RollbackQuestion.together(self.contract, self._questions[questions_hash])
            for questions_hash in hashes
        ]
        return (*questions, *(report.message for report in reports))
