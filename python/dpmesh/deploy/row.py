"""Rows: signed messages with the values that a party released, and hashes of the rows it received.

Where parties do not add up sums, a node sends one row in each exchange of messages: to its
neighbours, which mix it (gossip), or to the next holder of the token, which learns from it. A row
that is no release, at the end of the run or withheld, has no values.

Each row also states the rows that its party mixed. So receivers can show that a party signed
different rows for different receivers (equivocation), see `dpmesh.deploy.witness`.

`RollbackReport` is a party's answer to the question of other parties after their start, for later
rows of them; see `dpmesh.deploy.wire.RollbackQuestion`.
"""

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
    INT_BYTES,
    ROLLBACK_REPORT,
    Position,
    ReleaseIndex,
    RollbackQuestion,
    int_fields,
    read_ints,
    read_signed_message,
    signed_message,
)
from dpmesh.noise.compression import Compressor

ROW = b"dpmesh row 1"
HASH_BYTES = 32
MIXED_ENTRY_BYTES = 3 * INT_BYTES + HASH_BYTES
"""Bytes that a row has for each mixed row: round, exchange, party and hash."""
PROCESS_NONCE_BYTES = 8


class Place(NamedTuple):
    """The place of a row in a run.

    Attributes
    ----------
    position
        The position at which the row was sent.
    party
        Number of the party that sent it.
    """

    position: Position
    party: int


