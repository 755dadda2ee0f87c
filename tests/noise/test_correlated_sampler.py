"""Rows of correlated noise: their bits, their covariance, and mistakes that audits must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from read_back import planned_factors, read_back, replayed
from scipy import stats

from dpmesh import kernels, topology
from dpmesh.keys import Key, Purpose
from dpmesh.noise import correlated
from dpmesh.noise.correlated.sampler import held_pairs

NODES, ROUNDS = 5, 6
FALSE_ALARM = 1e-6
"""Of each statistical check, over the choice of the key; the keys are fixed."""

RING = topology.ring(NODES).mixing_matrix
SECRETS = correlated.Secrets(nodes=NODES, pairs=correlated.links(RING), own=0.5, shared=2.0)
BANDED = correlated.factorize(correlated.gossip(RING, ROUNDS), bands=3)


def release(**changes: object) -> correlated.CorrelatedGaussian:
    s = 1 / np.sqrt(np.arange(1, ROUNDS + 1))
    given: dict[str, object] = {
        "noise_to_sensitivity": SECRETS.mu,  # so that mu is 1
        "factorization": BANDED,
        "secrets": SECRETS,
        "sensitivities": s,
    }
    return correlated.CorrelatedGaussian(**{**given, **changes})


def run(
    plan: correlated.CorrelatedNoise,
    key: Key,
    dim: int,
    dtype: type = np.float64,
    nodes: object = range(NODES),
) -> np.ndarray:
    state, rows = plan.start(np.array(nodes), dim, dtype=dtype), []
    for _ in range(plan.release.rounds):
        row, state = plan.draw(key, state)
        rows.append(row)
    return np.stack(rows)


@pytest.mark.parametrize("memory", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_noise_is_that_of_its_definition(memory: float, dtype: type) -> None:
    plan = correlated.CorrelatedNoise(release=release(memory=memory))
    key = Key.seeded(1)
    found = read_back(run(plan, key, 240, dtype), key, plan)
    assert found.violations() == []
    assert found.mu == pytest.approx(found.claim, rel=1e-6)


def test_the_recursion_is_the_inverse_of_its_matrix() -> None:
    plan = correlated.CorrelatedNoise(release=release(secrets=None, memory=0.9))
    key, s = Key.seeded(1), np.asarray(plan.release.sensitivities)
    got = run(plan, key, 10)
    streams = [key.stream(Purpose.NOISE, t + 1) for t in range(ROUNDS)]
    fresh = np.stack([kernels.gaussian((NODES, 10), 1.0, stream) for stream in streams])
    gradient_noise = np.einsum("ts,snd->tnd", np.linalg.inv(BANDED.matrix()), fresh)
    wanted, last = [], np.zeros((NODES, 10))
    for t in range(ROUNDS):
        last = 0.9 * last + SECRETS.mu * s[t] * gradient_noise[t]
        wanted.append(last)
    np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-12)


def test_a_row_has_the_same_bits_again_in_parts_and_after_a_resume() -> None:
    plan, key = correlated.CorrelatedNoise(release=release()), Key.seeded(2)
    whole = run(plan, key, 30)
    state = replayed(plan, key, 3, range(NODES), 30)
    for _ in range(2):  # a second draw from the same state is a resend
        np.testing.assert_array_equal(plan.draw(key, state)[0], whole[3])
    np.testing.assert_array_equal(run(plan, key, 30, nodes=[4, 1]), whole[:, [4, 1]])


def test_a_state_that_ended_and_a_key_for_some_nodes_are_refused() -> None:
    plan, key = correlated.CorrelatedNoise(release=release()), Key.seeded(2)
    with pytest.raises(ValueError, match="a run of at most 6 rows"):
        plan.draw(key, replayed(plan, key, ROUNDS, [0], 1))
    some = key.for_nodes(np.array([0], dtype=np.uint32))
    with pytest.raises(ValueError, match="stream: wanted a stream of a key for all nodes"):
        plan.draw(some, plan.start([0], 1))
    for nodes in ([0, 0], [5], [-1]):
        with pytest.raises(ValueError, match="nodes: wanted"):
            plan.start(nodes, 1)


def p_value(noise: np.ndarray, claimed: correlated.CorrelatedGaussian) -> float:
    """Of the whitened squares of all coordinates, under the claimed covariance; two-sided."""
    factors = planned_factors(claimed, ROUNDS, NODES)
    root = np.linalg.cholesky(factors @ factors.T)
    white = np.linalg.solve(root, noise.reshape(ROUNDS * NODES, -1))
    tail = stats.chi2(white.size).cdf(np.square(white).sum())
    return float(2 * min(tail, 1 - tail))


def test_the_covariance_and_its_scale() -> None:
    right = release()
    noise = run(correlated.CorrelatedNoise(release=right), Key.seeded(3), 4_000)
    assert p_value(noise, right) > FALSE_ALARM
    assert p_value(noise * 1.02, right) < FALSE_ALARM
    weaker = replace(SECRETS, shared=SECRETS.shared * 1.1)
    assert p_value(noise, release(secrets=weaker)) < FALSE_ALARM
    assert p_value(noise, release(factorization=BANDED.prefix(ROUNDS), secrets=None)) < FALSE_ALARM
    identity = correlated.from_matrix(np.eye(ROUNDS))
    assert p_value(noise, release(factorization=identity)) < FALSE_ALARM


def recursion(
    key: Key, plan: correlated.CorrelatedNoise, dim: int, at: Callable[[int, int, str], int]
) -> np.ndarray:
    """The noise by regenerating all fresh noise for each row: `at` picks the rounds to draw."""
    of = plan.release
    inverse = np.linalg.inv(of.factorization.matrix()) * of.noise_to_sensitivity
    numbers, ends = held_pairs(SECRETS, np.arange(NODES, dtype=np.uint32))
    rows = np.zeros((ROUNDS, NODES, dim))
    for t in range(ROUNDS):
        for k in range(t + 1):
            own = key.stream(Purpose.NOISE, at(t, k, "own"))
            fresh = kernels.gaussian((NODES, dim), SECRETS.own, own)
            shared = key.stream(Purpose.PAIR, at(t, k, "shared"))
            kernels.add_pair_gaussian(fresh, numbers, ends, SECRETS.shared, shared)
            rows[t] += np.asarray(of.sensitivities)[t] * inverse[t, k] * fresh
    return rows


RIGHT = lambda t, k, _: k + 1  # noqa: E731
MISTAKES: dict[str, Callable[[int, int, str], int]] = {
    "secrets of round 0 in every round": lambda t, k, what: 1 if what == "shared" else k + 1,
    "own noise of round 0 in every round": lambda t, k, what: 1 if what == "own" else k + 1,
    "older noise drawn one round too early": lambda t, k, _: k + 1 if k == t else max(k, 1),
    "older noise drawn with the present round": lambda t, k, _: t + 1,
}


def test_regenerated_noise_is_that_of_the_recursion() -> None:
    plan, key = correlated.CorrelatedNoise(release=release()), Key.seeded(4)
    np.testing.assert_allclose(recursion(key, plan, 20, RIGHT), run(plan, key, 20), atol=1e-12)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_stream_is_read_back(mistake: str) -> None:
    plan, key = correlated.CorrelatedNoise(release=release()), Key.seeded(4)
    found = read_back(recursion(key, plan, 240, MISTAKES[mistake]), key, plan)
    assert found.error > 0.1
    assert found.mu > 1.05


def by_rows() -> correlated.Factorization:
    bands = BANDED.bands / np.linalg.norm(BANDED.bands, axis=1, keepdims=True)
    return correlated.Factorization(bands=bands, kind="given")


def test_rows_scaled_for_columns_are_charged_and_read_back() -> None:
    wrong = release(factorization=by_rows())
    assert wrong.mu > 1.1
    plan, key = correlated.CorrelatedNoise(release=wrong), Key.seeded(4)
    found = read_back(run(plan, key, 240), key, plan, claim=1.0)
    assert found.mu == pytest.approx(wrong.mu, rel=1e-6)
    assert found.violations()


def test_a_missing_factor_2_of_replace_one_is_read_back() -> None:
    right, key = release(), Key.seeded(4)
    halved = correlated.CorrelatedNoise(
        release=release(sensitivities=np.asarray(right.sensitivities) / 2)
    )
    plan = correlated.CorrelatedNoise(release=right)
    found = read_back(run(halved, key, 240), key, plan)
    assert found.error == pytest.approx(0.5, rel=1e-6)
    assert found.mu == pytest.approx(2, rel=1e-6)


def test_links_of_colluders_kept_in_the_claim_are_read_back() -> None:
    plan, key = correlated.CorrelatedNoise(release=release()), Key.seeded(4)
    noise = run(plan, key, 240)
    found = read_back(noise, key, plan, coalition=(2,), claim=plan.release.mu_of(()))
    assert found.error < 1e-6
    assert found.mu == pytest.approx(plan.release.mu_of((2,)), rel=1e-6)
    assert found.mu > 1.1
    assert found.violations()


def test_the_same_sign_at_both_ends_is_read_back() -> None:
    plan, key = correlated.CorrelatedNoise(release=release()), Key.seeded(4)
    noise, dim = run(plan, key, 240), 240
    for t in range(ROUNDS):  # a second addition of what the larger node subtracted
        shared = key.stream(Purpose.PAIR, t + 1)
        numbers, ends = held_pairs(SECRETS, np.arange(NODES, dtype=np.uint32))
        ends = np.column_stack([np.full(len(ends), -1), ends[:, 1]])
        twice = np.zeros((NODES, dim))
        kernels.add_pair_gaussian(twice, numbers, ends, SECRETS.shared, shared)
        for later in range(t, ROUNDS):
            s = np.asarray(plan.release.sensitivities)[later] * SECRETS.mu
            factor = np.linalg.inv(BANDED.matrix())[later, t]
            noise[later] += -2 * s * factor * twice
    found = read_back(noise, key, plan)
    assert found.error > 0.4
    assert found.mu < 1  # no leak: the mean is ruined
