"""A site whose disk is restored or whose ledger is lost, and what its ledger charges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mesh_parties
import numpy as np
import pytest
from secure_parties import DELTA, RUN, Parties, is_open

from dpmesh.engines.mesh import Node
from dpmesh.engines.secure import (
    Folder,
    RefusedError,
    Server,
    Site,
    in_process,
    record_sums,
    train,
)
from dpmesh.engines.secure.run_secrets import RunSecrets
from dpmesh.kernels import unpack_sum
from dpmesh.privacy.budget import OverBudget
from dpmesh.privacy.secure import open_sum


def test_a_restored_site_answers_the_same_header_with_the_same_bytes(parties: Parties) -> None:
    """Leak of row 7: fresh noise under the same masks would open the vector."""
    header = parties.header()
    old = parties.backup(1)
    sent = parties.sites[1].answer(header, parties.w)
    restored = parties.site(1, old)
    assert restored.answer(header, parties.w) == sent
    restored.folder.close()


def test_a_restored_site_that_is_asked_for_something_else_opens_nothing(parties: Parties) -> None:
    header = parties.header()
    old = parties.backup(1)
    answers = parties.answers(header)
    restored = parties.site(1, old)
    answers[1] = restored.answer(header, parties.w + 1.0)
    assert not is_open(parties, open_sum(parties.contract.numbers, answers))
    restored.folder.close()


def test_planted_fresh_noise_for_a_repeated_header_is_open(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    public, header = parties.contract.numbers, parties.header()
    old = parties.backup(1)
    fresh = iter(range(10**9))
    monkeypatch.setattr(RunSecrets, "derived", lambda *_: next(fresh))
    restored = parties.site(1, old)
    bits = public.modulus_bits
    one, other = (
        unpack_sum([site.answer(header, parties.w)], 40, bits)
        for site in (parties.sites[1], restored)
    )
    unused = 64 - bits
    difference = (one - other) << unused >> unused
    assert np.abs(difference).max() < 10 * public.share  # no mask is left: flagged
    restored.folder.close()


def test_a_changed_record_gets_other_noise_for_the_same_header(parties: Parties) -> None:
    """Else a site that was restored, and its data corrected, would show by how much."""
    header, path = parties.header(), parties.backup(1)
    sent = parties.sites[1].answer(header, parties.w)
    parties.close(1)
    honest = record_sums(parties.contract, parties.algorithm, parties.problem.for_nodes([1]))
    moved = parties.contract.numbers.grid  # by one step, in one number
    sums = lambda *question: honest(*question) + moved * np.eye(1, len(parties.w[0]))  # noqa: E731
    again = parties.site(1, path, sums=sums).answer(header, parties.w)
    public = parties.contract.numbers
    first, second = (unpack_sum([word], public.dim, public.modulus_bits) for word in (sent, again))
    unused = 64 - public.modulus_bits
    apart = (first - second) << unused >> unused
    assert np.sqrt((apart.astype(float) ** 2).mean()) > public.share


def test_a_restored_site_takes_over_what_the_others_know(parties: Parties) -> None:
    parties.header()
    old = parties.backup(1)
    for attempt in range(2):
        parties.answers(parties.header(attempt))
    parties.close(1)
    parties.sites[1] = parties.site(1, old)
    repeated = parties.header(1)
    with pytest.raises(RefusedError, match="attempt 1 is not after 1"):
        parties.sites[1].answer(repeated, parties.w)
    parties.answers(parties.header(2))
    assert parties.sites[1].state.spent == 3


def test_a_server_that_repeats_old_words_to_a_restored_site_gets_nothing_uncharged(
    parties: Parties,
) -> None:
    """Words of attempt 0 hide what others know: yet the whole plan is charged from the start."""
    first = parties.header()
    old = parties.backup(1)
    for attempt in range(2):
        parties.answers(parties.header(attempt))
    parties.close(1)
    parties.sites[1] = parties.site(1, old)
    parties.answers(replace(first, attempt=2, step=2))
    assert parties.sites[1].state.spent == 1  # of three
    assert parties.sites[1].folder.cost() == pytest.approx(parties.contract.plan.cost(DELTA)[0])


def test_two_processes_cannot_hold_one_ledger(parties: Parties) -> None:
    with pytest.raises(ValueError, match="no other process uses"):
        parties.site(0)


def test_a_lost_ledger_counts_as_spent_in_whole(parties: Parties, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no party's folder"):
        Folder.open(tmp_path / "none")
    lost = [parties.contract]
    folder = Folder.create(tmp_path / "new", epsilon=8.0, delta=DELTA, lost=lost)
    assert folder.cost() == pytest.approx(parties.contract.numbers.epsilon(DELTA))
    folder.close()


def test_a_contract_serves_one_run(parties: Parties) -> None:
    """Or a server could start runs, each with a plan of its own, until the budget is spent."""
    parties.answers(parties.header())
    with pytest.raises(RefusedError, match="serves one run"):
        parties.sites[0].join(b"run number two..")
    parties.sites[0].leave(RUN)
    with pytest.raises(RefusedError, match="the run is over"):
        parties.sites[0].join(RUN)


def test_one_budget_holds_for_secure_sums_and_the_mesh(parties: Parties, tmp_path: Path) -> None:
    """The records of a site have one ledger, whatever the contract."""
    mesh = mesh_parties.Parties(tmp_path / "mesh")
    key = parties.sites[0].folder.signing.public.hex()
    mesh.content["party"][0]["signing_key"] = key
    contract = type(mesh.contract).of(mesh.content)
    folder = parties.sites[0].folder
    alone = parties.contract.plan.cost(DELTA).epsilon
    Node(contract, folder, mesh.records[0])
    assert folder.cost() > max(alone, contract.cost(DELTA))
    again = replace(parties.contract, model="another run")
    room = folder.budget
    folder.budget = replace(room, epsilon=folder.cost())
    with pytest.raises(OverBudget, match="more than the budget"):
        Site(again, folder, parties.sites[0]._sums)
    folder.budget = room
    for each in mesh.folders:
        each.close()


def test_contracts_of_another_relation_or_unit_are_refused(parties: Parties) -> None:
    """What a client costs in whole says nothing of one record that is removed."""
    numbers, folder = parties.contract.numbers, parties.sites[0].folder
    removed = replace(numbers, neighboring_relation="add_remove")
    for other, said in [
        (replace(parties.contract, numbers=removed), "neighboring_relation"),
        (replace(parties.contract, unit="user"), "unit"),
    ]:
        with pytest.raises(ValueError, match=said):
            Site(other, folder, parties.sites[0]._sums)


class KilledError(Exception):
    """The server is killed, before or after a question is answered."""


def test_a_server_that_is_killed_goes_on_with_the_same_bits(parties: Parties) -> None:
    """Killed at each question in turn, it costs no release more than one that is not."""
    for site in parties.sites:
        site.join(RUN)
    copies = [parties.site(i, parties.backup(i)) for i in range(4)]
    whole_run = Server(parties.contract, in_process(copies), run=RUN)
    whole = train(whole_run, parties.algorithm, parties.w)
    carry, asked, file = in_process(parties.sites), list[bytes](), parties.folder / "server"

    def deadly(questions: Mapping[int, bytes]) -> Any:
        question = questions[0]
        if question not in asked:
            asked.append(question)
            if len(asked) % 2:
                carry(questions)
            raise KilledError
        return carry(questions)

    while True:
        server = Server(parties.contract, deadly, run=RUN)
        try:
            found = train(server, parties.algorithm, parties.w, checkpoint=file)
            break
        except KilledError:
            continue
    assert len(asked) == 3 + parties.algorithm.rounds  # join, words, sums, leave
    np.testing.assert_array_equal(found, whole)
    for site, copied in zip(parties.sites, copies, strict=True):
        assert site.state.spent == parties.algorithm.rounds
        copied.folder.close()
    other = replace(parties.algorithm, step_size=7.0)
    with pytest.raises(ValueError, match="algorithm"):
        train(Server(parties.contract, carry), other, parties.w, checkpoint=file)
