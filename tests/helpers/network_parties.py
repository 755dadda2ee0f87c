"""Liars and slow peers for tests of the network: each is a thread with a socket of its own."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from http.client import HTTPConnection
from ipaddress import ip_address
from pathlib import Path
from socket import create_server, socket
from typing import Any, BinaryIO

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpmesh.deploy import Contract, Router
from dpmesh.deploy.http import RouterServer
from dpmesh.deploy.signing import SigningKey

HERE = "127.0.0.1"
Answer = bytes | Callable[[socket], None]
"""Bytes that a liar sends, or a function that it calls with a connection."""


def certificate(folder: Path, host: str = HERE, age: timedelta = timedelta(0)) -> tuple[Path, Path]:
    """Write a certificate of this machine, signed by itself, and its key.

    It is valid from a day before now until a day after now, less its `age`.
    """
    key = Ed25519PrivateKey.generate()
    now = datetime.now(timezone.utc) - age
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    this_machine = x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(this_machine, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    (folder / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    (folder / "key.pem").chmod(0o600)
    return folder / "cert.pem", folder / "key.pem"


class Liar:
    """A server that gives the n-th post the n-th of its answers, and all later ones the last."""

    def __init__(self, *answers: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answers = answers
        self.posts = list[bytes]()
        self._socket = create_server((HERE, 0))
        self.address = f"{HERE}:{self._socket.getsockname()[1]}"
        self._tls = tls
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                connection, _ = self._socket.accept()
                with suppress(OSError), connection:
                    if self._tls is None:
                        self._talk(connection)
                    else:
                        self._talk(self._tls.wrap_socket(connection, server_side=True))

    def _talk(self, peer: socket) -> None:
        with peer, peer.makefile("rb") as lines:
            while head := _head(lines):
                length = next(
                    line for line in head.lower().splitlines() if b"content-length" in line
                )
                self.posts.append(head + b"\r\n" + lines.read(int(length.split(b":")[1])))
                answer = self.answers[min(len(self.posts), len(self.answers)) - 1]
                if callable(answer):
                    answer(peer)
                else:
                    peer.sendall(answer)

    def __enter__(self) -> Liar:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(2)
        self._socket.close()


def _head(lines: BinaryIO) -> bytes:
    """Return the head of a post; nothing once the peer has gone, or in the middle of one."""
    head = b""
    while (line := lines.readline()) not in (b"", b"\r\n"):
        head += line
    if not line:
        return b""
    return head


def response(status: int, body: bytes = b"", *headers: str) -> bytes:
    """Return a response as bytes."""
    lines = [f"HTTP/1.1 {status} Words", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@contextmanager
def running(router: Router, tls: ssl.SSLContext | None = None) -> Iterator[RouterServer]:
    """Serve a router that is not done until the block ends."""

    class Ended(Exception):  # noqa: N818
        pass

    def watch(_: object) -> None:
        if is_over.is_set():
            raise Ended

    def serve() -> None:
        with suppress(Ended):
            server.run(watch)

    server = RouterServer(router, HERE, 0, tls)
    is_over = threading.Event()
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server
    is_over.set()
    thread.join()


class Poster:
    """A client that posts for one party as a node does, or with parts of its posts changed."""

    def __init__(self, port: int, contract: Contract, party: int, key: SigningKey) -> None:
        self.port = port
        self.contract = contract
        self.party = party
        self.key = key

    def headers(self, number: int, length: int, body: bytes) -> dict[str, str]:
        """Return the headers of a post."""
        body_hash = sha256(body).hexdigest()
        signature = self.key.sign(
            b"dpmesh post 2",
            self.contract.hash,
            str(self.party).encode(),
            str(number).encode(),
            str(length).encode(),
            body_hash.encode(),
        )
        numbers = {"Dpmesh-Number": str(number), "Content-Length": str(length)}
        return numbers | {"Dpmesh-Body": body_hash, "Dpmesh-Signature": signature.hex()}

    def head(self, number: int, length: int = 0) -> bytes:
        """Return the head of a post as bytes."""
        lines = [f"{name}: {value}" for name, value in self.headers(number, length, b"").items()]
        return "\r\n".join(
            [f"POST /{self.party} HTTP/1.1", "Host: router", *lines, "", ""]
        ).encode()

    def post(self, number: int, answer: bytes, **changed: Any) -> tuple[int, bytes, int]:
        """Return the status, the body and the number of the response."""
        headers = self.headers(number, len(answer), changed.pop("signed", answer))
        headers |= changed.pop("headers", {})
        with closing(HTTPConnection(HERE, self.port)) as connection:
            path = changed.pop("path", f"/{self.party}")
            method = changed.pop("method", "POST")
            connection.request(method, path, answer, headers)
            got = connection.getresponse()
            return got.status, got.read(), int(got.headers.get("Dpmesh-Number", 0))


class Commands:
    """Processes of the command line, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes = dict[str, subprocess.Popen[bytes]]()

    def start(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "dpmesh", *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_for(self, name: str, text: str) -> str:
        for _ in range(1200):
            if text in self.log(name):
                return self.log(name)
            assert self.processes[name].poll() in (None, 0), self.log(name)
            time.sleep(0.1)
        raise AssertionError(self.log(name))
