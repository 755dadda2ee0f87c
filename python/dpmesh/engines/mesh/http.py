"""The mesh over HTTP: nodes dial out to the router, and need no open port of their own.

A node posts its last answer, and the response is the router's next question. Each post is signed
with the party's key, over a number that the router gave last and takes once: nobody else reads the
questions, answers in a party's name, or repeats what it said. Rows are signed by themselves; what
posts are trusted with is liveness alone. TLS hides them from whoever listens in.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_bytes
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from dpmesh._validate import fail
from dpmesh.engines.mesh.contract import Contract
from dpmesh.engines.mesh.folder import Folder
from dpmesh.engines.mesh.messages import Position, refused
from dpmesh.engines.mesh.traffic import bytes_of_row
from dpmesh.engines.signing import is_signed

_log = logging.getLogger("dpmesh")

HOLD = 2.0
"""Seconds for which the router holds a post that it has no question for."""
PAUSE = 0.02
"""Seconds between two looks whether there is one."""
FAREWELL = 5.0
"""Seconds for which a router that is done still answers."""
RETRY = 1.0
"""Seconds before a node tries again what failed: to reach a router, or to answer it."""
TIMEOUT = 60.0
"""Seconds of silence after which a connection is given up, many times `HOLD`."""
PATIENCE = 3600.0
"""Seconds for which a node tries to reach a router, unless its caller sets another."""
SIGNATURE, NUMBER = "Dpmesh-Signature", "Dpmesh-Number"
"""Headers of a post and of its response."""
NOT_SIGNED, OVER = 401, 410


class Asks(Protocol):
    """What asks the parties of a contract: a router of the mesh, or the server of secure sums."""

    contract: Contract
    gone: dict[int, str]

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        ...

    @property
    def missing(self) -> list[str]:
        """Names of the parties that are late or gone."""
        ...

    def waits_since(self) -> float:
        """Return for how many seconds it has waited."""
        ...

    def close(self) -> bool:
        """End the wait, as the deadline has passed."""
        ...

    def request(self, party: int) -> bytes | None:
        """Return what to ask a party now."""
        ...

    def take(self, party: int, answer: bytes) -> None:
        """Take an answer."""
        ...


class Answers(Protocol):
    """What answers for a party."""

    contract: Contract
    folder: Folder
    number: int

    @property
    def name(self) -> str:
        """The party's name."""
        ...

    @property
    def at(self) -> Position | None:
        """What it answered last."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether the run is over for it."""
        ...

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a question."""
        ...


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
        self, router: Asks, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.router, self._lock, self._told = router, threading.Lock(), set[int]()
        self._parties = {str(number): number for number in range(router.contract.nodes)}
        self._numbers = [token_bytes(16) for _ in self._parties]
        self._longest = 4 * bytes_of_row(router.contract, len(self._parties)) + 2**16
        self._server = ThreadingHTTPServer((host, port), self._handler())
        if tls is not None:
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )  # shakes hands in the thread of each connection
        self.port: int = self._server.server_address[1]

    def run(self, progress: Callable[[Any], object] = id) -> None:
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

    def _is_signed(self, party: int, signature: str, answer: bytes) -> bool:
        """Whether a party posts this, and for the first time."""
        contract = self.router.contract
        with self._lock, suppress(ValueError):
            fields = _fields(contract, party, self._numbers[party], answer)
            key = contract.parties[party].public_key
            if is_signed(key, bytes.fromhex(signature), *fields):
                self._numbers[party] = token_bytes(16)
                return True
        return False

    def _exchange(self, party: int, answer: bytes) -> tuple[int, bytes]:
        """Take an answer; return a status and the next question, waiting for one a little."""
        end = time.monotonic() + HOLD
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
            timeout = TIMEOUT

            def handle(self) -> None:
                with suppress(OSError):  # who is silent, leaves, or speaks no TLS
                    super().handle()

            def do_POST(self) -> None:
                party = server._parties.get(self.path.strip("/"))
                length = self.headers.get("Content-Length", "")
                fits = length.isdecimal() and len(length) < 16 and int(length) <= server._longest
                if party is None or not fits:
                    self.send_error(400)
                    return
                answer, status, message = self.rfile.read(int(length)), NOT_SIGNED, b""
                if server._is_signed(party, self.headers.get(SIGNATURE, ""), answer):
                    status, message = server._exchange(party, answer)
                self.send_response(status)
                self.send_header(NUMBER, server._numbers[party].hex())
                self.send_header("Content-Length", str(len(message)))
                self.end_headers()
                self.wfile.write(message)

            def log_message(self, format: str, *args: Any) -> None:
                """Stay silent: the router reports."""

        return Handler


def run_node(
    node: Answers,
    url: str,
    tls: ssl.SSLContext | None = None,
    progress: Callable[[Any], object] = id,
    *,
    patience: float = PATIENCE,
) -> None:
    """Answer a router until its run is over; keep trying while it cannot be reached.

    A node that has answered its last question tries for `FAREWELL` seconds.

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
    patience
        Seconds for which any other node tries to reach a router, from its first failure on.

    Raises
    ------
    TimeoutError
        If it ends so: the run may be over without it. Nothing is lost.
    ValueError
        If the url is not one of HTTP.
    """
    if not url.startswith(("http://", "https://")):
        fail("router", "a url that begins with http:// or https://", url)
    answer, number, problem, unsigned, since = b"", b"", "", 0, 0.0
    while True:
        fields = _fields(node.contract, node.number, number, answer)
        signed = {SIGNATURE: node.folder.signing.sign(*fields).hex()}
        post = Request(f"{url.rstrip('/')}/{node.number}", answer, signed, method="POST")
        found = ""
        try:
            with urlopen(post, timeout=TIMEOUT, context=tls) as response:
                message, number = response.read(), _number_in(response)
        except HTTPError as error:
            if error.code == OVER:
                return
            number, unsigned = _number_in(error), unsigned + (error.code == NOT_SIGNED)
            if error.code == NOT_SIGNED and unsigned == 1:
                continue  # the router was started, or its last response got lost
            found = f"the router at {url} refuses: {error.reason}; has it the same contract?"
        except (OSError, HTTPException) as error:
            found = f"the router at {url} cannot be reached: {getattr(error, 'reason', error)}"
        if found:
            limit = FAREWELL if node.is_done else patience
            since = since if problem else time.monotonic()
            if found != problem:
                _log.warning("%s; trying for %g seconds", found, limit)
            problem, waited = found, time.monotonic() - since
            if waited >= limit and not node.is_done:
                where = "before round 0" if node.at is None else f"after round {node.at.round}"
                over = f"the run may be over without {node.name}, which ends {where}"
                raise TimeoutError(
                    f"{found}; for {limit:g} seconds now: {over}; if not, restart it"
                )
            if waited >= limit:
                return
            time.sleep(RETRY)
            continue
        answer, problem, unsigned = b"", "", 0
        if message:
            answer = node.answer(message)
            progress(node)
            if refused(answer):  # the router asks again at once
                time.sleep(RETRY)


def _fields(contract: Contract, party: int, number: bytes, answer: bytes) -> tuple[bytes, ...]:
    """Return what a party signs when it posts an answer."""
    return b"dpmesh post 1", contract.hash, str(party).encode(), number, answer


def _number_in(response: Any) -> bytes:
    """Return the number that a router gave; none if it gave none."""
    with suppress(ValueError):
        return bytes.fromhex(response.headers.get(NUMBER, ""))
    return b""
