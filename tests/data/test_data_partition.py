"""Datasets keep what they were given; partitions are partitions, deterministic, skewed as asked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused
from scipy import sparse

from dpmesh import data
from dpmesh.data import Dataset
from dpmesh.data.partition import Partition


def labelled(labels: np.ndarray) -> Dataset:
    return Dataset(np.zeros((len(labels), 1)), labels, "toy")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


LABELS = st.lists(st.integers(-2, 3), min_size=20, max_size=60).map(np.array)
MAKERS: dict[str, Callable[..., Partition]] = {
    "iid": data.iid,
    "dirichlet": lambda *args, **options: data.dirichlet(*args, alpha=3.0, **options),
    "shards": data.shards,
}


@given(
    LABELS, st.integers(1, 6), st.sampled_from(sorted(MAKERS)), st.booleans(), st.integers(0, 99)
)
def test_partitions_are_partitions(
    labels: np.ndarray, nodes: int, kind: str, equal_sizes: bool, seed: int
) -> None:
    dataset, make = labelled(labels), MAKERS[kind]
    parts = make(dataset, nodes, rng(seed), equal_sizes=equal_sizes)
    assert len(parts) == nodes
    assert all(part.dtype == np.int64 and part.ndim == 1 and len(part) for part in parts)
    every = np.concatenate(parts)
    assert len(np.unique(every)) == len(every)
    if equal_sizes:
        step = 2 if kind == "shards" else 1
        assert {len(part) for part in parts} == {len(labels) // (nodes * step) * step}
    else:
        np.testing.assert_array_equal(np.sort(every), np.arange(len(labels)))
    again = make(dataset, nodes, rng(seed), equal_sizes=equal_sizes)
    for part, same in zip(parts, again, strict=True):
        np.testing.assert_array_equal(part, same)


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_only_a_partition_that_looks_at_no_record_replaces_one_by_one(kind: str) -> None:
    """Another label of one record: how many of a node's other records are others."""
    before = data.digits()
    labels = before.labels.copy()
    labels[17] = (labels[17] + 1) % 10
    after = Dataset(before.features, labels)
    dealt = (MAKERS[kind](each, 16, rng(5), equal_sizes=True) for each in (before, after))
    came = max(len(np.setdiff1d(new, old)) for old, new in zip(*dealt, strict=True))
    assert came == 0 if kind == "iid" else came > 0


TEN = np.repeat(np.arange(10), 600)


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_partitions_follow_the_generator(kind: str) -> None:
    one, two = (MAKERS[kind](labelled(TEN), 20, rng(seed)) for seed in (1, 2))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(one, two, strict=True))


def test_records_of_a_node_are_in_random_order() -> None:
    dataset = labelled(TEN)
    for part in (
        data.dirichlet(dataset, 4, rng(), alpha=5.0)[0],
        data.shards(dataset, 20, rng())[0],
    ):
        assert (np.diff(part) < 0).mean() > 0.3  # sorted by class they would hardly ever descend
        assert (np.diff(dataset.labels[part]) < 0).any()


def test_iid_parts_look_alike() -> None:
    parts = data.iid(labelled(TEN), 10, rng())
    counts = np.array([np.bincount(TEN[part], minlength=10) for part in parts])
    # Hypergeometric with mean 60, standard deviation below 7.4: 6 of them, false alarm below 1e-6.
    assert np.abs(counts - 60).max() < 6 * 7.4


@pytest.mark.parametrize("equal_sizes", [False, True])
def test_a_small_alpha_skews_and_a_large_one_does_not(equal_sizes: bool) -> None:
    def largest_share(alpha: float) -> float:
        parts = data.dirichlet(labelled(TEN), 10, rng(), alpha=alpha, equal_sizes=equal_sizes)
        return float(np.mean([np.bincount(TEN[part]).max() / len(part) for part in parts]))

    assert largest_share(0.05) > 0.5
    assert largest_share(1e4) < 0.15


