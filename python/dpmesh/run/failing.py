"""How released messages travel over a network that is slow and fails, and what it did in a run.

All of it is drawn from the run's key and from public numbers, so that it is known before the run.
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
from dpmesh.algorithms.messages import Travel
from dpmesh.kernels.views import Received
from dpmesh.keys import Key
from dpmesh.problems import Problem
from dpmesh.run.carriers import Broadcast, Carrier, Gossip, Packet, Sent, ToAll, Traffic
from dpmesh.run.network import Conditions, Network
from dpmesh.topology.matrix import MixingMatrix
from dpmesh.topology.topology import Topology


@dataclass(frozen=True)
class Links:
    """The links of a round, all in one direction first, then in the other; arrays of equal length.

    Parameters
    ----------
    matrix
        What is left of the mixing matrix.
    senders, receivers
        The ends.
    weights
        Their weights in the mixing matrix.
    tries
        How often the message was sent.
    carried
        Whether the link was used: both of its messages arrived.
    delays
        How many rounds the message is late.
    """

    matrix: MixingMatrix
    senders: Indices
    receivers: Indices
    weights: Numbers
    tries: Indices
    carried: Flags
    delays: Indices


class _Past(NamedTuple):
    """A ring buffer of the last messages of a round's nth exchange, and how many there were."""

    ring: Floats
    sent: int


class FailingGossip:
    """Gossip over a network that is slow and fails; see `Network`.

    A node goes on to the next round as soon as it has computed and received what it waits for:
    there is no common clock. `seconds` is the virtual time at which the last node ends its last
    round.
    """

    def __init__(self, topology: Topology, conditions: Conditions) -> None:
        self._topology, self._conditions = topology, conditions
        self.links = lru_cache(maxsize=1)(self._links_of)
        self._clock = np.zeros(topology.nodes)
        self._past: list[_Past] = []
        self._round, self._exchanges = -1, 0

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
        self._clock, self._past = memory[0], [_Past(*past) for past in memory[1]]

    def carry(self, round: int, packet: Packet) -> Released:
        """Return what arrives in this round, weighted, shape (nodes, dim)."""
        links, messages = self.links(round), packet.rows
        if packet.unmixed:
            fail("network", "None: who misses a row of the first stage has another centre", "one")
        if self._conditions.network.max_delay == 0:
            return Released(kernels.mix(links.matrix.weights, messages))
        nth = self._exchanges if round == self._round else 0
        self._round, self._exchanges = round, nth + 1
        return self._mix_late(nth, messages, links)

    def traffic(self, round: int, sent: Sent) -> Traffic:
        """Return what was sent in this round, repeats and losses included, and advance time."""
        links = self.links(round)
        bits = np.broadcast_to(sent.bits, self._topology.nodes)[links.senders]
        ready = self._clock + self._conditions.compute(round)
        if sent.times == 0:  # nobody waits for others in a round in which nothing travels
            self._clock = ready
            return Traffic(0, 0)
        once = self._conditions.transfer(round, links.senders, sent.bits)
        waited = links.carried & (links.delays == 0)
        arrival = (ready[links.senders] + links.tries * once)[waited]
        np.maximum.at(ready, links.receivers[waited], arrival)
        self._clock = ready
        return Traffic(sent.times * int(links.tries.sum()), int((links.tries * bits).sum()))

    def _links_of(self, round: int) -> Links:
        matrix, network = self._topology.matrix(round), self._conditions.network
        i, j = matrix.edges.T
        senders, receivers = np.concatenate([i, j]), np.concatenate([j, i])
        needed = self._conditions.attempts(round, len(senders))
        present = self._conditions.present(round)
        arrived = (needed <= network.attempts) & present[senders] & present[receivers]
        heard = np.where(present[receivers], needed, network.attempts)
        tries = np.where(present[senders], np.minimum(heard, network.attempts), 0)
        kept = arrived[: len(i)] & arrived[len(i) :]
        return Links(
            matrix if kept.all() else matrix.keep_edges(kept),
            senders,
            receivers,
            weights=np.tile(matrix.edge_weights, 2),
            tries=tries,
            carried=np.tile(kept, 2),
            delays=self._conditions.delays(round, len(senders)),
        )

    def _mix_late(self, nth: int, messages: Released, links: Links) -> Released:
        """Mix messages from a ring buffer of the last nth exchanges; each link picks its own."""
        rounds, (nodes, dim) = self._conditions.network.max_delay + 1, messages.shape
        if nth == len(self._past):
            self._past.append(_Past(np.zeros((rounds, nodes, dim), messages.dtype), 0))
        ring, t = self._past[nth]
        self._past[nth] = _Past(ring, t + 1)
        ring[t % rounds] = messages
        used, everyone = links.carried, np.arange(nodes)
        senders, receivers = links.senders[used], links.receivers[used]
        places = (t - np.minimum(links.delays[used], t)) % rounds * nodes + senders
        entries = np.concatenate([links.weights[used], links.matrix.weights.diagonal()])
        rows = np.concatenate([receivers, everyone])
        columns = np.concatenate([places, t % rounds * nodes + everyone])
        late = sparse.csr_array((entries, (rows, columns)), shape=(nodes, rounds * nodes))
        return Released(kernels.mix(late, ring.reshape(-1, dim)))


