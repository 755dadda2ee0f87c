"""A sum that opens in whole or not at all: keys of a run, agreements, masks and tags.

Two parties share a secret by X25519, from which HKDF derives masks for one agreement: one adds
them, the other subtracts them. An agreement is a hash of all that the parties of an attempt must
have in common. Nobody signs it: whoever has another one has other masks, which do not cancel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from secrets import token_bytes
from typing import NamedTuple

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._extras import needed_by
from dpmesh._validate import fail
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.signing import KEY_BYTES, SigningKey, digest, pack, unpack
from dpmesh.deploy.wire import (
    NUMBER_BYTES,
    Position,
    kind_of,
    numbers,
    read_numbers,
    read_signed,
    signed,
)
from dpmesh.kernels.masking import LARGEST, PRIME
from dpmesh.keys import Key, Purpose, Stream
from dpmesh.noise.secure.mechanism import Integers

with needed_by("a sum between parties"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

HEADER = b"dpmesh header 1"
PART = b"dpmesh part 1"
PARTS = b"dpmesh parts 1"
TOTAL = b"dpmesh total 1"
DEAL = b"dpmesh deal 1"
DEALT = b"dpmesh dealt 1"
RELAY = b"dpmesh relay 1"
RELAYED = b"dpmesh relayed 1"
SEAL = b"dpmesh seal 1"
SPENT = b"dpmesh spent 1"
TAG_BYTES = 8
NONCE_BYTES = 12
RELAYED_BYTES = NUMBER_BYTES + NONCE_BYTES + KEY_BYTES + 16
"""Length of a sealed secret that another than its dealer relays: relay, nonce, secret, tag."""


@dataclass(frozen=True, repr=False)
class RunSecrets:
    """A party's secrets of one run, which it erases at the end of the run.

    Attributes
    ----------
    agreement
        A private X25519 key, for secrets shared with each other party.
    local
        32 bytes that the party alone has, for its noise and the tags that it deals.
    """

    agreement: bytes
    local: bytes

    @classmethod
    def generate(cls) -> RunSecrets:
        """Return new secrets from the operating system's randomness."""
        return cls(X25519PrivateKey.generate().private_bytes_raw(), token_bytes(KEY_BYTES))

    @cached_property
    def _private(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.agreement)

    @property
    def public(self) -> bytes:
        """The public half of the X25519 key."""
        return self._private.public_key().public_bytes_raw()

    def as_bytes(self, *keys: bytes) -> bytes:
        """Return the secrets as bytes, with the public keys of all parties once these are fixed."""
        return pack(self.agreement, self.local, *keys)

    def shared(self, public_key: bytes) -> bytes:
        """Return the secret shared with the owner of a public key.

        Raises
        ------
        ValueError
            If the key agreement gives zeros, as for a public key of low order.
        """
        return self._private.exchange(X25519PublicKey.from_public_bytes(public_key))


def derive(secret: bytes, salt: bytes, use: bytes, *context: bytes, length: int = 32) -> bytes:
    """Return bytes by HKDF-SHA256, for one use."""
    info = digest(b"dpmesh sum 1", use, *context)
    return HKDF(hashes.SHA256(), length, salt, info).derive(secret)


@dataclass(frozen=True)
class Header:
    """A router's proposal for an attempt at a sum.

    Parameters
    ----------
    position
        The round, and the attempt in it.
    cohort
        The numbers of the parties that take part, ascending.
    dealer
        The party whose secret tags are made of; of sums over neighbours, the receiver of the sum.
    sealed
        That secret, encrypted for the reader of the header alone; empty for the dealer.
    transcript
        Of sums over neighbours, the receiver's, by the router's word: a receiver that has another
        transcript does not accept the sum.
    """

    position: Position
    cohort: tuple[int, ...]
    dealer: int
    sealed: bytes = b""
    transcript: bytes = b""

    @property
    def common(self) -> Header:
        """The fields of the header that all parties of the attempt share."""
        return replace(self, sealed=b"", transcript=b"")

    def as_bytes(self, contract: Contract) -> bytes:
        """Return the header as a message."""
        members = np.isin(np.arange(contract.nodes), self.cohort)
        place = b"".join(numbers(*self.position, self.dealer))
        return pack(HEADER, place, bits_of(members), self.sealed, self.transcript)

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Header:
        """Return the header in a message.

        Raises
        ------
        ValueError
            If it is none, or names no parties of the contract.
        """
        kind, place, members, sealed, transcript = unpack(message)
        if kind != HEADER or len(place) != 3 * NUMBER_BYTES:
            fail("message", "a header", "another message")
        round_, attempt, dealer = read_numbers(*(place[i : i + 4] for i in (0, 4, 8)))
        flags = np.unpackbits(np.frombuffer(members, np.uint8))
        if bits_of(flags[: contract.nodes]) != members or dealer >= contract.nodes:
            fail("header", f"a bit for each of {contract.nodes} parties", members.hex())
        cohort = tuple(np.flatnonzero(flags).tolist())
        return cls(Position(round_, attempt), cohort, dealer, sealed, transcript)


