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
"""Returns the answer to a question: all that leaves the node."""

PARTY = "dpmesh-party"
"""Names the party in a SuperNode's ``--node-config``; also the record that asks for the name."""

_RECORD, _BYTES = "dpmesh", "bytes"

LENGTH = struct.Struct("!Q")
"""What comes before a message at a socket."""


class NoAnswerError(RuntimeError):
    """A party did not answer; the reason may reveal its data, and is in its own log."""


def answers(app: ClientApp) -> Callable[[Answer], Answer]:
    """Return a decorator of the function that answers the questions to a SuperNode.

    Flower calls it in a process of its own for each question, so it opens the party's file anew and
    closes it. What it raises stays in the node's log.
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
    """Return whether the server asks for the party's name, and for nothing else."""
    return PARTY in message.content.config_records


def introduction(message: Message, context: Context) -> Message:
    """Return the party's name: from the node's configuration, else its partition or its id."""
    config = context.node_config
    name = config.get(PARTY, config.get("partition-id", f"node {context.node_id}"))
    return Message(RecordDict({PARTY: ConfigRecord({"name": str(name)})}), reply_to=message)


def content_of(data: bytes) -> RecordDict:
    """Return bytes as the content of a message."""
    return RecordDict({_RECORD: ConfigRecord({_BYTES: data})})


def bytes_in(message: Message) -> bytes:
    """Return the bytes of a message, none if it holds none."""
    if _RECORD not in message.content.config_records:
        return b""
    data = message.content.config_records[_RECORD].get(_BYTES)
    if isinstance(data, bytes):
        return data
    return b""


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
        send(there, question, patience)
        return read(there, 2**32, time.monotonic() + patience)


def send(there: socket.socket, message: bytes, patience: float) -> None:
    """Send a message over a socket, with its length."""
    there.settimeout(patience)
    there.sendall(LENGTH.pack(len(message)) + message)  # whose timeout is for the whole


def read(there: socket.socket, longest: int, end: float) -> bytes:
    """Return a message; fail if it is longer, or not there in time."""
    (length,) = LENGTH.unpack(_exactly(there, LENGTH.size, end))
    if length > longest:
        raise OSError(f"a message of {length} bytes, where at most {longest} are allowed")
    return _exactly(there, length, end)


def _exactly(there: socket.socket, length: int, end: float) -> bytes:
    parts = list[bytes]()
    remaining = length
    while remaining:
        there.settimeout(max(1e-3, end - time.monotonic()))
        part = there.recv(min(remaining, 2**20))
        if not part or time.monotonic() > end:
            raise OSError("the other end closed, or is too slow")
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)
