"""Parties and a router over HTTP/1.1: nodes dial out, and need no open port of their own.

A node posts its last answer, and the response is the router's next question. The header of a post
carries a signature over the contract, a number that grows with each post, and the length and the
SHA-256 of the body; it is checked before the body is read. So the router gives no other party a
party's questions, and no other party can answer in its name, or repeat its answers. TLS hides
questions and answers from eavesdroppers, and shows that they are the router's.

Nodes trust posts, and TLS, with liveness alone. Rows, reports, withdrawals and seals are signed one
by one, too. A part of a sum is masked, and a total that is not the sum has a wrong tag.

Client and server are those of aiohttp. Neither trusts the other side: sizes, headers, connections
and durations are bounded, a node dials its router's address alone, and follows no redirect.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from asyncio import sleep
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from secrets import randbits
from socket import AF_INET, AF_INET6, SHUT_RDWR, create_server, socket
from time import monotonic
from typing import NamedTuple, TypeAlias

from dpmesh._extras import needed_by
from dpmesh._validate import fail
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.router import Router
from dpmesh.deploy.schedule import longest_answer
from dpmesh.deploy.signing import is_signed

with needed_by("a router or a node over HTTP"):
    import aiohttp
    from aiohttp import hdrs, web

_log = logging.getLogger("dpmesh")
_SILENT = logging.Logger("strangers", logging.CRITICAL + 1)

HOLD = 2.0
"""Seconds for which the router holds a post that it has no question for."""
PAUSE = 0.02
"""Seconds between two checks for a question."""
FAREWELL = 5.0
"""Seconds for which a router that is done still answers; at least a deadline, if some are late."""
TIMEOUT = 60.0
"""Seconds for a whole request and its response, both ways, many times `HOLD`."""
RATE = 2**17
"""Bytes a second of a long message, for which it has more time than `TIMEOUT`."""
Peer: TypeAlias = tuple[str, int]
"""The address of a connection."""
MOST_STRANGERS = 64
"""Most connections that have shown no key."""
STRANGER_SECONDS = 10.0
"""Seconds for which such a connection is kept."""
CONNECTIONS = 2
"""Most connections of a party; an older one is closed."""
MOST_HEADERS, LONGEST_HEADER = 32, 2048
"""Most headers of a request or a response, and the longest line of them in bytes."""
WINDOW = 2**32
"""By how much the number of a post may exceed the last one."""
NUMBER = "Dpmesh-Number"
BODY = "Dpmesh-Body"
SIGNATURE = "Dpmesh-Signature"
"""Headers of a post. The response to an unsigned post has the number from which to count."""
WAITS = "Dpmesh-Waits"
"""Header of a response without a question: the numbers of the parties that the router waits for."""
MOST_NAMED = 16
"""Most parties in that header."""
QUESTION = 200
"""Status of a response whose body is the next question."""
NO_QUESTION = 204
"""Status of a response without a question: the party is to post again."""
NOT_SIGNED = 401
"""Status of a post without a valid signature, or whose number was used before."""
OVER = 410
"""Status once the run is over for a party; the body shows who ended it."""


def server_tls(certificate: str | Path, key: str | Path | None = None) -> ssl.SSLContext:
    """Return a router's TLS, version 1.2 or later, from PEM files of a certificate and its key.

    Raises
    ------
    ValueError
        If a file holds none, or other users can read the key.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with _naming_file("certificate", "a PEM file of a certificate, and of its key", certificate):
        tls.load_cert_chain(certificate, key)
    _check_mode(Path(key or certificate))
    return _http1(tls)


def _check_mode(key: Path) -> None:
    """Fail if the file of a private key is this user's and others can read it, as ssh does."""
    status = key.stat()
    if os.name == "posix" and status.st_uid == os.getuid() and status.st_mode & 0o077:
        got = f"{status.st_mode & 0o777:04o}"
        fail("key", f"a file of mode 0600: others can read it (chmod 600 {key})", got)


def node_tls(authority: str | Path | None = None) -> ssl.SSLContext:
    """Return a node's TLS, version 1.2 or later: names are checked, by the system's authorities.

    With `authority`, a PEM file, it trusts no other.
    """
    with _naming_file("certificate", "a PEM file of certificates to trust", authority):
        return _http1(ssl.create_default_context(cafile=authority))


@contextmanager
def _naming_file(name: str, expected: str, path: str | Path | None) -> Iterator[None]:
    """Name the file that OpenSSL cannot use."""
    try:
        yield
    except ssl.SSLError as error:
        reason = (
            error.reason or "another kind of file"
        )  # OpenSSL gives none if there is no such PEM
        got = f"{path}: {reason}".replace("_", " ").lower()
        raise ValueError(f"{name}: wanted {expected}, got {got}") from error


def _http1(tls: ssl.SSLContext) -> ssl.SSLContext:
    """Return a context set to TLS 1.2 or later, and to HTTP/1.1 alone."""
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.set_alpn_protocols(["http/1.1"])
    return tls


