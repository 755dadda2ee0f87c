"""What the messages of a run reveal to somebody who sees some of them: certificates by coupling.

Messages are ``m_t^j = x_t^j + n_t^j`` with independent Gaussian noise. A record of the target moves
its state of round t by at most `fresh`; states react to states and messages by known Lipschitz
constants. For any shifts ``r_t^j >= 0`` that are 0 where the observer sees the message,

    z_(t+1)^i = own_t z_t^i + sum_(tau, j) B_(t, tau)[i, j] r_tau^j + fresh_(t+1)^i [i = target]

and the view is mu-Gaussian-DP with ``mu^2 = sum (max(0, z_t^j - r_t^j) / noise_t^j)^2``. The solver
looks for the shifts of the least mu; whatever it returns is a valid bound (docs/privacy/views.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpmesh._arrays import unmasked
from dpmesh._core import ViewSystem
from dpmesh._ragged import Indices, Numbers
from dpmesh._validate import fail, integer, number

Observer = tuple[int, ...]
"""Nodes that pool what they receive, send and hold."""

MOST_ITERATIONS = 20_000
_CHEAP_AT_ONCE = 1 << 26  # entries between two checks for Ctrl-C: some tenths of a second
_SOLVED_AT_ONCE = 64


class Mixing(NamedTuple):
    """Messages of round `sent` enter the states of round ``mixed + 1`` with weights `matrix`.

    `matrix` has shape (nodes, nodes), dense or sparse, and nonnegative entries; `gain` multiplies
    them. Matrices that are the same object are stored once.
    """

    mixed: int
    sent: int
    matrix: Any
    gain: float = 1.0


class Certificate(NamedTuple):
    """A proved bound, and how much a better search could still gain.

    Attributes
    ----------
    mu
        The view is mu-Gaussian-DP.
    mu_at_least
        No choice of shifts proves less than this.
    observer
        The nodes that pool what they see; empty for readers of published messages alone.
    target
        The node whose record is protected.
    """

    mu: float
    mu_at_least: float
    observer: Observer
    target: int


class Received(NamedTuple):
    """The message of `sender`, made in `round`, reached `receiver` without being mixed."""

    round: int
    receiver: int
    sender: int


def view_system(
    mixings: Sequence[Mixing],
    *,
    noise: npt.ArrayLike,
    fresh: npt.ArrayLike,
    nodes: int,
    own: npt.ArrayLike = 0.0,
    rounding: float = 0.0,
    published: npt.ArrayLike | None = None,
    received: Sequence[Received] = (),
    mean_of_last: bool = False,
) -> ViewSystem:
    """Return the public numbers of a run, checked, ready to be solved.

    Parameters
    ----------
    mixings
        Which messages enter which states. Those of the last round are never used.
    noise
        Standard deviation of the noise of each message, shape (rounds,) or (rounds, nodes):
        positive from the first round on in which a record moves a state.
    fresh
        How far a record of a node moves that node's state of round t, L2: shape (rounds,) for all
        nodes alike, or (rounds, nodes).
    nodes
        Number of nodes.
    own
        How much of its own state's difference a node keeps from round t to t + 1: a number, or
        shape (rounds,).
    rounding
        Step of a grid that states and noise are rounded to, times sqrt(dim); 0 for none.
    published
        Shape (rounds, nodes): which messages everybody sees; None for none.
    received
        Messages that arrive at nodes without being mixed.
    mean_of_last
        Whether the mean of the last round's messages is published by somebody trusted.

    Raises
    ------
    ValueError
        If shapes do not fit, a number is negative or not finite, messages are mixed before they are
        made, or noise is missing.
    """
    nodes = integer("nodes", nodes, at_least=1, below=2**32)
    moved = _by_node("fresh", fresh, nodes)
    rounds = len(moved)
    stored: dict[int, int] = {}
    matrices: list[sparse.csr_array] = []
    for mixing in mixings:
        if id(mixing.matrix) not in stored:
            stored[id(mixing.matrix)] = len(matrices)
            matrices.append(_rows(mixing.matrix, nodes))
    stacked = sparse.vstack(matrices or [sparse.csr_array((nodes, nodes))], format="csr")
    table = [(m.mixed, m.sent, stored[id(m.matrix)]) for m in mixings]
    seen = np.asarray(np.zeros(0) if published is None else published, dtype=bool)
    if published is not None and seen.shape != (rounds, nodes):
        fail("published", f"truth values of shape {(rounds, nodes)}", f"shape {seen.shape}")
    kept = np.broadcast_to(np.asarray(own, dtype=np.float64), (rounds,))
    return ViewSystem(
        nodes,
        (*(each.astype(np.int64) for each in (stacked.indptr, stacked.indices)), stacked.data),
        np.array(table, dtype=np.int64).reshape(-1),
        np.array([number("gain", mixing.gain) for mixing in mixings], dtype=np.float64),
        np.ascontiguousarray(kept),
        _by_node("noise", noise, nodes).reshape(-1),
        moved.reshape(-1),
        number("rounding", rounding),
        np.ascontiguousarray(seen).reshape(-1),
        np.array(received, dtype=np.int64).reshape(-1),
        bool(mean_of_last),
    )


def solve_pair(
    system: ViewSystem,
    observer: Sequence[int],
    target: int,
    *,
    gap: float = 1e-3,
    iterations: int = MOST_ITERATIONS,
) -> Certificate:
    """Return the least mu of one observer and one target, up to a relative `gap`.

    Raises
    ------
    ValueError
        If a node is unknown, or the target is part of the observer.
    """
    pairs = np.array([0, integer("target", target)], dtype=np.int64)
    seeing = tuple(integer("observer", node) for node in observer)
    upper, lower, _ = system.solve([list(seeing)], pairs, gap, 0.0, iterations)
    return Certificate(float(upper[0]), float(lower[0]), seeing, int(target))


def all_pairs(observers: Sequence[Observer], nodes: int) -> Indices:
    """Return each number of an observer with each target outside it, shape (pairs, 2)."""
    outside = np.ones((len(observers), nodes), dtype=bool)
    for number_of, members in enumerate(observers):
        outside[number_of, list(members)] = False
    return np.argwhere(outside)


def cheap_bounds(
    system: ViewSystem, observers: Sequence[Observer], pairs: Indices, entries: int
) -> Numbers:
    """Return a bound for each pair without a search: 1.3 to 2 times the least one.

    `entries` is rounds times nodes, from which the work between two checks for Ctrl-C follows.
    """
    lists = [list(members) for members in observers]
    parts = [system.cheap(lists, part.reshape(-1)) for part in _parts(pairs, entries)]
    return np.concatenate(parts) if parts else np.empty(0)


def solve_pairs(
    system: ViewSystem,
    observers: Sequence[Observer],
    pairs: Indices,
    *,
    gap: float = 1e-3,
    at_most: float = 0.0,
    iterations: int = MOST_ITERATIONS,
) -> tuple[Numbers, Numbers]:
    """Return upper and lower bounds of each pair; a search ends once it is below `at_most`."""
    lists = [list(members) for members in observers]
    uppers, lowers = np.empty(len(pairs)), np.empty(len(pairs))
    for first in range(0, len(pairs), _SOLVED_AT_ONCE):
        part = slice(first, first + _SOLVED_AT_ONCE)
        chosen = np.ascontiguousarray(pairs[part]).reshape(-1)
        uppers[part], lowers[part], _ = system.solve(lists, chosen, gap, at_most, iterations)
    return uppers, lowers


def worst_pair(
    system: ViewSystem,
    observers: Sequence[Observer],
    pairs: Indices,
    entries: int,
    *,
    gap: float = 1e-3,
    bounds: Numbers | None = None,
    at_least: float = 0.0,
) -> Certificate | None:
    """Return the pair of an observer and a target against which the run costs most.

    Pairs are solved in the order of their cheap bounds, until the next one is below the largest
    result so far. A pair that costs as much as everybody ends the search: on a static network, any
    two neighbours.

    Parameters
    ----------
    system
        The public numbers of the run.
    observers
        Who may look on.
    pairs
        Shape (pairs, 2): the number of an observer, and a target outside it.
    entries
        Rounds times nodes.
    gap
        Relative.
    bounds
        An upper bound for each pair, instead of the cheap ones.
    at_least
        Pairs that cost no more than this are of no interest.

    Returns
    -------
    None if no pair costs more than `at_least`.
    """
    if len(pairs) == 0:
        return None
    everybody = max(system.everybody(target) for target in np.unique(pairs[:, 1]).tolist())
    if bounds is None:
        parts = []
        for part in _parts(pairs, entries):
            parts.append(cheap_bounds(system, observers, part, entries))
            top = int(np.argmax(parts[-1]))
            if parts[-1][top] >= everybody > at_least:
                found = solve_pair(system, observers[part[top, 0]], part[top, 1], gap=gap)
                if found.mu_at_least >= everybody:
                    return found
        bounds = np.concatenate(parts)
    first = bounds
    order = np.argsort(-first, kind="stable")
    worst, most, done, batch = None, at_least, 0, 4
    while done < len(order) and first[order[done]] > most:
        chosen = order[done : done + batch]
        chosen = chosen[first[chosen] > most]
        uppers, lowers = solve_pairs(system, observers, pairs[chosen], gap=gap, at_most=most)
        top = int(np.argmax(uppers))
        if uppers[top] > most:
            number_of, target = pairs[chosen[top]]
            most = float(uppers[top])
            worst = Certificate(most, float(lowers[top]), observers[number_of], int(target))
        done += len(chosen)
        batch = min(2 * batch, _SOLVED_AT_ONCE)
    return worst


def _parts(pairs: Indices, entries: int) -> Iterator[Indices]:
    at_once = max(1, _CHEAP_AT_ONCE // max(1, entries))
    for first in range(0, len(pairs), at_once):
        yield np.ascontiguousarray(pairs[first : first + at_once])


def _by_node(name: str, value: npt.ArrayLike, nodes: int) -> Numbers:
    array = np.asarray(unmasked(name, value), dtype=np.float64)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] not in (1, nodes):
        fail(name, f"shape (rounds,) or (rounds, {nodes})", f"shape {array.shape}")
    return np.ascontiguousarray(np.broadcast_to(array, (len(array), nodes)))


def _rows(matrix: Any, nodes: int) -> sparse.csr_array:
    rows = sparse.csr_array(matrix, dtype=np.float64)
    if rows.shape != (nodes, nodes):
        fail("matrix", f"shape {(nodes, nodes)}", f"shape {rows.shape}")
    return rows
