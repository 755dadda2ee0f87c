"""Bytes over Flower: what carries the questions of a contract between SuperNodes.

Nodes and routers of `dpmesh.deploy` know no transport. Here a
SuperNode answers questions by a function of its own app, and a ServerApp asks them:

    @answers(client_app)                                        @server_app.main()
    def answer(question, context):                              def main(grid, context):
        return my_node(context).answer(question)                    route(grid, router_of(contract))

The SuperLink and the ServerApp are trusted with nothing but liveness: what protects the bytes is in
them. A SuperNode states which party it is by its ``dpmesh-party``; who signed an answer is another
matter, and that is what counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from typing import TYPE_CHECKING, NamedTuple

from dpmesh._extras import needed_by
from dpmesh.deploy.flower import parties
from dpmesh.deploy.flower.parties import Parties, asks_for_name, introduction

with needed_by("the engine 'flower'"):
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

if TYPE_CHECKING:
    from dpmesh.deploy import Router

log = getLogger("flwr")

Answer = Callable[[bytes, Context], bytes]
"""Returns the answer to a question: all that leaves the node."""

QUESTION = "query.dpmesh"
"""The type of all messages here."""

_RECORD, _BYTES = "dpmesh", "bytes"


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
                said = answer(_bytes_in(message), context)
            except Exception as error:  # Flower sends its text to the server
                raise NoAnswerError("the node's log states why") from error
            return Message(_content(said), reply_to=message)

        app.query("dpmesh")(answered)
        return answer

    return register


class _Sent(NamedTuple):
    name: str
    node: int
    question: bytes


class Courier:
    """Carries questions to parties, and their answers back, whatever ids they are connected under.

    Parameters
    ----------
    grid
        Flower's.
    names
        The parties' names, in the order of their numbers.
    """

    def __init__(self, grid: Grid, names: Sequence[str]) -> None:
        self._grid = grid
        self._parties = Parties(len(names), names, kind=QUESTION)
        self._sent: dict[int, _Sent] = {}

    def look(self, questions: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send what is not on its way, to those that are connected; return what has arrived.

        A party that restarts meanwhile is asked again.
        """
        there = self._parties.wait(self._grid, 0, 0.0)
        for party, question in questions.items():
            sent, node = self._sent.get(party), there.get(party)
            if node is None or (sent is not None and sent[1:] == (node, question)):
                continue
            message = Message(_content(question), node, QUESTION)
            for name in self._grid.push_messages([message]):
                if name:
                    self._sent[party] = _Sent(name, node, question)
        of = {sent.name: party for party, sent in self._sent.items()}
        said = {}
        for reply in self._grid.pull_messages(list(of)) if of else ():
            party = of[reply.metadata.reply_to_message_id]
            if self._sent.pop(party).question == questions.get(party) and not reply.has_error():
                said[party] = _bytes_in(reply)
        return said


def route(grid: Grid, router: Router) -> None:
    """Carry the rows of a mesh until its run is over; a party that is late is left out.

    Below the contract's quorum the run pauses, and the log reports for whom.
    """
    contract, reported = router.contract, ""
    courier = Courier(grid, [party.name for party in contract.parties])
    while not router.done:
        for party, said in courier.look(router.requests()).items():
            router.take(party, said)
        if router.waits_since() > contract.terms.deadline and not router.close():
            waits = ", ".join(router.waits_for)
            if waits != reported:
                log.warning("the run pauses: waiting for %s", waits)
            reported = waits
        time.sleep(parties.PAUSE)


def _content(data: bytes) -> RecordDict:
    return RecordDict({_RECORD: ConfigRecord({_BYTES: data})})


def _bytes_in(message: Message) -> bytes:
    """Return the bytes of a message, none if it holds none."""
    if _RECORD not in message.content.config_records:
        return b""
    data = message.content.config_records[_RECORD].get(_BYTES)
    return data if isinstance(data, bytes) else b""
