"""The only way out of a node: what a round yields is released, recorded and carried here."""

from __future__ import annotations

import reprlib
import secrets
from collections.abc import Generator, Iterator
from functools import partial
from types import GeneratorType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

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
from dpmesh.run.carriers import Carrier, Packet, SentInRound
from dpmesh.run.noise import NoiseRows
from dpmesh.run.watch import Watcher, watched

AGAIN = 2**16
"""Added to the purpose of a stream for each earlier message of a row in the same round.

It is larger than every `Purpose`: no two messages of a row share a stream.
"""

_Parts: TypeAlias = list[tuple[Release, Indices]]
"""The releases of a message, and the indices of the rows that each releases, shape (rows,)."""

_Travelling: TypeAlias = Generator[Packet, Any, Any]
"""A message on its way: it yields its packet, is sent what arrived, and returns that.

Rows arrive as floats, shape (nodes, dim), totals of sums as integers, and None if nothing does.
"""


class Step(NamedTuple):
    """A finished round: the next state, and the length and number of the messages.

    `run_rounds` adds the last received messages, from which `Algorithm.published` makes models.
    """

    state: Any
    sent: SentInRound
    received: Released | None = None


class _MessagesOfAll(NamedTuple):
    """The number of messages of all rows, and the number of rows of each."""

    messages: int
    rows: int


class _PrivateRows(NamedTuple):
    """The rows of a message before their release."""

    message: Message
    t: int
    """The round."""
    values: Sensitive
    """The rows divided by `message.scale_factor`, shape (rows, dim)."""
    key: Key
    """The source of noise for all rows."""
    key_by_row: Key
    """The same source, from which each row draws by its own number or that of its node."""
    again: int
    """What earlier messages of the round add to the purpose of a stream: see `AGAIN`."""


