"""Two cells are the same name, or they are not; each table comes in by the same door."""

from __future__ import annotations

import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

import pandas as pd
import pyarrow as pa

from dpmesh.tables import Category, Columns, Dates, as_table, rows
from dpmesh.tables.cells import (
    AmbiguousNumber,
    TableError,
    name_of,
    number_of,
    value_of,
    with_decimal_comma,
)
from dpmesh.tables.copies import describe_copies, fingerprints
from dpmesh.tables.sites import confusable_names, site_of_each

BIG = 2**53
NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30),
    st.integers(-20, 20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=2),
    st.integers(-(2**60), 2**60).map(np.int64),
)


@given(NUMBERS, NUMBERS)
def test_numbers_have_one_name_if_they_are_equal(one: Any, other: Any) -> None:
    plain = [cell.item() if isinstance(cell, np.generic) else cell for cell in (one, other)]
    equal = Fraction(plain[0]) == Fraction(plain[1])
    decimal = any(isinstance(cell, Decimal) for cell in plain)
    if equal or not decimal:  # a float is not exactly the decimal by which it is written
        assert (name_of(one) == name_of(other)) is equal


@given(st.text(), st.text())
def test_texts_are_their_own_names(one: str, other: str) -> None:
    assert (name_of(one) == name_of(other)) is (one == other)


@given(st.integers())
def test_a_whole_number_is_the_text_of_its_digits(number: int) -> None:
    assert name_of(number) == name_of(str(number)) == str(number)
    if abs(number) < 10**300:
        assert value_of(str(number)) == value_of(number) == number


@pytest.mark.parametrize(
    ("listed", "cells", "places"),
    [
        (["250.0", "250.00"], ["250.0", "250.00", "250.000", 250], [0, 1, -1, -1]),
        ([0, 1], ["0", "1.0", True, "false", 1.0, np.float32(1), "01"], [0, 1, 1, 0, 1, 1, -1]),
        (["02134", "2"], [2134, "2134", 2.0, "02"], [0, 0, 1, -1]),
        ([BIG, BIG + 1], [BIG, BIG + 1, str(BIG + 1), float(BIG)], [0, 1, 1, 0]),
        (["1,5", "2"], [1.5, "1.5", with_decimal_comma("1,5", stated=True)], [0, 0, 0]),
        ([0.1, 7], [float(np.float32(0.1)), Decimal("0.1"), "0.10", "7.0"], [0, 0, 0, 1]),
        (["NA", "x"], ["NA", "na", None], [0, -1, -1]),
        ([True, False], ["true", "FALSE", 1, "yes"], [0, 1, 0, -1]),
    ],
)
def test_a_cell_is_the_category_that_has_its_name(
    listed: list[Any], cells: list[Any], places: list[int]
) -> None:
    assert Category(categories=listed).codes(np.array(cells, object)).tolist() == places


@pytest.mark.parametrize("listed", [[1, 1.0], [1, "1"], [True, 1], [Decimal(2), 2], ["a", "a"]])
def test_a_category_is_listed_once(listed: list[Any]) -> None:
    with pytest.raises(ValueError, match="each category once"):
        Category(categories=listed)


def test_categories_are_kept_as_files_hold_them() -> None:
    kept = Category(categories=[*np.array([1, 2]), np.float64(0.5), Decimal(7), np.True_ and "t"])
    assert [type(one) for one in kept.categories] == [int, int, float, int, str]
    assert Category(categories=pd.Index(["a", "b"])).categories == ("a", "b")  # type: ignore[arg-type]


def test_sites_are_exact_and_look_alikes_are_told() -> None:
    groups = ["1.1", "1.10", "900000000000000001", "900000000000000002", "NA", 1, 1.0, "1"]
    found = site_of_each(groups, len(groups)).tolist()
    assert found == [*groups[:5], "1", "1", "1"]
    assert confusable_names(found) == [
        "'NA' is taken as the name of a site",
        "'1.1', '1.10' are different sites",
    ]
    with pytest.raises(TableError, match=r"record 1, .*: groups is 9007199254740994, a float"):
        site_of_each(np.array([1.0, BIG + 2.0]), 2)
    with pytest.raises(TableError, match=r"groups is 'K.ln', whose bytes cannot be decoded"):
        site_of_each(["K\ufffdln"], 1)
    for missing in ("", " ", None, np.nan, pd.NA):
        with pytest.raises(TableError, match=r"groups \(the site\) is missing"):
            site_of_each(np.array(["a", missing], object), 2)


