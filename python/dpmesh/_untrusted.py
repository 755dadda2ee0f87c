"""Limits on files that another party may have written, and short errors about them."""

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
"""Most characters of a value in an error."""

LONGEST_TEXT = 1000
"""Most characters of the whole description of a value in an error."""

LARGEST_TEXT = 2**26
"""Most bytes of a text file, 64 MiB; a contract of 65,535 parties is smaller."""

MOST_DEPTH = 64
"""Most levels of nested tables."""

_TOKEN = re.compile(r"""\"{3}|'{3}|["'#.]|[\w-]+|[ \t]+|.""", re.DOTALL)
"""What a dotted key is made of: a quotation mark opens a string, a word is one of its parts."""

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
"""By the mark that opens a string of TOML: what may end it, and escapes, which do not."""


def shortened(value: object, most: int = LONGEST_VALUE) -> str:
    """Return a value as text; of a long one, both ends in at most `most` characters."""
    text = str(value)
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def check_size(path: str | os.PathLike[str]) -> None:
    """Refuse a text file of more than `LARGEST_TEXT` bytes before it is read.

    Raises
    ------
    ValueError
        If it is larger than 64 MiB.
    OSError
        If the file does not exist.
    """
    size = Path(path).stat().st_size
    if size > LARGEST_TEXT:
        raise ValueError(f"{os.fspath(path)}: wanted at most {LARGEST_TEXT} bytes, got {size}")


def check_depth(text: str) -> None:
    """Refuse TOML whose dotted keys nest tables deeper than any file needs.

    The time and the memory that a parser needs for them grow with the square of their number.

    Raises
    ------
    ValueError
        If a key has more than 64 parts.
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
                return  # no TOML: the parser gets no further than here
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
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _end_of_string(text: str, start: int, mark: str) -> int | None:
    """Return where a string of TOML ends that a mark opened; None if it does not."""
    for found in _STRINGS[mark].finditer(text, start):
        if found[0] == "\n":
            return None
        if not found[0].startswith("\\"):
            return found.end()
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
    """Convert errors of the block to a `ValueError` that names the file and what is expected.

    They include the errors of a deeply nested file, which exhausts the stack, and of an array with
    a false header, which exhausts the memory.
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
    """Refuse an npz file whose arrays are much larger than the file and would fill the memory.

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
