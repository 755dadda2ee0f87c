"""The router: it carries released rows between nodes, and is trusted with nothing else.

    router = Router(contract)
    while not router.done:
        for party, message in router.requests().items():    # by the party's number
            router.take(party, send(party, message))         # bytes out, bytes in
        if router.waits_since() > contract.terms.deadline:
            router.close()                                   # who is missing is left out

It keeps no secret and nothing on disk: one that is started anew asks from the first round on, and
nodes answer from their tables, the same bits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import digest, pack, unpack
from dpmesh.deploy.wire import (
    FRESH,
    HEARD,
    HERE,
    ROW,
    SIGNED,
    Ask,
    Fresh,
    Heard,
    Position,
    Row,
    Signature,
    kind_of,
    refused,
    who,
)

_log = logging.getLogger("dpmesh")

GONE = ("stopped", "restored", "another contract", "over budget")
"""Refusals after which a party is not asked again."""


class Router:
    """Carries the rows of a contract's run.

    Parameters
    ----------
    contract
        The contract.
    clock
        Returns seconds.
    """

    def __init__(self, contract: Contract, clock: Callable[[], float] = time.monotonic) -> None:
        self.contract, self.schedule, self._clock = contract, Schedule(contract), clock
        self.gone: dict[int, str] = {}
        """Why a party is not asked any more."""
        self.bytes = 0
        """Bytes of all questions and answers so far."""
        self._signatures: dict[int, bytes] = {}
        self._answered: dict[int, Position | None] = dict.fromkeys(range(contract.nodes))
        self._rows: dict[Position, dict[int, bytes]] = {}
        self._newest: dict[int, tuple[Position, int]] = {}
        """By token: where each model was released last, and by whom."""
        self._in_time: dict[Position, set[int]] = {}
        self._cut: set[tuple[Position, int, int]] = set()
        """Rows that a party refused: where, whose, and by whom."""
        self._late: set[int] = set()
        self._fresh: dict[int, Fresh] = {}
        """What nodes that started ask the others."""
        self._asked: dict[bytes, tuple[Fresh, ...]] = {}
        """The questions that went out together, by the hash of their message."""
        self._said: dict[bytes, dict[int, bytes]] = {}
        """The answers to them."""
        self._at: Position | None = None
        self._since = clock()
        self._takes: dict[bytes, Callable[[int, bytes], None]] = {
            ROW: self._take_row,
            HERE: self._take_here,
            FRESH: self._take_fresh,
            HEARD: self._take_heard,
            SIGNED: self._take_signature,
        }
        """What takes an answer, by its kind."""

    @property
    def at(self) -> Position | None:
        """The position that is open; None while the parties sign."""
        return self._at

    @property
    def done(self) -> bool:
        """Whether the run is over for everybody who is not late."""
        return self._at == self.schedule.end and not self._waited

    @property
    def ended(self) -> bytes:
        """The last messages of all that ended, by which a node knows that it is left out."""
        return pack(*self._rows.get(self.schedule.end, {}).values())

    @property
    def waits_for(self) -> list[str]:
        """Names of the parties for which the open position waits: below the quorum, all missing.

        Those that do not say what they have of a party that started are among them.
        """
        waited = self._waited or (set() if self._enough else self._out)
        return self._names(waited | {other for party in waited for other in self._silent(party)})

    @property
    def missing(self) -> list[str]:
        """Names of the parties that are late or gone."""
        return self._names(self._out)

    def waits_since(self) -> float:
        """Return for how many seconds the open position has waited."""
        return self._clock() - self._since

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
        if self._at is None:
            return None if party in self._signatures else who(self.contract)
        at = self._next(party)
        if self._confirmed(party, at or self._at):
            if at is not None:
                return Ask(at, self._attached(party)).as_bytes(self.contract)
            if party in self._late:
                return who(self.contract)  # is it back?
        asked = [each for number, each in self._fresh.items() if number not in self.gone]
        answered = (self._asked[each] for each, said in self._said.items() if party in said)
        if not {*asked}.difference(*answered, [self._fresh.get(party)]):
            return None
        message = Fresh.together(self.contract, asked)  # the same for all who are asked now
        self._asked[digest(message)] = tuple(asked)
        return message

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
        self._take_fresh(party, question)
        self._take_signature(party, signed)

    def _take_fresh(self, party: int, answer: bytes) -> None:
        (asked,) = Fresh.read(answer, self.contract)
        if asked.party == party:
            self._fresh[party] = asked
            current = {*self._fresh.values()}
            for old in [each for each, own in self._asked.items() if not current & {*own}]:
                self._said.pop(old, None)
                del self._asked[old]

    def _take_heard(self, party: int, answer: bytes) -> None:
        heard = Heard.read(answer, self.contract, self._asked)
        self._said.setdefault(heard.asked, {})[heard.by] = answer

    def _answers(self, party: int) -> dict[int, bytes]:
        """Return the answers to what a party that started asks, by who gave them."""
        own = self._fresh.get(party)
        lists = (said for asked, said in self._said.items() if own in self._asked[asked])
        return {by: answer for said in lists for by, answer in said.items()}

    def _confirmation(self, party: int) -> tuple[bytes, ...]:
        """Return these answers, and all questions that they answer."""
        own, said = self._fresh.get(party), self._answers(party)
        asked = (each for each in self._asked.values() if own in each)
        return (*(Fresh.together(self.contract, each) for each in asked), *said.values())

    def _take_signature(self, party: int, answer: bytes) -> None:
        signed = Signature.read(answer, self.contract)
        self._late.discard(signed.party)
        self._signatures[signed.party] = answer
        if self._at is None and len(self._signatures) == self.contract.nodes:
            self._open(self.schedule.after(None))

    def close(self) -> bool:
        """End the wait for the open position, as its deadline has passed.

        Returns
        -------
        Whether the run goes on. It pauses below the quorum, and for signatures: see `waits_for`.
        """
        if self._at is None:
            return False
        if self.contract.nodes - len(self._out | self._waited) < self.contract.terms.quorum:
            return False
        for name in self._names(self._waited):
            _log.warning("%s is missing in round %d", name, self._at.round)
        self._late |= self._waited
        self._settle()
        return True

    @property
    def _out(self) -> set[int]:
        return self._late | set(self.gone)

    @property
    def _enough(self) -> bool:
        return self.contract.nodes - len(self._out) >= self.contract.terms.quorum

    @property
    def _waited(self) -> set[int]:
        everybody = set(range(self.contract.nodes))
        if self._at is None:
            return everybody - set(self._signatures)
        due = everybody if self._at == self.schedule.end else set(self.schedule.senders(self._at))
        return due - self._in_time[self._at] - self._out

    def _names(self, parties: set[int]) -> list[str]:
        return [self.contract.parties[number].name for number in sorted(parties)]

    def _open(self, at: Position) -> None:
        self._at, self._since = at, self._clock()
        self._in_time[at] = set()
        self._settle()

    def _settle(self) -> None:
        """Advance to the first position that waits for somebody, if there is a quorum."""
        while self._at not in (None, self.schedule.end) and not self._waited and self._enough:
            self._at, self._since = self.schedule.after(self._at), self._clock()
            self._in_time[self._at] = set()

    def _next(self, party: int) -> Position | None:
        """Return the position that a party is to answer next, if any."""
        assert self._at is not None
        before, end = self._answered[party], self.schedule.end
        if before == end:
            return None
        if self.schedule.gossips:
            after = self.schedule.after(before)
            return after if after <= self._at else None
        holds = party in self.schedule.senders(self._at) or self._at == end
        return self._at if holds and before != self._at else None

    def _confirmed(self, party: int, at: Position) -> bool:
        """Whether enough of the others have said what they heard of a party since its start."""
        if party not in self._fresh:
            return True
        others, needed = self._confirming(at, party)
        return len(others & self._answers(party).keys()) >= needed

    def _confirming(self, at: Position, party: int) -> tuple[set[int], int]:
        """Return who must say what it has of a party that started, and how many of them."""
        return self.schedule.confirming(at, party)

    def _silent(self, party: int) -> set[int]:
        """Return those without whose word about its rows a party that started does not go on."""
        if party not in self._fresh or self._at is None:
            return set()
        at = self._next(party) or self._at
        if self._confirmed(party, at):
            return set()
        return self._confirming(at, party)[0] - self._answers(party).keys()

    def _attached(self, party: int) -> tuple[bytes, ...]:
        before = self._answered[party]
        signed = tuple(self._signatures.values()) if before is None else ()
        signed += self._confirmation(party)
        if self.schedule.gossips:
            heard = self._heard(party, before)
        else:
            heard = [(at, other) for at, other in self._newest.values() if other != party]
            heard = [place for place in heard if before is None or before < place[0]]
        rows = (self._rows[at][n] for at, n in sorted({*heard}) if (at, n, party) not in self._cut)
        return (*signed, *rows)

    def _heard(self, party: int, before: Position | None) -> list[tuple[Position, int]]:
        """Return the neighbours' rows of a position, if they and the party were in time."""
        if before is None or party not in self._in_time[before]:
            return []
        return [(before, n) for n in self.schedule.sent(before, party) & self._in_time[before]]

    def _take_row(self, _: int, answer: bytes) -> None:
        row = Row.read(answer, self.contract)
        party, at = row.party, row.at
        if self._at is None or party in self.gone or at != self._next(party):
            return
        values = None if at == self.schedule.end else row.values(self.contract)
        self._answered[party] = at
        self._late.discard(party)
        self._fresh.pop(party, None)
        if at == self._at:
            self._in_time[at].add(party)
            self._rows.setdefault(at, {})[party] = answer
            if values is not None and not self.schedule.gossips:
                released = np.flatnonzero(~np.isnan(values[:, 0])).tolist()
                self._newest |= dict.fromkeys(released, (at, party))
            self._forget()
        self._settle()

    def _forget(self) -> None:
        """Drop rows that nobody will be asked with."""
        if self.schedule.gossips:
            answered = [each for n, each in self._answered.items() if n not in self.gone]
            for at in [old for old in self._rows if all(each and old < each for each in answered)]:
                del self._rows[at], self._in_time[at]
        else:
            used = {at for at, _ in self._newest.values()}
            for at in [old for old in self._rows if old not in used and old != self._at]:
                del self._rows[at], self._in_time[at]

    def _take_refusal(self, party: int, reason: str) -> None:
        _log.warning("%s refuses: %s", self.contract.parties[party].name, reason)
        if reason in GONE:
            self.gone[party] = reason
        elif reason == "not the next round" and not self.schedule.gossips and self._at is not None:
            self._in_time[self._at].add(
                party
            )  # it missed this turn before the router was restarted
        for number, each in enumerate(self.contract.parties):
            if reason == f"bad row of {each.name}":
                self._cut |= {(at, number, party) for at in self._rows}
        self._settle()
