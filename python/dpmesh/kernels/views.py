"""Bounds on the privacy loss against an adversary who sees only some of the messages (network DP).

The *observer* is a set of nodes that collude: they pool all messages that they receive and send.
The *target* is the node whose record is protected, and the *view* is what the observer sees.

Node j sends ``m_t^j = x_t^j + n_t^j`` in round t, with independent Gaussian noise n of standard
deviation ``noise_t^j``. A record of the target moves its state x of round t by at most ``fresh_t``.
States react to earlier states and messages with known Lipschitz constants: `own` for the node's
state, and B, the mixing weights times a gain, for messages.

The proof couples the noise of two runs on neighbouring datasets. A *shift* ``r_t^j >= 0`` is the
largest difference of message (t, j) that the coupling leaves; it must be 0 if the observer sees the
message. For any shifts, the states differ by at most

    z_(t+1)^i = own_t z_t^i + sum_(tau, j) B_(t, tau)[i, j] r_tau^j + fresh_(t+1)^i [i = target]

and the view is mu-Gaussian-DP with ``mu^2 = sum (max(0, z_t^j - r_t^j) / noise_t^j)^2``. The solver
searches for the shifts with the smallest mu. Any shifts that it returns give a valid bound, a
*certificate* (proof: ``docs/privacy/network_dp_proof.md``).
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
"""Nodes that collude: they pool all messages that they receive and send, and their states."""

MOST_ITERATIONS = 20_000
"""Largest number of iterations of the solver for one pair of observer and target."""

_CHEAP_AT_ONCE = 1 << 26
"""Rounds times nodes times pairs between two checks for Ctrl-C: some tenths of a second."""

_SOLVED_AT_ONCE = 64
"""Largest number of pairs that are solved between two checks for Ctrl-C."""


class Mixing(NamedTuple):
    """Effect of the messages of one round on the states of a later round.

    Attributes
    ----------
    mixed
        Round in which the messages are mixed: they enter the states of round ``mixed + 1``.
    sent
        Round in which the messages were made, at most `mixed`.
    matrix
        Nonnegative weights, shape (nodes, nodes), dense or sparse. The same object may occur in
        several mixings; it is stored once.
    gain
        Factor on the weights, such as a Lipschitz constant of the step.
    """

    mixed: int
    sent: int
    matrix: Any
    gain: float = 1.0


class Certificate(NamedTuple):
    """Proved bound on mu for one observer and target.

    Attributes
    ----------
    mu
        The observer's view is mu-Gaussian-DP for a record of the target.
    mu_at_least
        Lower bound on the mu that any shifts prove: the bound `mu` cannot be improved below it.
    observer
        Nodes that collude; empty for an adversary who sees published messages only.
    target
        Node whose record is protected.
    """

    mu: float
    mu_at_least: float
    observer: Observer
    target: int


class Received(NamedTuple):
    """Message that a node received without mixing.

    Attributes
    ----------
    round
        Round in which the message was made.
    receiver
        Node that received it.
    sender
        Node that sent it.
    """

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
    """Return the checked public numbers of a run, for `solve_pair`, `solve_pairs` and others.

    Parameters
    ----------
    mixings
        Effects of messages on later states. Messages of the last round have no effect.
    noise
        Standard deviation of the noise of each message, shape (rounds,) or (rounds, nodes). It must
        be positive from the first round on in which a record moves a state.
    fresh
        Largest L2 distance by which a record moves its node's state of round t directly: shape
        (rounds,), equal for all nodes, or (rounds, nodes).
    nodes
        Number of nodes.
    own
        Lipschitz constant of a node's state of round t + 1 in its state of round t, given all
        messages: a number, or shape (rounds,).
    rounding
        Spacing of the grid that states and noise are rounded to, times sqrt(dim); 0 for no grid.
    published
        True for published messages, shape (rounds, nodes); None if no message is published.
    received
        Messages that nodes receive without mixing.
    mean_of_last
        True if a trusted party publishes the mean of the last round's messages.

    Raises
    ------
    ValueError
        If a shape is wrong, a number is negative or not finite, messages are mixed before they are
        made, or noise is missing.
    """
    nodes = integer("nodes", nodes, at_least=1, below=2**32)
    movement = _by_node("fresh", fresh, nodes)
    rounds = len(movement)
    index_of_matrix: dict[int, int] = {}  # by the identity of the object
    matrices: list[sparse.csr_array] = []
    mixing_table: list[tuple[int, int, int]] = []
    gains: list[float] = []
    for mixing in mixings:
        identity = id(mixing.matrix)
        if identity not in index_of_matrix:
            index_of_matrix[identity] = len(matrices)
            matrices.append(_csr_rows(mixing.matrix, nodes))
        mixing_table.append((mixing.mixed, mixing.sent, index_of_matrix[identity]))
        gains.append(number("gain", mixing.gain))
    if not matrices:
        matrices.append(sparse.csr_array((nodes, nodes)))
    stacked = sparse.vstack(matrices, format="csr")
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
    """Return the smallest provable mu of a target's records against one observer.

    Parameters
    ----------
    system
        Public numbers of the run.
    observer
        Nodes that collude.
    target
        Node whose records are protected, not part of the observer.
    gap
        Relative difference of `mu` and `mu_at_least` at which the search ends.
    iterations
        Largest number of iterations; the bound is then valid with a larger gap.

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
    """Return all pairs of an observer and a target outside of it, shape (pairs, 2).

    A pair is the index of an observer in `observers`, and the target's node.
    """
    is_outside = np.ones((len(observers), nodes), dtype=bool)
    for row, members in zip(is_outside, observers, strict=True):
        row[list(members)] = False
    return np.argwhere(is_outside)


def cheap_bounds(
    system: ViewSystem, observers: Sequence[Observer], pairs: Indices, entries: int
) -> Numbers:
    """Return a valid bound on mu for each pair, without a search for the smallest one.

    It is the smallest bound if the observer receives all messages of the target. It may be far
    larger if the target is many edges away from the observer.

    Parameters
    ----------
    system
        Public numbers of the run.
    observers
        Possible observers.
    pairs
        Pairs of an observer's index and a target, shape (pairs, 2).
    entries
        Number of rounds times nodes, which sets the work between two checks for Ctrl-C.

    Returns
    -------
    Shape (pairs,).
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
    """Return the bounds `mu` and `mu_at_least` of each pair, both of shape (pairs,).

    A search ends as soon as its mu is below `at_most`. Other parameters are as in `solve_pair` and
    `cheap_bounds`.
    """
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

    Pairs are solved in descending order of their cheap bounds, until the next bound is below the
    largest mu so far. No pair exceeds the mu of an adversary who sees all messages, so that the
    search also ends at a pair that reaches it. On a static network any two neighbours reach it.

    Parameters
    ----------
    system
        Public numbers of the run.
    observers
        Possible observers.
    pairs
        Pairs of an observer's index and a target outside of it, shape (pairs, 2).
    entries
        Number of rounds times nodes, the work of one cheap bound.
    gap
        Relative gap of the solver.
    bounds
        Upper bound on each pair's mu, shape (pairs,); None to compute `cheap_bounds`.
    at_least
        Pairs with a mu of at most this number are ignored.

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
    """Return a mixing matrix in CSR form, after a check of its shape."""
    rows = sparse.csr_array(matrix, dtype=np.float64)
    if rows.shape != (nodes, nodes):
        fail("matrix", f"shape {(nodes, nodes)}", f"shape {rows.shape}")
    return rows
