"""Parties that send what is no answer: they are named, asked again, or left out."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mesh_parties import Sums
from virtual_time import Clock, run, run_once

from dpmesh.deploy import Contract, Router
from dpmesh.deploy.signing import pack, unpack
from dpmesh.deploy.sums import MASKED_PARTS, MaskedPart
from dpmesh.deploy.wire import Position, Presence, StepProgress, kind_of, presence_question, refusal
from dpmesh.kernels.masking import PRIME


@pytest.mark.parametrize("lie", ["all ones", "spare bits", "tag", "short", "agreement"])
@pytest.mark.parametrize("algorithm", ["sums", "first stage"])
def test_a_malformed_part_is_refused_as_it_arrives_and_its_party_named(
    lie: str, algorithm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parties, clock = Sums(tmp_path, algorithm, quorum=3), Clock()
    contract = parties.contract

    def spoilt(party: int, answer: bytes) -> bytes:
        if party != 3 or kind_of(answer) != MASKED_PARTS:
            return answer
        parts = [MaskedPart.read(each, contract) for each in unpack(answer)[1:]]
        changed = []
        for part in parts:
            size = len(part.packed)
            if lie == "all ones":
                part = replace(part, packed=b"\xff" * size)
            elif lie == "spare bits":
                part = replace(part, packed=part.packed[:-1] + b"\xff")
            elif lie == "tag":
                part = replace(part, tag=PRIME)
            elif lie == "short":
                part = replace(part, packed=part.packed[:-1])
            else:
                part = replace(part, agreement=os.urandom(32))
            changed.append(part.as_bytes(contract))
        return pack(MASKED_PARTS, *changed)

    router = Router(contract, clock)
    with caplog.at_level(logging.WARNING, logger="dpmesh"):
        run(parties, router, clock, answers=spoilt)
    assert all(node.is_sealed for node in parties.nodes[:3])
    has_spare_bits = (
        contract.planned.first_sum.dim * contract.planned.first_sum.modulus_bits % 8 > 0
    )
    if lie in ("tag", "short") or (lie != "agreement" and has_spare_bits):
        assert "p3 sends what this router refuses" in caplog.text


@pytest.mark.parametrize("algorithm", ["sums", "neighbour sums"])
@pytest.mark.parametrize("wrong", [1, 10**6])
def test_a_wrong_part_spends_no_attempt_of_a_contract_without_a_reserve(
    algorithm: str, wrong: int, tmp_path: Path
) -> None:
    """Its party has stored the right one, and is asked again: once wrong, or for ever."""
    parties, clock, sent = Sums(tmp_path, algorithm), Clock(), list[bytes]()
    contract = parties.contract

    def spoilt(party: int, answer: bytes) -> bytes:
        if party != 3 or kind_of(answer) != MASKED_PARTS or len(sent) >= wrong:
            return answer
        sent.append(answer)
        return pack(MASKED_PARTS, b"another")

    router = Router(contract, clock)
    if wrong == 1:
        run(parties, router, clock, answers=spoilt)
        assert all(node.is_sealed for node in parties.nodes)
        return
    with pytest.raises(AssertionError, match=r"does not end: .*p3"):
        run(parties, router, clock, answers=spoilt)
    assert len(set(sent)) == 1
    assert len(sent) < 400
    assert not router.gone
    for folder in parties.folders:
        assert len(folder.ledger(contract).releases) <= 4  # of the first attempt alone


def _with_wrong_numbers(
    answer: bytes, contract: Contract, dealers: Collection[int] = range(4), changed_bit: int = 1
) -> bytes:
    """Return parts with other integers in the right form, which no router can tell from masked."""
    changed = []
    for message in unpack(answer)[1:]:
        part = MaskedPart.read(message, contract)
        if part.header.dealer in dealers:
            first_bits = part.packed[0] ^ changed_bit
            part = replace(part, packed=bytes([first_bits]) + part.packed[1:])
        changed.append(part)
    return pack(MASKED_PARTS, *(part.as_bytes(contract) for part in changed))


def test_a_party_whose_numbers_are_wrong_is_found_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Totals without one party after another: without p0, without p1, without p2, who did it."""
    combination = {"kind": "SecureAggregation", "colluding": 0, "dropouts": 1, "reserve": 4}
    changes = {"combination": combination}
    parties, clock = Sums(tmp_path, quorum=3, rounds=8, changes=changes), Clock()
    contract = parties.contract

    def spoilt(party: int, answer: bytes) -> bytes:
        if party != 2 or kind_of(answer) != MASKED_PARTS:
            return answer
        return _with_wrong_numbers(answer, contract)

    router = Router(contract, clock)
    with caplog.at_level(logging.WARNING, logger="dpmesh"):
        run(parties, router, clock, answers=spoilt)
    assert "the total without p2 opens: its part was wrong, or another's was" in caplog.text
    honest = [parties.nodes[party] for party in (0, 1, 3)]
    assert all(node.is_sealed for node in honest)
    assert [node.rounds for node in honest] == [8, 8, 8]
    spent = [len(folder.ledger(contract).releases) for folder in parties.folders]
    assert max(spent) <= 12


