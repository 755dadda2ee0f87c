"""Routing of rows: to the nodes that mix them (gossip) or, by token, learn from them.

A position waits for the rows of its senders: all parties in gossip, the holder by token. It is over
once each sender has answered or is absent; then the next one opens, if a quorum is present. Each
party is asked for its rows one position after another, with the rows that it mixes attached. A late
party is also asked for the positions that it missed, but no other party gets these rows any more.

A party that restarted is asked for a row only after enough receivers of this row have reported that
they have no later row of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dpmesh._privacy_types import Released
from dpmesh.deploy.attendance import Attendance
from dpmesh.deploy.router_base import Routing
from dpmesh.deploy.row import ROW, Place, Row
from dpmesh.deploy.schedule import Confirmers
from dpmesh.deploy.wire import Position, RollbackQuestion, StepProgress


class _Start(NamedTuple):
    """A party's start, and the parties that can confirm it.

    Attributes
    ----------
    question
        The party's rollback question.
    confirmers
        The receivers of its next row, and the number of them that must report.
    """

    question: RollbackQuestion
    confirmers: Confirmers


class RowRouting(Routing):
    """The routing of runs in which nodes send rows.

    Parameters
    ----------
    router
        The router, as its base class.
    """

    def __init__(self, router: Attendance) -> None:
        self._router = router
        self._contract = router.contract
        self._schedule = router.schedule
        self.handlers = {ROW: self._take_row}
        self._rows: dict[Position, dict[int, bytes]] = {}
        """Signed rows that came in time, by position and party."""
        self._newest_release: dict[int, Place] = {}
        """By token: the place of the last release of each model, by the model's number."""
        self._withheld: dict[Position, set[int]] = {}
        """By position: parties that withheld their row, as their start could not be confirmed."""
        self._starts: dict[int, _Start] = {}
        """The last start of each party, by its number."""
        self._parties_by_confirmer: dict[int, set[int]] = {}
        """By party: the restarted parties that need its report."""
        self._indexed_starts = 0
        """Number of starts that `_parties_by_confirmer` covers."""
        self._refused_rows: defaultdict[int, set[Place]] = defaultdict(set)
        """By party: the places of rows that it refused as bad."""

    @property
    def ended(self) -> dict[int, bytes]:
        """The signed last message of each party whose run is over, by party."""
        return self._rows.get(self._schedule.end, {})

    @property
    def awaited(self) -> set[int]:
        """Senders that the open position waits for: neither answered, nor late or gone."""
        router = self._router
        position = router.open_position
        assert position is not None
        if position == self._schedule.end:
            senders = {*range(self._contract.nodes)}
        else:
            senders = {*self._schedule.senders(position)}
        withholding = self._withheld.get(position, set())
        return senders - router.in_time[position] - withholding - router.absent

    def start(self) -> None:
        """Open the first position."""
        self._router.open_at(self._schedule.after(None))
        self.advance()

    def check_progress(self, reached: StepProgress) -> None:
        """Accept any progress that a party states: it is not used."""

    def take_stored_totals(self, party: int, totals: tuple[bytes, ...]) -> None:
        """Ignore totals: rows are not added up."""

    def advance(self) -> None:
        """Open positions up to the first one that waits for a party, while a quorum is present."""
        router = self._router
        while (
            router.open_position not in (None, self._schedule.end)
            and not self.awaited
            and router.has_quorum
        ):
            router.open_at(self._schedule.after(router.open_position))

    def next_position(self, party: int) -> Position | None:
        """Return the position that a party is to answer next, if any.

        In gossip it is the one after its last answer, up to the open one. By token it is the open
        one, if the party holds the token or the run is over.
        """
        position = self._router.open_position
        assert position is not None
        last = self._router.last_answered[party]
        if last == self._schedule.end:
            return None
        if self._schedule.is_gossip:
            following = self._schedule.after(last)
            if following > position:
                return None
            return following
        is_due = position == self._schedule.end or party in self._schedule.senders(position)
        if is_due and last != position:
            return position
        return None

    def confirmers(self, party: int) -> Confirmers:
        """Return the parties that can confirm a party's start, and how many of them must.

        `Schedule.confirmers` says which: by gossip the receivers of its next row, after the one
        that it knows to have sent last, and by token all other parties.
        """
        question = self._router.unconfirmed[party]
        start = self._starts.get(party)
        if start is None or start.question != question:
            following = min(
                self._schedule.after(question.last_release.position), self._schedule.end
            )
            start = _Start(question, self._schedule.confirmers(following, party))
            self._starts[party] = start
        return start.confirmers

    def parties_to_confirm(self, party: int) -> set[int]:
        """Return the restarted parties that need the report of this one."""
        router = self._router
        if self._indexed_starts != router.starts:
            self._indexed_starts = router.starts
            self._parties_by_confirmer = {}
            for asker in router.unconfirmed:
                for confirmer in self.confirmers(asker).parties:
                    self._parties_by_confirmer.setdefault(confirmer, set()).add(asker)
        return self._parties_by_confirmer.get(party, set()) & router.unconfirmed.keys()

    def is_cut_off(self, party: int) -> bool:
        """Return True if too few parties are present to confirm a party's start.

        Such a party computes its step and withholds the row, whose receivers are absent anyway.
        """
        router = self._router
        if not self._schedule.is_gossip or not router.has_quorum or party not in router.unconfirmed:
            return False
        confirmers = self.confirmers(party)
        may_confirm = (router.all_parties - router.absent) | router.reporters(party)
        return len(confirmers.parties & may_confirm) < confirmers.needed

    def attachments(self, party: int) -> tuple[bytes, ...]:
        """Return the messages attached to a party's question.

        These are the signatures of all parties (with its first question), rollback reports (after a
        restart), and the rows that it mixes or learns from, without those that it refused.
        """
        router = self._router
        last = router.last_answered[party]
        signatures: Iterable[bytes] = ()
        if last is None:
            signatures = router.signatures.values()
        confirmers = set[int]()
        if party in router.unconfirmed:
            confirmers = self.confirmers(party).parties
        if self._schedule.is_gossip:
            places = self._places_to_mix(party, last)
        else:
            places = self._places_of_models(party, last)
        sound = places - self._refused_rows[party]
        rows = (self._rows[place.position][place.party] for place in sorted(sound))
        return (*signatures, *router.reports_for(party, confirmers), *rows)

    def _places_to_mix(self, party: int, last: Position | None) -> set[Place]:
        """Return the places of the rows that a party mixes after its last answer in gossip.

        They are those of its neighbours and partners that came in time. A party that was late
        mixes its own row alone.
        """
        if last is None:
            return set()
        in_time = self._router.in_time[last]
        if party not in in_time:
            return set()
        return {
            Place(last, sender) for sender in self._schedule.delivered_to(last, party) & in_time
        }

    def _places_of_models(self, party: int, last: Position | None) -> set[Place]:
        """Return the places of the newest models that a party lacks, by token."""
        places = {place for place in self._newest_release.values() if place.party != party}
        if last is None:
            return places
        return {place for place in places if last < place.position}

    def _take_row(self, _: int, answer: bytes) -> None:
        """Take a party's row, and open the next position if the open one is over.

        A row for another position than its party's next one is ignored.

        Raises
        ------
        ValueError
            If the message is no signed row, or no receiver would accept its values. It then does
            not count as an answer.
        """
        row = Row.read(answer, self._contract)
        router = self._router
        if (
            router.open_position is None
            or row.party in router.gone
            or row.position != self.next_position(row.party)
        ):
            return
        is_end = row.position == self._schedule.end
        is_withheld = row.is_withheld and self._schedule.is_gossip and not is_end
        values: Released | None = None
        if not is_end and not is_withheld:
            values = row.values(self._contract)
        router.note_answer(row.party, row.position)
        if row.position == router.open_position:
            if is_withheld:
                self._withheld.setdefault(row.position, set()).add(row.party)
            else:
                self._store_row(row.place, answer, values)
        self.advance()

    def _store_row(self, place: Place, message: bytes, values: Released | None) -> None:
        """Store a row of the open position for its receivers, and drop rows that no party needs."""
        self._router.in_time[place.position].add(place.party)
        self._rows.setdefault(place.position, {})[place.party] = message
        if values is not None and not self._schedule.is_gossip:
            models = np.flatnonzero(~np.isnan(values[:, 0])).tolist()
            self._newest_release |= dict.fromkeys(models, place)
        self._drop_used_rows()

    def _drop_used_rows(self) -> None:
        """Drop the rows that no party needs any more."""
        for position in self._used_positions():
            del self._rows[position], self._router.in_time[position]
            self._withheld.pop(position, None)

    def _used_positions(self) -> list[Position]:
        """Return the positions whose rows no party needs any more.

        In gossip, all parties that are not gone have answered a later position. By token, each
        model of the position was released again, and it is not the open one.
        """
        router = self._router
        if not self._schedule.is_gossip:
            used = {place.position for place in self._newest_release.values()} | {
                router.open_position
            }
            return [position for position in self._rows if position not in used]
        answered = [
            last for party, last in router.last_answered.items() if party not in router.gone
        ]
        return [
            position
            for position in self._rows
            if all(last is not None and position < last for last in answered)
        ]

    def take_refusal(self, party: int, reason: str) -> None:
        """Go on after a party refused a bad row or, by token, a turn that is over for it.

        A party does not get a row again that it refused as bad. By token it refuses a turn before
        its last one, which a restarted router asks for; this turn is then not waited for.
        """
        router = self._router
        is_over = reason == "not the next round" and not self._schedule.is_gossip
        if is_over and router.open_position is not None:
            router.in_time[router.open_position].add(party)
        for sender, signer in enumerate(self._contract.parties):
            if reason == f"bad row of {signer.name}":
                self._refused_rows[party] |= {Place(position, sender) for position in self._rows}
