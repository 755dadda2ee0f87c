"""Partners of a node that share a secret with it in a round, for correlated noise.

A secret must serve a single round, also after a restart and in a folder restored from a copy. So
each process draws a *nonce* at its start and keeps it in memory alone. The protocol of a round is:

1. With its row before the round, a node signs its own nonce, and the nonces of its partners in the
   round as it knows them (`PartnerNonces.nonces_to_sign`).
2. It takes over the nonces in the signatures and rows that it receives (`PartnerNonces.update`).
3. Two partners share a secret in the round if their rows name the same two nonces, and both
   processes still run (`PartnerNonces.agreed`). The seed of the secret depends on the contract, the
   round and the two nonces.

`dpmesh.deploy.node_rows` follows these steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from secrets import token_bytes

from dpmesh.deploy.row import PROCESS_NONCE_BYTES, Row
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import digest


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
        self.process_nonce = self._nonces.get(node) or token_bytes(PROCESS_NONCE_BYTES)
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
        return b"".join([self.process_nonce, *nonces])

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
            agree_on_node = named_by_node == partner_nonces.get(self._node) == self.process_nonce
            if nonce is not None and agree_on_partner and agree_on_node:
                agreed[partner] = nonce
        return agreed

    def _nonces_in(self, row: Row) -> dict[int, bytes]:
        """Return the nonces that a row names, by party: its own party's, and its partners'."""
        starts = range(0, len(row.process_nonces), PROCESS_NONCE_BYTES)
        nonces = [row.process_nonces[start : start + PROCESS_NONCE_BYTES] for start in starts]
        parties = (row.party, *self._schedule.partners(row.position.round + 1, row.party))
        return dict(zip(parties, nonces, strict=False))