@pytest.mark.parametrize("algorithm", ["sums", "first stage"])
@pytest.mark.parametrize("lie", ["numbers", "agreement", "malformed"])
def test_one_wrong_part_costs_nothing_where_no_attempt_without_it_is_allowed(
    lie: str, algorithm: str, tmp_path: Path
) -> None:
    """A first stage's mean has no reserve, whatever the rounds have; and no party may be missing.

    Of the rounds, an attempt is spent if it is known whose part is wrong before they are added up.
    """
    combination = {"kind": "SecureAggregation", "colluding": 0, "dropouts": 0, "reserve": 4}
    changes = {"combination": combination}
    parties, clock = Sums(tmp_path, algorithm, quorum=4, changes=changes), Clock()
    contract, sent = parties.contract, list[bytes]()

    def spoilt(party: int, answer: bytes) -> bytes:
        if party != 3 or kind_of(answer) != MASKED_PARTS or sent:
            return answer
        sent.append(answer)
        if lie == "numbers":
            return _with_wrong_numbers(answer, contract)
        if lie == "malformed":
            return pack(MASKED_PARTS, b"another")
        part = MaskedPart.read(unpack(answer)[1], contract)
        return pack(MASKED_PARTS, replace(part, agreement=bytes(32)).as_bytes(contract))

    run(parties, Router(contract, clock), clock, answers=spoilt)
    assert all(node.is_sealed for node in parties.nodes)
    assert [node.rounds for node in parties.nodes] == [contract.terms.rounds] * 4
    spends = algorithm == "sums" and lie != "numbers"
    charged = [len(folder.ledger(contract).releases) for folder in parties.folders]
    assert charged == [contract.planned.steps + spends] * 4


@pytest.mark.parametrize(("stalling", "wrong"), [(0, 2), (3, 1)])
def test_a_search_for_a_wrong_part_leaves_out_one_of_those_who_added_to_it(
    stalling: int, wrong: int, tmp_path: Path
) -> None:
    """A party has stalled in round 1, and adds to nothing until one of the others is left out."""
    combination = {"kind": "SecureAggregation", "colluding": 0, "dropouts": 1, "reserve": 5}
    changes = {"combination": combination}
    parties, clock = Sums(tmp_path, quorum=3, rounds=4, changes=changes), Clock()
    contract, cohorts = parties.contract, list[set[int]]()
    router = Router(contract, clock)

    def hears(party: int, step: int) -> bool:
        return party != stalling or router.open_position != Position(1)

    def spoilt(party: int, answer: bytes) -> bytes:
        if (
            kind_of(answer) != MASKED_PARTS
            or router.open_position is None
            or router.open_position.round != 3
        ):
            return answer
        cohort = {*MaskedPart.read(unpack(answer)[1], contract).header.cohort}
        if not cohorts or cohort != cohorts[-1]:
            cohorts.append(cohort)
        return _with_wrong_numbers(answer, contract) if party == wrong else answer

    run(parties, router, clock, hears, spoilt)
    others = {0, 1, 2, 3} - {stalling}
    suspects = [party for party in sorted(others) if party <= wrong]
    assert cohorts == [others, *({0, 1, 2, 3} - {suspect} for suspect in suspects)]
    honest = {0, 1, 2, 3} - {wrong}
    assert all(parties.nodes[party].is_sealed for party in honest)
    charged = [len(parties.folders[party].ledger(contract).releases) for party in honest]
    assert max(charged) <= 4 + 1 + len(suspects)


