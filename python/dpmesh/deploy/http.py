"""Parties and a router over HTTP/1.1: nodes dial out, and need no open port of their own.

A node posts its last answer, and the response is the router's next question. The header of a post
carries a signature over the contract, a number that grows with each post, and the length and the
SHA-256 of the body; it is checked before the body is read. So nobody else gets a party's questions,
answers in its name, or repeats what it said. Each row has a signature of its own, too: posts are
trusted with liveness alone. TLS hides questions and answers from whoever listens in.

Client and server are those of aiohttp. Neither trusts the other side: sizes, headers, connections
and durations are bounded, a node dials its router's address alone, and follows nobody elsewhere.
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
from typing import TypeAlias

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
"""Seconds between two looks whether there is one."""
FAREWELL = 5.0
"""Seconds for which a router that is done still answers; at least a deadline, if some are late."""
TIMEOUT = 60.0
"""Seconds for a whole request and its response, both ways, many times `HOLD`."""
RATE = 2**17
"""Bytes a second of a long message, for which it has more time than `TIMEOUT`."""
Peer: TypeAlias = tuple[str, int]
"""The address of a connection."""
STRANGERS, STRANGER = 64, 10.0
"""Most connections that have shown no key, and the seconds for which each is kept."""
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
NOT_SIGNED, OVER = 401, 410


def server_tls(certificate: str | Path, key: str | Path | None = None) -> ssl.SSLContext:
    """Return a router's TLS, version 1.2 or later, from PEM files of a certificate and its key.

    Raises
    ------
    ValueError
        If a file is none of that, or other users can read the key.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with _reading("certificate", "a PEM file of a certificate, and of its key", certificate):
        tls.load_cert_chain(certificate, key)
    _check_mode(Path(key or certificate))
    return _http1(tls)


def _check_mode(key: Path) -> None:
    """Fail if the file of a private key is this user's, and others can read it; as ssh does."""
    status = key.stat()
    if os.name == "posix" and status.st_uid == os.getuid() and status.st_mode & 0o077:
        got = f"{status.st_mode & 0o777:04o}"
        fail("key", f"a file of mode 0600: others can read it (chmod 600 {key})", got)


def node_tls(authority: str | Path | None = None) -> ssl.SSLContext:
    """Return a node's TLS, version 1.2 or later: names are checked, by the system's authorities.

    With `authority`, a PEM file, it trusts no other.
    """
    with _reading("certificate", "a PEM file of certificates to trust", authority):
        return _http1(ssl.create_default_context(cafile=authority))


@contextmanager
def _reading(name: str, expected: str, path: str | Path | None) -> Iterator[None]:
    """Say which file is wrong if OpenSSL cannot use it."""
    try:
        yield
    except ssl.SSLError as error:
        got = f"{path}: {error.reason or error}".replace("_", " ").lower()
        raise ValueError(f"{name}: wanted {expected}, got {got}") from error


def _http1(tls: ssl.SSLContext) -> ssl.SSLContext:
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.set_alpn_protocols(["http/1.1"])
    return tls


