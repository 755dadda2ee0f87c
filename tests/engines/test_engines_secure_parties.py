"""Secure sums between the parties of a contract's file: nodes, a server that dies, a lost party."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.engines.mesh import Contract, Folder, read_contract
from dpmesh.engines.mesh.http import RouterServer, run_node
from dpmesh.engines.mesh.records import read_records
from dpmesh.engines.secure.parties import SumNode, SumRouter, bytes_of_round

EXAMPLE = Path(__file__).parents[2] / "examples" / "three_hospitals"
NAMES = ("north", "south", "west")


class Hospitals:
    """The example's hospitals, each with a folder of its own."""

    def __init__(
        self,
        path: Path,
        rounds: int = 3,
        hospitals: int = 3,
        rehearsal: bool = False,
        **changed: Any,
    ) -> None:
        content = dict(read_contract(EXAMPLE / "secure_sum.toml").settings.content)
        self.path = path
        self.folders = [
            Folder.create(path / f"p{i}", epsilon=9.0, delta=1e-5) for i in range(hospitals)
        ]
        content["party"] = [
            content["party"][i % 3] | {"name": f"p{i}", "signing_key": folder.signing.public.hex()}
            for i, folder in enumerate(self.folders)
        ]
        quorum = hospitals - changed.get("dropouts", 0)
        content["contract"] = content["contract"] | {"rounds": rounds, "quorum": quorum}
        content["algorithm"] = content["algorithm"] | changed
        self.contract = Contract.of(content)
        self.records = [
            read_records(self.contract, EXAMPLE / f"{NAMES[i % 3]}.csv") for i in range(hospitals)
        ]
        self.nodes = [
            SumNode(self.contract, folder, own, rehearsal=rehearsal)
            for folder, own in zip(self.folders, self.records, strict=True)
        ]

    def close(self) -> None:
        for folder in self.folders:
            folder.close()

    def carry(self, router: SumRouter, *, without: int | None = None) -> None:
        """Carry questions and answers until the run is over."""
        end = time.monotonic() + 600
        while not router.done and time.monotonic() < end:
            asked = [party for party in range(len(self.nodes)) if router.request(party)]
            for party in asked:
                question = router.request(party)
                if question and party != without:
                    router.take(party, self.nodes[party].answer(question))
            if asked == [without]:
                assert router.close()
            time.sleep(0.001)
        assert router.done

    def carry_first_round(self, router: SumRouter) -> None:
        """Carry questions and answers until all have joined and a sum is open."""
        while router.at is None or router.at.round < 1:
            for party, node in enumerate(self.nodes):
                if question := router.request(party):
                    router.take(party, node.answer(question))
            time.sleep(0.001)

    def carry_while_silent(self, router: SumRouter, *silent: int) -> None:
        """Carry questions and answers until the server waits for these parties alone."""
        names, end = [f"p{party}" for party in silent], time.monotonic() + 600
        while router.waits_for != names and time.monotonic() < end:
            for party in set(range(len(self.nodes))) - set(silent):
                if question := router.request(party):
                    router.take(party, self.nodes[party].answer(question))
            time.sleep(0.001)
        assert router.waits_for == names


def test_a_server_that_is_killed_goes_on_from_its_file(tmp_path: Path) -> None:
    """Answers that come twice change nothing."""
    made = Hospitals(tmp_path)
    first = SumRouter(made.contract, tmp_path / "server")
    while first.at is None or first.at.round < 1:
        for party, node in enumerate(made.nodes):
            if question := first.request(party):
                answer = node.answer(question)
                first.take(party, answer)
                first.take(party, answer)
        time.sleep(0.001)
    while first.request(0) is None:
        time.sleep(0.001)
    for party in (0, 1):  # two of three have an answer on their disk
        if question := first.request(party):
            made.nodes[party].answer(question)
    second = SumRouter(made.contract, tmp_path / "server")
    made.carry(second)
    assert second.failed is None
    for node in made.nodes:
        assert node.folder.ledger(node.agreement) == node.agreement.plan
        assert node.is_done
        np.testing.assert_array_equal(node.released, made.nodes[0].released)
    model = made.nodes[0].model()
    assert model.about["privacy"]["epsilon"] == pytest.approx(made.contract.cost(1e-5))
    made.close()


