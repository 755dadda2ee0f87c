"""A node's side of the posts to a router over HTTP/1.1; see `dpmesh.deploy.http`."""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import sleep
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from time import monotonic
from typing import Any, NamedTuple

from dpmesh._extras import needed_by
from dpmesh._validate import fail
from dpmesh.deploy import http
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.node import Node
from dpmesh.deploy.schedule import longest_question
from dpmesh.deploy.signing import SigningKey
from dpmesh.deploy.wire import refused

with needed_by("a router or a node over HTTP"):
    import aiohttp
    from aiohttp import hdrs
    from yarl import URL

_log = logging.getLogger("dpmesh")

RETRY = 1.0
"""Seconds before a node tries again what failed: to reach a router, or to answer it."""
PATIENCE = 3600.0
"""Seconds for which a node tries to reach a router, unless its caller sets another."""
MINUTE = 60.0
"""Seconds between two lines that say for whom a node waits."""
_CERTIFICATE_ADVICE = {
    9: " (check the clocks of this machine and of the router)",
    10: " (make a new one for the router, or check the clock of this machine)",
}
"""What to do about a wrong certificate, by OpenSSL's code of what is wrong."""
_ENDS = ("stopped", "restored", "over budget")
"""A node's own refusals after which it answers nothing any more."""


@dataclass
class Contact:
    """A node's contact with its router, which other threads may read.

    Parameters
    ----------
    problem
        Why the router gives no questions; empty while it does, or says for whom it waits.
    waits_for
        Names of the parties for which it waits, by its word.
    """

    problem: str = ""
    waits_for: tuple[str, ...] = ()


class LeftOutError(RuntimeError):
    """A party's part of a run ended before its last step; the text says where and why."""


def run_node(
    node: Node,
    url: str,
    tls: ssl.SSLContext | None = None,
    progress: Callable[[Any], object] = id,
    *,
    patience: float = PATIENCE,
    insecure: bool = False,
    contact: Contact | None = None,
) -> None:
    """Answer a router until its run is over; keep trying while it cannot be reached.

    A node that has answered its last question tries for `http.FAREWELL` seconds. No word of the
    router ends another, but for the signatures of most parties under the end of the run.

    Parameters
    ----------
    node
        The node.
    url
        Where the router is, such as ``https://router.example:8443``. Nothing else is dialled.
    tls
        As `node_tls` returns it; by default the system's authorities are trusted.
    progress
        Called after each answer.
    patience
        Seconds for which any other node tries to reach a router, from its first failure on.
    insecure
        Whether plain HTTP is allowed off the loopback address.
    contact
        Is kept up to date with how the router answers.

    Raises
    ------
    LeftOutError
        If the node has stopped, if others show that the run is over without it, or if its patience
        is over. Nothing is lost.
    ValueError
        If the url is not allowed, or the router's certificate is wrong.
    """
    address = _checked_address(url, insecure=insecure)
    dialogue = _Dialogue(node, address, tls or http.node_tls(), patience, contact or Contact())
    asyncio.run(dialogue.run(progress))


def wait_for_router(
    contract: Contract,
    signing: SigningKey,
    url: str,
    tls: ssl.SSLContext | None = None,
    *,
    patience: float = PATIENCE,
    insecure: bool = False,
) -> None:
    """Wait until a router can be reached that has this contract, before a party joins it.

    Nothing is charged, and the router gets no word of the party but empty posts.

    Parameters
    ----------
    contract, signing
        The contract, and the party's key.
    url, tls, patience, insecure
        As of `run_node`.

    Raises
    ------
    LeftOutError
        If the patience is over.
    ValueError
        If the url is not allowed, the key is not in the contract, the router's certificate is
        wrong, or the router has another contract.
    """
    address = _checked_address(url, insecure=insecure)
    posts = _Posts(contract, contract.party_of(signing.public), signing, address)
    asyncio.run(_reached(posts, tls or http.node_tls(), patience))


def _checked_address(url: str, *, insecure: bool) -> URL:
    """Return the address of a router; fail if it may not be dialled."""
    try:
        address = URL(url)
    except ValueError:
        address = URL()
    is_web = address.scheme in ("http", "https") and bool(address.host)
    if not is_web or address.user or address.query_string:
        fail("router", "a url such as https://router.example:8443", repr(url))
    if address.scheme == "http" and not insecure and not http.is_local(address.host or ""):
        fail("router", "https:// off the loopback address (or --insecure)", url)
    return address


