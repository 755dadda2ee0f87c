"""Bundles: signed messages of many parties as one message, with their common fields stated once.

When a run starts, the router sends the signatures and the rollback reports of all parties to all of
them. Such a message has the fields

    kind, contract's hash, number of the party, content .., signature

and messages of two parties differ in the number, the signature, and perhaps the last field of the
content. A bundle has the common fields, the set of parties as bits, and for each party the last
field, if it differs, and the signature. `dpmesh.deploy.wire.StepQuestion` uses bundles for the
messages that a router attaches to a question.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from dpmesh._validate import fail
from dpmesh.deploy.signing import pack, unpack

BUNDLE = b"dpmesh bundle 1"
INT_BYTES = 4
SIGNATURE_BYTES = 64
MOST_PARTIES = 2**16
MOST_COMMON = 256
"""Most bytes of the common fields of a bundle. A reader copies these fields for each party, and the
bound limits its memory for a hostile bundle. A message with longer ones is in no bundle."""


class _CommonFields(NamedTuple):
    """The fields that all messages of a bundle have in common.

    Attributes
    ----------
    packed
        Kind, contract's hash and content, packed, without a last field that differs.
    last_bytes
        Length of the last field of the content, if that field differs; else 0.
    """

    packed: bytes
    last_bytes: int


def bundled(
    messages: Sequence[bytes], *, common_end: Collection[bytes], distinct_end: Collection[bytes]
) -> tuple[bytes, ...]:
    """Bundle signed messages of some kinds.

    Parameters
    ----------
    messages
        Messages of any kinds. Those to bundle have the fields: kind, contract's hash, number of the
        party, content, signature.
    common_end
        Kinds to bundle whose last field of the content is the same for many parties.
    distinct_end
        Kinds to bundle whose last field of the content is different for each party.

    Returns
    -------
    The bundles, then the messages that are in none. `unbundled` takes bundles apart.
    """
    other_messages = messages
    bundles: list[bytes] = []
    for kind in (*distinct_end, *common_end):
        begin = pack(kind)
        of_kind = tuple(message for message in other_messages if message.startswith(begin))
        other_messages = [message for message in other_messages if not message.startswith(begin)]
        bundles += _bundles_of_kind(of_kind, kind in common_end)
    return (*bundles, *other_messages)


@lru_cache(maxsize=8)  # a router sends the same signatures to each party
def _bundles_of_kind(messages: tuple[bytes, ...], has_common_end: bool) -> tuple[bytes, ...]:
    """Return bundles of signed messages of one kind, then the messages that fit into no bundle.

    A message is left out of bundles if its common fields are too long, or if its bundle has
    another message of the same party.
    """
    single: list[bytes] = []
    entries_by_fields: dict[_CommonFields, dict[int, bytes]] = {}
    for message in messages:
        kind, contract, number, *content, signature = unpack(message)
        last = b""
        if not has_common_end:
            last = content.pop()
        fields = _CommonFields(pack(kind, contract, *content), len(last))
        if len(fields.packed) > MOST_COMMON:
            single.append(message)
            continue
        entries = entries_by_fields.setdefault(fields, {})
        party = int.from_bytes(number, "big")
        if party in entries:
            single.append(message)
        else:
            entries[party] = last + signature
    bundles = [_bundle(fields, entries) for fields, entries in entries_by_fields.items()]
    return (*bundles, *single)


def _bundle(fields: _CommonFields, entries: Mapping[int, bytes]) -> bytes:
    """Return a bundle from the common fields and the entry of each party.

    An entry is the last field of the content, if it differs, and the signature.
    """
    all_entries = b"".join(entries[party] for party in sorted(entries))
    last_bytes = _int_field(fields.last_bytes)
    return pack(BUNDLE, fields.packed, last_bytes, party_bits(entries), all_entries)


def unbundled(messages: Iterable[bytes], *, distinct_end: Collection[bytes]) -> tuple[bytes, ...]:
    """Take bundles apart, and return all messages one by one.

    Signatures are not verified here.

    Parameters
    ----------
    messages
        Bundles and other messages.
    distinct_end
        As for `bundled`.

    Raises
    ------
    ValueError
        If a bundle is malformed.
    """
    single: list[bytes] = []
    for message in messages:
        if message.startswith(_BUNDLE_BEGIN):
            single += _messages_in(message, distinct_end)
        else:
            single.append(message)
    return tuple(single)


def _messages_in(bundle: bytes, distinct_end: Collection[bytes]) -> list[bytes]:
    """Return the messages in a bundle, in the order of their parties."""
    _, common, length, bits, entries = unpack(bundle)
    if len(common) > MOST_COMMON:
        fail("message", f"at most {MOST_COMMON} bytes in common", f"{len(common)}")
    kind, contract, *content = unpack(common)
    last_bytes = int.from_bytes(length, "big")
    parties = parties_in(bits)
    entry_bytes = last_bytes + SIGNATURE_BYTES
    if len(entries) != entry_bytes * len(parties):
        fail("message", "a bundle of signed messages", "another message")
    messages: list[bytes] = []
    for place, party in enumerate(parties):
        entry = entries[place * entry_bytes : (place + 1) * entry_bytes]
        fields = [*content]
        if kind in distinct_end:
            fields.append(entry[:last_bytes])
        signature = entry[last_bytes:]
        messages.append(pack(kind, contract, _int_field(party), *fields, signature))
    return messages


def party_bits(parties: Collection[int]) -> bytes:
    """Return a set of parties, at least one, as bits: party 0 is the highest bit of the first byte.

    There are as many bytes as the largest number needs. `parties_in` reads them.
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
        If there are more than `MOST_PARTIES` bits.
    """
    if len(bits) > MOST_PARTIES // 8:
        fail("message", f"a bit for each of at most {MOST_PARTIES} parties", f"{8 * len(bits)}")
    return [
        8 * place + bit
        for place, byte in enumerate(bits)
        for bit in range(8)
        if byte & (0x80 >> bit)
    ]


def _int_field(value: int) -> bytes:
    """Return an integer as a field of `INT_BYTES` bytes."""
    return value.to_bytes(INT_BYTES, "big")


_BUNDLE_BEGIN = pack(BUNDLE)
"""First bytes of each bundle."""
