"""The mesh over HTTP and TLS, and from the command line: kills, late nodes, a lost one."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from mesh_parties import Parties
from network_parties import HERE, Commands, certificate

import dpmesh as dm
from dpmesh.deploy import Folder, Node, Router, read_contract
from dpmesh.deploy.http import RouterServer, node_tls, server_tls
from dpmesh.deploy.http_node import run_node
from dpmesh.deploy.schedule import bytes_of_round
from dpmesh.tables import read_table

NAMES = ("north", "south", "west")
EXAMPLE = Path(__file__).parents[2] / "examples" / "three_hospitals"


def command(*arguments: object) -> str:
    """Run a command in this process; return what it prints."""
    testing = pytest.importorskip("typer.testing")
    from dpmesh.cli import app

    result = testing.CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return str(result.output)


@contextmanager
def serving(parties: Parties, folder: Path) -> Iterator[tuple[RouterServer, ssl.SSLContext]]:
    signed, key = certificate(folder)
    server = RouterServer(Router(parties.contract), HERE, 0, server_tls(signed, key))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server, node_tls(signed)
    thread.join(600)
    assert not thread.is_alive(), server.router.waits_for


@pytest.mark.parametrize("algorithm", ["online", "without replacement"])
def test_nodes_that_dial_out_over_tls_have_the_simulators_bits(
    algorithm: str, tmp_path: Path
) -> None:
    parties = Parties(tmp_path, algorithm)
    with serving(parties, tmp_path) as (server, trusted):
        url = f"https://{HERE}:{server.port}"
        threads = [
            threading.Thread(target=run_node, args=(node, url, trusted)) for node in parties.nodes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
    np.testing.assert_array_equal(parties.models(), parties.simulated().parameters)
    if algorithm == "online":
        assert server.router.bytes == pytest.approx(4 * bytes_of_round(parties.contract), rel=0.6)


@pytest.mark.slow
def test_a_mistake_beside_restored_charges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    parties = Parties(tmp_path)
    parties.folders[0].close()
    options = ("--folder", tmp_path / "p0", "--router", "http://nowhere", "--restored")
    with pytest.raises(AssertionError, match="no-such"):
        command("node", EXAMPLE / "contract.toml", "--data", tmp_path / "no-such.csv", *options)
    folder = Folder.open(tmp_path / "p0")
    assert folder.incarnation(parties.contract.hash) == 0


def test_a_run_goes_on_without_a_node_that_never_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties, gone = Parties(tmp_path, "online", rounds=6), threading.Event()

    class Leaves(Exception):  # noqa: N818
        pass

    def leaves(node: Node) -> None:
        if node.last_position is not None and node.last_position.round == 2:
            gone.set()
            raise Leaves

    def stays(number: int, url: str, trusted: ssl.SSLContext) -> None:
        with suppress(Leaves):
            run_node(parties.nodes[number], url, trusted, leaves if number == 3 else id)

    monkeypatch.setattr(RouterServer, "_farewell", lambda _: 1.0)  # not a whole deadline
    with serving(parties, tmp_path) as (server, trusted):
        router, late = server.router, parties.contract.terms.deadline + 1
        alone = lambda: gone.is_set() and router.awaited == {3}  # noqa: E731
        monkeypatch.setattr(router, "waits_since", lambda: late if alone() else 0.0)
        url = f"https://{HERE}:{server.port}"
        for number in range(4):
            threading.Thread(target=stays, args=(number, url, trusted), daemon=True).start()
    assert router.missing == ["p3"]
    rounds = [len(f.ledger(parties.contract).releases) for f in parties.folders]
    assert rounds == [6, 6, 6, 3]


@pytest.mark.slow
def test_three_hospitals_from_the_command_line_one_of_them_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file, ranges = tmp_path / "contract.toml", tmp_path / "ranges.toml"
    written = (EXAMPLE / "contract.toml").read_text().split("[ranges]")[1].split("[problem]")[0]
    ranges.write_text(written.strip().replace("finding = [", "finding = {classes = [") + "}")
    options = ["--ranges", ranges, "--label", "finding", "--epsilon", 2, "--rounds", 20]
    options += ["--algorithm", "gossip", "--features", "hats"]
    for name in NAMES:
        key = command("contract", "keys", tmp_path / name, "--epsilon", 4).split('"')[1]
        options += ["--party", f"{name}:180:{key}"]
    command("contract", "make", file, *options)
    signed, key = map(str, certificate(tmp_path))
    run = Commands(tmp_path)

    def node(name: str) -> None:
        arguments = {
            "--data": EXAMPLE / f"{name}.csv",
            "--folder": tmp_path / name,
            "--router": f"https://{HERE}:{port}",
            "--certificate": signed,
            "--output": tmp_path / f"{name}.dpmesh",
        }
        flat = [str(part) for pair in arguments.items() for part in pair]
        run.start(name, "node", str(file), *flat)

    try:
        run.start(
            "router",
            "router",
            str(file),
            "--port",
            "0",
            "--certificate",
            signed,
            "--certificate-key",
            key,
        )
        port = run.wait_for("router", "listening at ").split(HERE + ":")[1].split()[0]
        for name in NAMES:
            node(name)
        run.wait_for("west", "round 8 of")
        run.processes["west"].kill()
        run.processes["west"].wait()
        node("west")
        for name in NAMES:
            shown = run.wait_for(name, "wrote")
            assert "made of released rows alone" in shown
            (charged,) = re.findall(r"charged so far: epsilon = (\S+) of the (\S+) reserved", shown)
            assert charged[0] == charged[1]
        run.wait_for("router", "the run is over")
    finally:
        for process in run.processes.values():
            process.kill()
            process.wait()
    assert "signed by south, after 20 of 20" in command(
        "model", "verify", tmp_path / "south.dpmesh", file
    )
    shown = command("contract", "status", tmp_path / "west")
    assert f"finished after 20 rounds; wrote {tmp_path / 'west.dpmesh'}; 20 releases" in shown
    hashed = re.findall("contract +([0-9a-f]{64})", shown)[0]
    assert "for ever" in command("contract", "leave", tmp_path / "west", hashed[:8])
    contract = read_contract(file)
    models = [dm.Model.load(tmp_path / f"{name}.dpmesh") for name in NAMES]
    for name, model in zip(NAMES, models, strict=True):
        folder = Folder.open(tmp_path / name)
        assert folder.ledger(contract) == contract.plan
        folder.close()
        np.testing.assert_allclose(model.weights, models[0].weights, rtol=1e-12)
        assert json.dumps(model.about["privacy"])
        assert set(model.predict(read_table(EXAMPLE / "north.csv"))) <= {"benign", "malignant"}


def test_records_that_do_not_fit_are_named_on_their_partys_screen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    contract, table = read_contract(EXAMPLE / "contract.toml"), read_table(EXAMPLE / "north.csv")
    table.loc[:6, "radius"] = "1000"
    fits = contract.tables.dataset(table)
    clipped = "radius: 7 of 180 values are outside of its range, and are clipped"
    assert caplog.messages == [clipped]
    with pytest.raises(ValueError, match="180 of north, as the contract has, got 179"):
        contract.problem(fits.take(np.arange(179)), 0)
    table.loc[5, "finding"] = "unclear"
    with pytest.raises(
        ValueError, match=r"record 5.*: finding is 'unclear', not one of 'benign', 'malig"
    ):
        contract.tables.dataset(table)


def test_a_model_says_that_its_noise_is_seeded_and_what_a_restored_folder_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpmesh.deploy import Contract

    monkeypatch.setattr(Node, "released", np.ones((1, 14)))
    costs = []
    for seeded in (False, True):
        folder = Folder.create(tmp_path / str(seeded), epsilon=9.0, delta=1e-5)
        content = dict(read_contract(EXAMPLE / "contract.toml").settings.content)
        own = content["party"][0] | {"signing_key": folder.signing.public.hex()}
        contract = Contract.of(content | {"party": [own, *content["party"][1:]]})
        node = Node(contract, folder, contract.tables.read(EXAMPLE / "north.csv"), rehearsal=seeded)
        privacy = node.model().about["privacy"]
        assert seeded == any("seeded" in text for text in privacy["assumptions"])
        folder.charge_again()
        costs += [privacy["epsilon"], node.model().about["privacy"]["epsilon"]]
    plan = contract.plan
    assert costs == 2 * [dm.privacy.total_cost(n * [plan], 1e-5).epsilon for n in (1, 2)]


@pytest.mark.parametrize(
    ("contract", "page", "adversary"),
    [
        ("contract.toml", "three_hospitals.md", "the router and all parties"),
        ("secure_sum.toml", "secure_aggregation_contract.md", "the router, which sees only noisy"),
    ],
)
def test_a_check_says_what_joining_costs_against_whom(
    contract: str, page: str, adversary: str
) -> None:
    """All lines but that of the hash, which depends on the version, are on the page."""
    shown = command("contract", "check", EXAMPLE / contract)
    text = (EXAMPLE.parents[1] / "docs" / page).read_text()
    assert shown.partition("\n")[2] in text
    assert f"adversary    {adversary}" in shown


def test_a_rehearsal_on_one_machine_has_the_simulators_bits(tmp_path: Path) -> None:
    file = tmp_path / "contract.toml"
    file.write_text((EXAMPLE / "contract.toml").read_text().replace("rounds = 101", "rounds = 2"))
    shown = command("contract", "rehearse", file, "--data", EXAMPLE)
    assert "the same bits as the simulator's" in shown
