"""Channels: the rounds of an algorithm at one node, driven step by step as messages arrive.

An algorithm's round is a generator. It yields requests to send a message, and is sent what the node
receives. `dpmesh.run.channel.Channel` turns requests into releases with noise. The channels here
drive it for one node of a contract's run: `RowChannel` where nodes send rows (gossip, token), and
`SumChannel` where they send masked parts of sums. They stop at each step, until the messages of
the next step have arrived, and can start from a state that the node's folder stored.

`dpmesh.deploy.node_rows` and `dpmesh.deploy.node_sums` use them. All randomness of a step follows
from the node's secret key and the inputs of the step: the same inputs give the same bits after a
restart, and other inputs give other noise.
"""

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
"""The values of rows by position and party; None where a party released nothing."""


class RoundCoins:
    """The randomness of a node's round, in the place of a `Key`: private and public coins.

    Parameters
    ----------
    private
        Secret key for the coins of this round.
    allocation
        Secret key for random allocation, whose coins are drawn once for all rounds.
    public
        The contract's public key, for coins that all parties share.
    shared
        Purposes of the coins that all parties share.
    """

    def __init__(
        self, private: Key, allocation: Key, public: Key, shared: frozenset[Purpose]
    ) -> None:
        self._private = private
        self._allocation = allocation
        self._public = public
        self._shared = shared

    def stream(self, purpose: int, round: int = 0) -> Stream:
        """Return the stream of a purpose in a round, from the key that the purpose needs."""
        if purpose == Purpose.ALLOCATION:
            key = self._allocation
        elif purpose in self._shared:
            key = self._public
        else:
            key = self._private
        return key.stream(purpose, round)

    def for_nodes(self, nodes: Any) -> RoundCoins:
        """Return the coins of these nodes, shape (nodes,), in their order."""
        return RoundCoins(
            self._private.for_nodes(nodes),
            self._allocation.for_nodes(nodes),
            self._public.for_nodes(nodes),
            self._shared,
        )


