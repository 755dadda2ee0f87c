"""Release of messages: the only way by which values leave a node.

A round of an algorithm is a generator that yields a `Message` of private rows, or a `Relay` of
released ones. `Channel` asks the ledger to admit the release, adds the noise, compresses the rows,
and sends them as a `Packet` (`dpmesh.run.carriers`), which a carrier delivers. A *row* is one
vector of a message; most messages have one row for each node.
"""

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

REPEAT_OFFSET = 2**16
"""Added to the purpose of a stream for each earlier message of a row in the same round.

It is larger than every `Purpose`: no two messages of a row share a stream.
"""

_Parts: TypeAlias = list[tuple[Release, Indices]]
"""The releases of a message, and the indices of the rows that each releases, shape (rows,)."""

_Delivery: TypeAlias = Generator[Packet, Any, Any]
"""Generator that yields a packet, is sent the delivered rows, and returns these.

Delivered rows are floats, shape (nodes, dim); totals of sums are integers; None if nothing arrives.
"""


class Step(NamedTuple):
    """Finished round: the next state, and the length and number of the sent messages.

    `run_rounds` adds the last received rows, from which `Algorithm.published` makes models.
    """

    state: Any
    sent: SentInRound
    received: Released | None = None


class _MessagesOfAll(NamedTuple):
    """Number of messages that had all rows, and number of rows of each of them."""

    messages: int
    rows: int


class _PrivateRows(NamedTuple):
    """Private rows of a message before their release."""

    message: Message
    t: int
    """The round."""
    values: Sensitive
    """The rows divided by `message.scale_factor`, shape (rows, dim)."""
    key: Key
    """The source of noise for all rows."""
    key_by_row: Key
    """The same source, from which each row draws by its own number or that of its node."""
    purpose_offset: int
    """Multiple of `REPEAT_OFFSET` for earlier messages of the round, added to the purpose."""


