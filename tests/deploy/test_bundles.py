"""Bundles of signed messages are what they were, and a hostile one is refused in little memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mesh_parties import Parties

from dpmesh.deploy import Position, Router
from dpmesh.deploy.bundles import (
    BUNDLE,
    MOST_COMMON,
    SIGNATURE_BYTES,
    bundled,
    parties_in,
    party_bits,
    unbundled,
)
from dpmesh.deploy.signing import pack
from dpmesh.deploy.wire import (
    ROLLBACK_REPORT,
    SIGNATURE,
    STEP_QUESTION,
    RefusedError,
    StepQuestion,
    int_fields,
    kind_of,
    read_question,
)

CONTRACT = bytes(32)
KINDS = {"common_end": [ROLLBACK_REPORT], "distinct_end": [SIGNATURE]}


def _signed(kind: bytes, party: int, *fields: bytes) -> bytes:
    return pack(kind, CONTRACT, *int_fields(party), *fields, os.urandom(SIGNATURE_BYTES))


def test_bundled_messages_are_the_same_messages() -> None:
    signatures = [_signed(SIGNATURE, party, os.urandom(32)) for party in (0, 3, 9, 17)]
    heard = [_signed(ROLLBACK_REPORT, party, b"a" * 32, bytes(12)) for party in (1, 2, 500)]
    further = [
        _signed(ROLLBACK_REPORT, 1, b"a" * 32, b"later"),
        _signed(SIGNATURE, 3, os.urandom(40)),
    ]
    twice = [_signed(SIGNATURE, 3, os.urandom(32))]
    rows = [pack(b"dpmesh row 1", b"x"), b""]
    messages = [*signatures, *heard, *further, *twice, *rows]
    packed = bundled(messages, **KINDS)
    assert sorted(unbundled(packed, distinct_end=[SIGNATURE])) == sorted(messages)
    assert sum(kind_of(message) == BUNDLE for message in packed) == 4


@pytest.mark.parametrize("later_bytes", [0, 146, 147, 152, 1000])
def test_answers_with_long_reports_are_sent_outside_of_bundles(
    later_bytes: int, tmp_path: Path
) -> None:
    """A signed row has over 250 bytes, and the progress of 36 kinds of sums has 152."""
    contract = Parties(tmp_path).contract
    later = bytes(later_bytes)
    heard = tuple(_signed(ROLLBACK_REPORT, party, b"a" * 32, later) for party in range(3))
    is_short = len(pack(ROLLBACK_REPORT, CONTRACT, b"a" * 32, later)) <= MOST_COMMON
    assert is_short == (later_bytes <= 146)
    assert any(kind_of(message) == BUNDLE for message in bundled(heard, **KINDS)) == is_short
    ask = StepQuestion(Position(0), heard)
    assert read_question(ask.as_bytes(contract), contract) == ask


def test_a_bit_for_each_party() -> None:
    assert parties_in(party_bits([0, 7, 8, 65535])) == [0, 7, 8, 65535]
    with pytest.raises(ValueError, match="at most 65536 parties"):
        parties_in(bytes(2**13 + 1))


@pytest.mark.parametrize(
    "bundle",
    [
        pack(BUNDLE),
        pack(BUNDLE, pack(SIGNATURE, CONTRACT), int_fields(0)[0], b"\x80", b"short"),
        pack(BUNDLE, pack(SIGNATURE), int_fields(0)[0], b"\x80", bytes(64)),
        pack(BUNDLE, b"none", int_fields(0)[0], b"\x80", bytes(64)),
        pack(BUNDLE, pack(SIGNATURE, CONTRACT), int_fields(2**32 - 1)[0], b"\x80", bytes(64)),
        pack(
            BUNDLE, pack(SIGNATURE, bytes(2**20)), int_fields(0)[0], b"\xff" * 2**13, bytes(2**22)
        ),
        pack(BUNDLE, pack(SIGNATURE, CONTRACT), int_fields(0)[0], bytes(2**20), b""),
    ],
)
def test_a_malformed_bundle_is_refused(bundle: bytes, tmp_path: Path) -> None:
    contract = Parties(tmp_path).contract
    message = pack(STEP_QUESTION, contract.hash, *int_fields(0, 0), bundle)
    with pytest.raises(RefusedError, match="malformed"):
        read_question(message, contract)


def test_a_reader_checks_the_length_of_common_fields_before_it_reads_anything_of_them() -> None:
    """Neither fields that end early nor too many bits are told first."""
    for common in (b"\xff" * 257, bytes(2**16)):
        bundle = pack(BUNDLE, common, int_fields(0)[0], bytes(2**13 + 1), b"")
        with pytest.raises(ValueError, match=f"at most 256 bytes in common, got {len(common)}"):
            unbundled([bundle], distinct_end=[SIGNATURE])


def test_a_start_of_sums_takes_less_than_200_bytes_a_pair_beside_what_each_party_takes(
    tmp_path: Path,
) -> None:
    """Signatures, keys, answers and random numbers take 192; so 1,000 parties take 200 MB."""
    sent = {}
    for nodes in (6, 12):
        path = tmp_path / str(nodes)
        parties = Parties(path, "sums", nodes=nodes, rounds=2, rehearsal=False)
        router, sent[nodes] = Router(parties.contract), 0
        while router.open_position is None or router.open_position.round == 0:
            for party in range(nodes):
                if (message := router.request(party)) is not None:
                    sent[nodes] += len(message)
                    router.take(party, parties.nodes[party].answer(message))
    # Per party and pair: b n + a n^2 in bytes; what grows as n alone drops out.
    pairs = (sent[12] / 12 - sent[6] / 6) / 6
    assert pairs < 200
