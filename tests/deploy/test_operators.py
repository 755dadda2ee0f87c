"""What an operator meets: keys that others can read, and a service manager that ends a process."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from http.client import HTTPConnection
from pathlib import Path
from socket import create_server
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from mesh_parties import Parties
from network_parties import HERE, Liar, certificate, response, running

from dpmesh.deploy import Contract, Folder, Node, Router, http_node
from dpmesh.deploy.http import node_tls, server_tls
from dpmesh.deploy.http_node import LeftOutError, wait_for_router
from dpmesh.deploy.rehearsal import rehearse
from dpmesh.deploy.wire import presence_question

posix = pytest.mark.skipif(os.name != "posix", reason="modes and signals of POSIX")


@posix
@pytest.mark.parametrize("name", ["signing.pem", "noise.key", "node.db"])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_folder_whose_keys_others_can_read_is_refused(
    name: str, mode: int, tmp_path: Path
) -> None:
    Folder.create(tmp_path / "north", epsilon=1.0, delta=1e-5).close()
    path = tmp_path / "north" / name
    path.chmod(mode)
    with pytest.raises(ValueError, match=f"chmod 600 .*{name}.* got {mode:04o}"):
        Folder.open(tmp_path / "north")
    path.chmod(0o600)
    Folder.open(tmp_path / "north").close()


@posix
@pytest.mark.slow
def test_a_router_that_a_service_manager_ends_says_that_nothing_is_lost(tmp_path: Path) -> None:
    tomli_w = pytest.importorskip("tomli_w")
    parties = Parties(tmp_path, nodes=2)
    (tmp_path / "contract.toml").write_text(tomli_w.dumps(parties.content))
    command = [sys.executable, "-m", "dpmesh", "router", "contract.toml", "--port", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        assert "listening at" in process.stdout.readline()
        assert "waiting for the signatures" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the same command goes on" in printed
    assert "Traceback" not in printed


@posix
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_tls_key_that_others_can_read_is_refused(mode: int, tmp_path: Path) -> None:
    signed, key = certificate(tmp_path)
    server_tls(signed, key)
    key.chmod(mode)
    with pytest.raises(ValueError, match=f"key: .*chmod 600 .*key.pem.*got {mode:04o}"):
        server_tls(signed, key)
    both = tmp_path / "both.pem"
    both.write_bytes(signed.read_bytes() + key.read_bytes())
    both.chmod(mode)
    with pytest.raises(ValueError, match=r"chmod 600 .*both\.pem"):
        server_tls(both)
    both.chmod(0o400)
    server_tls(both)


def _get(address: str, path: str) -> tuple[int, str]:
    host, _, port = address.rpartition("/")[0].rpartition("/")[2].partition(":")
    connection = HTTPConnection(host, int(port), timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read().decode()


@posix
@pytest.mark.slow
def test_a_node_under_a_service_manager_writes_json_and_shows_its_health(tmp_path: Path) -> None:
    """SIGTERM ends it with what was charged, and code 130."""
    pytest.importorskip("prometheus_client")
    tomli_w = pytest.importorskip("tomli_w")
    parties = Parties(tmp_path, nodes=2, rehearsal=False)
    (tmp_path / "contract.toml").write_text(tomli_w.dumps(parties.content))
    assert parties.folders[0].leave(parties.contract)  # undone: the command joins it
    own = parties.records[0]
    np.savez(tmp_path / "own.npz", features=own.features, labels=own.labels)
    for folder in parties.folders:
        folder.close()
    with running(Router(parties.contract)) as server:
        command = [sys.executable, "-m", "dpmesh", "node", "contract.toml", "--data", "own.npz"]
        command += ["--folder", "p0", "--router", f"http://{HERE}:{server.port}"]
        command += ["--log-format", "json", "--metrics", "0"]
        environment = os.environ | {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
        pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipe) as process:
            assert process.stderr is not None
            first = json.loads(process.stderr.readline())
            assert json.loads(process.stderr.readline())["message"].startswith("p0 takes part")
            address = first["message"].removeprefix("metrics at ")
            assert address.startswith("http://127.0.0.1:")
            assert _get(address, "/health") == (200, "ok\n")
            status, metrics = _get(address, "/metrics")
            assert status == 200
            of = f'contract="{parties.contract.hash.hex()[:12]}",process="p0"'
            assert f"dpmesh_rounds{{{of}}} 4.0" in metrics
            assert f"dpmesh_charged_epsilon{{{of}}} 0.0" in metrics
            assert re.search(r"dpmesh_reserved_epsilon\{.*\} [1-9]", metrics)
            assert re.search(r"dpmesh_seconds_since_progress\{.*\} [0-9]", metrics)
            assert _get(address, "/other")[0] == 404
            process.send_signal(signal.SIGTERM)
            printed, logged = process.communicate(timeout=60)
    assert process.returncode == 130
    assert printed == ""
    lines = [first, *map(json.loads, logged.splitlines())]
    assert all({*line} == {"time", "level", "message"} for line in lines)
    assert all(datetime.fromisoformat(line["time"].replace("Z", "+00:00")) for line in lines)
    messages = [line["message"] for line in lines]
    assert messages[-2].startswith("interrupted; the same command goes on")
    assert messages[-1].startswith("charged so far: epsilon = 0 of")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["node", "router"])
def test_an_error_before_the_start_is_a_line_of_json(command: str, tmp_path: Path) -> None:
    file = tmp_path / "contract.toml"
    file.write_text("[contract]\nrounds = 0\n")
    options = ["--data", "x.csv", "--folder", "x", "--router", "https://x"]
    asked = [command, "contract.toml", *(options if command == "node" else [])]
    run = [sys.executable, "-m", "dpmesh", *asked, "--log-format", "json"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = map(json.loads, done.stderr.splitlines())
    assert line["level"] == "error"
    assert line["message"].startswith("contract.toml")


def test_an_address_where_no_router_can_listen_is_named_with_what_to_do(tmp_path: Path) -> None:
    testing = pytest.importorskip("typer.testing")
    tomli_w = pytest.importorskip("tomli_w")
    from dpmesh.cli import app

    (tmp_path / "contract.toml").write_text(tomli_w.dumps(Parties(tmp_path, nodes=2).content))
    command = ["router", str(tmp_path / "contract.toml")]

    def refusal(*options: str) -> str:
        result = testing.CliRunner().invoke(app, [*command, *options])
        assert result.exit_code == 2
        return " ".join(result.output.split())

    with create_server((HERE, 0)) as other_router:
        port = str(other_router.getsockname()[1])
        assert "perhaps another router, or choose another port" in refusal("--port", port)
    elsewhere = refusal("--host", "192.0.2.1", "--port", "0", "--insecure")
    assert "--host: wanted an address of this machine" in elsewhere


def test_a_router_shows_for_whom_it_waits(tmp_path: Path) -> None:
    metrics = pytest.importorskip("dpmesh.deploy.metrics")
    now = [0.0]
    router = Router(Parties(tmp_path, nodes=2).contract, lambda: now[0])
    shown = metrics.RouterMetrics(router, 0)
    address = shown.address.removeprefix("metrics at ")
    assert _get(address, "/health") == (200, "ok\n")
    assert re.search(r"dpmesh_parties_waited_for\{.*\} 2.0", _get(address, "/metrics")[1])
    now[0] = router.contract.terms.deadline + 1
    shown._updated = -metrics.UPDATE
    shown.update()
    assert _get(address, "/health") == (503, "waiting for p0, p1\n")
    shown.close()


def test_a_node_is_not_healthy_while_its_router_is_away(tmp_path: Path) -> None:
    parties = Parties(tmp_path, nodes=2)
    contact = http_node.Contact()
    ends = pytest.raises(LeftOutError)
    with Liar(response(500)) as liar, ends:
        http_node.run_node(
            parties.nodes[0], f"http://{liar.address}", patience=0.0, contact=contact
        )
    assert "refuses with status 500" in contact.problem


def test_lines_have_times_and_levels() -> None:
    _logs = pytest.importorskip("dpmesh.cli._logs")
    record = logging.LogRecord("dpmesh", logging.WARNING, "", 0, "%s is late", ("p1",), None)
    record.created = 0.0
    assert _logs._TextFormatter().format(record) == "1970-01-01T00:00:00.000Z WARNING p1 is late"
    try:
        raise KeyError("x")
    except KeyError:
        record.exc_info = sys.exc_info()
    line = json.loads(_logs._JsonFormatter().format(record))
    assert line["level"] == "warning"
    assert "KeyError" in line["traceback"]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []

    async def sleep(pause: float) -> None:
        seconds.append(pause)

    monkeypatch.setattr(http_node, "sleep", sleep)
    return seconds


def test_a_party_waits_for_a_router_that_has_its_contract(
    pauses: list[float], tmp_path: Path
) -> None:
    parties = Parties(tmp_path / "own", nodes=2)
    others = Parties(tmp_path / "another", nodes=2)
    contract, signing = parties.contract, parties.folders[0].signing
    with running(Router(contract)) as server:
        wait_for_router(contract, signing, f"http://{HERE}:{server.port}", patience=0.0)
    with running(Router(others.contract)) as server:
        url = f"http://{HERE}:{server.port}"
        with pytest.raises(ValueError, match=f"router: .*{contract.hash.hex()}, got one with ano"):
            wait_for_router(contract, signing, url, patience=60.0)
        with pytest.raises(ValueError, match=r"that of a \[\[party\]\]"):
            wait_for_router(contract, others.folders[0].signing, url)
    refused = pytest.raises(LeftOutError, match=r"status 500.* Nothing was charged")
    with Liar(response(500)) as liar, refused:
        wait_for_router(contract, signing, f"http://{liar.address}", patience=0.0)
    with pytest.raises(LeftOutError, match=r"cannot be reached.* Nothing was charged"):
        wait_for_router(contract, signing, f"http://{liar.address}", patience=0.0)
    for url in ("ftp://router", "http://router.example", "router:8443"):
        with pytest.raises(ValueError, match="router: wanted"):
            wait_for_router(contract, signing, url)


@pytest.mark.parametrize("tls", [node_tls, server_tls])
def test_a_file_that_is_no_certificate_is_named(tls: object, tmp_path: Path) -> None:
    assert callable(tls)
    path = tmp_path / "records.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"certificate: wanted a PEM file .*records.csv"):
        tls(path)


def test_swapped_files_of_a_certificate_and_its_key_are_told_apart(tmp_path: Path) -> None:
    signed, key = certificate(tmp_path)
    with pytest.raises(ValueError, match=r"got .*key\.pem: (another kind of file|no start line)"):
        server_tls(key, signed)


def test_a_folder_that_takes_no_model_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    testing = pytest.importorskip("typer.testing")
    tomli_w = pytest.importorskip("tomli_w")
    from dpmesh.cli import app

    parties = Parties(tmp_path, nodes=2, rehearsal=False)
    (tmp_path / "contract.toml").write_text(tomli_w.dumps(parties.content))
    assert parties.folders[0].leave(parties.contract)
    records = parties.records[0]
    np.savez(tmp_path / "records.npz", features=records.features, labels=records.labels)
    for folder in parties.folders:
        folder.close()
    (tmp_path / "file").touch()
    command = ["node", str(tmp_path / "contract.toml"), "--data", str(tmp_path / "records.npz")]
    command += ["--folder", str(tmp_path / "p0"), "--router", "http://127.0.0.1:1"]
    command += ["--output", str(tmp_path / "file" / "p0.model"), "--patience", "0"]
    result = testing.CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "cannot write into this folder" in " ".join(result.output.split())
    folder = Folder.open(tmp_path / "p0")
    assert folder.contracts() == []
    folder.close()


@posix
def test_a_full_disk_charges_nothing_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of this process may not grow, as on a disk without space."""
    resource = pytest.importorskip("resource")
    _errors = pytest.importorskip("dpmesh.cli._errors")
    parties = Parties(tmp_path, nodes=2, rehearsal=False)
    contract, folder = parties.contract, parties.folders[0]
    assert folder.leave(contract)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        with pytest.raises((OSError, sqlite3.Error)) as failure:
            Node(contract, folder, parties.records[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    if isinstance(failure.value, sqlite3.Error):
        assert "disk" in _errors._database_advice(failure.value)
    assert folder.contracts() == []
    assert folder.cost() == 0
    node = Node(contract, folder, parties.records[0])  # once there is space again
    node.answer(presence_question(contract))
    assert folder.cost() > 0


def test_a_contract_that_was_never_signed_is_undone(tmp_path: Path) -> None:
    parties = Parties(tmp_path, nodes=2, rehearsal=False, marks=tmp_path / "marks")
    contract, folder = parties.contract, parties.folders[0]
    assert folder.cost() > 0
    assert folder.leave(contract)
    assert folder.cost() == 0
    assert folder.contracts() == []
    folder.close()
    folder = Folder.open(tmp_path / "p0", marks=tmp_path / "marks")
    node = Node(contract, folder, parties.records[0])  # and may be joined again
    node.answer(presence_question(contract))
    assert not folder.leave(contract)
    assert folder.cost() > 0
    folder.close()


def test_a_contract_of_a_folder_that_marks_do_not_know_stays_charged(tmp_path: Path) -> None:
    """It may be a copy from before the contract was signed."""
    parties = Parties(tmp_path, nodes=2, rehearsal=False, marks=tmp_path / "marks")
    contract: Contract = parties.contract
    parties.folders[0].close()
    copy = Folder.open(tmp_path / "p0", marks=tmp_path / "marks of another machine")
    assert not copy.leave(contract)
    assert copy.cost() > 0
    copy.close()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("SQLITE_FULL", "the disk is full"),
        ("SQLITE_READONLY_DBMOVED", "cannot be written"),
        ("SQLITE_CORRUPT_INDEX", "is damaged"),
        ("SQLITE_NOTADB", "no database"),
        ("SQLITE_IOERR_FSYNC", "the disk fails"),
        ("SQLITE_CANTOPEN", "cannot be opened"),
        ("SQLITE_BUSY", "another process"),
        ("SQLITE_TOOBIG", "mend this"),
    ],
)
def test_each_error_of_a_disk_has_its_sentence(error: str, sentence: str) -> None:
    _errors = pytest.importorskip("dpmesh.cli._errors")
    raised = sqlite3.OperationalError("..")
    raised.sqlite_errorname = error
    assert sentence in _errors._database_advice(raised)


