"""A node: one party's records and folder, which answer a router that they do not trust.

    folder = Folder.open("north")
    node = Node(contract, folder, records)
    answer = node.answer(message)           # bytes in, bytes out, over any transport

A step is two transactions. The first stores the rows that arrived and charges the releases of the
step; from then on the step has these rows for ever. The second finishes the round before, runs the
next one up to its message, and stores the state and the row. Only then does the row leave. A node
that is killed between the two, or after both, answers the same bits when it is asked again.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, cast

import numpy as np

from dpmesh._core import __version__
from dpmesh._validate import fail
from dpmesh.data import Dataset
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.exchange import NodeChannel
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.partners import Partners
from dpmesh.deploy.private_file import DISK
from dpmesh.deploy.provenance import NAME, MadeT, signed
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import KEY_BYTES, digest, pack, unpack
from dpmesh.deploy.state import state_as_bytes, state_from_bytes
from dpmesh.deploy.steps import Stored
from dpmesh.deploy.sums import Group, RunSecrets
from dpmesh.deploy.wire import (
    BEFORE,
    FRESH,
    HEARD,
    HERE,
    SIGNED,
    Ask,
    Fresh,
    Heard,
    Position,
    RefusedError,
    Row,
    Signature,
    check_length,
    compressor_at,
    kind_of,
    mixed_rows,
    refusal,
)
from dpmesh.deploy.witness import Witness
from dpmesh.models import Model
from dpmesh.privacy.releases import Release
from dpmesh.run.carriers import Packet
from dpmesh.run.identity import digest as digest_of
from dpmesh.run.noise import DrawnRows
from dpmesh.statistics.ask import Statistics

_log = logging.getLogger("dpmesh")


class Node:
    """One party of a contract.

    Parameters
    ----------
    contract
        The contract, from the parties and not from the router.
    folder
        The party's folder. Its budget gets charged for the whole contract now.
    records
        The party's own records, as `Tables.dataset` or a file of arrays gives them.
    rehearsal
        Whether all randomness comes from the contract's public key. A run then has the bits of
        `simulate` under that key, and no privacy: whoever has the contract can subtract the noise.

    Raises
    ------
    OverBudget
        A `ValueError`, if the folder's budget has no room for the contract.
    ValueError
        If the folder's key is not in the contract, or the records are not those that the contract
        describes or with which it was joined. The text may depend on the records: keep it.
    """

    def __init__(
        self, contract: Contract, folder: Folder, records: Dataset, *, rehearsal: bool = False
    ) -> None:
        self.contract, self.folder, self.rehearsal = contract, folder, rehearsal
        self.number = contract.party_of(folder.signing.public)
        self._problem = contract.problem(records, self.number)
        self._records = digest_of(self._problem)
        self._own = contract.public_key if rehearsal else folder.key
        self._schedule, self._lock = Schedule(contract), Lock()
        seated = self._schedule.seat(self.number, contract.public_key)
        self._start = contract.algorithm.init(self._problem, seated)
        folder.join(contract, self._records, seeded=rehearsal)
        self._confirmed = rehearsal
        self._channel: Any = None
        """The rounds of this node so far; None after a start, until the next step."""
        self.witness = Witness(contract, folder, self.number)
        """Who was found to send different rows to different parties."""
        self.partners = Partners(self._schedule, self.number, rehearsal=rehearsal)
        """Who shares secrets with this node."""
        self._group: Group | None = None
        self._secrets: RunSecrets | None = None
        if contract.has_partners or contract.sums is not None:
            kept = folder.secrets(contract, lambda: RunSecrets.generate().as_bytes())
            mine, keys = unpack(kept)[:2], unpack(kept)[2:]
            self._secrets = RunSecrets(*mine) if mine else None
            self._group = self._group_with(keys) if keys else None

    @property
    def name(self) -> str:
        """The party's name in the contract."""
        return self.contract.parties[self.number].name

    @property
    def at(self) -> Position | None:
        """The position that it answered last; None before the first."""
        at = self.folder.last_sent(self.contract.hash).at
        return None if at == BEFORE else at

    @property
    def rounds(self) -> int:
        """How many whole rounds were over at the position that it answered last."""
        return 0 if self.at is None else self.contract.rounds_before(self.at.round)

    @property
    def is_done(self) -> bool:
        """Whether it has answered the last question of the contract."""
        return self.at == self._schedule.end

    @property
    def is_sealed(self) -> bool:
        """Whether its model is one that the others have, too.

        Where models differ, each is its own: then whether its last round reached it from anybody.
        """
        last, schedule = self.folder.last(self.contract), self._schedule
        if not self.is_done or last is None or not schedule.gossips:
            return self.is_done
        before = Position(schedule.end.round - 1, self.contract.algorithm.exchanges - 1)
        return bool(last.rows) or not schedule.heard(before, self.number)

    @property
    def seals(self) -> tuple[bytes, ...]:
        """What this and other parties signed at the end, if all have one model."""
        return ()

    def is_over(self, proof: bytes) -> bool:
        """Whether so many parties show that they have ended that this node is left out."""
        ended, end = set[int](), self._schedule.end
        with suppress(ValueError):
            for message in unpack(proof):
                at, party = self._ended(message)
                ended |= {party} if at.round == end.round else set()
        return len(ended) >= self.contract.sealing

    def _ended(self, message: bytes) -> tuple[Position, int]:
        """Return where and who signed the last message of a run, or fail."""
        row = Row.read(message, self.contract)
        return row.at, row.party

    @property
    def released(self) -> Any:
        """The model that follows from released rows alone, shape (1, dim); None at the start.

        It may be published, at the epsilon of the contract.
        """
        kept = self.folder.released(self.contract)
        kind = self.contract.terms.numbers
        return np.frombuffer(kept, kind).reshape(1, -1) if kept else None

    def model(self) -> Model:
        """Return the released model, which predicts, with what it cost and who signed it.

        Raises
        ------
        ValueError
            As `Contract.model`.
        """
        contract, folder = self.contract, self.folder
        charged = 1 + folder.incarnation(contract.hash)
        return self._signed(contract.model(self.released, folder.is_seeded(contract), charged))

    def _signed(self, made: MadeT) -> MadeT:
        """Return what came of the run, signed, with the seals of all who have the same."""
        seals = [each.hex() for each in self.seals]
        origin = {"party": self.name, "rounds": self.rounds, "seals": seals}
        return signed(made, self.contract, self.folder.signing, **origin)

    def statistics(self) -> Statistics:
        """Return the answers to the contract's questions, with what they cost and who signed them.

        Raises
        ------
        ValueError
            As `Contract.statistics`.
        """
        contract, folder = self.contract, self.folder
        charged = 1 + folder.incarnation(contract.hash)
        found = contract.statistics(self.released, folder.is_seeded(contract), charged)
        return replace(found, origin=self._signed(found.as_dict())[NAME])

    def own_model(self) -> Any:
        """Return the party's own model, shape (1, dim), without noise: it must not leave it."""
        last = self.folder.last(self.contract)
        state = self._start
        if last is not None and last.state is not None:
            state = self._state_in(last.state)
        return self.contract.algorithm.parameters(state)

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a message of the router.

        It depends on private data only through what a mechanism released. A refusal has one of a
        few reasons, see `RefusedError`; what went wrong in detail is in the log, at the node.

        Raises
        ------
        OSError, sqlite3.Error
            If the disk fails: end the process. Nothing is lost, and the next one goes on.
        """
        with self._lock:
            try:
                ask = Ask.read(message, self.contract)
                if ask is None:
                    signed = self._signature()
                    return signed if self._confirmed else pack(HERE, signed, self._question())
                if isinstance(ask, Ask):
                    return self._answer(ask)
                heard = Heard(self.number, digest(message), self._later_than(ask))
                return heard.signed(self.contract, self.folder.signing)
            except RefusedError as reason:
                return refusal(self.contract, str(reason))
            except DISK:
                raise
            except Exception:
                _log.exception("node %s fails, with nothing charged", self.name)
                return refusal(self.contract, "failed")

    def _answer(self, ask: Ask) -> bytes:
        contract, folder, at = self.contract, self.folder, ask.at
        step = folder.step(contract, at)
        if step is not None and step.row is not None:
            if folder.has_stopped(contract):
                folder.mark(contract)  # which may be what failed
            self._compare_again(ask, step)
            return step.row
        if folder.has_stopped(contract):
            raise RefusedError("stopped")
        if not self._confirmed and not self._confirm(ask):
            return self._question()
        if step is None:
            last = folder.last(contract)
            if last is not None and last.row is None and not self._schedule.gossips:
                self._finished(last.at)  # a turn in which it was killed
                last = folder.last(contract)
            self._check_order(last, at)
            rows = self._checked(ask, last)
            charged = self._charged(at)
            self._compare(rows, last)
            group = None if self._secrets is None else self._group_of(ask.attached)
            with folder.transaction():
                self._hear(rows)
                folder.begin(contract, at, rows, charged)
                if last is None and group is not None and self._secrets is not None:
                    folder.keep_secrets(contract, self._secrets.as_bytes(*group.keys))
            self._group = group
        return self._finished(at)

    def _signature(self) -> bytes:
        key = b"" if self._secrets is None else self._secrets.public
        key += self.partners.process if self.contract.has_partners else b""
        return Signature.of(self.contract, self.number, self.folder.signing, key)

    def _group_of(self, messages: tuple[bytes, ...] = ()) -> Group:
        """Return the parties with their keys of the run: those of its first step, or signed now."""
        if self._group is not None:
            return self._group
        if self._secrets is None:
            raise RefusedError("stopped")  # the run is over
        keys = {self.number: self._secrets.public}
        for message in messages:
            with suppress(ValueError):
                of = Signature.read(message, self.contract)
                keys.setdefault(of.party, of.key[:KEY_BYTES])
        for number, party in enumerate(self.contract.parties):
            if len(keys.get(number, b"")) != KEY_BYTES:
                raise RefusedError(f"not signed by {party.name}")
        return self._group_with(tuple(keys[number] for number in range(self.contract.nodes)))

    def _group_with(self, keys: tuple[bytes, ...]) -> Group:
        assert self._secrets is not None
        try:
            return Group(self.contract, self.number, self._secrets, keys)
        except ValueError as error:
            _log.error("%s", error)
            raise RefusedError("bad key") from None

    def _later_than(self, asked: tuple[Fresh, ...]) -> bytes:
        """Return what this node knows of those that started."""
        return pack(*filter(None, (self.folder.later_row(self.contract, own) for own in asked)))

    def _compare_again(self, ask: Ask, step: Stored) -> None:
        """Compare what comes with a question that was answered before."""
        self.witness.compare(ask, step)

    def _compare(self, rows: tuple[bytes, ...], last: Stored | None) -> None:
        self.witness.compare_mixed(rows, last)

    def _hear(self, rows: tuple[bytes, ...]) -> None:
        for message in rows:
            row = Row.read(message, self.contract, stored=True)
            self.folder.hear(self.contract, row, message)

    def _finished(self, at: Position) -> bytes:
        """Return the row of a step that is charged; whatever fails from here on stops the node."""
        try:
            channel, row = self._computed(at)
            published = channel.published
            before = self.folder.released(self.contract)
            released = before if published is None else published.tobytes()
            with self.folder.transaction():
                self.folder.finish(self.contract, at, self._kept(channel), row, released)
                if at.round == self._schedule.end.round:
                    self.folder.end(self.contract, self.contract.terms.rounds)
            self.folder.mark(self.contract)
            self._channel = channel
        except DISK:
            raise  # the next start computes the step again, from the rows that it has stored
        except Exception:
            _log.exception("node %s stops", self.name)
            with suppress(Exception):
                self.folder.stop(self.contract)
            raise RefusedError("stopped") from None
        return row

    def _kept(self, channel: Any) -> bytes:
        """Return what the next start needs of a channel."""
        noise = channel.noise
        return pack(*map(state_as_bytes, (channel.state, noise.memory, noise.in_round)))

    def _state_in(self, kept: bytes) -> Any:
        """Return the algorithm's state in what was kept."""
        return state_from_bytes(unpack(kept)[0], self._start)

    def _fresh(self) -> Fresh:
        folder, contract = self.folder, self.contract
        return Fresh(self.number, folder.last_sent(contract.hash), folder.fresh(contract))

    def _question(self) -> bytes:
        """Return what this node asks the others after its start."""
        return Fresh.together(self.contract, [self._fresh()])

    def _said(self, ask: Ask) -> dict[int, bytes]:
        """Return what others say to questions of which this node's own is one, since it started."""
        fresh, found = self._fresh(), dict[int, bytes]()
        asked: dict[bytes, tuple[Fresh, ...]] = {digest(self._question()): (fresh,)}
        for message in (each for each in ask.attached if kind_of(each) == FRESH):
            with suppress(ValueError):
                if fresh in (questions := Fresh.read(message, self.contract)):
                    asked[digest(message)] = questions
        for message in (each for each in ask.attached if kind_of(each) == HEARD):
            with suppress(ValueError):
                heard = Heard.read(message, self.contract, asked)
                found[heard.by] = heard.later
        return found

    def _confirm(self, ask: Ask) -> bool:
        """Whether enough others say that they have no row of this node that its folder has not.

        They are those that the next row goes to. A router that hides their answers stops this node.
        """
        contract, folder, answers = self.contract, self.folder, self._said(ask)
        for by, later in answers.items():
            rows = [Row.read(each, contract, stored=True) for each in unpack(later)]
            if any(row.party == self.number for row in rows):
                name = contract.parties[by].name
                _log.error("%s has a later row of this node: its folder was restored", name)
                raise RefusedError("restored")
        after = self._schedule.after(self._fresh().last.at)
        others, needed = self._schedule.confirming(after, self.number)
        self._confirmed = len(answers.keys() & others) >= needed
        if self._confirmed:
            folder.confirmed(contract)
        return self._confirmed

    def _check_order(self, last: Stored | None, at: Position) -> None:
        """Refuse any position but the next one; by token, but a later one of this node's own."""
        schedule = self._schedule
        pending = last is not None and last.row is None
        before = None if last is None else last.at
        if schedule.gossips:
            fits = at == schedule.after(before)
        else:
            sends = self.number in schedule.senders(at) or at == schedule.end
            fits = sends and (before is None or before < at)
        if pending or not fits:
            raise RefusedError("not the next round")

    def _checked(self, ask: Ask, last: Stored | None) -> tuple[bytes, ...]:
        """Return the rows of a question; refuse one that does not pass, by public numbers."""
        contract, signed, rows = self.contract, set(), {}
        for message in ask.attached:
            if (kind := kind_of(message)) == SIGNED:
                with suppress(ValueError):
                    by = Signature.read(message, contract)
                    signed.add(by.party)
                    self.partners.hear(by.party, by.key[KEY_BYTES:])
            if kind in (SIGNED, FRESH, HEARD):
                continue
            try:
                row = Row.read(message, contract)
            except ValueError:
                raise RefusedError("malformed") from None
            if not self._schedule.gossips and last is not None and row.at <= last.at:
                continue  # the router did not get the last answer, and sends an old model again
            name = contract.parties[row.party].name
            try:
                row.values(contract)
            except ValueError:
                raise RefusedError(f"bad row of {name}") from None
            if not self._is_expected(row, last, ask.at) or (row.at, row.party) in rows:
                raise RefusedError(f"bad row of {name}")
            rows[row.at, row.party] = message
            self.partners.hear(row.party, row.said)
        if last is None:
            for number, party in enumerate(contract.parties):
                if number not in signed | {self.number}:
                    raise RefusedError(f"not signed by {party.name}")
        return tuple(rows[place] for place in sorted(rows))

    def _is_expected(self, row: Row, last: Stored | None, at: Position) -> bool:
        """Whether a row is of a neighbour's at the position before, or of a holder's since then."""
        schedule = self._schedule
        if schedule.gossips:
            return (
                last is not None
                and row.at == last.at
                and row.party in schedule.sent(row.at, self.number)
            )
        return row.at < at and row.party in schedule.heard(row.at, self.number)

    def _charged(self, at: Position) -> tuple[Release, ...]:
        """Return what a step is charged, from public numbers alone; refuse it over budget."""
        if self.number not in self._schedule.senders(at):
            return ()
        if self._schedule.gossips and at.exchange > 0:
            return ()  # rows sent on
        if self.folder.is_over_budget:
            raise RefusedError("over budget")
        releases = self.contract.releases(self.number, at.round)
        return tuple(map(self.contract.charges.charged, releases))

    def _computed(self, at: Position) -> tuple[Any, bytes]:
        """Return the node's rounds, gone on to a step, and the row that it sends, signed."""
        contract, step = self.contract, self.folder.step(self.contract, at)
        assert step is not None
        channel, self._channel = self._channel or self._resumed(at), None
        self._read(channel, step.rows)
        if contract.has_partners and at.exchange == 0 and at != self._schedule.end:
            channel.share(self._seeds(at, step.rows))
        packet = channel.go_to(at, step.rows)
        row = self._packed(packet, at, mixed_rows(contract, step.rows)).signed(self.folder.signing)
        if at != self._schedule.end:
            self._read(channel, (row,))
        return channel, row

    def _seeds(self, at: Position, rows: tuple[bytes, ...]) -> dict[int, bytes]:
        """Return where the secrets of a step come from, by the partners who count."""
        contract, read = self.contract, partial(Row.read, contract=self.contract, stored=True)
        before = Position(at.round - 1, contract.algorithm.exchanges - 1)
        last = self.folder.step(contract, before)
        own = read(last.row) if last is not None and last.row is not None else None
        counted = self.partners.counted(own, map(read, rows))
        if self.rehearsal:
            return dict.fromkeys(counted, bytes.fromhex(contract.terms.public_key))
        group, process = self._group_of(), self.partners.process
        return {j: group.between(j, at.round, process, other) for j, other in counted.items()}

    def _resumed(self, until: Position) -> NodeChannel:
        """Return the node's rounds from the folder: what it sent before a step is not drawn again.

        The rounds that the folder has a state of are not run again.
        """
        steps = self.folder.steps(self.contract)
        base = next((step for step in reversed(steps) if step.state is not None), None)
        channel = self._rounds_from(self._start)
        if base is not None and base.state is not None:
            channel = self._rounds_from(self._state_in(base.state), base.at.round)
            _, *rows = unpack(base.state)
            earlier, drawn = (
                state_from_bytes(each, DrawnRows(rows=0, earlier=())) for each in rows
            )
            channel.noise.recall(earlier)
            channel.drawn = drawn
        for step in (each for each in steps if each.at < until and each.row is not None):
            self._read(channel, (*step.rows, cast("bytes", step.row)))
            channel.go_to(step.at, step.rows)
        return channel

    def _rounds_from(self, state: Any, t: int = 0) -> NodeChannel:
        """Return the node's rounds from t on."""
        context = None
        if not self.rehearsal:
            versions = f"{__version__} {np.__version__}".encode()
            context = digest(self.contract.hash, self._records.encode(), versions)
        inputs = self._problem, self._own, context, state, t
        return NodeChannel(self._schedule, self.number, *inputs)

    def _read(self, channel: NodeChannel, messages: tuple[bytes, ...]) -> None:
        """Pass on the rows in stored messages."""
        for message in messages:
            row = Row.read(message, self.contract, stored=True)
            channel.rows.setdefault(row.at, {})[row.party] = row.values(self.contract)

    def _packed(self, packet: Packet, at: Position, mixed: bytes) -> Row:
        """Return a released packet as a row; fail if it is longer than the contract allows."""
        contract, values = self.contract, packet.values
        public = contract.hash, at, self.number, self.folder.incarnation(contract.hash)
        kind = contract.terms.numbers
        if values is None:
            return Row(*public, kind, (0, 0), b"", mixed)
        said = self.partners.statement(at.round + 1) if contract.has_partners else b""
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
