"""Reading of text files of records, such as CSV: `parse` cuts a file into lines and reads each.

Encoding, separator and line ends follow from the options (`TextFormat`) and from the header line,
never from records. Each line is decoded and split by itself. So the bytes of one record cannot
decide how another record is read, unless the option `multiline` is set.

The steps of `parse`: `_encoding`, `_lines`, `_header`, `_cells`. Each raises a `_MisfitsError`,
which lists faulty lines, numbered from 1.
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
from typing import Literal

import numpy as np

from dpmesh._validate import fail, one_of
from dpmesh.tables.cells import UNDECODED, Cells, number_of, with_decimal_comma
from dpmesh.tables.table import Table

SEPARATORS = (",", ";", "\t", "|")
"""Separators that are recognized in a header line."""

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
"""Encodings by byte-order mark. UTF-32 comes before UTF-16, whose mark is a prefix of its mark."""

_UNITS = {"utf-16-le": "<u2", "utf-16-be": ">u2", "utf-32-le": "<u4", "utf-32-be": ">u4"}
"""Numpy's types of the code units of encodings with several bytes each."""

_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?')
"""A first line such as ``sep=;``, with which a spreadsheet states the separator."""

_AT_ONCE = 2**18
"""Number of cells that are distributed to columns at once."""

_MOST_SHARED = 2**16
"""Number of distinct texts of a column beyond which equal texts are sought anew."""

_MOST_PROBLEMS = 5
"""Largest number of faulty lines that one error describes."""

_BACKSLASHED = '\\"'
"""A quotation mark that is escaped by a backslash inside of a quoted value."""