async def _reached(posts: _Posts, tls: ssl.SSLContext, patience: float) -> None:
    """Post nothing until the router takes it."""
    since = monotonic()
    problem = ""
    refusals = 0
    async with _session(tls, posts.longest) as session:
        while True:
            reply = await posts.sent(session, b"")
            if reply.status in (200, 204, http.OVER):
                return
            symptom = reply.problem or f"refuses with status {reply.status}"
            refusals += reply.status == http.NOT_SIGNED
            if refusals > 1:  # the first may be of a router that has just been restarted
                expected = f"one at {posts.url} that has contract {posts.contract.hash.hex()}"
                fail(
                    "router", expected, "one with another contract (compare dpmesh contract check)"
                )
            waited = monotonic() - since
            if waited >= patience:
                tried = f"the router at {posts.url} {symptom}; for {waited:.0f} seconds now"
                raise LeftOutError(f"{tried}. Nothing was charged")
            if symptom != problem:
                text = "the router at %s %s; trying for %g seconds, with nothing charged so far"
                _log.warning(text, posts.url, symptom, patience)
            problem = symptom
            await sleep(RETRY)


def _session(tls: ssl.SSLContext, longest: int) -> aiohttp.ClientSession:
    """Return a client that follows nobody, keeps no cookies, and bounds what it reads."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls, limit=1),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=http.seconds_for(longest)),
        auto_decompress=False,
        trust_env=False,
        max_headers=http.MOST_HEADERS,
        max_line_size=http.LONGEST_HEADER,
        max_field_size=http.LONGEST_HEADER,
    )


class _Reply(NamedTuple):
    """A router's response to a post.

    Attributes
    ----------
    status
        Its status; 0 if there is no response.
    message
        Its body.
    waits
        For whom the router waits, by its own word.
    problem
        What went wrong; empty if a router answered.
    """

    status: int = 0
    message: bytes = b""
    waits: str = ""
    problem: str = ""


class _Posts:
    """The signed posts of one party to one router.

    Parameters
    ----------
    contract, number, signing
        The contract, the party's number in it, and its key.
    url
        The router's address.
    """

    def __init__(self, contract: Contract, number: int, signing: SigningKey, url: URL) -> None:
        self.contract, self.url = contract, url
        self.longest = longest_question(contract)
        self._party, self._signing = number, signing
        self._number: int | None = None
        """Number of the last post; None before the router has said from where to count."""

    def begin_anew(self) -> None:
        """Ask the router with the next post from where to count."""
        self._number = None

    async def sent(self, session: aiohttp.ClientSession, body: bytes) -> _Reply:
        """Post a body; return the response, or what went wrong.

        Raises
        ------
        ValueError
            If the router's certificate is wrong.
        """
        try:
            if self._number is None:
                self._number = 0
                await self._post(session, b"")  # the response says from where to count
            return await self._post(session, body)
        except aiohttp.ClientConnectorCertificateError as error:
            expected = f"one for {self.url.host} that this node trusts (--certificate)"
            got = getattr(error.certificate_error, "verify_message", "another")
            code = getattr(error.certificate_error, "verify_code", 0)
            fail("certificate", expected, f"{got}{_CERTIFICATE_ADVICE.get(code, '')}")
        except asyncio.TimeoutError:
            problem = "does not answer in time"
        except aiohttp.ClientConnectorSSLError:
            problem = "cannot be reached: it speaks no TLS (is its address http://?)"
        except aiohttp.ClientConnectorError as error:
            problem = f"cannot be reached: {error.os_error.strerror or 'no TLS'}"
        except (aiohttp.ServerDisconnectedError, OSError):
            problem = "cannot be reached: it closes the connection"
            if self.url.scheme == "http":
                problem += " (is its address https://?)"
        except (aiohttp.ClientError, ValueError):
            problem = "answers what no router does"
        self._number = None
        return _Reply(problem=problem)

    async def _post(self, session: aiohttp.ClientSession, message: bytes) -> _Reply:
        """Post a message, signed; fail if the response is none of a router's."""
        assert self._number is not None
        self._number += 1
        body = sha256(message).hexdigest()
        fields = http.fields_of(self.contract, self._party, self._number, len(message), body)
        headers = {
            http.NUMBER: str(self._number),
            http.BODY: body,
            http.SIGNATURE: self._signing.sign(*fields).hex(),
            hdrs.ACCEPT_ENCODING: "identity",
        }
        url = self.url / str(self._party)
        async with session.post(url, data=message, headers=headers, allow_redirects=False) as got:
            sound = got.version == aiohttp.HttpVersion11
            sound = sound and hdrs.CONTENT_ENCODING not in got.headers
            sound = sound and (got.content_length or 0) <= self.longest
            read = bytearray()
            while sound and (part := await got.content.readany()):
                read += part
                sound = len(read) <= self.longest
            if not sound:
                raise ValueError
            if got.status == http.NOT_SIGNED:
                self._number = int(got.headers.get(http.NUMBER, "0")[:40])
            return _Reply(got.status, bytes(read), got.headers.get(http.WAITS, ""))


