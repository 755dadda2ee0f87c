"""Runs whose parties may release no more: they end early, all with the same sealed model."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from mesh_parties import Parties, Sums
from virtual_time import Clock, run

from dpmesh.deploy import Router
from dpmesh.deploy.outcome import verified
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import pack
from dpmesh.deploy.sums import Withdrawal
from dpmesh.deploy.wire import (
    Position,
    Presence,
    StepProgress,
    StepQuestion,
    presence_question,
    refusal_reason,
)


def test_a_reserve_of_four_allows_that_each_party_stalls_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    combination = {"kind": "SecureAggregation", "colluding": 0, "dropouts": 1, "reserve": 4}
    changes = {"combination": combination}
    parties, clock = Sums(tmp_path, quorum=3, rounds=8, changes=changes), Clock()
    router = Router(parties.contract, clock)

    def hears(party: int, step: int) -> bool:
        stalls = (
            router.open_position is not None
            and router.open_position.round == 2 * party
            and not router.late
        )
        return not stalls or router.open_position.exchange > 0

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
            assert router.open_position is not None
            said.append(router.open_position.round)
        t = -1 if router.open_position is None else router.open_position.round
        stalls = {3: t == 2 and not router.late, 2: t == 4 and not router.late}
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
        assert node.last_position is not None
        later = StepQuestion(Position(node.last_position.round + 1), ()).as_bytes(contract)
        assert refusal_reason(again.answer(later)) is not None
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
        over = router.open_position is not None and router.open_position.round == 5
        if party == 2 and over and not parties.folders[2].is_over_budget:
            parties.folders[2].change("update party set over = 1")
        return (
            party != 3
            or bool(colluding)
            or router.open_position is None
            or router.open_position.round < 4
        )

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
        Withdrawal(step, party).signed(contract, parties.folders[signer].signing)
        for step, party, signer in [(1, 2, 2), (0, 2, 1)]  # of a later sum; in another's name
    ]
    closing = Schedule(contract).closing_position(0)
    for lie in ((), words):
        early = StepQuestion(closing, (*asks[0].attached, *lie)).as_bytes(contract)
        assert refusal_reason(parties.nodes[0].answer(early)) in ("malformed", "not the next round")
        early = StepQuestion(closing, tuple(lie)).as_bytes(contract)
        assert refusal_reason(parties.nodes[0].answer(early)) == "not the next round"
    router = Router(contract)
    claimed = StepProgress(closing, pack(*words))
    router.take(
        0, Presence(parties.nodes[0].answer(presence_question(contract)), b"", claimed).as_bytes()
    )
    assert not router.reported_progress


def test_a_router_that_restarts_at_an_early_end_goes_on(tmp_path: Path) -> None:
    """One party has signed it, and the router's successor learns why from that one."""
    parties, clock = Sums(tmp_path, quorum=4, rounds=5), Clock()
    contract = parties.contract
    router = Router(contract, clock)

    def hears(party: int, step: int) -> bool:
        position = router.open_position
        if position is not None and position.round == 3:
            parties.folders[1].change("update party set over = 1")
        return (
            party == 0
            or position is None
            or position.round < 3
            or not router.schedule.is_early(position)
        )

    with pytest.raises(AssertionError, match="does not end"):
        run(parties, router, clock, hears, most=200)
    assert [node.ended_early for node in parties.nodes] == [True, False, False, False]
    parties.folders[1].change("update party set over = 0")  # nobody else has a reason to end
    run(parties, Router(contract, clock), clock)
    assert [node.rounds for node in parties.nodes] == [3] * 4
    _check_early_end(parties)
