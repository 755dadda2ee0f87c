"""Health and metrics of a node or a router, on the loopback address, in the format of Prometheus.

Only public numbers are shown: rounds, parties, bytes, times, and epsilons that were charged.
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
HEALTH, METRICS = "/health", "/metrics"
UPDATE, COUNT = 1.0, 30.0
"""Seconds between two looks at a router, and between two sums of a node's epsilon."""
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


class _Gauges:
    """Gauges of one process, served until it ends.

    Parameters
    ----------
    contract
        The contract, whose hash is a label.
    name
        Whose they are: a party's name, or ``router``.
    port
        Port of the loopback address; 0 takes a free one.
    problem
        Returns why the process is not healthy; empty if it is. Called in another thread.
    """

    def __init__(
        self, contract: Contract, name: str, port: int, problem: Callable[[], str]
    ) -> None:
        self._problem = problem
        self.progressed = monotonic()
        """When the run went on here."""
        registry = CollectorRegistry()
        labels = ["contract", "process"]
        values = contract.hash.hex()[:12], name
        families = {
            gauge: Gauge(f"dpmesh_{gauge}", meaning, labels, registry=registry)
            for gauge, meaning in _GAUGES.items()
        }
        self._gauges = {gauge: family.labels(*values) for gauge, family in families.items()}
        self.follow("seconds_since_progress", lambda: monotonic() - self.progressed)
        self._metrics = make_wsgi_app(registry)
        self._server = make_server(LOOPBACK, port, self._respond, handler_class=_Handler)
        self.address = f"metrics at http://{LOOPBACK}:{self._server.server_port}{METRICS}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def set(self, **values: float) -> None:
        """Set gauges, each by its name."""
        for name, value in values.items():
            self._gauges[name].set(value)

    def follow(self, name: str, value: Callable[[], float]) -> None:
        """Have a gauge show what a function returns, in another thread."""
        self._gauges[name].set_function(value)

    def close(self) -> None:
        """Stop serving metrics."""
        self._server.shutdown()
        self._server.server_close()

    def _respond(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        """Answer a request."""
        path = environ.get("PATH_INFO", "")
        if path == METRICS:
            body: Iterable[bytes] = self._metrics(environ, start)
            return body
        status = "404 Not Found"
        text = f"{HEALTH} or {METRICS}"
        if path == HEALTH:
            problem = self._problem()
            status = "503 Service Unavailable" if problem else "200 OK"
            text = problem or "ok"
        start(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]


class NodeMetrics:
    """Health and metrics of a node. It is healthy while its router answers.

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
        self._counted = -COUNT
        self._gauges = _Gauges(node.contract, node.name, port, lambda: contact.problem)
        self.address = self._gauges.address
        """Where it serves, in words."""
        self._gauges.follow("parties_waited_for", lambda: len(contact.waits_for))
        self._gauges.set(rounds=node.contract.terms.rounds, parties=node.contract.nodes)
        self.update()

    def update(self) -> None:
        """Take over what the node has done; the epsilon at most once in `COUNT` seconds."""
        node = self._node
        now = monotonic()
        if node.last_position != self._last_position:
            self._last_position, self._gauges.progressed = node.last_position, now
        self._gauges.set(round=node.rounds, done=node.is_done)
        if node.is_done or now - self._counted > COUNT:
            self._counted = now
            spent = node.folder.spent(node.contract)
            reserved = node.folder.reserved(node.contract)
            charged = 0.0 if spent is None else spent.epsilon
            self._gauges.set(charged_epsilon=charged, reserved_epsilon=reserved.epsilon)

    def close(self) -> None:
        """Stop serving metrics."""
        self._gauges.close()


class RouterMetrics:
    """Health and metrics of a router. It is healthy unless the run pauses.

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
        """Where it serves, in words."""
        self._gauges.set(rounds=router.contract.terms.rounds, parties=router.contract.nodes)
        self.update()

    def update(self) -> None:
        """Take over how far the router got, at most once in `UPDATE` seconds."""
        router = self._router
        now = monotonic()
        if now - self._updated < UPDATE:
            return
        self._updated = now
        if router.open_position != self._last_position:
            self._last_position, self._gauges.progressed = router.open_position, now
        waits = router.waits_for
        self._problem = f"waiting for {', '.join(waits)}" if waits and router.is_paused else ""
        planned = router.contract.planned
        self._gauges.set(
            round=0
            if router.open_position is None
            else planned.rounds_before(router.open_position.round),
            done=router.done,
            bytes=router.bytes,
            parties_missing=len(router.missing),
            parties_waited_for=len(waits),
        )

    def close(self) -> None:
        """Stop serving metrics."""
        self._gauges.close()


class _Handler(WSGIRequestHandler):
    """Logs no requests, and waits for none longer than a few seconds."""

    timeout = 5.0

    def log_message(self, *_: object) -> None:
        """Log nothing."""
