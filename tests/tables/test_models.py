"""Columns by public numbers alone, record by record; a released model predicts and is saved."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmesh as dm
from dpmesh.tables import Category, Columns, Number, as_table, read_table
from dpmesh.tables.ranges import read_ranges

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
    with pytest.raises(ValueError, match=r"ends in .csv, .tsv, .txt, .dat, .data, .parquet"):
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


PEOPLE: dict[str, Any] = {
    "age": [0, 120],
    "ward": ["north", "south", "east"],
    "weight": {"range": [30, 250], "missing": True},
    "grade": {"categories": [1, 2]},
}


def by_hand(record: tuple[Any, ...]) -> list[float]:
    age, ward, weight, grade = record
    row = [1.0, min(max(age, 0), 120) / 60 - 1]
    row += [float(ward == one) for one in ("north", "south", "east")]
    missing = weight is None
    row += [0.0 if missing else (min(max(weight, 30), 250) - 30) / 110 - 1, float(missing)]
    row += [float(grade == one) for one in (1, 2)]
    norm = sum(x * x for x in row) ** 0.5
    return [x / norm for x in row]


RECORDS = st.lists(
    st.tuples(
        st.floats(-200, 200),
        st.sampled_from(["north", "south", "east", "elsewhere", None]),
        st.none() | st.floats(-500, 500),
        st.sampled_from([1, 2, 3, 1.0]),
    ),
    min_size=1,
    max_size=8,
)


@given(RECORDS)
def test_records_are_encoded_as_by_hand(records: list[tuple[Any, ...]]) -> None:
    columns = Columns.of(PEOPLE, PEOPLE)
    values = [np.array(column, dtype=object) for column in zip(*records, strict=True)]
    encoded = columns.encode(values)
    assert encoded.features.shape == (len(records), columns.dim)
    np.testing.assert_allclose(encoded.features, [*map(by_hand, records)], atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(encoded.features, axis=1), 1)
    beyond = sum(not 0 <= age <= 120 for age, *_ in records)
    assert encoded.outside.get("age", 0) == beyond


def test_forms_of_ranges(tmp_path: Path) -> None:
    file = tmp_path / "ranges.toml"
    file.write_text('a = [0, 2]\nb = ["x", "y"]\n')
    expected = (Number(low=0, high=2), Category(categories=("x", "y")))
    forms: list[Any] = [file, str(file), {"a": (0, 2), "b": ["x", "y"]}, [(0, 2), ["x", "y"]]]
    for form in forms:
        assert Columns.of(form, ["a", "b"]).kinds == expected
    assert Columns.of((0, 2), ["a", "b"]).kinds == (expected[0],) * 2
    assert Columns.of(np.array([0, 2]), ["a"]).kinds == expected[:1]
    huge = Category(categories=(1, 10**400))
    assert huge.codes(np.array([10**400, "1"], object)).tolist() == [1, 0]
    assert Columns.of(None, ["a"]).kinds == (Number(low=-1, high=1),)
    assert Columns.of({0: (0, 2), 1: (0, 2)}, [0, 1]).kinds == (expected[0],) * 2
    columns = Columns.of(PEOPLE, PEOPLE, intercept=False)
    assert Columns.from_dict(columns.as_dict()) == columns


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ({"a": [0, 1]}, "a public range for each column to use, such as b = "),
        ({"a": [0, 1], "b": [0, 1], "bb": [0, 1]}, "'bb'; did you mean b?"),
        ({"a": [1, 0], "b": [0, 1]}, "ranges of a: range: wanted a low end below"),
        ({"a": [0, np.nan], "b": [0, 1]}, "ranges of a: high: wanted a finite number"),
        ({"a": {"classes": {"x": 1}}, "b": [0, 1]}, "ranges of a: categories: wanted a list of"),
        (
            {"a": {"classes": [0, 1], "shares": [1]}, "b": [0, 1]},
            "shares: wanted 2 positive numbers",
        ),
        ({"a": ["x", "x"], "b": [0, 1]}, "ranges of a: categories: wanted each category once"),
        ({"a": "0 to 1", "b": [0, 1]}, "ranges of a: wanted .low, high. for numbers"),
        ({"a": [-1e308, 1e308], "b": [0, 1]}, "ranges of a: range: wanted ends of a finite dist"),
        ({"a": [0, 10**400], "b": [0, 1]}, "ranges of a: high: wanted a finite number"),
        ({"a": [date(2020, 1, 1)] * 2, "b": [0, 1]}, "for dates write {dates = .first, last.}"),
        ({"a": {"dates": ["2020", "2021"]}, "b": [0, 1]}, 'two dates such as "2024-12-31"'),
        ({"a": {"flag": False}, "b": [0, 1]}, "ranges of a: wanted .low, high. for numbers"),
        ({"a": ["1", 1.0], "b": [0, 1]}, "ranges of a: .* each category once, got '1' and 1.0"),
        ([[0, 1]] * 3, "one for each of the 2 columns, got 3"),
    ],
)
def test_ranges_that_do_not_fit_are_refused(ranges: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Columns.of(ranges, ["a", "b"])


def test_values_of_another_kind_are_refused_by_record(tmp_path: Path) -> None:
    columns = Columns.of({"a": [0, 1]}, ["a"])
    with pytest.raises(ValueError, match=r"record 1.*: a is missing; .* a = .*missing = true"):
        columns.encode([np.array([0.5, np.nan])])
    with pytest.raises(ValueError, match=r"record 0.*: a is 'x', which is no number .list the cat"):
        columns.encode([np.array(["x"], object)])
    file = tmp_path / "ranges.toml"
    file.write_text("a = [0,")
    with pytest.raises(ValueError, match=r"ranges.toml: not a TOML file"):
        read_ranges(file)
