"""Flower's simulation as a peer: clients in processes of Ray, and a server that sums."""

from __future__ import annotations

from collections.abc import Mapping

from benches.measure import THREADS, Way, skipped
from benches.worker import running, started


def flower(rounds: int) -> Mapping[str, Way]:
    """Return the peer "flower": rounds of `flower_worker`, in `THREADS` processes.

    Nothing if it is not installed, or on one thread, where only our own processor time counts.
    """
    if THREADS == 1 or skipped("flwr") or skipped("ray"):
        return {}
    return {"flower": running([started("flower_worker", THREADS)], rounds)}
