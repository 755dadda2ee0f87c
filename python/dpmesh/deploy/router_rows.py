"""Routing of rows: to the nodes that mix them or, with a token, build upon them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpmesh.deploy.attendance import Attendance
from dpmesh.deploy.row import ROW, Row
from dpmesh.deploy.wire import Fresh, Position, Reached


class _Confirming(NamedTuple):
    """Parties that may confirm a start, and the number of them that must.

    Attributes
    ----------
    question
        What the party that started asks.
    others, needed
        Those that its next row goes to, and how many of them must answer.
    """

    question: Fresh
    others: set[int]
    needed: int


class RowRouting:
    """The rows of a contract's run.

    Parameters
    ----------
    router
        The router that asks for them.
    """

    lacking = frozenset[int]()
    """Whose secret is needed before the first position: nobody's."""

    def __init__(self, router: Attendance) -> None:
        self._router, self._contract, self._schedule = router, router.contract, router.schedule
        self.takes: dict[bytes, Callable[[int, bytes], None]] = {ROW: self._take_row}
        self._rows: dict[Position, dict[int, bytes]] = {}
        self._newest: dict[int, tuple[Position, int]] = {}
        """By token: where each model was released last, and by whom."""
        self._withheld: dict[Position, set[int]] = {}
        """By position: parties that have computed their row and keep it, as nobody could confirm
        their start."""
        self._confirming: dict[int, _Confirming] = {}
        """Who must confirm the start of a party, by its number."""
        self._askers: dict[int, set[int]] = {}
        """Who needs the word of a party about its start, by that party's number."""
        self._indexed = 0
        """How many questions had come when this was written down."""
        self._cut: set[tuple[Position, int, int]] = set()
        """Rows that a party refused: where, whose, and by whom."""

    @property
    def ended(self) -> dict[int, bytes]:
        """The last message of each party that ended."""
        return self._rows.get(self._schedule.end, {})

    @property
    def waited(self) -> set[int]:
        """For whom the open position waits."""
        router, at = self._router, self._router.at
        assert at is not None
        everybody = range(self._contract.nodes)
        due = everybody if at == self._schedule.end else self._schedule.senders(at)
        answered = router.in_time[at] | self._withheld.get(at, set())
        return {*due} - answered - router.out

    def start(self) -> None:
        """Open the first position."""
        self._router.move(self._schedule.after(None))
        self.settle()

    def question_between(self, party: int) -> bytes | None:
        """Return what to ask a party between two positions: nothing."""
        return None

    def check_reached(self, reached: Reached) -> None:
        """Accept how far a party got: rows are asked for from the first position on."""

    def recall(self, party: int, totals: tuple[bytes, ...]) -> None:
        """Drop totals: rows are not added up."""

    def holding_up(self, party: int) -> set[int]:
        """Return who holds up a party, but for words about its start: nobody."""
        return set()

    def give_up(self) -> bool:
        """Do not end the run early: each party has the model of its own rounds."""
        return False

    def settle(self) -> None:
        """Advance to the first position that waits for somebody, if there is a quorum."""
        router, end = self._router, self._schedule.end
        while router.at not in (None, end) and not self.waited and router.enough:
            router.move(self._schedule.after(router.at))

    def next(self, party: int) -> Position | None:
        """Return the position that a party is to answer next, if any."""
        at, before, end = self._router.at, self._router.answered[party], self._schedule.end
        assert at is not None
        if before == end:
            return None
        if self._schedule.gossips:
            after = self._schedule.after(before)
            return after if after <= at else None
        holds = party in self._schedule.senders(at) or at == end
        return at if holds and before != at else None

    def confirming(self, party: int) -> tuple[set[int], int]:
        """Return who must say what it has of a party that started, and how many of them.

        They are those that its next row goes to, after the one that it knows to have sent last.
        """
        question = self._router.fresh[party]
        known = self._confirming.get(party)
        if known is None or known.question != question:
            at = min(self._schedule.after(question.last.at), self._schedule.end)
            known = _Confirming(question, *self._schedule.confirming(at, party))
            self._confirming[party] = known
        return known.others, known.needed

    def askers(self, party: int) -> set[int]:
        """Return the parties that started and need the word of this one."""
        router = self._router
        if self._indexed != router.starts:
            self._indexed, self._askers = router.starts, {}
            for asker in router.fresh:
                for other in self.confirming(asker)[0]:
                    self._askers.setdefault(other, set()).add(asker)
        return self._askers.get(party, set()) & router.fresh.keys()

    def is_cut_off(self, party: int) -> bool:
        """Return True if too few parties are left to confirm a party's start.

        Such a party computes its step and keeps the row: those whom it would go to are not there.
        """
        router = self._router
        if not self._schedule.gossips or not router.enough or party not in router.fresh:
            return False
        others, needed = self.confirming(party)
        may_confirm = (router.everybody - router.out) | router.answers(party)
        return len(others & may_confirm) < needed

    def attached(self, party: int) -> tuple[bytes, ...]:
        """Return what goes with a party's question: signatures, confirmations, rows."""
        router, before = self._router, self._router.answered[party]
        signed = tuple(router.signatures.values()) if before is None else ()
        if self._schedule.gossips:
            heard = self._heard(party, before)
        else:
            heard = [(at, other) for at, other in self._newest.values() if other != party]
            heard = [place for place in heard if before is None or before < place[0]]
        rows = (self._rows[at][n] for at, n in sorted({*heard}) if (at, n, party) not in self._cut)
        confirming = self.confirming(party)[0] if party in router.fresh else set()
        return (*signed, *router.confirmation(party, confirming), *rows)

    def _heard(self, party: int, before: Position | None) -> list[tuple[Position, int]]:
        """Return the neighbours' rows of a position, if they and the party were in time."""
        if before is None:
            return []
        in_time = self._router.in_time[before]
        if party not in in_time:
            return []
        return [(before, n) for n in self._schedule.sent(before, party) & in_time]

    def _take_row(self, _: int, answer: bytes) -> None:
        row, router = Row.read(answer, self._contract), self._router
        party, at = row.party, row.at
        if router.at is None or party in router.gone or at != self.next(party):
            return
        is_withheld = row.is_withheld and self._schedule.gossips and at != self._schedule.end
        has_values = at != self._schedule.end and not is_withheld
        values = row.values(self._contract) if has_values else None
        router.came(party, at)
        if at == router.at and is_withheld:
            self._withheld.setdefault(at, set()).add(party)
        elif at == router.at:
            router.in_time[at].add(party)
            self._rows.setdefault(at, {})[party] = answer
            if values is not None and not self._schedule.gossips:
                released = np.flatnonzero(~np.isnan(values[:, 0])).tolist()
                self._newest |= dict.fromkeys(released, (at, party))
            self._forget()
        self.settle()

    def _forget(self) -> None:
        """Drop rows that nobody will be asked with."""
        router = self._router
        if self._schedule.gossips:
            answered = [each for n, each in router.answered.items() if n not in router.gone]
            old = [at for at in self._rows if all(each and at < each for each in answered)]
        else:
            used = {at for at, _ in self._newest.values()} | {router.at}
            old = [at for at in self._rows if at not in used]
        for at in old:
            del self._rows[at], router.in_time[at]
            self._withheld.pop(at, None)

    def refused(self, party: int, reason: str) -> None:
        """Bring a row that a party refuses to it no more."""
        for number, each in enumerate(self._contract.parties):
            if reason == f"bad row of {each.name}":
                self._cut |= {(at, number, party) for at in self._rows}
