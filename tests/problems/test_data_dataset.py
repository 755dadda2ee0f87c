"""The dataset record: what it keeps and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dpmesh.data import Dataset

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
def test_bad_input_is_named(features: object, labels: object, name: str, message: str) -> None:
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
