"""Reading of files, also compressed ones, and atomic writing of files."""

from __future__ import annotations

import bz2
import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from glob import escape
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile
from typing import IO, Any, TypeAlias

from dpmesh._untrusted import check_depth, check_size, shortened

JsonObject: TypeAlias = dict[str, Any]
"""Content of a JSON or TOML file: plain values by key."""


def writable_folder(folder: Path) -> Path:
    """Return the folder, created by `durable_folder` if it does not exist.

    Raises
    ------
    OSError
        If no file can be written into it.
    """
    try:
        durable_folder(folder)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise OSError(
            error.errno, f"cannot write into this folder: {reason}", str(folder)
        ) from error
    return folder


def durable_folder(folder: Path) -> Path:
    """Return the folder; create it and its missing parents, so that a power loss keeps them.

    Raises
    ------
    OSError
        If it cannot be created.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)
    return folder


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file, decompressed if its name ends in ``.gz`` or ``.bz2``."""
    content = Path(path).read_bytes()
    suffix = Path(path).suffix.lower()
    if suffix == ".gz":
        return gzip.decompress(content)
    if suffix == ".bz2":
        return bz2.decompress(content)
    return content


def read_toml(path: str | os.PathLike[str]) -> tuple[JsonObject, str]:
    """Return the content of a TOML file, and its text.

    Raises
    ------
    ValueError
        If the file is not TOML in UTF-8; the message names the file and the line.
    OSError
        If the file cannot be read.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    check_size(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors write a byte order mark
        check_depth(text)
        return tomllib.loads(text), text
    except (ValueError, RecursionError) as error:
        problem = f"not a TOML file in UTF-8: {shortened(error)}"
        raise ValueError(f"{os.fspath(path)}: {problem}") from error


@contextmanager
def replacing(path: str | Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a file that atomically replaces `path` on disk when the block ends.

    Several processes may write the same file at once: each writes a separate temporary file, and
    the last to finish replaces the file. A finishing process also removes temporary files of killed
    processes. Missing parent folders are created. A device or a pipe is written to directly.

    Parameters
    ----------
    path
        Path of the file; if it is a link, its target is replaced.
    mode
        Permissions of the new file, restricted by the process's umask.

    Raises
    ------
    OSError
        If the file cannot be written; the error names `path`, and the old file is unchanged.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # such as a device: cannot be replaced
            with path.open("wb") as file:
                yield file
        else:
            with _temporary_file(path.resolve(), mode) as file:
                yield file
    except OSError as error:
        if isinstance(error.__cause__, OSError):  # an error about another file, from the block
            raise
        reassurance = ""
        if path.is_file():
            reassurance = " (the one from before is untouched)"
        message = f"cannot write this file: {error.strerror or error}{reassurance}"
        raise OSError(error.errno, message, str(path)) from error


def replace_text(path: str | Path, text: str) -> None:
    """Replace a file's content by a text in UTF-8, atomically: see `replacing`."""
    with replacing(path) as file:
        file.write(text.encode())


@contextmanager
def _temporary_file(path: Path, mode: int) -> Iterator[IO[bytes]]:
    """Open a new file in the folder of `path`, which is synced and replaces `path` at the end."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{token_hex(4)}.new")
    try:
        # Readable, too: else numpy bypasses Python's file object, and its errors have no reason.
        with open(new, "x+b", opener=partial(os.open, mode=mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _rename(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    for leftover in path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * 8}.new"):
        with suppress(OSError):
            leftover.unlink()
    sync(path.parent)


def _rename(new: Path, path: Path) -> None:
    """Rename `new` to `path`; do nothing if another process removed `new` as a leftover."""
    try:
        new.replace(path)
    except FileNotFoundError:
        if not path.exists():
            raise


def sync(path: Path) -> None:
    """Flush a file or a folder's list of names to disk, on POSIX systems."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
