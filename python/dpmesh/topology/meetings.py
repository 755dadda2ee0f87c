"""Topologies in which each node exchanges messages with one other node in a round.

On a static graph a neighbour receives every message of a node, so that one curious node learns as
much as an adversary who sees all messages. If each node has another partner in every round, its
messages are divided among all other nodes, and epsilon against a single node is smaller (network
DP, `dpmesh.privacy.views`). `best_schedule` chooses the topology with the smallest one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from dpmesh._ragged import Indices
from dpmesh._validate import fail, instance, integer, positive, require_methods
from dpmesh.kernels.views import Mixing, all_pairs, view_system, worst_pair
from dpmesh.keys import A_KEY, Key
from dpmesh.topology.matrix import MixingMatrix
from dpmesh.topology.topology import Topology, Use, Varying, halves, paired, public_generator


def meetings(nodes: int, *, key: Key, order: int = 0) -> Varying:
    """Return a round-robin schedule: in a cycle of rounds each pair of nodes averages once.

    In a round each node meets one other. A cycle has ``nodes - 1`` rounds, in a new random order
    each cycle. With an odd number of nodes it has `nodes` rounds, in each of which one node sits
    out. See `best_schedule` for choosing among orders.

    Parameters
    ----------
    nodes
        Number of nodes, at least 2.
    key
        Key from which the order of rounds is drawn, together with `order`. The order is public.
    order
        Index of the schedule among the schedules of one key, from 0 to 2**16 - 1.

    Raises
    ------
    ValueError
        If `nodes` is below 2, `order` is out of range, or `key` is not a key.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.topology.meetings(6, key=dm.Key.seeded(1)).matrix(0).messages
    6
    """
    nodes = integer("nodes", nodes, at_least=2)
    order = integer("order", order, below=2**16)
    instance("key", key, A_KEY, Key)
    description = f"meetings of {nodes} nodes in random order {order}"
    draw = partial(_meeting, nodes, key, order)
    return Varying(nodes, draw, description)


def one_peer_exponential(nodes: int) -> Varying:
    """Return one-peer exponential graphs, in which each node receives from one node a round.

    In round t, node i averages its message with that of node ``(i + 2^(t mod k)) mod nodes``, where
    k is log2(nodes), rounded up. If `nodes` is a power of 2, all nodes have the exact mean after k
    rounds. It mixes fastest of all, and hides a record less well than `meetings` (network DP).

    Parameters
    ----------
    nodes
        Number of nodes, at least 2.

    Raises
    ------
    ValueError
        If `nodes` is below 2.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.topology.one_peer_exponential(8)
    Varying(nodes=8, description='one-peer exponential graphs of 8 nodes')
    """
    nodes = integer("nodes", nodes, at_least=2)
    description = f"one-peer exponential graphs of {nodes} nodes"
    return Varying(nodes, partial(_one_peer, nodes), description)


class ScoredSchedule(NamedTuple):
    """Schedule with its score: the privacy loss to the worst single observer (network DP).

    Attributes
    ----------
    schedule
        The network over time.
    share
        Gaussian-DP parameter mu against the worst single observer, over mu against an adversary who
        sees all messages; for the same sensitivity and noise in each round.
    observer, target
        Node that learns most, and the node about whose records it learns most.
    """

    schedule: Topology
    share: float
    observer: int
    target: int


def best_schedule(
    schedules: Iterable[Topology], rounds: int, *, gap: float = 5e-3
) -> ScoredSchedule:
    """Return the schedule whose worst single observer learns least, over all observers and targets.

    The choice reads no data and adds no epsilon, as long as no schedule depends on data. It
    assumes equal sensitivity and equal noise in all rounds, and steps that do not expand distances.

    Parameters
    ----------
    schedules
        Topologies to compare, such as ``[meetings(64, key=key, order=k) for k in range(8)]``.
    rounds
        Number of rounds of the run, at least 2.
    gap
        Relative gap at which the solver that computes mu stops.

    Returns
    -------
    The schedule with the smallest share, and its worst observer and target.

    Raises
    ------
    ValueError
        If there is no schedule, or `rounds` is below 2.

    Examples
    --------
    >>> import dpmesh as dm
    >>> keys = map(dm.Key.seeded, range(2))
    >>> drawn = [dm.topology.meetings(4, key=key) for key in keys]
    >>> dm.topology.best_schedule(drawn, 6).share <= 1
    True
    """
    integer("rounds", rounds, at_least=2)
    positive("gap", gap)
    best: ScoredSchedule | None = None
    for schedule in schedules:
        require_methods("schedules", schedule, "networks, such as meetings(16, key=key)", "matrix")
        scored = _scored(schedule, rounds, gap)
        if best is None or scored.share < best.share:
            best = scored
    if best is None:
        fail("schedules", "at least 1 schedule", "none")
    return best


def _scored(schedule: Topology, rounds: int, gap: float) -> ScoredSchedule:
    """Solve for the worst pair of observer and target over all rounds of one schedule."""
    nodes = schedule.nodes
    movement = np.ones(rounds)
    movement[0] = 0.0  # all nodes start from the same public point
    mixings = [Mixing(t, t, schedule.matrix(t).weights) for t in range(rounds)]
    system = view_system(mixings, noise=np.ones(rounds), fresh=movement, nodes=nodes)
    observers = [(node,) for node in range(nodes)]
    pairs = all_pairs(observers, nodes)
    worst = worst_pair(system, observers, pairs, entries=rounds * nodes, gap=gap)
    if worst is None:
        return ScoredSchedule(schedule, 0.0, 0, 0)
    share = worst.mu / system.everybody(worst.target)
    return ScoredSchedule(schedule, share, worst.observer[0], worst.target)


def pairs_of_round(nodes: int, round: int) -> Indices:
    """Return the pairs of a round of a round-robin schedule, shape (pairs, 2): the circle method.

    Node 0 stays in its place and the others rotate around a circle; opposite nodes are paired. With
    an odd number of nodes one place is empty, and its partner sits out.
    """
    places = nodes + nodes % 2
    walking = 1 + (np.arange(places - 1) + round) % (places - 1)
    circle = np.concatenate([[0], walking])
    half = places // 2
    opposite = circle[: half - 1 : -1]
    pairs = np.stack([circle[:half], opposite], axis=1)
    has_partner = (pairs < nodes).all(axis=1)
    meeting_pairs: Indices = pairs[has_partner]
    return meeting_pairs


def _meeting(nodes: int, key: Key, order: int, round: int) -> MixingMatrix:
    """Return the matrix of one round of `meetings`; the key draws its place in the cycle."""
    cycle_length = nodes - 1 + nodes % 2
    cycle, place = divmod(round, cycle_length)
    random = public_generator(key, Use.MEETINGS, cycle * 2**16 + order)
    order_of_cycle = random.permutation(cycle_length)
    return _averages(nodes, int(order_of_cycle[place]))


@lru_cache(maxsize=256)
def _averages(nodes: int, round: int) -> MixingMatrix:
    """Return the matrix of one round of the circle method."""
    pairs = pairs_of_round(nodes, round)
    return paired(nodes, first=pairs[:, 0], second=pairs[:, 1])


def _one_peer(nodes: int, round: int) -> MixingMatrix:
    """Return the matrix of one round of `one_peer_exponential`."""
    cycle_length = (nodes - 1).bit_length()
    distance = 2 ** (round % cycle_length)
    partner = (np.arange(nodes) + distance) % nodes
    return halves(partner)
