"""pfl-research as a peer: several processes that simulate the clients together."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from benches.measure import THREADS, Way, skipped
from benches.worker import Worker, running, started


def pfl(layers: str, *, epochs: int, rounds: int) -> Mapping[str, Way]:
    """Return the peer "pfl": rounds of a model of `pfl_worker`, shared among `THREADS` processes.

    Nothing if it is not installed, or on one thread, where only our own processor time counts.
    """
    if THREADS == 1 or skipped("pfl"):
        return {}
    port = _free()
    workers = [_started(rank, port, layers, epochs) for rank in range(THREADS)]
    return {"pfl": running(workers, rounds)}


def _started(rank: int, port: int, layers: str, epochs: int) -> Worker:
    return started(
        "pfl_worker",
        layers,
        epochs,
        TORCHELASTIC_RUN_ID="benches",
        RANK=rank,
        LOCAL_RANK=rank,
        WORLD_SIZE=THREADS,
        LOCAL_WORLD_SIZE=THREADS,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
