"""The part of a node that sends rows, which other nodes mix or, by token, learn from.

A *row* is a signed message with noisy model vectors (`dpmesh.deploy.row`). A step ends at a
position at which the node sends a row. The step's question brings the rows of other parties: those
that the node mixes (gossip), or the models from which it goes on (token). They are checked by
public numbers alone, before the step is charged. Then the node runs the algorithm up to the
position, draws the noise, and signs the row.

`dpmesh.deploy.node.Node` calls `RowProtocol`. `dpmesh.deploy.node_sums.SumProtocol` has the same
methods for secure sums.
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
from dpmesh.deploy.partner_nonces import PartnerNonces
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
from dpmesh.deploy.witness import EquivocationWitness
from dpmesh.privacy.releases import Release
from dpmesh.run.carriers import Packet
from dpmesh.run.noise import DrawnRows

_log = logging.getLogger("dpmesh")


class RowProtocol:
    """A node's checks of received rows, its charges, and the rows that it sends.

    A row leaves the node after it is charged, noisy, signed and stored. States, and secrets shared
    with partners, stay in the node.

    Parameters
    ----------
    node
        The party whose rows the protocol sends: its contract, folder, problem and secrets.
    """

    witness: EquivocationWitness | None
    """Evidence of parties that sent different rows to different receivers."""

    def __init__(self, node: Member) -> None:
        self._node = node
        self._schedule = node.schedule
        self._number = node.number
        self._contract = node.contract
        self.witness = EquivocationWitness(node.contract, node.folder, node.number)
        self.partner_nonces = PartnerNonces(node.schedule, node.number, rehearsal=node.rehearsal)
        """Nonces of the processes that share secrets with this node."""
        self.process_nonce = b""
        """The nonce of this process, if partners share secrets; else empty."""
        if node.contract.planned.has_partners:
            self.process_nonce = self.partner_nonces.process_nonce

    def needs_confirmation(self, question: StepQuestion) -> bool:
        """Return True: other parties must confirm this node's start before it takes any step."""
        return True

    def may_withhold(self, question: StepQuestion) -> bool:
        """Return True if an unconfirmed node may compute the step and keep the row to itself.

        The router attaches `WITHHOLD` if so many receivers of the row are lost that no start can be
        confirmed.
        """
        return self._schedule.is_gossip and WITHHOLD in question.attached

    def withdrawal(self, question: StepQuestion, last: StoredStep | None) -> bytes | None:
        """Return None: there are no withdrawals; a node over budget refuses the question."""
        return None

    def sent_answer(self, step: StoredStep, message: bytes) -> bytes:
        """Return the message that leaves the node: the row, without values if it is withheld.

        Parameters
        ----------
        step
            The step.
        message
            The step's signed row, as stored.
        """
        if not step.withheld:
            return message
        row = Row.read(message, self._contract, stored=True)
        return row.without_values().signed(self._node.folder.signing)

    def rollback_content(self, questions: tuple[RollbackQuestion, ...]) -> bytes:
        """Return the content of a `RollbackReport`: later rows of the parties that ask, packed.

        These are the signed rows that this node received.
        """
        folder = self._node.folder
        rows = [folder.later_row(self._contract, question) for question in questions]
        return pack(*(row for row in rows if row))

    def progress_header(self, step: StoredStep) -> bytes:
        """Return an empty header: rows have none."""
        return b""

    def accepted_totals(self, first_step: int) -> tuple[bytes, ...]:
        """Return no totals: rows are not added up."""
        return ()

    def confirms_start(
        self, question: StepQuestion, reports: dict[int, bytes], last: Position
    ) -> bool:
        """Return True if enough parties report that they have no row after this node's last one.

        `Schedule.confirmers` says which parties, and how many. A router that hides their reports
        stops this node.

        Parameters
        ----------
        question
            The question that brings the reports; not used.
        reports
            The content of reports since this node's start, by reporter: packed rows.
        last
            Position of the last row in this node's folder.

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
        """Return True if this node's next step may end at a position.

        In gossip there is one such position. By token it may be the end of the run, or any turn of
        this node after its last one: a node that was absent misses its turns.
        """
        schedule = self._schedule
        last_position = None
        if last is not None:
            last_position = last.position
        if schedule.is_gossip:
            return position == schedule.after(last_position)
        if last_position is not None and position <= last_position:
            return False
        return position == schedule.end or self._number in schedule.senders(position)

    def checked_messages(
        self, question: StepQuestion, last: StoredStep | None
    ) -> tuple[bytes, ...]:
        """Check the rows in a question, and return them in the order of their places.

        The checks use public numbers alone. One wrong row refuses the whole question, and the
        router asks again without this row. Nonces of processes are taken from signatures and rows.

        Parameters
        ----------
        question
            The question.
        last
            The last step of this node; None before the first step, whose question must bring the
            signatures of all parties under the contract.

        Raises
        ------
        RefusedError
            If a row or a signature is missing, malformed or wrong.
        """
        contract = self._contract
        signers = {self._number}
        rows: dict[Place, bytes] = {}
        for message in question.attached:
            kind = kind_of(message)
            if kind == SIGNATURE:
                with suppress(ValueError):
                    signature = Signature.read(message, contract)
                    signers.add(signature.party)
                    self.partner_nonces.update(signature.party, signature.key[KEY_BYTES:])
            elif message != WITHHOLD and kind not in (ROLLBACK_QUESTION, ROLLBACK_REPORT):
                row = self._checked_row(message, question.position, last)
                if row is None:
                    continue
                if row.place in rows:  # two rows of one place
                    raise self._bad_row(row)
                rows[row.place] = message
                self.partner_nonces.update(row.party, row.process_nonces)
        if last is None:
            for number, party in enumerate(contract.parties):
                if number not in signers:
                    raise RefusedError(f"not signed by {party.name}")
        return tuple(rows[place] for place in sorted(rows))

    def _bad_row(self, row: Row) -> RefusedError:
        """Return the error that refuses a row; it names the row's party."""
        return RefusedError(f"bad row of {self._contract.parties[row.party].name}")

    def _checked_row(
        self, message: bytes, position: Position, last: StoredStep | None
    ) -> Row | None:
        """Return a received row once it passes all checks; None to ignore an outdated model.

        Raises
        ------
        RefusedError
            If the message is no signed row, or the row does not pass.
        """
        try:
            row = Row.read(message, self._contract)
        except ValueError:
            raise RefusedError("malformed") from None
        if not self._schedule.is_gossip and last is not None and row.position <= last.position:
            return None  # the router missed this node's last answer, and sends an old model again
        with suppress(ValueError):
            row.values(self._contract)
            if self._is_expected(row, last, position):
                return row
        raise self._bad_row(row)

    def _is_expected(self, row: Row, last: StoredStep | None, position: Position) -> bool:
        """Return True if a row is one that this node receives in the step of a position.

        In gossip it is a row of the last position from a party whose rows go to this node. By token
        it is a row of an earlier turn of another node.
        """
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
        """Return the releases that are charged for a step, from public numbers alone.

        In gossip, a step is charged for the rounds that begin in it: later rows of a round are
        post-processing of its first row and of other parties' rows. By token, a holder of the token
        is charged for its turn.

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
        """Run the node's rounds up to a charged step; return its signed row.

        The caller stores the row before it leaves the node.
        """
        position = step.position
        is_end = position == self._schedule.end
        self._give_rows(channel, step.received)
        begins_round = position.exchange == 0 and not is_end
        if self._contract.planned.has_partners and begins_round:
            seeds = self._partner_seeds(position, step.received)
            channel.set_partner_seeds(seeds)  # before the row's noise is drawn
        packet = channel.run_to(position, step.received)
        mixed_rows = mixed_rows_field(self._contract, step.received)
        row = self._row_of(packet, position, mixed_rows)
        message = row.signed(self._node.folder.signing)
        if not is_end:
            self._give_rows(channel, (message,))
        return message

    def _partner_seeds(self, position: Position, messages: tuple[bytes, ...]) -> dict[int, bytes]:
        """Return the seeds of the noise that the node shares with partners in a round, by partner.

        A seed depends on the round and on the nonces of both processes, so that no seed is used
        again after a restart. In a rehearsal it is the contract's public key.

        Parameters
        ----------
        position
            Position of the first row of the round.
        messages
            The rows that arrived before it.
        """
        contract = self._contract
        rows = [Row.read(message, contract, stored=True) for message in messages]
        nonces = self.partner_nonces.agreed(self._last_row(position), rows)
        if self._node.rehearsal:
            return dict.fromkeys(nonces, bytes.fromhex(contract.terms.public_key))
        pairwise_secrets = self._node.pairwise_secrets()
        process_nonce = self.partner_nonces.process_nonce
        return {
            partner: pairwise_secrets.partner_seed(partner, position.round, process_nonce, nonce)
            for partner, nonce in nonces.items()
        }

    def _last_row(self, position: Position) -> Row | None:
        """Return the row that this node sent at the previous position, in gossip, if any."""
        before = self._schedule.before(position)
        if before is None:
            return None
        step = self._node.folder.step(self._contract, before)
        if step is None or step.answer is None:
            return None
        return Row.read(step.answer, self._contract, stored=True)

    def restored_channel(self, base: StoredStep | None, steps: list[StoredStep]) -> RowChannel:
        """Return the channel of the node's rounds after a start of its process.

        Parameters
        ----------
        base
            The step whose state is stored, if any. Its round is run again, and no round before it.
        steps
            The stored steps from the round of `base` on. Rows that the node has computed are taken
            from them, so that no row is drawn twice.
        """
        if base is None or base.state is None:
            channel = self.channel_from(self._node.initial_state)
        else:
            channel = self.channel_from(self._node.read_state(base.state), base.position.round)
            example = DrawnRows(rows=0, earlier=())  # the class to decode
            _, memory, drawn_rows = unpack(base.state)
            channel.noise.recall(state_from_bytes(memory, example))
            channel.drawn_rows = state_from_bytes(drawn_rows, example)
        for step in steps:
            if step.answer is not None:
                self._give_rows(channel, (*step.received, step.answer))
                channel.run_to(step.position, step.received)
        return channel

    def channel_from(self, state: object, t: int = 0) -> RowChannel:
        """Return the channel of the node's rounds from t on.

        Noise depends on the node's key, the contract, the records, and the versions of dpmesh and
        NumPy: other records or versions, which may give other values, get other noise. In a
        rehearsal it is the simulator's.

        Parameters
        ----------
        state
            The algorithm's state before round t.
        t
            Number of the first round.
        """
        node = self._node
        context = None
        if not node.rehearsal:
            versions = f"{__version__} {np.__version__}".encode()
            context = digest(self._contract.hash, node.records_digest.encode(), versions)
        return RowChannel(self._schedule, self._number, node.problem, node.key, context, state, t)

    def _give_rows(self, channel: RowChannel, messages: tuple[bytes, ...]) -> None:
        """Give a channel the values of the rows in stored messages."""
        for message in messages:
            row = Row.read(message, self._contract, stored=True)
            channel.rows.setdefault(row.position, {})[row.party] = row.values(self._contract)

    def _row_of(self, packet: Packet, position: Position, mixed_rows: bytes) -> Row:
        """Return a released packet as an unsigned row.

        Raises
        ------
        ValueError
            If the values are not finite, or longer than the contract's `largest_row`.
        """
        contract = self._contract
        if packet.values is None:  # nothing is released, as at the end
            dtype: str = contract.terms.numbers
            shape = (0, 0)
            encoded_values = b""
            process_nonces = b""
        else:
            dtype = str(packet.values.dtype)
            rows, columns = packet.values.shape
            shape = (rows, columns)
            encoded_values = self._encoded(packet, packet.values, position)
            process_nonces = b""
            if contract.planned.has_partners:
                process_nonces = self.partner_nonces.nonces_to_sign(position.round + 1)
        return Row(
            contract.hash,
            position,
            self._number,
            self._node.folder.incarnation(contract.hash),
            dtype=dtype,
            shape=shape,
            encoded_values=encoded_values,
            mixed_rows=mixed_rows,
            process_nonces=process_nonces,
        )

    def _encoded(self, packet: Packet, values: Released, position: Position) -> bytes:
        """Return released values as bytes: compressed, or little-endian floats.

        By token, models that this turn does not release are rows of NaN, which are sent, too.

        Raises
        ------
        ValueError
            If a released value is not finite, if a released row is longer than the contract allows,
            or if a packet is compressed and the contract states no compressor, or vice versa.
        """
        released = values
        if not self._schedule.is_gossip:
            is_released = ~np.isnan(values[:, 0])
            released = Released(values[is_released])
        check_norms(released, self._contract)
        must_be_compressed = compressor_at(self._contract, position) is not None
        if must_be_compressed != (packet.compressed is not None):
            fail("compressor", "messages compressed by the algorithm's own compressor", "others")
        if packet.compressed is not None:
            only_row = 0  # a node sends one row
            return packet.compressed.message(only_row)
        return values.astype(values.dtype.newbyteorder("<")).tobytes()