_SPANS = "state multiline=True if quoted values may span lines (--multiline)"


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """Format of a text file of records: public settings that no record decides on.

    Parameters
    ----------
    separator
        Character between two values. A blank stands for one or more blanks. Default: the most
        frequent of comma, semicolon, tab and bar in the header line.
    decimal
        Decimal mark of numbers. Default: a comma if a semicolon separates values, else a point.
        With decimal commas, ``1.5`` is a number, too, but ``1.234`` is refused, since the point may
        group digits. If the comma is a default, ``1,234`` is also refused.
    encoding
        Text encoding of Python, such as ``latin-1``. Default: by the byte-order mark; without a
        mark UTF-8, or cp1252 if the header line is not UTF-8, or UTF-16 if it has zero bytes. With
        ``header=False``, name the byte order, such as ``utf-16-le``.
    header
        True if the first line names the columns. False for a file without a header: the columns are
        named x0, x1, and so on, and the default separator and encoding are comma and UTF-8.
        Default: True, but a first line of numbers is refused.
    escape
        Escape character before a quotation mark, such as a backslash. Default: none. A quotation
        mark inside of a quoted value is then doubled, or follows a backslash.
    multiline
        True if quoted values may span lines. By default, a quotation mark must close in the line in
        which it opens. Set it only for files that a program wrote: quotation marks then decide
        where a record ends, so that a stray mark, or an `escape` at the end of a line, could join
        two records. Most stray marks are refused.
    skip_empty
        True to leave out empty lines. By default, an empty line is a record if the table has one
        column, and is refused if the table has several.
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
            if mark is None:
                continue
            if len(mark) != 1 or mark in '\r\n"':
                fail(name, "one character, such as ';'", repr(mark))
        one_of("decimal", self.decimal, (".", ",", None))
        if self.encoding is not None and not _is_known(self.encoding):
            fail("encoding", "one that Python knows, such as latin-1", repr(self.encoding))
        if self.encoding is None or self.header is not False:
            return
        if _needs_mark(self.encoding):
            little = f"{codecs.lookup(self.encoding).name}-le"
            expected = f"its byte order without a header, such as {little}"
            fail("encoding", f"{expected}: else the first record would state it", self.encoding)


def _is_known(encoding: str) -> bool:
    """Return True for UTF-16, UTF-32, and text encodings with a line feed of one byte."""
    try:
        name = codecs.lookup(encoding).name.removesuffix("-sig")
        if name.startswith(("utf-16", "utf-32")):
            return True
        return len("\n".encode(name)) == 1
    except (LookupError, ValueError):
        return False


def _needs_mark(encoding: str) -> bool:
    """Return True for an encoding whose byte order is stated by a byte-order mark."""
    return codecs.lookup(encoding).name in ("utf-16", "utf-32")


def parse(content: bytes, text_format: TextFormat, path: str) -> Table:
    """Parse a text file into a table of texts.

    Bytes that cannot be decoded become U+FFFD, with a warning, so that their value cannot be read.
    Column names that are numbers are accepted with a warning, unless all names are numbers.

    Parameters
    ----------
    content
        The bytes of the file.
    text_format
        Format of the file.
    path
        Path of the file, for messages.

    Raises
    ------
    ValueError
        If the header does not name each column once, or lines do not fit the header. The message
        names the file and the lines.
    """
    try:
        encoding, content = _encoding(content, text_format)
        lines = _lines(content, encoding, has_header=text_format.header is not False)
        header = _header(lines, text_format)
        columns = _cells(lines, header, text_format)
    except _MisfitsError as error:
        raise ValueError("\n".join(f"{path}, {problem}" for problem in error.problems)) from error
    numbers = [name for name in header.names if math.isfinite(number_of(name))]
    if text_format.header is None and 0 < len(numbers) < len(header.names):
        problem = f"{path}, line 1: the header names columns by numbers: {', '.join(numbers[:3])}"
        choices = "header=False if it is a record, header=True if it names columns"
        remedy = f"state {choices} (--no-header, --header)"
        warnings.warn(f"{problem}; {remedy}", UserWarning, stacklevel=4)
    if any(UNDECODED in cell for column in columns for cell in column):
        remedy = "state encoding=, such as latin-1 (--encoding)"
        problem = f"{path} has bytes that are not {encoding}: such values cannot be read; {remedy}"
        warnings.warn(problem, UserWarning, stacklevel=4)
    decimal = text_format.decimal
    default_comma = decimal is None and header.separator == ";"
    if decimal == "," or default_comma:
        mark = partial(with_decimal_comma, stated=decimal is not None)
        columns = [[*map(mark, column)] for column in columns]
    return Table(header.names, tuple(map(_array, columns)))


class _MisfitsError(ValueError):
    """Error of lines that do not fit the header or the format.

    Parameters
    ----------
    problems
        One sentence for each faulty line, which begins with the number of the line.
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
        The bytes of each line, without the line end.
    encoding
        Encoding; each line is decoded by itself.
    end
        The character that ends a line.
    """

    raw: list[bytes]
    encoding: str
    end: Literal["\n", "\r"]

    def text(self, place: int) -> str:
        """Return the text of the line at this index, without the line end."""
        line = self.raw[place].decode(self.encoding, errors="replace")
        if self.end == "\n":
            return line.rstrip("\r")
        return line

    def texts(self, start: int) -> Iterator[str]:
        """Return an iterator over the texts of the lines from index `start` on."""
        return map(self.text, range(start, len(self.raw)))


@dataclass(frozen=True, kw_only=True)
class _Header:
    """Columns and separator of a file, from its header line or from the options.

    Parameters
    ----------
    names
        Names of the columns.
    separator
        Character between two values.
    width
        Largest number of values of a line. Values beyond the named columns must be empty.
    records
        Index of the line of the first record.
    """

    names: tuple[str, ...]
    separator: str
    width: int
    records: int

    def misfit(self, values: Sequence[str]) -> str | None:
        """Describe the problem of a record with these values; return None if they fit."""
        count = len(self.names)
        if len(values) == count:
            return None
        if values in ([], [""]):
            return "the line is empty; delete it, or state skip_empty=True (--skip-empty-lines)"
        if not count < len(values) <= self.width:
            noun = "value" if count == 1 else "values"
            expected = f"{count} {noun}, as in the header"
            return f"wanted {expected}, got {len(values)}: {self.separator.join(values)[:60]!r}"
        stray = next((value for value in values[count:] if value.strip()), None)
        if stray is None:
            return None
        return f"{stray[:60]!r} is in a column without a name; name the column in the header"


def _encoding(content: bytes, text_format: TextFormat) -> tuple[str, bytes]:
    """Return the encoding, and the content without its byte-order mark.

    The encoding follows from the options and the header line; without a header, from the options
    alone.
    """
    if text_format.encoding is None and text_format.header is False:
        return "utf-8", content.removeprefix(codecs.BOM_UTF8)
    stated = None
    if text_format.encoding is not None:
        stated = codecs.lookup(text_format.encoding).name.removesuffix("-sig")
    for mark, encoding in _MARKS.items():
        family = encoding[:-3]  # without the byte order
        if stated in (None, encoding, family) and content.startswith(mark):
            return encoding, content[len(mark) :]
    if stated in ("utf-16", "utf-32"):
        return f"{stated}-le", content
    if stated is not None:
        return stated, content
    return _encoding_of_header(content), content


def _encoding_of_header(content: bytes) -> str:
    """Guess the encoding from the bytes of the first line, without a byte-order mark."""
    header = re.split(b"[\r\n]", content, maxsplit=1)[0]
    if header.startswith(b"\0"):
        return "utf-16-be"
    if b"\0" in header:
        return "utf-16-le"
    try:
        header.decode("utf-8")
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def _lines(content: bytes, encoding: str, *, has_header: bool) -> _Lines:
    """Cut a file into lines by its bytes.

    A line ends with a line feed, which may follow carriage returns. If the header line ends with a
    carriage return alone, all lines do.
    """
    dtype = np.dtype(_UNITS.get(encoding, "u1"))
    if len(content) % dtype.itemsize:
        raise _MisfitsError(f"line 1: the file ends within a character ({encoding})")
    characters = np.frombuffer(content, dtype)
    line_feed = np.frombuffer("\n".encode(encoding), dtype)[0]
    carriage_return = np.frombuffer("\r".encode(encoding), dtype)[0]
    end: Literal["\n", "\r"] = "\n"
    end_character = line_feed
    if has_header and _ends_by_return(characters, line_feed, carriage_return):
        end = "\r"
        end_character = carriage_return
    stops = np.flatnonzero(characters == end_character) * dtype.itemsize
    starts = np.concatenate([[0], stops + dtype.itemsize])
    stops = np.concatenate([stops, [len(content)]])
    raw = [content[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    if not raw[-1]:
        raw.pop()  # nothing follows the end of the last line
    return _Lines(raw=raw, encoding=encoding, end=end)


def _ends_by_return(characters: Cells, line_feed: object, carriage_return: object) -> bool:
    """Return True if the first line ends with carriage returns without a line feed."""
    returns = np.flatnonzero(characters == carriage_return)
    feeds = np.flatnonzero(characters == line_feed)
    if not len(returns):
        return False
    first_return = returns[0]
    if len(feeds) and feeds[0] < first_return:
        return False
    following = characters[first_return:]
    after_returns = following[following != carriage_return]
    return not len(after_returns) or bool(after_returns[0] != line_feed)


def _header(lines: _Lines, text_format: TextFormat) -> _Header:
    """Return columns and separator, from the header line or, without a header, from the options."""
    if not lines.raw:
        raise _MisfitsError("line 1: the file is empty; its first line must name the columns")
    if text_format.header is False:
        return _numbered_header(lines, text_format)
    separator = text_format.separator
    place = 0
    separator_line = _SEPARATOR_LINE.fullmatch(lines.text(0))
    if separator_line is not None and len(lines.raw) > 1:
        separator = separator or separator_line[1]
        place = 1
    if separator is None:
        separator = _separator(lines.text(0))
    names = [name.strip() for name in _values_at(lines, place, separator, text_format)]
    width = len(names)
    while names and not names[-1]:
        names.pop()  # spreadsheets may write unnamed columns at the end
    problem = _problem_of_names(names, text_format)
    if problem is not None:
        raise _MisfitsError(f"line {place + 1}: {problem}")
    return _Header(names=tuple(names), separator=separator, width=width, records=place + 1)


def _numbered_header(lines: _Lines, text_format: TextFormat) -> _Header:
    """Return the header for a file without a header line: the columns are x0, x1, and so on."""
    separator = text_format.separator or ","
    width = len(_values_at(lines, 0, separator, text_format))
    names = tuple(f"x{column}" for column in range(width))
    return _Header(names=names, separator=separator, width=width, records=0)


def _problem_of_names(names: Sequence[str], text_format: TextFormat) -> str | None:
    """Describe the problem of a header with these names; return None if it has none."""
    if not names:
        return "the header names no column"
    if text_format.header is None and _is_record(names):
        choices = "header=False if it is a record, header=True if it names columns"
        return f"the first line has numbers; state {choices} (--no-header, --header)"
    repeated = sorted({repr(name) for name in names if names.count(name) > 1})
    if repeated:
        return f"the header must name each column once, got {', '.join(repeated)} twice"
    return None


def _separator(header: str) -> str:
    """Return the most frequent separator outside of quotation marks in a header line."""
    without_quoted_values = "".join(header.split('"')[::2])
    separator = max(SEPARATORS, key=without_quoted_values.count)
    if separator in without_quoted_values:
        return separator
    if " " in without_quoted_values.strip():
        choices = "separator=',' if the header is one name, separator=' ' if blanks separate values"
        problem = f"no separator in {header[:60]!r}; state {choices} (--separator)"
        raise _MisfitsError(f"line 1: {problem}")
    return separator


def _is_record(names: Sequence[str]) -> bool:
    """Return True if the first line is probably a record instead of a header.

    A line is a record if one of its values is a number with decimals, or if all are numbers, except
    for names that count the columns: 0, 1, 2, .. or 1, 2, 3, ...
    """
    numbers = [number_of(name) for name in names]
    if any(math.isfinite(number) and not number.is_integer() for number in numbers):
        return True
    if not all(map(math.isfinite, numbers)):
        return False
    from_zero = [str(column) for column in range(len(names))]
    from_one = [str(column) for column in range(1, len(names) + 1)]
    return [*names] not in (from_zero, from_one)


def _cells(lines: _Lines, header: _Header, text_format: TextFormat) -> list[list[str]]:
    """Return the cells of each column, as texts."""
    columns: list[list[str]] = [[] for _ in header.names]
    distinct_texts: list[dict[str, str]] = [{} for _ in header.names]
    count = len(columns)
    pending: list[str] = []  # values of whole records that are not in `columns` yet
    problems: list[str] = []
    read_records = _records_across_lines if text_format.multiline else _records_by_line
    for line, values in read_records(lines, header, text_format):
        problem = values if isinstance(values, str) else header.misfit(values)
        if problem is None:
            pending += values[:count]
        else:
            problems.append(f"line {line}: {problem}")
        if len(problems) == _MOST_PROBLEMS:
            break
        if len(pending) >= _AT_ONCE:
            _distribute(pending, columns, distinct_texts)
    if problems:
        raise _MisfitsError(*problems)
    _distribute(pending, columns, distinct_texts)
    return columns


def _distribute(
    values: list[str], columns: list[list[str]], distinct_texts: list[dict[str, str]]
) -> None:
    """Move the values of records, record by record, to the ends of their columns.

    Equal texts of a column become one object, which takes less memory.

    Parameters
    ----------
    values
        The values, which are removed from this list.
    columns
        The cells of each column.
    distinct_texts
        Texts of each column that were moved before, as keys and as values.
    """
    for place, (column, texts) in enumerate(zip(columns, distinct_texts, strict=True)):
        cells = values[place :: len(columns)]
        column += map(texts.setdefault, cells, cells)
        if len(texts) > _MOST_SHARED:
            texts.clear()
    values.clear()


def _records_by_line(
    lines: _Lines, header: _Header, text_format: TextFormat
) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the number of each line, and its values or a description of its problem."""
    stray = "\r" if lines.end == "\n" else "\n"
    lines_break = "carriage return" if stray == "\r" else "line feed"
    values_of = _reader(header.separator, text_format.escape)
    for number, line in enumerate(lines.texts(header.records), header.records + 1):
        if text_format.skip_empty and not line.strip():
            continue
        if stray in line:
            yield number, f"a line break inside of a record ({lines_break}); delete it, or {_SPANS}"
            continue
        try:
            yield number, values_of(line)
        except csv.Error as error:
            yield number, _described(error, spans=True)


