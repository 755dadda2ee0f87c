"""Tables as people have them go from files to a model."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("sklearn")
pytest.importorskip("typer")

import pandas as pd
from command import command

from dpmesh.tables import read_table
from dpmesh.tables.cells import map_cells, number_of
from dpmesh.tables.ranges import BLANK
from dpmesh.tables.reader import TextFormat, open_table

RANGES = """
"größe" = [0, 100]
ort = ["Zürich", "Köln"]
plz = ["02134", "10001"]
tag = {dates = ["2019-01-01", "2024-12-31"], missing = true}
raucht = {flag = true, missing = true}
krank = {classes = [0, 1]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(RANGES, encoding="utf-8")


def people(site: int, records: int = 40) -> Any:
    draw = np.random.default_rng(site)
    size = draw.uniform(0, 100, records).round(2)
    return pd.DataFrame(
        {
            "größe": size,
            "ort": draw.choice(["Zürich", "Köln"], records),
            "plz": draw.choice(["02134", "10001"], records),
            "tag": draw.choice(["2020-05-01", "2021-05-01 10:30", "NA"], records),
            "raucht": draw.choice(["TRUE", "false", "1", "?"], records),
            "krank": (size > 50).astype(int),
        }
    )


def text(table: Any, separator: str = ",", decimal: str = ".") -> str:
    written: str = table.to_csv(index=False, sep=separator, decimal=decimal)
    return written


def call(*arguments: str, code: int = 0) -> str:
    return " ".join(command(*arguments, code=code).split())


FIT = ("--label", "krank", "--epsilon", "8", "--ranges", "r.toml", "--seed", "0")


@pytest.mark.filterwarnings("ignore:.*has bytes that are not")
def test_files_in_many_forms_are_one_table() -> None:
    table = people(0)
    forms = {
        "a.csv": text(table).encode(),
        "b.csv": text(table, ";", ",").encode("latin-1"),
        "c.tsv": text(table, "\t").encode("utf-16"),
        "d.txt": text(table, "|").encode("utf-8-sig"),
        "e.csv.gz": gzip.compress(text(table, ";").encode()),
        "f.csv": text(table).replace("\n", "\r\n").encode("utf-16-le"),
    }
    for name, content in forms.items():
        Path(name).write_bytes(content)
        read = read_table(name)
        assert [*read] == [*table], name
        assert (
            map_cells(number_of, read["größe"].to_numpy(), float).tolist()
            == table["größe"].tolist()
        )
        texts = [column for column in table if column != "größe"]
        assert read[texts].values.tolist() == table[texts].astype(str).values.tolist(), name
    Path("g.csv").write_bytes("ort,b\nKöln,1\n".encode("latin-1"))  # the header does not show it
    with pytest.warns(UserWarning, match=r"g\.csv has bytes that are not utf-8: .*--encoding"):
        read_table("g.csv")
    assert read_table("g.csv")["ort"].tolist() == ["K�ln"]
    assert read_table("g.csv", TextFormat(encoding="latin-1"))["ort"].tolist() == ["Köln"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b\n1,2\n3\n", "t.csv, line 3: wanted 2 values, as in the header, got 1: '3'"),
        ("a,b\n1,2,3\n", "t.csv, line 2: wanted 2 values, as in the header, got 3: '1,2,3'"),
        ('a,b\n1,"2\n3,4\n', "t.csv, line 2: a quotation mark opens and does not close"),
        ('a,b\n1,"2"x\n3,4\n', "t.csv, line 2: text follows a closing quotation mark"),
        ("a,b\n1,2\n\n3,4\n", "t.csv, line 3: the line is empty; delete it, or state skip_empty"),
        (
            "a,b\n1,2\r3\n",
            "t.csv, line 2: a line break inside of a record (carriage return); delete it",
        ),
        ("a,b,\n1,2,x\n", "t.csv, line 2: 'x' is in a column without a name"),
        ("a,a\n1,2\n", "t.csv, line 1: the header must name each column once, got 'a' twice"),
        ("1.5,2\n1,2\n", "t.csv, line 1: the first line has numbers; state header=False"),
        ("0,5,0\n1,2,3\n", "t.csv, line 1: the first line has numbers; state header=False"),
        ("age weight\n1 2\n", "t.csv, line 1: no separator in 'age weight'; state separator=','"),
        ("", "t.csv, line 1: the file is empty; its first line must name the columns"),
    ],
)
def test_lines_that_do_not_fit_are_named(content: str, said: str) -> None:
    Path("t.csv").write_bytes(content.encode())
    with pytest.raises(ValueError, match=r"^t\.csv, line") as caught:
        read_table("t.csv")
    assert said in str(caught.value)


