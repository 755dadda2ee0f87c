"""For each algorithm the data on which it leaks as much as its plan allows.

Where a pair's canary is on one node there is a second node, whose noise must differ. Canaries of
several dimensions lie on the `diagonal`.

`audit_layers` takes what these functions return. They take any variant of the algorithm, such as
one with a fault.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail
from dpmesh.audit.canaries import HillProblem, PullingClients, canary_records, diagonal
from dpmesh.audit.layers import Crowd, Pair
from dpmesh.audit.mechanism import OneRelease, worst_pair
from dpmesh.audit.one_run import Coins
from dpmesh.audit.scores import ReplayedLikelihood, projection
from dpmesh.audit.transcript import Transcript, alone, silence
from dpmesh.controllers import AlwaysGlobal, Periodic
from dpmesh.data import Dataset
from dpmesh.keys import Key
from dpmesh.privacy.mechanisms import Mechanism
from dpmesh.privacy.sensitivity import Sensitivity
from dpmesh.privacy.types import Floats
from dpmesh.problems import LinearProblem
from dpmesh.schedules import at

if TYPE_CHECKING:
    from dpmesh.algorithms.federated import FederatedLearning
    from dpmesh.algorithms.gradient_descent import GradientDescent
    from dpmesh.algorithms.online import OnlineLearning
    from dpmesh.algorithms.quantized import QuantizedGossip
    from dpmesh.algorithms.with_replacement import WithReplacement
    from dpmesh.algorithms.without_replacement import WithoutReplacement

CROWD_DELTA = 1e-9
"""Delta of a crowd's claim: 2 * canaries * delta must be far below 1 - confidence."""


def mechanism(
    mechanism: Mechanism,
    sensitivity: Sensitivity,
    *,
    dim: int = 1,
    delta: float = 1e-5,
    canaries: int = 1_000,
) -> tuple[Pair, Crowd]:
    """Return two rows as far apart as a bare mechanism should cover, and a crowd of such rows.

    The pair has two rounds, and a second node that does not differ.

    Parameters
    ----------
    mechanism, sensitivity
        As claimed.
    dim
        Of the rows.
    delta
        Of the pair's claim.
    canaries
        Rows of the crowd.
    """
    algorithm = OneRelease(mechanism=mechanism, sensitivity=sensitivity)
    one, other = worst_pair(sensitivity, dim)
    problem, neighbor = (np.array([row, np.zeros(dim)]) for row in (one, other))

    def problem_of(coins: Coins) -> Floats:
        return np.where(coins[:, np.newaxis], one, other)

    return (
        Pair(algorithm=algorithm, problem=problem, neighbor=neighbor, rounds=2, delta=delta),
        Crowd(
            algorithm=algorithm,
            problem_of=problem_of,
            canaries=canaries,
            rounds=1,
            delta=CROWD_DELTA,
        ),
    )


