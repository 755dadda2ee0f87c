"""The router of a contract whose parties add up sums: it adds parts, and sees none of them.

A position is a round and an attempt at its sum. All who are there take part in an attempt; once
all of them have answered, their parts add up to the total, which goes out with the next header. If
one of them is late, those who are left begin another attempt. Nothing is kept on disk: a router
that is started anew asks from the first attempt on, and parties answer from their tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.router import Router
from dpmesh.deploy.signing import pack, unpack
from dpmesh.deploy.sums import DEAL, DEALT, PART, SEAL, Header, Part, Seal, Total, added
from dpmesh.deploy.wire import Position, read_numbers


class SumRouter(Router):
    """Adds up the sums of a contract's run.

    Parameters
    ----------
    contract
        The contract.
    clock
        Returns seconds.
    """

    def __init__(self, contract: Contract, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(contract, clock)
        self.seals: dict[int, bytes] = {}
        """What each party signed at the end."""
        self._deals: dict[int, list[bytes]] = {}
        """Secrets for tags, by who dealt them, sealed for each party."""
        self._dealer = 0
        self._cohort: set[int] = set()
        self._parts: dict[int, Part] = {}
        self._refused: set[int] = set()
        """Who takes no part in the open attempt."""
        self._doubted: set[int] = set()
        """Who refuses the last total."""
        self._totals: list[Total] = []
        self._takes |= {PART: self._take_part, DEALT: self._take_dealt, SEAL: self._take_seal}

    @property
    def _ends(self) -> bool:
        """Whether all rounds are over."""
        return self._at is not None and self._at.round == self.schedule.end.round

    @property
    def _waited(self) -> set[int]:
        if self._at is None:
            return super()._waited
        if self._ends:
            return {*range(self.contract.nodes)} - self._in_time[self._at] - self._out
        if self._dealer not in self._deals:
            return {self._dealer} - self._out
        return self._cohort - self._parts.keys() - self._refused - self._out

    def _question(self, party: int) -> bytes | None:
        if self._at is None or self._dealer in self._deals:
            return super()._question(party)
        signed = (each for other, each in self._signatures.items() if other != party)
        return pack(DEAL, self.contract.hash, *signed) if party == self._dealer else None

    def _open(self, at: Position) -> None:
        """Open a position for all who are there."""
        self._at, self._since, self._in_time = at, self._clock(), {at: set()}
        self._parts, self._refused, self._doubted = {}, set(), set()
        self._cohort = {*range(self.contract.nodes)} - self._out
        if not self._deals:
            self._dealer = min(self._cohort)
        self._settle()

    def _settle(self) -> None:
        """Go on once a sum is whole, or everybody has signed; begin another attempt without it."""
        if self._at is None or self._at == self.schedule.end or self._waited:
            return
        if self._ends:
            self._open(self.schedule.end)
        elif self._dealer not in self._deals or not (whole := self._whole()):
            if self._enough:
                self._open(self.schedule.after(self._at))
        elif self._dealer in self._deals:
            self._totals.append(Total(whole[0].header, *added(whole, self.contract)))
            self._open(Position(self._at.round + 1))

    def _whole(self) -> list[Part]:
        """Return the parts of all who agreed to make a sum, if none is missing."""
        groups: dict[tuple[Header, bytes], dict[int, Part]] = {}
        for party, part in sorted(self._parts.items()):
            groups.setdefault((part.header, part.agreement), {})[party] = part
        for (header, _), parts in groups.items():
            if (*parts,) == header.cohort:
                self._dealer = header.dealer  # another one, if this router was started anew
                return [*parts.values()]
        return []

    def _next(self, party: int) -> Position | None:
        at = self._at
        assert at is not None
        asked = party in self._waited or (self._ends and party not in self._in_time[at])
        return at if asked else None

    def _confirming(self, at: Position, party: int) -> tuple[set[int], int]:
        others = self._cohort - self._out - {party}
        return others, len(others)

    def _attached(self, party: int) -> tuple[bytes, ...]:
        before, contract, at = self._answered[party], self.contract, self._at
        assert at is not None
        signed = tuple(self._signatures.values()) if before is None else ()
        said = tuple(self._fresh.get(party, (b"", {}))[1].values())
        since = 0 if before is None else before.round
        totals = (
            replace(total, header=self._sealed(total.header, party)).as_bytes(contract)
            for total in self._totals[since:]
        )
        if self._ends:
            return (*signed, *totals, *self.seals.values())
        header = Header(at, tuple(sorted(self._cohort)), self._dealer)
        return (*signed, *said, *totals, self._sealed(header, party).as_bytes(contract))

    def _sealed(self, header: Header, party: int) -> Header:
        return replace(header, sealed=self._deals[header.dealer][party])

    def _take_part(self, party: int, answer: bytes) -> None:
        part = Part.read(answer, self.contract)
        if part.header.at != self._at or self._next(party) is None:
            return
        self._answered[party] = part.header.at
        self._late.discard(party)
        self._fresh.pop(party, None)
        self._parts[party] = part
        self._settle()

    def _take_dealt(self, party: int, answer: bytes) -> None:
        _, _, number, *sealed = unpack(answer)
        if read_numbers(number) == (party,) and len(sealed) == self.contract.nodes:
            self._deals[party] = sealed
            self._settle()

    def _take_seal(self, party: int, answer: bytes) -> None:
        seal = Seal.read(answer, self.contract)
        if self._ends and seal[:2] == (self._at, party):
            assert self._at is not None
            self.seals[party] = answer
            self._answered[party] = self._at
            self._late.discard(party)
            self._in_time[self._at].add(party)
            self._settle()

    def _take_refusal(self, party: int, reason: str) -> None:
        if reason == "bad total" and self._totals:
            self._doubted.add(party)
            if self._doubted >= self._cohort - self._out:  # nobody takes it
                doubted = self._totals.pop().header.at
                self._open(self.schedule.after(doubted))
        elif reason in ("not the next round", "bad cohort", "bad key"):
            self._refused.add(party)
            self._answered[party] = None  # it may need older totals
        super()._take_refusal(party, reason)