def _records_across_lines(
    lines: _Lines, header: _Header, text_format: TextFormat
) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the number of each record's first line, and its values or a description of its problem.

    Quoted values may span lines.
    """
    texts = (f"{line}\n" for line in lines.texts(header.records))
    reader = csv.reader(
        texts, delimiter=header.separator, escapechar=text_format.escape, strict=True
    )
    while True:
        number = header.records + 1 + reader.line_num
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, _described(error, spans=True)
            return  # the begin of the next record is unknown
        if values or not text_format.skip_empty:
            yield number, values or [""]


def _values_at(lines: _Lines, place: int, separator: str, text_format: TextFormat) -> list[str]:
    """Return the values of the line at index `place`."""
    line = lines.text(place)
    try:
        return _reader(separator, text_format.escape)(line)
    except csv.Error as error:
        raise _MisfitsError(f"line {place + 1}: {_described(error, spans=False)}") from error


def _reader(separator: str, escape: str | None) -> Callable[[str], list[str]]:
    """Return a function that splits a line into values, and raises `csv.Error`."""
    blank_before_mark = re.compile(f'(?:^|{re.escape(separator)}) +"')
    by_blanks = separator == " "

    def quoted(line: str) -> list[str]:
        """Split a line with quotation marks or escape characters."""
        reader = csv.reader(
            [line],
            delimiter=separator,
            escapechar=escape,
            skipinitialspace=by_blanks or blank_before_mark.search(line) is not None,
            strict=True,
        )
        return next(reader)

    def values(line: str) -> list[str]:
        """Split a line, without the slower `csv` module if possible."""
        if by_blanks:
            line = line.strip(" ")
        if '"' not in line and (escape is None or escape not in line):
            parts = line.split(separator)
            if by_blanks:
                return [part for part in parts if part]
            return parts
        try:
            return quoted(line)
        except csv.Error:
            if escape is None and _BACKSLASHED in line:  # some programs escape marks this way
                return quoted(line.replace(_BACKSLASHED, '""'))
            raise

    return values


def _described(error: csv.Error, *, spans: bool) -> str:
    """Describe the problem with the quotation marks of a line.

    Parameters
    ----------
    error
        The error of the module `csv`.
    spans
        True to mention the option `multiline` as a remedy.
    """
    message = str(error)
    option = f", or {_SPANS}" if spans else ""
    if "unexpected end of data" in message:
        return f"a quotation mark opens and does not close; delete it, or double it{option}"
    if "expected after" in message:
        return "text follows a closing quotation mark; double a mark inside of a quoted value"
    if "new-line" in message:
        return f"a line break outside of quotation marks; delete it{option}"
    return message


def _array(cells: list[str]) -> Cells:
    """Convert texts to an array of objects, shape (records,)."""
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return column
