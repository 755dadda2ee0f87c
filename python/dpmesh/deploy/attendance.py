"""Presence, progress and restarts of the parties of a run, as its router sees them.

A party whose process starts asks the others for later releases of it than its own folder has
(`Fresh`). So a folder that was restored from an older copy is found before it releases anything
twice. The router collects these questions, sends them to the other parties in one
message, and returns their signed answers to the party that asked. The party then is confirmed.

A `Position` is a round and an exchange of messages within it. At any time one position is open: the
one that the router asks parties for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.row import Heard
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import digest
from dpmesh.deploy.wire import Fresh, Position, Reached

DEADLINES = 3
"""Number of deadlines after which a run that stays in the same round counts as paused."""


class Confirmation(NamedTuple):
    """A party's signed answer to the questions of parties that started.

    Attributes
    ----------
    asked
        The hash of the message that carried the questions.
    message
        The signed answer, as a message.
    """

    asked: bytes
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
        self.everybody = frozenset(range(contract.nodes))
        self.gone: dict[int, str] = {}
        """Parties that are not asked any more, and the refusal by which each ended."""
        self.signatures: dict[int, bytes] = {}
        """Each party's signature under the contract, a message."""
        self.present: set[int] = set()
        """Parties that have answered this router."""
        self.reached: dict[int, Reached] = {}
        """Progress of parties when they first answered this router."""
        self.answered: dict[int, Position | None] = dict.fromkeys(self.everybody)
        """The position that each party answered last, to this router."""
        self.in_time: dict[Position, set[int]] = {}
        """Parties that answered a position while it was open."""
        self.late: set[int] = set()
        """Parties that missed a deadline, and have not come back."""
        self.spent: set[int] = set()
        """Parties that have no attempt left at sums like the open one."""
        self.fresh: dict[int, Fresh] = {}
        """The question of each party that started and is not confirmed yet."""
        self.starts = 0
        """Number of starts so far, each with a new question."""
        self._questions: dict[bytes, tuple[Fresh, ...]] = {}
        """The questions of each message that carried some, by its hash."""
        self._last_asked: tuple[Fresh, ...] = ()
        """The questions of the newest of these messages."""
        self._confirmations: dict[Fresh, dict[int, Confirmation]] = {}
        """The answers to each question, by the party that answered."""
        self.heard_from: set[int] = set()
        """Parties that have answered anything since the open position was last given a deadline."""
        self.open_position: Position | None = None
        """The position that is open; None while the parties sign."""
        self._since = self._advanced = clock()

    @property
    def out(self) -> set[int]:
        """Parties that are late or gone."""
        return self.late | set(self.gone)

    @property
    def enough(self) -> bool:
        """True while the parties left are a quorum."""
        return self.is_quorum(self.everybody - self.out - self.spent)

    def is_quorum(self, parties: set[int] | frozenset[int]) -> bool:
        """Return True if these parties are enough for a quorum."""
        return len(parties) >= self.contract.terms.quorum

    def now(self) -> float:
        """Return the time, in seconds."""
        return self._clock()

    def waits_since(self) -> float:
        """Return the seconds since the open position was last given a deadline."""
        return self._clock() - self._since

    @property
    def is_paused(self) -> bool:
        """True if a deadline has passed, or `DEADLINES` of them in the same round.

        Attempts at a sum of the same round have a deadline each.
        """
        deadline = self.contract.terms.deadline
        seconds_in_round = self._clock() - self._advanced
        return self.waits_since() > deadline or seconds_in_round > DEADLINES * deadline

    def wait_anew(self) -> None:
        """Begin another deadline for the open position."""
        self._since = self._clock()
        self.heard_from.clear()

    def names(self, parties: set[int]) -> list[str]:
        """Return the names of parties, in the order of their numbers."""
        return [self.contract.parties[number].name for number in sorted(parties)]

    def move(self, position: Position, *, again: bool = False) -> None:
        """Open a position and begin its deadline.

        Parameters
        ----------
        position
            The position.
        again
            True if its round was open before: the time in the round then goes on.
        """
        self.open_position = position
        if not again:
            self._advanced = self._clock()
        self.in_time[position] = set()
        self.wait_anew()

    def note_answer(self, party: int, position: Position) -> None:
        """Note the position that a party answered: it is not late, and its start is confirmed."""
        self.answered[party] = position
        self.late.discard(party)
        self.fresh.pop(party, None)

    def restart_questions(self, party: int, askers: set[int]) -> bytes | None:
        """Return one message with the questions for a party; None if it has answered all of them.

        The last message is sent again while it has all open questions, also if some of its
        questions are answered by now. A party that asked receives each message that its answers
        refer to: the fewer messages there are, the fewer bytes it receives.

        Parameters
        ----------
        party
            The party that is asked for later releases of the others.
        askers
            The parties that started and need its answer.
        """
        present = sorted(askers - set(self.gone))
        questions = [self.fresh[asker] for asker in present if asker in self.fresh]
        open_questions = [
            question
            for question in questions
            if question.party != party and party not in self._answers(question)
        ]
        if not open_questions:
            return None
        if not set(open_questions) <= set(self._last_asked):
            self._last_asked = tuple(questions)
        message = Fresh.together(self.contract, self._last_asked)
        self._questions[digest(message)] = self._last_asked
        return message

    def take_fresh(self, party: int, answer: bytes) -> None:
        """Store a party's question after a start in place of its older one, and drop old answers.

        A question in the name of another party is ignored.
        """
        (question,) = Fresh.read(answer, self.contract)
        if question.party != party or self.fresh.get(party) == question:
            return
        self.fresh[party] = question
        self.starts += 1
        current = {*self.fresh.values()}
        for old in self._confirmations.keys() - current:
            del self._confirmations[old]
        if len(self._questions) > 2 * self.contract.nodes:
            self._questions = {
                hashed: questions
                for hashed, questions in self._questions.items()
                if not current.isdisjoint(questions)
            }

    def take_heard(self, _: int, answer: bytes) -> None:
        """Store a signed answer to a message with questions: it answers each of them."""
        report = Heard.read(answer, self.contract, self._questions)
        confirmation = Confirmation(report.asked, answer)
        for question in self._questions[report.asked]:
            self._confirmations.setdefault(question, {})[report.by] = confirmation

    def _answers(self, question: Fresh) -> dict[int, Confirmation]:
        """Return the answers to a question, by the party that answered."""
        return self._confirmations.get(question, {})

    def answers(self, party: int) -> set[int]:
        """Return the parties that have answered the question of a party that started."""
        question = self.fresh.get(party)
        if question is None:
            return set()
        return {*self._answers(question)}

    def confirmation(self, party: int, witnesses: set[int]) -> tuple[bytes, ...]:
        """Return the witnesses' answers to a party that started, after the questions answered.

        Answers of other parties are left out, so that the bytes of a start grow with the party's
        neighbours and not with all parties.
        """
        question = self.fresh.get(party)
        if question is None:
            return ()
        answers = [
            confirmation
            for witness, confirmation in sorted(self._answers(question).items())
            if witness in witnesses
        ]
        hashes = dict.fromkeys(confirmation.asked for confirmation in answers)
        questions = [Fresh.together(self.contract, self._questions[hashed]) for hashed in hashes]
        return (*questions, *(confirmation.message for confirmation in answers))
