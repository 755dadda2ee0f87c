"""Messages between nodes and the router, as bytes.

A node sends its signature under the contract and releases of mechanisms, see `row` and `sums`; a
router sends questions. Every message begins with its kind and the contract's hash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from dpmesh._validate import fail
from dpmesh.deploy.bundles import bits_of, bundled, parties_in, unbundled
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.signing import SigningKey, is_signed, pack, unpack

SIGNED = b"dpmesh signed 1"
HEARD = b"dpmesh heard 1"
ASK = b"dpmesh ask 1"
WHO = b"dpmesh who 1"
NO = b"dpmesh no 1"
HERE = b"dpmesh here 1"
RECALL = b"dpmesh recall 1"
RECALLED = b"dpmesh recalled 1"
FRESH = b"dpmesh fresh 2"
WITHHOLD = pack(b"dpmesh withhold 1")
"""A message that goes with a question for a row: a node whose start nobody can confirm computes its
step, and keeps the row to itself."""
NUMBER_BYTES = 4
FRESH_BYTES = 16
"""Of the random number of a start."""


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
    """Progress of a party; a later one is larger.

    Attributes
    ----------
    incarnation
        How often its folder was restored.
    position
        The position of what it released last since then.
    """

    incarnation: int
    position: Position

    @classmethod
    def of(cls, incarnation: int, round_: int, exchange: int = 0) -> Sent:
        """Return the progress of a party that sent a message of a round and exchange last."""
        return cls(incarnation, Position(round_, exchange))


class RefusedError(ValueError):
    """A node does not answer. The reason depends on public numbers alone.

    It is one of: ``malformed``, ``another contract``, ``not the next round``, ``bad row of PARTY``,
    ``not signed by PARTY``, ``bad key`` (of a party of a sum), ``bad cohort``, ``bad total``,
    ``not dealt`` (a secret that it does not have), ``over budget``, ``restored``, ``failed``
    (before anything was charged: ask again), ``stopped`` (after that).
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


class Reached(NamedTuple):
    """Progress of a node: its last step, and the proposal for it.

    Attributes
    ----------
    position
        The position of the step.
    header
        The header of its sum; empty where parties send rows, and at the end.
    """

    position: Position
    header: bytes = b""

    def as_bytes(self) -> bytes:
        """Return the progress as a field of a message."""
        return pack(*numbers(*self.position), self.header)

    @classmethod
    def read(cls, field: bytes) -> Reached:
        """Return the progress in a field; fail if there is none."""
        round_, exchange, header = unpack(field)
        return cls(Position(*read_numbers(round_, exchange)), header)


class Here(NamedTuple):
    """A node's answer to the question who it is, once it has started anew or taken a step.

    Attributes
    ----------
    signature
        Its signature under the contract, a message.
    question
        What it asks the others after its start, a message; empty once they have answered.
    reached
        How far it got; None before its first step.
    """

    signature: bytes
    question: bytes
    reached: Reached | None

    def as_bytes(self) -> bytes:
        """Return the answer as a message."""
        reached = b""
        if self.reached is not None:
            reached = self.reached.as_bytes()
        return pack(HERE, self.signature, self.question, reached)

    @classmethod
    def read(cls, message: bytes) -> Here:
        """Return the answer in a message; raise a ValueError for any other message."""
        kind, signature, question, reached = unpack(message)
        if kind != HERE:
            fail("message", "that a party is here", "another message")
        if not reached:
            return cls(signature, question, None)
        return cls(signature, question, Reached.read(reached))


class Recalled(NamedTuple):
    """Public state of a run that a node stored, for a router that was started anew.

    Attributes
    ----------
    signatures
        Those of all parties under the contract, as messages.
    totals
        Totals that it has accepted, as messages, in their order.
    """

    signatures: tuple[bytes, ...] = ()
    totals: tuple[bytes, ...] = ()

    def as_bytes(self, contract: Contract) -> bytes:
        """Return the signatures and totals as a message."""
        return pack(RECALLED, contract.hash, pack(*self.signatures), pack(*self.totals))

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Recalled:
        """Return the signatures and totals in a message; fail if it is none of this contract."""
        kind, contract_hash, signatures, totals = unpack(message)
        if kind != RECALLED or contract_hash != contract.hash:
            fail("message", "what a party kept of the run", "another message")
        return cls(unpack(signatures), unpack(totals))


def recall_signatures(contract: Contract) -> bytes:
    """Return the question for the signatures of all parties that a node has seen."""
    return pack(RECALL, contract.hash)


