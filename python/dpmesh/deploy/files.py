"""SQLite files of one party, which only its owner can read and one process at a time can open.

There are two: the database in the party's folder, and a small file outside of it with marks. A mark
repeats what the folder has charged and released last. A folder that was restored from an older copy
on the same machine differs from its marks, which refuse it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_bytes
from threading import RLock
from typing import Any, NamedTuple

from dpmesh._files import durable_folder
from dpmesh._validate import fail
from dpmesh.deploy.wire import ReleaseIndex

DISK_ERRORS = OSError, sqlite3.Error
"""Errors of a disk that is full, damaged or read-only."""
_TABLES = """
create table if not exists marks (
    contract blob primary key, plan text, records text, seeded integer,
    incarnation integer, round integer, exchange integer
);
create table if not exists fresh (contract blob primary key, number blob);
create table if not exists left (contract blob primary key);
"""


def connect(path: str | Path) -> sqlite3.Connection:
    """Open a database that no other process can open until the connection is closed.

    Once a commit returns, it is on the disk. Erased values are overwritten. Both rest on the
    exclusive mode: SQLite then truncates and syncs the journal at the end of a transaction. In its
    normal mode it would remove the journal's name, and a power loss could bring back the journal,
    and so undo the commit.

    Raises
    ------
    ValueError
        If another process has opened it.
    sqlite3.Error
        If it cannot be opened or read.
    """
    connection = sqlite3.connect(
        path, timeout=0, isolation_level="IMMEDIATE", check_same_thread=False
    )
    try:
        connection.execute("pragma locking_mode = exclusive")
        connection.execute("pragma synchronous = full")
        connection.execute("pragma secure_delete = on")
        connection.execute("pragma journal_size_limit = 0")  # a journal would keep erased values
        connection.execute("begin exclusive").connection.commit()
    except sqlite3.Error as error:
        connection.close()
        if "locked" not in str(error):
            raise
        fail("path", "a file that no other process uses; end that one first", f"{path}: {error}")
    return connection


class JoinedContract(NamedTuple):
    """The terms under which a folder joined a contract.

    Attributes
    ----------
    plan
        The privacy plan that was charged, as JSON.
    records
        Digest of the party's records.
    seeded
        True for a rehearsal, whose noise is NOT private.
    """

    plan: str
    records: str
    seeded: bool


class Mark(NamedTuple):
    """A record of a joined contract outside of the folder, to compare the folder with.

    Attributes
    ----------
    joined
        The terms under which the folder joined the contract.
    last
        Index of the last release under the contract that left the folder.
    """

    joined: JoinedContract
    last: ReleaseIndex


class PrivateFile:
    """A database of one party. All changes are durable when their method returns.

    Parameters
    ----------
    path
        The file, which is made with mode 0600; None for a database in memory.
    tables
        SQL statements that make missing tables.

    Raises
    ------
    ValueError
        If another process has opened the file.
    sqlite3.DatabaseError
        If the file is damaged.
    """

    def __init__(self, path: Path | None, tables: str) -> None:
        if path is not None and not path.exists():
            path.touch(0o600)
        self._file = connect(path or ":memory:")
        self._lock = RLock()
        ((health,),) = self._file.execute("pragma quick_check(1)").fetchall()
        if health != "ok":
            self._file.close()
            raise sqlite3.DatabaseError(f"database disk image is malformed: {health}")
        self._file.executescript(f"begin; {tables} commit;")

    def close(self) -> None:
        """Close the file, so that another process can open it."""
        self._file.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes of the block, on disk before it ends, or none of them."""
        with self._lock, self._file:
            self._file.execute("begin immediate")
            yield

    def _read(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query."""
        with self._lock:
            return self._file.execute(query, values).fetchall()

    def change(self, statement: str, *values: Any) -> None:
        """Execute one statement in a transaction of its own."""
        with self.transaction():
            self._file.execute(statement, values)


class Marks(PrivateFile):
    """The marks of one folder, in a file outside of it that no backup of the folder restores.

    The file holds no secrets but the random numbers of `start_number`.

    Parameters
    ----------
    path
        The file; None for marks in memory, which end with the process.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            durable_folder(path.parent)
        super().__init__(path, _TABLES)

    def by_contract(self) -> dict[bytes, Mark]:
        """Return all marks, by the hashes of their contracts."""
        columns = "contract, plan, records, seeded, incarnation, round, exchange"
        marks: dict[bytes, Mark] = {}
        for contract, plan, records, seeded, *last in self._read(f"select {columns} from marks"):
            joined = JoinedContract(plan, records, seeded)
            marks[contract] = Mark(joined, ReleaseIndex.of(*last))
        return marks

    def write(self, contract: bytes, joined: JoinedContract, last: ReleaseIndex) -> None:
        """Write the mark of a contract that the folder has joined."""
        values = (contract, *joined, last.incarnation, *last.position)
        self.change("insert or replace into marks values (?, ?, ?, ?, ?, ?, ?)", *values)

    def advance(self, contract: bytes, last: ReleaseIndex) -> None:
        """Write the last release into the mark of a contract."""
        change = "update marks set incarnation = ?, round = ?, exchange = ? where contract = ?"
        self.change(change, last.incarnation, *last.position, contract)

    def forget(self, contract: bytes) -> None:
        """Erase the mark of a contract under which the folder signed nothing."""
        with self.transaction():
            for table in ("marks", "fresh"):
                self._file.execute(f"delete from {table} where contract = ?", (contract,))

    def leave(self, contract: bytes) -> None:
        """Mark a contract as left, which no restored folder can join again."""
        self.change("insert or ignore into left values (?)", contract)

    def left_contracts(self) -> set[bytes]:
        """Return the hashes of the contracts that were left."""
        return {contract for (contract,) in self._read("select contract from left")}

    def start_number(self, contract: bytes) -> bytes:
        """Return the random number, 16 bytes, with which a node asks others to confirm its start.

        It stays the same until `erase_start_number`.
        """
        self.change("insert or ignore into fresh values (?, ?)", contract, token_bytes(16))
        ((number,),) = self._read("select number from fresh where contract = ?", contract)
        return bytes(number)

    def erase_start_number(self, contract: bytes) -> None:
        """Erase the number of a confirmed start, so that the next start has another one."""
        self.change("delete from fresh where contract = ?", contract)
