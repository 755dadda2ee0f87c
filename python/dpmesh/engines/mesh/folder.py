"""A party's folder: its keys, its budget, and for each contract its state, ledger and answers.

It belongs to one data set. Two contracts in one folder share its budget. Never restore it from a
backup, and never copy it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np

from dpmesh._files import replace_text, writable_folder
from dpmesh._validate import fail, positive, probability
from dpmesh.engines import private_file
from dpmesh.engines.mesh.contract import Contract
from dpmesh.engines.mesh.messages import Position, Row
from dpmesh.engines.signing import SigningKey, pack, unpack
from dpmesh.keys import Key
from dpmesh.privacy.budget import Budget, OverBudget
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.shown import ROUNDING, rounded_up
from dpmesh.run.codec import Arrays, classes_in, decode, encode

_TABLES = """
create table party (epsilon real, delta real, over integer);
create table contracts (
    hash blob primary key, plan text, records text, seeded integer, times integer, stopped integer
);
create table steps (
    contract blob, round integer, exchange integer, rows blob, charged text, state blob, row blob,
    released blob,
    primary key (contract, round, exchange)
);
create table fresh (contract blob primary key, number blob);
create table heard (
    contract blob, party integer, round integer, exchange integer, primary key (contract, party)
);
"""
DATABASE, SIGNING, NOISE = "node.db", "signing.pem", "noise.key"


@dataclass(frozen=True)
class Stored:
    """A step of a node: what arrived before it, what it was charged, and what it answered.

    Parameters
    ----------
    at
        Where in the run.
    rows
        The rows that arrived, as signed.
    state
        The state before its round; None before the step is computed, and once a later is.
    row
        The answer; None before the step is computed.
    """

    at: Position
    rows: tuple[bytes, ...]
    state: bytes | None
    row: bytes | None


class Folder:
    """A party's folder, held by this process until it is closed.

    Use `create` once, then `open`.
    """

    def __init__(self, path: Path, marks: Path | None = None) -> None:
        self._file = private_file.connect(path / DATABASE)
        self.signing, self.key = SigningKey.load(path / SIGNING), Key.load(path / NOISE)
        epsilon, delta = self._file.execute("select epsilon, delta from party").fetchone()
        self.budget = Budget(epsilon, delta=delta)
        self._mark = None if marks is None else marks / f"{self.signing.public.hex()}.json"

    @classmethod
    def create(
        cls, path: str | Path, *, epsilon: float, delta: float, marks: Path | None = None
    ) -> Folder:
        """Make the folder of a party that has none.

        Parameters
        ----------
        path
            Its path.
        epsilon, delta
            The most that the party's records may cost, over all contracts.
        marks
            As in `open`.

        Raises
        ------
        FileExistsError
            If there is one.
        """
        positive("epsilon", epsilon)
        probability("delta", delta, one=False)
        folder = writable_folder(Path(path))
        file = private_file.create(folder / DATABASE, _TABLES)
        with file:
            file.execute("insert into party values (?, ?, 0)", (epsilon, delta))
        file.close()
        SigningKey.generate().save(folder / SIGNING)
        Key.generate().save(folder / NOISE)
        return cls(folder, marks)

    @classmethod
    def open(cls, path: str | Path, *, marks: Path | None = None) -> Folder:
        """Open a party's folder.

        Parameters
        ----------
        path
            Its path.
        marks
            A folder outside of it, for a mark of the last answer: it shows when this folder was
            restored from an older copy on the same machine. None for no mark.

        Raises
        ------
        FileNotFoundError
            If there is none.
        ValueError
            If another process holds it.
        """
        if not (Path(path) / DATABASE).exists():
            raise FileNotFoundError(f"{path}: there is no party's folder; make one first")
        return cls(Path(path), marks)

    def close(self) -> None:
        """Let another process open it."""
        self._file.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes of the block, on disk before it ends, or none of them."""
        with self._file:
            self._file.execute("begin immediate")
            yield

    def join(self, contract: Contract, records: str, *, seeded: bool) -> None:
        """Reserve the whole cost of a contract, unless that is done.

        Parameters
        ----------
        contract
            The contract.
        records
            A digest of the party's records, in their order.
        seeded
            Whether the noise is that of a rehearsal.

        Raises
        ------
        OverBudget
            If the budget has no room for it beside the contracts joined before.
        ValueError
            If the party joined this contract with other records, or other keys.
        """
        query = "select records, seeded from contracts where hash = ?"
        known = self._file.execute(query, (contract.hash,)).fetchone()
        if known is not None:
            if known[0] != records:
                fail(
                    "records", "those with which the contract was joined, in their order", "others"
                )
            if bool(known[1]) != seeded:
                fail("rehearsal", "the same as when the contract was joined", seeded)
            return
        cost = self.cost(contract.plan)
        if cost > self.budget.epsilon * (1 + ROUNDING):
            wanted = f"joining costs epsilon {rounded_up(cost)} with the contracts before it"
            raise OverBudget(f"{wanted}, more than the budget of {self.budget}")
        with self.transaction():
            row = contract.hash, json.dumps(contract.plan.as_dict()), records, seeded, 1, 0
            self._file.execute("insert into contracts values (?, ?, ?, ?, ?, ?)", row)

    def cost(self, more: Plan | None = None) -> float:
        """Return the epsilon of all contracts joined so far, and of one more plan beside."""
        found = self._file.execute("select plan, times from contracts").fetchall()
        plans = [Plan.from_dict(json.loads(plan)) for plan, times in found for _ in range(times)]
        plans += [] if more is None else [more]
        if not plans:
            return 0.0
        *earlier, last = plans
        return replace(self.budget, spent=tuple(earlier)).cost(last).epsilon

    def mark(self, contract: Contract, at: Position) -> None:
        """Mark the last answer outside of the folder."""
        if self._mark is not None:
            kept = self._marks() | {contract.hash.hex(): [*at]}
            replace_text(self._mark, json.dumps(kept))

    def check_mark(self, contract: Contract) -> None:
        """Fail if this folder has forgotten an answer that the mark knows of.

        Raises
        ------
        ValueError
            If it was restored.
        """
        last, marked = self.last(contract), self._marks().get(contract.hash.hex())
        if marked is not None and (last is None or last.at < Position(*marked)):
            got = "an older copy. Say --restored, which charges all contracts once more"
            fail("folder", "the one that answered last on this machine", got)

    def _marks(self) -> dict[str, list[int]]:
        if self._mark is None or not self._mark.exists():
            return {}
        found: dict[str, list[int]] = json.loads(self._mark.read_text())
        return found

    def restored(self) -> None:
        """Charge every contract in whole once more: this folder is a copy of an older one."""
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)
        with self.transaction():
            self._file.execute("update contracts set times = times + 1")
            over = self.cost() > self.budget.epsilon * (1 + ROUNDING)
            self._file.execute("update party set over = ?", (over,))

    def was_restored(self, contract: Contract) -> bool:
        """Whether the contract is charged more than once: its rounds may be repeated."""
        query = "select times from contracts where hash = ?"
        return bool(self._file.execute(query, (contract.hash,)).fetchone()[0] > 1)

    @property
    def is_over_budget(self) -> bool:
        """Whether the contracts cost more than the budget, as they may once it was restored."""
        return bool(self._file.execute("select over from party").fetchone()[0])

    def stop(self, contract: Contract) -> None:
        """Never compute a step of this contract again."""
        with self.transaction():
            query = "update contracts set stopped = 1 where hash = ?"
            self._file.execute(query, (contract.hash,))

    def has_stopped(self, contract: Contract) -> bool:
        """Whether a step failed after it was charged."""
        query = "select stopped from contracts where hash = ?"
        return bool(self._file.execute(query, (contract.hash,)).fetchone()[0])

    def steps(self, contract: Contract) -> list[Stored]:
        """Return the steps from the round on whose state is kept, in their order."""
        since = "select round from steps where contract = ? and state is not null"
        where = f"where contract = ? and round >= coalesce(({since}), 0) order by round, exchange"
        return self._steps(where, contract.hash, contract.hash)

    def last(self, contract: Contract) -> Stored | None:
        """Return the last step; None before the first."""
        where = "where contract = ? order by round desc, exchange desc limit 1"
        return next(iter(self._steps(where, contract.hash)), None)

    def step(self, contract: Contract, at: Position) -> Stored | None:
        """Return the step at a position; None if there is none."""
        where = "where contract = ? and round = ? and exchange = ?"
        return next(iter(self._steps(where, contract.hash, *at)), None)

    def _steps(self, where: str, *values: Any) -> list[Stored]:
        query = f"select round, exchange, rows, state, row from steps {where}"
        found = self._file.execute(query, values).fetchall()
        return [Stored(Position(r, e), unpack(rows), *kept) for r, e, rows, *kept in found]

    def begin(
        self,
        contract: Contract,
        at: Position,
        rows: tuple[bytes, ...],
        charged: tuple[Release, ...],
    ) -> None:
        """Store what arrived before a step, last heard of each party, and charge it."""
        for message in rows:
            row = Row.read(message, contract, stored=True)
            latest = contract.hash, row.party, *row.at
            self._file.execute("insert or replace into heard values (?, ?, ?, ?)", latest)
        charges = json.dumps([release.as_dict() for release in charged])
        values = contract.hash, *at, pack(*rows), charges
        query = "insert into steps values (?, ?, ?, ?, ?, null, null, null)"
        self._file.execute(query, values)

    def finish(
        self, contract: Contract, at: Position, state: bytes, row: bytes, released: bytes
    ) -> None:
        """Store the state and the answer of a step; states of earlier ones are erased.

        `released` is the model that follows from what was released so far.
        """
        where = "where contract = ? and round = ? and exchange = ?"
        key = contract.hash, *at
        self._file.execute(
            f"update steps set state = ?, row = ?, released = ? {where}",
            (state, row, released, *key),
        )
        earlier = "where contract = ? and (round, exchange) < (?, ?)"
        self._file.execute(f"update steps set state = null, released = null {earlier}", key)

    def fresh(self, contract: Contract, *, answered: bool = False) -> bytes:
        """Return the number with which the node asks others since its start; erase it once used."""
        with self.transaction():
            if answered:
                self._file.execute("delete from fresh where contract = ?", (contract.hash,))
                return b""
            new = contract.hash, token_bytes(16)
            self._file.execute("insert or ignore into fresh values (?, ?)", new)
            query = "select number from fresh where contract = ?"
            return bytes(self._file.execute(query, (contract.hash,)).fetchone()[0])

    def heard(self, contract: Contract, party: int) -> Position | None:
        """Return the last position of which there is a row of a party; None if there is none."""
        query = "select round, exchange from heard where contract = ? and party = ?"
        found = self._file.execute(query, (contract.hash, party)).fetchone()
        return None if found is None else Position(*found)

    def released(self, contract: Contract) -> bytes:
        """Return the model that follows from what was released; empty before the first step."""
        query = "select released from steps where contract = ? and released is not null"
        found = self._file.execute(query, (contract.hash,)).fetchone()
        return b"" if found is None else bytes(found[0])

    def ledger(self, contract: Contract) -> Plan:
        """Return what a contract was charged so far."""
        query = "select charged from steps where contract = ? order by round, exchange"
        found = self._file.execute(query, (contract.hash,)).fetchall()
        releases = [Release.from_dict(one) for (text,) in found for one in json.loads(text)]
        return contract.plan.with_releases(releases)


def state_as_bytes(state: Any) -> bytes:
    """Return an algorithm's state as bytes, the same for the same state."""
    arrays: Arrays = {}
    tree = json.dumps(encode(state, arrays)).encode()
    return pack(tree, *(part for name in arrays for part in (name.encode(), _saved(arrays[name]))))


def state_from_bytes(data: bytes, start: Any) -> Any:
    """Return the state, of the same classes as `start`."""
    tree, *parts = unpack(data)
    names, held = parts[::2], parts[1::2]
    arrays = {
        name.decode(): np.load(io.BytesIO(array), allow_pickle=False)
        for name, array in zip(names, held, strict=True)
    }
    return decode(json.loads(tree), arrays, classes_in(start))


def _saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
