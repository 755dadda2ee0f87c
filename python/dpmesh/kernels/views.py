"""Certificates by coupling: bounds on the privacy loss against an adversary who sees some messages.

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
"""Nodes that pool all that they receive, send and hold."""

MOST_ITERATIONS = 20_000
"""Most iterations of the solver for one pair of observer and target."""

_CHEAP_AT_ONCE = 1 << 26
"""Entries of cheap bounds between two checks for Ctrl-C: some tenths of a second."""

_SOLVED_AT_ONCE = 64
"""Most pairs that are solved between two checks for Ctrl-C."""


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
    """A proved bound on mu, and a lower bound on any that the same proof can give.

    Attributes
    ----------
    mu
        The view is mu-Gaussian-DP.
    mu_at_least
        No choice of shifts proves less than this.
    observer
        The nodes that pool their views; empty for readers of published messages alone.
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
        The messages that enter the states. Those of the last round are never used.
    noise
        Standard deviation of the noise of each message, shape (rounds,) or (rounds, nodes):
        positive from the first round on in which a record moves a state.
    fresh
        Largest movement, in L2 norm, of a node's state of round t by a record of that node: shape
        (rounds,) for all nodes alike, or (rounds, nodes).
    nodes
        Number of nodes.
    own
        Share of its own state's difference that a node keeps from round t to t + 1: a number, or
        shape (rounds,).
    rounding
        Step of a grid that states and noise are rounded to, times sqrt(dim); 0 for none.
    published
        Shape (rounds, nodes): true where a message is published; None for none.
    received
        Messages that arrive at nodes without being mixed.
    mean_of_last
        If true, a trusted party publishes the mean of the last round's messages.

    Raises
    ------
    ValueError
        If shapes do not fit, a number is negative or not finite, messages are mixed before they are
        made, or noise is missing.
    """
    nodes = integer("nodes", nodes, at_least=1, below=2**32)
    movement = _by_node("fresh", fresh, nodes)
    rounds = len(movement)
    numbers: dict[int, int] = {}
    matrices: list[sparse.csr_array] = []
    for mixing in mixings:
        if id(mixing.matrix) not in numbers:
            numbers[id(mixing.matrix)] = len(matrices)
            matrices.append(_csr_rows(mixing.matrix, nodes))
    if not matrices:
        matrices.append(sparse.csr_array((nodes, nodes)))
    stacked = sparse.vstack(matrices, format="csr")
    mixing_table = [(mixing.mixed, mixing.sent, numbers[id(mixing.matrix)]) for mixing in mixings]
    gains = [number("gain", mixing.gain) for mixing in mixings]
    if published is None:
        is_published = np.zeros((0, nodes), dtype=bool)
    else:
        is_published = np.asarray(published, dtype=bool)
        if is_published.shape != (rounds, nodes):
            got = f"shape {is_published.shape}"
            fail("published", f"truth values of shape {(rounds, nodes)}", got)
    carry_over = np.broadcast_to(np.asarray(own, dtype=np.float64), (rounds,))
    return ViewSystem(
        nodes,
        (stacked.indptr.astype(np.int64), stacked.indices.astype(np.int64), stacked.data),
        np.array(mixing_table, dtype=np.int64).reshape(-1),
        np.array(gains, dtype=np.float64),
        np.ascontiguousarray(carry_over),
        _by_node("noise", noise, nodes).reshape(-1),
        movement.reshape(-1),
        number("rounding", rounding),
        np.ascontiguousarray(is_published).reshape(-1),
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
    """Return the least mu of a target's records against one observer, up to a relative `gap`.

    Raises
    ------
    ValueError
        If a node is unknown, or the target is part of the observer.
    """
    pairs = np.array([0, integer("target", target)], dtype=np.int64)
    members = tuple(integer("observer", node) for node in observer)
    upper, lower, _ = system.solve([list(members)], pairs, gap, 0.0, iterations)
    return Certificate(
        mu=float(upper[0]), mu_at_least=float(lower[0]), observer=members, target=int(target)
    )


def all_pairs(observers: Sequence[Observer], nodes: int) -> Indices:
    """Return each number of an observer with each target outside it, shape (pairs, 2)."""
    is_outside = np.ones((len(observers), nodes), dtype=bool)
    for row, members in zip(is_outside, observers, strict=True):
        row[list(members)] = False
    return np.argwhere(is_outside)


def cheap_bounds(
    system: ViewSystem, observers: Sequence[Observer], pairs: Indices, entries: int
) -> Numbers:
    """Return a bound for each pair without a search: 1.3 to 2 times the least one.

    `entries` is rounds times nodes, from which the work between two checks for Ctrl-C follows.
    """
    lists = [list(members) for members in observers]
    bounds = [system.cheap(lists, chunk.reshape(-1)) for chunk in _chunks(pairs, entries)]
    if not bounds:
        return np.empty(0)
    return np.concatenate(bounds)


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
    uppers = np.empty(len(pairs))
    lowers = np.empty(len(pairs))
    for start in range(0, len(pairs), _SOLVED_AT_ONCE):
        chunk = slice(start, start + _SOLVED_AT_ONCE)
        flat_pairs = np.ascontiguousarray(pairs[chunk]).reshape(-1)
        uppers[chunk], lowers[chunk], _ = system.solve(lists, flat_pairs, gap, at_most, iterations)
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
    """Return the certificate of the observer and target with the largest mu.

    Pairs are solved in the order of their cheap bounds, until the next one is below the largest
    result so far. No pair exceeds the mu of an adversary who sees all messages, so the search ends
    at one that reaches it. On a static network any two neighbours do.

    Parameters
    ----------
    system
        The public numbers of the run.
    observers
        The possible observers.
    pairs
        Shape (pairs, 2): the number of an observer, and a target outside it.
    entries
        Rounds times nodes, the work of one cheap bound.
    gap
        Relative gap of the solver.
    bounds
        Upper bound of each pair's mu, shape (pairs,); None computes the cheap ones.
    at_least
        Pairs of no larger mu than this are passed over.

    Returns
    -------
    The certificate; None if no pair has a larger mu than `at_least`.
    """
    if len(pairs) == 0:
        return None
    if bounds is None:
        targets = np.unique(pairs[:, 1]).tolist()
        all_seeing = max(system.everybody(target) for target in targets)
        chunk_bounds = []
        for chunk in _chunks(pairs, entries):
            cheap = cheap_bounds(system, observers, chunk, entries)
            chunk_bounds.append(cheap)
            top = int(np.argmax(cheap))
            if cheap[top] >= all_seeing > at_least:
                observer_number, target = chunk[top]
                certificate = solve_pair(system, observers[observer_number], target, gap=gap)
                if certificate.mu_at_least >= all_seeing:
                    return certificate
        bounds = np.concatenate(chunk_bounds)
    return _worst_by_bounds(system, observers, pairs, bounds, gap=gap, at_least=at_least)


def _worst_by_bounds(
    system: ViewSystem,
    observers: Sequence[Observer],
    pairs: Indices,
    bounds: Numbers,
    *,
    gap: float,
    at_least: float,
) -> Certificate | None:
    """Solve pairs by descending upper bound, in growing batches, until no other can be worse."""
    order = np.argsort(-bounds, kind="stable")
    worst = None
    largest_mu = at_least
    solved = 0
    batch_size = 4
    while solved < len(order) and bounds[order[solved]] > largest_mu:
        batch = order[solved : solved + batch_size]
        batch = batch[bounds[batch] > largest_mu]
        uppers, lowers = solve_pairs(system, observers, pairs[batch], gap=gap, at_most=largest_mu)
        top = int(np.argmax(uppers))
        if uppers[top] > largest_mu:
            largest_mu = float(uppers[top])
            observer_number, target = pairs[batch[top]]
            worst = Certificate(
                mu=largest_mu,
                mu_at_least=float(lowers[top]),
                observer=observers[observer_number],
                target=int(target),
            )
        solved += len(batch)
        batch_size = min(2 * batch_size, _SOLVED_AT_ONCE)
    return worst


def _chunks(pairs: Indices, entries: int) -> Iterator[Indices]:
    """Yield consecutive pairs, as many as are cheap to bound between two checks for Ctrl-C."""
    chunk_size = max(1, _CHEAP_AT_ONCE // max(1, entries))
    for start in range(0, len(pairs), chunk_size):
        yield np.ascontiguousarray(pairs[start : start + chunk_size])


def _by_node(name: str, values: npt.ArrayLike, nodes: int) -> Numbers:
    """Return numbers of shape (rounds,) or (rounds, nodes) as shape (rounds, nodes)."""
    array = np.asarray(unmasked(name, values), dtype=np.float64)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] not in (1, nodes):
        fail(name, f"shape (rounds,) or (rounds, {nodes})", f"shape {array.shape}")
    return np.ascontiguousarray(np.broadcast_to(array, (len(array), nodes)))


def _csr_rows(matrix: npt.ArrayLike | sparse.sparray, nodes: int) -> sparse.csr_array:
    rows = sparse.csr_array(matrix, dtype=np.float64)
    if rows.shape != (nodes, nodes):
        fail("matrix", f"shape {(nodes, nodes)}", f"shape {rows.shape}")
    return rows
