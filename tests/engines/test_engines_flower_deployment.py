"""A real deployment of Flower on loopback: a SuperLink, three SuperNodes, TLS between them."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import dpmesh as dm

pytest.importorskip("flwr.app", reason="needs the extra 'flower'")

TOOLS = Path(sys.executable).parent
APPS = Path(__file__).parent.parent


def certificate(folder: Path) -> tuple[str, str]:
    """Write a certificate of this machine, signed by itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName(here), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(signed.public_bytes(encoding))
    form = serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, form, plain))
    return str(folder / "cert.pem"), str(folder / "key.pem")


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def service(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[None]:
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(port: int, log: Path) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    pytest.fail(f"nothing listens after 5 minutes: {log.read_text()}")


@contextmanager
def deployment(folder: Path, app: str, nodes: list[str]) -> Iterator[Callable[[], Path]]:
    """Start a SuperLink and SuperNodes of these configurations; yield what runs an app on them."""
    if not all((TOOLS / tool).exists() for tool in ("flower-superlink", "flower-supernode")):
        pytest.skip("needs Flower's services beside the interpreter")
    home, result = folder / "home", folder / "result"
    shutil.copytree(APPS / app, folder / app, ignore=shutil.ignore_patterns("__pycache__"))
    home.mkdir()
    signed, key = certificate(folder)
    link, *ports = free_ports(1 + len(nodes))
    (home / "config.toml").write_text(
        f'[superlink.test]\naddress = "127.0.0.1:{link}"\nroot-certificates = "{signed}"\n'
    )
    environment = {
        **os.environ,
        "DPMESH_FLOWER_RESULT": str(result),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(dm.__file__).parent.parent),
    }
    tls = ["--ssl-ca-certfile", signed, "--ssl-certfile", signed, "--ssl-keyfile", key]
    with ExitStack() as services:
        log = folder / "link.log"
        offline = "--disable-runtime-dependency-installation"
        command = [str(TOOLS / "flower-superlink"), *tls, offline, "--port", str(link)]
        services.enter_context(service(command, log, environment))
        wait_for(link, log)
        for client, (port, config) in enumerate(zip(ports, nodes, strict=True)):
            command = [str(TOOLS / "flower-supernode"), *tls, "--root-certificates", signed]
            command += ["--superlink", f"127.0.0.1:{link}", "--port", str(port)]
            command += ["--node-config", config]
            log = folder / f"client{client}.log"
            services.enter_context(service(command, log, environment))

        def run() -> Path:
            result.unlink(missing_ok=True)
            command = [str(TOOLS / "flwr"), "run", str(folder / app), "test", "--stream"]
            with service(command, folder / "run.log", environment):
                # The stream of a run's log does not always end with the run.
                for _ in range(1200):
                    if result.exists():
                        return result
                    time.sleep(0.5)
            pytest.fail("\n".join(path.read_text() for path in folder.glob("*.log")))

        yield run


def test_a_deployment_gives_the_models_of_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(APPS / "flower_app")
    from app import ALGORITHM, CLIENTS, KEY, ROUNDS, make_problem

    nodes = [f"partition-id={client}" for client in range(CLIENTS)]
    with deployment(tmp_path, "flower_app", nodes) as run:
        found = np.load(run())
    simulated = dm.simulate(ALGORITHM, make_problem(), rounds=ROUNDS, key=KEY, delta=1e-5)
    np.testing.assert_allclose(found, simulated.parameters, rtol=1e-12, atol=1e-14)


def test_clients_keep_their_budget_against_a_curious_server(tmp_path: Path) -> None:
    """It is enough for one answer. In another run Flower's memory is empty, a file is not."""
    nodes = [f'dpmesh-ledger="{tmp_path / "ledger"}"', "partition-id=1"]
    with deployment(tmp_path, "flower_local_app", nodes) as run:
        first, second = (json.loads(run().read_text()) for _ in range(2))
    assert (first["answers"], second["answers"]) == (2, 1)
    for told in (first["told"], second["told"]):
        reasons = sorted(reason.partition(":")[0] for reason in told)
        assert reasons == [
            *2 * ["<class 'dpmesh.engines.flower.client.OnlyTrains'>"],
            *2 * ["<class 'dpmesh.privacy.budget.OverBudget'>"],
        ]
