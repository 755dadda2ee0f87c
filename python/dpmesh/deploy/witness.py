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
from typing import NamedTuple

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.row import PROCESS_BYTES, Place, Row, place_and_hash
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import digest
from dpmesh.deploy.steps import StoredStep
from dpmesh.deploy.wire import Ask

_log = logging.getLogger("dpmesh")


class _Version(NamedTuple):
    """A row as one party received it.

    Attributes
    ----------
    hash
        The row's hash, signature included.
    receiver
        The party.
    """

    hash: bytes
    receiver: int


class Witness:
    """Compares rows with those that came before, and with those that others signed to have mixed.

    It names parties in the log and in the outcome of a run. No answer of the node depends on it.

    Parameters
    ----------
    contract, folder, number
        Those of the node.
    """

    def __init__(self, contract: Contract, folder: Folder, number: int) -> None:
        self.contract = contract
        self.folder = folder
        self.number = number
        self.equivocating: set[str] = set()
        """Names of parties that signed two different rows of one position, both received here."""
        self.disputed: set[str] = set()
        """Names of parties whose rows differ between receivers: others signed that they mixed
        another row than this node received, or than each other."""

    def compare(self, ask: Ask, step: StoredStep) -> None:
        """Store rows that came after their step was computed, and compare them with those used.

        A router that asks again for a computed step may attach other rows. They change nothing of
        the answer. Each is stored if it is its party's latest, so that the node can report it to
        that party after a start; a second version of a used row is evidence against its signer.
        """
        late = [message for message in ask.attached if message not in step.received]
        if not late:
            return
        used: dict[Place, Row] = {}
        for message in step.received:
            row = Row.read(message, self.contract, stored=True)
            used[row.place] = row
        for message in late:
            with suppress(ValueError):  # signatures and confirmations, or no signed row
                row = Row.read(message, self.contract)
                with self.folder.transaction():
                    self.folder.store_received_row(self.contract, row, message)
                version = used.get(row.place)
                if version is not None and (version.codes, version.mixed) != (row.codes, row.mixed):
                    self._note_equivocation(row.party)

    def hear(self, messages: tuple[bytes, ...]) -> None:
        """Store rows within the transaction that charges a step, each if it is its party's latest.

        Parties that start anew are told of them.
        """
        for message in messages:
            row = Row.read(message, self.contract, stored=True)
            self.folder.store_received_row(self.contract, row, message)

    def compare_mixed(self, messages: tuple[bytes, ...], last: StoredStep | None) -> None:
        """Compare the versions of rows that others signed to have mixed with this node's, and them.

        Parameters
        ----------
        messages
            The checked rows of the next step.
        last
            The step before it.
        """
        rows = [Row.read(message, self.contract, stored=True) for message in messages]
        versions = self._versions_here(rows, messages, last)
        for row in rows:
            for place, row_hash in row.mixes(self.contract).items():
                version = _Version(row_hash, row.party)
                first = versions.setdefault(place, version)
                if first.hash != version.hash:
                    self._note_dispute(place, version.receiver, first.receiver)

    def _versions_here(
        self, rows: list[Row], messages: tuple[bytes, ...], last: StoredStep | None
    ) -> dict[Place, _Version]:
        """Return this node's versions of the rows that others may have mixed.

        These are its own rows that they name, the rows of its last step, and those of the next one.
        """
        received = (*(() if last is None else last.received), *messages)
        known = (*self._own_rows_named(rows), *received)
        places_and_hashes = (place_and_hash(self.contract, message) for message in known)
        return {place: _Version(row_hash, self.number) for place, row_hash in places_and_hashes}

    def _own_rows_named(self, rows: list[Row]) -> list[bytes]:
        """Return the rows of this node that others signed to have mixed, if it has sent them."""
        own_rows: list[bytes] = []
        for row in rows:
            for place in row.mixes(self.contract):
                if place.party != self.number:
                    continue
                step = self.folder.step(self.contract, place.position)
                if step is not None and step.answer is not None:
                    own_rows.append(step.answer)
        return own_rows

    def _note_dispute(self, place: Place, receiver: int, other_receiver: int) -> None:
        """Log once that two receivers have different rows of a party."""
        names = [party.name for party in self.contract.parties]
        signer = names[place.party]
        if signer in self.disputed:
            return
        self.disputed.add(signer)
        text = "%s and %s have different rows of %s in round %d: it signed both or its folder "
        text += "was restored, or one of the two lies"
        _log.warning(text, names[receiver], names[other_receiver], signer, place.position.round)

    def _note_equivocation(self, party: int) -> None:
        """Log once that a party signed two different rows of one position."""
        signer = self.contract.parties[party].name
        if signer in self.equivocating:
            return
        self.equivocating.add(signer)
        text = "%s signed two different rows of one position: it lies, or was restored"
        _log.warning(text, signer)


