"""Large tables: features in blocks, in float32 of norms of at most 1, centred in place."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh._memory import return_freed_memory
from dpmesh.tables import Columns
from dpmesh.tables import features as tables_features
from dpmesh.tables.features import centred, centred_in_place, stored_type, within_unit
from dpmesh.tables.reader import open_table

DRAW = np.random.default_rng(0)


def squared_norm(row: Any) -> Fraction:
    """Return the square of a norm, without rounding."""
    return sum((Fraction(float(one)) ** 2 for one in row), Fraction(0))


@pytest.mark.parametrize("moved", [-2, -1, 0, 1, 2])
def test_no_stored_norm_is_above_1(moved: int) -> None:
    """Rows of norm 1, and rows that are longer or shorter by units in the last place."""
    for dim in (1, 2, 3, 17, 300):
        rows = DRAW.normal(size=(20, dim))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        single = rows.astype(np.float32)
        toward = np.copysign(np.float32(2 if moved > 0 else 0), single)
        for _ in range(abs(moved)):
            single = np.nextafter(single, toward)
        before = single.copy()
        within_unit(single)
        assert all(squared_norm(row) <= 1 for row in single)
        np.testing.assert_allclose(single, before, rtol=2e-6)
    single_one = np.eye(3, dtype=np.float32)
    within_unit(single_one)
    assert all(squared_norm(row) <= 1 for row in single_one)


def test_blocks_give_the_bits_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    values = DRAW.uniform(-1, 1, (50, 3))
    columns = Columns.of((-1, 1), "abc", features="hats+cosines")
    whole = columns.encode(list(values.T)).features
    monkeypatch.setattr("dpmesh.tables.columns.BLOCK", 7)
    np.testing.assert_allclose(columns.encode(list(values.T)).features, whole, atol=1e-15)
    assert columns.encode(list(values.T)).features.dtype == np.float64
    monkeypatch.setattr(tables_features, "SINGLE_FROM", 1)
    compact = columns.encode(list(values.T), dtype=stored_type(50, columns.dim))
    assert compact.features.dtype == np.float32
    assert all(squared_norm(row) <= 1 for row in compact.features)
    np.testing.assert_allclose(compact.features, whole, atol=1e-6)
    assert columns.encode(list(values.T)).features.dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_records_are_centred_in_their_own_memory(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_features, "BLOCK", 4)
    records = DRAW.normal(size=(21, 5)).astype(dtype)
    records /= np.linalg.norm(records, axis=1, keepdims=True)
    centre = DRAW.normal(size=5) / 10
    memory = np.empty(21 * 6, dtype)
    memory[: 21 * 5] = records.reshape(-1)
    found = centred_in_place(memory, 21, centre)
    np.testing.assert_array_equal(found, centred(records, centre))
    assert found.base is memory


@pytest.mark.slow
def test_a_fit_in_float32_learns_what_one_in_float64_does(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    X = DRAW.uniform(-1, 1, (3000, 4))
    y = X[:, 0] * X[:, 1] > 0
    ranges: Any = (-1, 1)

    def weights() -> Any:
        model = dm.sklearn.PrivateClassifier(
            100.0, ranges=ranges, random_state=0, features="hats+cosines", classes=[False, True]
        )
        model.fit(X, y, groups=np.arange(3000) % 3)
        assert "centered by their private mean" in model.report_.features
        assert model.score(X, y) > 0.9
        return model.model_.weights

    exact = weights()
    monkeypatch.setattr(tables_features, "SINGLE_FROM", 1)
    monkeypatch.setattr("dpmesh.tables.columns.BLOCK", 999)
    single = weights()
    assert not np.array_equal(single, exact)
    np.testing.assert_allclose(single, exact, atol=0.02 * np.abs(exact).max())


def test_a_problem_whose_memory_was_reused_says_so() -> None:
    columns = Columns.of((-1, 1), "ab")
    encoded = columns.encode(list(DRAW.uniform(-1, 1, (5000, 2)).T))
    assert encoded.memory is not None
    data = dm.Dataset(encoded.features, np.arange(5000) % 2)
    problem = dm.LinearProblem(data, [np.arange(5000)], "softmax", classes=2, memory=encoded.memory)
    expected = centred(encoded.features.copy(), np.full(3, 0.1))
    found = problem.centred(np.full(3, 0.1))
    np.testing.assert_array_equal(found.train.features, expected)
    assert problem.centred(np.full(3, 0.1)) is found
    for _ in range(2):
        with pytest.raises(RuntimeError, match="were replaced"):
            problem.centred(np.zeros(3))
    assert problem.centred(np.full(3, 0.1)) is found


def test_equal_texts_of_a_column_are_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpmesh.tables.text._AT_ONCE", 4)
    path = tmp_path / "table.csv"
    path.write_text("town,note\n" + "Springfield,one\nShelbyville,two\nSpringfield,two\n" * 20)
    towns, notes = open_table(path).columns
    assert towns.tolist() == ["Springfield", "Shelbyville", "Springfield"] * 20
    assert notes.tolist() == ["one", "two", "two"] * 20
    assert len({*map(id, towns)}) == 2
    monkeypatch.setattr("dpmesh.tables.text._MOST_SHARED", 1)  # sought anew in each block
    towns_of_blocks, _ = open_table(path).columns
    assert towns_of_blocks.tolist() == towns.tolist()
    assert 2 < len({*map(id, towns_of_blocks)}) < 60


def test_memory_is_returned_only_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    library = SimpleNamespace(malloc_trim=calls.append)
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)
    return_freed_memory()
    assert calls == [0]
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace())
    return_freed_memory()

    def no_library(name: object) -> None:
        raise TypeError("bad argument type for built-in operation")

    monkeypatch.setattr("ctypes.CDLL", no_library)
    return_freed_memory()
    assert calls == [0]
