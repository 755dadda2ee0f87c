"""Parties that are lost, stall or send what is no answer: the others go on, and name them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mesh_parties import Parties, Sums
from test_liveness import run_schedules

from dpmesh.deploy import Contract, Node, Router
from dpmesh.deploy.outcome import verified
from dpmesh.deploy.router_sums import STRIDE
from dpmesh.deploy.row import ROW, Row
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import pack, unpack
from dpmesh.deploy.sums import PARTS, RELAY, RELAYED, RELAYED_BYTES, Part, Spent
from dpmesh.deploy.wire import (
    ASK,
    FRESH,
    WITHHOLD,
    Ask,
    Here,
    Position,
    Reached,
    kind_of,
    numbers,
    recall_totals,
    refusal,
    refused,
    who,
)
from dpmesh.kernels.masking import PRIME

DEADLINE = 10.0


class Clock:
    """Virtual time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(
    parties: Parties,
    router: Router,
    clock: Clock,
    hears: Callable[[int, int], bool] = lambda party, step: True,
    answers: Callable[[int, bytes], bytes] = lambda party, answer: answer,
    most: int = 400,
) -> None:
    """Run to the end; `hears` says which party hears at which step, `answers` what it sends."""
    for step in range(most):
        if router.done or router.failure:
            return
        run_once(parties, router, clock, hears, answers, step)
    raise AssertionError(f"it does not end: {router.at}, {router.waits_for}")


def run_once(
    parties: Parties,
    router: Router,
    clock: Clock,
    hears: Callable[[int, int], bool] = lambda party, step: True,
    answers: Callable[[int, bytes], bytes] = lambda party, answer: answer,
    step: int = 0,
) -> None:
    """Ask all parties that hear once, and close what waits for longer than a deadline."""
    moved = False
    for party, message in router.requests().items():
        if hears(party, step):
            router.take(party, answers(party, parties.nodes[party].answer(message)))
            moved = True
    clock.now += 0.01 if moved else 1.0
    if router.waits_since() > DEADLINE:
        router.close()


@pytest.mark.parametrize("algorithm", ["gradient descent", "sums", "first stage"])
def test_a_router_that_restarts_beside_a_lost_party_goes_on(algorithm: str, tmp_path: Path) -> None:
    parties, clock = Parties(tmp_path, algorithm, rehearsal=False, quorum=3, rounds=5), Clock()
    first = Router(parties.contract, clock)
    with pytest.raises(AssertionError, match="does not end"):
        run(parties, first, clock, lambda party, step: party != 3 or step < 6, most=9)
    router = Router(parties.contract, clock)
    run(parties, router, clock, lambda party, step: party != 3)
    assert router.missing == ["p3"]
    assert all(node.is_done for node in parties.nodes[:3])
    assert all(node.is_sealed for node in parties.nodes[:3])


def test_a_party_that_stalls_again_and_again_costs_one_attempt(tmp_path: Path) -> None:
    parties, clock = Sums(tmp_path, quorum=3, rounds=8), Clock()
    router = Router(parties.contract, clock)
    run(parties, router, clock, lambda party, step: party != 3 or step % 24 < 8)
    assert not router.gone
    spent = [len(folder.ledger(parties.contract).releases) for folder in parties.folders]
    assert spent[:3] == [9, 9, 9]  # 8 rounds, and one attempt for the lost party
    assert all(node.is_sealed for node in parties.nodes[:3])


@pytest.mark.parametrize("algorithm", ["online", "both", "several mixings"])
def test_a_party_whose_neighbours_are_lost_goes_on_and_keeps_its_rows(
    algorithm: str, tmp_path: Path
) -> None:
    """Of a ring of five, 0 and 2 are lost after they signed: nobody hears 1."""
    settings = {"nodes": 5, "topology": {"kind": "ring"}, "rehearsal": False}
    parties, clock = Parties(tmp_path, algorithm, **settings), Clock()
    contract, sent = parties.contract, list[Row]()

    def recorded(party: int, answer: bytes) -> bytes:
        if party == 1 and kind_of(answer) == ROW:
            sent.append(Row.read(answer, contract))
        return answer

    def hears(party: int, step: int) -> bool:
        return party in (1, 3, 4) or step < 1

    run(parties, Router(contract, clock), clock, hears, recorded)
    assert [parties.nodes[party].is_done for party in (1, 3, 4)] == [True, True, True]
    assert [parties.nodes[party].is_sealed for party in (1, 3, 4)] == [False, True, True]
    assert sent
    assert not any(row.codes for row in sent)
    step = parties.folders[1].step(contract, Position(2))
    assert step is not None
    assert step.withheld
    row = Row.read(step.row or b"", contract)  # it was charged, and stays where it is
    answer = Row.read(parties.node(1).answer(Ask(step.at, ()).as_bytes(contract)), contract)
    assert (answer.at, answer.codes, bool(row.codes)) == (step.at, b"", True)
    charged = parties.folders[1].ledger(contract).releases
    assert len(charged) == len(contract.plan.releases)


