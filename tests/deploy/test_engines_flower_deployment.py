"""A real deployment of Flower on loopback: a SuperLink, four SuperNodes, TLS between them."""

from __future__ import annotations

import datetime
import ipaddress
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mesh_parties
import numpy as np
import pytest

import dpmesh as dm
from dpmesh.deploy import Folder, Router

pytest.importorskip("flwr.app", reason="needs the extra 'flower'")

pytestmark = pytest.mark.slow  # processes of Flower

TOOLS = Path(sys.executable).parent
ONE_PORT = not version("flwr").startswith("1.22.")
"""The lowest supported version has a port for each interface, and connections in the project."""
MESHED = ("online", "quantized", "gradient descent", "without replacement")
APPS = Path(__file__).parents[1] / "helpers"


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


class Deployment:
    """A SuperLink and SuperNodes, which can be killed and started again."""

    def __init__(self, folder: Path, nodes: list[str]) -> None:
        self.folder, self.nodes, self.running = folder, nodes, {}
        home = folder / "home"
        home.mkdir()
        shutil.copytree(APPS / "flower_app", folder / "app")
        signed, key = certificate(folder)
        self.link, self.fleet, self.apps, *self.ports = free_ports(3 + len(nodes))
        where = f'address = "127.0.0.1:{self.link}"\nroot-certificates = "{signed}"\n'
        if ONE_PORT:
            (home / "config.toml").write_text(f"[superlink.test]\n{where}")
        else:
            with (folder / "app" / "pyproject.toml").open("a") as project:
                project.write(f"\n[tool.flwr.federations.test]\n{where}")
        self.environment = {
            **os.environ,
            "DPMESH_FLOWER_RESULT": str(folder / "result"),
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(dm.__file__).parent.parent),
        }
        self.tls = ["--ssl-ca-certfile", signed, "--ssl-certfile", signed, "--ssl-keyfile", key]
        self.signed = signed

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(TOOLS / command[0]), *command[1:]],
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    def start_link(self) -> None:
        if ONE_PORT:
            own = ["--disable-runtime-dependency-installation", "--port", str(self.link)]
        else:
            apis = {"control": self.link, "fleet": self.fleet, "serverappio": self.apps}
            own = [f"--{api}-api-address=127.0.0.1:{port}" for api, port in apis.items()]
        self.start("link", "flower-superlink", *self.tls, *own)
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.link)) == 0:
                    return
            time.sleep(0.5)
        pytest.fail(f"nothing listens after 5 minutes: {self.logs}")

    def start_node(self, node: int) -> None:
        own = ["--root-certificates", self.signed, "--node-config", self.nodes[node]]
        port = str(self.ports[node])
        if ONE_PORT:
            where = [*self.tls, "--superlink", f"127.0.0.1:{self.link}", "--port", port]
        else:
            where = [f"--superlink=127.0.0.1:{self.fleet}"]
            where += [f"--clientappio-api-address=127.0.0.1:{port}"]
        self.start(f"node{node}", "flower-supernode", *own, *where)

    def start_all(self, until: str) -> None:
        """Start the link, all nodes and the app; wait until it wrote this file."""
        self.start_link()
        for node in range(len(self.nodes)):
            self.start_node(node)
        self.start("run", "flwr", "run", str(self.folder / "app"), "test", "--stream")
        self.wait_for(until)

    def kill(self, name: str) -> None:
        """Kill a service and all that it started, without a warning."""
        with suppress(ProcessLookupError):
            os.killpg(self.running[name].pid, signal.SIGKILL)
        self.running.pop(name).wait()

    def wait_for(self, name: str) -> Path:
        """Wait until the app wrote this file."""
        path = self.folder / name
        for _ in range(4800):
            if path.exists():
                return path
            time.sleep(0.25)
        pytest.fail(self.logs)

    @property
    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """Four SuperNodes under names of their own, which are not started yet."""
    if not all((TOOLS / tool).exists() for tool in ("flower-superlink", "flower-supernode")):
        pytest.skip("needs Flower's services beside the interpreter")
    made = Deployment(tmp_path, [f'dpmesh-party="p{i}"' for i in range(4)])
    yield made
    for name in [*made.running]:
        made.kill(name)


