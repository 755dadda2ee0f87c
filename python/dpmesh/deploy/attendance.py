"""Which parties of a run are present, how far each got, and which of them started anew."""

from __future__ import annotations

from collections.abc import Callable

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.row import Heard
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import digest
from dpmesh.deploy.wire import Fresh, Position, Reached


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
        self.contract, self.schedule, self._clock = contract, Schedule(contract), clock
        self.everybody = frozenset(range(contract.nodes))
        self.gone: dict[int, str] = {}
        """Why a party is not asked any more."""
        self.signatures: dict[int, bytes] = {}
        self.present: set[int] = set()
        """Parties that have answered this router."""
        self.reached: dict[int, Reached] = {}
        """How far parties had got when they answered this router first."""
        self.answered: dict[int, Position | None] = dict.fromkeys(self.everybody)
        """What each party answered last, to this router."""
        self.in_time: dict[Position, set[int]] = {}
        """Who answered at a position while it was open."""
        self.late: set[int] = set()
        """Parties that missed a deadline, and have not come back."""
        self.fresh: dict[int, Fresh] = {}
        """What nodes that started ask the others."""
        self._questions: dict[bytes, tuple[Fresh, ...]] = {}
        """The questions that went out together, by the hash of their message."""
        self._confirmations: dict[bytes, dict[int, bytes]] = {}
        """The answers to them, by who gave them."""
        self.heard_from: set[int] = set()
        """Parties that have answered anything since the open position waits."""
        self.at: Position | None = None
        """The position that is open; None while the parties sign."""
        self._since = clock()

    @property
    def out(self) -> set[int]:
        """Parties that are late or gone."""
        return self.late | set(self.gone)

    @property
    def enough(self) -> bool:
        """Whether a quorum is left."""
        return self.is_quorum(self.everybody - self.out)

    def is_quorum(self, parties: set[int] | frozenset[int]) -> bool:
        """Whether so many parties are a quorum."""
        return len(parties) >= self.contract.terms.quorum

    def waits_since(self) -> float:
        """Return for how many seconds the open position has waited."""
        return self._clock() - self._since

    def wait_anew(self) -> None:
        """Give the parties that the open position waits for another deadline."""
        self._since = self._clock()
        self.heard_from.clear()

    def names(self, parties: set[int]) -> list[str]:
        """Return the names of parties, in the order of their numbers."""
        return [self.contract.parties[number].name for number in sorted(parties)]

    def move(self, at: Position) -> None:
        """Open a position, and wait for it from now on."""
        self.at = at
        self.in_time[at] = set()
        self.wait_anew()

    def came(self, party: int, at: Position) -> None:
        """Note what a party has answered: it is not late, and its start is confirmed."""
        self.answered[party] = at
        self.late.discard(party)
        self.fresh.pop(party, None)

    def asks(self, party: int) -> bytes | None:
        """Return what others that started ask a party; None if it has answered that."""
        questions = [each for number, each in self.fresh.items() if number not in self.gone]
        answered = [
            self._questions[hashed]
            for hashed, confirmations in self._confirmations.items()
            if party in confirmations
        ]
        if not {*questions}.difference(*answered, [self.fresh.get(party)]):
            return None
        message = Fresh.together(self.contract, questions)  # the same for all who are asked now
        self._questions[digest(message)] = tuple(questions)
        return message

    def take_fresh(self, party: int, answer: bytes) -> None:
        """Take the question of a party that started."""
        (question,) = Fresh.read(answer, self.contract)
        if question.party != party:
            return
        self.fresh[party] = question
        open_questions = {*self.fresh.values()}
        outdated = [
            hashed
            for hashed, together in self._questions.items()
            if not open_questions & {*together}
        ]
        for hashed in outdated:
            self._confirmations.pop(hashed, None)
            del self._questions[hashed]

    def take_heard(self, _: int, answer: bytes) -> None:
        """Take an answer to such questions."""
        heard = Heard.read(answer, self.contract, self._questions)
        self._confirmations.setdefault(heard.asked, {})[heard.by] = answer

    def answers(self, party: int) -> dict[int, bytes]:
        """Return the answers to what a party that started asks, by who gave them."""
        question = self.fresh.get(party)
        found: dict[int, bytes] = {}
        for hashed, confirmations in self._confirmations.items():
            if question in self._questions[hashed]:
                found |= confirmations
        return found

    def confirmation(self, party: int) -> tuple[bytes, ...]:
        """Return these answers, and all questions that they answer."""
        question = self.fresh.get(party)
        questions = [
            Fresh.together(self.contract, together)
            for together in self._questions.values()
            if question in together
        ]
        return (*questions, *self.answers(party).values())
