"""The steps of each contract in a party's folder: received messages, charges and answers.

A step is stored twice. `Steps.charge_step` stores what arrived and what the step is charged, before
any noise is drawn. `Steps.finish_step` adds the node's answer and its state, before the answer
leaves the node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.files import PrivateFile
from dpmesh.deploy.row import Row
from dpmesh.deploy.signing import pack, unpack
from dpmesh.deploy.wire import WITHHOLD, Position, RefusedError, RollbackQuestion
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release

LEFT = "left"
"""Event in a folder: the party left the contract."""
FINISHED = "finished"
"""First word of an event in a folder: the run of the contract is over."""
ERASE_SECRETS = "update secrets set secrets = x'' where contract = ?"
"""SQL statement that erases the secrets of a run. Its row stays, so that no new ones are made."""
_STORE_RECEIVED_ROW = """
insert into heard values (?, ?, ?, ?, ?, ?) on conflict (contract, party) do update set
(incarnation, round, exchange, row) =
(excluded.incarnation, excluded.round, excluded.exchange, excluded.row)
where (excluded.incarnation, excluded.round, excluded.exchange) > (incarnation, round, exchange)
"""
"""SQL statement that stores a party's row unless a later one of that party is stored."""
_STEP = "contract = ? and round = ? and exchange = ?"
"""SQL condition of one step."""


class KnownContract(NamedTuple):
    """A contract of which a folder stores the hash and the plan, but not the file.

    Attributes
    ----------
    hash
        The contract's hash.
    plan
        The privacy plan that was charged.
    copies
        Number of parties that may have the same record.
    """

    hash: bytes
    plan: Plan
    copies: int = 1


AnyContract: TypeAlias = Contract | KnownContract
"""A contract, or its hash, plan and copies, which are all that a folder needs of it."""


@dataclass(frozen=True)
class StoredStep:
    """A step of a node as its folder stores it.

    Parameters
    ----------
    position
        Round and exchange of the step.
    received
        The signed messages that arrived before the step, which are its inputs.
    state
        The algorithm's state before the round of the step; None while the step is not computed,
        and once a later step is.
    answer
        The node's answer, a signed message; None while the step is not computed.
    withheld
        True if the answer stays with the node, which then sends a row without values.
    """

    position: Position
    received: tuple[bytes, ...]
    state: bytes | None
    answer: bytes | None
    withheld: bool = False


