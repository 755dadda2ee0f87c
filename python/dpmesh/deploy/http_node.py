"""A node's side of HTTP/1.1: it posts signed answers to a router, and gets questions in return.

The format of a post, and what the router checks of it, is in `dpmesh.deploy.http`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import sleep
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from time import monotonic
from typing import NamedTuple

from dpmesh._extras import needed_by
from dpmesh._validate import fail
from dpmesh.deploy import http
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.node import Node
from dpmesh.deploy.schedule import longest_question
from dpmesh.deploy.signing import SigningKey
from dpmesh.deploy.wire import refusal_reason

with needed_by("a router or a node over HTTP"):
    import aiohttp
    from aiohttp import hdrs
    from yarl import URL

_log = logging.getLogger("dpmesh")

RETRY = 1.0
"""Seconds between two attempts to reach a router, or to answer a question that it repeats."""
PATIENCE = 3600.0
"""Default of the seconds for which a node tries to reach its router."""
MINUTE = 60.0
"""Seconds between two log lines that name the parties for which the router waits."""
_CERTIFICATE_ADVICE = {
    9: " (check the clocks of this machine and of the router)",
    10: " (make a new one for the router, or check the clock of this machine)",
}
"""Advice about a wrong certificate, by OpenSSL's error code: not yet valid, and expired."""
_FINAL_REFUSALS = ("stopped", "restored", "over budget")
"""A node's own refusals after which it answers no further question."""
_NUMBER_DIGITS = 40
"""Digits that are read of a router's number, which has 128 bits."""


@dataclass
class Contact:
    """Public state of a node's connection to its router, for metrics in another thread.

    `run_node` keeps it up to date.

    Parameters
    ----------
    problem
        The reason why the router sends no questions; empty if it sends some, or says that it waits.
    waits_for
        Names of the parties for which the router waits, as it claims.
    """

    problem: str = ""
    waits_for: tuple[str, ...] = ()


class LeftOutError(RuntimeError):
    """A node ended before the last step of its run; the text says in which round, and why."""


def _ignore(_: Node) -> None:
    """Show no progress."""


def run_node(
    node: Node,
    url: str,
    tls: ssl.SSLContext | None = None,
    progress: Callable[[Node], object] = _ignore,
    *,
    patience: float = PATIENCE,
    insecure: bool = False,
    contact: Contact | None = None,
) -> None:
    """Answer a router's questions until the run is over, and reconnect as often as needed.

    The router cannot end the run for a node early: it takes the signatures of most parties. A node
    that has answered its last question tries to reach the router for `http.FAREWELL` more seconds.

    Parameters
    ----------
    node
        The node.
    url
        Address of the router, such as ``https://router.example:8443``, the only one that is dialed.
    tls
        TLS settings of `node_tls`; by default the system's certificate authorities are trusted.
    progress
        Called with the node after each answer.
    patience
        Seconds after the first failure for which the node tries to reach the router.
    insecure
        True to allow plain HTTP to other machines.
    contact
        Updated with the state of the connection after each response.

    Raises
    ------
    LeftOutError
        If the node has stopped, if most parties signed that the run is over without it, or if its
        patience is over. The folder keeps all that was done: the node can be started again.
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
    """Wait until a router with this contract can be reached, before a party joins the contract.

    The party posts signed, empty messages. Its folder is charged nothing.

    Parameters
    ----------
    contract, signing
        The contract, and the party's signing key.
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
    asyncio.run(_wait_until_reached(posts, tls or http.node_tls(), patience))


def _checked_address(url: str, *, insecure: bool) -> URL:
    """Return the address of a router; fail if it may not be dialed."""
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


async def _wait_until_reached(posts: _Posts, tls: ssl.SSLContext, patience: float) -> None:
    """Post empty messages until the router accepts one; see `wait_for_router`."""
    start = monotonic()
    last_symptom = ""
    refused_posts = 0
    async with _session(tls, posts.longest_question) as session:
        while True:
            response = await posts.send(session, b"")
            if response.is_accepted or response.status == http.OVER:
                return
            symptom = response.symptom
            if response.status == http.NOT_SIGNED and not response.is_displaced:
                refused_posts += 1
            if refused_posts > 1:  # a router that was restarted in between refuses one post
                expected = f"one at {posts.url} that has contract {posts.contract.hash.hex()}"
                fail(
                    "router", expected, "one with another contract (compare dpmesh contract check)"
                )
            waited = monotonic() - start
            if waited >= patience:
                tried = f"the router at {posts.url} {symptom}; for {waited:.0f} seconds now"
                raise LeftOutError(f"{tried}. Nothing was charged")
            if symptom != last_symptom:
                text = "the router at %s %s; trying for %g seconds, with nothing charged so far"
                _log.warning(text, posts.url, symptom, patience)
            last_symptom = symptom
            await sleep(RETRY)