def _half(content: bytes) -> bytes:
    return content[:5000]


def _overwritten(content: bytes) -> bytes:
    return b"not a database" * 100


def _one_page_of_zeros(content: bytes) -> bytes:
    return content[:8192] + bytes(4096) + content[12288:]


@pytest.mark.parametrize("damage", [_half, _overwritten, _one_page_of_zeros])
def test_a_damaged_database_is_never_called_whole(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    testing = pytest.importorskip("typer.testing")
    from dpmesh.cli import app

    Folder.create(tmp_path / "north", epsilon=1.0, delta=1e-5).close()
    path = tmp_path / "north" / "node.db"
    path.write_bytes(damage(path.read_bytes()))
    result = testing.CliRunner().invoke(app, ["contract", "status", str(tmp_path / "north")])
    assert result.exit_code == 2
    assert "all is kept" not in result.output
    assert "contract keys --lost" in " ".join(result.output.split())


def test_a_folder_that_replaces_a_lost_one_is_charged_for_its_contracts(tmp_path: Path) -> None:
    testing = pytest.importorskip("typer.testing")
    tomli_w = pytest.importorskip("tomli_w")
    from dpmesh.cli import app

    parties = Parties(tmp_path, nodes=2)
    file = tmp_path / "contract.toml"
    file.write_text(tomli_w.dumps(parties.content))
    new = tmp_path / "new"
    options = ["--epsilon", "1000", "--lost", str(file)]
    result = testing.CliRunner().invoke(app, ["contract", "keys", str(new), *options])
    assert result.exit_code == 0, result.output
    folder = Folder.open(new)
    assert [known.hash for known in folder.contracts()] == [parties.contract.hash]
    assert folder.cost() > 0
    folder.close()


@pytest.mark.parametrize("where", ["_begin_step", "_computed"])
def test_a_rehearsal_ends_when_a_node_fails(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the charge of its step, and after it."""
    parties = Parties(tmp_path)
    files = {name: tmp_path / f"{name}.npz" for name in parties.names}
    for file, records in zip(files.values(), parties.records, strict=True):
        np.savez(file, features=records.features, labels=records.labels)
    monkeypatch.setattr(Node, where, Mock(side_effect=ArithmeticError))
    with pytest.raises(RuntimeError, match="the node of p0 failed"):
        rehearse(parties.contract, files)
