"""Folders for results, looked at before the work that the results cost."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile


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
