"""Text files of records. A file is cut into lines first, and each line is read by itself.

Encoding, separator and ends of lines follow from options and from the header line, never from
records: so one record's bytes cannot decide how another record is read.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, one_of
from dpmesh.tables.cells import UNDECODED, number_of, with_decimal_comma
from dpmesh.tables.table import Table

SEPARATORS = (",", ";", "\t", "|")
"""Separators that a header line shows by itself."""

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
"""Encodings by their byte-order mark; that of UTF-32 begins as that of UTF-16, so it is first."""

_UNITS = {"utf-16-le": "<u2", "utf-16-be": ">u2", "utf-32-le": "<u4", "utf-32-be": ">u4"}
"""Numpy's types for encodings whose characters are several bytes wide."""

_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?')
_AT_ONCE = 2**18
"""Cells that are dealt to columns at once."""

_MOST_PROBLEMS = 5
"""Lines that one error describes."""

_BACKSLASHED = '\\"'
_SPANS = "state multiline=True if quoted values may span lines (--multiline)"


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """Public facts about how a text file writes a table.

    Parameters
    ----------
    separator
        Character between two values. A blank stands for one or more blanks. Default: of comma,
        semicolon, tab and bar the most frequent one in the header line.
    decimal
        Decimal mark of numbers. Default: a comma if a semicolon separates values, else a point.
        Beside decimal commas, ``1.5`` is a number, too; ``1.234`` is refused, since the point may
        group digits. If the comma is a default, ``1,234`` is refused likewise.
    encoding
        Text encoding of Python, such as ``latin-1``. Default: that of a byte-order mark; else
        UTF-8, cp1252 if the header line is not UTF-8, or UTF-16 if it has zero bytes. Without
        a header, name the byte order, such as ``utf-16-le``.
    header
        Whether the first line names the columns. False names them x0, x1, and so on; then separator
        and encoding have fixed defaults, comma and UTF-8. Default: True, and a first line of
        numbers is refused.
    escape
        Character that takes the meaning of the next one, such as a backslash before a quotation
        mark. Default: none; a mark inside of a quoted value is doubled, or has a backslash before
        it.
    multiline
        Whether quoted values may span lines. By default a quotation mark that opens in a line must
        close there. State it only for files that a program wrote: quotation marks then decide where
        a record ends, so a stray one could join records, and so could an `escape` at the end of a
        line. Most stray ones are refused.
    skip_empty
        Whether empty lines are left out. By default one is a record if the table has one column,
        and refused if it has several.
    """

    separator: str | None = None
    decimal: Literal[".", ","] | None = None
    encoding: str | None = None
    header: bool | None = None
    escape: str | None = None
    multiline: bool = False
    skip_empty: bool = False

    def __post_init__(self) -> None:
        for name, mark in (("separator", self.separator), ("escape", self.escape)):
            if mark is not None and (len(mark) != 1 or mark in '\r\n"'):
                fail(name, "one character, such as ';'", repr(mark))
        one_of("decimal", self.decimal, (".", ",", None))
        if self.encoding is not None and not _is_known(self.encoding):
            fail("encoding", "one that Python knows, such as latin-1", repr(self.encoding))
        if self.header is False and self.encoding is not None and _needs_mark(self.encoding):
            little = f"{codecs.lookup(self.encoding).name}-le"
            wanted = f"its byte order without a header, such as {little}"
            fail("encoding", f"{wanted}: else the first record would state it", self.encoding)


def _is_known(encoding: str) -> bool:
    """Return whether Python has a text encoding of this name, with line feeds of one character."""
    try:
        name = codecs.lookup(encoding).name.removesuffix("-sig")
        return name[:6] in ("utf-16", "utf-32") or len("\n".encode(name)) == 1
    except (LookupError, ValueError):
        return False


def _needs_mark(encoding: str) -> bool:
    """Return whether a byte-order mark says how all lines are read."""
    return codecs.lookup(encoding).name in ("utf-16", "utf-32")


