"""Parties that are lost or stall: the others go on, and pass on what the lost ones had."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from mesh_parties import Parties, Sums
from test_liveness import run_schedules
from virtual_time import Clock, run, run_once

from dpmesh.deploy import Node, Router
from dpmesh.deploy.router_sums import STRIDE
from dpmesh.deploy.row import ROW, Row
from dpmesh.deploy.signing import pack, unpack
from dpmesh.deploy.sums import RELAY_QUESTION, RELAYED_SECRET, RELAYED_SECRET_BYTES
from dpmesh.deploy.wire import (
    ROLLBACK_QUESTION,
    STEP_QUESTION,
    WITHHOLD,
    Position,
    RecoveryAnswer,
    StepQuestion,
    int_fields,
    kind_of,
    read_question,
    refusal,
    refusal_reason,
    totals_question,
)


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


@pytest.mark.parametrize("algorithm", ["gradient descent", "without replacement"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_gossip_below_its_quorum_says_for_whom_it_pauses_and_resumes(
    algorithm: str, is_restarted: bool, tmp_path: Path
) -> None:
    mesh = pytest.importorskip("dpmesh.cli.mesh")
    parties, clock = Parties(tmp_path, algorithm, quorum=3, rehearsal=False, rounds=6), Clock()
    router = Router(parties.contract, clock)
    lines: list[str] = []
    progress = mesh._Progress(lines.append)
    there = {0, 1, 2, 3}
    while router.open_position is None or router.open_position.round < 2:
        run_once(parties, router, clock)
        progress(router)
    there -= {2, 3}
    if is_restarted:
        router = Router(parties.contract, clock)
    for step in range(100):
        run_once(parties, router, clock, lambda party, step: party in there, step=step)
        progress(router)
    charged = [parties.folders[party].ledger(parties.contract) for party in there]
    assert not router.done
    assert not router.failure
    assert router.waits_for == ["p2", "p3"]
    paused = (
        "waiting for the signatures of" if is_restarted else "paused below the quorum: waiting for"
    )
    assert lines[-1] == f"{paused} p2, p3"
    for step in range(50):  # nobody is charged for waiting
        run_once(parties, router, clock, lambda party, step: party in there, step=step)
    assert [parties.folders[party].ledger(parties.contract) for party in there] == charged
    there |= {2}
    run(parties, router, clock, lambda party, step: party in there)
    assert router.missing == ["p3"]
    assert all(parties.nodes[party].is_done for party in there)


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
    assert not any(row.encoded_values for row in sent)
    step = parties.folders[1].step(contract, Position(2))
    assert step is not None
    assert step.withheld
    row = Row.read(step.answer or b"", contract)  # it was charged, and stays where it is
    answer = Row.read(
        parties.node(1).answer(StepQuestion(step.position, ()).as_bytes(contract)), contract
    )
    assert (answer.position, answer.encoded_values, bool(row.encoded_values)) == (
        step.position,
        b"",
        True,
    )
    charged = parties.folders[1].ledger(contract).releases
    assert len(charged) == len(contract.plan.releases)


def test_a_node_killed_before_it_computed_a_row_that_nobody_confirms_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties = Parties(tmp_path, rehearsal=False)
    contract, router = parties.contract, Router(parties.contract)
    while 1 not in router.requests() or Position(1) != router.open_position:
        for party, message in router.requests().items():
            router.take(party, parties.nodes[party].answer(message))
    message = router.requests()[1]
    with monkeypatch.context() as patched:
        patched.setattr(Node, "_computed", _no_space)
        with pytest.raises(OSError, match="no space"):
            parties.nodes[1].answer(message)
    node = parties.node(1)
    question = read_question(message, contract)
    assert isinstance(question, StepQuestion)
    assert (
        kind_of(node.answer(message)) == ROLLBACK_QUESTION
    )  # it asks whether it sent the row already
    alone = StepQuestion(question.position, (*question.attached, WITHHOLD)).as_bytes(contract)
    assert Row.read(node.answer(alone), contract).is_withheld
    assert Row.read(node.answer(message), contract).is_withheld


def _no_space(*_: object) -> None:
    raise OSError("no space left")


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
        return party != 3 or first.open_position is None

    while first.open_position != Position(2):
        run_once(parties, first, clock, hears, recorded)
    assert RELAYED_SECRET not in sent
    run(parties, Router(contract, clock), clock, lambda party, step: party != 0, recorded)
    assert RELAYED_SECRET in sent
    _check_one_history(parties, {1, 2, 3})


def test_a_dealer_that_is_lost_before_a_new_router_has_its_secret_is_replaced(
    tmp_path: Path,
) -> None:
    """The third router has the secret of an earlier dealer, which party 4 needs for old totals."""
    parties, clock = Sums(tmp_path, nodes=5, quorum=3, rounds=6), Clock()
    contract = parties.contract
    first, second = Router(contract, clock), Router(contract, clock)
    while first.open_position is None or first.open_position < Position(2):
        is_signing = first.open_position is None
        run_once(parties, first, clock, lambda party, _, signs=is_signing: signs or party != 4)
    while second.open_position is None or second.open_position < Position(4):
        run_once(parties, second, clock, lambda party, _: party not in (0, 4))
    third = Router(contract, clock)
    run(parties, third, clock, lambda party, _: party != 1 or third.open_position is None)
    _check_one_history(parties, {0, 2, 3, 4})


def test_a_fetched_total_that_is_added_up_again_counts_as_fetched_no_more(tmp_path: Path) -> None:
    parties = Sums(tmp_path, quorum=3)
    contract, router = parties.contract, Router(parties.contract)
    parties.asks(router, 2)
    totals = router.routing.totals
    recalled = parties.nodes[1].answer(totals_question(contract, 0))
    totals.by_step.clear()
    totals.take_stored(1, RecoveryAnswer.read(recalled, contract).totals)
    assert totals.by_step.keys() == {0}
    totals.drop_from(0)
    assert not totals.drop_fetched_from(0)


def test_a_total_that_only_a_lost_party_has_is_added_up_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Party 0 alone gets the total of round 1; then it and the router are lost."""
    parties, clock = Sums(tmp_path, quorum=3, rounds=5), Clock()
    contract, first = parties.contract, Router(parties.contract, clock)

    def hears(party: int, step: int) -> bool:
        return party == 0 or first.open_position is None or first.open_position < Position(2)

    while parties.nodes[0].last_position != Position(2):
        run_once(parties, first, clock, hears)
    router = Router(contract, clock)
    with caplog.at_level(logging.WARNING, logger="dpmesh"):
        run(parties, router, clock, lambda party, step: party != 0 or router.open_position is None)
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
        return party == 0 or first.open_position is None or first.open_position < Position(2)

    while parties.nodes[0].last_position != Position(2):
        run_once(parties, first, clock, hears)
    router = Router(contract, clock)

    def is_back(party: int, step: int) -> bool:
        return party != 0 or router.open_position is None or router.open_position.exchange >= STRIDE

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
    while router.open_position is None or router.open_position < Position(1):
        for party in range(4):
            message = router.request(party)
            if message is None:
                continue
            if kind_of(message) == STEP_QUESTION:
                question = read_question(message, parties.contract)
                assert isinstance(question, StepQuestion)
                lists.append(sum(kind_of(each) == ROLLBACK_QUESTION for each in question.attached))
            router.take(party, parties.nodes[party].answer(message))
    assert lists == [1, 1, 1, 1]


