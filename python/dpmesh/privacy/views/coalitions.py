"""Every coalition of a number of nodes: enumerated, or bounded from the pairs.

For one target, the squares of the bounds against several observers add up to one against all of
them together: the least of their shifts is feasible for the coalition.
"""

from __future__ import annotations

from itertools import combinations
from math import comb, sqrt

import numpy as np
import numpy.typing as npt

from dpmesh._core import ViewSystem
from dpmesh.kernels.views import Certificate, all_pairs, cheap_bounds, solve_pairs, worst_pair

MOST_COALITIONS = 100_000
"""Number of coalitions beyond which they are bounded from pairs."""

_AT_ONCE = 64


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
    where there are more than `MOST_COALITIONS`.
    """
    if size == 1 or comb(nodes, size) > MOST_COALITIONS:
        bound = from_pairs(system, nodes, size, entries, gap=gap)
        return bound, f"bound from pairs on all coalitions of {size}"
    coalitions = list(combinations(range(nodes), size))
    pairs = all_pairs(coalitions, nodes)
    squares = _table(system, nodes)
    members = np.array(coalitions)
    bounds = np.sqrt(squares[members[pairs[:, 0]], pairs[:, 1][:, None]].sum(axis=1))
    worst = worst_pair(system, coalitions, pairs, entries, gap=gap, bounds=bounds)
    words = f"the worst of all {len(coalitions)} coalitions of {size}"
    return worst or Certificate(0.0, 0.0, (), 0), words


def from_pairs(
    system: ViewSystem, nodes: int, size: int, entries: int, *, gap: float = 1e-3
) -> Certificate:
    """Return a bound on every coalition: the `size` largest squares of a target's pairs, added up.

    Pairs are solved where their cheap bounds do not decide. The observers of the certificate are
    the pairs that were added up.
    """
    observers = [(node,) for node in range(nodes)]
    pairs = all_pairs(observers, nodes)
    bounds = cheap_bounds(system, observers, pairs, entries)
    table = np.zeros((nodes, nodes))
    exact = np.eye(nodes, dtype=bool)
    table[pairs[:, 0], pairs[:, 1]] = bounds**2
    while True:
        top = np.argsort(-table, axis=0, kind="stable")[:size]
        sums = np.take_along_axis(table, top, axis=0).sum(axis=0)
        order = np.argsort(-sums, kind="stable")
        worst = int(order[0])
        if exact[top[:, worst], worst].all():
            observer = tuple(int(node) for node in top[:, worst])
            return Certificate(sqrt(sums[worst]), 0.0, observer, worst)
        open_pairs = [
            (int(node), int(target))
            for target in order[:_AT_ONCE]
            for node in top[:, target]
            if not exact[node, target]
        ][:_AT_ONCE]
        chosen = np.array(open_pairs, dtype=np.int64)
        uppers, _ = solve_pairs(system, observers, chosen, gap=gap)
        table[chosen[:, 0], chosen[:, 1]] = uppers**2
        exact[chosen[:, 0], chosen[:, 1]] = True


def _table(system: ViewSystem, nodes: int) -> npt.NDArray[np.float64]:
    """Squares of bounds, shape (observers, targets); those of a node against itself are 0."""
    observers = [(node,) for node in range(nodes)]
    pairs = all_pairs(observers, nodes)
    table = np.zeros((nodes, nodes))
    uppers, _ = solve_pairs(system, observers, pairs, gap=1e-2)
    table[pairs[:, 0], pairs[:, 1]] = uppers**2
    return table
