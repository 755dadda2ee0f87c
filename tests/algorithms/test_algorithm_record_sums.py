"""Sums of records' vectors: the noise, the shift by one record, and faults that audits find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import dpmesh as dm
from dpmesh.algorithms import RecordSums
from dpmesh.algorithms.first_stage import SecondMoments
from dpmesh.algorithms.record_sums import clipped_sum
from dpmesh.audit import alone, audit_layers, couple
from dpmesh.noise.secure import SecureSum


@dataclass
class Vectors:
    """The vectors of the records of some nodes."""

    parts: list[np.ndarray]
    test: None = None

    @property
    def nodes(self) -> int:
        return len(self.parts)

    def vectors(self, node: int) -> Iterator[np.ndarray]:
        yield from np.array_split(self.parts[node], 2)


def one_hot(sites: int, first: int) -> Vectors:
    """Records in one of 64 classes; the first record of site 0 is in class `first`."""
    parts = [np.eye(64)[np.arange(sites * 9 + site) % 64] for site in range(sites)]
    parts[0][0] = np.eye(64)[first]
    return Vectors(parts)


def sums(sites: int, **others: Any) -> RecordSums:
    public = {"dim": 64, "sites": sites, "records": 200, "diameter": np.sqrt(2), **others}
    return RecordSums.for_budget(epsilon=1.0, delta=1e-5, secure=sites > 2, **public)


@pytest.mark.parametrize("sites", [1, 2, 4])
def test_a_record_moves_the_sum_by_the_sensitivity_and_no_further(sites: int) -> None:
    algorithm = sums(sites)
    problems = one_hot(sites, 0), one_hot(sites, 5)
    found = couple(algorithm, *problems, alone, rounds=1)
    assert not found.violated, found
    (moved,) = found.movements
    assert moved.distance == pytest.approx(np.sqrt(2), rel=1e-6)
    assert moved.distance > 0.97 * moved.allowed
    (assumed,) = {*algorithm.assumptions} - {*replace(algorithm, diameter=2.0).assumptions}
    assert "at most 1.414 times the clipping norm apart" in assumed
    planted = couple(replace(algorithm, diameter=1.0), *problems, alone, rounds=1)
    assert "moved by 1.41421" in planted.faults[0]


@pytest.mark.parametrize("sites", [1, 2, 4])
def test_the_total_has_the_noise_that_is_stated(sites: int) -> None:
    dim, key = 4096, dm.Key.seeded(0)
    algorithm = sums(sites, dim=dim, rounds=2)
    problem = Vectors([np.zeros((3, dim)) for _ in range(sites)])
    run = dm.simulate(algorithm, problem, rounds=2, key=key, delta=1e-5, metrics=[])
    # A deviation of 5 standard errors of a standard deviation: below 1e-6.
    assert run.released.std() == pytest.approx(algorithm.noise_scale, rel=5 / np.sqrt(2 * dim))
    assert run.privacy.epsilon == pytest.approx(1.0, abs=1e-5)
    assert run.privacy.epsilon <= 1.0


class HalfTheNoise:
    """Takes the noise of half the distance, and states the whole."""

    @cached_property
    def mechanism(self) -> Any:
        found: Any = super().mechanism  # type: ignore[misc]
        object.__setattr__(found.numbers, "share", found.numbers.share / 2)
        return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RecordSums, SecondMoments])
def test_audits_show_part_of_the_claim_and_find_half_the_noise(kind: Any) -> None:
    """Correct claims are refuted with probability 8e-3 in all."""
    own = {"dim": 3, "sites": 2, "records": 9, "noise_to_sensitivity": 1.0, "colluding": 0}
    settings = {"runs": 400, "confidence": 0.999, "key": dm.Key.seeded(1)}
    for secure in (True, False):
        coupling, many, one = audit_layers(*kind(**own, secure=secure).worst_case(), **settings)
        assert coupling.movements[0].distance > 0.99 * coupling.movements[0].allowed
        assert not any(found.violated for found in (coupling, many, one))
        assert many.lower_bound > 0.1 * many.claim.level
    faulty = type("Faulty", (HalfTheNoise, kind), {})(**own)
    assert any(found.violated for found in audit_layers(*faulty.worst_case(), **settings))


def test_vectors_that_are_too_long_are_clipped() -> None:
    algorithm = sums(4)
    problem = Vectors([np.full((2, 64), 1e6) for _ in range(4)])
    run = dm.simulate(algorithm, problem, rounds=1, delta=1e-5, metrics=[])
    assert np.abs(run.released - 1.0).max() < 8 * algorithm.noise_scale


def test_a_smaller_diameter_needs_less_noise_and_a_larger_one_than_a_ball_is_refused() -> None:
    numbers = SecureSum(dim=64, sites=4, records=200, noise_to_sensitivity=2.0)
    closer = replace(numbers, diameter=1.0)
    assert closer.sensitivity < 0.52 * numbers.sensitivity
    for refused in (SecureSum, RecordSums):
        with pytest.raises(ValueError, match="diameter: wanted at most 2"):
            refused(dim=64, sites=4, records=200, noise_to_sensitivity=2.0, diameter=2.1)
    with pytest.raises(ValueError, match="problem: wanted records of 4 sites, got 2 nodes"):
        dm.simulate(sums(4), one_hot(2, 0), rounds=1, delta=1e-5, metrics=[])


@pytest.mark.parametrize("diameter", [np.sqrt(2), 2.0])
def test_records_longer_than_the_bound_are_clipped_to_it(diameter: float) -> None:
    longest = 0.5
    algorithm = replace(sums(1), longest=longest, diameter=diameter, noise_to_sensitivity=1e-9)
    vectors = np.random.default_rng(2).normal(size=(6, 64))
    vectors *= np.array([[0.1], [0.4], [0.51], [0.7], [1.1], [40.0]]) / np.linalg.norm(
        vectors, axis=1, keepdims=True
    )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = (vectors * np.minimum(1, longest / lengths)).sum(axis=0)
    np.testing.assert_allclose(algorithm._sum(Vectors([vectors]), 0), expected, rtol=1e-12)


@pytest.mark.parametrize("dropouts", [0, 1, 2])
def test_sums_that_may_be_asked_again_are_planned_and_cost_more(dropouts: int) -> None:
    algorithm = sums(7, dropouts=0, colluding=0)
    lossy = replace(algorithm, dropouts=dropouts)
    assert len(lossy.plan(1).releases) == 1 + dropouts
    costs = [plan.cost(1e-5).epsilon for plan in (algorithm.plan(1 + dropouts), lossy.plan(1))]
    assert costs[1] >= costs[0]


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_long_vectors_of_float32_are_clipped(kind) -> None:
    block = kind(np.array([[3e30, 4e30]], np.float32))
    np.testing.assert_allclose(clipped_sum(block, 1.0), [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("size", [1e154, 1e155, 1e200, 1.7e308])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_records_of_any_finite_size_are_clipped(size: float, kind: Any) -> None:
    block = np.array([[0.6, -0.8, 0.0], [size, 0.0, -size], [0.0, 0.0, 3.0]])
    expected = [0.6 + np.sqrt(0.5), -0.8, 1 - np.sqrt(0.5)]
    if size == 1.7e308:  # of a norm beyond float64: what is left is known up to its ball
        summed = clipped_sum(kind(block[[0, 2]]), 1.0)
        moved = np.linalg.norm(clipped_sum(kind(block), 1.0) - summed)
        assert moved <= 1 + 1e-12
    else:
        np.testing.assert_allclose(clipped_sum(kind(block), 1.0), expected, rtol=1e-14)
