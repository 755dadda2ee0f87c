"""Carriers with simulated delays and failures, and the network as it failed in a run.

Delays and failures are drawn from the run's key and public numbers, never from data. They are
therefore known before the run. `carrier_for` chooses the carrier of an algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, Released
from dpmesh._ragged import Flags, Indices, Numbers
from dpmesh._validate import fail
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.messages import Communication
from dpmesh.kernels.views import Received
from dpmesh.keys import Key
from dpmesh.problems import Problem
from dpmesh.run.carriers import Broadcast, Carrier, Gossip, Packet, SentInRound, ToAll, Traffic
from dpmesh.run.network import Conditions, Network
from dpmesh.topology.matrix import MixingMatrix
from dpmesh.topology.topology import Topology


@dataclass(frozen=True)
class RoundLinks:
    """Directed links of a round; links 0 to n - 1 have the reverse directions n to 2 n - 1.

    All arrays have the shape (2 n,), where n is the number of undirected links.

    Parameters
    ----------
    matrix
        Mixing matrix of the round, without the links that were not used.
    senders, receivers
        Indices of the nodes at both ends of each link.
    weights
        Weight of each link in the mixing matrix.
    tries
        Number of times that the message was sent.
    carried
        True if the link was used: both of its messages arrived.
    delays
        Delay of the message, in rounds.
    """

    matrix: MixingMatrix
    senders: Indices
    receivers: Indices
    weights: Numbers
    tries: Indices
    carried: Flags
    delays: Indices


class _Past(NamedTuple):
    """Ring buffer of the last messages of the nth exchange in a round, which may arrive late."""

    ring: Floats
    """The messages of round t at ``t % rounds``, shape (rounds, nodes, dim)."""
    messages: int
    """Number of rounds whose messages were written so far."""


class FailingGossip:
    """Gossip with simulated delays and failures; see `Network`.

    There is no common clock: a node begins its next round as soon as it has computed and received
    the messages that it awaits. `seconds` is the virtual time when the last node ends its round.
    """

    def __init__(self, topology: Topology, conditions: Conditions) -> None:
        self._topology = topology
        self._conditions = conditions
        self.links = lru_cache(maxsize=1)(self._links_of)
        self._clock = np.zeros(topology.nodes)
        self._past: list[_Past] = []
        self._round = -1
        self._exchanges = 0

    @property
    def seconds(self) -> float:
        """Virtual time so far."""
        return float(self._clock.max())

    @property
    def memory(self) -> Any:
        """The nodes' clocks, and the messages that may still be used late."""
        return [self._clock, [list(past) for past in self._past]]

    def recall(self, memory: Any) -> None:
        """Resume from clocks and messages."""
        clock, past = memory
        self._clock = clock
        self._past = [_Past(*messages) for messages in past]

    def carry(self, round: int, packet: Packet) -> Released:
        """Return the weighted averages that nodes receive in this round, shape (nodes, dim)."""
        links = self.links(round)
        messages = packet.rows
        if packet.unmixed:
            expected = "None: a node that misses a message of the first stage has another centre"
            fail("network", expected, "one")
        if self._conditions.network.max_delay == 0:
            return Released(kernels.mix(links.matrix.weights, messages))
        if round != self._round:
            self._round = round
            self._exchanges = 0
        exchange = self._exchanges
        self._exchanges += 1
        return self._mix_late(exchange, messages, links)

    def traffic(self, round: int, sent: SentInRound) -> Traffic:
        """Return the traffic of a round, with repeated and lost messages; advance the clocks."""
        links = self.links(round)
        bits = np.broadcast_to(sent.bits, self._topology.nodes)[links.senders]
        ready = self._clock + self._conditions.compute(round)  # the time when a node has computed
        if sent.messages == 0:  # no node waits for others in a round without messages
            self._clock = ready
            return Traffic(0, 0)
        seconds_per_try = self._conditions.transfer(round, links.senders, sent.bits)
        is_awaited = links.carried & (links.delays == 0)
        arrivals = ready[links.senders] + links.tries * seconds_per_try
        np.maximum.at(ready, links.receivers[is_awaited], arrivals[is_awaited])
        self._clock = ready
        messages = sent.messages * int(links.tries.sum())
        return Traffic(messages, int((links.tries * bits).sum()))

    def _links_of(self, round: int) -> RoundLinks:
        """Draw for each link of a round whether it was used, the number of tries, and the delay."""
        matrix = self._topology.matrix(round)
        most_tries = self._conditions.network.attempts
        first, second = matrix.edges.T
        senders = np.concatenate([first, second])
        receivers = np.concatenate([second, first])
        tries_until_arrival = self._conditions.attempts(round, len(senders))
        present = self._conditions.present(round)
        arrived = (tries_until_arrival <= most_tries) & present[senders] & present[receivers]
        # an online sender tries until the message arrives, at most `attempts` times
        needed_tries = np.where(present[receivers], tries_until_arrival, most_tries)
        tries = np.where(present[senders], np.minimum(needed_tries, most_tries), 0)
        edges = len(first)
        both_arrived = arrived[:edges] & arrived[edges:]  # in both directions, shape (edges,)
        used_matrix = matrix
        if not both_arrived.all():
            used_matrix = matrix.keep_edges(both_arrived)
        return RoundLinks(
            matrix=used_matrix,
            senders=senders,
            receivers=receivers,
            weights=np.tile(matrix.edge_weights, 2),
            tries=tries,
            carried=np.tile(both_arrived, 2),
            delays=self._conditions.delays(round, len(senders)),
        )

    def _mix_late(self, exchange: int, messages: Released, links: RoundLinks) -> Released:
        """Mix the messages that arrive in this round, sent now or earlier; shape (nodes, dim).

        The ring buffer of an exchange holds all messages that may still arrive, as the rows of one
        matrix of shape (rounds * nodes, dim). A sparse matrix of shape (nodes, rounds * nodes)
        mixes them: a link of delay d has its weight in the column of the sender, d rounds ago. In
        the first d rounds it is the column of round 0.
        """
        nodes, dim = messages.shape
        rounds = self._conditions.network.max_delay + 1
        if exchange == len(self._past):
            empty_ring = np.zeros((rounds, nodes, dim), messages.dtype)
            self._past.append(_Past(empty_ring, 0))
        ring, t = self._past[exchange]
        self._past[exchange] = _Past(ring, t + 1)
        ring[t % rounds] = messages
        carried = links.carried
        round_sent = t - np.minimum(links.delays[carried], t)
        link_columns = round_sent % rounds * nodes + links.senders[carried]
        all_nodes = np.arange(nodes)
        own_columns = t % rounds * nodes + all_nodes  # a node's message to itself is never late
        own_weights = links.matrix.weights.diagonal()
        weights = np.concatenate([links.weights[carried], own_weights])
        rows = np.concatenate([links.receivers[carried], all_nodes])
        columns = np.concatenate([link_columns, own_columns])
        mixing = sparse.csr_array((weights, (rows, columns)), shape=(nodes, rounds * nodes))
        return Released(kernels.mix(mixing, ring.reshape(-1, dim)))


