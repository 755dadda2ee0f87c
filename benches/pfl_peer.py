"""pfl-research as a peer: processes that wait for rounds to run, since their start is no part."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from benches.measure import THREADS, Way, skipped


def pfl(layers: str, *, epochs: int, rounds: int) -> Mapping[str, Way]:
    """Return the peer "pfl": rounds of a model of `pfl_worker`, shared among `THREADS` processes.

    Nothing where it is not installed, or on one thread, where only our own processor time counts.
    """
    if THREADS == 1 or skipped("pfl"):
        return {}
    processes = [
        _started(rank, port, layers, epochs) for port in [_free()] for rank in range(THREADS)
    ]

    def run() -> None:
        for process in processes:
            process.stdin.write(f"{rounds}\n")
            process.stdin.flush()
        for process in processes:
            if process.stdout.readline() != "done\n":
                raise RuntimeError("a process of pfl failed")

    return {"pfl": run}


def _started(rank: int, port: int, layers: str, epochs: int) -> subprocess.Popen[str]:
    """Start one process; it ends with this one, which closes its standard input."""
    place = {
        "TORCHELASTIC_RUN_ID": "benches",
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": THREADS,
        "LOCAL_WORLD_SIZE": THREADS,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": 1,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "benches.pfl_worker", layers, str(epochs)],
        env={**os.environ, **{name: str(value) for name, value in place.items()}},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