class Channel:
    """Release, record and delivery of the messages that rounds yield.

    Each row of each message has independent noise, from the stream of (key, purpose, round, row). A
    row that is sent again in a round uses another purpose.

    An engine with another kind of delivery overrides these methods: `check_request` refuses
    requests of a round, `admit` records releases, `noise_key` returns the key of their noise, and
    `release_rows` releases the rows of a message. An override that does not release rows again
    calls `earlier_messages` to count the message.

    Parameters
    ----------
    carrier
        Carrier that delivers packets; None if the caller of `steps` delivers them.
    key
        Key of the noise and of random rounding by compressors; each node has its own stream.
    ledger
        Ledger that records releases before their noise is drawn, and may refuse them.
    nodes
        Indices of the nodes in this process, shape (local nodes,); None for all.
    pair_key
        Key of the noise that pairs of partners share, the same for both partners. By default `key`
        if this process has all nodes.
    watcher
        Function by which an audit observes releases; None without an audit.
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
        """Rows received last, in this round or an earlier one; None before the first message."""
        self._nodes = nodes
        self._watcher = watcher
        self._messages_of_row = np.zeros(0, np.int64)
        """Number of messages of the current round by row, shape (rows,).

        Empty as long as every message has all rows: `_messages_of_all` then counts them.
        """
        self._messages_of_all = _MessagesOfAll(messages=0, rows=0)
        """Count of messages of the current round as long as every message has all rows."""
        self._turns = 0
        """Number of messages of the current round that named a sender, in any process."""
        self._unsent: Packet | None = None
        """Packet released to its own nodes only, which a later `Relay` sends."""
        self._bits: int | Indices = 0
        """Bits that were sent in the current round: see `SentInRound`."""
        self._count = 0
        """Messages that were sent in the current round: see `SentInRound`."""
        self.noise = NoiseRows(nodes, ledger.nodes, key if nodes is None else pair_key)
        """Rows of correlated noise; secret."""

    def run(self, algorithm: AnyAlgorithm, state: Any, t: int, problem: Problem, key: Key) -> Step:
        """Run round t of an algorithm; the carrier delivers its packets.

        Raises
        ------
        OverBudget
            If a release exceeds the budget. Neither this release nor a later one leaves its node.
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
        """Run round t of an algorithm as a generator that pauses for each delivery.

        It yields each packet, is sent the delivered rows, shape (nodes, dim), and returns the
        finished round. It raises the errors of `run`.
        """
        self._begin_round()
        requests = algorithm.round(state, t, problem, key)
        if not isinstance(requests, GeneratorType):
            expected = "one whose round is a generator, which yields messages"
            got = f"{type(algorithm).__name__} with {reprlib.repr(requests)}"
            fail("algorithm", expected, got)
        answer: Any = None  # delivered rows or sums of the last request; None before the first
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
        """Reset the counts of messages for a new round."""
        self._messages_of_all = _MessagesOfAll(messages=0, rows=0)
        self._turns = 0
        if len(self._messages_of_row):
            self._messages_of_row = np.zeros(0, np.int64)
        self.noise.begin_round()
        self._unsent = None
        self._bits = 0
        self._count = 0

    def check_request(self, t: int, request: object) -> None:
        """Do nothing; an override may refuse a request of a round before it is recorded."""

    def end_round(self) -> None:
        """Record the round as finished: its releases, and the rows of noise that they used."""
        self.ledger.end_round()
        if self.noise.in_round:
            self.noise.memory = self.noise.memory | self.noise.in_round

    def _send(self, t: int, message: Message) -> _Delivery:
        """Release a message and deliver it; return the received rows."""
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
        if message.is_sent:
            return (yield from self._carry(packet))
        self._unsent = packet
        return packet.values

    def _send_elsewhere(self, t: int, message: Message, releases: tuple[Release, ...]) -> _Delivery:
        """Deliver a message that a node in another process releases; return the received rows."""
        packet = Packet(None, sender=message.sender)
        if not message.is_sent:
            self.admit(t, message, releases)
            self._unsent = packet
            return None
        arrived: Released | None = yield from self._carry(packet)
        if arrived is not None:
            self.admit(t, message, releases)
            self._skip_noise(t, message, releases[-1], arrived)
        return arrived

    def _skip_noise(self, t: int, message: Message, release: Release, arrived: Released) -> None:
        """Draw the correlated noise of a sender elsewhere, since all rows are drawn in order."""
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
        if len(releases) > 1 or values is None or not _is_plain(message):
            fail("release", "a sum by itself, in one message of all nodes as it is", release)
        mechanism = release.mechanism
        assert isinstance(mechanism, DistributedDiscreteGaussian)
        self.admit(t, message, releases)
        purpose = Purpose.NOISE + REPEAT_OFFSET * self.earlier_messages(message, len(values))
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
        """Return the indices of this process's nodes, which may be all `count` nodes."""
        if self._nodes is None:
            return np.arange(count)
        return self._nodes

    def _carry(self, packet: Packet) -> _Delivery:
        """Deliver a packet, and count it; return the received rows, read-only."""
        self._count_packet(packet)
        arrived = yield packet
        if arrived is not None:  # an update in place would write private values into them
            arrived = Released(read_only(arrived))
            self.received = arrived
        self._unsent = None
        return arrived

    def _count_packet(self, packet: Packet) -> None:
        """Count the bits and the messages of a packet.

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

        With a `message.scale_factor` of u, ``values / u`` is released with noise, and the packet
        has u times the noisy values.
        """
        _check_shape(values, message.rows)
        parts = self._parts(message, releases, len(values))
        self.admit(t, message, releases)
        if message.is_sent:
            self.received = None  # frees memory, as large as the state, before rows are received
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
        purpose_offset = REPEAT_OFFSET * self.earlier_messages(message, len(values))
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
        return _PrivateRows(
            message, t, scaled_values, key=key, key_by_row=key_by_row, purpose_offset=purpose_offset
        )

    def _noisy_rows(
        self, private: _PrivateRows, releases: tuple[Release, ...], parts: _Parts | None
    ) -> Released:
        """Release private rows: all by one mechanism, or each part by its own."""
        stream = private.key_by_row.stream(Purpose.NOISE + private.purpose_offset, private.t)
        if parts is not None:
            return _released_in_parts(parts, private.values, stream)
        (release,) = releases
        draw = partial(self._correlated_noise, private)
        mechanism = release.mechanism.with_rows(draw)
        return mechanism.release(private.values, release.sensitivity, stream)

    def _correlated_noise(self, private: _PrivateRows, mechanism: CorrelatedRow) -> Floats:
        """Return correlated noise for private rows, which depends on earlier rows of noise."""
        message = private.message
        is_of_all = message.rows is None and message.sender is None
        is_of_a_sender = message.rows is not None and message.sender is not None
        if private.purpose_offset or not (is_of_all or is_of_a_sender):
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
        """Return the key of the noise on these values."""
        return self.key

    def _parts(self, message: Message, releases: tuple[Release, ...], count: int) -> _Parts | None:
        """Return the local rows of each release; None if one release has all rows.

        Several releases must name each node once, in a message of all nodes with `count` local
        rows.
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
        """Let the ledger check and record the releases of a message.

        Raises
        ------
        ValueError
            If the sender is no node, or a release is of another round or of other nodes than the
            sender.
        OverBudget, UnplannedRelease
            As `Ledger.admit`.
        """
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

        Rows of a sender without `rows` have the indices 0, 1, .. for every sender. All messages of
        senders in the round then count, also those of other processes.

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
        """Count messages by row from now on, for at least `count` rows."""
        shared_count = self._messages_of_all
        if shared_count.messages:
            self._messages_of_row = np.full(shared_count.rows, shared_count.messages)
            self._messages_of_all = _MessagesOfAll(messages=0, rows=0)
        uncounted = count - len(self._messages_of_row)
        if uncounted > 0:
            new_rows = np.zeros(uncounted, np.int64)
            self._messages_of_row = np.concatenate([self._messages_of_row, new_rows])

    def _packed(
        self, message: Message, released: Released, compressed: Compressed | None
    ) -> Packet:
        """Return the packet of a message with its released rows."""
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
    """Fail unless values have the shape (rows, dim), with as many rows as `rows` names."""
    is_matrix = getattr(values, "ndim", None) == 2
    if not is_matrix or (rows is not None and len(rows) != len(values)):
        fail("values", "an array of shape (rows, dim), as many rows as named", np.shape(values))


def _is_plain(message: Message) -> bool:
    """Return True if a message is of all nodes, sent, and neither compressed nor scaled."""
    is_of_all = message.sender is None and message.rows is None
    is_unscaled = isinstance(message.scale_factor, float | int) and message.scale_factor == 1.0
    return is_of_all and is_unscaled and message.compressor is None and message.is_sent


def _bits_of_row(packet: Packet) -> int | Indices | None:
    """Return the length of a row in bits: a number, or one for each row; None without content."""
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
    """Compress noisy rows: return the decoded rows, and the length of each message in bits.

    `noisy` has the rows divided by `scale_factor`; they are multiplied by it before compression.
    """
    full_rows = noisy
    if _is_scaled(private.message):
        full_rows = Released(noisy * private.message.scale_factor)
    coins = private.key_by_row.stream(Purpose.QUANTIZE + private.purpose_offset, private.t)
    compressed = compressor.compress(full_rows, coins)
    if not kernels.all_finite(compressed.values):
        dtype = compressed.values.dtype
        fail("values", f"numbers whose compression {dtype} can hold", "larger ones")
    return compressed


def run_rounds(
    algorithm: AnyAlgorithm, problem: Problem, carrier: Carrier, *, rounds: int, key: Key
) -> Iterator[Step]:
    """Run an algorithm without measurements, and yield each finished round.

    Under a key that is not seeded each run has fresh noise, as in `simulate`.
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
