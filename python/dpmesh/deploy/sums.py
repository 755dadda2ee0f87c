"""Secure aggregation between parties: messages, keys of a run, masks and tags.

One step of a run is one sum (or one for each party over its neighbours). The router proposes an
*attempt* at it by a `Header`, which names the *cohort*: the parties that take part. Each of them
answers with a `MaskedPart`: its noisy integers, plus or minus a mask for each other party of the
cohort. Masks come from secrets that pairs of parties share (X25519, HKDF), and cancel in the sum of
all parts of an attempt. The sum is a `Total`. A sum opens in whole or not at all.

- *agreement*: hash of all that the parties of an attempt must have in common. Masks, tags and noise
  are derived from it. No party signs it: masks of parties with different agreements do not cancel.
- *transcript*: hash of all totals that a party has accepted, each with its agreement.
- *tag*: authenticates a total as the sum of the parts (`dpmesh.kernels.tag`, a universal hash that
  is additive). Its key, the *tag secret*, comes from one party, the *dealer*, which seals it for
  each other party. The router does not know it.
- *seal*: a party's signature of its transcript at the end of the run.
- *withdrawal*: a party's signed statement that it takes part in no further sum of a kind.

`PairwiseSecrets` is used by nodes (`node_sums`), the messages also by the router (`router_sums`).
The threat model and the proofs are in the page "Secure aggregation: threat model and proofs".
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
    INT_BYTES,
    Position,
    int_fields,
    kind_of,
    read_ints,
    read_signed_message,
    signed_message,
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
MASKED_PART = b"dpmesh part 1"
MASKED_PARTS = b"dpmesh parts 1"
TOTAL = b"dpmesh total 1"
TAG_SECRET_QUESTION = b"dpmesh deal 1"
TAG_SECRET = b"dpmesh dealt 1"
RELAY_QUESTION = b"dpmesh relay 1"
RELAYED_SECRET = b"dpmesh relayed 1"
SEAL = b"dpmesh seal 1"
WITHDRAWAL = b"dpmesh spent 1"
TAG_BYTES = 8
_HEADER_PLACE_BYTES = 3 * INT_BYTES
"""Bytes of a header's step, attempt and dealer."""
NONCE_BYTES = 12
POLY1305_BYTES = 16
RELAYED_SECRET_BYTES = INT_BYTES + NONCE_BYTES + KEY_BYTES + POLY1305_BYTES
"""Length of a tag secret that a party other than its dealer sealed: number of that party (the
relay), nonce, secret, tag of the cipher. A secret that its dealer sealed has no number of a relay.
"""


@dataclass(frozen=True, repr=False)
class RunSecrets:
    """A party's secrets of one run, which it erases at the end of the run.

    Attributes
    ----------
    x25519_private
        A private X25519 key, 32 bytes, for the secrets shared with each other party.
    local_secret
        32 random bytes that the party shares with no other: for its noise, and for the tag secret
        that it deals.
    """

    x25519_private: bytes
    local_secret: bytes

    @classmethod
    def generate(cls) -> RunSecrets:
        """Return new secrets from the operating system's randomness."""
        return cls(X25519PrivateKey.generate().private_bytes_raw(), token_bytes(KEY_BYTES))

    @cached_property
    def _private_key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.x25519_private)

    @property
    def public_key(self) -> bytes:
        """The public X25519 key, 32 bytes."""
        return self._private_key.public_key().public_bytes_raw()

    def as_bytes(self, *keys: bytes) -> bytes:
        """Return the secrets as bytes for the party's folder.

        Parameters
        ----------
        keys
            The public X25519 keys of all parties, in their order, once the first step has fixed
            them; none before.
        """
        return pack(self.x25519_private, self.local_secret, *keys)

    def shared_secret(self, public_key: bytes) -> bytes:
        """Return the X25519 secret, 32 bytes, shared with the owner of a public key.

        Raises
        ------
        ValueError
            If the key agreement gives zeros, as for a public key of low order.
        """
        return self._private_key.exchange(X25519PublicKey.from_public_bytes(public_key))


