"""Steps of the contracts in a party's folder: received messages, charges and answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.files import PrivateFile
from dpmesh.deploy.row import Row
from dpmesh.deploy.signing import pack, unpack
from dpmesh.deploy.wire import WITHHOLD, Fresh, Position, RefusedError
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release

LEFT, FINISHED = "left", "finished"
"""The event of a contract that was left, and how that of a run begins that is over."""
ERASED = "update secrets set secrets = x'' where contract = ?"
_HEARD = """
insert into heard values (?, ?, ?, ?, ?, ?) on conflict (contract, party) do update set
(incarnation, round, exchange, row) =
(excluded.incarnation, excluded.round, excluded.exchange, excluded.row)
where (excluded.incarnation, excluded.round, excluded.exchange) > (incarnation, round, exchange)
"""


class Known(NamedTuple):
    """A contract as a folder that joined it knows it."""

    hash: bytes
    plan: Plan
    copies: int = 1


Agreement: TypeAlias = Contract | Known
"""What a folder needs the hash, the plan and the copies of."""


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
        The row that the node computed; None before the step is computed.
    withheld
        Whether that row stays with the node: then the answer says only that the step is done.
    """

    at: Position
    rows: tuple[bytes, ...]
    state: bytes | None
    row: bytes | None
    withheld: bool = False