def test_a_node_killed_before_it_computed_a_row_that_nobody_confirms_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties = Parties(tmp_path, rehearsal=False)
    contract, router = parties.contract, Router(parties.contract)
    while 1 not in router.requests() or Position(1) != router.at:
        for party, message in router.requests().items():
            router.take(party, parties.nodes[party].answer(message))
    message = router.requests()[1]
    with monkeypatch.context() as patched:
        patched.setattr(Node, "_computed", _no_space)
        with pytest.raises(OSError, match="no space"):
            parties.nodes[1].answer(message)
    node = parties.node(1)
    question = Ask.read(message, contract)
    assert isinstance(question, Ask)
    assert kind_of(node.answer(message)) == FRESH  # it asks whether it sent the row already
    alone = Ask(question.at, (*question.attached, WITHHOLD)).as_bytes(contract)
    assert Row.read(node.answer(alone), contract).is_withheld
    assert Row.read(node.answer(message), contract).is_withheld


def _no_space(*_: object) -> None:
    raise OSError("no space left")


def test_a_reserve_of_four_bears_that_each_party_stalls_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    combination = {"kind": "SecureAggregation", "colluding": 0, "dropouts": 1, "reserve": 4}
    changes = {"combination": combination}
    parties, clock = Sums(tmp_path, quorum=3, rounds=8, changes=changes), Clock()
    router = Router(parties.contract, clock)

    def hears(party: int, step: int) -> bool:
        stalls = router.at is not None and router.at.round == 2 * party and not router.late
        return not stalls or router.at.exchange > 0

    with caplog.at_level(logging.WARNING, logger="dpmesh"):
        run(parties, router, clock, hears)
    assert "will end before" not in caplog.text
    assert [node.rounds for node in parties.nodes] == [8, 8, 8, 8]
    assert all(node.is_sealed for node in parties.nodes)
    spent = [len(folder.ledger(parties.contract).releases) for folder in parties.folders]
    assert 9 <= max(spent) <= 12


