"""A node that stays while Flower starts a process for each question: it answers at a Unix socket.

    WarmNode(node, "/run/dpmesh/north").serve_forever()     # in a program of the party's own

    @answers(client_app)                                    # in the app
    def answer(question, context):
        return ask("/run/dpmesh/north", question)

The SuperLink delivers the app, so whoever can start a run there decides what the SuperNode does. It
must run as another user than the node, in another container if possible: whoever connects is a
router, trusted with liveness alone, and reads no record. With one user for both, whoever can start
a run can read your records.
"""

from __future__ import annotations

import os
import socket
import socketserver
import struct
import sys
import time
from collections.abc import Iterable
from logging import getLogger
from pathlib import Path

from dpmesh._validate import fail
from dpmesh.deploy.node import Node
from dpmesh.deploy.traffic import longest_question

log = getLogger("dpmesh")

PATIENCE = 60.0
"""Seconds in which a question must arrive, and its answer be taken."""

_LENGTH, _PEER = struct.Struct("!Q"), struct.Struct("3i")
"""What comes before a message; the process, user and group at the other end."""


class WarmNode(getattr(socketserver, "UnixStreamServer", socketserver.TCPServer)):  # type: ignore[misc]
    """Answers questions for a node at a Unix socket, one after another; Linux alone.

    Parameters
    ----------
    node
        The node.
    path
        Of the socket, in a folder that its users may enter. What is left of an earlier one goes.
    users
        The ids of the users who may ask, beside the node's own.

    Raises
    ------
    ValueError
        If there is something else than a socket, or on other systems.
    """

    def __init__(self, node: Node, path: str | Path, *, users: Iterable[int] = ()) -> None:
        if not hasattr(socket, "SO_PEERCRED"):
            fail("node", "Linux, whose kernel states which user asks", sys.platform)
        self.node, self._users = node, {os.geteuid(), *users}
        self.longest = longest_question(node.contract)
        if Path(path).exists() and not Path(path).is_socket():
            fail("path", "that of a socket, or of nothing", path)
        Path(path).unlink(missing_ok=True)
        super().__init__(str(path), _Questions)
        Path(path).chmod(0o666)  # the folder and the check of users say who may ask

    def verify_request(
        self, request: socket.socket | tuple[bytes, socket.socket], _: object
    ) -> bool:
        """Whether one of the users asks, by the word of the kernel."""
        assert isinstance(request, socket.socket)
        said = request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return _PEER.unpack(said)[1] in self._users

    def handle_error(self, request: object, client_address: object) -> None:
        """Log that a question was not answered: it was too long, too slow, or cut off."""
        log.warning("a question at the socket of %s was not answered", self.node.name)


class _Questions(socketserver.BaseRequestHandler):
    server: WarmNode

    def handle(self) -> None:
        end = time.monotonic() + PATIENCE
        question = _read(self.request, self.server.longest, end)
        _send(self.request, self.server.node.answer(question), PATIENCE)


def ask(path: str | Path, question: bytes, *, patience: float = 600.0) -> bytes:
    """Return the answer of the node at a socket.

    Raises
    ------
    OSError
        If nobody answers there in so many seconds.
    """
    with socket.socket(socket.AF_UNIX) as there:
        there.settimeout(patience)
        there.connect(str(path))
        _send(there, question, patience)
        return _read(there, 2**32, time.monotonic() + patience)


def _send(there: socket.socket, message: bytes, patience: float) -> None:
    there.settimeout(patience)
    there.sendall(_LENGTH.pack(len(message)) + message)  # whose timeout is for the whole


def _read(there: socket.socket, longest: int, end: float) -> bytes:
    """Return a message; fail if it is longer, or not there in time."""
    (length,) = _LENGTH.unpack(_exactly(there, _LENGTH.size, end))
    if length > longest:
        raise OSError(f"a message of {length} bytes, where at most {longest} are allowed")
    return _exactly(there, length, end)


def _exactly(there: socket.socket, length: int, end: float) -> bytes:
    parts, left = list[bytes](), length
    while left:
        there.settimeout(max(1e-3, end - time.monotonic()))
        if not (part := there.recv(min(left, 2**20))) or time.monotonic() > end:
            raise OSError("the other end closed, or is too slow")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