def test_a_header_with_some_numbers_is_read_with_a_warning() -> None:
    """The first line of scikit-learn's iris.csv counts records and columns."""
    Path("iris.dat").write_text("150,4,setosa\n5.1,3.5,0\n", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"iris.dat, line 1: .* by numbers: 150, 4; state header"):
        table = open_table("iris.dat")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = open_table("iris.dat", TextFormat(header=True))
    assert table.names == same.names == ("150", "4", "setosa")


@pytest.mark.parametrize("encoding", ["utf-16", "UTF16", "u32"])
def test_no_record_states_the_byte_order_of_others(encoding: str) -> None:
    with pytest.raises(ValueError, match="encoding: wanted its byte order without a header"):
        TextFormat(encoding=encoding, header=False)
    assert TextFormat(encoding=encoding, header=True).encoding == encoding
    assert TextFormat(encoding="utf-16-le", header=False).encoding == "utf-16-le"


@pytest.mark.slow
def test_a_model_of_messy_files_predicts_parquet_and_csv_alike() -> None:
    Path("a.csv").write_bytes(text(people(0), ";", ",").encode("latin-1"))
    Path("b.tsv").write_bytes(text(people(1), "\t").encode("utf-16"))
    people(2).assign(krank=lambda t: t["krank"].astype(float)).to_parquet("c.parquet")
    Path("d.csv.gz").write_bytes(gzip.compress(text(people(3).drop(columns="ort")).encode()))
    said = call("fit", "a.csv", "b.tsv", "c.parquet", "d.csv.gz", *FIT)
    assert "d.csv.gz, ort: no such column; all values count as missing" in said
    assert "160 records at 4 sites" in said
    assert "Zürich" not in said
    new = people(9)
    new.assign(plz=new["plz"].astype(int)).to_parquet("new.parquet")  # zeros are lost
    Path("new.csv").write_text(text(new), encoding="utf-8")
    one, two = (call("predict", "model.dpmesh", f"new.{kind}") for kind in ("parquet", "csv"))
    assert one == two
    assert {*one.split()[1:]} == {"0", "1"}


def test_missing_labels_are_named_and_left_out_on_request() -> None:
    table = people(0)
    table["krank"] = table["krank"].astype(object)
    table.loc[3, "krank"] = "NA"
    Path("a.csv").write_text(text(table), encoding="utf-8")
    said = call("fit", "a.csv", *FIT, code=2)
    assert "a.csv, record 4: krank is missing; fill it in, or leave such records out" in said
    said = call("fit", "a.csv", *FIT, "--drop-missing-labels")
    assert "assumption which records have a label, and a site, is public" in said
    assert "a.csv, 1 record is left out: no krank" in said
    assert "39 records at 1 site" in said
    assert "a.csv twice" in call("fit", "a.csv", "./a.csv", *FIT, code=2)
    assert "which --site names" in call("fit", "a.csv", *FIT, "--site", "ort", code=2)


