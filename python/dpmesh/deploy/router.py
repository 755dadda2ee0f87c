"""The router: it carries what nodes send each other, and is trusted with nothing else.

    router = Router(contract)
    while not router.done:
        for party, message in router.requests().items():    # by the party's number
            router.take(party, send(party, message))         # bytes out, bytes in
        if router.waits_since() > contract.terms.deadline:
            router.close()                                   # who is missing is left out

It keeps no secret and nothing on disk: one that is started anew asks from the first round on, and
nodes answer from their tables, the same bits. What it does with rows is in `router_rows`, and with
parts of sums in `router_sums`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from dpmesh.deploy.attendance import Attendance
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.router_rows import RowRouting
from dpmesh.deploy.router_sums import SumRouting
from dpmesh.deploy.row import HEARD
from dpmesh.deploy.signing import pack, unpack
from dpmesh.deploy.sums import DEAL
from dpmesh.deploy.wire import FRESH, HERE, SIGNED, Ask, Position, Signature, kind_of, refused, who

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
        routing = RowRouting if contract.sums is None else SumRouting
        self.travel: RowRouting | SumRouting = routing(self)
        """What it does with what nodes release."""
        self._takes: dict[bytes, Callable[[int, bytes], None]] = {
            HERE: self._take_here,
            FRESH: self.take_fresh,
            HEARD: self.take_heard,
            SIGNED: self._take_signature,
            **self.travel.takes,
        }
        """What takes an answer, by its kind."""

    @property
    def done(self) -> bool:
        """Whether the run is over for everybody who is not late."""
        return self.at == self.schedule.end and not self.waited

    @property
    def ended(self) -> bytes:
        """The last messages of all that ended, by which a node knows that it is left out."""
        return pack(*self.travel.ended.values())

    @property
    def waits_for(self) -> list[str]:
        """Names of the parties for which the open position waits: below the quorum, all missing.

        Those that do not say what they have of a party that started are among them.
        """
        waited = self.waited or (set() if self.enough else self.out)
        return self.names(waited | {other for party in waited for other in self._silent(party)})

    @property
    def missing(self) -> list[str]:
        """Names of the parties that are late or gone."""
        return self.names(self.out)

    def requests(self) -> dict[int, bytes]:
        """Return what to ask each party now, by its number; asking twice does no harm."""
        asked = {party: self.request(party) for party in range(self.contract.nodes)}
        return {party: message for party, message in asked.items() if message is not None}

    def request(self, party: int) -> bytes | None:
        """Return what to ask one party now; None if nothing."""
        message = None if party in self.gone else self._question(party)
        self.bytes += 0 if message is None else len(message)
        return message

    def _question(self, party: int) -> bytes | None:
        """Return the next question; those of others that started only if the run has none."""
        if self.at is None:
            return None if party in self.signatures else who(self.contract)
        if lacking := self.travel.lacking:
            signed = (each for other, each in self.signatures.items() if other != party)
            return pack(DEAL, self.contract.hash, *signed) if party in lacking else None
        at = self.travel.next(party)
        if self._confirmed(party, at or self.at):
            if at is not None:
                return Ask(at, self.travel.attached(party)).as_bytes(self.contract)
            if party in self.late:
                return who(self.contract)  # is it back?
        return self.asks(party)

    def take(self, party: int, answer: bytes) -> None:
        """Take an answer. Who signed it counts; `party` only says who refuses, or starts."""
        self.bytes += len(answer)
        if (reason := refused(answer)) is not None:
            self._take_refusal(party, reason)
        elif (take := self._takes.get(kind_of(answer))) is not None:
            with suppress(ValueError):
                take(party, answer)

    def _take_here(self, party: int, answer: bytes) -> None:
        _, signed, question = unpack(answer)
        self.take_fresh(party, question)
        self._take_signature(party, signed)

    def _take_signature(self, party: int, answer: bytes) -> None:
        signed = Signature.read(answer, self.contract)
        self.late.discard(signed.party)
        self.signatures[signed.party] = answer
        if self.at is None and len(self.signatures) == self.contract.nodes:
            self.travel.open(self.schedule.after(None))

    def close(self) -> bool:
        """End the wait for the open position, as its deadline has passed.

        Returns
        -------
        Whether the run goes on. It pauses below the quorum, and for signatures: see `waits_for`.
        """
        if self.at is None:
            return False
        if self.contract.nodes - len(self.out | self.waited) < self.contract.terms.quorum:
            return False
        for name in self.names(self.waited):
            _log.warning("%s is missing in round %d", name, self.at.round)
        self.late |= self.waited
        self.travel.settle()
        return True

    @property
    def waited(self) -> set[int]:
        """For whom the open position waits."""
        if self.at is None:
            return {*range(self.contract.nodes)} - self.signatures.keys()
        return self.travel.waited

    def _confirmed(self, party: int, at: Position) -> bool:
        """Whether enough of the others have said what they heard of a party since its start."""
        if party not in self.fresh:
            return True
        others, needed = self.travel.confirming(at, party)
        return len(others & self.answers(party).keys()) >= needed

    def _silent(self, party: int) -> set[int]:
        """Return those without whose word about its rows a party that started does not go on."""
        if party not in self.fresh or self.at is None:
            return set()
        at = self.travel.next(party) or self.at
        if self._confirmed(party, at):
            return set()
        return self.travel.confirming(at, party)[0] - self.answers(party).keys()

    def _take_refusal(self, party: int, reason: str) -> None:
        self.travel.refused(party, reason)
        _log.warning("%s refuses: %s", self.contract.parties[party].name, reason)
        if reason in GONE:
            self.gone[party] = reason
        elif reason == "not the next round" and not self.schedule.gossips and self.at is not None:
            self.in_time[self.at].add(party)  # before the router was restarted
        self.travel.settle()
