"""A node against routers that lie, and a router against clients that do: sizes, places, waits."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from socket import create_connection, socket
from typing import Any

import pytest
from mesh_parties import Parties
from network_parties import HERE, Answer, Liar, Poster, certificate, response, running
from yarl import URL

from dpmesh.deploy import Router, http, http_node
from dpmesh.deploy.http import RouterServer, node_tls, server_tls
from dpmesh.deploy.http_node import LeftOutError, run_node, wait_for_router
from dpmesh.deploy.wire import Signature, refusal, refusal_reason

START, NO_ROUTER = "Dpmesh-Number: 5", "answers what no router does"


class Stop(Exception):  # noqa: N818
    pass


def without_waiting(monkeypatch: pytest.MonkeyPatch, most: int = 10**9) -> list[float]:
    """Let nodes pause at most so often, and not at all; return for how long they would."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == most:
            raise Stop

    monkeypatch.setattr(http_node, "sleep", sleep)
    return pauses


@pytest.fixture
def parties(tmp_path: Path) -> Any:
    return Parties(tmp_path, nodes=2, rounds=2)


def sends_without_end(head: bytes, part: bytes) -> Answer:
    def send(peer: socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\n" + head)
        while True:  # until the node closes the connection
            peer.sendall(part)

    return send


def closes(data: bytes) -> Answer:
    def send(peer: socket) -> None:
        peer.sendall(data)
        peer.shutdown(2)

    return send


LIES: dict[str, tuple[Answer, str]] = {
    "redirect": (response(302, b"", "Location: http://{}/delete?all=1"), "status 302"),
    "redirect that keeps the method": (response(307, b"", "Location: http://{}/"), "status 307"),
    "redirect to a file": (response(301, b"", "Location: file:///etc/passwd"), "status 301"),
    "redirect to itself": (response(302, b"", "Location: /0"), "status 302"),
    "over": (response(410), "says that the run is over without p0"),
    "error": (response(500), "status 500"),
    "never signed": (response(401, b"", START), "status 401"),
    "a number of words": (response(401, b"", "Dpmesh-Number: zz"), NO_ROUTER),
    "a long number": (response(401, b"", "Dpmesh-Number: " + "9" * 3000), NO_ROUTER),
    "a terabyte": (
        sends_without_end(b"Content-Length: 1000000000000\r\n\r\n", bytes(2**16)),
        NO_ROUTER,
    ),
    "chunks": (
        sends_without_end(b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n%b\r\n" % bytes(2**16)),
        NO_ROUTER,
    ),
    "no length": (sends_without_end(b"\r\n", bytes(2**16)), NO_ROUTER),
    "headers": (sends_without_end(b"", b"X-Header: of many\r\n"), NO_ROUTER),
    "a long header": (sends_without_end(b"X: ", bytes(2**16)), NO_ROUTER),
    "compressed": (response(200, b"\x1f\x8b", "Content-Encoding: gzip"), NO_ROUTER),
    "an older version": (closes(b"HTTP/1.0 204 No\r\n\r\n"), NO_ROUTER),
    "no version": (closes(b"\x1b[2J\x00\xff" * 300), NO_ROUTER),
    "no status": (closes(b"HTTP/1.1 99999 \r\n\r\n"), NO_ROUTER),
    "a negative length": (closes(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabc"), NO_ROUTER),
    "too little": (closes(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"), NO_ROUTER),
    "nothing": (closes(b""), "it closes the connection"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_router_moves_a_node_to_nothing_but_trying_again(
    lie: str, parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads no more than a contract allows, goes nowhere else, and prints none of its bytes."""
    answer, found = LIES[lie]
    with Liar(response(200)) as inner:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{inner.address}")
        if isinstance(answer, bytes):
            answer = answer.replace(b"{}", inner.address.encode())
        with Liar(answer) as liar, pytest.raises(LeftOutError, match=found) as error:
            run_node(parties.nodes[0], f"http://{liar.address}", patience=0.0)
        assert "p0, which ends before round 0" in str(error.value)
        assert str(error.value).isprintable()
        assert inner.posts == []
        assert 1 <= len(liar.posts) <= 2
        assert all(post.startswith(b"POST /0 HTTP/1.1\r\n") for post in liar.posts)
    assert parties.folders[0].spent(parties.contract) is None


@pytest.mark.parametrize(
    "answers",
    [
        [response(204)],
        [response(401, b"", START), response(204)],
        5 * [response(401, b"", START), response(204)],
        [response(204), response(200, b"no question")],
        [response(503)],
    ],
)
def test_a_node_pauses_whatever_a_router_answers(
    answers: list[Answer], parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = without_waiting(monkeypatch, 6)
    monkeypatch.setattr(http_node, "monotonic", lambda: 0.0)
    with Liar(*answers) as liar, pytest.raises(Stop):
        run_node(parties.nodes[0], f"http://{liar.address}")
    assert pauses == 6 * [http_node.RETRY]
    assert len(liar.posts) <= 12


@pytest.mark.parametrize("waits", ["1", "0,1,99,x", ""])
def test_a_waiting_node_says_for_whom_by_the_routers_word(
    waits: str, parties: Parties, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_waiting(monkeypatch, 3)
    monkeypatch.setattr(http_node, "MINUTE", 0.0)
    with Liar(response(204, b"", f"Dpmesh-Waits: {waits}")) as liar, pytest.raises(Stop):
        run_node(parties.nodes[0], f"http://{liar.address}")
    named = {"1": "for p1", "0,1,99,x": "for p0, p1", "": "for nobody"}[waits]
    assert f"by the router's word {named}" in caplog.text
    assert "before round 0: waiting for" in caplog.text


def test_a_router_names_those_that_it_waits_for_and_ends_without_a_quorum(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RouterServer, "_farewell", lambda _: 0.01)
    monkeypatch.setattr(http, "HOLD", 0.01)
    router = Router(parties.contract)
    for party, message in router.requests().items():
        if party > 0:
            router.take(party, parties.nodes[party].answer(message))
    assert http.waits_for(router) == "0"
    router.gone |= dict.fromkeys(range(parties.contract.nodes), "over budget")
    assert router.failure.startswith("p0: over budget, p1: over budget")
    server = RouterServer(router, HERE, 0)
    server.run()


def test_the_same_question_again_and_again_is_answered_with_pauses(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    question, pauses = Router(parties.contract).requests()[0], without_waiting(monkeypatch, 3)
    with Liar(response(200, question)) as liar, pytest.raises(Stop):
        run_node(parties.nodes[0], f"http://{liar.address}")
    assert (len(liar.posts), pauses) == (5, 3 * [http_node.RETRY])


def test_a_node_waits_for_no_answer_longer_than_its_deadline(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for one that does not begin, nor for one that does not end."""
    monkeypatch.setattr(http, "TIMEOUT", 0.01)
    monkeypatch.setattr(http, "RATE", 2**40)
    waits = lambda peer: peer.recv(1)  # noqa: E731
    for begun in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"):
        for lie in (waits, lambda peer, begun=begun: (peer.sendall(begun), waits(peer))):
            with Liar(lie) as liar, pytest.raises(LeftOutError, match="does not answer in time"):
                run_node(parties.nodes[0], f"http://{liar.address}", patience=0.0)


def test_a_node_that_has_stopped_reports_it_and_ends(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Router(parties.contract).requests()[0]
    stopped = refusal(parties.contract, "stopped")
    monkeypatch.setattr(parties.nodes[0], "answer", lambda message: stopped)
    without_waiting(monkeypatch)
    answers = response(401, b"", START), response(200, question), response(410)
    with Liar(*answers) as liar, pytest.raises(LeftOutError, match="before round 0: stopped"):
        run_node(parties.nodes[0], f"http://{liar.address}", patience=0.0)
    assert liar.posts[-1].endswith(stopped)


def test_a_node_that_cannot_answer_pauses_before_it_is_asked_again(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be asked as fast as the network is."""
    question, pauses = Router(parties.contract).requests()[0], without_waiting(monkeypatch, 3)

    def fails(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(Signature, "of", fails)
    with Liar(response(200, question)) as liar, pytest.raises(Stop):
        run_node(parties.nodes[0], f"http://{liar.address}")
    assert [refusal_reason(post.partition(b"\r\n\r\n")[2]) for post in liar.posts[2:]] == 2 * [
        "failed"
    ]
    assert pauses == 3 * [http_node.RETRY]


def test_a_node_that_is_done_waits_a_little_for_the_last_word(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties.run()
    pauses = without_waiting(monkeypatch)
    monkeypatch.setattr(http_node, "monotonic", lambda: sum(pauses))
    with Liar(response(503)) as liar:
        run_node(parties.nodes[0], f"http://{liar.address}", patience=1e9)
    assert sum(pauses) == http.FAREWELL
    with Liar(response(410)) as liar:
        run_node(parties.nodes[0], f"http://{liar.address}")


def test_a_node_is_told_that_another_one_uses_its_partys_key(parties: Parties) -> None:
    """A router that was restarted counts from another number: that is no other node."""
    contract, signing = parties.contract, parties.folders[0].signing
    two_nodes = [http_node._Posts(contract, 0, signing, URL(f"http://{HERE}")) for _ in range(2)]

    async def responses(port: int, order: list[int]) -> list[http_node._Response]:
        for posts in two_nodes:
            posts.url = URL(f"http://{HERE}:{port}")
        async with http_node._session(node_tls(), two_nodes[0].longest_question) as session:
            return [await two_nodes[number].send(session, b"") for number in order]

    with running(Router(contract)) as server:
        received = asyncio.run(responses(server.port, [0, 1, 0, 0, 1]))
    assert [response.status for response in received] == [200, 200, 401, 200, 401]
    assert [response.is_displaced for response in received] == [False, False, True, False, True]
    assert "another node uses this party's key" in received[2].symptom
    with running(Router(contract)) as server:
        received = asyncio.run(responses(server.port, [0, 0]))
    assert [response.status for response in received] == [401, 200]
    assert "another node" not in received[0].symptom


@pytest.mark.parametrize("at", ["another authority", "another name"])
def test_a_wrong_certificate_ends_a_node_at_once(at: str, parties: Parties, tmp_path: Path) -> None:
    signed, key = certificate(tmp_path, HERE if at == "another authority" else "10.0.0.1")
    trusted = node_tls() if at == "another authority" else node_tls(signed)
    wanted = "certificate: wanted one for 127.0.0.1 that this node trusts"
    with Liar(response(204), tls=server_tls(signed, key)) as liar:
        with pytest.raises(ValueError, match=re.escape(wanted)):
            run_node(parties.nodes[0], f"https://{liar.address}", trusted)
        assert liar.posts == []


@pytest.mark.parametrize(
    ("hours", "advice"),
    [
        (26, r"expired \(make a new one for the router, or check the clock of this machine\)"),
        (-26, r"not yet valid \(check the clocks of this machine and of the router\)"),
    ],
)
def test_a_certificate_of_another_time_names_the_clock(
    hours: int, advice: str, parties: Parties, tmp_path: Path
) -> None:
    signed, key = certificate(tmp_path, age=timedelta(hours=hours))
    contract, signing = parties.contract, parties.folders[0].signing
    with Liar(response(204), tls=server_tls(signed, key)) as liar:
        url = f"https://{liar.address}"
        for trusted in (node_tls(signed), node_tls(signed)):
            with pytest.raises(ValueError, match=advice):
                wait_for_router(contract, signing, url, trusted, patience=0.0)
        assert liar.posts == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_address_with_the_wrong_scheme_is_questioned(
    scheme: str, parties: Parties, tmp_path: Path
) -> None:
    signed, key = certificate(tmp_path)
    contract, signing = parties.contract, parties.folders[0].signing
    tls = server_tls(signed, key) if scheme == "http" else None
    other = "https" if scheme == "http" else "http"
    asks = pytest.raises(
        LeftOutError, match=rf"is its address {other}://\?\).* Nothing was charged"
    )
    with running(Router(contract), tls) as server:
        url = f"{scheme}://{HERE}:{server.port}"
        with asks:
            wait_for_router(contract, signing, url, node_tls(signed), patience=0.0)


def test_nothing_but_tls_leaves_the_machine_unless_it_is_said(
    parties: Parties, tmp_path: Path
) -> None:
    node = parties.nodes[0]
    with pytest.raises(ValueError, match="https:// off the loopback address"):
        run_node(node, "http://router.example:8443")
    for url in (
        "ftp://here",
        "nowhere",
        "https://",
        "https://a:b@here",
        "https://here/?x=1",
        "http://[",
    ):
        with pytest.raises(ValueError, match="router: wanted a url such as"):
            run_node(node, url)
    with pytest.raises(ValueError, match=r"certificate: wanted one to listen at 0\.0\.0\.0"):
        RouterServer(Router(parties.contract), "0.0.0.0", 0)
    for tls in (node_tls(), server_tls(*certificate(tmp_path))):
        assert tls.minimum_version == http.ssl.TLSVersion.TLSv1_2
    assert node_tls().check_hostname


def test_who_does_not_sign_learns_nothing_and_speaks_for_nobody(parties: Parties) -> None:
    """Not a stranger, not another party, not who repeats a post, changes it, or adds to it."""
    contract, stopped = parties.contract, refusal(parties.contract, "stopped")
    own, other = (folder.signing for folder in parties.folders)
    with running(Router(contract)) as server:
        as_own, as_other = (Poster(server.port, contract, 0, key) for key in (own, other))
        start = as_own.post(1, b"")[2]
        assert start > 2**64
        for number in (0, start, start + http.WINDOW + 1):
            assert as_own.post(number, stopped) == (401, b"", start)
        assert as_other.post(start + 1, stopped) == (401, b"", start)
        unsigned = {"Dpmesh-Signature": "zz"}
        assert as_own.post(start + 1, stopped, headers=unsigned) == (401, b"", start)
        question = server.router.request(0)
        assert as_own.post(start + 3, b"") == (200, question, 0)
        assert as_own.post(start + 3, b"") == (401, b"", start + 3)
        assert as_own.post(start + 2, b"") == (401, b"", start + 3)
        assert as_own.post(start + 4, stopped, signed=b"another body")[:2] == (400, b"")
        assert server.router.gone == {}
        for wrong in (
            {"path": "/9"},
            {"path": "/0/"},
            {"method": "PUT"},
            {"headers": {"Content-Length": "9" * 12}},
            {"headers": {"Content-Length": "x"}},
            {"headers": {"Content-Encoding": "gzip"}},
            {"headers": {"X": "y" * 3000}},
            {"headers": {f"X{i}": "y" for i in range(50)}},
        ):
            assert as_own.post(start + 5, b"", **wrong)[:2] != (200, question)
        assert as_own.post(start + 5, b"")[0] == 200


def until_closed(peer: socket) -> bytes:
    received = b""
    with suppress(ConnectionError):
        while part := peer.recv(2**10):
            received += part
    peer.close()
    return received


@pytest.mark.parametrize("tls", [False, True])
def test_connections_without_a_key_shut_nobody_out(
    tls: bool, parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of them make room, and none of them stays."""
    monkeypatch.setattr(http, "MOST_STRANGERS", 4)
    signed, key = certificate(tmp_path)
    with running(Router(parties.contract), server_tls(signed, key) if tls else None) as server:
        held = [create_connection((HERE, server.port)) for _ in range(12)]
        for peer in held:
            peer.sendall(b"\x16\x03" if tls else b"POST /0 HTTP/1.1\r\nX: ")
        url = f"{'https' if tls else 'http'}://{HERE}:{server.port}"
        asks = Router(parties.contract).requests()[0]

        def signs(node: Any) -> None:
            raise Stop

        with pytest.raises(Stop):
            run_node(parties.nodes[0], url, node_tls(signed), signs)
        assert server.router.request(0) in (asks, None)
        for peer in held[:8]:
            until_closed(peer)
        monkeypatch.setattr(http, "STRANGER_SECONDS", 0.0)
        for _ in held[8:]:
            create_connection((HERE, server.port)).close()
        for peer in held[8:]:
            until_closed(peer)


def test_a_connection_without_a_key_and_a_request_without_an_end_are_closed(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "STRANGER_SECONDS", 0.01)
    with running(Router(parties.contract)) as server:
        peer = create_connection((HERE, server.port))
        peer.sendall(b"POST /0 HTTP/1.1\r\nX: ")
        assert until_closed(peer) == b""
    monkeypatch.setattr(http, "STRANGER_SECONDS", 600.0)
    monkeypatch.setattr(http, "TIMEOUT", 0.01)
    monkeypatch.setattr(http, "RATE", 2**40)
    with running(Router(parties.contract)) as server:
        own = Poster(server.port, parties.contract, 0, parties.folders[0].signing)
        peer = create_connection((HERE, server.port))
        peer.sendall(own.head(own.post(1, b"")[2] + 1, length=9))
        assert not until_closed(peer).startswith(b"HTTP/1.1 200")


def test_a_party_keeps_no_more_than_its_connections(parties: Parties) -> None:
    with running(Router(parties.contract)) as server:
        own = Poster(server.port, parties.contract, 0, parties.folders[0].signing)
        start, held = own.post(1, b"")[2], []
        for number in range(1, 6):
            held.append(create_connection((HERE, server.port)))
            held[-1].sendall(own.head(start + number))
            assert held[-1].recv(12) == b"HTTP/1.1 200"
        for peer in held[: -http.CONNECTIONS]:
            until_closed(peer)
        for peer in held[-http.CONNECTIONS :]:
            peer.close()


def test_a_router_answers_a_post_long_before_its_node_takes_it_for_lost(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a pause below the quorum looks like a router that is gone, and ends the nodes."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(http, "sleep", sleep)
    monkeypatch.setattr(http, "monotonic", lambda: sum(pauses))
    server = RouterServer(Router(parties.contract), HERE, 0)
    signed = parties.nodes[0].answer(server.router.requests()[0])
    assert asyncio.run(server._exchange(0, signed)) == (204, b"")  # it waits for another signature
    assert sum(pauses) < http.TIMEOUT / 10
    server.close()
