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
"""Seconds between two requests for the connected nodes."""

_TRIES = 3
"""Most questions to a node for its name, as it may answer with an error."""

_REQUESTS_BETWEEN_NOTICES = 10
"""Requests for the connected nodes between two log lines with the missing parties."""


class Parties:
    """The parties of a run, numbered from 0, and the Flower nodes under which they are connected.

    The server's strategy and the `Courier` use it. Names are not authenticated: Flower's own
    authentication of SuperNodes, or the signatures of a contract, show who a party is.

    Parameters
    ----------
    clients
        Number of parties.
    names
        Names of the parties, in the order of their numbers; None to number the first nodes that
        connect.
    kind
        Flower's type of the messages that ask for names.
    """

    def __init__(
        self, clients: int, names: Sequence[str] | None = None, *, kind: str = MessageType.TRAIN
    ) -> None:
        self.clients = clients
        self._kind = kind
        self.numbers: dict[str, int] = {name: i for i, name in enumerate(names or ())}
        """The number of each party, by its name."""
        if names is not None and not len(self.numbers) == len(names) == clients:
            fail("parties", f"{clients} different names, one for each client", list(names))
        self._names: dict[int, str] = {}
        """The name that each node has stated, by its id."""
        self._pending: dict[str, int] = {}
        """The node of each unanswered question for a name, by the id of the message."""
        self._tries: Counter[int] = Counter()
        """Number of questions for its name to each node."""
        self._refused: set[str] = set()
        """Names of nodes that are not among the parties, and were logged."""

    def wait(self, grid: Grid, clients: int, patience: float) -> dict[int, int]:
        """Wait until parties are connected; return the node of each connected one, by its number.

        Parameters
        ----------
        grid
            Flower's connection to the nodes.
        clients
            Number of parties to wait for; the log names the missing ones.
        patience
            Most seconds to wait.
        """
        end = time.monotonic() + patience
        requests = 0
        connected = self._connected(grid)
        while self._count_parties(connected) < clients and time.monotonic() < end:
            if requests % _REQUESTS_BETWEEN_NOTICES == 0:
                count = self._count_parties(connected)
                absent = self.absent(self._by_number(connected))
                log.info("%d clients of at least %d; not connected: %s", count, clients, absent)
            requests += 1
            time.sleep(PAUSE)
            connected = self._connected(grid)
        self._admit(connected)
        return self._by_number(connected)

    def absent(self, connected: Collection[int]) -> str:
        """Return the names of the parties whose numbers are not among the connected ones."""
        absent = [name for name, number in self.numbers.items() if number not in connected]
        return ", ".join(absent) or "parties whose names are unknown"

    def _by_number(self, connected: Mapping[str, int]) -> dict[int, int]:
        """Return the nodes of connected parties by number, from those by name."""
        return {
            self.numbers[name]: node for name, node in connected.items() if name in self.numbers
        }

    def _connected(self, grid: Grid) -> dict[str, int]:
        """Ask new nodes for their names; return the connected node of each name, the newest one."""
        nodes = set(grid.get_node_ids())
        self._ask_for_names(grid, nodes - self._names.keys() - set(self._pending.values()))
        self._take_names(grid)
        return {name: node for node, name in self._names.items() if node in nodes}

    def _ask_for_names(self, grid: Grid, nodes: set[int]) -> None:
        """Ask these nodes for their names, each at most `_TRIES` times."""
        for node in nodes:
            if self._tries[node] >= _TRIES:
                continue
            self._tries[node] += 1
            question = Message(RecordDict({PARTY: ConfigRecord()}), node, self._kind)
            for message_id in grid.push_messages([question]):
                if message_id:  # Flower has none for a node that is gone
                    self._pending[message_id] = node

    def _take_names(self, grid: Grid) -> None:
        """Take the names in the answers that have arrived."""
        if not self._pending:
            return
        for answer in grid.pull_messages(list(self._pending)):
            node = self._pending.pop(answer.metadata.reply_to_message_id)
            name = _name_in(answer)
            if name is not None:
                self._names[node] = name

    def _count_parties(self, connected: Mapping[str, int]) -> int:
        """Return the number of connected names that have a number, or can still get one."""
        numbered = sum(name in self.numbers for name in connected)
        unnumbered_parties = self.clients - len(self.numbers)
        return min(len(connected), numbered + unnumbered_parties)

    def _admit(self, connected: Mapping[str, int]) -> None:
        """Number new names as long as parties lack one, and log once that others are refused."""
        for name in sorted(connected, key=lambda name: (len(name), name)):
            if name in self.numbers or name in self._refused:
                continue
            if len(self.numbers) < self.clients:
                self.numbers[name] = len(self.numbers)
            else:
                self._refused.add(name)
                log.warning("%s is none of the %d clients of this run", name, self.clients)


def _name_in(answer: Message) -> str | None:
    """Return the name that a node states in its answer; None if it states none."""
    if answer.has_error() or PARTY not in answer.content.config_records:
        return None
    name = answer.content.config_records[PARTY].get("name")
    if isinstance(name, str):
        return name
    return None