def test_a_draft_has_kinds_and_neither_bounds_nor_categories() -> None:
    german = people(0)
    german["geboren"] = [f"{14 + day % 9}.{1 + day % 12:02d}.1950" for day in range(len(german))]
    Path("a.csv").write_text(text(german), encoding="utf-8")
    people(1).to_parquet("b.parquet")
    draft = command("ranges", "a.csv", "b.parquet")
    assert f'"größe" = {{range = ["{BLANK}", "{BLANK}"]}}  # guessed: number' in draft
    assert f'tag = {{dates = ["{BLANK}", "{BLANK}"]}}  # guessed: date' in draft
    form = 'format = "%d.%m.%Y"}  # guessed: date of this form'
    assert f'geboren = {{dates = ["{BLANK}", "{BLANK}"], {form}' in draft
    assert f'raucht = {{flag = "{BLANK}"}}  # guessed: flag; write true' in draft
    assert f'ort = {{categories = ["{BLANK}"]}}  # guessed: category' in draft
    assert "Köln" not in draft
    Path("r.toml").write_text(draft, encoding="utf-8")
    said = call("fit", "a.csv", *FIT, code=2)
    assert "got blanks for größe, ort, plz, tag, raucht, krank, geboren" in said


def kinds() -> dict[str, tuple[str, dict[str, str], tuple[str, ...]]]:
    """Tables as people have them: the file, the ranges of the columns to use, and options."""
    draw, n = np.random.default_rng(0), 180
    size = draw.normal(50, 15, n).round(1)
    days = (np.datetime64("2020-01-01") + draw.integers(0, 700, n)).astype(str)
    clinic = draw.integers(18, size=n)
    clinic[:18] = np.arange(18)
    table = pd.DataFrame({"Size (mm)": size, "visit.date": days, "clinic": clinic, "sex": 1})
    table["ill"] = np.where(size > 55, "yes", "no")
    gap = table.astype(object)
    gap.loc[gap.index % 7 == 1, "Size (mm)"], gap.loc[4, "ill"], gap.loc[5, "clinic"] = "NA", "", ""
    rare = table.assign(ill=(size > np.quantile(size, 0.97)).astype(int))
    plain = {"Size (mm)": "[0, 100]", "visit.date": '{dates = ["2020-01-01", "2022-01-01"]}'}
    label = {"ill": '{classes = ["no", "yes"]}'}
    return {
        "semicolons": (text(table, ";", ","), plain | label, ()),
        "small sites": (text(table, "\t"), plain | label, ("--site", "clinic")),
        "missing": (
            text(gap),
            {"Size (mm)": "{range = [0, 100], missing = true}", **label},
            ("--site", "clinic", "--drop-missing-labels"),
        ),
        "rare": (text(rare), plain | {"ill": "{classes = [0, 1], shares = [0.97, 0.03]}"}, ()),
        "index": (table.to_csv(), plain | label, ()),
        "number": (text(table), {"Size (mm)": "{target = [0, 100]}", "ill": '["no", "yes"]'}, ()),
    }


@pytest.mark.parametrize("kind", kinds())
def test_tables_go_from_file_to_model_by_commands_alone(kind: str) -> None:
    written, filled, options = kinds()[kind]
    Path("own.csv").write_text(written, encoding="utf-8")
    draft = [line.partition(" = ") for line in command("ranges", "own.csv").splitlines()]
    names = {name: name.strip('"') for name, equal, _ in draft if equal}
    assert {*filled} <= {*names.values()}
    lines = [f"{name} = {filled[own]}" for name, own in names.items() if own in filled]
    Path("r.toml").write_text("\n".join(lines), encoding="utf-8")
    label = "Size (mm)" if kind == "number" else "ill"
    given = ("--label", label, "--epsilon", "8", "--ranges", "r.toml", "--splits", "1")
    said = call("fit", "own.csv", *given, *options)
    assert ("18 sites" in said) is ("--site" in options)
    assert ("2 records are left out: no ill or no clinic" in said) is (kind == "missing")
    assert ("test records balanced accuracy" in said) is (kind == "rare")
    assert len(call("predict", "model.dpmesh", "own.csv").split()) == 181