def parse(content: bytes, written: TextFormat, path: str) -> Table:
    """Return the table that a text file writes; each cell is a text.

    Bytes that cannot be decoded become U+FFFD, with a warning, so that their value cannot be read.

    Raises
    ------
    ValueError
        If the header does not name each column once, or lines do not fit the header: the message
        names the file and the lines.
    """
    try:
        encoding, content = _encoding(content, written)
        lines = _lines(content, encoding, has_header=written.header is not False)
        header = _header(lines, written)
        cells = _cells(lines, header, written)
    except _MisfitsError as error:
        raise ValueError("\n".join(f"{path}, {problem}" for problem in error.problems)) from error
    if any(UNDECODED in cell for column in cells for cell in column):
        remedy = "state encoding=, such as latin-1 (--encoding)"
        said = f"{path} has bytes that are not {encoding}: such values cannot be read; {remedy}"
        warnings.warn(said, UserWarning, stacklevel=4)
    decimal = written.decimal
    if decimal == "," or (decimal is None and header.separator == ";"):
        read = partial(with_decimal_comma, stated=decimal is not None)
        cells = [[*map(read, column)] for column in cells]
    return Table(header.names, tuple(map(_array, cells)))


class _MisfitsError(ValueError):
    """Lines that do not fit.

    Parameters
    ----------
    problems
        One sentence for each line, which begins with its number.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class _Lines:
    """A file cut into lines.

    Parameters
    ----------
    raw
        The bytes of each line, without its end.
    encoding
        How each is decoded by itself, so that no state of a decoder lasts.
    end
        The character that ends a line.
    """

    raw: list[bytes]
    encoding: str
    end: Literal["\n", "\r"]

    def text(self, place: int) -> str:
        """Return a line, counted from 0."""
        line = self.raw[place].decode(self.encoding, errors="replace")
        return line.rstrip("\r") if self.end == "\n" else line

    def texts(self, start: int) -> Iterator[str]:
        """Yield the lines from `start` on."""
        return map(self.text, range(start, len(self.raw)))


@dataclass(frozen=True, kw_only=True)
class _Header:
    """Public facts about the lines of a file.

    Parameters
    ----------
    names
        Of the columns.
    separator
        Between two values.
    width
        The most values of a line: those beyond `names` are empty.
    records
        The place of the first record among the lines.
    """

    names: tuple[str, ...]
    separator: str
    width: int
    records: int

    def misfit(self, values: Sequence[str]) -> str | None:
        """Describe how the values of a record do not fit; None if they do."""
        count = len(self.names)
        if len(values) == count:
            return None
        if values in ([], [""]):
            return "the line is empty; delete it, or state skip_empty=True (--skip-empty-lines)"
        if not count < len(values) <= self.width:
            wanted = f"{count} value{'s' * (count != 1)}, as in the header"
            return f"wanted {wanted}, got {len(values)}: {self.separator.join(values)[:60]!r}"
        stray = next((value for value in values[count:] if value.strip()), None)
        if stray is None:
            return None
        return f"{stray[:60]!r} is in a column without a name; name the column in the header"


def _encoding(content: bytes, written: TextFormat) -> tuple[str, bytes]:
    """Return the encoding, and the content without a byte-order mark.

    Both follow from options and the header line; without a header, from options alone.
    """
    if written.encoding is None and written.header is False:
        return "utf-8", content.removeprefix(codecs.BOM_UTF8)
    stated = None
    if written.encoding is not None:
        stated = codecs.lookup(written.encoding).name.removesuffix("-sig")
    for mark, encoding in _MARKS.items():
        if stated in (None, encoding, encoding[:-3]) and content.startswith(mark):
            return encoding, content[len(mark) :]
    if stated in ("utf-16", "utf-32"):
        return f"{stated}-le", content
    if stated is not None:
        return stated, content
    header = re.split(b"[\r\n]", content, maxsplit=1)[0]
    if b"\0" in header:
        return ("utf-16-be" if header.startswith(b"\0") else "utf-16-le"), content
    try:
        header.decode("utf-8")
    except UnicodeDecodeError:
        return "cp1252", content
    return "utf-8", content


def _lines(content: bytes, encoding: str, *, has_header: bool) -> _Lines:
    """Cut a file into lines by its bytes.

    A line ends with a line feed, perhaps after carriage returns; with a carriage return if the
    header line does.
    """
    units = _UNITS.get(encoding, "u1")
    if len(content) % np.dtype(units).itemsize:
        raise _MisfitsError(f"line 1: the file ends within a character ({encoding})")
    characters = np.frombuffer(content, units)
    feed, back = (np.frombuffer(mark.encode(encoding), units)[0] for mark in "\n\r")
    by_return = has_header and _ends_by_return(characters, feed, back)
    stops = np.flatnonzero(characters == (back if by_return else feed)) * characters.itemsize
    starts = np.concatenate([[0], stops + characters.itemsize])
    ends = np.concatenate([stops, [len(content)]])
    raw = [content[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    if not raw[-1]:
        raw.pop()  # what follows the end of the last line
    return _Lines(raw=raw, encoding=encoding, end="\r" if by_return else "\n")


def _ends_by_return(characters: npt.NDArray[Any], feed: Any, back: Any) -> bool:
    """Return whether carriage returns that no line feed follows end the first line."""
    returns = np.flatnonzero(characters == back)
    feeds = np.flatnonzero(characters == feed)
    if not len(returns):
        return False
    if len(feeds) and feeds[0] < returns[0]:
        return False
    others = np.flatnonzero(characters[returns[0] :] != back)
    return not len(others) or bool(characters[returns[0] + others[0]] != feed)


def _header(lines: _Lines, written: TextFormat) -> _Header:
    """Return what the header line, or a format without one, says of a file."""
    if not lines.raw:
        raise _MisfitsError("line 1: the file is empty; its first line must name the columns")
    separator, place = written.separator, 0
    if written.header is False:
        separator = separator or ","
        width = len(_values_at(lines, 0, separator, written))
        names = tuple(f"x{column}" for column in range(width))
        return _Header(names=names, separator=separator, width=width, records=0)
    stated = _SEPARATOR_LINE.fullmatch(lines.text(0))
    if stated is not None and len(lines.raw) > 1:
        separator, place = separator or stated[1], 1
    if separator is None:
        separator = _separator(lines.text(0))
    named = [name.strip() for name in _values_at(lines, place, separator, written)]
    width = len(named)
    while named and not named[-1]:
        named.pop()  # unnamed columns at the end, as spreadsheets write them
    if not named:
        raise _MisfitsError(f"line {place + 1}: the header names no column")
    if written.header is None and _is_record(named):
        either = "header=False if it is a record, header=True if it names columns"
        said = f"the first line has numbers; state {either} (--no-header, --header)"
        raise _MisfitsError(f"line {place + 1}: {said}")
    if len({*named}) < len(named):
        twice = ", ".join(sorted({repr(name) for name in named if named.count(name) > 1}))
        said = f"the header must name each column once, got {twice} twice"
        raise _MisfitsError(f"line {place + 1}: {said}")
    return _Header(names=tuple(named), separator=separator, width=width, records=place + 1)


def _separator(header: str) -> str:
    """Return the separator that a header line shows."""
    outside = "".join(header.split('"')[::2])
    separator = max(SEPARATORS, key=outside.count)
    if separator not in outside and " " in outside.strip():
        either = "separator=',' if the header is one name, separator=' ' if blanks separate values"
        raise _MisfitsError(
            f"line 1: no separator in {header[:60]!r}; state {either} (--separator)"
        )
    return separator


def _is_record(names: Sequence[str]) -> bool:
    """Return whether a header line is rather a record.

    It is if a name is a number with decimals, or if all are numbers that do not count columns.
    """
    numbers = [number_of(name) for name in names]
    if any(math.isfinite(number) and not number.is_integer() for number in numbers):
        return True
    if not all(map(math.isfinite, numbers)):
        return False
    return all([*names] != [*map(str, range(start, start + len(names)))] for start in (0, 1))


def _cells(lines: _Lines, header: _Header, written: TextFormat) -> list[list[str]]:
    """Return the cells of each column."""
    cells: list[list[str]] = [[] for _ in header.names]
    count = len(cells)
    dealt: list[str] = []
    problems: list[str] = []
    rows = _spanning if written.multiline else _by_line
    for number, values in rows(lines, header, written):
        problem = values if isinstance(values, str) else header.misfit(values)
        if problem is None:
            dealt += values[:count]
        else:
            problems.append(f"line {number}: {problem}")
        if len(problems) == _MOST_PROBLEMS:
            break
        if len(dealt) >= _AT_ONCE:
            _deal(dealt, cells)
    if problems:
        raise _MisfitsError(*problems)
    _deal(dealt, cells)
    return cells


def _deal(dealt: list[str], cells: list[list[str]]) -> None:
    """Move the values of records to their columns."""
    for place, column in enumerate(cells):
        column += dealt[place :: len(cells)]
    dealt.clear()


def _by_line(
    lines: _Lines, header: _Header, written: TextFormat
) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the number of each line, and its values or what is wrong with it."""
    stray = "\r" if lines.end == "\n" else "\n"
    lines_break = "carriage return" if stray == "\r" else "line feed"
    values_of = _reader(header.separator, written.escape)
    for number, line in enumerate(lines.texts(header.records), header.records + 1):
        if written.skip_empty and not line.strip():
            continue
        if stray in line:
            yield number, f"a line break inside of a record ({lines_break}); delete it, or {_SPANS}"
            continue
        try:
            yield number, values_of(line)
        except csv.Error as error:
            yield number, _described(error, spans=True)