def test_dirichlet_shares_have_the_right_mean_and_variance() -> None:
    # Two nodes share one class: Beta(2, 2), of mean 1/2, variance 1/20 and kurtosis 15/7.
    draws, records, variance = 2000, 1000, 0.05
    dataset, generator = labelled(np.zeros(records, dtype=int)), rng()
    parts = [data.dirichlet(dataset, 2, generator, alpha=2.0)[0] for _ in range(draws)]
    shares = np.array([len(part) for part in parts]) / records
    sigmas = 5.5  # false alarm 4e-8 each; alpha = 1 or 3 would be off by 25 and 10 of them
    assert abs(shares.mean() - 0.5) < sigmas * np.sqrt(variance / draws)
    error = variance * np.sqrt((15 / 7 - 1) / draws)
    assert abs(((shares - 0.5) ** 2).mean() - variance) < sigmas * error


def test_shards_hold_few_classes() -> None:
    parts = data.shards(labelled(TEN), 20, rng())
    assert all(len(part) == 300 for part in parts)
    assert all(len(np.unique(TEN[part])) <= 2 for part in parts)
    four = data.shards(labelled(TEN), 20, rng(), shards_per_node=4)
    assert max(len(np.unique(TEN[part])) for part in four) > 2


IN_COLUMN = np.array(["b", "a", "b", "c"], object)  # as a pandas column of texts


@pytest.mark.parametrize("users", [["b", "a", "b", "c"], [20, 3, 20, 100], IN_COLUMN])
def test_users_keep_their_records_in_order(users: object) -> None:
    parts = data.by_user(users)
    assert [part.tolist() for part in parts] == [[1], [0, 2], [3]]


@given(st.integers(2, 50), st.floats(0.01, 0.99), st.integers(0, 99))
def test_a_split_is_a_partition_of_the_records(records: int, fraction: float, seed: int) -> None:
    dataset = Dataset(np.arange(records)[:, None], np.arange(records), "toy")
    train, test = data.train_test_split(dataset, fraction, rng(seed))
    every = np.concatenate([train.labels, test.labels])
    np.testing.assert_array_equal(np.sort(every), np.arange(records))
    assert test.records == min(max(round(fraction * records), 1), records - 1)
    np.testing.assert_array_equal(train.features[:, 0], train.labels)
    same = data.train_test_split(dataset, fraction, rng(seed))[0]
    np.testing.assert_array_equal(train.labels, same.labels)


FIVE = labelled(np.arange(5))
REAL = Dataset(np.zeros((5, 1)), np.linspace(0, 1, 5), "targets")


test_bad_input_is_named = refused(
    (lambda: data.iid(FIVE, 6, rng()), "nodes: wanted at most 5, one for each record, got 6"),
    (lambda: data.dirichlet(FIVE, 6, rng(), alpha=1.0), "nodes: wanted at most 5"),
    (
        lambda: data.dirichlet(labelled(np.zeros(9, int)), 9, rng(), alpha=0.01),
        "alpha: wanted one that gives each of 9 nodes a record, got 0.01",
    ),
    (
        lambda: data.dirichlet(REAL, 2, rng(), alpha=1.0),
        "dataset: wanted integer labels, the classes, got labels of float64",
    ),
    (lambda: data.shards(FIVE, 3, rng()), "nodes: wanted at most 5 shards in all, got 6"),
    (lambda: data.shards(REAL, 2, rng()), "dataset: wanted integer labels"),
    (lambda: data.by_user([]), r"users: wanted integers or texts .*, got float64 of shape \(0,"),
    (lambda: data.by_user([[1], [2]]), r"users: wanted .* shape \(2, 1\)"),
    (lambda: data.by_user([0.5, 1.0]), "users: wanted integers or texts"),
    (lambda: data.by_user(np.array(["b", np.nan], object)), "users: wanted .*, got float, str"),
    (lambda: data.by_user(np.array([1, "1"], object)), "users: wanted .*, got int, str"),
    (lambda: data.iid(FIVE, 2, 0), "generator: wanted a numpy generator, .*, got 0"),
    (lambda: data.dirichlet(FIVE, 2, 0, alpha=1.0), "generator: wanted a numpy generator"),
    (lambda: data.shards(FIVE, 2, 0), "generator: wanted a numpy generator"),
    (lambda: data.iid(np.eye(2), 2, rng()), "dataset: wanted a Dataset, such as .*, got array"),
    (lambda: data.shards(None, 2, rng()), "dataset: wanted a Dataset, such as .*, got None"),
    (lambda: data.train_test_split(None, 0.5, rng()), "dataset: wanted a Dataset, .*, got None"),
    (
        lambda: data.train_test_split(labelled(np.zeros(1, int)), 0.5, rng()),
        "dataset: wanted at least 2 records, got 1",
    ),
)


