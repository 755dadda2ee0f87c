"""The mesh over HTTP: nodes dial out to the router, and need no open port of their own.

A node posts its last answer, and the response is the router's next question. Rows are signed and
public to everybody, so nothing here is trusted with more than liveness; TLS keeps strangers out.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from dpmesh._validate import fail
from dpmesh.engines.mesh.node import Node
from dpmesh.engines.mesh.router import Router

_log = logging.getLogger("dpmesh")

PATIENCE = 2.0
"""Seconds for which the router holds a post that it has no question for."""
PAUSE = 0.02
FAREWELL = 5.0
"""Seconds for which a router that is done still answers."""
MOST_BYTES = 2**31
OVER = 410


class RouterServer:
    """Serves a router until its run is over.

    Parameters
    ----------
    router
        The router.
    host, port
        Where to listen; port 0 takes a free one, see `port`.
    tls
        The server's certificate; None for plain HTTP, as on one machine.
    """

    def __init__(
        self, router: Router, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.router, self._lock, self._told = router, threading.Lock(), set[int]()
        self._server = ThreadingHTTPServer((host, port), self._handler())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]

    def run(self, progress: Callable[[Router], object] = id) -> None:
        """Serve until the run is over for everybody who is not missing; then close."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        over = None
        try:
            while over is None or time.monotonic() < over:
                with self._lock:
                    if self.router.waits_since() > self.router.contract.terms.deadline:
                        self.router.close()
                    progress(self.router)
                    if over is None and self.router.done:
                        over = time.monotonic() + FAREWELL
                    if over and len(self._told) == self.router.contract.nodes:
                        break
                time.sleep(PAUSE)
        finally:
            self._server.shutdown()
            self._server.server_close()

    def _exchange(self, party: int, answer: bytes) -> tuple[int, bytes]:
        """Take an answer; return a status and the next question, waiting for one a little."""
        end = time.monotonic() + PATIENCE
        with self._lock:
            if answer:
                self.router.take(party, answer)
        while time.monotonic() < end:
            with self._lock:
                message = self.router.request(party)
                if message is not None:
                    return 200, message
                if self.router.done or party in self.router.gone:
                    self._told.add(party)
                    return OVER, b""
            time.sleep(PAUSE)
        return 204, b""

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def do_POST(self) -> None:
                name, length = self.path.strip("/"), self.headers.get("Content-Length", "0")
                known = name.isdigit() and int(name) < server.router.contract.nodes
                if not known or not length.isdigit() or int(length) > MOST_BYTES:
                    self.send_error(400)
                    return
                status, message = server._exchange(int(name), self.rfile.read(int(length)))
                self.send_response(status)
                self.send_header("Content-Length", str(len(message)))
                self.end_headers()
                self.wfile.write(message)

            def log_message(self, format: str, *args: Any) -> None:
                """Stay silent: the router reports."""

        return Handler


def run_node(
    node: Node,
    url: str,
    tls: ssl.SSLContext | None = None,
    progress: Callable[[Node], object] = id,
) -> None:
    """Answer a router until its run is over; keep trying while it cannot be reached.

    Parameters
    ----------
    node
        The node.
    url
        Where the router is, such as ``https://router.example:8443``.
    tls
        The certificates to trust; by default those of the system.
    progress
        Called after each answer.

    Raises
    ------
    ValueError
        If the url is not one of HTTP.
    """
    if not url.startswith(("http://", "https://")):
        fail("router", "a url that begins with http:// or https://", url)
    answer, reached = b"", True
    while True:
        try:
            post = Request(f"{url.rstrip('/')}/{node.number}", answer, method="POST")
            with urlopen(post, timeout=60, context=tls) as response:
                message = response.read()
        except URLError as error:
            if getattr(error, "code", None) == OVER:
                return
            if reached:
                _log.warning("the router at %s cannot be reached: %s", url, error.reason)
            reached = False
            time.sleep(1.0)
            continue
        except OSError:
            time.sleep(1.0)
            continue
        reached, answer = True, b""
        if message:
            answer = node.answer(message)
            progress(node)
