"""Which partners share a secret with a node in a round: processes that know of each other.

A process draws a number at its start and keeps it in memory alone. With each row it signs its own
number, and those of its partners in the next round as it has them. Two partners share a secret in a
round if the rows before it, that each has of both, name both numbers alike, and it still has its
own. The secret's key is of the contract, the round and the two numbers: after a restart, or in a
folder that was restored, no secret is used again.
"""

from __future__ import annotations

from collections.abc import Iterable
from secrets import token_bytes

from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import digest
from dpmesh.deploy.wire import PROCESS_BYTES, Row


class Partners:
    """The partners of one node, by what they signed.

    Parameters
    ----------
    schedule, node
        Whose partners they are.
    rehearsal
        Whether the numbers of processes are known and the same after each start.
    """

    def __init__(self, schedule: Schedule, node: int, *, rehearsal: bool) -> None:
        self._schedule, self._node = schedule, node
        parties = range(schedule.contract.nodes) if rehearsal else ()
        self._known = {n: digest(b"rehearsal", str(n).encode())[:PROCESS_BYTES] for n in parties}
        self.process = self._known.get(node) or token_bytes(PROCESS_BYTES)

    def hear(self, party: int, said: bytes) -> None:
        """Take over what a party signed of itself, unless that is shorter than a number."""
        if len(said) >= PROCESS_BYTES:  # or it would move the numbers of others in a statement
            self._known[party] = said[:PROCESS_BYTES]

    def statement(self, t: int) -> bytes:
        """Return what the node signs before round t."""
        nobody, others = bytes(PROCESS_BYTES), self._schedule.partners(t, self._node)
        return b"".join([self.process, *(self._known.get(other, nobody) for other in others)])

    def counted(self, own: Row | None, rows: Iterable[Row]) -> dict[int, bytes]:
        """Return the number of each partner who counts, by the rows before a round."""
        mine, found = {} if own is None else self._numbers_in(own), dict[int, bytes]()
        for row in rows:
            theirs, node, other = self._numbers_in(row), self._node, row.party
            alike = mine.get(other) is not None and mine.get(other) == theirs.get(other)
            if alike and mine.get(node) == theirs.get(node) == self.process:
                found[other] = theirs[other]
        return found

    def _numbers_in(self, row: Row) -> dict[int, bytes]:
        """Return the numbers that a row names: its party's, and those of its partners."""
        starts = range(0, len(row.said), PROCESS_BYTES)
        numbers = [row.said[start : start + PROCESS_BYTES] for start in starts]
        parties = (row.party, *self._schedule.partners(row.at.round + 1, row.party))
        return dict(zip(parties, numbers, strict=False))
