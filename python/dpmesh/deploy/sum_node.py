"""A node whose part of each sum leaves it under masks; see `dpmesh.deploy.node`.

A position is a round and an attempt at its sums: one for all parties, or one for each over its
neighbours. The node takes its totals of the rounds before, each of which must carry the tag of an
agreement that names what this node has accepted so far, and then answers once for each attempt: its
parts of all sums that it adds to, one for each header, under masks, of a fresh draw, and charged.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from dpmesh.data import Dataset
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.exchange import SumChannel
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.node import Node
from dpmesh.deploy.signing import pack, unpack
from dpmesh.deploy.state import state_as_bytes, state_from_bytes
from dpmesh.deploy.steps import Stored
from dpmesh.deploy.sums import DEAL, HEADER, PARTS, SEAL, TOTAL, Header, Seal, Total
from dpmesh.deploy.wire import (
    BEFORE,
    Ask,
    Fresh,
    Position,
    RefusedError,
    kind_of,
    numbers,
    progress,
)
from dpmesh.keys import Key
from dpmesh.privacy.releases import Release
from dpmesh.privacy.secure import SecureSum
from dpmesh.privacy.secure.mechanism import Masked

_log = logging.getLogger("dpmesh")

MOST_TRIES = 1000
"""Totals without a right tag after which a node stops."""


class SumNode(Node):
    """One party of a contract whose parties add up sums under masks.

    Parameters
    ----------
    contract, folder, records, rehearsal
        As of a `Node`. Masks are random in a rehearsal, too.

    Raises
    ------
    OverBudget, ValueError
        As a `Node` does.
    """

    def __init__(
        self, contract: Contract, folder: Folder, records: Dataset, *, rehearsal: bool = False
    ) -> None:
        super().__init__(contract, folder, records, rehearsal=rehearsal)
        self._known, self._ahead = BEFORE, (0,) * len(contract.planned)
        """The last attempt that another party had answered when this node started, and how many
        more than this node the others had been charged for, of each kind of sum."""
        self._tries = 0

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a message of the router, as a `Node` does."""
        if kind_of(message) == DEAL:
            with suppress(ValueError, RefusedError):
                _, of, *signed = unpack(message)
                if of == self.contract.hash:
                    return self._group_of(tuple(signed)).dealt()
        return super().answer(message)

    @property
    def is_sealed(self) -> bool:
        """Whether so many parties signed the same totals that no two models can have as many.

        With sums over neighbours models differ: each is its own.
        """
        if not self.contract.has_one_model:
            return self.is_done
        return len(self.seals) >= self.contract.sealing

    @property
    def seals(self) -> tuple[bytes, ...]:
        """The words, one of each party, that it accepted the totals that this node accepted."""
        last, found = self.folder.last(self.contract), dict[int, bytes]()
        ends = last is not None and last.at.round == self._schedule.end.round
        if last is None or last.row is None or not ends or not self.contract.has_one_model:
            return ()
        for message in (last.row, *last.rows):
            with suppress(ValueError):
                seal = Seal.read(message, self.contract)
                if seal.transcript == self.transcript:
                    found.setdefault(seal.party, message)
        return tuple(found.values())

    def _ended(self, message: bytes) -> tuple[Position, int]:
        seal = Seal.read(message, self.contract)
        return seal.at, seal.party

    @property
    def transcript(self) -> bytes:
        """The hash of all totals that this node accepted, and of what was agreed on for each."""
        return self._progress(self.folder.last(self.contract)).transcript

    def _later_than(self, asked: tuple[Fresh, ...]) -> bytes:
        last = self.at or Position(-1)
        return b"".join(numbers(last.round + 1, last.exchange, *self._spent))

    @property
    def _own_spent(self) -> tuple[int, ...]:
        """How many sums of each kind this node was charged for."""
        of_steps, spent = self.folder.attempts(self.contract), [0] * len(self.contract.planned)
        for step, count in of_steps.items():
            spent[self.contract.kind_at(step)] += count
        return tuple(spent)

    @property
    def _spent(self) -> tuple[int, ...]:
        """The same, or more of them if others were."""
        return tuple(map(sum, zip(self._own_spent, self._ahead, strict=True)))

    def _confirm(self, ask: Ask) -> bool:
        """Whether all others of the cohort have said how far they got since this node started.

        Some may have answered this very attempt: under another header it opens nothing, since they
        do not answer it again.
        """
        headers, said = self._headers(ask), self._said(ask)
        if not headers:
            return True  # nothing is released at the end
        others = {party for header in headers for party in header.cohort} - {self.number}
        self._confirmed = others <= said.keys()
        if self._confirmed:
            found = [progress(each, self.contract) for by, each in said.items() if by in others]
            self._known = max((at for at, _ in found), default=BEFORE)
            now = self.contract.kind_at(ask.at.round)
            self._ahead = tuple(
                max(0, *(spent[kind] - (at == ask.at and kind == now) - own for at, spent in found))
                for kind, own in enumerate(self._own_spent)
            )
            self.folder.confirmed(self.contract)
        return self._confirmed

    def _headers(self, ask: Ask) -> list[Header]:
        """Return a question's header for each sum that this node adds to, none at the end.

        Refuse those of another attempt, and two for one sum, which would get the same noise.
        """
        with suppress(ValueError):
            headers = _headers_in(ask.attached, self.contract)
            adds = sum(self.number in some for some in self.contract.sums_at(0).receivers)
            count = 0 if ask.at.round == self._schedule.end.round else adds
            dealers = {header.dealer for header in headers if header.at == ask.at}
            if len(dealers) == len(headers) == count:
                return headers
        raise RefusedError("malformed")

    def _check_order(self, last: Stored | None, at: Position) -> None:
        """Refuse an attempt that is not after the last one, or one of a run that is over."""
        before = BEFORE if last is None else last.at
        pending = last is not None and last.row is None
        if pending or at <= before or at > self._schedule.end:
            raise RefusedError("not the next round")
        if at < self._known:
            raise RefusedError("not the next round")

    def _checked(self, ask: Ask, last: Stored | None) -> tuple[bytes, ...]:
        headers = self._headers(ask)
        reached, totals = self._progress(last), list[bytes]()
        for message in (m for m in ask.attached if kind_of(m) == TOTAL):
            try:
                total = Total.read(message, self.contract)
            except ValueError:
                raise RefusedError("malformed") from None
            if total.header.at.round < reached.step:
                continue  # the router did not get the last answer
            if total.header.at.round > reached.step or not self._may_open(total, last):
                raise RefusedError("not the next round")
            try:
                _, transcript = self._group_of(ask.attached).opened(total, reached.transcript)
            except RefusedError:
                raise
            except ValueError:
                raise self._bad_total() from None
            reached = _Reached(reached.step + 1, transcript)
            totals.append(message)
        if ask.at.round != reached.step:
            raise RefusedError("not the next round")
        if not headers:
            return (*totals, *(m for m in ask.attached if kind_of(m) == SEAL))
        for header in headers:
            if self.number not in header.cohort or not self._is_enough(header):
                raise RefusedError("bad cohort")
            try:
                self._group_of(ask.attached).agreement(header, reached.transcript)
            except RefusedError:
                raise
            except ValueError:
                raise RefusedError("bad key") from None
        return (*totals, *(header.as_bytes(self.contract) for header in headers))

    def _is_enough(self, header: Header) -> bool:
        """Whether the shares of noise of a cohort's honest parties are enough."""
        return self.contract.sums_at(header.at.round).is_cohort(header.cohort, header.dealer)

    def _bad_total(self) -> RefusedError:
        self._tries += 1
        if self._tries > MOST_TRIES:
            self.folder.stop(self.contract)
        return RefusedError("bad total")

    def _may_open(self, total: Total, last: Stored | None) -> bool:
        """Whether a total is of the last attempt that this node answered, or of a later one.

        Of sums over neighbours it must be this node's own, of which it has answered no header.
        """
        header, for_all = total.header, isinstance(self.contract.sums, SecureSum)
        if not self._is_enough(header) or not (for_all or header.dealer == self.number):
            return False
        if last is None or header.at > last.at:
            return True
        answered = _headers_in(last.rows, self.contract) if for_all else [header]
        return last.at == header.at and header.common in [each.common for each in answered]

    def _charged(self, at: Position) -> tuple[Release, ...]:
        if at.round == self._schedule.end.round:
            return ()
        kind = self.contract.kind_at(at.round)
        planned = self.contract.planned[kind]
        if self._spent[kind] >= len(planned) or self.folder.is_over_budget:
            raise RefusedError("over budget")
        return (planned[self._own_spent[kind]],)

    def _compare_again(self, ask: Ask, step: Stored) -> None:
        """Compare nothing, either."""

    def _compare(self, rows: tuple[bytes, ...], last: Stored | None) -> None:
        """Compare nothing: a total that passed is that of all who agree."""

    def _hear(self, rows: tuple[bytes, ...]) -> None:
        """Keep nothing of others: parts are seen by nobody."""

    def _progress(self, last: Stored | None) -> _Reached:
        """Return the round that this node is in, and the transcript before it."""
        if last is None or last.state is None:
            return _Reached(0, self.contract.hash)
        return _Reached(last.at.round, unpack(last.state)[0])

    def _computed(self, at: Position) -> tuple[Any, bytes]:
        """Return the node's rounds, gone on to an attempt, and its parts under masks."""
        step = self.folder.step(self.contract, at)
        assert step is not None
        channel, self._channel = self._channel or self._resumed(at), None
        masked, headers = self._gone_on(channel, step)
        if masked is None:
            seal = Seal(at, self.number, channel.transcript)
            return channel, seal.signed(self.contract, self.folder.signing)
        group, before = self._group_of(), channel.transcript
        parts = list[bytes]()
        for header in headers:
            (noisy,) = masked.part(group.receiver(header.dealer))
            parts.append(group.part(header, before, noisy).as_bytes(self.contract))
        return channel, pack(PARTS, *parts)

    def _gone_on(self, channel: SumChannel, step: Stored) -> tuple[Masked | None, list[Header]]:
        """Take the totals of a stored step, and begin its attempt."""
        headers = _headers_in(step.rows, self.contract)
        for message in (m for m in step.rows if kind_of(m) == TOTAL):
            total = Total.read(message, self.contract)
            if total.header.at.round == channel.step:
                opened, transcript = self._group_of().opened(total, channel.transcript)
                channel.take(opened[None], transcript)
        own = None
        if headers and not self.rehearsal:
            group, before = self._group_of(), channel.transcript
            seed = group.noise(*(group.agreement(header, before) for header in headers))
            own = Key.seeded(int.from_bytes(seed, "big"))
        return channel.attempt(step.at, own), headers

    def _resumed(self, until: Position) -> SumChannel:
        """Return the node's rounds from the folder."""
        steps = [each for each in self.folder.steps(self.contract) if each.at < until]
        base = next((each for each in reversed(steps) if each.state is not None), None)
        reached, state = self._progress(base), self._start
        if base is not None and base.state is not None:
            state = self._state_in(base.state)
        own = self._own if self.rehearsal else None
        kept = () if base is None or base.state is None else unpack(base.state)[2:]
        inputs = self._problem, own, state, reached.step, reached.transcript
        totals = [np.frombuffer(each, np.int64)[None] for each in kept]
        channel = SumChannel(self._schedule, self.number, *inputs, totals)
        if base is not None:
            self._gone_on(channel, base)
        return channel

    def _kept(self, channel: SumChannel) -> bytes:
        totals = (total.tobytes() for total in channel.totals)
        return pack(channel.transcript, state_as_bytes(channel.state), *totals)

    def _state_in(self, kept: bytes) -> Any:
        return state_from_bytes(unpack(kept)[1], self._start)


class _Reached(NamedTuple):
    """The step that a node is at, and the transcript of all steps before it."""

    step: int
    transcript: bytes


def _headers_in(messages: tuple[bytes, ...], contract: Contract) -> list[Header]:
    """Return the headers among messages; none at the end."""
    return [Header.read(each, contract) for each in messages if kind_of(each) == HEADER]


def node_of(
    contract: Contract, folder: Folder, records: Dataset, *, rehearsal: bool = False
) -> Node:
    """Return the node of a party: see `Node` for the parameters, and for what is raised."""
    kind = Node if contract.sums is None else SumNode
    return kind(contract, folder, records, rehearsal=rehearsal)
