"""What nodes and the router send each other, as bytes.

A node sends rows that passed a mechanism, and its signature under the contract; a router sends
questions. Every message begins with its kind and the contract's hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from struct import iter_unpack
from typing import NamedTuple

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._validate import fail
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.signing import SigningKey, digest, is_signed, pack, unpack
from dpmesh.privacy.compression import Compressor
from dpmesh.privacy.types import Floats, Released

ROW, SIGNED, ASK, WHO, NO, HERE, FRESH, HEARD = (
    f"dpmesh {kind} 1".encode()
    for kind in ("row", "signed", "ask", "who", "no", "here", "fresh", "heard")
)
NUMBER_BYTES = 4
MIXED_BYTES = 3 * NUMBER_BYTES + 32
FRESH_BYTES = 4 * NUMBER_BYTES + 16
PROCESS_BYTES = 8


class Position(NamedTuple):
    """A place in a run: the round, and the exchange of messages within it.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.deploy.Position(round=3) < dm.deploy.Position(round=3, exchange=1)
    True
    """

    round: int
    exchange: int = 0


BEFORE = Position(-1)
"""Before the first message."""


class Sent(NamedTuple):
    """How far a party got; a later one is larger.

    Attributes
    ----------
    incarnation
        How often its folder was restored.
    at
        The position of what it released last since then.
    """

    incarnation: int
    at: Position

    @classmethod
    def of(cls, incarnation: int, *at: int) -> Sent:
        """Return how far a party got: a round and an exchange."""
        return cls(incarnation, Position(*at))


class RefusedError(ValueError):
    """A node does not answer. The reason depends on public numbers alone.

    It is one of: ``malformed``, ``another contract``, ``not the next round``, ``bad row of PARTY``,
    ``not signed by PARTY``, ``bad key`` (of a party of a sum), ``bad cohort``, ``bad total``,
    ``over budget``, ``restored``, ``failed`` (before anything was charged: ask again), ``stopped``
    (after that).
    """


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
    said
        The numbers of its process and of its partners': see `dpmesh.deploy.partners`.
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
    said: bytes = b""
    signature: bytes = b""

    def signed(self, key: SigningKey) -> bytes:
        """Return the row as bytes, signed."""
        return pack(*self._fields, key.sign(*self._fields))

    @property
    def sent(self) -> Sent:
        """How far its party got with it."""
        return Sent(self.incarnation, self.at)

    @property
    def _fields(self) -> tuple[bytes, ...]:
        named = (*self.at, self.party, self.incarnation, *self.shape)
        sent = self.dtype.encode(), self.codes, self.mixed, self.said
        return ROW, self.contract, *numbers(*named), *sent

    @classmethod
    def read(cls, message: bytes, contract: Contract, *, stored: bool = False) -> Row:
        """Return the row in a message, whose signature is checked unless it was `stored` checked.

        Raises
        ------
        ValueError
            If it is no row of this contract that its party signed.
        """
        kind, of, *named, dtype, codes, mixed, said, signature = unpack(message)
        if kind != ROW or of != contract.hash or len(named) != 6:
            fail("row", "a row of this contract", "another message")
        round_, exchange, party, incarnation, rows, dim = read_numbers(*named)
        if party >= contract.nodes:
            fail("row", "a party of the contract", party)
        at, kept, shape = Position(round_, exchange), dtype.decode("ascii"), (rows, dim)
        row = cls(of, at, party, incarnation, kept, shape, codes, mixed, said, signature)
        key = contract.parties[party].public_key
        row.mixes(contract)
        same = row._fields == (kind, of, *named, dtype, codes, mixed, said)
        same &= len(said) <= contract.has_partners * PROCESS_BYTES * contract.nodes
        if not same or not (stored or is_signed(key, signature, *row._fields)):
            fail("row", f"one that {contract.parties[party].name} signed", "another")
        return row

    def mixes(self, contract: Contract) -> dict[tuple[Position, int], bytes]:
        """Return the hashes of the rows that the party mixed, by position and party.

        Raises
        ------
        ValueError
            If there are none, or more than there can be.
        """
        entries = range(0, len(self.mixed), MIXED_BYTES)
        if len(self.mixed) % MIXED_BYTES or len(entries) > max(contract.nodes, contract.models):
            fail("row", "hashes of the rows that its party mixed", f"{len(self.mixed)} bytes")
        found = {}
        for start in entries:
            entry = self.mixed[start : start + MIXED_BYTES]
            round_, exchange, party = read_numbers(entry[:4], entry[4:8], entry[8:12])
            if party >= contract.nodes:
                fail("row", "hashes of rows of parties of the contract", party)
            found[Position(round_, exchange), party] = entry[12:]
        return found

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
        sent = values if contract.topology is not None else values[~np.isnan(values[:, 0])]
        check_length(sent, contract)
        return Released(values)


def place_and_hash(contract: Contract, message: bytes) -> tuple[tuple[Position, int], bytes]:
    """Return the position and the party of a stored row, and its hash, signature included."""
    row = Row.read(message, contract, stored=True)
    return (row.at, row.party), digest(message)


def mixed_rows(contract: Contract, messages: Iterable[bytes]) -> bytes:
    """Return positions, parties and hashes of the rows that a node mixed, as `Row.mixed`."""
    entries = (place_and_hash(contract, message) for message in messages)
    return b"".join(b"".join(numbers(*at, party)) + hashed for (at, party), hashed in entries)


def check_length(rows: Floats, contract: Contract) -> None:
    """Fail unless rows are finite and no longer than the contract's `largest_row`."""
    longest = contract.terms.largest_row
    if not kernels.all_finite(rows) or (len(rows) and kernels.row_norms(rows).max() > longest):
        fail("row", f"finite numbers of norm at most {longest:g}", "others")