class TimedServer(ToAll):
    """A server whose messages take their time; a lost one is sent again until it arrives.

    A round ends when the slowest client has received, computed and answered. The clients are drawn
    anew, as many as the algorithm reports, since the real cohort is secret.
    """

    def __init__(self, conditions: Conditions) -> None:
        _all_present(conditions, "a server")
        self._conditions = conditions
        self.seconds = 0.0

    @property
    def memory(self) -> Any:
        """The clock."""
        return self.seconds

    def recall(self, memory: Any) -> None:
        """Resume from the clock."""
        self.seconds = memory

    def traffic(self, round: int, sent: Sent) -> Traffic:
        """Return what was sent in this round, again included, and let time pass."""
        clients = self._conditions.some_nodes(round, (sent.times + 1) // 2)
        down_and_up = np.concatenate([clients, clients])[: sent.times]
        tries = self._conditions.attempts(round, sent.times)
        times = tries * self._conditions.transfer(round, down_and_up, _length(sent))
        for_client = np.bincount(down_and_up, times, self._conditions.nodes)
        busy = self._conditions.compute(round) + for_client
        self.seconds += float(busy[clients].max(initial=0.0))
        return Traffic(int(tries.sum()), int(tries.sum()) * _length(sent))


class TimedToken(ToAll):
    """A token that passes from node to node while all compute: no node waits for a common clock.

    A node passes the token on when it holds it and has computed. The holders are drawn anew, as
    many as the algorithm reports; a lost message is sent again until it arrives.
    """

    def __init__(self, conditions: Conditions) -> None:
        _all_present(conditions, "a token")
        self._conditions = conditions
        self._clock, self._token = np.zeros(conditions.nodes), 0.0

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

    def traffic(self, round: int, sent: Sent) -> Traffic:
        """Return what was sent in this round, again included, and let time pass."""
        holders = self._conditions.some_nodes(round, sent.times)
        tries = self._conditions.attempts(round, sent.times)
        times = tries * self._conditions.transfer(round, holders, _length(sent))
        self._clock = self._clock + self._conditions.compute(round)
        # The token leaves holder k at t_k = max(t_(k-1), ready_k) + times_k: t_k less the times
        # up to k is the largest of what came before.
        way = np.cumsum(times)
        waited = np.maximum.accumulate(self._clock[holders] - (way - times))
        left = np.maximum(self._token, waited) + way
        if sent.times:
            self._clock[holders], self._token = left, float(left[-1])
        return Traffic(int(tries.sum()), int(tries.sum()) * _length(sent))


def carrier_for(
    algorithm: AnyAlgorithm,
    problem: Problem,
    topology: Topology | None,
    network: Network | None,
    key: Key,
) -> Carrier:
    """Return what carries the algorithm's messages."""
    conditions = None if network is None else Conditions(network, problem.nodes, key)
    if algorithm.travels == "gossip":
        if topology is None:
            fail("topology", "a topology for messages to travel over", None)
        if topology.nodes != problem.nodes:
            fail("topology", f"{problem.nodes} nodes, as the problem has", f"{topology.nodes}")
        return Gossip(topology) if conditions is None else FailingGossip(topology, conditions)
    if topology is not None:
        raise ValueError(
            f"{type(algorithm).__name__} sends messages by {algorithm.travels} and takes no "
            "topology; remove topology"
        )
    return Broadcast() if conditions is None else _TIMED[algorithm.travels](conditions)


def _no_sums(conditions: Conditions) -> Carrier:
    wanted = "None: a sum opens only if all neighbours answer, so none may fail"
    fail("network", wanted, conditions.network)


_TIMED: dict[Travel, Callable[[Conditions], Carrier]] = {
    "server": TimedServer,
    "token": TimedToken,
    "sums": _no_sums,
}
"""What carries messages without a topology over a network that is slow and fails."""


def _all_present(conditions: Conditions, wanted_by: str) -> None:
    """Fail unless nobody is offline or late: a server and a token wait for their messages."""
    limited = ("offline", "late_fraction", "max_delay")
    given = ((name, getattr(conditions.network, name)) for name in limited)
    if got := ", ".join(f"{name}={value}" for name, value in given if value):
        fail("network", f"{', '.join(limited)} of 0, since {wanted_by} waits for everybody", got)


def _length(sent: Sent) -> int:
    """Return the length of one message in bits, where all are equally long."""
    return int(sent.bits) // max(1, sent.times)


class RealizedNetwork:
    """A topology with the losses, delays and outages of one run, for views of it.

    A node is taken to receive all messages of the nodes that are its neighbours in a round, lost
    ones included: those of the round, and those that are that late.

    Parameters
    ----------
    topology
        Who talks to whom, if nothing fails.
    network
        What fails, and how messages are delayed.
    key
        That of the run, seeded: a run mixes fresh bits into a key from the operating system.

    Examples
    --------
    ```python
    realized = RealizedNetwork(topology, network, key)
    plan.cost(1e-5, view=OneNode(topology=realized))
    ```

    Examples
    --------
    >>> import dpmesh as dm
    >>> ring, key = dm.topology.ring(8), dm.Key.seeded(0)
    >>> seen = dm.run.RealizedNetwork(ring, dm.Network(loss=0.1), key)
    >>> dm.privacy.views.OneNode(topology=seen).topology.nodes
    8
    """

    def __init__(self, topology: Topology, network: Network, key: Key) -> None:
        self.nodes, self._topology = topology.nodes, topology
        self._carrier = FailingGossip(topology, Conditions(network, topology.nodes, key))

    def __repr__(self) -> str:
        return f"{self._topology} as it failed in a run"

    def matrix(self, round: int) -> MixingMatrix:
        """Return the weights of a round if nothing failed."""
        return self._topology.matrix(round)

    def mixed(self, round: int) -> Iterator[tuple[int, sparse.csr_array]]:
        """Return which messages a round mixes: the round they are of, and their weights.

        The messages of the round itself come first.
        """
        links, shape = self._carrier.links(round), (self.nodes, self.nodes)
        delays = links.delays * links.carried
        own = sparse.diags_array(links.matrix.weights.diagonal())
        for delay in sorted({0, *delays.tolist()}):
            used = links.carried & (links.delays == delay)
            places = links.receivers[used], links.senders[used]
            weights = sparse.csr_array((links.weights[used], places), shape=shape)
            yield round - delay, sparse.csr_array(weights + own) if delay == 0 else weights

    def received(self, rounds: int) -> list[Received]:
        """Return what arrives in the first `rounds` rounds, or might have."""
        found: set[Received] = set()
        for t in range(rounds):
            links = self._carrier.links(t)
            ends = np.stack([links.receivers, links.senders], axis=1).tolist()
            for (receiver, sender), delay in zip(ends, links.delays.tolist(), strict=True):
                found |= {Received(made, receiver, sender) for made in (t, t - delay)}
        return sorted(found)
