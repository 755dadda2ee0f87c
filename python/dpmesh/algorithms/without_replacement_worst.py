"""The data on which SGD without replacement leaks as much as its plan allows."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from dpmesh.algorithms.worst_case import CROWD_DELTA, Coins, Crowd, Pair
from dpmesh.controllers.fixed import AlwaysGlobal, Periodic
from dpmesh.data import Dataset
from dpmesh.problems import LinearProblem
from dpmesh.problems.canaries import diagonal
from dpmesh.schedules import at


def opposed(
    algorithm: Any, *, radius: float, rounds: int, delta: float, canaries: int
) -> tuple[Pair, Crowd]:
    """Return one node whose records oppose canaries: a single one, or one per release.

    Parameters
    ----------
    algorithm
        A `WithoutReplacement` of one model. Its steps must be so small that a local model moves
        less than its radius, far beyond which the targets lie.
    radius
        The algorithm's.
    rounds
        Rounds of the pair's runs, at least until the first release.
    delta
        Of the pair's claim.
    canaries
        Rounds of the crowd's run, in which every update is global.
    """
    far, batch_size = 100 * radius, algorithm.batch_size

    def problem_of(coins: Coins) -> LinearProblem:
        """Return batches of records against their first, which pulls up if its coin is True."""
        labels = np.full((len(coins), batch_size), -far)
        labels[coins, 0] = far
        train = Dataset(np.tile(diagonal(3), (labels.size, 1)), labels.ravel(), "canaries")
        part = np.arange(labels.size)
        return LinearProblem(train, (part,), "squared", feature_norm=1.0, label_bound=far)

    one, other = (problem_of((np.arange(rounds) == 0) & coin) for coin in (True, False))
    pair = Pair(algorithm=algorithm, problem=one, neighbor=other, rounds=rounds, delta=delta)
    crowd = Crowd(
        algorithm=replace(algorithm, controller=AlwaysGlobal()),
        problem_of=problem_of,
        canaries=canaries,
        rounds=canaries,
        delta=CROWD_DELTA,
        per_release=True,
    )
    return replace(pair, coupled=(pair, _beyond_the_radius(algorithm, radius))), crowd


def _beyond_the_radius(algorithm: Any, radius: float) -> Pair:
    """Return a node that a projection alone keeps from where gradients exceed their bound.

    Short records pull its local model out in all steps but the last two. Then a long one pulls it
    back, or is absent. The last step releases. Features are as long as Lemma 4 lets them be.
    """
    rounds = 12
    largest_step = max(at(algorithm.step_size, t + 1) for t in range(rounds))
    length = sqrt(0.45 / largest_step)  # of a long record; the smoothness is its square
    pull = 100 * length * radius
    sizes, labels = np.zeros((2, rounds, algorithm.batch_size))
    sizes[:-2], labels[:-2] = length / 2, pull

    def neighbor(present: bool) -> LinearProblem:
        sizes[-2, 0], labels[-2, 0] = length * present, -pull
        features = sizes.reshape(-1, 1) * diagonal(3)
        train = Dataset(features, labels.ravel().copy(), "canaries")
        part = (np.arange(labels.size),)
        return LinearProblem(train, part, "squared", feature_norm=length, label_bound=pull)

    seldom = replace(algorithm, controller=Periodic(rounds))
    return Pair(algorithm=seldom, problem=neighbor(True), neighbor=neighbor(False), rounds=rounds)
