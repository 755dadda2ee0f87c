"""The rounds of an algorithm at one node, suspended where it waits for others, or as bytes."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
from scipy import sparse

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Released, Sensitive
from dpmesh.algorithms.dry_run import RequestPattern
from dpmesh.algorithms.messages import Message
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import digest, pack, unpack
from dpmesh.deploy.wire import BEFORE, Position
from dpmesh.keys import Key, Purpose, Stream
from dpmesh.noise.secure.mechanism import Integers, Masked
from dpmesh.privacy.ledger import Ledger
from dpmesh.privacy.releases import Release
from dpmesh.problems import Problem
from dpmesh.run.carriers import Packet
from dpmesh.run.channel import Channel
from dpmesh.run.codec import Arrays, classes_in, decode, encode
from dpmesh.run.noise import DrawnRows

RowsByPosition = dict[Position, dict[int, Released | None]]
"""The released row of each party, by position; None where it released nothing."""


class Coins:
    """The coins of a node's rounds, in the place of a `Key`.

    Parameters
    ----------
    private
        The node's key of the round, for coins that no other party knows.
    lasting
        The node's key of the run, for allocations, which are drawn once for all rounds.
    public
        The contract's key, for coins that all parties share.
    shared
        The purposes of these coins.
    """

    def __init__(self, private: Key, lasting: Key, public: Key, shared: frozenset[Purpose]) -> None:
        self._private = private
        self._lasting = lasting
        self._public = public
        self._shared = shared

    def stream(self, purpose: int, round: int = 0) -> Stream:
        """Return the stream of a purpose."""
        if purpose == Purpose.ALLOCATION:
            key = self._lasting
        elif purpose in self._shared:
            key = self._public
        else:
            key = self._private
        return key.stream(purpose, round)

    def for_nodes(self, nodes: Any) -> Coins:
        """Return the coins of some nodes."""
        return Coins(
            self._private.for_nodes(nodes),
            self._lasting.for_nodes(nodes),
            self._public.for_nodes(nodes),
            self._shared,
        )


class NodeChannel(Channel):
    """Drives the rounds of one node, and fails at any release that is not charged.

    Parameters
    ----------
    schedule, node
        The run's schedule, and the node whose rounds they are.
    problem, key
        The node's problem and key.
    state
        The state before the node's next round.
    """

    def __init__(
        self, schedule: Schedule, node: int, problem: Problem, key: Key, state: Any
    ) -> None:
        contract = schedule.contract
        ledger = Ledger(contract.plan.with_releases(()), nodes=contract.nodes)
        super().__init__(None, key, ledger, nodes=np.array([node]))
        self.schedule = schedule
        self.node = node
        self.state = state
        self.published: Any = None
        """The released model after the last round that it finished."""
        self._problem = problem
        self._allowed: list[Release] = []
        """Releases of the current round that were charged, and that it has not made yet."""
        self._requests = 0
        """Number of requests that the current round has yielded so far."""

    def check_request(self, t: int, request: object) -> None:
        """Fail unless a round yields what its dry run did, before it draws any noise."""
        expected = self.schedule.contract.patterns.expected(t)
        place = self._requests
        self._requests += 1
        if expected is None:
            return
        pattern = RequestPattern.of(request)
        if place < len(expected) and pattern == expected[place]:
            return
        planned = "nothing more"
        if place < len(expected):
            planned = str(expected[place])
        raise RuntimeError(
            f"round {t} yields {pattern} where its dry run yields {planned}: what a round yields "
            "may depend on the round and on public sizes alone"
        )

    def _check_end(self, t: int) -> None:
        """Fail if a round ends before it has yielded all that its dry run did."""
        expected = self.schedule.contract.patterns.expected(t)
        if expected is not None and self._requests != len(expected):
            raise RuntimeError(f"round {t} ends before it yields {expected[self._requests]}")

    def admit(self, t: int, message: Message, releases: tuple[Release, ...]) -> None:
        """Fail unless the releases are charged."""
        if message.sender not in (None, self.node):
            return
        for release in releases:
            if release.nodes is None or self.node in release.nodes:
                if release not in self._allowed:
                    raise RuntimeError(f"round {t} releases what its plan does not")
                self._allowed.remove(release)

    def _round(self, t: int, coins: Any) -> Generator[Packet, Any, None]:
        """Run round t; set the state and the released model after it."""
        algorithm = self.schedule.contract.algorithm
        self._requests = 0
        step = yield from self.steps(algorithm, self.state, t, self._problem, coins)
        self._check_end(t)
        self.state = step.state
        self.end_round()
        published = algorithm.published(self.state, self.received)
        if published is not None:  # of a round in which something arrived
            self.published = published


class RowChannel(NodeChannel):
    """Drives the rounds of one node, one position after another, as far as rows have arrived.

    What the node has sent before is never released again.

    Parameters
    ----------
    schedule, node
        The run's schedule, and the node whose rounds they are.
    problem, key
        The node's problem and key.
    context
        A hash that its streams depend on beside the inputs of a round; None in a rehearsal, whose
        streams are the simulator's.
    state, t
        The state before round t, the first to be run.
    """

    def __init__(
        self,
        schedule: Schedule,
        node: int,
        problem: Problem,
        key: Key,
        context: bytes | None,
        state: Any,
        t: int = 0,
    ) -> None:
        super().__init__(schedule, node, problem, key, state)
        self.rows: RowsByPosition = {}
        """Rows that arrived in the current round, and those that the node itself sent."""
        self.position = BEFORE
        """The position that it waits at."""
        self.drawn: dict[str, DrawnRows] = {}
        """The correlated noise of the rows that the node sent in round t, before a restart."""
        self._node_key = key
        self._context = context
        self._packets = self._rounds(t)
        """The packets that the node sends, position by position."""
        self._arrived: tuple[bytes, ...] = ()
        """The messages of the step that ends at the next position."""
        self._seeds: tuple[bytes, ...] = ()
        """The seeds of the secrets in the noise of the next row."""

    @property
    def stored_state(self) -> bytes:
        """The state that the node's folder stores for a restart, as bytes."""
        noise = self.noise
        return pack(*map(state_as_bytes, (self.state, noise.memory, noise.in_round)))

    def share(self, seeds: Mapping[int, bytes]) -> None:
        """Let the next row share secrets with these partners alone, each from a seed."""
        self._seeds = tuple(seed for _, seed in sorted(seeds.items()))
        self.noise.partners = {
            partner: Key.seeded(int.from_bytes(seed, "big")) for partner, seed in seeds.items()
        }

    def run_to(self, position: Position, arrived: tuple[bytes, ...]) -> Packet:
        """Run up to a position, for which these messages arrived; return what the node sends there.

        The rows in them are in `rows` already.

        Raises
        ------
        RuntimeError
            If the algorithm sends at other positions than it states.
        """
        self._arrived = arrived
        packet = Packet(None)
        while self.position < position:
            packet = next(self._packets)
        if self.position != position:
            raise RuntimeError(
                f"round {position.round} ends before its exchange {position.exchange}"
            )
        return packet

    def _rounds(self, t: int) -> Iterator[Packet]:
        """Run all rounds from t on; yield what the node sends at each position."""
        contract = self.schedule.contract
        while t < contract.terms.rounds:
            steps = self._round(t, self._begin(t))
            arrived = None
            self._allowed = list(contract.planned.releases(self.node, t))
            with suppress(StopIteration):
                while True:
                    packet = steps.send(arrived)
                    yield packet
                    arrived = self._received(packet)
                    self.position = Position(t, self.position.exchange + 1)
            t += 1
        self.position = self.schedule.end
        yield Packet(None)

    def _begin(self, t: int) -> Any:
        """Begin round t, and return its coins.

        Its streams are keyed by the contract, the records, the versions, the state and the messages
        that arrived: under other inputs the same round draws other coins and other noise.
        """
        self.position = Position(t)
        self.received = None
        self.rows = {position: rows for position, rows in self.rows.items() if position.round >= t}
        contract = self.schedule.contract
        key = self._node_key
        lasting = key
        if self._context is not None:
            lasting = key.derive(digest(b"dpmesh mesh allocation", contract.hash))
            inputs = str(t).encode(), digest(state_as_bytes(self.state)), digest(*self._arrived)
            key = key.derive(digest(b"dpmesh mesh round", self._context, *inputs))
        self.key = key
        coins = Coins(key, lasting, contract.public_key, contract.algorithm.public_coins)
        return self.schedule.seat(self.node, coins)

    def noise_key(self, values: Sensitive) -> Key:
        """Return the key of a row's noise: other values, rows or partners, other noise."""
        key = self.key
        if self._context is not None:
            positions = (
                position for position in sorted(self.rows) if position.round == self.position.round
            )
            rows = [part for position in positions for part in _flat(self.rows[position])]
            shape = f"{values.dtype}{values.shape}".encode()
            key = key.derive(digest(pack(*rows), shape, values.tobytes(), *self._seeds))
        return key

    def _received(self, packet: Packet) -> Released | None:
        """Return what this node receives, shape (1, dim), or by token (models, dim)."""
        arrived = self.rows.get(self.position, {})
        if packet.sender is not None:
            return arrived.get(packet.sender)
        neighbours = self.schedule.mixed_by(self.position, self.node)
        missing = {party for party in neighbours if arrived.get(party) is None}
        parties, weights = self.schedule.mixing(self.position.round, self.node, missing)
        order = np.arange(len(parties)), np.array([0, len(parties)])
        mixing = sparse.csr_array((weights, *order), shape=(1, len(parties)))
        rows = np.concatenate([arrived[party] for party in parties])
        return Released(kernels.mix(mixing, rows))

    def release_rows(
        self, t: int, message: Message, values: Sensitive, releases: tuple[Release, ...]
    ) -> Packet:
        """Release rows, or take those of this round that the node sent before it restarted."""
        earlier = self.rows.get(self.position, {})
        if self.node not in earlier:
            return super().release_rows(t, message, values, releases)
        self.earlier_messages(message, len(values))
        self.noise.in_round.update(self.drawn)
        return Packet(earlier[self.node], sender=message.sender)


