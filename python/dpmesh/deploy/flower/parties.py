"""Identity of parties on Flower: a party keeps its name, whatever the id of its connection.

A SuperNode that restarts connects under a new id, while its old one still counts for about a
minute. So the server asks each new id for its party's name, and knows parties by names alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from logging import getLogger

from dpmesh._extras import needed_by
from dpmesh._validate import fail
from dpmesh.deploy.flower.supernode import PARTY

with needed_by("the engine 'flower'"):
    from flwr.app import ConfigRecord, Message, MessageType, RecordDict
    from flwr.serverapp import Grid

log = getLogger("flwr")

PAUSE = 1.0
"""Seconds between two looks at who is connected."""

_TRIES = 3
"""How often a node is asked for its name if it answers with an error."""

_LOOKS = 10
"""How many looks lie between two lines of the log that report for whom the server waits."""


class Parties:
    """The parties of a run, numbered from 0, and the nodes under which they are connected.

    Parameters
    ----------
    clients
        Their number.
    names
        Their names, in their order; None for those of the first nodes that introduce themselves.
    kind
        The type of the messages that ask for names.
    """

    def __init__(
        self, clients: int, names: Sequence[str] | None = None, *, kind: str = MessageType.TRAIN
    ) -> None:
        self.clients, self._kind = clients, kind
        self.numbers: dict[str, int] = {name: i for i, name in enumerate(names or ())}
        """The number of each party whose name is known."""
        if names is not None and not len(self.numbers) == len(names) == clients:
            fail("parties", f"{clients} different names, one for each client", list(names))
        self._names: dict[int, str] = {}
        self._pending: dict[str, int] = {}
        self._tries: Counter[int] = Counter()
        self._refused: set[str] = set()

    def wait(self, grid: Grid, clients: int, patience: float) -> dict[int, int]:
        """Return the node of each connected party, by its number.

        It waits, but no longer than `patience` seconds, until `clients` are connected, and logs for
        whom it waits.
        """
        end = time.monotonic() + patience
        looks = 0
        while self._admitted(there := self._connected(grid)) < clients and time.monotonic() < end:
            if looks % _LOOKS == 0:
                many = self._admitted(there)
                absent = self.absent(self._numbered(there))
                log.info("%d clients of at least %d; not connected: %s", many, clients, absent)
            looks += 1
            time.sleep(PAUSE)
        self._admit(there)
        return self._numbered(there)

    def absent(self, there: Collection[int]) -> str:
        """Return the names of the parties that are not among these."""
        absent = [name for name, number in self.numbers.items() if number not in there]
        return ", ".join(absent) or "parties whose names are unknown"

    def _numbered(self, there: Mapping[str, int]) -> dict[int, int]:
        return {self.numbers[name]: node for name, node in there.items() if name in self.numbers}

    def _connected(self, grid: Grid) -> dict[str, int]:
        """Return the node of each name; if several have one name, the last that said so."""
        nodes = set(grid.get_node_ids())
        for node in nodes - self._names.keys() - set(self._pending.values()):
            if self._tries[node] < _TRIES:
                self._tries[node] += 1
                question = Message(RecordDict({PARTY: ConfigRecord()}), node, self._kind)
                self._pending |= {
                    message_id: node for message_id in grid.push_messages([question]) if message_id
                }
        for answer in grid.pull_messages(list(self._pending)) if self._pending else ():
            node = self._pending.pop(answer.metadata.reply_to_message_id)
            name = _name_in(answer)
            if name is not None:
                self._names[node] = name
        return {name: node for node, name in self._names.items() if node in nodes}

    def _admitted(self, there: Mapping[str, int]) -> int:
        """Return how many of these names are known, or can become so."""
        numbered = sum(name in self.numbers for name in there)
        return min(len(there), numbered + self.clients - len(self.numbers))

    def _admit(self, there: Mapping[str, int]) -> None:
        """Number new names while there are places, and log once that others are not admitted."""
        for name in sorted(there, key=lambda name: (len(name), name)):
            if name in self.numbers or name in self._refused:
                continue
            if len(self.numbers) < self.clients:
                self.numbers[name] = len(self.numbers)
            else:
                self._refused.add(name)
                log.warning("%s is none of the %d clients of this run", name, self.clients)


def _name_in(answer: Message) -> str | None:
    if answer.has_error() or PARTY not in answer.content.config_records:
        return None
    name = answer.content.config_records[PARTY].get("name")
    if isinstance(name, str):
        return name
    return None
