"""Signed messages of many parties as one: the fields that they have in common travel once.

A start brings the signatures and the answers of all parties to all. Each is a message of some
fields, of which a party's number and the signature differ, and perhaps the last field before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from dpmesh._validate import fail
from dpmesh.deploy.signing import pack, unpack

BUNDLE = b"dpmesh bundle 1"
NUMBER_BYTES = 4
SIGNATURE_BYTES = 64
MOST_PARTIES = 2**16
MOST_COMMON = 256
"""Bytes that the messages of a bundle have in common, at most: a reader repeats them.

A message with more is sent outside of bundles.
"""


class _Group(NamedTuple):
    """Signed messages that a bundle holds have this in common.

    Attributes
    ----------
    common
        Their fields but for the party's number, the last field if it differs, and the signature.
    last_bytes
        The length of the last field if it differs; else 0.
    """

    common: bytes
    last_bytes: int


def bundled(
    messages: Sequence[bytes], *, common_end: Collection[bytes], distinct_end: Collection[bytes]
) -> tuple[bytes, ...]:
    """Return messages with signed ones of some kinds in bundles, which come first.

    Parameters
    ----------
    messages
        Of the kinds to bundle: kind, contract, number of a party, fields, signature.
    common_end, distinct_end
        Kinds whose last field before the signature is the same of many parties, or of none.
    """
    unbundled_messages = messages
    bundles: list[bytes] = []
    for kind in (*distinct_end, *common_end):
        begin = pack(kind)
        signed = tuple(message for message in unbundled_messages if message.startswith(begin))
        unbundled_messages = [
            message for message in unbundled_messages if not message.startswith(begin)
        ]
        bundles += _bundles(signed, kind in common_end)
    return (*bundles, *unbundled_messages)


@lru_cache(maxsize=8)  # a router sends the same signatures to each party
def _bundles(messages: tuple[bytes, ...], has_common_end: bool) -> tuple[bytes, ...]:
    """Return bundles of signed messages of one kind, and then those that fit into none."""
    single: list[bytes] = []
    groups: dict[_Group, dict[int, bytes]] = {}
    for message in messages:
        kind, contract, number, *content, signature = unpack(message)
        last = b""
        if not has_common_end:
            last = content.pop()
        common = pack(kind, contract, *content)
        if len(common) > MOST_COMMON:
            single.append(message)
            continue
        entries = groups.setdefault(_Group(common, len(last)), {})
        party = int.from_bytes(number, "big")
        if party in entries:
            single.append(message)
        else:
            entries[party] = last + signature
    return (*(_bundle(group, entries) for group, entries in groups.items()), *single)


def _bundle(group: _Group, entries: Mapping[int, bytes]) -> bytes:
    """Return the bundle of a group, from the last field and the signature of each party."""
    in_order = b"".join(entries[party] for party in sorted(entries))
    last_bytes = _number(group.last_bytes)
    return pack(BUNDLE, group.common, last_bytes, bits_of(entries), in_order)


def unbundled(messages: Iterable[bytes], *, distinct_end: Collection[bytes]) -> tuple[bytes, ...]:
    """Return messages with those in bundles one by one.

    Parameters
    ----------
    messages, distinct_end
        As for `bundled`.

    Raises
    ------
    ValueError
        If a bundle is malformed.
    """
    single: list[bytes] = []
    for message in messages:
        if message.startswith(_BEGIN):
            single += _members(message, distinct_end)
        else:
            single.append(message)
    return tuple(single)


def _members(bundle: bytes, distinct_end: Collection[bytes]) -> list[bytes]:
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
    members: list[bytes] = []
    for place, party in enumerate(parties):
        entry = entries[place * entry_bytes : (place + 1) * entry_bytes]
        fields = [*content]
        if kind in distinct_end:
            fields.append(entry[:last_bytes])
        signature = entry[last_bytes:]
        members.append(pack(kind, contract, _number(party), *fields, signature))
    return members


def bits_of(parties: Collection[int]) -> bytes:
    """Return a set of parties as bits, the highest of a byte first, up to the largest party.

    `parties_in` reads them. There must be at least one party.
    """
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
    """Return a number as a field."""
    return value.to_bytes(NUMBER_BYTES, "big")


_BEGIN = pack(BUNDLE)