def test_a_router_says_at_once_that_a_run_cannot_reach_its_last_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two parties stall one after the other, and the contract reserves one attempt."""
    parties, clock = Sums(tmp_path, quorum=3, rounds=8), Clock()
    router = Router(parties.contract, clock)
    said: list[int] = []

    def hears(party: int, step: int) -> bool:
        if not said and "will end before round 8" in caplog.text:
            assert router.at is not None
            said.append(router.at.round)
        at = -1 if router.at is None else router.at.round
        stalls = {3: at == 2 and not router.late, 2: at == 4 and not router.late}
        return not stalls.get(party, False)

    with caplog.at_level(logging.WARNING, logger="dpmesh"):
        run(parties, router, clock, hears)
    assert said == [4]
    assert "attempts were spent by p2, p3" in caplog.text
    by_router = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(by_router) == 1
    by_nodes = [each for each in caplog.messages if "only 2 more attempts" in each]
    assert len(by_nodes) == 2  # p0 and p1, who were charged for both
    assert not router.gone
    assert [node.rounds for node in parties.nodes] == [7, 7, 7, 7]
    _check_early_end(parties)


def _check_early_end(parties: Parties) -> None:
    """Check that all parties have the same sealed model, which names its rounds."""
    contract, transcripts = parties.contract, set[bytes]()
    for node, folder in zip(parties.nodes, parties.folders, strict=True):
        assert node.ended_early
        assert node.is_done
        assert node.is_sealed
        transcripts.add(node.transcript)
        assert folder.state_of(contract).startswith(f"finished after {node.rounds} rounds")
        assert len(folder.ledger(contract).releases) <= len(contract.plan.releases)
        origin = verified(node.model(), contract)
        assert (origin.rounds, len(origin.sealed_by) >= 3) == (node.rounds, True)
        again = parties.node(node.number)  # its secrets are erased, and it adds to nothing
        assert again.is_sealed
        assert node.at is not None
        later = Ask(Position(node.at.round + 1), ()).as_bytes(contract)
        assert refused(again.answer(later)) is not None
    assert len(transcripts) == 1


@pytest.mark.parametrize("algorithm", ["sums", "first stage", "second moment"])
@pytest.mark.parametrize("colluding", [0, 1])
def test_a_restored_folder_that_is_over_its_budget_ends_a_run_early_with_a_sealed_model(
    algorithm: str, colluding: int, tmp_path: Path
) -> None:
    """No party may be missing, or one that has stalled is: either way too few are left."""
    quorum = 4 if colluding else 3
    parties = Parties(tmp_path, algorithm, rehearsal=False, quorum=quorum, rounds=6)
    clock, contract = Clock(), parties.contract
    router = Router(contract, clock)

    def hears(party: int, step: int) -> bool:
        over = router.at is not None and router.at.round == 5
        if party == 2 and over and not parties.folders[2].is_over_budget:
            parties.folders[2].change("update party set over = 1")
        return party != 3 or bool(colluding) or router.at is None or router.at.round < 4

    run(parties, router, clock, hears)
    there = parties.nodes if colluding else parties.nodes[:3]
    expected = contract.planned.rounds_before(5)
    assert [(node.is_sealed, node.rounds) for node in there] == [(True, expected)] * len(there)
    if colluding:
        _check_early_end(parties)
    else:
        run(parties, router, clock)
        assert not parties.nodes[3].is_done
        for _ in range(9):
            for party, message in router.requests().items():
                router.take(party, parties.nodes[party].answer(message))
        _check_early_end(parties)


def test_no_router_ends_a_run_early_by_its_own_word(tmp_path: Path) -> None:
    parties = Sums(tmp_path, quorum=3)
    contract = parties.contract
    asks = parties.asks(Router(contract))
    words = [
        Spent(step, party).signed(contract, parties.folders[signer].signing)
        for step, party, signer in [(1, 2, 2), (0, 2, 1)]  # of a later sum; in another's name
    ]
    closing = Schedule(contract).closing(0)
    for lie in ((), words):
        early = Ask(closing, (*asks[0].attached, *lie)).as_bytes(contract)
        assert refused(parties.nodes[0].answer(early)) in ("malformed", "not the next round")
        early = Ask(closing, tuple(lie)).as_bytes(contract)
        assert refused(parties.nodes[0].answer(early)) == "not the next round"
    router = Router(contract)
    claimed = Reached(closing, pack(*words))
    router.take(0, Here(parties.nodes[0].answer(who(contract)), b"", claimed).as_bytes())
    assert not router.reached


def test_a_router_that_restarts_at_an_early_end_goes_on(tmp_path: Path) -> None:
    """One party has signed it, and the router's successor learns why from that one."""
    parties, clock = Sums(tmp_path, quorum=4, rounds=5), Clock()
    contract = parties.contract
    router = Router(contract, clock)

    def hears(party: int, step: int) -> bool:
        at = router.at
        if at is not None and at.round == 3:
            parties.folders[1].change("update party set over = 1")
        return party == 0 or at is None or at.round < 3 or not router.schedule.is_early(at)

    with pytest.raises(AssertionError, match="does not end"):
        run(parties, router, clock, hears, most=200)
    assert [node.ended_early for node in parties.nodes] == [True, False, False, False]
    parties.folders[1].change("update party set over = 0")  # nobody else has a reason to end
    run(parties, Router(contract, clock), clock)
    assert [node.rounds for node in parties.nodes] == [3] * 4
    _check_early_end(parties)