def compressor_at(contract: Contract, at: Position) -> Compressor | None:
    """Return what compresses the messages of an exchange: the algorithm's, in the first one."""
    compressor: Compressor | None = getattr(contract.algorithm, "compressor", None)
    return compressor if at.exchange == 0 else None


class Signature(NamedTuple):
    """A party's signature under the contract, and its key of the run, if parties have one.

    Where partners share secrets, the number of its process follows on the key.
    """

    party: int
    key: bytes
    signature: bytes

    @classmethod
    def of(cls, contract: Contract, party: int, signing: SigningKey, key: bytes = b"") -> bytes:
        """Return the message in which a party signs the contract."""
        fields = SIGNED, contract.hash, *numbers(party), key
        return pack(*fields, signing.sign(*fields))

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Signature:
        """Return a party's signature, which is checked.

        Raises
        ------
        ValueError
            If it is not that of a party under this contract.
        """
        kind, of, number, key, signature = fields = unpack(message)
        (party,) = read_numbers(number)
        if kind != SIGNED or of != contract.hash or party >= contract.nodes:
            fail("signature", "one of a party of this contract", "another message")
        if not is_signed(contract.parties[party].public_key, signature, *fields[:-1]):
            fail("signature", f"that of {contract.parties[party].name}", "another")
        return cls(party, key, signature)


