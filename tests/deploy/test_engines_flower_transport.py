"""Secure sums and the mesh over Flower: same results, and nothing else leaves a node."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Thread
from unittest.mock import Mock
from uuid import uuid4

import mesh_parties
import numpy as np
import pytest

import dpmesh as dm

flwr = pytest.importorskip("flwr.app", reason="needs the extra 'flower'")

from flwr.clientapp import ClientApp  # noqa: E402

from dpmesh.deploy import Router  # noqa: E402
from dpmesh.deploy.flower import (  # noqa: E402
    Courier,
    WarmNode,
    answers,
    ask,
    parties,
    route,
    supernode,
    transport,
)
from dpmesh.deploy.wire import presence_question, refusal_reason  # noqa: E402

pytestmark = [pytest.mark.usefixtures("inside_an_app"), pytest.mark.slow]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parties, "PAUSE", 0.0)


class Grid:
    """A grid of apps in this process; nodes are killed before a question, by its number."""

    def __init__(self, names, answer, killed=()) -> None:
        self.names = dict(enumerate(names, 100))
        self.answer, self.killed = answer, dict(killed)
        self.asked, self._pushed, self._dead = 0, {}, set()

    def is_away(self, name):
        """Whether a node keeps its questions, but answers none."""
        return False

    def get_node_ids(self):
        return list(self.names)

    def push_messages(self, messages):
        for message in messages:
            name = str(uuid4())
            message.metadata.__dict__["_message_id"] = name
            self._pushed[name] = message
            yield name

    def pull_messages(self, names):
        for name in names:
            message = self._pushed.pop(name)
            node = message.metadata.dst_node_id
            self.asked += not supernode.asks_for_name(message)
            if self.killed.get(self.asked) == self.names.get(node):
                del self.killed[self.asked]
                self.names[node + 100] = self.names[node]  # it restarts under another id
                self._dead.add(node)
            if node in self._dead or self.is_away(self.names[node]):
                self._pushed[name] = message
                continue
            app, config = ClientApp(), {"dpmesh-party": self.names[node]}
            answers(app)(self.answer)
            try:
                yield app(message, flwr.Context(1, node, config, flwr.RecordDict(), {}))
            except Exception as error:
                yield flwr.Message(flwr.Error(2, f"{type(error)}: {error}"), reply_to=message)


@pytest.mark.parametrize("algorithm", ["online", "without replacement", "sums"])
def test_a_mesh_over_flower_has_the_bits_of_the_simulator(algorithm, tmp_path: Path) -> None:
    """Two nodes restart meanwhile."""
    made = mesh_parties.Parties(tmp_path, algorithm)

    def answer(question, context):
        number = made.names.index(context.node_config["dpmesh-party"])
        return made.node(number).answer(question)

    route(Grid(made.names, answer, {9: "p1", 14: "p2"}), Router(made.contract))
    simulated = made.simulated().parameters
    np.testing.assert_array_equal(made.models()[: len(simulated)], simulated)


def test_a_run_that_cannot_go_on_ends(tmp_path: Path) -> None:
    """Two of three parties have stopped for good, and the quorum is two."""
    made = mesh_parties.Parties(tmp_path, "online", nodes=3)
    for folder in made.folders[1:]:
        folder.stop(made.contract)

    def answer(question, context):
        number = made.names.index(context.node_config["dpmesh-party"])
        return made.nodes[number].answer(question)

    with pytest.raises(RuntimeError, match=r"few parties are left \(p1: stopped, p2: stopped\)"):
        route(Grid(made.names, answer), Router(made.contract))


@contextmanager
def staying(made, folder: Path) -> Iterator[list[WarmNode]]:
    """Nodes that stay, each at a socket named after its party."""
    with ExitStack() as stack:
        servers = []
        for name, node in zip(made.names, made.nodes, strict=True):
            server = stack.enter_context(WarmNode(node, folder / f"{name}.socket"))
            thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            servers.append(server)
        yield servers


def test_nodes_that_stay_are_asked_by_apps_that_do_not(tmp_path: Path) -> None:
    made = mesh_parties.Parties(tmp_path, "neighbour sums")

    def answer(question, context):
        return ask(tmp_path / f"{context.node_config['dpmesh-party']}.socket", question)

    with staying(made, tmp_path):
        route(Grid(made.names, answer, {9: "p1"}), Router(made.contract))
    np.testing.assert_array_equal(made.models(), made.simulated().parameters)


def test_a_node_that_stays_ends_when_its_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, path = mesh_parties.Parties(tmp_path, "online", nodes=2), tmp_path / "socket"
    monkeypatch.setattr(made.nodes[0], "answer", Mock(side_effect=sqlite3.OperationalError("full")))

    def asks() -> None:
        with suppress(OSError):
            ask(path, presence_question(made.contract), patience=0.2)

    with WarmNode(made.nodes[0], path) as server:
        (other := Thread(target=asks)).start()
        with pytest.raises(sqlite3.OperationalError, match="full"):
            server.serve_forever(0.01)
        other.join()


@pytest.mark.parametrize("how", ["honest", "long", "slow", "cut", "stranger"])
def test_who_asks_a_node_that_stays_gets_an_answer_or_a_closed_socket(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mesh_parties.Parties(tmp_path, "online", nodes=2)
    if how == "slow":
        monkeypatch.setattr(transport, "PATIENCE", 0.05)
    if how == "stranger":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    path, question = tmp_path / "p0.socket", presence_question(made.contract)
    with staying(made, tmp_path) as servers:
        if how in ("honest", "stranger"):
            asked = ask(path, question) if how == "honest" else b""
            assert how == "stranger" or not refusal_reason(asked)
        with socket.socket(socket.AF_UNIX) as there:
            there.settimeout(20)
            there.connect(str(path))
            length = servers[0].longest + 1 if how == "long" else len(question)
            said = b""
            with suppress(ConnectionError):
                there.sendall(length.to_bytes(8, "big") + question[:5])
                if how == "cut":
                    there.shutdown(socket.SHUT_WR)
                if how == "honest":
                    there.sendall(question[5:])
                said = there.recv(1)
            assert bool(said) == (how == "honest")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="that of a socket"):
        WarmNode(made.nodes[0], tmp_path / "file")


@pytest.mark.parametrize("algorithm", ["gradient descent", "without replacement"])
def test_a_mesh_over_flower_ends_with_one_party_late_and_one_gone(
    algorithm, tmp_path: Path
) -> None:
    """Time is the number of looks: p1 is away in rounds 3 to 5, and p2 from round 7 on."""
    made = mesh_parties.Parties(tmp_path, algorithm, rounds=10, records=20)
    router = Router(made.contract, count().__next__)

    class Away(Grid):
        def is_away(self, name):
            away = {"p1": range(3, 6), "p2": range(7, 11)}.get(name, range(0))
            return router.open_position is not None and router.open_position.round in away

    def answer(question, context):
        number = made.names.index(context.node_config["dpmesh-party"])
        return made.node(number).answer(question)

    route(Away(made.names, answer), router)
    assert router.missing == ["p2"]
    end = router.schedule.end
    assert [node.last_position == end for node in made.nodes] == [True, True, False, True]
    for own, folder in enumerate(made.folders):
        charged = [release.round for release in folder.ledger(made.contract).releases]
        assert charged == sorted({*charged})
        if router.schedule.is_gossip:
            assert charged == [*range(7 if own == 2 else 10)]


def test_a_party_that_does_not_answer_is_missing() -> None:
    def answer(question, context):
        if context.node_config["dpmesh-party"] == "b":
            raise ValueError("patient 17")
        return question[::-1]

    courier = Courier(Grid(["a", "b", "stranger"], answer), ["a", "b", "c"])
    answers = [courier.exchange({0: b"xy", 1: b"xy", 2: b"xy"}) for _ in range(3)]
    assert {party: said for look in answers for party, said in look.items()} == {0: b"yx"}


def test_why_a_node_does_not_answer_stays_in_its_log() -> None:
    app = ClientApp()

    @answers(app)
    def answer(question, context):
        raise ValueError("patient 17")

    content = flwr.RecordDict({"dpmesh": flwr.ConfigRecord({"bytes": b"?"})})
    with pytest.raises(dm.deploy.flower.NoAnswerError, match=r"^the node's log states why$"):
        app(flwr.Message(content, 7, "query.dpmesh"), flwr.Context(1, 7, {}, flwr.RecordDict(), {}))


def test_a_process_that_asks_a_warm_node_imports_nothing_else_of_the_package() -> None:
    """Flower starts one for each question: all of dpmesh took two seconds of it."""
    program = (
        "import sys; from dpmesh.deploy.flower import answers, ask; "
        "print(*(name for name in sys.modules if name.startswith(('dpmesh', 'scipy'))))"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {*ran.stdout.split()} == {
        "dpmesh",
        "dpmesh._core",
        "dpmesh._extras",
        "dpmesh.deploy",
        "dpmesh.deploy.flower",
        "dpmesh.deploy.flower.supernode",
    }
