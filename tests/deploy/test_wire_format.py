"""The page of the wire format: its vectors are the code's, and follow from what the page says."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpmesh.kernels as kernels
from dpmesh.deploy import Position, Row
from dpmesh.deploy.bundles import bundled, unbundled
from dpmesh.deploy.signing import SigningKey, digest, is_signed, pack
from dpmesh.deploy.sums import Header, MaskedPart, Total, derive
from dpmesh.deploy.wire import (
    BEFORE,
    ROLLBACK_REPORT,
    SIGNATURE,
    ReleaseIndex,
    RollbackQuestion,
    int_fields,
)

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")

PAGE = Path(__file__).parents[2] / "docs" / "wire_format.md"
CONTRACT: Any = SimpleNamespace(nodes=4, hash=bytes(32))
KEY = SigningKey(ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
VALUES, BITS = np.array([1, -2, 3]), 20
AT, AGREEMENT = Position(1), bytes([2] * 32)


@pytest.fixture(scope="module")
def vectors() -> dict[str, str]:
    page = PAGE.read_text(encoding="utf-8")
    return dict(re.findall(r"^\| ([^|]+) \| `([0-9a-f]+)` \|$", page, re.MULTILINE))


def test_the_vectors_of_the_page_are_those_of_the_code(vectors: dict[str, str]) -> None:
    fields = b"a", b"bc"
    sent = np.array([1.5, -2.0], "<f8").tobytes()
    row = Row(CONTRACT.hash, AT, 2, 0, "float64", (1, 2), sent, b"")
    header = Header(AT, (0, 2, 3), 0)
    context = AGREEMENT, *int_fields(0, 2)
    secret = derive(bytes([1] * 32), CONTRACT.hash, b"mask", *context, length=64)
    plain = kernels.mask_and_pack(VALUES, BITS)
    masked = kernels.mask_and_pack(VALUES, BITS, add=[secret[:32]])
    fresh = [
        RollbackQuestion(party, ReleaseIndex(0, BEFORE), bytes([n] * 16))
        for n, party in enumerate((0, 2))
    ]
    bundle = bundled(_signatures(), common_end=[ROLLBACK_REPORT], distinct_end=[SIGNATURE])
    made = {
        "fields `a`, `bc`": pack(*fields),
        "their hash": digest(*fields),
        "the public key": KEY.public,
        "their signature": KEY.sign(*fields),
        "the question `dpmesh who 1`": pack(b"dpmesh who 1", CONTRACT.hash),
        "the row (1.5, -2) of party 2 in round 1": row.signed(KEY),
        "the header of round 1 for parties 0, 2 and 3": header.as_bytes(CONTRACT),
        "the secret of parties 0 and 2, from 32 bytes 01, for the agreement of 32 bytes 02": secret,
        "1, -2, 3 in 20 bits each": plain,
        "the same under that mask": masked,
        "the part of party 0 with the tag 5": MaskedPart(header, AGREEMENT, masked, 5).as_bytes(
            CONTRACT
        ),
        "the total of 1, -2, 3 with the tag 7": Total(header, plain, 7).as_bytes(CONTRACT),
        "the question of parties 0 and 2, with 16 bytes 00 and 01": RollbackQuestion.together(
            CONTRACT, fresh
        ),
        "signatures of parties 0 and 2, 64 bytes 03 and 04, of their keys, "
        "32 bytes 05 and 06": bundle[0],
    }
    assert vectors == {name: value.hex() for name, value in made.items()}
    assert is_signed(KEY.public, bytes.fromhex(vectors["their signature"]), *fields)
    assert unbundled(bundle, distinct_end=[SIGNATURE]) == tuple(_signatures())


def _signatures() -> list[bytes]:
    return [
        pack(SIGNATURE, CONTRACT.hash, *int_fields(party), bytes([5 + n] * 32), bytes([3 + n] * 64))
        for n, party in enumerate((0, 2))
    ]


def _fields(*contents: bytes) -> bytes:
    """Return fields by the words of the page alone."""
    return b"".join(struct.pack(">Q", len(content)) + content for content in contents)


def _number(value: int) -> bytes:
    return struct.pack(">I", value)


def test_the_row_and_the_part_follow_from_the_page(vectors: dict[str, str]) -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    named = [_number(value) for value in (1, 0, 2, 0, 1, 2)]
    content = [
        b"dpmesh row 1",
        bytes(32),
        *named,
        b"float64",
        struct.pack("<2d", 1.5, -2),
        b"",
        b"",
    ]
    message = bytes.fromhex(vectors["the row (1.5, -2) of party 2 in round 1"])
    assert message[:-64] == _fields(*content) + struct.pack(">Q", 64)
    assert is_signed(KEY.public, message[-64:], *content)
    secret = vectors[
        "the secret of parties 0 and 2, from 32 bytes 01, for the agreement of 32 bytes 02"
    ]
    cipher = Cipher(algorithms.AES(bytes.fromhex(secret)[:32]), modes.ECB()).encryptor()
    words = struct.unpack("<4I", cipher.update(struct.pack(">4I", 0x4D41534B, 0, 0, 0)))
    masked = sum(
        (int(value) + word) % 2**BITS << BITS * n
        for n, (value, word) in enumerate(zip(VALUES, words[:3], strict=True))
    )
    body = masked.to_bytes(8, "little") + struct.pack(">Q", 5)
    place = b"".join(map(_number, (1, 0, 0))) + AGREEMENT
    part = _fields(b"dpmesh part 1", place, b"\xb0", body)
    assert part.hex() == vectors["the part of party 0 with the tag 5"]