class _Dialogue:
    """A node's side of the posts to one router."""

    def __init__(
        self, node: Node, url: URL, tls: ssl.SSLContext, patience: float, contact: Contact
    ) -> None:
        self.node, self.url, self._tls, self._patience = node, url, tls, patience
        self._contact = contact
        self._posts = _Posts(node.contract, node.number, node.folder.signing, url)
        self._problem, self._since = "", 0.0
        self._waits_since = self._waits_said = monotonic()

    async def run(self, progress: Callable[[Any], object]) -> None:
        """Post answers until the run is over."""
        async with _session(self._tls, self._posts.longest) as session:
            answer = question = b""
            while True:
                start = monotonic()
                reply = await self._posts.sent(session, answer)
                status, message = reply.status, reply.message
                self._contact.waits_for = ()
                if reply.problem:
                    self._fails(reply.problem)
                else:
                    self._note_waiting(status, reply.waits)
                if self._is_over(status, refused(answer), message):
                    return
                if status in (200, 204):
                    self._problem = ""
                    repeated = message == question
                    question = message
                    self._contact.problem = ""
                    answer = b""
                    if message:
                        answer = self.node.answer(message)
                        progress(self.node)
                    if message and not repeated and not refused(answer):
                        continue
                pause = RETRY if message else RETRY - (monotonic() - start)
                await sleep(max(0.0, pause))

    def _note_waiting(self, status: int, waits: str) -> None:
        """Log once a minute for whom this node waits, by the router's word."""
        now = monotonic()
        if status != 204:
            self._waits_since = self._waits_said = now
            return
        parties = self.node.contract.parties
        numbers = [int(entry) for entry in waits.split(",") if entry.isdecimal()]
        names = [parties[number].name for number in numbers if number < len(parties)]
        self._contact.waits_for = tuple(names)
        if now - self._waits_said >= MINUTE:
            self._waits_said = now
            seconds = f"{now - self._waits_since:.0f} seconds"
            text = "%s: waiting for %s now, by the router's word for %s"
            _log.warning(text, self._where_now(), seconds, _listed(names))

    def _where_now(self) -> str:
        """Return the round that the node is in."""
        if self.node.at is None:
            return "before round 0"
        return f"round {self.node.rounds} of {self.node.contract.terms.rounds}"

    def _fails(self, symptom: str) -> None:
        """Note what went wrong, and since when."""
        symptom = f"the router at {self.url} {symptom}"
        before = self._problem
        self._since = self._since if before else monotonic()
        if symptom != before:
            _log.warning("%s; trying for %g seconds", symptom, self._limit)
        self._problem = self._contact.problem = symptom
        self._posts.begin_anew()

    @property
    def _limit(self) -> float:
        if self.node.is_done:
            return http.FAREWELL
        return self._patience

    def _is_over(self, status: int, reason: str | None, message: bytes) -> bool:
        """Return True if a response ends the node's part of the run; raise if it ends early.

        No word of the router ends it before its last step: patience, a refusal of its own, or the
        signatures of so many others that no other end can have as many do.
        """
        node = self.node
        if status in (200, 204, http.OVER) and reason in _ENDS:
            raise LeftOutError(f"{self._where()}: {reason}; the log says why")
        if status == http.OVER and node.is_done:
            return True
        if status == http.OVER and node.is_over(message):
            raise LeftOutError(f"the run is over, as others have signed, without {self._where()}")
        if status == http.OVER:
            self._fails(f"says that the run is over without {node.name}")
        elif status not in (0, 200, 204):
            symptom = f"refuses with status {status}; has it the same contract?"
            if status == http.NOT_SIGNED:
                symptom += " Or does another node use this party's key?"
            self._fails(symptom)
        waited = monotonic() - self._since
        if status in (200, 204) or waited < self._limit:
            return False
        if node.is_done:
            return True
        tried = f"{self._problem}; for {waited:.0f} seconds now"
        raise LeftOutError(f"{tried}: the run may be over without {self._where()}; else restart it")

    def _where(self) -> str:
        """Return the party's name, and where in the run it ends."""
        position = self.node.at
        rounds = self.node.contract.terms.rounds
        where = (
            "before round 0" if position is None else f"after round {self.node.rounds} of {rounds}"
        )
        return f"{self.node.name}, which ends {where}"


def _listed(names: list[str]) -> str:
    """Return names as a text."""
    return ", ".join(names) or "nobody that it names"
