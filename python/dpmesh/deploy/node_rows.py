"""A node's releases as rows, which other nodes mix or, with a token, build upon.

A step of a node ends at a position at which it sends a row. Its question brings the rows that it
mixes, or the models that it builds upon. They are checked by public numbers alone, before the step
is charged; then the node runs its rounds up to the position, draws the noise, and signs the row.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import numpy as np

from dpmesh._core import __version__
from dpmesh._privacy_types import Released
from dpmesh._validate import fail
from dpmesh.deploy.exchange import RowChannel, state_from_bytes
from dpmesh.deploy.member import Member
from dpmesh.deploy.row import Place, Row, check_norms, compressor_at, mixed_rows_field
from dpmesh.deploy.signing import KEY_BYTES, digest, pack, unpack
from dpmesh.deploy.steps import StoredStep
from dpmesh.deploy.wire import (
    ROLLBACK_QUESTION,
    ROLLBACK_REPORT,
    SIGNATURE,
    WITHHOLD,
    Position,
    RefusedError,
    RollbackQuestion,
    Signature,
    StepQuestion,
    kind_of,
)
from dpmesh.deploy.witness import EquivocationWitness, PartnerNonces
from dpmesh.privacy.releases import Release
from dpmesh.run.carriers import Packet
from dpmesh.run.noise import DrawnRows

_log = logging.getLogger("dpmesh")


class RowProtocol:
    """The rows of a node: checks of received rows, charges, and the row that it sends.

    A `Node` makes it, and calls it for each question. A row leaves the node once it is noisy,
    charged, signed and stored. States and secrets of partners stay in the node.

    Parameters
    ----------
    node
        The node.
    """

    def __init__(self, node: Member) -> None:
        self._node = node
        self._schedule = node.schedule
        self._number = node.number
        self._contract = node.contract
        self.witness: EquivocationWitness | None = EquivocationWitness(
            node.contract, node.folder, node.number
        )
        """Evidence of parties that send different rows to different parties."""
        self.partner_nonces = PartnerNonces(node.schedule, node.number, rehearsal=node.rehearsal)
        """The parties that share secrets with this node."""
        self.process_nonce = b""
        """The number of this process, if partners share secrets."""
        if node.contract.planned.has_partners:
            self.process_nonce = self.partner_nonces.own_nonce

    def needs_confirmation(self, ask: StepQuestion) -> bool:
        """Return True: others must confirm this node's start before it answers any question."""
        return True

    def may_withhold(self, ask: StepQuestion) -> bool:
        """Return True if an unconfirmed node may compute its step and keep the row to itself.

        The router asks so if all receivers of the row are lost.
        """
        return self._schedule.is_gossip and WITHHOLD in ask.attached

    def withdrawal(self, ask: StepQuestion, last: StoredStep | None) -> bytes | None:
        """Return None: a node over budget refuses, as no other waits for its row."""
        return None

    def sent_answer(self, step: StoredStep, message: bytes) -> bytes:
        """Return the answer to a step: its signed row, or a signed row without values if withheld.

        Parameters
        ----------
        step
            The step.
        message
            Its row, as stored.
        """
        if not step.withheld:
            return message
        row = Row.read(message, self._contract, stored=True)
        return row.without_values().signed(self._node.folder.signing)

    def rollback_content(self, questions: tuple[RollbackQuestion, ...]) -> bytes:
        """Return the rows that parties which started sent later than they know of.

        They are those that this node received, packed, as their parties signed them.
        """
        folder = self._node.folder
        rows = [folder.later_row(self._contract, question) for question in questions]
        return pack(*(row for row in rows if row))

    def progress_header(self, step: StoredStep) -> bytes:
        """Return nothing: rows have no header."""
        return b""

    def accepted_totals(self, step: int) -> tuple[bytes, ...]:
        """Return no totals: rows are not added up."""
        return ()

    def confirms_start(self, ask: StepQuestion, reports: dict[int, bytes], last: Position) -> bool:
        """Return True if enough parties confirm that this node's folder lacks none of its rows.

        They are the receivers of its next row. A router that hides their reports stops this node.

        Parameters
        ----------
        ask
            The question that brings the reports.
        reports
            Later rows of parties that started, packed, by the party that reports them.
        last
            The position of the last row that this node knows to have sent.

        Raises
        ------
        RefusedError
            If a party has a later row of this node: its folder was restored from an older copy,
            and would release a second row for the same position.
        """
        contract = self._contract
        for reporter, report in reports.items():
            rows = [Row.read(message, contract, stored=True) for message in unpack(report)]
            if any(row.party == self._number for row in rows):
                name = contract.parties[reporter].name
                _log.error("%s has a later row of this node: its folder was restored", name)
                raise RefusedError("restored")
        confirmers = self._schedule.confirmers(self._schedule.after(last), self._number)
        return len(reports.keys() & confirmers.parties) >= confirmers.needed

    def is_next(self, last: StoredStep | None, position: Position) -> bool:
        """Return True if a position is the next one or, by token, a later one of this node."""
        schedule = self._schedule
        last_position = None
        if last is not None:
            last_position = last.position
        if schedule.is_gossip:
            return position == schedule.after(last_position)
        sends = self._number in schedule.senders(position) or position == schedule.end
        return sends and (last_position is None or last_position < position)

    def checked_messages(self, ask: StepQuestion, last: StoredStep | None) -> tuple[bytes, ...]:
        """Return the rows of a question in the order of their places, once each of them passes.

        Public numbers alone decide, before private data are touched. A row that does not pass
        refuses the whole question: the router sends it again without. Signatures and rows name the
        processes of their parties, which partners need.

        Parameters
        ----------
        ask
            The question for a step.
        last
            The step before it; None before the first one, whose question brings the signatures of
            all parties under the contract.
        """
        contract = self._contract
        signers = {self._number}
        rows: dict[Place, bytes] = {}
        for message in ask.attached:
            kind = kind_of(message)
            if kind == SIGNATURE:
                with suppress(ValueError):
                    signature = Signature.read(message, contract)
                    signers.add(signature.party)
                    self.partner_nonces.update(signature.party, signature.key[KEY_BYTES:])
            elif message != WITHHOLD and kind not in (ROLLBACK_QUESTION, ROLLBACK_REPORT):
                row = self._sound(message, ask.position, last)
                if row is None:
                    continue
                if row.place in rows:
                    raise self._bad_row(row)
                rows[row.place] = message
                self.partner_nonces.update(row.party, row.process_nonces)
        if last is None:
            for number, party in enumerate(contract.parties):
                if number not in signers:
                    raise RefusedError(f"not signed by {party.name}")
        return tuple(rows[place] for place in sorted(rows))

    def _bad_row(self, row: Row) -> RefusedError:
        """Return the refusal of a row, which names its party."""
        return RefusedError(f"bad row of {self._contract.parties[row.party].name}")

    def _sound(self, message: bytes, position: Position, last: StoredStep | None) -> Row | None:
        """Return a row that passes all checks; None for an old one; refuse another."""
        try:
            row = Row.read(message, self._contract)
        except ValueError:
            raise RefusedError("malformed") from None
        if not self._schedule.is_gossip and last is not None and row.position <= last.position:
            return None  # the router did not get the last answer, and sends an old model again
        with suppress(ValueError):
            row.values(self._contract)
            if self._is_expected(row, last, position):
                return row
        raise self._bad_row(row)

    def _is_expected(self, row: Row, last: StoredStep | None, position: Position) -> bool:
        """Return True if a row is a neighbour's last one, or an earlier token holder's."""
        schedule = self._schedule
        if schedule.is_gossip:
            is_of_last_position = last is not None and row.position == last.position
            return is_of_last_position and row.party in schedule.delivered_to(
                row.position, self._number
            )
        return row.position < position and row.party in schedule.mixed_senders(
            row.position, self._number
        )

    def releases_to_charge(self, position: Position) -> tuple[Release, ...]:
        """Return the releases that a step is charged, from public numbers alone.

        They are those of the rounds that begin in the step: a later row of a round is made of its
        first one and of others' rows. By token only a holder releases something.

        Raises
        ------
        RefusedError
            If the step releases something and the folder is over its budget.
        """
        rounds = range(0)
        if self._schedule.is_gossip:
            rounds = self._schedule.rounds_begun(position)
        elif self._number in self._schedule.senders(position):
            rounds = range(position.round, position.round + 1)
        planned = self._contract.planned
        releases = [release for t in rounds for release in planned.releases(self._number, t)]
        if releases and self._node.folder.is_over_budget:
            raise RefusedError("over budget")
        return tuple(planned.as_charged(release) for release in releases)

    def compute_step(self, channel: RowChannel, step: StoredStep) -> bytes:
        """Run a node's rounds up to a stored, charged step; return the row that it sends, signed.

        The row leaves the node only after it is stored, so that a killed process sends the same
        row again. Partners share secrets in the first row of a round.
        """
        position = step.position
        is_end = position == self._schedule.end
        self._read(channel, step.received)
        if self._contract.planned.has_partners and position.exchange == 0 and not is_end:
            channel.set_partner_seeds(
                self._seeds(position, step.received)
            )  # before the row's noise is drawn
        packet = channel.run_to(position, step.received)
        row = self._packed(packet, position, mixed_rows_field(self._contract, step.received))
        message = row.signed(self._node.folder.signing)
        if not is_end:
            self._read(channel, (message,))
        return message

    def _seeds(self, position: Position, messages: tuple[bytes, ...]) -> dict[int, bytes]:
        """Return the seed of the secret with each partner that counts in a position's round.

        A seed depends on the round and on the numbers of both processes, so that no secret is used
        again after a restart. In a rehearsal it is the contract's public key.
        """
        contract = self._contract
        rows = [Row.read(message, contract, stored=True) for message in messages]
        counted = self.partner_nonces.agreed(self._last_row(position), rows)
        if self._node.rehearsal:
            return dict.fromkeys(counted, bytes.fromhex(contract.terms.public_key))
        group = self._node.pairwise_secrets()
        return {
            partner: group.partner_seed(
                partner, position.round, self.partner_nonces.own_nonce, process
            )
            for partner, process in counted.items()
        }

    def _last_row(self, position: Position) -> Row | None:
        """Return the row that this node sent before a position, if any."""
        before = self._schedule.before(position)
        if before is None:
            return None
        step = self._node.folder.step(self._contract, before)
        if step is None or step.answer is None:
            return None
        return Row.read(step.answer, self._contract, stored=True)

    def restored_channel(self, base: StoredStep | None, steps: list[StoredStep]) -> RowChannel:
        """Return the channel of the node's rounds after a start: no row is drawn twice.

        Parameters
        ----------
        base
            The step whose state is stored, if any. The rounds before it are not run again.
        steps
            The steps from its round on. Rows that the node has computed are taken from them.
        """
        if base is None or base.state is None:
            channel = self.channel_from(self._node.initial_state)
        else:
            channel = self.channel_from(self._node.read_state(base.state), base.position.round)
            pattern = DrawnRows(rows=0, earlier=())
            _, memory, in_round = unpack(base.state)
            channel.noise.recall(state_from_bytes(memory, pattern))
            channel.drawn_rows = state_from_bytes(in_round, pattern)
        for step in steps:
            if step.answer is not None:
                self._read(channel, (*step.received, step.answer))
                channel.run_to(step.position, step.received)
        return channel

    def channel_from(self, state: object, t: int = 0) -> RowChannel:
        """Return the node's rounds from t on.

        Their randomness depends on the contract, the records and the versions of what computes
        them: under others the same position gets other noise. In a rehearsal it is the simulator's.
        """
        node = self._node
        context = None
        if not node.rehearsal:
            versions = f"{__version__} {np.__version__}".encode()
            context = digest(self._contract.hash, node.records_digest.encode(), versions)
        return RowChannel(self._schedule, self._number, node.problem, node.key, context, state, t)

    def _read(self, channel: RowChannel, messages: tuple[bytes, ...]) -> None:
        """Give a channel the values of stored rows."""
        for message in messages:
            row = Row.read(message, self._contract, stored=True)
            channel.rows.setdefault(row.position, {})[row.party] = row.values(self._contract)

    def _packed(self, packet: Packet, position: Position, mixed: bytes) -> Row:
        """Return a released packet as a row; fail if it is longer than the contract allows."""
        contract = self._contract
        incarnation = self._node.folder.incarnation(contract.hash)
        if packet.values is None:
            numbers = contract.terms.numbers
            shape = (0, 0)
            return Row(
                contract.hash, position, self._number, incarnation, numbers, shape, b"", mixed
            )
        processes = b""
        if contract.planned.has_partners:
            processes = self.partner_nonces.nonces_to_sign(position.round + 1)
        rows, columns = packet.values.shape
        return Row(
            contract.hash,
            position,
            self._number,
            incarnation,
            dtype=str(packet.values.dtype),
            shape=(rows, columns),
            encoded_values=self._encoded(packet, packet.values, position),
            mixed_rows=mixed,
            process_nonces=processes,
        )

    def _encoded(self, packet: Packet, values: Released, position: Position) -> bytes:
        """Return released values as they are sent; fail if they are too long, or not as agreed."""
        released = values
        if not self._schedule.is_gossip:
            released = Released(values[~np.isnan(values[:, 0])])  # the models of this turn
        check_norms(released, self._contract)
        compressor = compressor_at(self._contract, position)
        if (packet.compressed is None) != (compressor is None):
            fail("compressor", "messages compressed by the algorithm's own compressor", "others")
        if packet.compressed is not None:
            return packet.compressed.message(0)
        return values.astype(values.dtype.newbyteorder("<")).tobytes()