class NodeChannel(Channel):
    """Drives the rounds of one node, and fails at any release that is not charged.

    The base of `RowChannel` and `SumChannel`.

    Parameters
    ----------
    schedule
        The run's schedule.
    node
        Number of the node.
    problem
        The learning problem of the node's records.
    key
        The node's key of all noise.
    state
        The algorithm's state before the node's next round.
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
        """The released model after the last round in which something arrived; None before."""
        self._problem = problem
        self._allowed: list[Release] = []
        """Releases of the current round that were charged, and that the node has not made yet."""
        self._requests = 0
        """Number of requests that the current round has yielded so far."""

    def check_request(self, t: int, request: object) -> None:
        """Fail unless a request is the one of the dry run of round t, before any noise is drawn."""
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
        """Fail if round t ends before it has yielded all requests of its dry run."""
        expected = self.schedule.contract.patterns.expected(t)
        if expected is not None and self._requests != len(expected):
            raise RuntimeError(f"round {t} ends before it yields {expected[self._requests]}")

    def admit(self, t: int, message: Message, releases: tuple[Release, ...]) -> None:
        """Admit this node's releases in a message, each of them once.

        Releases of other nodes are ignored.

        Parameters
        ----------
        t
            Number of the round.
        message
            Message of the round.
        releases
            Releases of the message.

        Raises
        ------
        RuntimeError
            If the node was not charged for a release, or has made it before.
        """
        if message.sender not in (None, self.node):
            return
        for release in releases:
            if release.nodes is None or self.node in release.nodes:
                if release not in self._allowed:
                    raise RuntimeError(f"round {t} releases what its plan does not")
                self._allowed.remove(release)

    def _round(self, t: int, coins: Any) -> Generator[Packet, Any, None]:
        """Run round t, and yield each packet; set the state and the released model after it."""
        algorithm = self.schedule.contract.algorithm
        self._requests = 0
        step = yield from self.steps(algorithm, self.state, t, self._problem, coins)
        self._check_end(t)
        self.state = step.state
        self.end_round()
        published = algorithm.published(self.state, self.received)
        if published is not None:  # None if nothing arrived in the round
            self.published = published


class RowChannel(NodeChannel):
    """Drives the rounds of one node that sends rows, one position after another.

    A row that the node has sent before is taken from `rows`, and never released again.

    Parameters
    ----------
    schedule, node, problem, key
        As of a `NodeChannel`.
    context
        A hash on which all streams depend, beside the inputs of a round; None in a rehearsal, which
        has the simulator's streams.
    state
        The algorithm's state before round t.
    t
        Number of the first round to be run.
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
        """The rows of the current round: those that arrived, and those that the node sent."""
        self.position = BEFORE
        """The position whose rows the round waits for."""
        self.drawn_rows: dict[str, DrawnRows] = {}
        """Correlated noise of the rows that the node sent in its first round, before a restart."""
        self._node_key = key
        self._context = context
        self._packets = self._rounds(t)
        """Generator of the packets that the node sends, one for each position."""
        self._arrived: tuple[bytes, ...] = ()
        """The messages that arrived for the step that ends at the next position."""
        self._partner_seeds: tuple[bytes, ...] = ()
        """The seeds of the noise that the next row shares with partners, by partner's number."""

    @property
    def stored_state(self) -> bytes:
        """The state that the node's folder stores for a restart, as bytes."""
        noise = self.noise
        return pack(*map(state_as_bytes, (self.state, noise.memory, noise.in_round)))

    def set_partner_seeds(self, seeds: Mapping[int, bytes]) -> None:
        """Let the next row share noise with these partners alone.

        Parameters
        ----------
        seeds
            The seed of the shared noise, 32 bytes, by partner.
        """
        self._partner_seeds = tuple(seed for _, seed in sorted(seeds.items()))
        self.noise.partners = {
            partner: Key.seeded(int.from_bytes(seed, "big")) for partner, seed in seeds.items()
        }

    def run_to(self, position: Position, arrived: tuple[bytes, ...]) -> Packet:
        """Run the rounds up to a position, and return the packet that the node sends there.

        Parameters
        ----------
        position
            The position.
        arrived
            The messages that arrived for the step. The values of their rows are in `rows` already.

        Raises
        ------
        RuntimeError
            If the algorithm sends at other positions than its dry run.
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
        """Run all rounds from t on; yield the packet of each position, an empty one at the end."""
        contract = self.schedule.contract
        while t < contract.terms.rounds:
            open_round = self._round(t, self._start_round(t))
            arrived = None
            self._allowed = list(contract.planned.releases(self.node, t))
            with suppress(StopIteration):
                while True:
                    packet = open_round.send(arrived)
                    yield packet
                    arrived = self._arrived_for(packet)
                    self.position = Position(t, self.position.exchange + 1)
            t += 1
        self.position = self.schedule.end
        yield Packet(None)

    def _start_round(self, t: int) -> Any:
        """Begin round t, and return its coins.

        Coins and noise depend on the context (contract, records, versions), the state and the
        messages that arrived: under other inputs the same round draws other ones. Coins of random
        allocation depend on the contract alone: each record draws its rounds before the run.
        """
        self.position = Position(t)
        self.received = None
        self.rows = {position: rows for position, rows in self.rows.items() if position.round >= t}
        contract = self.schedule.contract
        key = self._node_key
        allocation_key = key
        if self._context is not None:
            allocation_key = key.derive(digest(b"dpmesh mesh allocation", contract.hash))
            inputs = str(t).encode(), digest(state_as_bytes(self.state)), digest(*self._arrived)
            key = key.derive(digest(b"dpmesh mesh round", self._context, *inputs))
        self.key = key
        coins = RoundCoins(
            key, allocation_key, contract.public_key, contract.algorithm.public_coins
        )
        return self.schedule.key_of_node(self.node, coins)

    def noise_key(self, values: Sensitive) -> Key:
        """Return the key of the noise of a row with these values.

        It also depends on the rows of the round so far, and on the seeds of partners.
        """
        key = self.key
        if self._context is not None:
            positions = (
                position for position in sorted(self.rows) if position.round == self.position.round
            )
            fields: list[bytes] = []
            for position in positions:
                fields += _row_fields(self.rows[position])
            shape = f"{values.dtype}{values.shape}".encode()
            key = key.derive(digest(pack(*fields), shape, values.tobytes(), *self._partner_seeds))
        return key

    def _arrived_for(self, packet: Packet) -> Released | None:
        """Return what the node receives at the open position, once it has sent a packet there.

        In gossip, the weighted mean of its neighbours' rows and its own, shape (1, dim). Weights of
        missing rows go to its own row. By token, the models of the packet's sender, shape
        (models, dim); None if they have not arrived.
        """
        arrived = self.rows.get(self.position, {})
        if packet.sender is not None:
            return arrived.get(packet.sender)
        neighbours = self.schedule.mixed_senders(self.position, self.node)
        missing = {party for party in neighbours if arrived.get(party) is None}
        parties, weights = self.schedule.mixing_row(self.position.round, self.node, missing)
        columns = np.arange(len(parties))
        row_ends = np.array([0, len(parties)])
        mixing = sparse.csr_array((weights, columns, row_ends), shape=(1, len(parties)))
        rows = np.concatenate([arrived[party] for party in parties])
        return Released(kernels.mix(mixing, rows))

    def release_rows(
        self, t: int, message: Message, values: Sensitive, releases: tuple[Release, ...]
    ) -> Packet:
        """Release the rows of a message, or take the row that the node sent before a restart.

        Parameters
        ----------
        t
            Number of the round.
        message
            The message of the round's request.
        values
            Its private values, shape (1, dim), or by token (models, dim).
        releases
            The releases of the message.
        """
        earlier = self.rows.get(self.position, {})
        if self.node not in earlier:
            return super().release_rows(t, message, values, releases)
        self.earlier_messages(message, len(values))
        self.noise.in_round.update(self.drawn_rows)
        return Packet(earlier[self.node], sender=message.sender)


class SumChannel(NodeChannel):
    """Drives the rounds of one node that adds to secure sums.

    A round has one sum or several, each a *step* of the run. For each attempt at a step the round
    is run again from its beginning, with the totals of its earlier steps. It ends with the total of
    its last step.

    Parameters
    ----------
    schedule, node, problem
        As of a `NodeChannel`.
    rehearsal_key
        The contract's public key in a rehearsal; else None: each attempt has a key of its own.
    state
        The algorithm's state before the round of `step`.
    step
        Number of the first step to be run.
    transcript
        The transcript before this step: the hash of all totals, each with its agreement.
    totals
        The totals of the earlier steps of the same round, each of shape (1, dim).
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
        key = rehearsal_key or Key.seeded(0)  # replaced by each attempt, before anything is drawn
        super().__init__(schedule, node, problem, key, state)
        self.step = step
        self.transcript = transcript
        self._rehearses = rehearsal_key is not None
        self.totals = totals
        """The totals of the open round so far, each of shape (1, dim)."""
        self._open_round: Generator[Packet, Any, None] | None = None
        """The open round, which waits for the total of its step; None before an attempt."""

    @property
    def stored_state(self) -> bytes:
        """The state that the node's folder stores for a restart, as bytes."""
        totals = (total.tobytes() for total in self.totals)
        return pack(self.transcript, state_as_bytes(self.state), *totals)

    def end_step(self, total: Integers, transcript: bytes) -> None:
        """End the open step.

        Parameters
        ----------
        total
            The total of the step, shape (1, dim).
        transcript
            The transcript after the step.
        """
        open_round = self._open_round or self._run_to_step(None)[0]
        self.totals.append(total)
        try:
            open_round.send(total)
        except StopIteration:  # it was the last step of the round
            self.totals = []
        self.transcript = transcript
        self._open_round = None
        self.step += 1

    def begin_attempt(self, key: Key | None) -> Masked:
        """Begin an attempt at the open step; return the integers that the node adds to its sums.

        Parameters
        ----------
        key
            A secret key of this attempt alone, for all noise and coins; None in a rehearsal.
        """
        self._open_round, packet = self._run_to_step(key)
        if packet.masked is None:
            raise RuntimeError(f"step {self.step} releases no sum")
        return packet.masked

    def with_noise_of_sum(self, masked: Masked, key_of_sum: Key) -> Masked:
        """Return an attempt's integers with the noise of one of its sums, from a key of this sum.

        The noise also follows from the node's integers before noise, so that other integers never
        get the same noise. If a router asks again with other headers for some sums of an attempt,
        the sums whose headers are unchanged get the same bytes.
        """
        # `masked.steps` are the rounded values, in steps of the grid
        key = key_of_sum.derive(digest(masked.steps.tobytes()))
        return replace(masked, stream=key.stream(Purpose.NOISE, self.step))

    def _run_to_step(self, key: Key | None) -> tuple[Generator[Packet, Any, None], Packet]:
        """Run the open round again from its beginning up to the open step.

        Without a key its noise is not secret, and nothing of it may leave the node.

        Returns
        -------
        The round, and the packet of the step.
        """
        contract = self.schedule.contract
        t = contract.planned.sum_releases[self.step].round
        self.received = None
        self._allowed = list(contract.planned.releases(self.node, t))
        if not self._rehearses:
            self.key = key or Key.seeded(0)
        coins = RoundCoins(self.key, self.key, contract.public_key, contract.algorithm.public_coins)
        open_round = self._round(t, self.schedule.key_of_node(self.node, coins))
        packet = next(open_round)
        for total in self.totals:
            packet = open_round.send(total)
        return open_round, packet

    def noise_key(self, values: Sensitive) -> Key:
        """Return a key of the noise of a sum that also depends on the integers that are added."""
        if self._rehearses:
            return self.key
        numbers = self.schedule.contract.planned.sum_at(self.step)
        return self.key.derive(digest(numbers.steps_of(values).tobytes()))