@pytest.mark.parametrize("lie", ["all ones", "spare bits", "tag", "short", "agreement"])
@pytest.mark.parametrize("algorithm", ["sums", "first stage"])
def test_a_malformed_part_is_refused_as_it_arrives_and_its_party_named(
    lie: str, algorithm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parties, clock = Sums(tmp_path, algorithm, quorum=3), Clock()
    contract = parties.contract

    def spoilt(party: int, answer: bytes) -> bytes:
        if party != 3 or kind_of(answer) != PARTS:
            return answer
        parts = [Part.read(each, contract) for each in unpack(answer)[1:]]
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
        return pack(PARTS, *changed)

    router = Router(contract, clock)
    with caplog.at_level(logging.WARNING, logger="dpmesh"):
        run(parties, router, clock, answers=spoilt)
    assert all(node.is_sealed for node in parties.nodes[:3])
    has_spare_bits = contract.planned.sums.dim * contract.planned.sums.modulus_bits % 8 > 0
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
        if party != 3 or kind_of(answer) != PARTS or len(sent) >= wrong:
            return answer
        sent.append(answer)
        return pack(PARTS, b"another")

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
    answer: bytes, contract: Contract, dealers: Collection[int] = range(4)
) -> bytes:
    """Return parts with other integers in the right form, which no router can tell from masked."""
    changed = []
    for message in unpack(answer)[1:]:
        part = Part.read(message, contract)
        if part.header.dealer in dealers:
            first_bits = part.packed[0] ^ 1
            part = replace(part, packed=bytes([first_bits]) + part.packed[1:])
        changed.append(part)
    return pack(PARTS, *(part.as_bytes(contract) for part in changed))


