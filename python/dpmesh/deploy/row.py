"""Released rows as they travel, signed by their parties, and who has which of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, Released
from dpmesh._validate import fail
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.signing import SigningKey, digest, is_signed, unpack
from dpmesh.deploy.wire import (
    HEARD,
    NUMBER_BYTES,
    Fresh,
    Position,
    Sent,
    numbers,
    read_numbers,
    read_signed,
    signed,
)
from dpmesh.noise.compression import Compressor

ROW = b"dpmesh row 1"
MIXED_BYTES = 3 * NUMBER_BYTES + 32
PROCESS_BYTES = 8


class Place(NamedTuple):
    """The place of a row in a run.

    Attributes
    ----------
    at
        The position at which it was sent.
    party
        The party that sent it.
    """

    at: Position
    party: int


@dataclass(frozen=True)
class Row:
    """A released row, signed by its party.

    Parameters
    ----------
    contract
        The contract's hash.
    at
        Where in the run.
    party
        Its number.
    incarnation
        How often its folder was restored, by its own word.
    dtype, shape
        Of the row; no rows if the party released nothing.
    codes
        The row as it is sent.
    mixed
        Which rows the party mixed before it sent this one: see `mixed_rows`.
    processes
        The numbers of its process and of its partners': see `dpmesh.deploy.witness`.
    signature
        Of all that.
    """

    contract: bytes
    at: Position
    party: int
    incarnation: int
    dtype: str
    shape: tuple[int, int]
    codes: bytes
    mixed: bytes
    processes: bytes = b""
    signature: bytes = b""

    def signed(self, key: SigningKey) -> bytes:
        """Return the row as bytes, signed."""
        return signed(key, *self._fields)

    @property
    def place(self) -> Place:
        """The row's position and party."""
        return Place(self.at, self.party)

    @property
    def is_withheld(self) -> bool:
        """True if its party keeps the values to itself."""
        return self.shape == (0, 0) and not self.codes

    def without_values(self) -> Row:
        """Return the row as its party sends it if it keeps the values to itself; to be signed."""
        return replace(self, shape=(0, 0), codes=b"", processes=b"", signature=b"")

    @property
    def sent(self) -> Sent:
        """Position and incarnation of its party with this row."""
        return Sent(self.incarnation, self.at)

    @property
    def _fields(self) -> tuple[bytes, ...]:
        named = (*self.at, self.party, self.incarnation, *self.shape)
        contents = self.dtype.encode(), self.codes, self.mixed, self.processes
        return ROW, self.contract, *numbers(*named), *contents

    @classmethod
    def read(cls, message: bytes, contract: Contract, *, stored: bool = False) -> Row:
        """Return the row in a message, whose signature is checked unless it was `stored` checked.

        Raises
        ------
        ValueError
            If it is no row of this contract that its party signed.
        """
        kind, contract_hash, *named, dtype, codes, mixed, statement, signature = unpack(message)
        if kind != ROW or contract_hash != contract.hash or len(named) != 6:
            fail("row", "a row of this contract", "another message")
        round_, exchange, party, incarnation, rows, dim = read_numbers(*named)
        if party >= contract.nodes:
            fail("row", "a party of the contract", party)
        position = Position(round_, exchange)
        numbers = dtype.decode("ascii")
        shape = (rows, dim)
        row = cls(
            contract_hash,
            position,
            party,
            incarnation,
            numbers,
            shape,
            codes,
            mixed,
            statement,
            signature,
        )
        key = contract.parties[party].public_key
        row.mixes(contract)
        same = row._fields == (kind, contract_hash, *named, dtype, codes, mixed, statement)
        same &= len(statement) <= contract.planned.has_partners * PROCESS_BYTES * contract.nodes
        if not same or not (stored or is_signed(key, signature, *row._fields)):
            fail("row", f"one that {contract.parties[party].name} signed", "another")
        return row

    def mixes(self, contract: Contract) -> dict[Place, bytes]:
        """Return the hashes of the rows that the party mixed, by their places.

        Raises
        ------
        ValueError
            If there are none, or more than there can be.
        """
        entries = range(0, len(self.mixed), MIXED_BYTES)
        if len(self.mixed) % MIXED_BYTES or len(entries) > max(contract.nodes, contract.models):
            fail("row", "hashes of the rows that its party mixed", f"{len(self.mixed)} bytes")
        hashes: dict[Place, bytes] = {}
        for start in entries:
            entry = self.mixed[start : start + MIXED_BYTES]
            round_, exchange, party = read_numbers(entry[:4], entry[4:8], entry[8:12])
            if party >= contract.nodes:
                fail("row", "hashes of rows of parties of the contract", party)
            hashes[Place(Position(round_, exchange), party)] = entry[12:]
        return hashes

    def values(self, contract: Contract) -> Released | None:
        """Return what receivers compute with; None if nothing was released.

        Raises
        ------
        ValueError
            If it has another type or length than the contract's rows, a number that is not finite,
            or a norm beyond `largest_row`.
        """
        models = contract.models
        if self.shape[0] == 0 and contract.topology is None and not self.codes:
            return None
        if self.shape != (models, contract.dim // models) or self.dtype != contract.terms.numbers:
            fail("row", "the type and length of the contract's rows", f"{self.dtype} {self.shape}")
        compressor = compressor_at(contract, self.at)
        if compressor is not None:
            values = compressor.decode([self.codes], self.shape[1], self.dtype)
        else:
            values = np.frombuffer(self.codes, np.dtype(self.dtype).newbyteorder("<"))
            values = values.reshape(self.shape).astype(self.dtype)
        released = values if contract.topology is not None else values[~np.isnan(values[:, 0])]
        check_length(released, contract)
        return Released(values)


def place_and_hash(contract: Contract, message: bytes) -> tuple[Place, bytes]:
    """Return the place of a stored row, and its hash, signature included."""
    return Row.read(message, contract, stored=True).place, digest(message)


def mixed_rows(contract: Contract, messages: Iterable[bytes]) -> bytes:
    """Return positions, parties and hashes of the rows that a node mixed, as `Row.mixed`."""
    entries = (place_and_hash(contract, message) for message in messages)
    return b"".join(
        b"".join(numbers(*place.at, place.party)) + row_hash for place, row_hash in entries
    )


def check_length(rows: Floats, contract: Contract) -> None:
    """Fail unless rows are finite and no longer than the contract's `largest_row`."""
    longest = contract.terms.largest_row
    if not kernels.all_finite(rows) or (len(rows) and kernels.row_norms(rows).max() > longest):
        fail("row", f"finite numbers of norm at most {longest:g}", "others")


def compressor_at(contract: Contract, position: Position) -> Compressor | None:
    """Return what compresses the messages of an exchange: the algorithm's, in the first one."""
    compressor: Compressor | None = getattr(contract.algorithm, "compressor", None)
    if position.exchange == 0:
        return compressor
    return None


class Heard(NamedTuple):
    """A party's signed answer to the questions of all that started: one for all of them.

    Attributes
    ----------
    by
        Who answers.
    asked
        The hash of the message with the questions. Who finds its own among them was answered.
    later
        Later rows of parties who ask, as these signed them. Where parties add up sums, how far the
        party who answers got itself; see `progress`.
    """

    by: int
    asked: bytes
    later: bytes

    def signed(self, contract: Contract, key: SigningKey) -> bytes:
        """Return the answer as bytes, signed."""
        numbered = numbers(self.by)
        return signed(key, HEARD, contract.hash, *numbered, self.asked, self.later)

    @classmethod
    def read(
        cls, message: bytes, contract: Contract, questions: Mapping[bytes, tuple[Fresh, ...]]
    ) -> Heard:
        """Return a party's answer, whose signature is checked.

        Raises
        ------
        ValueError
            If it is none that a party of this contract signed, answers none of what was `asked`, by
            hash, or has a row that is no later one of who asks.
        """
        (by,), (to, later) = read_signed(message, HEARD, contract)
        if to not in questions:
            fail("message", "an answer under this contract", "another message")
        if contract.planned.sums is not None:
            progress(later, contract)
            return cls(by, to, later)
        for row_message in unpack(later):
            row = Row.read(row_message, contract)
            if not any(
                row.party == question.party and row.sent > question.last
                for question in questions[to]
            ):
                fail("message", "later rows of parties who ask", "another row")
        return cls(by, to, later)


def progress(report: bytes, contract: Contract) -> tuple[Position, tuple[int, ...]]:
    """Return the last attempt that a party answered, and how many of each kind it was charged for.

    Raises
    ------
    ValueError
        If a message says nothing of that.
    """
    count = 2 + len(contract.planned.attempts)
    if len(report) != count * NUMBER_BYTES:
        fail("message", "the progress of a party", "another message")
    after, attempt, *spent = struct.unpack(f">{count}I", report)
    return Position(after - 1, attempt), tuple(spent)
