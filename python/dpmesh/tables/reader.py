"""Files of records: text with a header, Parquet, Arrow or Feather."""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dpmesh._extras import needed_by
from dpmesh._files import read_bytes
from dpmesh._validate import fail, instance, one_of

_TEXT = (".csv", ".tsv", ".txt")
_BINARY = (".parquet", ".arrow", ".feather")
_PACKED = (".gz", ".bz2")
_SEPARATORS = (",", ";", "\t", "|")
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}

_DECIMAL_COMMA = r"^(\s*[+-]?\d*),(\d+(?:[eE][+-]?\d+)?\s*)$"


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """How a text file writes a table. All of it is public.

    Parameters
    ----------
    separator
        What stands between two values, one character. None: of comma, semicolon, tab and bar the
        most frequent one in the header.
    decimal
        What stands before the decimals of a number. None: a comma where values are separated by
        semicolons, else a point. With a comma, a value such as ``1.5`` is the same number.
    encoding
        A text encoding of Python, such as ``latin-1``. None: that of a byte-order mark; else UTF-8;
        cp1252 if the header is not UTF-8, and UTF-16 if it has zero bytes.
    """

    separator: str | None = None
    decimal: Literal[".", ","] | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.separator is not None and len(self.separator) != 1:
            fail("separator", "one character, such as ';'", repr(self.separator))
        one_of("decimal", self.decimal, (".", ",", None))
        try:
            "".encode(self.encoding or "utf-8")
        except LookupError:
            fail("encoding", "one that Python knows, such as latin-1", repr(self.encoding))


def read_table(path: str | os.PathLike[str], written: TextFormat | None = None) -> Any:
    """Read a file into a pandas table: text with a header, Parquet, Arrow or Feather.

    Every value of a text file (``.csv``, ``.tsv``, ``.txt``, also with ``.gz`` or ``.bz2``) stays
    the text that it is: public ranges say what it means, see `dpmesh.tables`. What `written` leaves
    open is taken from the header line alone. Bytes that cannot be decoded become U+FFFD, so that
    their value cannot be read.

    Raises
    ------
    ImportError
        If pandas and pyarrow are not installed (extra ``pandas``).
    ValueError
        If the file is none of these, or a line has more or fewer values than the header.
    OSError
        If it cannot be read.
    """
    instance("path", path, "the path of a file", str, os.PathLike)
    suffixes = [each.lower() for each in Path(path).suffixes[-2:]]
    kind = suffixes[0] if suffixes[-1:] and suffixes[-1] in _PACKED else "".join(suffixes[-1:])
    if kind not in _TEXT + _BINARY or (kind in _BINARY and suffixes[-1] != kind):
        ends = f"{', '.join(_TEXT + _BINARY)}, or a text file with {' or '.join(_PACKED)}"
        fail("file", f"one that ends in {ends}", os.fspath(path))
    with needed_by("reading a table"):
        import pandas  # noqa: F401  (pyarrow makes tables of it)
        import pyarrow as pa
        from pyarrow import feather, parquet
    try:
        if kind in _TEXT:
            table = _parsed(read_bytes(path), written or TextFormat(), os.fspath(path))
        else:
            table = (parquet if kind == ".parquet" else feather).read_table(os.fspath(path))
            index = [name for name in table.column_names if name.startswith("__index_level_")]
            table = table.drop_columns(index)
        return table.to_pandas(ignore_metadata=True)
    except (pa.ArrowException, ValueError, EOFError) as error:
        raise ValueError(f"{os.fspath(path)} is not a table of this kind: {error}") from error


def _parsed(content: bytes, written: TextFormat, path: str) -> Any:
    """Return a pyarrow table of texts."""
    import pyarrow as pa
    from pyarrow import compute
    from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv

    text = _decoded(content, written.encoding or _encoding(content), path)
    separator = written.separator or _separator(text)
    stream = io.StringIO(text, newline="")
    names = next(csv.reader(stream, delimiter=separator), [])
    if len({*names}) < len(names) or not names:
        fail("header", "a name for each column, each once", separator.join(names) or "none")
    records = stream.read()
    # An end of our own shows whether the last record ends where the file does.
    end = separator.join("." * len(names))
    whole = f"-\n{records}{'' if records[-1:] in ('', chr(10), chr(13)) else chr(10)}{end}\n"
    raw, wrong = whole.encode(), list[Any]()

    def refuse(row: Any) -> str:
        wrong.append(row)
        return "skip"

    whole_file: Any = {"use_threads": False, "block_size": len(raw) + 1, "skip_rows": 1}
    table = read_csv(
        pa.BufferReader(raw),
        read_options=ReadOptions(column_names=names, **whole_file),
        parse_options=ParseOptions(
            delimiter=separator, newlines_in_values=True, invalid_row_handler=refuse
        ),
        convert_options=ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
        ),
    )
    if wrong:
        row = wrong[0]
        wanted = f"{row.expected_columns} values, as in the header"
        fail(f"record {row.number - 1}", wanted, f"{row.actual_columns}: {row.text[:60]!r}")
    last = table.num_rows - 1
    if any(column[last].as_py() != "." for column in table.columns):
        fail("file", "a closing quotation mark for each opening one", "one that is not closed")
    table = table.slice(0, last)
    if (written.decimal or ("," if separator == ";" else ".")) == ".":
        return table
    points = [compute.replace_substring_regex(c, _DECIMAL_COMMA, r"\1.\2") for c in table.columns]
    return pa.table(points, names)


def _decoded(content: bytes, encoding: str, path: str) -> str:
    text = content.decode(encoding, errors="replace").removeprefix("\ufeff")
    if "\ufffd" in text:
        hint = "such values cannot be read; state encoding=, such as latin-1 (--encoding)"
        said = f"{path} has bytes that are not {encoding}: {hint}"
        warnings.warn(said, UserWarning, stacklevel=4)
    return text


def _encoding(content: bytes) -> str:
    """Return the encoding of a text, from its header line alone."""
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            return encoding
    header = content.split(b"\n", 1)[0]
    if b"\0" in header:
        return "utf-16-be" if header.startswith(b"\0") else "utf-16-le"
    try:
        header.decode("utf-8")
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def _separator(text: str) -> str:
    """Return the separator of a table, from its header line alone."""
    header = re.split("[\r\n]", text, maxsplit=1)[0]
    outside = "".join(header.split('"')[::2])
    return max(_SEPARATORS, key=outside.count)