def test_a_suspect_that_is_needed_for_a_quorum_is_not_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Party 1 is wrong once; as p0 is left out, p3 is lost, and p0 has to take part again."""
    combination = {"kind": "SecureAggregation", "colluding": 0, "dropouts": 1, "reserve": 4}
    changes = {"combination": combination}
    parties, clock = Sums(tmp_path, quorum=3, rounds=4, changes=changes), Clock()
    contract, sent = parties.contract, list[bytes]()
    router = Router(contract, clock)

    def hears(party: int, step: int) -> bool:
        is_lost = router.routing.faults.suspect is not None or 3 in router.late
        return party != 3 or not is_lost

    def spoilt(party: int, answer: bytes) -> bytes:
        if (
            party != 1
            or kind_of(answer) != MASKED_PARTS
            or router.open_position != Position(1)
            or sent
        ):
            return answer
        sent.append(answer)
        return _with_wrong_numbers(answer, contract)

    with caplog.at_level(logging.WARNING, logger="dpmesh"):
        run(parties, router, clock, hears, spoilt)
    assert sent
    assert all(node.is_sealed for node in parties.nodes[:3])
    assert router.missing == ["p3"]
    assert "the total without" not in caplog.text
    assert router.routing.faults.attempts_cost[0] == 0


@pytest.mark.parametrize("algorithm", ["sums", "neighbour sums"])
@pytest.mark.parametrize("lie", ["numbers", "agreement"])
@pytest.mark.parametrize("wrong", [1, 10**6])
def test_a_wrong_total_spends_no_attempt_of_a_contract_without_a_reserve(
    algorithm: str, lie: str, wrong: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parties, clock, sent = Sums(tmp_path, algorithm), Clock(), list[bytes]()
    contract = parties.contract

    def spoilt(party: int, answer: bytes) -> bytes:
        if party != 3 or kind_of(answer) != MASKED_PARTS or len(sent) >= wrong:
            return answer
        sent.append(answer)
        if lie == "numbers":
            return _with_wrong_numbers(answer, contract)
        parts = [MaskedPart.read(message, contract) for message in unpack(answer)[1:]]
        apart = [replace(part, agreement=bytes(32)).as_bytes(contract) for part in parts]
        return pack(MASKED_PARTS, *apart)

    router = Router(contract, clock)
    # A neighbor that took its own total has answered the next step, to headers that name the wrong
    # totals of others: it would be charged for another attempt, so the run waits for it.
    mends = algorithm == "sums" or lie == "agreement"
    if wrong == 1 and mends:
        with caplog.at_level(logging.WARNING, logger="dpmesh"):
            run(parties, router, clock, answers=spoilt)
        assert "p3" in caplog.text
        assert all(node.is_done for node in parties.nodes)
        whole = len(contract.plan.releases)
        assert [len(each.ledger(contract).releases) for each in parties.folders] == [whole] * 4
        return
    with pytest.raises(AssertionError, match=r"does not end.*p3"):
        run(parties, router, clock, answers=spoilt)
    assert not router.gone
    assert len({*sent}) <= 2
    for folder in parties.folders:
        of_one_round = len(contract.planned.releases(0, 0))
        assert len(folder.ledger(contract).releases) <= 4 * of_one_round


def test_refusals_of_two_receivers_reopen_the_step_of_their_totals_once(tmp_path: Path) -> None:
    """Each receiver gets one wrong part of round 2: all refuse before any is asked again."""
    parties, clock, sent = Sums(tmp_path, "neighbour sums"), Clock(), set[int]()
    contract = parties.contract
    router, opened = Router(contract, clock), list[int]()

    def recorded(party: int, step: int) -> bool:
        if router.open_position is not None and not router.schedule.is_closing(
            router.open_position
        ):
            opened.append(router.open_position.round)
        return True

    def spoilt(party: int, answer: bytes) -> bytes:
        wrong = party in (0, 3) and party not in sent and router.open_position == Position(2)
        if not wrong or kind_of(answer) != MASKED_PARTS:
            return answer
        sent.add(party)
        receivers = {3} if party == 0 else {0, 1, 2}
        return _with_wrong_numbers(answer, contract, receivers)

    run(parties, router, clock, recorded, spoilt)
    first_refusal = opened.index(3)
    assert min(opened[first_refusal:]) == 2
    assert all(node.is_sealed for node in parties.nodes)
    charged = [len(folder.ledger(contract).releases) for folder in parties.folders]
    assert charged == [len(contract.plan.releases)] * 4


@pytest.mark.parametrize("reserve", [0, 4])
@pytest.mark.parametrize("lie", ["cohort", "alone", "dealer", "twice"])
def test_a_part_under_another_header_costs_its_party_alone(
    lie: str, reserve: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The others add up without it from then on; without a reserve it is asked again."""
    combination = {"kind": "SecureAggregation", "colluding": 1, "dropouts": 0, "reserve": 0}
    if reserve > 0:
        combination |= {"colluding": 0, "dropouts": 1, "reserve": reserve}
    quorum = 3 if reserve > 0 else 4
    changes = {"combination": combination}
    parties, clock = Sums(tmp_path, quorum=quorum, changes=changes), Clock()
    contract, sent = parties.contract, list[bytes]()

    def spoilt(party: int, answer: bytes) -> bytes:
        if party != 3 or kind_of(answer) != MASKED_PARTS or (reserve == 0 and len(sent) >= 2):
            return answer
        sent.append(answer)
        (message,) = unpack(answer)[1:]
        if lie == "twice":
            return pack(MASKED_PARTS, message, message)
        part = MaskedPart.read(message, contract)
        other_headers = {
            "cohort": replace(part.header, cohort=(1, 2, 3)),
            "alone": replace(part.header, cohort=(3,)),
            "dealer": replace(part.header, dealer=2),
        }
        return pack(MASKED_PARTS, replace(part, header=other_headers[lie]).as_bytes(contract))

    router = Router(contract, clock)
    with caplog.at_level(logging.WARNING, logger="dpmesh"):
        run(parties, router, clock, answers=spoilt)
    assert "p3 sends what this router refuses: parts" in caplog.text
    assert all(node.is_sealed for node in parties.nodes[: 3 if reserve > 0 else 4])
    rounds = contract.terms.rounds
    charged = [len(folder.ledger(contract).releases) for folder in parties.folders]
    assert charged == ([rounds + 1] * 3 + [1] if reserve > 0 else [rounds] * 4)