class Channel:
    """Drives the rounds of an algorithm: releases, records and carries what they yield.

    Each row of each message has noise of its own, from the stream of (key, purpose, round, row): a
    row that sends again in a round draws under another purpose.

    An engine that carries messages another way overrides these methods: `check_request` refuses
    what a round yields, `admit` records releases, `noise_key` returns the source of their noise,
    and `release_rows` releases the rows of a message. `earlier_messages` counts a message whose
    rows an override does not release again.

    Parameters
    ----------
    carrier
        Carrier of the messages; None if the caller of `steps` carries them.
    key
        Source of noise and of a compressor's coins: each node's row draws by the node's number.
    ledger
        Ledger that records releases before their noise is drawn, and may refuse them.
    nodes
        Numbers of the nodes whose rows this process has; None for all.
    pair_key
        Source of the secrets of partners, the same for both of them; by default `key` if this
        process has all nodes.
    watcher
        Watcher of an audit; None outside of one.
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
        self.carrier = carrier
        self.key = key
        self.ledger = ledger
        self.received: Released | None = None
        """What arrived last, in this round or an earlier one; None before the first message."""
        self._nodes = nodes
        self._watcher = watcher
        self._messages_of_row = np.zeros(0, np.int64)
        """Messages of the current round by row, shape (rows,); empty while all were of all rows."""
        self._messages_of_all = _MessagesOfAll(messages=0, rows=0)
        """Messages of the current round, while all of them were of all rows; then none."""
        self._turns = 0
        """Messages of the current round that named a sender, here or elsewhere."""
        self._unsent: Packet | None = None
        """Released values that a later `Relay` carries."""
        self._bits: int | Indices = 0
        """Bits that were sent in the current round: see `SentInRound`."""
        self._count = 0
        """Messages that were sent in the current round: see `SentInRound`."""
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
        self._begin_round()
        requests = algorithm.round(state, t, problem, key)
        if not isinstance(requests, GeneratorType):
            expected = "one whose round is a generator, which yields messages"
            got = f"{type(algorithm).__name__} with {reprlib.repr(requests)}"
            fail("algorithm", expected, got)
        answer: Any = None  # what the last request got: rows, sums, or None
        sent_before = False
        while True:
            try:
                request = requests.send(answer)
            except StopIteration as end:
                if end.value is None and state is not None:
                    got = f"None from round of {type(algorithm).__name__}"
                    fail("algorithm", "one whose round returns the next state", got)
                return Step(end.value, SentInRound(self._bits, self._count))
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

    def _begin_round(self) -> None:
        """Forget the messages of the round before."""
        self._messages_of_all = _MessagesOfAll(messages=0, rows=0)
        self._turns = 0
        if len(self._messages_of_row):
            self._messages_of_row = np.zeros(0, np.int64)
        self.noise.begin_round()
        self._unsent = None
        self._bits = 0
        self._count = 0

    def check_request(self, t: int, request: object) -> None:
        """Accept a request of a round; an override may refuse it before it is recorded."""

    def end_round(self) -> None:
        """Record the round as finished: its releases, and the rows of noise that they took."""
        self.ledger.end_round()
        if self.noise.in_round:
            self.noise.memory = self.noise.memory | self.noise.in_round

    def _send(self, t: int, message: Message) -> _Travelling:
        """Release a message and let it travel; return what arrived."""
        releases = message.release
        if isinstance(releases, Release):
            releases = (releases,)
        if message.sender is not None:
            self._turns += 1
        if any(map(is_summed, releases)):
            return (yield from self._send_sum(t, message, releases))
        if message.values is None:
            return (yield from self._send_elsewhere(t, message, releases))
        packet = self.release_rows(t, message, message.values, releases)
        if message.travels:
            return (yield from self._carry(packet))
        self._unsent = packet
        return packet.values

    def _send_elsewhere(
        self, t: int, message: Message, releases: tuple[Release, ...]
    ) -> _Travelling:
        """Let a message travel that a node in another process releases; return what arrived."""
        packet = Packet(None, sender=message.sender)
        if not message.travels:
            self.admit(t, message, releases)
            self._unsent = packet
            return None
        arrived: Released | None = yield from self._carry(packet)
        if arrived is not None:
            self.admit(t, message, releases)
            self._skip_noise(t, message, releases[-1], arrived)
        return arrived

    def _skip_noise(self, t: int, message: Message, release: Release, arrived: Released) -> None:
        """Draw the correlated noise of a sender in another process: all nodes draw it in order."""
        like = Sensitive(arrived)
        key = self.noise_key(like)
        no_rows = np.zeros(0, np.int64)
        release.mechanism.with_rows(
            lambda row: self.noise.draw_some(key, row, t, like, no_rows, message.row_count or 1)
        )

    def _send_sum(
        self, t: int, message: Message, releases: tuple[Release, ...]
    ) -> Generator[Packet, Any, Released]:
        """Release the sum of all nodes' rows; return the noisy sums, shape (receivers, dim).

        Each node rounds its row to integers and adds its share of the noise. Only the totals of
        these integers over all nodes arrive, from which the sums are opened.
        """
        release = releases[0]
        values = message.values
        if len(releases) > 1 or values is None or not _is_of_all_as_it_is(message):
            fail("release", "a sum by itself, in one message of all nodes as it is", release)
        mechanism = release.mechanism
        assert isinstance(mechanism, DistributedDiscreteGaussian)
        self.admit(t, message, releases)
        purpose = Purpose.NOISE + AGAIN * self.earlier_messages(message, len(values))
        stream = self.noise_key(values).stream(purpose, t)
        contributions = mechanism.part(values, self._local_nodes(len(values)), stream)
        packet = Packet(None, copies=message.copies, bits=message.bits, masked=contributions)
        totals = yield from self._carry(packet)
        sums = mechanism.opened(totals)
        if self._watcher is not None:
            sums, _ = watched(
                self._watcher,
                releases,
                parts=None,
                inside=values,
                noisy=sums,
                values=sums,
                compressed=None,
                rows=None,
            )
        received = Released(read_only(sums))
        self.received = received
        return received

    def _local_nodes(self, count: int) -> Indices:
        """Return the numbers of the nodes here; of all `count` nodes if they are all here."""
        if self._nodes is None:
            return np.arange(count)
        return self._nodes

    def _carry(self, packet: Packet) -> _Travelling:
        """Let a packet travel, and count it; return what arrived."""
        self._count_packet(packet)
        arrived = yield packet
        if arrived is not None:  # a step in place would make private what may be published
            arrived = Released(read_only(arrived))
            self.received = arrived
        self._unsent = None
        return arrived

    def _count_packet(self, packet: Packet) -> None:
        """Count the bits of a packet, and the messages that it makes.

        Without `copies` each node sends one message, and bits are counted by node. With `copies`
        the messages and bits of all nodes are counted together.
        """
        bits = _bits_of_row(packet)
        if bits is None:
            return
        copies = packet.copies
        if copies is None:
            self._bits = self._bits + bits
            self._count += 1
            return
        if packet.bits is None:
            self._bits = self._bits + copies * int(np.mean(bits))
        else:
            self._bits = self._bits + packet.bits
        self._count += copies

    def release_rows(
        self, t: int, message: Message, values: Sensitive, releases: tuple[Release, ...]
    ) -> Packet:
        """Record and release the rows of a message, shape (rows, dim).

        With a `message.scale_factor` of u, ``values / u`` is released, and u times the outcome
        travels.
        """
        _check_shape(values, message.rows)
        parts = self._parts(message, releases, len(values))
        self.admit(t, message, releases)
        if message.travels:
            self.received = None  # as large as the state: its memory goes before what arrives comes
        private = self._private_rows(t, message, values)
        noisy = self._noisy_rows(private, releases, parts)
        released = noisy
        compressed: Compressed | None = None
        if message.compressor is not None:
            compressed = _compressed(private, message.compressor, noisy)
            released = Released(read_only(compressed.values))
            if _is_scaled(message):
                released = Released(released / message.scale_factor)
        if self._watcher is not None:
            released, compressed = watched(
                self._watcher,
                releases,
                parts=parts,
                inside=private.values,
                noisy=noisy,
                values=released,
                compressed=compressed,
                rows=message.rows,
            )
        if _is_scaled(message):
            released = Released(released * message.scale_factor)
        return self._packed(message, released, compressed)

    def _private_rows(self, t: int, message: Message, values: Sensitive) -> _PrivateRows:
        """Return the rows of a message with the source of their noise, and count the message."""
        again = AGAIN * self.earlier_messages(message, len(values))
        scaled_values = values
        if _is_scaled(message):
            scaled_values = Sensitive(values / message.scale_factor)
        key = self.noise_key(scaled_values)
        numbers = message.rows
        if numbers is None and message.sender is None:
            numbers = self._nodes
        key_by_row = key
        if numbers is not None:  # else the rows draw as 0, 1, ..
            key_by_row = key.for_nodes(numbers.astype(np.uint32))
        return _PrivateRows(message, t, scaled_values, key=key, key_by_row=key_by_row, again=again)

    def _noisy_rows(
        self, private: _PrivateRows, releases: tuple[Release, ...], parts: _Parts | None
    ) -> Released:
        """Release private rows: all by one mechanism, or each part by its own."""
        stream = private.key_by_row.stream(Purpose.NOISE + private.again, private.t)
        if parts is not None:
            return _released_in_parts(parts, private.values, stream)
        (release,) = releases
        draw = partial(self._correlated_noise, private)
        mechanism = release.mechanism.with_rows(draw)
        return mechanism.release(private.values, release.sensitivity, stream)

    def _correlated_noise(self, private: _PrivateRows, mechanism: CorrelatedRow) -> Floats:
        """Return the noise of private rows by a mechanism that depends on earlier rows of noise."""
        message = private.message
        is_of_all = message.rows is None and message.sender is None
        is_of_a_sender = message.rows is not None and message.sender is not None
        if private.again or not (is_of_all or is_of_a_sender):
            expected = "correlated noise in one message of all nodes a round"
            fail("release", expected, message.release)
        if message.rows is None:
            return self.noise.draw(private.key, mechanism, private.t, private.values)
        return self.noise.draw_some(
            private.key,
            mechanism,
            private.t,
            private.values,
            rows=message.rows,
            among=message.row_count or 1,
        )

    def noise_key(self, values: Sensitive) -> Key:
        """Return the key from which the noise on these values comes."""
        return self.key

    def _parts(self, message: Message, releases: tuple[Release, ...], count: int) -> _Parts | None:
        """Return the rows here of each release; None if there is one release of all rows.

        Several releases must name each node once, in a message of all nodes with `count` rows here.
        """
        if len(releases) == 1 and releases[0].nodes is None:
            return None
        if message.sender is not None:
            if len(releases) != 1:
                fail("release", "one for each message", f"{len(releases)}")
            return None
        all_nodes = np.arange(self.ledger.nodes)
        local_nodes = self._local_nodes(self.ledger.nodes)
        named_nodes = np.sort([node for release in releases for node in release.nodes or ()])
        if not np.array_equal(named_nodes, all_nodes) or len(local_nodes) != count:
            fail("release", "releases that name each node of the message once", releases)
        parts = []
        for release in releases:
            rows = np.flatnonzero(np.isin(local_nodes, release.nodes or ()))
            if len(rows):
                parts.append((release, rows))
        return parts

    def admit(self, t: int, message: Message, releases: tuple[Release, ...]) -> None:
        """Ask the ledger for the releases of a message, which it records."""
        sender = message.sender
        if sender is not None and not 0 <= sender < self.ledger.nodes:
            fail("sender", f"a node below {self.ledger.nodes}", sender)
        for release in releases:
            if release.round != t:
                fail("release", f"one of round {t}", f"one of round {release.round}")
            if sender is None:
                self.ledger.admit(release, release.nodes)
                continue
            if release.nodes and sender not in release.nodes:
                fail("release", f"one of node {sender}, which sends", f"nodes {release.nodes}")
            self.ledger.admit(release, (sender,))

    def earlier_messages(self, message: Message, count: int) -> int:
        """Return the number of earlier messages of the round with these rows, and count this one.

        A sender's rows without numbers are 0, 1, .. whoever sends: then each turn of the round
        counts, also one whose values are in another process.

        `count` is the number of rows of the message.
        """
        is_of_all_rows = message.rows is None and message.sender is None
        counted_by_row = len(self._messages_of_row) > 0
        if is_of_all_rows and not counted_by_row and self._messages_of_all.rows in (0, count):
            earlier = self._messages_of_all.messages
            self._messages_of_all = _MessagesOfAll(messages=earlier + 1, rows=count)
            return earlier
        selected: slice | Indices
        if message.rows is None:
            selected = slice(count)
            self._count_by_row(count)
        else:
            selected = message.rows
            self._count_by_row(int(message.rows.max()) + 1)
        earlier = int(self._messages_of_row[selected].max())
        if message.sender is not None and message.rows is None:
            earlier = max(earlier, self._turns - 1)
        self._messages_of_row[selected] = earlier + 1
        return earlier

    def _count_by_row(self, count: int) -> None:
        """Count messages from here on by row, of at least `count` rows."""
        of_all = self._messages_of_all
        if of_all.messages:
            self._messages_of_row = np.full(of_all.rows, of_all.messages)
            self._messages_of_all = _MessagesOfAll(messages=0, rows=0)
        uncounted = count - len(self._messages_of_row)
        if uncounted > 0:
            new_rows = np.zeros(uncounted, np.int64)
            self._messages_of_row = np.concatenate([self._messages_of_row, new_rows])

    def _packed(
        self, message: Message, released: Released, compressed: Compressed | None
    ) -> Packet:
        """Return the packet of a message."""
        copies = message.copies
        if message.sender is not None:
            copies = len(released)
        if message.row_count is not None and message.rows is not None:
            all_rows = np.full((message.row_count, released.shape[1]), np.nan, released.dtype)
            all_rows[message.rows % message.row_count] = released
            released = Released(all_rows)
        if released.flags.writeable:
            released = Released(read_only(released))
        return Packet(
            released,
            compressed=compressed,
            sender=message.sender,
            copies=copies,
            bits=message.bits,
            unmixed=message.unmixed,
        )


def _check_shape(values: Sensitive, rows: Indices | None) -> None:
    """Fail unless values are rows, as many as a message names."""
    is_matrix = getattr(values, "ndim", None) == 2
    if not is_matrix or (rows is not None and len(rows) != len(values)):
        fail("values", "an array of shape (rows, dim), as many rows as named", np.shape(values))


def _is_of_all_as_it_is(message: Message) -> bool:
    """Return whether a message is of all nodes, and neither compressed nor scaled nor held back."""
    is_of_all = message.sender is None and message.rows is None
    is_unscaled = isinstance(message.scale_factor, float | int) and message.scale_factor == 1.0
    return is_of_all and is_unscaled and message.compressor is None and message.travels


def _bits_of_row(packet: Packet) -> int | Indices | None:
    """Return the bits of a row: one number, or that of each row; None if there is no content."""
    content: npt.NDArray[np.generic] | None = packet.values
    if packet.masked is not None:
        content = packet.masked.steps
    if content is None:
        return None
    if packet.compressed is not None:
        return packet.compressed.bits
    dim = int(content.shape[1])
    return 8 * content.itemsize * dim


def _released_in_parts(parts: _Parts, inside: Sensitive, stream: Stream) -> Released:
    """Release the rows of each part by its own mechanism."""
    released = Released(np.empty_like(inside))
    for release, rows in parts:
        part_stream = stream.for_nodes(rows.astype(np.uint32))
        part_values = Sensitive(inside[rows])
        released[rows] = release.mechanism.release(part_values, release.sensitivity, part_stream)
    return released


def _is_scaled(message: Message) -> bool:
    """Return True if the scale factor of a message is not 1 for all rows."""
    return isinstance(message.scale_factor, np.ndarray) or message.scale_factor != 1.0


def _compressed(private: _PrivateRows, compressor: Compressor, noisy: Released) -> Compressed:
    """Return what receivers decode of released rows, and the length of each message in bits.

    `noisy` holds the released rows, divided by `scale_factor`; the full rows are compressed.
    """
    in_full = noisy
    if _is_scaled(private.message):
        in_full = Released(noisy * private.message.scale_factor)
    coins = private.key_by_row.stream(Purpose.QUANTIZE + private.again, private.t)
    compressed = compressor.compress(in_full, coins)
    if not kernels.all_finite(compressed.values):
        dtype = compressed.values.dtype
        fail("values", f"numbers whose compression {dtype} can hold", "larger ones")
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
    channel = Channel(carrier, key, ledger)
    state = algorithm.init(problem, key)
    for t in range(rounds):
        step = channel.run(algorithm, state, t, problem, key)
        channel.end_round()
        state = step.state
        yield step._replace(received=channel.received)