def _row_fields(rows: Mapping[int, Released | None]) -> list[bytes]:
    """Return the number and the values of each party's row as fields, in the order of parties."""
    fields: list[bytes] = []
    for party, row in sorted(rows.items()):
        content = b""
        if row is not None:
            content = row.tobytes()
        fields += [str(party).encode(), content]
    return fields


def state_as_bytes(state: Any) -> bytes:
    """Return an algorithm's state as bytes, the same bytes for the same state."""
    arrays: Arrays = {}
    tree = json.dumps(encode(state, arrays)).encode()
    fields = [tree]
    for name, array in arrays.items():
        fields += [name.encode(), _array_bytes(array)]
    return pack(*fields)


def state_from_bytes(data: bytes, start: Any) -> Any:
    """Return the state in bytes of `state_as_bytes`.

    Parameters
    ----------
    data
        The bytes.
    start
        A state with all classes that the state may have, such as the first one.
    """
    tree, *parts = unpack(data)
    names, contents = parts[::2], parts[1::2]
    arrays = {
        name.decode(): np.load(BytesIO(array), allow_pickle=False)
        for name, array in zip(names, contents, strict=True)
    }
    return decode(json.loads(tree), arrays, classes_in(start))


def _array_bytes(array: Any) -> bytes:
    """Return an array in NumPy's file format."""
    file = BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