def test_a_party_whose_numbers_are_wrong_is_found_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Totals without one party after another: without p0, without p1, without p2, who did it."""
    combination = {"kind": "SecureAggregation", "colluding": 0, "dropouts": 1, "reserve": 4}
    changes = {"combination": combination}
    parties, clock = Sums(tmp_path, quorum=3, rounds=8, changes=changes), Clock()
    contract = parties.contract

    def spoilt(party: int, answer: bytes) -> bytes:
        if party != 2 or kind_of(answer) != PARTS:
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
        if party != 3 or kind_of(answer) != PARTS or sent:
            return answer
        sent.append(answer)
        if lie == "numbers":
            return _with_wrong_numbers(answer, contract)
        if lie == "malformed":
            return pack(PARTS, b"another")
        part = Part.read(unpack(answer)[1], contract)
        return pack(PARTS, replace(part, agreement=bytes(32)).as_bytes(contract))

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
        return party != stalling or router.at != Position(1)

    def spoilt(party: int, answer: bytes) -> bytes:
        if kind_of(answer) != PARTS or router.at is None or router.at.round != 3:
            return answer
        cohort = {*Part.read(unpack(answer)[1], contract).header.cohort}
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
        is_lost = router.travel._suspect is not None or 3 in router.late
        return party != 3 or not is_lost

    def spoilt(party: int, answer: bytes) -> bytes:
        if party != 1 or kind_of(answer) != PARTS or router.at != Position(1) or sent:
            return answer
        sent.append(answer)
        return _with_wrong_numbers(answer, contract)

    with caplog.at_level(logging.WARNING, logger="dpmesh"):
        run(parties, router, clock, hears, spoilt)
    assert sent
    assert all(node.is_sealed for node in parties.nodes[:3])
    assert router.missing == ["p3"]
    assert "the total without" not in caplog.text
    assert router.travel._attempts_cost[0] == 0


@pytest.mark.parametrize("algorithm", ["sums", "neighbour sums"])
@pytest.mark.parametrize("lie", ["numbers", "agreement"])
@pytest.mark.parametrize("wrong", [1, 10**6])
def test_a_wrong_total_spends_no_attempt_of_a_contract_without_a_reserve(
    algorithm: str, lie: str, wrong: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parties, clock, sent = Sums(tmp_path, algorithm), Clock(), list[bytes]()
    contract = parties.contract

    def spoilt(party: int, answer: bytes) -> bytes:
        if party != 3 or kind_of(answer) != PARTS or len(sent) >= wrong:
            return answer
        sent.append(answer)
        if lie == "numbers":
            return _with_wrong_numbers(answer, contract)
        parts = [Part.read(message, contract) for message in unpack(answer)[1:]]
        apart = [replace(part, agreement=bytes(32)).as_bytes(contract) for part in parts]
        return pack(PARTS, *apart)

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
        if router.at is not None and not router.schedule.is_closing(router.at):
            opened.append(router.at.round)
        return True

    def spoilt(party: int, answer: bytes) -> bytes:
        wrong = party in (0, 3) and party not in sent and router.at == Position(2)
        if not wrong or kind_of(answer) != PARTS:
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
        if party != 3 or kind_of(answer) != PARTS or (reserve == 0 and len(sent) >= 2):
            return answer
        sent.append(answer)
        (message,) = unpack(answer)[1:]
        if lie == "twice":
            return pack(PARTS, message, message)
        part = Part.read(message, contract)
        other_headers = {
            "cohort": replace(part.header, cohort=(1, 2, 3)),
            "alone": replace(part.header, cohort=(3,)),
            "dealer": replace(part.header, dealer=2),
        }
        return pack(PARTS, replace(part, header=other_headers[lie]).as_bytes(contract))

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
        if party != 3 or router.at != Position(1) or kind_of(answer) != PARTS or len(sent) >= 2:
            return answer
        sent.append(answer)
        return refusal(contract, reason)

    run(parties, router, clock, answers=refusing)
    assert len(sent) == 2
    assert all(node.is_sealed for node in parties.nodes)
    charged = [len(folder.ledger(contract).releases) for folder in parties.folders]
    assert charged == [len(contract.plan.releases)] * 4


def test_no_message_of_a_party_ends_a_router(tmp_path: Path) -> None:
    parties, clock = Sums(tmp_path, quorum=3), Clock()
    contract, random = parties.contract, np.random.default_rng(4)
    router = Router(contract, clock)
    asks = parties.asks(router)
    honest = [parties.nodes[3].answer(who(contract)), parties.answer(3, asks[3])]
    far = Reached(Position(2**31, 7), b"junk")
    honest.append(Here(honest[0], b"", far).as_bytes())
    for message in honest:
        for _ in range(60):
            spoilt = bytearray(message)
            spoilt[random.integers(len(spoilt))] ^= 1 << random.integers(8)
            router.take(3, bytes(spoilt[: random.integers(len(spoilt))]))
            router.take(3, bytes(spoilt))
    run(parties, router, clock)
    assert all(node.is_sealed for node in parties.nodes[:3])


@pytest.mark.parametrize(
    ("schedule", "faults"), [(1036, None), (1591, None), (2356, ("nodes", "router", "lost"))]
)
def test_schedules_in_which_totals_were_lost_end(
    schedule: int, faults: tuple[str, ...] | None
) -> None:
    """Their router restarts, and a dealer or the only party with a total is lost."""
    ends = run_schedules(range(schedule, schedule + 1), faults)
    assert ends["ended"] + ends["early"] == 1


def test_a_party_that_missed_totals_takes_them_without_their_dealer(tmp_path: Path) -> None:
    """Party 3 stalls before it gets the secret; then the router and the dealer are lost."""
    parties, clock = Sums(tmp_path, quorum=3, rounds=5), Clock()
    contract, sent = parties.contract, list[bytes]()
    first = Router(contract, clock)

    def recorded(party: int, answer: bytes) -> bytes:
        sent.append(kind_of(answer))
        return answer

    def hears(party: int, step: int) -> bool:
        return party != 3 or first.at is None

    while first.at != Position(2):
        run_once(parties, first, clock, hears, recorded)
    assert RELAYED not in sent
    run(parties, Router(contract, clock), clock, lambda party, step: party != 0, recorded)
    assert RELAYED in sent
    _check_one_history(parties, {1, 2, 3})


def test_a_total_that_only_a_lost_party_has_is_added_up_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Party 0 alone gets the total of round 1; then it and the router are lost."""
    parties, clock = Sums(tmp_path, quorum=3, rounds=5), Clock()
    contract, first = parties.contract, Router(parties.contract, clock)

    def hears(party: int, step: int) -> bool:
        return party == 0 or first.at is None or first.at < Position(2)

    while parties.nodes[0].at != Position(2):
        run_once(parties, first, clock, hears)
    router = Router(contract, clock)
    with caplog.at_level(logging.WARNING, logger="dpmesh"):
        run(parties, router, clock, lambda party, step: party != 0 or router.at is None)
    assert "round 1 is added up again" in caplog.text
    _check_one_history(parties, {1, 2, 3})
    charged = [len(folder.ledger(contract).releases) for folder in parties.folders]
    assert charged == [3, 6, 6, 6]  # of 6 that are allowed: one attempt more than rounds


