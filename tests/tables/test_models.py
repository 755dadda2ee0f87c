"""A released model predicts, is saved, and goes to scikit-learn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.ranges import Columns, Number
from dpmesh.tables import as_table, read_table

RANGES: dict[str, Any] = {
    "age": [0, 120],
    "ward": ["north", "south"],
    "weight": {"range": [30, 250], "missing": True},
    "grade": [3, 1, 2],
    "smoker": {"categories": [True, False]},
}


def table() -> Any:
    pandas = pytest.importorskip("pandas")
    draw = np.random.default_rng(0)
    return pandas.DataFrame(
        {
            "weight": np.where(draw.random(40) < 0.2, np.nan, draw.uniform(0, 300, 40)),
            "ward": draw.choice(["north", "south", None], 40),
            "unused": "x",
            "age": draw.integers(0, 140, 40),
            "grade": draw.integers(1, 4, 40),
            "smoker": draw.random(40) < 0.5,
        }
    )


@pytest.fixture(params=["regression", 2, 3])
def model(request: pytest.FixtureRequest) -> dm.Model:
    columns = Columns.of(RANGES, RANGES)
    draw = np.random.default_rng(1)
    about = {"named": True, "privacy": {"epsilon": 2.0}}
    if request.param == "regression":
        weights = draw.normal(size=(1, columns.dim)) / 9
        target = Number(low=-10, high=30)
        return dm.Model(columns=columns, weights=weights, target=target, about=about)
    classes = np.array(["a", "b", "c"][: request.param])
    weights = draw.normal(size=(len(classes), columns.dim))
    return dm.Model(columns=columns, weights=weights, classes=classes, about=about)


def test_a_saved_model_predicts_the_same(model: dm.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "m.dpmesh")
    loaded = dm.Model.load(tmp_path / "m.dpmesh")
    np.testing.assert_array_equal(loaded.predict(table()), model.predict(table()))
    assert (loaded.columns, loaded.target, loaded.about) == (
        model.columns,
        model.target,
        model.about,
    )
    with np.load(tmp_path / "m.dpmesh") as arrays:
        np.testing.assert_array_equal(arrays["weights"], model.weights)


def test_tables_of_all_kinds_give_the_same(model: dm.Model, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    frame = table()
    expected = model.predict(frame)
    np.testing.assert_array_equal(model.predict(arrow.Table.from_pandas(frame)), expected)
    in_order = frame[[*RANGES]].to_numpy()
    np.testing.assert_array_equal(model.predict(in_order), expected)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_feather(tmp_path / "t.feather")
    for path in tmp_path.iterdir():
        np.testing.assert_array_equal(model.predict(read_table(path)), expected)


def test_unlisted_categories_count_as_missing_and_are_noticed(model: dm.Model) -> None:
    unlisted, missing = table(), table()
    unlisted["ward"], missing["ward"] = "elsewhere", None
    with pytest.warns(UserWarning, match="ward: 40 of 40 values, .* count as missing"):
        scores = model.scores(unlisted)
    np.testing.assert_array_equal(scores, model.scores(missing))


def test_what_is_no_model_or_table_is_refused_by_name(model: dm.Model, tmp_path: Path) -> None:
    bad = tmp_path / "bad.dpmesh"
    model.save(bad)
    bad.write_bytes(bad.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"bad.dpmesh holds no model of dpmesh"):
        dm.Model.load(bad)
    np.savez(tmp_path / "other.npz", x=1)
    with pytest.raises(ValueError, match="holds no model of dpmesh"):
        dm.Model.load(tmp_path / "other.npz")
    with pytest.raises(ValueError, match="path: wanted the path of a file"):
        dm.Model.load(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wanted a column 'age', got the columns weigth"):
        model.predict(table().rename(columns={"weight": "weigth"}).drop(columns="age"))
    with pytest.raises(ValueError, match=r"ends in .csv, .tsv, .txt, .parquet"):
        read_table("table.xlsx")
    with pytest.raises(ValueError, match="path: wanted the path of a file"):
        read_table(3)  # type: ignore[arg-type]
    (tmp_path / "t.parquet").write_text("not Parquet")
    with pytest.raises(ValueError, match=r"t.parquet is not a table of this kind"):
        read_table(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="Reshape your data"):
        as_table(np.ones(3))


def test_a_model_is_loaded_without_the_simulator(model: dm.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "m.dpmesh")
    code = (
        "import sys, dpmesh as dm\n"
        f"model = dm.Model.load({str(tmp_path / 'm.dpmesh')!r})\n"
        "model.predict([[50, 'north', 70.0, 1, True]])\n"
        "heavy = {'dpmesh.algorithms', 'dpmesh.privacy', 'dpmesh.topology', 'scipy', 'sklearn'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