def recall_totals(contract: Contract, since: int) -> bytes:
    """Return the question for the totals that a node has accepted, from a step on."""
    return pack(RECALL, contract.hash, *numbers(since))


def recalled_since(message: bytes, contract: Contract) -> int | None:
    """Return the step from which on totals are asked for; None if signatures are.

    Raises
    ------
    RefusedError
        If it is no such question under this contract.
    """
    with suppress(ValueError):
        kind, contract_hash, *since = unpack(message)
        if kind == RECALL and contract_hash == contract.hash and len(since) <= 1:
            if since:
                return read_numbers(*since)[0]
            return None
    raise RefusedError("malformed")


class Fresh(NamedTuple):
    """A node's question after a start, for later releases of it than its own folder has.

    Attributes
    ----------
    party
        The party that asks.
    last
        The last release that it knows of.
    number
        16 random bytes, for this start alone.
    """

    party: int
    last: Sent
    number: bytes

    @staticmethod
    def together(contract: Contract, questions: Iterable[Fresh]) -> bytes:
        """Return the questions of some nodes as one message.

        Those of the same progress make a group, which names it once. A party that asks again from
        the same progress, after another start, is in another group.
        """
        groups: dict[tuple[Sent, int], dict[int, bytes]] = {}
        starts: Counter[tuple[Sent, int]] = Counter()
        for question in questions:
            start = starts[question.last, question.party]
            starts[question.last, question.party] += 1
            groups.setdefault((question.last, start), {})[question.party] = question.number
        fields: list[bytes] = []
        for (last, _), by_party in sorted(groups.items()):
            incarnation, (round_, exchange) = last
            fields.append(b"".join(numbers(incarnation, round_ + 1, exchange)))
            fields.append(bits_of(by_party))
            fields.append(b"".join(by_party[party] for party in sorted(by_party)))
        return pack(FRESH, contract.hash, *fields)

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> tuple[Fresh, ...]:
        """Return the questions in a message.

        Raises
        ------
        ValueError
            If there are none under this contract.
        """
        kind, contract_hash, *fields = unpack(message)
        is_fresh = kind == FRESH and contract_hash == contract.hash
        if not is_fresh or not fields or len(fields) % 3:
            fail("message", "questions under this contract", "another message")
        questions: list[Fresh] = []
        for last, bits, random in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
            incarnation, after, exchange = read_numbers(last[:4], last[4:8], last[8:])
            parties = parties_in(bits)
            if not parties or len(random) != FRESH_BYTES * len(parties):
                fail("message", "a random number of each party that asks", "another message")
            for place, party in enumerate(parties):
                number = random[place * FRESH_BYTES : (place + 1) * FRESH_BYTES]
                questions.append(cls(party, Sent.of(incarnation, after - 1, exchange), number))
        return tuple(questions)


class Ask(NamedTuple):
    """A router's question: the row of a node at a position, given signed rows from before it."""

    position: Position
    attached: tuple[bytes, ...]

    def as_bytes(self, contract: Contract) -> bytes:
        """Return the question as a message."""
        attached = bundled(self.attached, common_end=[HEARD], distinct_end=[SIGNED])
        return pack(ASK, contract.hash, *numbers(*self.position), *attached)

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Ask | tuple[Fresh, ...] | None:
        """Return a question, or those of all that started; None if it asks for the signature.

        Raises
        ------
        RefusedError
            If it is no question under this contract.
        """
        try:
            kind, contract_hash, *rest = unpack(message)
        except ValueError:
            raise RefusedError("malformed") from None
        if contract_hash != contract.hash:
            raise RefusedError("another contract")
        if kind == WHO and not rest:
            return None
        with suppress(ValueError):
            if kind == FRESH:
                return Fresh.read(message, contract)
            if kind == ASK:
                round_, exchange = read_numbers(*rest[:2])
                return cls(Position(round_, exchange), unbundled(rest[2:], distinct_end=[SIGNED]))
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
    if kind == NO:
        return reason.decode(errors="replace")
    return None


def kind_of(message: bytes) -> bytes:
    """Return the kind of a message; empty if it is none."""
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
    message_kind, contract_hash, *fields, signature = unpack(message)
    first_numbers = read_numbers(*fields[:count])
    *_, number = first_numbers
    if message_kind != kind or contract_hash != contract.hash or number >= contract.nodes:
        fail("message", "one that a party signed under this contract", "another")
    party = contract.parties[number]
    if not is_signed(party.public_key, signature, message_kind, contract_hash, *fields):
        fail("signature", f"that of {party.name}", "another")
    return first_numbers, fields[count:]