def derive(secret: bytes, salt: bytes, purpose: bytes, *context: bytes, length: int = 32) -> bytes:
    """Derive bytes from a secret by HKDF-SHA256, for one purpose and context."""
    info = digest(b"dpmesh sum 1", purpose, *context)
    return HKDF(hashes.SHA256(), length, salt, info).derive(secret)


@dataclass(frozen=True)
class Header:
    """A router's proposal for an attempt at a sum.

    Parameters
    ----------
    position
        The step (which sum of the run), and the attempt at it.
    cohort
        Numbers of the parties that take part, ascending.
    dealer
        Number of the party whose tag secret authenticates the total. For sums over neighbours, the
        party that receives the sum.
    sealed_tag_secret
        The dealer's tag secret, encrypted for the party that reads this header. Empty for the
        dealer itself, or if the party has the secret already.
    transcript
        For sums over neighbours, the receiver's transcript, as the router states it. A receiver
        with another transcript does not accept the sum. Empty for a sum for all.
    """

    position: Position
    cohort: tuple[int, ...]
    dealer: int
    sealed_tag_secret: bytes = b""
    transcript: bytes = b""

    @property
    def common(self) -> Header:
        """The header with the fields alone that are equal for all parties of the attempt."""
        return replace(self, sealed_tag_secret=b"", transcript=b"")

    def as_bytes(self, contract: Contract) -> bytes:
        """Return the header as a message."""
        place = b"".join(int_fields(*self.position, self.dealer))
        cohort_bits = _cohort_bits(self.cohort, contract)
        return pack(HEADER, place, cohort_bits, self.sealed_tag_secret, self.transcript)

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Header:
        """Return the header in a message.

        Raises
        ------
        ValueError
            If the message is no header, or names a party that the contract does not have.
        """
        kind, place, cohort_bits, sealed_tag_secret, transcript = unpack(message)
        if kind != HEADER or len(place) != _HEADER_PLACE_BYTES:
            fail("message", "a header", "another message")
        starts = range(0, _HEADER_PLACE_BYTES, INT_BYTES)
        round_, attempt, dealer = read_ints(*(place[i : i + INT_BYTES] for i in starts))
        flags = np.unpackbits(np.frombuffer(cohort_bits, np.uint8))
        if _packed_flags(flags[: contract.nodes]) != cohort_bits or dealer >= contract.nodes:
            fail("header", f"a bit for each of {contract.nodes} parties", cohort_bits.hex())
        cohort = tuple(np.flatnonzero(flags).tolist())
        return cls(Position(round_, attempt), cohort, dealer, sealed_tag_secret, transcript)


def _cohort_bits(cohort: tuple[int, ...], contract: Contract) -> bytes:
    """Return one bit for each party of the contract: 1 for those in the cohort."""
    return _packed_flags(np.isin(np.arange(contract.nodes), cohort))


def _packed_flags(flags: object) -> bytes:
    """Return flags, shape (parties,), as bits, eight in each byte, the first one highest."""
    return np.packbits(np.asarray(flags, np.uint8)).tobytes()


@dataclass(frozen=True)
class Total:
    """The sum of all parts of an attempt, as the router added it up.

    Parameters
    ----------
    header
        The header of the attempt.
    packed
        The sum modulo ``2**modulus_bits``, packed as by `dpmesh.kernels.mask_and_pack`.
    tag
        The sum of the parts' tags, modulo the prime of `dpmesh.kernels.tag`.
    """

    header: Header
    packed: bytes
    tag: int

    def as_bytes(self, contract: Contract) -> bytes:
        """Return the total as a message."""
        return pack(TOTAL, self.header.as_bytes(contract), self.packed, _tag_field(self.tag))

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Total:
        """Return the total in a message; raise a ValueError for any other message.

        The tag is not verified here, see `PairwiseSecrets.open_total`.
        """
        kind, header, packed, tag = unpack(message)
        if kind != TOTAL or len(tag) != TAG_BYTES:
            fail("message", "a total", "another message")
        return cls(Header.read(header, contract), packed, int.from_bytes(tag, "big"))


