"""Rows that are so long that rounding moves neighbours further than a record does are refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from faulty_mechanisms import SilentGaussian
from rounded_problem import CLIPPED, chosen_problems

import dpmesh as dm
from dpmesh.data import Dataset
from dpmesh.keys import Key, Purpose
from dpmesh.noise import Gaussian, Laplace, NoNoise, Sensitivity, correlated
from dpmesh.noise.mechanisms import Source
from dpmesh.noise.rounding import longest_row
from dpmesh.noise.rows import CorrelatedRow

ONE = Sensitivity(1.0, "l2", "a record")
TYPES = [(np.float32, 2.0**22 / 100), (np.float64, 2.0**31)]
MECHANISMS = {
    "gaussian": Gaussian(1.0),
    "clipping to more": Gaussian(1.0, clipping_norm=1e300),
    "on a grid": Gaussian(1.0, grid=2.0**-4),
    "laplace on a grid": Laplace(1.0, grid=2.0**-4),
    "laplace": Laplace(1.0),
    "of ones own": SilentGaussian(1.0),
}


def released(mechanism: Any, row: Any) -> Any:
    stream = Key.seeded(3).stream(Purpose.NOISE, 0)
    return mechanism.release(row, ONE, stream)


@pytest.mark.parametrize(("kind", "most"), TYPES)
@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
def test_a_row_that_is_rounded_by_more_than_the_sensitivity_is_refused(
    mechanism: Any, kind: Any, most: float
) -> None:
    short, long = np.zeros((2, 3), kind), np.zeros((2, 3), kind)
    short[1, 2], long[1, 2] = most / 2, most * 4
    if mechanism.grid is not None and kind is np.float64:
        short, long = short * mechanism.grid, short
        released(mechanism, long)  # as far as a grid goes, which moves further ones there
    else:
        name = np.dtype(kind).name
        wanted = rf"values: wanted rows of norm at most .*: {name} rounds longer ones by more than"
        with pytest.raises(ValueError, match=wanted) as error:
            released(mechanism, long)
        assert str(error.value).endswith("got a longer one")
        assert not re.search(f"{long[1, 2]:g}"[:4], str(error.value))
    assert np.all(np.abs(released(mechanism, short) - short) < 50)


def test_a_model_of_many_records_in_single_precision_is_refused() -> None:
    """The gradient of 600,000 records moved by 1.9 times its sensitivity for its rounding."""
    row, small = np.ones((1, 1), np.float32), Sensitivity(2 / 600_000, "l2", "a record")
    stream = Key.seeded(3).stream(Purpose.NOISE, 0)
    with pytest.raises(ValueError, match=r"float32 rounds longer ones by more than 0\.01 of the"):
        Gaussian(1.0).release(row, small, stream)
    assert Gaussian(1.0).release(row.astype(np.float64), small, stream) != 1


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
def test_the_noise_covers_the_rounding_of_rows(mechanism: Any, kind: Any) -> None:
    """By 1% for sums, 1% for rows of some length, and by what rounds rows longer by the noise.

    Rows are rounded twice.
    """
    values, factor = np.zeros((1, 100_000), kind), 1.0
    if kind is np.float32:
        tail = 63 * np.log(2)
        dim = values.shape[1]
        l1, l2 = dim + np.sqrt(2 * dim * tail) + tail, np.sqrt(dim) + np.sqrt(2 * tail)
        moved = 2 * 2 * (l1 if mechanism.norm == "l1" else l2) * 2.0**-23
        factor = 1.02 / (1 - moved)
    scale = mechanism.noise_scale(ONE, values.shape[1]) * factor
    assert mechanism.drawn_scale(values, ONE) == pytest.approx(scale, rel=1e-15)
    if not isinstance(mechanism, SilentGaussian) and mechanism.grid is None:
        drawn = mechanism._add_noise(values, scale, _source())
        np.testing.assert_array_equal(released(mechanism, values), drawn)


@pytest.mark.parametrize("records", [2**15, 2**18])
def test_the_rounding_of_other_records_hardly_moves_a_sum_of_float32(records: int) -> None:
    """Its first part is near a power of 2, where half a digit more doubles what is rounded away."""
    part = max(256, records // 32) // 4
    digit = 2.0 ** (np.log2(part) - 23)
    x = np.zeros((records, 1), np.float32)
    x[1:part] = 1.0
    x[part : 4 * part : 2] = 0.5 * digit + digit / 64
    x[part + 1 : 4 * part : 2] = -(0.5 * digit - digit / 64)
    sums = []
    for first in (-1.0, 1.0):
        x[0] = first
        data = Dataset(x.copy(), -np.ones(records), "chosen")
        problem = dm.LinearProblem(data, [np.arange(records)], "logistic")
        start, all_records = np.zeros((1, 1), np.float32), np.arange(records)[np.newaxis]
        sums.append(float(problem.gradient(start, all_records, clipping_norm=0.5)[0, 0]))
    assert abs(sums[1] - sums[0]) <= 1.002 * 2 * 0.5 / records


def test_a_step_from_a_long_model_rounds_it_once() -> None:
    """Of 256 additions onto a model below or above 1 each may be rounded by half a digit more.

    A step moved 1.304 of what one record may.
    """
    moved = []
    for problem in chosen_problems():
        start = np.ones((1, 1), np.float32)
        moved.append(problem.step(start, 1.0, np.arange(256)[np.newaxis], clipping_norm=CLIPPED))
    assert abs(moved[1] - moved[0]) <= 1.01 * 2 * CLIPPED / 256


def test_a_record_moves_a_model_as_far_from_any_point() -> None:
    """With a full decay, what is left of a mixed model is its rounding; it moved 1.2 times."""
    algorithm = dm.GradientDescent(
        records=256, noise_multiplier=2.0, step_size=1.0, clipping_norm=CLIPPED
    )
    moved = []
    for problem in chosen_problems(label=-1.0, regularization=1.0):
        state = algorithm.init(problem, Key.seeded(0))
        steps = algorithm.round(state, 0, problem, Key.seeded(0))
        next(steps)
        with pytest.raises(StopIteration) as done:
            steps.send(np.full((1, 1), 1.0, np.float32))
        moved.append(float(done.value.value.x[0, 0]))
    assert abs(moved[1] - moved[0]) <= 1.01 * algorithm.sensitivity(1).bound


def test_a_mean_of_too_many_records_in_float32_is_refused() -> None:
    x = np.ones((2**16 + 1, 1))
    algorithm = dm.GradientDescent(
        records=len(x), noise_multiplier=2.0, step_size=1.0, clipping_norm=1.0
    )
    for kind in (np.float64, np.float32):
        data = Dataset(x.astype(kind), np.ones(len(x)), "ones")
        problem = dm.LinearProblem(data, [np.arange(len(x))], "logistic", feature_norm=1.0)
        if kind is np.float64:
            dm.simulate(algorithm, problem, dm.topology.complete(1), rounds=2)
        else:
            with pytest.raises(ValueError, match="at most 65536 records in a batch, or features"):
                dm.simulate(algorithm, problem, dm.topology.complete(1), rounds=2)


def test_states_that_stay_secret_are_rounded_again_in_each_round() -> None:
    """Three times, which fades as they mix: a hundredth of a row allows a third of its length."""
    values = np.zeros((1, 10), np.float32)

    def longest(beta: float, t: int) -> float:
        algorithm = dm.QuantizedGossip(
            step_size=0.1, consensus_step_size=beta, sample_size=1, noise_std=1.0
        )
        mechanism = algorithm.mechanism_of(t)
        return longest_row(values, 1.0, 1e-6, "l2", mechanism.roundings)

    for beta, t, roundings in [(0.5, 1, 3), (0.5, 9, 6), (0.01, 9, 27), (1.5, 9, 6), (2.0, 9, 27)]:
        assert longest(beta, t) == pytest.approx(2.0**23 / 100 / roundings, rel=1e-6)


def _source() -> Any:
    return Source(Key.seeded(3).stream(Purpose.NOISE, 0), 1e30)


@pytest.mark.parametrize(("kind", "least"), [(np.float32, 2.0**-126), (np.float64, 2.0**-1022)])
@pytest.mark.parametrize("mechanism", [Gaussian(0.5), Laplace(0.5)])
def test_noise_too_small_for_the_type_is_refused(mechanism: Any, kind: Any, least: float) -> None:
    """A scale that became 0 released the values as they were."""
    row, stream = np.zeros((1, 1), kind), Key.seeded(3).stream(Purpose.NOISE, 0)
    enough, less = (Sensitivity(factor * least, "l1", "a record") for factor in (2, 1))
    assert mechanism.release(row, enough, stream)[0, 0] != 0
    wanted = f"sensitivity: wanted one whose noise has a scale of at least {least:g}, for"
    with pytest.raises(ValueError, match=wanted):
        mechanism.release(row, less, stream)
    assert NoNoise().release(row, less, stream)[0, 0] == 0


@pytest.mark.parametrize(("kind", "most"), [(np.float32, 1e4), (np.float64, 1e11)])
@pytest.mark.parametrize("dim", [1, 2])
def test_noise_alone_makes_no_row_too_long(kind: Any, most: float, dim: int) -> None:
    """Of 200,000 rows none is refused, but for a probability below 1e-13."""
    for mechanism in (Gaussian(most), Laplace(most)):
        assert np.abs(released(mechanism, np.zeros((200_000, dim), kind))).max() > 3 * most


def test_correlated_rows_of_float32_keep_their_proportions() -> None:
    """One factor for all rows, enough for the noisiest, though some have far less noise."""
    strategy = np.eye(3) - 9.0 * np.eye(3, k=-1)  # whose inverse has rows of norm 1, 9.1 and 81.5
    joint = correlated.CorrelatedGaussian(
        noise_to_sensitivity=3.0,
        factorization=correlated.from_matrix(strategy),
        sensitivities=np.ones(3),
    )
    most = 3.0 * np.linalg.norm(np.linalg.inv(strategy), axis=1).max()
    values = np.zeros((1, 10_000), np.float32)
    for row in range(3):
        factor = CorrelatedRow.of(joint, row).rounding_factor(values)
        assert factor == pytest.approx(Gaussian(most).rounding_factor(values), rel=1e-12)


def test_noise_that_float32_rounds_too_coarsely_is_refused() -> None:
    """A row could be as long as such noise and pass, and nothing would hide its rounding."""
    row = np.zeros((2, 20_000), np.float32)
    with pytest.raises(
        ValueError, match=r"noise_to_sensitivity: wanted at most 49\..*, or float64"
    ):
        released(Laplace(1e4), row)
    released(Laplace(49.0), row)
    released(Laplace(1e4), row.astype(np.float64))


def test_long_rows_without_noise_or_data_go_out() -> None:
    row = np.full((1, 2), 1e30, np.float32)
    assert np.array_equal(released(NoNoise(), row), row)
    public = Sensitivity(0.0, "l2", "from nobody's data")
    stream = Key.seeded(3).stream(Purpose.NOISE, 0)
    assert np.array_equal(Gaussian(1.0).release(row, public, stream), row)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_run_that_diverges_claims_no_epsilon(kind: Any) -> None:
    """Its states were released as they were, at an epsilon of 1."""
    rng = np.random.default_rng(0)
    train = Dataset(rng.normal(size=(400, 5)).astype(kind), np.where(np.arange(400) % 2, 1, -1))
    parts = dm.data.iid(train, 4, rng)
    problem = dm.LinearProblem(train, parts, "logistic", regularization=10.0)
    algorithm = dm.OnlineLearning(epsilon=1.0, step_size=1.0, projection="none")
    with pytest.raises(ValueError, match="values: wanted rows of norm at most"):
        dm.simulate(algorithm, problem, dm.topology.ring(4), rounds=30, key=Key.seeded(1))
