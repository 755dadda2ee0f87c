"""What a folder promised and released last, marked outside of it.

A folder that was restored from an older copy on the same machine differs from its mark. The mark
also holds what must not be restored with a folder: the number with which a node asks the others.
"""

from __future__ import annotations

from pathlib import Path
from secrets import token_bytes
from threading import RLock
from typing import Any, NamedTuple

from dpmesh.deploy import private_file
from dpmesh.deploy.wire import Sent

_TABLES = """
create table if not exists marks (
    contract blob primary key, plan text, records text, seeded integer,
    incarnation integer, round integer, exchange integer
);
create table if not exists fresh (contract blob primary key, number blob);
create table if not exists left (contract blob primary key);
"""


class Joined(NamedTuple):
    """What a folder stored when it joined a contract: its plan, records' digest, and the noise."""

    plan: str
    records: str
    seeded: bool


class Marks:
    """The marks of one folder, held by this process until they are closed.

    Parameters
    ----------
    path
        The file; None to keep them in memory, where they outlive no process.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
        self._file = private_file.connect(":memory:" if path is None else path)
        self._file.executescript(f"begin; {_TABLES} commit;")
        self._lock = RLock()

    def close(self) -> None:
        """Let another process have them."""
        self._file.close()

    def all(self) -> dict[bytes, tuple[Joined, Sent]]:
        """Return what was joined, and what was released last, by the contracts' hashes."""
        with self._lock:
            found = self._file.execute("select * from marks").fetchall()
        return {each[0]: (Joined(*each[1:4]), Sent.of(*each[4:])) for each in found}

    def put(self, contract: bytes, joined: Joined, last: Sent) -> None:
        """Mark a contract that the folder has."""
        values = contract, *joined, last.incarnation, *last.at
        self._change("insert or replace into marks values (?, ?, ?, ?, ?, ?, ?)", values)

    def move(self, contract: bytes, last: Sent) -> None:
        """Mark what was released last."""
        change = "update marks set incarnation = ?, round = ?, exchange = ? where contract = ?"
        self._change(change, (last.incarnation, *last.at, contract))

    def leave(self, contract: bytes) -> None:
        """Mark a contract as left, before the folder is changed."""
        self._change("insert or ignore into left values (?)", (contract,))

    def left(self) -> set[bytes]:
        """Return the contracts that were left."""
        with self._lock:
            return {each for (each,) in self._file.execute("select contract from left").fetchall()}

    def fresh(self, contract: bytes) -> bytes:
        """Return the number with which a node asks others, the same until it is confirmed."""
        self._change("insert or ignore into fresh values (?, ?)", (contract, token_bytes(16)))
        query = "select number from fresh where contract = ?"
        with self._lock:
            return bytes(self._file.execute(query, (contract,)).fetchone()[0])

    def confirmed(self, contract: bytes) -> None:
        """Erase that number: the next start asks with another."""
        self._change("delete from fresh where contract = ?", (contract,))

    def _change(self, change: str, values: tuple[Any, ...]) -> None:
        with self._lock, self._file:
            self._file.execute(change, values)
