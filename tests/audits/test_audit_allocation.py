"""Random allocation from the observer's seat: thousands of nodes, each with one canary of its own.

The observer sees all broadcasts of a node and knows everything but its canary and the rounds of its
records: the likelihood ratio of Theorem 1 of ``docs/privacy/random_allocation.md`` is its best
score. A correct claim is refuted with probability at most 1e-3 in each test.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.audit.claims import EpsilonClaim
from dpmesh.audit.statistics import best_threshold, count, lower_bound
from dpmesh.audit.transcript import alone, record
from dpmesh.keys import Key
from dpmesh.privacy import Gaussian, accounting

NODES, RECORDS, DELTA, EPSILON = 60_000, 8, 1e-2, 1.0
CONFIDENCE = 0.999
FAR = 1e6
"""A label whose gradient is clipped at every model that occurs."""


def learning(kind: type = dm.OnlineLearning, epsilon: float = EPSILON) -> Any:
    return kind(
        epsilon=epsilon,
        delta=DELTA,
        step_size=1.0,
        projection="none",
        sampling="allocation",
        records=RECORDS,
    )


def canaries(label: float) -> dm.LinearProblem:
    """Each node's first record pulls one way with a clipped gradient; the others are silent."""
    features = np.zeros((NODES * RECORDS, 1))
    features[::RECORDS] = 1.0
    labels = np.zeros(len(features))
    labels[::RECORDS] = label
    parts = np.arange(len(features)).reshape(NODES, RECORDS)
    train = dm.Dataset(features, labels, "canaries")
    return dm.LinearProblem(train, tuple(parts), "squared", label_bound=FAR)


def scores(algorithm: Any, label: float, key: Key, seen: str = "") -> np.ndarray:
    """Return the logarithm of each node's likelihood ratio, larger for the label FAR.

    `seen` is what the observer knows beside the broadcasts: "" for nothing, "round" for the round
    of the canary, "sizes" for the rounds in which there are records.
    """
    problem = canaries(label)
    run = record(algorithm, problem, alone, rounds=RECORDS + 1, key=key)
    sent = np.array([values[:, 0] for values in run.released])
    scale = algorithm.mechanism.noise_multiplier * algorithm.sensitivity(1).bound
    moved = np.diff(sent, axis=0) / scale  # s_j is the last broadcast
    a = algorithm.sensitivity(1).bound / 2 / scale
    weight = np.ones((RECORDS, NODES))
    if seen:
        batches = [problem.allocated(t, key, rounds=RECORDS) for t in range(RECORDS)]
        for t, (ends, records) in enumerate(batches):
            mine = np.diff(ends) > 0
            if seen == "round":
                mine = np.isin(np.arange(NODES), records[records % RECORDS == 0] // RECORDS)
            weight[t] = mine
    up, down = ((weight * np.exp(sign * a * moved)).sum(axis=0) for sign in (1, -1))
    return np.log(up) - np.log(down)


def audited(algorithm: Any, seed: int, seen: str = "") -> float:
    """Return a lower bound on epsilon, its threshold from other runs."""
    claim, key = EpsilonClaim(algorithm.epsilon, delta=DELTA), Key.seeded(seed)
    pilot, fresh = (
        [
            scores(algorithm, label, key.derive(bytes([half, label > 0])), seen)
            for label in (FAR, -FAR)
        ]
        for half in (0, 1)
    )
    threshold = best_threshold(claim, *pilot, CONFIDENCE)
    return lower_bound(claim, count(threshold, *fresh), CONFIDENCE)


def test_the_audit_comes_close_to_the_claim() -> None:
    algorithm = learning()
    assert algorithm.plan(RECORDS + 1).cost(DELTA).epsilon == pytest.approx(EPSILON, rel=2e-3)
    assert 0.8 * EPSILON < audited(algorithm, 1) <= EPSILON


class HalfTheRounds(dm.OnlineLearning):
    """Takes the noise of twice as many rounds."""

    @cached_property
    def mechanism(self) -> Any:
        return Gaussian(
            accounting.random_allocation_noise_multiplier(
                target_epsilon=self.epsilon,
                target_delta=self.delta,
                rounds=2 * RECORDS,
                neighboring_relation="replace_one",
            )
        )


def test_noise_for_twice_the_rounds_is_caught() -> None:
    assert audited(learning(HalfTheRounds), 2) > EPSILON


@pytest.mark.parametrize("seen", ["round", "sizes"])
def test_rounds_or_sizes_that_are_known_are_caught(seen: str) -> None:
    """As where coins are public, or where an empty batch releases nothing."""
    assert audited(learning(), 3, seen) > EPSILON


def test_a_pass_that_is_charged_once_and_made_twice_is_caught() -> None:
    algorithm, key = learning(), Key.seeded(4)
    claim = EpsilonClaim(algorithm.epsilon, delta=DELTA)
    pilot, fresh = (
        [
            sum(scores(algorithm, label, key.derive(bytes([half, label > 0, n]))) for n in (0, 1))
            for label in (FAR, -FAR)
        ]
        for half in (0, 1)
    )
    threshold = best_threshold(claim, *pilot, CONFIDENCE)
    assert lower_bound(claim, count(threshold, *fresh), CONFIDENCE) > EPSILON
    again = accounting.random_allocation_epsilon(
        delta=DELTA,
        noise_multiplier=algorithm.mechanism.noise_multiplier,
        rounds=RECORDS,
        neighboring_relation="replace_one",
        cycles=2,
    )
    assert lower_bound(claim, count(threshold, *fresh), CONFIDENCE) <= again