class SumChannel(NodeChannel):
    """Drives the rounds of one node whose parts of sums leave it under masks.

    A round has one sum or several, a step each. It may be begun several times, for one attempt at
    a step after another, given the totals of the steps before, and ends with that of its last one.

    Parameters
    ----------
    schedule, node, problem
        As of a `NodeChannel`.
    rehearsal_key
        In a rehearsal the contract's key; else None: each attempt has a key of its own.
    state
        The state before the round of `step`.
    step
        The first step to be run.
    transcript
        The hash of all totals before it, and of the agreement on each.
    totals
        The totals of its round before it.
    """

    def __init__(
        self,
        schedule: Schedule,
        node: int,
        problem: Problem,
        rehearsal_key: Key | None,
        state: Any,
        step: int,
        transcript: bytes,
        totals: list[Integers],
    ) -> None:
        key = rehearsal_key or Key.seeded(0)  # of which nothing is drawn
        super().__init__(schedule, node, problem, key, state)
        self.step = step
        self.transcript = transcript
        self._rehearses = rehearsal_key is not None
        self.totals = totals
        """The totals of the open round so far."""
        self._steps: Generator[Packet, Any, None] | None = None

    @property
    def stored_state(self) -> bytes:
        """The state that the node's folder stores for a restart, as bytes."""
        totals = (total.tobytes() for total in self.totals)
        return pack(self.transcript, state_as_bytes(self.state), *totals)

    def take(self, total: Integers, transcript: bytes) -> None:
        """End the step with a total, and with the transcript after it."""
        steps = self._steps or self._begun(None)[0]
        self.totals.append(total)
        try:
            steps.send(total)
        except StopIteration:
            self.totals = []
        self.transcript = transcript
        self._steps = None
        self.step += 1

    def attempt(self, key: Key | None) -> Masked:
        """Begin the round for an attempt; return the integers that the node adds to its step.

        Parameters
        ----------
        key
            A key of this attempt alone, from which all noise and coins are drawn; None in a
            rehearsal.
        """
        self._steps, packet = self._begun(key)
        if packet.masked is None:
            raise RuntimeError(f"step {self.step} releases no sum")
        return packet.masked

    def of_one_sum(self, masked: Masked, key_of_sum: Key) -> Masked:
        """Return an attempt's integers with the noise of one of its sums, drawn from its own key.

        Whoever asks again for some sums of an attempt under other headers gets the same bytes for
        the sums whose header is the same.
        """
        key = key_of_sum.derive(digest(masked.steps.tobytes()))
        return replace(masked, stream=key.stream(Purpose.NOISE, self.step))

    def _begun(self, key: Key | None) -> tuple[Generator[Packet, Any, None], Packet]:
        """Begin the open round anew up to its step; return the round and the packet of the step."""
        contract = self.schedule.contract
        t = contract.planned.sum_releases[self.step].round
        self.received = None
        self._allowed = list(contract.planned.releases(self.node, t))
        if not self._rehearses:
            self.key = key or Key.seeded(0)  # of whose noise nothing leaves
        coins = Coins(self.key, self.key, contract.public_key, contract.algorithm.public_coins)
        steps = self._round(t, self.schedule.seat(self.node, coins))
        packet = next(steps)
        for total in self.totals:
            packet = steps.send(total)
        return steps, packet

    def noise_key(self, values: Sensitive) -> Key:
        """Return a key that is bound to the integers as they leave."""
        if self._rehearses:
            return self.key
        numbers = self.schedule.contract.planned.sum_at(self.step)
        return self.key.derive(digest(numbers.steps_of(values).tobytes()))


def _flat(rows: Mapping[int, Released | None]) -> list[bytes]:
    """Return rows as fields, in the order of their parties."""
    fields: list[bytes] = []
    for party, row in sorted(rows.items()):
        content = b""
        if row is not None:
            content = row.tobytes()
        fields += [str(party).encode(), content]
    return fields


def state_as_bytes(state: Any) -> bytes:
    """Return an algorithm's state as bytes, the same for the same state."""
    arrays: Arrays = {}
    tree = json.dumps(encode(state, arrays)).encode()
    return pack(tree, *(part for name in arrays for part in (name.encode(), _saved(arrays[name]))))


def state_from_bytes(data: bytes, start: Any) -> Any:
    """Return the state, of the same classes as `start`."""
    tree, *parts = unpack(data)
    names, contents = parts[::2], parts[1::2]
    arrays = {
        name.decode(): np.load(BytesIO(array), allow_pickle=False)
        for name, array in zip(names, contents, strict=True)
    }
    return decode(json.loads(tree), arrays, classes_in(start))


def _saved(array: Any) -> bytes:
    """Return an array in NumPy's file format."""
    file = BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
