"""The only way out of a node: what a round yields is released, recorded and carried here."""

from __future__ import annotations

import reprlib
import secrets
from collections.abc import Generator, Iterator
from functools import partial
from types import GeneratorType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._arrays import read_only
from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Indices
from dpmesh._validate import fail
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.messages import Message, Relay
from dpmesh.keys import Key, Purpose, Stream
from dpmesh.noise.compression import Compressed, Compressor
from dpmesh.noise.rows import CorrelatedRow
from dpmesh.noise.secure import DistributedDiscreteGaussian
from dpmesh.noise.secure.mechanism import is_summed
from dpmesh.privacy.ledger import Ledger
from dpmesh.privacy.releases import Release
from dpmesh.problems import Problem
from dpmesh.run.carriers import Carrier, Packet, Sent
from dpmesh.run.noise import NoiseRows
from dpmesh.run.watch import Watcher, watched

AGAIN = 2**16
"""Added to the purpose of a stream for each earlier message of a row in the same round."""


_Parts: TypeAlias = list[tuple[Release, Indices]]
"""Releases, and the rows of each."""


class Step(NamedTuple):
    """A finished round: the next state, and what was sent.

    `run_rounds` adds what arrived last, which `Algorithm.published` takes.
    """

    state: Any
    sent: Sent
    received: Released | None = None