@dataclass(frozen=True)
class MaskedPart:
    """A party's masked part of a sum, on its way to the router.

    Parameters
    ----------
    header
        The header of the attempt, without a sealed secret and transcript.
    agreement
        The party's agreement: its hash of all that the parties of the attempt must have in common.
    packed
        The party's noisy integers, masked and packed as by `dpmesh.kernels.mask_and_pack`.
    tag
        The party's masked tag, modulo the prime of `dpmesh.kernels.tag`.
    """

    header: Header
    agreement: bytes
    packed: bytes
    tag: int

    def as_bytes(self, contract: Contract) -> bytes:
        """Return the part as a message, which leaves out the cohort if all parties are in it."""
        header = self.header
        place = b"".join((*int_fields(*header.position, header.dealer), self.agreement))
        cohort_bits = _cohort_bits(header.cohort, contract)
        if cohort_bits == _all_party_bits(contract):
            cohort_bits = b""
        return pack(MASKED_PART, place, cohort_bits, self.packed + _tag_field(self.tag))

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> MaskedPart:
        """Return the part in a message; raise a ValueError for any other message."""
        kind, place, cohort_bits, body = unpack(message)
        if kind != MASKED_PART:
            fail("message", "a part", "another message")
        header_place = place[:_HEADER_PLACE_BYTES]
        agreement = place[_HEADER_PLACE_BYTES:]
        if not cohort_bits:
            cohort_bits = _all_party_bits(contract)
        no_secret, no_transcript = b"", b""
        header_message = pack(HEADER, header_place, cohort_bits, no_secret, no_transcript)
        header = Header.read(header_message, contract)  # checks the numbers of the parties
        sums = contract.planned.sum_at(header.position.round)
        if len(body) != sums.message_bytes + TAG_BYTES:
            fail("message", "a part of the length of its sum", "another message")
        packed = body[:-TAG_BYTES]
        tag = int.from_bytes(body[-TAG_BYTES:], "big")
        if tag >= PRIME:
            fail("message", f"a part whose tag is below {PRIME}", tag)
        kernels.unpack_sum([packed], sums.dim, sums.modulus_bits)  # fails if padding bits are set
        return cls(header, agreement, packed, tag)


def _all_party_bits(contract: Contract) -> bytes:
    """Return the bits of a cohort of all parties."""
    return _packed_flags(np.ones(contract.nodes))


class Seal(NamedTuple):
    """A party's signature, at the end of the run, of the transcript of all totals it accepted.

    Attributes
    ----------
    position
        Position at which the run ends, see `dpmesh.deploy.schedule.Schedule.closing`.
    party
        Number of the party.
    transcript
        The party's transcript.
    """

    position: Position
    party: int
    transcript: bytes

    def signed(self, contract: Contract, key: SigningKey) -> bytes:
        """Sign the seal, and return it as a message."""
        place = int_fields(*self.position, self.party)
        return signed_message(key, SEAL, contract.hash, *place, self.transcript)

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Seal:
        """Return the seal in a message, once it is verified; raise a ValueError for any other."""
        (round_, exchange, party), (transcript,) = read_signed_message(message, SEAL, contract, 3)
        return cls(Position(round_, exchange), party, transcript)


class Withdrawal(NamedTuple):
    """A party's signed statement that it takes part in no further sum of the kind of a step.

    The party has used the attempts that the contract allows, or the budget of its folder. Sums of
    one kind have the same length and noise, see `dpmesh.deploy.planned`.

    Attributes
    ----------
    step
        The first step that the party takes no part in.
    party
        Number of the party.
    """

    step: int
    party: int

    def signed(self, contract: Contract, key: SigningKey) -> bytes:
        """Sign the statement, and return it as a message."""
        return signed_message(key, WITHDRAWAL, contract.hash, *int_fields(self.step, self.party))

    @classmethod
    def read(cls, message: bytes, contract: Contract) -> Withdrawal:
        """Return the statement in a message, once it is verified.

        Raises
        ------
        ValueError
            If the message is no such statement, or its party did not sign it.
        """
        (step, party), rest = read_signed_message(message, WITHDRAWAL, contract, 2)
        if rest or step >= contract.planned.steps:
            fail("message", "the word of a party that has spent its attempts", "another message")
        return cls(step, party)


