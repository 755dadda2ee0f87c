"""Epsilon against every coalition of a number of nodes, by enumeration or by sums over members.

`view_cost` calls `any_coalition` for the view `AnyCoalition`. All bounds are on mu: what a
coalition sees is mu-Gaussian-DP with respect to one record of the *target*, a node outside of it.

**The theorem.** The proof of a view (docs/privacy/network_dp_proof.md) chooses a *shift* ``r`` for
each message that the observer does not see: the difference between two coupled runs that the
message's noise leaves. Let ``mu_v`` be the bound against member v alone, by shifts ``r_v``. For a
coalition V take for each message the least shift of its members. It is 0 wherever a member sees the
message, and state differences do not grow when shifts shrink. So

    mu_V^2 <= sum of mu_v^2 over the members v of V                                       (1)

**With a published mean** of the last messages (`PublishedMean`), ``mu_v^2`` has a term for the mean
of the ``k_v`` last messages that v does not see: the square of their summed differences, over
``k_v`` and the variance of their noise. The coalition misses fewer messages, ``k_V``, whose mean
has more variance; its term is at most ``k_v / k_V`` times that of each member v, and so at most
``k_v / (c k_V)`` times, on average over the c members. Hence

    mu_V^2 <= sum of f_v mu_v^2,    f_v = max(1, k_v / (c k_V)),    if k_V > 0            (2)

and (1) if ``k_V = 0``: then members see all last messages, and the mean tells nothing more.

**Names.** A *pair* is an observer (nodes that pool what they see) and a target: a row of an array
of shape (pairs, 2), with the index of the observer and the target's node.
``squares[node, target]`` is the square of an upper bound on mu against that node alone.
"""

from __future__ import annotations

from itertools import combinations
from math import comb, sqrt

import numpy as np

from dpmesh._core import ViewSystem
from dpmesh._ragged import Flags, Indices, Numbers
from dpmesh.kernels.views import Certificate, all_pairs, cheap_bounds, solve_pairs, worst_pair

MOST_COALITIONS = 100_000
"""Number of coalitions beyond which mu is bounded by sums over single nodes."""

_SOLVED_AT_ONCE = 64
"""Most pairs to solve before the sums are compared again."""

_SINGLE_GAP = 1e-2
"""Relative gap of bounds against single nodes, which only order the coalitions to solve."""


def any_coalition(
    system: ViewSystem,
    nodes: int,
    size: int,
    entries: int,
    *,
    gap: float = 1e-3,
    mean_is_published: bool = False,
) -> tuple[Certificate, str]:
    """Bound mu against every coalition of `size` nodes that pool what they see.

    Parameters
    ----------
    system
        The public numbers of the run.
    nodes, size
        Number of all nodes, and of a coalition's members.
    entries
        Number of rounds times number of nodes.
    gap
        Largest relative gap between the upper and the lower bound on mu.
    mean_is_published
        True if `system` has a published mean of the last round's messages.

    Returns
    -------
    The bound, and a description of its method: the worst of all coalitions, or a bound from pairs
    where there are more than `MOST_COALITIONS`, or one member.
    """
    if size == 1 or comb(nodes, size) > MOST_COALITIONS:
        bound = bound_from_pairs(
            system, nodes, size, entries, gap=gap, mean_is_published=mean_is_published
        )
        return bound, f"bound from pairs on all coalitions of {size}"
    coalitions = list(combinations(range(nodes), size))
    pairs = all_pairs(coalitions, nodes)
    squares = _squares_of_single_nodes(system, nodes)
    members = np.array(coalitions)  # shape (coalitions, size)
    factors = np.ones(members.shape)
    if mean_is_published:
        factors = _mean_factors(_sees_last(system, nodes), members)
    observers = pairs[:, 0]
    targets = pairs[:, 1][:, None]
    member_squares = squares[members[observers], targets]  # shape (pairs, size)
    bounds = np.sqrt((factors[observers] * member_squares).sum(axis=1))
    worst = worst_pair(system, coalitions, pairs, entries, gap=gap, bounds=bounds)
    method = f"the worst of all {len(coalitions)} coalitions of {size}"
    return worst or Certificate(0.0, 0.0, (), 0), method


