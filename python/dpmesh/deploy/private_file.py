"""SQLite files of one party: only its owner reads them, and one process holds them at a time."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from dpmesh._validate import fail

DISK = OSError, sqlite3.Error
"""What a disk that is full, damaged or read-only raises."""


def create(path: str | Path, tables: str) -> sqlite3.Connection:
    """Make a file with these tables.

    Raises
    ------
    FileExistsError
        If it exists.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    connection = connect(path)
    with connection:
        connection.executescript(tables)
    return connection


def connect(path: str | Path) -> sqlite3.Connection:
    """Open a file and keep it until the connection is closed; a commit is then on the disk.

    Raises
    ------
    ValueError
        If another process holds it.
    """
    connection = sqlite3.connect(
        path, timeout=0, isolation_level="IMMEDIATE", check_same_thread=False
    )
    try:
        connection.execute("pragma locking_mode = exclusive")
        connection.execute("pragma synchronous = full")
        connection.execute("pragma secure_delete = on")
        connection.execute("pragma journal_size_limit = 0")  # or it keeps what was erased
        connection.execute("begin exclusive").connection.commit()
    except sqlite3.Error as error:
        connection.close()
        if "locked" not in str(error):
            raise
        fail("path", "a file that no other process uses; end that one first", f"{path}: {error}")
    return connection
