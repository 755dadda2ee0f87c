"""Evidence of a node about other parties by their rows: liars, and partners in shared secrets.

A process draws a number at its start and keeps it in memory alone. With each row it signs its own
number, and those of its partners in the next round as it has them. Two partners share a secret in a
round if the rows before it, that each has of both, name both numbers alike, and it still has its
own. The secret's key is of the contract, the round and the two numbers: after a restart, or in a
folder that was restored, no secret is used again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from secrets import token_bytes

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.row import PROCESS_BYTES, Row, place_and_hash
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import digest
from dpmesh.deploy.steps import Stored
from dpmesh.deploy.wire import Ask, Position

_log = logging.getLogger("dpmesh")


class Witness:
    """Compares rows with those that came before, and with what others say that they mixed.

    Parameters
    ----------
    contract, folder, number
        Those of the node.
    """

    def __init__(self, contract: Contract, folder: Folder, number: int) -> None:
        self.contract, self.folder, self.number = contract, folder, number
        self.equivocating: set[str] = set()
        """Names of parties of which two different rows of one position were seen, both signed."""
        self.disputed: set[str] = set()
        """Names of parties of whose rows others say that they mixed another than this node, or
        than each other."""

    def compare(self, ask: Ask, step: Stored) -> None:
        """Note rows that came too late, and who signed two different ones of one position."""
        kept: dict[tuple[Position, int], Row] = {}
        others = [message for message in ask.attached if message not in step.rows]
        for message in step.rows if others else ():
            row = Row.read(message, self.contract, stored=True)
            kept[row.at, row.party] = row
        for message in others:
            with suppress(ValueError):
                row = Row.read(message, self.contract)
                with self.folder.transaction():
                    self.folder.hear(self.contract, row, message)
                same = kept.get((row.at, row.party))
                if same is not None and (same.codes, same.mixed) != (row.codes, row.mixed):
                    self._equivocates(row.party)

    def hear(self, messages: tuple[bytes, ...]) -> None:
        """Store rows within a transaction, each if it is the latest of its party's."""
        for message in messages:
            row = Row.read(message, self.contract, stored=True)
            self.folder.hear(self.contract, row, message)

    def compare_mixed(self, messages: tuple[bytes, ...], last: Stored | None) -> None:
        """Note rows of which others say that they mixed another than this node, or each other."""
        contract, folder = self.contract, self.folder
        names = [party.name for party in contract.parties]
        rows = [Row.read(message, contract, stored=True) for message in messages]
        said = [(*each, names[row.party]) for row in rows for each in row.mixes(contract).items()]
        own = (folder.step(contract, at) for (at, party), *_ in said if party == self.number)
        sent = (step.row for step in own if step is not None and step.row is not None)
        kept = (*sent, *(() if last is None else last.rows), *messages)
        hashes = (place_and_hash(contract, message) for message in kept)
        seen = {place: (hashed, names[self.number]) for place, hashed in hashes}
        for place, hashed, by in said:
            before, other = seen.setdefault(place, (hashed, by))
            if before != hashed:
                self._disputes(*place, by, other)

    def _disputes(self, at: Position, party: int, one: str, other: str) -> None:
        name = self.contract.parties[party].name
        if name not in self.disputed:
            self.disputed.add(name)
            text = "%s and %s have different rows of %s in round %d: it signed both or its folder "
            text += "was restored, or one of the two lies"
            _log.warning(text, one, other, name, at.round)

    def _equivocates(self, party: int) -> None:
        name = self.contract.parties[party].name
        if name not in self.equivocating:
            self.equivocating.add(name)
            text = "%s signed two different rows of one position: it lies, or was restored"
            _log.warning(text, name)


class Partners:
    """The partners of one node, by what they signed.

    Parameters
    ----------
    schedule, node
        Whose partners they are.
    rehearsal
        Whether the numbers of processes are known and the same after each start.
    """

    def __init__(self, schedule: Schedule, node: int, *, rehearsal: bool) -> None:
        self._schedule, self._node = schedule, node
        parties = range(schedule.contract.nodes) if rehearsal else ()
        self._known = {n: digest(b"rehearsal", str(n).encode())[:PROCESS_BYTES] for n in parties}
        self.process = self._known.get(node) or token_bytes(PROCESS_BYTES)

    def hear(self, party: int, said: bytes) -> None:
        """Take over what a party signed of itself, unless that is shorter than a number."""
        if len(said) >= PROCESS_BYTES:  # or it would move the numbers of others in a statement
            self._known[party] = said[:PROCESS_BYTES]

    def statement(self, t: int) -> bytes:
        """Return what the node signs before round t."""
        nobody, others = bytes(PROCESS_BYTES), self._schedule.partners(t, self._node)
        return b"".join([self.process, *(self._known.get(other, nobody) for other in others)])

    def counted(self, own: Row | None, rows: Iterable[Row]) -> dict[int, bytes]:
        """Return the number of each partner who counts, by the rows before a round."""
        mine, found = {} if own is None else self._numbers_in(own), dict[int, bytes]()
        for row in rows:
            theirs, node, other = self._numbers_in(row), self._node, row.party
            alike = mine.get(other) is not None and mine.get(other) == theirs.get(other)
            if alike and mine.get(node) == theirs.get(node) == self.process:
                found[other] = theirs[other]
        return found

    def _numbers_in(self, row: Row) -> dict[int, bytes]:
        """Return the numbers that a row names: its party's, and those of its partners."""
        starts = range(0, len(row.said), PROCESS_BYTES)
        numbers = [row.said[start : start + PROCESS_BYTES] for start in starts]
        parties = (row.party, *self._schedule.partners(row.at.round + 1, row.party))
        return dict(zip(parties, numbers, strict=False))