class Steps(PrivateFile):
    """The steps of all contracts of one party, part of its `Folder`.

    Methods that are said to run within a transaction are durable once the caller's transaction
    ends; all others are durable when they return. States and secrets must not leave the party;
    charges, answers and received messages are public. An *event* is a fact about a contract that
    the folder notes once, as a text such as `LEFT`.
    """

    def _contracts_with_event(self, event: str) -> set[bytes]:
        """Return the hashes of the contracts that have an event."""
        rows = self._read("select contract from events where event = ?", event)
        return {contract for (contract,) in rows}

    def _add_events(self, contract: bytes, *events: str) -> None:
        """Add events to a contract, each once, within a transaction."""
        for event in events:
            self._file.execute("insert or ignore into events values (?, ?)", (contract, event))

    def has_left(self, contract: AnyContract) -> bool:
        """Return True if the party left a contract."""
        return contract.hash in self._contracts_with_event(LEFT)

    def steps_since_state(self, contract: AnyContract) -> list[StoredStep]:
        """Return the steps from the round of the last stored state on, in their order.

        They are all steps if no state is stored.
        """
        round_of_state = "select round from steps where contract = ? and state is not null"
        where = (
            f"where contract = ? and round >= coalesce(({round_of_state}), 0) "
            "order by round, exchange"
        )
        return self._steps(where, contract.hash, contract.hash)

    def last_step(self, contract: AnyContract) -> StoredStep | None:
        """Return the last step of a contract; None before the first."""
        where = "where contract = ? order by round desc, exchange desc limit 1"
        return next(iter(self._steps(where, contract.hash)), None)

    def step(self, contract: AnyContract, position: Position) -> StoredStep | None:
        """Return the step of a contract at a position; None if there is none."""
        return next(iter(self._steps(f"where {_STEP}", contract.hash, *position)), None)

    def _steps(self, where: str, *values: Any) -> list[StoredStep]:
        """Return the steps that an SQL clause selects; `values` replace its question marks."""
        query = f"select round, exchange, rows, state, row from steps {where}"
        return [_step_of(*columns) for columns in self._read(query, *values)]

    def charge_step(
        self,
        contract: AnyContract,
        position: Position,
        received: tuple[bytes, ...],
        charged: tuple[Release, ...],
        *,
        withheld: bool = False,
    ) -> None:
        """Store a step's received messages and charge its releases, within a transaction.

        Parameters
        ----------
        contract, position
            The contract, and the position of the step.
        received
            The signed messages that arrived before the step.
        charged
            The releases of the step, as they are charged.
        withheld
            True if the answer will stay with the node.

        Raises
        ------
        RefusedError
            If the party left the contract.
        """
        if self.has_left(contract):
            raise RefusedError("stopped")
        planned = contract.plan.releases
        charges = list[dict[str, Any]]()
        for release in charged:
            if release.mechanism.is_joint:  # its correlations are too long to store in each step
                charges.append({"planned": planned.index(release)})
            else:
                charges.append(release.as_dict())
        if withheld:
            received = (*received, WITHHOLD)
        values = contract.hash, *position, pack(*received), json.dumps(charges)
        query = "insert into steps values (?, ?, ?, ?, ?, null, null, null)"
        self._file.execute(query, values)

    def withhold(self, contract: AnyContract, position: Position) -> None:
        """Note that the answer of a charged step, not computed yet, will stay with the node."""
        step = self.step(contract, position)
        if step is None or step.withheld:
            return
        received = pack(*step.received, WITHHOLD)
        change = f"update steps set rows = ? where {_STEP} and row is null"
        self.change(change, received, contract.hash, *position)

    def finish_step(
        self,
        contract: AnyContract,
        position: Position,
        state: bytes,
        answer: bytes,
        released: bytes,
    ) -> None:
        """Store the state and the answer of a charged step, within a transaction.

        States of earlier steps are erased.

        Parameters
        ----------
        contract, position
            The contract, and the position of the step.
        state
            The algorithm's state, which the next start of the node goes on from.
        answer
            The signed message that leaves the node afterwards.
        released
            The model that follows from all releases so far, as bytes.
        """
        key = contract.hash, *position
        change = f"update steps set state = ?, row = ?, released = ? where {_STEP}"
        self._file.execute(change, (state, answer, released, *key))
        earlier = "where contract = ? and (round, exchange) < (?, ?)"
        self._file.execute(f"update steps set state = null, released = null {earlier}", key)

    def finish_run(self, contract: AnyContract, rounds: int) -> None:
        """Note that a run is over, and erase its secrets for ever, within a transaction."""
        self._add_events(contract.hash, f"{FINISHED} after {rounds} rounds")
        self._file.execute(ERASE_SECRETS, (contract.hash,))

    def store_signatures(self, contract: AnyContract, signatures: Mapping[int, bytes]) -> None:
        """Store the parties' signatures under a contract, within a transaction."""
        query = "insert or replace into signatures values (?, ?, ?)"
        for party, message in signatures.items():
            self._file.execute(query, (contract.hash, party, message))

    def signatures(self, contract: AnyContract) -> tuple[bytes, ...]:
        """Return the parties' signatures with which a contract's run began, by party."""
        query = "select message from signatures where contract = ? order by party"
        return tuple(bytes(message) for (message,) in self._read(query, contract.hash))

    def received_after(self, contract: AnyContract, t: int, most: int) -> list[bytes]:
        """Return the messages that arrived before steps of later rounds than t, in their order.

        Parameters
        ----------
        contract
            The contract.
        t
            Number of the round; of sums, number of the sum.
        most
            The most steps to read, from the first one on; -1 for all.
        """
        where = "where contract = ? and round > ? order by round, exchange limit ?"
        steps = self._steps(where, contract.hash, t, most)
        return [message for step in steps for message in step.received]

    def charged_steps(self, contract: AnyContract) -> dict[int, int]:
        """Return the number of charged steps of a contract, by round; of sums, by sum."""
        query = "select round, count(*) from steps where contract = ? and charged != '[]'"
        return dict(self._read(f"{query} group by round", contract.hash))

    def ledger(self, contract: AnyContract) -> Plan:
        """Return all releases that were charged under a contract so far, as a plan."""
        query = "select charged from steps where contract = ? order by round, exchange"
        releases: list[Release] = []
        for (text,) in self._read(query, contract.hash):
            for charge in json.loads(text):
                if "planned" in charge:
                    releases.append(contract.plan.releases[charge["planned"]])
                else:
                    releases.append(Release.from_dict(charge))
        return contract.plan.with_releases(releases)

    def store_received_row(self, contract: AnyContract, row: Row, message: bytes) -> None:
        """Store another party's row, if it is the latest one of that party, in a transaction."""
        values = contract.hash, row.party, row.incarnation, *row.position, message
        self._file.execute(_STORE_RECEIVED_ROW, values)

    def later_row(self, contract: AnyContract, question: RollbackQuestion) -> bytes:
        """Return a row that the asking party sent later than the last one it knows of.

        It is a signed message; empty if this party has received none.
        """
        later = "(incarnation, round, exchange) > (?, ?, ?)"
        query = f"select row from heard where contract = ? and party = ? and {later}"
        last = question.last_release
        rows = self._read(query, contract.hash, question.party, last.incarnation, *last.position)
        if rows:
            return bytes(rows[0][0])
        return b""

    def released(self, contract: AnyContract) -> bytes:
        """Return the model that follows from the releases so far; empty before the first step."""
        query = "select released from steps where contract = ? and released is not null"
        rows = self._read(query, contract.hash)
        if rows:
            return bytes(rows[0][0])
        return b""

    def stop(self, contract: AnyContract) -> None:
        """Note that a step failed after it was charged: the node computes no further step."""
        self.change("update contracts set stopped = 1 where hash = ?", contract.hash)

    def has_stopped(self, contract: AnyContract) -> bool:
        """Return True if a step of a contract failed after it was charged."""
        ((stopped,),) = self._read("select stopped from contracts where hash = ?", contract.hash)
        return bool(stopped)

    def secrets(self, contract: AnyContract, generate: Callable[[], bytes]) -> bytes:
        """Return the secrets of a contract's run, made once; empty if the run is over.

        Parameters
        ----------
        contract
            The contract.
        generate
            Returns new secrets as bytes.
        """
        with self.transaction():
            rows = self._read("select secrets from secrets where contract = ?", contract.hash)
            if not rows:
                row = (contract.hash, generate())
                self._file.execute("insert into secrets values (?, ?)", row)
                return row[1]
        return bytes(rows[0][0])

    def store_secrets(self, contract: AnyContract, secrets: bytes) -> None:
        """Replace the secrets of a run, within a transaction."""
        query = "update secrets set secrets = ? where contract = ?"
        self._file.execute(query, (secrets, contract.hash))


def _step_of(
    round_: int, exchange: int, received: bytes, state: bytes | None, answer: bytes | None
) -> StoredStep:
    """Return a step from its columns in the file."""
    messages = unpack(received)
    return StoredStep(
        Position(round_, exchange),
        tuple(message for message in messages if message != WITHHOLD),
        state,
        answer,
        withheld=WITHHOLD in messages,
    )
