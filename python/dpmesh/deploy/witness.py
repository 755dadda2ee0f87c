"""Evidence about other parties from their signed rows: equivocation, and live partners.

`EquivocationWitness` finds parties that signed different rows for different receivers. Each row
names the hashes of the rows that its party mixed, so a node can compare its rows with those that
others received.

`PartnerNonces` decides which partners share a secret with a node in a round, for correlated noise.
A secret must serve a single round, also after a restart and in a folder restored from a copy. So
each process draws a *nonce* at its start and keeps it in memory alone. With each row a node signs
its own nonce, and the nonces of its partners in the next round as it knows them. Two partners share
a secret in a round if their rows before it name the same two nonces, and both processes still run.
The seed of the secret depends on the contract, the round and the two nonces.

`dpmesh.deploy.node_rows` uses both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from secrets import token_bytes
from typing import NamedTuple

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.row import PROCESS_NONCE_BYTES, Place, Row, place_and_hash
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import digest
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


class PartnerNonces:
    """The nonces of a node's process and of its partners' processes, as they signed them last.

    Parameters
    ----------
    schedule
        The run's schedule.
    node
        Number of the node.
    rehearsal
        True for public nonces that stay the same after a restart, as a rehearsal needs them.
    """

    def __init__(self, schedule: Schedule, node: int, *, rehearsal: bool) -> None:
        self._schedule = schedule
        self._node = node
        self._nonces: dict[int, bytes] = {}
        """The nonce of each party's process, as the party last signed it."""
        if rehearsal:
            for party in range(schedule.contract.nodes):
                hashed = digest(b"rehearsal", str(party).encode())
                self._nonces[party] = hashed[:PROCESS_NONCE_BYTES]
        self.own_nonce = self._nonces.get(node) or token_bytes(PROCESS_NONCE_BYTES)
        """The nonce of this process, which no file holds."""

    def update(self, party: int, nonces: bytes) -> None:
        """Take over the nonce of a party's process from what the party signed.

        Parameters
        ----------
        party
            Number of the party.
        nonces
            The nonce of its process, and perhaps further nonces, which are ignored. Anything
            shorter than a nonce is ignored, too: it would shift the others in `nonces_to_sign`.
        """
        if len(nonces) >= PROCESS_NONCE_BYTES:
            self._nonces[party] = nonces[:PROCESS_NONCE_BYTES]

    def nonces_to_sign(self, t: int) -> bytes:
        """Return the nonces that the node signs before round t: its own, then its partners'.

        An unknown nonce is zero.
        """
        unknown = bytes(PROCESS_NONCE_BYTES)
        partners = self._schedule.partners(t, self._node)
        nonces = (self._nonces.get(partner, unknown) for partner in partners)
        return b"".join([self.own_nonce, *nonces])

    def agreed(self, last_row: Row | None, rows: Iterable[Row]) -> dict[int, bytes]:
        """Return the nonce of each partner that shares a secret with this node in the next round.

        A partner does so if its row and this node's last row name the same nonce of the partner's
        process, and both name the nonce of this process. Only then can both draw the same secret,
        and they draw it in no other round.

        Parameters
        ----------
        last_row
            The row that this node sent before the round; None if there is none.
        rows
            The rows before the round that this node received.
        """
        node_nonces: dict[int, bytes] = {}
        if last_row is not None:
            node_nonces = self._nonces_in(last_row)
        agreed: dict[int, bytes] = {}
        for row in rows:
            partner = row.party
            partner_nonces = self._nonces_in(row)
            nonce = partner_nonces.get(partner)
            agree_on_partner = nonce is not None and nonce == node_nonces.get(partner)
            named_by_node = node_nonces.get(self._node)
            agree_on_node = named_by_node == partner_nonces.get(self._node) == self.own_nonce
            if nonce is not None and agree_on_partner and agree_on_node:
                agreed[partner] = nonce
        return agreed

    def _nonces_in(self, row: Row) -> dict[int, bytes]:
        """Return the nonces that a row names, by party: its own party's, and its partners'."""
        starts = range(0, len(row.process_nonces), PROCESS_NONCE_BYTES)
        nonces = [row.process_nonces[start : start + PROCESS_NONCE_BYTES] for start in starts]
        parties = (row.party, *self._schedule.partners(row.position.round + 1, row.party))
        return dict(zip(parties, nonces, strict=False))