def withdrawals_needed(contract: Contract) -> int:
    """Return the number of parties whose withdrawals end a run early.

    Among that many parties at least one is honest, or too few parties are left for any sum.
    """
    assert contract.planned.first_sum is not None
    may_be_lost = contract.nodes - contract.terms.quorum
    return min(contract.planned.first_sum.colluding, may_be_lost) + 1


def withdrawals_by_party(
    messages: Iterable[bytes], step: int, contract: Contract
) -> dict[int, bytes]:
    """Return the withdrawals among messages that hold at a step, by party.

    Such a `Withdrawal` is of the step's kind of sum, and of this step or an earlier one. All other
    messages are ignored.
    """
    planned = contract.planned
    withdrawals: dict[int, bytes] = {}
    for message in messages:
        if kind_of(message) != WITHDRAWAL:
            continue
        with suppress(ValueError):
            withdrawal = Withdrawal.read(message, contract)
            is_of_kind = planned.kind_at(withdrawal.step) == planned.kind_at(step)
            if withdrawal.step <= step and is_of_kind:
                withdrawals.setdefault(withdrawal.party, message)
    return withdrawals


def _tag_field(tag: int) -> bytes:
    """Return a tag as a field of `TAG_BYTES` bytes."""
    return tag.to_bytes(TAG_BYTES, "big")


def add_parts(parts: Sequence[MaskedPart], contract: Contract) -> tuple[bytes, int]:
    """Add up the parts of one sum.

    Returns
    -------
    The packed sum modulo ``2**modulus_bits``, and the sum of the parts' tags modulo their prime.
    """
    sums = contract.planned.sum_at(parts[0].header.position.round)
    total = kernels.unpack_sum([part.packed for part in parts], sums.dim, sums.modulus_bits)
    packed = kernels.mask_and_pack(total, sums.modulus_bits)
    return packed, sum(part.tag for part in parts) % PRIME