@pytest.mark.parametrize(
    ("text", "default", "stated"),
    [
        ("2,5", 2.5, 2.5),
        ("1.5", 1.5, 1.5),
        ("1.234", None, None),
        ("1,234", None, 1.234),
        ("0,234", 0.234, 0.234),
        ("0.234", 0.234, 0.234),
        ("1.234,5", 1234.5, 1234.5),
        ("-1.234.567,25", -1234567.25, -1234567.25),
        ("1,5e3", 1500.0, 1500.0),
        (",5", 0.5, 0.5),
        ("1234", 1234.0, 1234.0),
        ("1,2,3", None, None),
    ],
)
def test_decimal_commas(text: str, default: float | None, stated: float | None) -> None:
    for wanted, is_stated in ((default, False), (stated, True)):
        cell = with_decimal_comma(text, stated=is_stated)
        assert cell == text
        number = number_of(cell)
        assert np.isnan(number) if wanted is None else number == wanted


def test_digits_that_may_be_grouped_are_no_missing_number() -> None:
    columns = Columns.of({"a": {"range": [0, 9], "missing": True}}, ["a"])
    for text in (AmbiguousNumber("1.234"), "1,234", "1 234 567", "1'234.5"):
        with pytest.raises(TableError, match=r"record 1, .*in which a mark may group digits"):
            columns.encode([np.array(["3", text], object)])
    assert columns.encode([np.array(["3", "12,34"], object)]).unread == {"a": ["12,34"]}


def test_instants_are_days_of_a_stated_zone() -> None:
    new_york = pd.to_datetime(["2020-06-01 23:00"]).tz_localize("America/New_York")
    table = pa.table({"t": pa.array(new_york)})
    cells = [as_table(given).columns[0][0] for given in (table, table.to_pandas())]
    cells += ["2020-06-01T23:00-04:00", "2020-06-02 03:00:00Z", new_york[0].to_pydatetime()]
    values = np.array(cells, object)
    bounds = ("2020-06-01", "2020-06-03")
    for place, cell in enumerate(cells):
        with pytest.raises(TableError, match=r'states a time zone; .* zone = "UTC"}'):
            Dates(dates=bounds).checked_numbers("t", np.array([bounds[0]] * place + [cell], object))
    for zone, hours in (("UTC", 3), ("Europe/Berlin", 5), ("America/New_York", -1)):
        days = Dates(dates=bounds, zone=zone).numbers(values)
        np.testing.assert_allclose(days, datetime.date(2020, 6, 2).toordinal() + hours / 24)
    kind = Dates(dates=bounds, zone="Europe/Berlin")
    assert Columns.of({"t": kind.as_dict()}, ["t"]).kinds == (kind,)
    with pytest.raises(ValueError, match="zone: wanted the name of a time zone"):
        Dates(dates=bounds, zone="Mars")


@pytest.mark.parametrize(
    ("cell", "zone", "day"),
    [
        ("9999-12-31T23:59:59Z", "Europe/Berlin", "2020-06-03"),
        ("9999-12-31 23:59-10:00", "UTC", "2020-06-03"),
        ("0001-01-01 00:00Z", "America/New_York", "2020-06-01"),
        ("0001-01-01 00:00+10:00", "UTC", "2020-06-01"),
    ],
)
def test_instants_at_the_ends_of_the_calendar_are_clipped(cell: str, zone: str, day: str) -> None:
    kind = Dates(dates=("2020-06-01", "2020-06-03"), zone=zone)
    read = kind.encode("t", np.array([cell, day], object))
    assert read.clipped == 1
    assert read.features[0] == read.features[1]


def doors() -> dict[str, Any]:
    """The same table in many forms."""
    columns: dict[str, list[Any]] = {"a": [BIG + 1, None, 3], "b": ["x", "y", None]}
    arrow = pa.table(columns)
    masked = np.ma.array([BIG + 1, 0, 3], mask=[False, True, False])
    return {
        "pyarrow": arrow,
        "record batch": arrow.to_batches()[0],
        "dictionaries": arrow.set_column(1, "b", arrow["b"].dictionary_encode()),
        "pandas": pd.DataFrame(columns, dtype=object),
        "pandas of arrow": arrow.to_pandas(types_mapper=pd.ArrowDtype),
        "columns": columns,
        "masked": {"a": masked, "b": columns["b"]},
        "arrow columns": {"a": arrow["a"], "b": arrow["b"]},
    }