class Steps(PrivateFile):
    """The steps of all contracts, in the file of a folder."""

    def _events(self, event: str) -> set[bytes]:
        rows = self._read("select contract from events where event = ?", event)
        return {contract for (contract,) in rows}

    def _note(self, contract: bytes, *events: str) -> None:
        for event in events:
            self._file.execute("insert or ignore into events values (?, ?)", (contract, event))

    def has_left(self, contract: Agreement) -> bool:
        """Return True if the party left a contract."""
        return contract.hash in self._events(LEFT)

    def steps(self, contract: Agreement) -> list[Stored]:
        """Return the steps from the round on whose state is kept, in their order."""
        since = "select round from steps where contract = ? and state is not null"
        where = f"where contract = ? and round >= coalesce(({since}), 0) order by round, exchange"
        return self._steps(where, contract.hash, contract.hash)

    def last(self, contract: Agreement) -> Stored | None:
        """Return the last step; None before the first."""
        where = "where contract = ? order by round desc, exchange desc limit 1"
        return next(iter(self._steps(where, contract.hash)), None)

    def step(self, contract: Agreement, position: Position) -> Stored | None:
        """Return the step at a position; None if there is none."""
        where = "where contract = ? and round = ? and exchange = ?"
        return next(iter(self._steps(where, contract.hash, *position)), None)

    def _steps(self, where: str, *values: Any) -> list[Stored]:
        query = f"select round, exchange, rows, state, row from steps {where}"
        return [_stored(*columns) for columns in self._read(query, *values)]

    def begin(
        self,
        contract: Agreement,
        position: Position,
        rows: tuple[bytes, ...],
        charged: tuple[Release, ...],
        *,
        withheld: bool = False,
    ) -> None:
        """Store what arrived before a step, and charge it; refuse if the contract was left.

        The row of a step that is `withheld` never leaves the node.
        """
        if self.has_left(contract):
            raise RefusedError("stopped")
        planned = contract.plan.releases
        charges = list[dict[str, Any]]()
        for release in charged:
            is_joint = release.mechanism.is_joint  # not stored with each row
            charges.append({"planned": planned.index(release)} if is_joint else release.as_dict())
        if withheld:
            rows = (*rows, WITHHOLD)
        values = contract.hash, *position, pack(*rows), json.dumps(charges)
        query = "insert into steps values (?, ?, ?, ?, ?, null, null, null)"
        self._file.execute(query, values)

    def withhold(self, contract: Agreement, position: Position) -> None:
        """Keep the row of a step at the node, before it is computed."""
        step = self.step(contract, position)
        if step is None or step.withheld:
            return
        where = "where contract = ? and round = ? and exchange = ? and row is null"
        arrived = pack(*step.rows, WITHHOLD)
        self.change(f"update steps set rows = ? {where}", arrived, contract.hash, *position)

    def keep_signatures(self, contract: Agreement, signatures: Mapping[int, bytes]) -> None:
        """Store the parties' signatures under a contract, within the transaction of its start."""
        query = "insert or replace into signatures values (?, ?, ?)"
        for party, message in signatures.items():
            self._file.execute(query, (contract.hash, party, message))

    def signatures(self, contract: Agreement) -> tuple[bytes, ...]:
        """Return the parties' signatures with which a contract's run began, in their order."""
        query = "select message from signatures where contract = ? order by party"
        return tuple(bytes(message) for (message,) in self._read(query, contract.hash))

    def arrived_after(self, contract: Agreement, step: int, most: int) -> list[bytes]:
        """Return what arrived for the steps after one, in their order, of so many at most."""
        where = "where contract = ? and round > ? order by round, exchange limit ?"
        steps = self._steps(where, contract.hash, step, most)
        return [message for stored in steps for message in stored.rows]

    def finish(
        self, contract: Agreement, position: Position, state: bytes, row: bytes, released: bytes
    ) -> None:
        """Store the state and the answer of a step; states of earlier ones are erased.

        `released` is the model that follows from what was released so far.
        """
        key = contract.hash, *position
        where = "where contract = ? and round = ? and exchange = ?"
        change = f"update steps set state = ?, row = ?, released = ? {where}"
        self._file.execute(change, (state, row, released, *key))
        earlier = "where contract = ? and (round, exchange) < (?, ?)"
        self._file.execute(f"update steps set state = null, released = null {earlier}", key)

    def attempts(self, contract: Agreement) -> dict[int, int]:
        """Return how many steps of each round of a contract were charged for."""
        query = "select round, count(*) from steps where contract = ? and charged != '[]'"
        return dict(self._read(f"{query} group by round", contract.hash))

    def hear(self, contract: Agreement, row: Row, message: bytes) -> None:
        """Store a row of a party, if it is the latest of the party's."""
        self._file.execute(_HEARD, (contract.hash, row.party, row.incarnation, *row.at, message))

    def later_row(self, contract: Agreement, question: Fresh) -> bytes:
        """Return a later row of the party who asks than it knows of; empty if there is none."""
        later = "(incarnation, round, exchange) > (?, ?, ?)"
        query = f"select row from heard where contract = ? and party = ? and {later}"
        last = question.last
        rows = self._read(query, contract.hash, question.party, last.incarnation, *last.at)
        if rows:
            return bytes(rows[0][0])
        return b""

    def released(self, contract: Agreement) -> bytes:
        """Return the model that follows from what was released; empty before the first step."""
        query = "select released from steps where contract = ? and released is not null"
        rows = self._read(query, contract.hash)
        if rows:
            return bytes(rows[0][0])
        return b""

    def ledger(self, contract: Agreement) -> Plan:
        """Return what a contract was charged so far."""
        query = "select charged from steps where contract = ? order by round, exchange"
        rows = self._read(query, contract.hash)
        releases = [
            contract.plan.releases[charge["planned"]]
            if "planned" in charge
            else Release.from_dict(charge)
            for (text,) in rows
            for charge in json.loads(text)
        ]
        return contract.plan.with_releases(releases)

    def stop(self, contract: Agreement) -> None:
        """Never compute a step of this contract again."""
        self.change("update contracts set stopped = 1 where hash = ?", contract.hash)

    def has_stopped(self, contract: Agreement) -> bool:
        """Return True if a step failed after it was charged."""
        ((stopped,),) = self._read("select stopped from contracts where hash = ?", contract.hash)
        return bool(stopped)

    def secrets(self, contract: Agreement, new: Callable[[], bytes]) -> bytes:
        """Return the secrets of a contract's run, which are made once; empty if it is over."""
        with self.transaction():
            rows = self._read("select secrets from secrets where contract = ?", contract.hash)
            if not rows:
                row = (contract.hash, new())
                self._file.execute("insert into secrets values (?, ?)", row)
                return row[1]
        return bytes(rows[0][0])

    def keep_secrets(self, contract: Agreement, secrets: bytes) -> None:
        """Store the secrets of a run anew, within a transaction."""
        query = "update secrets set secrets = ? where contract = ?"
        self._file.execute(query, (secrets, contract.hash))

    def end(self, contract: Agreement, rounds: int) -> None:
        """Note within a transaction that a run is over, and erase its secrets for ever."""
        self._note(contract.hash, f"{FINISHED} after {rounds} rounds")
        self._file.execute(ERASED, (contract.hash,))


def _stored(
    round_: int, exchange: int, arrived: bytes, state: bytes | None, row: bytes | None
) -> Stored:
    """Return a step from its columns in the file."""
    messages = unpack(arrived)
    rows = tuple(message for message in messages if message != WITHHOLD)
    return Stored(Position(round_, exchange), rows, state, row, withheld=WITHHOLD in messages)
