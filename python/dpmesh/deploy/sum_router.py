"""The router of a contract whose parties add up sums: it adds parts, and sees none of them.

A position is a round and an attempt at its sums: one for all, or one for each party over its
neighbours. All who are there take part in an attempt; once all of them have answered, their parts
add up to totals, which go out with the next headers. If one of them is late, those who are left
begin another attempt of a sum for all; sums over neighbours wait for it. Nothing is kept on disk: a
router that is started anew asks from the first attempt on, and parties answer from their tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.router import Router
from dpmesh.deploy.signing import digest, pack, unpack
from dpmesh.deploy.sums import DEAL, DEALT, PARTS, SEAL, Header, Part, Seal, Total, added
from dpmesh.deploy.wire import Position, read_numbers
from dpmesh.privacy.secure import SecureSum


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
        self._parts: dict[int, list[Part]] = {}
        self._refused: set[int] = set()
        """Who takes no part in the open attempt."""
        self._doubted: set[int] = set()
        """Who refuses the last total."""
        self._for_all = isinstance(contract.sums, SecureSum)
        self._totals: list[list[Total]] = []
        """Of each round: one, or one for each party."""
        self._transcripts = [contract.hash] * contract.nodes
        """Of sums over neighbours, what each party's are."""
        self._takes |= {PARTS: self._take_parts, DEALT: self._take_dealt, SEAL: self._take_seal}

    @property
    def ended(self) -> bytes:
        """The words of all that ended, as a `Router` has their last messages."""
        return pack(*self.seals.values())

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
        if lacking := self._lacking:
            return lacking - self._out
        return self._cohort - self._parts.keys() - self._refused - self._out

    @property
    def _lacking(self) -> set[int]:
        """Who has not dealt yet the secret that tags are made of."""
        dealers = {self._dealer} if self._for_all else {*range(self.contract.nodes)}
        return dealers - self._deals.keys()

    def _question(self, party: int) -> bytes | None:
        if self._at is None or not (lacking := self._lacking):
            return super()._question(party)
        signed = (each for other, each in self._signatures.items() if other != party)
        return pack(DEAL, self.contract.hash, *signed) if party in lacking else None

    def _open(self, at: Position) -> None:
        """Open a position for all who are there."""
        self._at, self._since, self._in_time = at, self._clock(), {at: set()}
        self._parts, self._refused, self._doubted = {}, set(), set()
        self._cohort = {*range(self.contract.nodes)} - self._out
        if not self._deals:
            self._dealer = min(self._cohort)
        self._settle()

    def _settle(self) -> None:
        """Begin the next sum once one is whole or all have signed; else try again without it."""
        if self._at is None or self._at == self.schedule.end or self._waited:
            return
        if self._ends:
            self._open(self.schedule.end)
        elif self._lacking or not (whole := self._whole()):
            if self._enough:
                self._open(self.schedule.after(self._at))
        else:
            self._take_totals(whole)
            self._open(Position(self._at.round + 1))

    def _whole(self) -> list[list[Part]]:
        """Return the parts of all who agreed to make each sum; nothing if one is missing."""
        groups: dict[tuple[Header, bytes], dict[int, Part]] = {}
        for party, parts in sorted(self._parts.items()):
            for part in parts:
                groups.setdefault((part.header, part.agreement), {})[party] = part
        whole = {
            header.dealer: [*parts.values()]
            for (header, _), parts in groups.items()
            if (*parts,) == header.cohort
        }
        complete = len(whole) == len(self.contract.sums_at(0).receivers)
        return [parts for _, parts in sorted(whole.items())] if complete else []

    def _take_totals(self, whole: list[list[Part]]) -> None:
        """Add up the parts of each sum of a round."""
        totals = [Total(parts[0].header, *added(parts, self.contract)) for parts in whole]
        self._totals.append(totals)
        if self._for_all:
            self._dealer = totals[0].header.dealer  # another one, if this router was started anew
            return
        for receiver, (total, parts) in enumerate(zip(totals, whole, strict=True)):
            so_far = self._transcripts[receiver], parts[0].agreement, total.packed
            self._transcripts[receiver] = digest(*so_far)

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
        since = 0 if before is None else before.round
        own = (totals[0 if self._for_all else party] for totals in self._totals[since:])
        totals = (
            replace(total, header=self._sealed(total.header, party)).as_bytes(contract)
            for total in own
        )
        if self._ends:
            return (*signed, *totals, *self.seals.values())
        headers = (
            self._sealed(header, party).as_bytes(contract) for header in self._headers(at, party)
        )
        return (*signed, *self._confirmation(party), *totals, *headers)

    def _headers(self, at: Position, party: int) -> list[Header]:
        """Return the header of each sum that a party is to add to."""
        receivers = self.contract.sums_at(0).receivers
        if self._for_all:
            return [Header(at, tuple(sorted(self._cohort)), self._dealer)]
        return [
            Header(at, tuple(sorted(some)), to, transcript=self._transcripts[to])
            for to, some in enumerate(receivers)
            if party in some
        ]

    def _sealed(self, header: Header, party: int) -> Header:
        return replace(header, sealed=self._deals[header.dealer][party])

    def _take_parts(self, party: int, answer: bytes) -> None:
        parts = [Part.read(each, self.contract) for each in unpack(answer)[1:]]
        if {part.header.at for part in parts} != {self._at} or self._next(party) is None:
            return
        self._answered[party] = self._at
        self._late.discard(party)
        self._fresh.pop(party, None)
        self._parts[party] = parts
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
                doubted = self._totals.pop()[0].header.at
                self._open(self.schedule.after(doubted))
        elif reason in ("not the next round", "bad cohort", "bad key"):
            self._refused.add(party)
            self._answered[party] = None  # it may need older totals
        super()._take_refusal(party, reason)


def router_of(contract: Contract, clock: Callable[[], float] = time.monotonic) -> Router:
    """Return the router of a contract: see `Router` for the parameters."""
    return (Router if contract.sums is None else SumRouter)(contract, clock)
