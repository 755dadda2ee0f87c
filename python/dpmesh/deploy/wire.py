"""Messages between nodes and the router, as bytes.

A node is the process of one party. The router, which no party trusts, asks nodes questions; a node
answers each question with one message:

    question                                   answer
    who is there? (`presence_question`)        `Signature`, or `Presence` with a rollback question
                                               (start not confirmed yet) or its last step
    `StepQuestion`                             a `dpmesh.deploy.row.Row`, or parts of sums (`sums`)
    `RollbackQuestion` of other nodes          `dpmesh.deploy.row.RollbackReport`
    stored signatures or totals?               `RecoveryAnswer`, for a router that was restarted
    any                                        a refusal, with a reason of `RefusedError`

A message is a sequence of fields (`dpmesh.deploy.signing.pack`). The first field is its kind, one
of the constants below. The second is the contract's hash, except in `Presence`, in bundles, and in
the headers, parts and totals of sums.

A *position* is a place in a run: a round, and an exchange of messages in that round. Where parties
add up sums, the first number counts sums (*steps*), and the second counts attempts at a sum.

A node asks a rollback question after each start of its process, because its folder may be an older
copy (a rollback). Other nodes report later releases of it that they received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from dpmesh._validate import fail
from dpmesh.deploy.bundles import bundled, parties_in, party_bits, unbundled
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.signing import SigningKey, is_signed, pack, unpack

SIGNATURE = b"dpmesh signed 1"
ROLLBACK_REPORT = b"dpmesh heard 1"
STEP_QUESTION = b"dpmesh ask 1"
PRESENCE_QUESTION = b"dpmesh who 1"
REFUSAL = b"dpmesh no 1"
PRESENCE = b"dpmesh here 1"
RECOVERY_QUESTION = b"dpmesh recall 1"
RECOVERY_ANSWER = b"dpmesh recalled 1"
ROLLBACK_QUESTION = b"dpmesh fresh 2"
WITHHOLD = pack(b"dpmesh withhold 1")
"""A message attached to a question for a row, if no party can confirm the node's start. The node
then computes its step, and does not send the values of the row."""
INT_BYTES = 4
"""Bytes of an integer in a message, most significant byte first."""
START_NONCE_BYTES = 16
"""Bytes of the random number that identifies a start of a node."""


class Position(NamedTuple):
    """A place in a run: a round, and an exchange of messages in that round.

    Positions are ordered as the run visits them.

    Attributes
    ----------
    round
        Number of the round, from 0; for sums, number of the sum.
    exchange
        Number of the exchange in the round, from 0; for sums, number of the attempt at the sum.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.deploy.Position(round=3) < dm.deploy.Position(round=3, exchange=1)
    True
    """

    round: int
    exchange: int = 0


BEFORE = Position(-1)
"""The position of a party that has not released anything yet."""


class ReleaseIndex(NamedTuple):
    """Place of a release in the order of a party's releases; a later release has a larger index.

    Attributes
    ----------
    incarnation
        Number of times that the party's folder was restored from an older copy.
    position
        Position of the release; `BEFORE` for none.
    """

    incarnation: int
    position: Position

    @classmethod
    def of(cls, incarnation: int, round_: int, exchange: int = 0) -> ReleaseIndex:
        """Return the index of a release, from the two numbers of its position."""
        return cls(incarnation, Position(round_, exchange))


class RefusedError(ValueError):
    """A node refuses a question, for a reason that depends on public numbers alone.

    The reason is the text of the error, one of: ``malformed``, ``another contract``, ``not the next
    round``, ``bad row of PARTY``, ``not signed by PARTY``, ``bad key`` (of a party of a sum), ``bad
    cohort``, ``bad total``, ``not dealt`` (a secret that the node does not have), ``over budget``,
    ``restored`` (another party has a later release of the node), ``failed`` (before anything was
    charged: ask again), ``stopped`` (a step failed after it was charged, or the party left the
    contract, or has erased the secrets of its run).
    """


class Signature(NamedTuple):
    """A party's signature under the contract, with its public key of the run.

    Attributes
    ----------
    party
        Number of the party.
    key
        The party's X25519 public key of the run, 32 bytes, if parties add up sums or share secrets;
        else empty. Where partners share secrets for correlated noise, the nonce of the node's
        process follows on it, see `dpmesh.deploy.partner_nonces`.
    """

    party: int
    key: bytes

    @classmethod
    def of(cls, contract: Contract, party: int, signing: SigningKey, key: bytes = b"") -> bytes:
        """Return the message in which a party signs the contract."""
        return signed_message(signing, SIGNATURE, contract.hash, *int_fields(party), key)

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Signature:
        """Return the signature in a message, once it is verified.

        Raises
        ------
        ValueError
            If the message is no valid signature of a party under this contract.
        """
        (party,), (key,) = read_signed_message(message, SIGNATURE, contract)
        return cls(party, key)


class StepProgress(NamedTuple):
    """Progress of a node: the position of its last step, and what began that step.

    Attributes
    ----------
    position
        Position of the step.
    header
        Header of the sum of the step, a message of `dpmesh.deploy.sums.Header`. At an early end,
        the packed withdrawals that justify it. Empty where parties send rows, for sums over
        neighbours, and at the end of a whole run.
    """

    position: Position
    header: bytes = b""

    def as_bytes(self) -> bytes:
        """Return the progress as a field of a message."""
        return pack(*int_fields(*self.position), self.header)

    @classmethod
    def read(cls, field: bytes) -> StepProgress:
        """Return the progress in a field; raise a ValueError if there is none."""
        round_, exchange, header = unpack(field)
        return cls(Position(*read_ints(round_, exchange)), header)


class Presence(NamedTuple):
    """A node's answer to the question who is there: its start is not confirmed, or it took a step.

    Attributes
    ----------
    signature
        A `Signature`, as a message.
    rollback_question
        A `RollbackQuestion` of this node alone, as a message; empty once others have answered it.
    progress
        The node's last step; None before its first step.
    """

    signature: bytes
    rollback_question: bytes
    progress: StepProgress | None

    def as_bytes(self) -> bytes:
        """Return the answer as a message."""
        progress = b""
        if self.progress is not None:
            progress = self.progress.as_bytes()
        return pack(PRESENCE, self.signature, self.rollback_question, progress)

    @classmethod
    def read(cls, message: bytes) -> Presence:
        """Return the answer in a message; raise a ValueError for any other message.

        The signature in it is not verified here.
        """
        kind, signature, rollback_question, progress = unpack(message)
        if kind != PRESENCE:
            fail("message", "that a party is here", "another message")
        if not progress:
            return cls(signature, rollback_question, None)
        return cls(signature, rollback_question, StepProgress.read(progress))


class RecoveryAnswer(NamedTuple):
    """Public state of a run that a node stored, for a router that was restarted.

    Attributes
    ----------
    signatures
        The `Signature` messages of all parties.
    totals
        The totals of sums that the node has accepted, ascending by step, as messages.
    """

    signatures: tuple[bytes, ...] = ()
    totals: tuple[bytes, ...] = ()

    def as_bytes(self, contract: Contract) -> bytes:
        """Return the answer as a message."""
        return pack(RECOVERY_ANSWER, contract.hash, pack(*self.signatures), pack(*self.totals))

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> RecoveryAnswer:
        """Return the answer in a message; raise a ValueError for any other message.

        Signatures and totals in it are not verified here.
        """
        kind, contract_hash, signatures, totals = unpack(message)
        if kind != RECOVERY_ANSWER or contract_hash != contract.hash:
            fail("message", "what a party kept of the run", "another message")
        return cls(unpack(signatures), unpack(totals))


def signatures_question(contract: Contract) -> bytes:
    """Return the question for the signatures of all parties that a node has stored."""
    return pack(RECOVERY_QUESTION, contract.hash)


def totals_question(contract: Contract, first_step: int) -> bytes:
    """Return the question for the totals that a node has accepted, from a step on."""
    return pack(RECOVERY_QUESTION, contract.hash, *int_fields(first_step))


def first_total_wanted(message: bytes, contract: Contract) -> int | None:
    """Return the first step of a `totals_question`; None for a `signatures_question`.

    Raises
    ------
    RefusedError
        If the message is neither of them under this contract.
    """
    with suppress(ValueError):
        kind, contract_hash, *steps = unpack(message)
        if kind == RECOVERY_QUESTION and contract_hash == contract.hash and len(steps) <= 1:
            if not steps:
                return None
            (first_step,) = read_ints(*steps)
            return first_step
    raise RefusedError("malformed")


class RollbackQuestion(NamedTuple):
    """A node's question to others after its start, for later releases of it than its folder has.

    A later release shows that the folder was restored from an older copy (a rollback).

    Attributes
    ----------
    party
        Number of the party that asks.
    last_release
        Index of the last release in the party's folder.
    nonce
        16 random bytes, for this start alone. An answer to an earlier start does not fit.
    """

    party: int
    last_release: ReleaseIndex
    nonce: bytes

    @staticmethod
    def together(contract: Contract, questions: Iterable[RollbackQuestion]) -> bytes:
        """Return the questions of several nodes as one message.

        Questions with the same last release make a group, which states the release once. A group
        has each party at most once. A party that started twice may have two questions with the same
        last release; the second one is then in another group.
        """
        groups: dict[tuple[ReleaseIndex, int], dict[int, bytes]] = {}
        earlier_questions: Counter[tuple[ReleaseIndex, int]] = Counter()
        for question in questions:
            start = earlier_questions[question.last_release, question.party]
            earlier_questions[question.last_release, question.party] += 1
            group = groups.setdefault((question.last_release, start), {})
            group[question.party] = question.nonce
        fields: list[bytes] = []
        for (last_release, _), nonce_by_party in sorted(groups.items()):
            incarnation, (round_, exchange) = last_release
            fields.append(b"".join(int_fields(incarnation, round_ + 1, exchange)))  # round -1 as 0
            fields.append(party_bits(nonce_by_party))
            fields.append(b"".join(nonce_by_party[party] for party in sorted(nonce_by_party)))
        return pack(ROLLBACK_QUESTION, contract.hash, *fields)

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> tuple[RollbackQuestion, ...]:
        """Return the questions in a message, at least one.

        Raises
        ------
        ValueError
            If the message has no such questions under this contract.
        """
        kind, contract_hash, *fields = unpack(message)
        is_rollback_question = kind == ROLLBACK_QUESTION and contract_hash == contract.hash
        if not is_rollback_question or not fields or len(fields) % 3:
            fail("message", "questions under this contract", "another message")
        questions: list[RollbackQuestion] = []
        for index, bits, nonces in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
            incarnation, next_round, exchange = read_ints(index[:4], index[4:8], index[8:])
            last_release = ReleaseIndex.of(incarnation, next_round - 1, exchange)
            parties = parties_in(bits)
            if not parties or len(nonces) != START_NONCE_BYTES * len(parties):
                fail("message", "a random number of each party that asks", "another message")
            for place, party in enumerate(parties):
                start = place * START_NONCE_BYTES
                nonce = nonces[start : start + START_NONCE_BYTES]
                questions.append(cls(party, last_release, nonce))
        return tuple(questions)


class StepQuestion(NamedTuple):
    """A router's question for a node's next message: a row, parts of sums, or the end of the run.

    Attributes
    ----------
    position
        Position of the message.
    attached
        The inputs of the step, as messages: signatures of parties, rows, or headers and totals of
        sums, and the rollback reports that confirm the node's start.
    """

    position: Position
    attached: tuple[bytes, ...]

    def as_bytes(self, contract: Contract) -> bytes:
        """Return the question as a message."""
        attached = bundled(self.attached, common_end=[ROLLBACK_REPORT], distinct_end=[SIGNATURE])
        return pack(STEP_QUESTION, contract.hash, *int_fields(*self.position), *attached)


def read_question(
    message: bytes, contract: Contract
) -> StepQuestion | tuple[RollbackQuestion, ...] | None:
    """Return the question in a message, if it is one of three kinds.

    Attached messages are not verified here.

    Returns
    -------
    A `StepQuestion`, the rollback questions of nodes, or None for a `presence_question`.

    Raises
    ------
    RefusedError
        If it is no such question under this contract.
    """
    try:
        kind, contract_hash, *fields = unpack(message)
    except ValueError:
        raise RefusedError("malformed") from None
    if contract_hash != contract.hash:
        raise RefusedError("another contract")
    if kind == PRESENCE_QUESTION and not fields:
        return None
    with suppress(ValueError):
        if kind == ROLLBACK_QUESTION:
            return RollbackQuestion.read(message, contract)
        if kind == STEP_QUESTION:
            round_, exchange = read_ints(*fields[:2])
            attached = unbundled(fields[2:], distinct_end=[SIGNATURE])
            return StepQuestion(Position(round_, exchange), attached)
    raise RefusedError("malformed")


def presence_question(contract: Contract) -> bytes:
    """Return the question who is there: a node answers with its signature under the contract."""
    return pack(PRESENCE_QUESTION, contract.hash)


def refusal(contract: Contract, reason: str) -> bytes:
    """Return the message in which a node refuses a question, with a reason of `RefusedError`."""
    return pack(REFUSAL, contract.hash, reason.encode())


def refusal_reason(message: bytes) -> str | None:
    """Return the reason in a refusal; None if the message is no refusal."""
    try:
        kind, _, reason = unpack(message)
    except ValueError:
        return None
    if kind == REFUSAL:
        return reason.decode(errors="replace")
    return None


def kind_of(message: bytes) -> bytes:
    """Return the kind of a message, its first field; empty if it has no fields."""
    try:
        return unpack(message)[0]
    except (ValueError, IndexError):
        return b""


def int_fields(*values: int) -> tuple[bytes, ...]:
    """Return integers, from 0 to 2^32 - 1, as fields of `INT_BYTES` bytes each."""
    return tuple(value.to_bytes(INT_BYTES, "big") for value in values)


def read_ints(*fields: bytes) -> tuple[int, ...]:
    """Return the integers in fields; raise a ValueError unless each has `INT_BYTES` bytes."""
    if any(len(field) != INT_BYTES for field in fields):
        fail("message", f"numbers of {INT_BYTES} bytes", "others")
    return tuple(int.from_bytes(field, "big") for field in fields)


def signed_message(key: SigningKey, *fields: bytes) -> bytes:
    """Return fields as a message, followed by a signature of all of them."""
    return pack(*fields, key.sign(*fields))


def read_signed_message(
    message: bytes, kind: bytes, contract: Contract, int_count: int = 1
) -> tuple[tuple[int, ...], list[bytes]]:
    """Return the integers and the other fields of a signed message, once it is verified.

    The fields are: kind, contract's hash, integers, other fields, signature.

    Parameters
    ----------
    message
        The message.
    kind, contract
        The kind and the contract that it must have.
    int_count
        Number of integers. The last integer is the number of the party that signed the message.

    Returns
    -------
    The integers, and the other fields without the signature.

    Raises
    ------
    ValueError
        If it is of another kind or contract, or the signature is not valid.
    """
    message_kind, contract_hash, *fields, signature = unpack(message)
    integers = read_ints(*fields[:int_count])
    *_, number = integers
    if message_kind != kind or contract_hash != contract.hash or number >= contract.nodes:
        fail("message", "one that a party signed under this contract", "another")
    party = contract.parties[number]
    if not is_signed(party.public_key, signature, message_kind, contract_hash, *fields):
        fail("signature", f"that of {party.name}", "another")
    return integers, fields[int_count:]
