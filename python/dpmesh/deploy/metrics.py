"""Health and metrics of a node or a router over HTTP, in the format of Prometheus.

They are served on the loopback address alone, at ``/health`` and ``/metrics``. They hold nothing of
records: names of parties, the router's address, rounds, bytes, charged epsilons, and the time since
the last step. Whoever can log in to the machine can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Thread
from time import monotonic
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from dpmesh._extras import needed_by
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.http_node import Contact
from dpmesh.deploy.node import Node
from dpmesh.deploy.router import Router

with needed_by("--metrics"):
    from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app

LOOPBACK = "127.0.0.1"
HEALTH = "/health"
METRICS = "/metrics"
UPDATE = 1.0
"""Seconds between two updates of a router's gauges."""
EPSILON_UPDATE = 30.0
"""Seconds between two updates of a node's epsilon, whose accounting takes time."""
_GAUGES = {
    "round": "Whole rounds so far",
    "rounds": "Rounds of the contract",
    "done": "1 once the run is over for this process, else 0",
    "charged_epsilon": "Epsilon that a node's folder was charged for the contract so far",
    "reserved_epsilon": "Epsilon that a node's folder has reserved for the contract",
    "bytes": "Bytes of all questions and answers of a router so far",
    "parties": "Parties of the contract",
    "parties_missing": "Parties that are late or gone, as a router sees them",
    "parties_waited_for": "Parties for which a router or a node waits",
    "seconds_since_progress": "Seconds since the run went on here",
}
"""Meaning of each gauge, by its name after ``dpmesh_``."""


class _Gauges:
    """The gauges of one process, and the server that shows them in a thread of its own.

    Parameters
    ----------
    contract
        The contract, whose hash is a label.
    process
        Name of the process: a party's name, or ``router``.
    port
        Port of the loopback address; 0 takes a free one.
    problem
        Returns the reason why the process is not healthy; empty if it is. Called by the server's
        thread.
    """

    def __init__(
        self, contract: Contract, process: str, port: int, problem: Callable[[], str]
    ) -> None:
        self._problem = problem
        self.last_progress = monotonic()
        """Time of the last step of the run in this process."""
        registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        for name, meaning in _GAUGES.items():
            gauge = Gauge(f"dpmesh_{name}", meaning, ["contract", "process"], registry=registry)
            self._gauges[name] = gauge.labels(contract.hash.hex()[:12], process)
        self.follow("seconds_since_progress", lambda: monotonic() - self.last_progress)
        self._metrics = make_wsgi_app(registry)
        self._server = make_server(LOOPBACK, port, self._respond, handler_class=_Handler)
        self.address = f"metrics at http://{LOOPBACK}:{self._server.server_port}{METRICS}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def set(self, **values: float) -> None:
        """Set gauges by name."""
        for name, value in values.items():
            self._gauges[name].set(value)

    def follow(self, name: str, value: Callable[[], float]) -> None:
        """Let a gauge show the value of a function, which the server's thread calls."""
        self._gauges[name].set_function(value)

    def close(self) -> None:
        """Stop serving metrics."""
        self._server.shutdown()
        self._server.server_close()

    def _respond(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        """Answer a request, by the interface of WSGI: with metrics, or with health as a text."""
        path = environ.get("PATH_INFO", "")
        if path == METRICS:
            body: Iterable[bytes] = self._metrics(environ, start)
            return body
        status = "404 Not Found"
        text = f"{HEALTH} or {METRICS}"
        if path == HEALTH:
            status = "200 OK"
            text = "ok"
            problem = self._problem()
            if problem:
                status = "503 Service Unavailable"
                text = problem
        start(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]


class NodeMetrics:
    """Health and metrics of a node, which is healthy while its router answers.

    ``dpmesh node --metrics`` makes it, and calls `update` after each answer.

    Parameters
    ----------
    node, contact
        The node, and its contact with the router.
    port
        Port of the loopback address; 0 takes a free one.
    """

    def __init__(self, node: Node, contact: Contact, port: int) -> None:
        self._node = node
        self._last_position = node.last_position
        self._last_epsilon_update = -EPSILON_UPDATE
        self._gauges = _Gauges(node.contract, node.name, port, lambda: contact.problem)
        self.address = self._gauges.address
        """Address of the metrics, as a text for people."""
        self._gauges.follow("parties_waited_for", lambda: len(contact.waits_for))
        self._gauges.set(rounds=node.contract.terms.rounds, parties=node.contract.nodes)
        self.update()

    def update(self) -> None:
        """Show the node's progress, and at most once in `EPSILON_UPDATE` seconds its epsilon."""
        node = self._node
        now = monotonic()
        if node.last_position != self._last_position:
            self._last_position = node.last_position
            self._gauges.last_progress = now
        self._gauges.set(round=node.rounds, done=node.is_done)
        if node.is_done or now - self._last_epsilon_update > EPSILON_UPDATE:
            self._last_epsilon_update = now
            spent = node.folder.spent(node.contract)
            reserved = node.folder.reserved(node.contract)
            charged = 0.0
            if spent is not None:
                charged = spent.epsilon
            self._gauges.set(charged_epsilon=charged, reserved_epsilon=reserved.epsilon)

    def close(self) -> None:
        """Stop serving metrics."""
        self._gauges.close()


class RouterMetrics:
    """Health and metrics of a router, which is healthy unless the run pauses.

    ``dpmesh router --metrics`` makes it, and calls `update` several times a second.

    Parameters
    ----------
    router
        The router.
    port
        Port of the loopback address; 0 takes a free one.
    """

    def __init__(self, router: Router, port: int) -> None:
        self._router = router
        self._last_position = router.open_position
        self._updated = -UPDATE
        self._problem = ""
        self._gauges = _Gauges(router.contract, "router", port, lambda: self._problem)
        self.address = self._gauges.address
        """Address of the metrics, as a text for people."""
        self._gauges.set(rounds=router.contract.terms.rounds, parties=router.contract.nodes)
        self.update()

    def update(self) -> None:
        """Show the router's progress, at most once in `UPDATE` seconds."""
        router = self._router
        now = monotonic()
        if now - self._updated < UPDATE:
            return
        self._updated = now
        if router.open_position != self._last_position:
            self._last_position = router.open_position
            self._gauges.last_progress = now
        waits_for = router.waits_for
        problem = ""
        if waits_for and router.is_paused:
            problem = f"waiting for {', '.join(waits_for)}"
        self._problem = problem  # at once, as the server's thread reads it
        rounds = 0
        if router.open_position is not None:
            rounds = router.contract.planned.rounds_before(router.open_position.round)
        self._gauges.set(
            round=rounds,
            done=router.done,
            bytes=router.bytes,
            parties_missing=len(router.missing),
            parties_waited_for=len(waits_for),
        )

    def close(self) -> None:
        """Stop serving metrics."""
        self._gauges.close()


class _Handler(WSGIRequestHandler):
    """A request, which is not logged, and must arrive within a few seconds."""

    timeout = 5.0

    def log_message(self, *_: object) -> None:
        """Log nothing."""
