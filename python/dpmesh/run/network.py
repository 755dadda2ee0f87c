"""Simulated network: delays, losses and outages of messages and nodes, in virtual time.

They are drawn from the run's key and public numbers, never from data. A message that is sent again
repeats the released value. Losses therefore add time, traffic and error, but no epsilon.
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
    """Exponential distribution of seconds or of bits per second, for a `Network`.

    Parameters
    ----------
    mean
        Mean of the distribution, positive, in the unit of the parameter it is used for.

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
    """Log-normal distribution of seconds or of bits per second, for a `Network`.

    About two thirds of the draws lie between median / e^sigma and median * e^sigma.

    Parameters
    ----------
    median
        Median, in the unit of the parameter it is used for.
    sigma
        Standard deviation of the natural logarithm.

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
    """Uniform distribution of seconds or of bits per second, for a `Network`.

    Parameters
    ----------
    low
        Smallest value, in the unit of the parameter it is used for.
    high
        Largest value, in the same unit.

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
    """Simulated network with delays, lost messages, stragglers and nodes that go offline.

    It is the `engine` of `simulate`. By default nothing is delayed and nothing fails. Delays and
    failures are drawn from the run's key, never from data, and time is virtual. A message that is
    sent again repeats the released value, so that failures have no privacy cost.

    Parameters
    ----------
    latency
        Seconds from sending a message to its arrival, in addition to its length over `bandwidth`:
        a number, or a distribution (`dpmesh.run.Exponential`, `LogNormal`, `Uniform`), drawn for
        each message.
    bandwidth
        Bits per second of each link of a node; its links send in parallel. A number, or a
        distribution, drawn once for each node. None for no limit.
    compute
        Seconds of computation of a node in a round: a number, or a distribution, drawn for each
        node and round.
    straggler_fraction
        Fraction of the nodes that are slow (stragglers), drawn once.
    straggler_slowdown
        Factor on the computation time of stragglers, at least 1.
    loss
        Probability that a sent message is lost, below 1.
    attempts
        Largest number of times that a message to a neighbour is sent. Messages to or from a
        server, or with a token, are sent until they arrive.
    offline
        Probability that a node is offline during a period of `outage_rounds` rounds, below 1. The
        rounds in which a node's periods start are drawn for each node.
    outage_rounds
        Length of such a period, in rounds.
    late_fraction
        Fraction of the nodes that join after the start of the run, drawn once.
    late_rounds
        Round by which all late nodes have joined, each in a round drawn at random.
    max_delay
        Largest delay of a neighbour's message in rounds. Each delay from `min_delay` to `max_delay`
        is equally likely. A node does not wait: it mixes the last message that has arrived.
    min_delay
        Smallest delay of a neighbour's message in rounds; equal to `max_delay` for a fixed delay.

    Notes
    -----
    In gossip both messages of a link must arrive. If one is missing, both ends add the link's
    weight to their own, so that the mixing matrix of the round stays doubly stochastic and mixing
    keeps the mean over the nodes. An offline node continues alone, and the ledger counts its
    messages as if they were received. Only delays change the mean, by a bounded amount.

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
    """Delays and failures of nodes and messages, as functions of the round.

    Parameters
    ----------
    network
        Distributions of delays and failures.
    nodes
        Number of nodes.
    key
        Key from which delays and failures are drawn.
    """

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
        """Return a mask of the nodes that have joined and are online, shape (nodes,)."""
        length = self.network.outage_rounds
        period, rounds_into_period = divmod(round, length)
        # The periods of a node begin `_phase` rounds earlier than the multiples of `length`.
        is_in_period = rounds_into_period + self._phase < length
        offline = np.where(is_in_period, self._offline(period), self._offline(period + 1))
        has_joined = round >= self._joins
        present: Flags = has_joined & ~offline
        return present

    def compute(self, round: int) -> Numbers:
        """Return the computation time of each node in a round in seconds, shape (nodes,)."""
        return self._slowness * self._draw(_Use.COMPUTE, self.network.compute, self.nodes, round)

    def transfer(self, round: int, senders: Indices, bits: Indices | int) -> Numbers:
        """Return the transfer time of one message of each sender in seconds, shape (messages,).

        Parameters
        ----------
        round
            The round.
        senders
            Indices of the sending nodes, shape (messages,).
        bits
            Length of the messages: a number, or one for each node, shape (nodes,).
        """
        length = np.broadcast_to(bits, self.nodes)[senders]
        latency = self._draw(_Use.LATENCY, self.network.latency, len(senders), round)
        return latency + length * self._seconds_per_bit[senders]

    def attempts(self, round: int, count: int) -> Indices:
        """Return the number of attempts until each of `count` messages arrives, shape (count,)."""
        if self.network.loss == 0:
            return np.ones(count, dtype=np.int64)
        return self._source(_Use.ATTEMPTS, round).geometric(1 - self.network.loss, count)

    def delays(self, round: int, count: int) -> Indices:
        """Return the delay of each of `count` messages in rounds, shape (count,)."""
        delays = self._source(_Use.DELAY, round).integers(
            self.network.min_delay, self.network.max_delay + 1, size=count
        )
        return np.minimum(delays, round)  # there are no messages before round 0

    def some_nodes(self, round: int, count: int) -> Indices:
        """Return `count` random nodes, without repetition if there are enough."""
        source = self._source(_Use.PARTNERS, round)
        return source.choice(self.nodes, count, replace=count > self.nodes)

    def _offline(self, period: int) -> Flags:
        """Return a mask of the nodes that are offline during a period, shape (nodes,)."""
        if self.network.offline == 0:
            return np.zeros(self.nodes, dtype=np.bool_)
        flags: Flags = self._source(_Use.OUTAGES, period).random(self.nodes) < self.network.offline
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