def is_local(host: str) -> bool:
    """Return True if a host is this machine by its loopback address."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


class RouterServer:
    """Serves a router until its run is over.

    Parameters
    ----------
    router
        The router.
    host, port
        Where to listen; port 0 takes a free one, see `port`.
    tls
        As `server_tls` returns it; None for plain HTTP, as on one machine.
    insecure
        Whether plain HTTP is allowed off the loopback address.

    Raises
    ------
    ValueError
        If it is not allowed.
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
        self.router, self._tls, self._answered = router, tls, set[int]()
        nodes = router.contract.nodes
        self._parties = {f"/{number}": number for number in range(nodes)}
        self._numbers = [
            2**127 + randbits(127) for _ in self._parties
        ]  # old posts fit no new router
        self._longest = longest_answer(router.contract)
        self._kept, self._whose = dict[Peer, tuple[socket, float]](), dict[Peer, int]()
        """Connections by address, oldest first: until when each is kept, and whose it is."""
        self._socket = create_server((host, port), family=AF_INET6 if ":" in host else AF_INET)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def run(self, progress: Callable[[Router], object] = id) -> None:
        """Serve until the run is over for everybody who is not missing; then close."""
        asyncio.run(self._run(progress))

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()

    async def _run(self, progress: Callable[[Router], object]) -> None:
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
        over = None
        try:
            while over is None or monotonic() < over:
                if self.router.waits_since() > self.router.contract.terms.deadline:
                    self.router.close()
                progress(self.router)
                if over is None and (self.router.done or self.router.failure):
                    late = self.router.contract.terms.deadline if self.router.missing else 0.0
                    over = monotonic() + max(FAREWELL, late)  # to report that it is over
                if over and len(self._answered) == self.router.contract.nodes:
                    break
                now = monotonic()
                self._drop([peer for peer, (_, until) in self._kept.items() if now > until])
                await sleep(PAUSE)
        finally:
            accepting.cancel()
            self.close()
            await http.shutdown(HOLD)

    async def _accept(self, http: web.Server) -> None:
        """Take connections; one that is too many without a key closes the oldest of these."""
        loop = asyncio.get_running_loop()
        limit = None if self._tls is None else STRANGER
        shaking = set[asyncio.Task[None]]()
        while True:
            with suppress(OSError):  # such as no file left
                connection, peer = await loop.sock_accept(self._socket)
                self._drop([old for old in self._kept if old not in self._whose][: 1 - STRANGERS])
                self._kept[peer] = connection, monotonic() + STRANGER
                self._whose.pop(peer, None)
                hands = loop.connect_accepted_socket(
                    http, connection, ssl=self._tls, ssl_handshake_timeout=limit
                )
                task = asyncio.ensure_future(_ended(hands))
                shaking.add(task)
                task.add_done_callback(shaking.discard)
            await sleep(0)

    def _drop(self, peers: list[Peer]) -> None:
        """Close connections."""
        for peer in peers:
            with suppress(OSError):  # it is closed already
                self._kept.pop(peer)[0].shutdown(SHUT_RDWR)
            self._whose.pop(peer, None)

    def _keep(self, peer: Peer, party: int) -> None:
        """Keep a connection for a request that a party has signed."""
        self._kept[peer] = self._kept[peer][0], monotonic() + seconds_for(self._longest)
        self._whose[peer] = party
        self._drop([old for old, owner in self._whose.items() if owner == party][:-CONNECTIONS])

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        """Return the response to a post."""
        party = self._parties.get(request.path)
        length = request.content_length
        is_post = request.method == "POST" and request.version == aiohttp.HttpVersion11
        is_sound = is_post and hdrs.CONTENT_ENCODING not in request.headers
        status = 400
        message = b""
        headers = {"Server": "dpmesh"}
        if party is not None and length is not None and is_sound and length <= self._longest:
            status = NOT_SIGNED
            if self._is_signed(party, length, request.headers):
                assert request.transport is not None
                self._keep(request.transport.get_extra_info("peername"), party)
                body = await request.content.read()  # the parser takes no more than `length`
                status = 400
                if sha256(body).hexdigest() == request.headers[BODY]:
                    status, message = await self._exchange(party, body)
            else:
                headers[NUMBER] = str(self._numbers[party])
        if status == 204:
            headers[WAITS] = waits_for(self.router)
        response = web.Response(status=status, body=message, headers=headers)
        if status == 400:
            response.force_close()
        return response

    def _is_signed(self, party: int, length: int, headers: Mapping[str, str]) -> bool:
        """Return True if a party signed this request and its number is new."""
        contract = self.router.contract
        last = self._numbers[party]
        with suppress(ValueError, KeyError):
            number = int(headers[NUMBER])
            signature = bytes.fromhex(headers[SIGNATURE])
            fields = fields_of(contract, party, number, length, headers[BODY])
            key = contract.parties[party].public_key
            fits = last < number <= last + WINDOW
            if fits and is_signed(key, signature, *fields):
                self._numbers[party] = number
                return True
        return False

    async def _exchange(self, party: int, answer: bytes) -> tuple[int, bytes]:
        """Take an answer; return a status and the next question, waiting for one a little."""
        end = monotonic() + HOLD
        router = self.router
        try:
            if answer:
                router.take(party, answer)
            while monotonic() < end:
                message = router.request(party)
                if message is not None:
                    return 200, message
                if router.done or router.failure or party in router.gone:
                    self._answered.add(party)
                    return OVER, router.ended
                await sleep(PAUSE)
        except Exception:
            _log.exception("the router fails at what %s sent", router.contract.parties[party].name)
            return 500, b""
        return 204, b""


def waits_for(router: Router) -> str:
    """Return the numbers of the parties for which a router waits, the first of them."""
    names = router.waits_for[:MOST_NAMED]
    numbers = (str(n) for n, party in enumerate(router.contract.parties) if party.name in names)
    return ",".join(numbers)


async def _ended(hands: Awaitable[object]) -> None:
    """Shake hands with whoever connects; who leaves, or speaks no TLS, does no harm."""
    with suppress(OSError):
        await hands


def seconds_for(longest: int) -> float:
    """Return the seconds for a whole request whose messages are at most so long."""
    return TIMEOUT + longest / RATE


def fields_of(
    contract: Contract, party: int, number: int, length: int, body: str
) -> tuple[bytes, ...]:
    """Return what a party signs when it posts a body of this length and SHA-256."""
    counted = (str(count).encode() for count in (party, number, length))
    return b"dpmesh post 2", contract.hash, *counted, body.encode()
