"""For each algorithm the data on which it leaks as much as its plan allows.

`audit_layers` takes what these functions return. They take any variant of the algorithm, such as
one with a fault.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpmesh.privacy.audit.canaries import PullingClients, canary_records
from dpmesh.privacy.audit.layers import Crowd, Pair
from dpmesh.privacy.audit.mechanism import OneRelease, worst_pair
from dpmesh.privacy.audit.one_run import Coins
from dpmesh.privacy.audit.scores import projection
from dpmesh.privacy.events import Sensitivity
from dpmesh.privacy.mechanisms import Mechanism
from dpmesh.privacy.types import Floats
from dpmesh.problems import LinearProblem

if TYPE_CHECKING:
    from dpmesh.algorithms.federated import FederatedLearning
    from dpmesh.algorithms.online import OnlineLearning

CROWD_DELTA = 1e-9
"""Of a crowd's claim: twice the canaries times as much must be far below 1 - confidence."""


def mechanism(
    mechanism: Mechanism, sensitivity: Sensitivity, *, dim: int = 1, canaries: int = 1_000
) -> tuple[Pair, Crowd]:
    """Return two rows as far apart as a bare mechanism covers, and a crowd of such rows.

    Parameters
    ----------
    mechanism, sensitivity
        As claimed.
    dim
        Of the rows.
    canaries
        Rows of the crowd.
    """
    algorithm = OneRelease(mechanism, sensitivity)
    one, other = worst_pair(sensitivity, dim)

    def problem_of(coins: Coins) -> Floats:
        return np.where(coins[:, np.newaxis], one, other)

    return (
        Pair(algorithm, one[np.newaxis], other[np.newaxis], rounds=1),
        Crowd(algorithm, problem_of, canaries, rounds=1),
    )


def online(
    algorithm: OnlineLearning, *, rounds: int = 3, dim: int = 1, canaries: int = 1_000
) -> tuple[Pair, Crowd]:
    """Return learners whose first example is a canary, against all their others.

    Parameters
    ----------
    algorithm
        Its projection should not act.
    rounds
        Of each run; from 2 on the canary is released.
    dim
        Of the model; 1 finds most with fewest runs.
    canaries
        Learners of the crowd, each with a canary of its own.
    """

    def problem_of(coins: Coins) -> LinearProblem:
        return canary_records(coins, records=rounds * algorithm.batch_size, dim=dim)

    one, other = (problem_of(np.array([coin])) for coin in (True, False))
    return (
        Pair(algorithm, one, other, rounds),
        Crowd(algorithm, problem_of, canaries, rounds),
    )


def federated(
    algorithm: FederatedLearning, *, rounds: int = 1, delta: float = 0.03, canaries: int = 1_000
) -> tuple[Pair, Crowd]:
    """Return clients that pull against one canary, and as many orthogonal canaries as clients.

    Where clients are added or removed the canary is absent in one world; where they are replaced it
    pulls with the others.

    Parameters
    ----------
    algorithm
        Its `clients` are those of the pair.
    rounds
        Of each run.
    delta
        Of the pair's claim; a large one needs fewer runs where sampling hides the canary.
    canaries
        Clients of the crowd, and dimensions of its model.
    """

    def clients(coins: Coins, directions: npt.NDArray[np.float64]) -> PullingClients:
        if algorithm.sampling == "poisson":
            return PullingClients(directions, present=coins)
        signs = np.where(coins, 1, -1)[:, np.newaxis]
        return PullingClients(signs * directions, present=np.ones_like(coins))

    def one_canary(coin: bool) -> PullingClients:
        coins = np.arange(algorithm.clients) > 0
        directions = np.where(coins, -1.0, 1.0)[:, np.newaxis]
        coins[0] = coin
        return clients(coins, directions)

    def orthogonal_canaries(coins: Coins) -> PullingClients:
        return clients(coins, np.eye(canaries))

    return (
        Pair(
            algorithm,
            one_canary(True),
            one_canary(False),
            rounds,
            coupled_rounds=20,
            delta=delta,
            score=projection([1.0]),
        ),
        Crowd(
            replace(algorithm, clients=canaries),
            orthogonal_canaries,
            canaries,
            rounds,
            delta=CROWD_DELTA,
            scores=projection(np.eye(canaries)),
        ),
    )
