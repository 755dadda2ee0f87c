"""Amplitudes of secrets: the least noise in the mixed points for the same guarantee."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, minimize_scalar

from dpmesh._validate import fail, integer, positive
from dpmesh.noise.correlated.coalitions import Exposure, exposure, laplacian
from dpmesh.noise.correlated.objective import gossip
from dpmesh.noise.correlated.secrets import Secrets, canonical_pairs, links
from dpmesh.topology import MixingMatrix

_POINTS = 50
_OVER_LEAST = 1.2
"""Own noise over the least, where graphs change: near the best in the settings that were tried."""

_MARGIN = 1e-11
"""How far below 1 mu is put, so that the mu that is rounded up is not above it."""

_LARGEST = 1e6
"""Secrets beyond this many standard deviations gain nothing, and rounding would spoil their sum."""


def least_own(nodes: int, pairs: npt.ArrayLike, *, coalition: int = 0) -> float:
    """Return the least own noise with which any secrets reach mu = 1 at noise ratio 1.

    1 if a coalition of that size can cut a node off from all honest partners: secrets then give
    that node nothing.
    """
    return exposure(nodes, canonical_pairs(pairs, nodes), coalition).least_own()


def shared_for(own_noise: float, exposures: Exposure) -> float:
    """Return the least size of the secrets with mu = 1 at noise ratio 1, rounded up.

    mu falls in the size of the secrets. Few coalitions are searched closely, and all are checked.

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
    chosen = np.zeros(0, dtype=np.int64)
    shared = 0.0
    while True:
        exposed = np.sqrt(exposures.squared(own_noise, shared).max(axis=1))
        if exposed.max() <= 1 - _MARGIN / 2:
            return shared
        worst = np.argsort(-exposed)[:16]
        chosen = np.union1d(chosen, worst)
        shared = _root(exposures.only(chosen), own_noise, shared)


def _root(exposures: Exposure, own_noise: float, low: float) -> float:
    high = max(2 * low, own_noise)
    while exposures.worst(own_noise, high) > 1 - _MARGIN:
        low = high
        high = 2 * high

    def above(shared: float) -> float:
        return exposures.worst(own_noise, shared) - (1 - _MARGIN)

    root: float = brentq(above, low, high, xtol=1e-15, rtol=1e-14)
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
        The largest number of colluding nodes against which the guarantee holds.
    own
        Standard deviation of a node's own noise; None for the best of 50 sizes, refined.
    pairs
        Who shares secrets; None for the links. A graph with more links withstands more coalitions.
    star
        As in `Secrets`.

    Raises
    ------
    ValueError
        If a coalition of that size can cut a node off from its honest partners.
    """
    secret_pairs = (
        links(mixing_matrix) if pairs is None else canonical_pairs(pairs, mixing_matrix.nodes)
    )
    nodes = mixing_matrix.nodes
    coalition = integer("coalition", coalition)
    exposures = exposure(nodes, secret_pairs, coalition, star=star)
    least = exposures.least_own()
    if least > 1 - 1e-9:
        expected = (
            "a graph of secrets that no such coalition cuts: a node whose partners all collude "
        )
        fail("coalition", f"{expected}gains nothing from secrets (pass more pairs=)", coalition)
    if own is None:
        size = float(np.asarray(sensitivities, dtype=np.float64).max())
        relative = tuple(np.broadcast_to(np.asarray(sensitivities) / size, (rounds,)).tolist())
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
    """Return secrets along the graph of each round, with mu = 1 at noise ratio 1 in each.

    Own noise is 1.2 times the least that the round's graph allows. Where that is 1 or more, such as
    in a round that leaves a node alone with colluding partners, nobody shares a secret.

    Parameters
    ----------
    graphs
        The pairs of each round, shape (pairs, 2).
    nodes
        Number of nodes.
    coalition, star
        As in `partner_secrets`.

    Raises
    ------
    ValueError
        If no round has secrets.
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
    secret_pairs = np.frombuffer(pairs, dtype=np.int64).reshape(-1, 2)
    exposures = exposure(matrix.nodes, secret_pairs, coalition, star=star)
    s = np.array(sensitivities)
    own_objective = gossip(matrix, rounds, mixings=mixings, sensitivities=s).trace()
    between = laplacian(matrix.nodes, secret_pairs)
    shared_objective = gossip(
        matrix, rounds, mixings=mixings, sensitivities=s, covariance=between
    ).trace()

    def noise(own_noise: float) -> float:
        shared = shared_for(own_noise, exposures)
        return own_noise**2 * own_objective + shared**2 * shared_objective

    sizes = np.geomspace(exposures.least_own() * 1.001, 1.0, _POINTS)
    best = int(np.argmin([noise(candidate) for candidate in sizes]))
    low = sizes[max(best - 1, 0)]
    high = sizes[min(best + 1, _POINTS - 1)]
    refined = minimize_scalar(noise, bounds=(low, high), method="bounded")
    if refined.fun < noise(sizes[best]):
        return float(refined.x)
    return float(sizes[best])