X = np.arange(6.0).reshape(3, 2)
Y = np.array([0, 1, 2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_are_shared_and_read_only(dtype: type) -> None:
    x = X.astype(dtype)
    data = Dataset(x, Y, "x")
    assert data.records == 3
    assert data.dim == 2
    assert np.shares_memory(data.features, x)
    for array in (data.features, data.labels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    x[0] = 7  # the caller's own array stays writeable


def test_sparse_features_stay_sparse_and_become_canonical() -> None:
    ones = np.ones(3, dtype=np.float32)
    twice = sparse.csr_array((ones, [2, 0, 2], [0, 3, 3]), shape=(2, 4))
    data = Dataset(twice, [1, -1], "x")
    assert isinstance(data.features, sparse.csr_array)
    assert data.features.has_canonical_format
    assert data.features.dtype == np.float32
    np.testing.assert_array_equal(data.features.toarray(), [[1, 0, 2, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(twice.indices, [2, 0, 2])


def test_images_become_rows() -> None:
    images = np.arange(24.0).reshape(3, 2, 4)
    np.testing.assert_array_equal(Dataset(images, Y, "x").features, images.reshape(3, 8))


def test_integers_and_real_labels_keep_their_kind() -> None:
    assert Dataset(X.astype(int), Y.astype(np.uint8), "x").features.dtype == np.float64
    assert Dataset(X, Y.astype(np.uint8), "x").labels.dtype == np.int64
    assert Dataset(X, Y.astype(np.float32), "x").labels.dtype == np.float64


@pytest.mark.parametrize(
    ("features", "labels", "name", "message"),
    [
        (X[0], Y, "x", r"features: wanted shape \(records, dim\), both at least 1, got shape \(2,"),
        (X[:0], Y[:0], "x", "features: wanted shape"),
        (sparse.csr_array((0, 2)), Y[:0], "x", "features: wanted shape"),
        (X + 1j, Y, "x", "features: wanted numbers of float32 or float64, got dtype complex128"),
        ([["a"]], [0], "x", "features: wanted numbers"),
        (X * np.nan, Y, "x", r"features: wanted finite numbers, got nan at \[0, 0\]"),
        (sparse.csr_array(X + np.inf), Y, "x", "features: wanted finite numbers, got inf"),
        (
            sparse.csr_array((np.ones(3), [1, 1, 2], [0, 1, 2, 3]), shape=(3, 2)),
            Y,
            "x",
            "features: wanted a sparse matrix whose arrays fit together, .* indices must be < 2",
        ),
        (
            sparse.csc_array((np.ones(2), [-1, 1], [0, 1, 2]), shape=(3, 2)),
            Y,
            "x",
            "features: wanted a sparse matrix whose arrays fit together, .* indices must be >= 0",
        ),
        (X, Y[:2], "x", r"labels: wanted shape \(3,\), one label .*, got shape \(2,\)"),
        (X, ["a", "b", "c"], "x", "labels: wanted integers or real numbers"),
        (X, [0.0, np.inf, 1.0], "x", r"labels: wanted finite numbers, got inf at \[1\]"),
        (X, Y, "", "name: wanted a text that is not empty, got ''"),
    ],
)
def test_bad_datasets_are_named(features: object, labels: object, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dataset(features, labels, name)  # type: ignore[arg-type]


def test_a_table_of_pandas_may_have_columns_of_several_types() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": [0.5, 1.5], "b": [True, False], "c": [1, 2]})
    found = Dataset(table, [1, -1]).features
    np.testing.assert_array_equal(found, [[0.5, 1.0, 1.0], [1.5, 0.0, 2.0]])
    nullable = table.astype({"a": "Float64", "c": "Int64"})
    np.testing.assert_array_equal(Dataset(nullable, [1, -1]).features, found)
    assert Dataset(table[["a"]].astype(np.float32), [1, -1]).features.dtype == np.float32
    nullable.loc[1, "a"] = pandas.NA
    with pytest.raises(ValueError, match=r"finite numbers, got nan at \[1, 0\], in column 'a'$"):
        Dataset(nullable, [1, -1])
    with pytest.raises(
        ValueError, match=r"features: wanted columns of numbers, got 'd' of (str|obj)"
    ):
        Dataset(table.assign(d=["x", "1"]), [1, -1])