@pytest.mark.parametrize("reason", ["malformed", "bad key", "bad cohort", "not signed by p1"])
@pytest.mark.parametrize("algorithm", ["sums", "neighbour sums"])
def test_a_refusal_without_a_reserve_has_its_party_asked_again(
    reason: str, algorithm: str, tmp_path: Path
) -> None:
    parties, clock, sent = Sums(tmp_path, algorithm), Clock(), list[bytes]()
    contract = parties.contract
    router = Router(contract, clock)

    def refusing(party: int, answer: bytes) -> bytes:
        if (
            party != 3
            or router.open_position != Position(1)
            or kind_of(answer) != MASKED_PARTS
            or len(sent) >= 2
        ):
            return answer
        sent.append(answer)
        return refusal(contract, reason)

    run(parties, router, clock, answers=refusing)
    assert len(sent) == 2
    assert all(node.is_sealed for node in parties.nodes)
    charged = [len(folder.ledger(contract).releases) for folder in parties.folders]
    assert charged == [len(contract.plan.releases)] * 4


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("reserve", [1, 4])
@pytest.mark.parametrize("lie", ["one agreement", "two agreements"])
def test_a_run_whose_agreements_split_without_a_majority_pauses_and_names_all_of_them(
    lie: str, reserve: int, start: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No group with one agreement is a quorum. The attempts of later rounds are not spent."""
    combination = {"kind": "SecureAggregation", "colluding": 0, "dropouts": 1, "reserve": reserve}
    changes = {"combination": combination}
    parties, clock = Sums(tmp_path, quorum=3, rounds=5, changes=changes), Clock()
    contract, router = parties.contract, Router(parties.contract, clock)
    splits = True

    def spoilt(party: int, answer: bytes) -> bytes:
        is_part = (
            kind_of(answer) == MASKED_PARTS
            and router.open_position is not None
            and router.open_position.round >= start
        )
        if not (splits and party in (2, 3) and is_part):
            return answer
        agreement = bytes([party if lie == "two agreements" else 2] * 32)
        part = MaskedPart.read(unpack(answer)[1], contract)
        return pack(MASKED_PARTS, replace(part, agreement=agreement).as_bytes(contract))

    with caplog.at_level(logging.WARNING, logger="dpmesh"):
        for _ in range(600):
            run_once(parties, router, clock, answers=spoilt)
    assert router.is_paused
    assert not router.failure
    named = [line for line in caplog.messages if "sends a part that fits no other" in line]
    assert named == [
        f"{name} sends a part that fits no other; it is asked again" for name in parties.names
    ]
    charged = [len(folder.ledger(contract).releases) for folder in parties.folders]
    assert charged == [start + 1 + reserve] * 4
    splits = False  # they are mended, and all rounds follow
    run(parties, router, clock, answers=spoilt)
    assert [node.rounds for node in parties.nodes] == [5] * 4
    assert all(node.is_sealed for node in parties.nodes)


@pytest.mark.parametrize("latency", [0.25, 4.0])
@pytest.mark.parametrize("lie", ["agreements", "numbers"])
def test_a_party_that_answers_last_is_not_missing_as_all_are_asked_again(
    lie: str, latency: float, tmp_path: Path
) -> None:
    """It has time to answer after each pause; if it had not, another attempt would be spent."""
    combination = {"kind": "SecureAggregation", "colluding": 0, "dropouts": 1, "reserve": 1}
    changes = {"combination": combination}
    parties, clock = Sums(tmp_path, quorum=3, rounds=5, changes=changes), Clock()
    contract, router = parties.contract, Router(parties.contract, clock)

    def spoilt(party: int, answer: bytes) -> bytes:
        if kind_of(answer) != MASKED_PARTS or party not in (2, 3):
            return answer
        if lie == "numbers":
            return _with_wrong_numbers(answer, contract, changed_bit=party - 1)
        part = MaskedPart.read(unpack(answer)[1], contract)
        return pack(MASKED_PARTS, replace(part, agreement=bytes([2] * 32)).as_bytes(contract))

    arriving: dict[int, tuple[float, bytes]] = {}
    while clock.now < 200:
        for party, node in enumerate(parties.nodes):
            if party not in arriving:
                question = router.request(party)
                if question is not None:
                    arrival = clock.now + latency * (party == 1)
                    arriving[party] = (arrival, spoilt(party, node.answer(question)))
            elif arriving[party][0] <= clock.now:
                router.take(party, arriving.pop(party)[1])
        clock.now += 0.1
        if router.waits_since() > contract.terms.deadline:
            router.close()
        assert not router.missing
    assert router.is_paused
    if lie == "agreements":
        charged = [len(folder.ledger(contract).releases) for folder in parties.folders]
        assert charged == [2] * 4  # the first attempt, and the one in reserve


@pytest.mark.parametrize(
    ("nodes", "wrong", "start", "reserve"),
    [(4, 2, 3, 1), (4, 3, 2, 1), (4, 3, 3, 1), (4, 3, 3, 2), (5, 4, 1, 1), (5, 3, 2, 1)],
)
def test_a_party_whose_numbers_are_wrong_leaves_a_sealed_model_when_the_search_spends_all(
    nodes: int, wrong: int, start: int, reserve: int, tmp_path: Path
) -> None:
    """Attempts are spent while a total is doubted: parties say so of a step that is not reached."""
    combination = {"kind": "SecureAggregation", "colluding": 0, "dropouts": 1, "reserve": reserve}
    changes = {"combination": combination}
    terms = {"nodes": nodes, "quorum": nodes - 1, "rounds": 5, "changes": changes}
    parties, clock = Sums(tmp_path, **terms), Clock()
    contract = parties.contract
    router = Router(contract, clock)

    def spoilt(party: int, answer: bytes) -> bytes:
        is_part = (
            kind_of(answer) == MASKED_PARTS
            and router.open_position is not None
            and router.open_position.round >= start
        )
        return _with_wrong_numbers(answer, contract) if party == wrong and is_part else answer

    run(parties, router, clock, answers=spoilt)
    honest = [node for node in parties.nodes if node.number != wrong]
    assert all(node.is_sealed for node in honest)
    assert len({(node.rounds, node.transcript) for node in honest}) == 1
    assert honest[0].rounds >= start


@pytest.mark.parametrize(
    ("start", "reserve"),
    [(2, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, 1), (0, 4), (2, 4)))],
)
@pytest.mark.parametrize("algorithm", ["sums", "first stage", "neighbour sums"])
def test_two_parties_whose_numbers_are_always_wrong_end_a_run_early_or_pause_it(
    algorithm: str, start: int, reserve: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of four may be missing, so that no total without both is allowed."""
    metrics = pytest.importorskip("dpmesh.deploy.metrics")
    combination = {"kind": "SecureAggregation", "colluding": 0, "dropouts": 1, "reserve": reserve}
    changes = None if algorithm == "neighbour sums" else {"combination": combination}
    quorum = 4 if algorithm == "neighbour sums" else 3
    parties = Sums(tmp_path, algorithm, quorum=quorum, rounds=5, changes=changes)
    clock, contract = Clock(), parties.contract
    router = Router(contract, clock)

    def spoilt(party: int, answer: bytes) -> bytes:
        is_part = (
            kind_of(answer) == MASKED_PARTS
            and router.open_position is not None
            and router.open_position.round >= start
        )
        if not (party in (2, 3) and is_part):
            return answer
        changed_bit = 1 if party == 2 else 2  # so that their changes never cancel
        return _with_wrong_numbers(answer, contract, changed_bit=changed_bit)

    shown = metrics.RouterMetrics(router, 0)
    for step in range(600):
        if router.done:
            break
        run_once(parties, router, clock, answers=spoilt, step=step)
    shown._updated = -metrics.UPDATE
    shown.update()
    shown.close()
    if router.done:
        assert all(node.is_done for node in parties.nodes)
        assert all(node.is_sealed or node.rounds == 0 for node in parties.nodes)
    else:
        assert router.is_paused
        assert shown._problem.startswith("waiting for p")
        assert "is wrong, of " in caplog.text
    for folder in parties.folders:
        assert len(folder.ledger(contract).releases) <= len(contract.plan.releases)


def test_no_message_of_a_party_ends_a_router(tmp_path: Path) -> None:
    parties, clock = Sums(tmp_path, quorum=3), Clock()
    contract, random = parties.contract, np.random.default_rng(4)
    router = Router(contract, clock)
    asks = parties.asks(router)
    honest = [parties.nodes[3].answer(presence_question(contract)), parties.answer(3, asks[3])]
    far = StepProgress(Position(2**31, 7), b"junk")
    honest.append(Presence(honest[0], b"", far).as_bytes())
    for message in honest:
        for _ in range(60):
            spoilt = bytearray(message)
            spoilt[random.integers(len(spoilt))] ^= 1 << random.integers(8)
            router.take(3, bytes(spoilt[: random.integers(len(spoilt))]))
            router.take(3, bytes(spoilt))
    run(parties, router, clock)
    assert all(node.is_sealed for node in parties.nodes[:3])