class Partners:
    """The partners of one node, and the numbers of their processes as they signed them.

    Parameters
    ----------
    schedule, node
        The run's schedule, and the node whose partners they are.
    rehearsal
        True if the numbers of processes are public and the same after each start.
    """

    def __init__(self, schedule: Schedule, node: int, *, rehearsal: bool) -> None:
        self._schedule = schedule
        self._node = node
        self._processes: dict[int, bytes] = {}
        """The number of each party's process, as it last signed it."""
        if rehearsal:
            for party in range(schedule.contract.nodes):
                self._processes[party] = digest(b"rehearsal", str(party).encode())[:PROCESS_BYTES]
        self.process = self._processes.get(node) or token_bytes(PROCESS_BYTES)
        """The number of this process, which no file holds."""

    def hear(self, party: int, processes: bytes) -> None:
        """Take over the number of a party's process from what it signed.

        Parameters
        ----------
        party
            The party.
        processes
            The number of its process, and perhaps of others'. Anything shorter than a number is
            ignored: it would move the numbers of others in a statement.
        """
        if len(processes) >= PROCESS_BYTES:
            self._processes[party] = processes[:PROCESS_BYTES]

    def statement(self, t: int) -> bytes:
        """Return the numbers that the node signs before round t: its own, and its partners'."""
        unknown = bytes(PROCESS_BYTES)
        partners = self._schedule.partners(t, self._node)
        numbers = (self._processes.get(partner, unknown) for partner in partners)
        return b"".join([self.process, *numbers])

    def counted(self, last_row: Row | None, rows: Iterable[Row]) -> dict[int, bytes]:
        """Return the number of each partner's process that counts in the next round.

        A partner counts if its row and the node's last one name the same number of its process, and
        the number of this one. Only then can both draw the same secret, in no other round again.

        Parameters
        ----------
        last_row
            The node's row before the round.
        rows
            The rows before the round that it received.
        """
        node_names: dict[int, bytes] = {}
        if last_row is not None:
            node_names = self._numbers_in(last_row)
        numbers: dict[int, bytes] = {}
        for row in rows:
            partner = row.party
            partner_names = self._numbers_in(row)
            number = partner_names.get(partner)
            agrees_on_partner = number is not None and number == node_names.get(partner)
            named_here = node_names.get(self._node)
            agrees_on_node = named_here == partner_names.get(self._node) == self.process
            if number is not None and agrees_on_partner and agrees_on_node:
                numbers[partner] = number
        return numbers

    def _numbers_in(self, row: Row) -> dict[int, bytes]:
        """Return the numbers of processes that a row names: its party's, and its partners'."""
        starts = range(0, len(row.processes), PROCESS_BYTES)
        numbers = [row.processes[start : start + PROCESS_BYTES] for start in starts]
        parties = (row.party, *self._schedule.partners(row.position.round + 1, row.party))
        return dict(zip(parties, numbers, strict=False))