class Fresh(NamedTuple):
    """A node asks after each start whether the others have a later row of it than it has.

    Attributes
    ----------
    party
        Who asks.
    last
        What it knows to have released last.
    number
        16 random bytes, for this start alone.
    """

    party: int
    last: Sent
    number: bytes

    @staticmethod
    def together(contract: Contract, asked: Iterable[Fresh]) -> bytes:
        """Return the questions of some nodes as one message."""
        entries = bytearray()
        for party, (incarnation, (round_, exchange)), number in asked:
            entries += b"".join(numbers(party, incarnation, round_ + 1, exchange)) + number
        return pack(FRESH, contract.hash, bytes(entries))

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> tuple[Fresh, ...]:
        """Return the questions in a message.

        Raises
        ------
        ValueError
            If there are none under this contract.
        """
        kind, of, entries = unpack(message)
        if kind != FRESH or of != contract.hash or not entries or len(entries) % FRESH_BYTES:
            fail("message", "questions under this contract", "another message")
        return tuple(
            cls(party, Sent.of(incarnation, after - 1, exchange), number)
            for party, incarnation, after, exchange, number in iter_unpack(">4I16s", entries)
        )


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
        fields = HEARD, contract.hash, *numbers(self.by), self.asked, self.later
        return pack(*fields, key.sign(*fields))

    @classmethod
    def read(
        cls, message: bytes, contract: Contract, asked: Mapping[bytes, tuple[Fresh, ...]]
    ) -> Heard:
        """Return a party's answer, whose signature is checked.

        Raises
        ------
        ValueError
            If it is none that a party of this contract signed, answers none of what was `asked`, by
            hash, or has a row that is no later one of who asks.
        """
        kind, of, number, to, later, signature = fields = unpack(message)
        (by,) = read_numbers(number)
        if kind != HEARD or of != contract.hash or by >= contract.nodes or to not in asked:
            fail("message", "an answer under this contract", "another message")
        if not is_signed(contract.parties[by].public_key, signature, *fields[:-1]):
            fail("signature", f"that of {contract.parties[by].name}", "another")
        if contract.sums is not None:
            progress(later, contract)
            return cls(by, to, later)
        for row in (Row.read(each, contract) for each in unpack(later)):
            if not any(row.party == each.party and row.sent > each.last for each in asked[to]):
                fail("message", "later rows of parties who ask", "another row")
        return cls(by, to, later)


def progress(said: bytes, contract: Contract) -> tuple[Position, tuple[int, ...]]:
    """Return the last attempt that a party answered, and how many of each kind it was charged for.

    Raises
    ------
    ValueError
        If a message says nothing of that.
    """
    kinds = len(contract.planned)
    parts = (said[i : i + NUMBER_BYTES] for i in range(0, (2 + kinds) * NUMBER_BYTES, NUMBER_BYTES))
    after, attempt, *spent = read_numbers(*parts)
    if len(said) != (2 + kinds) * NUMBER_BYTES:
        fail("message", "the progress of a party", "another message")
    return Position(after - 1, attempt), tuple(spent)


class Ask(NamedTuple):
    """A router's question: the row of a node at a position, given signed rows from before it."""

    at: Position
    attached: tuple[bytes, ...]

    def as_bytes(self, contract: Contract) -> bytes:
        """Return the question as a message."""
        return pack(ASK, contract.hash, *numbers(*self.at), *self.attached)

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Ask | tuple[Fresh, ...] | None:
        """Return a question, or those of all that started; None if it asks for the signature.

        Raises
        ------
        RefusedError
            If it is no question under this contract.
        """
        try:
            kind, of, *rest = unpack(message)
        except ValueError:
            raise RefusedError("malformed") from None
        if of != contract.hash:
            raise RefusedError("another contract")
        if kind == WHO and not rest:
            return None
        with suppress(ValueError):
            if kind == FRESH:
                return Fresh.read(message, contract)
            if kind == ASK:
                round_, exchange = read_numbers(*rest[:2])
                return cls(Position(round_, exchange), tuple(rest[2:]))
        raise RefusedError("malformed")


def who(contract: Contract) -> bytes:
    """Return the question for a party's signature under the contract."""
    return pack(WHO, contract.hash)


def refusal(contract: Contract, reason: str) -> bytes:
    """Return a refusal."""
    return pack(NO, contract.hash, reason.encode())


def refused(message: bytes) -> str | None:
    """Return the reason of a refusal; None if the message is none."""
    try:
        kind, _, reason = unpack(message)
    except ValueError:
        return None
    return reason.decode(errors="replace") if kind == NO else None


def kind_of(message: bytes) -> bytes:
    """Return what kind of message it is; empty if it is none."""
    try:
        return unpack(message)[0]
    except (ValueError, IndexError):
        return b""


def numbers(*values: int) -> tuple[bytes, ...]:
    """Return numbers as fields."""
    return tuple(value.to_bytes(NUMBER_BYTES, "big") for value in values)


def read_numbers(*fields: bytes) -> tuple[int, ...]:
    """Return the numbers in fields."""
    if any(len(field) != NUMBER_BYTES for field in fields):
        fail("message", f"numbers of {NUMBER_BYTES} bytes", "others")
    return tuple(int.from_bytes(field, "big") for field in fields)
