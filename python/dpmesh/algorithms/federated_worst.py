"""The data on which a server's algorithm leaks as much as its plan allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh.algorithms.worst_case import CROWD_DELTA, Coins, Crowd, Pair, projection
from dpmesh.data import Dataset
from dpmesh.problems import LinearProblem
from dpmesh.problems.canaries import PullingClients, canary_records, diagonal

FAR = 1e6


def opposed_clients(
    algorithm: Any, *, rounds: int | None, dim: int, delta: float | None, canaries: int
) -> tuple[Pair, Crowd]:
    """Return clients that pull against one canary, and as many orthogonal canaries as clients.

    Where clients are added or removed the canary is absent in one dataset; where they are replaced
    it pulls with the others. By default runs have one round, and the claim a large delta, which
    needs fewer runs where sampling hides the canary; coupled runs have 20 rounds.

    Parameters
    ----------
    algorithm
        A `FederatedLearning`, whose contribution has the clients of the pair.
    rounds, dim, delta, canaries
        See `Algorithm.worst_case`.
    """
    of, absent = algorithm.contribution, algorithm.neighboring_relation == "add_remove"

    def clients(coins: Coins, directions: npt.NDArray[np.float64]) -> PullingClients:
        if absent:
            return PullingClients(pulls=directions, present=coins)
        signs = np.where(coins, 1, -1)[:, np.newaxis]
        return PullingClients(pulls=signs * directions, present=np.ones_like(coins))

    def one_canary(coin: bool) -> PullingClients:
        coins = np.arange(of.clients) > 0
        directions = np.where(coins, -1.0, 1.0)[:, np.newaxis] * diagonal(dim)
        coins[0] = coin
        return clients(coins, directions)

    pair = Pair(
        algorithm=algorithm,
        problem=one_canary(True),
        neighbor=one_canary(False),
        rounds=rounds or 1,
        delta=0.03 if delta is None else delta,
        score=projection(diagonal(dim)),
    )
    crowd = Crowd(
        algorithm=replace(algorithm, contribution=replace(of, clients=canaries)),
        problem_of=lambda coins: clients(coins, np.eye(canaries)),
        canaries=canaries,
        rounds=rounds or 1,
        delta=CROWD_DELTA,
        scores=projection(np.eye(canaries)),
    )
    return replace(pair, coupled=(replace(pair, rounds=rounds or 20),)), crowd


def opposed_records(
    sized: Callable[..., Any],
    *,
    records: int,
    nodes: int,
    along: float,
    rounds: int,
    dim: int,
    delta: float | None,
    canaries: int,
) -> tuple[Pair, Crowd]:
    """Return nodes whose first record is a canary in a sum of clipped gradients, and many of them.

    Each node has two records: noise and sensitivity do not depend on how many there are. Where
    records are added or removed the canary is absent in one dataset, else it pulls with the other
    one. All gradients are clipped, so that each sum moves as far as it may, and the same way in all
    rounds. The canaries of the crowd are records of the first node, with a direction each.

    Parameters
    ----------
    sized
        Returns the algorithm for models of length `dim` and so many `records`, both by name.
    records
        Number of records that it is made for.
    nodes
        Number of nodes.
    along
        1 if releases move towards what a record pulls to, -1 if they are its gradients.
    rounds, dim, delta, canaries
        See `Algorithm.worst_case`.
    """
    algorithm = sized(dim=dim, records=records)
    absent = algorithm.neighboring_relation == "add_remove"

    def one_canary(coin: bool) -> LinearProblem:
        coins = np.arange(nodes) == (0 if coin else -1)
        whole = canary_records(coins, records=2, dim=dim)
        if not absent:
            return whole
        last = [part[::-1] for part in whole.partition]  # the canary, so that others keep coins
        parts = (last[0] if coin else last[0][:-1], *last[1:])
        return LinearProblem(whole.train, parts, "squared", label_bound=FAR)

    pair = Pair(
        algorithm=algorithm,
        problem=one_canary(True),
        neighbor=one_canary(False),
        rounds=rounds,
        delta=1e-5 if delta is None else delta,
        score=projection(along * diagonal(dim)),
    )
    crowd = Crowd(
        algorithm=sized(dim=canaries, records=max(records, canaries + nodes)),
        problem_of=partial(_canaries_of_one_node, nodes=nodes, absent=absent),
        canaries=canaries,
        rounds=rounds,
        delta=CROWD_DELTA,
        scores=projection(along * np.eye(canaries)),
    )
    return pair, crowd


def _canaries_of_one_node(coins: Coins, *, nodes: int, absent: bool) -> LinearProblem:
    """Return canaries that are records of the first node, each with a direction of its own."""
    own, rest = np.arange(len(coins)), len(coins) + np.arange(nodes - 1)
    features = np.eye(len(coins) + len(rest), len(coins))
    labels = np.append(np.where(coins, FAR, -FAR), np.zeros(len(rest)))
    parts = (own[coins] if absent else own, *rest[:, np.newaxis])
    return LinearProblem(Dataset(features, labels, "canaries"), parts, "squared", label_bound=FAR)
