"""Bytes over Flower: what carries the questions of a contract between SuperNodes.

Nodes and routers of `dpmesh.deploy` know no transport. Here a SuperNode answers questions by a
function of its own app, and a ServerApp asks them:

    @answers(client_app)                                        @server_app.main()
    def answer(question, context):                              def main(grid, context):
        return my_node(context).answer(question)                    route(grid, Router(contract))

The SuperLink and the ServerApp are trusted with nothing but liveness: what protects the bytes is in
them. A SuperNode states which party it is by its ``dpmesh-party``; who signed an answer is another
matter, and that is what counts.

Flower starts a process for each question. A node that stays answers at a Unix socket:

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
from collections.abc import Iterable, Mapping, Sequence
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

from dpmesh._extras import needed_by
from dpmesh._validate import fail
from dpmesh.deploy.files import DISK_ERRORS
from dpmesh.deploy.flower import parties
from dpmesh.deploy.flower.parties import Parties
from dpmesh.deploy.flower.supernode import bytes_in, content_of, read, send
from dpmesh.deploy.node import Node
from dpmesh.deploy.router import Router
from dpmesh.deploy.schedule import longest_question

with needed_by("the engine 'flower'"):
    from flwr.app import Message
    from flwr.serverapp import Grid

log = getLogger("flwr")

QUESTION = "query.dpmesh"
"""The type of all messages here."""

PATIENCE = 60.0
"""Seconds in which a question must arrive, and its answer be taken."""

_PEER = struct.Struct("3i")
"""The process, user and group at the other end of a socket."""


class _SentQuestion(NamedTuple):
    """A question on its way: the id of its message, the node it went to, and its bytes."""

    message_id: str
    node: int
    question: bytes


class Courier:
    """Carrier of questions to parties and of their answers, also if a party's node restarts.

    `route` uses it in the ServerApp. It sees public bytes alone, and is trusted with liveness.

    Parameters
    ----------
    grid
        Flower's connection to the nodes.
    names
        The parties' names, in the order of their numbers.
    """

    def __init__(self, grid: Grid, names: Sequence[str]) -> None:
        self._grid = grid
        self._parties = Parties(len(names), names, kind=QUESTION)
        self._sent: dict[int, _SentQuestion] = {}
        """The question on its way to each party, by the party's number."""

    def exchange(self, questions: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send questions to connected parties, without waiting; return answers that have arrived.

        A question that is on its way is sent again only if the party's node has restarted.

        Parameters
        ----------
        questions
            The current question to each party, by its number.

        Returns
        -------
        Answers to current questions, by the party's number.
        """
        connected = self._parties.wait(self._grid, 0, 0.0)
        for party, question in questions.items():
            if party in connected:
                self._send(party, connected[party], question)
        return self._answers(questions)

    def _send(self, party: int, node: int, question: bytes) -> None:
        """Send a question to a party's node, unless it is on its way there."""
        sent = self._sent.get(party)
        if sent is not None and (sent.node, sent.question) == (node, question):
            return
        message = Message(content_of(question), node, QUESTION)
        for message_id in self._grid.push_messages([message]):
            if message_id:  # Flower has none for a node that is gone
                self._sent[party] = _SentQuestion(message_id, node, question)

    def _answers(self, questions: Mapping[int, bytes]) -> dict[int, bytes]:
        """Return the answers that have arrived, by party, without errors and outdated ones."""
        party_of_message = {sent.message_id: party for party, sent in self._sent.items()}
        if not party_of_message:
            return {}
        answers: dict[int, bytes] = {}
        for reply in self._grid.pull_messages(list(party_of_message)):
            party = party_of_message[reply.metadata.reply_to_message_id]
            sent = self._sent.pop(party)
            if sent.question == questions.get(party) and not reply.has_error():
                answers[party] = bytes_in(reply)
        return answers


def route(grid: Grid, router: Router) -> None:
    """Carry a router's questions and the parties' answers until the run is over.

    Parties that miss a deadline are left out. Below the contract's quorum the run pauses, and the
    log names the missing parties.

    Raises
    ------
    RuntimeError
        If the run cannot go on, as fewer parties than the quorum are left for good.
    """
    contract = router.contract
    reported = ""
    courier = Courier(grid, [party.name for party in contract.parties])
    while not router.done:
        failure = router.failure
        if failure:
            raise RuntimeError(f"the run ends early, as too few parties are left ({failure})")
        for party, answer in courier.exchange(router.requests()).items():
            router.take(party, answer)
        if router.waits_since() > contract.terms.deadline and not router.close():
            waits_for = ", ".join(router.waits_for)
            if waits_for != reported:
                log.warning("the run pauses: waiting for %s", waits_for)
            reported = waits_for
        time.sleep(parties.PAUSE)


class WarmNode(getattr(socketserver, "UnixStreamServer", socketserver.TCPServer)):  # type: ignore[misc]
    """A server at a Unix socket that answers questions for a node, one after another; on Linux.

    A party runs it in a process of its own; the SuperNode's app calls `ask`. A process that
    connects is treated as a router: it gets released values alone.

    Parameters
    ----------
    node
        The node.
    path
        Path of the socket, in a folder that the allowed users may enter. An older socket there is
        removed.
    users
        Ids of the users that may ask, beside the user of this process.

    Raises
    ------
    ValueError
        If the path has another kind of file, or the system is not Linux.
    """

    def __init__(self, node: Node, path: str | Path, *, users: Iterable[int] = ()) -> None:
        if not hasattr(socket, "SO_PEERCRED"):
            fail("node", "Linux, whose kernel states which user asks", sys.platform)
        self.node = node
        self._users = {os.geteuid(), *users}
        self.longest = longest_question(node.contract)
        if Path(path).exists() and not Path(path).is_socket():
            fail("path", "that of a socket, or of nothing", path)
        Path(path).unlink(missing_ok=True)
        super().__init__(str(path), _QuestionHandler)
        Path(path).chmod(0o666)  # the folder and the check of users say who may ask

    def verify_request(
        self, request: socket.socket | tuple[bytes, socket.socket], _: object
    ) -> bool:
        """Return True if the kernel names one of the allowed users as the peer."""
        assert isinstance(request, socket.socket)
        credentials = request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return _PEER.unpack(credentials)[1] in self._users

    def handle_error(self, request: Any, client_address: object) -> None:
        """Log that a question was not answered: it was too long, too slow, or cut off.

        Raises
        ------
        OSError, sqlite3.Error
            If the node's disk failed, which ends `serve_forever`.
        """
        error = sys.exc_info()[1]
        if isinstance(error, _DiskError) and error.__cause__ is not None:
            self.shutdown_request(request)
            raise error.__cause__
        text = "a question at the socket of %s was not answered"
        getLogger("dpmesh").warning(text, self.node.name)


class _DiskError(Exception):
    """The node's disk failed, and not the connection."""


class _QuestionHandler(socketserver.BaseRequestHandler):
    """Reads a question from a connection, and sends the node's answer."""

    server: WarmNode

    def handle(self) -> None:
        """Answer one question; see `WarmNode`."""
        end = time.monotonic() + PATIENCE
        question = read(self.request, self.server.longest, end)
        try:
            answer = self.server.node.answer(question)
        except DISK_ERRORS as error:
            raise _DiskError from error
        send(self.request, answer, PATIENCE)