def online(
    algorithm: OnlineLearning, *, rounds: int = 3, dim: int = 1, canaries: int = 1_000
) -> tuple[Pair, Crowd]:
    """Return learners whose first example is a canary, against all their others.

    Parameters
    ----------
    algorithm
        Its `radius` should be so large that the projection does nothing.
    rounds
        Rounds of each run, at least 2, since the second round releases the canary.
    dim
        Dimension of the model; 1 needs the fewest runs. Coupled runs have 3 or more.
    canaries
        Learners of the crowd, each with a canary of its own.
    """

    def of_dim(dim: int, coins: Coins) -> LinearProblem:
        return canary_records(coins, records=rounds * algorithm.batch_size, dim=dim)

    def pair(dim: int) -> Pair:
        one, other = (of_dim(dim, np.array([coin, False])) for coin in (True, False))
        return Pair(algorithm=algorithm, problem=one, neighbor=other, rounds=rounds)

    return (
        replace(pair(dim), coupled=(pair(max(dim, 3)),)),
        Crowd(
            algorithm=algorithm, problem_of=partial(of_dim, dim), canaries=canaries, rounds=rounds
        ),
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
    absent = algorithm.plan(rounds).neighboring_relation == "add_remove"

    def clients(coins: Coins, directions: npt.NDArray[np.float64]) -> PullingClients:
        if absent:
            return PullingClients(pulls=directions, present=coins)
        signs = np.where(coins, 1, -1)[:, np.newaxis]
        return PullingClients(pulls=signs * directions, present=np.ones_like(coins))

    def one_canary(coin: bool) -> PullingClients:
        coins = np.arange(algorithm.clients) > 0
        directions = np.where(coins, -1.0, 1.0)[:, np.newaxis] * diagonal(3)
        coins[0] = coin
        return clients(coins, directions)

    def orthogonal_canaries(coins: Coins) -> PullingClients:
        return clients(coins, np.eye(canaries))

    pair = Pair(
        algorithm=algorithm,
        problem=one_canary(True),
        neighbor=one_canary(False),
        rounds=rounds,
        delta=delta,
        score=projection(diagonal(3)),
    )
    return (
        replace(pair, coupled=(replace(pair, rounds=20),)),
        Crowd(
            algorithm=replace(algorithm, clients=canaries),
            problem_of=orthogonal_canaries,
            canaries=canaries,
            rounds=rounds,
            delta=CROWD_DELTA,
            scores=projection(np.eye(canaries)),
        ),
    )


def gradient_descent(
    algorithm: GradientDescent,
    *,
    rounds: int = 3,
    dim: int = 3,
    delta: float = 1e-5,
    canaries: int = 1_000,
) -> tuple[Pair, Crowd]:
    """Return nodes whose first record is a canary, against all their others.

    Parameters
    ----------
    algorithm
        Its `records` are those of each node.
    rounds
        Rounds of each run; from round 2 on every message depends on the canary.
    dim
        Of the model.
    delta
        Of the pair's claim.
    canaries
        Nodes of the crowd, each with a canary of its own.
    """

    def problem_of(coins: Coins) -> LinearProblem:
        return canary_records(coins, records=algorithm.records, dim=dim)

    one, other = (problem_of(np.array([coin, False])) for coin in (True, False))
    return (
        Pair(algorithm=algorithm, problem=one, neighbor=other, rounds=rounds, delta=delta),
        Crowd(
            algorithm=algorithm,
            problem_of=problem_of,
            canaries=canaries,
            rounds=rounds,
            delta=CROWD_DELTA,
        ),
    )


def quantized(
    algorithm: QuantizedGossip, *, rounds: int, delta: float = 1e-5, canaries: int = 1_000
) -> tuple[Pair, Crowd]:
    """Return nodes on a hilltop whose canary pushes their state down either side.

    Parameters
    ----------
    algorithm
        A node has as many records as it samples, so that it always samples the canary.
    rounds
        Rounds of each run; the more, the further states drift apart.
    delta
        Of the pair's claim.
    canaries
        Nodes of the crowd, each with a canary of its own.
    """
    curvature = min(algorithm.smoothness, 1e6) if algorithm.mode == "safe" else 0.0
    clips = algorithm.mode != "paper"
    pull = (1e6 if clips else 1.0) * algorithm.clipping_norm

    def problem_of(coins: Coins) -> HillProblem:
        return HillProblem(
            coins=coins, records=at(algorithm.sample_size, 1), pull=pull, curvature=curvature
        )

    one, other = (problem_of(np.array([coin, False])) for coin in (True, False))
    return (
        Pair(
            algorithm=algorithm,
            problem=one,
            neighbor=other,
            rounds=rounds,
            carrier=silence,
            delta=delta,
            score=_drift,
        ),
        Crowd(
            algorithm=algorithm,
            problem_of=problem_of,
            canaries=canaries,
            rounds=rounds,
            carrier=silence,
            delta=CROWD_DELTA,
        ),
    )


def _drift(run: Transcript) -> float:
    """Return the sum of a canary's releases, each weighted as if it moved by its sensitivity."""
    total = 0.0
    for release, scale, _, _, values, *_ in run.passages:
        if scale > 0:
            total += float(values[0].sum()) * release.sensitivity.bound / scale**2
    return total


def without_replacement(
    algorithm: WithoutReplacement, *, rounds: int = 2, delta: float = 1e-5, canaries: int = 1_000
) -> tuple[Pair, Crowd]:
    """Return one node whose records oppose canaries: a single one, or one per release.

    Parameters
    ----------
    algorithm
        One with one model and a `radius`, far beyond which the targets lie. The steps must be
        so small that a local model moves less than that radius.
    rounds
        Rounds of the pair's runs, at least until the first release.
    delta
        Of the pair's claim.
    canaries
        Rounds of the crowd's run, in which every update is global.
    """
    if algorithm.radius is None:
        fail("algorithm", "one with a radius", None)
    far, batch_size = 100 * algorithm.radius, algorithm.batch_size

    def problem_of(coins: Coins) -> LinearProblem:
        """Return batches of records against their first, which pulls up if its coin is True."""
        labels = np.full((len(coins), batch_size), -far)
        labels[coins, 0] = far
        train = Dataset(np.tile(diagonal(3), (labels.size, 1)), labels.ravel(), "canaries")
        part = np.arange(labels.size)
        return LinearProblem(train, (part,), "squared", feature_norm=1.0, label_bound=far)

    one, other = (problem_of((np.arange(rounds) == 0) & coin) for coin in (True, False))
    crowd = replace(algorithm, controller=AlwaysGlobal())
    ratios = ReplayedLikelihood(
        algorithm=crowd,
        problem=problem_of(np.ones(canaries, dtype=bool)),
        neighbor=problem_of(np.zeros(canaries, dtype=bool)),
        carrier=alone,
        rounds=canaries,
        key=Key.seeded(0),  # the turns of a single node need no coins
    ).ratios
    pair = Pair(algorithm=algorithm, problem=one, neighbor=other, rounds=rounds, delta=delta)
    return (
        replace(pair, coupled=(pair, _beyond_the_radius(algorithm))),
        Crowd(
            algorithm=crowd,
            problem_of=problem_of,
            canaries=canaries,
            rounds=canaries,
            delta=CROWD_DELTA,
            scores=lambda run: np.concatenate(list(ratios(run))),
        ),
    )


def _beyond_the_radius(algorithm: WithoutReplacement) -> Pair:
    """Return a node that a projection alone keeps from where gradients exceed their bound.

    Short records pull its local model out in all steps but the last two. Then a long one pulls it
    back, or is absent. The last step releases. Features are as long as Lemma 4 lets them be.
    """
    rounds = 12
    largest_step = max(at(algorithm.step_size, t + 1) for t in range(rounds))
    length = sqrt(0.45 / largest_step)  # of a long record; the smoothness is its square
    pull = 100 * length * float(algorithm.radius or 0)
    sizes, labels = np.zeros((2, rounds, algorithm.batch_size))
    sizes[:-2], labels[:-2] = length / 2, pull

    def world(present: bool) -> LinearProblem:
        sizes[-2, 0], labels[-2, 0] = length * present, -pull
        features = sizes.reshape(-1, 1) * diagonal(3)
        train = Dataset(features, labels.ravel().copy(), "canaries")
        part = (np.arange(labels.size),)
        return LinearProblem(train, part, "squared", feature_norm=length, label_bound=pull)

    seldom = replace(algorithm, controller=Periodic(rounds))
    return Pair(algorithm=seldom, problem=world(True), neighbor=world(False), rounds=rounds)


def with_replacement(
    algorithm: WithReplacement, *, delta: float = 0.03, canaries: int = 1_000
) -> tuple[Pair, Crowd]:
    """Return one node whose other records oppose its canary, and one of orthogonal canaries.

    The coupled runs take all turns of the node, the others a single one, which may draw a canary.

    Parameters
    ----------
    algorithm
        Of one node and one model.
    delta
        Of the pair's claim; a large one needs fewer runs where sampling hides the canary.
    canaries
        Records of the crowd's node, and dimensions of its model. Mini-batches keep the algorithm's
        sampling rate.
    """
    if (algorithm.nodes, algorithm.models) != (1, 1):
        fail("algorithm", "one of one node and one model", algorithm)

    def problem_of(coins: Coins, features: npt.NDArray[np.float64]) -> LinearProblem:
        train = Dataset(features, np.where(coins, 1, -1), "canaries")
        return LinearProblem(train, (np.arange(len(coins)),), "hinge", feature_norm=1.0)

    def one_canary(coin: bool) -> LinearProblem:
        coins = np.zeros(algorithm.records, dtype=bool)
        coins[0] = coin
        return problem_of(coins, np.tile(diagonal(3), (len(coins), 1)))

    drawn = max(1, canaries * algorithm.batch_size // algorithm.records)
    pair = Pair(
        algorithm=algorithm,
        problem=one_canary(True),
        neighbor=one_canary(False),
        rounds=1,
        delta=delta,
        score=projection(diagonal(3)),
    )
    return (
        replace(pair, coupled=(replace(pair, rounds=algorithm.turns_of_a_node),)),
        Crowd(
            algorithm=replace(algorithm, records=canaries, batch_size=drawn),
            problem_of=lambda coins: problem_of(coins, np.eye(canaries)),
            canaries=canaries,
            rounds=1,
            delta=CROWD_DELTA,
            scores=projection(np.eye(canaries)),
        ),
    )
