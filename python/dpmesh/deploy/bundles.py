"""Signed messages of many parties as one: what they have in common travels once.

A start brings the signatures and the answers of all parties to all. Each is a message of some
fields, of which a party's number and the signature differ, and perhaps the last field before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from dpmesh._validate import fail
from dpmesh.deploy.signing import pack, unpack

BUNDLE = b"dpmesh bundle 1"
NUMBER_BYTES, SIGNATURE_BYTES = 4, 64
MOST_PARTIES = 2**16
MOST_COMMON = 256
"""Bytes that the messages of a bundle have in common, at most: a reader repeats them.

A message with more is sent outside of bundles.
"""


def bundled(
    messages: Sequence[bytes], *, same: Collection[bytes], apart: Collection[bytes]
) -> tuple[bytes, ...]:
    """Return messages with signed ones of some kinds in bundles, which come first.

    Parameters
    ----------
    messages
        Of the kinds to bundle: kind, contract, number of a party, fields, signature.
    same, apart
        Kinds whose last field before the signature is the same of many parties, or of none.
    """
    others = messages
    made: list[bytes] = []
    for kind in (*apart, *same):
        begin = pack(kind)
        signed = tuple(message for message in others if message.startswith(begin))
        others = [message for message in others if not message.startswith(begin)]
        made += _bundles(signed, kind in same)
    return (*made, *others)


@lru_cache(maxsize=8)  # a router sends the same signatures to each party
def _bundles(messages: tuple[bytes, ...], has_same_end: bool) -> tuple[bytes, ...]:
    """Return bundles of signed messages of one kind, and those that are in none."""
    others: list[bytes] = []
    bundles: dict[tuple[bytes, int], dict[int, bytes]] = {}
    for message in messages:
        kind, contract, number, *content, signature = unpack(message)
        last = b"" if has_same_end else content.pop()
        common = pack(kind, contract, *content)
        if len(common) > MOST_COMMON:
            others.append(message)
            continue
        members = bundles.setdefault((common, len(last)), {})
        party = int.from_bytes(number, "big")
        if party in members:
            others.append(message)
        else:
            members[party] = last + signature
    made = []
    for (common, last_bytes), members in bundles.items():
        entries = b"".join(members[party] for party in sorted(members))
        made.append(pack(BUNDLE, common, _number(last_bytes), bits_of(members), entries))
    return (*made, *others)


def unbundled(messages: Iterable[bytes], *, apart: Collection[bytes]) -> tuple[bytes, ...]:
    """Return messages with those in bundles one by one.

    Parameters
    ----------
    messages, apart
        As for `bundled`.

    Raises
    ------
    ValueError
        If a bundle is malformed.
    """
    found: list[bytes] = []
    for message in messages:
        if message.startswith(_BEGIN):
            found += _members(message, apart)
        else:
            found.append(message)
    return tuple(found)


def _members(bundle: bytes, apart: Collection[bytes]) -> list[bytes]:
    """Return the messages in a bundle."""
    _, common, length, bits, entries = unpack(bundle)
    if len(common) > MOST_COMMON:
        fail("message", f"at most {MOST_COMMON} bytes in common", f"{len(common)}")
    kind, contract, *content = unpack(common)
    last_bytes = int.from_bytes(length, "big")
    parties = parties_in(bits)
    entry_bytes = last_bytes + SIGNATURE_BYTES
    if len(entries) != entry_bytes * len(parties):
        fail("message", "a bundle of signed messages", "another message")
    members = []
    for place, party in enumerate(parties):
        entry = entries[place * entry_bytes : (place + 1) * entry_bytes]
        last = (entry[:last_bytes],) if kind in apart else ()
        fields = _number(party), *content, *last, entry[last_bytes:]
        members.append(pack(kind, contract, *fields))
    return members


def bits_of(parties: Collection[int]) -> bytes:
    """Return a bit for each party up to the last one: 1 for those that are given."""
    bits = bytearray(max(parties) // 8 + 1)
    for party in parties:
        bits[party // 8] |= 0x80 >> party % 8
    return bytes(bits)


def parties_in(bits: bytes) -> list[int]:
    """Return the parties whose bits are 1, ascending.

    Raises
    ------
    ValueError
        If there are more bits than parties can be.
    """
    if len(bits) > MOST_PARTIES // 8:
        fail("message", f"a bit for each of at most {MOST_PARTIES} parties", f"{8 * len(bits)}")
    return [
        8 * place + bit
        for place, byte in enumerate(bits)
        for bit in range(8)
        if byte & (0x80 >> bit)
    ]


def _number(value: int) -> bytes:
    return value.to_bytes(NUMBER_BYTES, "big")


_BEGIN = pack(BUNDLE)