class TimedServer(ToAll):
    """Server with simulated delays; a lost message is sent again until it arrives.

    A round ends when the slowest client has received, computed and answered. As the real cohort is
    secret, a cohort of the same size is drawn for the simulation of time.
    """

    def __init__(self, conditions: Conditions) -> None:
        _require_all_present(conditions, "a server")
        self._conditions = conditions
        self.seconds = 0.0

    @property
    def memory(self) -> Any:
        """The clock."""
        return self.seconds

    def recall(self, memory: Any) -> None:
        """Resume from the clock."""
        self.seconds = memory

    def traffic(self, round: int, sent: SentInRound) -> Traffic:
        """Return the traffic of this round, repeats included, and advance the time."""
        # the first half of the messages goes down to the cohort, the second half comes up from it
        cohort_size = (sent.messages + 1) // 2
        clients = self._conditions.some_nodes(round, cohort_size)
        client_of_message = np.concatenate([clients, clients])[: sent.messages]
        tries = self._conditions.attempts(round, sent.messages)
        seconds = tries * self._conditions.transfer(round, client_of_message, _length(sent))
        transfer_of_client = np.bincount(client_of_message, seconds, self._conditions.nodes)
        busy = self._conditions.compute(round) + transfer_of_client
        self.seconds += float(busy[clients].max(initial=0.0))
        messages = int(tries.sum())
        return Traffic(messages, messages * _length(sent))


class TimedToken(ToAll):
    """Token with simulated delays, passed between nodes; there is no common clock.

    All nodes compute at the same time. The holder passes the token on when it has computed. A lost
    message is sent again until it arrives. The times of a round are simulated for random holders,
    as many as the round has messages.
    """

    def __init__(self, conditions: Conditions) -> None:
        _require_all_present(conditions, "a token")
        self._conditions = conditions
        self._clock = np.zeros(conditions.nodes)
        self._token = 0.0

    @property
    def seconds(self) -> float:
        """Virtual time so far: when the last node and the token are ready."""
        return max(self._token, float(self._clock.max()))

    @property
    def memory(self) -> Any:
        """The clocks of the nodes, and when the token arrived at its holder."""
        return [self._clock, self._token]

    def recall(self, memory: Any) -> None:
        """Resume from the clocks."""
        self._clock, self._token = memory

    def traffic(self, round: int, sent: SentInRound) -> Traffic:
        """Return the traffic of this round, repeats included, and advance the time."""
        holders = self._conditions.some_nodes(round, sent.messages)
        tries = self._conditions.attempts(round, sent.messages)
        seconds = tries * self._conditions.transfer(round, holders, _length(sent))
        self._clock = self._clock + self._conditions.compute(round)
        # The token leaves holder k at t_k = max(t_(k-1), ready_k) + s_k, after s_k seconds. With
        # S_k = s_1 + .. + s_k that is t_k = S_k + max(t_0, max over j <= k of ready_j - S_(j-1)).
        elapsed = np.cumsum(seconds)
        latest_ready = np.maximum.accumulate(self._clock[holders] - (elapsed - seconds))
        departures = np.maximum(self._token, latest_ready) + elapsed
        if sent.messages:
            self._clock[holders] = departures
            self._token = float(departures[-1])
        messages = int(tries.sum())
        return Traffic(messages, messages * _length(sent))


