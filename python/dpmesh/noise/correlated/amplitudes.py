"""Amplitudes of local noise and secrets with the least noise in the mixed points.

For each size `own` of the local noise there is a least size `shared` of the secrets with which mu
is 1 at noise ratio 1 against every coalition of the claimed size (`shared_for`). Among these,
`partner_secrets` chooses the `own` with the least variance of the mixed points (`objective`)

    own^2 tr(G of local noise) + shared^2 tr(G of the graph's Laplacian)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import scipy  # its submodules are imported on first use

from dpmesh._validate import fail, integer, positive
from dpmesh.noise.correlated.coalitions import Exposure, exposure, laplacian
from dpmesh.noise.correlated.objective import gossip
from dpmesh.noise.correlated.secrets import Secrets, canonical_pairs, links
from dpmesh.topology import MixingMatrix

_POINTS = 50
"""Sizes of local noise that are tried before the best one is refined."""

_OVER_LEAST = 1.2
"""Local noise over the least possible where graphs change; near the best in settings tried."""

_MARGIN = 1e-11
"""Margin by which mu stays below 1, so that it is not above 1 once it is rounded up."""

_LARGEST = 1e6
"""Largest secrets, in standard deviations: larger ones gain nothing, and sums would be rounded."""


def least_own(nodes: int, pairs: npt.ArrayLike, *, coalition: int = 0) -> float:
    """Return the least local noise with which any secrets reach mu = 1 at noise ratio 1.

    It is 1 if a coalition of that size can cut a node off from all honest partners, since secrets
    then do not protect that node.

    Parameters
    ----------
    nodes
        Number of nodes.
    pairs
        Pairs of nodes that share secrets, shape (pairs, 2).
    coalition
        Number of colluding nodes.

    Raises
    ------
    ValueError
        If the pairs do not fit the nodes, or there are too many coalitions to try each of them.
    """
    return exposure(nodes, canonical_pairs(pairs, nodes), coalition).least_own()


def shared_for(own_noise: float, exposures: Exposure) -> float:
    """Return the least standard deviation of the secrets with mu = 1 at noise ratio 1, rounded up.

    mu decreases in the size of the secrets. The root is found for the 16 worst coalitions and then
    checked against all; coalitions that are worse join the search.

    Parameters
    ----------
    own_noise
        Standard deviation of a node's local noise, at noise ratio 1.
    exposures
        Exposure to each coalition.

    Raises
    ------
    ValueError
        If no size is enough: `own_noise` is not above `least_own`.
    """
    if own_noise >= 1:
        return 0.0
    least = exposures.least_own()
    if not least < own_noise * (1 - 1e-9) or exposures.worst(own_noise, _LARGEST) > 1:
        fail("own", f"more than {least:.6g}, below which no secrets are enough", own_noise)
    searched = np.zeros(0, dtype=np.int64)
    shared = 0.0
    while True:
        mus = np.sqrt(exposures.squared(own_noise, shared).max(axis=1))
        if mus.max() <= 1 - _MARGIN / 2:
            return shared
        worst = np.argsort(-mus)[:16]
        searched = np.union1d(searched, worst)
        shared = _root(exposures.only(searched), own_noise, shared)


def _root(exposures: Exposure, own_noise: float, low: float) -> float:
    """Return the size of the secrets, above `low`, with mu just below 1 against all coalitions."""
    high = max(2 * low, own_noise)
    while exposures.worst(own_noise, high) > 1 - _MARGIN:
        low = high
        high = 2 * high

    def excess(shared: float) -> float:
        return exposures.worst(own_noise, shared) - (1 - _MARGIN)

    root: float = scipy.optimize.brentq(excess, low, high, xtol=1e-15, rtol=1e-14)
    return root


def partner_secrets(
    mixing_matrix: MixingMatrix,
    *,
    rounds: int,
    mixings: int = 1,
    coalition: int = 0,
    sensitivities: npt.ArrayLike = 1.0,
    own: float | None = None,
    pairs: npt.ArrayLike | None = None,
    star: bool = False,
) -> Secrets:
    """Return secrets with mu = 1 at noise ratio 1 and the least noise in the mixed points.

    Parameters
    ----------
    mixing_matrix
        Symmetric weights, the same in every round.
    rounds, mixings, sensitivities
        As in `gossip`.
    coalition
        Largest number of nodes that collude with the observer.
    own
        Standard deviation of a node's local noise; None for the best of 50 sizes, refined.
    pairs
        Pairs of nodes that share secrets, shape (pairs, 2); None for the links of the network. A
        graph with more links withstands larger coalitions.
    star
        True if the guarantee counts only the secrets of the node itself, as in `Secrets`.

    Raises
    ------
    ValueError
        If a coalition of that size can cut a node off from its honest partners, if there are too
        many coalitions to try each of them, if `own` is too small for any secrets, or if another
        argument is out of its range.
    """
    nodes = mixing_matrix.nodes
    if pairs is None:
        secret_pairs = links(mixing_matrix)
    else:
        secret_pairs = canonical_pairs(pairs, nodes)
    coalition = integer("coalition", coalition)
    exposures = exposure(nodes, secret_pairs, coalition, star=star)
    least = exposures.least_own()
    if least > 1 - 1e-9:
        expected = (
            "a graph of secrets that no such coalition cuts: a node whose partners all collude "
        )
        fail("coalition", f"{expected}gains nothing from secrets (pass more pairs=)", coalition)
    if own is None:
        largest = float(np.asarray(sensitivities, dtype=np.float64).max())
        relative_sensitivities = np.asarray(sensitivities) / largest
        relative = tuple(np.broadcast_to(relative_sensitivities, (rounds,)).tolist())
        own = _best_own(
            mixing_matrix, secret_pairs.tobytes(), coalition, star, rounds, mixings, relative
        )
    own = positive("own", own)
    return Secrets(
        nodes=nodes,
        pairs=secret_pairs,
        own=own,
        shared=shared_for(own, exposures),
        coalition=coalition,
        star=star,
    )


def changing_secrets(
    graphs: Sequence[npt.NDArray[np.int64]], nodes: int, *, coalition: int = 0, star: bool = False
) -> tuple[Secrets, ...]:
    """Return secrets along the graph of each round, with mu = 1 at noise ratio 1 in each round.

    A run of several such rounds may have a smaller mu: see `ChangingSecrets`.

    Local noise is 1.2 times the least that the round's graph allows. If that is 1 or more, as in a
    round in which all partners of a node may collude, no node shares a secret in that round.

    Parameters
    ----------
    graphs
        Pairs of nodes that share secrets in each round, each of shape (pairs, 2).
    nodes
        Number of nodes.
    coalition, star
        As in `partner_secrets`.

    Raises
    ------
    ValueError
        If secrets protect no node in any round, or there are too many coalitions to try each of
        them.
    """
    secrets_by_graph: dict[bytes, Secrets] = {}
    for pairs in graphs:
        graph = canonical_pairs(pairs, nodes)
        graph_bytes = graph.tobytes()
        if graph_bytes in secrets_by_graph:
            continue
        exposures = exposure(nodes, graph, coalition, star=star)
        own_noise = _OVER_LEAST * exposures.least_own()
        secret_pairs = graph
        if own_noise >= 1:
            own_noise = 1.0
            secret_pairs = graph[:0]
        shared = shared_for(own_noise, exposures)
        secrets_by_graph[graph_bytes] = Secrets(
            nodes=nodes,
            pairs=secret_pairs,
            own=own_noise,
            shared=shared,
            coalition=coalition,
            star=star,
        )
    if not any(len(secrets.pairs) for secrets in secrets_by_graph.values()):
        expected = "graphs of secrets of which one at least leaves every node an honest partner"
        fail("coalition", f"{expected} (pass more partners=)", coalition)
    return tuple(secrets_by_graph[canonical_pairs(pairs, nodes).tobytes()] for pairs in graphs)


@lru_cache(maxsize=32)
def _best_own(
    matrix: MixingMatrix,
    pairs: bytes,
    coalition: int,
    star: bool,
    rounds: int,
    mixings: int,
    sensitivities: tuple[float, ...],
) -> float:
    """Return the local noise with the least noise in the mixed points.

    `pairs` are the bytes of an int64 array, since arguments of a cached function are hashed; other
    parameters are those of `partner_secrets`.
    """
    secret_pairs = np.frombuffer(pairs, dtype=np.int64).reshape(-1, 2)
    exposures = exposure(matrix.nodes, secret_pairs, coalition, star=star)
    scales = np.array(sensitivities)
    local_objective = gossip(matrix, rounds, mixings=mixings, sensitivities=scales)
    local_variance = local_objective.trace()
    secret_covariance = laplacian(matrix.nodes, secret_pairs)
    secret_objective = gossip(
        matrix, rounds, mixings=mixings, sensitivities=scales, covariance=secret_covariance
    )
    secret_variance = secret_objective.trace()

    def mixed_variance(own_noise: float) -> float:
        shared = shared_for(own_noise, exposures)
        return own_noise**2 * local_variance + shared**2 * secret_variance

    sizes = np.geomspace(exposures.least_own() * 1.001, 1.0, _POINTS)
    best = int(np.argmin([mixed_variance(size) for size in sizes]))
    low = sizes[max(best - 1, 0)]
    high = sizes[min(best + 1, _POINTS - 1)]
    refined = scipy.optimize.minimize_scalar(mixed_variance, bounds=(low, high), method="bounded")
    if refined.fun < mixed_variance(sizes[best]):
        return float(refined.x)
    return float(sizes[best])