def is_local(host: str) -> bool:
    """Return True if a host is this machine by its loopback address."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


class _Connection(NamedTuple):
    """A connection of the server.

    Attributes
    ----------
    sock
        Its socket.
    until
        Time of `monotonic` at which it is closed.
    party
        The party that signed its last request; None while it has shown no key.
    """

    sock: socket
    until: float
    party: int | None


class _Reply(NamedTuple):
    """Status and body of a response to a party."""

    status: int
    message: bytes = b""


class RouterServer:
    """An HTTP server that asks a router's questions until its run is over.

    ``dpmesh router`` runs it. It checks the signature of each post before it reads the body. It has
    no secret but the key of its TLS certificate, and keeps nothing on disk.

    Parameters
    ----------
    router
        The router.
    host, port
        Where to listen; port 0 takes a free one, see `port`.
    tls
        As `server_tls` returns it; None for plain HTTP, as on one machine.
    insecure
        True if plain HTTP is allowed off the loopback address.

    Raises
    ------
    ValueError
        If there is no TLS where it is needed.
    OSError
        If the router cannot listen there, as where another program does.
    """

    def __init__(
        self,
        router: Router,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        insecure: bool = False,
    ) -> None:
        if tls is None and not insecure and not is_local(host):
            fail("certificate", f"one to listen at {host} (or --insecure)", "none")
        self.router = router
        self._tls = tls
        self._told = set[int]()
        """Parties that were told that the run is over for them."""
        nodes = router.contract.nodes
        self._parties = {f"/{number}": number for number in range(nodes)}
        """The party of each path."""
        self._numbers = [2**127 + randbits(127) for _ in range(nodes)]
        """The number of each party's last post; drawn anew, so that old posts fit no new router."""
        self._longest = longest_answer(router.contract)
        self._connections: dict[Peer, _Connection] = {}
        """Connections by address: in the order of their accept, and once they have shown a key, in
        that of their first signed request."""
        family = AF_INET
        if ":" in host:
            family = AF_INET6
        self._socket = create_server((host, port), family=family)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def run(self, progress: Callable[[Router], object] = id) -> None:
        """Serve until the run is over for all parties that are not missing, or fails; then close.

        A router that is done, or whose run cannot go on (`Router.failure`), serves a few seconds
        longer, to tell parties so.

        Parameters
        ----------
        progress
            Called with the router while it serves, to show its progress.
        """
        asyncio.run(self._run(progress))

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()

    async def _run(self, progress: Callable[[Router], object]) -> None:
        """Accept connections and serve until all have been told that the run is over; then close.

        Parameters
        ----------
        progress
            Called with the router every `PAUSE` seconds.
        """
        http = web.Server(
            self._respond,
            auto_decompress=False,
            access_log=None,
            logger=_SILENT,
            lingering_time=0.0,
            max_headers=MOST_HEADERS,
            max_line_size=LONGEST_HEADER,
            max_field_size=LONGEST_HEADER,
        )
        accepting = asyncio.create_task(self._accept(http))
        try:
            await self._watch(progress)
        finally:
            accepting.cancel()
            self.close()
            await http.shutdown(HOLD)

    async def _watch(self, progress: Callable[[Router], object]) -> None:
        """End waits whose deadline has passed, until the run is over and its farewell, too.

        Parameters
        ----------
        progress
            Called with the router every `PAUSE` seconds.
        """
        router = self.router
        farewell_ends: float | None = None
        while farewell_ends is None or monotonic() < farewell_ends:
            if router.waits_since() > router.contract.terms.deadline:
                router.close()
            progress(router)
            if farewell_ends is None and (router.done or router.failure):
                farewell_ends = monotonic() + self._farewell()
            if farewell_ends is not None and len(self._told) == router.contract.nodes:
                return
            self._drop_expired()
            await sleep(PAUSE)

    def _farewell(self) -> float:
        """Return the seconds for which a router that is done still tells parties so."""
        if self.router.missing:
            return max(FAREWELL, self.router.contract.terms.deadline)
        return FAREWELL

    async def _accept(self, http: web.Server) -> None:
        """Take connections; one that is too many without a key closes the oldest of these."""
        loop = asyncio.get_running_loop()
        handshake_seconds = None
        if self._tls is not None:
            handshake_seconds = STRANGER_SECONDS
        handshakes = set[asyncio.Task[None]]()
        while True:
            with suppress(OSError):  # such as no file left
                accepted, peer = await loop.sock_accept(self._socket)
                self._make_room_for_a_stranger()
                self._connections[peer] = _Connection(
                    accepted, monotonic() + STRANGER_SECONDS, party=None
                )
                handshake = loop.connect_accepted_socket(
                    http, accepted, ssl=self._tls, ssl_handshake_timeout=handshake_seconds
                )
                task = asyncio.ensure_future(_completed(handshake))
                handshakes.add(task)
                task.add_done_callback(handshakes.discard)
            await sleep(0)

    def _make_room_for_a_stranger(self) -> None:
        """Close the oldest connections of strangers, so that one more is not too many.

        A *stranger* is a connection without a key: no party has signed a request on it yet.
        """
        strangers = [
            peer for peer, connection in self._connections.items() if connection.party is None
        ]
        most_others = MOST_STRANGERS - 1  # one place is for the new connection
        self._drop(strangers[:-most_others])

    def _drop_expired(self) -> None:
        """Close connections that are kept no longer."""
        now = monotonic()
        expired = [peer for peer, connection in self._connections.items() if now > connection.until]
        self._drop(expired)

    def _drop(self, peers: list[Peer]) -> None:
        """Close connections."""
        for peer in peers:
            with suppress(OSError):  # it is closed already
                self._connections.pop(peer).sock.shutdown(SHUT_RDWR)

    def _keep(self, peer: Peer, party: int) -> None:
        """Keep a connection for a request that a party signed; close the party's older ones."""
        connection = self._connections[peer]
        if connection.party is None:
            del self._connections[peer]  # it is added again at the end, as the party's youngest
        until = monotonic() + seconds_for(self._longest)
        self._connections[peer] = _Connection(connection.sock, until, party)
        of_party = [
            other for other, connection in self._connections.items() if connection.party == party
        ]
        self._drop(of_party[:-CONNECTIONS])

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        """Return the response to a post: the router's next question to its party.

        A post that no party can have sent gets status 400, and its connection is closed. One
        without a valid signature gets the number from which its party counts. Its body is not read.
        """
        headers = {"Server": "dpmesh"}
        party = self._parties.get(request.path)
        length = request.content_length
        if party is None or length is None or not self._is_acceptable(request, length):
            reply = _Reply(400)
        elif not self._is_signed(party, length, request.headers):
            reply = _Reply(NOT_SIGNED)
            headers[NUMBER] = str(self._numbers[party])
        else:
            reply = await self._reply(request, party)
        if reply.status == NO_QUESTION:
            headers[WAITS] = waits_for(self.router)
        response = web.Response(status=reply.status, body=reply.message, headers=headers)
        if reply.status == 400:
            response.force_close()
        return response

    def _is_acceptable(self, request: web.BaseRequest, length: int) -> bool:
        """Return True if a request is a post of HTTP/1.1, not compressed, and not too long."""
        is_post = request.method == "POST" and request.version == aiohttp.HttpVersion11
        is_plain = hdrs.CONTENT_ENCODING not in request.headers
        return is_post and is_plain and length <= self._longest

    def _is_signed(self, party: int, length: int, headers: Mapping[str, str]) -> bool:
        """Return True if a party signed this request and its number is new."""
        contract = self.router.contract
        last = self._numbers[party]
        with suppress(ValueError, KeyError):
            number = int(headers[NUMBER])
            signature = bytes.fromhex(headers[SIGNATURE])
            fields = fields_of(contract, party, number, length, headers[BODY])
            key = contract.parties[party].public_key
            is_new = last < number <= last + WINDOW
            if is_new and is_signed(key, signature, *fields):
                self._numbers[party] = number
                return True
        return False

    async def _reply(self, request: web.BaseRequest, party: int) -> _Reply:
        """Read the body of a signed request; return the reply: 400 if it has another SHA-256."""
        assert request.transport is not None
        self._keep(request.transport.get_extra_info("peername"), party)
        body = await request.content.read()  # the parser takes no more than its length
        if sha256(body).hexdigest() != request.headers[BODY]:
            return _Reply(400)
        return await self._exchange(party, body)

    async def _exchange(self, party: int, answer: bytes) -> _Reply:
        """Take an answer; return the next question, or no content after `HOLD` seconds without.

        A party for which the run is over gets the last messages of all that ended.
        """
        end = monotonic() + HOLD
        router = self.router
        try:
            if answer:
                router.take(party, answer)
            while monotonic() < end:
                message = router.request(party)
                if message is not None:
                    return _Reply(QUESTION, message)
                if router.done or router.failure or party in router.gone:
                    self._told.add(party)
                    return _Reply(OVER, router.ended)
                await sleep(PAUSE)
        except Exception:
            _log.exception("the router fails at what %s sent", router.contract.parties[party].name)
            return _Reply(500)
        return _Reply(NO_QUESTION)


def waits_for(router: Router) -> str:
    """Return the numbers of the parties for which a router waits, the first of them."""
    names = router.waits_for[:MOST_NAMED]
    parties = enumerate(router.contract.parties)
    return ",".join(str(number) for number, party in parties if party.name in names)


async def _completed(handshake: Awaitable[object]) -> None:
    """Complete a handshake; a peer that leaves, or speaks no TLS, does no harm."""
    with suppress(OSError):
        await handshake


def seconds_for(longest: int) -> float:
    """Return the seconds for a whole request whose messages are at most so long."""
    return TIMEOUT + longest / RATE


def fields_of(
    contract: Contract, party: int, number: int, length: int, body: str
) -> tuple[bytes, ...]:
    """Return the fields that a party signs when it posts a body of this length and SHA-256."""
    counts = (str(count).encode() for count in (party, number, length))
    return b"dpmesh post 2", contract.hash, *counts, body.encode()
