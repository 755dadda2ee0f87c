"""What nodes and the router send each other, as bytes.

A node sends its signature under the contract and what passed a mechanism, see `row` and `sums`; a
router sends questions. Every message begins with its kind and the contract's hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from struct import iter_unpack
from typing import NamedTuple

from dpmesh._validate import fail
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.signing import SigningKey, is_signed, pack, unpack

SIGNED, ASK, WHO, NO, HERE, FRESH = (
    f"dpmesh {kind} 1".encode() for kind in ("signed", "ask", "who", "no", "here", "fresh")
)
NUMBER_BYTES = 4
FRESH_BYTES = 4 * NUMBER_BYTES + 16


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


class Signature(NamedTuple):
    """A party's signature under the contract, and its key of the run, if parties have one.

    Where partners share secrets, the number of its process follows on the key.
    """

    party: int
    key: bytes

    @classmethod
    def of(cls, contract: Contract, party: int, signing: SigningKey, key: bytes = b"") -> bytes:
        """Return the message in which a party signs the contract."""
        return signed(signing, SIGNED, contract.hash, *numbers(party), key)

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Signature:
        """Return a party's signature, which is checked; fail if it is none under this contract."""
        (party,), (key,) = read_signed(message, SIGNED, contract)
        return cls(party, key)


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


def signed(key: SigningKey, *fields: bytes) -> bytes:
    """Return fields as a message, with a signature of all of them."""
    return pack(*fields, key.sign(*fields))


def read_signed(
    message: bytes, kind: bytes, contract: Contract, count: int = 1
) -> tuple[tuple[int, ...], list[bytes]]:
    """Return the first numbers of a signed message, and its other fields.

    The last of the `count` numbers is the party that signed it.

    Raises
    ------
    ValueError
        If it is of another kind or contract, or no party of the contract signed it.
    """
    found, of, *fields, signature = unpack(message)
    *_, party = named = read_numbers(*fields[:count])
    if found != kind or of != contract.hash or party >= contract.nodes:
        fail("message", "one that a party signed under this contract", "another")
    if not is_signed(contract.parties[party].public_key, signature, found, of, *fields):
        fail("signature", f"that of {contract.parties[party].name}", "another")
    return named, fields[count:]
