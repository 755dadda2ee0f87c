"""Strong and weak scaling of gossip over MPI on this machine: `python -m benches.mpi_scaling`.

A round is Laplace noise and mixing on a torus, one thread a rank. Strong: the same nodes dealt out
to more ranks. Weak: as many nodes for each rank. Bytes are those that leave a rank in a round,
beside what the best cut of the torus into strips would send. More ranks than idle cores say
nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

DIM, ROUNDS = 1_000, 15
STRONG, WEAK = 128, 64
"""Side of the torus of all nodes, and of the part of one rank."""


def one_rank(rows: int, columns: int) -> None:
    """Run the rounds on this rank; rank 0 prints the median time and the bytes of the busiest."""
    import numpy as np
    from mpi4py import MPI

    import dpmesh as dm
    from dpmesh.engines.gossip import MpiGossip
    from dpmesh.engines.mpi import MpiEngine
    from dpmesh.keys import Purpose
    from dpmesh.privacy.types import Released

    network = dm.topology.torus(rows, columns)
    engine, ranks = MpiEngine(network), MPI.COMM_WORLD
    exchange = MpiGossip(engine, network)
    key = dm.Key.seeded(0).for_nodes(engine.nodes.astype(np.uint32))
    x = np.zeros((len(engine.nodes), DIM), np.float32)
    seconds = []
    for t in range(ROUNDS):
        ranks.Barrier()
        start = time.perf_counter()
        noisy = dm.kernels.add_laplace(x, 1.0, key.stream(Purpose.NOISE, t))
        x = exchange(t, Released(noisy))
        seconds.append(ranks.allreduce(time.perf_counter() - start, MPI.MAX))
    sent = ranks.allreduce(exchange.bytes_sent / ROUNDS, MPI.MAX)
    if engine.is_root:
        print(json.dumps([statistics.median(seconds), sent]))


def measured(ranks: int, rows: int, columns: int) -> tuple[float, float]:
    """Return seconds of a round, and bytes that leave the busiest rank in it."""
    here = str(Path(sys.executable).parent)
    launcher = shutil.which("mpiexec", path=here) or shutil.which("mpiexec")
    if launcher is None:
        sys.exit("needs mpiexec")
    program = [sys.executable, "-m", "mpi4py", "-m", "benches.mpi_scaling"]
    command = [launcher, "-n", str(ranks), *program, str(rows), str(columns)]
    environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
    output = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout
    seconds, sent = json.loads(output)
    return seconds, sent


def main() -> None:
    """Measure every number of ranks that has a core of its own."""
    counts = [n for n in (1, 2, 4, 8) if n <= (os.cpu_count() or 1)]
    print(f"{'':<8}{'ranks':>6}{'nodes':>8}{'ms/round':>10}{'speed':>8}{'MB/rank':>9}{'least':>8}")
    for kind in ("strong", "weak"):
        alone = 0.0
        for ranks in counts:
            rows, columns = (STRONG, STRONG) if kind == "strong" else (WEAK * ranks, WEAK)
            seconds, sent = measured(ranks, rows, columns)
            alone = alone or seconds
            speed = alone / seconds * (1 if kind == "strong" else ranks)
            strips = 2 if ranks > 1 else 0
            least = strips * min(rows, columns) * DIM * 4
            cells = f"{rows * columns:>8}{1e3 * seconds:>10.2f}{speed:>8.2f}"
            print(f"{kind:<8}{ranks:>6}{cells}{sent / 1e6:>9.2f}{least / 1e6:>8.2f}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        one_rank(int(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
