"""A contract on Flower: ``python -m benches.flower_contract``, processor time of three parties.

A SuperLink, three SuperNodes under TLS and a contract of secure sums, all on this machine. Flower
starts a process for each question; it passes the question on to the party's node, which stays in
another process. A party's time is that of its SuperNode, with all that it starts, and of its node.
Most of it are imports of Flower's process for a question, which are measured alone beside it.
Results go to ``docs/results/flower-contract.csv``, and as text beside it. Needs Linux, openssl and
flwr 1.42 or later.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from textwrap import dedent
from threading import Thread

import tomli_w

import dpmesh as dm
from benches.deployed import SUMS, parties
from benches.machine import description
from dpmesh.deploy import Contract, Node
from dpmesh.deploy.flower import WarmNode
from dpmesh_papers.studies.results import write_rows

PARTIES, DIM, ROUNDS = 3, 1_000, 8
GOAL = 2.0
"""The most processor seconds that a round should take of a party."""
IMPORTS = "from flwr.supernode.cli import flwr_clientapp"
"""What Flower's process for a question imports before it loads an app."""
TICKS = os.sysconf("SC_CLK_TCK")
PROJECT = """
    [project]
    name = "contract-app"
    version = "1.0.0"
    description = "A contract between SuperNodes"
    license = "Apache-2.0"
    dependencies = []

    [tool.flwr.app]
    publisher = "dpmesh"

    [tool.flwr.app.components]
    serverapp = "server:app"
    clientapp = "client:app"
"""
CLIENT = """
    from flwr.clientapp import ClientApp

    from dpmesh.deploy.flower import answers, ask

    app = ClientApp()


    @answers(app)
    def answer(question, context):
        return ask(f"{folder}/{{context.node_config['dpmesh-party']}}", question)
"""
SERVER = """
    from flwr.serverapp import ServerApp

    from dpmesh.deploy import Router, read_contract
    from dpmesh.deploy.flower import route

    app = ServerApp()


    @app.main()
    def main(grid, context):
        route(grid, Router(read_contract("{folder}/contract.toml")))
"""


def processes_of(root: int) -> dict[int, list[str]]:
    """Return the fields of /proc's stat of a process and of its descendants, by process number."""
    states = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            states[int(path.parent.name)] = path.read_text().rsplit(")", 1)[1].split()
    tree: dict[int, list[str]] = {}
    started = {root}
    while started:
        tree |= {number: states[number] for number in started & states.keys()}
        started = {number for number, state in states.items() if int(state[1]) in started}
    return tree


def processor_of(root: int) -> float:
    """Return the processor seconds of a process and of all that it started, also of ended ones."""
    ticks = sum(int(field) for state in processes_of(root).values() for field in state[11:15])
    return ticks / TICKS


def processor_of_imports() -> float:
    """Return the median processor seconds of a process that does nothing but Flower's imports."""
    seconds = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-c", IMPORTS], check=True)
        after = os.times()
        user = after.children_user - before.children_user
        seconds.append(user + after.children_system - before.children_system)
    return median(seconds)


def free_ports(count: int) -> list[int]:
    """Return free ports of the loopback address."""
    with ExitStack() as stack:
        listening = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [listener.getsockname()[1] for listener in listening]


