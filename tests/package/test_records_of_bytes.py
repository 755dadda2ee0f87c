"""One replaced line of a file changes one record at most, wherever files come in."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("pandas")
pytest.importorskip("sklearn")
pytest.importorskip("typer")

from command import command

import dpmesh as dm
from dpmesh.cli._sites import public_ranges, read_sites
from dpmesh.deploy import read_contract
from dpmesh.deploy.contract import Contract
from dpmesh.statistics import Histogram, Mean
from dpmesh.statistics.ask import questions_about, read_columns
from dpmesh.tables import read_table
from dpmesh.tables.reader import TextFormat, open_table

TOML = """
age = {range = [0, 100], missing = true}
note = {categories = ["seen", "seen, twice"]}
ill = {classes = [0, 1]}
"""
RECORDS = 12

PIECES = [b'"', b'""', b",", b";", b"\t", b" ", b"\r", b"\0", b"\xff", b"\xc3", b"\\", b"|"]
PIECES += [b'"6ft', b'seen, twice"', b'" ,"', b"\xef\xbb\xbf", b"\xff\xfe", b"50", b"1", b"seen"]
PIECES += [b"sep=;", b"1,5", b"1.234", b"NA", b"2020-01-01T00:00Z", b"\x1a", b"\x85", b"50,seen,1"]
LINES = st.one_of(
    st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")),
    st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join),
)


@dataclass(frozen=True)
class Form:
    """How a file is written.

    Parameters
    ----------
    lines
        The header, and the lines of records.
    end
        The end of a line.
    written
        What is stated of it.
    """

    lines: list[bytes]
    end: bytes = b"\n"
    written: TextFormat | None = None

    def content(self, place: int | None = None, line: bytes = b"") -> bytes:
        """Return the file, perhaps with another line at the place of a record."""
        lines = [*self.lines]
        if place is not None:
            lines[place - RECORDS] = line
        return b"".join(one + self.end for one in lines)


def rows(note: Callable[[int], str], separator: str = ",", decimal: str = ".") -> list[bytes]:
    """Return a header, and records with these notes."""
    lines = [separator.join(("age", "note", "ill"))]
    for place in range(RECORDS):
        age = f"{20 + 5 * place}{decimal}5"
        lines.append(separator.join((age, note(place), str(place % 2))))
    return [line.encode() for line in lines]


FORMS = {
    "plain": Form(rows(lambda place: "seen")),
    "one quoted": Form(rows(lambda place: '"seen, twice"' if place == 9 else "seen")),
    "all quoted": Form(rows(lambda place: '"seen"')),
    "CRLF": Form(rows(lambda place: '"seen, twice"' if place % 3 else "seen"), b"\r\n"),
    "semicolons": Form(rows(lambda place: "seen", ";", ",")),
    "tabs, stated": Form(rows(lambda place: "seen", "\t"), written=TextFormat(separator="\t")),
    "no header": Form(rows(lambda place: "seen")[1:], written=TextFormat(header=False)),
    "last column, one quoted": Form(
        [b"age,ill,note", *(b'50,1,"seen"' if place == 9 else b"50,0,seen" for place in range(12))]
    ),
    "sep=": Form([b"sep=;", *rows(lambda place: "seen", ";")]),
    "unnamed columns": Form([line + b",," for line in rows(lambda place: "seen")]),
    "one column": Form([b"age", *(b"%d" % (20 + place) for place in range(RECORDS))]),
    "escapes": Form(rows(lambda place: '"seen\\" "'), written=TextFormat(escape="\\")),
}
EMPTY_ARE_LEFT_OUT = Form(rows(lambda place: "seen"), written=TextFormat(skip_empty=True))


def cells(form: Form, content: bytes) -> list[Any]:
    """Return the records of a file as tuples."""
    Path("own.csv").write_bytes(content)
    table = read_table("own.csv", form.written)
    return [*table.astype(str).itertuples(index=False, name=None)]


def features(form: Form, content: bytes) -> list[Any]:
    """Return the records as `dpmesh fit` learns them."""
    Path("own.csv").write_bytes(content)
    used, labels, target = public_ranges(Path("ranges.toml"), "ill", None, [])
    written = form.written or TextFormat()
    held = read_sites([Path("own.csv")], used, labels, target, None, written, drop=False)
    columns = dm.tables.Columns.of(used, used)
    encoded = columns.encode_table(held.table).features
    return [*zip(map(bytes, encoded), held.labels.tolist(), strict=True)]


def sums(form: Form, content: bytes) -> list[Any]:
    """Return the vectors of records that `dpmesh stats` adds."""
    Path("own.csv").write_bytes(content)
    ranges = dm.tables.read_ranges("ranges.toml")
    about = questions_about([Mean("age"), Histogram("note")], ranges)
    columns, _ = read_columns(about, open_table("own.csv", form.written))
    return [*map(bytes, np.ascontiguousarray(about.vectors(columns)))]


def contract() -> Any:
    """Return a contract about such tables."""
    path = Path(dm.__file__).parents[2] / "examples" / "three_hospitals" / "contract.toml"
    if not path.exists():
        pytest.skip("needs the examples")
    content = dict(read_contract(path).settings.content)
    content["ranges"] = dm.tables.read_ranges("ranges.toml")
    content["contract"] = {**content["contract"], "label": "ill"}
    return Contract.of(content).tables


def signed(form: Form, content: bytes) -> list[Any]:
    """Return the records that a party checks before it signs a contract."""
    Path("own.csv").write_bytes(content)
    found = contract().read("own.csv", form.written)
    return [*zip(map(bytes, found.features), found.labels.tolist(), strict=True)]


def differing(read: Callable[[Form, bytes], list[Any]], form: Form, place: int, line: bytes) -> int:
    """Return how many records differ where one line does; fail if their number does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = read(form, form.content())
        try:
            after = read(form, form.content(place, line))
        except ValueError as error:
            return 0 if "own.csv" in str(error) or "record" in str(error) else RECORDS
    assert len(after) == len(before)
    return sum(one != other for one, other in zip(before, after, strict=True))


quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
PLACES = st.integers(0, RECORDS - 1)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ranges.toml").write_text(TOML, encoding="utf-8")


@pytest.mark.parametrize("name", FORMS)
@quick
@given(place=PLACES, line=LINES)
@example(place=1, line=b'50,"6ft,1')
@example(place=0, line=b'50,"')
@example(place=0, line=b"")
@example(place=RECORDS - 1, line=b"")
@example(place=0, line=b"\r")
@example(place=5, line=b'"')
def test_a_line_is_a_record_whatever_its_bytes(name: str, place: int, line: bytes) -> None:
    assert differing(cells, FORMS[name], place, line) <= 1


@quick
@given(place=PLACES, line=LINES)
@example(place=0, line=b"\n\n")
@example(place=1, line=b'50,"6ft,1')
def test_a_carriage_return_ends_lines_where_the_header_says_so(place: int, line: bytes) -> None:
    form = Form(rows(lambda place: '"seen"'), b"\r")
    assert differing(cells, form, place, line.replace(b"\r", b"\n")) <= 1


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32-le", "shift_jis", "gb18030"])
@quick
@given(place=PLACES, line=LINES)
@example(place=3, line=b"\x00\xd8")  # half of a surrogate pair
@example(place=3, line=b"\x81")
@example(place=3, line=b"\x1b$B")
def test_bytes_of_an_encoding_stay_in_their_line(encoding: str, place: int, line: bytes) -> None:
    lines = [one.decode() for one in rows(lambda place: '"seen"')]
    order = "utf-16-le" if encoding == "utf-16" else encoding
    form = Form([one.encode(order) for one in lines], "\n".encode(order))
    if encoding == "utf-16":
        form.lines[0] = b"\xff\xfe" + form.lines[0]
    else:
        form = Form(form.lines, form.end, TextFormat(encoding=encoding))
    if form.end in line:
        return
    assert differing(cells, form, place, line) <= 1


@pytest.mark.parametrize("read", [features, sums, pytest.param(signed, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["one quoted", "CRLF", "semicolons"])
@settings(quick, max_examples=25)
@given(place=PLACES, line=LINES)
@example(place=1, line=b'50,"6ft,1')
@example(place=1, line=b"50,seen,1")
def test_a_line_is_a_record_at_every_front_door(
    name: str, read: Callable[[Form, bytes], list[Any]], place: int, line: bytes
) -> None:
    assert differing(read, FORMS[name], place, line) <= 1


@quick
@given(place=PLACES, line=LINES)
@example(place=RECORDS - 1, line=b" ")
def test_empty_lines_are_left_out_on_request_alone(place: int, line: bytes) -> None:
    form = EMPTY_ARE_LEFT_OUT
    before = cells(form, form.content())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            after = cells(form, form.content(place, line))
        except ValueError:
            return
    if line.decode("utf-8", "replace").strip():
        assert sum(one != other for one, other in zip(before, after, strict=True)) <= 1
    else:
        assert after == before[:place] + before[place + 1 :]


def test_neighbouring_files_have_as_many_records_or_a_command_ends() -> None:
    form = Form(rows(lambda place: '"seen"' if place == 9 else "seen"))
    Path("b.csv").write_bytes(form.content(0, b"33,seen,0"))
    Path("c.csv").write_bytes(form.content(0, b"34,seen,0"))
    options = ("--epsilon", "1000", "--ranges", "ranges.toml", "--mean", "age")
    Path("a.csv").write_bytes(form.content())
    assert "36 records at 3 sites" in command("stats", "a.csv", "b.csv", "c.csv", *options)
    Path("a.csv").write_bytes(form.content(3, b'50,"6ft,1'))
    said = command("stats", "a.csv", "b.csv", "c.csv", *options, code=2)
    assert "a.csv, line 5: a quotation mark opens and does not close" in " ".join(said.split())


def test_lines_of_one_record_need_a_statement() -> None:
    content = b'a,b\n1,"x\ny"\n2,z\n\n'
    Path("own.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"own\.csv, line 2: .* \(--multiline\)\nown\.csv, line 3"):
        read_table("own.csv")
    read = read_table("own.csv", TextFormat(multiline=True, skip_empty=True))
    assert read.values.tolist() == [["1", "x\ny"], ["2", "z"]]
    Path("own.csv").write_bytes(content.replace(b"z", b'"z'))
    with pytest.raises(ValueError, match=r"own\.csv, line 4: a quotation mark opens"):
        read_table("own.csv", TextFormat(multiline=True))
