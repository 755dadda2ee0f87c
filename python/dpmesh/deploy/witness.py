"""Evidence about other parties from their signed rows: equivocation and disputes.

A party *equivocates* if it signs different rows of one position for different receivers. Each row
names the hashes of the rows that its party mixed, so a node can compare the rows that it received
with those that others received.

`dpmesh.deploy.node_rows` makes an `EquivocationWitness` for its node. It calls `check_mixed_rows`
and `store_rows` with the rows of each new question, and `check_late_rows` if a computed step is
asked for again. What it notes is in the log and in the outcome of the run.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import NamedTuple

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.row import Place, Row, place_and_hash
from dpmesh.deploy.steps import StoredStep
from dpmesh.deploy.wire import StepQuestion

_log = logging.getLogger("dpmesh")


class _Version(NamedTuple):
    """A row as one party received it.

    Attributes
    ----------
    hash
        SHA-256 of the row's message, signature included.
    receiver
        Number of the party that received it.
    """

    hash: bytes
    receiver: int


class EquivocationWitness:
    """Compares versions of each row: those that this node received, and those that others mixed.

    It names suspected parties in the log and in the outcome of a run, and stores rows for rollback
    reports. No other answer of the node depends on it.

    Parameters
    ----------
    contract, folder
        The contract, and the folder of the node.
    number
        Number of the node's party.
    """

    def __init__(self, contract: Contract, folder: Folder, number: int) -> None:
        self.contract = contract
        self.folder = folder
        self.number = number
        self.equivocating: set[str] = set()
        """Names of parties that signed two different rows for one position, both received here."""
        self.disputed: set[str] = set()
        """Names of parties whose row of one position differs between two receivers, by the hashes
        that receivers sign. The party signed both rows, or one of the receivers lies."""

    def check_late_rows(self, question: StepQuestion, step: StoredStep) -> None:
        """Compare rows that arrive after their step was computed with the rows that it used.

        A router that asks again for a computed step may attach other rows. They do not change the
        answer. A second version of a used row is evidence against its signer.

        A late row is stored if it is the latest one of its party. If that party restarts from an
        older copy of its folder, this node reports the row to it.

        Parameters
        ----------
        question
            The repeated question.
        step
            The computed step.
        """
        late = [message for message in question.attached if message not in step.received]
        if not late:
            return
        used: dict[Place, Row] = {}
        for message in step.received:
            row = Row.read(message, self.contract, stored=True)
            used[row.place] = row
        for message in late:
            with suppress(ValueError):  # signatures and reports are no rows
                row = Row.read(message, self.contract)
                with self.folder.transaction():
                    self.folder.store_received_row(self.contract, row, message)
                version = used.get(row.place)
                if version is not None and _differ(version, row):
                    self._note_equivocation(row.party)

    def store_rows(self, messages: tuple[bytes, ...]) -> None:
        """Store each row that is the latest one of its party, within the caller's transaction.

        If a party restarts, the node reports the stored row to it.
        """
        for message in messages:
            row = Row.read(message, self.contract, stored=True)
            self.folder.store_received_row(self.contract, row, message)

    def check_mixed_rows(self, messages: tuple[bytes, ...], last: StoredStep | None) -> None:
        """Note a dispute for each row of which two parties received different versions.

        Each row in `messages` states, under its party's signature, the hashes of the rows that the
        party mixed. They are compared with each other and with the rows of this node.

        Parameters
        ----------
        messages
            The verified rows that the next step will use.
        last
            The last step of this node; None before the first.
        """
        rows = [Row.read(message, self.contract, stored=True) for message in messages]
        versions = self._received_versions(rows, messages, last)
        for row in rows:
            for place, row_hash in row.mixed_hashes(self.contract).items():
                version = _Version(row_hash, row.party)
                first = versions.setdefault(place, version)
                if first.hash != version.hash:
                    self._note_dispute(place, version.receiver, first.receiver)

    def _received_versions(
        self, rows: list[Row], messages: tuple[bytes, ...], last: StoredStep | None
    ) -> dict[Place, _Version]:
        """Return this node's versions of the rows that others may have mixed, by place.

        These are its own rows that others name, the rows of its last step, and those of the next.
        """
        known = [*self._sent_rows_named_in(rows)]
        if last is not None:
            known += last.received
        known += messages
        versions: dict[Place, _Version] = {}
        for message in known:
            place, row_hash = place_and_hash(self.contract, message)
            versions[place] = _Version(row_hash, self.number)
        return versions

    def _sent_rows_named_in(self, rows: list[Row]) -> list[bytes]:
        """Return the rows that this node sent, and that others signed to have mixed."""
        sent_rows: list[bytes] = []
        for row in rows:
            for place in row.mixed_hashes(self.contract):
                if place.party != self.number:
                    continue
                step = self.folder.step(self.contract, place.position)
                if step is not None and step.answer is not None:
                    sent_rows.append(step.answer)
        return sent_rows

    def _note_dispute(self, place: Place, receiver: int, other_receiver: int) -> None:
        """Log once for each party that two receivers have different rows of it."""
        names = [party.name for party in self.contract.parties]
        signer = names[place.party]
        if signer in self.disputed:
            return
        self.disputed.add(signer)
        text = "%s and %s have different rows of %s in round %d: it signed both or its folder "
        text += "was restored, or one of the two lies"
        _log.warning(text, names[receiver], names[other_receiver], signer, place.position.round)

    def _note_equivocation(self, party: int) -> None:
        """Log once for each party that it signed two different rows for one position."""
        signer = self.contract.parties[party].name
        if signer in self.equivocating:
            return
        self.equivocating.add(signer)
        text = "%s signed two different rows of one position: it lies, or was restored"
        _log.warning(text, signer)


def _differ(row: Row, other: Row) -> bool:
    """Return True if two rows of one place have different values, or mixed different rows."""
    return (row.encoded_values, row.mixed_rows) != (other.encoded_values, other.mixed_rows)
