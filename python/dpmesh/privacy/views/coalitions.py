"""Epsilon against every coalition of a number of nodes, by enumeration or by a bound from pairs.

`view_cost` calls `any_coalition` for the view `AnyCoalition`. All bounds are on mu: the view of a
coalition is mu-Gaussian-DP with respect to one record of the *target*, a node outside of it.

- A *pair* is an observer (nodes that pool their views) and a target: a row of an array of shape
  (pairs, 2), with the number of the observer and the index of the target.
- ``single_squares[node, target]`` is the square of an upper bound on mu against that node alone.
- For one target, the sum of these squares over a coalition's members is the square of a bound
  against the coalition: the smallest of the members' shifts are shifts of the coalition's proof
  (docs/privacy/network_dp_proof.md).
"""

from __future__ import annotations

from itertools import combinations
from math import comb, sqrt

import numpy as np

from dpmesh._core import ViewSystem
from dpmesh._ragged import Flags, Indices, Numbers
from dpmesh.kernels.views import Certificate, all_pairs, cheap_bounds, solve_pairs, worst_pair

MOST_COALITIONS = 100_000
"""Number of coalitions beyond which mu is bounded from pairs of single nodes."""

_SOLVED_AT_ONCE = 64
"""Most pairs to solve before the sums are compared again."""

_SINGLE_GAP = 1e-2
"""Relative gap of bounds against single nodes, which only order the coalitions to solve."""


def any_coalition(
    system: ViewSystem, nodes: int, size: int, entries: int, *, gap: float = 1e-3
) -> tuple[Certificate, str]:
    """Bound mu against every coalition of `size` nodes that pool their views.

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

    Returns
    -------
    The bound, and a description of its method: the worst of all coalitions, or a bound from pairs
    where there are more than `MOST_COALITIONS`, or one member.
    """
    if size == 1 or comb(nodes, size) > MOST_COALITIONS:
        bound = bound_from_pairs(system, nodes, size, entries, gap=gap)
        return bound, f"bound from pairs on all coalitions of {size}"
    coalitions = list(combinations(range(nodes), size))
    pairs = all_pairs(coalitions, nodes)
    single_squares = _single_squares(system, nodes)
    members = np.array(coalitions)[pairs[:, 0]]  # shape (pairs, size)
    targets = pairs[:, 1][:, None]
    bounds = np.sqrt(single_squares[members, targets].sum(axis=1))
    worst = worst_pair(system, coalitions, pairs, entries, gap=gap, bounds=bounds)
    method = f"the worst of all {len(coalitions)} coalitions of {size}"
    return worst or Certificate(0.0, 0.0, (), 0), method


def bound_from_pairs(
    system: ViewSystem, nodes: int, size: int, entries: int, *, gap: float = 1e-3
) -> Certificate:
    """Bound mu against every coalition by sums over single nodes.

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
    single_squares = np.zeros((nodes, nodes))
    single_squares[pairs[:, 0], pairs[:, 1]] = cheap_bounds(system, observers, pairs, entries) ** 2
    is_solved = np.eye(nodes, dtype=bool)  # a node learns nothing about itself
    while True:
        # the `size` nodes with the largest squares for each target, shape (size, targets)
        largest = np.argsort(-single_squares, axis=0, kind="stable")[:size]
        sums = np.take_along_axis(single_squares, largest, axis=0).sum(axis=0)
        targets = np.argsort(-sums, kind="stable")
        worst = int(targets[0])
        if is_solved[largest[:, worst], worst].all():
            observer = tuple(int(node) for node in largest[:, worst])
            return Certificate(sqrt(sums[worst]), 0.0, observer, worst)
        unsolved = _unsolved_pairs(largest, targets, is_solved)
        uppers, _ = solve_pairs(system, observers, unsolved, gap=gap)
        single_squares[unsolved[:, 0], unsolved[:, 1]] = uppers**2
        is_solved[unsolved[:, 0], unsolved[:, 1]] = True


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


def _single_squares(system: ViewSystem, nodes: int) -> Numbers:
    """Return squared bounds on mu against single nodes, shape (nodes, targets).

    The diagonal is 0.
    """
    observers = [(node,) for node in range(nodes)]
    pairs = all_pairs(observers, nodes)
    single_squares = np.zeros((nodes, nodes))
    uppers, _ = solve_pairs(system, observers, pairs, gap=_SINGLE_GAP)
    single_squares[pairs[:, 0], pairs[:, 1]] = uppers**2
    return single_squares
