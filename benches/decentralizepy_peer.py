"""decentralizepy as a peer: every node is a process, and messages between them travel over TCP."""

from __future__ import annotations

from collections.abc import Mapping

from benches.measure import THREADS, Way, skipped
from benches.worker import running, started


def decentralizepy(rounds: int) -> Mapping[str, Way]:
    """Return the peer "decentralizepy": rounds of the nodes of `decentralizepy_worker`.

    Nothing if it is not installed, or on one thread, where only our own processor time counts.
    """
    if THREADS == 1 or skipped("decentralizepy", "github.com/sacs-epfl/decentralizepy"):
        return {}
    return {"decentralizepy": running([started("decentralizepy_worker")], rounds)}