def bits_of(flags: object) -> bytes:
    """Return flags as bytes, eight in each."""
    return np.packbits(np.asarray(flags, np.uint8)).tobytes()


@dataclass(frozen=True)
class Total:
    """A total that a router made of the parts of an attempt, with the sum of their tags."""

    header: Header
    packed: bytes
    tag: int

    def as_bytes(self, contract: Contract) -> bytes:
        """Return the total as a message."""
        return pack(TOTAL, self.header.as_bytes(contract), self.packed, word(self.tag))

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Total:
        """Return the total in a message; raise a ValueError for any other message."""
        kind, header, packed, tagged = unpack(message)
        if kind != TOTAL or len(tagged) != TAG_BYTES:
            fail("message", "a total", "another message")
        return cls(Header.read(header, contract), packed, int.from_bytes(tagged, "big"))


@dataclass(frozen=True)
class Part:
    """A party's masked part of a sum, on its way to the router.

    Parameters
    ----------
    header
        The header of the attempt, without the sealed secret.
    agreement
        The party's hash of all that the parties of the attempt must have in common.
    packed, tag
        The party's masked integers and masked tag.
    """

    header: Header
    agreement: bytes
    packed: bytes
    tag: int

    def as_bytes(self, contract: Contract) -> bytes:
        """Return the part as a message, which leaves out the cohort if all parties are in it."""
        header = self.header
        members = np.isin(np.arange(contract.nodes), header.cohort)
        place = b"".join((*numbers(*header.position, header.dealer), self.agreement))
        cohort_bits = b""
        if not members.all():
            cohort_bits = bits_of(members)
        return pack(PART, place, cohort_bits, self.packed + word(self.tag))

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Part:
        """Return the part in a message; raise a ValueError for any other message."""
        kind, place, members, body = unpack(message)
        if kind != PART:
            fail("message", "a part", "another message")
        cohort_bits = members or bits_of(np.ones(contract.nodes))
        header = Header.read(pack(HEADER, place[:12], cohort_bits, b"", b""), contract)
        sums = contract.planned.sum_at(header.position.round)
        if len(body) != sums.message_bytes + TAG_BYTES:
            fail("message", "a part of the length of its sum", "another message")
        packed = body[:-TAG_BYTES]
        tag = int.from_bytes(body[-TAG_BYTES:], "big")
        if tag >= PRIME:
            fail("message", f"a part whose tag is below {PRIME}", tag)
        kernels.unpack_sum([packed], sums.dim, sums.modulus_bits)  # or its spare bits are set
        return cls(header, place[12:], packed, tag)


class Seal(NamedTuple):
    """A party's signed word at the end: the transcript of all totals that it accepted."""

    position: Position
    party: int
    transcript: bytes

    def signed(self, contract: Contract, key: SigningKey) -> bytes:
        """Return the seal as bytes, signed."""
        place = numbers(*self.position, self.party)
        return signed(key, SEAL, contract.hash, *place, self.transcript)

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Seal:
        """Return the word in a message, whose signature is checked; fail if it is none."""
        (round_, exchange, party), (transcript,) = read_signed(message, SEAL, contract, 3)
        return cls(Position(round_, exchange), party, transcript)


class Spent(NamedTuple):
    """A party's signed statement that it joins no further sum of the kind of a step.

    It has used the attempts that the contract allows, or the budget of its folder.
    """

    step: int
    party: int

    def signed(self, contract: Contract, key: SigningKey) -> bytes:
        """Return the word as bytes, signed."""
        return signed(key, SPENT, contract.hash, *numbers(self.step, self.party))

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Spent:
        """Return the word in a message, whose signature is checked; fail if it is none."""
        (step, party), rest = read_signed(message, SPENT, contract, 2)
        if rest or step >= contract.planned.steps:
            fail("message", "the word of a party that has spent its attempts", "another message")
        return cls(step, party)


def needed_words(contract: Contract) -> int:
    """Return the number of parties that must have spent their attempts for a run to end early.

    Among so many one is honest, or too few are left for any sum.
    """
    assert contract.planned.first_sum is not None
    return min(contract.planned.first_sum.colluding, contract.nodes - contract.terms.quorum) + 1


