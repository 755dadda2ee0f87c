"""Random allocation from the observer's seat: thousands of nodes, each with one canary of its own.

The observer sees all broadcasts of a node and knows everything but its canary and the rounds of its
records: the likelihood ratio of Theorem 1 of ``docs/privacy/random_allocation_proof.md`` is its
best score. A correct claim is refuted with probability at most 1e-3 in each test.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp

import dpmesh as dm
from dpmesh import accounting
from dpmesh.audit.claims import EpsilonClaim
from dpmesh.audit.statistics import best_threshold, count, lower_bound
from dpmesh.audit.transcript import alone, record
from dpmesh.keys import Key
from dpmesh.noise import Gaussian

NODES, RECORDS, DELTA, EPSILON = 60_000, 8, 0.1, 1.0
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
    scale = algorithm.mechanism.noise_to_sensitivity * algorithm.sensitivity(1).bound
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
    key = Key.seeded(seed)
    return shown(
        [
            scores(algorithm, label, key.derive(bytes([half, label > 0])), seen)
            for label in (FAR, -FAR)
        ]
        for half in (0, 1)
    )


def shown(halves: Any) -> float:
    """Return the lower bound that scores show: a pilot's chooses the threshold for the others."""
    claim = EpsilonClaim(EPSILON, delta=DELTA)
    pilot, fresh = halves
    threshold = best_threshold(claim, *pilot, CONFIDENCE)
    return lower_bound(claim, count(threshold, *fresh), CONFIDENCE)


@pytest.mark.slow
def test_the_audit_comes_close_to_the_claim() -> None:
    algorithm = learning()
    assert algorithm.plan(RECORDS + 1).cost(DELTA).epsilon == pytest.approx(EPSILON, rel=2e-3)
    assert 0.9 * EPSILON < audited(algorithm, 1) <= EPSILON


class HalfTheRounds(dm.OnlineLearning):
    """Takes the noise of twice as many rounds."""

    @cached_property
    def mechanism(self) -> Any:
        return Gaussian(noise_for(rounds=2 * RECORDS))


@pytest.mark.slow
def test_noise_for_twice_the_rounds_is_caught() -> None:
    assert audited(learning(HalfTheRounds), 2) > EPSILON


@pytest.mark.slow
@pytest.mark.parametrize("seen", ["round", "sizes"])
def test_rounds_or_sizes_that_are_known_are_caught(seen: str) -> None:
    """As where coins are public, or where an empty batch releases nothing."""
    assert audited(learning(), 3, seen) > EPSILON


def leaked(shifts: dict[tuple[int, ...], float], noise: float, seed: int) -> float:
    """Return what releases show that a record moves by one of these, times its part, by chance."""
    vectors, chances = np.array([*shifts]), np.array([*shifts.values()])
    draw, a = np.random.default_rng(seed), 0.5 / noise
    prior = np.log(chances) - a**2 * (vectors**2).sum(axis=1) / 2

    def ratios(sign: int) -> np.ndarray:
        moved = sign * a * vectors[draw.choice(len(chances), NODES, p=chances)]
        seen = a * (moved + draw.standard_normal(moved.shape)) @ vectors.T
        return logsumexp(seen + prior, axis=1) - logsumexp(prior - seen, axis=1)

    return shown([ratios(1), ratios(-1)] for _ in range(2))


def at(place: int, size: int) -> tuple[int, ...]:
    return tuple(int(place == other) for other in range(size))


EQUAL = [at(j, 3) for j in range(3)]
UNEQUAL = {at(0, 4): 0.7, **{at(j, 4): 0.1 for j in (1, 2, 3)}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claimed", "truth"),
    [
        ({"rounds": 3}, {one + two: 1 / 9 for one in EQUAL for two in EQUAL}),
        ({"rounds": 2}, {(2, 0): 0.5, (1, 1): 0.5}),
        ({"rounds": 4}, UNEQUAL),
        ({"rounds": 16, "cycles": 2}, {2 * at(j, 16): 1 / 16 for j in range(16)}),
    ],
    ids=[
        "a pass is made twice and charged once",
        "the tail of a pass without a release leaves in the next one",
        "shares are unequal",
        "an answer about a batch is composed as if it drew a round of its own",
    ],
)
def test_noise_for_another_draw_is_caught(
    claimed: dict[str, int], truth: dict[tuple[int, ...], float]
) -> None:
    """It is calibrated for passes of so many equal shares."""
    assert leaked(truth, noise_for(**claimed), 4) > EPSILON


def test_the_noise_of_unequal_shares_is_enough() -> None:
    assert 0.9 * EPSILON < leaked(UNEQUAL, noise_for(shares=[*UNEQUAL.values()]), 5) <= EPSILON


def noise_for(**steps: Any) -> float:
    return accounting.random_allocation_noise_to_sensitivity(
        target_epsilon=EPSILON, target_delta=DELTA, neighboring_relation="replace_one", **steps
    )
