"""What a router does with parts of sums: it adds them up, and sees none of them.

A position is a round and an attempt at its sums: one for all, or one for each party over its
neighbours. All who are there take part in an attempt; once all of them have answered, their parts
add up to totals, which go out with the next headers. If one of them is late, those who are left
begin another attempt of a sum for all; sums over neighbours wait for it. Nothing is kept on disk: a
router that is started anew asks from the first attempt on, and parties answer from their tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dpmesh.deploy.attendance import Attendance
from dpmesh.deploy.signing import digest, unpack
from dpmesh.deploy.sums import DEALT, PARTS, SEAL, Header, Part, Seal, Total, added
from dpmesh.deploy.wire import Position, read_numbers


class SumRouting:
    """The sums of a contract's run.

    Parameters
    ----------
    router
        The router that asks for their parts.
    """

    def __init__(self, router: Attendance) -> None:
        self._router, self._contract, self._end = router, router.contract, router.schedule.end
        self.takes: dict[bytes, Callable[[int, bytes], None]] = {
            PARTS: self._take_parts,
            DEALT: self._take_dealt,
            SEAL: self._take_seal,
        }
        self.ended: dict[int, bytes] = {}
        """What each party signed at the end."""
        self._everybody = frozenset(range(router.contract.nodes))
        self._deals: dict[int, list[bytes]] = {}
        """Secrets for tags, by who dealt them, sealed for each party."""
        self._dealer = 0
        self._cohort: set[int] = set()
        self._parts: dict[int, list[Part]] = {}
        self._refused: set[int] = set()
        """Who takes no part in the open attempt."""
        self._doubted: set[int] = set()
        """Who refuses the last total."""
        self._for_all = router.contract.has_one_model
        self._totals: list[list[Total]] = []
        """Of each round: one, or one for each party."""
        self._transcripts = [router.contract.hash] * router.contract.nodes
        """Of sums over neighbours, what each party's are."""

    @property
    def _ends(self) -> bool:
        """Whether all rounds are over."""
        return self._router.at is not None and self._router.at.round == self._end.round

    @property
    def waited(self) -> set[int]:
        """For whom the open position waits."""
        router, at = self._router, self._router.at
        assert at is not None
        if self._ends:
            return {*self._everybody - router.in_time[at] - router.out}
        if lacking := self.lacking:
            return lacking - router.out
        return self._cohort - self._parts.keys() - self._refused - router.out

    @property
    def lacking(self) -> set[int]:
        """Who has not dealt yet the secret that tags are made of."""
        return ({self._dealer} if self._for_all else {*self._everybody}) - self._deals.keys()

    def open(self, at: Position) -> None:
        """Open a position for all who are there."""
        router = self._router
        router.in_time.clear()
        router.move(at)
        self._parts, self._refused, self._doubted = {}, set(), set()
        self._cohort = {*self._everybody - router.out}
        if not self._deals:
            self._dealer = min(self._cohort)
        self.settle()

    def settle(self) -> None:
        """Begin the next sum once one is whole or all have signed; else try again without it."""
        router = self._router
        if router.at in (None, self._end) or self.waited:
            return
        if self._ends:
            self.open(self._end)
        elif self.lacking or not (whole := self._whole()):
            if router.enough:
                self.open(router.schedule.after(router.at))
        else:
            self._take_totals(whole)
            self.open(Position(router.at.round + 1))

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
        complete = len(whole) == len(self._contract.planned.sums_at(0).receivers)
        return [parts for _, parts in sorted(whole.items())] if complete else []

    def _take_totals(self, whole: list[list[Part]]) -> None:
        """Add up the parts of each sum of a round."""
        totals = [Total(parts[0].header, *added(parts, self._contract)) for parts in whole]
        self._totals.append(totals)
        if self._for_all:
            self._dealer = totals[0].header.dealer  # another one, if this router was started anew
            return
        for receiver, (total, parts) in enumerate(zip(totals, whole, strict=True)):
            so_far = self._transcripts[receiver], parts[0].agreement, total.packed
            self._transcripts[receiver] = digest(*so_far)

    def next(self, party: int) -> Position | None:
        """Return the position that a party is to answer next, if any."""
        at = self._router.at
        assert at is not None
        asked = party in self.waited or (self._ends and party not in self._router.in_time[at])
        return at if asked else None

    def confirming(self, at: Position, party: int) -> tuple[set[int], int]:
        """Return who must say how far a party that started got, and how many of them."""
        others = self._cohort - self._router.out - {party}
        return others, len(others)

    def attached(self, party: int) -> tuple[bytes, ...]:
        """Return what goes with a party's question: signatures, totals that it misses, headers."""
        router, contract = self._router, self._contract
        before, at = router.answered[party], router.at
        assert at is not None
        signed = tuple(router.signatures.values()) if before is None else ()
        since = 0 if before is None else before.round
        own = (totals[0 if self._for_all else party] for totals in self._totals[since:])
        read = (replace(each, header=self._sealed(each.header, party)) for each in own)
        totals = (total.as_bytes(contract) for total in read)
        if self._ends:
            return (*signed, *totals, *self.ended.values())
        sealed = (self._sealed(header, party) for header in self._headers(at, party))
        headers = (header.as_bytes(contract) for header in sealed)
        return (*signed, *router.confirmation(party), *totals, *headers)

    def _headers(self, at: Position, party: int) -> list[Header]:
        """Return the header of each sum that a party is to add to."""
        receivers = self._contract.planned.sums_at(0).receivers
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
        parts = [Part.read(each, self._contract) for each in unpack(answer)[1:]]
        at = self._router.at
        if at is None or {part.header.at for part in parts} != {at} or self.next(party) is None:
            return
        self._router.came(party, at)
        self._parts[party] = parts
        self.settle()

    def _take_dealt(self, party: int, answer: bytes) -> None:
        _, _, number, *sealed = unpack(answer)
        if read_numbers(number) == (party,) and len(sealed) == self._contract.nodes:
            self._deals[party] = sealed
            self.settle()

    def _take_seal(self, party: int, answer: bytes) -> None:
        seal, at = Seal.read(answer, self._contract), self._router.at
        if at is not None and self._ends and seal[:2] == (at, party):
            self.ended[party] = answer
            self._router.came(party, at)
            self._router.in_time[at].add(party)
            self.settle()

    def refused(self, party: int, reason: str) -> None:
        """Begin another attempt if nobody takes a total, or without who takes no part in it."""
        if reason == "bad total" and self._totals:
            self._doubted.add(party)
            if self._doubted >= self._cohort - self._router.out:  # nobody takes it
                doubted = self._totals.pop()[0].header.at
                self.open(self._router.schedule.after(doubted))
        elif reason in ("not the next round", "bad cohort", "bad key"):
            self._refused.add(party)
            self._router.answered[party] = None  # it may need older totals
