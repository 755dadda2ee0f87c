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
    position
        The position at which it was sent.
    party
        The party that sent it.
    """

    position: Position
    party: int


@dataclass(frozen=True)
class Row:
    """A released row, signed by its party.

    Parameters
    ----------
    contract
        The contract's hash.
    position
        Its position in the run.
    party
        Its party's number.
    incarnation
        The number of times that the party's folder was restored, by its own word.
    dtype, shape
        Type and shape of the values; no rows if the party released nothing.
    codes
        The values as they are sent.
    mixed
        Places and hashes of the rows that the party mixed before it sent this one, see
        `mixed_rows`.
    processes
        The numbers of its process and of its partners': see `dpmesh.deploy.witness`.
    signature
        The party's signature of all that.
    """

    contract: bytes
    position: Position
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
        return Place(self.position, self.party)

    @property
    def is_withheld(self) -> bool:
        """True if the party keeps the values to itself."""
        return self.shape == (0, 0) and not self.codes

    def without_values(self) -> Row:
        """Return the unsigned row that a party sends when it keeps the values to itself."""
        return replace(self, shape=(0, 0), codes=b"", processes=b"", signature=b"")

    @property
    def sent(self) -> Sent:
        """Progress of the party with this row."""
        return Sent(self.incarnation, self.position)

    @property
    def _fields(self) -> tuple[bytes, ...]:
        """All fields but the signature, in their order."""
        place = numbers(*self.position, self.party, self.incarnation, *self.shape)
        contents = self.dtype.encode(), self.codes, self.mixed, self.processes
        return ROW, self.contract, *place, *contents

    @classmethod
    def read(cls, message: bytes, contract: Contract, *, stored: bool = False) -> Row:
        """Return the row in a message, whose signature is checked unless it was `stored` checked.

        Raises
        ------
        ValueError
            If it is no row of this contract that its party signed.
        """
        kind, contract_hash, *place, dtype, codes, mixed, processes, signature = unpack(message)
        if kind != ROW or contract_hash != contract.hash or len(place) != 6:
            fail("row", "a row of this contract", "another message")
        round_, exchange, number, incarnation, rows, columns = read_numbers(*place)
        if number >= contract.nodes:
            fail("row", "a party of the contract", number)
        party = contract.parties[number]
        row = cls(
            contract_hash,
            Position(round_, exchange),
            number,
            incarnation,
            dtype=dtype.decode("ascii"),
            shape=(rows, columns),
            codes=codes,
            mixed=mixed,
            processes=processes,
            signature=signature,
        )
        row.mixes(contract)
        fields = (kind, contract_hash, *place, dtype, codes, mixed, processes)
        is_sound = row._fields == fields and row._fits_partners(contract)
        if not is_sound or not (stored or is_signed(party.public_key, signature, *fields)):
            fail("row", f"one that {party.name} signed", "another")
        return row

    def _fits_partners(self, contract: Contract) -> bool:
        """Return True if the row names no more processes than there are parties, if any do."""
        if not contract.planned.has_partners:
            return not self.processes
        return len(self.processes) <= PROCESS_BYTES * contract.nodes

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
        """Return the values that receivers compute with; None if nothing was released.

        Raises
        ------
        ValueError
            If the row has another type or length than the contract's rows, a number that is not
            finite, or a norm beyond `largest_row`.
        """
        models = contract.models
        if self.shape[0] == 0 and contract.topology is None and not self.codes:
            return None
        if self.shape != (models, contract.dim // models) or self.dtype != contract.terms.numbers:
            fail("row", "the type and length of the contract's rows", f"{self.dtype} {self.shape}")
        compressor = compressor_at(contract, self.position)
        if compressor is not None:
            values = compressor.decode([self.codes], self.shape[1], self.dtype)
        else:
            values = np.frombuffer(self.codes, np.dtype(self.dtype).newbyteorder("<"))
            values = values.reshape(self.shape).astype(self.dtype)
        released = values
        if contract.topology is None:
            released = values[~np.isnan(values[:, 0])]  # models without a release are NaN
        check_length(released, contract)
        return Released(values)


def place_and_hash(contract: Contract, message: bytes) -> tuple[Place, bytes]:
    """Return the place of a stored row, and its hash, signature included."""
    return Row.read(message, contract, stored=True).place, digest(message)


def mixed_rows(contract: Contract, messages: Iterable[bytes]) -> bytes:
    """Return places and hashes of the rows that a node mixed, as the field `Row.mixed`."""
    entries = (place_and_hash(contract, message) for message in messages)
    return b"".join(
        b"".join(numbers(*place.position, place.party)) + row_hash for place, row_hash in entries
    )


def check_length(rows: Floats, contract: Contract) -> None:
    """Fail unless rows are finite and no longer than the contract's `largest_row`."""
    longest = contract.terms.largest_row
    if not kernels.all_finite(rows) or (len(rows) and kernels.row_norms(rows).max() > longest):
        fail("row", f"finite numbers of norm at most {longest:g}", "others")


def compressor_at(contract: Contract, position: Position) -> Compressor | None:
    """Return the compressor of an exchange: the algorithm's, in the first one of a round."""
    compressor: Compressor | None = getattr(contract.algorithm, "compressor", None)
    if position.exchange == 0:
        return compressor
    return None


class Heard(NamedTuple):
    """A party's signed answer to the questions of all that started: one for all of them.

    Attributes
    ----------
    by
        The party that answers.
    asked
        The hash of the message with the questions. A party whose question is in it was answered.
    later
        Later rows of parties that ask, as these signed them. Where parties add up sums, the
        progress of the party that answers; see `progress`.
    """

    by: int
    asked: bytes
    later: bytes

    def signed(self, contract: Contract, key: SigningKey) -> bytes:
        """Return the answer as bytes, signed."""
        return signed(key, HEARD, contract.hash, *numbers(self.by), self.asked, self.later)

    @classmethod
    def read(
        cls, message: bytes, contract: Contract, questions: Mapping[bytes, tuple[Fresh, ...]]
    ) -> Heard:
        """Return a party's answer, whose signature is checked.

        Raises
        ------
        ValueError
            If it is none that a party of this contract signed, answers none of the `questions`, by
            the hash of their message, or has a row that is no later one of a party that asks.
        """
        (party,), (question_hash, later) = read_signed(message, HEARD, contract)
        if question_hash not in questions:
            fail("message", "an answer under this contract", "another message")
        report = cls(party, question_hash, later)
        if contract.planned.first_sum is not None:
            progress(later, contract)
            return report
        for row_message in unpack(later):
            row = Row.read(row_message, contract)
            if not any(
                row.party == question.party and row.sent > question.last
                for question in questions[question_hash]
            ):
                fail("message", "later rows of parties who ask", "another row")
        return report


def progress(report: bytes, contract: Contract) -> tuple[Position, tuple[int, ...]]:
    """Return the last attempt that a party answered, and the number of each kind it was charged.

    Raises
    ------
    ValueError
        If the field has another length.
    """
    count = 2 + len(contract.planned.allowed_by_kind)
    if len(report) != count * NUMBER_BYTES:
        fail("message", "the progress of a party", "another message")
    after, attempt, *spent = struct.unpack(f">{count}I", report)
    return Position(after - 1, attempt), tuple(spent)
