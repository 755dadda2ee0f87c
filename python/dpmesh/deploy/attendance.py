"""Presence, progress and starts of the parties of a run, as its router sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.row import Heard
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import digest
from dpmesh.deploy.wire import Fresh, Position, Reached

DEADLINES = 3
"""Number of deadlines after which a run that is at the same round counts as paused."""


class Confirmation(NamedTuple):
    """A party's answer to the questions of nodes that started.

    Attributes
    ----------
    asked
        The hash of the message with the questions.
    message
        The answer, signed.
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
        Returns seconds.
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
        """The question to the others of each party that started and is not confirmed yet."""
        self.starts = 0
        """Number of starts so far: questions of parties that started."""
        self._questions: dict[bytes, tuple[Fresh, ...]] = {}
        """The questions that went out as one message, by its hash."""
        self._last_asked: tuple[Fresh, ...] = ()
        """The questions of the last such message."""
        self._confirmations: dict[Fresh, dict[int, Confirmation]] = {}
        """The answers to each question, by the party that answered."""
        self.heard_from: set[int] = set()
        """Parties that have answered anything since the open position waits."""
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
        """Return for how many seconds the open position has waited."""
        return self._clock() - self._since

    @property
    def is_paused(self) -> bool:
        """True if the run waits for longer than a deadline, or for several at the same round.

        Parts of a round that are asked for again and again have a deadline each time.
        """
        deadline = self.contract.terms.deadline
        stands_for = self._clock() - self._advanced
        return self.waits_since() > deadline or stands_for > DEADLINES * deadline

    def wait_anew(self) -> None:
        """Give the parties that the open position waits for another deadline."""
        self._since = self._clock()
        self.heard_from.clear()

    def names(self, parties: set[int]) -> list[str]:
        """Return the names of parties, in the order of their numbers."""
        return [self.contract.parties[number].name for number in sorted(parties)]

    def move(self, position: Position, *, again: bool = False) -> None:
        """Open a position, and wait for it from now on; `again` if its round was open before."""
        self.open_position = position
        if not again:
            self._advanced = self._clock()
        self.in_time[position] = set()
        self.wait_anew()

    def came(self, party: int, position: Position) -> None:
        """Note the position that a party answered: it is not late, and its start is confirmed."""
        self.answered[party] = position
        self.late.discard(party)
        self.fresh.pop(party, None)

    def asks(self, party: int, askers: set[int]) -> bytes | None:
        """Return the message with the questions of some parties to one; None if it answered all.

        Parties that the same ones ask get the same message, also if some have been answered since:
        all answers to one message go with it to those that asked.

        Parameters
        ----------
        party
            The party that is asked what it has of the others' releases.
        askers
            The parties that started and need its word.
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
        """Take a party's question after a start in place of its older one; drop old answers.

        No other party asks in its name.
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
        """Take a signed answer to a message with questions: it answers each of them."""
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
        """Return the answers of witnesses to a party that started, and the questions they answer.

        Answers of other parties are left out: a start is to cost no more than its links.
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