def _session(tls: ssl.SSLContext, longest_question: int) -> aiohttp.ClientSession:
    """Return an HTTP client without cookies, proxies and decompression, with bounded headers."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls, limit=1),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=http.seconds_for(longest_question)),
        auto_decompress=False,
        trust_env=False,
        max_headers=http.MOST_HEADERS,
        max_line_size=http.LONGEST_HEADER,
        max_field_size=http.LONGEST_HEADER,
    )


class _Response(NamedTuple):
    """A router's response to a post, or the reason why there is none.

    Attributes
    ----------
    status
        HTTP status; 0 without a response.
    message
        The body: a question, or at the end of a run the last messages of the other parties.
    waits_for
        Numbers of the parties for which the router waits, separated by commas.
    problem
        Reason why there is no response that a router can send; empty if there is one.
    is_displaced
        True if another node posted under this party's key since this node's last post.
    """

    status: int = 0
    message: bytes = b""
    waits_for: str = ""
    problem: str = ""
    is_displaced: bool = False

    @property
    def is_accepted(self) -> bool:
        """True if the router accepted the post, and answered with a question or with none."""
        return self.status in (http.QUESTION, http.NO_QUESTION)

    @property
    def symptom(self) -> str:
        """Description of a failed post, to follow on "the router"."""
        if self.problem:
            return self.problem
        if self.is_displaced:
            return (
                f"refuses with status {self.status}: another node uses this party's key. Run one "
                "node for each party, and end the other one"
            )
        return f"refuses with status {self.status}; has it the same contract?"


class _Posts:
    """The signed, numbered posts of one party to one router.

    Parameters
    ----------
    contract, party, signing
        The contract, the party's number in it, and its signing key.
    url
        Address of the router.
    """

    def __init__(self, contract: Contract, party: int, signing: SigningKey, url: URL) -> None:
        self.contract = contract
        self.url = url
        self.longest_question = longest_question(contract)
        """The most bytes that are read of a response."""
        self._party = party
        self._signing = signing
        self._last_number: int | None = None
        """Number of the last post; None if the router must first say from which number to count."""

    def forget_number(self) -> None:
        """Have the next post ask the router again from which number to count."""
        self._last_number = None

    async def send(self, session: aiohttp.ClientSession, body: bytes) -> _Response:
        """Post a body; return the response, or the reason why there is none.

        Raises
        ------
        ValueError
            If the router's certificate is wrong.
        """
        try:
            if self._last_number is None:
                self._last_number = 0
                await self._post(session, b"")  # refused, with the number from which to count
            return await self._post(session, body)
        except aiohttp.ClientConnectorCertificateError as error:
            expected = f"one for {self.url.host} that this node trusts (--certificate)"
            reason = getattr(error.certificate_error, "verify_message", "another")
            code = getattr(error.certificate_error, "verify_code", 0)
            fail("certificate", expected, f"{reason}{_CERTIFICATE_ADVICE.get(code, '')}")
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
        self.forget_number()
        return _Response(problem=problem)

    async def _post(self, session: aiohttp.ClientSession, message: bytes) -> _Response:
        """Sign and post a message under the next number; return the response.

        A refused post brings the router's number, from which this party counts on. If that is a
        little larger than the last number of this node, another node has used the party's key.

        Raises
        ------
        ValueError
            If no router can have sent the response.
        """
        assert self._last_number is not None
        number = self._last_number + 1
        self._last_number = number
        body_hash = sha256(message).hexdigest()
        fields = http.fields_of(self.contract, self._party, number, len(message), body_hash)
        headers = {
            http.NUMBER: str(number),
            http.BODY: body_hash,
            http.SIGNATURE: self._signing.sign(*fields).hex(),
            hdrs.ACCEPT_ENCODING: "identity",
        }
        url = self.url / str(self._party)
        async with session.post(
            url, data=message, headers=headers, allow_redirects=False
        ) as received:
            body = await self._bounded_body(received)
            is_displaced = False
            if received.status == http.NOT_SIGNED:
                digits = received.headers.get(http.NUMBER, "0")[:_NUMBER_DIGITS]
                self._last_number = int(digits)
                is_displaced = number <= self._last_number < number + http.WINDOW
            return _Response(
                received.status,
                body,
                waits_for=received.headers.get(http.WAITS, ""),
                is_displaced=is_displaced,
            )

    async def _bounded_body(self, received: aiohttp.ClientResponse) -> bytes:
        """Return the body of a response, at most as long as a question can be.

        Raises
        ------
        ValueError
            If it is longer, compressed, or of another version of HTTP.
        """
        if received.version != aiohttp.HttpVersion11:
            raise ValueError
        if hdrs.CONTENT_ENCODING in received.headers:
            raise ValueError
        if (received.content_length or 0) > self.longest_question:
            raise ValueError
        body = bytearray()
        while part := await received.content.readany():
            body += part
            if len(body) > self.longest_question:
                raise ValueError
        return bytes(body)


class _Dialogue:
    """The exchange of a node with its router, from the first post to the end of the run.

    Parameters
    ----------
    node, url, tls, patience, contact
        As of `run_node`, of which all are required here.
    """

    def __init__(
        self, node: Node, url: URL, tls: ssl.SSLContext, patience: float, contact: Contact
    ) -> None:
        self._node = node
        self._url = url
        self._tls = tls
        self._patience = patience
        self._contact = contact
        self._posts = _Posts(node.contract, node.number, node.folder.signing, url)
        self._question = b""
        """The last question."""
        self._answer = b""
        """The answer that is posted next; empty if there was no question."""
        self._problem = ""
        """Description of the last failure; empty after a post that the router accepted."""
        self._failing_since = 0.0
        """Time of the first failure since the router accepted a post."""
        self._waiting_since = monotonic()
        """Time since which the router has had no question for this node."""
        self._last_notice = self._waiting_since
        """Time of the last log line about that wait."""

    async def run(self, progress: Callable[[Node], object]) -> None:
        """Post answers until the run is over; see `run_node`."""
        async with _session(self._tls, self._posts.longest_question) as session:
            while True:
                start = monotonic()
                response = await self._posts.send(session, self._answer)
                self._note_waiting(response)
                if self._is_over(response):
                    return
                if response.is_accepted and self._take(response.message, progress):
                    continue
                pause = RETRY
                if not response.message:
                    pause -= monotonic() - start  # the router may have held the post
                await sleep(max(0.0, pause))

    def _take(self, question: bytes, progress: Callable[[Node], object]) -> bool:
        """Answer a question, if the response has one.

        Returns
        -------
        True if the answer is to be posted at once. A refusal waits, and so does the answer to a
        repeated question: a router might else repeat it as fast as the network allows.
        """
        self._problem = ""
        self._contact.problem = ""
        is_repeated = question == self._question
        self._question = question
        self._answer = b""
        if not question:
            return False
        self._answer = self._node.answer(question)
        progress(self._node)
        return not is_repeated and refusal_reason(self._answer) is None

    def _note_waiting(self, response: _Response) -> None:
        """Note the parties for which the router waits, and log their names once a minute."""
        self._contact.waits_for = ()
        if response.problem:
            return
        now = monotonic()
        if response.status != http.NO_QUESTION:
            self._waiting_since = now
            self._last_notice = now
            return
        parties = self._node.contract.parties
        numbers = [int(text) for text in response.waits_for.split(",") if text.isdecimal()]
        names = [parties[number].name for number in numbers if number < len(parties)]
        self._contact.waits_for = tuple(names)
        if now - self._last_notice >= MINUTE:
            self._last_notice = now
            seconds = f"{now - self._waiting_since:.0f} seconds"
            text = "%s: waiting for %s now, by the router's word for %s"
            listed = ", ".join(names) or "nobody that it names"
            _log.warning(text, self._current_round(), seconds, listed)

    def _current_round(self) -> str:
        """Return the round that the node is in, as a text."""
        if self._node.last_position is None:
            return "before round 0"
        return f"round {self._node.rounds} of {self._node.contract.terms.rounds}"

    def _note_failure(self, symptom: str) -> None:
        """Note that a post failed, and log each symptom once in a row."""
        problem = f"the router at {self._url} {symptom}"
        if not self._problem:
            self._failing_since = monotonic()
        if problem != self._problem:
            _log.warning("%s; trying for %g seconds", problem, self._seconds_to_try)
        self._problem = problem
        self._contact.problem = problem
        self._posts.forget_number()

    @property
    def _seconds_to_try(self) -> float:
        """Seconds after the first failure for which the node tries to reach the router."""
        if self._node.is_done:
            return http.FAREWELL
        return self._patience

    def _is_over(self, response: _Response) -> bool:
        """Return True if a response ends this node's part of the run after its last step.

        Raises
        ------
        LeftOutError
            If it ends earlier: after a final refusal of this node, by the signatures of most
            parties, or because the patience is over. The router's word alone ends nothing.
        """
        node = self._node
        reason = refusal_reason(self._answer)
        has_ended = response.status == http.OVER
        if (response.is_accepted or has_ended) and reason in _FINAL_REFUSALS:
            raise LeftOutError(f"{self._last_round()}: {reason}; the log says why")
        if response.is_accepted:
            return False
        if has_ended and node.is_done:
            return True
        if has_ended and node.is_over(response.message):
            end = "the run is over, as others have signed, without"
            raise LeftOutError(f"{end} {self._last_round()}")
        if has_ended:
            self._note_failure(f"says that the run is over without {node.name}")
        else:
            self._note_failure(response.symptom)
        return self._is_patience_over()

    def _is_patience_over(self) -> bool:
        """Return True if a node that is done has tried for long enough to say so to its router.

        Raises
        ------
        LeftOutError
            If a node that is not done has tried for its patience.
        """
        waited = monotonic() - self._failing_since
        if waited < self._seconds_to_try:
            return False
        if self._node.is_done:
            return True
        tried = f"{self._problem}; for {waited:.0f} seconds now"
        raise LeftOutError(
            f"{tried}: the run may be over without {self._last_round()}; else restart it"
        )

    def _last_round(self) -> str:
        """Return the party's name, and the round after which it ends."""
        where = "before round 0"
        if self._node.last_position is not None:
            where = f"after round {self._node.rounds} of {self._node.contract.terms.rounds}"
        return f"{self._node.name}, which ends {where}"