def meshes(folder: Path, **terms: Any) -> dict[str, mesh_parties.Parties]:
    """Return parties of all four algorithms, 10 rounds each, whose folders are closed."""
    made = {
        name: mesh_parties.Parties(folder / name, name, rounds=10, records=20, **terms)
        for name in MESHED
    }
    for meshed in made.values():
        for each in meshed.folders:
            each.close()
    return made


def publish(folder: Path, made: dict[str, mesh_parties.Parties], **more: Any) -> None:
    """Write what the app knows beforehand."""
    content = {name: each.content for name, each in made.items()}
    records = made["online"].records
    (folder / "public").write_bytes(pickle.dumps({"mesh": content, "records": records, **more}))


def reopened(folder: Path, made: dict[str, mesh_parties.Parties]) -> None:
    """Open all folders again, with nodes."""
    for name, meshed in made.items():
        meshed.folders = [Folder.open(folder / name / party) for party in meshed.names]
        meshed.nodes = [meshed.node(i) for i in range(len(meshed.names))]


def turns(meshed: mesh_parties.Parties, own: int) -> list[int]:
    """Return the rounds in which a party sends."""
    schedule = Router(meshed.contract).schedule
    return [t for t in range(10) if schedule.is_gossip or own in schedule.token_holders(t)]


def charged(meshed: mesh_parties.Parties, own: int) -> list[int]:
    """Return the rounds that a party's ledger holds."""
    ledger = meshed.folders[own].ledger(meshed.contract)
    return [release.round for release in ledger.releases]


def test_a_deployment_has_the_results_of_one_process_through_a_kill(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Federated learning, secure sums, and meshes of which one SuperNode dies and comes back."""
    monkeypatch.syspath_prepend(APPS / "flower_app")
    from app import ALGORITHM, CLIENTS, KEY, ROUNDS, make_problem

    folder = deployment.folder
    made = meshes(folder, deadline=600.0)
    publish(folder, made, federated=True)
    deployment.start_all("round0")
    moment = np.random.default_rng().uniform(0, 30)
    time.sleep(moment)
    deployment.kill("node2")
    deployment.start_node(2)
    found = np.load(deployment.wait_for("result"))

    simulated = dm.simulate(ALGORITHM, make_problem(), rounds=ROUNDS, key=KEY, delta=1e-5)
    np.testing.assert_allclose(found["federated"], simulated.parameters, rtol=1e-12, atol=1e-14)
    for node in range(CLIENTS):
        deployment.kill(f"node{node}")
    assert found["missing"].tolist() == 4 * [""], moment
    reopened(folder, made)
    for meshed in made.values():
        simulated = meshed.simulated().parameters
        np.testing.assert_array_equal(meshed.models()[: len(simulated)], simulated)
        for own in range(CLIENTS):
            assert charged(meshed, own) == turns(meshed, own), moment


def test_a_deployment_ends_with_one_party_late_and_one_that_never_comes_back(
    deployment: Deployment,
) -> None:
    """And with a third that is killed and restarted; each ledger is right."""
    folder = deployment.folder
    made = meshes(folder, deadline=90.0)
    publish(folder, made)
    deployment.start_all("round1")
    for name in ("node1", "node3"):
        deployment.kill(name)
    deployment.wait_for("round4")
    deployment.start_node(1)
    deployment.wait_for("round6")
    deployment.kill("node2")
    deployment.start_node(2)
    found = np.load(deployment.wait_for("result"))
    for node in (0, 1, 2):
        deployment.kill(f"node{node}")
    assert found["missing"].tolist() == 4 * ["p3"]
    reopened(folder, made)
    for meshed in made.values():
        schedule = Router(meshed.contract).schedule
        ended = [node.last_position == schedule.end for node in meshed.nodes]
        assert ended == [True, True, True, False]
        for own in range(4):
            spent, due = charged(meshed, own), turns(meshed, own)
            assert spent == sorted({*spent} & {*due})
            if schedule.is_gossip:  # who comes back runs the rounds that it missed
                assert spent == (due if own < 3 else due[: len(spent)])
                assert own < 3 or 0 < len(spent) < 10