class Channel:
    """Drives the rounds of an algorithm: releases, records and carries what they yield.

    Each row of each message has noise of its own, from the stream of (key, purpose, round, row): a
    row that sends again in a round draws under another purpose.

    An engine that carries messages another way overrides these: `check_request` refuses what a
    round yields, `admit` records releases, `noise_key` says where their noise comes from, and
    `release_rows` releases the rows of a message. `earlier_messages` counts a message whose rows an
    override does not release again.

    Parameters
    ----------
    carrier
        How messages travel; None if whoever drives `steps` carries them.
    key
        Where noise and a compressor's coins come from: each node's row draws as its number.
    ledger
        Records releases before their noise is drawn, and may refuse them.
    nodes
        The numbers of the nodes whose rows are here; None for all.
    pair_key
        Where the secrets of partners come from, the same wherever a partner is; by default `key` if
        all nodes are here.
    watcher
        Of an audit; None outside of one.
    """

    def __init__(
        self,
        carrier: Carrier | None,
        key: Key,
        ledger: Ledger,
        *,
        nodes: Indices | None = None,
        pair_key: Key | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.carrier, self.ledger = carrier, ledger
        self.key, self._nodes, self._watcher = key, nodes, watcher
        self._times = np.zeros(0, np.int64)
        """How many messages of the current round each row was in, but for the first `_whole`."""
        self._whole = 0, 0
        """How many messages began the round that were of all rows, and of how many rows."""
        self._turns = 0
        """How many messages of the current round named a sender, here or elsewhere."""
        self._unsent: Packet | None = None
        """What was released to be carried by a later `Relay`."""
        self.received: Released | None = None
        """What arrived last, in this round or an earlier one; None before the first message."""
        self._bits: int | Indices = 0
        self._count = 0
        self.noise = NoiseRows(nodes, ledger.nodes, key if nodes is None else pair_key)
        """The secret rows of correlated noise."""

    def run(self, algorithm: AnyAlgorithm, state: Any, t: int, problem: Problem, key: Key) -> Step:
        """Run round t of an algorithm: `steps`, whose packets the carrier delivers.

        Raises
        ------
        OverBudget
            If the budget has no room for a release; neither it nor a later one leaves.
        ValueError
            If the round yields anything but messages, or a message does not fit its release.
        """
        assert self.carrier is not None
        steps = self.steps(algorithm, state, t, problem, key)
        arrived: Released | None = None
        try:
            while True:
                arrived = self.carrier.carry(t, steps.send(arrived))
        except StopIteration as end:
            step: Step = end.value
            return step

    def steps(
        self, algorithm: AnyAlgorithm, state: Any, t: int, problem: Problem, key: Key
    ) -> Generator[Packet, Released | None, Step]:
        """Run round t of an algorithm, and stop wherever a packet travels.

        It yields each packet, is sent what arrived, shape (nodes, dim), and returns the finished
        round. It raises what `run` raises.
        """
        self._whole, self._turns = (0, 0), 0
        if len(self._times):
            self._times = np.zeros(0, np.int64)
        self.noise.begin_round()
        self._unsent, self._bits, self._count = None, 0, 0
        requests = algorithm.round(state, t, problem, key)
        if not isinstance(requests, GeneratorType):
            wanted = "one whose round is a generator, which yields messages"
            fail("algorithm", wanted, f"{type(algorithm).__name__} with {reprlib.repr(requests)}")
        answer: Any = None
        sent_before = False
        while True:
            try:
                request = requests.send(answer)
            except StopIteration as end:
                return Step(end.value, Sent(self._bits, self._count))
            self.check_request(t, request)
            if isinstance(request, Message):
                answer = yield from self._send(t, request)
            elif not isinstance(request, Relay):
                fail("algorithm", "rounds that yield Message or Relay", reprlib.repr(request))
            elif sent_before:
                answer = yield from self._carry(self._unsent or Packet(answer))
            else:
                fail("algorithm", "a Message before a Relay in each round", "none")
            sent_before = True

    def check_request(self, t: int, request: object) -> None:
        """Accept what a round yields; override it to refuse a request before it is recorded."""

    def end_round(self) -> None:
        """Record the round as finished: its releases, and the rows of noise that they took."""
        self.ledger.end_round()
        if self.noise.in_round:
            self.noise.memory = self.noise.memory | self.noise.in_round

    def _send(
        self, t: int, message: Message
    ) -> Generator[Packet, Released | None, Released | None]:
        """Release a message and let it travel; return what arrived."""
        release = message.release
        releases = (release,) if isinstance(release, Release) else release
        self._turns += message.sender is not None
        if any(map(is_summed, releases)):
            return (yield from self._summed(t, message, releases))
        if message.values is None:
            packet = Packet(None, sender=message.sender)
        else:
            packet = self.release_rows(t, message, message.values, releases)
        if not message.travels:
            if message.values is None:  # of nodes in other processes
                self.admit(t, message, releases)
            self._unsent = packet
            return packet.values
        arrived: Released | None = yield from self._carry(packet)
        if message.values is None and arrived is not None:  # the sender is in another process
            self.admit(t, message, releases)
            like, nobody = Sensitive(arrived), np.zeros(0, np.int64)
            key, among = self.noise_key(like), message.among or 1
            releases[-1].mechanism.with_rows(  # which are drawn in order, at all nodes
                lambda row: self.noise.draw_some(key, row, t, like, nobody, among)
            )
        return arrived

    def _summed(
        self, t: int, message: Message, releases: tuple[Release, ...]
    ) -> Generator[Packet, Any, Released]:
        """Release the sum of all nodes' rows: their integers travel, and totals are opened."""
        release, values = releases[0], message.values
        changed = message.sender, message.rows, message.compressor, message.unit, message.travels
        if len(releases) > 1 or values is None or changed != (None, None, None, 1.0, True):
            fail("release", "a sum by itself, in one message of all nodes as it is", release)
        mechanism = release.mechanism
        assert isinstance(mechanism, DistributedDiscreteGaussian)
        self.admit(t, message, releases)
        again = AGAIN * self.earlier_messages(message, len(values))
        stream = self.noise_key(values).stream(Purpose.NOISE + again, t)
        nodes = np.arange(len(values)) if self._nodes is None else self._nodes
        masked = mechanism.part(values, nodes, stream)
        packet = Packet(None, copies=message.copies, bits=message.bits, masked=masked)
        out = mechanism.opened((yield from self._carry(packet)))
        if self._watcher is not None:
            out, _ = watched(self._watcher, releases, None, values, out, out, None, None)
        self.received = out = Released(read_only(out))
        return out

    def _carry(self, packet: Packet) -> Generator[Packet, Any, Any]:
        """Count the bits of a packet, and the messages that it makes; return what arrived."""
        values, compressed, _, copies, length, masked, _ = packet
        sent = values if masked is None else masked.steps
        if sent is not None:
            bits = compressed.bits if compressed else 8 * sent.itemsize * sent.shape[1]
            if copies is not None:
                bits = copies * int(np.mean(bits)) if length is None else length
            self._bits = self._bits + bits
            self._count += 1 if copies is None else copies
        arrived = yield packet
        if arrived is not None:  # a step in place would make private what may be published
            self.received = arrived = Released(read_only(arrived))
        self._unsent = None
        return arrived

    def release_rows(
        self, t: int, message: Message, values: Sensitive, releases: tuple[Release, ...]
    ) -> Packet:
        """Record and release the rows of a message."""
        rows, unit = message.rows, message.unit
        if getattr(values, "ndim", None) != 2 or (rows is not None and len(rows) != len(values)):
            fail("values", "an array of shape (rows, dim), as many rows as named", np.shape(values))
        together = len(releases) == 1 and releases[0].nodes is None
        parts = None if together else self._parts(message, releases, len(values))
        self.admit(t, message, releases)
        if message.travels:
            self.received = None  # as large as the state: its memory goes before what arrives comes
        again = AGAIN * self.earlier_messages(message, len(values))
        has_unit = isinstance(unit, np.ndarray) or unit != 1.0
        inside = Sensitive(values / unit) if has_unit else values
        whole = self.noise_key(inside)
        numbers = self._nodes if rows is None and message.sender is None else rows
        key = whole if numbers is None else whole.for_nodes(numbers.astype(np.uint32))
        stream = key.stream(Purpose.NOISE + again, t)
        if parts is None:
            draw = partial(self._rows_of_noise, t, message, inside, whole, again)
            mechanism = releases[0].mechanism.with_rows(draw)
            out = mechanism.release(inside, releases[0].sensitivity, stream)
        else:
            out = _in_parts(parts, inside, stream)
        noisy, compressed = out, None
        if (compressor := message.compressor) is not None:
            coins = key.stream(Purpose.QUANTIZE + again, t)
            compressed = _compressed(compressor, Released(out * unit) if has_unit else out, coins)
            decoded = read_only(compressed.values)
            out = Released(decoded / unit) if has_unit else Released(decoded)
        if self._watcher is not None:
            out, compressed = watched(
                self._watcher, releases, parts, inside, noisy, out, compressed, rows
            )
        if has_unit:
            out = Released(out * unit)
        return self._packed(message, out, compressed)

    def _rows_of_noise(
        self, t: int, message: Message, inside: Sensitive, key: Key, again: int, row: CorrelatedRow
    ) -> Floats:
        """Return the noise of a mechanism that depends on earlier rows, for those of a message."""
        rows = message.rows
        if again or (rows is None) != (message.sender is None):
            wanted = "correlated noise in one message of all nodes a round"
            fail("release", wanted, message.release)
        if rows is None:
            return self.noise.draw(key, row, t, inside)
        return self.noise.draw_some(key, row, t, inside, rows, message.among or 1)

    def noise_key(self, values: Sensitive) -> Key:
        """Return where the noise on these values comes from."""
        return self.key

    def _parts(self, message: Message, releases: tuple[Release, ...], count: int) -> _Parts | None:
        """Return the rows of each release; None if there is one release of all rows."""
        if message.sender is not None:
            if len(releases) != 1:
                fail("release", "one for each message", f"{len(releases)}")
            return None
        everybody = np.arange(self.ledger.nodes)
        here = everybody if self._nodes is None else self._nodes
        named = np.sort([node for release in releases for node in release.nodes or ()])
        if not np.array_equal(named, everybody) or len(here) != count:
            fail("release", "releases that name each node of the message once", releases)
        parts = [
            (release, np.flatnonzero(np.isin(here, release.nodes or ()))) for release in releases
        ]
        return [(release, some) for release, some in parts if len(some)]

    def admit(self, t: int, message: Message, releases: tuple[Release, ...]) -> None:
        """Ask the ledger for the releases of a message, which it records."""
        sender = message.sender
        if sender is not None and not 0 <= sender < self.ledger.nodes:
            fail("sender", f"a node below {self.ledger.nodes}", sender)
        for release in releases:
            if release.round != t:
                fail("release", f"one of round {t}", f"one of round {release.round}")
            if sender is not None and sender not in (release.nodes or (sender,)):
                fail("release", f"one of node {sender}, which sends", f"nodes {release.nodes}")
            self.ledger.admit(release, release.nodes if sender is None else (sender,))

    def earlier_messages(self, message: Message, count: int) -> int:
        """Return in how many messages of the round one of these rows was, and count this one.

        Rows without numbers of their own are the same for all senders: then each turn counts, also
        one whose values are in another process.
        """
        rows, sender = message.rows, message.sender
        times, of = self._whole
        if rows is None and sender is None and not len(self._times) and of in (0, count):
            self._whole = times + 1, count
            return times
        if times:  # the first of another kind: from here on each row is counted
            self._times, self._whole = np.full(of, times), (0, 0)
        last = count if rows is None else int(rows.max()) + 1
        if last > len(self._times):
            self._times = np.concatenate([self._times, np.zeros(last - len(self._times), np.int64)])
        which = slice(count) if rows is None else rows
        turns = self._turns - 1 if sender is not None and rows is None else 0
        earlier = max(turns, int(self._times[which].max()))
        self._times[which] = earlier + 1
        return earlier

    def _packed(self, message: Message, out: Released, compressed: Compressed | None) -> Packet:
        """Return what travels of a message."""
        copies = message.copies
        if message.sender is not None:
            copies = len(out)
        if message.among is not None and message.rows is not None:
            whole = np.full((message.among, out.shape[1]), np.nan, out.dtype)
            whole[message.rows % message.among] = out
            out = Released(whole)
        if out.flags.writeable:
            out = Released(read_only(out))
        return Packet(
            out, compressed, message.sender, copies, message.bits, unmixed=message.unmixed
        )


def _in_parts(parts: _Parts, inside: Sensitive, stream: Stream) -> Released:
    """Release the rows of each part by its own mechanism."""
    out = Released(np.empty_like(inside))
    for release, some in parts:
        noise = stream.for_nodes(some.astype(np.uint32))
        private = Sensitive(inside[some])
        out[some] = release.mechanism.release(private, release.sensitivity, noise)
    return out


def _compressed(compressor: Compressor, values: Released, coins: Stream) -> Compressed:
    """Return what receivers decode, and the length of each message in bits."""
    compressed = compressor.compress(values, coins)
    if not kernels.all_finite(compressed.values):
        kind = compressed.values.dtype
        fail("values", f"numbers whose compression {kind} can hold", "larger ones")
    return compressed


def run_rounds(
    algorithm: AnyAlgorithm, problem: Problem, carrier: Carrier, *, rounds: int, key: Key
) -> Iterator[Step]:
    """Run an algorithm without measuring anything, and yield each finished round.

    Without a seed each run draws noise of its own, as `simulate` does.
    """
    if not key.is_seeded:
        key = key.derive(secrets.token_bytes(32))
    ledger = Ledger(algorithm.plan(rounds), nodes=problem.nodes)
    channel, state = Channel(carrier, key, ledger), algorithm.init(problem, key)
    for t in range(rounds):
        step = channel.run(algorithm, state, t, problem, key)
        channel.end_round()
        state = step.state
        yield step._replace(received=channel.received)
