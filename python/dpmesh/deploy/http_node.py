"""A node's side of the posts to a router over HTTP/1.1; see `dpmesh.deploy.http`."""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import sleep
from collections.abc import Callable
from hashlib import sha256
from time import monotonic
from typing import Any

from dpmesh._extras import needed_by
from dpmesh._validate import fail
from dpmesh.deploy import http
from dpmesh.deploy.node import Node
from dpmesh.deploy.schedule import longest_question
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
_ENDS = ("stopped", "restored", "over budget")
"""A node's own refusals after which it answers nothing any more."""


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

    Raises
    ------
    LeftOutError
        If the node has stopped, if others show that the run is over without it, or if its patience
        is over. Nothing is lost.
    ValueError
        If the url is not allowed, or the router's certificate is wrong.
    """
    try:
        at = URL(url)
    except ValueError:
        at = URL()
    if at.scheme not in ("http", "https") or not at.host or at.user or at.query_string:
        fail("router", "a url such as https://router.example:8443", repr(url))
    if at.scheme == "http" and not insecure and not http.is_local(at.host):
        fail("router", "https:// off the loopback address (or --insecure)", url)
    asyncio.run(_Dialogue(node, at, tls or http.node_tls(), patience).run(progress))


class _Dialogue:
    """A node's side of the posts to one router."""

    def __init__(self, node: Node, url: URL, tls: ssl.SSLContext, patience: float) -> None:
        self.node, self.url, self._tls, self._patience = node, url, tls, patience
        contract = node.contract
        self._longest = longest_question(contract)
        self._number: int | None = None
        """Number of the last post; None before the router has said from where to count."""
        self._problem, self._since = "", 0.0
        self._waits_since = self._waits_said = monotonic()

    async def run(self, progress: Callable[[Any], object]) -> None:
        """Post answers until the run is over."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=1),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=http.seconds_for(self._longest)),
            auto_decompress=False,
            trust_env=False,
            **http.LIMITS,
        ) as session:
            answer = asked = b""
            while True:
                begun = monotonic()
                status, message = await self._posted(session, answer)
                if self._is_over(status, refused(answer), message):
                    return
                if status in (200, 204):
                    self._problem, repeated, asked = "", message == asked, message
                    answer = b""
                    if message:
                        answer = self.node.answer(message)
                        progress(self.node)
                    if message and not repeated and not refused(answer):
                        continue
                pause = RETRY if message else RETRY - (monotonic() - begun)
                await sleep(max(0.0, pause))

    async def _posted(self, session: Any, answer: bytes) -> tuple[int, bytes]:
        """Post an answer; return the status and the body of the response, 0 if there is none."""
        try:
            if self._number is None:
                self._number = 0
                await self._post(session, b"")  # the response says from where to count
            return await self._post(session, answer)
        except aiohttp.ClientConnectorCertificateError as error:
            wanted = f"one for {self.url.host} that this node trusts (--certificate)"
            got = getattr(error.certificate_error, "verify_message", "another")
            fail("certificate", wanted, got)
        except asyncio.TimeoutError:
            self._fails("does not answer in time")
        except aiohttp.ClientConnectorError as error:
            self._fails(f"cannot be reached: {error.os_error.strerror or 'no TLS'}")
        except (aiohttp.ServerDisconnectedError, OSError):
            self._fails("cannot be reached: it closes the connection")
        except (aiohttp.ClientError, ValueError):
            self._fails("answers what no router does")
        return 0, b""

    async def _post(self, session: Any, answer: bytes) -> tuple[int, bytes]:
        node, body = self.node, sha256(answer).hexdigest()
        assert self._number is not None
        self._number += 1
        fields = http.fields_of(node.contract, node.number, self._number, len(answer), body)
        signature = node.folder.signing.sign(*fields).hex()
        headers = {http.NUMBER: str(self._number), http.BODY: body, http.SIGNATURE: signature}
        headers[hdrs.ACCEPT_ENCODING] = "identity"
        url = self.url / str(node.number)
        async with session.post(url, data=answer, headers=headers, allow_redirects=False) as got:
            sound = got.version == aiohttp.HttpVersion11
            sound = sound and hdrs.CONTENT_ENCODING not in got.headers
            sound = sound and (got.content_length or 0) <= self._longest
            message = bytearray()
            while sound and (part := await got.content.readany()):
                message += part
                sound = len(message) <= self._longest
            if not sound:
                raise ValueError
            self._note_waiting(got.status, got.headers.get(http.WAITS, ""))
            if got.status == http.NOT_SIGNED:
                self._number = int(got.headers.get(http.NUMBER, "0")[:40])
            return got.status, bytes(message)

    def _note_waiting(self, status: int, waits: str) -> None:
        """Log once a minute for whom this node waits, by the router's word."""
        now = monotonic()
        if status != 204:
            self._waits_since = self._waits_said = now
        elif now - self._waits_said >= MINUTE:
            self._waits_said = now
            parties = self.node.contract.parties
            known = [int(each) for each in waits.split(",") if each.isdecimal()]
            names = [parties[number].name for number in known if number < len(parties)]
            seconds = f"{now - self._waits_since:.0f} seconds"
            text = "%s: waiting for %s now, by the router's word for %s"
            _log.warning(text, self._where_now(), seconds, _listed(names))

    def _where_now(self) -> str:
        """Return the round that the node is in."""
        if self.node.at is None:
            return "before round 0"
        return f"round {self.node.rounds} of {self.node.contract.terms.rounds}"

    def _fails(self, found: str) -> None:
        """Note what went wrong, and since when."""
        found, before = f"the router at {self.url} {found}", self._problem
        self._since = self._since if before else monotonic()
        if found != before:
            _log.warning("%s; trying for %g seconds", found, self._limit)
        self._problem, self._number = found, None

    @property
    def _limit(self) -> float:
        return http.FAREWELL if self.node.is_done else self._patience

    def _is_over(self, status: int, reason: str | None, message: bytes) -> bool:
        """Whether the node's part is over, after a response; raise if it ends early.

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
            self._fails(f"refuses with status {status}; has it the same contract?")
        if status in (200, 204) or (waited := monotonic() - self._since) < self._limit:
            return False
        if node.is_done:
            return True
        tried = f"{self._problem}; for {waited:.0f} seconds now"
        raise LeftOutError(f"{tried}: the run may be over without {self._where()}; else restart it")

    def _where(self) -> str:
        """Return the party's name, and where in the run it ends."""
        at, rounds = self.node.at, self.node.contract.terms.rounds
        where = "before round 0" if at is None else f"after round {self.node.rounds} of {rounds}"
        return f"{self.node.name}, which ends {where}"


def _listed(names: list[str]) -> str:
    """Return names as a text."""
    return ", ".join(names) or "nobody that it names"
