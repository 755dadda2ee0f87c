"""Who is there in a contract's run, what each party answered last, and who has started anew."""

from __future__ import annotations

from collections.abc import Callable

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.row import Heard
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import digest
from dpmesh.deploy.wire import Fresh, Position


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
        self.gone: dict[int, str] = {}
        """Why a party is not asked any more."""
        self.signatures: dict[int, bytes] = {}
        self.answered: dict[int, Position | None] = dict.fromkeys(range(contract.nodes))
        """What each party answered last."""
        self.in_time: dict[Position, set[int]] = {}
        """Who answered at a position while it was open."""
        self.late: set[int] = set()
        self.fresh: dict[int, Fresh] = {}
        """What nodes that started ask the others."""
        self._asked: dict[bytes, tuple[Fresh, ...]] = {}
        """The questions that went out together, by the hash of their message."""
        self._said: dict[bytes, dict[int, bytes]] = {}
        """The answers to them."""
        self.at: Position | None = None
        """The position that is open; None while the parties sign."""
        self._since = clock()

    @property
    def out(self) -> set[int]:
        """Who is late or gone."""
        return self.late | set(self.gone)

    @property
    def enough(self) -> bool:
        """Whether a quorum is left."""
        return self.contract.nodes - len(self.out) >= self.contract.terms.quorum

    def waits_since(self) -> float:
        """Return for how many seconds the open position has waited."""
        return self._clock() - self._since

    def names(self, parties: set[int]) -> list[str]:
        """Return the names of parties, in the order of their numbers."""
        return [self.contract.parties[number].name for number in sorted(parties)]

    def move(self, at: Position) -> None:
        """Open a position, and wait for it from now on."""
        self.at, self._since = at, self._clock()
        self.in_time[at] = set()

    def came(self, party: int, at: Position) -> None:
        """Note what a party has answered: it is not late, and has started for good."""
        self.answered[party] = at
        self.late.discard(party)
        self.fresh.pop(party, None)

    def asks(self, party: int) -> bytes | None:
        """Return what others that started ask a party; None if it has answered that."""
        asked = [each for number, each in self.fresh.items() if number not in self.gone]
        answered = (self._asked[each] for each, said in self._said.items() if party in said)
        if not {*asked}.difference(*answered, [self.fresh.get(party)]):
            return None
        message = Fresh.together(self.contract, asked)  # the same for all who are asked now
        self._asked[digest(message)] = tuple(asked)
        return message

    def take_fresh(self, party: int, answer: bytes) -> None:
        """Take the question of a party that started."""
        (asked,) = Fresh.read(answer, self.contract)
        if asked.party == party:
            self.fresh[party] = asked
            current = {*self.fresh.values()}
            for old in [each for each, own in self._asked.items() if not current & {*own}]:
                self._said.pop(old, None)
                del self._asked[old]

    def take_heard(self, _: int, answer: bytes) -> None:
        """Take an answer to such questions."""
        heard = Heard.read(answer, self.contract, self._asked)
        self._said.setdefault(heard.asked, {})[heard.by] = answer

    def answers(self, party: int) -> dict[int, bytes]:
        """Return the answers to what a party that started asks, by who gave them."""
        own = self.fresh.get(party)
        lists = (said for asked, said in self._said.items() if own in self._asked[asked])
        return {by: answer for said in lists for by, answer in said.items()}

    def confirmation(self, party: int) -> tuple[bytes, ...]:
        """Return these answers, and all questions that they answer."""
        own, said = self.fresh.get(party), self.answers(party)
        asked = (each for each in self._asked.values() if own in each)
        return (*(Fresh.together(self.contract, each) for each in asked), *said.values())
