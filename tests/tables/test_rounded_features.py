"""Features of large tables in 8 bits: rounding, kernels, centring in place, and whole fits."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpmesh as dm
from dpmesh._rounded import SHARED, RoundedFeatures
from dpmesh.tables import Columns
from dpmesh.tables import features as tables_features
from dpmesh.tables.features import centred, stored_type


def unit_rows(records: int, dim: int, *, seed: int = 0, power: float = 1.0) -> Any:
    """Return random records of norm 1; a high power makes a few of their features large."""
    rows = np.random.default_rng(seed).normal(size=(records, dim))
    rows = np.sign(rows) * np.abs(rows) ** power
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def stored(rows: npt.NDArray[np.float64], *, room: int = 0) -> RoundedFeatures:
    features = RoundedFeatures.empty(*rows.shape, room=room)
    features.store(0, rows)
    return features


def squared_norm(row: npt.NDArray[np.float64]) -> Fraction:
    """Return the square of a norm, without rounding."""
    return sum((Fraction(number) ** 2 for number in row.tolist()), Fraction(0))


@settings(max_examples=60, deadline=None)
@given(
    dim=st.integers(1, 3 * SHARED),
    power=st.sampled_from([0.1, 1.0, 5.0, 30.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_rounded_records_are_near_and_no_longer_than_1(dim: int, power: float, seed: int) -> None:
    rows = unit_rows(5, dim, seed=seed, power=power)
    rows[0] = 0
    features = stored(rows, room=seed % 3)
    numbers = features[:]
    assert numbers.shape == rows.shape == features.shape
    assert not numbers[0].any()
    for row in numbers:
        assert squared_norm(row) <= 1
    np.testing.assert_allclose(features.norms(), np.linalg.norm(numbers, axis=1), rtol=2.0**-23)
    for first in range(0, dim, SHARED):
        part = slice(first, first + SHARED)
        largest = np.abs(rows[:, part]).max(axis=1, keepdims=True)
        # half a step, and what shortening the whole record takes off
        assert (np.abs(numbers - rows)[:, part] <= largest * (0.5 / 127 + 0.05)).all()
    # a function of the record alone
    backwards = stored(rows[::-1].copy())
    np.testing.assert_array_equal(backwards[:][::-1], numbers)


def test_a_rounded_record_is_within_a_few_thousandths() -> None:
    rows = unit_rows(50, 1000)
    errors = np.linalg.norm(stored(rows)[:] - rows, axis=1)
    assert 0.001 < errors.max() < 0.01


def test_records_are_read_by_slice_index_and_mask() -> None:
    features = stored(unit_rows(9, 70), room=2)
    whole = features[:]
    assert whole.dtype == np.float64
    assert features.dtype == np.float64
    assert features.size == 9 * 70
    assert len(features) == 9
    mask = np.arange(9) % 2 == 0
    indices = np.array([4, 0, 4])
    for records in (slice(2, 5), indices, mask, [1, 2]):
        np.testing.assert_array_equal(features[records], whole[records])
        np.testing.assert_array_equal(features.take(records)[:], whole[records])
    np.testing.assert_array_equal(np.asarray(features), whole)
    single = features.rows(indices, np.float32)
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, whole[indices].astype(np.float32))
    with pytest.raises(ValueError, match="read-only"):
        features.read_only().codes[0, 0] = 1


def two_problems(loss: Any = "softmax", classes: int | None = 3) -> tuple[Any, Any]:
    """Return a problem in 8 bits, and one of the same numbers in float64."""
    features = stored(unit_rows(300, 90), room=1)
    draw = np.random.default_rng(1)
    labels = draw.integers(0, 3, 300) if classes else draw.choice([-1, 1], 300)
    parts = [np.arange(0, 300, 3), np.arange(1, 300, 3), np.arange(2, 300, 3)]
    problems = []
    for numbers in (features, np.asarray(features)):
        data = dm.Dataset(numbers, labels)
        train, test = data.take(np.arange(300)), data.take(np.arange(50))
        problems.append(
            dm.LinearProblem(train, parts, loss, classes=classes, test=test, feature_norm=1.0)
        )
    assert isinstance(problems[0].train.features, RoundedFeatures)
    assert isinstance(problems[0].test.features, RoundedFeatures)
    return problems[0], problems[1]


@pytest.mark.parametrize(("loss", "classes"), [("softmax", 3), ("logistic", None), ("hinge", 3)])
def test_problems_have_the_bits_of_the_same_numbers_in_float64(loss: Any, classes: Any) -> None:
    rounded, exact = two_problems(loss, classes)
    params = np.random.default_rng(2).normal(size=(3, exact.dim))
    batches = exact.full_batches
    for norm in (0.01, 10.0):
        ours, theirs = (problem.clipped_sums(params, batches, norm) for problem in (rounded, exact))
        np.testing.assert_array_equal(ours, theirs)
        ours, theirs = (
            problem.step(params, 0.1, batches, clipping_norm=norm) for problem in (rounded, exact)
        )
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(
        rounded.gradient(params, batches), exact.gradient(params, batches)
    )
    np.testing.assert_array_equal(
        rounded.objective(params, batches), exact.objective(params, batches)
    )
    np.testing.assert_array_equal(rounded.accuracy(params), exact.accuracy(params))
    np.testing.assert_array_equal(
        rounded.scores_of_test(params[0]), exact.scores_of_test(params[0])
    )
    for ours, theirs in zip(rounded.vectors(1), exact.vectors(1), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    assert rounded.zeros().dtype == np.float64
    assert rounded.constants() == exact.constants()


def test_records_are_centred_in_their_own_memory() -> None:
    features = stored(unit_rows(2500, 64), room=1)
    centre = np.random.default_rng(3).normal(size=64) / 20
    expected = stored(centred(features[:], centre))
    labels = np.arange(2500) % 2
    parts = [np.arange(2500)]
    data = dm.Dataset(features, labels)
    copying = dm.LinearProblem(data, parts, "softmax", classes=2, test=data)
    moved = copying.centred(centre)
    for centred_data in (moved.train, moved.test):
        assert isinstance(centred_data.features, RoundedFeatures)
        np.testing.assert_array_equal(centred_data.features[:], expected[:])
    np.testing.assert_array_equal(features[:], np.asarray(copying.train.features))
    in_place = dm.LinearProblem(data, parts, "softmax", classes=2, memory=features)
    problem = in_place.centred(centre)
    np.testing.assert_array_equal(problem.train.features[:], expected[:])
    assert np.shares_memory(problem.train.features.codes, features.codes)
    with pytest.raises(RuntimeError, match="were replaced"):
        in_place.centred(centre / 2)
    assert in_place.centred_blank().train.features.shape == (2500, 65)


def test_only_features_above_a_public_size_are_rounded() -> None:
    for records in (1, 100, 20_000, 100_000, 10**6):
        size = 8 * records * 1213
        stored_as = np.float64 if size < 1 << 28 else np.float32 if size < 1 << 30 else np.int8
        assert stored_type(records, 1213) == stored_as


@pytest.mark.parametrize("features", ["columns", "hats+cosines"])
def test_encoded_columns_are_rounded(features: str) -> None:
    values = np.random.default_rng(4).uniform(-1, 1, (2100, 3))
    columns = Columns.of((-1, 1), "abc", features=features)
    exact = columns.encode([*values.T])
    rounded = columns.encode([*values.T], dtype=np.int8)
    np.testing.assert_allclose(rounded.features[:], exact.features, atol=0.004)
    assert rounded.memory is rounded.features
    assert rounded.notices() == exact.notices()


@pytest.fixture
def in_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_features, "ROUNDED_FROM", 1)


def records_of_sites() -> tuple[Any, Any, Any]:
    X = np.random.default_rng(5).uniform(-1, 1, (3000, 4))
    return X, X[:, 0] * X[:, 1] > 0, np.arange(3000) % 4


def classifier(**parameters: Any) -> Any:
    settings: Any = {"ranges": (-1, 1), "classes": [False, True], "random_state": 0}
    return dm.sklearn.PrivateClassifier(100.0, **settings, **parameters)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["secure", "gossip"])
def test_a_fit_in_8_bits_learns_what_one_in_float64_does(
    algorithm: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    X, y, sites = records_of_sites()
    model = classifier(features="hats+cosines", algorithm=algorithm)
    exact = model.fit(X, y, groups=sites)
    monkeypatch.setattr(tables_features, "ROUNDED_FROM", 1)
    rounded = classifier(features="hats+cosines", algorithm=algorithm).fit(X, y, groups=sites)
    assert "centered by their private mean" in rounded.report_.features
    assert rounded.report_.privacy == exact.report_.privacy
    assert rounded.score(X, y) > 0.9
    agree = np.mean(rounded.predict(X) == exact.predict(X))
    assert agree > 0.97
    rounded.save(tmp_path / "model.dpmesh")
    loaded = dm.sklearn.PrivateClassifier.load(tmp_path / "model.dpmesh")
    np.testing.assert_array_equal(loaded.predict(X), rounded.predict(X))


@pytest.mark.slow
@pytest.mark.usefixtures("in_8_bits")
def test_evaluation_in_8_bits() -> None:
    X, y, sites = records_of_sites()
    result = dm.sklearn.evaluate(classifier(features="hats+cosines"), X, y, groups=sites, splits=1)
    assert result.score > 0.9
    assert result.baselines.centralized > 0.9
    assert result.baselines.private_single_sites is not None


@pytest.mark.slow
@pytest.mark.usefixtures("in_8_bits")
def test_regressions_counts_and_labels_in_8_bits() -> None:
    X, _, sites = records_of_sites()
    target = X[:, 0] / 2
    model = dm.sklearn.PrivateRegressor(
        100.0, ranges=(-1, 1), target_range=(-1, 1), random_state=0, calibrate=True
    )
    result = dm.sklearn.evaluate(model, X, target, groups=sites, splits=1)
    assert result.score > 0.9
    labels = np.stack([X[:, 0] > 0, X[:, 1] > 0], axis=1).astype(int)
    several = classifier().set_params(classes=["a", "b"]).fit(X, labels, groups=sites)
    assert np.mean(several.predict(X) == labels) > 0.9


@pytest.mark.usefixtures("in_8_bits")
def test_algorithms_of_the_caller_learn_from_8_bits() -> None:
    X, _, sites = records_of_sites()

    def descent(noise: float) -> Any:
        return dm.algorithms.GradientDescent(
            records=750, step_size=1.0, clipping_norm=0.5, noise_multiplier=noise
        )

    model = classifier(algorithm=descent, rounds=5)
    model.fit(X, X[:, 0] > 0, groups=sites)
    assert model.score(X, X[:, 0] > 0) > 0.8


@pytest.mark.parametrize("records", [3000, 6000])
def test_repeated_fits_of_a_centred_table_are_counted(records: int) -> None:
    """Features in float64 of more than a block are centred in their own memory, too."""
    X = np.random.default_rng(6).uniform(-1, 1, (records, 2))
    model = classifier()
    y = X[:, 0] > 0
    model.fit(X, y, groups=np.arange(records) % 3)
    assert "centered by their private mean" in model.report_.features
    model.set_params(random_state=1)  # another centre
    with pytest.warns(UserWarning, match="2 fits of this estimator"):
        model.fit(X, y, groups=np.arange(records) % 3)