def bound_from_pairs(
    system: ViewSystem,
    nodes: int,
    size: int,
    entries: int,
    *,
    gap: float = 1e-3,
    mean_is_published: bool = False,
) -> Certificate:
    """Bound mu against every coalition by sums over single nodes, (1) or (2) of the module.

    For each target, the bound adds up the `size` largest squared bounds against single nodes. It
    starts from cheap bounds, and solves pairs until those in the largest sum are all solved.
    Parameters are those of `any_coalition`.

    Returns
    -------
    The largest sum's bound. Its `observer` holds the nodes in the sum; its `mu_at_least` is 0, as
    no lower bound is known.
    """
    observers = [(node,) for node in range(nodes)]
    pairs = all_pairs(observers, nodes)
    factors = np.ones(nodes)
    if mean_is_published:
        factors = _largest_mean_factors(_sees_last(system, nodes), size)
    squares = np.zeros((nodes, nodes))
    squares[pairs[:, 0], pairs[:, 1]] = cheap_bounds(system, observers, pairs, entries) ** 2
    squares *= factors[:, None]
    is_solved = np.eye(nodes, dtype=bool)  # a node learns nothing about itself
    while True:
        # the `size` nodes with the largest squares for each target, shape (size, targets)
        largest = np.argsort(-squares, axis=0, kind="stable")[:size]
        sums = np.take_along_axis(squares, largest, axis=0).sum(axis=0)
        targets = np.argsort(-sums, kind="stable")
        worst = int(targets[0])
        if is_solved[largest[:, worst], worst].all():
            observer = tuple(int(node) for node in largest[:, worst])
            return Certificate(sqrt(sums[worst]), 0.0, observer, worst)
        unsolved = _unsolved_pairs(largest, targets, is_solved)
        solved_nodes = unsolved[:, 0]
        solved_targets = unsolved[:, 1]
        uppers, _ = solve_pairs(system, observers, unsolved, gap=gap)
        squares[solved_nodes, solved_targets] = factors[solved_nodes] * uppers**2
        is_solved[solved_nodes, solved_targets] = True


def _unsolved_pairs(largest: Indices, targets: Indices, is_solved: Flags) -> Indices:
    """Return unsolved pairs of the largest sums, at most `_SOLVED_AT_ONCE`, shape (pairs, 2).

    Parameters
    ----------
    largest
        Nodes in the sum of each target, shape (size, targets).
    targets
        Targets by descending sum, shape (targets,).
    is_solved
        True for solved pairs, shape (nodes, targets).
    """
    unsolved: list[tuple[int, int]] = []
    for target in targets[:_SOLVED_AT_ONCE]:
        nodes = largest[:, target]
        unsolved.extend((int(node), int(target)) for node in nodes if not is_solved[node, target])
    return np.array(unsolved[:_SOLVED_AT_ONCE], dtype=np.int64)


def _squares_of_single_nodes(system: ViewSystem, nodes: int) -> Numbers:
    """Return squared bounds on mu against single nodes, shape (nodes, targets).

    The diagonal is 0.
    """
    observers = [(node,) for node in range(nodes)]
    pairs = all_pairs(observers, nodes)
    squares = np.zeros((nodes, nodes))
    uppers, _ = solve_pairs(system, observers, pairs, gap=_SINGLE_GAP)
    squares[pairs[:, 0], pairs[:, 1]] = uppers**2
    return squares


def _sees_last(system: ViewSystem, nodes: int) -> Flags:
    """Return True where a node sees another one's last message, shape (nodes, senders)."""
    return np.stack([system.seen([node])[-nodes:] for node in range(nodes)])


def _mean_factors(sees_last: Flags, members: Indices) -> Numbers:
    """Return the factors ``f_v`` of (2) for each coalition's members, shape (coalitions, size).

    Parameters
    ----------
    sees_last
        As `_sees_last` returns it.
    members
        Members of each coalition, shape (coalitions, size).
    """
    nodes = len(sees_last)
    size = members.shape[1]
    unseen_by_node = nodes - sees_last.sum(axis=1)
    coalition_sees = sees_last[members[:, 0]]  # shape (coalitions, senders)
    for column in range(1, size):
        coalition_sees |= sees_last[members[:, column]]
    unseen = nodes - coalition_sees.sum(axis=1, keepdims=True)
    factors = unseen_by_node[members] / (size * np.maximum(unseen, 1))
    return np.where(unseen > 0, np.maximum(factors, 1.0), 1.0)


def _largest_mean_factors(sees_last: Flags, size: int) -> Numbers:
    """Return the largest ``f_v`` of (2) over all coalitions of a size, an upper bound.

    A coalition that misses some last message misses at least as many as there are nodes, less the
    `size` largest numbers of messages that single nodes see.

    Returns
    -------
    Shape (nodes,); all 1 for a single node, which sees the mean that its own bound counts.
    """
    nodes = len(sees_last)
    if size == 1:
        return np.ones(nodes)
    seen_by_node = sees_last.sum(axis=1)
    most_seen = int(np.sort(seen_by_node)[-size:].sum())
    least_unseen = max(1, nodes - most_seen)
    factors: Numbers = np.maximum(1.0, (nodes - seen_by_node) / (size * least_unseen))
    return factors
