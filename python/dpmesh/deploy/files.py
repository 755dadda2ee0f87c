"""SQLite files of one party: only its owner reads them, and one process holds them at a time.

Among them are marks, outside of a folder, of what it promised and released last. A folder that was
restored from an older copy on the same machine differs from its mark. The mark also holds what must
not be restored with a folder: the number with which a node asks the others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_bytes
from threading import RLock
from typing import Any, NamedTuple

from dpmesh._validate import fail
from dpmesh.deploy.wire import Sent

DISK = OSError, sqlite3.Error
"""What a disk that is full, damaged or read-only raises."""
_TABLES = """
create table if not exists marks (
    contract blob primary key, plan text, records text, seeded integer,
    incarnation integer, round integer, exchange integer
);
create table if not exists fresh (contract blob primary key, number blob);
create table if not exists left (contract blob primary key);
"""


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


class Joined(NamedTuple):
    """A folder's entry of a contract that it joined: plan, digest of the records, kind of noise."""

    plan: str
    records: str
    seeded: bool


class PrivateFile:
    """Tables in a file, held by this process until they are closed.

    Parameters
    ----------
    path
        The file, which only its owner can read; None to keep them in memory, where they outlive no
        process.
    tables
        Statements that make those which are missing.

    Raises
    ------
    sqlite3.DatabaseError
        If the file is damaged.
    """

    def __init__(self, path: Path | None, tables: str) -> None:
        if path is not None and not path.exists():
            path.touch(0o600)
        self._file, self._lock = connect(path or ":memory:"), RLock()
        ((health,),) = self._file.execute("pragma quick_check(1)").fetchall()
        if health != "ok":
            self._file.close()
            raise sqlite3.DatabaseError(f"database disk image is malformed: {health}")
        self._file.executescript(f"begin; {tables} commit;")

    def close(self) -> None:
        """Let another process open it."""
        self._file.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes of the block, on disk before it ends, or none of them."""
        with self._lock, self._file:
            self._file.execute("begin immediate")
            yield

    def _read(self, query: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._file.execute(query, values).fetchall()

    def change(self, change: str, *values: Any) -> None:
        """Make a change in a transaction of its own."""
        with self.transaction():
            self._file.execute(change, values)


class Marks(PrivateFile):
    """The marks of one folder.

    Parameters
    ----------
    path
        The file; None for memory.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, _TABLES)

    def all(self) -> dict[bytes, tuple[Joined, Sent]]:
        """Return what was joined, and what was released last, by the contracts' hashes."""
        rows = self._read("select * from marks")
        return {row[0]: (Joined(*row[1:4]), Sent.of(*row[4:])) for row in rows}

    def put(self, contract: bytes, joined: Joined, last: Sent) -> None:
        """Mark a contract that the folder has."""
        values = contract, *joined, last.incarnation, *last.at
        self.change("insert or replace into marks values (?, ?, ?, ?, ?, ?, ?)", *values)

    def move(self, contract: bytes, last: Sent) -> None:
        """Mark what was released last."""
        change = "update marks set incarnation = ?, round = ?, exchange = ? where contract = ?"
        self.change(change, last.incarnation, *last.at, contract)

    def leave(self, contract: bytes) -> None:
        """Mark a contract as left, before the folder is changed."""
        self.change("insert or ignore into left values (?)", contract)

    def forget(self, contract: bytes) -> None:
        """Erase the mark of a contract that was never signed."""
        with self.transaction():
            for table in ("marks", "fresh"):
                self._file.execute(f"delete from {table} where contract = ?", (contract,))

    def left(self) -> set[bytes]:
        """Return the contracts that were left."""
        return {contract for (contract,) in self._read("select contract from left")}

    def fresh(self, contract: bytes) -> bytes:
        """Return the number with which a node asks others, the same until it is confirmed."""
        self.change("insert or ignore into fresh values (?, ?)", contract, token_bytes(16))
        ((number,),) = self._read("select number from fresh where contract = ?", contract)
        return bytes(number)

    def confirmed(self, contract: bytes) -> None:
        """Erase the number of `fresh`, so that the next start asks with a new one."""
        self.change("delete from fresh where contract = ?", contract)