def carrier_for(
    algorithm: AnyAlgorithm,
    problem: Problem,
    topology: Topology | None,
    network: Network | None,
    key: Key,
) -> Carrier:
    """Return the carrier for the communication pattern of an algorithm.

    Raises
    ------
    ValueError
        If a topology is missing, superfluous, or has another number of nodes; or if the network has
        failures that the communication pattern does not allow.
    """
    conditions = None if network is None else Conditions(network, problem.nodes, key)
    if algorithm.communication == "gossip":
        if topology is None:
            fail("topology", "a topology over which messages are sent", None)
        if topology.nodes != problem.nodes:
            fail("topology", f"{problem.nodes} nodes, as the problem has", f"{topology.nodes}")
        if conditions is None:
            return Gossip(topology)
        return FailingGossip(topology, conditions)
    if topology is not None:
        raise ValueError(
            f"{type(algorithm).__name__} sends messages by {algorithm.communication} and takes no "
            "topology; remove topology"
        )
    if conditions is None:
        return Broadcast()
    return _TIMED[algorithm.communication](conditions)


def _no_sums(conditions: Conditions) -> Carrier:
    """Refuse secure sums over a network with failures."""
    expected = "None: a sum opens only if all neighbours answer, so none may fail"
    return fail("network", expected, conditions.network)


_TIMED: dict[Communication, Callable[[Conditions], Carrier]] = {
    "server": TimedServer,
    "token": TimedToken,
    "sums": _no_sums,
}
"""Carriers with simulated delays for patterns without a topology."""


def _require_all_present(conditions: Conditions, waiting: str) -> None:
    """Fail unless no node is offline or late: a server and a token wait for their messages."""
    names = ("offline", "late_fraction", "max_delay")
    values = {name: getattr(conditions.network, name) for name in names}
    not_zero = [f"{name}={value}" for name, value in values.items() if value]
    if not_zero:
        expected = f"{', '.join(names)} of 0, since {waiting} waits for all nodes"
        fail("network", expected, ", ".join(not_zero))


def _length(sent: SentInRound) -> int:
    """Return the length of one message in bits, where all are equally long."""
    return int(sent.bits) // max(1, sent.messages)


class RealizedNetwork:
    """Topology with the failures and delays of one run, for epsilon under weaker adversaries.

    A node is assumed to receive every message of its neighbours, also lost ones: in the round in
    which it is sent, and in the round in which it arrives late.

    Parameters
    ----------
    topology
        Topology without failures.
    network
        Failures and delays.
    key
        Seeded key of the run. (A run mixes fresh bits into a key from the operating system.)

    Examples
    --------
    In a run's plan, ``plan.cost(1e-5, view=OneNode(topology=realized))`` is the epsilon against one
    node of the network as it failed.

    >>> import dpmesh as dm
    >>> ring, key = dm.topology.ring(8), dm.Key.seeded(0)
    >>> seen = dm.run.RealizedNetwork(ring, dm.Network(loss=0.1), key)
    >>> dm.privacy.views.OneNode(topology=seen).topology.nodes
    8
    """

    def __init__(self, topology: Topology, network: Network, key: Key) -> None:
        self.nodes = topology.nodes
        self._topology = topology
        self._carrier = FailingGossip(topology, Conditions(network, topology.nodes, key))

    def __repr__(self) -> str:
        return f"{self._topology} as it failed in a run"

    def matrix(self, round: int) -> MixingMatrix:
        """Return the mixing matrix of a round without failures."""
        return self._topology.matrix(round)

    def mixed(self, round: int) -> Iterator[tuple[int, sparse.csr_array]]:
        """Yield the weights of messages that a round mixes, by the round in which they were sent.

        Each item is a pair of this round and a matrix of weights, shape (nodes, nodes). Messages of
        the round itself come first.
        """
        links = self._carrier.links(round)
        delays = links.delays * links.carried
        weights_of_itself = sparse.diags_array(links.matrix.weights.diagonal())
        for delay in sorted({0, *delays.tolist()}):
            carried = links.carried & (links.delays == delay)
            places = links.receivers[carried], links.senders[carried]
            weights = sparse.csr_array(
                (links.weights[carried], places), shape=(self.nodes, self.nodes)
            )
            if delay == 0:
                weights = sparse.csr_array(weights + weights_of_itself)
            yield round - delay, weights

    def received(self, rounds: int) -> list[Received]:
        """Return the messages that are assumed to arrive in the first `rounds` rounds, sorted."""
        messages: set[Received] = set()
        for t in range(rounds):
            links = self._carrier.links(t)
            receivers = links.receivers.tolist()
            senders = links.senders.tolist()
            delays = links.delays.tolist()
            for receiver, sender, delay in zip(receivers, senders, delays, strict=True):
                messages.add(Received(t, receiver, sender))
                messages.add(Received(t - delay, receiver, sender))
        return sorted(messages)
