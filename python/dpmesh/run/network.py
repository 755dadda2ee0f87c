"""A network that is slow and fails: what happens to messages, and when, in virtual time.

All of it is drawn from the run's key and from public numbers alone, round by round, so that it
reveals nothing of the data. A repeated message carries the value that was released, never a new
one: losses cost time, bits and accuracy, but no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import TypeAlias

import numpy as np

from dpmesh._ragged import Flags, Indices, Numbers
from dpmesh._validate import every, fail, integer, non_negative, positive, probability
from dpmesh.keys import Key, Purpose, generator


@dataclass(frozen=True)
class Exponential:
    """Draws with this mean, independent of each other and without memory.

    Parameters
    ----------
    mean
        Mean of the draws.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.run.Exponential(0.1).mean
    0.1
    """

    mean: float

    def __post_init__(self) -> None:
        every(self, positive, "mean")

    def draw(self, source: np.random.Generator, count: int) -> Numbers:
        """Return `count` draws."""
        return source.exponential(self.mean, count)


@dataclass(frozen=True, kw_only=True)
class LogNormal:
    """Draws around a median, with a long upper tail: exp of a normal of standard deviation sigma.

    About two thirds lie between median / e^sigma and median * e^sigma.

    Parameters
    ----------
    median
        Median of the draws.
    sigma
        Standard deviation of the logarithm.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.run.LogNormal(median=0.1, sigma=1.0).median
    0.1
    """

    median: float
    sigma: float

    def __post_init__(self) -> None:
        every(self, positive, "median")
        non_negative("sigma", self.sigma)

    def draw(self, source: np.random.Generator, count: int) -> Numbers:
        """Return `count` draws."""
        return source.lognormal(np.log(self.median), self.sigma, count)


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Draws between two numbers.

    Parameters
    ----------
    low
        Smallest draw.
    high
        Largest draw.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.run.Uniform(low=0.1, high=0.2).high
    0.2
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        every(self, positive, "low")
        if positive("high", self.high) < self.low:
            fail("high", f"at least low = {self.low}", self.high)

    def draw(self, source: np.random.Generator, count: int) -> Numbers:
        """Return `count` draws."""
        return source.uniform(self.low, self.high, count)


Distribution: TypeAlias = float | Exponential | LogNormal | Uniform
"""A constant, or a distribution to draw from."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """Delays and failures of a network; by default there are none.

    Parameters
    ----------
    latency
        Seconds until a message arrives, in addition to those for its length; drawn for each
        message.
    bandwidth
        Bits per second of each of a node's links, which send in parallel; drawn once for each node.
        None: no limit.
    compute
        Seconds that a node computes in a round; drawn for each node and round.
    straggler_fraction
        Share of the nodes that are stragglers, drawn once.
    straggler_slowdown
        How many times as long they compute, at least 1.
    loss
        Probability that a message is lost on its way, below 1.
    attempts
        How often a neighbour's message is sent at most. Messages of a server or with a token are
        sent until they arrive.
    offline
        Probability that a node is offline in a stretch of `outage_rounds` rounds; below 1. The
        stretches of each node have their own offset.
    outage_rounds
        Length of such a stretch.
    late_fraction
        Share of the nodes that join late, drawn once.
    late_rounds
        The round by which all of them have joined, each at a time of its own.
    max_delay
        The most rounds by which a neighbour's message is late: each delay from `min_delay` to this
        one is equally likely. A node does not wait for late messages, but mixes the older one that
        it has.
    min_delay
        The fewest rounds by which it is late; equal to `max_delay` for a fixed delay.

    Notes
    -----
    Gossip needs both messages of a link: where one of them is missing, both ends put the link's
    weight on themselves, so that the matrix of the round stays doubly stochastic and mixing keeps
    the mean of the nodes. A node that is offline, or has not joined, goes on alone, and the ledger
    counts its messages as if they were received. Only delay moves the mean, by a bounded amount.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.Network(latency=0.05, loss=0.01).loss
    0.01
    """

    latency: Distribution = 0.0
    bandwidth: Distribution | None = None
    compute: Distribution = 0.0
    straggler_fraction: float = 0.0
    straggler_slowdown: float = 10.0
    loss: float = 0.0
    attempts: int = 1
    offline: float = 0.0
    outage_rounds: int = 1
    late_fraction: float = 0.0
    late_rounds: int = 1
    max_delay: int = 0
    min_delay: int = 0

    def __post_init__(self) -> None:
        every(self, probability, "straggler_fraction", "late_fraction")
        _check_distribution("latency", self.latency, zero=True)
        _check_distribution("compute", self.compute, zero=True)
        if self.bandwidth is not None:
            _check_distribution("bandwidth", self.bandwidth, zero=False)
        every(self, probability, "loss", "offline", one=False)
        every(self, integer, "attempts", "outage_rounds", "late_rounds", at_least=1)
        if positive("straggler_slowdown", self.straggler_slowdown) < 1:
            fail("straggler_slowdown", "at least 1", self.straggler_slowdown)
        integer("max_delay", self.max_delay)
        integer("min_delay", self.min_delay, below=self.max_delay + 1)


class _Use(IntEnum):
    """Purposes of random numbers."""

    BANDWIDTH = auto()
    STRAGGLERS = auto()
    LATE = auto()
    PHASE = auto()
    OUTAGES = auto()
    COMPUTE = auto()
    LATENCY = auto()
    ATTEMPTS = auto()
    DELAY = auto()
    PARTNERS = auto()


class Conditions:
    """Delays and failures of nodes and their messages, as functions of the round."""

    def __init__(self, network: Network, nodes: int, key: Key) -> None:
        self.network = network
        self.nodes = nodes
        self._key = key
        is_straggler = self._source(_Use.STRAGGLERS).random(nodes) < network.straggler_fraction
        self._slowness = np.where(is_straggler, network.straggler_slowdown, 1.0)
        self._seconds_per_bit = np.zeros(nodes)
        if network.bandwidth is not None:
            self._seconds_per_bit = 1 / self._draw(_Use.BANDWIDTH, network.bandwidth, nodes)
        source = self._source(_Use.LATE)
        is_late = source.random(nodes) < network.late_fraction
        late_round = 1 + source.integers(network.late_rounds, size=nodes)
        self._joins = np.where(is_late, late_round, 0)
        self._phase = self._source(_Use.PHASE).integers(network.outage_rounds, size=nodes)

    def present(self, round: int) -> Flags:
        """Return which nodes have joined and are online, shape (nodes,)."""
        length = self.network.outage_rounds
        stretch, rounds_into_it = divmod(round, length)
        in_this_stretch = rounds_into_it + self._phase < length  # else in the next, by its offset
        offline = np.where(in_this_stretch, self._offline(stretch), self._offline(stretch + 1))
        has_joined = round >= self._joins
        present: Flags = has_joined & ~offline
        return present

    def compute(self, round: int) -> Numbers:
        """Return the seconds that each node computes in a round, shape (nodes,)."""
        return self._slowness * self._draw(_Use.COMPUTE, self.network.compute, self.nodes, round)

    def transfer(self, round: int, senders: Indices, bits: Indices | int) -> Numbers:
        """Return the seconds that one message of each sender takes.

        Parameters
        ----------
        round
            The round.
        senders
            The nodes that send, shape (messages,).
        bits
            Length of the messages: a number, or one for each node, shape (nodes,).
        """
        length = np.broadcast_to(bits, self.nodes)[senders]
        latency = self._draw(_Use.LATENCY, self.network.latency, len(senders), round)
        return latency + length * self._seconds_per_bit[senders]

    def attempts(self, round: int, count: int) -> Indices:
        """Return how often each of `count` messages has to be sent until it arrives."""
        if self.network.loss == 0:
            return np.ones(count, dtype=np.int64)
        return self._source(_Use.ATTEMPTS, round).geometric(1 - self.network.loss, count)

    def delays(self, round: int, count: int) -> Indices:
        """Return how many rounds each of `count` messages is late."""
        delays = self._source(_Use.DELAY, round).integers(
            self.network.min_delay, self.network.max_delay + 1, size=count
        )
        return np.minimum(delays, round)  # there are no messages before round 0

    def some_nodes(self, round: int, count: int) -> Indices:
        """Return `count` random nodes, without repetition as long as there are enough."""
        source = self._source(_Use.PARTNERS, round)
        return source.choice(self.nodes, count, replace=count > self.nodes)

    def _offline(self, stretch: int) -> Flags:
        if self.network.offline == 0:
            return np.zeros(self.nodes, dtype=np.bool_)
        flags: Flags = self._source(_Use.OUTAGES, stretch).random(self.nodes) < self.network.offline
        return flags

    def _draw(self, use: _Use, distribution: Distribution, count: int, round: int = 0) -> Numbers:
        if not isinstance(distribution, (Exponential, LogNormal, Uniform)):
            return np.full(count, float(distribution))
        return distribution.draw(self._source(use, round), count)

    def _source(self, use: _Use, round: int = 0) -> np.random.Generator:
        return generator(self._key, Purpose.NETWORK, round, node=use)


def _check_distribution(name: str, distribution: Distribution, *, zero: bool) -> None:
    """Fail unless a constant is positive, or 0 where that is allowed."""
    if isinstance(distribution, (Exponential, LogNormal, Uniform)):
        return
    if zero:
        non_negative(name, distribution)
    else:
        positive(name, distribution)