def test_a_secret_for_tags_is_passed_on_to_parties_alone(tmp_path: Path) -> None:
    parties = Sums(tmp_path, quorum=3)
    contract, router = parties.contract, Router(parties.contract)
    asks = parties.asks(router)
    dealer = parties.header(asks[1]).dealer
    relay = pack(RELAY_QUESTION, contract.hash, *int_fields(dealer))
    assert (
        refusal_reason(parties.nodes[1].answer(relay)) == "not dealt"
    )  # it has answered nothing yet
    header, *_ = parties.headers(asks[3])
    parties.answer(1, asks[1])
    _, _, named, *sealed = unpack(parties.nodes[1].answer(relay))
    assert int.from_bytes(named, "big") == dealer
    assert [len(each) for each in sealed] == [0, 0, RELAYED_SECRET_BYTES, RELAYED_SECRET_BYTES]
    passed_on = parties.other(asks[3], sealed_tag_secret=sealed[3])
    assert passed_on != asks[3]
    assert parties.part(3, passed_on).header == header.common
    changed = bytes([*sealed[2][:-1], sealed[2][-1] ^ 1])
    for lie in (changed, sealed[3], sealed[2][4:], int_fields(2)[0] + sealed[2][4:], b""):
        answer = parties.answer(2, parties.other(asks[2], sealed_tag_secret=lie))
        assert refusal_reason(answer) == "bad key"
    unknown = pack(RELAY_QUESTION, contract.hash, *int_fields(2))
    assert refusal_reason(parties.nodes[1].answer(unknown)) == "not dealt"


def test_totals_that_a_party_kept_are_as_they_were_accepted(tmp_path: Path) -> None:
    parties = Sums(tmp_path, quorum=3)
    parties.run()
    contract = parties.contract
    kept = {node.answer(totals_question(contract, 1)) for node in parties.nodes[:1]}
    (message,) = kept
    _, _, _, totals = unpack(message)
    assert len(unpack(totals)) == contract.planned.steps - 1


@pytest.mark.parametrize("recovers", [True, False])
def test_a_party_that_refuses_to_sign_the_end_does_not_count_as_having_signed(
    recovers: bool, tmp_path: Path
) -> None:
    """It is asked again until it signs, or until it is late."""
    parties, clock = Parties(tmp_path, "sums", rehearsal=False, quorum=3, rounds=2), Clock()
    router = Router(parties.contract, clock)
    refusals: list[float] = []

    def answers(party: int, answer: bytes) -> bytes:
        position = router.open_position
        is_end = position is not None and router.schedule.is_closing(position)
        if party != 3 or not is_end or (recovers and len(refusals) == 2):
            return answer
        refusals.append(clock.now)
        return refusal(parties.contract, "not the next round")

    run(parties, router, clock, answers=answers)
    assert router.done
    assert router.missing == ([] if recovers else ["p3"])
    assert (3 in router.routing.ended) == recovers
    assert len(refusals) < 20
    assert all(node.is_sealed for node in parties.nodes[:3])
