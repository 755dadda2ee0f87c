"""Limits on files that another party may have written, and short errors about such files.

A hostile file must not exhaust memory, stack or time when it is read.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

LONGEST_VALUE = 200
"""Largest number of characters of a value in an error."""

LONGEST_TEXT = 1000
"""Largest number of characters of the whole description of a value in an error."""

LARGEST_TEXT = 2**26
"""Largest size of a text file in bytes, 64 MiB; a contract of 65,535 parties is smaller."""

MOST_DEPTH = 64
"""Largest number of parts of a dotted TOML key, which are levels of nested tables."""

_TOKEN = re.compile(r"""\"{3}|'{3}|["'#.]|[\w-]+|[ \t]+|.""", re.DOTALL)
"""Tokens of TOML: a quotation mark, ``#``, ``.``, a word, white space, or another character."""

_WORD = re.compile(r"[\w-]+")
_IN_BASIC_STRING = re.compile(r"""\\.|"|\n""", re.DOTALL)
_IN_LONG_BASIC_STRING = re.compile(r"""\\.|\"{3,5}""", re.DOTALL)
_IN_LITERAL_STRING = re.compile(r"""'|\n""")
_IN_LONG_LITERAL_STRING = re.compile(r"""'{3,5}""")
_STRINGS = {
    '"': _IN_BASIC_STRING,
    "'": _IN_LITERAL_STRING,
    '"""': _IN_LONG_BASIC_STRING,
    "'''": _IN_LONG_LITERAL_STRING,
}
"""Patterns of the end of a TOML string (and of escapes), by the mark that opens the string."""


def shortened(value: object, most: int = LONGEST_VALUE) -> str:
    """Return a value as text of at most `most` characters; a long text loses its middle."""
    text = str(value)
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def check_size(path: str | os.PathLike[str]) -> None:
    """Check the size of a text file before it is read.

    Raises
    ------
    ValueError
        If the file is larger than 64 MiB (`LARGEST_TEXT`).
    OSError
        If the file does not exist.
    """
    size = Path(path).stat().st_size
    if size > LARGEST_TEXT:
        raise ValueError(f"{os.fspath(path)}: wanted at most {LARGEST_TEXT} bytes, got {size}")


def check_depth(text: str) -> None:
    """Check that the dotted keys of a TOML text have few parts, before the text is parsed.

    A parser's time and memory grow with the square of the number of parts of a key.

    Raises
    ------
    ValueError
        If a key has more than 64 parts (`MOST_DEPTH`).
    """
    if all(line.count(".") < MOST_DEPTH for line in text.split("\n")):
        return  # a key is in one line
    parts = 0
    after_dot = False
    position = 0
    while (token := _TOKEN.match(text, position)) is not None:
        mark = token[0]
        position = token.end()
        if mark == "#":
            position = _end_of_line(text, position)
        elif mark in _STRINGS:
            end = _end_of_string(text, position, mark)
            if end is None:
                return  # not TOML: the parser stops here
            position = end
        if mark == ".":
            after_dot = True
        elif mark in _STRINGS or _WORD.fullmatch(mark):
            parts = parts + 1 if after_dot else 1
            after_dot = False
        elif mark.strip(" \t"):
            parts = 0
            after_dot = False
        if parts > MOST_DEPTH:
            raise ValueError(f"a key of more than {MOST_DEPTH} parts")


def _end_of_line(text: str, start: int) -> int:
    """Return the position of the next line feed from `start` on, or the length of the text."""
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _end_of_string(text: str, start: int, mark: str) -> int | None:
    """Return the position after a TOML string that begins before `start`; None if it has no end.

    `mark` is the quotation mark that opens the string.
    """
    for match in _STRINGS[mark].finditer(text, start):
        if match[0] == "\n":
            return None
        is_escape = match[0].startswith("\\")
        if not is_escape:
            return match.end()
    return None


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the content of a JSON file.

    Raises
    ------
    ValueError
        If it is not JSON in UTF-8, too large, or too deep; the message names the file.
    OSError
        If it cannot be read.
    """
    check_size(path)
    with naming(path, "a JSON file in UTF-8"):
        return json.loads(Path(path).read_text(encoding="utf-8"))


@contextmanager
def naming(path: str | os.PathLike[str], expected: str) -> Iterator[None]:
    """Convert errors of the block to a `ValueError` that names the file and its expected format.

    These include errors of the stack (a deeply nested file) and of memory (an array with a false
    header).
    """
    try:
        yield
    except RecursionError as error:
        raise ValueError(f"{os.fspath(path)}: wanted {expected}, got one too deep") from error
    except MemoryError as error:
        raise ValueError(f"{os.fspath(path)}: wanted {expected}, got one too large") from error
    except ValueError as error:
        got = shortened(error)
        raise ValueError(f"{os.fspath(path)}: wanted {expected}, got another: {got}") from error


def check_archive(file: IO[bytes]) -> None:
    """Check that the arrays of an npz file are not much larger than the file.

    Raises
    ------
    ValueError
        If an array of more than 1 MiB is compressed by more than a factor of 10.
    zipfile.BadZipFile
        If it is not an archive.
    """
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.file_size > max(10 * member.compress_size, 2**20):
                got = f"{member.file_size} bytes in {member.compress_size}"
                raise ValueError(f"weights: wanted arrays of the file's size, got {got}")
