"""One changed cell changes one encoded record at most, wherever a table comes in."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
pytest.importorskip("sklearn")
pytest.importorskip("typer")

import pandas as pd
import pyarrow as pa
from pyarrow import feather, parquet

import dpmesh as dm
from dpmesh.cli._sites import public_ranges, read_sites
from dpmesh.defaults import Sizes
from dpmesh.deploy import read_contract
from dpmesh.deploy.contract import Contract
from dpmesh.experiments.files import load_files
from dpmesh.tables import Columns, read_table
from dpmesh.tables.reader import TextFormat

TOML = """
age = {range = [0, 100], missing = true}
ward = {categories = [1, 2, 3]}
zip = ["02134", "10001", "2"]
word = ["None", "NA", "x"]
smoker = {flag = true, missing = true}
visit = {dates = ["2019-01-01", "2024-12-31"], missing = true}
whole = [0, 9]
ill = {classes = [0, 1]}
"""
NAMES = ["age", "ward", "zip", "word", "smoker", "visit", "whole", "ill", "clinic"]
FEATURES = NAMES[:7]
ROWS: list[list[Any]] = [
    [20.5, 1, "02134", "None", True, "2019-05-01", 3, 0, "n"],
    [None, 2, "10001", "NA", False, "2020-05-01", 4, 1, "s"],
    [61.25, 3, "2", "x", True, None, 5, 1, "1"],
    [0.1, 1, "02134", "NA", None, "2024-12-31 12:00", 6, 0, "n"],
    [99.0, 2, "10001", "x", False, "2021-05-01", 7, 1, "s"],
    [50.0, 3, "02134", "None", True, "2022-05-01", 8, 0, "1"],
]

ODD = ["unknown", "1.0", "01", "true", "NaN", ",", ";", "1,5", "1e999", "-0", "inf", "2020-01-01"]
ODD += ["None", "", '"', '""', "\n", "a\r\nb", "\x00", "9" * 400, " 1", "\ufeff", "\ufffd"]
CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.dates(),
    st.text(st.characters(codec="utf-8")),
    st.sampled_from(ODD),
)

Found = tuple[Any, Any, Any, Any]
"""Features and labels of each record, which records share a site, and the public sizes that a plan
is made of."""


def shared(partition: Any) -> Any:
    """Return whether two records are at one site, shape (records, records)."""
    owner = np.zeros(len(ROWS))
    for site, part in enumerate(partition):
        owner[part] = site
    return owner[:, np.newaxis] == owner


def estimated(table: Any, labels: Any, groups: Any) -> Found:
    ranges = dm.tables.read_ranges("ranges.toml")
    del ranges["ill"]
    if not hasattr(table, "columns") and not hasattr(table, "column_names"):
        ranges = [*ranges.values()]
    made = dm.sklearn.PrivateClassifier(ranges=ranges, classes=[0, 1])
    problem = made._encoded_problem(table, labels, groups).problem
    partition = shared(problem.partition)
    return problem.train.features, problem.train.labels, partition, Sizes.of(problem)


def as_lists(rows: list[list[Any]]) -> Found:
    return estimated([row[:7] for row in rows], [row[7] for row in rows], [row[8] for row in rows])


def as_objects(rows: list[list[Any]]) -> Found:
    array = np.array(rows, dtype=object)
    return estimated(array[:, :7], array[:, 7], array[:, 8])


def as_numpy_chooses(rows: list[list[Any]]) -> Found:
    columns = [np.array([row[i] for row in rows]) for i in range(len(FEATURES))]
    labels, groups = (np.array([row[i] for row in rows], dtype=object) for i in (7, 8))
    return estimated(pd.DataFrame(dict(zip(FEATURES, columns, strict=True))), labels, groups)


def frame(rows: list[list[Any]]) -> Any:
    return pd.DataFrame(rows, columns=NAMES)


def as_pandas(rows: list[list[Any]]) -> Found:
    return of_frame(frame(rows))


def of_frame(table: Any) -> Found:
    return estimated(table[FEATURES], table["ill"].astype(object), table["clinic"])


def as_categoricals(rows: list[list[Any]]) -> Found:
    table = frame(rows)
    return of_frame(table.assign(**{name: table[name].astype("category") for name in FEATURES}))


def arrow(rows: list[list[Any]]) -> Any:
    """A table of Arrow: of typed columns, where the cells are of one type; else of their texts."""
    columns = {}
    for name, cells in zip(NAMES, zip(*rows, strict=True), strict=True):
        kinds = {type(cell) for cell in cells if cell is not None}
        texts = [None if cell is None else str(cell) for cell in cells]
        try:
            columns[name] = pa.array(cells if len(kinds) == 1 else texts)
        except OverflowError:
            columns[name] = pa.array(texts)
    return pa.table(columns)


def as_arrow(rows: list[list[Any]]) -> Found:
    table = arrow(rows)
    labels, groups = (np.array(table[name].to_pylist(), dtype=object) for name in NAMES[7:])
    return estimated(table.select(FEATURES), labels, groups)


def to_csv(rows: list[list[Any]]) -> str:
    with Path("own.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([NAMES, *rows])
    return "own.csv"


def to_parquet(rows: list[list[Any]]) -> str:
    parquet.write_table(arrow(rows), "own.parquet")
    return "own.parquet"


def to_feather(rows: list[list[Any]]) -> str:
    feather.write_feather(arrow(rows), "own.feather")
    return "own.feather"


def by_pandas(rows: list[list[Any]]) -> Found:
    return of_frame(pd.read_csv(to_csv(rows)))


def by_fit(path: str) -> Found:
    used, labels, target = public_ranges(Path("ranges.toml"), "ill", None, [])
    held = read_sites([Path(path)], used, labels, target, "clinic", TextFormat(), drop=False)
    return estimated(held.table, held.labels, held.owners)


def by_run(path: str) -> Found:
    own = load_files(path, "ill", ranges="ranges.toml", generator=np.random.default_rng(0))
    parts = own.train, own.test
    features = np.concatenate([part.features for part in parts])
    order = np.random.default_rng(0).permutation(len(ROWS))
    tested = np.zeros(len(ROWS), dtype=bool)
    tested[order[: own.test.records]] = True
    places = np.argsort([*np.flatnonzero(~tested), *np.flatnonzero(tested)])
    labels = np.concatenate([part.labels for part in parts])
    public = own.train.records, own.outline.as_dict()
    return features[places], labels[places], None, public


def by_node(path: str) -> Found:
    example = Path(dm.__file__).parents[2] / "examples" / "three_hospitals" / "contract.toml"
    if not example.exists():
        pytest.skip("needs the examples")
    content = dict(read_contract(example).settings.content)
    content["ranges"] = dm.tables.read_ranges("ranges.toml")
    content["contract"] = {**content["contract"], "label": "ill"}
    made = Contract.of(content).tables.read(path)
    return made.features, made.labels, None, made.records


def by_predict(path: str) -> Found:
    ranges = dm.tables.read_ranges("ranges.toml")
    del ranges["ill"]
    columns = Columns.of(ranges, ranges)
    weights = np.random.default_rng(0).normal(size=(2, columns.dim))
    model = dm.Model(columns=columns, weights=weights, classes=np.array([0, 1]))
    scores = model.scores(read_table(path))
    return scores, np.zeros(len(scores)), None, None


FILES = [to_csv, to_parquet, to_feather]
TABLES = as_lists, as_objects, as_numpy_chooses, as_pandas, as_categoricals, as_arrow, by_pandas
ENTRIES: dict[str, Callable[[list[list[Any]]], Found]] = {one.__name__: one for one in TABLES} | {
    f"{read.__name__}_{write.__name__}": lambda rows, read=read, write=write: read(write(rows))
    for read in (by_fit, by_run, by_node, by_predict)
    for write in FILES
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("entries"))
        Path("ranges.toml").write_text(TOML)
        yield


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("entry", ENTRIES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(record=st.integers(0, 5), column=st.integers(0, 8), cell=CELLS)
def test_a_changed_cell_changes_its_record_alone(
    entry: str, record: int, column: int, cell: Any
) -> None:
    changed = [[*row] for row in ROWS]
    changed[record][column] = cell
    features, labels, sites, sizes = ENTRIES[entry](ROWS)
    try:
        others, other_labels, other_sites, other_sizes = ENTRIES[entry](changed)
    except (ValueError, TypeError):
        return  # the owner sees an error, and nothing is released
    kept = np.arange(len(ROWS)) != record
    np.testing.assert_array_equal(others[kept], features[kept])
    np.testing.assert_array_equal(other_labels[kept], labels[kept])
    if sites is not None:
        np.testing.assert_array_equal(other_sites[kept][:, kept], sites[kept][:, kept])
    if NAMES[column] != "clinic":  # how many records a site has is public
        assert other_sizes == sizes


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_all_entries_read_the_same_record_alike() -> None:
    expected = ENTRIES["as_lists"](ROWS)
    for name, entry in ENTRIES.items():
        features, labels, *_ = entry(ROWS)
        if not name.startswith(("by_predict", "by_pandas")):  # which takes "None" for missing
            np.testing.assert_array_equal(features, expected[0], err_msg=name)
            np.testing.assert_array_equal(labels == labels.max(), expected[1] == 1, err_msg=name)


def test_a_date_is_the_same_as_text_and_as_a_date() -> None:
    dates = Columns.of({"d": {"dates": [datetime.date(2019, 1, 1), "2019-01-11"]}}, ["d"])
    day = datetime.datetime(2019, 1, 6)
    cells = ["2019-01-06", "2019-01-06T00:00:00", day, day.date(), np.datetime64("2019-01-06")]
    found = dates.encode([np.array([*cells, pd.Timestamp(day)], dtype=object)]).features
    np.testing.assert_array_equal(found, [[1.0, 0.0]] * 6)
    own = Columns.of({"d": {"dates": ["01.01.2019", "2019-01-11"], "format": "%d.%m.%Y"}}, ["d"])
    again = own.encode([np.array(["06.01.2019", "2019-01-06", day], dtype=object)]).features
    np.testing.assert_array_equal(again, found[:3])
    assert Columns.from_dict(dates.as_dict()) == dates
