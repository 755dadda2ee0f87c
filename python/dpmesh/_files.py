"""Files of results: whole or not there, in folders that are looked at before the work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from glob import escape
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile
from typing import IO


def writable_folder(folder: Path) -> Path:
    """Return the folder, which is made if it is not there.

    Raises
    ------
    OSError
        If no file can be written into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise OSError(
            error.errno, f"cannot write into this folder: {reason}", str(folder)
        ) from error
    return folder


@contextmanager
def replacing(path: str | Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of `path` when the block ends, in one step, on the disk.

    Several may write the same file at a time: each has a temporary file of its own, and one of
    them stays. What killed ones left goes with the next that is done. Folders on the way are made;
    a device or a pipe is written to as it is.

    Parameters
    ----------
    path
        Of the file; where it is a link, what that leads to is replaced.
    mode
        Permissions of the new file, less the process's umask.

    Raises
    ------
    OSError
        If it cannot be written, which names `path`; what was there is then as it was.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # nothing that can be replaced
            with path.open("wb") as file:
                yield file
        else:
            with _beside(path.resolve(), mode) as file:
                yield file
    except OSError as error:
        if isinstance(error.__cause__, OSError):  # about a file that is opened within the block
            raise
        kept = " (the one from before is untouched)" if path.is_file() else ""
        message = f"cannot write this file: {error.strerror or error}{kept}"
        raise OSError(error.errno, message, str(path)) from error


def replace_text(path: str | Path, text: str) -> None:
    """Write a text, in UTF-8, in the place of what is there, as `replacing` does."""
    with replacing(path) as file:
        file.write(text.encode())


@contextmanager
def _beside(path: Path, mode: int) -> Iterator[IO[bytes]]:
    """Open a new file beside `path`, which replaces it at the end, forced onto the disk."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{token_hex(4)}.new")
    try:
        # to be read, too: numpy writes past a file that is not, and cannot tell why it fails
        with open(new, "x+b", opener=partial(os.open, mode=mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _put(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    for left in path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * 8}.new"):
        with suppress(OSError):
            left.unlink()
    _sync_folder(path.parent)


def _put(new: Path, path: Path) -> None:
    """Give `new` the name `path`, unless another writer, who was done first, took it for left."""
    try:
        new.replace(path)
    except FileNotFoundError:
        if not path.exists():
            raise


def _sync_folder(folder: Path) -> None:
    """Force the new name onto the disk, where folders can be opened."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
