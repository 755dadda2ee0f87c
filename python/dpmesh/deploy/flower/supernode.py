"""A SuperNode's side of a contract: it answers questions, or passes them on to a node at a socket.

Flower starts a process for each question. So this module imports Flower and sockets, and nothing of
the rest of the package.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from dpmesh._extras import needed_by

with needed_by("the engine 'flower'"):
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

Answer: TypeAlias = Callable[[bytes, Context], bytes]
"""A function from a question, and Flower's context, to the answer, which leaves the node."""

PARTY = "dpmesh-party"
"""Names the party in a SuperNode's ``--node-config``; also the record that asks for the name."""

_RECORD = "dpmesh"
_BYTES = "bytes"
"""Names of the record of a message, and of its entry with the bytes."""

_LONGEST_ANSWER = 2**32
"""Most bytes of an answer that is read from a socket."""

LENGTH = struct.Struct("!Q")
"""Format of the length before each message at a socket."""


class NoAnswerError(RuntimeError):
    """A party did not answer. The reason may reveal its data, and is in its own log alone."""


def answers(app: ClientApp) -> Callable[[Answer], Answer]:
    """Return a decorator that registers a function as the answer to a SuperNode's questions.

    Flower calls the function in a new process for each question: it opens the party's folder and
    closes it, or calls `ask`. Its errors stay in the node's log.
    """

    def register(answer: Answer) -> Answer:
        def answered(message: Message, context: Context) -> Message:
            if asks_for_name(message):
                return introduction(message, context)
            try:
                reply = answer(bytes_in(message), context)
            except Exception as error:  # Flower sends its text to the server
                raise NoAnswerError("the node's log states why") from error
            return Message(content_of(reply), reply_to=message)

        app.query("dpmesh")(answered)
        return answer

    return register


def asks_for_name(message: Message) -> bool:
    """Return True if the server asks for the party's name alone."""
    return PARTY in message.content.config_records


def introduction(message: Message, context: Context) -> Message:
    """Return the answer with the party's name: as configured, or the partition or the node's id."""
    config = context.node_config
    name = config.get(PARTY, config.get("partition-id", f"node {context.node_id}"))
    return Message(RecordDict({PARTY: ConfigRecord({"name": str(name)})}), reply_to=message)


def content_of(data: bytes) -> RecordDict:
    """Return bytes as the content of a message."""
    return RecordDict({_RECORD: ConfigRecord({_BYTES: data})})


def bytes_in(message: Message) -> bytes:
    """Return the bytes in a message; empty if it holds none."""
    if _RECORD not in message.content.config_records:
        return b""
    data = message.content.config_records[_RECORD].get(_BYTES)
    if isinstance(data, bytes):
        return data
    return b""


def ask(path: str | Path, question: bytes, *, patience: float = 600.0) -> bytes:
    """Return the answer of the `WarmNode` at a socket.

    Parameters
    ----------
    path
        Path of the socket.
    question
        The question, as bytes.
    patience
        Most seconds to wait.

    Raises
    ------
    OSError
        If no node answers in time.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(patience)
        connection.connect(str(path))
        send(connection, question, patience)
        return read(connection, _LONGEST_ANSWER, time.monotonic() + patience)


def send(connection: socket.socket, message: bytes, patience: float) -> None:
    """Send a message over a connection, after its length, within `patience` seconds."""
    connection.settimeout(patience)
    connection.sendall(LENGTH.pack(len(message)) + message)  # its timeout is for the whole


def read(connection: socket.socket, longest: int, end: float) -> bytes:
    """Return a message from a connection.

    Raises
    ------
    OSError
        If it has more than `longest` bytes, or has not arrived at the time `end`.
    """
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size, end))
    if length > longest:
        raise OSError(f"a message of {length} bytes, where at most {longest} are allowed")
    return _exactly(connection, length, end)


def _exactly(connection: socket.socket, length: int, end: float) -> bytes:
    """Return so many bytes from a connection; see `read`."""
    parts = list[bytes]()
    remaining = length
    while remaining:
        connection.settimeout(max(1e-3, end - time.monotonic()))
        part = connection.recv(min(remaining, 2**20))
        if not part or time.monotonic() > end:
            raise OSError("the other end closed, or is too slow")
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)