def test_nodes_over_http_have_one_model(tmp_path: Path) -> None:
    made = Hospitals(tmp_path, rounds=2)
    server = RouterServer(SumRouter(made.contract), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.port}"
    threads = [threading.Thread(target=server.run, daemon=True)]
    threads += [threading.Thread(target=run_node, args=(node, url)) for node in made.nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert all(np.isfinite(node.released).all() for node in made.nodes)
    assert server.router.bytes == pytest.approx(2 * bytes_of_round(made.contract), rel=0.4)
    made.close()


def test_a_run_pauses_below_the_quorum_and_goes_on_at_no_cost(tmp_path: Path) -> None:
    """Nobody is given up while too few have answered, however often the deadline passes."""
    made = Hospitals(tmp_path)
    router = SumRouter(made.contract)
    made.carry_while_silent(router, 1)
    assert not router.close()  # all must join
    made.carry_first_round(router)
    made.carry_while_silent(router, 0, 2)
    for _ in range(2):
        assert not router.close()
    assert (router.waits_for, router.missing, router.gone) == (["p0", "p2"], [], {})
    assert not router.done
    made.carry(router)
    assert router.failed is None
    for node in made.nodes:
        assert node.is_done
        assert node.folder.ledger(node.agreement) == node.agreement.plan
    made.close()


def test_only_as_many_are_lost_as_the_quorum_allows(tmp_path: Path) -> None:
    made = Hospitals(tmp_path, hospitals=4, dropouts=1)
    router = SumRouter(made.contract)
    made.carry_first_round(router)
    made.carry_while_silent(router, 1, 3)
    assert not router.close()
    made.carry_while_silent(router, 3)  # the other is back
    assert router.close()
    made.carry(router, without=3)
    assert (router.missing, router.gone, router.failed) == (["p3"], {3: "lost"}, None)
    made.close()


def test_a_lost_party_costs_one_release(tmp_path: Path) -> None:
    made = Hospitals(tmp_path, hospitals=4, dropouts=1, colluding=1)
    router = SumRouter(made.contract)
    made.carry_first_round(router)
    made.carry(router, without=3)
    assert (router.missing, router.failed) == (["p3"], None)
    assert made.nodes[0].site.state.spent in (3, 4)  # 3 if it is missed before it is in a cohort
    made.close()


def test_contracts_of_sums_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    content = read_contract(EXAMPLE / "secure_sum.toml").settings.content
    for table, change, said in [
        ("algorithm", {"records": 5}, "follows from the contract"),
        ("algorithm", {"dropouts": 1}, "2 honest sites"),
        ("algorithm", {"neighboring_relation": "add_remove"}, "replace_one"),
        ("contract", {"quorum": 2}, "quorum: wanted 3"),
        ("contract", {"numbers": "float32"}, "numbers: wanted float64"),
        ("topology", {"kind": "complete"}, "have a server and no topology"),
    ]:
        changed = {**content, table: content.get(table, {}) | change}
        with pytest.raises(ValueError, match=said):
            Contract.of(changed)
    poor = [content["party"][0] | {"epsilon": 1.0}, *content["party"][1:]]
    with pytest.raises(ValueError, match=r"wanted at least 1\.99888 for north"):
        Contract.of({**content, "party": poor})


def test_a_seeded_run_has_the_simulators_bits(tmp_path: Path) -> None:
    made = Hospitals(tmp_path, rounds=2, rehearsal=True)
    again = made.contract
    made.carry(SumRouter(again))
    problem = again.problem_of(
        dm.data.Dataset(
            np.concatenate([each.features for each in made.records]),
            np.concatenate([each.labels for each in made.records]),
        ),
        np.split(np.arange(540), [180, 360]),
    )
    run = dm.simulate(again.algorithm, problem, rounds=2, key=again.public_key, metrics=[])
    np.testing.assert_array_equal(made.nodes[1].released, run.released)
    made.close()
