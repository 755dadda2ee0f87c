"""A node's releases as rows, which other nodes mix or, with a token, build upon."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import numpy as np

from dpmesh._core import __version__
from dpmesh._validate import fail
from dpmesh.deploy.exchange import RowChannel, state_from_bytes
from dpmesh.deploy.member import Member
from dpmesh.deploy.row import Row, check_length, compressor_at, mixed_rows
from dpmesh.deploy.signing import KEY_BYTES, digest, pack, unpack
from dpmesh.deploy.steps import Stored
from dpmesh.deploy.wire import (
    FRESH,
    HEARD,
    SIGNED,
    WITHHOLD,
    Ask,
    Fresh,
    Position,
    RefusedError,
    Signature,
    kind_of,
)
from dpmesh.deploy.witness import Partners, Witness
from dpmesh.privacy.releases import Release
from dpmesh.run.carriers import Packet
from dpmesh.run.noise import DrawnRows

_log = logging.getLogger("dpmesh")


class Rows:
    """The rows of a node: checks of those received, charges, and the row it sends.

    Parameters
    ----------
    node
        The node.
    """

    def __init__(self, node: Member) -> None:
        self._node, self._schedule, self._number = node, node.schedule, node.number
        self._contract = node.contract
        self.witness: Witness | None = Witness(node.contract, node.folder, node.number)
        """Who was found to send different rows to different parties."""
        self.partners = Partners(node.schedule, node.number, rehearsal=node.rehearsal)
        """Who shares secrets with this node."""
        self.process = self.partners.process if node.contract.planned.has_partners else b""
        """The number of this process, if partners share secrets."""

    def releases(self, ask: Ask) -> bool:
        """Return True: others must always confirm this node's start before it answers."""
        return True

    def may_withhold(self, ask: Ask) -> bool:
        """Return True if an unconfirmed node may compute its step and keep the row to itself.

        The router asks so if all that the next row goes to are lost.
        """
        return self._schedule.gossips and WITHHOLD in ask.attached

    def declined(self, ask: Ask, last: Stored | None) -> bytes | None:
        """Return nothing: a node over budget refuses, as no other waits for its row."""
        return None

    def answer_of(self, step: Stored, message: bytes) -> bytes:
        """Return what leaves the node of a step whose message is this one."""
        if not step.withheld:
            return message
        row = Row.read(message, self._contract, stored=True).without_values()
        return row.signed(self._node.folder.signing)

    def later_than(self, asked: tuple[Fresh, ...]) -> bytes:
        """Return the later rows of those who ask that this node has."""
        later = (self._node.folder.later_row(self._contract, own) for own in asked)
        return pack(*filter(None, later))

    def header_of(self, step: Stored) -> bytes:
        """Return nothing: rows have no header."""
        return b""

    def totals_since(self, step: int) -> tuple[bytes, ...]:
        """Return nothing: rows are not added up."""
        return ()

    def is_confirmed(self, ask: Ask, said: dict[int, bytes], last: Position) -> bool:
        """Return True if enough parties confirm that this node's folder lacks none of its rows.

        They are those that the next row goes to. A router that hides their answers stops this node.
        """
        contract = self._contract
        for by, later in said.items():
            rows = [Row.read(each, contract, stored=True) for each in unpack(later)]
            if any(row.party == self._number for row in rows):
                name = contract.parties[by].name
                _log.error("%s has a later row of this node: its folder was restored", name)
                raise RefusedError("restored")
        others, needed = self._schedule.confirming(self._schedule.after(last), self._number)
        return len(said.keys() & others) >= needed

    def follows(self, last: Stored | None, at: Position) -> bool:
        """Return True if a position is the next one or, by token, a later one of this node."""
        schedule, before = self._schedule, None if last is None else last.at
        if schedule.gossips:
            return at == schedule.after(before)
        sends = self._number in schedule.senders(at) or at == schedule.end
        return sends and (before is None or before < at)

    def checked(self, ask: Ask, last: Stored | None) -> tuple[bytes, ...]:
        """Return the rows of a question; refuse one that does not pass, by public numbers."""
        contract, signed, rows = self._contract, {self._number}, dict[tuple[Position, int], bytes]()
        for message in ask.attached:
            kind = kind_of(message)
            if kind == SIGNED:
                with suppress(ValueError):
                    by = Signature.read(message, contract)
                    signed.add(by.party)
                    self.partners.hear(by.party, by.key[KEY_BYTES:])
            is_row = message != WITHHOLD and kind not in (SIGNED, FRESH, HEARD)
            if is_row and (row := self._sound(message, ask.at, last)):
                if (row.at, row.party) in rows:
                    raise RefusedError(f"bad row of {contract.parties[row.party].name}")
                rows[row.at, row.party] = message
                self.partners.hear(row.party, row.processes)
        if last is None:
            for number, party in enumerate(contract.parties):
                if number not in signed:
                    raise RefusedError(f"not signed by {party.name}")
        return tuple(rows[place] for place in sorted(rows))

    def _sound(self, message: bytes, at: Position, last: Stored | None) -> Row | None:
        """Return a row that passes; None for an old one; refuse another."""
        contract, schedule = self._contract, self._schedule
        try:
            row = Row.read(message, contract)
        except ValueError:
            raise RefusedError("malformed") from None
        if not schedule.gossips and last is not None and row.at <= last.at:
            return None  # the router did not get the last answer, and sends an old model again
        with suppress(ValueError):
            row.values(contract)
            if self._is_expected(row, last, at):
                return row
        raise RefusedError(f"bad row of {contract.parties[row.party].name}")

    def _is_expected(self, row: Row, last: Stored | None, at: Position) -> bool:
        """Return True if a row is a neighbour's last one, or a later token holder's."""
        schedule = self._schedule
        if schedule.gossips:
            before = last is not None and row.at == last.at
            return before and row.party in schedule.delivered_to(row.at, self._number)
        return row.at < at and row.party in schedule.mixed_by(row.at, self._number)

    def charged(self, at: Position) -> tuple[Release, ...]:
        """Return what a step is charged, from public numbers alone; refuse it over budget."""
        if self._schedule.gossips:
            begun: Iterable[int] = self._schedule.begun(at)  # rows sent on later are released
        else:
            begun = [at.round] if self._number in self._schedule.senders(at) else []
        planned = self._contract.planned
        releases = [each for t in begun for each in planned.releases(self._number, t)]
        if releases and self._node.folder.is_over_budget:
            raise RefusedError("over budget")
        return tuple(map(planned.charged, releases))

    def go_on(self, channel: RowChannel, step: Stored) -> bytes:
        """Run a node's rounds up to a stored step; return the row that it sends, signed."""
        contract, at = self._contract, step.at
        self._read(channel, step.rows)
        if contract.planned.has_partners and at.exchange == 0 and at != self._schedule.end:
            channel.share(self._seeds(at, step.rows))
        packet = channel.go_to(at, step.rows)
        row = self._packed(packet, at, mixed_rows(contract, step.rows))
        message = row.signed(self._node.folder.signing)
        if at != self._schedule.end:
            self._read(channel, (message,))
        return message

    def _seeds(self, at: Position, rows: tuple[bytes, ...]) -> dict[int, bytes]:
        """Return where the secrets of a step come from, by the partners who count."""
        contract, read = self._contract, partial(Row.read, contract=self._contract, stored=True)
        before = self._schedule.before(at)
        last = None if before is None else self._node.folder.step(contract, before)
        own = read(last.row) if last is not None and last.row is not None else None
        counted = self.partners.counted(own, map(read, rows))
        if self._node.rehearsal:
            return dict.fromkeys(counted, bytes.fromhex(contract.terms.public_key))
        group, process = self._node.group(), self.partners.process
        return {j: group.between(j, at.round, process, other) for j, other in counted.items()}

    def resumed(self, base: Stored | None, steps: list[Stored]) -> RowChannel:
        """Return the channel of the node's rounds, from stored steps: no row is drawn twice.

        They go on from the state of the step `base`; the rounds before it are not run again.
        """
        channel = self.rounds_from(self._node.start)
        if base is not None and base.state is not None:
            channel = self.rounds_from(self._node.state(base.state), base.at.round)
            like = DrawnRows(rows=0, earlier=())
            earlier, drawn = (state_from_bytes(each, like) for each in unpack(base.state)[1:])
            channel.noise.recall(earlier)
            channel.drawn = drawn
        for step in steps:
            if step.row is not None:
                self._read(channel, (*step.rows, step.row))
                channel.go_to(step.at, step.rows)
        return channel

    def rounds_from(self, state: object, t: int = 0) -> RowChannel:
        """Return the node's rounds from t on."""
        context, node = None, self._node
        if not node.rehearsal:
            versions = f"{__version__} {np.__version__}".encode()
            context = digest(self._contract.hash, node.records.encode(), versions)
        inputs = node.problem, node.key, context, state, t
        return RowChannel(self._schedule, self._number, *inputs)

    def _read(self, channel: RowChannel, messages: tuple[bytes, ...]) -> None:
        """Pass on the rows in stored messages."""
        for message in messages:
            row = Row.read(message, self._contract, stored=True)
            channel.rows.setdefault(row.at, {})[row.party] = row.values(self._contract)

    def _packed(self, packet: Packet, at: Position, mixed: bytes) -> Row:
        """Return a released packet as a row; fail if it is longer than the contract allows."""
        contract, values = self._contract, packet.values
        public = contract.hash, at, self._number, self._node.folder.incarnation(contract.hash)
        if values is None:
            return Row(*public, contract.terms.numbers, (0, 0), b"", mixed)
        said = self.partners.statement(at.round + 1) if contract.planned.has_partners else b""
        own = values if self._schedule.gossips else values[~np.isnan(values[:, 0])]
        check_length(own, contract)
        compressor = compressor_at(contract, at)
        if (packet.compressed is None) != (compressor is None):
            fail("compressor", "messages compressed by the algorithm's own compressor", "others")
        if packet.compressed is not None:
            codes = packet.compressed.message(0)
        else:
            codes = values.astype(values.dtype.newbyteorder("<")).tobytes()
        shape = values.shape[0], values.shape[1]
        return Row(*public, str(values.dtype), shape, codes, mixed, said)