def missing_or(cells: Any) -> list[str | None]:
    return [name_of(cell) for cell in cells.tolist()]


@pytest.mark.parametrize("form", doors())
def test_tables_come_in_by_one_door(form: str) -> None:
    table = as_table(doors()[form])
    assert table.names == ("a", "b")
    assert [*map(missing_or, table.columns)] == [[str(BIG + 1), None, "3"], ["x", "y", None]]
    assert as_table(rows(table, np.array([2, 0]))).columns[0].tolist() == [3, BIG + 1]


def test_polars_and_structured_arrays_keep_their_names() -> None:
    array = np.array([(1, "x"), (2, "y")], dtype=[("a", int), ("b", "U1")])
    table = as_table(array)
    assert table.names == ("a", "b")
    assert [column.tolist() for column in table.columns] == [[1, 2], ["x", "y"]]
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"b": [0.5, None], "a": [BIG + 1, None]})
    frame = frame.with_columns(c=pl.Series(["u", "v"], dtype=pl.Categorical))
    table = as_table(frame)
    assert table.names == ("b", "a", "c")
    assert missing_or(table.columns[1]) == [str(BIG + 1), None]
    assert table.columns[2].tolist() == ["u", "v"]
    with pytest.raises(ValueError, match=r"call \.collect\(\) first"):
        as_table(frame.lazy())


def test_problems_of_all_columns_are_in_one_error() -> None:
    columns = Columns.of({"a": [0, 9], "b": {"flag": True}, "c": [0, 1]}, ["a", "b", "c"])
    cells = [np.array([1, "x"], object), np.array(["no", 1], object), np.array([0.5, 1])]
    with pytest.raises(TableError) as caught:
        columns.encode(cells)
    assert [record for record, _ in caught.value.problems] == [1, 0]
    assert "a is 'x'" in str(caught.value)
    assert "b is 'no'" in str(caught.value)


@pytest.mark.parametrize("form", ["whole", "half", "few kinds", "other", "small"])
def test_the_records_of_one_site_at_another_are_found(form: str) -> None:
    draw = np.random.default_rng(0)
    one, other = ({"a": draw.normal(size=90).round(3), "b": ["x", "y", "z"] * 30} for _ in "ab")
    if form == "whole":
        other = {"b": one["b"], "a": one["a"]}
    elif form == "half":
        other["a"][:50] = one["a"][:50]
    elif form == "few kinds":
        one["a"] = draw.integers(4, size=90)
        other = {name: [*column] for name, column in one.items()}
    elif form == "small":
        one = other = {"a": np.arange(3.0), "b": ["x", "y", "z"]}
    tables = [as_table(one), as_table(other)]
    records = np.concatenate([*map(fingerprints, tables)])
    count = tables[0].records
    partition = [np.arange(count), np.arange(count, 2 * count)]
    said = describe_copies(records, partition, np.array(["s1", "s2"]))
    if form in ("other", "small"):
        assert said is None
    else:
        assert said is not None
        which = {"half": "50 of 90", "whole": "all of 90", "few kinds": "all of 90"}[form]
        assert said.startswith(f"{which} records of the site ")


def test_records_of_few_kinds_are_alike_by_accident() -> None:
    draw = np.random.default_rng(1)
    tables = [as_table({"a": draw.integers(3, size=300)}) for _ in range(3)]
    records = np.concatenate([*map(fingerprints, tables)])
    partition = np.split(np.arange(900), 3)
    assert describe_copies(records, partition, np.arange(3)) is None


def test_predict_reads_archives(tmp_path: Path) -> None:
    from dpmesh.tables.reader import open_table

    np.savez(tmp_path / "a.npz", X=np.eye(3), y=np.array([1, 2, 3]))
    table = open_table(tmp_path / "a.npz")
    assert table.names == ("X0", "X1", "X2", "y")
    np.savez(tmp_path / "a.npz", X=np.eye(3), X0=np.array([1, 2, 3]))
    with pytest.raises(ValueError, match="columns have different names"):
        open_table(tmp_path / "a.npz")