def _spanning(
    lines: _Lines, header: _Header, written: TextFormat
) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the number of each record's first line, and its values or what is wrong with it."""
    texts = (f"{line}\n" for line in lines.texts(header.records))
    reader = csv.reader(texts, delimiter=header.separator, escapechar=written.escape, strict=True)
    while True:
        number = header.records + 1 + reader.line_num
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, _described(error, spans=True)
            return  # where the next record begins is not known
        if values or not written.skip_empty:
            yield number, values or [""]


def _values_at(lines: _Lines, place: int, separator: str, written: TextFormat) -> list[str]:
    """Return the values of one line."""
    line = lines.text(place)
    try:
        return _reader(separator, written.escape)(line)
    except csv.Error as error:
        raise _MisfitsError(f"line {place + 1}: {_described(error, spans=False)}") from error


def _reader(separator: str, escape: str | None) -> Callable[[str], list[str]]:
    """Return the function that gives the values of one line, which raises `csv.Error`."""
    blank_before_mark = re.compile(f'(?:^|{re.escape(separator)}) +"')
    by_blanks = separator == " "

    def quoted(line: str) -> list[str]:
        reader = csv.reader(
            [line],
            delimiter=separator,
            escapechar=escape,
            skipinitialspace=by_blanks or blank_before_mark.search(line) is not None,
            strict=True,
        )
        return next(reader)

    def values(line: str) -> list[str]:
        if by_blanks:
            line = line.strip(" ")
        if '"' not in line and (escape is None or escape not in line):
            found = line.split(separator)
            return [value for value in found if value] if by_blanks else found
        try:
            return quoted(line)
        except csv.Error:
            if escape is None and _BACKSLASHED in line:  # as some programs write a mark in a value
                return quoted(line.replace(_BACKSLASHED, '""'))
            raise

    return values


def _described(error: csv.Error, *, spans: bool) -> str:
    """Describe what is wrong with the quotation marks of a line.

    Parameters
    ----------
    error
        What `csv` says.
    spans
        Whether quoted values may span lines there, if that is stated.
    """
    said = str(error)
    option = f", or {_SPANS}" if spans else ""
    if "unexpected end of data" in said:
        return f"a quotation mark opens and does not close; delete it, or double it{option}"
    if "expected after" in said:
        return "text follows a closing quotation mark; double a mark inside of a quoted value"
    if "new-line" in said:
        return f"a line break outside of quotation marks; delete it{option}"
    return said


def _array(cells: list[str]) -> npt.NDArray[Any]:
    """Return a column of cells, each as it is."""
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return column