class PairwiseSecrets:
    """One party's secrets with each other party, and the masks, tags and noise made of them.

    Parameters
    ----------
    contract
        The contract.
    number
        Number of the party.
    secrets
        The party's secrets of the run.
    keys
        The public X25519 key of each party, in their order, as the parties signed them.

    Raises
    ------
    ValueError
        If a key is no X25519 key, if two parties have the same key, or if the party's key does not
        fit its secrets. The text names the party of the key.
    """

    def __init__(
        self, contract: Contract, number: int, secrets: RunSecrets, keys: tuple[bytes, ...]
    ) -> None:
        self.contract = contract
        self.number = number
        self._secrets = secrets
        self.keys = keys
        self.keys_hash = digest(*keys)
        """The hash of all keys, which is part of each agreement."""
        self._has_one_sum = contract.has_one_model
        """True for one sum for all parties; False for one for each party over its neighbours."""
        self._tag_secrets: dict[int, bytes] = {}
        """Tag secrets that other parties have dealt, by dealer."""
        self._shared: dict[int, bytes] = {}
        """The X25519 secret shared with each other party for this run, by party."""
        for party, key in enumerate(keys):
            name = contract.parties[party].name
            if (party == number and key != secrets.public_key) or keys.index(key) < party:
                fail("key", f"one of its own for {name} in this run", "another")
            if party != number:
                try:
                    self._shared[party] = secrets.shared_secret(key)
                except ValueError:
                    fail("key", f"an X25519 key of {name}", "another")

    def agreement(self, header: Header, transcript: bytes) -> bytes:
        """Return the hash of all that the parties of an attempt must have in common.

        It covers the contract, the common fields of the header, the keys of all parties, the tag
        secret, and a transcript: this party's, or for a sum over neighbours that another party
        receives, the transcript that the header states.

        Raises
        ------
        ValueError
            If this party does not have the tag secret of the attempt.
        """
        if not self._has_one_sum and header.dealer != self.number:
            transcript = header.transcript
        common = header.common.as_bytes(self.contract)
        secret_hash = sha256(self._tag_secret_of(header)).digest()
        return digest(b"sum", self.contract.hash, common, self.keys_hash, secret_hash, transcript)

    def deal_tag_secret(self) -> bytes:
        """Return this party's tag secret, sealed for each other party of its sum, as a message."""
        secret = self._own_tag_secret()
        sealed = [b""] * self.contract.nodes
        senders = self.contract.planned.sum_at(0).receivers[self.sum_index(self.number)]
        for party in {*senders} - {self.number}:
            sealed[party] = _encrypted(self._sealing_key(self.number, party), secret)
        return pack(TAG_SECRET, self.contract.hash, *int_fields(self.number), *sealed)

    def relay_tag_secret(self, dealer: int) -> bytes:
        """Return a dealer's tag secret, sealed by this party for all others, as a message.

        So a party that missed totals can open them although their dealer is lost.

        Raises
        ------
        ValueError
            If this party does not have the secret, or if there is a sum for each party.
        """
        secret = self._tag_secrets.get(dealer)
        if dealer == self.number:
            secret = self._own_tag_secret()
        if secret is None or not self._has_one_sum:
            fail("dealer", "one whose secret this party has", dealer)
        relay = b"".join(int_fields(self.number))
        sealed = [b""] * self.contract.nodes
        for party in range(self.contract.nodes):
            if party not in (self.number, dealer):
                key = self._sealing_key(dealer, party, relay=self.number)
                sealed[party] = relay + _encrypted(key, secret)
        return pack(RELAYED_SECRET, self.contract.hash, *int_fields(dealer), *sealed)

    def learn_tag_secrets(self, headers: Iterable[Header]) -> None:
        """Decrypt the tag secrets in headers that this party stored, and keep them."""
        for header in headers:
            if header.sealed_tag_secret and header.dealer not in self._tag_secrets:
                with suppress(ValueError):
                    self._tag_secret_of(header)

    def noise_seed(self, *agreements: bytes) -> bytes:
        """Return 32 secret bytes from which this party's noise of an attempt is drawn.

        No other party can compute them. Attempts with different `agreements` have different seeds.
        """
        return derive(self._secrets.local_secret, self.contract.hash, b"noise", *agreements)

    def partner_seed(self, party: int, t: int, nonce: bytes, partner_nonce: bytes) -> bytes:
        """Return the seed of the noise that this party shares with a partner in a round.

        Parameters
        ----------
        party
            Number of the partner.
        t
            Number of the round.
        nonce, partner_nonce
            The nonces of this party's process and of the partner's process.

        Returns
        -------
        32 bytes, the same for both partners.
        """
        nonces = [nonce, partner_nonce]
        if party < self.number:
            nonces.reverse()  # both partners put the lower number first
        context = (*int_fields(t), *nonces)
        return derive(self._shared[party], self.contract.hash, b"between", *context)

    def masked_part(self, header: Header, transcript: bytes, noisy: Integers) -> MaskedPart:
        """Mask noisy integers, shape (dim,), and their tag, for an attempt.

        The party with the lower number of a pair adds the pair's mask, the other party subtracts
        it.

        Parameters
        ----------
        header
            Header of the attempt.
        transcript
            This party's transcript before the step.
        noisy
            The party's integers, with its share of the noise.

        Raises
        ------
        ValueError
            If this party does not have the tag secret of the attempt.
        """
        agreement = self.agreement(header, transcript)
        bits = self.contract.planned.sum_at(header.position.round).modulus_bits
        tag = kernels.tag(noisy, self._tag_weights(header, agreement))
        added_masks: list[bytes] = []
        subtracted_masks: list[bytes] = []
        for party in header.cohort:
            if party == self.number:
                continue
            pair = int_fields(*sorted((party, self.number)))
            salt = self.contract.hash
            context = (agreement, *pair)
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
        return MaskedPart(header, agreement, masked, tag % PRIME)

    def open_total(self, total: Total, transcript: bytes) -> tuple[Integers, bytes]:
        """Verify a total against its tag, and unpack it.

        A valid tag shows that the total is the sum of parts under this party's agreement. A router
        that does not know the tag secret passes another total with negligible probability; one that
        colludes with a party knows the secret, and a tag then proves nothing.

        Parameters
        ----------
        total
            The total.
        transcript
            This party's transcript before the step.

        Returns
        -------
        The sum, shape (dim,), and the transcript after it.

        Raises
        ------
        ValueError
            If the tag is wrong, or this party does not have the tag secret.
        """
        header = total.header
        sums = self.contract.planned.sum_at(header.position.round)
        opened = kernels.unpack_sum([total.packed], sums.dim, sums.modulus_bits)
        agreement = self.agreement(header, transcript)
        largest = max(-int(opened.min()), int(opened.max()))
        weights = self._tag_weights(header, agreement)
        parties = len(header.cohort)
        if largest >= LARGEST or kernels.tag(opened, weights, parties) != total.tag:
            fail("total", "the sum of what the parties sent", "another")
        return opened, digest(transcript, agreement, total.packed)

    def _tag_weights(self, header: Header, agreement: bytes) -> Stream:
        """Return the stream of the secret weights in an attempt's tags."""
        seed = derive(self._tag_secret_of(header), self.contract.hash, b"weights", agreement)
        return Key.seeded(int.from_bytes(seed, "big")).stream(Purpose.SHARED)

    def _own_tag_secret(self) -> bytes:
        """Return the tag secret that this party deals."""
        return derive(self._secrets.local_secret, self.contract.hash, b"tag")

    def _sealing_key(self, dealer: int, party: int, relay: int | None = None) -> bytes:
        """Return the key that encrypts a dealer's tag secret for a party.

        The secret comes from the dealer, or from the `relay` that passes it on. This party is the
        sender or the recipient.
        """
        sender = dealer
        parties = [dealer, party]
        if relay is not None:
            sender = relay
            parties.append(relay)
        other = sender
        if sender == self.number:
            other = party
        context = int_fields(*parties)
        return derive(self._shared[other], self.contract.hash, b"group", *context)

    def sum_index(self, dealer: int) -> int:
        """Return the index, among the sums of a step, of the sum with a dealer's tags.

        A step has one sum for all parties, or one for each party, which is its dealer.
        """
        if self._has_one_sum:
            return 0
        return dealer

    def _tag_secret_of(self, header: Header) -> bytes:
        """Return the tag secret of an attempt: this party's, a stored one, or the header's.

        A secret from a header is kept for later headers, unless a relay sealed it.

        Raises
        ------
        ValueError
            If this party has no such secret, or cannot decrypt it.
        """
        dealer = header.dealer
        if dealer == self.number:
            return self._own_tag_secret()
        if not header.sealed_tag_secret and dealer in self._tag_secrets:
            return self._tag_secrets[dealer]
        sealed = header.sealed_tag_secret
        relay = None
        if len(sealed) == RELAYED_SECRET_BYTES:
            (relay,) = read_ints(sealed[:INT_BYTES])
            sealed = sealed[INT_BYTES:]
        if relay == self.number or (relay is not None and relay >= self.contract.nodes):
            fail("header", "a secret that another party sealed", "one through itself")
        cipher = ChaCha20Poly1305(self._sealing_key(dealer, self.number, relay))
        nonce = sealed[:NONCE_BYTES]
        ciphertext = sealed[NONCE_BYTES:]
        try:
            secret = cipher.decrypt(nonce, ciphertext, None)
        except (InvalidTag, ValueError):
            fail("header", "a secret that its dealer sealed", "another")
        if relay is None:
            self._tag_secrets[dealer] = secret
        return secret


def _encrypted(key: bytes, secret: bytes) -> bytes:
    """Return a secret encrypted by ChaCha20-Poly1305, after a new random nonce."""
    nonce = token_bytes(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, secret, None)
