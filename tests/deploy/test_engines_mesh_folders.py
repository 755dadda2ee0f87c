"""Folders of the mesh's parties: restored copies are found, and budgets and records held to."""

from __future__ import annotations

import re
import stat
import threading
from collections import Counter
from copy import deepcopy
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from mesh_parties import Parties, Started

import dpmesh as dm
from dpmesh import _files
from dpmesh.deploy import Contract, Folder, Node, Position, Router, Row, exchange
from dpmesh.deploy.files import Marks
from dpmesh.deploy.row import ROW
from dpmesh.deploy.signing import unpack
from dpmesh.deploy.wire import (
    ROLLBACK_QUESTION,
    ReleaseIndex,
    RollbackQuestion,
    StepQuestion,
    kind_of,
    refusal_reason,
)
from dpmesh.privacy.budget import OverBudget
from dpmesh.privacy.filters import adaptive_cost


def test_a_new_folder_of_marks_is_on_disk_once_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power loss could remove the marks, and leave a folder that they would refuse."""
    synced: list[Path] = []
    monkeypatch.setattr(_files, "sync", synced.append)
    Marks(tmp_path / "marks" / "own" / "party.db").close()
    assert {*synced} == {tmp_path, tmp_path / "marks"}


def test_each_restored_copy_is_refused_by_what_others_heard(tmp_path: Path) -> None:
    """Also the second one: a start with --restored is that start alone."""
    parties = Parties(tmp_path, rehearsal=False)
    router = Router(parties.contract)
    while router.open_position != Position(1):
        for party, message in router.requests().items():
            router.take(party, parties.nodes[party].answer(message))
    copytree(tmp_path / "p0", tmp_path / "copy")
    parties.run(router)

    def replaced(copy: str, *, said: bool) -> Router:
        parties.folders[0] = folder = Folder.open(tmp_path / copy)
        if said:
            folder.charge_again()
            folder.close()
            copytree(tmp_path / copy, tmp_path / f"{copy} again")
            parties.folders[0] = Folder.open(tmp_path / copy)
        parties.nodes[0] = parties.node(0)
        return parties.run()

    assert replaced("copy", said=False).gone == {0: "restored"}
    parties.folders[0].close()
    assert replaced("copy", said=True).missing == []
    both, own = 2 * [parties.contract.plan], parties.folders[0]
    assert own.spent(parties.contract) == dm.privacy.total_cost(both, 1e-5)
    assert own.cost() == adaptive_cost(both, own.budget)  # whoever restores it has seen releases
    assert replaced("copy again", said=False).gone == {0: "restored"}


def test_only_those_who_hear_a_node_confirm_its_start(tmp_path: Path) -> None:
    """On a ring its neighbours: the node opposite knows nothing of it."""
    parties = Parties(tmp_path, rehearsal=False)
    contract, nodes = parties.contract, parties.nodes
    others, needed = Router(contract).schedule.confirmers(Position(0), 0)
    assert (others, needed) == ({1}, 1)  # the link to the other one is down in this round
    here = [unpack(node.answer(Router(contract).requests()[0])) for node in nodes]
    signed = [signature for _, signature, _, _ in here]
    asks = here[0][2]
    assert nodes[0].answer(StepQuestion(Position(0), tuple(signed)).as_bytes(contract)) == asks
    (own,) = RollbackQuestion.read(asks, contract)
    others = [
        own._replace(nonce=bytes(16)),
        own._replace(last_release=ReleaseIndex(0, Position(3))),
    ]
    together = RollbackQuestion.together(contract, [own, *others])
    for by, asked, word in (
        (2, asks, ROLLBACK_QUESTION),
        (
            1,
            RollbackQuestion.together(contract, others),
            ROLLBACK_QUESTION,
        ),  # a list that lacks its question
        (1, together, ROW),
    ):
        said = (*signed, asked, nodes[by].answer(asked))
        assert kind_of(nodes[0].answer(StepQuestion(Position(0), said).as_bytes(contract))) == word


@pytest.mark.parametrize("algorithm", ["sums", "gradient descent"])
def test_a_start_takes_three_questions_a_party_and_bytes_that_grow_as_parties(
    algorithm: str, tmp_path: Path
) -> None:
    """One signed answer of each party is for all that started; a dealer is asked once more."""
    moved = []
    for nodes in (4, 8):
        path, rounds = tmp_path / str(nodes), 2
        parties = Parties(path, algorithm, nodes=nodes, rounds=rounds, rehearsal=False)
        router, asked = Router(parties.contract), Counter[int]()
        while router.open_position is None or router.open_position.round == 0:
            for party, message in router.requests().items():
                asked[party] += 1
                router.take(party, parties.nodes[party].answer(message))
        assert max(asked.values()) <= 4
        assert sum(asked.values()) <= 3 * nodes + 1
        moved.append(router.bytes / nodes)
    assert moved[1] < 2 * moved[0]


def test_answers_to_an_earlier_start_do_not_confirm_a_restored_folder(tmp_path: Path) -> None:
    parties = Parties(tmp_path, rehearsal=False)
    ask = StepQuestion(Position(0), ()).as_bytes(parties.contract)
    first = parties.nodes[0].answer(ask)
    copytree(tmp_path / "p0", tmp_path / "copy")
    restored = Node(parties.contract, Folder.open(tmp_path / "copy"), parties.records[0])
    assert kind_of(first) == ROLLBACK_QUESTION
    assert restored.answer(ask) != first


def test_a_node_made_anew_for_each_message_is_confirmed_before_each_step(tmp_path: Path) -> None:
    """As on Flower, which starts a process for each message."""
    parties = Parties(tmp_path, rehearsal=False)
    router = Router(parties.contract)
    for _ in range(100):
        for party, message in router.requests().items():
            router.take(party, parties.node(party).answer(message))
    assert router.done
    assert router.missing == []


def test_marks_outside_of_the_folder_tell_that_it_was_restored(tmp_path: Path) -> None:
    """It has forgotten answers of one contract, and a second contract as a whole."""
    parties = Parties(tmp_path, marks=tmp_path)
    copytree(tmp_path / "p0", tmp_path / "copy")
    parties.run()
    content = deepcopy(parties.content)
    content["contract"]["rounds"] = 3
    later = Contract.of(content)
    Node(later, parties.folders[0], parties.records[0])
    with pytest.raises(ValueError, match="no other process"):
        Folder.open(tmp_path / "copy", marks=tmp_path)
    parties.folders[0].close()
    folder = Folder.open(tmp_path / "copy", marks=tmp_path)
    third = Contract.of(content | {"contract": content["contract"] | {"rounds": 2}})
    for contract in (parties.contract, later, third):
        with pytest.raises(ValueError, match=r"an older copy\. Use --restored"):
            Node(contract, folder, parties.records[0], rehearsal=contract is parties.contract)
    folder.charge_again()
    Node(parties.contract, folder, parties.records[0], rehearsal=True)
    plans = 2 * [parties.contract.plan, later.plan]
    assert folder.cost() == adaptive_cost(plans, folder.budget)  # the second may have come late


def test_a_restored_folder_whose_charge_fails_is_still_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties = Parties(tmp_path, marks=tmp_path, nodes=2)
    copytree(tmp_path / "p0", tmp_path / "copy")
    parties.run()
    parties.folders[0].close()
    folder = Folder.open(tmp_path / "copy", marks=tmp_path)
    monkeypatch.setattr(folder, "cost", None)
    with pytest.raises(TypeError):
        folder.charge_again()
    monkeypatch.undo()
    with pytest.raises(ValueError, match="an older copy"):
        Node(parties.contract, folder, parties.records[0], rehearsal=True)


def test_coins_follow_from_the_rows_that_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder's sample, as its noise: the state before a round does not say what came in it."""
    node, drawn = Parties(tmp_path, "with replacement", rehearsal=False).nodes[0], []

    class Spied(exchange.RoundCoins):
        def __init__(self, own: Any, *rest: Any) -> None:
            drawn.append(own.derive(b"spy").for_nodes(np.zeros(1, np.uint32)))
            super().__init__(own, *rest)

    monkeypatch.setattr(exchange, "RoundCoins", Spied)
    for rows in ((), (b"a row",), (b"a row",)):
        node.protocol.channel_from(node.initial_state).run_to(Position(1), rows)
    noise = [
        dm.kernels.add_noise("gaussian", np.zeros((1, 4)), 1.0, key.stream(1, 0)) for key in drawn
    ]
    assert not np.array_equal(noise[0], noise[-1])
    np.testing.assert_array_equal(noise[-1], noise[len(noise) // 2])


def test_a_folder_restored_under_other_rows_has_other_noise(tmp_path: Path) -> None:
    """The difference of two rows of a round has noise, far more than models can differ.

    Models are in a ball of radius 1; noise of scale 300 is closer than that with probability 1e-9.
    """
    started = Started(tmp_path, "noisy", rehearsal=False, largest_row=1e5)
    node = started.parties.nodes[0]
    copytree(tmp_path / "p0", tmp_path / "copy")
    restored = Node(node.contract, Folder.open(tmp_path / "copy"), started.parties.records[0])
    restored._confirmed = True  # by a router that hides what others say
    asks = [
        StepQuestion(Position(2), rows).as_bytes(node.contract)
        for rows in (started.ask.attached, ())
    ]
    one, other, again = (
        Row.read(each.answer(ask), node.contract).values(node.contract)
        for each, ask in ((node, asks[0]), (restored, asks[1]), (node, asks[1]))
    )
    assert np.abs(one - other).max() > 2
    np.testing.assert_array_equal(one, again)


def test_a_folder_is_private_and_one_process_holds_it(tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "north", epsilon=1.0, delta=1e-5)
    for file in (tmp_path / "north").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(ValueError, match=r"no other process .*north/node\.db"):
        Folder.open(tmp_path / "north", marks=tmp_path)
    folder.close()
    copytree(tmp_path / "north", tmp_path / "copy")
    folder = Folder.open(tmp_path / "north", marks=tmp_path)
    with pytest.raises(ValueError, match="copy: a copy of this folder is in use"):
        Folder.open(tmp_path / "copy", marks=tmp_path)
    folder.close()
    (marks,) = tmp_path.glob("*.db")
    assert stat.S_IMODE(marks.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        Folder.create(tmp_path / "north", epsilon=1.0, delta=1e-5)


def test_contracts_on_one_folder_share_its_budget(tmp_path: Path) -> None:
    parties = Parties(tmp_path, "online", budget=5.0)
    folder = parties.folders[0]
    assert folder.cost() == pytest.approx(2.0, rel=1e-6)

    def another(rounds: int) -> Contract:
        content = deepcopy(parties.content)
        content["contract"]["rounds"] = rounds
        return Contract.of(content)

    def join(rounds: int) -> None:
        try:
            Node(another(rounds), folder, parties.records[0])
        except OverBudget as error:
            refusals.append(str(error))

    refusals: list[str] = []  # of two at the same time, of which one fits
    threads = [threading.Thread(target=join, args=(rounds,)) for rounds in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refusals) == 1
    assert re.search(r"costs epsilon (5.99|6)", refusals[0])
    folder.charge_again()
    node = Node(parties.contract, folder, parties.records[0], rehearsal=True)
    signed = [other.answer(Router(node.contract).requests()[0]) for other in parties.nodes]
    ask = StepQuestion(Position(0), tuple(signed)).as_bytes(node.contract)
    assert refusal_reason(node.answer(ask)) == "over budget"


def test_other_records_or_another_order_are_refused(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    reordered = parties.records[0].take(np.arange(10)[::-1])
    for records in (reordered, parties.records[1]):
        with pytest.raises(ValueError, match="records: wanted those with which"):
            Node(parties.contract, parties.folders[0], records, rehearsal=True)
    with pytest.raises(ValueError, match="rehearsal"):
        Node(parties.contract, parties.folders[0], parties.records[0])
    with pytest.raises(ValueError, match="records"):
        Node(parties.contract, parties.folders[0], parties.records[0].take(np.arange(9)))