class Deployment:
    """A SuperLink and SuperNodes in a folder.

    Parameters
    ----------
    folder
        Where their certificate, app and logs lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._services: list[subprocess.Popen[bytes]] = []
        self._link, *self._ports = free_ports(1 + PARTIES)
        self._certificate = str(folder / "cert.pem")
        key = str(folder / "key.pem")
        self._tls = ["--ssl-ca-certfile", self._certificate]
        self._tls += ["--ssl-certfile", self._certificate, "--ssl-keyfile", key]
        request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
        request += ["-subj", "/CN=localhost", "-addext"]
        request += ["subjectAltName=DNS:localhost,IP:127.0.0.1"]
        request += ["-keyout", key, "-out", self._certificate]
        subprocess.run(request, check=True, capture_output=True)
        address = f'address = "127.0.0.1:{self._link}"\nroot-certificates = "{self._certificate}"\n'
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(f"[superlink.test]\n{address}")
        app = folder / "app"
        app.mkdir()
        files = {"pyproject.toml": PROJECT, "client.py": CLIENT, "server.py": SERVER}
        for name, content in files.items():
            text = dedent(content)
            if name.endswith(".py"):
                text = text.format(folder=folder)
            (app / name).write_text(text)
        tools = Path(sys.executable).parent
        self._environment = os.environ | {
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(dm.__file__).parent.parent),
        }

    def start(self, *command: str) -> int:
        """Start a service; return the number of its process."""
        with (self._folder / f"{len(self._services)}.log").open("wb") as log:
            self._services.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
            )
        return self._services[-1].pid

    def start_link(self) -> int:
        """Start the SuperLink, and return its process once it listens."""
        options = ["--disable-runtime-dependency-installation", "--port", str(self._link)]
        process = self.start("flower-superlink", *self._tls, *options)
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._link)) == 0:
                    return process
            time.sleep(0.5)
        raise TimeoutError(self.logs)

    def start_node(self, node: int, name: str) -> int:
        """Start a SuperNode; return its process."""
        options = ["--root-certificates", self._certificate]
        options += ["--node-config", f'dpmesh-party="{name}"']
        options += ["--superlink", f"127.0.0.1:{self._link}", "--port", str(self._ports[node])]
        return self.start("flower-supernode", *self._tls, *options)

    def start_run(self) -> None:
        """Start the app."""
        self.start("flwr", "run", str(self._folder / "app"), "test", "--stream")

    def end(self) -> None:
        """End all services and their descendants."""
        started = [number for service in self._services for number in processes_of(service.pid)]
        for number in started:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        for service in self._services:
            service.wait()

    @property
    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))


@contextmanager
def deployed(contract: Contract, nodes: list[Node]) -> Iterator[Deployment]:
    """Serve nodes at sockets in a folder, and end all services afterwards."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "contract.toml").write_text(tomli_w.dumps(contract.settings.content))
        served = [WarmNode(node, folder / node.name) for node in nodes]
        for warm_node in served:
            Thread(target=warm_node.serve_forever, daemon=True).start()
        deployment = Deployment(folder)
        try:
            yield deployment
        finally:
            deployment.end()
            for warm_node in served:
                warm_node.shutdown()
                warm_node.server_close()


def wait_for(nodes: list[Node], rounds: int, deployment: Deployment) -> None:
    """Wait until all nodes have been through so many rounds."""
    end = time.monotonic() + 1200
    while min(node.rounds for node in nodes) < rounds:
        time.sleep(0.05)
        if time.monotonic() > end:
            raise TimeoutError(deployment.logs)


def measured() -> dict[str, str]:
    """Return the processor time of a round, of each part."""
    first, last = 2, ROUNDS
    times = []
    with (
        parties(SUMS, PARTIES, DIM, ROUNDS) as (contract, nodes),
        deployed(contract, nodes) as deployment,
    ):
        link = deployment.start_link()
        started = [deployment.start_node(i, node.name) for i, node in enumerate(nodes)]
        deployment.start_run()
        for rounds in (first, last):
            wait_for(nodes, rounds, deployment)
            of_supernodes = sum(map(processor_of, started))
            of_link = processor_of(link)
            times.append((time.monotonic(), of_supernodes, time.process_time(), of_link))
    wall, supernodes, warm_nodes, superlink = (
        (after - before) / (last - first) for before, after in zip(*times, strict=True)
    )
    imports = processor_of_imports()
    supernode = supernodes / PARTIES
    node = warm_nodes / PARTIES
    return {
        "parties": str(PARTIES),
        "numbers": str(DIM),
        "rounds": str(last - first),
        "seconds": f"{wall:.3g}",
        "supernode": f"{supernode:.3g}",
        "imports": f"{imports:.3g}",
        "node": f"{node:.3g}",
        "party": f"{supernode + node:.3g}",
        "superlink": f"{superlink:.3g}",
        "flwr": str(dict(description()["packages"])["flwr"]),
        "processor": str(description()["processor"]),
    }


def as_text(row: dict[str, str]) -> str:
    """Return the measurement as it stands on the page."""
    what = f"a round of a secure sum of {row['parties']} parties' {int(row['numbers']):,} numbers"
    shown = {
        "supernode": "processor of a SuperNode and what it starts",
        "imports": "of that, the imports of Flower's process, measured alone",
        "node": "processor of the node at its socket",
        "party": f"SuperNode and node: a party (goal: at most {GOAL:g} s)",
        "superlink": "processor of the SuperLink and the ServerApp",
        "seconds": "on the clock, all on this machine",
    }
    lines = [f"{text:<58}  {float(row[field]):>5.2f} s" for field, text in shown.items()]
    return "\n".join([f"{what}, flwr {row['flwr']}", *lines]) + "\n"


def main() -> None:
    """Measure, and write the results."""
    row = measured()
    print(as_text(row))
    write_rows("flower-contract", [row], as_text(row))


if __name__ == "__main__":
    main()