def test_a_party_with_a_total_that_was_added_up_again_costs_the_others_nothing(
    tmp_path: Path,
) -> None:
    """It comes back, and the others go on without it: its transcript is another."""
    parties, clock = Sums(tmp_path, quorum=3, rounds=5), Clock()
    contract, first = parties.contract, Router(parties.contract, clock)

    def hears(party: int, step: int) -> bool:
        return party == 0 or first.at is None or first.at < Position(2)

    while parties.nodes[0].at != Position(2):
        run_once(parties, first, clock, hears)
    router = Router(contract, clock)

    def is_back(party: int, step: int) -> bool:
        return party != 0 or router.at is None or router.at.exchange >= STRIDE

    run(parties, router, clock, is_back)
    assert not parties.nodes[0].is_done
    _check_one_history(parties, {1, 2, 3})
    charged = [len(folder.ledger(contract).releases) for folder in parties.folders]
    assert charged == [3, 6, 6, 6]


def _check_one_history(parties: Parties, there: set[int]) -> None:
    """Check that these parties have sealed the same totals."""
    nodes = [parties.nodes[party] for party in there]
    assert all(node.is_sealed for node in nodes)
    assert {node.rounds for node in nodes} == {parties.contract.terms.rounds}
    assert len({node.transcript for node in nodes}) == 1


def test_a_start_sends_the_questions_of_all_once_to_each_party(tmp_path: Path) -> None:
    """The dealer answers later than the others, and is asked the same questions."""
    parties = Sums(tmp_path)
    router, lists = Router(parties.contract), list[int]()
    while router.at is None or router.at < Position(1):
        for party in range(4):
            message = router.request(party)
            if message is None:
                continue
            if kind_of(message) == ASK:
                question = Ask.read(message, parties.contract)
                assert isinstance(question, Ask)
                lists.append(sum(kind_of(each) == FRESH for each in question.attached))
            router.take(party, parties.nodes[party].answer(message))
    assert lists == [1, 1, 1, 1]


def test_a_secret_for_tags_is_passed_on_to_parties_alone(tmp_path: Path) -> None:
    parties = Sums(tmp_path, quorum=3)
    contract, router = parties.contract, Router(parties.contract)
    asks = parties.asks(router)
    dealer = parties.header(asks[1]).dealer
    relay = pack(RELAY, contract.hash, *numbers(dealer))
    assert refused(parties.nodes[1].answer(relay)) == "not dealt"  # it has answered nothing yet
    header, *_ = parties.headers(asks[3])
    parties.answer(1, asks[1])
    _, _, named, *sealed = unpack(parties.nodes[1].answer(relay))
    assert int.from_bytes(named, "big") == dealer
    assert [len(each) for each in sealed] == [0, 0, RELAYED_BYTES, RELAYED_BYTES]
    passed_on = parties.other(asks[3], sealed=sealed[3])
    assert passed_on != asks[3]
    assert parties.part(3, passed_on).header == header.common
    changed = bytes([*sealed[2][:-1], sealed[2][-1] ^ 1])
    for lie in (changed, sealed[3], sealed[2][4:], numbers(2)[0] + sealed[2][4:], b""):
        answer = parties.answer(2, parties.other(asks[2], sealed=lie))
        assert refused(answer) == "bad key"
    unknown = pack(RELAY, contract.hash, *numbers(2))
    assert refused(parties.nodes[1].answer(unknown)) == "not dealt"


def test_totals_that_a_party_kept_are_as_they_were_accepted(tmp_path: Path) -> None:
    parties = Sums(tmp_path, quorum=3)
    parties.run()
    contract = parties.contract
    kept = {node.answer(recall_totals(contract, 1)) for node in parties.nodes[:1]}
    (message,) = kept
    _, _, _, totals = unpack(message)
    assert len(unpack(totals)) == contract.planned.steps - 1