def spent_words(messages: Iterable[bytes], step: int, contract: Contract) -> dict[int, bytes]:
    """Return the signed statements of parties that join no further sum of a step's kind, by party.

    Messages that are no such `Spent` of an earlier step or this one are passed over.
    """
    planned = contract.planned
    words = dict[int, bytes]()
    for message in messages:
        if kind_of(message) != SPENT:
            continue
        with suppress(ValueError):
            word = Spent.read(message, contract)
            if word.step <= step and planned.kind_at(word.step) == planned.kind_at(step):
                words.setdefault(word.party, message)
    return words


def word(tag: int) -> bytes:
    """Return a tag as bytes."""
    return tag.to_bytes(TAG_BYTES, "big")


def added(parts: Sequence[Part], contract: Contract) -> tuple[bytes, int]:
    """Return the total of parts as it travels, and the sum of their tags."""
    sums = contract.planned.sum_at(parts[0].header.position.round)
    total = kernels.unpack_sum([part.packed for part in parts], sums.dim, sums.modulus_bits)
    packed = kernels.mask_and_pack(total, sums.modulus_bits)
    return packed, sum(part.tag for part in parts) % PRIME


class Group:
    """The parties of a run as one of them sees them: their keys, and its secret with each.

    Parameters
    ----------
    contract, number
        The contract and the party's number.
    secrets
        The party's secrets of the run.
    keys
        The X25519 key of each party, in their order, as they signed them.

    Raises
    ------
    ValueError
        If two keys are equal, the party's is another than that of its secrets, or one is no key;
        the text names the party of the key.
    """

    def __init__(
        self, contract: Contract, number: int, secrets: RunSecrets, keys: tuple[bytes, ...]
    ) -> None:
        self.contract = contract
        self.number = number
        self._secrets = secrets
        self.keys = keys
        self.root = digest(*keys)
        """The hash of all keys, which is part of each agreement."""
        self._for_all = contract.has_one_model
        self._tags: dict[int, bytes] = {}
        """Secrets for tags that others have dealt, by their dealers."""
        self._shared: dict[int, bytes] = {}
        """Secrets shared with each other party by X25519, for this run."""
        for party, key in enumerate(keys):
            name = contract.parties[party].name
            if (party == number and key != secrets.public) or keys.index(key) < party:
                fail("key", f"one of its own for {name} in this run", "another")
            if party != number:
                try:
                    self._shared[party] = secrets.shared(key)
                except ValueError:
                    fail("key", f"an X25519 key of {name}", "another")

    def agreement(self, header: Header, transcript: bytes) -> bytes:
        """Return the hash of all that the parties of an attempt must have in common.

        Masks, tags and noise are made of it. No party signs it: the masks of parties with different
        agreements do not cancel.

        Raises
        ------
        ValueError
            If this party has no secret for the tags of the attempt.
        """
        if not self._for_all and header.dealer != self.number:  # a sum that another node receives
            transcript = header.transcript
        common = header.common.as_bytes(self.contract)
        secret = sha256(self._tags_of(header)).digest()
        return digest(b"sum", self.contract.hash, common, self.root, secret, transcript)

    def dealt(self) -> bytes:
        """Return this party's secret for tags as a message, sealed for each party of its sum."""
        secret = self._own_tags()
        sealed = [b""] * self.contract.nodes
        adding = self.contract.planned.sum_at(0).receivers[self.receiver(self.number)]
        for party in {*adding} - {self.number}:
            nonce = token_bytes(NONCE_BYTES)
            cipher = ChaCha20Poly1305(self._pair(self.number, party))
            sealed[party] = nonce + cipher.encrypt(nonce, secret, None)
        return pack(DEALT, self.contract.hash, *numbers(self.number), *sealed)

    def relayed(self, dealer: int) -> bytes:
        """Return a secret for tags that this party has, sealed for all others, as a message.

        So a party that missed totals can take them although their dealer is lost.

        Raises
        ------
        ValueError
            If this party does not have it, or each party's sums have tags of their own.
        """
        secret = self._tags.get(dealer)
        if dealer == self.number:
            secret = self._own_tags()
        if secret is None or not self._for_all:
            fail("dealer", "one whose secret this party has", dealer)
        sealed = [b""] * self.contract.nodes
        for party in range(self.contract.nodes):
            if party not in (self.number, dealer):
                nonce = token_bytes(NONCE_BYTES)
                cipher = ChaCha20Poly1305(self._pair(dealer, party, through=self.number))
                relay = b"".join(numbers(self.number))
                sealed[party] = relay + nonce + cipher.encrypt(nonce, secret, None)
        return pack(RELAYED, self.contract.hash, *numbers(dealer), *sealed)

    def learn(self, headers: Iterable[Header]) -> None:
        """Take the secrets for tags from headers that this party stored."""
        for header in headers:
            if header.sealed and header.dealer not in self._tags:
                with suppress(ValueError):
                    self._tags_of(header)

    def noise_secret(self, *agreements: bytes) -> bytes:
        """Return 32 secret bytes from which this party's noise is drawn.

        No other party can compute them. They differ between attempts at a sum, which the
        `agreements` identify.
        """
        return derive(self._secrets.local, self.contract.hash, b"noise", *agreements)

    def between(self, party: int, t: int, process: bytes, other_process: bytes) -> bytes:
        """Return 32 bytes of this party and another, for round t and the numbers of both."""
        processes = [process, other_process]
        if party < self.number:
            processes.reverse()  # both ends of the pair use the same order
        context = (*numbers(t), *processes)
        return derive(self._shared[party], self.contract.hash, b"between", *context)

    def part(self, header: Header, transcript: bytes, noisy: Integers) -> Part:
        """Return integers with noise as they leave this party, under masks for an attempt.

        A pair's mask is added by the party with the lower number, and subtracted by the other one.
        """
        agreement = self.agreement(header, transcript)
        bits = self.contract.planned.sum_at(header.position.round).modulus_bits
        tag = kernels.tag(noisy, self._weights(header, agreement))
        added_masks: list[bytes] = []
        subtracted_masks: list[bytes] = []
        for party in header.cohort:
            if party == self.number:
                continue
            ids = numbers(*sorted((party, self.number)))
            salt = self.contract.hash
            context = (agreement, *ids)
            secret = derive(self._shared[party], salt, b"mask", *context, length=64)
            mask = secret[:32]
            tag_mask = int.from_bytes(secret[32:], "big")
            if self.number < party:
                added_masks.append(mask)
                tag += tag_mask
            else:
                subtracted_masks.append(mask)
                tag -= tag_mask
        masked = kernels.mask_and_pack(noisy, bits, add=added_masks, subtract=subtracted_masks)
        return Part(header, agreement, masked, tag % PRIME)

    def opened(self, total: Total, transcript: bytes) -> tuple[Integers, bytes]:
        """Return a total and the transcript after it.

        Raises
        ------
        ValueError
            If its tag is not that of the parts of parties that all have this party's transcript.
        """
        header = total.header
        sums = self.contract.planned.sum_at(header.position.round)
        opened = kernels.unpack_sum([total.packed], sums.dim, sums.modulus_bits)
        agreement = self.agreement(header, transcript)
        largest = max(-int(opened.min()), int(opened.max()))
        weights = self._weights(header, agreement)
        parties = len(header.cohort)
        if largest >= LARGEST or kernels.tag(opened, weights, parties) != total.tag:
            fail("total", "the sum of what the parties sent", "another")
        return opened, digest(transcript, agreement, total.packed)

    def _weights(self, header: Header, agreement: bytes) -> Stream:
        """Return the stream of the weights in an attempt's tags, which the router cannot draw."""
        seed = derive(self._tags_of(header), self.contract.hash, b"weights", agreement)
        return Key.seeded(int.from_bytes(seed, "big")).stream(Purpose.SHARED)

    def _own_tags(self) -> bytes:
        """Return the secret for tags that this party deals."""
        return derive(self._secrets.local, self.contract.hash, b"tag")

    def _pair(self, dealer: int, party: int, through: int | None = None) -> bytes:
        """Return the key under which a dealer's secret is sealed for a party.

        This party is one of the two, or of the party and the one `through` which the secret goes.
        """
        sender = dealer
        parties = [dealer, party]
        if through is not None:
            sender = through
            parties.append(through)
        other = sender
        if sender == self.number:
            other = party
        return derive(self._shared[other], self.contract.hash, b"group", *numbers(*parties))

    def receiver(self, dealer: int) -> int:
        """Return the number of the sum whose tags a dealer makes: the first, if it is for all."""
        if self._for_all:
            return 0
        return dealer

    def _tags_of(self, header: Header) -> bytes:
        """Return the secret that an attempt's tags are made of; fail if this party lacks it.

        A secret from a header is kept, unless it came through a relay instead of its dealer.
        """
        dealer = header.dealer
        if dealer == self.number:
            return self._own_tags()
        if not header.sealed and dealer in self._tags:
            return self._tags[dealer]
        sealed = header.sealed
        through = None
        if len(sealed) == RELAYED_BYTES:
            (through,) = read_numbers(sealed[:NUMBER_BYTES])
            sealed = sealed[NUMBER_BYTES:]
        if through == self.number or (through is not None and through >= self.contract.nodes):
            fail("header", "a secret that another party sealed", "one through itself")
        cipher = ChaCha20Poly1305(self._pair(dealer, self.number, through))
        nonce = sealed[:NONCE_BYTES]
        text = sealed[NONCE_BYTES:]
        try:
            secret = cipher.decrypt(nonce, text, None)
        except (InvalidTag, ValueError):
            fail("header", "a secret that its dealer sealed", "another")
        if through is None:
            self._tags[dealer] = secret
        return secret