@dataclass(frozen=True)
class Row:
    """A released row, signed by its party.

    Parameters
    ----------
    contract
        Hash of the contract, 32 bytes.
    position
        Position of the row in the run.
    party
        Number of the party that sends the row.
    incarnation
        Number of times that the party's folder was restored from an older copy, as it states.
    dtype, shape
        Type (``float64`` or ``float32``) and shape (models, parameters of a model) of the values;
        shape (0, 0) if the party released nothing.
    encoded_values
        The values, least significant byte first, or their codes by the algorithm's compressor.
    mixed_rows
        Position, party and hash of each row that the party mixed before it sent this one, packed by
        `mixed_rows_field`.
    process_nonces
        Where partners share secrets for correlated noise: the nonce of the party's process, and
        those of its partners in the next round, see `dpmesh.deploy.partner_nonces`. Else empty.
    signature
        The party's signature of all other fields; empty before `signed`.
    """

    contract: bytes
    position: Position
    party: int
    incarnation: int
    dtype: str
    shape: tuple[int, int]
    encoded_values: bytes
    mixed_rows: bytes
    process_nonces: bytes = b""
    signature: bytes = b""

    def signed(self, key: SigningKey) -> bytes:
        """Sign the row, and return it as a message."""
        return signed_message(key, *self._unsigned_fields)

    @property
    def place(self) -> Place:
        """The row's position and party."""
        return Place(self.position, self.party)

    @property
    def is_withheld(self) -> bool:
        """True if the row has no values: its party keeps them to itself, or released none."""
        return self.shape == (0, 0) and not self.encoded_values

    def without_values(self) -> Row:
        """Return the unsigned row that a party sends when it keeps the values to itself."""
        return replace(self, shape=(0, 0), encoded_values=b"", process_nonces=b"", signature=b"")

    @property
    def release_index(self) -> ReleaseIndex:
        """Place of the row in the order of its party's releases."""
        return ReleaseIndex(self.incarnation, self.position)

    @property
    def _unsigned_fields(self) -> tuple[bytes, ...]:
        """All fields of the message but the signature, in their order."""
        place = int_fields(*self.position, self.party, self.incarnation, *self.shape)
        contents = self.dtype.encode(), self.encoded_values, self.mixed_rows, self.process_nonces
        return ROW, self.contract, *place, *contents

    @classmethod
    def read(cls, message: bytes, contract: Contract, *, stored: bool = False) -> Row:
        """Return the row in a message.

        Parameters
        ----------
        message
            The message.
        contract
            The contract under which the row must be signed.
        stored
            True for a message that was verified before it was stored: its signature is not
            verified again.

        Raises
        ------
        ValueError
            If the message is no row of this contract, or its party did not sign it.
        """
        kind, contract_hash, *place, dtype, values, mixed, nonces, signature = unpack(message)
        if kind != ROW or contract_hash != contract.hash or len(place) != 6:
            fail("row", "a row of this contract", "another message")
        round_, exchange, number, incarnation, rows, columns = read_ints(*place)
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
            encoded_values=values,
            mixed_rows=mixed,
            process_nonces=nonces,
            signature=signature,
        )
        row.mixed_hashes(contract)  # fails if they are malformed
        fields = (kind, contract_hash, *place, dtype, values, mixed, nonces)
        is_sound = row._unsigned_fields == fields and row._has_fitting_nonces(contract)
        if not is_sound or not (stored or is_signed(party.public_key, signature, *fields)):
            fail("row", f"one that {party.name} signed", "another")
        return row

    def _has_fitting_nonces(self, contract: Contract) -> bool:
        """Return True if the row has at most one nonce for each party, and none without secrets."""
        if not contract.planned.has_partners:
            return not self.process_nonces
        return len(self.process_nonces) <= PROCESS_NONCE_BYTES * contract.nodes

    def mixed_hashes(self, contract: Contract) -> dict[Place, bytes]:
        """Return the SHA-256 of each row that the party mixed before this one, by its place.

        Raises
        ------
        ValueError
            If the field is malformed, or has more rows than a party can mix.
        """
        entries = range(0, len(self.mixed_rows), MIXED_ENTRY_BYTES)
        most_entries = max(contract.nodes, contract.models)
        if len(self.mixed_rows) % MIXED_ENTRY_BYTES or len(entries) > most_entries:
            got = f"{len(self.mixed_rows)} bytes"
            fail("row", "hashes of the rows that its party mixed", got)
        hashes: dict[Place, bytes] = {}
        for start in entries:
            entry = self.mixed_rows[start : start + MIXED_ENTRY_BYTES]
            round_, exchange, party = read_ints(entry[:4], entry[4:8], entry[8:12])
            if party >= contract.nodes:
                fail("row", "hashes of rows of parties of the contract", party)
            hashes[Place(Position(round_, exchange), party)] = entry[12:]
        return hashes

    def values(self, contract: Contract) -> Released | None:
        """Return the released values, as receivers compute with them.

        Returns
        -------
        Shape (models, parameters of a model), in the type of the contract's numbers. By token, a
        model that the party does not release has NaN. None if the party released nothing.

        Raises
        ------
        ValueError
            If the row has another type or shape than the contract's rows, a number that is not
            finite, or a row of an L2 norm above the contract's `largest_row`.
        """
        models = contract.models
        is_token = contract.topology is None
        if self.shape[0] == 0 and is_token and not self.encoded_values:
            return None
        if self.shape != (models, contract.dim // models) or self.dtype != contract.terms.numbers:
            fail("row", "the type and length of the contract's rows", f"{self.dtype} {self.shape}")
        compressor = compressor_at(contract, self.position)
        if compressor is not None:
            values = compressor.decode([self.encoded_values], self.shape[1], self.dtype)
        else:
            values = np.frombuffer(self.encoded_values, np.dtype(self.dtype).newbyteorder("<"))
            values = values.reshape(self.shape).astype(self.dtype)
        released = values
        if is_token:
            released = values[~np.isnan(values[:, 0])]  # models without a release are NaN
        check_norms(released, contract)
        return Released(values)


def place_and_hash(contract: Contract, message: bytes) -> tuple[Place, bytes]:
    """Return the place of a stored row, and the SHA-256 of its message with the signature."""
    return Row.read(message, contract, stored=True).place, digest(message)


def mixed_rows_field(contract: Contract, messages: Iterable[bytes]) -> bytes:
    """Return the field `Row.mixed_rows`: position, party and hash of each row that a node mixed."""
    entries: list[bytes] = []
    for message in messages:
        place, row_hash = place_and_hash(contract, message)
        entries += [*int_fields(*place.position, place.party), row_hash]
    return b"".join(entries)


def check_norms(rows: Floats, contract: Contract) -> None:
    """Fail unless rows, shape (rows, dim), are finite and of norm at most `largest_row`."""
    longest = contract.terms.largest_row
    if not kernels.all_finite(rows) or (len(rows) and kernels.row_norms(rows).max() > longest):
        fail("row", f"finite numbers of norm at most {longest:g}", "others")


def compressor_at(contract: Contract, position: Position) -> Compressor | None:
    """Return the compressor of an exchange: the algorithm's, in the first one of a round."""
    compressor: Compressor | None = getattr(contract.algorithm, "compressor", None)
    if position.exchange == 0:
        return compressor
    return None


class RollbackReport(NamedTuple):
    """A party's signed answer to one message with the rollback questions of other parties.

    It answers each of these questions: no later row of a party that asks means that the reporter
    has received none.

    Attributes
    ----------
    reporter
        Number of the party that answers.
    questions_hash
        Hash of the message with the questions. It has a nonce of each start, so that the report
        fits no other start.
    content
        Later rows of the parties that ask, packed. Where parties add up sums, the progress of the
        reporter, see `read_sum_progress`.
    """

    reporter: int
    questions_hash: bytes
    content: bytes

    def signed(self, contract: Contract, key: SigningKey) -> bytes:
        """Sign the report, and return it as a message."""
        party = int_fields(self.reporter)
        return signed_message(
            key, ROLLBACK_REPORT, contract.hash, *party, self.questions_hash, self.content
        )

    @classmethod
    def read(
        cls,
        message: bytes,
        contract: Contract,
        questions: Mapping[bytes, tuple[RollbackQuestion, ...]],
    ) -> RollbackReport:
        """Return the report in a message, once it is verified.

        Parameters
        ----------
        message
            The message.
        contract
            The contract under which the report must be signed.
        questions
            The questions that a report may answer, by the hash of their message.

        Raises
        ------
        ValueError
            If no party of the contract signed the message, if it answers none of `questions`, or if
            it has a row that is not a later row of a party that asks.
        """
        (party,), (questions_hash, content) = read_signed_message(
            message, ROLLBACK_REPORT, contract
        )
        if questions_hash not in questions:
            fail("message", "an answer under this contract", "another message")
        report = cls(party, questions_hash, content)
        if contract.planned.first_sum is not None:
            read_sum_progress(content, contract)  # fails if it is malformed
            return report
        for row_message in unpack(content):
            row = Row.read(row_message, contract)
            if not any(
                row.party == question.party and row.release_index > question.last_release
                for question in questions[questions_hash]
            ):
                fail("message", "later rows of parties who ask", "another row")
        return report


def read_sum_progress(content: bytes, contract: Contract) -> tuple[Position, tuple[int, ...]]:
    """Return the progress of a party in a run of sums, as a `RollbackReport` states it.

    Returns
    -------
    The position of the last attempt that was charged to the party, and for each kind of sum the
    number of attempts that were charged to it.

    Raises
    ------
    ValueError
        If the content has another length.
    """
    count = 2 + len(contract.planned.allowed_by_kind)
    if len(content) != count * INT_BYTES:
        fail("message", "the progress of a party", "another message")
    next_round, attempt, *charged = struct.unpack(f">{count}I", content)
    return Position(next_round - 1, attempt), tuple(charged)
